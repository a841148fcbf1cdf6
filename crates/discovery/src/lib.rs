//! A discovery service for etcd members from any source: like `discovery.etcd.io`, for your own clusters. Members that do not know each
//! other register under a token, and learn the other members from it.
//!
//! It promises that an answered registration is kept, that the order of registrations never changes, and that clients can exhaust
//! neither its memory nor its disk. It knows nothing about quorate's clusters, which do not need it.

mod cluster;
mod files;
mod grpc;
mod registry;
mod server;
mod store;
mod tls;
mod v2;
mod v3;
mod waiters;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use quorate_core::text::with_causes;
use quorate_etcd::ConnectOptions;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use cluster::Cluster;
use files::{Files, OpenError};
use server::Service;
use store::{Store, StoreError};
use tls::{Tls, TlsError};

pub use files::Limits;
pub use server::{Bounds, endpoint};
pub use tls::Source;

#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    #[error(transparent)]
    Files(#[from] OpenError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the etcd cluster cannot be used: {0}")]
    Access(String),
    #[error("the etcd cluster cannot be used")]
    Cluster(#[from] StoreError),
    #[error("cannot listen at {address}")]
    Listen { address: SocketAddr, source: io::Error },
}

/// How the endpoints of an etcd cluster are reached. It is called again and again, because certificates end and members move.
pub type Access<'a> = dyn Fn() -> Pin<Box<dyn Future<Output = Result<Vec<ConnectOptions>, String>> + 'a>> + 'a;

/// Where tokens are kept.
pub enum Keep<'a> {
    /// In files of this directory.
    Files(PathBuf),
    Cluster(Box<Access<'a>>),
}

pub struct Options<'a> {
    pub listen: SocketAddr,
    /// What tokens are appended to, for members.
    pub url: String,
    pub keep: Keep<'a>,
    /// None: without TLS.
    pub tls: Option<Source>,
    pub bounds: Bounds,
    pub limits: Limits,
}

/// What is to be said when the service answers.
#[derive(Debug)]
pub struct Ready<'a> {
    pub url: &'a str,
    /// The CA that members must trust, where it is the service's own.
    pub ca: Option<&'a Path>,
}

/// Serves until it is dropped. `ready` is called once, when clients can connect.
pub async fn run(options: Options<'_>, ready: impl FnOnce(&Ready<'_>)) -> Result<Infallible, DiscoveryError> {
    let Options { listen, url, keep, tls, bounds, limits } = options;
    let (store, cluster): (Arc<dyn Store>, _) = match keep {
        Keep::Files(directory) => (Arc::new(Files::open(&directory, limits)?), None),
        Keep::Cluster(access) => {
            let cluster = Cluster::new(access().await.map_err(DiscoveryError::Access)?, limits)?;
            cluster.check().await?;
            (Arc::new(cluster.clone()), Some((cluster, access)))
        }
    };
    let tls = tls.map(Tls::new).transpose()?.map(Arc::new);
    let acceptor = tls.as_ref().map(Tls::config).transpose()?.map(TlsAcceptor::from);
    let listener = TcpListener::bind(listen).await;
    let listener = listener.map_err(|source| DiscoveryError::Listen { address: listen, source })?;
    ready(&Ready { url: &url, ca: tls.as_ref().and_then(|tls| tls.ca_file()).as_deref() });
    let service = Arc::new(Service::new(store, &url, bounds));
    let refresh = async || {
        if let Some(Err(error)) = tls.as_ref().map(|tls| tls.refresh()) {
            tracing::error!(
                error = with_causes(&error),
                "the certificate could not be renewed; the old one stays in use"
            );
        }
        if let Some((cluster, access)) = &cluster {
            let connected = match access().await {
                Ok(options) => cluster.connect(options).map_err(|error| error.to_string()),
                Err(why) => Err(why),
            };
            if let Err(why) = connected {
                tracing::warn!(why, "the endpoints of the etcd cluster could not be looked up again");
            }
        }
    };
    Ok(tokio::select! {
        never = server::serve(service.clone(), listener, acceptor) => never,
        never = service.tend(refresh) => never,
    })
}
