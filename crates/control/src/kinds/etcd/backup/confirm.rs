//! Whether the verified backup that the ledger notes still exists: `destroy` asks the store, because the ledger remembers what was there
//! once.

use quorate_backup::BackupId;
use quorate_backup::catalog::{Catalog, chain};
use quorate_core::model::{BackupNote, Ledger};
use quorate_core::text::with_causes;

use super::unsigned;
use crate::backup::signing::trust_of;
use crate::backup::{Confirmed, Which, open_store};

/// Checks whether the store still has the verified backup of the ledger: signed, with the right sizes of all recorded changes, and not
/// found damaged since. The ledger only remembers what was there once.
pub async fn confirm(ledger: &Ledger) -> Confirmed {
    let Some(note) = ledger.backups.as_ref().and_then(|backups| backups.verified.as_ref()) else {
        return Confirmed { verified: None, why_not: None };
    };
    match still_leads_to(ledger, note).await {
        Ok(revision) => Confirmed { verified: Some(BackupNote { revision, ..note.clone() }), why_not: None },
        Err(why) => Confirmed { verified: None, why_not: Some(why) },
    }
}

async fn still_leads_to(ledger: &Ledger, note: &BackupNote) -> Result<u64, String> {
    let BackupNote { id, .. } = note;
    let unreachable = |error: &(dyn std::error::Error + 'static)| {
        format!("whether the verified backup {id} still exists is unknown: {}", with_causes(error))
    };
    let store = open_store(&ledger.spec, Which::First).map_err(|error| unreachable(&error))?;
    let trust = trust_of(Some(ledger), &ledger.spec, None, false);
    let cluster = ledger.spec.name.as_str();
    let catalog = Catalog::load(&store, cluster, Some(&ledger.cluster_id), &trust).await;
    let catalog = catalog.map_err(|error| unreachable(&error))?;
    let place = store.place();
    let full = id.parse::<BackupId>().ok().and_then(|id| catalog.find(&id)).filter(|full| full.signed_by.is_some());
    let full = full.ok_or_else(|| format!("the verified backup {id} is not in {place} any more"))?;
    if let Some(damage) = full.damage.first() {
        return Err(format!("the verified backup {id} in {place} is damaged since: {damage}"));
    }
    if !full.manifest.is_verified() {
        return Err(format!("the last verification of backup {id} in {place} failed"));
    }
    let chain = chain(&store, full).await.map_err(|error| unreachable(&error))?;
    let alone = full.manifest.newest_revision();
    let reached = chain.segments.last().map_or(alone, |last| last.span.to.max(alone));
    Ok(note.revision.min(unsigned(reached)))
}
