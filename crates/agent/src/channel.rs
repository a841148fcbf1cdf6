//! The agent's port over a virtio-serial line, for machines that their host cannot reach by network. Both ends are here.
//!
//! Such a line is one byte stream each way for the machine's whole life. A new connection may find the end of an earlier
//! conversation, so data travels in frames that cannot be mistaken (COBS: a zero byte ends a frame and occurs nowhere else), and
//! each frame belongs to a stream with a random number. A partial frame of an earlier conversation ends at the zero that precedes
//! every frame, and frames of unknown streams are dropped. Several streams share a line, each with a window, so that an unread
//! stream does not delay the others. TLS on top authenticates both sides.

mod frame;
mod line;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::mpsc;

use line::Line;

/// A stream over a line.
pub type Stream = DuplexStream;

/// How long the guest waits for a host that has not opened its side: until then reading returns "end" although it is not.
const NOBODY_THERE: Duration = Duration::from_millis(200);
const NAMED_WITHIN: Duration = Duration::from_secs(60);

/// The lines that this process holds, by the host's sockets. A line can be held only once.
static LINES: Mutex<BTreeMap<PathBuf, Weak<Line>>> = Mutex::new(BTreeMap::new());

/// The host's side: a new stream to the agent behind this socket of a domain. It fails if nothing answers there; the caller sets
/// the time limit. A line is held while a stream of this process uses it; other processes wait meanwhile.
pub async fn connect(path: &Path) -> io::Result<Stream> {
    if let Some(line) = held(path) {
        match line.open().await {
            Ok(stream) => return Ok(stream),
            // The machine was switched off, and may be on again.
            Err(_) => forget(path, &line),
        }
    }
    let (read, write) = UnixStream::connect(path).await?.into_split();
    let line = Line::start(read, write, None);
    LINES.lock().expect("no holder panics").insert(path.to_owned(), Arc::downgrade(&line));
    line.open().await
}

fn held(path: &Path) -> Option<Arc<Line>> {
    LINES.lock().expect("no holder panics").get(path)?.upgrade()
}

fn forget(path: &Path, line: &Arc<Line>) {
    let mut lines = LINES.lock().expect("no holder panics");
    if lines.get(path).is_some_and(|held| Weak::as_ptr(held) == Arc::as_ptr(line)) {
        lines.remove(path);
    }
}

/// The guest's side: incoming streams on this port, for as long as it exists. Early in a boot the port may not have its name yet.
pub(crate) async fn listen(device: &Path) -> io::Result<mpsc::Receiver<Stream>> {
    let begun = Instant::now();
    while !device.exists() && begun.elapsed() < NAMED_WITHIN {
        tokio::time::sleep(NOBODY_THERE).await;
    }
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let port = rustix::fs::open(device, flags, Mode::empty())?;
    let (read, write) = (PortReader::new(port.try_clone()?)?, PortWriter::new(port)?);
    Ok(accept(read, write))
}

/// Incoming streams of a line.
pub(crate) fn accept(
    read: impl AsyncRead + Send + Unpin + 'static,
    write: impl AsyncWrite + Send + Unpin + 'static,
) -> mpsc::Receiver<Stream> {
    let (coming, streams) = mpsc::channel(16);
    // It lives in its own tasks.
    Line::start(read, write, Some(coming));
    streams
}

/// A port is no pipe, but is waited for, read and written like one. Two things are different. It hands over one buffer of the host's
/// at a time: tokio takes a read that does not fill what it was given for the last and waits for news; here only the port's own word
/// that there is nothing more counts. And it outlives its hosts: what tokio has once seen hung up is ready to it for ever, so that
/// waiting for the next host would be a loop without rest. A port whose readiness nobody used is reported to it again.
struct PortReader {
    port: OwnedFd,
    known: Receiver,
}

impl PortReader {
    fn new(port: OwnedFd) -> io::Result<Self> {
        let known = Receiver::from_owned_fd_unchecked(port.try_clone()?)?;
        Ok(PortReader { port, known })
    }
}

struct PortWriter {
    port: OwnedFd,
    known: Sender,
}

impl PortWriter {
    fn new(port: OwnedFd) -> io::Result<Self> {
        let known = Sender::from_owned_fd_unchecked(port.try_clone()?)?;
        Ok(PortWriter { port, known })
    }
}

impl AsyncRead for PortReader {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        for in_vain in 0.. {
            ready!(self.known.poll_read_ready(context))?;
            match self.known.try_read(into.initialize_unfilled()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if in_vain > 0 {
                        *self = Self::new(self.port.try_clone()?)?;
                    }
                }
                Err(error) => return Poll::Ready(Err(error)),
                Ok(count) => {
                    into.advance(count);
                    return Poll::Ready(Ok(()));
                }
            }
        }
        unreachable!("the count has no end")
    }
}

impl AsyncWrite for PortWriter {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        for in_vain in 0..3 {
            ready!(self.known.poll_write_ready(context))?;
            match self.known.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if in_vain > 0 {
                        *self = Self::new(self.port.try_clone()?)?;
                    }
                }
                written => return Poll::Ready(written),
            }
        }
        // No host is connected.
        Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
