//! The running cluster, as far as backups need it. All calls of one source go to one member, so a later call sees at least what an
//! earlier one has seen.

use std::pin::Pin;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;
pub use quorate_etcd::{Event, HashKv, KeyRange, KeyValue, RangeQuery, RangeResult};
use serde::{Deserialize, Serialize};

/// The identity of a cluster, and the member that is read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct About {
    pub cluster: String,
    /// The random one, made with the cluster: a name may be used again, this not.
    pub cluster_id: String,
    pub etcd_version: String,
    pub from_member: String,
    pub members: Vec<Member>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    pub name: String,
    /// In hexadecimal, as etcd prints it.
    pub id: String,
    pub peer_urls: Vec<String>,
    pub client_urls: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Another member, or the same a little later, may answer.
    #[error("the member cannot be reached: {0}")]
    Unreachable(String),
    /// `oldest` is the first revision that can still be read, where etcd says so.
    #[error("the requested revisions have been compacted")]
    Compacted { oldest: Option<i64> },
    #[error("etcd refused: {0}")]
    Denied(String),
    #[error("{0}")]
    Other(String),
}

pub type SnapshotStream = Pin<Box<dyn Stream<Item = Result<Bytes, SourceError>> + Send>>;
pub type ChangeStream = Pin<Box<dyn Stream<Item = Result<Changes, SourceError>> + Send>>;

/// One answer of a watch over all keys.
#[derive(Clone, PartialEq, Debug)]
pub struct Changes {
    /// In the order of their revisions.
    pub events: Vec<Event>,
    /// The answer's own revision. Only where there are no events does it say that all changes up to it were delivered.
    pub revision: i64,
    /// The last revision's events continue in the next (etcd's fragments).
    pub unfinished: bool,
}

#[async_trait]
pub trait Source: Send + Sync {
    async fn about(&self) -> Result<About, SourceError>;

    /// etcd's snapshot as it arrives, including the 32 bytes of its checksum at the end. A stream that breaks is an error.
    async fn snapshot(&self) -> Result<SnapshotStream, SourceError>;

    async fn hash_kv(&self, revision: i64) -> Result<HashKv, SourceError>;

    /// A watch over all keys from a revision on, with signs of progress.
    async fn changes(&self, from: i64) -> Result<ChangeStream, SourceError>;

    /// The time to live in seconds that a lease was granted with; `None` if it is gone.
    async fn lease_ttl(&self, id: i64) -> Result<Option<i64>, SourceError>;

    async fn range(&self, query: RangeQuery) -> Result<RangeResult, SourceError>;
}

/// etcd 3.4 does not hash the revision that it is compacted up to, unless it is asked for its newest one and that is the same.
pub(crate) async fn hash_at(source: &dyn Source, revision: i64) -> Result<HashKv, SourceError> {
    match source.hash_kv(revision).await {
        Err(compacted @ SourceError::Compacted { .. }) => {
            let newest = source.hash_kv(0).await?;
            if newest.revision == revision { Ok(newest) } else { Err(compacted) }
        }
        told => told,
    }
}

/// The newest revision, as agreed by the cluster.
pub(crate) async fn newest_revision(source: &dyn Source) -> Result<i64, SourceError> {
    let query = RangeQuery { count_only: true, ..RangeQuery::new(KeyRange::key([0])) };
    Ok(source.range(query).await?.revision)
}

/// How many keys there were at a revision.
pub(crate) fn count_at(revision: i64) -> RangeQuery {
    RangeQuery { revision, count_only: true, ..RangeQuery::new(KeyRange::prefix("")) }
}

/// The first key after this one.
pub(crate) fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}
