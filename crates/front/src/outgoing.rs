//! Large answers. One stays in memory until its client has read it, so all together have a bounded part of the memory, and a client has
//! a bounded time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body, Frame};
use hyper::header::CONTENT_LENGTH;
use hyper::{Response, header::HeaderValue};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use crate::rest::Answer;
use crate::who::Denied;

/// What is smaller fits into the buffers of a connection.
const PIECE: usize = 64 << 10;
/// What all large answers together may take.
const ALL_KIB: usize = 256 << 10;
/// How long a client may take to read one.
const READ_WITHIN: Duration = Duration::from_secs(60);

pub struct Outgoing {
    room: Arc<Semaphore>,
}

/// What is left of an answer, and what its end releases.
struct Left {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
    _end: oneshot::Sender<()>,
}

impl Outgoing {
    pub fn new() -> Self {
        Outgoing { room: Arc::new(Semaphore::new(ALL_KIB)) }
    }

    /// Sends a large answer in pieces: hyper asks for the next one when the one before was sent. `slow` is told of a client that does not
    /// read it in time.
    pub async fn send(&self, answer: Answer, slow: &Arc<Notify>) -> Result<Answer, Denied> {
        let size = answer.body().size_hint().exact().unwrap_or(0);
        if size <= PIECE as u64 {
            return Ok(answer);
        }
        let room =
            u32::try_from(size.div_ceil(1024)).ok().and_then(|kib| self.room.clone().try_acquire_many_owned(kib).ok());
        let room = room.ok_or_else(|| {
            (503, String::from("too many large answers at the same time; ask for less, or try again"))
        })?;
        let (mut head, body) = answer.into_parts();
        let bytes = body.collect().await.map_err(|error| (500, error.to_string()))?.to_bytes();
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
        let pieces = stream::unfold(Left { bytes, _room: room, _end: watch(slow.clone()) }, |mut left| async move {
            let piece = left.bytes.split_to(left.bytes.len().min(PIECE));
            (!piece.is_empty()).then(|| (Ok(Frame::data(piece)), left))
        });
        Ok(Response::from_parts(head, StreamBody::new(pieces).boxed_unsync()))
    }
}

/// Tells of it if what is returned is not dropped in time.
fn watch(slow: Arc<Notify>) -> oneshot::Sender<()> {
    let (end, ended) = oneshot::channel();
    tokio::spawn(async move {
        if tokio::time::timeout(READ_WITHIN, ended).await.is_err() {
            slow.notify_one();
        }
    });
    end
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    fn large() -> Answer {
        let body = Full::new(Bytes::from(vec![b'x'; 40 << 20]));
        Response::new(body.map_err(|never| match never {}).boxed_unsync())
    }

    #[tokio::test(start_paused = true)]
    async fn room_is_given_back_when_a_client_has_read_or_left_and_the_slow_are_told_of() {
        let (outgoing, slow) = (Outgoing::new(), Arc::new(Notify::new()));
        let mut kept = Vec::new();
        for _ in 0..6 {
            kept.push(outgoing.send(large(), &slow).await.expect("room for it"));
        }
        assert_eq!(outgoing.send(large(), &slow).await.expect_err("no room").0, 503);
        let small = Response::new(Full::new(Bytes::from("x")).map_err(|never| match never {}).boxed_unsync());
        assert!(outgoing.send(small, &slow).await.is_ok(), "what is small is always sent");
        let read = kept.pop().expect("an answer");
        assert_eq!(read.headers()[CONTENT_LENGTH], (40_usize << 20).to_string());
        assert_eq!(read.into_body().collect().await.expect("a body").to_bytes().len(), 40 << 20);
        let next = outgoing.send(large(), &slow).await.expect("room again");
        drop((next, kept.drain(1..)));
        tokio::time::timeout(READ_WITHIN * 2, slow.notified()).await.expect("one is too slow");
        drop(kept);
        assert_eq!(outgoing.room.available_permits(), ALL_KIB);
    }
}
