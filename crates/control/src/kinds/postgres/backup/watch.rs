//! `backup watch`: takes a backup when one is due. It does not record the log, because PostgreSQL archives it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quorate_backup::Store;
use quorate_backup::postgres::{Catalog, Listed, Manifest};
use quorate_core::kinds::postgres::backup::BackupKind;
use quorate_core::model::Ledger;
use quorate_core::text::with_causes;
use tokio::sync::watch;

use super::Backups;
use crate::backup::signing::with_key;
use crate::backup::{BackupError, Doing, Teller, Vault};
use crate::home::Home;

/// How often to check whether something is due.
const TICK: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

pub struct Watching<'a> {
    pub home: &'a Home,
    pub cluster: &'a str,
    /// Also remove, after each full backup, what the spec no longer keeps.
    pub prune: bool,
    pub teller: &'a dyn Teller,
}

/// Watches until `stop` becomes true. A backup in progress then continues without it.
pub async fn watch(watching: &Watching<'_>, mut stop: watch::Receiver<bool>) -> Result<(), BackupError> {
    let mut pause = TICK;
    loop {
        let done = tokio::select! {
            done = watching.look() => done,
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        };
        pause = match done {
            Ok(()) => TICK,
            Err(error) if is_passing(&error) => {
                watching.teller.say(&format!("warning: {}; trying again", with_causes(&error)));
                (pause * 2).min(LONGEST_PAUSE)
            }
            Err(error) => return Err(error),
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        }
    }
}

/// Whether the same may succeed later.
fn is_passing(error: &BackupError) -> bool {
    let of_members = matches!(
        error,
        BackupError::Job { .. }
            | BackupError::Agent { .. }
            | BackupError::NoPrimary { .. }
            | BackupError::FilesLost { .. }
    );
    of_members || error.is_passing()
}

impl Watching<'_> {
    async fn look(&self) -> Result<(), BackupError> {
        let gone = || BackupError::Gone { cluster: self.cluster.to_owned() };
        let ledger = with_key(self.home, self.home.store(self.cluster).read()?.ok_or_else(gone)?).await?;
        let vault = Vault::open(&ledger.spec)?;
        let backups = Backups { home: self.home, ledger: &ledger, teller: self.teller };
        let catalog = backups.catalog(&vault.first).await?;
        let Some(kind) = due(&ledger, &catalog, Timestamp::now()) else { return Ok(()) };
        let created = backups.create(&vault, kind, true).await?;
        self.teller.doing(Doing::Nothing);
        for (place, taken) in vault.stores().map(Store::place).zip(created.taken()) {
            self.tell(&taken.manifest, place);
        }
        for error in created.troubles() {
            self.teller.say(&format!("warning: {}", with_causes(&error)));
        }
        if self.prune && kind == BackupKind::Full {
            self.prune(&backups, &vault).await?;
        }
        Ok(())
    }

    fn tell(&self, manifest: &Manifest, place: &str) {
        let taken = &manifest.taken;
        self.teller.say(&format!(
            "backup {} ({}) is stored in {place}, {} bytes",
            taken.label, taken.kind, taken.stored_bytes
        ));
        match manifest.verified.last().map(|last| &last.outcome) {
            Some(Ok(_)) => self.teller.say(&format!("backup {} is verified", taken.label)),
            Some(Err(why)) => self.teller.say(&format!("warning: backup {} is NOT good: {why}", taken.label)),
            None => {}
        }
    }

    async fn prune(&self, backups: &Backups<'_>, vault: &Vault) -> Result<(), BackupError> {
        for (repository, store) in (1..).zip(vault.stores()) {
            let going = backups.catalog(store).await?.to_remove(&vault.keep);
            backups.remove(store, repository, &going).await?;
            for label in going {
                self.teller.say(&format!("backup {label} is removed from {}", store.place()));
            }
        }
        Ok(())
    }
}

/// Which kind of backup the spec wants now.
fn due(ledger: &Ledger, catalog: &Catalog, now: Timestamp) -> Option<BackupKind> {
    let settings = ledger.spec.backup.as_ref()?;
    let is_due = |last: Option<&Listed>, every: u64| {
        let every = SignedDuration::from_millis(i64::try_from(every).unwrap_or(i64::MAX));
        last.is_none_or(|last| now.duration_since(last.manifest.taken.began) >= every)
    };
    let full = catalog.backups.iter().rfind(|listed| listed.manifest.taken.kind == BackupKind::Full);
    if is_due(full, settings.schedule.0) {
        return Some(BackupKind::Full);
    }
    let every = settings.incremental?;
    is_due(catalog.backups.last(), every.0).then_some(BackupKind::Incremental)
}
