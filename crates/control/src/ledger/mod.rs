//! The ledger in a directory: one file per version, each created exclusively, so that two writers can never both succeed
//! with the same version. Whoever loses that race has lost the lock too, and must stop.
//!
//! The same conditional create exists in object stores, which is where a shared ledger will live.

mod export;
mod lock;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use quorate_core::model::{LEDGER_FORMAT, Ledger, Lock};

pub use export::{ExportError, Exported, OpenWith, SealFor, export, import};
pub use lock::{Held, LEASE, is_held};

use crate::home::private_directory;

/// How many old versions are kept, to look at when something went wrong.
const KEPT: u64 = 20;

#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("{} cannot be {what}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is not a ledger", path.display())]
    Unreadable { path: PathBuf, source: serde_json::Error },
    #[error(
        "the ledger {} has format {found}, and this quorate knows up to {LEDGER_FORMAT}: use a newer quorate",
        path.display()
    )]
    NewerFormat { path: PathBuf, found: u32 },
    #[error("the ledger {} is damaged: its {what} is {found}, which no cluster reaches", path.display())]
    Damaged { path: PathBuf, what: &'static str, found: u64 },
    #[error("{}", locked(holder))]
    Locked { holder: Box<Lock> },
    #[error("{}", taken_over(by.as_deref()))]
    Lost { by: Option<Box<Lock>> },
}

fn locked(lock: &Lock) -> String {
    format!(
        "the ledger is locked by `{}` on {} (process {}) since {}; it is alive, and its lock runs until {}",
        lock.holder, lock.host, lock.pid, lock.since, lock.expires
    )
}

fn taken_over(by: Option<&Lock>) -> String {
    match by {
        Some(lock) => format!(
            "this controller has lost its lock: `{}` on {} (process {}) took over at {}; nothing more is done here",
            lock.holder, lock.host, lock.pid, lock.since
        ),
        None => String::from("this controller has lost its lock; nothing more is done here"),
    }
}

/// One cluster's ledger on disk.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
}

impl Store {
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Store { directory: directory.into() }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The newest version, if there is one.
    pub fn read(&self) -> Result<Option<Ledger>, LedgerError> {
        // A version may be pruned between listing and reading; the one after it is there then.
        for _ in 0..10 {
            let Some(newest) = self.newest()? else { return Ok(None) };
            let path = self.file(newest);
            match fs::read(&path) {
                Ok(bytes) => return parse(&path, &bytes).map(Some),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(LedgerError::Io { what: "read", path, source }),
            }
        }
        Ok(None)
    }

    /// Writes the ledger as the next version. Fails with `Lost` when that version exists already.
    pub fn write(&self, ledger: &mut Ledger) -> Result<(), LedgerError> {
        private_directory(&self.directory).map_err(|e| self.failed("made", e))?;
        let next = next(ledger.version, "version", &self.directory)?;
        let written = Ledger { version: next, ..ledger.clone() };
        let bytes = serde_json::to_vec_pretty(&written).expect("plain data serializes");
        let temporary = self.directory.join(format!(".{next}.{}", std::process::id()));
        self.put(&temporary, &bytes).map_err(|e| self.failed("written", e))?;
        let linked = fs::hard_link(&temporary, self.file(next));
        match fs::remove_file(&temporary) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(self.failed("written", e)),
            _ => {}
        }
        match linked {
            // The draft itself is gone when a later version was written meanwhile.
            Err(e) if matches!(e.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) => {
                return Err(self.lost());
            }
            other => other.map_err(|e| self.failed("written", e))?,
        }
        File::open(&self.directory).and_then(|d| d.sync_all()).map_err(|e| self.failed("written", e))?;
        // A writer so far behind that its version was pruned finds its slot free, but not the top.
        if self.newest()? != Some(next) {
            return Err(self.lost());
        }
        ledger.version = next;
        self.prune(next)
    }

    /// Changes a ledger that no living controller holds, with one conditional write and without its lock. Tells whether it was done.
    pub fn amend(&self, now: Timestamp, change: impl FnOnce(&mut Ledger)) -> Result<bool, LedgerError> {
        let Some(mut ledger) = self.read()? else { return Ok(false) };
        if ledger.lock.as_ref().is_some_and(|lock| is_held(lock, now)) {
            return Ok(false);
        }
        change(&mut ledger);
        match self.write(&mut ledger) {
            Err(LedgerError::Lost { .. }) => Ok(false),
            written => written.map(|()| true),
        }
    }

    fn put(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    /// Fails with `Lost` unless this version is the newest. A ledger that was removed meanwhile, perhaps to make room for
    /// another of its name, is not to be brought back.
    fn expect_newest(&self, version: u64) -> Result<(), LedgerError> {
        if self.newest()?.unwrap_or(0) == version { Ok(()) } else { Err(self.lost()) }
    }

    fn lost(&self) -> LedgerError {
        let by = self.read().ok().flatten().and_then(|l| l.lock).map(Box::new);
        LedgerError::Lost { by }
    }

    fn newest(&self) -> Result<Option<u64>, LedgerError> {
        Ok(self.versions()?.into_iter().max())
    }

    fn versions(&self) -> Result<Vec<u64>, LedgerError> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(self.failed("read", e)),
        };
        let number = |name: &str| name.strip_suffix(".json")?.parse().ok();
        Ok(entries.flatten().filter_map(|e| number(e.file_name().to_str()?)).collect())
    }

    /// Removes old versions, and drafts that writers left who were killed or have lost.
    fn prune(&self, newest: u64) -> Result<(), LedgerError> {
        let old = self.versions()?.into_iter().filter(|v| v.saturating_add(KEPT) <= newest).map(|v| self.file(v));
        for path in old.chain(self.drafts_before(newest)?) {
            match fs::remove_file(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(self.failed("pruned", e)),
                _ => {}
            }
        }
        Ok(())
    }

    fn drafts_before(&self, newest: u64) -> Result<Vec<PathBuf>, LedgerError> {
        let version = |name: &str| name.strip_prefix('.')?.split_once('.')?.0.parse::<u64>().ok();
        let entries = fs::read_dir(&self.directory).map_err(|e| self.failed("read", e))?;
        let drafts = entries.flatten().filter(|e| e.file_name().to_str().and_then(version).is_some_and(|v| v < newest));
        Ok(drafts.map(|e| e.path()).collect())
    }

    fn file(&self, version: u64) -> PathBuf {
        self.directory.join(format!("{version:010}.json"))
    }

    fn failed(&self, what: &'static str, source: io::Error) -> LedgerError {
        LedgerError::Io { what, path: self.directory.clone(), source }
    }
}

/// The highest number that a ledger may hold: what is read has room above it, so that counting on never wraps.
const LAST_NUMBER: u64 = 1 << 62;

/// The next number, unless the ledger is damaged.
fn next(number: u64, what: &'static str, path: &Path) -> Result<u64, LedgerError> {
    let damaged = || LedgerError::Damaged { path: path.to_owned(), what, found: number };
    number.checked_add(1).filter(|next| *next <= LAST_NUMBER).ok_or_else(damaged)
}

/// Numbers that are raised by one with each run or change. A flipped bit in one of them would make every agent deaf.
fn check_numbers(path: &Path, ledger: &Ledger) -> Result<(), LedgerError> {
    let members = ledger.members.values().flat_map(|m| [("generation", m.generation), ("incarnation", m.incarnation)]);
    let mut numbers = [("version", ledger.version), ("fencing number", ledger.fence)].into_iter().chain(members);
    match numbers.find(|(_, number)| *number >= LAST_NUMBER) {
        Some((what, found)) => Err(LedgerError::Damaged { path: path.to_owned(), what, found }),
        None => Ok(()),
    }
}

/// Reads a ledger of this format or an older one.
fn parse(path: &Path, bytes: &[u8]) -> Result<Ledger, LedgerError> {
    #[derive(serde::Deserialize)]
    struct Format {
        format: u32,
    }
    let unreadable = |source| LedgerError::Unreadable { path: path.to_owned(), source };
    let Format { format } = serde_json::from_slice(bytes).map_err(unreadable)?;
    if format > LEDGER_FORMAT {
        return Err(LedgerError::NewerFormat { path: path.to_owned(), found: format });
    }
    let ledger = serde_json::from_slice(bytes).map_err(unreadable)?;
    check_numbers(path, &ledger)?;
    Ok(ledger)
}
