//! The preparation of a restore: creates one verified snapshot in `$QUORATE_HOME/clusters/NAME/restore/`, and restores the ledger from a
//! backup if there is none here. Touches no running member; after confirmation, the planner does the restore itself.

use std::path::{Path, PathBuf};

use quorate_backup::catalog::{Catalog, Full};
use quorate_backup::choose::{Choice, Wish, choose};
use quorate_backup::full::{key_of, ledger_of};
use quorate_backup::keys::{Identities, KeyError};
use quorate_backup::manifest::Manifest;
use quorate_backup::prepare::{self, Exchange, PlainSnapshot, Prepared, prepare_plain};
use quorate_backup::settings::{Credentials, Location, Patience, S3Location};
use quorate_backup::throwaway::Throwaway;
use quorate_backup::verify::Workshop;
use quorate_backup::{Error, Names, Store};
use quorate_core::Secret;
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::postgres::older_dcs::{Keys, in_place_of};
use quorate_core::model::Ledger;
use quorate_core::model::Version;
use quorate_core::spec::{ClusterSpec, Destination, Signer};

use super::programs;
use crate::backup::{BackupError, Doing, Teller, vault};
use crate::home::Home;
use crate::ledger::{Exported, OpenWith, import};
use quorate_agent::private_directory;

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

/// A verified snapshot, and its source.
#[derive(Clone, Debug)]
pub struct Ready {
    pub prepared: Prepared,
    /// None for a plain snapshot.
    pub choice: Option<Choice>,
    /// The key that signed it, where that was checked.
    pub signed_by: Option<Signer>,
    /// The highest revision in any of the cluster's backups that were examined.
    pub highest_revision: i64,
}

impl Ready {
    /// From backups: chooses, downloads, replays, and verifies the result.
    pub async fn of_backups(
        home: &Home,
        spec: &ClusterSpec,
        (store, catalog): (&Store, &Catalog),
        wish: &Wish,
        identities: Option<&Identities>,
        teller: &dyn Teller,
    ) -> Result<Self, BackupError> {
        programs::raising(home, spec).await?;
        let choice = choose(store, catalog, wish).await?;
        let found = &choice.full.etcd_version;
        fits(spec.etcd.version, found)?;
        let key = key_of(store, &choice.full, identities).await?;
        let programs = programs::programs(home, spec, found).await?;
        let place = Bench::make(home, spec)?;
        teller.doing(Doing::Fetching { what: &choice.describe() });
        let progress = |revision| teller.doing(Doing::Replaying { revision });
        let workshop = Workshop { programs: &programs, scratch: &place.scratch };
        let prepared = prepare::prepare(store, catalog, &choice, key, &workshop, &place.snapshots, &progress).await?;
        teller.doing(Doing::Nothing);
        let signed_by = catalog.find(&choice.full.id).and_then(|full| full.signed_by.clone());
        Ok(Ready { prepared, choice: Some(choice), signed_by, highest_revision: catalog.highest_revision() })
    }

    /// From a plain snapshot that any tool made.
    pub async fn of_snapshot(
        home: &Home,
        spec: &ClusterSpec,
        snapshot: &SnapshotAt,
        teller: &dyn Teller,
    ) -> Result<Self, BackupError> {
        programs::raising(home, spec).await?;
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
        Ok(Ready { prepared, choice: None, signed_by: None, highest_revision: 0 })
    }
}

/// The same snapshot, changed so that no member in an older state of Patroni can become a primary.
pub async fn without_older_leaders(
    home: &Home,
    spec: &ClusterSpec,
    prepared: Prepared,
    etcd: Option<&Ledger>,
) -> Result<Prepared, BackupError> {
    let mut users = Vec::new();
    for (name, used) in etcd.iter().flat_map(|etcd| &etcd.etcd.used_by) {
        users.push((used.prefix.as_str(), home.store(name).read()?));
    }
    if users.is_empty() {
        return Ok(prepared);
    }
    let programs = programs::programs(home, spec, &spec.etcd.version.to_string()).await?;
    let place = Bench::make(home, spec)?;
    let workshop = Workshop { programs: &programs, scratch: &place.scratch };
    let keys: Vec<_> = users.iter().map(|(_, cluster)| |older: &Keys| in_place_of(older, cluster.as_ref())).collect();
    let exchanges: Vec<Exchange<'_>> =
        users.iter().zip(&keys).map(|((prefix, _), keys)| Exchange { prefix, keys }).collect();
    Ok(prepare::exchange(prepared, &exchanges, &workshop, &place.snapshots).await?)
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
            private_directory(directory).map_err(BackupError::file("created", directory))?;
        }
        Ok(place)
    }
}

/// etcd reads the data of its own minor and of the one before.
fn fits(wanted: Version, found: &str) -> Result<(), BackupError> {
    let refuse = |why| BackupError::Version { wanted: wanted.to_string(), found: found.to_owned(), why };
    let Ok(data) = found.parse::<Version>() else { return Ok(()) };
    if (data.major, data.minor) > (wanted.major, wanted.minor) {
        return Err(refuse(
            "etcd cannot read data of a later minor version; set `version` in the spec to that or later",
        ));
    }
    if data.major != wanted.major || data.minor + 1 < wanted.minor {
        return Err(refuse(
            "etcd upgrades one minor at a time; restore with a version in between, and upgrade from there",
        ));
    }
    Ok(())
}

/// Restores the snapshot into a temporary etcd exactly as the members will do it: with the spec's version, and with the revision raised. This
/// comes before anything is stopped, because a snapshot that cannot be raised would leave a cluster that never starts. `keys` is how many it
/// must have, if that is known.
pub async fn verify_raised(
    home: &Home,
    spec: &ClusterSpec,
    snapshot: &Path,
    keys: Option<i64>,
    bump_revision: u64,
) -> Result<(), BackupError> {
    let programs = programs::raising(home, spec).await?;
    let scratch = home.scratch(spec.name.as_str());
    let workshop = Workshop { programs: &programs, scratch: &scratch };
    Ok(prepare::prove_raised(snapshot, keys, bump_revision, &workshop).await?)
}

/// If members log in by password: checks that root is accepted with their password. This is tested in a temporary etcd before anything
/// changes, because afterwards it could not be corrected. `password` is none if a new one would be generated, which root of an old cluster
/// cannot have.
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
    let throwaway = Throwaway::start_raised(&programs, &prepared.path, &home.scratch(spec.name.as_str()), 0).await?;
    let unguessable = Secret::new(quorate_pki::random_hex(16));
    let let_in = throwaway.root_is_let_in(password.unwrap_or(&unguessable)).await;
    throwaway.end().await;
    match let_in? {
        true => Ok(()),
        false => Err(BackupError::RootPassword { source_of: prepared.source.clone() }),
    }
}

/// A bucket in the spec's store, or in that of the environment.
fn bucket_of(spec: &ClusterSpec, bucket: &str) -> Result<Store, BackupError> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let place = match spec.backup.as_ref().map(|backup| &backup.to) {
        Some(Destination::S3(s3)) => {
            S3Location { bucket: bucket.to_owned(), prefix: String::new(), ..vault::s3_place(s3)? }
        }
        _ => S3Location {
            endpoint: variable("AWS_ENDPOINT_URL_S3").or_else(|| variable("AWS_ENDPOINT_URL")),
            region: variable("AWS_REGION")
                .or_else(|| variable("AWS_DEFAULT_REGION"))
                .unwrap_or_else(|| String::from("us-east-1")),
            bucket: bucket.to_owned(),
            prefix: String::new(),
            path_style: true,
            ca: None,
            credentials: Credentials::Environment,
        },
    };
    Ok(Store::open(&Location::S3(place), None, Patience::default())?)
}

/// The ledger at the newest backup that has one next to it. `None` if none has: without recipients it is not stored. It must be the one
/// that was stored with the backup, and belong to the same cluster.
pub async fn ledger_beside(
    store: &Store,
    catalog: &Catalog,
    identity: Option<&Secret>,
) -> Result<Option<Exported>, BackupError> {
    let names = Names::new(&catalog.cluster);
    for full in catalog.fulls.iter().rev().filter(|full| full.manifest.recipient.is_some()) {
        let Some(sealed) = ledger_of(store, &full.manifest).await? else { continue };
        let Some(identity) = identity else {
            return Err(Error::Key {
                what: format!("the ledger {}", names.ledger(full.id())),
                source: KeyError::NoIdentity,
            }
            .into());
        };
        let exported = import(&sealed.bytes, &OpenWith::Identities(identity.clone()))?;
        belongs_to(full, &exported.ledger)?;
        return Ok(Some(exported));
    }
    Ok(None)
}

/// Anyone who can write to the store can put any ledger next to a backup, encrypted to the recipients, whose keys are public.
fn belongs_to(full: &Full, ledger: &Ledger) -> Result<(), BackupError> {
    let Manifest { cluster, cluster_id, .. } = &full.manifest;
    let other = |why: String| Err(BackupError::OtherLedger { id: full.id().to_string(), why });
    if ledger.cluster_id != *cluster_id || ledger.spec.name.as_str() != cluster {
        let (name, id) = (&ledger.spec.name, &ledger.cluster_id);
        return other(format!(
            "it is that of cluster {name} with id {id}, and the backup is of {cluster} with id {cluster_id}"
        ));
    }
    match (&full.signed_by, &ledger.backup_signing) {
        (Some(signer), Some(own)) if own.public != *signer => {
            other(format!("its backups are signed by {}, and this one by {signer}", own.public))
        }
        _ => Ok(()),
    }
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

    /// A backup of cluster `demo` with id `c`.
    fn full(signed_by: Option<Signer>) -> Full {
        let at = "2026-11-14T10:00:00Z";
        let hash = serde_json::json!({"hash": 0, "revision": 5, "compact_revision": 0});
        let manifest = serde_json::json!({
            "format": 1, "id": "20261114T100000Z-0123abcd", "cluster": "demo", "cluster_id": "c", "etcd_version": "3.5.30",
            "taken": {"began": at, "opened": at, "ended": at}, "from_member": "etcd-1", "members": [], "revision": 5,
            "revision_at_most": 5, "hash": hash, "keys": 1, "db_bytes": 1, "snapshot_sha256": "", "stored_bytes": 1,
            "stored_sha256": "", "recipient": null,
        });
        Full {
            manifest: Manifest::parse(manifest.to_string().as_bytes()).unwrap(),
            spans: Vec::new(),
            stored_bytes: 1,
            changes_bytes: 0,
            damage: Vec::new(),
            chain_damage: None,
            strays: Vec::new(),
            segment_bytes: std::collections::BTreeMap::new(),
            claims: 5,
            proven_claims: 5,
            signed_by,
        }
    }

    #[test]
    fn a_ledger_of_another_cluster_or_key_is_not_accepted_next_to_a_backup() {
        let ledger = |name: &str, id: &str| {
            let spec = quorate_core::spec::generated(
                name,
                1,
                quorate_core::kinds::etcd::versions::DEFAULT,
                ClientAuth::Certificate,
            );
            Ledger::new(id.to_owned(), spec.unwrap().clusters.remove(0))
        };
        let key = || crate::backup::signing::record(jiff::Timestamp::UNIX_EPOCH);
        let (ours, other) = (key(), key());
        let signed = full(Some(ours.public.clone()));
        assert!(belongs_to(&full(None), &ledger("demo", "c")).is_ok());
        for (name, id) in [("two", "c"), ("demo", "d")] {
            let told = belongs_to(&signed, &ledger(name, id)).unwrap_err().to_string();
            assert!(told.contains(&format!("cluster {name} with id {id}")), "{told}");
        }
        let with = |signing| Ledger { backup_signing: Some(signing), ..ledger("demo", "c") };
        assert!(belongs_to(&signed, &with(ours)).is_ok());
        assert!(belongs_to(&signed, &with(other)).is_err());
    }
}
