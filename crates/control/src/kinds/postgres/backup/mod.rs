//! The controller's side of PostgreSQL backups: pgBackRest on a member does the work, and the controller puts a signed manifest and the
//! ledger next to each backup. The ledger's lock is never taken, so a backup does not delay a change of the cluster.

mod confirm;
mod members;
pub mod restore;
mod watch;

use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};
use quorate_agent::api::{Job, JobOutcome, Pass, PrimaryFiles, ServerPass};
use quorate_backup::postgres::{self, Catalog, FORMAT, Listed, Manifest, Verification};
use quorate_backup::{Store, Trust};
use quorate_core::kinds::postgres::backup::{BackupKind, BackupTaken, Mark};
use quorate_core::kinds::postgres::{RestoreTarget, Until, repository};
use quorate_core::model::{BackupNote, BackupRecord, History, Ledger, MemberName};
use quorate_pki::{Authority, AuthoritySubject, KeyAlgorithm, KeyPair, LeafWish};

use crate::backup::signing::{key_of, trust_of};
use crate::backup::{BackupError, Teller, Vault, Which, note, sealed_ledger};
use crate::home::Home;
use members::Members;

pub use confirm::confirm;
pub use watch::{Watching, watch};

const TAKE: &str = "take a backup";
const PASS_CLIENT: &str = "quorate-backup";
/// An agent's time limit for a backup. Each connection of pgBackRest presents the certificate again.
const PASS_VALIDITY: SignedDuration = SignedDuration::from_hours(7 * 24);
/// A limit, because anyone who can write to the store could fill the ledger.
const STRANGE: usize = 3;

/// A cluster whose backups are taken, verified and removed.
pub struct Backups<'a> {
    pub home: &'a Home,
    pub ledger: &'a Ledger,
    pub teller: &'a dyn Teller,
}

/// A place that holds backups.
#[derive(Clone, Copy)]
pub struct Shelf<'a> {
    pub which: Which,
    pub store: &'a Store,
}

/// A backup in one place.
#[derive(Debug)]
pub struct Taken {
    pub manifest: Manifest,
    /// Why it could not be verified, which says nothing about the backup.
    pub not_verified: Option<BackupError>,
}

/// The result of a request for a backup.
#[derive(Debug)]
pub struct Created {
    pub first: Taken,
    /// If the spec has a second store: a separate backup there, or why there is none.
    pub second: Option<Result<Taken, BackupError>>,
    /// Whether the ledger knows of it.
    pub noted: bool,
}

impl Created {
    pub fn taken(&self) -> impl Iterator<Item = &Taken> {
        std::iter::once(&self.first).chain(self.second.as_ref().and_then(|second| second.as_ref().ok()))
    }

    /// All errors, except those that verifications found.
    pub fn troubles(self) -> impl Iterator<Item = BackupError> {
        let second = self.second.map(|second| second.map_or_else(Some, |taken| taken.not_verified));
        self.first.not_verified.into_iter().chain(second.flatten())
    }
}

impl Backups<'_> {
    /// Takes a backup for each store now, and verifies it.
    pub async fn create(&self, vault: &Vault, kind: BackupKind, verified: bool) -> Result<Created, BackupError> {
        let members = Members::look(self.home, self.ledger).await?;
        let first = Shelf { which: Which::First, store: &vault.first };
        let first = self.take(&members, vault, first, kind, verified).await?;
        let second = match vault.second() {
            Ok(None) => None,
            Ok(Some(store)) => {
                let second = Shelf { which: Which::Second, store };
                Some(self.take(&members, vault, second, kind, verified).await)
            }
            Err(error) => Some(Err(error)),
        };
        let noted = self.note(&vault.first).await?;
        Ok(Created { first, second, noted })
    }

    async fn take(
        &self,
        members: &Members<'_>,
        vault: &Vault,
        shelf: Shelf<'_>,
        kind: BackupKind,
        verified: bool,
    ) -> Result<Taken, BackupError> {
        let manifest = self.back_up(members, vault, shelf, kind).await?;
        if !verified {
            return Ok(Taken { manifest, not_verified: None });
        }
        Ok(match self.verify_label(members, shelf, manifest.label()).await {
            Ok(manifest) => Taken { manifest, not_verified: None },
            Err(error) => Taken { manifest, not_verified: Some(error) },
        })
    }

    async fn back_up(
        &self,
        members: &Members<'_>,
        vault: &Vault,
        Shelf { which, store }: Shelf<'_>,
        kind: BackupKind,
    ) -> Result<Manifest, BackupError> {
        let signing = key_of(self.ledger)?;
        // Without a manifest it would not count.
        store.check(&vault.cluster).await?;
        let mark = self.mark(members).await?;
        let (from_member, taken) = self.have_taken(members, kind, which.repository()).await?;
        let (spec, directory) = (&self.ledger.spec, repository::directory(&self.ledger.spec));
        let list_sha256 = postgres::list_digest(store, &directory, spec.name.as_str(), &taken.label).await?;
        let manifest = Manifest {
            format: FORMAT,
            cluster: spec.name.to_string(),
            cluster_id: self.ledger.cluster_id.clone(),
            taken,
            mark,
            from_member,
            repository: directory,
            list_sha256,
            encrypted: !vault.settings.recipients.is_empty(),
            ledger: None,
            verified: Vec::new(),
            signature: None,
        };
        let ledger = sealed_ledger(self.home, self.ledger, vault, self.teller);
        Ok(postgres::put(store, manifest, ledger.map(|sealed| sealed.to_vec()), &signing).await?)
    }

    /// From a replica, which has less to do. If it cannot, from the primary.
    async fn have_taken(
        &self,
        members: &Members<'_>,
        kind: BackupKind,
        repository: u8,
    ) -> Result<(String, BackupTaken), BackupError> {
        if let Some(replica) = members.replica() {
            match self.take_from_replica(members, replica, kind, repository).await {
                Ok(taken) => return Ok((replica.to_string(), taken)),
                // A backup that is not known to have ended may continue.
                Err(error @ BackupError::Job { .. }) => {
                    let primary = members.primary();
                    self.teller.say(&format!("warning: {error}; taking the backup from {primary}, the primary"));
                }
                Err(error) => return Err(error),
            }
        }
        let job = Job::BackUp { kind, repository, primary: None };
        match members.on_primary(job, TAKE, self.teller).await? {
            JobOutcome::BackedUp(taken) => Ok((members.primary().to_string(), *taken)),
            _ => Err(members.misunderstood()),
        }
    }

    async fn take_from_replica(
        &self,
        members: &Members<'_>,
        replica: &MemberName,
        kind: BackupKind,
        repository: u8,
    ) -> Result<BackupTaken, BackupError> {
        let joined = self.ledger.postgres.formation.members().and_then(|all| all.get(members.primary()));
        let unknown = || BackupError::NoPrimary { cluster: self.ledger.spec.name.to_string() };
        let address = joined.and_then(|joined| joined.address).ok_or_else(unknown)?;
        let (server, pass) = passes(address).map_err(|source| BackupError::Passes { source })?;
        let outcome = members
            .with_files_of_primary(server, async |paths| {
                let primary = Some(PrimaryFiles { address, pass, paths });
                let job = Job::BackUp { kind, repository, primary };
                members.on(replica, job, TAKE, self.teller).await
            })
            .await?;
        match outcome {
            JobOutcome::BackedUp(taken) => Ok(*taken),
            _ => Err(members.misunderstood()),
        }
    }

    async fn mark(&self, members: &Members<'_>) -> Result<Mark, BackupError> {
        match members.on_primary(Job::Mark, "mark its data", self.teller).await? {
            JobOutcome::Marked(mark) => Ok(mark),
            _ => Err(members.misunderstood()),
        }
    }

    /// Restores a backup into a temporary PostgreSQL, and stores the result next to it.
    pub async fn verify(&self, shelf: Shelf<'_>, label: &str) -> Result<Manifest, BackupError> {
        let members = Members::look(self.home, self.ledger).await?;
        let verified = self.verify_label(&members, shelf, label).await?;
        if shelf.which == Which::First {
            self.note(shelf.store).await?;
        }
        Ok(verified)
    }

    async fn verify_label(
        &self,
        members: &Members<'_>,
        Shelf { which, store }: Shelf<'_>,
        label: &str,
    ) -> Result<Manifest, BackupError> {
        let (signing, cluster) = (key_of(self.ledger)?, self.ledger.spec.name.as_str());
        let catalog = self.catalog(store).await?;
        let listed = find(&catalog, label, cluster)?;
        let on_member = members.workshop().to_string();
        // Before it is read: what is lost afterwards was there then.
        let files = postgres::files_digest(store, &catalog, &listed.manifest).await?;
        let outcome = match is_what_was_taken(store, cluster, &listed.manifest).await? {
            Err(why) => Err(why),
            Ok(()) => {
                let job = Job::Verify { target: alone(&listed.manifest.taken, which), mark: listed.manifest.mark };
                match members.in_workshop(job, "verify the backup", self.teller).await? {
                    JobOutcome::Verified(outcome) => outcome,
                    _ => return Err(members.misunderstood()),
                }
            }
        };
        let verification = Verification { at: Timestamp::now(), on_member, outcome, files_sha256: Some(files) };
        Ok(postgres::note(store, listed, verification, &signing).await?)
    }

    pub async fn catalog(&self, store: &Store) -> Result<Catalog, BackupError> {
        let trust = trust_of(Some(self.ledger), &self.ledger.spec, None, false);
        catalog_of(store, self.ledger.spec.name.as_str(), Some(&self.ledger.cluster_id), &trust).await
    }

    /// Removes full backups with all that depend on them. pgBackRest removes log that is not needed any more.
    pub async fn remove(&self, store: &Store, repository: u8, fulls: &[String]) -> Result<(), BackupError> {
        let members = Members::look(self.home, self.ledger).await?;
        let catalog = self.catalog(store).await?;
        for full in fulls {
            // The manifest is deleted first: an interrupted removal leaves no manifest of missing data.
            for listed in catalog.backups.iter().filter(|listed| listed.manifest.full() == full) {
                postgres::remove(store, self.ledger.spec.name.as_str(), listed.manifest.label()).await?;
            }
            let job = Job::Expire { label: full.clone(), repository };
            members.on_primary(job, "remove the backup", self.teller).await?;
        }
        Ok(())
    }

    /// Records the first store's backups in the ledger. Returns whether that was done.
    pub async fn note(&self, first: &Store) -> Result<bool, BackupError> {
        let catalog = self.catalog(first).await?;
        Ok(note::write(self.home, self.ledger, record(&catalog).as_ref()).await?)
    }
}

/// For the primary and the replica, from a CA that is forgotten at once. pgBackRest looks for the host in the common name.
fn passes(primary: IpAddr) -> Result<(ServerPass, Pass), quorate_pki::Error> {
    let now = Timestamp::now();
    let subject = AuthoritySubject { common_name: String::from("one backup"), organization: None };
    let authority = Authority::generate(&subject, KeyAlgorithm::P256, PASS_VALIDITY, now)?;
    let pass = |common_name: &str, server: bool| {
        let key = KeyPair::generate(KeyAlgorithm::P256)?;
        let wish = LeafWish {
            common_name: common_name.to_owned(),
            organization: None,
            dns: Vec::new(),
            addresses: Vec::new(),
            server,
            client: !server,
            validity: PASS_VALIDITY,
        };
        let certificate = authority.sign(&key.csr(common_name)?, &wish, now)?;
        Ok::<_, quorate_pki::Error>(Pass { ca: authority.certificate_pem().to_owned(), certificate, key: key.to_pem() })
    };
    let server = ServerPass { pass: pass(&primary.to_string(), true)?, client: PASS_CLIENT.to_owned() };
    Ok((server, pass(PASS_CLIENT, false)?))
}

/// The backup with no more of the log than makes it consistent.
fn alone(taken: &BackupTaken, which: Which) -> RestoreTarget {
    RestoreTarget {
        label: taken.label.clone(),
        repository: which.repository(),
        until: Until::Backup,
        timeline: None,
        bytes: taken.bytes,
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

/// A cluster's backups that are signed by trusted keys.
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
        revision: manifest.mark.transaction.unwrap_or(0),
        verified_at: manifest.verified_at(),
        history: manifest
            .mark
            .timeline
            .map(|timeline| History { system_id: manifest.taken.system_id.clone(), timeline }),
    };
    let fulls = || catalog.backups.iter().rev().map(|listed| &listed.manifest);
    let newest = fulls().next()?;
    let verified = fulls().find(|manifest| manifest.verified_at().is_some());
    let forged = catalog.strange.iter().take(STRANGE).cloned().collect();
    Some(BackupRecord { newest: note(newest), verified: verified.map(note), forged })
}
