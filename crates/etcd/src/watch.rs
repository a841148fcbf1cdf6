//! Watches of keys. A watch that is returned was accepted, and ends with an error that says why. It is never resumed silently,
//! because only the caller knows the last revision that it acted on.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_stream::{Stream, StreamExt};
use tonic::Streaming;

use crate::connect::Client;
use crate::error::Error;
use crate::generated::etcdserverpb::watch_client::WatchClient;
use crate::generated::etcdserverpb::watch_request::RequestUnion;
use crate::generated::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use crate::generated::mvccpb;
use crate::kv::{KeyRange, KeyValue};
use crate::room::Taken;
use crate::session::{Token, only_with_leader, with_token};

/// Changes of a range of keys, in the order of their revisions. Dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    client: Client,
    answers: Streaming<WatchResponse>,
    /// Changes of a revision of which more come.
    parts: Vec<Change>,
    /// Where large answers are counted: the changes that the caller was given last, and those of which more come.
    taken: Option<Taken>,
    _held: oneshot::Sender<()>,
    _place: OwnedSemaphorePermit,
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
        self.start_watch(WatchCreateRequest {
            key,
            range_end,
            start_revision,
            prev_kv: true,
            // What has happened long ago would otherwise come in one piece, however much it is.
            fragment: true,
            ..Default::default()
        })
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
        let (channel, place) = self.channel_for_watch();
        let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
        let request = only_with_leader(with_token(requests, token));
        let answers = client.watch(request).await.map_err(|status| self.error(status))?.into_inner();
        let mut watch =
            Watch { client: self.clone(), answers, parts: Vec::new(), taken: None, _held: held, _place: place };
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

    /// The next changes with what was there before, for a watch that asks for it. No revision is split. The caller has used those before.
    /// After an error the watch is over.
    pub async fn next_changes(&mut self) -> Result<Vec<Change>, Error> {
        self.count()?;
        loop {
            let answer = self.receive().await?;
            let change = |mut event: mvccpb::Event| {
                let previous = event.prev_kv.take().map(KeyValue::from);
                Some(Change { event: Event::from_wire(event)?, previous })
            };
            self.parts.extend(answer.events.into_iter().filter_map(change));
            self.count()?;
            let rest = if answer.fragment { split_last_revision(&mut self.parts) } else { Vec::new() };
            let changes = std::mem::replace(&mut self.parts, rest);
            if !changes.is_empty() || !answer.fragment {
                return Ok(changes);
            }
            let bounds = &self.client.inner.channel.bounds;
            if self.parts.iter().map(Change::size).sum::<usize>() > bounds.longest {
                return Err(self.client.error(bounds.too_long()));
            }
        }
    }

    /// Takes the room of all changes that are here, and no other.
    fn count(&mut self) -> Result<(), Error> {
        self.taken = None;
        let Some(room) = &self.client.inner.channel.bounds.room else { return Ok(()) };
        let bytes = self.parts.iter().map(Change::size).sum();
        self.taken = Some(room.take(bytes).ok_or(Error::NoRoom)?);
        Ok(())
    }

    async fn receive(&mut self) -> Result<WatchResponse, Error> {
        let answer = self.answers.message().await.map_err(|status| self.client.error(status))?;
        let answer = answer.ok_or_else(Error::watch_closed)?;
        Error::ending(&answer).map_or(Ok(answer), Err)
    }
}

/// Takes away the changes of the last revision, which may not be all of it.
fn split_last_revision(changes: &mut Vec<Change>) -> Vec<Change> {
    let Some(last) = changes.last().map(|change| change.event.revision()) else { return Vec::new() };
    let at = changes.iter().position(|change| change.event.revision() == last).unwrap_or_default();
    changes.split_off(at)
}

impl Change {
    fn size(&self) -> usize {
        let pair = |pair: &KeyValue| pair.key.len() + pair.value.len();
        let event = match &self.event {
            Event::Put(put) => pair(put),
            Event::Delete { key, .. } => key.len(),
        };
        event + self.previous.as_ref().map_or(0, pair)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_that_may_not_be_complete_is_held_back() {
        let change = |revision| Change { event: Event::Delete { key: vec![b'k'], revision }, previous: None };
        let mut changes = vec![change(4), change(4), change(5), change(5)];
        assert_eq!(split_last_revision(&mut changes), [change(5), change(5)]);
        assert_eq!(changes, [change(4), change(4)]);
        assert_eq!(split_last_revision(&mut changes).len(), 2);
        assert!(changes.is_empty() && split_last_revision(&mut changes).is_empty());
    }
}
