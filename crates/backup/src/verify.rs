//! The proof of a backup: it is fetched, opened, restored into a throwaway etcd of the same version and compared with what was measured at
//! the living cluster when it was taken; then the changes on top of it are replayed, and the result is compared with the living cluster
//! as it was at that revision, where that is still known there.

use std::path::Path;

use jiff::Timestamp;
use quorate_etcd::{Client, KeyRange, KeyValue, RangeQuery};
use quorate_pki::SigningKey;

use crate::Error;
use crate::catalog::{self, Full};
use crate::choose::Stop;
use crate::full;
use crate::keys::BackupKey;
use crate::manifest::{Hash, Manifest, Outcome, Proven, Verification};
use crate::replay::{after, replay};
use crate::source::{Source, SourceError, count_at};
use crate::store::Store;
use crate::throwaway::{Place, Programs, Throwaway, create_private};

const PAGE: i64 = 1000;

/// What a verification works with.
pub struct Workshop<'a> {
    pub programs: &'a Programs,
    /// Must have room for the database a few times over. Nothing stays there.
    pub scratch: &'a Path,
}

/// Verifies a backup and notes the outcome in its manifest, signed like the rest of it. What is wrong with the backup is an outcome; an error is trouble with the
/// store, the key or this machine, and nothing is noted.
pub async fn verify(
    store: &Store,
    full: &Full,
    key: Option<BackupKey>,
    workshop: &Workshop<'_>,
    living: Option<&dyn Source>,
    signing: Option<&SigningKey>,
) -> Result<Verification, Error> {
    let outcome = match prove(store, full, key, workshop, living).await {
        Ok(proven) => Outcome::Ok(proven),
        Err(Error::Damaged(damage)) => Outcome::Failed { why: damage.to_string(), damage: Some(*damage) },
        Err(error @ (Error::Replay { .. } | Error::Differs { .. })) => {
            Outcome::Failed { why: error.to_string(), damage: None }
        }
        Err(error) => return Err(error),
    };
    let verification = Verification { at: Timestamp::now(), etcd_version: workshop.programs.version.clone(), outcome };
    let note = |manifest: &mut Manifest| manifest.verified.push(verification.clone());
    // Who cannot sign proves it for himself alone.
    if full.manifest.signature.is_none() || signing.is_some() {
        full::update_manifest(store, &full.manifest.cluster, full.id(), signing, note).await?;
    }
    Ok(verification)
}

async fn prove(
    store: &Store,
    full: &Full,
    key: Option<BackupKey>,
    workshop: &Workshop<'_>,
    living: Option<&dyn Source>,
) -> Result<Proven, Error> {
    if let Some(damage) = full.damage.first() {
        return Err(damage.clone().into());
    }
    let chain = catalog::chain(store, full).await?;
    let throwaway = restored(store, &full.manifest, key.clone(), workshop).await?;
    let (revision, hash, keys) = compare_with_manifest(&throwaway, &full.manifest).await?;
    let up_to = replay(&throwaway, store, &chain.segments, key.as_ref(), Stop::AtTheEnd, &|_| {}).await?;
    let compared_with_living = match living {
        Some(living) => compare_with_living(&throwaway, living, up_to).await?,
        None => false,
    };
    throwaway.end().await;
    // The good part was worth proving, yet the whole is not good.
    match chain.damage {
        Some(damage) => Err(damage.into()),
        None => Ok(Proven { revision, keys, hash, up_to, compared_with_living }),
    }
}

/// A throwaway etcd that holds the full backup alone.
pub(crate) async fn restored(
    store: &Store,
    manifest: &Manifest,
    key: Option<BackupKey>,
    workshop: &Workshop<'_>,
) -> Result<Throwaway, Error> {
    let place = Place::make(workshop.scratch)?;
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
    if hash != manifest.hash {
        return Err(differs("the hash", format!("{:?}", manifest.hash), format!("{hash:?}")));
    }
    Ok((revision, hash, keys))
}

/// The hash at the same revision, and compacted as far as the other was: only then do they compare.
pub(crate) async fn hash_as(client: &Client, other: Hash) -> Result<Hash, Error> {
    let hash = Hash::from(client.hash_kv(other.revision).await?);
    if hash.compact_revision >= other.compact_revision {
        return Ok(hash);
    }
    client.compact(other.compact_revision, true).await?;
    Ok(Hash::from(client.hash_kv(other.revision).await?))
}

/// `false` where the living cluster has compacted that revision.
async fn compare_with_living(throwaway: &Throwaway, living: &dyn Source, revision: i64) -> Result<bool, Error> {
    let expected = match living.hash_kv(revision).await {
        Err(SourceError::Compacted { .. }) => return Ok(false),
        expected => Hash::from(expected?),
    };
    if hash_as(throwaway.client(), expected).await? == expected {
        return Ok(true);
    }
    compare_key_by_key(throwaway.client(), living, revision).await
}

/// Keys, values, leases, versions and revisions.
async fn compare_key_by_key(client: &Client, living: &dyn Source, revision: i64) -> Result<bool, Error> {
    let mut query = RangeQuery { revision, limit: PAGE, ..RangeQuery::new(KeyRange::prefix("")) };
    let mut before = 0;
    loop {
        let expected = match living.range(query.clone()).await {
            Err(SourceError::Compacted { .. }) => return Ok(false),
            expected => expected?,
        };
        let found = client.range(query.clone()).await?;
        if let Some((place, expected, found)) = first_difference(&expected.pairs, &found.pairs) {
            let what = format!("key {} in order, of the contents at revision {revision},", before + place + 1);
            return Err(Error::Differs { what, expected: about(expected), found: about(found) });
        }
        before += expected.pairs.len();
        match expected.pairs.last() {
            Some(last) if expected.more => query.keys.key = after(&last.key),
            _ => return Ok(true),
        }
    }
}

type Pairs<'a> = (usize, Option<&'a KeyValue>, Option<&'a KeyValue>);

fn first_difference<'a>(expected: &'a [KeyValue], found: &'a [KeyValue]) -> Option<Pairs<'a>> {
    let longer = expected.len().max(found.len());
    (0..longer).map(|n| (n, expected.get(n), found.get(n))).find(|(_, expected, found)| expected != found)
}

/// Of a key, without its name and its value, which are nobody's business: this goes into a manifest, which is not encrypted.
fn about(pair: Option<&KeyValue>) -> String {
    match pair {
        None => String::from("no further key"),
        Some(KeyValue { key, value, create_revision, mod_revision, version, lease }) => format!(
            "a name of {} bytes and a value of {}, created at {create_revision}, changed at {mod_revision}, version {version}, lease {lease:x}",
            key.len(),
            value.len(),
        ),
    }
}
