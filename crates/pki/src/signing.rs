//! Keys that sign data stored where others can write. Ed25519: the public key verifies, only the secret key signs.

use std::fmt;
use std::sync::Arc;

use quorate_core::spec::Signer;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};

use crate::{Error, Secret, random_hex};

const SEED: usize = 32;

/// The secret half. It never shows itself.
#[derive(Clone)]
pub struct SigningKey {
    pair: Arc<Ed25519KeyPair>,
    seed: Secret,
}

impl SigningKey {
    pub fn generate() -> Self {
        let seed = Secret::new(random_hex(SEED));
        SigningKey::load(&seed).expect("a seed is any 32 bytes")
    }

    /// As [`secret`](Self::secret) gave it.
    pub fn load(seed: &Secret) -> Result<Self, Error> {
        let bytes = from_hex(seed.expose()).ok_or(Error::SigningKey)?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&bytes).map_err(|_| Error::SigningKey)?;
        Ok(SigningKey { pair: Arc::new(pair), seed: seed.clone() })
    }

    pub fn secret(&self) -> &Secret {
        &self.seed
    }

    pub fn signer(&self) -> Signer {
        Signer::new(self.pair.public_key().as_ref().try_into().expect("a public key has 32 bytes"))
    }

    /// In hexadecimal.
    pub fn sign(&self, message: &[u8]) -> String {
        quorate_core::text::hex(self.pair.sign(message).as_ref())
    }
}

/// Whether this key made the signature of this message.
pub fn is_signed_by(signer: &Signer, message: &[u8], signature: &str) -> bool {
    let Some(signature) = from_hex(signature) else { return false };
    UnparsedPublicKey::new(&ED25519, signer.bytes()).verify(message, &signature).is_ok()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let plain = text.len().is_multiple_of(2) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let pairs = (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok());
    if plain { pairs.collect() } else { None }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.signer())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_itself_signs_and_only_for_these_bytes() {
        let (key, other) = (SigningKey::generate(), SigningKey::generate());
        let signature = key.sign(b"one");
        assert!(is_signed_by(&key.signer(), b"one", &signature));
        assert!(!is_signed_by(&key.signer(), b"two", &signature));
        assert!(!is_signed_by(&other.signer(), b"one", &signature));
        for bad in ["", "zz", "é", &signature[1..], &signature[2..]] {
            assert!(!is_signed_by(&key.signer(), b"one", bad), "{bad}");
        }
    }

    #[test]
    fn it_comes_back_from_the_ledger_and_never_shows_itself() {
        let key = SigningKey::generate();
        let again = SigningKey::load(key.secret()).unwrap();
        assert_eq!(again.signer(), key.signer());
        assert!(!format!("{key:?}").contains(key.secret().expose()));
        assert!(SigningKey::load(&Secret::new("00")).is_err());
    }
}
