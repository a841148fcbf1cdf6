//! Against a server that answers as it is told.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpListener;

use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::etcd::versions;
use quorate_core::model::Ledger;
use quorate_core::providers::openstack::OpenstackSettings;
use quorate_core::spec;

use super::super::Openstack;
use super::super::credentials::{Login, Who};
use super::*;
use crate::Provider;
use crate::marks::{Mark, State};

/// What the server does with the next request that is not for a token.
#[derive(Clone, Debug)]
enum Then {
    Answer(u16, Value),
    /// To another path of the same server.
    Redirect(&'static str),
    Cut,
}

#[derive(Default)]
struct Script {
    then: VecDeque<Then>,
    seen: Vec<String>,
    tokens: usize,
    /// For how many seconds tokens are good.
    good_for: i64,
}

type Shared = Arc<Mutex<Script>>;

async fn serve(script: Shared) -> Session {
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
        overrides: vec![(String::from("compute"), url)],
    };
    let pause = Duration::from_millis(1);
    Session::new(cloud, Retry { attempts: 4, first: pause, longest: pause }).unwrap()
}

async fn answer(request: Request<Incoming>, script: Shared) -> Result<Response<Full<Bytes>>, std::io::Error> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    body.collect().await.map_err(std::io::Error::other)?;
    let mut script = script.lock().unwrap();
    let response = Response::builder();
    if path == "/v3/auth/tokens" {
        script.tokens += 1;
        let expires = Timestamp::now() + SignedDuration::from_secs(script.good_for);
        let body = json!({ "token": { "expires_at": expires.to_string(), "project": { "id": "p" } } });
        let response = response.status(201).header(NEW_TOKEN, format!("t0ken{}", script.tokens));
        return Ok(response.body(Full::new(body.to_string().into())).unwrap());
    }
    let token = parts.headers.get(TOKEN).and_then(|token| token.to_str().ok()).unwrap_or_default();
    script.seen.push(format!("{} {path} {token}", parts.method));
    match script.then.pop_front().unwrap_or(Then::Answer(200, json!({ "done": true }))) {
        Then::Answer(status, body) => Ok(response.status(status).body(Full::new(body.to_string().into())).unwrap()),
        Then::Redirect(to) => Ok(response.status(302).header("location", to).body(Full::default()).unwrap()),
        Then::Cut => Err(std::io::Error::other("cut")),
    }
}

fn script(then: impl IntoIterator<Item = Then>) -> Shared {
    let then = then.into_iter().collect();
    Arc::new(Mutex::new(Script { then, good_for: 3600, ..Script::default() }))
}

fn status(status: u16) -> Then {
    Then::Answer(status, json!({ "badRequest": { "message": "told to" } }))
}

fn post() -> Call {
    Call::new("create a thing", Service::Compute, Method::POST, "/things").json(json!({}))
}

async fn get(session: &Session) -> Result<Option<Value>, OpenstackError> {
    session.get("look", Service::Compute, "/things", None).await
}

#[tokio::test]
async fn what_may_pass_is_repeated_and_what_does_not_is_told() {
    for passing in [status(500), status(503), status(429), status(413), Then::Cut] {
        let script = script([passing.clone(), passing]);
        let session = serve(script.clone()).await;
        assert_eq!(get(&session).await.unwrap(), Some(json!({ "done": true })));
        assert_eq!(script.lock().unwrap().seen.len(), 3);
    }
    let script = script((0..10).map(|_| status(503)));
    let session = serve(script.clone()).await;
    let said = get(&session).await.unwrap_err().to_string();
    assert_eq!(said, "OpenStack failed to look (503): told to");
    assert_eq!(script.lock().unwrap().seen.len(), 4, "within bounds");
}

#[tokio::test]
async fn a_refusal_is_not_repeated() {
    let script = script([status(403)]);
    let session = serve(script.clone()).await;
    assert_eq!(get(&session).await.unwrap_err().to_string(), "OpenStack refused to look (403): told to");
    assert_eq!(script.lock().unwrap().seen.len(), 1);
    script.lock().unwrap().then.push_back(status(404));
    assert_eq!(get(&session).await.unwrap(), None);
}

#[tokio::test]
async fn a_token_does_not_follow_a_redirect() {
    let script = script([Then::Redirect("/elsewhere")]);
    let session = serve(script.clone()).await;
    let said = get(&session).await.unwrap_err().to_string();
    assert!(said.contains("302"), "{said}");
    assert_eq!(script.lock().unwrap().seen, ["GET /v2.1/things t0ken1"]);
}

#[tokio::test]
async fn many_calls_share_a_token_until_it_expires_or_is_refused() {
    let script = script([]);
    let session = serve(script.clone()).await;
    let (first, second) = tokio::join!(get(&session), get(&session));
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(script.lock().unwrap().tokens, 1);
    script.lock().unwrap().then.push_back(status(401));
    get(&session).await.unwrap();
    assert_eq!(script.lock().unwrap().tokens, 2);
    assert!(script.lock().unwrap().seen.last().unwrap().ends_with("t0ken2"));
    // Twice in a row is not about the token.
    script.lock().unwrap().then.extend([status(401), status(401)]);
    let said = get(&session).await.unwrap_err().to_string();
    assert!(said.contains("401") && !said.contains("t0ken"), "{said}");

    let script = self::script([]);
    script.lock().unwrap().good_for = 60;
    let session = serve(script.clone()).await;
    get(&session).await.unwrap();
    get(&session).await.unwrap();
    assert_eq!(script.lock().unwrap().tokens, 2, "one that is about to expire is replaced");
}

#[tokio::test]
async fn what_was_created_although_the_answer_was_lost_is_not_created_again() {
    for lost in [Then::Cut, status(500), status(504)] {
        let script = script([lost]);
        let session = serve(script.clone()).await;
        let find = async || Ok(Some(json!({ "found": true })));
        assert_eq!(session.create(post(), find).await.unwrap(), json!({ "found": true }));
        assert_eq!(script.lock().unwrap().seen.len(), 1);
    }
}

#[tokio::test]
async fn what_was_not_created_is_created_after_a_look() {
    let script = script([Then::Cut, status(503)]);
    let session = serve(script.clone()).await;
    let looks = std::cell::Cell::new(0);
    let find = async || {
        looks.set(looks.get() + 1);
        Ok(None)
    };
    assert_eq!(session.create(post(), find).await.unwrap(), json!({ "done": true }));
    assert_eq!((looks.get(), script.lock().unwrap().seen.len()), (2, 3));
}

#[tokio::test]
async fn what_comes_late_is_found_when_the_second_attempt_conflicts() {
    let script = script([Then::Cut, status(409)]);
    let session = serve(script.clone()).await;
    let looks = std::cell::Cell::new(0);
    let find = async || {
        looks.set(looks.get() + 1);
        Ok((looks.get() > 1).then(|| json!({ "found": true })))
    };
    assert_eq!(session.create(post(), find).await.unwrap(), json!({ "found": true }));
    assert_eq!(script.lock().unwrap().seen.len(), 2);
    // Without a lost answer a conflict is a refusal.
    let script = self::script([status(409)]);
    let session = serve(script.clone()).await;
    let refused = session.create(post(), async || panic!("nothing was lost")).await.unwrap_err();
    assert!(refused.is_conflict(), "{refused}");
}

#[tokio::test]
async fn pages_are_followed() {
    let page = |id: u64, next: bool| {
        let mut page = json!({ "servers": [{ "id": id }] });
        if next {
            page["servers_links"] = json!([{ "rel": "next", "href": "http://elsewhere/v2.1/servers/detail?marker=x" }]);
        }
        Then::Answer(200, page)
    };
    let script = script([page(1, true), page(2, false)]);
    let session = serve(script.clone()).await;
    let all = session.list("list", Service::Compute, "/servers/detail", "servers", None).await.unwrap();
    assert_eq!(all, [json!({ "id": 1 }), json!({ "id": 2 })]);
    assert_eq!(script.lock().unwrap().seen.len(), 2);
}

#[test]
fn pauses_grow_and_what_a_server_asks_for_is_bounded() {
    let second = Duration::from_secs(1);
    let retry = Retry { attempts: 9, first: second, longest: 8 * second };
    for _ in 0..50 {
        assert!((0.74..=1.26).contains(&retry.pause(1, None).as_secs_f64()));
        assert!((2.9..=5.1).contains(&retry.pause(3, None).as_secs_f64()));
        assert!(retry.pause(9, None) <= 11 * second);
        assert_eq!(retry.pause(1, Some(20 * second)), 20 * second);
        assert_eq!(retry.pause(1, Some(3600 * second)), 32 * second);
    }
}

/// A cluster of this name that is only looked at, with this session.
fn observed(name: &str, session: &Rc<Session>) -> Openstack {
    let spec = spec::generated(name, 1, versions::DEFAULT, ClientAuth::Certificate).unwrap().clusters.remove(0);
    let settings = json!({ "image": "m", "flavor": "f", "network": "n" });
    let settings: OpenstackSettings = serde_json::from_value(settings).unwrap();
    let ledger = Ledger::new(format!("id-{name}"), spec);
    let mut observed = Openstack::new(&ledger, &settings).only_looking();
    observed.session = session.clone().into();
    observed
}

fn server(cluster: &str) -> Value {
    let mark = Mark {
        cluster: cluster.to_owned(),
        cluster_id: format!("id-{cluster}"),
        member: "etcd-1".into(),
        incarnation: 1,
        address: "10.0.0.1".parse().unwrap(),
        fence: 1,
        state: State::Whole,
        port: None,
        data: None,
        build: None,
        flavor: None,
    };
    json!({ "id": cluster, "status": "ACTIVE", "OS-EXT-STS:power_state": 1, "metadata": mark.parts() })
}

#[tokio::test]
async fn clusters_that_are_only_looked_at_share_a_list() {
    let names: Vec<String> = (0..100).map(|n| format!("c{n}")).collect();
    let all: Vec<Value> = names.iter().map(|name| server(name)).collect();
    let list = |servers: Vec<Value>| Then::Answer(200, json!({ "servers": servers }));
    let script = script([list(vec![server("c0")]), list(all)]);
    let session = Rc::new(serve(script.clone()).await);
    for name in &names {
        let found = observed(name, &session).machines().await.unwrap().found;
        assert_eq!(found.len(), 1, "{name}");
        assert_eq!(found[0].1.cluster_id, format!("id-{name}"));
    }
    let (calls, tokens) = {
        let script = script.lock().unwrap();
        (script.seen.len(), script.tokens)
    };
    assert_eq!((calls, tokens), (2, 1), "one by tag, one for all, one token");
    // Who looks again sees what is new.
    script.lock().unwrap().then.push_back(list(Vec::new()));
    assert_eq!(observed("c5", &session).machines().await.unwrap().found.len(), 0);
    // So does everybody after this program has changed anything.
    let again = [list(Vec::new()), list(vec![server("c7")]), status(200), list(vec![])];
    script.lock().unwrap().then.extend(again);
    assert_eq!(observed("c5", &session).machines().await.unwrap().found.len(), 0);
    assert_eq!(observed("c7", &session).machines().await.unwrap().found.len(), 1);
    session.change(post()).await.unwrap();
    assert_eq!(observed("c8", &session).machines().await.unwrap().found.len(), 0);
    assert_eq!(script.lock().unwrap().seen.len(), 7);
    // A cluster that acts never takes what was listed for others.
    let acting = Openstack { only_looks: false, ..observed("c9", &session) };
    acting.machines().await.unwrap();
    assert_eq!(script.lock().unwrap().seen.len(), 8);
}
