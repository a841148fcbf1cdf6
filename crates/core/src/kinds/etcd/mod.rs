//! etcd: its settings and flags, its versions, its users, how a cluster is formed, changed, recovered and restored, and what keeps its data
//! and its quorum safe.

pub(crate) mod check;
pub mod cluster;
pub mod desire;
pub mod flags;
pub mod planner;
pub mod safety;
pub mod simulate;
pub mod spec;
mod users;
pub mod versions;

pub use users::{Access, AuthOp, AuthSeen, Permission};
