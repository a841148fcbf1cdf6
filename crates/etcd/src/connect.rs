//! The connection to one etcd member: TLS, timeouts, keepalive. It connects at first use and reconnects when the connection is lost.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{self, Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::error::Error;
use crate::room::{Bounds, Channel, Room};
use crate::session::Session;
use crate::streams::Streams;

/// etcd takes pings more often than every five seconds, or without a call under way, as an attack and closes the connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How much of a long stream etcd sends ahead of its reader.
const IN_FLIGHT: u32 = 512 << 10;
const HTTPS: u16 = 443;

/// How to reach a member, and as whom.
#[derive(Clone)]
pub struct ConnectOptions {
    /// `https://ADDRESS:PORT`. The address (or name) must be among the subject alternative names of the member's certificate.
    pub endpoint: String,
    /// The certificates, in PEM, of which one must have signed the member's.
    pub ca_pem: String,
    /// The client certificate (its chain, leaf first) and its key, in PEM.
    pub identity: Option<(String, String)>,
    pub login: Option<Login>,
    /// Where connections do not begin in this process's network.
    pub sockets: Option<Sockets>,
    /// Bounds the TCP connection, and again the TLS handshake.
    pub connect_timeout: Duration,
    /// Bounds a whole call, connecting and logging in included, except the calls that say otherwise.
    pub request_timeout: Duration,
    /// A longer message of an answer is refused.
    pub longest_answer: usize,
    /// Where large answers are counted while they come, if at all. One for which there is no room is refused.
    pub room: Option<Room>,
}

/// Makes the sockets for connections to an address.
#[derive(Clone)]
pub struct Sockets(Arc<dyn Fn(SocketAddr) -> io::Result<TcpSocket> + Send + Sync>);

impl Sockets {
    pub fn new(make: impl Fn(SocketAddr) -> io::Result<TcpSocket> + Send + Sync + 'static) -> Self {
        Sockets(Arc::new(make))
    }

    async fn connect(self, to: Uri) -> io::Result<TokioIo<TcpStream>> {
        let host = to.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let refuse = |_| io::Error::new(io::ErrorKind::InvalidInput, format!("{host} is not an address"));
        let address = SocketAddr::new(host.parse::<IpAddr>().map_err(refuse)?, to.port_u16().unwrap_or(HTTPS));
        let stream = (self.0)(address)?.connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(TokioIo::new(stream))
    }
}

impl Service<Uri> for Sockets {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        Box::pin(self.clone().connect(to))
    }
}

/// A user and password. Where both a certificate and a login are given, etcd goes by the login.
#[derive(Clone)]
pub struct Login {
    pub user: String,
    pub password: String,
}

impl ConnectOptions {
    /// Options with neither certificate nor login, and timeouts that suit a member on this machine or near it.
    pub fn new(endpoint: impl Into<String>, ca_pem: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            ca_pem: ca_pem.into(),
            identity: None,
            login: None,
            sockets: None,
            connect_timeout: Duration::from_secs(3),
            request_timeout: Duration::from_secs(5),
            longest_answer: usize::MAX,
            room: None,
        }
    }

    fn tls(&self, host: &str) -> ClientTlsConfig {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.ca_pem))
            // An IPv6 address stands in brackets in a URL, and without in a certificate.
            .domain_name(host.trim_start_matches('[').trim_end_matches(']'))
            .timeout(self.connect_timeout);
        match &self.identity {
            Some((chain, key)) => tls.identity(Identity::from_pem(chain, key)),
            None => tls,
        }
    }

    fn endpoint(&self) -> Result<Endpoint, Error> {
        let refuse = |why: String| Error::Options { endpoint: self.endpoint.clone(), why };
        let endpoint = Endpoint::from_shared(self.endpoint.clone()).map_err(|_| refuse("it is not a URL".into()))?;
        if endpoint.uri().scheme_str() != Some("https") {
            return Err(refuse("only https is spoken".into()));
        }
        let host = endpoint.uri().host().unwrap_or_default().to_owned();
        Ok(endpoint
            .tls_config(self.tls(&host))
            .map_err(|error| {
                refuse(format!("its certificates or key cannot be used: {}", crate::error::root_cause(&error)))
            })?
            .connect_timeout(self.connect_timeout)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(false))
    }
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, identity, login, connect_timeout, request_timeout, .. } = self;
        f.debug_struct("ConnectOptions")
            .field("endpoint", endpoint)
            .field("identity", &identity.as_ref().map(|_| "(given)"))
            .field("login", login)
            .field("connect_timeout", connect_timeout)
            .field("request_timeout", request_timeout)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// A client of one member. Clones share the connection and the login.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) endpoint: String,
    pub(crate) channel: Channel,
    /// For separate connections: a long stream that is taken slowly must not hold up the other calls.
    pub(crate) for_long: Endpoint,
    pub(crate) streams: Arc<Streams>,
    pub(crate) sockets: Option<Sockets>,
    pub(crate) request_timeout: Duration,
    pub(crate) session: Option<Session>,
}

impl Client {
    /// Prepares the connection; the first call makes it. Must be called within a tokio runtime.
    pub fn connect(options: ConnectOptions) -> Result<Self, Error> {
        let connection = options.endpoint()?;
        let ConnectOptions { endpoint, login, sockets, request_timeout, longest_answer, room, .. } = options;
        let bounds = Bounds { longest: longest_answer, room };
        let channel = Channel { to: lazily(&connection, sockets.as_ref()), bounds };
        let streams = Arc::new(Streams::new(connection.clone()));
        let for_long = connection.initial_stream_window_size(IN_FLIGHT).initial_connection_window_size(IN_FLIGHT);
        let session = login.map(Session::new);
        Ok(Self { inner: Arc::new(Inner { endpoint, channel, for_long, streams, sockets, request_timeout, session }) })
    }

    pub fn endpoint(&self) -> &str {
        &self.inner.endpoint
    }

    /// A connection that one long stream has for itself.
    pub(crate) fn channel_for_long_stream(&self) -> Channel {
        self.bounded(lazily(&self.inner.for_long, self.inner.sockets.as_ref()))
    }

    /// A connection on which a watch holds up nobody who reads, and its place there.
    pub(crate) fn channel_for_watch(&self) -> (Channel, OwnedSemaphorePermit) {
        let (channel, place) = self.inner.streams.place(self.inner.sockets.as_ref());
        (self.bounded(channel), place)
    }

    fn bounded(&self, to: transport::Channel) -> Channel {
        Channel { to, bounds: self.inner.channel.bounds.clone() }
    }
}

pub(crate) fn lazily(endpoint: &Endpoint, sockets: Option<&Sockets>) -> transport::Channel {
    match sockets {
        Some(sockets) => endpoint.connect_with_connector_lazy(sockets.clone()),
        None => endpoint.connect_lazy(),
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("endpoint", &self.inner.endpoint).finish_non_exhaustive()
    }
}
