//! The controller's side of etcd's backups. The crate `quorate_backup` does the work with the store; it gets access to the running cluster
//! through its agents, and etcd's programs for temporary clusters. No store credential and no secret key is ever sent to a machine.

mod confirm;
mod create;
mod programs;
mod restore;
mod source;
mod watch;

use quorate_backup::catalog::{Catalog, Full};
use quorate_backup::segment::SegmentManifest;
use quorate_backup::{Store, Trust};
use quorate_core::model::{BackupNote, BackupRecord};

pub use confirm::confirm;
pub use create::{Backups, Created, prove, prove_beside};
pub use restore::{Ready, SnapshotAt, Wanted, ledger_beside, root_is_let_in, verify_raised, without_older_leaders};
pub use watch::{Watching, watch};

use crate::backup::BackupError;

/// A limit, because anyone who can write to the store could fill the ledger.
const FORGED: usize = 3;

/// The backups of a cluster. If its id is not known, that of the newest backup counts: a name may have been used before.
pub async fn catalog_of(
    store: &Store,
    cluster: &str,
    cluster_id: Option<&str>,
    trust: &Trust,
) -> Result<Catalog, BackupError> {
    let catalog = Catalog::load(store, cluster, cluster_id, trust).await?;
    let ids: Vec<&str> = catalog.fulls.iter().map(|full| full.manifest.cluster_id.as_str()).collect();
    match ids.last() {
        Some(newest) if cluster_id.is_none() && ids.iter().any(|id| id != newest) => {
            Ok(Catalog::load(store, cluster, Some(newest), trust).await?)
        }
        _ => Ok(catalog),
    }
}

/// What a catalog contains, with the last recorded changes. `None` if no backup can be restored: the ledger's earlier record is then
/// outdated.
fn record(catalog: &Catalog, last: Option<&SegmentManifest>) -> Option<BackupRecord> {
    let whole = || catalog.fulls.iter().rev().filter(|full| full.damage.is_empty());
    let newest = whole().next()?;
    let mut newest_note = note(newest, newest.up_to());
    if let Some(last) = last.filter(|last| last.full == *newest.id()) {
        newest_note.at = newest_note.at.max(last.last_at);
        newest_note.revision = newest_note.revision.max(unsigned(last.span.to));
    }
    let verified = whole().find_map(|full| {
        let (_, proven) = full.manifest.proven()?;
        Some(note(full, proven.up_to))
    });
    let forged = catalog.damage.iter().filter(|damage| damage.is_forgery()).map(ToString::to_string);
    Some(BackupRecord { newest: newest_note, verified, forged: forged.take(FORGED).collect() })
}

fn note(full: &Full, up_to: i64) -> BackupNote {
    BackupNote {
        id: full.id().to_string(),
        at: full.manifest.taken.opened,
        revision: unsigned(up_to),
        verified_at: full.manifest.proven().map(|(at, _)| at),
        history: None,
    }
}

fn unsigned(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}
