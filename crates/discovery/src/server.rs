//! The port. It limits the number of connections, the size and duration of each request, and the number of clients that wait for
//! registrations.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, header};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use quorate_agent::rates::Rates;
use quorate_agent::refused::Refused;
use quorate_agent::unauthenticated::{self, Unauthenticated};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::grpc;
use crate::registry::{MemberId, Registration, Token};
use crate::store::{Registered, Store, StoreError};
use crate::v2::{self, ApiError, Request as Asked};

const HANDSHAKE: Duration = Duration::from_secs(5);
/// Also for how long a connection may stay open without a request.
const HEADERS: Duration = Duration::from_secs(30);
/// Members wait 5 seconds for the answer.
const BODY: Duration = Duration::from_secs(4);
const BODY_BYTES: usize = 8 << 10;
const HEAD_BYTES: usize = 16 << 10;
/// Requests at the same time over one connection of HTTP/2.
const STREAMS: u32 = 16;
/// A client that acknowledges nothing for so long has vanished.
const VANISHED: Duration = Duration::from_secs(60);
/// Registries that are waited for are looked at again after this, whatever was heard.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How long a check of the store's health is valid.
const FRESH: Duration = Duration::from_secs(2);
const TENDING: Duration = Duration::from_secs(60);

pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// What clients may use.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub connections: usize,
    /// How many requests may wait for registrations.
    pub waits: usize,
    /// A wait without news is answered after this; members ask again.
    pub longest_wait: Duration,
    /// New tokens per minute and client address.
    pub new_per_minute: u32,
    /// Requests per second and client address; six times as many at once.
    pub requests_per_second: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            connections: 4096,
            waits: 4096,
            longest_wait: Duration::from_secs(300),
            new_per_minute: 10,
            requests_per_second: 50,
        }
    }
}

pub struct Service {
    pub(crate) store: Arc<dyn Store>,
    /// What tokens are appended to: `https://discovery.example.com[/path]`, without a slash at the end.
    url: String,
    /// The path in it.
    prefix: String,
    pub(crate) bounds: Bounds,
    requests: Mutex<Rates>,
    new: Mutex<Rates>,
    pub(crate) waits: Arc<Semaphore>,
    /// Held while asking, so that many visitors at once lead to one question.
    health: tokio::sync::Mutex<Option<(Instant, Result<(), StoreError>)>>,
}

impl Service {
    pub fn new(store: Arc<dyn Store>, url: &str, bounds: Bounds) -> Self {
        let url = url.trim_end_matches('/').to_owned();
        let behind_scheme = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
        let prefix = behind_scheme.find('/').map_or_else(String::new, |at| behind_scheme[at..].to_owned());
        let per_second = bounds.requests_per_second;
        Service {
            store,
            url,
            prefix,
            bounds,
            requests: Mutex::new(Rates::new(per_second.saturating_mul(6), per_second.into())),
            new: Mutex::new(Rates::new(bounds.new_per_minute, f64::from(bounds.new_per_minute) / 60.0)),
            waits: Arc::new(Semaphore::new(bounds.waits)),
            health: tokio::sync::Mutex::default(),
        }
    }

    /// Whether this client may send another request.
    pub(crate) fn is_within_rate(&self, from: IpAddr) -> bool {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).take(from, Instant::now())
    }

    async fn answer(self: Arc<Self>, from: IpAddr, request: Request<Incoming>) -> Answer {
        if grpc::is_grpc(request.headers()) {
            return grpc::answer(self, from, request).await;
        }
        let outcome = match self.is_within_rate(from) {
            true => self.outcome(from, request).await,
            false => Err(ApiError::busy("this address sends too many requests; try again in a few seconds")),
        };
        outcome.unwrap_or_else(|error| {
            reply(error.status, "application/json", Some(error.index), v2::error_answer(&error))
        })
    }

    async fn outcome(&self, from: IpAddr, request: Request<Incoming>) -> Result<Answer, ApiError> {
        let (head, body) = request.into_parts();
        let path = head.uri.path();
        let path = path.strip_prefix(&self.prefix).filter(|rest| rest.starts_with('/')).unwrap_or(path);
        let json = |status, index, text| Ok(reply(status, "application/json", Some(index), text));
        match v2::route(head.method.as_str(), path, head.uri.query().unwrap_or_default())? {
            Asked::About => Ok(reply(200, "text/plain", None, self.about())),
            Asked::Health => Ok(self.health().await),
            Asked::New { size } => self.create(from, size).await,
            Asked::Size { token } => {
                let seen = self.store.read(&token).await?;
                json(200, seen.index, v2::size_answer(&token, &seen.registry))
            }
            Asked::Directory { token } => {
                let seen = self.store.read(&token).await?;
                json(200, seen.index, v2::directory_answer(&token, &seen.registry))
            }
            Asked::Member { token, id } => {
                let seen = self.store.read(&token).await?;
                let member = seen.registry.member(&id).ok_or_else(|| ApiError::no_such_member(&id, seen.index))?;
                json(200, seen.index, v2::member_answer(&token, member))
            }
            Asked::Wait { token, id, from } => {
                let _place = self.place()?;
                let from = match from {
                    Some(index) => index,
                    None => self.store.read(&token).await?.index + 1,
                };
                let found = timeout(self.bounds.longest_wait, self.wait(&token, id.as_ref(), from)).await;
                match found {
                    Ok(found) => {
                        let (member, at) = found?;
                        json(200, at, v2::created_answer(&token, &member))
                    }
                    // etcd asks again with the same index.
                    Err(_) => json(200, self.store.read(&token).await?.index, String::new()),
                }
            }
            Asked::Register { token, id } => {
                let value = v2::value(&whole(body).await?)?;
                let done = self.register(&token, &id, &value).await?;
                json(201, done.index, v2::created_answer(&token, &done.registration))
            }
        }
    }

    fn place(&self) -> Result<tokio::sync::SemaphorePermit<'_>, ApiError> {
        self.waits.try_acquire().map_err(|_| ApiError::busy("too many clients wait for registrations"))
    }

    /// The first registration at or after an index, and the store's index.
    pub(crate) async fn wait(
        &self,
        token: &Token,
        id: Option<&MemberId>,
        from: u64,
    ) -> Result<(Registration, u64), StoreError> {
        // A token that is not there must not be waited for: nobody would forget it.
        self.store.read(token).await?;
        let mut changes = self.store.changes(token);
        loop {
            let seen = self.store.read(token).await?;
            if let Some(found) = seen.registry.first_from(from, id) {
                return Ok((found.clone(), seen.index));
            }
            let _ = timeout(LOOK_AGAIN, changes.changed()).await;
        }
    }

    pub(crate) async fn register(&self, token: &Token, id: &MemberId, value: &str) -> Result<Registered, StoreError> {
        let done = self.store.register(token, id, value).await;
        match &done {
            Ok(_) => tracing::info!(token = token.short(), member = id.as_str(), value, "a member has registered"),
            // Anyone can guess, and must not fill the log with it.
            Err(StoreError::NoToken { .. }) => {}
            Err(error) => tracing::warn!(token = token.short(), member = id.as_str(), %error, "a member was refused"),
        }
        done
    }

    async fn create(&self, from: IpAddr, size: u16) -> Result<Answer, ApiError> {
        if !self.new.lock().unwrap_or_else(PoisonError::into_inner).take(from, Instant::now()) {
            let most = self.bounds.new_per_minute;
            return Err(ApiError::too_many_tokens(&format!("an address gets {most} new tokens per minute")));
        }
        let token = Token::random();
        self.store.create(&token, size).await?;
        tracing::info!(token = token.short(), size, %from, "a token was created");
        Ok(reply(200, "text/plain", None, format!("{}/{}", self.url, token.as_str())))
    }

    async fn health(&self) -> Answer {
        let mut last = self.health.lock().await;
        let health = match &*last {
            Some((at, health)) if at.elapsed() < FRESH => health.clone(),
            _ => {
                let health = self.store.check().await;
                *last = Some((Instant::now(), health.clone()));
                health
            }
        };
        match health {
            Ok(()) => reply(200, "text/plain", None, String::from("OK")),
            Err(error) => reply(503, "text/plain", None, error.to_string()),
        }
    }

    fn about(&self) -> String {
        let (url, endpoint) = (&self.url, endpoint(&self.url));
        format!(
            "This is a discovery service for etcd, served by quorate.\n\n\
             A new token for a cluster of 3 members: {url}/new?size=3\n\n\
             etcd 3.4, 3.5 and 3.6:  --discovery {url}/TOKEN --discovery-fallback exit\n\
             etcd 3.6 and later:     --discovery-token TOKEN --discovery-endpoints {endpoint}\n"
        )
    }

    /// Deletes what has expired, and renews certificates, again and again.
    pub async fn tend(&self, refresh: impl AsyncFn()) -> Infallible {
        loop {
            tokio::time::sleep(TENDING).await;
            if let Err(error) = self.store.tend().await {
                tracing::error!(%error, "expired tokens could not be deleted");
            }
            refresh().await;
        }
    }
}

/// Where gRPC is spoken, for a URL: host and port.
pub fn endpoint(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    let authority = rest.split('/').next().unwrap_or_default();
    let has_port = authority.rsplit(']').next().is_some_and(|rest| rest.contains(':'));
    match (has_port, scheme) {
        (true, _) => authority.to_owned(),
        (false, "http") => format!("{authority}:80"),
        (false, _) => format!("{authority}:443"),
    }
}

pub(crate) fn reply(status: u16, kind: &'static str, index: Option<u64>, text: String) -> Answer {
    let mut response = Response::builder().status(status).header(header::CONTENT_TYPE, kind);
    if let Some(index) = index {
        response = response.header("X-Etcd-Index", index);
    }
    if matches!(status, 429 | 503) {
        response = response.header(header::RETRY_AFTER, 10);
    }
    response.body(Full::new(Bytes::from(text)).boxed_unsync()).expect("the parts are constants")
}

async fn whole(body: Incoming) -> Result<Bytes, ApiError> {
    if body.size_hint().lower() > BODY_BYTES as u64 {
        return Err(ApiError::too_large("the body", BODY_BYTES));
    }
    match timeout(BODY, Limited::new(body, BODY_BYTES).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            Err(ApiError::too_large("the body", BODY_BYTES))
        }
        Ok(Err(_)) => Err(ApiError::body("the body broke off")),
        Err(_) => Err(ApiError::too_slow()),
    }
}

/// Serves until it is dropped.
pub async fn serve(service: Arc<Service>, listener: TcpListener, tls: Option<TlsAcceptor>) -> Infallible {
    let (mut waiting, refused) = (Unauthenticated::new(service.bounds.connections), Refused::of("connections"));
    loop {
        let (stream, from) = unauthenticated::accept(&listener, &refused, VANISHED).await;
        let (service, tls, refused) = (service.clone(), tls.clone(), refused.clone());
        waiting.admit(Some(from.ip()), async move {
            if let Err(why) = converse(service, stream, from, tls).await {
                refused.say(&from, &why);
            }
        });
    }
}

async fn converse(
    service: Arc<Service>,
    stream: TcpStream,
    from: SocketAddr,
    tls: Option<TlsAcceptor>,
) -> Result<(), String> {
    let Some(tls) = tls else {
        // Members of version 3 speak HTTP/2 from the first byte on.
        return match timeout(HANDSHAKE, begins_with(&stream, b"PRI")).await {
            Ok(true) => http2(service, stream, from).await,
            Ok(false) => http1(service, stream, from).await,
            Err(_) => Err(String::from("no request in time")),
        };
    };
    let stream = timeout(HANDSHAKE, tls.accept(stream))
        .await
        .map_err(|_| String::from("TLS handshake timed out"))?
        .map_err(|error| error.to_string())?;
    match stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        true => http2(service, stream, from).await,
        false => http1(service, stream, from).await,
    }
}

/// Looks at what a client sends first, and leaves it there.
async fn begins_with(stream: &TcpStream, word: &[u8]) -> bool {
    let mut seen = [0; 8];
    loop {
        let length = stream.peek(&mut seen[..word.len()]).await.unwrap_or(0);
        if length == 0 || seen[..length] != word[..length] {
            return false;
        }
        if length == word.len() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn http2<S>(service: Arc<Service>, stream: S, from: SocketAddr) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let from = from.ip();
    let answer = service_fn(move |request| {
        let service = service.clone();
        async move { Ok::<_, Infallible>(service.answer(from, request).await) }
    });
    hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(HEADERS)
        .keep_alive_timeout(VANISHED)
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD_BYTES as u32)
        .max_send_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), answer)
        .await
        .map_err(|error| error.to_string())
}

async fn http1<S>(service: Arc<Service>, stream: S, from: SocketAddr) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let from = from.ip();
    let answer = service_fn(move |request| {
        let service = service.clone();
        async move { Ok::<_, Infallible>(service.answer(from, request).await) }
    });
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), answer)
        .await
        .map_err(|error| error.to_string())
}
