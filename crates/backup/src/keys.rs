//! Keys. Each full backup has a separate identity, to which it and the changes on top of it are encrypted. An object next to the
//! backup contains that identity, encrypted to the operator's recipients. So recipients can be added and removed without writing the
//! data again; a removed one may have kept what it could read before. Everything is plain age: `age` and `zstd` open a backup without
//! quorate.

use std::io::{self, Read, Write};
use std::str::FromStr;

use age::secrecy::ExposeSecret;
use age::x25519;
use quorate_core::Secret;

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("`{0}` is not an age public key (they begin with age1; `age-keygen` creates one)")]
    NotARecipient(String),
    #[error("no age identity was found in the given file: expected a line that begins with AGE-SECRET-KEY-1")]
    NotAnIdentity,
    #[error("this backup is encrypted, and no identity was given: give the age identity file of one of its recipients")]
    NoIdentity,
    #[error("none of the given identities decrypts it: it is encrypted to other recipients")]
    WrongIdentity,
    #[error("it is damaged: {0}")]
    Damaged(String),
    #[error("it holds more than the {limit} bytes that its manifest says")]
    TooLarge { limit: u64 },
    /// What came out of it could not be written here, which says nothing of what was stored.
    #[error("what it holds cannot be written")]
    Output(#[source] io::Error),
    #[error("it holds the identity of another backup: expected {expected}, found {found}")]
    OtherBackup { expected: String, found: String },
    #[error("it could not be encrypted")]
    Encrypt(#[source] Box<age::EncryptError>),
}

/// The operator's public keys. Never empty.
#[derive(Clone)]
pub struct Recipients(Vec<x25519::Recipient>);

impl Recipients {
    /// `None` for an empty list: nothing is to be encrypted.
    pub fn parse(keys: &[String]) -> Result<Option<Self>, KeyError> {
        let parse = |key: &String| x25519::Recipient::from_str(key).map_err(|_| KeyError::NotARecipient(key.clone()));
        let keys = keys.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        Ok((!keys.is_empty()).then_some(Recipients(keys)))
    }

    /// Encrypts something small to all of them.
    pub fn seal(&self, plain: &[u8]) -> Result<Vec<u8>, KeyError> {
        let encryptor = age::Encryptor::with_recipients(self.0.iter().map(|key| key as &dyn age::Recipient));
        let mut sealed = Vec::new();
        let mut writer = encryptor
            .map_err(|error| KeyError::Encrypt(Box::new(error)))?
            .wrap_output(&mut sealed)
            .map_err(in_memory)?;
        writer.write_all(plain).map_err(in_memory)?;
        writer.finish().map_err(in_memory)?;
        Ok(sealed)
    }
}

fn in_memory(error: io::Error) -> KeyError {
    KeyError::Damaged(error.to_string())
}

/// The operator's secret keys.
#[derive(Clone)]
pub struct Identities(Vec<x25519::Identity>);

impl Identities {
    /// Of an identity file as `age-keygen` writes it.
    pub fn parse(file: &Secret) -> Result<Self, KeyError> {
        let lines = file.expose().lines();
        let found: Vec<_> = lines.filter_map(|line| x25519::Identity::from_str(line.trim()).ok()).collect();
        if found.is_empty() { Err(KeyError::NotAnIdentity) } else { Ok(Identities(found)) }
    }

    /// Opens something small that was sealed to one of them.
    pub fn open(&self, sealed: &[u8]) -> Result<Vec<u8>, KeyError> {
        let decryptor = age::Decryptor::new(sealed).map_err(told)?;
        let mut reader = decryptor.decrypt(self.0.iter().map(|key| key as &dyn age::Identity)).map_err(told)?;
        let mut plain = Vec::new();
        reader.read_to_end(&mut plain).map_err(in_memory)?;
        Ok(plain)
    }
}

fn told(error: age::DecryptError) -> KeyError {
    match error {
        age::DecryptError::NoMatchingKeys => KeyError::WrongIdentity,
        other => KeyError::Damaged(other.to_string()),
    }
}

/// The identity of one backup, which opens it and the changes on top of it.
#[derive(Clone)]
pub struct BackupKey(x25519::Identity);

impl BackupKey {
    pub fn generate() -> Self {
        BackupKey(x25519::Identity::generate())
    }

    /// The public half, which is all that is needed to add to the backup.
    pub fn recipient(&self) -> String {
        self.0.to_public().to_string()
    }

    pub fn wrap(&self, recipients: &Recipients) -> Result<Vec<u8>, KeyError> {
        let text = format!("{}\n", self.0.to_string().expose_secret());
        recipients.seal(text.as_bytes())
    }

    /// `expected` is the public half, from the manifest.
    pub fn unwrap(sealed: &[u8], identities: &Identities, expected: &str) -> Result<Self, KeyError> {
        let plain = Secret::new(String::from_utf8_lossy(&identities.open(sealed)?));
        let key = x25519::Identity::from_str(plain.expose().trim());
        let key = BackupKey(key.map_err(|why| KeyError::Damaged(why.to_owned()))?);
        match key.recipient() {
            found if found == expected => Ok(key),
            found => Err(KeyError::OtherBackup { expected: expected.to_owned(), found }),
        }
    }

    pub(crate) fn decrypt<R: Read>(&self, sealed: R) -> Result<impl Read + use<R>, KeyError> {
        let decryptor = age::Decryptor::new_buffered(io::BufReader::new(sealed)).map_err(told)?;
        decryptor.decrypt(std::iter::once(&self.0 as &dyn age::Identity)).map_err(told)
    }
}

pub(crate) fn encrypt_to<W: Write>(recipient: &str, output: W) -> Result<age::stream::StreamWriter<W>, KeyError> {
    let key = x25519::Recipient::from_str(recipient).map_err(|_| KeyError::NotARecipient(recipient.to_owned()))?;
    let encryptor = age::Encryptor::with_recipients(std::iter::once(&key as &dyn age::Recipient));
    encryptor.map_err(|error| KeyError::Encrypt(Box::new(error)))?.wrap_output(output).map_err(in_memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operator() -> (Identities, String) {
        let key = x25519::Identity::generate();
        let file = format!("# created: today\n{}\n", key.to_string().expose_secret());
        (Identities::parse(&Secret::new(file)).unwrap(), key.to_public().to_string())
    }

    #[test]
    fn every_recipient_opens_it_and_nobody_else() {
        let ((one, one_public), (other, other_public), (stranger, _)) = (operator(), operator(), operator());
        let recipients = Recipients::parse(&[one_public, other_public]).unwrap().unwrap();
        let key = BackupKey::generate();
        let sealed = key.wrap(&recipients).unwrap();
        for identities in [one, other] {
            assert_eq!(BackupKey::unwrap(&sealed, &identities, &key.recipient()).unwrap().recipient(), key.recipient());
        }
        assert!(matches!(BackupKey::unwrap(&sealed, &stranger, &key.recipient()), Err(KeyError::WrongIdentity)));
    }

    #[test]
    fn the_key_of_another_backup_is_reported() {
        let (one, public) = operator();
        let recipients = Recipients::parse(&[public]).unwrap().unwrap();
        let sealed = BackupKey::generate().wrap(&recipients).unwrap();
        let expected = BackupKey::generate().recipient();
        assert!(matches!(BackupKey::unwrap(&sealed, &one, &expected), Err(KeyError::OtherBackup { .. })));
    }

    #[test]
    fn an_invalid_key_is_reported() {
        assert!(matches!(Recipients::parse(&[String::from("ssh-rsa x")]), Err(KeyError::NotARecipient(_))));
        assert!(Recipients::parse(&[]).unwrap().is_none());
        assert!(matches!(Identities::parse(&Secret::new("age1abc")), Err(KeyError::NotAnIdentity)));
        let (one, _) = operator();
        assert!(matches!(one.open(b"nothing of age"), Err(KeyError::Damaged(_))));
    }
}
