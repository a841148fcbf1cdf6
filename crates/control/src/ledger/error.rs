//! Errors of a ledger, and their remedies.

use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use quorate_core::model::{Lock, Program};

use crate::key::{COMMAND_VARIABLE, FILE_VARIABLE, KeyError};

#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("{} cannot be {what}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is not a ledger", path.display())]
    Unreadable {
        path: PathBuf,
        source: serde_json::Error,
        /// The newest older version that can be read.
        intact: Option<PathBuf>,
    },
    /// An older version must not replace one that is only too new to be read.
    #[error("the ledger {} {what}: use a newer quorate ({})", path.display(), writer(written_by))]
    Newer { path: PathBuf, what: String, written_by: String },
    #[error("the ledger {} is damaged: {what}", path.display())]
    Damaged { path: PathBuf, what: String, intact: Option<PathBuf> },
    #[error("the secrets in {} cannot be opened or stored", path.display())]
    Sealed { path: PathBuf, source: Box<KeyError> },
    #[error("{}", locked(holder))]
    Locked { holder: Box<Lock> },
    #[error("{}", taken_over(by.as_deref()))]
    Lost { by: Option<Box<Lock>> },
}

impl LedgerError {
    /// Whether the file itself is to blame: not the disk, a key or another controller.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            LedgerError::Unreadable { .. } | LedgerError::Damaged { .. } => true,
            LedgerError::Sealed { source, .. } => matches!(**source, KeyError::Damaged(_)),
            _ => false,
        }
    }

    /// Adds the version that can be restored, if that helps. If a newer quorate wrote it, only a newer one can help.
    pub(super) fn with_way_back(self, find: impl FnOnce() -> Result<Option<PathBuf>, LedgerError>) -> Self {
        if !self.is_damage() {
            return self;
        }
        let intact = match find() {
            Err(newer @ LedgerError::Newer { .. }) => return newer,
            found => found.unwrap_or_default(),
        };
        match self {
            LedgerError::Unreadable { path, source, .. } => LedgerError::Unreadable { path, source, intact },
            LedgerError::Damaged { path, what, .. } => LedgerError::Damaged { path, what, intact },
            LedgerError::Sealed { path, source } => {
                let what = format!("its encrypted part cannot be opened: {}", chain(&source));
                LedgerError::Damaged { path, what, intact }
            }
            other => other,
        }
    }

    /// The problem of the file, without its name.
    pub(super) fn in_a_line(&self) -> String {
        match self {
            LedgerError::Unreadable { source, .. } => source.to_string(),
            LedgerError::Damaged { what, .. } => what.clone(),
            LedgerError::Sealed { source, .. } => chain(source),
            other => chain(other),
        }
    }

    /// The remedy.
    pub fn hint(&self) -> Option<String> {
        match self {
            LedgerError::Unreadable { path, intact, .. } | LedgerError::Damaged { path, intact, .. } => {
                Some(way_back(path, intact.as_deref()))
            }
            LedgerError::Newer { written_by, .. } => Some(newer_hint(written_by)),
            LedgerError::Sealed { source, .. } => key_hint(source),
            LedgerError::Locked { .. } => Some(String::from(
                "wait until it exits; if it hangs, kill that process, which frees the lock at once; if its host is \
                 unreachable, break the lock with `quorate unlock NAME`",
            )),
            LedgerError::Io { source, .. } => space_hint(source),
            LedgerError::Lost { .. } => None,
        }
    }
}

fn writer(written_by: &str) -> String {
    let this = &Program::this().version;
    match written_by {
        "" => format!("this one is {this}; the ledger does not name the version that wrote it"),
        writer => format!("this one is {this}, the ledger was written by {writer}"),
    }
}

fn newer_hint(written_by: &str) -> String {
    let hint = "run the command again with the quorate that wrote this ledger, or a newer one; nothing was changed";
    // Two builds of one version may differ before it is released.
    match written_by == Program::this().version {
        true => format!(
            "{hint}. If this build wrote it, it is damaged: move it away, then bring it back with `quorate ledger import`"
        ),
        false => hint.to_owned(),
    }
}

fn way_back(path: &Path, intact: Option<&Path>) -> String {
    match intact {
        Some(intact) => format!(
            "{} next to it can be read: move {} away, then run `quorate apply NAME --accept-older-ledger`",
            intact.display(),
            path.display()
        ),
        None => String::from(
            "bring the ledger back with `quorate ledger import`, from an export, or with --from-backup from next to a backup; \
             move this file away first",
        ),
    }
}

fn key_hint(error: &KeyError) -> Option<String> {
    match error {
        KeyError::Missing { .. } | KeyError::NotAKey { .. } => Some(format!(
            "bring the key back from its copy, or say where it is: {FILE_VARIABLE}=FILE, or {COMMAND_VARIABLE} with a command that \
             prints it. If it is lost, move the ledger away and bring it back with `quorate ledger import`"
        )),
        KeyError::Wrong { .. } => Some(format!(
            "name the right key: {FILE_VARIABLE}=FILE, or {COMMAND_VARIABLE}; a key file may hold several, one on each line"
        )),
        KeyError::Io { source, .. } => space_hint(source),
        _ => None,
    }
}

fn space_hint(source: &io::Error) -> Option<String> {
    match source.kind() {
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            Some(String::from("make that place writable for this user, then run the same command again"))
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Some(String::from("free some space there, then run the same command again"))
        }
        _ => None,
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn to_the_second(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

fn locked(lock: &Lock) -> String {
    format!(
        "another controller holds the lock: {} on {} (process {}), since {}",
        lock.holder,
        lock.host,
        lock.pid,
        to_the_second(lock.since)
    )
}

fn taken_over(by: Option<&Lock>) -> String {
    match by {
        Some(lock) => format!(
            "another controller took the lock: {} on {} (process {}), since {}; nothing more is done here",
            lock.holder,
            lock.host,
            lock.pid,
            to_the_second(lock.since)
        ),
        None => String::from("another controller took the lock; nothing more is done here"),
    }
}
