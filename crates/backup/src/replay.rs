//! Replays recorded changes on a temporary etcd: one revision, one transaction, so every revision gets its original number, and every
//! key its versions. Leases are granted again under their original ids and kept alive meanwhile; otherwise their keys would be deleted
//! and the revisions would no longer match.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_etcd::{Client, KeyRange, Op, Thing, Txn};

use crate::Error;
use crate::choose::Stop;
use crate::keys::BackupKey;
use crate::leases::LeasesKept;
use crate::segment::{self, Change, Revision, SegmentManifest};
use crate::store::Store;
use crate::throwaway::Throwaway;

/// For a lease that was gone before its time to live could be asked for. After a restore its keys go when nobody renews it.
const UNKNOWN_TTL: i64 = 60;

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
