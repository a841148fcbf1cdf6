//! Transactions: a list of conditions, the operations if all are true, and the operations otherwise.

use crate::connect::Client;
use crate::error::Error;
use crate::generated::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::generated::etcdserverpb::request_op::Request;
use crate::generated::etcdserverpb::response_op::Response;
use crate::generated::etcdserverpb::{self as pb, PutRequest, RequestOp, ResponseOp, TxnRequest};
use crate::kv::{Deleted, KeyRange, RangeQuery, RangeResult, kv};

#[derive(Clone, Debug, Default)]
pub struct Txn {
    /// All must hold; none always holds.
    pub conditions: Vec<Condition>,
    pub then: Vec<Op>,
    pub otherwise: Vec<Op>,
}

/// Holds where what is stored under `key` stands in this `ordering` to what is compared with.
#[derive(Clone, Debug)]
pub struct Condition {
    pub key: Vec<u8>,
    /// As in [`KeyRange`]: where it is not empty, the condition is about every key of the range.
    pub range_end: Vec<u8>,
    pub ordering: Ordering,
    pub compare: Compare,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordering {
    Equal,
    NotEqual,
    Greater,
    Less,
}

#[derive(Clone, Debug)]
pub enum Compare {
    /// Zero for a key that does not exist; likewise the revisions.
    Version(i64),
    CreateRevision(i64),
    ModRevision(i64),
    /// Never holds for a key that does not exist.
    Value(Vec<u8>),
    Lease(i64),
}

#[derive(Clone, Debug)]
pub enum Op {
    Put { key: Vec<u8>, value: Vec<u8>, lease: i64 },
    Delete(KeyRange),
    Range(RangeQuery),
}

#[derive(Clone, Debug)]
pub struct TxnResult {
    /// Whether the conditions held.
    pub succeeded: bool,
    pub revision: i64,
    pub cluster_id: u64,
    pub raft_term: u64,
    /// One for each operation of the branch that was taken.
    pub results: Vec<OpResult>,
}

#[derive(Clone, Debug)]
pub enum OpResult {
    Put,
    Delete(Deleted),
    Range(RangeResult),
}

impl Condition {
    pub fn absent(key: impl Into<Vec<u8>>) -> Self {
        Self::equal(KeyRange::key(key), Compare::CreateRevision(0))
    }

    /// No key of the range exists.
    pub fn none_in(keys: KeyRange) -> Self {
        Self::equal(keys, Compare::CreateRevision(0))
    }

    /// The key was not deleted since it was created with this revision.
    pub fn created_at(key: impl Into<Vec<u8>>, create_revision: i64) -> Self {
        Self::equal(KeyRange::key(key), Compare::CreateRevision(create_revision))
    }

    pub fn unchanged_since(key: impl Into<Vec<u8>>, mod_revision: i64) -> Self {
        Self::equal(KeyRange::key(key), Compare::ModRevision(mod_revision))
    }

    fn equal(KeyRange { key, range_end }: KeyRange, compare: Compare) -> Self {
        Self { key, range_end, ordering: Ordering::Equal, compare }
    }
}

impl Client {
    pub async fn txn(&self, txn: Txn) -> Result<TxnResult, Error> {
        let request = TxnRequest {
            compare: txn.conditions.into_iter().map(pb::Compare::from).collect(),
            success: txn.then.into_iter().map(RequestOp::from).collect(),
            failure: txn.otherwise.into_iter().map(RequestOp::from).collect(),
        };
        let answer = self.call(request, |channel, request| async move { kv(channel).txn(request).await }).await?;
        let header = answer.header.unwrap_or_default();
        Ok(TxnResult {
            succeeded: answer.succeeded,
            revision: header.revision,
            cluster_id: header.cluster_id,
            raft_term: header.raft_term,
            results: answer.responses.into_iter().filter_map(result_of).collect(),
        })
    }
}

impl From<Condition> for pb::Compare {
    fn from(Condition { key, range_end, ordering, compare }: Condition) -> Self {
        let result = match ordering {
            Ordering::Equal => CompareResult::Equal,
            Ordering::NotEqual => CompareResult::NotEqual,
            Ordering::Greater => CompareResult::Greater,
            Ordering::Less => CompareResult::Less,
        };
        let (target, union) = match compare {
            Compare::Version(version) => (CompareTarget::Version, TargetUnion::Version(version)),
            Compare::CreateRevision(revision) => (CompareTarget::Create, TargetUnion::CreateRevision(revision)),
            Compare::ModRevision(revision) => (CompareTarget::Mod, TargetUnion::ModRevision(revision)),
            Compare::Value(value) => (CompareTarget::Value, TargetUnion::Value(value)),
            Compare::Lease(lease) => (CompareTarget::Lease, TargetUnion::Lease(lease)),
        };
        Self { result: result.into(), target: target.into(), key, range_end, target_union: Some(union) }
    }
}

impl From<Op> for RequestOp {
    fn from(op: Op) -> Self {
        let request = match op {
            Op::Put { key, value, lease } => {
                Request::RequestPut(PutRequest { key, value, lease, ..Default::default() })
            }
            Op::Delete(keys) => Request::RequestDeleteRange(keys.into()),
            Op::Range(query) => Request::RequestRange(query.into()),
        };
        Self { request: Some(request) }
    }
}

/// `None` only for a transaction within a transaction, which an [`Op`] cannot ask for.
fn result_of(answer: ResponseOp) -> Option<OpResult> {
    match answer.response? {
        Response::ResponsePut(_) => Some(OpResult::Put),
        Response::ResponseDeleteRange(deleted) => Some(OpResult::Delete(deleted.into())),
        Response::ResponseRange(range) => Some(OpResult::Range(range.into())),
        Response::ResponseTxn(_) => None,
    }
}
