//! Version 2 of etcd's API over HTTP (`/v2/keys`, `/v2/stats`, `/v2/members`, `/v2/machines`) on top of etcd's v3 store, for clusters
//! whose etcd has no v2 any more. A library without a listener: the caller terminates TLS, authenticates the user and hands over the
//! request together with an etcd client that is logged in as that user, so the user's v3 permissions apply.
//!
//! Every write is one v3 transaction. Any number of processes may serve the same store, and each may be killed at any time.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use hyper::{Request, Response};
use quorate_etcd::Client;

/// The body of an answer. That of a `wait` lasts until the event, or with `stream` until the client closes the connection; dropping
/// it ends the watch on etcd.
pub type Body = BoxBody<Bytes, std::convert::Infallible>;

#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the nodes are stored among the v3 keys.
    pub prefix: String,
    /// A larger request body is refused.
    pub max_body: usize,
    /// How many clients may wait for events at the same time.
    pub max_waiters: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { prefix: String::from("/v2"), max_body: 1 << 20, max_waiters: 10_000 }
    }
}

/// What one process shares between all its requests: limits, counters, and what it knows of the cluster. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Keys {
    settings: Settings,
}

impl Keys {
    pub fn new(settings: Settings) -> Self {
        Keys { settings }
    }

    /// Whether the path is this library's to answer: everything below `/v2`.
    pub fn serves(path: &str) -> bool {
        path == "/v2" || path.starts_with("/v2/")
    }

    /// Answers one request as the user of `client`. The caller reads the body, up to `max_body` bytes.
    pub async fn answer(&self, request: Request<Bytes>, client: &Client) -> Response<Body> {
        let _ = (request, client, &self.settings);
        todo!()
    }

    /// Reports how long a member took to answer a probe, or `None` if it did not. `/v2/stats/leader` shows the figures of followers.
    pub fn probed(&self, member: u64, took: Option<Duration>) {
        let _ = (member, took);
    }
}
