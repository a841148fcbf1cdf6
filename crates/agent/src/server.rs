//! The port that the controller connects to. Every connection is a separate task with limits on time and size, so strangers
//! cannot exhaust the agent. Requests and answers are small and read as a whole, except for etcd's read calls and uploaded
//! files, which are streams.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use quorate_etcd::ReadMethod;
use rustix::net::sockopt::{set_ip_freebind, set_ipv6_freebind};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::agent::Agent;
use crate::api::{self, CONTROLLER, Refusal, UploadRequest, path};
use crate::refused::Refused;
use crate::unauthenticated::{self, Unauthenticated};
use crate::{AgentError, channel, tls, x509};

const HANDSHAKE: Duration = Duration::from_secs(5);
const HEADERS: Duration = Duration::from_secs(60);
const BODY: Duration = Duration::from_secs(30);
const BODY_BYTES: usize = 16 << 20;
/// How many may be about to show who they are. More than a flood from one host easily holds, as an open connection that says
/// nothing costs little; far fewer than the files that a process may open by default.
const STRANGERS: usize = 512;
/// A machine that acknowledges nothing for so long has vanished, and what was under way for it ends.
const VANISHED: Duration = Duration::from_secs(120);

type Answer = Response<BoxBody<Bytes, Infallible>>;

pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener, AgentError> {
    TcpListener::bind(address).await.map_err(|source| AgentError::Listen { address, source })
}

/// The same also before the machine has this address: a booting machine need not wait for the network.
pub(crate) fn listen_early(address: SocketAddr) -> Result<TcpListener, AgentError> {
    let listen = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        if address.is_ipv4() {
            set_ip_freebind(&socket, true)?
        } else {
            set_ipv6_freebind(&socket, true)?
        }
        socket.bind(address)?;
        socket.listen(1024)
    };
    listen().map_err(|source| AgentError::Listen { address, source })
}

pub(crate) async fn serve(agent: Arc<Agent>, listener: TcpListener) -> Result<(), AgentError> {
    let state = agent.state.get();
    let acceptor = TlsAcceptor::from(tls::server_config(&state.control_ca, agent.shown.clone())?);
    tracing::info!(address = %state.address, "the agent answers");
    let (mut strangers, refused) = (Unauthenticated::new(STRANGERS), Refused::of("connections"));
    loop {
        let (stream, from) = unauthenticated::accept(&listener, &refused, VANISHED).await;
        let (agent, acceptor, refused) = (agent.clone(), acceptor.clone(), refused.clone());
        strangers.admit(Some(from.ip()), async move {
            let refused = move |why: String| refused.say(&from, &why);
            match admit(&acceptor, stream).await {
                Ok(stream) => drop(tokio::spawn(async move { converse(agent, stream).await.unwrap_or_else(refused) })),
                Err(why) => refused(why),
            }
        });
    }
}

/// The same, on a separate line to the machine's host, where it has one.
pub(crate) async fn serve_channel(agent: Arc<Agent>, device: Option<PathBuf>) -> Result<(), AgentError> {
    let Some(device) = device else { return Ok(()) };
    let mut streams = channel::listen(&device).await.map_err(AgentError::file("open", &device))?;
    let config = tls::server_config(&agent.state.get().control_ca, agent.shown.clone())?;
    let acceptor = TlsAcceptor::from(config);
    let (mut strangers, refused) = (Unauthenticated::new(STRANGERS), Refused::of("streams of the line"));
    while let Some(stream) = streams.recv().await {
        let (agent, acceptor, refused) = (agent.clone(), acceptor.clone(), refused.clone());
        strangers.admit(None, async move {
            let refused = move |why: String| refused.say(&"the host", &why);
            match admit(&acceptor, stream).await {
                Ok(stream) => drop(tokio::spawn(async move { converse(agent, stream).await.unwrap_or_else(refused) })),
                Err(why) => refused(why),
            }
        });
    }
    Ok(())
}

/// Lets the controller in, and nobody else.
async fn admit<S: AsyncRead + AsyncWrite + Unpin>(acceptor: &TlsAcceptor, stream: S) -> Result<TlsStream<S>, String> {
    let stream = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream))
        .await
        .map_err(|_| String::from("TLS handshake timed out"))?
        .map_err(|error| error.to_string())?;
    check_is_controller(&stream)?;
    Ok(stream)
}

async fn converse<S>(agent: Arc<Agent>, stream: TlsStream<S>) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let agent = agent.clone();
        async move { Ok::<_, Infallible>(answer(agent, request).await) }
    });
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(64 << 10)
        .serve_connection(TokioIo::new(stream), service)
        .await
        .map_err(|error| error.to_string())
}

/// The control CA signs agents too, which must not command one another.
fn check_is_controller<S>(stream: &TlsStream<S>) -> Result<(), String> {
    let chain = stream.get_ref().1.peer_certificates().ok_or("no client certificate")?;
    let leaf = chain.first().ok_or("no client certificate")?;
    match x509::common_name(leaf) {
        Some(name) if name == CONTROLLER => Ok(()),
        name => Err(format!("the client is {name:?}, not the controller")),
    }
}

async fn answer(agent: Arc<Agent>, request: Request<Incoming>) -> Answer {
    let (parts, body) = request.into_parts();
    let at = parts.uri.path();
    if parts.method == Method::PUT && [path::STAGE, path::PROGRAM].contains(&at) {
        return upload(&agent, at, &parts.headers, body).await;
    }
    if parts.method != Method::POST {
        return refusal(StatusCode::METHOD_NOT_ALLOWED, "every request is a POST, except for a snapshot or a program");
    }
    let body = match whole(body).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    if let Some(method) = at.strip_prefix(path::READ) {
        return read(&agent, method, body);
    }
    // A separate task: an order that was begun is carried through even when the controller hangs up.
    let work = tokio::spawn(async move { dispatch(agent, parts.uri.path(), &body).await });
    work.await.unwrap_or_else(|_| refusal(StatusCode::INTERNAL_SERVER_ERROR, "the agent failed; its log says why"))
}

async fn whole(body: Incoming) -> Result<Bytes, Answer> {
    if body.size_hint().lower() > BODY_BYTES as u64 {
        return Err(refusal(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large"));
    }
    match tokio::time::timeout(BODY, Limited::new(body, BODY_BYTES).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) => Err(refusal(StatusCode::BAD_REQUEST, &error.to_string())),
        Err(_) => Err(refusal(StatusCode::REQUEST_TIMEOUT, "the request did not end in time")),
    }
}

/// Ends with the connection: half a file is of no use.
async fn upload(agent: &Arc<Agent>, to: &str, headers: &HeaderMap, body: Incoming) -> Answer {
    match announced(headers) {
        Some(request) if to == path::PROGRAM => outcome(agent.take_program(request, body).await),
        Some(request) => outcome(agent.stage(request, body).await),
        None => refusal(StatusCode::BAD_REQUEST, "a file is announced by its SHA-256, its length and a fence"),
    }
}

fn announced(headers: &HeaderMap) -> Option<UploadRequest> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let number = |name: &str| text(name)?.parse().ok();
    let sha256 = text(api::header::SHA256)?.to_owned();
    // It becomes part of a file's name.
    let is_digest = sha256.len() == 64 && sha256.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let (fence, bytes) = (number(api::header::FENCE)?, number(api::header::BYTES)?);
    is_digest.then_some(UploadRequest { fence, sha256, bytes })
}

fn read(agent: &Agent, method: &str, request: Bytes) -> Answer {
    let Some(method) = ReadMethod::from_name(method) else {
        let known = ReadMethod::ALL.map(ReadMethod::name).join(", ");
        return refusal(StatusCode::NOT_FOUND, &format!("{method:?} is not offered; an agent reads only by {known}"));
    };
    match agent.read(method, request) {
        Ok(frames) => Response::new(frames.boxed()),
        Err(refusal) => outcome::<()>(Err(refusal)),
    }
}

async fn dispatch(agent: Arc<Agent>, at: &str, body: &[u8]) -> Answer {
    match at {
        path::FACTS => reply(body, async |request| agent.facts(request).await).await,
        path::ORDERS => reply(body, async |envelope| agent.obey(envelope).await).await,
        path::LOGS => reply(body, async |request| agent.logs(request).await).await,
        path::JOB => reply(body, async |request| agent.job(request).await).await,
        path::ENROL => reply(body, async |request| agent.enrol(request).await).await,
        path::ENROL_CERTIFICATE => reply(body, async |request| agent.enrol_certificate(request).await).await,
        _ => refusal(StatusCode::NOT_FOUND, "there is nothing at this path"),
    }
}

async fn reply<Q: DeserializeOwned, A: Serialize>(
    body: &[u8],
    work: impl AsyncFnOnce(Q) -> Result<A, Refusal>,
) -> Answer {
    match serde_json::from_slice(body) {
        Ok(request) => outcome(work(request).await),
        // serde's message may quote the request, which may hold secrets.
        Err(error) => {
            let why = format!("cannot parse the request (line {}, column {})", error.line(), error.column());
            refusal(StatusCode::BAD_REQUEST, &why)
        }
    }
}

fn outcome<A: Serialize>(outcome: Result<A, Refusal>) -> Answer {
    match outcome {
        Ok(answer) => json(StatusCode::OK, &answer),
        Err(refusal) => {
            tracing::warn!(%refusal, "refused");
            json(StatusCode::CONFLICT, &refusal)
        }
    }
}

fn refusal(status: StatusCode, why: &str) -> Answer {
    json(status, &Refusal::Failed { why: why.to_owned() })
}

fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    let body = serde_json::to_vec(value).expect("plain data serializes");
    let response = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    response.body(Full::new(Bytes::from(body)).boxed()).expect("the parts are constants")
}
