//! The clients of `cargo xtask bench front`. How to log in is told by etcdctl's variables, as `quorate env` gives them.
//!
//! - `front_load ask CLIENTS SECONDS ENDPOINT…`: each client has a connection, puts a small value and reads it, over and over. Prints
//!   how many requests were answered per second, and the microseconds that half of them and 99 of 100 took at most.
//! - `front_load idle CONNECTIONS ADDRESS:PORT`: connects as gRPC does, prints a line, and stays until its input ends.

use std::error::Error;
use std::io::Read;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_etcd::{Client, ConnectOptions};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// So many connections are being opened at the same time.
const OPENING: usize = 64;
const VALUE: [u8; 100] = [b'v'; 100];
/// How HTTP/2 begins: the preface, and settings that change nothing.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(words: &[&str]) -> Result<()> {
    match words {
        ["ask", clients, seconds, endpoints @ ..] if !endpoints.is_empty() => {
            ask(clients.parse()?, Duration::from_secs(seconds.parse()?), endpoints).await
        }
        ["idle", connections, address] => idle(connections.parse()?, address.parse()?).await,
        _ => Err("usage: front_load ask CLIENTS SECONDS ENDPOINT… | front_load idle CONNECTIONS ADDRESS:PORT".into()),
    }
}

/// The file that a variable of etcdctl names.
fn file(variable: &str) -> Result<String> {
    let path =
        std::env::var(variable).map_err(|_| format!("{variable} is not set: use the output of `quorate env`"))?;
    Ok(std::fs::read_to_string(path)?)
}

async fn ask(clients: usize, duration: Duration, endpoints: &[&str]) -> Result<()> {
    let (ca, identity) = (file("ETCDCTL_CACERT")?, (file("ETCDCTL_CERT")?, file("ETCDCTL_KEY")?));
    let mut asking = JoinSet::new();
    for (number, endpoint) in endpoints.iter().cycle().take(clients).enumerate() {
        let identity = Some(identity.clone());
        let client = Client::connect(ConnectOptions { identity, ..ConnectOptions::new(*endpoint, &ca) })?;
        asking.spawn(put_and_get(client, format!("/load/{number}"), duration));
    }
    let mut took: Vec<Duration> = Vec::new();
    while let Some(one) = asking.join_next().await {
        took.extend(one??);
    }
    took.sort_unstable();
    let part = |of_hundred: usize| took.get(took.len() * of_hundred / 100).map_or(0, Duration::as_micros);
    println!("{} {} {}", took.len() as f64 / duration.as_secs_f64(), part(50), part(99));
    Ok(())
}

async fn put_and_get(client: Client, key: String, duration: Duration) -> Result<Vec<Duration>> {
    // The connection and the login are not measured.
    client.put(key.as_str(), VALUE).await?;
    let end = Instant::now() + duration;
    let mut took = Vec::new();
    while Instant::now() < end {
        let begun = Instant::now();
        client.put(key.as_str(), VALUE).await?;
        let put = begun.elapsed();
        client.get(key.as_str()).await?;
        took.extend([put, begun.elapsed() - put]);
    }
    Ok(took)
}

async fn idle(connections: usize, address: SocketAddr) -> Result<()> {
    let connector = connector()?;
    let mut opening = JoinSet::new();
    let mut open = Vec::with_capacity(connections);
    for number in 0..connections {
        if number >= OPENING {
            open.extend(opening.join_next().await.transpose()?.transpose()?);
        }
        opening.spawn(connect(connector.clone(), address));
    }
    while let Some(one) = opening.join_next().await {
        open.push(one??);
    }
    println!("{}", open.len());
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    Ok(())
}

async fn connect(connector: TlsConnector, address: SocketAddr) -> Result<TlsStream<TcpStream>> {
    let socket = TcpStream::connect(address).await?;
    let mut stream = connector.connect(ServerName::from(address.ip()), socket).await?;
    stream.write_all(HELLO).await?;
    stream.flush().await?;
    Ok(stream)
}

fn connector() -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(file("ETCDCTL_CACERT")?.as_bytes()) {
        roots.add(certificate?)?;
    }
    let chain =
        CertificateDer::pem_slice_iter(file("ETCDCTL_CERT")?.as_bytes()).collect::<std::result::Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(file("ETCDCTL_KEY")?.as_bytes())?;
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
