//! Serves the v2 API over plain HTTP on loopback, for other projects' test suites, which start it in place of etcd.
//!
//! It accepts etcd's flags and uses only `-listen-client-urls`. The environment says what it serves: `V2_ENDPOINT` and `V2_CA` (a
//! file) name the etcd, `V2_ADVERTISED` is the answer of `/v2/machines`, separated by commas.

use std::net::SocketAddr;
use std::time::Duration;
use std::{env, error, fs};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use quorate_etcd::{Client, ConnectOptions};
use quorate_keys::{Body, Keys, Settings};
use tokio::net::TcpListener;

type Failure = Box<dyn error::Error + Send + Sync>;

const LARGEST: usize = 4 << 20;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let listener = TcpListener::bind(address()?).await?;
    let client =
        Client::connect(ConnectOptions::new(env::var("V2_ENDPOINT")?, fs::read_to_string(env::var("V2_CA")?)?))?;
    let advertised = env::var("V2_ADVERTISED").unwrap_or_default();
    let advertised = advertised.split(',').filter(|url| !url.is_empty()).map(str::to_owned).collect();
    let keys = Keys::new(Settings { advertised, ..Settings::default() });
    loop {
        let (stream, _) = listener.accept().await?;
        let (keys, client) = (keys.clone(), client.clone());
        let service = service_fn(move |request| answer(keys.clone(), client.clone(), request));
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

/// A flag and its value are two arguments, or one with an equals sign between.
fn address() -> Result<SocketAddr, Failure> {
    let arguments: Vec<String> = env::args().skip(1).flat_map(|word| words(&word)).collect();
    let at = arguments.iter().position(|word| word.trim_start_matches('-') == "listen-client-urls");
    let url = at.and_then(|at| arguments.get(at + 1)).ok_or("expected -listen-client-urls http://ADDRESS:PORT")?;
    let address: SocketAddr = url.trim_start_matches("http://").parse()?;
    if address.ip().is_loopback() { Ok(address) } else { Err("only on loopback".into()) }
}

fn words(word: &str) -> Vec<String> {
    word.splitn(2, '=').map(str::to_owned).collect()
}

async fn answer(keys: Keys, client: Client, request: Request<Incoming>) -> Result<Response<Body>, Failure> {
    let (parts, body) = request.into_parts();
    let body: Bytes =
        tokio::time::timeout(Duration::from_secs(30), Limited::new(body, LARGEST).collect()).await??.to_bytes();
    Ok(keys.answer(Request::from_parts(parts, body), &client).await)
}
