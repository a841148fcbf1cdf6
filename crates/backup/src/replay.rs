//! Replays recorded changes on a temporary etcd: one revision, one transaction, so every revision gets its original number, and every
//! key its versions. Leases are granted again under their original ids and kept alive meanwhile; otherwise their keys would be deleted
//! and the revisions would no longer match.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quorate_etcd::{Client, KeyRange, Op, RangeQuery, Thing, Txn};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::Error;
use crate::choose::Stop;
use crate::keys::BackupKey;
use crate::segment::{self, Change, Revision, SegmentManifest};
use crate::store::Store;
use crate::throwaway::Throwaway;

/// For a lease that was gone before its time to live could be asked for. After a restore its keys go when nobody renews it.
const UNKNOWN_TTL: i64 = 60;
/// etcd grants no lease for less than two seconds.
const RENEWED_EVERY: Duration = Duration::from_millis(500);
const PAGE: i64 = 10_000;

/// Replays segments up to the stop, and returns the revision that was reached. `progress` is called with each.
pub async fn replay(
    throwaway: &Throwaway,
    store: &Store,
    segments: &[SegmentManifest],
    key: Option<&BackupKey>,
    stop: Stop,
    progress: &(dyn Fn(i64) + Sync),
) -> Result<i64, Error> {
    let mut replayer = Replayer {
        client: throwaway.client(),
        revision: throwaway.snapshot_revision(),
        ttls: BTreeMap::new(),
        leases: throwaway.leases(),
    };
    for manifest in segments {
        for revision in segment::read(store, manifest, key.cloned()).await? {
            if is_beyond(&revision, stop) {
                return Ok(replayer.revision);
            }
            replayer.apply(revision).await?;
            progress(replayer.revision);
        }
    }
    match stop {
        Stop::AfterRevision(wanted) if replayer.revision != wanted => Err(Error::Replay {
            why: format!("revision {wanted} was wanted, and the changes lead to {}", replayer.revision),
        }),
        _ => Ok(replayer.revision),
    }
}

fn is_beyond(revision: &Revision, stop: Stop) -> bool {
    match stop {
        Stop::AfterRevision(last) => revision.revision > last,
        Stop::At(at) => revision.received() > at,
        Stop::AtTheEnd => false,
    }
}

struct Replayer<'a> {
    client: &'a Client,
    revision: i64,
    /// As recorded, also with revisions that the snapshot holds already.
    ttls: BTreeMap<i64, i64>,
    leases: &'a LeasesKept,
}

impl Replayer<'_> {
    async fn apply(&mut self, revision: Revision) -> Result<(), Error> {
        self.ttls.extend(revision.leases.iter().map(|lease| (lease.id, lease.ttl)));
        if revision.revision <= self.revision {
            return Ok(());
        }
        let wanted = self.revision + 1;
        if revision.revision != wanted {
            let why = format!("revision {wanted} comes next, and {} was recorded", revision.revision);
            return Err(Error::Replay { why });
        }
        for id in revision.lease_ids() {
            self.grant(id).await?;
        }
        let then = revision.changes.into_iter().map(operation).collect();
        let done = self.client.txn(Txn { then, ..Txn::default() }).await?.revision;
        self.revision = done;
        if done == wanted {
            return Ok(());
        }
        // Either a key that was to be deleted is not there, or a lease ran out under our hands.
        Err(Error::Replay { why: format!("revision {wanted} became {done} when it was replayed") })
    }

    async fn grant(&self, id: i64) -> Result<(), Error> {
        if self.leases.has(id) {
            return Ok(());
        }
        let ttl = self.ttls.get(&id).copied().filter(|ttl| *ttl > 0).unwrap_or(UNKNOWN_TTL);
        let granted = self.client.lease_grant_as(id, Duration::from_secs(ttl.unsigned_abs())).await;
        match granted {
            Ok(_) | Err(quorate_etcd::Error::AlreadyExists(Thing::Lease)) => {}
            Err(error) => return Err(error.into()),
        }
        self.leases.keep(id);
        Ok(())
    }
}

fn operation(change: Change) -> Op {
    let Change { key, value, lease, deleted } = change;
    match deleted {
        true => Op::Delete(KeyRange::key(key)),
        false => Op::Put { key, value, lease },
    }
}

/// Leases that are renewed again and again while this lives.
pub(crate) struct LeasesKept {
    ids: Arc<Mutex<BTreeSet<i64>>>,
    task: JoinHandle<()>,
}

impl LeasesKept {
    /// All that have keys. One without keys may run out: no revision comes of it.
    pub(crate) async fn all_of(client: &Client) -> Result<Self, Error> {
        let ids = Arc::new(Mutex::new(BTreeSet::new()));
        let kept = LeasesKept { task: tokio::spawn(renew(client.clone(), ids.clone())), ids };
        let mut query = RangeQuery { keys_only: true, limit: PAGE, ..RangeQuery::new(KeyRange::prefix("")) };
        loop {
            let page = client.range(query.clone()).await?;
            page.pairs.iter().filter(|pair| pair.lease != 0).for_each(|pair| kept.keep(pair.lease));
            match page.pairs.last() {
                Some(last) if page.more => query.keys.key = after(&last.key),
                _ => return Ok(kept),
            }
        }
    }

    fn has(&self, id: i64) -> bool {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }

    fn keep(&self, id: i64) {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
    }
}

impl Drop for LeasesKept {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn renew(client: Client, ids: Arc<Mutex<BTreeSet<i64>>>) {
    loop {
        let next = Instant::now() + RENEWED_EVERY;
        let now: Vec<i64> = ids.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        for id in now {
            // One that is gone shows in the count of revisions.
            let _ = client.lease_keep_alive(id).await;
        }
        sleep_until(next).await;
    }
}

/// The first key after this one.
pub(crate) fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}
