//! State shared by all requests of one process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_etcd::{Client, Member};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Settings;
use crate::path::Layout;
use crate::stats::{self, Counts, Latency, Own};

/// How old the Raft index in an answer may be.
const FRESH: Duration = Duration::from_secs(1);
/// No cluster has more members; a caller that reports others must not fill the memory.
const MOST_PROBED: usize = 64;

/// What etcd reported last.
#[derive(Clone, Debug, Default)]
pub struct Known {
    pub cluster_id: u64,
    pub member_id: u64,
    pub leader: u64,
    pub raft_index: u64,
    pub raft_term: u64,
    asked: Option<Instant>,
}

#[derive(Debug)]
pub struct Shared {
    pub settings: Settings,
    pub layout: Layout,
    pub counts: Counts,
    places: Arc<Semaphore>,
    started: Timestamp,
    known: Mutex<(Known, Timestamp)>,
    probes: Mutex<BTreeMap<u64, Latency>>,
}

impl Shared {
    pub fn new(settings: Settings) -> Self {
        let now = Timestamp::now();
        Shared {
            layout: Layout::new(&settings.prefix),
            counts: Counts::default(),
            places: Arc::new(Semaphore::new(settings.max_waiters.min(Semaphore::MAX_PERMITS))),
            started: now,
            known: Mutex::new((Known::default(), now)),
            probes: Mutex::default(),
            settings,
        }
    }

    pub fn place(&self) -> Option<OwnedSemaphorePermit> {
        self.places.clone().try_acquire_owned().ok()
    }

    pub fn waiters(&self) -> usize {
        self.settings.max_waiters.saturating_sub(self.places.available_permits())
    }

    /// Asks etcd if the last answer is too old; without an answer the last one stays.
    pub async fn known(&self, client: &Client) -> Known {
        {
            let (known, _) = &mut *lock(&self.known);
            if known.asked.is_some_and(|asked| asked.elapsed() < FRESH) {
                return known.clone();
            }
            // The others do not wait for this one.
            if known.cluster_id != 0 {
                known.asked = Some(Instant::now());
            }
        }
        let Ok(status) = client.status().await else { return lock(&self.known).0.clone() };
        let (known, leads_since) = &mut *lock(&self.known);
        if status.leader != known.leader {
            *leads_since = Timestamp::now();
        }
        *known = Known {
            cluster_id: status.cluster_id,
            member_id: status.member_id,
            leader: status.leader,
            raft_index: status.raft_index.max(known.raft_index),
            raft_term: status.raft_term,
            asked: Some(Instant::now()),
        };
        known.clone()
    }

    pub fn probed(&self, member: u64, took: Option<Duration>) {
        let mut probes = lock(&self.probes);
        if probes.len() < MOST_PROBED || probes.contains_key(&member) {
            probes.entry(member).or_default().add(took);
        }
    }

    pub fn probes(&self) -> BTreeMap<u64, Latency> {
        lock(&self.probes).clone()
    }

    pub fn self_json(&self, known: &Known, members: &[Member]) -> String {
        let name = members.iter().find(|member| member.id == known.member_id).map_or("", |member| &member.name);
        let (started, leads_since) = (self.started, lock(&self.known).1);
        let (id, leader, now) = (known.member_id, known.leader, Timestamp::now());
        stats::self_json(&Own { name, id, leader, started, leads_since, now })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
