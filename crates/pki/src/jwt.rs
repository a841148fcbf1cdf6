//! The key pair with which etcd signs its JSON web tokens, in a form that every etcd since 3.4 reads: the Go library of 3.4
//! reads EC private keys as SEC 1 only, and does not support Ed25519.

use crate::certificate::pem_block;
use crate::{Error, KeyAlgorithm, KeyPair, Secret, der};

const RSA_BITS: usize = 2048;

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum JwtAlgorithm {
    #[default]
    Es256,
    /// Making the key takes long.
    Rs256,
}

impl JwtAlgorithm {
    /// The value of `sign-method` in etcd's `--auth-token`.
    pub fn sign_method(self) -> &'static str {
        match self {
            Self::Es256 => "ES256",
            Self::Rs256 => "RS256",
        }
    }
}

/// The private key for `priv-key` and the public key for `pub-key` in etcd's `--auth-token=jwt,…`, both in PEM.
pub fn jwt_keypair(algorithm: JwtAlgorithm) -> Result<(Secret, String), Error> {
    match algorithm {
        JwtAlgorithm::Es256 => {
            let key = KeyPair::generate(KeyAlgorithm::P256)?;
            let sec1 = sec1_of_pkcs8(key.0.serialized_der()).ok_or(Error::KeyUnsupported)?;
            Ok((Secret::new(pem_block("EC PRIVATE KEY", &sec1)), key.public_key_pem()))
        }
        JwtAlgorithm::Rs256 => {
            let key = KeyPair::generate_rsa(RSA_BITS)?;
            Ok((key.to_pem(), key.public_key_pem()))
        }
    }
}

/// Whether the two keys, in PEM, belong together.
pub fn is_pair(private: &Secret, public: &str) -> bool {
    KeyPair::from_pem(private).is_ok_and(|key| key.public_key_pem().trim() == public.trim())
}

/// Moves the curve from where PKCS#8 names it to where SEC 1 does.
fn sec1_of_pkcs8(pkcs8: &[u8]) -> Option<Vec<u8>> {
    let [_, algorithm, key] = der::inner(pkcs8)?[..] else { return None };
    let [_, curve] = der::inner(algorithm)?[..] else { return None };
    let [version, private, public] = der::inner(der::content(key)?)?[..] else { return None };
    Some(der::wrap(der::SEQUENCE, &[version, private, &der::wrap(der::CONTEXT_0, &[curve]), public]))
}
