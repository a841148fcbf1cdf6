//! Damage to stored objects, each kind with the object concerned, so an operator knows what to check and what is still good.

use crate::keys::KeyError;
use crate::names::{BackupId, Span};

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Damage {
    #[error("the manifest {path} cannot be read: {why}")]
    Manifest { id: BackupId, path: String, why: String },
    #[error(
        "{path} belongs to another cluster: expected the one with id {expected}, found `{cluster}` with id {found}"
    )]
    Foreign { id: BackupId, path: String, expected: String, cluster: String, found: String },
    /// Somebody else put it there, or changed it.
    #[error("{path} is NOT of this cluster: {why}")]
    Forged { id: BackupId, path: String, why: String },
    #[error("{path} is dated {}, and it is {now} now: it is ignored. If this clock is right, it was placed there by someone else", id.begun())]
    Future { id: BackupId, path: String, now: jiff::Timestamp },
    #[error("{path} is missing")]
    Missing { id: BackupId, path: String },
    #[error("{path} has {found} bytes, and its manifest says {expected}: it was cut or replaced")]
    Size { id: BackupId, path: String, expected: u64, found: u64 },
    #[error("{path} is not what was stored: its SHA-256 is {found}, and its manifest says {expected}")]
    Content { id: BackupId, path: String, expected: String, found: String },
    #[error("{path} cannot be opened: {why}")]
    Unreadable { id: BackupId, path: String, why: String },
    #[error("{path} holds a database that does not agree with etcd's own checksum of it")]
    Checksum { id: BackupId, path: String },
    #[error("changes are missing between revision {after} and {next}: the chain of {id} ends at {after}")]
    Hole { id: BackupId, after: i64, next: i64 },
    #[error(
        "{path} does not follow {before}: its manifest says that it follows {found}. Segments were swapped, or one was replaced"
    )]
    Chain { id: BackupId, path: String, before: String, found: String },
    #[error("{path} holds the changes of {found}, not those that its name says: it was exchanged for another")]
    Exchanged { id: BackupId, path: String, found: String },
    /// Between two looks at it.
    #[error(
        "{path} was replaced while it was in use: it is the manifest of backup {found} now, and nothing was added to it"
    )]
    Replaced { id: BackupId, path: String, found: String },
}

impl Damage {
    /// The full backup that it concerns, itself or the changes on top of it.
    pub fn id(&self) -> &BackupId {
        match self {
            Damage::Manifest { id, .. }
            | Damage::Foreign { id, .. }
            | Damage::Forged { id, .. }
            | Damage::Future { id, .. }
            | Damage::Missing { id, .. }
            | Damage::Size { id, .. }
            | Damage::Content { id, .. }
            | Damage::Unreadable { id, .. }
            | Damage::Checksum { id, .. }
            | Damage::Hole { id, .. }
            | Damage::Chain { id, .. }
            | Damage::Exchanged { id, .. }
            | Damage::Replaced { id, .. } => id,
        }
    }
}

impl Damage {
    pub(crate) fn unreadable(id: &BackupId, path: &str, error: &KeyError) -> Self {
        Damage::Unreadable { id: id.clone(), path: path.to_owned(), why: error.to_string() }
    }

    /// Whether it shows another writer to the store.
    pub fn is_forgery(&self) -> bool {
        matches!(self, Damage::Forged { .. } | Damage::Future { .. })
    }
}

pub(crate) fn exchanged(id: &BackupId, path: String, cluster_id: &str, full: &str, span: Span) -> Damage {
    let found = format!("revisions {} to {} on top of {full}, cluster {cluster_id}", span.from, span.to);
    Damage::Exchanged { id: id.clone(), path, found }
}
