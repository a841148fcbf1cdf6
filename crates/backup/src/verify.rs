//! Verifies a backup: it is fetched, opened, restored into a temporary etcd of the same version and compared with what was measured in the
//! running cluster when it was taken; then the changes on top of it are replayed. Before and after that it is compared with every member
//! of the running cluster at that revision, if the member still has it ([`living`](crate::living)). The ledger next to it must be complete
//! too.

use std::path::Path;

use jiff::Timestamp;
use quorate_pki::SigningKey;

use crate::Error;
use crate::catalog::{self, Full};
use crate::choose::Stop;
use crate::damage::Damage;
use crate::full;
use crate::keys::BackupKey;
use crate::living;
use crate::manifest::{Hash, Manifest, Outcome, Proven, Verification};
use crate::names::Names;
use crate::replay::replay;
use crate::source::{Source, count_at};
use crate::store::Store;
use crate::throwaway::{PrivateDirectory, Programs, Throwaway, create_private, hash_as};

/// The inputs of a verification.
pub struct Workshop<'a> {
    pub programs: &'a Programs,
    /// Must have room for the database a few times over. Nothing stays there.
    pub scratch: &'a Path,
}

/// Verifies a backup and notes the outcome in its manifest, signed like the rest of it. What is wrong with the backup is an outcome; an error is trouble with the
/// store, the key or this machine, and nothing is noted. `living` are the members of the cluster that can be asked, each by itself.
pub async fn verify(
    store: &Store,
    full: &Full,
    key: Option<BackupKey>,
    workshop: &Workshop<'_>,
    living: &[&dyn Source],
    signing: Option<&SigningKey>,
) -> Result<Verification, Error> {
    let outcome = match prove(store, full, key, workshop, living).await {
        Ok(proven) => Outcome::Ok(proven),
        Err(Error::Damaged(damage)) => Outcome::Failed { why: damage.to_string(), damage: Some(*damage) },
        Err(error @ (Error::Replay { .. } | Error::Differs { .. } | Error::Disagree { .. })) => {
            Outcome::Failed { why: error.to_string(), damage: None }
        }
        Err(error) => return Err(error),
    };
    let verification = Verification { at: Timestamp::now(), etcd_version: workshop.programs.version.clone(), outcome };
    let note = |manifest: &mut Manifest| manifest.verified.push(verification.clone());
    // Who cannot sign proves it for himself alone.
    if full.manifest.signature.is_none() || signing.is_some() {
        full::update_manifest(store, &full.manifest, signing, note).await?;
    }
    Ok(verification)
}

async fn prove(
    store: &Store,
    full: &Full,
    key: Option<BackupKey>,
    workshop: &Workshop<'_>,
    living: &[&dyn Source],
) -> Result<Proven, Error> {
    if let Some(damage) = full.damage.first() {
        return Err(damage.clone().into());
    }
    let manifest = &full.manifest;
    if manifest.beside.ledger.is_some() && full::ledger_of(store, manifest).await?.is_none() {
        let path = Names::new(&manifest.cluster).ledger(&manifest.id);
        return Err(Damage::Missing { id: manifest.id.clone(), path }.into());
    }
    let chain = catalog::chain(store, full).await?;
    let throwaway = restored(store, manifest, key.clone(), workshop).await?;
    let (revision, hash, keys) = compare_with_manifest(&throwaway, manifest).await?;
    let at_first = living::compare(&throwaway, living, manifest, manifest.revision).await?;
    let up_to = replay(&throwaway, store, &chain.segments, key.as_ref(), Stop::AtTheEnd, &|_| {}).await?;
    let compared_with = match up_to == manifest.revision {
        true => at_first,
        false => living::compare(&throwaway, living, manifest, up_to).await?,
    };
    throwaway.end().await;
    // The good part was worth proving, yet the whole is not good.
    match chain.damage {
        Some(damage) => Err(damage.into()),
        None => {
            let compared_with_living = !compared_with.is_empty();
            Ok(Proven { revision, keys, hash, up_to, compared_with_living, compared_with })
        }
    }
}

/// A temporary etcd that holds the full backup alone.
pub(crate) async fn restored(
    store: &Store,
    manifest: &Manifest,
    key: Option<BackupKey>,
    workshop: &Workshop<'_>,
) -> Result<Throwaway, Error> {
    let place = PrivateDirectory::make(workshop.scratch)?;
    let path = place.path().join("snapshot.db");
    let file = create_private(&path).map_err(Error::file("make", &path))?;
    full::fetch(store, manifest, key, file, &path).await?;
    Throwaway::start(workshop.programs, &path, workshop.scratch).await
}

/// Returns the snapshot's own revision, and what was found at the manifest's.
pub(crate) async fn compare_with_manifest(
    throwaway: &Throwaway,
    manifest: &Manifest,
) -> Result<(i64, Hash, i64), Error> {
    let (client, id) = (throwaway.client(), &manifest.id);
    let differs = |what: &str, expected: String, found: String| Error::Differs {
        what: format!("{what} of {id}"),
        expected,
        found,
    };
    let revision = throwaway.snapshot_revision();
    let Manifest { revision: at_least, revision_at_most: at_most, .. } = *manifest;
    if revision < at_least || revision > at_most {
        return Err(differs("the revision", format!("{at_least} to {at_most}"), revision.to_string()));
    }
    let keys = client.range(count_at(at_least)).await?.count;
    if keys != manifest.keys {
        return Err(differs("the number of keys", manifest.keys.to_string(), keys.to_string()));
    }
    let hash = hash_as(client, manifest.hash).await?;
    if hash.contradicts(&manifest.hash) {
        return Err(differs("the hash", format!("{:?}", manifest.hash), format!("{hash:?}")));
    }
    Ok((revision, hash, keys))
}
