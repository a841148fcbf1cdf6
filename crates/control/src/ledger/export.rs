//! A cluster's state in one encrypted file, to move it or to keep a copy. It uses the age format, so anyone with the
//! key can open it with common tools.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::str::FromStr;

use age::secrecy::SecretString;
use quorate_core::Secret;
use quorate_core::model::Ledger;
use serde::Deserialize;

use super::writer::judged;
use super::{LedgerError, check_keys, parse};

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("`{0}` is not an age public key (they begin with age1)")]
    NotARecipient(String),
    #[error("no age identity was found in the given file (a line that begins with AGE-SECRET-KEY-1)")]
    NotAnIdentity,
    #[error("the export could not be encrypted")]
    Encrypt(#[source] age::EncryptError),
    #[error("the export could not be opened: the key or passphrase does not fit, or it is damaged")]
    Decrypt(#[source] age::DecryptError),
    #[error("the export could not be read or written whole")]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// The recipients of an export.
#[derive(Clone, Debug)]
pub enum SealFor {
    Passphrase(Secret),
    /// age public keys.
    Recipients(Vec<String>),
}

/// What opens an export.
#[derive(Clone, Debug)]
pub enum OpenWith {
    Passphrase(Secret),
    /// The text of an age identity file.
    Identities(Secret),
}

/// What an export holds.
#[derive(Clone, PartialEq, Debug)]
pub struct Exported {
    pub ledger: Ledger,
    /// The lines of the cluster's history; none in exports of a quorate that knew no history.
    pub history: String,
}

/// The field next to those of the ledger; an older quorate ignores it.
const HISTORY: &str = "history";

/// Encrypts the ledger, without its lock, and the lines of the history.
pub fn export(ledger: &Ledger, history: &str, whom: &SealFor) -> Result<Vec<u8>, ExportError> {
    // A ledger that was read in an older format has been converted.
    let plain = Ledger { lock: None, ..ledger.as_written_here() };
    let mut plain = serde_json::to_value(&plain).expect("plain data serializes");
    plain[HISTORY] = history.into();
    let bytes = serde_json::to_vec(&plain).expect("plain data serializes");
    let mut sealed = Vec::new();
    let mut writer = encryptor(whom)?.wrap_output(&mut sealed)?;
    writer.write_all(&bytes)?;
    writer.finish()?;
    Ok(sealed)
}

/// Decrypts an export.
pub fn import(sealed: &[u8], key: &OpenWith) -> Result<Exported, ExportError> {
    let decryptor = age::Decryptor::new(sealed).map_err(ExportError::Decrypt)?;
    let mut reader = match key {
        OpenWith::Passphrase(passphrase) => {
            let identity = age::scrypt::Identity::new(passphrase_of(passphrase));
            decryptor.decrypt(std::iter::once(&identity as &dyn age::Identity))
        }
        OpenWith::Identities(file) => {
            let identities: Vec<age::x25519::Identity> =
                file.expose().lines().filter_map(|line| age::x25519::Identity::from_str(line.trim()).ok()).collect();
            if identities.is_empty() {
                return Err(ExportError::NotAnIdentity);
            }
            decryptor.decrypt(identities.iter().map(|i| i as &dyn age::Identity))
        }
    }
    .map_err(ExportError::Decrypt)?;
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes)?;
    let path = PathBuf::from("export");
    let checked = parse(&path, &bytes).and_then(|ledger| check_keys(&path, &ledger).map(|()| ledger));
    let ledger = checked.map_err(|error| judged(error, &path, &bytes))?;
    let beside: Beside =
        serde_json::from_slice(&bytes).map_err(|source| LedgerError::Unreadable { path, source, intact: None })?;
    Ok(Exported { ledger, history: beside.history })
}

#[derive(Deserialize)]
struct Beside {
    #[serde(default)]
    history: String,
}

fn encryptor(whom: &SealFor) -> Result<age::Encryptor, ExportError> {
    match whom {
        SealFor::Passphrase(passphrase) => Ok(age::Encryptor::with_user_passphrase(passphrase_of(passphrase))),
        SealFor::Recipients(recipients) => {
            let parsed = recipients
                .iter()
                .map(|r| age::x25519::Recipient::from_str(r).map_err(|_| ExportError::NotARecipient(r.clone())))
                .collect::<Result<Vec<_>, _>>()?;
            age::Encryptor::with_recipients(parsed.iter().map(|r| r as &dyn age::Recipient))
                .map_err(ExportError::Encrypt)
        }
    }
}

fn passphrase_of(passphrase: &Secret) -> SecretString {
    SecretString::from(passphrase.expose().to_owned())
}
