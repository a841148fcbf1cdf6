//! Compares a backup with the members of the running cluster. A backup is read from one member, which may be damaged or compromised, so
//! that member's own report proves nothing: every reachable member is queried separately, and if one has different data, the backup
//! fails.

use std::time::Duration;

use quorate_etcd::{Client, KeyRange, KeyValue, RangeQuery};

use quorate_core::text::plural;

use crate::Error;
use crate::manifest::{Hash, Manifest};
use crate::source::{Source, SourceError, after, count_at, hash_at, newest_revision};
use crate::throwaway::{Throwaway, hash_as};

const PAGE: i64 = 1000;
/// A member that takes longer is one that cannot be asked. Hashing some GiB takes seconds.
const PATIENCE: Duration = Duration::from_secs(300);

/// What one member says of a revision.
enum MemberAnswer {
    Holds {
        keys: i64,
        hash: Hash,
    },
    /// It has not come that far, though it has asked the leader.
    Behind {
        newest: i64,
    },
    /// It has compacted that revision.
    Compacted,
}

/// Compares with every member that can be asked, and returns the names of those that hold the same. Those that have compacted the revision
/// are not among them.
pub(crate) async fn compare(
    throwaway: &Throwaway,
    living: &[&dyn Source],
    manifest: &Manifest,
    revision: i64,
) -> Result<Vec<String>, Error> {
    let mut told = Vec::new();
    for source in living {
        let name = source.about().await?.from_member;
        match tokio::time::timeout(PATIENCE, ask(*source, revision)).await {
            Ok(Ok(MemberAnswer::Compacted) | Err(_)) | Err(_) => {}
            Ok(Ok(answer)) => told.push((name, *source, answer)),
        }
    }
    // The temporary etcd is compacted as far as each of them was, and that goes one way only.
    told.sort_by_key(|(_, _, answer)| match answer {
        MemberAnswer::Holds { hash, .. } => hash.compact_revision,
        MemberAnswer::Behind { .. } | MemberAnswer::Compacted => 0,
    });
    let keys = throwaway.client().range(count_at(revision)).await?.count;
    let (mut agree, mut differ) = (Vec::new(), Vec::new());
    for (name, source, answer) in told {
        match difference(throwaway, source, revision, keys, &answer).await? {
            Some(Found::Same) => agree.push(name),
            Some(Found::Other(what)) => differ.push(format!("{name} {what}")),
            None => {}
        }
    }
    agree.sort();
    differ.sort();
    match differ.is_empty() {
        true => Ok(agree),
        false => Err(Error::Disagree { from: manifest.from_member.clone(), revision, differ, agree }),
    }
}

/// The first question is answered with the leader's consent: a member below that revision afterwards does not lag: it belongs to another cluster.
async fn ask(source: &dyn Source, revision: i64) -> Result<MemberAnswer, SourceError> {
    let newest = newest_revision(source).await?;
    if newest < revision {
        return Ok(MemberAnswer::Behind { newest });
    }
    let told = async {
        let keys = source.range(count_at(revision)).await?.count;
        Ok(MemberAnswer::Holds { keys, hash: Hash::from(hash_at(source, revision).await?) })
    };
    match told.await {
        Err(SourceError::Compacted { .. }) => Ok(MemberAnswer::Compacted),
        told => told,
    }
}

enum Found {
    Same,
    /// In words that follow the member's name.
    Other(String),
}

/// `None` where it can no longer be known.
async fn difference(
    throwaway: &Throwaway,
    source: &dyn Source,
    revision: i64,
    keys: i64,
    answer: &MemberAnswer,
) -> Result<Option<Found>, Error> {
    let other = |what: String| Ok(Some(Found::Other(what)));
    match answer {
        MemberAnswer::Compacted => Ok(None),
        MemberAnswer::Behind { newest } => other(format!("is at revision {newest}")),
        MemberAnswer::Holds { keys: found, .. } if *found != keys => {
            other(format!("holds {} where the backup holds {keys}", plural(*found, "key")))
        }
        MemberAnswer::Holds { hash, .. } if hash.compact_revision > revision => {
            other(format!("says that it is compacted up to {}, and hashes revision {revision}", hash.compact_revision))
        }
        MemberAnswer::Holds { hash, .. } if hash_as(throwaway.client(), *hash).await? == *hash => Ok(Some(Found::Same)),
        // After a replay older revisions are not the same, and keys are all the more.
        MemberAnswer::Holds { .. } => key_by_key(throwaway.client(), source, revision).await,
    }
}

/// Keys, values, leases, versions and revisions. A member that breaks off meanwhile can no longer be asked.
async fn key_by_key(client: &Client, source: &dyn Source, revision: i64) -> Result<Option<Found>, Error> {
    let mut query = RangeQuery { revision, limit: PAGE, ..RangeQuery::new(KeyRange::prefix("")) };
    let mut before = 0;
    loop {
        let Ok(Ok(expected)) = tokio::time::timeout(PATIENCE, source.range(query.clone())).await else {
            return Ok(None);
        };
        let found = client.range(query.clone()).await?;
        if let Some((place, expected, found)) = first_difference(&expected.pairs, &found.pairs) {
            let (place, expected, found) = (before + place + 1, about(expected), about(found));
            let what = format!("has another key {place} in order: {expected}; the backup has {found}");
            return Ok(Some(Found::Other(what)));
        }
        before += expected.pairs.len();
        match expected.pairs.last() {
            Some(last) if expected.more => query.keys.key = after(&last.key),
            _ => return Ok(Some(Found::Same)),
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
