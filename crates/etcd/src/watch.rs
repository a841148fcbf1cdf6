//! Watching keys. A watch is known to be accepted when it is handed out, and ends with an error that says why; it is never resumed
//! behind the caller's back, who alone knows which revision was the last it acted upon.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;
use tokio_stream::{Stream, StreamExt};
use tonic::Streaming;

use crate::connect::Client;
use crate::error::Error;
use crate::generated::etcdserverpb::watch_client::WatchClient;
use crate::generated::etcdserverpb::watch_request::RequestUnion;
use crate::generated::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use crate::generated::mvccpb;
use crate::kv::{KeyRange, KeyValue};
use crate::session::{Token, only_with_leader, with_token};

/// Changes of a range of keys, in the order of their revisions. Dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    client: Client,
    answers: Streaming<WatchResponse>,
    _held: oneshot::Sender<()>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchUpdate {
    /// All changes up to this revision have been delivered.
    pub revision: i64,
    /// Empty for a mere sign of progress.
    pub events: Vec<Event>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Put(KeyValue),
    Delete { key: Vec<u8>, revision: i64 },
}

/// An event, and what the key held before it, unless that has been compacted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub event: Event,
    pub previous: Option<KeyValue>,
}

impl Client {
    /// Watches from `start_revision` on (zero: from now on). With `progress`, etcd sends an update without events now and then while nothing
    /// changes. A member that loses its leader ends the watch.
    pub async fn watch(&self, keys: KeyRange, start_revision: i64, progress: bool) -> Result<Watch, Error> {
        let KeyRange { key, range_end } = keys;
        self.start_watch(WatchCreateRequest {
            key,
            range_end,
            start_revision,
            progress_notify: progress,
            ..Default::default()
        })
        .await
    }

    /// A watch for [`Watch::next_changes`]: with each event comes what the key held before.
    pub async fn watch_changes(&self, keys: KeyRange, start_revision: i64) -> Result<Watch, Error> {
        let KeyRange { key, range_end } = keys;
        self.start_watch(WatchCreateRequest { key, range_end, start_revision, prev_kv: true, ..Default::default() })
            .await
    }

    async fn start_watch(&self, create: WatchCreateRequest) -> Result<Watch, Error> {
        let open = |token| self.open_watch(create.clone(), token);
        // 3.4 says "permission denied" to a watch with a dead token.
        self.in_time(self.logged_in(open, |error| matches!(error, Error::Unauthenticated(_) | Error::PermissionDenied)))
            .await
    }

    async fn open_watch(&self, create: WatchCreateRequest, token: Token) -> Result<Watch, Error> {
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let (held, dropped) = oneshot::channel();
        let requests = requests_until_dropped(create, dropped);
        let mut client = WatchClient::new(self.inner.channel.clone()).max_decoding_message_size(usize::MAX);
        let request = only_with_leader(with_token(requests, token));
        let answers = client.watch(request).await.map_err(|status| self.error(status))?.into_inner();
        let mut watch = Watch { client: self.clone(), answers, _held: held };
        watch.receive().await?;
        Ok(watch)
    }
}

/// A watch lasts as long as its stream of requests, and a stream that never ended would keep the call and its connection open even
/// when nobody holds its answers any more.
pub(crate) fn requests_until_dropped<R>(first: R, dropped: oneshot::Receiver<()>) -> impl Stream<Item = R> {
    tokio_stream::once(first).chain(UntilDropped { dropped, of: PhantomData })
}

struct UntilDropped<R> {
    dropped: oneshot::Receiver<()>,
    of: PhantomData<fn() -> R>,
}

impl<R> Stream for UntilDropped<R> {
    type Item = R;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<R>> {
        Pin::new(&mut self.dropped).poll(context).map(|_| None)
    }
}

impl Watch {
    /// The next changes. After an error the watch is over.
    pub async fn next(&mut self) -> Result<WatchUpdate, Error> {
        let answer = self.receive().await?;
        Ok(WatchUpdate {
            revision: answer.header.unwrap_or_default().revision,
            events: answer.events.into_iter().filter_map(Event::from_wire).collect(),
        })
    }

    /// The next changes with what was there before, for a watch that asks for it. After an error the watch is over.
    pub async fn next_changes(&mut self) -> Result<Vec<Change>, Error> {
        let answer = self.receive().await?;
        let change = |mut event: mvccpb::Event| {
            let previous = event.prev_kv.take().map(KeyValue::from);
            Some(Change { event: Event::from_wire(event)?, previous })
        };
        Ok(answer.events.into_iter().filter_map(change).collect())
    }

    async fn receive(&mut self) -> Result<WatchResponse, Error> {
        let answer = self.answers.message().await.map_err(|status| self.client.error(status))?;
        let answer = answer.ok_or_else(Error::watch_closed)?;
        Error::ending(&answer).map_or(Ok(answer), Err)
    }
}

impl Event {
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Put(pair) => &pair.key,
            Self::Delete { key, .. } => key,
        }
    }

    pub fn revision(&self) -> i64 {
        match self {
            Self::Put(pair) => pair.mod_revision,
            Self::Delete { revision, .. } => *revision,
        }
    }

    /// `None` for one without a key, which etcd never sends.
    pub fn from_wire(event: mvccpb::Event) -> Option<Self> {
        let kind = event.r#type();
        let pair = event.kv?;
        Some(match kind {
            mvccpb::event::EventType::Put => Self::Put(pair.into()),
            mvccpb::event::EventType::Delete => Self::Delete { key: pair.key, revision: pair.mod_revision },
        })
    }
}
