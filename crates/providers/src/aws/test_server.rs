//! For tests: a server with scripted answers, and a provider that uses it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::etcd::versions;
use quorate_core::model::Ledger;
use quorate_core::providers::aws::AwsSettings;
use quorate_core::spec::{self, Provider};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::Aws;

/// The provider of the cluster `demo`, with these settings added to the least that a spec has.
pub(super) fn aws(more: Value) -> Aws {
    let mut settings = json!({ "region": "eu-west-2", "instance_types": ["m7i.large"], "image": { "id": "ami-1" } });
    settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    aws_of(&serde_json::from_value(settings).unwrap(), |_| {})
}

/// The same with a ledger that was changed before.
pub(super) fn aws_of(settings: &AwsSettings, change: impl FnOnce(&mut Ledger)) -> Aws {
    let spec = spec::generated("demo", 3, versions::DEFAULT, ClientAuth::Certificate).unwrap();
    let mut spec = spec.clusters.into_iter().next().unwrap();
    spec.provider = Provider::Aws(Box::new(settings.clone()));
    let mut ledger = Ledger::new(String::from("c1"), spec);
    change(&mut ledger);
    let variables = [("AWS_ACCESS_KEY_ID", "AK"), ("AWS_SECRET_ACCESS_KEY", "s3cret")];
    Aws::new(&ledger, settings).impatient(&variables, 2, Duration::from_millis(1)).unwrap()
}

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
