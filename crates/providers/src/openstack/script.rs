//! For tests: a server with scripted answers, in place of all services of a cloud.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use jiff::{SignedDuration, Timestamp};
use quorate_core::Secret;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::credentials::{Cloud, Login, Who};
use super::session::Session;
use crate::web::Retry;

/// What the server does with the next request that is not for a token.
#[derive(Clone, Debug)]
pub(super) enum Then {
    Answer(u16, Value),
    /// To another path of the same server.
    Redirect(&'static str),
    Cut,
}

#[derive(Default)]
pub(super) struct Script {
    pub(super) then: VecDeque<Then>,
    /// What it answers after that, by method and path, with its query or for any.
    pub(super) always: BTreeMap<String, Then>,
    pub(super) seen: Vec<String>,
    /// Calls that changed anything, by method and path, with what was sent.
    pub(super) sent: Vec<(String, Value)>,
    pub(super) tokens: usize,
    /// For how many seconds tokens are good.
    pub(super) good_for: i64,
}

pub(super) type Shared = Arc<Mutex<Script>>;

pub(super) async fn serve(script: Shared) -> Session {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let script = script.clone();
            let service = service_fn(move |request| answer(request, script.clone()));
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    let who = Who::Id(String::from("x"));
    let cloud = Cloud {
        name: String::from("lab"),
        auth_url: format!("{url}/v3"),
        login: Login::Password { user: who.clone(), password: Secret::new("pa55word"), project: who },
        region: None,
        interface: String::from("public"),
        ca_file: None,
        overrides: ["compute", "network", "image", "block-storage"].map(|name| (name.to_owned(), url.clone())).into(),
    };
    let pause = Duration::from_millis(1);
    Session::new(cloud, Retry { attempts: 4, first: pause, longest: pause }).unwrap()
}

async fn answer(request: Request<Incoming>, script: Shared) -> Result<Response<Full<Bytes>>, std::io::Error> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let query = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    let mut script = script.lock().unwrap();
    let response = Response::builder();
    if path == "/v3/auth/tokens" {
        script.tokens += 1;
        let expires = Timestamp::now() + SignedDuration::from_secs(script.good_for);
        let body = json!({ "token": { "expires_at": expires.to_string(), "project": { "id": "p" } } });
        let response = response.status(201).header("X-Subject-Token", format!("t0ken{}", script.tokens));
        return Ok(response.body(Full::new(body.to_string().into())).unwrap());
    }
    let token = parts.headers.get("X-Auth-Token").and_then(|token| token.to_str().ok()).unwrap_or_default();
    script.seen.push(format!("{} {path} {token}", parts.method));
    if parts.method != Method::GET {
        script.sent.push((format!("{} {path}", parts.method), serde_json::from_slice(&body).unwrap_or_default()));
    }
    let told = |path: &str| script.always.get(&format!("{} {path}", parts.method)).cloned();
    let always = told(&query).or_else(|| told(&path));
    match script.then.pop_front().or(always).unwrap_or(Then::Answer(200, json!({ "done": true }))) {
        Then::Answer(status, body) => Ok(response.status(status).body(Full::new(body.to_string().into())).unwrap()),
        Then::Redirect(to) => Ok(response.status(302).header("location", to).body(Full::default()).unwrap()),
        Then::Cut => Err(std::io::Error::other("cut")),
    }
}

pub(super) fn script(then: impl IntoIterator<Item = Then>) -> Shared {
    let then = then.into_iter().collect();
    Arc::new(Mutex::new(Script { then, good_for: 3600, ..Script::default() }))
}

pub(super) fn status(status: u16) -> Then {
    Then::Answer(status, json!({ "badRequest": { "message": "told to" } }))
}
