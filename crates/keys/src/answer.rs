//! Answers a request.

use std::io;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, X_CONTENT_TYPE_OPTIONS};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use jiff::Timestamp;
use quorate_etcd::Client;

use crate::error::{Code, Refusal};
use crate::form::{escape_path, unescape};
use crate::node::Happening;
use crate::request::{self, Call, Wait};
use crate::shared::{Known, Shared};
use crate::wait::Waiter;
use crate::{Body, stats, store};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const CLUSTER_ID: HeaderName = HeaderName::from_static("x-etcd-cluster-id");
const INDEX: HeaderName = HeaderName::from_static("x-etcd-index");
const RAFT_INDEX: HeaderName = HeaderName::from_static("x-raft-index");
const RAFT_TERM: HeaderName = HeaderName::from_static("x-raft-term");

const NOT_HERE: &str = "members are added, changed and removed by quorate: edit the spec and run quorate apply";
const NO_USERS: &str =
    "users and roles are those of etcd's v3 API: they are part of the spec, and quorate apply creates them";

pub async fn answer(shared: &Shared, request: Request<Bytes>, client: &Client) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let Ok(path) = unescape(parts.uri.path().as_bytes(), false) else {
        return plain(StatusCode::BAD_REQUEST, "400 Bad Request");
    };
    let clean = cleaned(&path);
    if clean != path {
        return redirect(&parts, &clean);
    }
    if let Some(below) = below(&path, b"/v2/keys") {
        return keys(shared, &parts, below, &body, client).await;
    }
    if let Some(below) = below(&path, b"/v2/members") {
        return members(shared, &parts, below, client).await;
    }
    match path.as_slice() {
        b"/v2/stats/store" => allowed(&parts, &["GET"]).unwrap_or_else(|| json(shared.counts.json(shared.waiters()))),
        b"/v2/stats/self" | b"/v2/stats/leader" | b"/v2/machines" => cluster(shared, &parts, &path, client).await,
        _ if self::below(&path, b"/v2/auth").is_some() => message(StatusCode::FORBIDDEN, NO_USERS),
        _ => plain(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

/// What follows a prefix that ends at the end of a segment.
fn below<'a>(path: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    path.strip_prefix(prefix).filter(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Without empty segments, `.` and `..`; a slash at the end stays.
fn cleaned(path: &[u8]) -> Vec<u8> {
    let mut clean = crate::path::Path::parse(path).shown();
    if clean.is_empty() || path.ends_with(b"/") {
        clean.push(b'/');
    }
    clean
}

fn redirect(parts: &Parts, path: &[u8]) -> Response<Body> {
    let query = parts.uri.query().filter(|query| !query.is_empty());
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    let location = format!("{}{query}", escape_path(path));
    let mut response = Response::new(full(String::new()));
    if matches!(parts.method, Method::GET | Method::HEAD) {
        let shown = location.replace('&', "&amp;").replace('\'', "&#39;");
        response = respond(StatusCode::OK, HTML, format!("<a href=\"{shown}\">Moved Permanently</a>.\n\n"));
    }
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    set(&mut response, LOCATION, location);
    response
}

fn full(text: String) -> Body {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync()
}

fn respond(status: StatusCode, kind: HeaderValue, text: String) -> Response<Body> {
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = respond(status, TEXT, text.to_owned());
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn json(text: String) -> Response<Body> {
    respond(StatusCode::OK, JSON, text)
}

fn message(status: StatusCode, text: &str) -> Response<Body> {
    let mut json = crate::json::Json::default();
    json.object(|json| json.field("message").text(text.as_bytes()));
    respond(status, JSON, json.finish())
}

/// The answer to a method that is not among these.
fn allowed(parts: &Parts, methods: &[&'static str]) -> Option<Response<Body>> {
    if methods.contains(&parts.method.as_str()) {
        return None;
    }
    let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n");
    if let Ok(methods) = HeaderValue::from_str(&methods.join(",")) {
        response.headers_mut().insert(ALLOW, methods);
    }
    Some(response)
}

async fn keys(shared: &Shared, parts: &Parts, below: &[u8], body: &Bytes, client: &Client) -> Response<Body> {
    if let Some(refused) = allowed(parts, &["HEAD", "GET", "PUT", "POST", "DELETE"]) {
        return refused;
    }
    let known = shared.known(client).await;
    let mut response = match read(shared, parts, below, body) {
        Err(refusal) => refused(&refusal),
        Ok(call) => carry_out(shared, call, client, &known).await,
    };
    set(&mut response, CLUSTER_ID, stats::id(known.cluster_id));
    response
}

fn read(shared: &Shared, parts: &Parts, below: &[u8], body: &Bytes) -> Result<Call, Refusal> {
    let most = shared.settings.max_body;
    if body.len() > most {
        let refusal = Refusal::new(Code::InvalidForm, format!("the body is larger than {most} bytes"));
        return Err(refusal.with_status(StatusCode::PAYLOAD_TOO_LARGE));
    }
    request::parse(parts, below, body, Timestamp::now())
}

async fn carry_out(shared: &Shared, call: Call, client: &Client, known: &Known) -> Response<Body> {
    // The room of an answer is taken until it is written down.
    let (done, _taken) = match &call {
        Call::Wait(wait) => return waiting(shared, wait.clone(), client, known).await,
        Call::Get { path, recursive } => {
            match store::get(client, &shared.layout, path, *recursive, shared.settings.room.as_ref()).await {
                Ok((done, taken)) => (Ok(done), taken),
                Err(refusal) => (Err(refusal), None),
            }
        }
        Call::Write(write) => {
            let (client, layout, write) = (client.clone(), shared.layout.clone(), write.clone());
            // A client that closes its connection must not interrupt the write between lease and key.
            let task = tokio::spawn(async move { store::write(&client, &layout, &write).await });
            (task.await.unwrap_or_else(|_| Err(Refusal::new(Code::RaftInternal, "the write was interrupted"))), None)
        }
    };
    shared.counts.add(&call, done.is_ok());
    match done {
        Err(refusal) => refused(&refusal),
        Ok((happening, index)) => {
            let no_value = matches!(&call, Call::Write(write) if write.no_value);
            happened(&happening, index, no_value, known)
        }
    }
}

fn happened(happening: &Happening, index: u64, no_value: bool, known: &Known) -> Response<Body> {
    let now = Timestamp::now();
    let text = if no_value { happening.json_without_nodes(now) } else { happening.json(now) };
    let status = if happening.is_created() { StatusCode::CREATED } else { StatusCode::OK };
    let mut response = respond(status, JSON, text);
    set_indexes(&mut response, index, known);
    response
}

fn refused(refusal: &Refusal) -> Response<Body> {
    let mut response = respond(refusal.status, JSON, refusal.json());
    set(&mut response, INDEX, refusal.index.to_string());
    response
}

fn set(response: &mut Response<Body>, name: HeaderName, value: String) {
    if let Ok(value) = HeaderValue::from_str(&value) {
        response.headers_mut().insert(name, value);
    }
}

fn set_indexes(response: &mut Response<Body>, index: u64, known: &Known) {
    set(response, INDEX, index.to_string());
    set(response, RAFT_INDEX, known.raft_index.to_string());
    set(response, RAFT_TERM, known.raft_term.to_string());
}

async fn waiting(shared: &Shared, wait: Wait, client: &Client, known: &Known) -> Response<Body> {
    let Some(place) = shared.place() else {
        let refusal = Refusal::new(Code::RaftInternal, "too many clients wait for events; try again later");
        return refused(&refusal.with_status(StatusCode::SERVICE_UNAVAILABLE));
    };
    let waiter = match Waiter::start(client, &shared.layout, wait, place).await {
        Err(refusal) => return refused(&refusal),
        Ok(waiter) => waiter,
    };
    let began = waiter.began;
    let mut response = Response::new(StreamBody::new(events(waiter)).boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    set_indexes(&mut response, began, known);
    response
}

/// One line for each event. An error closes the connection, so no client takes it for the end.
fn events(waiter: Waiter) -> impl stream::Stream<Item = Result<Frame<Bytes>, io::Error>> {
    stream::unfold(Some(waiter), |waiter| async {
        let mut waiter = waiter?;
        match waiter.next().await {
            Ok(happening) => {
                let line = Bytes::from(happening.json(Timestamp::now()));
                Some((Ok(Frame::data(line)), Some(waiter).filter(Waiter::streams)))
            }
            Err(error) => Some((Err(io::Error::other(error)), None)),
        }
    })
}

async fn members(shared: &Shared, parts: &Parts, below: &[u8], client: &Client) -> Response<Body> {
    if let Some(refused) = allowed(parts, &["GET", "POST", "DELETE", "PUT"]) {
        return refused;
    }
    if parts.method != Method::GET {
        return message(StatusCode::FORBIDDEN, NOT_HERE);
    }
    let known = shared.known(client).await;
    let members = match client.members(false).await {
        Ok(members) => members,
        Err(error) => return failed(error),
    };
    let advertised = &shared.settings.advertised;
    let mut response = match below.strip_prefix(b"/").unwrap_or(below) {
        b"" => json(stats::members_json(&members, advertised)),
        b"leader" => match members.iter().find(|member| member.id == known.leader) {
            Some(leader) => json(stats::member_json(leader, advertised)),
            None => message(StatusCode::SERVICE_UNAVAILABLE, "During election"),
        },
        _ => message(StatusCode::NOT_FOUND, "Not found"),
    };
    set(&mut response, CLUSTER_ID, stats::id(known.cluster_id));
    response
}

fn failed(error: quorate_etcd::Error) -> Response<Body> {
    let status = Refusal::from(error.clone()).status;
    message(status, &error.to_string())
}

/// What is known of the members, but not of keys.
async fn cluster(shared: &Shared, parts: &Parts, path: &[u8], client: &Client) -> Response<Body> {
    let methods: &[&'static str] = if path == b"/v2/machines" { &["GET", "HEAD"] } else { &["GET"] };
    if let Some(refused) = allowed(parts, methods) {
        return refused;
    }
    let members = match client.members(false).await {
        Ok(members) => members,
        Err(error) => return failed(error),
    };
    if path == b"/v2/machines" {
        return respond(StatusCode::OK, TEXT, stats::machines(&members, &shared.settings.advertised));
    }
    let known = shared.known(client).await;
    if known.leader == 0 {
        return message(StatusCode::SERVICE_UNAVAILABLE, "During election");
    }
    json(match path {
        b"/v2/stats/leader" => stats::leader_json(known.leader, &members, &shared.probes()),
        _ => shared.self_json(&known, &members),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_as_gos_mux_does() {
        for (path, clean) in [
            ("/v2/keys", "/v2/keys"),
            ("/v2/keys/", "/v2/keys/"),
            ("/v2//keys/a", "/v2/keys/a"),
            ("/v2/keys/../stats/self", "/v2/stats/self"),
            ("/v2/keys/a/./b//c/", "/v2/keys/a/b/c/"),
            ("/../..", "/"),
        ] {
            assert_eq!(cleaned(path.as_bytes()), clean.as_bytes(), "{path}");
        }
        assert_eq!(below(b"/v2/keys/a", b"/v2/keys"), Some(&b"/a"[..]));
        assert_eq!(below(b"/v2/keysa", b"/v2/keys"), None);
    }

    #[test]
    fn a_redirect_cannot_add_a_header() {
        let request = Request::builder().uri("/v2/keys//a%0d%0aX:%20y?wait=true").body(()).unwrap();
        let response = redirect(&request.into_parts().0, b"/v2/keys/a\r\nX: y");
        assert_eq!(response.headers()[LOCATION], "/v2/keys/a%0D%0AX:%20y?wait=true");
    }
}
