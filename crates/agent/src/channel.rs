//! The agent's port over a virtio-serial line, for machines that their host cannot reach by network. Both ends are here.
//!
//! Such a line is one pipe of bytes each way for the machine's whole life. Whoever comes to it may find the end of what was said
//! to somebody else, so what travels is cut into frames that cannot be mistaken (COBS: a zero byte ends a frame and is found
//! nowhere else), and each belongs to a stream whose number its opener chose at random. Half a frame of an earlier time is ended by
//! the zero that comes before every frame too, and frames of streams that nobody knows are dropped. Several streams share a line,
//! each with a window, so that one that is not read does not keep the others waiting. Who speaks is TLS's affair, above.

mod frame;
mod line;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::mpsc;

use line::Line;

/// What a stream over a line is to those who use it.
pub type Stream = DuplexStream;

/// How long the guest waits for a host that has not opened its side: meanwhile reading says "end", which it is not.
const NOBODY_THERE: Duration = Duration::from_millis(200);

/// The lines that this process holds, by the host's sockets. A line can be held only once.
static LINES: Mutex<BTreeMap<PathBuf, Weak<Line>>> = Mutex::new(BTreeMap::new());

/// The host's side: a new stream to the agent behind this socket of a domain. It fails when nobody answers there; whoever calls
/// sets the time for that. A line is held for as long as a stream of this process uses it; another process waits meanwhile.
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

/// The guest's side: the streams that come in on this port, for as long as it exists.
pub(crate) fn listen(device: &Path) -> io::Result<mpsc::Receiver<Stream>> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let port = rustix::fs::open(device, flags, Mode::empty())?;
    // A port is no pipe, but is waited for, read and written like one.
    let read = PortReader(Receiver::from_owned_fd_unchecked(port.try_clone()?)?);
    let write = PortWriter(Sender::from_owned_fd_unchecked(port)?);
    Ok(accept(read, write))
}

/// The streams that come in on a line.
pub(crate) fn accept(
    read: impl AsyncRead + Send + Unpin + 'static,
    write: impl AsyncWrite + Send + Unpin + 'static,
) -> mpsc::Receiver<Stream> {
    let (coming, streams) = mpsc::channel(16);
    // It lives in its own tasks.
    Line::start(read, write, Some(coming));
    streams
}

/// A port hands over one buffer of the host's at a time. tokio takes a read that does not fill what it was given for the last and
/// waits for news; here only the port's own word that there is nothing more counts.
struct PortReader(Receiver);

struct PortWriter(Sender);

impl AsyncRead for PortReader {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(context))?;
            match self.0.try_read(into.initialize_unfilled()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(count) => {
                    into.advance(count);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for PortWriter {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(context))?;
            match self.0.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
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
