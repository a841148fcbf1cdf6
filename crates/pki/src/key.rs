//! Key pairs: generated here, or user-provided. A key is written as PKCS#8 version 1, which every version of OpenSSL and Go
//! can read; it is read as PKCS#8, PKCS#1 or SEC 1.

use std::fmt;

use rcgen::{CertificateParams, DistinguishedName, DnType, PublicKeyData};
use rsa::pkcs8::EncodePrivateKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};

use crate::{Error, Secret, der};

const RSA_BITS: usize = 3072;

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyAlgorithm {
    #[default]
    P256,
    P384,
    /// 3072 bits when made here. Making one takes long.
    Rsa,
    Ed25519,
}

pub struct KeyPair(pub(crate) rcgen::KeyPair);

impl KeyPair {
    pub fn generate(algorithm: KeyAlgorithm) -> Result<Self, Error> {
        match algorithm {
            KeyAlgorithm::P256 => Ok(Self(rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?)),
            KeyAlgorithm::P384 => Ok(Self(rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384)?)),
            KeyAlgorithm::Ed25519 => Self::generate_ed25519(),
            KeyAlgorithm::Rsa => Self::generate_rsa(RSA_BITS),
        }
    }

    /// ring writes version 2 of PKCS#8, which OpenSSL 3.0 does not read, so the seed is put into version 1.
    fn generate_ed25519() -> Result<Self, Error> {
        let generated = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519)?;
        let fields = der::inner(generated.serialized_der()).ok_or(Error::KeyUnsupported)?;
        let private_key = fields.get(2).ok_or(Error::KeyUnsupported)?;
        let algorithm = der::wrap(der::SEQUENCE, &[der::ED25519]);
        Self::from_pkcs8(&der::wrap(der::SEQUENCE, &[der::INTEGER_ZERO, &algorithm, private_key]))
    }

    /// ring cannot make RSA keys. The rsa crate makes them and does nothing else: its private key operations are not
    /// constant in time, ring's are.
    pub(crate) fn generate_rsa(bits: usize) -> Result<Self, Error> {
        let key = rsa::RsaPrivateKey::new(&mut rsa::rand_core::OsRng, bits)
            .map_err(|error| Error::RsaGeneration { why: error.to_string() })?;
        let pkcs8 = key.to_pkcs8_der().map_err(|_| Error::KeyUnsupported)?;
        Self::from_pkcs8(pkcs8.as_bytes())
    }

    /// Reads the first private key in the text; what stands before it (`EC PARAMETERS`, certificates) is passed over.
    pub fn from_pem(pem: &Secret) -> Result<Self, Error> {
        if ["BEGIN ENCRYPTED PRIVATE KEY", "4,ENCRYPTED"].iter().any(|mark| pem.expose().contains(mark)) {
            return Err(Error::KeyEncrypted);
        }
        // The reader's own error may quote the text, so it goes no further.
        let key = PrivateKeyDer::from_pem_slice(pem.expose().as_bytes()).map_err(|_| Error::KeyNotPem)?;
        match &key {
            PrivateKeyDer::Pkcs8(key) => Self::from_pkcs8(key.secret_pkcs8_der()),
            PrivateKeyDer::Pkcs1(key) => Self::from_pkcs8(&pkcs1_in_pkcs8(key.secret_pkcs1_der())),
            PrivateKeyDer::Sec1(key) => {
                Self::from_pkcs8(&sec1_in_pkcs8(key.secret_sec1_der()).ok_or(Error::KeyUnsupported)?)
            }
            _ => Err(Error::KeyUnsupported),
        }
    }

    fn from_pkcs8(der: &[u8]) -> Result<Self, Error> {
        rcgen::KeyPair::try_from(&PrivatePkcs8KeyDer::from(der)).map(Self).map_err(|_| Error::KeyUnsupported)
    }

    pub fn to_pem(&self) -> Secret {
        Secret::new(self.0.serialize_pem())
    }

    /// The public key as a SubjectPublicKeyInfo.
    pub fn public_key_der(&self) -> Vec<u8> {
        self.0.subject_public_key_info()
    }

    pub fn public_key_pem(&self) -> String {
        self.0.public_key_pem()
    }

    pub fn algorithm(&self) -> KeyAlgorithm {
        let algorithm = self.0.algorithm();
        if algorithm == &rcgen::PKCS_ECDSA_P256_SHA256 {
            KeyAlgorithm::P256
        } else if algorithm == &rcgen::PKCS_ECDSA_P384_SHA384 {
            KeyAlgorithm::P384
        } else if algorithm == &rcgen::PKCS_ED25519 {
            KeyAlgorithm::Ed25519
        } else {
            KeyAlgorithm::Rsa
        }
    }

    /// A signing request in PEM. The name is for people who read it: the signer decides what the certificate says.
    pub fn csr(&self, common_name: &str) -> Result<String, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if !common_name.is_empty() {
            params.distinguished_name.push(DnType::CommonName, common_name);
        }
        Ok(params.serialize_request(&self.0)?.pem()?)
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({:?})", self.algorithm())
    }
}

fn pkcs1_in_pkcs8(pkcs1: &[u8]) -> Vec<u8> {
    let algorithm = der::wrap(der::SEQUENCE, &[der::RSA_ENCRYPTION, der::NULL]);
    let key = der::wrap(der::OCTET_STRING, &[pkcs1]);
    der::wrap(der::SEQUENCE, &[der::INTEGER_ZERO, &algorithm, &key])
}

/// PKCS#8 names the curve outside of the key, SEC 1 inside.
fn sec1_in_pkcs8(sec1: &[u8]) -> Option<Vec<u8>> {
    let fields = der::inner(sec1)?;
    let (curve, others): (Vec<&[u8]>, Vec<&[u8]>) =
        fields.into_iter().partition(|field| field.first() == Some(&der::CONTEXT_0));
    let algorithm = der::wrap(der::SEQUENCE, &[der::EC_PUBLIC_KEY, der::content(curve.first()?)?]);
    let key = der::wrap(der::OCTET_STRING, &[&der::wrap(der::SEQUENCE, &others)]);
    Some(der::wrap(der::SEQUENCE, &[der::INTEGER_ZERO, &algorithm, &key]))
}
