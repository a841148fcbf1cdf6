//! Version 2 of etcd's API over HTTP (`/v2/keys`, `/v2/stats`, `/v2/members`, `/v2/machines`) on top of etcd's v3 store, for clusters
//! whose etcd no longer has v2. A library without a listener: the caller terminates TLS, authenticates the user and passes the
//! request together with an etcd client that is logged in as that user, so the user's v3 permissions apply.
//!
//! Every write is one v3 transaction. Any number of processes may serve the same store, and each may be killed at any time.

mod answer;
mod error;
mod follow;
mod form;
mod import;
mod json;
mod node;
mod path;
mod plan;
mod request;
mod shared;
mod stats;
mod store;
mod sweep;
mod tree;
mod wait;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::{Request, Response};
use quorate_etcd::{Client, Room};

pub use import::{ImportError, Imported};
use shared::Shared;
pub use sweep::Swept;

/// The body of an answer. That of a `wait` lasts until the event, or with `stream` until the client closes the connection; dropping
/// it ends the watch on etcd. An error in it must close the connection.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the nodes are stored among the v3 keys.
    pub prefix: String,
    /// A larger request body is refused.
    pub max_body: usize,
    /// How many clients may wait for events at the same time.
    pub max_waiters: usize,
    /// What `/v2/machines` and `/v2/members` name as the URLs for clients instead of the members' own: v2 clients that look for
    /// members there would otherwise connect to an etcd without v2.
    pub advertised: Vec<String>,
    /// Where what an answer takes while it is made is counted, if at all.
    pub room: Option<Room>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            prefix: String::from("/v2"),
            max_body: 1 << 20,
            max_waiters: 10_000,
            advertised: Vec::new(),
            room: None,
        }
    }
}

/// What one process shares between all its requests: limits, counters, and what it knows of the cluster. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Keys {
    shared: Arc<Shared>,
}

impl Keys {
    pub fn new(settings: Settings) -> Self {
        Keys { shared: Arc::new(Shared::new(settings)) }
    }

    /// Whether the path is this library's to answer: everything below `/v2`.
    pub fn serves(path: &str) -> bool {
        path == "/v2" || path.starts_with("/v2/")
    }

    /// Answers one request as the user of `client`. The caller reads the body, up to `max_body` bytes.
    pub async fn answer(&self, request: Request<Bytes>, client: &Client) -> Response<Body> {
        answer::answer(&self.shared, request, client).await
    }

    /// Reports how long a member took to answer a probe, or `None` if it did not. `/v2/stats/leader` shows the figures of followers.
    pub fn probed(&self, member: u64, took: Option<Duration>) {
        self.shared.probed(member, took);
    }

    /// Removes what nobody can see any more: nodes below directories that have expired, and leases that a process left without a
    /// key when it was killed. Call it every few minutes with a client that may write all of the prefix; several may at once.
    pub async fn sweep(&self, client: &Client) -> Result<Swept, quorate_etcd::Error> {
        sweep::sweep(client, &self.shared.layout).await
    }

    /// Writes nodes from another etcd into this store: each document is the answer to
    /// `GET /v2/keys/PATH?recursive=true&quorum=true`. Nothing is overwritten: a node that exists and differs is an error before
    /// anything is written. Nodes that exist and are equal are skipped, so an interrupted import can be repeated.
    pub async fn import(&self, documents: &[Bytes], client: &Client) -> Result<Imported, ImportError> {
        import::import(client, &self.shared.layout, documents).await
    }
}
