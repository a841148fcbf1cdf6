//! Copies bytes between a client and a member. An idle connection holds no buffer: all connections of the thread share one buffer
//! for reading, and only what the other side does not accept at once is kept.

use std::cell::RefCell;
use std::io;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use tokio::net::TcpStream;
use tokio::time::timeout;

const BUFFER: usize = 64 << 10;
/// After one side has ended, the other one may finish its sentence.
const LINGER: Duration = Duration::from_secs(30);

thread_local! {
    static BUFFER_OF_ALL: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// Ends when both sides have, or one is broken. `first` was read from the client already.
pub async fn relay(client: &TcpStream, member: &TcpStream, first: Vec<u8>) -> io::Result<()> {
    write(member, &first).await?;
    drop(first);
    let (mut up, mut down) = (Box::pin(pump(client, member)), Box::pin(pump(member, client)));
    tokio::select! {
        ended = &mut up => { ended?; timeout(LINGER, down).await.unwrap_or(Ok(())) }
        ended = &mut down => { ended?; timeout(LINGER, up).await.unwrap_or(Ok(())) }
    }
}

async fn pump(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    loop {
        from.readable().await?;
        match step(from, to) {
            Ok(Step::Ended) => {
                shutdown(to, Shutdown::Write)?;
                return Ok(());
            }
            Ok(Step::Moved) => {}
            Ok(Step::Kept(rest)) => write(to, &rest).await?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

enum Step {
    Moved,
    /// What the other side did not take.
    Kept(Vec<u8>),
    Ended,
}

fn step(from: &TcpStream, to: &TcpStream) -> io::Result<Step> {
    BUFFER_OF_ALL.with_borrow_mut(|buffer| {
        let length = from.try_read(buffer)?;
        if length == 0 {
            return Ok(Step::Ended);
        }
        let mut at = 0;
        while at < length {
            match to.try_write(&buffer[at..length]) {
                Ok(taken) => at += taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Step::Kept(buffer[at..length].to_vec()));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Step::Moved)
    })
}

async fn write(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(taken) => bytes = &bytes[taken..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
