//! A discovery service for etcd members of any maker: what `discovery.etcd.io` does, for the members of one's own clusters. Members that
//! know nothing of each other register under a token, and learn from it who the others are.
//!
//! It promises that a registration which was answered is kept, that the order of registrations never changes, and that clients can
//! use up neither its memory nor its disk. It knows nothing of quorate's clusters, which do not need it.

mod files;
mod grpc;
mod rates;
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
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use files::{Files, OpenError};
use server::Service;
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
    #[error("cannot listen at {address}")]
    Listen { address: SocketAddr, source: io::Error },
}

#[derive(Clone, Debug)]
pub struct Options {
    pub listen: SocketAddr,
    /// What tokens are appended to, for members.
    pub url: String,
    /// Of the embedded store.
    pub directory: PathBuf,
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
pub async fn run(options: Options, ready: impl FnOnce(&Ready<'_>)) -> Result<Infallible, DiscoveryError> {
    let Options { listen, url, directory, tls, bounds, limits } = options;
    let store = Files::open(&directory, limits)?;
    let tls = tls.map(Tls::new).transpose()?.map(Arc::new);
    let acceptor = tls.as_ref().map(Tls::config).transpose()?.map(TlsAcceptor::from);
    let listener = TcpListener::bind(listen).await;
    let listener = listener.map_err(|source| DiscoveryError::Listen { address: listen, source })?;
    ready(&Ready { url: &url, ca: tls.as_ref().and_then(|tls| tls.ca_file()).as_deref() });
    let service = Arc::new(Service::new(Arc::new(store), &url, bounds));
    let refresh = || {
        if let Some(Err(error)) = tls.as_ref().map(|tls| tls.refresh()) {
            let error = quorate_core::text::with_causes(&error);
            tracing::error!(error, "the certificate could not be renewed; the old one stays in use");
        }
    };
    Ok(tokio::select! {
        never = server::serve(service.clone(), listener, acceptor) => never,
        never = service.tend(refresh) => never,
    })
}
