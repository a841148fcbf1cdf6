//! The errors of this crate.

use std::path::{Path, PathBuf};

use crate::damage::Damage;
use crate::keys::KeyError;
use crate::source::SourceError;
use crate::store::StoreError;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the cluster cannot be read")]
    Source(#[from] SourceError),
    #[error("{what} cannot be used")]
    Key { what: String, source: KeyError },
    #[error(transparent)]
    Damaged(Box<Damage>),
    /// The member's own checksum does not fit what it sent.
    #[error(
        "the snapshot that {member} sent does not agree with the checksum that it sent with it ({bytes} bytes came): nothing was stored. \
         Take it from another member, and look at this one's disk"
    )]
    SnapshotCorrupt { member: String, bytes: u64 },
    #[error("{0}")]
    NothingToRestore(String),
    #[error("{0:?} is not a name that pgBackRest gives to a backup")]
    Label(String),
    #[error("the temporary etcd {why}")]
    Throwaway { why: String },
    #[error("the temporary etcd refused a call")]
    Etcd(#[from] quorate_etcd::Error),
    #[error("the changes do not fit the backup: {why}")]
    Replay { why: String },
    #[error("{what} differs: expected {expected}, found {found}")]
    Differs { what: String, expected: String, found: String },
    /// The members of the living cluster do not hold what the backup holds.
    #[error(
        "members of the cluster hold other data at revision {revision} than this backup, which was read from {from}: {}{}. One of them is \
         damaged or lies: find it with `etcdctl endpoint hashkv --cluster`, replace it with `quorate replace`, and take a new backup",
        differ.join("; "),
        if agree.is_empty() { String::new() } else { format!("; the same as the backup: {}", agree.join(", ")) }
    )]
    Disagree { from: String, revision: i64, differ: Vec<String>, agree: Vec<String> },
    #[error("cannot {doing} {}", path.display())]
    File { doing: &'static str, path: PathBuf, source: std::io::Error },
    /// Where the operator wanted it; what was stored is another matter.
    #[error("the snapshot cannot be written to {}", path.display())]
    Output { path: PathBuf, source: std::io::Error },
    /// By the copy from the first destination to the second.
    #[error(
        "{} in the first destination {} damaged, and not copied over what the second has: {}",
        if damage.len() == 1 { String::from("an object") } else { format!("{} objects", damage.len()) },
        if damage.len() == 1 { "is" } else { "are" },
        damage.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    NotCopied { damage: Vec<Damage> },
    #[error(
        "{path} is signed, and only the cluster's ledger has the key to sign it again: bring that here with `quorate ledger import`"
    )]
    CannotSign { path: String },
    #[error("a key or certificate for the temporary etcd could not be created")]
    Pki(#[source] Box<quorate_pki::Error>),
    #[error("the work was interrupted")]
    Interrupted(#[from] tokio::task::JoinError),
}

impl From<Damage> for Error {
    fn from(damage: Damage) -> Self {
        Error::Damaged(Box::new(damage))
    }
}

impl From<Box<Damage>> for Error {
    fn from(damage: Box<Damage>) -> Self {
        Error::Damaged(damage)
    }
}

impl From<quorate_pki::Error> for Error {
    fn from(error: quorate_pki::Error) -> Self {
        Error::Pki(Box::new(error))
    }
}

impl Error {
    pub(crate) fn key(what: impl Into<String>) -> impl FnOnce(KeyError) -> Error {
        let what = what.into();
        move |source| Error::Key { what, source }
    }

    pub(crate) fn file(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::File { doing, path, source }
    }

    /// Whether the same may well succeed later, or with another member, with nothing done about it.
    pub fn is_passing(&self) -> bool {
        match self {
            Error::Store(error) => error.is_passing(),
            Error::Source(error) => matches!(error, SourceError::Unreachable(_)),
            _ => false,
        }
    }
}
