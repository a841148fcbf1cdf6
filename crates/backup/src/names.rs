//! Names of objects in a store. Everything of one cluster is under its name:
//!
//! ```text
//! CLUSTER/full/ID/snapshot          the database, compressed, then encrypted to the backup's own identity
//! CLUSTER/full/ID/key               that identity, encrypted to the recipients
//! CLUSTER/full/ID/ledger            the ledger's export, encrypted to the recipients
//! CLUSTER/full/ID/manifest.json     written last: without it the backup does not exist
//! CLUSTER/changes/ID/FROM-TO        changes on top of full backup ID, compressed and encrypted like it
//! CLUSTER/changes/ID/FROM-TO.json   its manifest, written after it
//! ```

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use quorate_core::kinds::etcd::limits::MAX_REVISION;
use serde::{Deserialize, Serialize};

/// Of a full backup: when it was begun, and something random. Sorted by time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BackupId {
    text: String,
    begun: Timestamp,
}

const STAMP: &str = "%Y%m%dT%H%M%SZ";

impl BackupId {
    pub fn new(now: Timestamp, random: &str) -> Self {
        let begun = Timestamp::from_second(now.as_second()).unwrap_or(now);
        BackupId { text: format!("{}-{random}", begun.to_zoned(TimeZone::UTC).strftime(STAMP)), begun }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// To the second.
    pub fn begun(&self) -> Timestamp {
        self.begun
    }
}

impl FromStr for BackupId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not the id of a backup: they look like 20261114T100000Z-0123abcd");
        let (stamp, random) = text.split_once('-').ok_or_else(bad)?;
        let plain = random.len() == 8 && random.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let civil = jiff::civil::DateTime::strptime(STAMP, stamp).map_err(|_| bad())?;
        let begun = civil.to_zoned(TimeZone::UTC).map_err(|_| bad())?.timestamp();
        match BackupId::new(begun, random) {
            id if plain && id.text == text => Ok(id),
            _ => Err(bad()),
        }
    }
}

impl TryFrom<String> for BackupId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<BackupId> for String {
    fn from(id: BackupId) -> String {
        id.text
    }
}

impl fmt::Display for BackupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl fmt::Debug for BackupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Whether a cluster can come there. etcd panics beyond 63 bits, and what leads near them was made up.
pub(crate) fn is_revision(revision: i64) -> bool {
    u64::try_from(revision).is_ok_and(|revision| revision <= MAX_REVISION)
}

/// The revisions of a segment, both ends included. Sorted by the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Span {
    pub from: i64,
    pub to: i64,
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:020}-{:020}", self.from, self.to)
    }
}

impl Span {
    fn parse(text: &str) -> Option<Span> {
        let (from, to) = text.split_once('-')?;
        let span = Span { from: from.parse().ok()?, to: to.parse().ok()? };
        (span.from <= span.to && is_revision(span.from) && is_revision(span.to) && span.to_string() == text)
            .then_some(span)
    }
}

/// The paths of one cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    cluster: String,
}

/// What a path names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    Manifest(BackupId),
    Snapshot(BackupId),
    /// Anything else that belongs to a full backup.
    Beside(BackupId),
    Segment(BackupId, Span),
    SegmentManifest(BackupId, Span),
}

impl Named {
    pub fn id(&self) -> &BackupId {
        match self {
            Named::Manifest(id)
            | Named::Snapshot(id)
            | Named::Beside(id)
            | Named::Segment(id, _)
            | Named::SegmentManifest(id, _) => id,
        }
    }
}

impl Names {
    pub fn new(cluster: &str) -> Self {
        Names { cluster: cluster.to_owned() }
    }

    pub fn root(&self) -> &str {
        &self.cluster
    }

    pub fn fulls_directory(&self) -> String {
        format!("{}/full", self.cluster)
    }

    pub fn full_directory(&self, id: &BackupId) -> String {
        format!("{}/full/{id}", self.cluster)
    }

    pub fn snapshot(&self, id: &BackupId) -> String {
        format!("{}/snapshot", self.full_directory(id))
    }

    pub fn key(&self, id: &BackupId) -> String {
        format!("{}/key", self.full_directory(id))
    }

    pub fn ledger(&self, id: &BackupId) -> String {
        format!("{}/ledger", self.full_directory(id))
    }

    pub fn manifest(&self, id: &BackupId) -> String {
        format!("{}/manifest.json", self.full_directory(id))
    }

    pub fn changes_directory(&self, id: &BackupId) -> String {
        format!("{}/changes/{id}", self.cluster)
    }

    pub fn segment(&self, id: &BackupId, span: Span) -> String {
        format!("{}/{span}", self.changes_directory(id))
    }

    pub fn segment_manifest(&self, id: &BackupId, span: Span) -> String {
        format!("{}.json", self.segment(id, span))
    }

    /// The backup on top of which a name claims changes up to revisions that no cluster can have.
    pub(crate) fn absurd(&self, path: &str) -> Option<BackupId> {
        let rest = path.strip_prefix(&self.changes_directory_prefix())?;
        let (id, name) = rest.split_once('/')?;
        let digits = name.strip_suffix(".json").unwrap_or(name);
        let is_span = digits.len() == 41 && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        if is_span && self.parse(path).is_none() { id.parse().ok() } else { None }
    }

    fn changes_directory_prefix(&self) -> String {
        format!("{}/changes/", self.cluster)
    }

    /// `None` for what is not ours.
    pub(crate) fn parse(&self, path: &str) -> Option<Named> {
        let rest = path.strip_prefix(&self.cluster)?.strip_prefix('/')?;
        let (kind, rest) = rest.split_once('/')?;
        let (id, name) = rest.split_once('/')?;
        let id: BackupId = id.parse().ok()?;
        Some(match (kind, name) {
            ("full", "manifest.json") => Named::Manifest(id),
            ("full", "snapshot") => Named::Snapshot(id),
            ("full", _) => Named::Beside(id),
            ("changes", name) => match name.strip_suffix(".json") {
                Some(name) => Named::SegmentManifest(id, Span::parse(name)?),
                None => Named::Segment(id, Span::parse(name)?),
            },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_tell_when_and_come_back_from_text() {
        let at: Timestamp = "2026-11-14T10:00:00.75Z".parse().unwrap();
        let id = BackupId::new(at, "0123abcd");
        assert_eq!(id.as_str(), "20261114T100000Z-0123abcd");
        assert_eq!(id.as_str().parse::<BackupId>().unwrap(), id);
        assert_eq!(id.begun(), "2026-11-14T10:00:00Z".parse().unwrap());
        for bad in
            ["", "20261114T100000Z", "20261114T100000Z-0123ABCD", "20261314T100000Z-0123abcd", "../../x-0123abcd"]
        {
            assert!(bad.parse::<BackupId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn paths_are_read_as_they_are_written() {
        let names = Names::new("orders");
        let id = BackupId::new(Timestamp::UNIX_EPOCH, "0123abcd");
        let span = Span { from: 2, to: 10 };
        assert_eq!(names.parse(&names.manifest(&id)), Some(Named::Manifest(id.clone())));
        assert_eq!(names.parse(&names.snapshot(&id)), Some(Named::Snapshot(id.clone())));
        assert_eq!(names.parse(&names.key(&id)), Some(Named::Beside(id.clone())));
        assert_eq!(names.parse(&names.segment(&id, span)), Some(Named::Segment(id.clone(), span)));
        assert_eq!(names.parse(&names.segment_manifest(&id, span)), Some(Named::SegmentManifest(id.clone(), span)));
        assert_eq!(names.parse(&format!("orders-2/full/{id}/snapshot")), None);
        assert_eq!(names.parse(&format!("orders/changes/{id}/2-10")), None);
        let beyond = Span { from: 5, to: i64::MAX };
        assert_eq!(names.parse(&names.segment_manifest(&id, beyond)), None);
        assert_eq!(names.absurd(&names.segment_manifest(&id, beyond)), Some(id.clone()));
        assert_eq!(names.absurd(&names.segment(&id, span)), None);
    }
}
