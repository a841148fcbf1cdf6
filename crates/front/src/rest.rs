//! REST: `/health`, `/version`, etcd's v3 API as JSON, and its v2 API. Every request has limits on size and time, and all together
//! share a memory limit. A client's bytes are never passed on as they are: a request becomes a gRPC call, or is refused.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, Limited, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{self, HeaderMap};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use quorate_agent::rates::Rates;
use quorate_etcd::{Answers, Client, Reach, Refusal, Room};
use quorate_keys::{Keys, Settings};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::Shared;
use crate::behind::Behind;
use crate::gateway::{self, Call, Kind};
use crate::members::Member;
use crate::outgoing::Outgoing;
use crate::who::{Clients, Denied, Shown, Who, who};

/// More than etcd takes by default, in base64.
const LARGEST_BODY: usize = 4 << 20;
/// How often what version 2 has left behind is looked for.
const SWEEP: Duration = Duration::from_secs(180);
const BODY: Duration = Duration::from_secs(10);
/// The memory limit of all bodies together.
const BODIES_KIB: usize = 64 << 10;
/// How many requests are worked on at the same time.
const AT_ONCE: usize = 128;
/// How many clients may watch.
const WATCHES: usize = 4096;
/// How many passwords etcd checks for us at the same time; each costs it a good part of a second.
const LOGINS: usize = 4;
/// Logins of an address: so many at once, and so many per second after that.
const LOGINS_AT_ONCE: u32 = 20;
const LOGINS_PER_SECOND: f64 = 1.0;
/// How long a member's answer to `/version` is repeated.
const FRESH: Duration = Duration::from_secs(2);
/// How often members are asked for their metrics, which are long.
const ROLES: Duration = Duration::from_secs(3);
const FETCH: Duration = Duration::from_secs(3);
const UNREADABLE: &str = "etcd has sent an answer that cannot be read";
/// A line of a watch, and what ends it.
type Line = Result<Frame<Bytes>, io::Error>;

/// The body of an answer.
pub type Content = UnsyncBoxBody<Bytes, io::Error>;
pub type Answer = Response<Content>;

/// Who is connected.
pub struct Peer {
    pub from: SocketAddr,
    pub shown: Option<Shown>,
    /// Without TLS.
    pub is_plain: bool,
    /// Told when it takes too long to read an answer.
    pub slow: Arc<Notify>,
}

pub struct Rest {
    pub clients: Clients,
    /// Version 2 of the API.
    pub keys: Keys,
    swept: Mutex<Instant>,
    at_once: Arc<Semaphore>,
    watches: Arc<Semaphore>,
    bodies: Arc<Semaphore>,
    outgoing: Outgoing,
    logins: Semaphore,
    rates: Mutex<Rates>,
    version: tokio::sync::Mutex<Option<(Instant, Bytes)>>,
}

impl Rest {
    /// `url`: what clients call the front. `room`: what large answers may take.
    pub fn new(url: String, room: Room) -> Self {
        let (max_waiters, advertised) = (WATCHES, vec![url]);
        let settings = Settings { max_waiters, advertised, room: Some(room.clone()), ..Settings::default() };
        Rest {
            clients: Clients::default(),
            keys: Keys::new(settings),
            swept: Mutex::new(Instant::now()),
            at_once: Arc::new(Semaphore::new(AT_ONCE)),
            watches: Arc::new(Semaphore::new(WATCHES)),
            bodies: Arc::new(Semaphore::new(BODIES_KIB)),
            outgoing: Outgoing::new(room),
            logins: Semaphore::new(LOGINS),
            rates: Mutex::new(Rates::new(LOGINS_AT_ONCE, LOGINS_PER_SECOND)),
            version: tokio::sync::Mutex::default(),
        }
    }
}

pub async fn answer(shared: Arc<Shared>, peer: &Peer, request: Request<Incoming>) -> Answer {
    let outcome = match outcome(&shared, peer, request).await {
        Ok(answer) => shared.rest.outgoing.send(answer, &peer.slow).await,
        denied => denied,
    };
    outcome.unwrap_or_else(|(status, why)| {
        let code = match status {
            401 => 16,
            403 => 7,
            404 => 5,
            429 => 8,
            503 => 14,
            _ => 3,
        };
        let mut answer = json_answer(status, &gateway::error(code, &why));
        if status == 401 {
            let name = &shared.behind().cluster;
            let realm = format!("Basic realm=\"{name}\", charset=\"UTF-8\"").parse();
            if let Ok(realm) = realm {
                answer.headers_mut().insert(header::WWW_AUTHENTICATE, realm);
            }
        }
        answer
    })
}

async fn outcome(shared: &Arc<Shared>, peer: &Peer, request: Request<Incoming>) -> Result<Answer, Denied> {
    let (head, body) = request.into_parts();
    shared.check_origin(peer, &head.headers)?;
    let path = head.uri.path();
    let is_get = head.method == Method::GET || head.method == Method::HEAD;
    match path {
        "/health" | "/version" if !is_get => Err((405, String::from("only GET is allowed here"))),
        "/health" => Ok(health(shared)),
        "/version" => version(shared).await,
        path if Keys::serves(path) => v2(shared, peer, head, body).await,
        path => {
            let behind = shared.behind();
            let Some(call) = gateway::find(path) else {
                let offered = gateway::offered();
                return Err((404, format!("not found; offered are: /health /version /v2/keys {offered}")));
            };
            if head.method != Method::POST {
                return Err((405, format!("{path} is called with POST")));
            }
            let who = who(&behind, peer.shown.as_ref(), &head.headers, call.kind == Kind::Login)?;
            shared.rest.may_log_in(peer.from.ip(), &who, call.kind)?;
            let _place = shared.rest.at_once.clone().try_acquire_owned().map_err(|_| busy("too many requests"))?;
            let (body, _room) = whole(&shared.rest, body).await?;
            let request = gateway::to_wire(&body, call.request).map_err(|error| (400, error.to_string()))?;
            drop(body);
            match call.kind {
                Kind::Stream | Kind::FirstOfStream => streamed(shared, &behind, &who, peer, call, request.into()).await,
                _ => unary(shared, &behind, &who, peer, call, request.into()).await,
            }
        }
    }
}

/// The library answers as the user whose client it gets.
async fn v2(shared: &Arc<Shared>, peer: &Peer, head: Parts, body: Incoming) -> Result<Answer, Denied> {
    let (behind, rest) = (shared.behind(), &shared.rest);
    let who = who(&behind, peer.shown.as_ref(), &head.headers, false)?;
    rest.may_log_in(peer.from.ip(), &who, Kind::Read)?;
    let _place = rest.at_once.clone().try_acquire_owned().map_err(|_| busy("too many requests"))?;
    let (body, _room) = whole(rest, body).await?;
    let is_read = head.method == Method::GET || head.method == Method::HEAD;
    let mut request = Request::from_parts(head, body);
    // The library has no use for what proves who somebody is.
    request.headers_mut().remove(header::AUTHORIZATION);
    let _turn = rest.turn_to_log_in(&who, Kind::Read).await;
    let mut candidates = shared.members.candidates().into_iter().peekable();
    while let Some(member) = candidates.next() {
        let client = rest.clients.get(&behind, &member, &who)?;
        let answer = rest.keys.answer(request.clone(), &client).await;
        rest.forget_if_refused(&who, &client);
        // Another member may answer what changes nothing.
        if answer.status().is_server_error() && is_read && candidates.peek().is_some() {
            continue;
        }
        if answer.status().is_success() && !is_read {
            rest.sweep_as(client);
        }
        return Ok(answer);
    }
    Err((503, String::from("no member is known")))
}

fn busy(what: &str) -> Denied {
    (503, format!("{what} at the same time; try again in a second"))
}

fn health(shared: &Shared) -> Answer {
    match shared.members.trouble() {
        None => json_answer(200, &json!({"health": "true", "reason": ""})),
        Some(why) => json_answer(503, &json!({"health": "false", "reason": why})),
    }
}

/// What a member says, which alone knows the version of its cluster.
async fn version(shared: &Arc<Shared>) -> Result<Answer, Denied> {
    let mut known = shared.rest.version.lock().await;
    if let Some((at, body)) = &*known
        && at.elapsed() < FRESH
    {
        return Ok(answer_with(200, body.clone()));
    }
    let behind = shared.behind();
    for member in shared.members.candidates() {
        if let Ok(Ok(body)) = timeout(FETCH, fetch(&behind, &member, "/version", 64 << 10)).await {
            *known = Some((Instant::now(), body.clone()));
            return Ok(answer_with(200, body));
        }
    }
    Err((503, shared.members.trouble().unwrap_or_else(|| String::from("no member answers"))))
}

/// Asks members who do not say to nobody whether they lead, for their metrics, again and again.
pub async fn ask_roles(shared: &Shared) -> Infallible {
    loop {
        for member in shared.members.all().iter().filter(|member| member.health().is_discreet) {
            let behind = shared.behind();
            if let Ok(Ok(metrics)) = timeout(FETCH, fetch(&behind, member, "/metrics", 4 << 20)).await {
                member.read_role(&String::from_utf8_lossy(&metrics));
            }
        }
        tokio::time::sleep(ROLES).await;
    }
}

/// A page of a member, which asks nobody who he is.
async fn fetch(
    behind: &Behind,
    member: &Member,
    path: &str,
    longest: usize,
) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
    let name = ServerName::IpAddress(member.address.ip().into());
    let stream = TlsConnector::from(behind.to_members.clone()).connect(name, member.connect().await?).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::get(path).header(header::HOST, member.address.to_string()).body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await?;
    let is_ok = answer.status().is_success();
    let body = Limited::new(answer.into_body(), longest).collect().await?.to_bytes();
    connection.abort();
    if is_ok { Ok(body) } else { Err("an error".into()) }
}

impl Shared {
    /// A page in somebody's browser must not use the certificate or the password that the browser has, nor reach what listens on
    /// loopback under a name that it chose.
    fn check_origin(&self, peer: &Peer, headers: &HeaderMap) -> Result<(), Denied> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let host = text("host").unwrap_or_default();
        let is_foreign = |origin: &str| origin.split_once("://").map(|(_, host)| host) != Some(host);
        if text("origin").is_some_and(is_foreign) || text("sec-fetch-site") == Some("cross-site") {
            return Err((403, String::from("requests of pages from elsewhere are refused")));
        }
        if peer.is_plain && !self.is_own_name(host) {
            return Err((403, format!("this front is not {host:?}; --host names what clients call it")));
        }
        Ok(())
    }
}

impl Rest {
    /// Guesses are slowed down. A password that works is not held up by those of others, as it is known already.
    fn may_log_in(&self, from: IpAddr, who: &Who, kind: Kind) -> Result<(), Denied> {
        let is_login = self.is_login(who, kind);
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        match !is_login || rates.take(from, Instant::now()) {
            true => Ok(()),
            false => Err((429, String::from("too many logins from this address; try again in a few seconds"))),
        }
    }

    /// Whether etcd has to check a password for this request.
    fn is_login(&self, who: &Who, kind: Kind) -> bool {
        match who {
            Who::Password(login) => !self.clients.knows(login),
            _ => kind == Kind::Login,
        }
    }

    /// Waits while etcd checks enough passwords for others. Not held while a client still sends its request.
    async fn turn_to_log_in(&self, who: &Who, kind: Kind) -> Option<SemaphorePermit<'_>> {
        match self.is_login(who, kind) {
            true => self.logins.acquire().await.ok(),
            false => None,
        }
    }

    /// The front has no rights, so it tidies up with those of a user who writes. That of others is left to others.
    fn sweep_as(&self, client: Client) {
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        if swept.elapsed() < SWEEP {
            return;
        }
        *swept = Instant::now();
        let keys = self.keys.clone();
        tokio::spawn(async move {
            match timeout(SWEEP, keys.sweep(&client)).await {
                Ok(Ok(swept)) => tracing::debug!(?swept, "the remains of v2 were removed"),
                Ok(Err(error)) => tracing::debug!(%error, "the remains of v2 stay"),
                Err(_) => tracing::debug!("looking for remains of v2 took too long"),
            }
        });
    }

    /// The library's answer does not say whether a password was refused; the client knows.
    fn forget_if_refused(&self, who: &Who, client: &Client) {
        if let Who::Password(login) = who
            && !client.is_logged_in()
        {
            self.clients.forget(login);
        }
    }

    fn note(&self, who: &Who, refusal: &Refusal) {
        if let Who::Password(login) = who
            && is_wrong_password(refusal)
        {
            self.clients.forget(login);
        }
    }
}

async fn unary(
    shared: &Shared,
    behind: &Behind,
    who: &Who,
    peer: &Peer,
    call: &'static Call,
    request: Bytes,
) -> Result<Answer, Denied> {
    let rest = &shared.rest;
    let _turn = rest.turn_to_log_in(who, call.kind).await;
    let mut last = None;
    for member in shared.members.candidates() {
        let client = rest.clients.get(behind, &member, who)?;
        match client.call_raw(call.method, request.clone()).await {
            Ok(bytes) => {
                let unreadable = || -> Denied { (500, String::from(UNREADABLE)) };
                let length = gateway::length(&bytes, call.answer).ok_or_else(unreadable)?;
                let _both = rest.outgoing.room_for(bytes.len() + length)?;
                let text = gateway::text("", &bytes, call.answer, "\n").ok_or_else(unreadable)?;
                return Ok(answer_with(200, text.into()));
            }
            Err(refusal) => {
                rest.note(who, &refusal);
                let again = match refusal.reach {
                    Reach::Answered => false,
                    Reach::NotSent => true,
                    Reach::Unknown => call.kind != Kind::Write,
                };
                if refusal.reach == Reach::NotSent {
                    member.failed(&refusal.message);
                }
                if !again {
                    return refused(&refusal, who, peer);
                }
                last = Some(refusal);
            }
        }
    }
    match last {
        Some(refusal) => refused(&refusal, who, peer),
        None => Err((503, String::from("no member is known"))),
    }
}

/// Also where the user has none, which etcd says in other words.
fn is_wrong_password(refusal: &Refusal) -> bool {
    refusal.message.contains("authentication failed")
}

fn refused(refusal: &Refusal, who: &Who, peer: &Peer) -> Result<Answer, Denied> {
    let by = match who {
        Who::User(user) => user.as_str(),
        Who::Password(login) => login.user.as_str(),
        Who::Token(_) => "(token)",
        Who::Nobody => "",
    };
    tracing::debug!(from = %peer.from, by, why = refusal.message, "a request was refused");
    // etcd's gateway knows no passwords of HTTP, and so has no status for them.
    if matches!(who, Who::Password(_)) && is_wrong_password(refusal) {
        return Err((401, refusal.message.clone()));
    }
    Ok(json_answer(gateway::status(refusal.code), &gateway::error(refusal.code, &refusal.message)))
}

/// One line of JSON for each answer, as soon as it comes.
async fn streamed(
    shared: &Shared,
    behind: &Behind,
    who: &Who,
    peer: &Peer,
    call: &'static Call,
    request: Bytes,
) -> Result<Answer, Denied> {
    let place = shared.rest.watches.clone().try_acquire_owned().map_err(|_| busy("too many clients watch"))?;
    let _turn = shared.rest.turn_to_log_in(who, call.kind).await;
    let mut last = None;
    for member in shared.members.candidates() {
        let client = shared.rest.clients.get(behind, &member, who)?;
        match client.stream_raw(call.method, request.clone()).await {
            Ok(mut answers) if call.kind == Kind::FirstOfStream => {
                let line = match timeout(BODY, answers.next()).await {
                    Ok(Ok(Some(bytes))) => line(&bytes, call),
                    Ok(Ok(None)) => return Err((503, String::from("etcd has ended the call"))),
                    Ok(Err(refusal)) => return refused(&refusal, who, peer),
                    Err(_) => return Err((504, String::from("etcd did not answer in time"))),
                };
                return Ok(answer_with(200, line.into()));
            }
            Ok(answers) => {
                let room = shared.rest.outgoing.clone();
                let body = StreamBody::new(lines(Lines { answers: Some(answers), call, room, _place: place }));
                return Ok(typed(200, body.boxed_unsync()));
            }
            Err(refusal) => {
                shared.rest.note(who, &refusal);
                if refusal.reach == Reach::Answered {
                    return refused(&refusal, who, peer);
                }
                member.failed(&refusal.message);
                last = Some(refusal);
            }
        }
    }
    match last {
        Some(refusal) => refused(&refusal, who, peer),
        None => Err((503, String::from("no member is known"))),
    }
}

fn line(bytes: &[u8], call: &Call) -> String {
    gateway::text("{\"result\":", bytes, call.answer, "}\n").unwrap_or_else(|| error_line(13, UNREADABLE))
}

fn error_line(code: i32, message: &str) -> String {
    format!("{}\n", json!({"error": gateway::error(code, message)}))
}

struct Lines {
    /// `None` when nothing more comes.
    answers: Option<Answers>,
    call: &'static Call,
    room: Outgoing,
    _place: OwnedSemaphorePermit,
}

impl Lines {
    /// `None` when nothing more comes.
    async fn next(&mut self) -> Option<String> {
        let ending = match self.answers.as_mut()?.next().await {
            Ok(Some(bytes)) => {
                let length = gateway::length(&bytes, self.call.answer).unwrap_or_default();
                match self.room.room_for(bytes.len() + length) {
                    Ok(_both) => return Some(line(&bytes, self.call)),
                    Err((_, why)) => error_line(14, &why),
                }
            }
            Ok(None) => return None,
            Err(refusal) => error_line(refusal.code, &refusal.message),
        };
        self.answers = None;
        Some(ending)
    }
}

fn lines(lines: Lines) -> impl futures_util::Stream<Item = Line> {
    stream::unfold(lines, |mut lines| async move {
        let line = lines.next().await?;
        Some((Ok(Frame::data(Bytes::from(line))), lines))
    })
}

/// The body, and the room that it takes until it is dropped.
async fn whole(rest: &Rest, body: Incoming) -> Result<(Bytes, OwnedSemaphorePermit), Denied> {
    let too_large = || (413, format!("the body is larger than {} MiB", LARGEST_BODY >> 20));
    let hint = body.size_hint();
    let most = hint.upper().map_or(LARGEST_BODY, |upper| usize::try_from(upper).unwrap_or(usize::MAX));
    if hint.lower() > LARGEST_BODY as u64 || most > LARGEST_BODY {
        return Err(too_large());
    }
    let room = u32::try_from(most / 1024 + 1).unwrap_or(u32::MAX);
    let room = timeout(BODY, rest.bodies.clone().acquire_many_owned(room)).await;
    let Ok(Ok(room)) = room else { return Err(busy("too many large requests")) };
    match timeout(BODY, Limited::new(body, LARGEST_BODY).collect()).await {
        Ok(Ok(body)) => Ok((body.to_bytes(), room)),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err((400, String::from("the body broke off"))),
        Err(_) => Err((408, format!("the body took longer than {} s", BODY.as_secs()))),
    }
}

fn json_answer(status: u16, value: &Value) -> Answer {
    answer_with(status, Bytes::from(format!("{value}\n")))
}

fn answer_with(status: u16, body: Bytes) -> Answer {
    typed(status, Full::new(body).map_err(|never| match never {}).boxed_unsync())
}

fn typed(status: u16, body: Content) -> Answer {
    let mut answer = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    if matches!(status, 429 | 503) {
        answer = answer.header(header::RETRY_AFTER, 1);
    }
    answer.body(body).expect("the parts are constants")
}
