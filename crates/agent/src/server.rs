//! The port that the controller speaks to. Every connection is a task of its own with limits on time and size, so that
//! whatever comes in from strangers ends there and the agent lives on.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::agent::Agent;
use crate::api::{CONTROLLER, Refusal, path};
use crate::{AgentError, tls, x509};

const HANDSHAKE: Duration = Duration::from_secs(5);
const HEADERS: Duration = Duration::from_secs(60);
const BODY: Duration = Duration::from_secs(30);
const BODY_BYTES: usize = 16 << 20;

pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener, AgentError> {
    TcpListener::bind(address).await.map_err(|source| AgentError::Listen { address, source })
}

pub(crate) async fn serve(agent: Arc<Agent>, listener: TcpListener) -> Result<(), AgentError> {
    let state = agent.state.get();
    let acceptor = TlsAcceptor::from(tls::server_config(&state.control_ca, agent.shown.clone())?);
    tracing::info!(address = %state.address, "the agent answers");
    let mut strangers = Crowd::default();
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, or a peer gone already: both pass.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (agent, acceptor) = (agent.clone(), acceptor.clone());
        strangers.admit(async move {
            let refused = move |why: String| tracing::info!(%from, why, "a connection was refused or broke off");
            match admit(&acceptor, stream).await {
                Ok(stream) => drop(tokio::spawn(async move { converse(agent, stream).await.unwrap_or_else(refused) })),
                Err(why) => refused(why),
            }
        });
    }
}

/// Those whom nobody knows yet. When there are too many, who came first must go: whoever means well needs milliseconds, so
/// a crowd that stalls is in nobody's way.
#[derive(Default)]
pub(crate) struct Crowd {
    tasks: VecDeque<AbortHandle>,
}

impl Crowd {
    const LIMIT: usize = 64;

    pub(crate) fn admit(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.retain(|task| !task.is_finished());
        if self.tasks.len() >= Self::LIMIT {
            self.tasks.pop_front().inspect(AbortHandle::abort);
        }
        self.tasks.push_back(tokio::spawn(work).abort_handle());
    }
}

/// Lets the controller in, and nobody else.
async fn admit(acceptor: &TlsAcceptor, stream: TcpStream) -> Result<TlsStream<TcpStream>, String> {
    let _ = stream.set_nodelay(true);
    let stream = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream))
        .await
        .map_err(|_| String::from("no TLS handshake in time"))?
        .map_err(|error| error.to_string())?;
    check_is_controller(&stream)?;
    Ok(stream)
}

async fn converse(agent: Arc<Agent>, stream: TlsStream<TcpStream>) -> Result<(), String> {
    let service = service_fn(move |request| {
        let agent = agent.clone();
        async move { Ok::<_, std::convert::Infallible>(answer(agent, request).await) }
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
fn check_is_controller(stream: &TlsStream<TcpStream>) -> Result<(), String> {
    let chain = stream.get_ref().1.peer_certificates().ok_or("no client certificate")?;
    let leaf = chain.first().ok_or("no client certificate")?;
    match x509::common_name(leaf) {
        Some(name) if name == CONTROLLER => Ok(()),
        name => Err(format!("the client is {name:?}, not the controller")),
    }
}

async fn answer(agent: Arc<Agent>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    if parts.method != Method::POST {
        return refusal(StatusCode::METHOD_NOT_ALLOWED, "every request is a POST");
    }
    if body.size_hint().lower() > BODY_BYTES as u64 {
        return refusal(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large");
    }
    let body = match tokio::time::timeout(BODY, Limited::new(body, BODY_BYTES).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) => return refusal(StatusCode::BAD_REQUEST, &error.to_string()),
        Err(_) => return refusal(StatusCode::REQUEST_TIMEOUT, "the request did not end in time"),
    };
    // A task of its own: an order that was begun is carried through even when the controller hangs up.
    let work = tokio::spawn(async move { dispatch(agent, parts.uri.path(), &body).await });
    work.await.unwrap_or_else(|_| refusal(StatusCode::INTERNAL_SERVER_ERROR, "the agent failed; its log says why"))
}

async fn dispatch(agent: Arc<Agent>, at: &str, body: &[u8]) -> Response<Full<Bytes>> {
    match at {
        path::FACTS => reply(body, async |request| agent.facts(request).await).await,
        path::ORDERS => reply(body, async |envelope| agent.obey(envelope).await).await,
        path::LOGS => reply(body, async |request| agent.logs(request).await).await,
        path::ENROL => reply(body, async |request| agent.enrol(request).await).await,
        path::ENROL_CERTIFICATE => reply(body, async |request| agent.enrol_certificate(request).await).await,
        _ => refusal(StatusCode::NOT_FOUND, "there is nothing at this path"),
    }
}

async fn reply<Q: DeserializeOwned, A: Serialize>(
    body: &[u8],
    work: impl AsyncFnOnce(Q) -> Result<A, Refusal>,
) -> Response<Full<Bytes>> {
    match serde_json::from_slice(body) {
        Ok(request) => match work(request).await {
            Ok(answer) => json(StatusCode::OK, &answer),
            Err(refusal) => {
                tracing::warn!(%refusal, "refused");
                json(StatusCode::CONFLICT, &refusal)
            }
        },
        // serde's message may quote the request, which may hold secrets.
        Err(error) => {
            let why = format!("the request is not understood (line {}, column {})", error.line(), error.column());
            refusal(StatusCode::BAD_REQUEST, &why)
        }
    }
}

fn refusal(status: StatusCode, why: &str) -> Response<Full<Bytes>> {
    json(status, &Refusal::Failed { why: why.to_owned() })
}

fn json(status: StatusCode, value: &impl Serialize) -> Response<Full<Bytes>> {
    let body = serde_json::to_vec(value).expect("plain data serializes");
    let response = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    response.body(Full::new(Bytes::from(body))).expect("the parts are constants")
}
