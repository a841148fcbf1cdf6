//! The listening port. Connections that have not sent anything yet are limited separately from the others, which keep their place.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use quorate_agent::refused::Refused;
use quorate_agent::unauthenticated::{self, Unauthenticated};
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_user_timeout};
use rustls::server::Accepted;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::StartHandshake;

use crate::Shared;
use crate::hello::{self, Hello, HelloError};
use crate::relay;
use crate::rest::{self, Peer};
use crate::who::Shown;

/// Connections that have not said what they want.
const UNKNOWN: usize = 1024;
/// Also for how long a connection may stay open without a request.
const HEADERS: Duration = Duration::from_secs(30);
const HEAD_BYTES: usize = 16 << 10;
/// A client that acknowledges nothing for so long has vanished.
const VANISHED: Duration = Duration::from_secs(60);
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Serves until it is dropped.
pub async fn serve(shared: Arc<Shared>, listener: TcpListener) -> Infallible {
    let (mut waiting, refused) = (Unauthenticated::new(UNKNOWN), Refused::of("connections"));
    loop {
        let (stream, from) = unauthenticated::accept(&listener, &refused, VANISHED).await;
        prepare(&stream);
        let (shared, refused) = (shared.clone(), refused.clone());
        waiting.admit(Some(from.ip()), async move {
            if let Err(why) = admit(shared, stream, from, refused.clone()).await {
                refused.say(&from, &why);
            }
        });
    }
}

/// Without these, connections of clients and members that vanished would stay for hours.
fn prepare(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = set_tcp_user_timeout(stream, VANISHED.as_millis() as u32);
    let _ = set_socket_keepalive(stream, true);
    let _ = set_tcp_keepidle(stream, KEEPALIVE);
    let _ = set_tcp_keepintvl(stream, KEEPALIVE);
}

/// Finds out what a client wants, and gives it a place.
async fn admit(shared: Arc<Shared>, stream: TcpStream, from: SocketAddr, refused: Refused) -> Result<(), String> {
    let hello = match hello::read(&stream).await {
        // A check of health by somebody who only connects, such as the agent of this machine.
        Err(HelloError::Silent) => return Ok(()),
        hello => hello.map_err(|error| error.to_string())?,
    };
    let place = shared.places.take(from.ip())?;
    let work: std::pin::Pin<Box<dyn Future<Output = Result<(), String>> + Send>> = match hello {
        Hello::Grpc(read) => Box::pin(pass(shared.clone(), stream, read)),
        Hello::Rest(accepted) => Box::pin(tls(shared.clone(), stream, from, *accepted)),
        Hello::Plain(read) if shared.insecure_http => {
            let peer = Peer { from, shown: None, is_plain: true, slow: Arc::default() };
            Box::pin(http(shared.clone(), Replayed { first: read, at: 0, stream }, peer))
        }
        Hello::Plain(_) => {
            turn_away(stream).await;
            return Err(String::from("not TLS"));
        }
    };
    tokio::spawn(async move {
        let _place = place;
        if let Err(why) = work.await {
            refused.say(&from, &why);
        }
    });
    Ok(())
}

/// Says in HTTP, which is what most people who forget TLS speak, what is wrong.
async fn turn_away(mut stream: TcpStream) {
    const WORDS: &str = "this address speaks TLS: use https://\n";
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{WORDS}",
        WORDS.len()
    );
    let _ = timeout(hello::PATIENCE, async {
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.shutdown().await;
        // What is unread when a socket is closed takes the answer with it.
        let _ = stream.take(HEAD_BYTES as u64).read_to_end(&mut Vec::new()).await;
    })
    .await;
}

/// To a member, as it is.
async fn pass(shared: Arc<Shared>, stream: TcpStream, read: Vec<u8>) -> Result<(), String> {
    let mut why = String::from("no member is known");
    for member in shared.members.candidates() {
        let to = match member.connect().await {
            Ok(to) => to,
            Err(error) => {
                why = format!("{}: {error}", member.name);
                member.failed(&error.to_string());
                continue;
            }
        };
        prepare(&to);
        drop(shared);
        let given_up = member.give_up.notified();
        return tokio::select! {
            // Connections break in many ways, and whose fault that was is for the two ends to say.
            _ = relay::relay(&stream, &to, read) => Ok(()),
            () = given_up => Ok(()),
        };
    }
    Err(format!("no member could be reached; the last one tried: {why}"))
}

async fn tls(shared: Arc<Shared>, stream: TcpStream, from: SocketAddr, accepted: Accepted) -> Result<(), String> {
    let Some(config) = shared.behind().rest.clone() else {
        return Err(String::from("REST is not served: this front has no certificate for it"));
    };
    let stream = timeout(hello::PATIENCE, StartHandshake::from_parts(accepted, stream).into_stream(config)).await;
    let stream = stream.map_err(|_| String::from("TLS handshake timed out"))?.map_err(|error| error.to_string())?;
    let shown = match stream.get_ref().1.peer_certificates().and_then(<[_]>::first) {
        None => None,
        Some(leaf) => Some(Shown::from_der(leaf).ok_or("the client's certificate cannot be read")?),
    };
    http(shared, stream, Peer { from, shown, is_plain: false, slow: Arc::default() }).await
}

async fn http<S>(shared: Arc<Shared>, stream: S, peer: Peer) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let peer = Arc::new(peer);
    let (mut stop, slow) = (shared.stop.subscribe(), peer.slow.clone());
    let answer = service_fn(move |request| {
        let (shared, peer) = (shared.clone(), peer.clone());
        async move { Ok::<_, Infallible>(rest::answer(shared, &peer, request).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), answer);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended.map_err(|error| error.to_string()),
        () = slow.notified() => return Err(String::from("the client does not read its answer")),
        _ = stop.wait_for(|stop| *stop) => connection.as_mut().graceful_shutdown(),
    }
    connection.await.map_err(|error| error.to_string())
}

/// A connection of which something was read already.
struct Replayed {
    first: Vec<u8>,
    at: usize,
    stream: TcpStream,
}

impl AsyncRead for Replayed {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        if self.at < self.first.len() {
            let length = to.remaining().min(self.first.len() - self.at);
            to.put_slice(&self.first[self.at..self.at + length]);
            self.at += length;
            return std::task::Poll::Ready(Ok(()));
        }
        std::pin::Pin::new(&mut self.stream).poll_read(context, to)
    }
}

impl AsyncWrite for Replayed {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<io::Result<usize>> {
        std::pin::Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
