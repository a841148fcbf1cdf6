//! Limits the memory for answers. The first bytes of an answer contain its length, so one that is too long, or that does not fit now,
//! is refused before it arrives.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::body::Frame;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::body::Body;
use tonic::codegen::{Bytes, Service, http};
use tonic::{Status, transport};

/// A shorter answer needs no room.
pub const SMALL: usize = 64 << 10;
/// A byte that says whether it is compressed, and four for the length.
const HEAD: usize = 5;
pub(crate) const TOO_LONG: &str = "the answer of etcd is larger than ";
pub(crate) const NO_ROOM: &str = "too many large answers at the same time; ask for less, or try again";

/// Memory that several share. Clones are the same.
#[derive(Clone)]
pub struct Room {
    free: Arc<Semaphore>,
    kib: u32,
}

/// A part of it, until it is dropped.
#[derive(Debug)]
pub struct Taken {
    _kib: Option<OwnedSemaphorePermit>,
}

impl Room {
    pub fn new(bytes: usize) -> Self {
        let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
        Room { free: Arc::new(Semaphore::new(kib as usize)), kib }
    }

    /// `None` if there is no room now. What is small always fits, and what is larger than all of it fits alone.
    pub fn take(&self, bytes: usize) -> Option<Taken> {
        if bytes <= SMALL {
            return Some(Taken { _kib: None });
        }
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(self.kib);
        let taken = self.free.clone().try_acquire_many_owned(kib).ok()?;
        Some(Taken { _kib: Some(taken) })
    }

    pub fn is_empty(&self) -> bool {
        self.free.available_permits() == self.kib as usize
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").field("kib", &self.kib).finish_non_exhaustive()
    }
}

/// What the answers to a client may take.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) longest: usize,
    pub(crate) room: Option<Room>,
}

impl Bounds {
    pub(crate) fn too_long(&self) -> Status {
        let longest = match self.longest % (1 << 20) {
            0 => format!("{} MiB", self.longest >> 20),
            _ => format!("{} KiB", self.longest >> 10),
        };
        Status::out_of_range(format!("{TOO_LONG}{longest}; ask for less at a time"))
    }
}

/// A connection whose answers are bounded.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    pub(crate) to: transport::Channel,
    pub(crate) bounds: Bounds,
}

type Answered = Result<http::Response<Received>, transport::Error>;

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<Received>;
    type Error = transport::Error;
    type Future = Pin<Box<dyn Future<Output = Answered> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::<http::Request<Body>>::poll_ready(&mut self.to, context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (answer, bounds) = (Service::call(&mut self.to, request), self.bounds.clone());
        Box::pin(async move { Ok(answer.await?.map(|body| Received { body, messages: Messages::new(bounds) })) })
    }
}

/// An answer while it comes.
pub(crate) struct Received {
    body: Body,
    messages: Messages,
}

impl tonic::codegen::Body for Received {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(frame.map(|frame| {
            let frame = frame?;
            if let Some(data) = frame.data_ref() {
                self.messages.take(data)?;
            }
            Ok(frame)
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// The messages of one answer.
struct Messages {
    bounds: Bounds,
    head: [u8; HEAD],
    /// How much of the head is known.
    known: usize,
    /// How much of the message is to come.
    left: usize,
    /// Until the message is complete, when it is for its reader to count it.
    taken: Option<Taken>,
}

impl Messages {
    fn new(bounds: Bounds) -> Self {
        Messages { bounds, head: [0; HEAD], known: 0, left: 0, taken: None }
    }

    fn take(&mut self, mut data: &[u8]) -> Result<(), Status> {
        while !data.is_empty() {
            if self.known < HEAD {
                let some = data.len().min(HEAD - self.known);
                self.head[self.known..self.known + some].copy_from_slice(&data[..some]);
                self.known += some;
                data = &data[some..];
                if self.known == HEAD {
                    self.begin()?;
                }
            }
            let some = data.len().min(self.left);
            self.left -= some;
            data = &data[some..];
            if self.known == HEAD && self.left == 0 {
                (self.known, self.taken) = (0, None);
            }
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<(), Status> {
        let [compressed, length @ ..] = self.head;
        // What is no answer of gRPC is for tonic to refuse.
        if compressed > 1 {
            self.left = usize::MAX;
            return Ok(());
        }
        self.left = u32::from_be_bytes(length) as usize;
        if self.left > self.bounds.longest {
            return Err(self.bounds.too_long());
        }
        if let Some(room) = &self.bounds.room {
            self.taken = Some(room.take(self.left).ok_or_else(|| Status::unavailable(NO_ROOM))?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(length: usize) -> Vec<u8> {
        [&[0][..], &(length as u32).to_be_bytes(), &vec![b'x'; length]].concat()
    }

    #[test]
    fn a_message_has_room_from_its_first_bytes_until_its_last() {
        let room = Room::new(256 << 10);
        let mut messages = Messages::new(Bounds { longest: 200 << 10, room: Some(room.clone()) });
        let bytes = [message(10), message(0), message(150 << 10), message(20)].concat();
        for (at, byte) in bytes.iter().enumerate() {
            messages.take(&[*byte]).expect("it fits");
            let is_large = (15 + 5 + 4..15 + 5 + 5 + (150 << 10) - 1).contains(&at);
            assert_eq!(room.is_empty(), !is_large, "at {at}");
        }
        messages.take(&bytes).expect("in one piece");
        assert!(room.is_empty());
    }

    #[test]
    fn messages_that_are_too_long_or_have_no_room_are_refused_before_they_arrive() {
        let room = Room::new(256 << 10);
        let messages = || Messages::new(Bounds { longest: 200 << 10, room: Some(room.clone()) });
        let begin = |length: usize| message(length)[..HEAD].to_vec();
        let why = messages().take(&begin((200 << 10) + 1)).expect_err("too long");
        assert_eq!(why.message(), "the answer of etcd is larger than 200 KiB; ask for less at a time");
        let mut first = messages();
        first.take(&begin(150 << 10)).expect("room");
        assert_eq!(messages().take(&begin(150 << 10)).expect_err("no room").message(), NO_ROOM);
        messages().take(&begin(SMALL)).expect("what is small always fits");
        drop(first);
        messages().take(&begin(150 << 10)).expect("room again");
        assert!(room.take(1 << 30).is_some(), "what is larger than all fits alone");
    }
}
