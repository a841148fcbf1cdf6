//! The first bytes of a connection, which decide how it is handled. They are kept, because the handler may have to read them again.

use std::io;
use std::time::Duration;

use rustls::server::{Accepted, Acceptor};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a client may take to say hello.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// A ClientHello with many keys and tickets has a few thousand bytes.
const LONGEST: usize = 32 << 10;
const CHUNK: usize = 2 << 10;
/// A TLS record that holds a handshake.
const HANDSHAKE: u8 = 0x16;

/// What a client wants.
pub enum Hello {
    /// gRPC, spoken with a member itself: all that was read belongs to it.
    Grpc(Vec<u8>),
    /// REST, over TLS that ends here.
    Rest(Box<Accepted>),
    /// Something without TLS.
    Plain(Vec<u8>),
}

#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    #[error("no TLS hello in {} s", PATIENCE.as_secs())]
    Slow,
    #[error("the connection was closed before anything was sent")]
    Silent,
    #[error("the TLS hello is longer than {LONGEST} bytes")]
    Long,
    #[error("the client did not wait for an answer to its TLS hello")]
    Early,
    #[error("not TLS: {0}")]
    Tls(rustls::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

pub async fn read(stream: &TcpStream) -> Result<Hello, HelloError> {
    timeout(PATIENCE, read_on(stream)).await.unwrap_or(Err(HelloError::Slow))
}

async fn read_on(stream: &TcpStream) -> Result<Hello, HelloError> {
    let (mut acceptor, mut read) = (Acceptor::default(), Vec::new());
    loop {
        stream.readable().await?;
        let mut chunk = [0; CHUNK];
        let length = match stream.try_read(&mut chunk) {
            Ok(0) => return Err(HelloError::Silent),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error.into()),
        };
        read.extend_from_slice(&chunk[..length]);
        if read[0] != HANDSHAKE {
            return Ok(Hello::Plain(read));
        }
        let mut fresh = &chunk[..length];
        while !fresh.is_empty() {
            acceptor.read_tls(&mut fresh)?;
            match acceptor.accept() {
                Ok(Some(accepted)) => return judge(accepted, read, fresh),
                Ok(None) => {}
                Err((error, _)) => return Err(HelloError::Tls(error)),
            }
        }
        if read.len() > LONGEST {
            return Err(HelloError::Long);
        }
    }
}

/// gRPC is spoken over HTTP/2 alone. A client that also offers HTTP/1.1, as curl does, or offers nothing, gets REST.
fn judge(accepted: Accepted, read: Vec<u8>, unread: &[u8]) -> Result<Hello, HelloError> {
    let protocols: Vec<Vec<u8>> =
        accepted.client_hello().alpn().map(|protocols| protocols.map(<[u8]>::to_vec).collect()).unwrap_or_default();
    let offers = |name: &[u8]| protocols.iter().any(|protocol| protocol == name);
    match offers(b"h2") && !offers(b"http/1.1") {
        true => Ok(Hello::Grpc(read)),
        false if unread.is_empty() => Ok(Hello::Rest(Box::new(accepted))),
        // Only early data could follow, and that is offered to nobody.
        false => Err(HelloError::Early),
    }
}
