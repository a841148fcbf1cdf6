//! What comes before a restore: what is wanted becomes one proven snapshot in `$QUORATE_HOME/clusters/NAME/restore/`, and the ledger comes
//! back from beside a backup where there is none here. Nothing that runs is touched: the restore itself is the planner's, on the
//! operator's word.

use std::path::{Path, PathBuf};

use quorate_backup::catalog::Catalog;
use quorate_backup::choose::{Choice, Wish, choose};
use quorate_backup::full::key_of;
use quorate_backup::keys::{Identities, KeyError};
use quorate_backup::prepare::{PlainSnapshot, Prepared, prepare, prepare_plain};
use quorate_backup::settings::{Credentials, Patience, Place, S3Place};
use quorate_backup::throwaway::{Programs, Throwaway};
use quorate_backup::verify::Workshop;
use quorate_backup::{Error, Names, Store};
use quorate_core::Secret;
use quorate_core::spec::{ClientAuth, ClusterSpec, Destination};
use quorate_core::versions::Version;

use super::create::{Doing, Teller};
use super::{BackupError, programs, vault};
use crate::home::{Home, private_directory};
use crate::ledger::{Exported, OpenWith, import};

/// What is to be restored.
#[derive(Clone, PartialEq, Debug)]
pub enum Wanted {
    Backup(Wish),
    Snapshot(SnapshotAt),
}

/// Where a plain snapshot is.
#[derive(Clone, PartialEq, Debug)]
pub enum SnapshotAt {
    File(PathBuf),
    Object { bucket: String, key: String },
}

/// A snapshot that was proven, and what it was made of.
#[derive(Clone, Debug)]
pub struct Ready {
    pub prepared: Prepared,
    /// None for a plain snapshot.
    pub choice: Option<Choice>,
    /// The highest revision that any backup of the cluster speaks of, as far as they were looked at.
    pub highest_revision: i64,
}

impl Ready {
    /// From backups: chooses, fetches, replays, and proves what came of it.
    pub async fn of_backups(
        home: &Home,
        spec: &ClusterSpec,
        (store, catalog): (&Store, &Catalog),
        wish: &Wish,
        identities: Option<&Identities>,
        teller: &dyn Teller,
    ) -> Result<Self, BackupError> {
        programs::check_restorer(home, spec).await?;
        let choice = choose(store, catalog, wish).await?;
        let found = &choice.full.etcd_version;
        fits(spec.etcd.version, found)?;
        let key = key_of(store, &choice.full, identities).await?;
        let programs = programs::programs(home, spec, found).await?;
        let place = Bench::make(home, spec)?;
        teller.doing(Doing::Fetching { what: &choice.describe() });
        let progress = |revision| teller.doing(Doing::Replaying { revision });
        let workshop = Workshop { programs: &programs, scratch: &place.scratch };
        let prepared = prepare(store, catalog, &choice, key, &workshop, &place.snapshots, &progress).await?;
        opens_in_the_specs_version(home, spec, &programs, &prepared, &place.scratch).await?;
        teller.doing(Doing::Nothing);
        Ok(Ready { prepared, choice: Some(choice), highest_revision: catalog.highest_revision() })
    }

    /// From a plain snapshot that any tool made.
    pub async fn of_snapshot(
        home: &Home,
        spec: &ClusterSpec,
        snapshot: &SnapshotAt,
        teller: &dyn Teller,
    ) -> Result<Self, BackupError> {
        programs::check_restorer(home, spec).await?;
        let programs = programs::programs(home, spec, &spec.etcd.version.to_string()).await?;
        let place = Bench::make(home, spec)?;
        let workshop = Workshop { programs: &programs, scratch: &place.scratch };
        let prepared = match snapshot {
            SnapshotAt::File(path) => {
                teller.doing(Doing::Fetching { what: &path.display().to_string() });
                prepare_plain(PlainSnapshot::File(path), &workshop, &place.snapshots).await?
            }
            SnapshotAt::Object { bucket, key } => {
                let store = bucket_of(spec, bucket)?;
                teller.doing(Doing::Fetching { what: &format!("s3://{bucket}/{key}") });
                prepare_plain(PlainSnapshot::Object { store: &store, path: key }, &workshop, &place.snapshots).await?
            }
        };
        teller.doing(Doing::Nothing);
        Ok(Ready { prepared, choice: None, highest_revision: 0 })
    }
}

/// Where a restore is prepared.
struct Bench {
    scratch: PathBuf,
    snapshots: PathBuf,
}

impl Bench {
    fn make(home: &Home, spec: &ClusterSpec) -> Result<Self, BackupError> {
        let name = spec.name.as_str();
        let place = Bench { scratch: home.scratch(name), snapshots: home.snapshots(name) };
        for directory in [&place.scratch, &place.snapshots] {
            private_directory(directory).map_err(BackupError::file("made", directory))?;
        }
        Ok(place)
    }
}

/// etcd reads the data of its own minor and of the one before.
fn fits(wanted: Version, found: &str) -> Result<(), BackupError> {
    let refuse = |why| BackupError::Version { wanted: wanted.to_string(), found: found.to_owned(), why };
    let Ok(data) = found.parse::<Version>() else { return Ok(()) };
    if (data.major, data.minor) > (wanted.major, wanted.minor) {
        return Err(refuse("etcd does not read data of a later minor; say at least that version in the spec"));
    }
    if data.major != wanted.major || data.minor + 1 < wanted.minor {
        return Err(refuse("etcd goes up one minor at a time; restore with one in between, and upgrade from there"));
    }
    Ok(())
}

async fn opens_in_the_specs_version(
    home: &Home,
    spec: &ClusterSpec,
    tried: &Programs,
    prepared: &Prepared,
    scratch: &Path,
) -> Result<(), BackupError> {
    let wanted = spec.etcd.version;
    if tried.version.parse::<Version>().is_ok_and(|tried| tried.line() == wanted.line()) {
        return Ok(());
    }
    let programs = programs::programs(home, spec, &wanted.to_string()).await?;
    Throwaway::start(&programs, &prepared.path, scratch).await?.end().await;
    Ok(())
}

/// Where members log in by password: whether root is let in with the one that they have. Found out in a throwaway etcd, before anything
/// is given up: afterwards nobody could do anything about it. `password` is none where a new one would be made, which root of an old
/// cluster cannot have.
pub async fn root_is_let_in(
    home: &Home,
    spec: &ClusterSpec,
    prepared: &Prepared,
    password: Option<&Secret>,
) -> Result<(), BackupError> {
    if spec.etcd.client_auth != ClientAuth::Password || !spec.auth.bootstrap {
        return Ok(());
    }
    let programs = programs::programs(home, spec, &spec.etcd.version.to_string()).await?;
    let throwaway = Throwaway::start(&programs, &prepared.path, &home.scratch(spec.name.as_str())).await?;
    let unguessable = Secret::new(quorate_pki::random_hex(16));
    let let_in = throwaway.root_is_let_in(password.unwrap_or(&unguessable)).await;
    throwaway.end().await;
    match let_in? {
        true => Ok(()),
        false => Err(BackupError::RootPassword { source_of: prepared.source.clone() }),
    }
}

/// A bucket in the store that the spec names; where it names none, in that of the environment.
fn bucket_of(spec: &ClusterSpec, bucket: &str) -> Result<Store, BackupError> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let place = match spec.backup.as_ref().map(|backup| &backup.to) {
        Some(Destination::S3(s3)) => {
            S3Place { bucket: bucket.to_owned(), prefix: String::new(), ..vault::s3_place(s3)? }
        }
        _ => S3Place {
            endpoint: variable("AWS_ENDPOINT_URL_S3").or_else(|| variable("AWS_ENDPOINT_URL")),
            region: variable("AWS_REGION")
                .or_else(|| variable("AWS_DEFAULT_REGION"))
                .unwrap_or_else(|| String::from("us-east-1")),
            bucket: bucket.to_owned(),
            prefix: String::new(),
            path_style: true,
            credentials: Credentials::Environment,
        },
    };
    Ok(Store::open(&Place::S3(place), None, Patience::default())?)
}

/// The ledger as it was at the newest backup that has one beside it. `None` where none has: without recipients it is not stored.
pub async fn ledger_beside(
    store: &Store,
    catalog: &Catalog,
    identity: Option<&Secret>,
) -> Result<Option<Exported>, BackupError> {
    let names = Names::new(&catalog.cluster);
    for full in catalog.fulls.iter().rev().filter(|full| full.manifest.recipient.is_some()) {
        let path = names.ledger(full.id());
        let sealed = match store.get(&path).await {
            Err(error) if error.is_not_found() => continue,
            sealed => sealed?,
        };
        let Some(identity) = identity else {
            return Err(Error::Key { what: format!("the ledger {path}"), source: KeyError::NoIdentity }.into());
        };
        return Ok(Some(import(&sealed.bytes, &OpenWith::Identities(identity.clone()))?));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_a_later_minor_or_far_below_is_refused() {
        let version = |text: &str| text.parse::<Version>().unwrap();
        for found in ["3.5.30", "3.6.1", "3.6.16", "unknown"] {
            assert!(fits(version("3.6.14"), found).is_ok(), "{found}");
        }
        for found in ["3.7.0", "3.4.23"] {
            assert!(fits(version("3.6.14"), found).is_err(), "{found}");
        }
    }
}
