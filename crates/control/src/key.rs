//! The key that encrypts the secrets in ledgers: an age identity, in a file or from a command. It is created at first use, outside of
//! what it protects. It is never created again while a ledger needs a key that is missing.
//!
//! A key file may hold several identities, one on each line: the first one encrypts, all of them decrypt. So a key can be replaced while
//! everything stays readable (`rotation.rs`).

mod rotation;

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use age::secrecy::ExposeSecret;
use age::x25519::Identity;
use quorate_backup::keys::{Identities, Recipients};
use quorate_core::Secret;

use quorate_agent::private_directory;
use rotation::Exchange;
pub use rotation::Rotation;

/// Names the key file, if it is not the one in the home directory.
pub const FILE_VARIABLE: &str = "QUORATE_KEY";
/// A command that prints the key, for keys that are kept in a vault, on a token or under a passphrase.
pub const COMMAND_VARIABLE: &str = "QUORATE_KEY_COMMAND";

/// Begins the comment before an identity.
const PUBLIC_KEY: &str = "# public key: ";

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("the key file {} does not exist, and the ledger is encrypted to {to}", path.display())]
    Missing { path: PathBuf, to: String },
    #[error("{place} holds no age identity: expected a line that begins with AGE-SECRET-KEY-1")]
    NotAKey { place: KeySource },
    #[error("the ledger is encrypted to {to}, but {place} decrypts only what is encrypted to {}", has.join(", "))]
    Wrong { place: KeySource, to: String, has: Vec<String> },
    #[error("the encrypted part is damaged")]
    Damaged(#[source] quorate_backup::keys::KeyError),
    #[error("the key cannot be encrypted to")]
    Unusable(#[source] quorate_backup::keys::KeyError),
    #[error("the command in {COMMAND_VARIABLE} failed: {said}")]
    Command { said: String },
    #[error("both {FILE_VARIABLE} and {COMMAND_VARIABLE} are set: unset one of them")]
    Ambiguous,
    #[error("another `quorate key rotate` is running on the key file {}", path.display())]
    Rotating { path: PathBuf },
    #[error("the key file {} cannot be {what}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
}

/// Where the key is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeySource {
    File(PathBuf),
    Command(String),
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeySource::File(path) => write!(f, "the key file {}", path.display()),
            KeySource::Command(_) => write!(f, "the key of the command in {COMMAND_VARIABLE}"),
        }
    }
}

/// The keys of one home. They are read when they are first needed.
#[derive(Debug)]
pub struct Keys {
    place: Result<KeySource, ()>,
    read: Mutex<Option<Arc<Ring>>>,
}

/// What a key file holds.
pub struct Ring {
    /// Encrypted to.
    recipient: String,
    /// Of all identities, the first one's first.
    recipients: Vec<String>,
    identities: Identities,
    /// The rotation that is not over yet.
    exchange: Option<Exchange>,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("recipients", &self.recipients).finish_non_exhaustive()
    }
}

impl Ring {
    fn parse(place: &KeySource, text: &Secret) -> Result<Self, KeyError> {
        let parsed = |line: &str| Identity::from_str(line.trim()).ok();
        let found: Vec<Identity> = text.expose().lines().filter_map(parsed).collect();
        let not_a_key = || KeyError::NotAKey { place: place.clone() };
        let recipients: Vec<String> = found.iter().map(|identity| identity.to_public().to_string()).collect();
        let recipient = recipients.first().cloned().ok_or_else(not_a_key)?;
        let identities = Identities::parse(text).map_err(|_| not_a_key())?;
        let exchange = Exchange::find(text.expose(), &recipients);
        Ok(Ring { recipient, recipients, identities, exchange })
    }

    /// The public half of the current key.
    pub fn recipient(&self) -> &str {
        &self.recipient
    }

    /// The public halves of all keys, that one first.
    pub fn recipients(&self) -> &[String] {
        &self.recipients
    }

    pub(crate) fn seal(&self, plain: &[u8]) -> Result<Vec<u8>, KeyError> {
        let recipients = Recipients::parse(std::slice::from_ref(&self.recipient)).map_err(KeyError::Unusable)?;
        recipients.expect("there is one").seal(plain).map_err(KeyError::Unusable)
    }

    fn open(&self, sealed: &[u8]) -> Result<Vec<u8>, KeyError> {
        self.identities.open(sealed).map_err(KeyError::Damaged)
    }
}

impl Keys {
    /// Of a home without any setting: the file `key` in it.
    pub fn in_home(root: &Path) -> Self {
        Keys { place: Ok(KeySource::File(root.join("key"))), read: Mutex::default() }
    }

    /// From the environment, or the home directory's key.
    pub fn from_environment(root: &Path) -> Self {
        let var = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let place = match (var(FILE_VARIABLE), var(COMMAND_VARIABLE)) {
            (None, None) => Ok(KeySource::File(root.join("key"))),
            (Some(path), None) => Ok(KeySource::File(std::path::absolute(&path).unwrap_or_else(|_| path.into()))),
            (None, Some(command)) => Ok(KeySource::Command(command.to_string_lossy().into_owned())),
            (Some(_), Some(_)) => Err(()),
        };
        Keys { place, read: Mutex::default() }
    }

    pub fn place(&self) -> Result<&KeySource, KeyError> {
        self.place.as_ref().map_err(|()| KeyError::Ambiguous)
    }

    /// The keys, if there are any.
    pub fn ring(&self) -> Result<Option<Arc<Ring>>, KeyError> {
        if let Some(ring) = &*self.cached() {
            return Ok(Some(ring.clone()));
        }
        self.read_again()
    }

    fn read_again(&self) -> Result<Option<Arc<Ring>>, KeyError> {
        let place = self.place()?;
        let Some(text) = read(place)? else { return Ok(None) };
        let ring = Arc::new(Ring::parse(place, &text)?);
        *self.cached() = Some(ring.clone());
        Ok(Some(ring))
    }

    fn cached(&self) -> std::sync::MutexGuard<'_, Option<Arc<Ring>>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens what is encrypted to `to`.
    pub(crate) fn open(&self, to: &str, sealed: &[u8]) -> Result<Vec<u8>, KeyError> {
        let holds = |ring: &Arc<Ring>| ring.recipients.iter().any(|known| known == to);
        // The key may have been replaced since it was read.
        let ring = match self.ring()?.filter(holds) {
            Some(ring) => Some(ring),
            None => self.read_again()?,
        };
        match (ring, self.place()?.clone()) {
            (Some(ring), _) if holds(&ring) => ring.open(sealed),
            (Some(ring), place) => Err(KeyError::Wrong { place, to: to.to_owned(), has: ring.recipients.clone() }),
            (None, KeySource::File(path)) => Err(KeyError::Missing { path, to: to.to_owned() }),
            (None, place) => Err(KeyError::NotAKey { place }),
        }
    }

    /// The keys to write with. The first one is created here, unless something needs one that is lost: `needed` says what.
    pub(crate) fn ring_to_write(&self, needed: impl FnOnce() -> Option<String>) -> Result<Arc<Ring>, KeyError> {
        if let Some(ring) = self.ring()? {
            return Ok(ring);
        }
        let place = self.place()?.clone();
        let KeySource::File(path) = &place else { return Err(KeyError::NotAKey { place }) };
        if let Some(to) = needed() {
            return Err(KeyError::Missing { path: path.clone(), to });
        }
        create(path, &key_file(&Identity::generate()))?;
        self.read_again()?.ok_or(KeyError::NotAKey { place })
    }
}

fn read(place: &KeySource) -> Result<Option<Secret>, KeyError> {
    match place {
        KeySource::File(path) => match fs::read_to_string(path) {
            Ok(text) => Ok(Some(Secret::new(text))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(KeyError::Io { what: "read", path: path.clone(), source }),
        },
        KeySource::Command(command) => {
            // It may ask for a passphrase at the terminal.
            let ran = Command::new("sh").arg("-c").arg(command).stderr(std::process::Stdio::inherit()).output();
            let output = ran.map_err(|e| KeyError::Command { said: e.to_string() })?;
            if !output.status.success() {
                return Err(KeyError::Command { said: output.status.to_string() });
            }
            Ok(Some(Secret::new(String::from_utf8_lossy(&output.stdout))))
        }
    }
}

fn key_file(identity: &Identity) -> Secret {
    let lines = key_lines(identity);
    Secret::new(format!(
        "# The key to the secrets in quorate's ledgers. Keep a copy of this file apart from them: without it they cannot be opened.\n{}",
        lines.expose()
    ))
}

/// As `age-keygen` writes it.
fn key_lines(identity: &Identity) -> Secret {
    let (public, secret) = (identity.to_public(), identity.to_string());
    Secret::new(format!("{PUBLIC_KEY}{public}\n{}\n", secret.expose_secret()))
}

/// Creates the file atomically and durably, unless another process has created it meanwhile.
fn create(path: &Path, text: &Secret) -> Result<(), KeyError> {
    let (draft, _) = draft(path, text)?;
    let linked = fs::hard_link(&draft, path);
    let _ = fs::remove_file(&draft);
    match linked {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            Err(KeyError::Io { what: "created", path: path.to_owned(), source: e })
        }
        _ => sync_parent(path),
    }
}

/// A file next to the one that it becomes.
fn draft(path: &Path, text: &Secret) -> Result<(PathBuf, File), KeyError> {
    let failed = |source| KeyError::Io { what: "created", path: path.to_owned(), source };
    if let Some(parent) = path.parent() {
        private_directory(parent).map_err(failed)?;
    }
    let draft = path.with_extension(format!("new-{}", quorate_pki::random_hex(4)));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft).map_err(failed)?;
    file.write_all(text.expose().as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    Ok((draft, file))
}

fn sync_parent(path: &Path) -> Result<(), KeyError> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    let synced = File::open(parent).and_then(|directory| directory.sync_all());
    synced.map_err(|source| KeyError::Io { what: "created", path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_do_not_inherit_what_opens_ledgers() {
        for variable in [FILE_VARIABLE, COMMAND_VARIABLE] {
            assert!(quorate_providers::is_controllers_alone(variable.as_ref()), "{variable}");
        }
    }
}
