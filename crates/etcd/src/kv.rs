//! Keys and values: put, get, range, delete, compact. Revisions are those of the answer's header unless documented otherwise.

use crate::connect::Client;
use crate::error::Error;
use crate::generated::etcdserverpb::kv_client::KvClient;
use crate::generated::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, DeleteRangeResponse, PutRequest, RangeRequest, RangeResponse,
};
use crate::generated::mvccpb;
use crate::room::Channel;
use crate::session::only_with_leader;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub create_revision: i64,
    pub mod_revision: i64,
    /// How often the key was put since it was created.
    pub version: i64,
    /// Zero without a lease.
    pub lease: i64,
}

/// One key, or all keys from `key` up to but not including `range_end`, as etcd writes them: an empty `range_end` means the one key, a
/// zero byte means no end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    pub key: Vec<u8>,
    pub range_end: Vec<u8>,
}

impl KeyRange {
    pub fn key(key: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), range_end: Vec::new() }
    }

    /// All keys that begin so; with an empty prefix, all keys.
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> Self {
        let prefix = prefix.into();
        let range_end = prefix_end(&prefix);
        // etcd refuses an empty key; no key comes before the zero byte.
        Self { key: if prefix.is_empty() { vec![0] } else { prefix }, range_end }
    }
}

/// The end of the range of all keys that begin with `prefix`: the prefix with its last byte raised, bytes that cannot be raised dropped.
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    match prefix.iter().rposition(|byte| *byte < 0xff) {
        Some(last) => {
            let mut end = prefix[..=last].to_vec();
            end[last] += 1;
            end
        }
        None => vec![0],
    }
}

#[derive(Clone, Debug)]
pub struct RangeQuery {
    pub keys: KeyRange,
    /// Zero reads the newest.
    pub revision: i64,
    /// Zero for no limit.
    pub limit: i64,
    pub keys_only: bool,
    pub count_only: bool,
    /// Answered from the member's own state, which may be behind; works without a quorum.
    pub serializable: bool,
}

impl RangeQuery {
    pub fn new(keys: KeyRange) -> Self {
        Self { keys, revision: 0, limit: 0, keys_only: false, count_only: false, serializable: false }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeResult {
    /// In the order of the keys.
    pub pairs: Vec<KeyValue>,
    /// How many keys are in the range, whatever the limit.
    pub count: i64,
    pub more: bool,
    pub revision: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deleted {
    pub count: i64,
    pub revision: i64,
}

pub(crate) fn kv(channel: Channel) -> KvClient<Channel> {
    // tonic's own limit of 4 MiB is less than a range may hold; the client's is kept by its channel.
    KvClient::new(channel).max_decoding_message_size(usize::MAX)
}

impl Client {
    /// Returns the revision of the write.
    pub async fn put(&self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Result<i64, Error> {
        self.put_with_lease(key, value, 0).await
    }

    pub async fn put_with_lease(
        &self,
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
        lease: i64,
    ) -> Result<i64, Error> {
        let request = PutRequest { key: key.into(), value: value.into(), lease, ..Default::default() };
        let answer = self.call(request, |channel, request| async move { kv(channel).put(request).await }).await?;
        Ok(answer.header.unwrap_or_default().revision)
    }

    pub async fn get(&self, key: impl Into<Vec<u8>>) -> Result<Option<KeyValue>, Error> {
        Ok(self.range(RangeQuery::new(KeyRange::key(key))).await?.pairs.pop())
    }

    pub async fn range(&self, query: RangeQuery) -> Result<RangeResult, Error> {
        let request = RangeRequest::from(query);
        let answer = self.call(request, |channel, request| async move { kv(channel).range(request).await }).await?;
        Ok(answer.into())
    }

    pub async fn delete(&self, keys: KeyRange) -> Result<Deleted, Error> {
        let request = DeleteRangeRequest::from(keys);
        let answer =
            self.call(request, |channel, request| async move { kv(channel).delete_range(request).await }).await?;
        Ok(answer.into())
    }

    /// Whether this member takes part in a quorum that answers: reads one key through the leader, as `etcdctl endpoint health` does. Being
    /// denied that key is an answer too. Where there is no leader, fails at once.
    pub async fn linearizable_read_ok(&self) -> Result<(), Error> {
        let request = RangeRequest::from(RangeQuery::new(KeyRange::key("health")));
        let answer = self
            .call(request, |channel, request| async move { kv(channel).range(only_with_leader(request)).await })
            .await;
        match answer {
            Ok(_) | Err(Error::PermissionDenied) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Drops the history before `revision`. With `physical`, returns when the database has been cleaned too; that can take long, and has no
    /// deadline.
    pub async fn compact(&self, revision: i64, physical: bool) -> Result<(), Error> {
        let request = CompactionRequest { revision, physical };
        let compact = |channel, request| async move { kv(channel).compact(request).await };
        if physical {
            self.call_for_long(request, compact).await?;
        } else {
            self.call(request, compact).await?;
        }
        Ok(())
    }
}

impl From<RangeQuery> for RangeRequest {
    fn from(query: RangeQuery) -> Self {
        let RangeQuery { keys, revision, limit, keys_only, count_only, serializable } = query;
        let KeyRange { key, range_end } = keys;
        Self { key, range_end, revision, limit, keys_only, count_only, serializable, ..Self::default() }
    }
}

impl From<RangeResponse> for RangeResult {
    fn from(answer: RangeResponse) -> Self {
        Self {
            pairs: answer.kvs.into_iter().map(KeyValue::from).collect(),
            count: answer.count,
            more: answer.more,
            revision: answer.header.unwrap_or_default().revision,
        }
    }
}

impl From<KeyRange> for DeleteRangeRequest {
    fn from(KeyRange { key, range_end }: KeyRange) -> Self {
        Self { key, range_end, ..Self::default() }
    }
}

impl From<DeleteRangeResponse> for Deleted {
    fn from(answer: DeleteRangeResponse) -> Self {
        Self { count: answer.deleted, revision: answer.header.unwrap_or_default().revision }
    }
}

impl From<mvccpb::KeyValue> for KeyValue {
    fn from(pair: mvccpb::KeyValue) -> Self {
        let mvccpb::KeyValue { key, value, create_revision, mod_revision, version, lease } = pair;
        Self { key, value, create_revision, mod_revision, version, lease }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_the_next_key_that_does_not_begin_so() {
        assert_eq!(prefix_end(b"abc"), b"abd");
        assert_eq!(prefix_end(b"a\xff"), b"b");
        assert_eq!(prefix_end(b"a\xff\xff"), b"b");
        assert_eq!(prefix_end(b"\xff\xff"), b"\0");
        assert_eq!(prefix_end(b""), b"\0");
    }

    #[test]
    fn the_empty_prefix_is_every_key() {
        assert_eq!(KeyRange::prefix(""), KeyRange { key: vec![0], range_end: vec![0] });
    }
}
