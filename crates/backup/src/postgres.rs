//! Backups of PostgreSQL. pgBackRest stores data and log in its repository. For each backup there is, next to that, a signed manifest, which
//! says that it is the cluster's own, and the ledger:
//!
//! ```text
//! CLUSTER/pgbackrest/…                    pgBackRest's repository, encrypted by it
//! CLUSTER/postgres/LABEL/ledger           the ledger's export, encrypted to the recipients
//! CLUSTER/postgres/LABEL/manifest.json    written last: without it the backup does not count
//! ```

use std::fmt::Write as _;

use jiff::Timestamp;
use quorate_core::kinds::postgres::backup::{BackupChecked, BackupKind, BackupTaken, Mark};
use quorate_core::spec::Keep;
use quorate_pki::SigningKey;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::names::BackupId;
use crate::retention::{self, Candidate};
use crate::signed::{self, Found, Kind, Signature, Standing, Trust};
use crate::store::{SMALL, Store, StoreError, Tag, Trouble, sha256_hex};

pub const FORMAT: u32 = 1;
/// The list of files in a backup, which pgBackRest writes last.
const LONGEST_LIST: u64 = 1 << 30;

/// One backup, with what proves it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    pub cluster: String,
    pub cluster_id: String,
    pub taken: BackupTaken,
    pub mark: Mark,
    pub from_member: String,
    /// Where pgBackRest has it, below the store.
    pub repository: String,
    /// The SHA-256 of pgBackRest's own list of the backup's files, with their checksums.
    pub list_sha256: String,
    pub encrypted: bool,
    /// The SHA-256 of the ledger next to it.
    pub ledger: Option<String>,
    #[serde(default)]
    pub verified: Vec<Verification>,
    #[serde(default)]
    pub signature: Option<Signature>,
}

/// An attempt to prove it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Verification {
    pub at: Timestamp,
    pub on_member: String,
    pub outcome: Result<BackupChecked, String>,
    /// What the store had of it before, see [`files_digest`]; absent in verifications of older programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_sha256: Option<String>,
}

impl Manifest {
    pub fn label(&self) -> &str {
        &self.taken.label
    }

    /// When it was last proven to be good, unless it was found damaged since.
    pub fn verified_at(&self) -> Option<Timestamp> {
        self.verified.last().filter(|last| last.outcome.is_ok()).map(|last| last.at)
    }

    /// The full backup that it rests on; itself, if it is one.
    pub fn full(&self) -> &str {
        self.label().split('_').next().unwrap_or_default()
    }

    pub fn signed(mut self, key: &SigningKey) -> Self {
        self.signature = Some(signed::sign(key, Kind::Postgres, &self));
        self
    }

    fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("plain data serializes")
    }
}

/// All that a store has of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// Oldest first.
    pub backups: Vec<Listed>,
    /// What is there and is not the cluster's, or is damaged.
    pub strange: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct Listed {
    pub manifest: Manifest,
    pub is_signed: bool,
    tag: Tag,
}

/// The objects of one backup.
struct Names {
    manifest: String,
    ledger: String,
}

fn directory(cluster: &str) -> String {
    format!("{cluster}/postgres/")
}

fn names(cluster: &str, label: &str) -> Names {
    let directory = directory(cluster);
    Names { manifest: format!("{directory}{label}/manifest.json"), ledger: format!("{directory}{label}/ledger") }
}

impl Catalog {
    /// `cluster_id` is the one expected; without one, that of the newest counts.
    pub async fn load(store: &Store, cluster: &str, cluster_id: Option<&str>, trust: &Trust) -> Result<Self, Error> {
        let (mut catalog, under) = (Catalog::default(), directory(cluster));
        for object in store.list(&under).await? {
            let label = object.path.strip_prefix(&under).and_then(|rest| rest.strip_suffix("/manifest.json"));
            let Some(label) = label.filter(|label| is_label(label)) else { continue };
            match read(store, &object.path, label, trust).await? {
                Ok(Some(listed)) => catalog.backups.push(listed),
                // Deleted between the listing and now.
                Ok(None) => {}
                Err(why) => catalog.strange.push(format!("{}: {why}", object.path)),
            }
        }
        catalog.backups.sort_by(|one, other| one.manifest.label().cmp(other.manifest.label()));
        let newest = catalog.backups.last().map(|listed| listed.manifest.cluster_id.clone());
        let wanted = cluster_id.map(str::to_owned).or(newest).unwrap_or_default();
        catalog.backups.retain(|listed| listed.manifest.cluster_id == wanted);
        Ok(catalog)
    }

    pub fn find(&self, label: &str) -> Option<&Listed> {
        self.backups.iter().find(|listed| listed.manifest.label() == label)
    }

    /// The newest of those that had ended by then.
    pub fn newest_before(&self, time: Timestamp) -> Option<&Listed> {
        self.backups.iter().rfind(|listed| listed.manifest.taken.ended <= time)
    }

    /// The labels of full backups that are not kept; what rests on them goes with them.
    pub fn to_remove(&self, keep: &Keep) -> Vec<String> {
        let fulls = || self.backups.iter().filter(|listed| listed.manifest.taken.kind == BackupKind::Full);
        let id = |listed: &Listed| BackupId::new(listed.manifest.taken.began, "00000000");
        let candidate = |listed: &Listed| Candidate {
            id: id(listed),
            at: listed.manifest.taken.began,
            verified: listed.manifest.verified_at().is_some(),
        };
        let kept = retention::decide(&fulls().map(candidate).collect::<Vec<_>>(), keep);
        let goes = fulls().filter(|listed| kept.get(&id(listed)).is_none_or(Vec::is_empty));
        goes.map(|listed| listed.manifest.label().to_owned()).collect()
    }
}

/// It becomes part of paths and of command lines.
fn is_label(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

async fn read(store: &Store, path: &str, label: &str, trust: &Trust) -> Result<Result<Option<Listed>, String>, Error> {
    let object = match store.get_up_to(path, SMALL).await {
        Ok(object) => object,
        Err(error) if error.is_not_found() => return Ok(Ok(None)),
        Err(StoreError { trouble: Trouble::TooLarge { found, .. }, .. }) => {
            return Ok(Err(format!("it has {found} bytes, and no manifest has more than {SMALL}")));
        }
        Err(error) => return Err(error.into()),
    };
    let manifest: Manifest = match serde_json::from_slice(&object.bytes) {
        Ok(manifest) => manifest,
        Err(error) => return Ok(Err(format!("it cannot be parsed: {error}"))),
    };
    if manifest.label() != label {
        return Ok(Err(format!("it is the manifest of backup {}", manifest.label())));
    }
    let standing = match signed::check(trust, Kind::Postgres, manifest.taken.began, &object.bytes) {
        Ok(standing) => standing,
        Err(Found::Damaged(why) | Found::Forged(why)) => return Ok(Err(why)),
    };
    if standing != Standing::Signed && !trust.unsigned {
        return Ok(Err(String::from("it is not signed, or its signature cannot be checked")));
    }
    Ok(Ok(Some(Listed { manifest, is_signed: standing == Standing::Signed, tag: object.tag })))
}

/// Puts the ledger and then the manifest next to a backup that was taken. What a machine calls it becomes part of paths: it must not lead
/// elsewhere.
pub async fn put(
    store: &Store,
    manifest: Manifest,
    ledger: Option<Vec<u8>>,
    key: &SigningKey,
) -> Result<Manifest, Error> {
    if !is_label(manifest.label()) {
        return Err(Error::Label(manifest.label().to_owned()));
    }
    let names = names(&manifest.cluster, manifest.label());
    let digest = ledger.as_ref().map(|ledger| sha256_hex(ledger));
    if let Some(ledger) = ledger {
        store.put_new(&names.ledger, ledger.into()).await?;
    }
    let manifest = Manifest { ledger: digest, ..manifest }.signed(key);
    store.put_new(&names.manifest, manifest.to_json().into()).await?;
    Ok(manifest)
}

/// Adds what a verification found.
pub async fn note(
    store: &Store,
    listed: &Listed,
    verification: Verification,
    key: &SigningKey,
) -> Result<Manifest, Error> {
    let mut manifest = listed.manifest.clone();
    manifest.verified.push(verification);
    let manifest = manifest.signed(key);
    let names = names(&manifest.cluster, manifest.label());
    store.replace(&names.manifest, manifest.to_json().into(), &listed.tag).await?;
    Ok(manifest)
}

/// Removes what is next to a backup that pgBackRest has removed.
pub async fn remove(store: &Store, cluster: &str, label: &str) -> Result<(), Error> {
    let names = names(cluster, label);
    store.delete(&names.manifest).await?;
    match store.delete(&names.ledger).await {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}

/// The ledger next to a backup, still encrypted. None where the manifest speaks of none.
pub async fn ledger(store: &Store, manifest: &Manifest) -> Result<Option<Vec<u8>>, Error> {
    let Some(expected) = &manifest.ledger else { return Ok(None) };
    let path = names(&manifest.cluster, manifest.label()).ledger;
    let object = store.get_up_to(&path, SMALL).await?;
    if sha256_hex(&object.bytes) != *expected {
        let why = format!("{path} is not the ledger that the signed manifest of the backup speaks of");
        return Err(Error::NothingToRestore(why));
    }
    Ok(Some(object.bytes.to_vec()))
}

/// The SHA-256 of pgBackRest's list of a backup's files, as the store has it now.
pub async fn list_digest(store: &Store, repository: &str, stanza: &str, label: &str) -> Result<String, Error> {
    if !is_label(label) {
        return Err(Error::Label(label.to_owned()));
    }
    let path = format!("{}/backup/{stanza}/{label}/backup.manifest", repository.trim_matches('/'));
    Ok(sha256_hex(&store.get_up_to(&path, LONGEST_LIST).await?.bytes))
}

/// The SHA-256 of the names and sizes of all files that the store has of a backup and of those that it rests on. It tells whether any of
/// them is gone without reading them; their content is pgBackRest's to check.
pub async fn files_digest(store: &Store, catalog: &Catalog, manifest: &Manifest) -> Result<String, Error> {
    let Manifest { repository, cluster, .. } = manifest;
    let (mut files, mut next) = (String::new(), Some(manifest.label().to_owned()));
    while let Some(label) = next {
        if !is_label(&label) {
            return Err(Error::Label(label));
        }
        for file in store.list(&format!("{}/backup/{cluster}/{label}/", repository.trim_matches('/'))).await? {
            let _ = writeln!(files, "{} {}", file.bytes, file.path);
        }
        // A machine says what it rests on: it must not lead in a circle.
        next = rests_on(catalog, manifest, &label).filter(|prior| *prior < label);
    }
    Ok(sha256_hex(files.as_bytes()))
}

/// Where quorate was killed before it wrote a manifest, a later backup may rest on one without. Its label names the full one.
fn rests_on(catalog: &Catalog, manifest: &Manifest, label: &str) -> Option<String> {
    let known =
        if label == manifest.label() { Some(manifest) } else { catalog.find(label).map(|listed| &listed.manifest) };
    match known {
        Some(known) => known.taken.prior.clone(),
        None => label.split_once('_').map(|(full, _)| full.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Location, Patience};

    fn manifest(label: &str, began: &str) -> Manifest {
        let began: Timestamp = began.parse().unwrap();
        Manifest {
            format: FORMAT,
            cluster: String::from("shop"),
            cluster_id: String::from("c"),
            taken: BackupTaken {
                label: label.to_owned(),
                kind: if label.contains('_') { BackupKind::Incremental } else { BackupKind::Full },
                prior: None,
                began,
                ended: began + jiff::SignedDuration::from_secs(60),
                first_lsn: String::from("0/1"),
                last_lsn: String::from("0/2"),
                first_wal: String::new(),
                last_wal: String::new(),
                bytes: 1,
                stored_bytes: 1,
                system_id: String::from("1"),
                postgres_version: String::from("15"),
            },
            mark: Mark { id: 1, rows: 1, transaction: None, timeline: None },
            from_member: String::from("pg-1"),
            repository: String::from("/shop/pgbackrest"),
            list_sha256: String::new(),
            encrypted: true,
            ledger: None,
            verified: Vec::new(),
            signature: None,
        }
    }

    #[tokio::test]
    async fn only_what_the_cluster_signed_counts_and_a_changed_ledger_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&Location::Directory(directory.path().into()), None, Patience::default()).unwrap();
        let (key, other) = (SigningKey::generate(), SigningKey::generate());
        let own = manifest("20261117-100000F", "2026-11-17T10:00:00Z");
        let own = put(&store, own, Some(b"sealed".to_vec()), &key).await.unwrap();
        put(&store, manifest("20261117-110000F", "2026-11-17T11:00:00Z"), None, &other).await.unwrap();
        let trust = Trust::only(key.signer(), Timestamp::now());
        let catalog = Catalog::load(&store, "shop", Some("c"), &trust).await.unwrap();
        let labels: Vec<&str> = catalog.backups.iter().map(|listed| listed.manifest.label()).collect();
        assert_eq!((labels, catalog.strange.len()), (vec!["20261117-100000F"], 1));
        let outcome = Err(String::from("damaged"));
        let at = Timestamp::now();
        let noted = Verification { at, on_member: String::from("pg-2"), outcome, files_sha256: None };
        note(&store, &catalog.backups[0], noted, &key).await.unwrap();
        let catalog = Catalog::load(&store, "shop", None, &trust).await.unwrap();
        assert_eq!(catalog.backups[0].manifest.verified_at(), None);
        assert_eq!(ledger(&store, &own).await.unwrap().as_deref(), Some(b"sealed".as_slice()));
        std::fs::write(directory.path().join("shop/postgres/20261117-100000F/ledger"), "forged").unwrap();
        assert!(ledger(&store, &own).await.is_err());
        let elsewhere = manifest("../../elsewhere", "2026-11-17T12:00:00Z");
        assert!(matches!(put(&store, elsewhere, None, &key).await, Err(Error::Label(_))));
        assert!(matches!(list_digest(&store, "/r", "shop", "..").await, Err(Error::Label(_))));
    }

    #[tokio::test]
    async fn a_missing_file_is_noticed_also_in_the_backup_that_another_one_depends_on() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&Location::Directory(directory.path().into()), None, Patience::default()).unwrap();
        let mut full = manifest("20261117-100000F", "2026-11-17T10:00:00Z");
        // A member that says so.
        full.taken.prior = Some(String::from("20261117-100000F_20261117-110000I"));
        let mut more = manifest("20261117-100000F_20261117-110000I", "2026-11-17T11:00:00Z");
        more.taken.prior = Some(full.label().to_owned());
        let files = directory.path().join("shop/pgbackrest/backup/shop");
        for label in [full.label(), more.label()] {
            std::fs::create_dir_all(files.join(label).join("bundle")).unwrap();
            std::fs::write(files.join(label).join("bundle/1"), "data").unwrap();
        }
        let listed = |manifest: &Manifest| Listed { manifest: manifest.clone(), is_signed: true, tag: Tag::default() };
        let catalog = Catalog { backups: vec![listed(&full), listed(&more)], strange: Vec::new() };
        let digest = async |of: &Manifest| files_digest(&store, &catalog, of).await.unwrap();
        let digests = async || (digest(&full).await, digest(&more).await);
        let before = digests().await;
        assert_eq!(digests().await, before);
        assert_ne!(before.0, before.1);
        std::fs::write(files.join(more.label()).join("bundle/1"), "more data").unwrap();
        let changed = digests().await;
        assert!(changed.0 == before.0 && changed.1 != before.1);
        std::fs::remove_file(files.join(full.label()).join("bundle/1")).unwrap();
        let gone = digests().await;
        assert!(gone.0 != changed.0 && gone.1 != changed.1);
        // quorate was killed before it noted the full one.
        let catalog = Catalog { backups: vec![listed(&more)], strange: Vec::new() };
        assert_eq!(files_digest(&store, &catalog, &more).await.unwrap(), gone.1);
    }

    #[test]
    fn a_full_backup_is_deleted_when_nothing_keeps_it_and_the_newest_is_kept() {
        let listed = |label: &str, began: &str| Listed {
            manifest: manifest(label, began),
            is_signed: true,
            tag: Tag::default(),
        };
        let catalog = Catalog {
            backups: vec![
                listed("20261115-100000F", "2026-11-15T10:00:00Z"),
                listed("20261115-100000F_20261115-110000I", "2026-11-15T11:00:00Z"),
                listed("20261116-100000F", "2026-11-16T10:00:00Z"),
            ],
            strange: Vec::new(),
        };
        let keep = Keep { last: 1, ..Keep::NONE };
        assert_eq!(catalog.to_remove(&keep), ["20261115-100000F"]);
        let before = catalog.newest_before("2026-11-16T10:00:59Z".parse().unwrap()).unwrap();
        assert_eq!(before.manifest.label(), "20261115-100000F_20261115-110000I");
        assert_eq!(before.manifest.full(), "20261115-100000F");
    }
}
