//! etcd's read calls, offered to the controller; root's certificate and password stay on this machine. Answers are passed
//! on in pieces as they arrive. The call to etcd ends as soon as its answers are no longer read.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame};
use quorate_etcd::{Client, Error, ReadMethod};
use tokio::sync::mpsc;

use super::parts::READINGS;
use crate::agent::Agent;
use crate::api::frame::{self, Kind};
use crate::api::{ReadEnd, Refusal};

/// How many pieces wait to be taken.
const AHEAD: usize = 4;

/// How long to wait for whom.
#[derive(Clone, Copy)]
struct Patience {
    /// As often, a controller that waits is told that its agent lives.
    heartbeat: Duration,
    /// A controller that reads nothing for this long is gone. One that uploads what it reads may be slow for a while.
    stalled: Duration,
}

const PATIENCE: Patience = Patience { heartbeat: frame::HEARTBEAT, stalled: Duration::from_secs(120) };

impl Agent {
    pub(crate) fn read(&self, method: ReadMethod, request: Bytes) -> Result<Frames, Refusal> {
        let state = self.state.get();
        if !state.enrolled {
            return Err(Refusal::NotEnrolled);
        }
        let client = self.etcd.access.client(&state)?;
        let Ok(permit) = self.etcd.readings.clone().try_acquire_owned() else {
            let why = format!("{READINGS} reading calls are under way on this machine already; let one end first");
            return Err(Refusal::Failed { why });
        };
        let (sender, receiver) = mpsc::channel(AHEAD);
        tokio::spawn(async move {
            pass_on(client, method, request, Out { sender, patience: PATIENCE }).await;
            drop(permit);
        });
        Ok(Frames(receiver))
    }
}

/// The body of an answer.
pub(crate) struct Frames(mpsc::Receiver<Bytes>);

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

async fn pass_on(client: Client, method: ReadMethod, request: Bytes, out: Out) {
    tokio::select! {
        () = out.sender.closed() => {}
        ended = read(&client, method, request, &out) => {
            let end = match ended {
                Ok(()) => ReadEnd::Complete,
                Err(Stop::Etcd(error)) => ReadEnd::Failed(error.into()),
                Err(Stop::NotTaken) => {
                    tracing::warn!(method = method.name(), "a read call ends: the controller does not read its answer");
                    return;
                }
            };
            let text = serde_json::to_vec(&end).expect("plain data serializes");
            let _ = out.send(Kind::End, text.into()).await;
        }
    }
}

async fn read(client: &Client, method: ReadMethod, request: Bytes, out: &Out) -> Result<(), Stop> {
    let mut reading = out.while_waiting(client.read(method, request)).await?;
    while let Some(message) = out.while_waiting(reading.next()).await? {
        out.send(Kind::Message, message).await?;
    }
    Ok(())
}

#[derive(Debug)]
enum Stop {
    Etcd(Error),
    NotTaken,
}

/// The channel to the controller.
struct Out {
    sender: mpsc::Sender<Bytes>,
    patience: Patience,
}

impl Out {
    async fn send(&self, kind: Kind, content: Bytes) -> Result<(), Stop> {
        self.push(frame::head(kind, content.len())).await?;
        if content.is_empty() { Ok(()) } else { self.push(content).await }
    }

    async fn push(&self, piece: Bytes) -> Result<(), Stop> {
        match tokio::time::timeout(self.patience.stalled, self.sender.send(piece)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Stop::NotTaken),
        }
    }

    /// Waits for etcd, and tells the controller meanwhile that it waits.
    async fn while_waiting<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Stop> {
        let mut work = pin!(work);
        loop {
            match tokio::time::timeout(self.patience.heartbeat, &mut work).await {
                Ok(done) => return done.map_err(Stop::Etcd),
                Err(_) => self.send(Kind::Heartbeat, Bytes::new()).await?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(ahead: usize, heartbeat: u64, stalled: u64) -> (Out, mpsc::Receiver<Bytes>) {
        let (sender, receiver) = mpsc::channel(ahead);
        let patience =
            Patience { heartbeat: Duration::from_millis(heartbeat), stalled: Duration::from_millis(stalled) };
        (Out { sender, patience }, receiver)
    }

    #[tokio::test]
    async fn a_client_that_waits_for_etcd_gets_a_notice() {
        let (out, mut taken) = out(100, 5, 1000);
        let slow = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok(7)
        };
        assert_eq!(out.while_waiting(slow).await.unwrap(), 7);
        for _ in 0..2 {
            assert_eq!(taken.try_recv().unwrap(), frame::head(Kind::Heartbeat, 0));
        }
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_is_not_waited_for() {
        let (out, _untaken) = out(1, 1000, 10);
        out.push(Bytes::from_static(b"one")).await.unwrap();
        assert!(matches!(out.push(Bytes::from_static(b"two")).await, Err(Stop::NotTaken)));
    }

    #[tokio::test]
    async fn a_read_call_ends_when_its_reader_disconnects() {
        let (out, taken) = out(1, 1000, 1000);
        drop(taken);
        let never = std::future::pending::<Result<(), Error>>();
        tokio::select! {
            () = out.sender.closed() => {}
            _ = out.while_waiting(never) => panic!("it never ends by itself"),
        }
    }
}
