//! Requests to the HTTP pages of services next to the agent, and of their peers: one connection and one request each, with TLS. The caller
//! sets the time limit.

use std::sync::Arc;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;

/// etcd's metrics, the longest of all pages, are a few hundred kilobytes at most.
const LONGEST: usize = 4 << 20;

pub(crate) type HttpError = Box<dyn std::error::Error + Send + Sync>;

/// What is at this path, for those who are known by this TLS configuration.
pub(crate) async fn get(url: &str, path: &str, config: Arc<ClientConfig>) -> Result<Response<Bytes>, HttpError> {
    let answer = send(url, Method::GET, path, Bytes::new(), config).await?;
    if answer.status().is_success() { Ok(answer) } else { Err(answer.status().to_string().into()) }
}

/// Sends a request and returns the answer, whatever its status is.
pub(crate) async fn send(
    url: &str,
    method: Method,
    path: &str,
    body: Bytes,
    config: Arc<ClientConfig>,
) -> Result<Response<Bytes>, HttpError> {
    let url: Uri = url.parse()?;
    let authority = url.authority().ok_or("the URL has no host")?.clone();
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    let stream = TcpStream::connect((host.as_str(), authority.port_u16().unwrap_or(443))).await?;
    let stream = tokio_rustls::TlsConnector::from(config).connect(ServerName::try_from(host)?, stream).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::builder().method(method).uri(path).header("host", authority.as_str());
    let request = request.body(Full::new(body))?;
    let answer = async {
        let answer = sender.send_request(request).await?;
        let (parts, body) = answer.into_parts();
        Ok(Response::from_parts(parts, Limited::new(body, LONGEST).collect().await?.to_bytes()))
    };
    tokio::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        ended = connection => {
            // The last of the answer may have come together with the end.
            ended?;
            answer.await
        }
    }
}
