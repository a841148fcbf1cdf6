//! Reads a machine's etcd through its agent. Data arrives at the reader's pace: a reader that stops holds up etcd's call, and
//! dropping a stream ends it.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt, try_unfold};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode, header};
use prost::Message;
use prost::bytes::BytesMut;
use quorate_core::text::cut;
use quorate_etcd::wire::{
    HashKvRequest, HashKvResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, RangeRequest, RangeResponse,
    SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse, WatchCreateRequest, WatchRequest,
    WatchRequestUnion, WatchResponse,
};
use quorate_etcd::{Error, HashKv, ReadMethod, Status};

use super::bounded::Bounded;
use super::{AgentClient, ClientError, Connection, LONGEST_COMPLAINT, in_time, whole};
use crate::api::frame::{self, HEAD, Kind};
use crate::api::{ReadEnd, ReadFailure, path};

/// An agent that waits for etcd reports this more often.
const SILENCE: Duration = Duration::from_secs(4 * frame::HEARTBEAT.as_secs());

/// Ends with the first error, or without one when etcd's answer is complete.
pub type Answers<T> = BoxStream<'static, Result<T, ClientError>>;

impl AgentClient {
    /// etcd's database as it arrives, with its SHA-256 as the last 32 bytes.
    pub async fn snapshot(&self) -> Result<Answers<Bytes>, ClientError> {
        let messages = self.messages(ReadMethod::Snapshot, &SnapshotRequest {}).await?;
        let step = async |mut messages: Messages| {
            let chunk: Option<SnapshotResponse> = messages.next().await?;
            Ok(chunk.map(|chunk| (Bytes::from(chunk.blob), messages)))
        };
        Ok(try_unfold(messages, step).boxed())
    }

    /// All changes of all keys from this revision on, with signs of progress in between. It is accepted by etcd when it is handed out, and
    /// ends with an error only; from a compacted revision, with that as the first item. A large answer is cut into several: all but the
    /// last have `fragment` set, and a revision may continue from one to the next.
    pub async fn changes(&self, from: i64) -> Result<Answers<WatchResponse>, ClientError> {
        let create = WatchCreateRequest {
            // From the lowest key to no end.
            key: vec![0],
            range_end: vec![0],
            start_revision: from,
            progress_notify: true,
            fragment: true,
            ..Default::default()
        };
        let request = WatchRequest { request_union: Some(WatchRequestUnion::CreateRequest(create)) };
        let mut messages = self.messages(ReadMethod::Watch, &request).await?;
        messages.next_change().await?;
        let step = async |mut messages: Messages| Ok(Some((messages.next_change().await?, messages)));
        Ok(try_unfold(messages, step).boxed())
    }

    /// Takes as long as the database is large. Zero hashes the newest revision.
    pub async fn hash_kv(&self, revision: i64) -> Result<HashKv, ClientError> {
        let answer: HashKvResponse = self.one(ReadMethod::HashKv, &HashKvRequest { revision }).await?;
        let newest = answer.header.unwrap_or_default().revision;
        let revision = if revision == 0 { newest } else { revision };
        Ok(HashKv { hash: answer.hash, revision, compact_revision: answer.compact_revision })
    }

    /// An answer above [`quorate_etcd::LONGEST_MESSAGE`] is refused: ask for less at a time.
    pub async fn range(&self, request: &RangeRequest) -> Result<RangeResponse, ClientError> {
        self.one(ReadMethod::Range, request).await
    }

    /// What the lease was granted for, in seconds; `None` where there is no such lease.
    pub async fn lease_ttl(&self, id: i64) -> Result<Option<i64>, ClientError> {
        let request = LeaseTimeToLiveRequest { id, keys: false };
        let answer: LeaseTimeToLiveResponse = self.one(ReadMethod::LeaseTimeToLive, &request).await?;
        Ok(Some(answer.granted_ttl).filter(|ttl| *ttl > 0))
    }

    pub async fn status(&self) -> Result<Status, ClientError> {
        let answer: StatusResponse = self.one(ReadMethod::Status, &StatusRequest {}).await?;
        Ok(answer.into())
    }

    /// For calls with one answer, after which the connection is of use again.
    async fn one<A: Message + Default>(&self, method: ReadMethod, request: &impl Message) -> Result<A, ClientError> {
        let mut messages = self.messages(method, request).await?;
        let answer = messages.next().await?;
        let none: Option<A> = messages.next().await?;
        match (answer, none) {
            (Some(answer), None) => {
                self.keep(messages.connection);
                Ok(answer)
            }
            _ => Err(self.protocol("one answer was expected")),
        }
    }

    async fn messages(&self, method: ReadMethod, request: &impl Message) -> Result<Messages, ClientError> {
        let (at, body) = (format!("{}{}", path::READ, method.name()), Bytes::from(request.encode_to_vec()));
        if let Some(mut connection) = self.kept() {
            match self.begin(&mut connection, &at, body.clone()).await {
                Err(ClientError::Unreachable { .. }) if connection.sender.is_closed() => {}
                answer => return self.messages_of(connection, answer?).await,
            }
        }
        let mut connection = self.connect_to_ours().await?;
        let answer = self.begin(&mut connection, &at, body).await?;
        self.messages_of(connection, answer).await
    }

    async fn begin(&self, on: &mut Connection, at: &str, body: Bytes) -> Result<Response<Incoming>, ClientError> {
        let request = Request::post(at)
            .header(header::HOST, self.address.to_string())
            .body(Full::new(body).map_err(|never| match never {}).boxed_unsync())
            .expect("the parts are constants");
        let send = async {
            on.sender.ready().await?;
            on.sender.send_request(request).await
        };
        in_time(SILENCE, send).await.map_err(|why| self.unreachable(why))
    }

    async fn messages_of(&self, connection: Connection, answer: Response<Incoming>) -> Result<Messages, ClientError> {
        let (parts, body) = answer.into_parts();
        if parts.status != StatusCode::OK {
            let body = in_time(SILENCE, whole(body)).await.map_err(|why| self.unreachable(why))?;
            return Err(self.refusal(parts.status, &body));
        }
        Ok(Messages { address: self.address, connection, body, came: BytesMut::new() })
    }
}

/// The answers of one reading call.
struct Messages {
    address: SocketAddr,
    connection: Connection,
    body: Incoming,
    /// Not yet taken.
    came: BytesMut,
}

impl Messages {
    /// `None` when etcd's answer is complete.
    async fn next<A: Message + Default>(&mut self) -> Result<Option<A>, ClientError> {
        loop {
            let (kind, content) = self.frame().await?;
            match kind {
                Kind::Heartbeat => {}
                Kind::Message => {
                    return A::decode(content).map(Some).map_err(|error| self.protocol(&error.to_string()));
                }
                Kind::End => return self.end(&content).await.map(|()| None),
            }
        }
    }

    async fn next_change(&mut self) -> Result<WatchResponse, ClientError> {
        let closed = || ReadFailure::Unavailable { why: String::from("the watch was closed") };
        let answer: WatchResponse = self.next().await?.ok_or_else(closed)?;
        match Error::ending(&answer) {
            Some(why) => Err(ReadFailure::from(why).into()),
            None => Ok(answer),
        }
    }

    /// Also reads the end of the body: the connection can then be reused.
    async fn end(&mut self, content: &[u8]) -> Result<(), ClientError> {
        let Bounded(end) = serde_json::from_slice(content).map_err(|error| self.protocol(&error.to_string()))?;
        match end {
            ReadEnd::Failed(why) => Err(why.into()),
            ReadEnd::Complete if self.more().await? => Err(self.protocol("something follows the end")),
            ReadEnd::Complete => Ok(()),
        }
    }

    async fn frame(&mut self) -> Result<(Kind, Bytes), ClientError> {
        self.fill(HEAD).await?;
        let head = self.came.split_to(HEAD);
        let head = head.as_ref().try_into().ok().and_then(frame::parse_head);
        let (kind, length) = head.ok_or_else(|| self.protocol("what it sends is not a reading call's answer"))?;
        self.fill(length).await?;
        Ok((kind, self.came.split_to(length).freeze()))
    }

    async fn fill(&mut self, length: usize) -> Result<(), ClientError> {
        while self.came.len() < length {
            if !self.more().await? {
                return Err(self.unreachable(String::from("its answer broke off")));
            }
        }
        Ok(())
    }

    /// Whether more has come.
    async fn more(&mut self) -> Result<bool, ClientError> {
        match tokio::time::timeout(SILENCE, self.body.frame()).await {
            Ok(Some(Ok(piece))) => {
                self.came.extend_from_slice(&piece.into_data().unwrap_or_default());
                Ok(true)
            }
            Ok(Some(Err(error))) => Err(self.unreachable(error.to_string())),
            Ok(None) => Ok(false),
            Err(_) => Err(self.unreachable(format!("not even a heartbeat within {} s", SILENCE.as_secs()))),
        }
    }

    fn unreachable(&self, why: String) -> ClientError {
        ClientError::Unreachable { address: self.address, why }
    }

    fn protocol(&self, why: &str) -> ClientError {
        ClientError::Protocol { address: self.address, why: cut(why, LONGEST_COMPLAINT).into_owned() }
    }
}
