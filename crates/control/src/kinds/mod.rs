//! What only one kind of cluster has, one module per kind; and what has the same shape in every kind: status and proxies.

pub mod etcd;
pub mod postgres;
pub mod proxies;
pub mod status;

use quorate_core::model::{Ledger, Observation};
use quorate_core::planner::Decision;
use quorate_core::spec::Kind;

use status::Status;

/// The status of a cluster, as its kind tells it from what was seen and what would be done next.
pub fn summarize(ledger: &Ledger, seen: &Observation, decision: &Decision) -> Status {
    match ledger.spec.kind {
        Kind::Etcd => etcd::status::summarize(ledger, seen, decision),
        Kind::Postgres => postgres::status::summarize(ledger, seen, decision),
    }
}
