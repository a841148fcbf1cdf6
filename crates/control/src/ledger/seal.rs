//! Secrets at rest. In a stored ledger each secret is a number, `sealed:3`, and all of them together are one age file in the field
//! `sealed`, encrypted to the key of this home. Everything else stays readable, for people who investigate a problem.
//!
//! Secrets change far less often than the ledger is written, so an encrypted part is reused until they change.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use pem::{EncodeConfig, LineEnding, Pem};
use quorate_core::model::Ledger;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::key::{KeyError, Ring};

/// The field next to those of the ledger.
const FIELD: &str = "sealed";
/// The prefix of a secret's placeholder, before its number.
const MARK: &str = "sealed:";
/// age's own armour.
const LABEL: &str = "AGE ENCRYPTED FILE";

/// The encrypted part of a stored ledger.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Sealed {
    /// The public half of the key that opens it.
    pub(super) to: String,
    /// An age file that holds a JSON list of texts: `jq -r .sealed.secrets FILE | age --decrypt --identity KEY` shows it.
    secrets: String,
}

/// The encrypted part that was created or opened last, and its content.
#[derive(Clone, Default)]
pub(super) struct Cache(Arc<Mutex<Option<Opened>>>);

struct Opened {
    secrets: Vec<String>,
    sealed: Sealed,
}

/// It shows no secret.
impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cache(…)")
    }
}

impl Cache {
    fn get(&self, secrets: &[String], to: &str) -> Option<Sealed> {
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cached
            .as_ref()
            .filter(|known| known.secrets == secrets && known.sealed.to == to)
            .map(|known| known.sealed.clone())
    }

    fn opened(&self, sealed: &Sealed) -> Option<Vec<String>> {
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cached.as_ref().filter(|known| known.sealed == *sealed).map(|known| known.secrets.clone())
    }

    fn keep(&self, secrets: Vec<String>, sealed: Sealed) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Opened { secrets, sealed });
    }
}

/// The ledger as it is stored. A ledger without secrets needs no key.
pub(super) fn seal(
    ledger: &Ledger,
    cache: &Cache,
    ring: impl FnOnce() -> Result<Arc<Ring>, KeyError>,
) -> Result<Value, KeyError> {
    let (mut hidden, mut secrets) = (ledger.clone(), Vec::new());
    hidden.each_secret(|text| {
        let mark = format!("{MARK}{}", secrets.len());
        secrets.push(std::mem::replace(text, mark));
    });
    let mut stored = serde_json::to_value(&hidden).expect("plain data serializes");
    if secrets.is_empty() {
        return Ok(stored);
    }
    let ring = ring()?;
    let sealed = match cache.get(&secrets, ring.recipient()) {
        Some(sealed) => sealed,
        None => {
            let plain = serde_json::to_vec(&secrets).expect("texts serialize");
            let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
            let armoured = pem::encode_config(&Pem::new(LABEL, ring.seal(&plain)?), config);
            let sealed = Sealed { to: ring.recipient().to_owned(), secrets: armoured };
            cache.keep(secrets, sealed.clone());
            sealed
        }
    };
    stored[FIELD] = serde_json::to_value(sealed).expect("plain data serializes");
    Ok(stored)
}

/// The encrypted part of a stored ledger; none in one that an older quorate wrote, or that holds no secret.
pub(super) fn part(stored: &[u8]) -> Result<Option<Sealed>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Part {
        #[serde(default)]
        sealed: Option<Sealed>,
    }
    Ok(serde_json::from_slice::<Part>(stored)?.sealed)
}

/// Whether it holds secrets that are not encrypted to this key.
pub(super) fn is_to_be_sealed(stored: &[u8], to: &str) -> bool {
    match part(stored) {
        Ok(Some(sealed)) => sealed.to != to,
        Ok(None) => serde_json::from_slice::<Ledger>(stored).is_ok_and(|mut ledger| {
            let mut any = false;
            ledger.each_secret(|_| any = true);
            any
        }),
        Err(_) => false,
    }
}

/// Puts the secrets back in their places.
pub(super) fn unseal(
    ledger: &mut Ledger,
    sealed: &Sealed,
    cache: &Cache,
    open: impl FnOnce(&str, &[u8]) -> Result<Vec<u8>, KeyError>,
) -> Result<(), KeyError> {
    let secrets = match cache.opened(sealed) {
        Some(secrets) => secrets,
        None => {
            let damaged = |why: String| KeyError::Damaged(quorate_backup::keys::KeyError::Damaged(why));
            let armoured = pem::parse(&sealed.secrets).map_err(|e| damaged(e.to_string()))?;
            let plain = open(&sealed.to, armoured.contents())?;
            let secrets: Vec<String> = serde_json::from_slice(&plain).map_err(|e| damaged(e.to_string()))?;
            cache.keep(secrets.clone(), sealed.clone());
            secrets
        }
    };
    let mut missing = None;
    ledger.each_secret(|text| {
        let number = text.strip_prefix(MARK).and_then(|number| number.parse::<usize>().ok());
        match number.and_then(|number| secrets.get(number)) {
            Some(secret) => secret.clone_into(text),
            None => missing = Some(text.clone()),
        }
    });
    match missing {
        None => Ok(()),
        // What stands there may be a secret itself.
        Some(_) => {
            let why = String::from("a secret is not in it");
            Err(KeyError::Damaged(quorate_backup::keys::KeyError::Damaged(why)))
        }
    }
}
