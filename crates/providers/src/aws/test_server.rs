//! A server that answers as it is told, for tests of calls.

use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// A request: method and path, headers, and body.
pub(super) struct Asked {
    pub(super) what: String,
    pub(super) headers: hyper::HeaderMap,
    pub(super) body: String,
}

impl Asked {
    pub(super) fn header(&self, name: &str) -> String {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    }
}

/// What is answered: a status and a text. None cuts the connection.
type Told = dyn FnMut(&Asked) -> Option<(u16, String)> + Send;

/// Returns its address, and all requests so far.
pub(super) async fn serve(
    told: impl FnMut(&Asked) -> Option<(u16, String)> + Send + 'static,
) -> (String, Arc<Mutex<Vec<Asked>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen: Arc<Mutex<Vec<Asked>>> = Arc::default();
    let told: Arc<Mutex<Box<Told>>> = Arc::new(Mutex::new(Box::new(told)));
    let all = seen.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (told, seen) = (told.clone(), all.clone());
            let service = service_fn(move |request: Request<Incoming>| {
                let (told, seen) = (told.clone(), seen.clone());
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
                    let what = format!("{} {}", parts.method, parts.uri);
                    let body = String::from_utf8_lossy(&body).into_owned();
                    let asked = Asked { what, headers: parts.headers, body };
                    let answer = (told.lock().unwrap())(&asked);
                    seen.lock().unwrap().push(asked);
                    let (status, text) = answer.ok_or_else(|| std::io::Error::other("cut by the test"))?;
                    Ok::<_, std::io::Error>(
                        Response::builder().status(status).body(Full::new(Bytes::from(text))).unwrap(),
                    )
                }
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (url, seen)
}
