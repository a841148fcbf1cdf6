//! Backups of PostgreSQL as the controller has them taken: pgBackRest on a member does the work, and the controller puts a signed manifest and
//! the ledger next to each backup. The ledger's lock is never taken: a backup disturbs nobody who changes the cluster meanwhile.

mod members;
pub mod restore;
mod watch;

use jiff::Timestamp;
use quorate_agent::api::{Job, JobOutcome};
use quorate_backup::postgres::{self, Catalog, FORMAT, Listed, Manifest, Verification};
use quorate_backup::{Store, Trust};
use quorate_core::kinds::postgres::backup::{BackupKind, Mark};
use quorate_core::kinds::postgres::repository;
use quorate_core::model::{BackupNote, BackupRecord, Ledger};

use crate::home::Home;
use crate::kinds::etcd::backup::signing::{key_of, trust_of};
use crate::kinds::etcd::backup::{BackupError, Teller, Vault, note, sealed_ledger};
use members::Members;

pub use watch::{Watching, watch};

/// So many are enough: anyone who can write to the store could fill the ledger.
const STRANGE: usize = 3;

/// A cluster with the places that hold its backups.
pub struct Backups<'a> {
    pub home: &'a Home,
    pub ledger: &'a Ledger,
    pub vault: &'a Vault,
    pub teller: &'a dyn Teller,
}

/// A backup that was taken.
#[derive(Debug)]
pub struct Created {
    pub manifest: Manifest,
    /// Why it could not be verified, which says nothing about the backup.
    pub not_verified: Option<BackupError>,
    /// Why the second destination has none.
    pub not_copied: Option<BackupError>,
    /// Whether the ledger knows of it.
    pub noted: bool,
}

impl Backups<'_> {
    /// Takes a backup now, and has it verified.
    pub async fn create(&self, kind: BackupKind, verified: bool) -> Result<Created, BackupError> {
        let members = Members::look(self.home, self.ledger).await?;
        let manifest = self.take(&members, &self.vault.first, 1, kind).await?;
        let not_copied = match self.vault.second() {
            Ok(None) => None,
            Ok(Some(second)) => self.take(&members, second, 2, kind).await.err(),
            Err(error) => Some(error),
        };
        let (manifest, not_verified) = match verified {
            true => match self.verify_label(&members, manifest.label()).await {
                Ok(manifest) => (manifest, None),
                Err(error) => (manifest, Some(error)),
            },
            false => (manifest, None),
        };
        let noted = self.note().await?;
        Ok(Created { manifest, not_verified, not_copied, noted })
    }

    async fn take(
        &self,
        members: &Members<'_>,
        store: &Store,
        repository: u8,
        kind: BackupKind,
    ) -> Result<Manifest, BackupError> {
        let signing = key_of(self.ledger)?;
        let primary = members.primary().to_string();
        let mark = self.mark(members).await?;
        let job = Job::BackUp { kind, repository };
        let JobOutcome::BackedUp(taken) = members.on_primary(job, "take a backup", self.teller).await? else {
            return Err(members.misunderstood());
        };
        let (spec, directory) = (&self.ledger.spec, repository::directory(&self.ledger.spec));
        let list_sha256 = postgres::list_digest(store, &directory, spec.name.as_str(), &taken.label).await?;
        let manifest = Manifest {
            format: FORMAT,
            cluster: self.vault.cluster.clone(),
            cluster_id: self.ledger.cluster_id.clone(),
            taken: *taken,
            mark,
            from_member: primary,
            repository: directory,
            list_sha256,
            encrypted: !self.vault.settings.recipients.is_empty(),
            ledger: None,
            verified: Vec::new(),
            signature: None,
        };
        let ledger = sealed_ledger(self.home, self.ledger, self.vault, self.teller);
        Ok(postgres::put(store, manifest, ledger.map(|sealed| sealed.to_vec()), &signing).await?)
    }

    async fn mark(&self, members: &Members<'_>) -> Result<Mark, BackupError> {
        match members.on_primary(Job::Mark, "mark its data", self.teller).await? {
            JobOutcome::Marked(mark) => Ok(mark),
            _ => Err(members.misunderstood()),
        }
    }

    /// Has a backup of the first destination restored into a temporary PostgreSQL, and notes what was found.
    pub async fn verify(&self, label: &str) -> Result<Manifest, BackupError> {
        let members = Members::look(self.home, self.ledger).await?;
        let verified = self.verify_label(&members, label).await?;
        self.note().await?;
        Ok(verified)
    }

    async fn verify_label(&self, members: &Members<'_>, label: &str) -> Result<Manifest, BackupError> {
        let signing = key_of(self.ledger)?;
        let catalog = self.catalog(&self.vault.first).await?;
        let listed = find(&catalog, label, &self.vault.cluster)?;
        let on_member = members.workshop().to_string();
        let outcome = match is_what_was_taken(&self.vault.first, &self.vault.cluster, &listed.manifest).await? {
            Err(why) => Err(why),
            Ok(()) => {
                let Manifest { taken, mark, .. } = &listed.manifest;
                let job = Job::Verify { label: taken.label.clone(), mark: *mark, bytes: taken.bytes };
                match members.in_workshop(job, "verify the backup", self.teller).await? {
                    JobOutcome::Verified(outcome) => outcome,
                    _ => return Err(members.misunderstood()),
                }
            }
        };
        let verification = Verification { at: Timestamp::now(), on_member, outcome };
        Ok(postgres::note(&self.vault.first, listed, verification, &signing).await?)
    }

    pub async fn catalog(&self, store: &Store) -> Result<Catalog, BackupError> {
        let trust = trust_of(Some(self.ledger), &self.ledger.spec, None, false);
        Ok(Catalog::load(store, &self.vault.cluster, Some(&self.ledger.cluster_id), &trust).await?)
    }

    /// Removes full backups with all that rests on them. pgBackRest removes the log that nobody needs any more.
    pub async fn remove(&self, store: &Store, repository: u8, fulls: &[String]) -> Result<(), BackupError> {
        let members = Members::look(self.home, self.ledger).await?;
        let catalog = self.catalog(store).await?;
        for full in fulls {
            // What counts goes first: half a removal leaves no manifest of what is not there.
            for listed in catalog.backups.iter().filter(|listed| listed.manifest.full() == full) {
                postgres::remove(store, &self.vault.cluster, listed.manifest.label()).await?;
            }
            let job = Job::Expire { label: full.clone(), repository };
            members.on_primary(job, "remove the backup", self.teller).await?;
        }
        Ok(())
    }

    /// Notes in the ledger what there is. Tells whether that was done.
    pub async fn note(&self) -> Result<bool, BackupError> {
        let catalog = self.catalog(&self.vault.first).await?;
        Ok(note::write(self.home, self.ledger, record(&catalog).as_ref()).await?)
    }
}

/// Whether the store still has the list of files that was signed: pgBackRest believes whatever list it finds.
async fn is_what_was_taken(
    store: &Store,
    cluster: &str,
    manifest: &Manifest,
) -> Result<Result<(), String>, BackupError> {
    match postgres::list_digest(store, &manifest.repository, cluster, manifest.label()).await {
        Ok(found) if found == manifest.list_sha256 => Ok(Ok(())),
        Ok(_) => Ok(Err(String::from("pgBackRest's list of its files is not the one that was signed: it was changed"))),
        Err(quorate_backup::Error::Store(error)) if error.is_not_found() => {
            Ok(Err(String::from("pgBackRest's list of its files is missing from the store")))
        }
        Err(error) => Err(error.into()),
    }
}

fn find<'a>(catalog: &'a Catalog, label: &str, cluster: &str) -> Result<&'a Listed, BackupError> {
    let missing = || quorate_backup::Error::NothingToRestore(format!("there is no backup {label} of {cluster}"));
    Ok(catalog.find(label).ok_or_else(missing)?)
}

/// What is there of a cluster, for anyone who is to be believed.
pub async fn catalog_of(
    store: &Store,
    cluster: &str,
    cluster_id: Option<&str>,
    trust: &Trust,
) -> Result<Catalog, BackupError> {
    Ok(Catalog::load(store, cluster, cluster_id, trust).await?)
}

fn record(catalog: &Catalog) -> Option<BackupRecord> {
    let note = |manifest: &Manifest| BackupNote {
        id: manifest.label().to_owned(),
        at: manifest.taken.began,
        revision: 0,
        verified_at: manifest.verified_at(),
    };
    let fulls = || catalog.backups.iter().rev().map(|listed| &listed.manifest);
    let newest = fulls().next()?;
    let verified = fulls().find(|manifest| manifest.verified_at().is_some());
    let forged = catalog.strange.iter().take(STRANGE).cloned().collect();
    Some(BackupRecord { newest: note(newest), verified: verified.map(note), forged })
}
