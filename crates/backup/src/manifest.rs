//! The manifest of a full backup. It is plain JSON, so anyone can list backups without a key; it contains no key or value of the
//! data.

use jiff::Timestamp;
use quorate_pki::SigningKey;
use serde::{Deserialize, Serialize};

use crate::damage::Damage;
use crate::names::{BackupId, is_revision};
use crate::signed::{self, Kind, Signature};
use crate::source::{HashKv, Member};
use crate::store::SMALL;

pub const FORMAT: u32 = 1;
/// Far more than any ledger has. A forged manifest that claims more would fill our memory.
const LARGEST_LEDGER: u64 = 256 << 20;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    pub id: BackupId,
    pub cluster: String,
    pub cluster_id: String,
    pub etcd_version: String,
    pub taken: Taken,
    pub from_member: String,
    pub members: Vec<Member>,
    /// The newest before the snapshot was opened: it holds at least this one …
    pub revision: i64,
    /// … and at most this one. etcd does not say which it is; a verification finds out.
    pub revision_at_most: i64,
    /// Of the living member, at `revision`.
    pub hash: Hash,
    /// How many keys there were at `revision`.
    pub keys: i64,
    /// Of the database, uncompressed.
    pub db_bytes: u64,
    /// etcd's own checksum of it.
    pub snapshot_sha256: String,
    pub stored_bytes: u64,
    pub stored_sha256: String,
    /// The public half of the backup's own key; none where it is not encrypted.
    pub recipient: Option<String>,
    /// Of the small objects next to the snapshot.
    #[serde(default)]
    pub beside: Beside,
    /// The recipients that its key is encrypted to; absent where an older quorate stored it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sealed_for: Vec<String>,
    /// Oldest first.
    #[serde(default)]
    pub verified: Vec<Verification>,
    /// Of all above; absent where an older quorate stored it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
}

/// The SHA-256 of the key and of the ledger as they were stored last: anyone who copies them can tell whether they are whole. Absent where
/// there is none, or where an older quorate stored it.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Beside {
    pub key: Option<String>,
    pub ledger: Option<String>,
    /// Size of the stored ledger in bytes, the limit when it is read. Absent where an older quorate stored it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger_bytes: Option<u64>,
    /// Those that are about to take the place of the others: noted before, so that a kill between the two leaves nothing unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<String>,
}

impl Beside {
    /// So many bytes are read of the ledger.
    pub(crate) fn ledger_limit(&self) -> u64 {
        self.ledger_bytes.unwrap_or(0).clamp(SMALL, LARGEST_LEDGER)
    }

    pub(crate) fn is_key(&self, sha256: &str) -> bool {
        self.key.as_deref() == Some(sha256) || self.next.iter().any(|next| next == sha256)
    }

    /// Whether this is the ledger that was stored with the backup.
    pub fn is_ledger(&self, sha256: &str) -> bool {
        self.ledger.as_deref() == Some(sha256) || self.next.iter().any(|next| next == sha256)
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Taken {
    pub began: Timestamp,
    /// By then the snapshot was open: nothing in it is newer.
    pub opened: Timestamp,
    pub ended: Timestamp,
}

/// etcd's HashKV, which compares only at the same revision and the same compact revision.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hash {
    pub hash: u32,
    pub revision: i64,
    pub compact_revision: i64,
}

impl Hash {
    /// Whether both speak of the same data and differ. etcd remembers the hash that it computed while it compacted, which covers what it
    /// has dropped since, and answers with it when asked for the revision of that compaction. Data that was restored cannot have that
    /// hash, and says nothing against it.
    pub fn contradicts(&self, other: &Hash) -> bool {
        self.compact_revision == other.compact_revision && self != other
    }
}

impl From<HashKv> for Hash {
    fn from(HashKv { hash, revision, compact_revision }: HashKv) -> Self {
        Hash { hash, revision, compact_revision }
    }
}

/// A restore into a temporary etcd, and what came of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Verification {
    pub at: Timestamp,
    pub etcd_version: String,
    pub outcome: Outcome,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Ok(Proven),
    Failed {
        why: String,
        /// Where that is what it is; for the caller, and not stored.
        #[serde(skip)]
        damage: Option<Damage>,
    },
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Proven {
    /// Of the snapshot alone, exactly.
    pub revision: i64,
    /// At the manifest's revision.
    pub keys: i64,
    pub hash: Hash,
    /// The last one that the recorded changes lead to.
    pub up_to: i64,
    /// Whether the contents at `up_to` were compared with the living cluster's.
    pub compared_with_living: bool,
    /// The members that were asked for them and hold the same. Absent where an older quorate asked one alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compared_with: Vec<String>,
}

impl Manifest {
    /// Whether both are of the very same backup, whatever was added to either since.
    pub fn is_of_same_backup(&self, other: &Manifest) -> bool {
        let identity =
            |one: &Manifest| (one.id.clone(), one.cluster.clone(), one.cluster_id.clone(), one.stored_sha256.clone());
        identity(self) == identity(other)
    }

    /// The proof of the last verification, if that succeeded: a backup that was good once and is damaged now is not verified.
    pub fn proven(&self) -> Option<(Timestamp, &Proven)> {
        match self.verified.last()? {
            Verification { at, outcome: Outcome::Ok(proven), .. } => Some((*at, proven)),
            _ => None,
        }
    }

    pub fn is_verified(&self) -> bool {
        self.proven().is_some()
    }

    /// The highest revision that the snapshot can hold, as exactly as is known.
    pub fn newest_revision(&self) -> i64 {
        let exact = self.verified.iter().rev().find_map(|one| match &one.outcome {
            Outcome::Ok(proven) => Some(proven.revision),
            Outcome::Failed { .. } => None,
        });
        exact.unwrap_or(self.revision_at_most)
    }

    /// With the signature of all that it says now.
    #[must_use]
    pub fn signed(self, key: &SigningKey) -> Self {
        let signature = Some(signed::sign(key, Kind::Full, &self));
        Manifest { signature, ..self }
    }

    /// Revisions that no cluster can have would lead a restore astray.
    fn revisions_are_sound(&self) -> bool {
        let proven = self.verified.iter().filter_map(|one| match &one.outcome {
            Outcome::Ok(proven) => Some([proven.revision, proven.up_to]),
            Outcome::Failed { .. } => None,
        });
        let own = [self.revision, self.revision_at_most, self.hash.revision];
        self.revision <= self.revision_at_most && own.into_iter().chain(proven.flatten()).all(is_revision)
    }

    pub fn to_json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).expect("plain data serializes");
        json.push(b'\n');
        json
    }

    /// Says why where it is none, or one of a newer quorate.
    pub fn parse(json: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let Format { format } =
            serde_json::from_slice(json).map_err(|error| format!("it is not JSON of ours: {error}"))?;
        if format != FORMAT {
            return Err(format!("it has format {format}, and this quorate reads format {FORMAT}: use a newer one"));
        }
        let manifest: Manifest = serde_json::from_slice(json).map_err(|error| format!("it is not whole: {error}"))?;
        match manifest.revisions_are_sound() {
            true => Ok(manifest),
            false => Err(String::from("it speaks of revisions that no cluster can have")),
        }
    }
}
