//! Read-only clients: readers with a session on a replica, and one observer of each member that continuously checks whether it is writable.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::client::seen;
use super::{AFTER_FAILURE, Shared};
use crate::kinds::postgres::history::{Reign, ReplicaRead, Timeline};
use crate::kinds::postgres::session::{Host, Session};
use crate::mark::Moment;
use crate::traffic::Order;

const TIMEOUT: Duration = Duration::from_secs(1);
const BETWEEN_READS: Duration = Duration::from_millis(60);
const BETWEEN_LOOKS: Duration = Duration::from_millis(40);

static SESSIONS: AtomicU64 = AtomicU64::new(0);

impl Shared {
    /// Reads from one replica for as long as its session lasts, then from the next.
    pub(super) async fn read_replicas(self, number: u32, orders: watch::Receiver<Order>) {
        let mut at = number as usize;
        while *orders.borrow() == Order::GoOn {
            let hosts = self.hosts();
            let host = hosts.get(at % hosts.len().max(1)).cloned();
            at += 1;
            if let Some(host) = host
                && let Ok(session) = Session::open(&self.access(), &host).await
                && session.timeline.is_none()
            {
                self.read_replica(number, &session, &orders).await;
            }
            sleep(AFTER_FAILURE).await;
        }
    }

    async fn read_replica(&self, reader: u32, session: &Session, orders: &watch::Receiver<Order>) {
        let number = SESSIONS.fetch_add(1, Ordering::Relaxed);
        let sql = format!("{}, pg_last_wal_replay_lsn() - '0/0'", self.counting());
        while *orders.borrow() == Order::GoOn {
            let called = self.clock.now();
            let Ok(Ok(rows)) = timeout(TIMEOUT, session.rows(&sql)).await else { return };
            let ended = self.clock.now();
            let lsn = rows.first().and_then(|row| row.get(2)).and_then(|text| text.parse().ok());
            let (Some(seen), Some(lsn)) = (seen(&rows), lsn) else { return };
            let member = session.member.clone();
            let read = ReplicaRead { reader, session: number, member, called, ended, lsn, seen };
            self.history().replica_reads.push(read);
            sleep(BETWEEN_READS).await;
        }
    }

    /// Looks at one member until the end. What it saw is noted when each session ends, also when this is dropped.
    pub(super) async fn observe(self, host: Host) {
        loop {
            if let Ok(session) = Session::open(&self.access(), &host).await {
                self.watch_over(&session).await;
            }
            sleep(AFTER_FAILURE).await;
        }
    }

    async fn watch_over(&self, session: &Session) {
        let mut reign = Noted { shared: self, member: &session.member, seen: None };
        loop {
            let called = self.clock.now();
            let Ok(Ok(timeline)) = timeout(TIMEOUT, session.writable_on()).await else { return };
            let ended = self.clock.now();
            match (timeline, &mut reign.seen) {
                (Some(_), Some((_, _, to))) => *to = called,
                (Some(timeline), none) => *none = Some((timeline, ended, ended)),
                (None, _) => {}
            }
            sleep(BETWEEN_LOOKS).await;
        }
    }
}

/// A reign that is recorded when its session ends.
struct Noted<'a> {
    shared: &'a Shared,
    member: &'a str,
    /// The timeline, from when and until when.
    seen: Option<(Timeline, Moment, Moment)>,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        if let Some((timeline, from, to)) = self.seen.take() {
            let reign = Reign { member: self.member.to_owned(), timeline, from, to };
            self.shared.history().reigns.push(reign);
        }
    }
}
