//! Questions to etcd's plain HTTP pages, its own and its peers': one connection and one request each, with TLS. Anyone who asks
//! bounds the time.

use std::sync::Arc;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;

/// etcd's metrics, the longest of its pages, are a few hundred kilobytes at most.
const LONGEST: usize = 4 << 20;

/// What is at this path, for the clients that etcd knows by this TLS configuration.
pub(super) async fn get(
    url: &str,
    path: &str,
    config: Arc<ClientConfig>,
) -> Result<Response<Bytes>, Box<dyn std::error::Error + Send + Sync>> {
    let url: Uri = url.parse()?;
    let authority = url.authority().ok_or("the URL has no host")?.clone();
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    let stream = TcpStream::connect((host.as_str(), authority.port_u16().unwrap_or(443))).await?;
    let stream = tokio_rustls::TlsConnector::from(config).connect(ServerName::try_from(host)?, stream).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path).header("host", authority.as_str()).body(Empty::<Bytes>::new())?;
    let answer = async {
        let answer = sender.send_request(request).await?;
        if !answer.status().is_success() {
            return Err(answer.status().to_string().into());
        }
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
