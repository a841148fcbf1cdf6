//! Rotation: a new identity is inserted before the current one, everything is encrypted to it, then the old one is dropped.
//! A comment in the file names both keys, so an interrupted rotation continues, and everything else in the file stays:
//! comments, identities of other kinds, and those that this rotation does not replace.
//!
//! The file is locked meanwhile, because two rotations at once would each drop the other's new key.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use age::x25519::Identity;
use quorate_core::Secret;
use rustix::fs::{FlockOperation, flock};

use super::{KeyError, KeySource, Keys, PUBLIC_KEY, Ring, draft, key_lines, sync_parent};

/// Begins the comment that says which rotation is not over yet.
const MARK: &str = "# rotation: from ";
const TO: &str = " to ";

/// Which key replaces which, by their public halves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Exchange {
    old: String,
    new: String,
}

impl Exchange {
    /// The one that the file describes, if both of its keys are there and the new one is encrypted to.
    pub(super) fn find(text: &str, recipients: &[String]) -> Option<Self> {
        let (old, new) = text.lines().find_map(|line| line.strip_prefix(MARK)?.split_once(TO))?;
        let known = |key: &str| recipients.iter().any(|recipient| recipient == key);
        let is_it = old != new && known(old) && recipients.first().is_some_and(|first| first == new);
        is_it.then(|| Exchange { old: old.to_owned(), new: new.to_owned() })
    }

    /// The file with the new key before the old one.
    fn begun(&self, text: &str, made: &Identity) -> Secret {
        let mut begun = String::new();
        let mut rest = text.lines().filter(|line| !line.starts_with(MARK)).peekable();
        while let Some(line) = rest.next_if(|line| !self.is_of_old(line)) {
            begun.push_str(&format!("{line}\n"));
        }
        begun.push_str(&format!("{MARK}{}{TO}{}\n{}", self.old, self.new, key_lines(made).expose()));
        rest.for_each(|line| begun.push_str(&format!("{line}\n")));
        Secret::new(begun)
    }

    /// The file without the old key.
    fn ended(&self, text: &str) -> Secret {
        let stays = |line: &&str| !line.starts_with(MARK) && !self.is_of_old(line);
        Secret::new(text.lines().filter(stays).map(|line| format!("{line}\n")).collect::<String>())
    }

    /// Whether a line is the old key, or the comment before it.
    fn is_of_old(&self, line: &str) -> bool {
        let public = |identity: Identity| identity.to_public().to_string();
        line.strip_prefix(PUBLIC_KEY).is_some_and(|key| key.trim() == self.old)
            || Identity::from_str(line.trim()).is_ok_and(|identity| public(identity) == self.old)
    }
}

/// A rotation in progress. No other rotation of this key file can begin or end while it exists.
#[derive(Debug)]
pub struct Rotation<'a> {
    keys: &'a Keys,
    ring: Arc<Ring>,
    /// Whether an earlier command made the new key.
    pub continues: bool,
    /// Absent where the key comes from a command, which is not ours to change.
    file: Option<Locked>,
}

impl Keys {
    /// Inserts a new key before the current one, unless an unfinished rotation has done so.
    pub fn begin_rotation(&self) -> Result<Rotation<'_>, KeyError> {
        let place = self.place()?.clone();
        let KeySource::File(path) = &place else {
            let ring = self.read_again()?.ok_or(KeyError::NotAKey { place })?;
            return Ok(Rotation { keys: self, ring, continues: false, file: None });
        };
        let mut file = Locked::open(path)?;
        let text = file.read()?;
        let ring = Ring::parse(&place, &text)?;
        let continues = ring.exchange.is_some();
        if !continues {
            let made = Identity::generate();
            let exchange = Exchange { old: ring.recipient().to_owned(), new: made.to_public().to_string() };
            file = file.replace(&exchange.begun(text.expose(), &made))?;
        }
        let ring = self.read_again()?.ok_or(KeyError::NotAKey { place })?;
        Ok(Rotation { keys: self, ring, continues, file: Some(file) })
    }
}

impl Rotation<'_> {
    /// The keys from now on, the new one first.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The file, if it is outside of this directory: others may use it and not have encrypted to the new key yet.
    pub fn shared_file(&self, home: &Path) -> Option<&Path> {
        let home = fs::canonicalize(home).unwrap_or_else(|_| home.to_owned());
        self.file.as_ref().map(|file| file.path.as_path()).filter(|path| !path.starts_with(home))
    }

    /// Drops the key that was replaced, once nothing is encrypted to it any more. Every other one stays.
    pub fn end(self) -> Result<(), KeyError> {
        let (Some(file), Some(exchange)) = (self.file, &self.ring.exchange) else { return Ok(()) };
        let ended = exchange.ended(file.read()?.expose());
        file.replace(&ended)?;
        self.keys.read_again().map(|_| ())
    }
}

/// A key file that no other rotation works on.
#[derive(Debug)]
struct Locked {
    path: PathBuf,
    _lock: File,
}

impl Locked {
    fn open(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::Io { what: "locked", path: path.to_owned(), source };
        // Where it is a link, the link stays.
        let path = fs::canonicalize(path).map_err(failed)?;
        loop {
            let file = File::open(&path).map_err(failed)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(KeyError::Rotating { path }),
                other => other.map_err(|e| failed(e.into()))?,
            }
            // It may have been replaced between opening and locking.
            let (held, there) = (file.metadata().map_err(failed)?, fs::metadata(&path).map_err(failed)?);
            if (held.dev(), held.ino()) == (there.dev(), there.ino()) {
                return Ok(Locked { path, _lock: file });
            }
        }
    }

    fn read(&self) -> Result<Secret, KeyError> {
        let failed = |source| KeyError::Io { what: "read", path: self.path.clone(), source };
        fs::read_to_string(&self.path).map(Secret::new).map_err(failed)
    }

    /// Replaces the file atomically and durably. The new file is locked before it is in place.
    fn replace(self, text: &Secret) -> Result<Self, KeyError> {
        let failed = |source| KeyError::Io { what: "replaced", path: self.path.clone(), source };
        let (draft, file) = draft(&self.path, text)?;
        let placed = flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from);
        if let Err(e) = placed.and_then(|()| fs::rename(&draft, &self.path)) {
            let _ = fs::remove_file(&draft);
            return Err(failed(e));
        }
        sync_parent(&self.path)?;
        Ok(Locked { path: self.path, _lock: file })
    }
}
