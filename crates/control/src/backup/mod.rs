//! The controller's side of backups of every kind: it opens the stores of the spec's `backup` section, signs backups, and records them in
//! the ledger. How a backup is taken and restored is in `kinds/NAME/backup`. No store credential is sent to a machine unless the machine
//! stores its own backups. The ledger's lock is never taken, so a backup does not delay a change of the cluster.

pub(crate) mod note;
mod sealed;
pub mod signing;
pub(crate) mod vault;

use std::path::PathBuf;

pub use note::{BackupStatus, Confirmed, standing};
pub(crate) use sealed::sealed_ledger;
pub use vault::{Vault, Which, open_store};

use crate::ledger::{ExportError, LedgerError};
use crate::run::error::ControlError;

/// Receives progress reports.
pub trait Teller: Sync {
    /// Something to know.
    fn say(&self, text: &str);
    /// A progress report; the next one replaces it.
    fn doing(&self, what: Doing<'_>);
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Doing<'a> {
    Checking {
        place: &'a str,
    },
    Looking,
    Reading {
        member: &'a str,
        bytes: u64,
    },
    Proving {
        id: &'a str,
    },
    Copying {
        place: &'a str,
    },
    Fetching {
        what: &'a str,
    },
    Replaying {
        revision: i64,
    },
    /// Work of a machine, in the machine's words.
    Working {
        member: &'a str,
        what: &'a str,
    },
    Nothing,
}

#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error(transparent)]
    Backup(#[from] quorate_backup::Error),
    #[error(transparent)]
    Store(#[from] quorate_backup::store::StoreError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("the ledger next to the backup cannot be used")]
    LedgerBeside(#[from] ExportError),
    #[error("the programs of etcd {version}, which verify backups, cannot be found")]
    Programs { version: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("revisions of etcd {version} cannot be raised above those that clients have seen, so a restore is refused")]
    Restorer { version: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("cluster {cluster} has no `backup` section in its spec, which says where backups are stored")]
    NoSettings { cluster: String },
    #[error("cluster {cluster} has no second destination in its spec (`also_to`)")]
    NoSecond { cluster: String },
    #[error("the second destination cannot be used")]
    Second { source: std::sync::Arc<BackupError> },
    #[error("the credentials file {} cannot be used: {why}", path.display())]
    Credentials { path: PathBuf, why: String },
    #[error("the variable {name} is not set, and the spec says that the keys of the store are in the environment")]
    NoVariable { name: &'static str },
    #[error("no member of cluster {cluster} is the primary, so no backup can be taken: `quorate status` says more")]
    NoPrimary { cluster: String },
    #[error("{member} cannot {what}: {why}")]
    Job { member: String, what: &'static str, why: String },
    #[error("{member} stopped serving its files to the replica that takes the backup: {why}")]
    FilesLost { member: String, why: String },
    #[error("the certificates for the backup cannot be created")]
    Passes { source: quorate_pki::Error },
    #[error("the agent of {member} does not answer")]
    Agent { member: String, source: quorate_agent::client::ClientError },
    #[error("no member of cluster {cluster} can be read: it is {summary}")]
    NobodyToRead { cluster: String, summary: String },
    #[error("another `quorate backup watch` records cluster {cluster} already")]
    Watched { cluster: String },
    #[error("someone else records on top of the same backup: only one recorder may")]
    RecordedTwice { source: quorate_backup::store::StoreError },
    #[error(
        "the ledger of {cluster} has no key to sign backups with yet, and another controller holds it: try again, or run `quorate apply`"
    )]
    NoSigningKey { cluster: String },
    #[error("the key with which the ledger of {cluster} signs backups cannot be used")]
    SigningKey { cluster: String, source: quorate_pki::Error },
    #[error("the ledger next to the backup {id} is not the one that belongs there: {why}")]
    OtherLedger { id: String, why: String },
    #[error("cluster {cluster} is no longer known here")]
    Gone { cluster: String },
    #[error("{} cannot be {what}", path.display())]
    File { what: &'static str, path: PathBuf, source: std::io::Error },
    #[error("root has another password in {source_of} than in this cluster, so no one could log in after the restore")]
    RootPassword { source_of: String },
    #[error("the spec says etcd {wanted}, and the backup holds data of {found}: {why}")]
    Version { wanted: String, found: String, why: &'static str },
}

impl BackupError {
    /// Whether the same attempt may succeed later, without any intervention.
    pub fn is_passing(&self) -> bool {
        match self {
            BackupError::Backup(error) => error.is_passing(),
            BackupError::Store(error) => error.is_passing(),
            BackupError::NobodyToRead { .. } | BackupError::Control(_) => true,
            _ => false,
        }
    }

    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| BackupError::File { what, path, source }
    }
}
