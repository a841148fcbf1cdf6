//! Both sides, and their processes.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use quorate_etcd::Client;
use quorate_keys::{Body, Keys, Settings};
use tokio::net::TcpListener;

use crate::lab::{Authority, Etcd, Setup, Version};

/// Far more than is allowed.
const READ: usize = 4 << 20;

pub fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
}

/// An etcd, its client, and the library served on it.
pub struct Ours {
    pub etcd: Etcd,
    pub client: Client,
    pub at: SocketAddr,
    pub keys: Keys,
}

impl Ours {
    pub async fn start() -> Self {
        Self::with(&Version::newest(), Settings::default()).await
    }

    pub async fn with(version: &Version, settings: Settings) -> Self {
        let etcd = Etcd::start(version, &Authority::new(), Setup::password());
        let client = Client::connect(etcd.options()).expect("good options");
        etcd.ready(&client).await;
        let keys = Keys::new(settings);
        let at = serve(keys.clone(), client.clone()).await;
        Ours { etcd, client, at, keys }
    }
}

/// Serves the library, as one user, until the test ends.
pub async fn serve(keys: Keys, client: Client) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let at = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (keys, client) = (keys.clone(), client.clone());
            let service = service_fn(move |request| answer(keys.clone(), client.clone(), request));
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    at
}

async fn answer(
    keys: Keys,
    client: Client,
    request: Request<Incoming>,
) -> Result<Response<Body>, Box<dyn std::error::Error + Send + Sync>> {
    let (parts, body) = request.into_parts();
    let body: Bytes = Limited::new(body, READ).collect().await?.to_bytes();
    Ok(keys.answer(Request::from_parts(parts, body), &client).await)
}

/// An etcd that still has v2, over plain HTTP.
pub struct Theirs {
    _etcd: Etcd,
    pub at: SocketAddr,
}

impl Theirs {
    pub async fn start(version: &str) -> Self {
        let setup = Setup::password().flag("--enable-v2=true");
        let mut etcd = Etcd::prepare(&Version::named(version), &Authority::new(), "m1", &setup);
        let (peer, address) = (etcd.peer_url(), etcd.address);
        etcd.spawn(&[
            format!("--initial-cluster=m1={peer}"),
            format!("--listen-client-urls=https://{address}:2379,http://{address}:2378"),
        ]);
        let client = Client::connect(etcd.options()).expect("good options");
        etcd.ready(&client).await;
        Theirs { _etcd: etcd, at: SocketAddr::from((address, 2378)) }
    }
}
