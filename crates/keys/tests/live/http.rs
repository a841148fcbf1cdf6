//! A client that sends HTTP byte by byte to either side.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(20);
pub const FORM: &str = "application/x-www-form-urlencoded";

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }

    pub fn index(&self) -> u64 {
        self.header("x-etcd-index").parse().expect("an index")
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }
}

/// The answer's head, with a body that may take its time. Dropping it closes the connection.
pub async fn begin(to: SocketAddr, method: &str, path: &str, form: &str) -> Response<Incoming> {
    let stream = TcpStream::connect(to).await.expect("a connection");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
    tokio::spawn(connection);
    let request = Request::builder().method(method).uri(path).header("host", "x").header("content-type", FORM);
    let request = request.body(Full::new(Bytes::copy_from_slice(form.as_bytes()))).expect("a request");
    tokio::time::timeout(PATIENCE, sender.send_request(request)).await.expect("an answer in time").expect("an answer")
}

pub async fn ask(to: SocketAddr, method: &str, path: &str, form: &str) -> Answer {
    let response = begin(to, method, path, form).await;
    tokio::time::timeout(PATIENCE, read(response)).await.expect("a body in time")
}

pub async fn read(response: Response<Incoming>) -> Answer {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.expect("a whole body").to_bytes();
    Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: String::from_utf8(body.to_vec()).expect("UTF-8"),
    }
}

/// The next piece of a body, if it comes within this time.
pub async fn next(response: &mut Response<Incoming>, within: Duration) -> Option<String> {
    let frame = tokio::time::timeout(within, response.body_mut().frame()).await.ok()??;
    let data = frame.expect("a frame").into_data().expect("data");
    Some(String::from_utf8(data.to_vec()).expect("UTF-8"))
}
