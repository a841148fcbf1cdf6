//! Removes backups that are no longer kept. The manifest is deleted first: from then on the backup does not exist, and the next prune
//! removes what an interruption leaves. In the other order, an interruption would leave the manifest of an incomplete backup.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use quorate_core::spec::Keep;

use crate::Error;
use crate::catalog::Catalog;
use crate::names::{BackupId, Names};
use crate::retention::{self, Candidate, Reason};
use crate::store::Store;

/// A backup may be under way for so long without having a manifest.
const UNDER_WAY: SignedDuration = SignedDuration::from_hours(24);

#[derive(Clone, PartialEq, Debug)]
pub struct PrunePlan {
    pub keep: BTreeMap<BackupId, Vec<Reason>>,
    /// Oldest first.
    pub remove: Vec<BackupId>,
    /// Remains of backups that were never finished, or are removed already.
    pub leftovers: Vec<BackupId>,
}

impl PrunePlan {
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.leftovers.is_empty()
    }
}

/// What would go. A damaged backup does not count as verified, and is not removed for being damaged. Only what the cluster signed counts:
/// anything else neither takes a place that `keep` gives, nor goes.
pub fn plan(catalog: &Catalog, keep: &Keep, now: Timestamp) -> PrunePlan {
    let candidates: Vec<Candidate> = catalog
        .fulls
        .iter()
        .map(|full| Candidate {
            id: full.id().clone(),
            at: full.manifest.taken.opened,
            verified: full.manifest.is_verified() && full.damage.is_empty(),
        })
        .collect();
    let mut decided = retention::decide(&candidates, keep);
    if let Some(furthest) = furthest(catalog) {
        decided.entry(furthest.clone()).or_default().push(Reason::Furthest);
    }
    let (keep, remove): (BTreeMap<_, _>, BTreeMap<_, _>) = decided.into_iter().partition(|(_, why)| !why.is_empty());
    let old = |id: &&BackupId| now.duration_since(id.begun()) > UNDER_WAY;
    PrunePlan {
        keep,
        remove: remove.into_keys().collect(),
        leftovers: catalog.leftovers.iter().filter(old).cloned().collect(),
    }
}

/// The one that leads further than the newest: a recorder continued with it after somebody else took that manually. With it the latest
/// changes would go.
fn furthest(catalog: &Catalog) -> Option<&BackupId> {
    let newest = catalog.fulls.last()?;
    let whole = catalog.fulls.iter().filter(|full| full.damage.is_empty());
    let furthest = whole.max_by_key(|full| (full.up_to(), full.id().clone()))?;
    (furthest.up_to() > newest.up_to()).then(|| furthest.id())
}

/// Does it. What is gone already is no error, so it can be done again after a kill.
pub async fn carry_out(store: &Store, cluster: &str, plan: &PrunePlan) -> Result<(), Error> {
    let names = Names::new(cluster);
    for id in &plan.remove {
        store.delete(&names.manifest(id)).await?;
        clear(store, &names, id).await?;
    }
    for id in &plan.leftovers {
        clear(store, &names, id).await?;
    }
    Ok(())
}

/// Segments' manifests go before the segments, for the same reason: by name they come right after.
async fn clear(store: &Store, names: &Names, id: &BackupId) -> Result<(), Error> {
    for directory in [names.changes_directory(id), names.full_directory(id)] {
        store.clear_abandoned(&directory).await?;
        for object in store.list(&directory).await?.iter().rev() {
            store.delete(&object.path).await?;
        }
    }
    Ok(())
}
