//! Takes and verifies backups. A backup is taken from the most suitable member, or from the next one if that fails. It is then
//! restored into a temporary etcd, compared with every member, copied to the second destination and recorded in the ledger. A failure
//! at any point leaves earlier backups unchanged.

use std::time::Duration;

use jiff::Timestamp;
use quorate_backup::catalog::{Catalog, Full};
use quorate_backup::full::{self, Draft};
use quorate_backup::keys::BackupKey;
use quorate_backup::manifest::{Manifest, Verification};
use quorate_backup::prune::{self, PrunePlan};
use quorate_backup::recorder::Command;
use quorate_backup::segment::SegmentManifest;
use quorate_backup::verify::{Workshop, verify};
use quorate_backup::{BackupId, Error, Source, SourceError, Store, mirror};
use quorate_core::model::Ledger;
use quorate_core::spec::ClusterSpec;
use quorate_pki::SigningKey;
use tokio::sync::{mpsc, oneshot};

use super::source::{AgentSource, Members};
use super::{programs, record};
use crate::backup::{BackupError, Doing, Teller, Vault, note, sealed_ledger, signing};
use crate::home::Home;
use quorate_agent::private_directory;
use quorate_core::text::with_causes;

/// How often all members are tried.
const ROUNDS: u32 = 3;
const BETWEEN_ROUNDS: Duration = Duration::from_secs(2);
/// A cluster with the places that hold its backups.
pub struct Backups<'a> {
    pub home: &'a Home,
    pub ledger: &'a Ledger,
    pub vault: &'a Vault,
    pub teller: &'a dyn Teller,
}

/// A full backup that was taken.
#[derive(Debug)]
pub struct Created {
    pub manifest: Manifest,
    /// Absent if it was not requested, or failed.
    pub verification: Option<Verification>,
    /// Why it could not be verified, which says nothing about the backup.
    pub not_proven: Option<BackupError>,
    /// Why it was not copied to the second destination.
    pub not_copied: Option<BackupError>,
    /// Whether the ledger records it.
    pub noted: bool,
}

/// The backup, and its key.
pub(super) struct Taken {
    pub manifest: Manifest,
    pub key: Option<BackupKey>,
}

impl Backups<'_> {
    /// Takes a full backup now.
    pub async fn create(&self, proven: bool) -> Result<Created, BackupError> {
        self.check(&self.vault.first).await?;
        self.clear_leftovers(&self.vault.first).await?;
        let mut members = Members::new(self.home, self.ledger);
        let taken = self.take(&mut members, None).await?;
        self.finish(taken, proven).await
    }

    /// The steps after a backup was taken.
    pub(super) async fn finish(&self, taken: Taken, proven: bool) -> Result<Created, BackupError> {
        let Taken { manifest, key } = taken;
        let (verification, not_proven) = match proven {
            true => match self.prove_new(&manifest.id, key).await {
                Ok(verification) => (Some(verification), None),
                Err(error) => (None, Some(error)),
            },
            false => (None, None),
        };
        let not_copied = self.copy_checked().await.err();
        let noted = self.note(None).await?;
        self.teller.doing(Doing::Nothing);
        Ok(Created { manifest, verification, not_proven, not_copied, noted })
    }

    /// From the first member that can be read completely. A recorder is notified before each attempt, and after a failed one.
    pub(super) async fn take(
        &self,
        members: &mut Members<'_>,
        recorder: Option<&mpsc::Sender<Command>>,
    ) -> Result<Taken, BackupError> {
        let signing = signing::key_of(self.ledger)?;
        let (mut round, mut last) = (0, None);
        while round < ROUNDS {
            if round > 0 {
                tokio::time::sleep(BETWEEN_ROUNDS).await;
            }
            round += 1;
            self.teller.doing(Doing::Looking);
            for source in members.readable().await? {
                let draft = Draft::new(&self.vault.settings, &signing, Timestamp::now())?;
                begin(recorder, &draft).await;
                match self.attempt(&source, &draft).await {
                    Ok(manifest) => return Ok(Taken { manifest, key: draft.key() }),
                    Err(error) => {
                        end(recorder, draft.id(), 0).await;
                        if !another_may_do(&error) {
                            return Err(error.into());
                        }
                        self.teller.say(&format!("not from {}: {}", source.member(), with_causes(&error)));
                        last = Some(error);
                    }
                }
            }
        }
        let none = || Error::Source(SourceError::Unreachable(String::from("no member answers")));
        Err(last.unwrap_or_else(none).into())
    }

    async fn attempt(&self, source: &AgentSource, draft: &Draft) -> Result<Manifest, Error> {
        let member = source.member();
        self.teller.doing(Doing::Reading { member, bytes: 0 });
        let progress = |bytes| self.teller.doing(Doing::Reading { member, bytes });
        let ledger = sealed_ledger(self.home, self.ledger, self.vault, self.teller);
        full::create(&self.vault.first, source, draft, &self.vault.settings, ledger, &progress).await
    }

    async fn prove_new(&self, id: &BackupId, key: Option<BackupKey>) -> Result<Verification, BackupError> {
        let catalog = self.catalog(&self.vault.first).await?;
        let missing =
            || Error::NothingToRestore(format!("backup {id} is not in {} any more", self.vault.first.place()));
        let full = catalog.find(id).ok_or_else(missing)?;
        self.teller.doing(Doing::Proving { id: full.id().as_str() });
        prove_beside(self.home, self.ledger, &self.vault.first, full, key).await
    }

    pub async fn catalog(&self, store: &Store) -> Result<Catalog, BackupError> {
        let trust = signing::trust_of(Some(self.ledger), &self.ledger.spec, None, false);
        Ok(Catalog::load(store, &self.vault.cluster, Some(&self.ledger.cluster_id), &trust).await?)
    }

    /// Checks that a store can be written to, and supports conditional writes.
    async fn check(&self, store: &Store) -> Result<(), BackupError> {
        self.teller.doing(Doing::Checking { place: store.place() });
        Ok(store.check(&self.vault.cluster).await?)
    }

    async fn copy_checked(&self) -> Result<(), BackupError> {
        let Some(second) = self.vault.second()? else { return Ok(()) };
        self.check(second).await?;
        self.clear_leftovers(second).await?;
        self.copy().await
    }

    /// Copies everything to the second destination.
    pub async fn copy(&self) -> Result<(), BackupError> {
        let Some(second) = self.vault.second()? else { return Ok(()) };
        self.teller.doing(Doing::Copying { place: second.place() });
        let trust = signing::trust_of(Some(self.ledger), &self.ledger.spec, None, false);
        let signing = signing::key_of(self.ledger)?;
        mirror::copy(&self.vault.first, second, &self.vault.cluster, &trust, &signing).await?;
        Ok(())
    }

    /// Records the existing backups in the ledger. Returns whether that was done.
    pub async fn note(&self, last: Option<&SegmentManifest>) -> Result<bool, BackupError> {
        // Without a key nothing can be distinguished from a forgery.
        if self.ledger.backup_signing.is_none() {
            return Ok(true);
        }
        let catalog = self.catalog(&self.vault.first).await?;
        let record = record(&catalog, last);
        Ok(note::write(self.home, self.ledger, record.as_ref()).await?)
    }

    /// Leftovers of unfinished backups.
    async fn clear_leftovers(&self, store: &Store) -> Result<(), BackupError> {
        let plan = prune::plan(&self.catalog(store).await?, &self.vault.keep, Timestamp::now());
        let leftovers = PrunePlan { remove: Vec::new(), ..plan };
        Ok(prune::carry_out(store, &self.vault.cluster, &leftovers).await?)
    }
}

/// Verifies a backup with its key. If the cluster runs, the backup is compared with every member that can be read.
pub async fn prove_beside(
    home: &Home,
    ledger: &Ledger,
    store: &Store,
    full: &Full,
    key: Option<BackupKey>,
) -> Result<Verification, BackupError> {
    let mut members = Members::new(home, ledger);
    // Verification without the running cluster is valid too.
    let sources = members.readable().await.unwrap_or_default();
    let living: Vec<&dyn Source> = sources.iter().map(|source| source as &dyn Source).collect();
    let signing = signing::key_of(ledger).ok();
    prove(home, &ledger.spec, store, full, key, &living, signing.as_ref()).await
}

/// Verifies a backup, with or without a running cluster.
pub async fn prove(
    home: &Home,
    spec: &ClusterSpec,
    store: &Store,
    full: &Full,
    key: Option<BackupKey>,
    living: &[&dyn Source],
    signing: Option<&SigningKey>,
) -> Result<Verification, BackupError> {
    let programs = programs::programs(home, spec, &full.manifest.etcd_version).await?;
    let scratch = home.scratch(spec.name.as_str());
    private_directory(&scratch).map_err(BackupError::file("created", &scratch))?;
    let workshop = Workshop { programs: &programs, scratch: &scratch };
    Ok(verify(store, full, key, &workshop, living, signing).await?)
}

/// A problem of one member may not affect another.
fn another_may_do(error: &Error) -> bool {
    matches!(error, Error::Source(SourceError::Unreachable(_)) | Error::SnapshotCorrupt { .. })
}

async fn begin(recorder: Option<&mpsc::Sender<Command>>, draft: &Draft) {
    let Some(recorder) = recorder else { return };
    let (begun, is_begun) = oneshot::channel();
    let command = Command::Begin { full: draft.id().clone(), recipient: draft.recipient(), begun };
    // Without a recorder, the backup has no changes on top.
    if recorder.send(command).await.is_ok() {
        let _ = is_begun.await;
    }
}

/// Recording on top of it ends at revision `after`.
pub(super) async fn end(recorder: Option<&mpsc::Sender<Command>>, full: &BackupId, after: i64) {
    if let Some(recorder) = recorder {
        let _ = recorder.send(Command::End { full: full.clone(), after }).await;
    }
}
