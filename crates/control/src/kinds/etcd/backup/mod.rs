//! The controller's side of backups. The crate `quorate_backup` does the work with the store; it gets access to the running cluster
//! through its agents, etcd's programs for temporary clusters, and the spec's settings. No store credential and no secret key is ever
//! sent to a machine. The ledger's lock is never taken, so a backup does not delay a change of the cluster.

mod create;
pub(crate) mod note;
mod programs;
mod restore;
pub mod signing;
mod source;
pub(crate) mod vault;
mod watch;

use std::path::PathBuf;

pub(crate) use create::sealed_ledger;
pub use create::{Backups, Created, Doing, Teller, prove, prove_beside};
pub use note::{BackupStatus, Confirmed, confirm, standing};
pub use quorate_backup as store;
pub use restore::{Ready, SnapshotAt, Wanted, ledger_beside, root_is_let_in, verify_raised, without_older_leaders};
pub use vault::{Vault, Which, catalog_of, open_store};
pub use watch::{Watching, watch};

use crate::ledger::{ExportError, LedgerError};
use crate::run::error::ControlError;

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
    Programs { version: String, source: quorate_agent::kinds::etcd::binaries::BinaryError },
    #[error("revisions of etcd {version} cannot be raised above those that clients have seen, so a restore is refused")]
    Restorer { version: String, source: quorate_agent::kinds::etcd::binaries::BinaryError },
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

    fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| BackupError::File { what, path, source }
    }
}
