//! Checks whether the store still has the verified backup that the ledger records.

use quorate_backup::postgres;
use quorate_core::model::{BackupNote, Ledger};
use quorate_core::text::with_causes;

use super::{catalog_of, is_what_was_taken};
use crate::backup::signing::trust_of;
use crate::backup::{BackupError, Confirmed, Which, open_store};

/// Checks the store, because the ledger only remembers what was there once. The backup must be signed and verified, with the signed list of
/// files, and all files that it had then.
pub async fn confirm(ledger: &Ledger) -> Confirmed {
    let Some(note) = ledger.backups.as_ref().and_then(|backups| backups.verified.as_ref()) else {
        return Confirmed { verified: None, why_not: None };
    };
    let why_not = match is_missing(ledger, note).await {
        Ok(None) => return Confirmed { verified: Some(note.clone()), why_not: None },
        Ok(Some(why)) => why,
        Err(error) => {
            format!("whether the verified backup {} still exists is unknown: {}", note.id, with_causes(&error))
        }
    };
    Confirmed { verified: None, why_not: Some(why_not) }
}

/// What is wrong with it.
async fn is_missing(ledger: &Ledger, BackupNote { id, .. }: &BackupNote) -> Result<Option<String>, BackupError> {
    let store = open_store(&ledger.spec, Which::First)?;
    let (cluster, place) = (ledger.spec.name.as_str(), store.place());
    let trust = trust_of(Some(ledger), &ledger.spec, None, false);
    let catalog = catalog_of(&store, cluster, Some(&ledger.cluster_id), &trust).await?;
    let Some(listed) = catalog.find(id) else {
        return Ok(Some(format!("the verified backup {id} is not in {place} any more")));
    };
    if listed.manifest.verified_at().is_none() {
        return Ok(Some(format!("the last verification of backup {id} in {place} failed")));
    }
    if let Err(damage) = is_what_was_taken(&store, cluster, &listed.manifest).await? {
        return Ok(Some(format!("the verified backup {id} in {place} is damaged since: {damage}")));
    }
    let verified = listed.manifest.verified.last().and_then(|last| last.files_sha256.as_ref());
    let Some(verified) = verified else { return Ok(None) };
    let differs = postgres::files_digest(&store, &catalog, &listed.manifest).await? != *verified;
    Ok(differs.then(|| {
        format!(
            "files of the verified backup {id} in {place} are missing, or have another size than when it was verified; `quorate backup verify \
             {cluster}` looks again"
        )
    }))
}
