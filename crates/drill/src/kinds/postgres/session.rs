//! Connections to PostgreSQL like libpq's: TLS with full verification, a password and a certificate, and the first writable one of several
//! hosts.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use quorate_agent::dial::Dial;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_postgres::{Client, Config, SimpleQueryMessage, SimpleQueryRow};
use tokio_rustls::TlsConnector;

use super::history::Timeline;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The file of the log that is written to, whose name begins with the timeline, and the version. No file on a replica.
const WRITABLE: &str = "select case when not pg_is_in_recovery() then pg_walfile_name(pg_current_wal_insert_lsn()) end, \
    current_setting('server_version_num')";

fn timeline(row: &SimpleQueryRow) -> Option<Timeline> {
    let number = u32::from_str_radix(row.get(0)?.get(..8)?, 16).ok()?;
    let version: u32 = row.get(1)?.parse().ok()?;
    Some(Timeline { version: version / 10_000, number })
}

/// As whom the clients come.
#[derive(Clone)]
pub struct Access {
    pub user: String,
    pub password: String,
    pub database: String,
    pub tls: Arc<ClientConfig>,
    pub dial: Dial,
}

/// The certificate of a user, and its key.
pub struct Certificate<'a> {
    pub chain: &'a str,
    pub key: &'a str,
}

/// One of the hosts of a connection string.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Host {
    /// The machine.
    pub name: String,
    pub address: SocketAddr,
}

/// The configuration of TLS, from what libpq reads from files.
pub fn tls(ca: &str, shown: Option<Certificate<'_>>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        roots.add(authority.map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = versions.map_err(|e| e.to_string())?.with_root_certificates(roots);
    let Some(Certificate { chain, key }) = shown else { return Ok(Arc::new(config.with_no_client_auth())) };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain.as_bytes()).collect();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|e| e.to_string())?;
    let config = config.with_client_auth_cert(chain.map_err(|e| e.to_string())?, key).map_err(|e| e.to_string())?;
    Ok(Arc::new(config))
}

/// A session on one member. Dropping it closes the connection.
pub struct Session {
    client: Client,
    connection: JoinHandle<()>,
    pub member: String,
    /// Of a primary; none on a replica.
    pub timeline: Option<Timeline>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Session {
    pub async fn open(access: &Access, host: &Host) -> Result<Self, String> {
        let opened = timeout(CONNECT_TIMEOUT, Session::connect(access, host)).await;
        opened.unwrap_or_else(|_| Err(String::from("no connection in time")))
    }

    /// The first proxy that leads to a member that is writable. Which one that is says its address.
    pub async fn open_through(access: &Access, proxies: &[SocketAddr], hosts: &[Host]) -> Result<Self, String> {
        let mut last = String::from("there is no proxy");
        for address in proxies {
            let proxy = Host { name: format!("the proxy at {address}"), address: *address };
            match Session::open(access, &proxy).await {
                Ok(mut session) if session.timeline.is_some() => {
                    let rows = session.rows("select host(inet_server_addr())").await.map_err(|e| why(&e))?;
                    let behind = rows.first().and_then(|row| row.get(0)?.parse::<IpAddr>().ok());
                    let member = hosts.iter().find(|host| Some(host.address.ip()) == behind);
                    session.member = member.ok_or_else(|| format!("{} is no member", proxy.name))?.name.clone();
                    return Ok(session);
                }
                Ok(_) => last = format!("{} connects to a replica", proxy.name),
                Err(why) => last = format!("{}: {why}", proxy.name),
            }
        }
        Err(last)
    }

    async fn connect(access: &Access, host: &Host) -> Result<Self, String> {
        let stream = access.dial.connect(host.address).await.map_err(|e| e.to_string())?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        let mut config = Config::new();
        config.user(&access.user).password(&access.password).dbname(&access.database);
        config.application_name("quorate drill").ssl_mode(tokio_postgres::config::SslMode::Require);
        let tls = Tls { config: access.tls.clone(), name: ServerName::IpAddress(host.address.ip().into()) };
        let (client, connection) = config.connect_raw(stream, tls).await.map_err(|e| why(&e))?;
        let connection = tokio::spawn(async move { drop(connection.await) });
        let mut session = Session { client, connection, member: host.name.clone(), timeline: None };
        session.timeline = session.writable_on().await.map_err(|e| why(&e))?;
        Ok(session)
    }

    /// The first host of the list that is writable, as with `target_session_attrs=read-write`.
    pub async fn open_writable(access: &Access, hosts: &[Host]) -> Result<Self, String> {
        let mut last = String::from("there is no host");
        for host in hosts {
            match Session::open(access, host).await {
                Ok(session) if session.timeline.is_some() => return Ok(session),
                Ok(_) => last = format!("{} is a replica", host.name),
                Err(why) => last = format!("{}: {why}", host.name),
            }
        }
        Err(last)
    }

    /// The timeline that the member writes on; none of a replica.
    pub async fn writable_on(&self) -> Result<Option<Timeline>, tokio_postgres::Error> {
        let rows = self.rows(WRITABLE).await?;
        Ok(rows.first().and_then(timeline))
    }

    /// Statements in one message; the rows of all of them.
    pub async fn rows(&self, sql: &str) -> Result<Vec<SimpleQueryRow>, tokio_postgres::Error> {
        let messages = self.client.simple_query(sql).await?;
        let row = |message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        };
        Ok(messages.into_iter().filter_map(row).collect())
    }
}

/// The error and what is behind it, in one line.
pub fn why(error: &tokio_postgres::Error) -> String {
    use std::error::Error as _;
    match (error.as_db_error(), error.source()) {
        (Some(told), _) => format!("{} ({})", told.message(), told.code().code()),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl TlsConnect<TcpStream> for Tls {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, stream: TcpStream) -> Self::Future {
        Box::pin(async move { Ok(Encrypted(TlsConnector::from(self.config).connect(self.name, stream).await?)) })
    }
}

struct Encrypted(tokio_rustls::client::TlsStream<TcpStream>);

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
