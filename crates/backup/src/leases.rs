//! Leases of a temporary etcd, which must not run out while changes are replayed: their keys would be deleted.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quorate_etcd::{Client, KeyRange, RangeQuery};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::Error;
use crate::source::after;

/// etcd grants no lease for less than two seconds.
const RENEWED_EVERY: Duration = Duration::from_millis(500);
const PAGE: i64 = 10_000;

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

    pub(crate) fn has(&self, id: i64) -> bool {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }

    pub(crate) fn keep(&self, id: i64) {
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
