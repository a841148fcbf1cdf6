//! etcd's read calls, passed through as bytes: one request message, and its answers one by one. For programs between etcd and its
//! clients; a fixed list allows only calls that change nothing.

use prost::Message;
use prost::bytes::{Buf, BufMut, Bytes};
use tokio::sync::oneshot;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Status, Streaming};

use crate::connect::Client;
use crate::error::Error;
use crate::generated::etcdserverpb::WatchResponse;
use crate::session::{Token, only_with_leader, with_token};
use crate::watch::requests_until_dropped;

/// A larger message is refused instead of held in memory.
pub const LONGEST_MESSAGE: usize = 32 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMethod {
    HashKv,
    LeaseTimeToLive,
    Range,
    Snapshot,
    Status,
    Watch,
}

impl ReadMethod {
    pub const ALL: [Self; 6] =
        [Self::HashKv, Self::LeaseTimeToLive, Self::Range, Self::Snapshot, Self::Status, Self::Watch];

    /// `SERVICE/METHOD`, as etcd's API calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::HashKv => "Maintenance/HashKV",
            Self::LeaseTimeToLive => "Lease/LeaseTimeToLive",
            Self::Range => "KV/Range",
            Self::Snapshot => "Maintenance/Snapshot",
            Self::Status => "Maintenance/Status",
            Self::Watch => "Watch/Watch",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }

    /// Whether the work until the first answer grows with the database, so that no deadline suits it.
    fn takes_long(self) -> bool {
        matches!(self, Self::HashKv | Self::Snapshot)
    }

    fn path(self) -> PathAndQuery {
        let path = format!("/etcdserverpb.{}", self.name());
        PathAndQuery::from_maybe_shared(path).expect("every name is a path")
    }
}

/// The answers to one request. Dropping it ends the call.
#[derive(Debug)]
pub struct Reading {
    client: Client,
    method: ReadMethod,
    first: Option<Bytes>,
    answers: Streaming<Bytes>,
    _held: oneshot::Sender<()>,
}

impl Client {
    /// Sends the request and waits for the first answer, so that a refusal is known by then.
    pub async fn read(&self, method: ReadMethod, request: Bytes) -> Result<Reading, Error> {
        let open = |token| self.open_reading(method, request.clone(), token);
        let token_may_be_dead: fn(&Error) -> bool = match method {
            // 3.4 says "permission denied" to a watch with a dead token.
            ReadMethod::Watch => |error| matches!(error, Error::Unauthenticated(_) | Error::PermissionDenied),
            _ => |error| matches!(error, Error::Unauthenticated(_)),
        };
        let opened = self.logged_in(open, token_may_be_dead);
        if method.takes_long() { opened.await } else { self.in_time(opened).await }
    }

    async fn open_reading(&self, method: ReadMethod, request: Bytes, token: Token) -> Result<Reading, Error> {
        let stream = matches!(method, ReadMethod::Snapshot | ReadMethod::Watch);
        let channel = if stream { self.channel_for_long_stream() } else { self.inner.channel.clone() };
        let mut call = Grpc::new(channel).max_decoding_message_size(LONGEST_MESSAGE);
        call.ready().await.map_err(|error| self.error(Status::from_error(error.into())))?;
        let (held, dropped) = oneshot::channel();
        let answers = if method == ReadMethod::Watch {
            let requests = only_with_leader(with_token(requests_until_dropped(request, dropped), token));
            call.streaming(requests, method.path(), AsItIs).await
        } else {
            call.server_streaming(with_token(request, token), method.path(), AsItIs).await
        };
        let answers = answers.map_err(|status| self.error(status))?.into_inner();
        let mut reading = Reading { client: self.clone(), method, first: None, answers, _held: held };
        reading.first = reading.receive().await?;
        if method == ReadMethod::Watch {
            reading.check_is_watch()?;
        }
        Ok(reading)
    }
}

impl Reading {
    /// `None` when etcd has said all. A call that breaks off is an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        match self.first.take() {
            Some(first) => Ok(Some(first)),
            None => self.receive().await,
        }
    }

    async fn receive(&mut self) -> Result<Option<Bytes>, Error> {
        match self.answers.message().await.map_err(|status| self.client.error(status))? {
            None if self.method == ReadMethod::Watch => Err(Error::watch_closed()),
            answer => Ok(answer),
        }
    }

    /// A watch that is refused is answered all the same.
    fn check_is_watch(&self) -> Result<(), Error> {
        let first = self.first.clone().unwrap_or_default();
        let first = WatchResponse::decode(first).map_err(|_| Error::Unavailable { message: NOT_A_WATCH.to_owned() })?;
        Error::ending(&first).map_or(Ok(()), Err)
    }
}

const NOT_A_WATCH: &str = "what it sends is not a watch's answer";

/// Messages are neither made nor understood here.
pub(crate) struct AsItIs;

impl Codec for AsItIs {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for AsItIs {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(message);
        Ok(())
    }
}

impl Decoder for AsItIs {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_changes_anything_is_among_the_methods() {
        for method in ReadMethod::ALL {
            assert_eq!(ReadMethod::from_name(method.name()), Some(method));
        }
        for other in
            ["KV/Put", "KV/Txn", "Maintenance/Defragment", "Auth/UserAdd", "Maintenance/Snapshot/", "", "Range"]
        {
            assert_eq!(ReadMethod::from_name(other), None, "{other}");
        }
    }
}
