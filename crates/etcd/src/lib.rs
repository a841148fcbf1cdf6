//! A thin client for etcd's v3 API over TLS: one connection to one member, with login by certificate or by password.
//!
//! It promises plain types and an [`Error`] that says what to do next (wait, log in, ask another member), and makes one attempt per call:
//! it resends a request only if etcd refused it because the login token had expired. It never picks another endpoint, and never prints a
//! key, password or token.

mod auth;
mod cluster;
mod connect;
mod error;
#[path = "gen/mod.rs"]
mod generated;
mod kv;
mod lease;
mod maintenance;
mod raw;
mod read;
mod room;
mod session;
mod streams;
mod txn;
mod watch;

pub use auth::{AuthStatus, Permission, PermissionKind};
pub use cluster::Member;
pub use connect::{Client, ConnectOptions, Login, Sockets};
pub use error::{Error, LoginRefusal, Thing, Transport};
pub use kv::{Deleted, KeyRange, KeyValue, RangeQuery, RangeResult, prefix_end};
pub use lease::{Lease, LeaseKeeper, LeaseState};
pub use maintenance::{Alarm, AlarmKind, HashKv, Snapshot, SnapshotChunk, Status};
pub use raw::{Answers, Reach, Refusal};
pub use read::{LONGEST_MESSAGE, ReadMethod, Reading};
pub use room::{Room, SMALL, Taken};
pub use txn::{Compare, Condition, Op, OpResult, Ordering, Txn, TxnResult};
pub use watch::{Change, Event, Watch, WatchUpdate};

/// Requests and answers of the calls in [`ReadMethod`] and of a put, as etcd sends them. None of them can hold a password or a token.
pub mod wire {
    pub use crate::generated::etcdserverpb::watch_request::RequestUnion as WatchRequestUnion;
    pub use crate::generated::etcdserverpb::{
        HashKvRequest, HashKvResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, PutRequest, PutResponse,
        RangeRequest, RangeResponse, ResponseHeader, SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse,
        WatchCreateRequest, WatchRequest, WatchResponse,
    };
    pub use crate::generated::mvccpb::event::EventType;
    pub use crate::generated::mvccpb::{Event, KeyValue};
}
