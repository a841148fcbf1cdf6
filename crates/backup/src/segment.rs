//! A segment: the changes of a range of revisions, with the time each was received. Compressed and encrypted like the full backup
//! below it. Its small manifest, written after it, has its SHA-256 and that of the previous segment, so a missing, exchanged or
//! foreign segment is detected. A line of JSON comes first; then each revision follows as a protobuf message with a length prefix.

use std::collections::BTreeSet;

use bytes::{Buf, Bytes};
use jiff::Timestamp;
use prost::Message;
use quorate_core::spec::Signer;
use quorate_etcd::Event;
use quorate_pki::SigningKey;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::damage::{Damage, exchanged};
use crate::keys::BackupKey;
use crate::names::{BackupId, Names, Span};
use crate::pipe;
use crate::signed::{self, Kind, Signature, Standing, Trust};
use crate::small;
use crate::store::{Store, StoreError, Trouble, sha256_hex};

pub const FORMAT: u32 = 1;
/// Far more than a recorder puts into one, which closes it at a few MiB; anyone who claims more fills our memory.
const LARGEST: u64 = 256 << 20;

/// All that happened in one revision.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct Revision {
    #[prost(int64, tag = "1")]
    pub revision: i64,
    /// By the recorder's clock, in milliseconds since 1970.
    #[prost(int64, tag = "2")]
    pub received_ms: i64,
    #[prost(message, repeated, tag = "3")]
    pub changes: Vec<Change>,
    /// Those that its changes name for the first time in this chain.
    #[prost(message, repeated, tag = "4")]
    pub leases: Vec<Lease>,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct Change {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    /// Zero without one.
    #[prost(int64, tag = "3")]
    pub lease: i64,
    #[prost(bool, tag = "4")]
    pub deleted: bool,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Lease {
    #[prost(int64, tag = "1")]
    pub id: i64,
    /// As granted, in seconds; zero where it was gone before it could be asked for.
    #[prost(int64, tag = "2")]
    pub ttl: i64,
}

impl Revision {
    pub fn received(&self) -> Timestamp {
        Timestamp::from_millisecond(self.received_ms).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    pub(crate) fn lease_ids(&self) -> BTreeSet<i64> {
        self.changes.iter().map(|change| change.lease).filter(|id| *id != 0).collect()
    }
}

impl From<Event> for Change {
    fn from(event: Event) -> Self {
        match event {
            Event::Put(pair) => Change { key: pair.key, value: pair.value, lease: pair.lease, deleted: false },
            Event::Delete { key, .. } => Change { key, value: Vec::new(), lease: 0, deleted: true },
        }
    }
}

/// The manifest of a segment, in plain JSON.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SegmentManifest {
    pub format: u32,
    pub cluster: String,
    pub cluster_id: String,
    /// The full backup on top of which it is.
    pub full: BackupId,
    #[serde(flatten)]
    pub span: Span,
    /// Of keys, all revisions together.
    pub changes: u64,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
    pub stored_bytes: u64,
    pub stored_sha256: String,
    /// The SHA-256 of the segment before, or the full backup's id for the first.
    pub previous: String,
    /// Of what it holds, uncompressed; absent where an older quorate stored it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plain_bytes: Option<u64>,
    /// Of all above; absent where an older quorate stored it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
}

impl SegmentManifest {
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).expect("plain data serializes");
        json.push(b'\n');
        json
    }
}

/// Changes that are not stored yet.
#[derive(Clone, PartialEq)]
pub struct Segment {
    pub cluster: String,
    pub cluster_id: String,
    pub full: BackupId,
    /// The public half of the full backup's key.
    pub recipient: Option<String>,
    pub previous: String,
    /// Never empty, and without a hole.
    pub revisions: Vec<Revision>,
}

#[derive(PartialEq, Serialize, Deserialize)]
struct Header {
    format: u32,
    cluster_id: String,
    full: BackupId,
    #[serde(flatten)]
    span: Span,
}

impl Segment {
    pub fn span(&self) -> Span {
        let end = |revision: Option<&Revision>| revision.map_or(0, |revision| revision.revision);
        Span { from: end(self.revisions.first()), to: end(self.revisions.last()) }
    }

    fn encode(&self) -> Vec<u8> {
        let header =
            Header { format: FORMAT, cluster_id: self.cluster_id.clone(), full: self.full.clone(), span: self.span() };
        let mut plain = serde_json::to_vec(&header).expect("plain data serializes");
        plain.push(b'\n');
        for revision in &self.revisions {
            revision.encode_length_delimited(&mut plain).expect("a vector grows");
        }
        plain
    }
}

/// Stores a segment, and then its manifest.
pub async fn write(
    store: &Store,
    segment: &Segment,
    level: i32,
    signing: &SigningKey,
) -> Result<SegmentManifest, Error> {
    let (names, span) = (Names::new(&segment.cluster), segment.span());
    let (plain, recipient) = (Bytes::from(segment.encode()), segment.recipient.clone());
    let plain_bytes = plain.len() as u64;
    let sealed = tokio::task::spawn_blocking(move || pipe::seal_small(plain, level, recipient.as_deref())).await?;
    let path = names.segment(&segment.full, span);
    let sealed = Bytes::from(sealed.map_err(Error::key(format!("the segment {path}")))?);
    let times = segment.revisions.iter().map(Revision::received);
    let manifest = SegmentManifest {
        format: FORMAT,
        cluster: segment.cluster.clone(),
        cluster_id: segment.cluster_id.clone(),
        full: segment.full.clone(),
        span,
        changes: segment.revisions.iter().map(|revision| revision.changes.len() as u64).sum(),
        first_at: times.clone().min().unwrap_or_default(),
        last_at: times.max().unwrap_or_default(),
        stored_bytes: sealed.len() as u64,
        stored_sha256: sha256_hex(&sealed),
        previous: segment.previous.clone(),
        plain_bytes: Some(plain_bytes),
        signature: None,
    };
    let signature = Some(signed::sign(signing, Kind::Segment, &manifest));
    let manifest = SegmentManifest { signature, ..manifest };
    put_segment(store, &names, &manifest, sealed).await?;
    store.put_new(&names.segment_manifest(&segment.full, span), manifest.to_json().into()).await?;
    Ok(manifest)
}

/// A recorder that was killed may have left the same span without a manifest: that does not exist, and makes way.
async fn put_segment(store: &Store, names: &Names, manifest: &SegmentManifest, sealed: Bytes) -> Result<(), Error> {
    let path = names.segment(&manifest.full, manifest.span);
    match store.put_new(&path, sealed.clone()).await {
        Err(error) if error.trouble == crate::store::Trouble::AlreadyExists => {}
        put => return Ok(put.map(drop)?),
    }
    let about = names.segment_manifest(&manifest.full, manifest.span);
    if small::manifest(store, &manifest.full, &about).await?.is_some() {
        return Err(store.exists_already(&path).into());
    }
    match store.get(&path).await {
        Ok(abandoned) => Ok(store.replace(&path, sealed, &abandoned.tag).await.map(drop)?),
        // None of ours, and nothing that anybody could be about to finish.
        Err(error) if error.is_too_large() => {
            store.delete(&path).await?;
            Ok(store.put_new(&path, sealed).await.map(drop)?)
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads the manifest of a segment, and compares it with what its path says and whose it must be.
pub(crate) async fn manifest(
    store: &Store,
    names: &Names,
    id: &BackupId,
    span: Span,
    cluster_id: &str,
    signer: Option<&Signer>,
) -> Result<SegmentManifest, Error> {
    let parsed = signed_manifest(store, names, id, span, signer).await?;
    if parsed.cluster_id != cluster_id {
        return Err(Damage::Foreign {
            id: id.clone(),
            path: names.segment_manifest(id, span),
            expected: cluster_id.to_owned(),
            cluster: parsed.cluster,
            found: parsed.cluster_id,
        }
        .into());
    }
    Ok(parsed)
}

/// Of whichever cluster it is. With a signer, only what that key signed.
pub(crate) async fn signed_manifest(
    store: &Store,
    names: &Names,
    id: &BackupId,
    span: Span,
    signer: Option<&Signer>,
) -> Result<SegmentManifest, Error> {
    let path = names.segment_manifest(id, span);
    let Some(found) = small::manifest(store, id, &path).await? else {
        return Err(Damage::Missing { id: id.clone(), path }.into());
    };
    if let Some(signer) = signer {
        let trust = Trust::only(signer.clone(), id.begun());
        if signed::judge(&trust, Kind::Segment, id, &path, &found.bytes)? == Standing::Unproven {
            let why = String::from("it has no signature, and the backup that it is on top of has one");
            return Err(Damage::Forged { id: id.clone(), path, why }.into());
        }
    }
    let parsed: SegmentManifest = serde_json::from_slice(&found.bytes).map_err(|error| Damage::Manifest {
        id: id.clone(),
        path: path.clone(),
        why: error.to_string(),
    })?;
    if parsed.format != FORMAT {
        let why = format!("it has format {}, and this quorate reads format {FORMAT}: use a newer one", parsed.format);
        return Err(Damage::Manifest { id: id.clone(), path, why }.into());
    }
    if parsed.full != *id || parsed.span != span {
        return Err(exchanged(id, path, &parsed.cluster_id, parsed.full.as_str(), parsed.span).into());
    }
    Ok(parsed)
}

/// Reads a segment. All of it is compared with its manifest, and with what it says itself.
pub async fn read(store: &Store, manifest: &SegmentManifest, key: Option<BackupKey>) -> Result<Vec<Revision>, Error> {
    let (id, path) = (manifest.full.clone(), Names::new(&manifest.cluster).segment(&manifest.full, manifest.span));
    let (expected, limit) = (manifest.stored_bytes, manifest.plain_bytes.unwrap_or(LARGEST));
    if expected > LARGEST || limit > LARGEST {
        let why =
            format!("its manifest says {expected} bytes, {limit} when opened, and a segment has at most {LARGEST}");
        return Err(Damage::Unreadable { id, path, why }.into());
    }
    let sealed = match store.get_up_to(&path, expected).await {
        Err(error) if error.is_not_found() => return Err(Damage::Missing { id, path }.into()),
        Err(StoreError { trouble: Trouble::TooLarge { found, .. }, .. }) => {
            return Err(Damage::Size { id, path, expected, found }.into());
        }
        sealed => sealed?.bytes,
    };
    let found = sealed.len() as u64;
    if found != expected {
        return Err(Damage::Size { id, path, expected, found }.into());
    }
    let found = sha256_hex(&sealed);
    if found != manifest.stored_sha256 {
        return Err(Damage::Content { id, path, expected: manifest.stored_sha256.clone(), found }.into());
    }
    let opened = tokio::task::spawn_blocking(move || pipe::unseal_small(key.as_ref(), &sealed, limit)).await?;
    let plain = opened.map_err(|error| Damage::unreadable(&id, &path, &error))?;
    decode(manifest, &path, &plain)
}

fn decode(manifest: &SegmentManifest, path: &str, plain: &[u8]) -> Result<Vec<Revision>, Error> {
    let id = &manifest.full;
    let damaged = |why: String| Damage::Unreadable { id: id.clone(), path: path.to_owned(), why };
    let end = plain.iter().position(|byte| *byte == b'\n');
    let end = end.ok_or_else(|| damaged(String::from("it has no first line")))?;
    let header: Header = serde_json::from_slice(&plain[..end]).map_err(|error| damaged(error.to_string()))?;
    let expected =
        Header { format: FORMAT, cluster_id: manifest.cluster_id.clone(), full: id.clone(), span: manifest.span };
    if header != expected {
        return Err(exchanged(id, path.to_owned(), &header.cluster_id, header.full.as_str(), header.span).into());
    }
    let (mut rest, mut revisions) = (&plain[end + 1..], Vec::new());
    while rest.has_remaining() {
        let revision = Revision::decode_length_delimited(&mut rest).map_err(|error| damaged(error.to_string()))?;
        revisions.push(revision);
    }
    let whole = (manifest.span.from..=manifest.span.to).eq(revisions.iter().map(|revision| revision.revision));
    if whole { Ok(revisions) } else { Err(damaged(String::from("revisions are missing in it")).into()) }
}
