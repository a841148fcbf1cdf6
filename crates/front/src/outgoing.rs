//! Limits large answers and watch events. They stay in memory until the client has read them, so all of them together have a memory
//! limit, and each client has a time limit. Incoming answers of etcd count against the same limit.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body, Frame};
use hyper::header::CONTENT_LENGTH;
use hyper::{Response, header::HeaderValue};
use quorate_etcd::{Room, SMALL, Taken};
use tokio::sync::{Notify, oneshot};

use crate::rest::{Answer, Content};
use crate::who::Denied;

/// What all large answers together may take.
const ALL: usize = 256 << 20;
/// How long a client may take to read one, or a line of a watch.
const READ_WITHIN: Duration = Duration::from_secs(60);
const NO_ROOM: &str = "too many large answers at the same time; ask for less, or try again";

pub fn room() -> Room {
    Room::new(ALL)
}

#[derive(Clone)]
pub struct Outgoing {
    room: Room,
}

/// What is left of an answer, and what its end releases.
struct Left {
    bytes: Bytes,
    _room: Taken,
    _end: oneshot::Sender<()>,
}

/// A body whose length nobody knows, such as that of a watch.
struct Open {
    content: Content,
    room: Room,
    slow: Arc<Notify>,
    /// Of the piece that is being sent.
    unread: Option<(Taken, oneshot::Sender<()>)>,
    is_over: bool,
}

impl Outgoing {
    pub fn new(room: Room) -> Self {
        Outgoing { room }
    }

    /// For the time until an answer is made.
    pub fn room_for(&self, bytes: usize) -> Result<Taken, Denied> {
        self.room.take(bytes).ok_or_else(|| (503, String::from(NO_ROOM)))
    }

    /// Sends a large answer in pieces: hyper asks for the next one when the one before was sent. `slow` is told of a client that does not
    /// read it in time.
    pub async fn send(&self, answer: Answer, slow: &Arc<Notify>) -> Result<Answer, Denied> {
        let Some(size) = answer.body().size_hint().exact() else { return Ok(self.open(answer, slow)) };
        if size <= SMALL as u64 {
            return Ok(answer);
        }
        let room = self.room_for(usize::try_from(size).unwrap_or(usize::MAX))?;
        let (mut head, body) = answer.into_parts();
        let bytes = body.collect().await.map_err(|error| (500, error.to_string()))?.to_bytes();
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
        let pieces = stream::unfold(Left { bytes, _room: room, _end: watch(slow.clone()) }, |mut left| async move {
            let piece = left.bytes.split_to(left.bytes.len().min(SMALL));
            (!piece.is_empty()).then(|| (Ok(Frame::data(piece)), left))
        });
        Ok(Response::from_parts(head, StreamBody::new(pieces).boxed_unsync()))
    }

    /// Each piece of the body has its room and its time, until hyper asks for the next one.
    fn open(&self, answer: Answer, slow: &Arc<Notify>) -> Answer {
        let (room, slow) = (self.room.clone(), slow.clone());
        answer.map(|content| {
            let open = Open { content, room, slow, unread: None, is_over: false };
            let pieces = stream::unfold(open, |mut open| async move { Some((open.next().await?, open)) });
            StreamBody::new(pieces).boxed_unsync()
        })
    }
}

impl Open {
    /// An error closes the connection, so no client takes it for the end.
    async fn next(&mut self) -> Option<io::Result<Frame<Bytes>>> {
        self.unread = None;
        let piece = if self.is_over { None } else { self.content.frame().await };
        let piece = piece?.and_then(|piece| {
            let taken = self.room.take(piece.data_ref().map_or(0, Bytes::len));
            self.unread = Some((taken.ok_or_else(|| io::Error::other(NO_ROOM))?, watch(self.slow.clone())));
            Ok(piece)
        });
        self.is_over = piece.is_err();
        Some(piece)
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
    async fn memory_is_released_when_a_client_has_read_or_left_and_slow_clients_are_logged() {
        let (outgoing, slow) = (Outgoing::new(room()), Arc::new(Notify::new()));
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
        assert!(outgoing.room.is_empty());
    }

    fn lines(of: usize) -> Answer {
        let line = move || Ok(Frame::data(Bytes::from(vec![b'x'; of])));
        let lines = stream::unfold((), move |()| async move { Some((line(), ())) });
        Response::new(StreamBody::new(lines).boxed_unsync())
    }

    #[tokio::test(start_paused = true)]
    async fn an_unread_line_ends_its_watch_and_counts_until_then() {
        for size in [10, 40 << 20] {
            let (outgoing, slow) = (Outgoing::new(room()), Arc::new(Notify::new()));
            let mut watch = outgoing.send(lines(size), &slow).await.expect("a watch").into_body();
            for _ in 0..20 {
                watch.frame().await.expect("a line").expect("room for one at a time");
                tokio::time::sleep(READ_WITHIN / 2).await;
            }
            assert_eq!(outgoing.room.is_empty(), size <= SMALL);
            let told = tokio::time::timeout(READ_WITHIN / 60, slow.notified()).await;
            told.expect_err("each line has its own time");
            let told = tokio::time::timeout(READ_WITHIN, slow.notified()).await;
            told.expect("the client is too slow");
            drop(watch);
            assert!(outgoing.room.is_empty());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_whose_line_has_no_room_breaks_off() {
        let (outgoing, slow) = (Outgoing::new(room()), Arc::new(Notify::new()));
        let mut unread = Vec::new();
        for _ in 0..6 {
            let mut watch = outgoing.send(lines(40 << 20), &slow).await.expect("a watch").into_body();
            watch.frame().await.expect("a line").expect("room");
            unread.push(watch);
        }
        let mut other = outgoing.send(lines(40 << 20), &slow).await.expect("a watch").into_body();
        assert_eq!(other.frame().await.expect("an end").expect_err("no room").to_string(), NO_ROOM);
        assert!(other.frame().await.is_none());
        let mut small = outgoing.send(lines(10), &slow).await.expect("a watch").into_body();
        small.frame().await.expect("a line").expect("what is small is always sent");
        assert_eq!(outgoing.room_for(40 << 20).expect_err("for an answer either").0, 503);
        drop(unread);
        assert!(outgoing.room.is_empty());
    }
}
