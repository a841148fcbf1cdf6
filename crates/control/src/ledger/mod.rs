//! The ledger in a directory: one file per version, each created exclusively, so two writers never both succeed with the
//! same version. A controller that loses this race has also lost the lock and must stop.
//!
//! Object stores have the same conditional create, so a shared ledger can be stored there later.

mod error;
mod export;
mod lock;
mod seal;
mod writer;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use quorate_core::Secret;
use quorate_core::kinds::etcd::JwtKeys;
use quorate_core::model::{AuthorityRecord, BackupSigning, LEDGER_FORMAT, Ledger, migrate_ledger};
use quorate_pki::SigningKey;

pub use error::LedgerError;
pub use export::{ExportError, Exported, OpenWith, SealFor, export, import};
pub use lock::{LEASE, LedgerLock, is_alive_here, seems_held};

use crate::key::{KeyError, Keys, Ring};
use lock::Watched;
use quorate_agent::private_directory;
use seal::Cache;
use writer::Head;

/// How many old versions are kept, for investigating problems.
const KEPT: u64 = 20;
/// The first format whose secrets are encrypted.
const FIRST_SEALED: u32 = 2;
/// The separator between version and format in the name of a copy in an older format.
const COPY: &str = ".format-";

/// One cluster's ledger on disk.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
    keys: Arc<Keys>,
    cache: Cache,
    watched: Watched,
}

impl Store {
    pub fn new(directory: impl Into<PathBuf>, keys: Arc<Keys>) -> Self {
        Store { directory: directory.into(), keys, cache: Cache::default(), watched: Watched::default() }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The newest version, if there is one.
    pub fn read(&self) -> Result<Option<Ledger>, LedgerError> {
        // A version may be pruned between listing and reading; the one after it is there then.
        for _ in 0..10 {
            let Some(newest) = self.newest()? else { return Ok(None) };
            match self.read_version(newest) {
                Err(LedgerError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.with_way_back(|| self.newest_intact(newest))),
                Ok(ledger) => return Ok(Some(ledger)),
            }
        }
        Ok(None)
    }

    fn read_version(&self, version: u64) -> Result<Ledger, LedgerError> {
        let path = self.file(version);
        let bytes = fs::read(&path).map_err(|source| LedgerError::Io { what: "read", path: path.clone(), source })?;
        self.parse(&path, &bytes)
    }

    /// The newest readable older version, which can be restored. Fails if only a newer quorate can tell which.
    fn newest_intact(&self, damaged: u64) -> Result<Option<PathBuf>, LedgerError> {
        let mut older: Vec<u64> = self.versions()?.into_iter().filter(|v| *v < damaged).collect();
        older.sort_unstable();
        for version in older.into_iter().rev() {
            match self.read_version(version) {
                Ok(_) => return Ok(Some(self.file(version))),
                Err(newer @ LedgerError::Newer { .. }) => return Err(newer),
                Err(_) => {}
            }
        }
        Ok(None)
    }

    fn parse(&self, path: &Path, bytes: &[u8]) -> Result<Ledger, LedgerError> {
        self.opened(path, bytes).map_err(|error| writer::judged(error, path, bytes))
    }

    fn opened(&self, path: &Path, bytes: &[u8]) -> Result<Ledger, LedgerError> {
        let unreadable = |source| LedgerError::Unreadable { path: path.to_owned(), source, intact: None };
        let mut ledger = parse(path, bytes)?;
        if let Some(sealed) = seal::part(bytes).map_err(unreadable)? {
            let open = |to: &str, bytes: &[u8]| self.keys.open(to, bytes);
            seal::unseal(&mut ledger, &sealed, &self.cache, open).map_err(|source| closed(path, source))?;
        }
        check_keys(path, &ledger)?;
        Ok(ledger)
    }

    /// Writes the ledger as the next version. Fails with `Lost` when that version exists already.
    pub fn write(&self, ledger: &mut Ledger) -> Result<(), LedgerError> {
        private_directory(&self.directory).map_err(|e| self.failed("created", e))?;
        let next = next(ledger.version, "version", &self.directory)?;
        self.keep_older_format(ledger).map_err(|e| self.failed("copied", e))?;
        let written = Ledger { version: next, ..ledger.as_written_here() };
        let draft = self.directory.join(format!(".{next}.{}", quorate_pki::random_hex(8)));
        self.put(&draft, &self.stored(&written)?).map_err(|e| self.failed("written", e))?;
        let linked = fs::hard_link(&draft, self.file(next));
        // If it stays, the next writer removes it.
        let _ = fs::remove_file(&draft);
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
        (ledger.version, ledger.format) = (next, LEDGER_FORMAT);
        ledger.written_by = written.written_by;
        // The version is written, whatever becomes of older ones: the next writer tries again.
        let _ = self.prune(next);
        Ok(())
    }

    /// The last version of an older format is kept, in case an older quorate is needed again. Very old ones with unencrypted
    /// secrets are not.
    fn keep_older_format(&self, ledger: &Ledger) -> io::Result<()> {
        if !(FIRST_SEALED..LEDGER_FORMAT).contains(&ledger.format) {
            return Ok(());
        }
        let copy = self.directory.join(format!("{:010}{COPY}{}.json", ledger.version, ledger.format));
        match fs::hard_link(self.file(ledger.version), copy) {
            Err(e) if !matches!(e.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) => Err(e),
            _ => Ok(()),
        }
    }

    /// Removes copies of older formats. They are encrypted to a key that is given up.
    fn remove_older_formats(&self) -> Result<(), LedgerError> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        for copy in entries.filter(|entry| entry.file_name().to_string_lossy().contains(COPY)) {
            fs::remove_file(copy.path()).map_err(|e| self.failed("pruned", e))?;
        }
        Ok(())
    }

    /// The content of a file: everything is readable except the secrets.
    fn stored(&self, ledger: &Ledger) -> Result<Vec<u8>, LedgerError> {
        let sealed = seal::seal(ledger, &self.cache, || self.ring_to_write());
        let stored = sealed.map_err(|source| self.sealed(source))?;
        Ok(serde_json::to_vec_pretty(&stored).expect("plain data serializes"))
    }

    /// The first key is made when the first secret is stored, unless a ledger of this home needs one that is gone.
    fn ring_to_write(&self) -> Result<Arc<Ring>, KeyError> {
        self.keys.ring_to_write(|| {
            let clusters = self.directory.parent().and_then(Path::parent)?;
            let entries = fs::read_dir(clusters).into_iter().flatten().flatten();
            let mut stores = entries.map(|entry| Store::new(entry.path().join("ledger"), self.keys.clone()));
            stores.find_map(|store| store.sealed_to())
        })
    }

    /// The newest version, as far as it can be read without a key. For callers that must not ask for one, such as completions.
    pub fn without_secrets(&self) -> Option<Ledger> {
        let path = self.file(self.newest().ok()??);
        parse(&path, &fs::read(&path).ok()?).ok()
    }

    /// The public half of the key that the newest version is encrypted to.
    pub fn sealed_to(&self) -> Option<String> {
        let newest = self.newest().ok()??;
        Some(seal::part(&fs::read(self.file(newest)).ok()?).ok()??.to)
    }

    /// Encrypts older versions to the present key that are not, or hold their secrets as they are. The newest must be durable by then.
    /// What cannot be read is left for people to look at.
    pub(super) fn seal_older(&self, newest: u64) -> Result<(), LedgerError> {
        let Ok(Some(ring)) = self.keys.ring() else { return Ok(()) };
        for version in self.versions()?.into_iter().filter(|v| *v < newest) {
            let path = self.file(version);
            let Ok(bytes) = fs::read(&path) else { continue };
            if !seal::is_to_be_sealed(&bytes, ring.recipient()) {
                continue;
            }
            let Ok(ledger) = self.parse(&path, &bytes) else { continue };
            let draft = self.directory.join(format!(".{version}.{}", quorate_pki::random_hex(8)));
            let written =
                self.put(&draft, &self.stored(&ledger.as_written_here())?).and_then(|()| fs::rename(&draft, &path));
            written.map_err(|e| self.failed("encrypted", e))?;
        }
        Ok(())
    }

    /// Encrypts every version to the present key. Returns whether that is so now: one that a living controller holds is left to it.
    pub fn seal_again(&self, now: Timestamp) -> Result<bool, LedgerError> {
        let Some(ring) = self.keys.ring().map_err(|source| self.sealed(source))? else { return Ok(true) };
        if self.sealed_to().is_none_or(|to| to != ring.recipient()) && !self.amend(now, |_| {})? {
            return Ok(false);
        }
        let newest = self.newest()?.unwrap_or(0);
        self.seal_older(newest)?;
        self.remove_older_formats()?;
        let stays = |v: u64| fs::read(self.file(v)).is_ok_and(|b| seal::is_to_be_sealed(&b, ring.recipient()));
        match self.versions()?.into_iter().find(|v| stays(*v)) {
            None => Ok(true),
            Some(version) => self.read_version(version).map(|_| false),
        }
    }

    fn sealed(&self, source: KeyError) -> LedgerError {
        closed(&self.directory, source)
    }

    /// Changes a ledger that no live controller holds, with one conditional write and without its lock. Returns whether it was done.
    pub fn amend(&self, now: Timestamp, change: impl FnOnce(&mut Ledger)) -> Result<bool, LedgerError> {
        let Some(mut ledger) = self.read()? else { return Ok(false) };
        if self.is_locked(&ledger, now) {
            return Ok(false);
        }
        change(&mut ledger);
        match self.write(&mut ledger) {
            Err(LedgerError::Lost { .. }) => Ok(false),
            written => written.map(|()| true),
        }
    }

    fn put(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    /// Fails with `Lost` unless this version is the newest. A ledger that was removed meanwhile, perhaps for another
    /// cluster of its name, must not be recreated.
    fn expect_newest(&self, version: u64) -> Result<(), LedgerError> {
        if self.newest()?.unwrap_or(0) == version { Ok(()) } else { Err(self.lost()) }
    }

    fn lost(&self) -> LedgerError {
        let by = self.read().ok().flatten().and_then(|l| l.lock).map(Box::new);
        LedgerError::Lost { by }
    }

    pub(crate) fn newest(&self) -> Result<Option<u64>, LedgerError> {
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

    /// Removes old versions, and drafts of killed or losing writers.
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

fn closed(path: &Path, source: KeyError) -> LedgerError {
    LedgerError::Sealed { path: path.to_owned(), source: Box::new(source) }
}

/// The highest number that a ledger may hold: what is read has room above it, so that counting on never wraps.
const LAST_NUMBER: u64 = 1 << 62;

/// The next number, unless the ledger is damaged.
fn next(number: u64, what: &'static str, path: &Path) -> Result<u64, LedgerError> {
    number.checked_add(1).filter(|next| *next <= LAST_NUMBER).ok_or_else(|| beyond(path, what, number))
}

fn beyond(path: &Path, what: &'static str, number: u64) -> LedgerError {
    let what = format!("its {what} is {number}, which no cluster reaches");
    LedgerError::Damaged { path: path.to_owned(), what, intact: None }
}

/// Numbers that increase by one with each run or change. A flipped bit in one of them would make every agent refuse all orders.
fn check_numbers(path: &Path, ledger: &Ledger) -> Result<(), LedgerError> {
    let members = ledger.members.values().flat_map(|m| [("generation", m.generation), ("incarnation", m.incarnation)]);
    let mut numbers = [("version", ledger.version), ("fencing number", ledger.fence)].into_iter().chain(members);
    match numbers.find(|(_, number)| *number >= LAST_NUMBER) {
        Some((what, number)) => Err(beyond(path, what, number)),
        None => Ok(()),
    }
}

/// Keys are compared with their certificates whenever a ledger is read, so damage is found while an intact version still exists.
fn check_keys(path: &Path, ledger: &Ledger) -> Result<(), LedgerError> {
    let damaged = |what: String| LedgerError::Damaged { path: path.to_owned(), what, intact: None };
    let of_authority = |what: &str, why: quorate_pki::Error| {
        damaged(format!("the private key of the {what} does not belong to its certificate ({why})"))
    };
    let fits = |authority: &Option<AuthorityRecord>, what: &str| {
        let pair = authority.as_ref().and_then(|a| Some((&a.certificate, a.key.as_ref()?)));
        pair.map_or(Ok(()), |(certificate, key): (&String, &Secret)| {
            quorate_pki::key_fits(certificate, key).map_err(|e| of_authority(what, e))
        })
    };
    fits(&ledger.authorities.client, "etcd CA")?;
    for authority in ledger.authorities.peer.iter().flat_map(|peers| &peers.trusted) {
        fits(&Some(authority.clone()), "peer CA")?;
    }
    fits(&ledger.authorities.control, "control CA")?;
    if let Some(JwtKeys { private, public }) = &ledger.etcd.auth.jwt
        && !quorate_pki::is_pair(private, public)
    {
        return Err(damaged(String::from("the two keys of etcd's tokens do not belong together")));
    }
    // Otherwise someone who can change only the readable part could decide which backups are trusted.
    if let Some(BackupSigning { key, public, .. }) = &ledger.backup_signing
        && !SigningKey::load(key).is_ok_and(|key| key.signer() == *public)
    {
        return Err(damaged(String::from("the two keys that sign its backups do not belong together")));
    }
    Ok(())
}

/// Reads a ledger of this format or an older one. Its secrets are as they were stored.
fn parse(path: &Path, bytes: &[u8]) -> Result<Ledger, LedgerError> {
    let unreadable = |source| LedgerError::Unreadable { path: path.to_owned(), source, intact: None };
    let head: Head = serde_json::from_slice(bytes).map_err(unreadable)?;
    let format = head.format;
    if format > LEDGER_FORMAT {
        return Err(
            head.newer(path, format!("has format {format}, and this quorate reads formats up to {LEDGER_FORMAT}"))
        );
    }
    let mut ledger: Ledger = if format == LEDGER_FORMAT {
        serde_json::from_slice(bytes).map_err(unreadable)?
    } else {
        let mut content = serde_json::from_slice(bytes).map_err(unreadable)?;
        migrate_ledger(&mut content, format);
        serde_json::from_value(content).map_err(unreadable)?
    };
    ledger.rename_fixtures();
    check_numbers(path, &ledger)?;
    Ok(ledger)
}
