//! Errors of this crate, with the facts that an operator needs. They never contain any part of a private key.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("there is no PEM block of type CERTIFICATE in it")]
    NotPem,
    #[error("certificate {position} in it cannot be read: {why}")]
    NotACertificate { position: usize, why: String },
    #[error("the certificate of {subject} is not that of a CA: {lack}")]
    NotAnAuthority { subject: String, lack: AuthorityLack },
    #[error("the certificate of {subject} expired at {not_after} (it is {now} now)")]
    Expired { subject: String, not_after: Timestamp, now: Timestamp },
    #[error("the certificate of {subject} is not valid before {not_before} (it is {now} now)")]
    NotYetValid { subject: String, not_before: Timestamp, now: Timestamp },
    #[error("the private key does not belong to the certificate of {subject}")]
    KeyDoesNotMatch { subject: String },

    #[error("there is no PEM block with a private key in it")]
    KeyNotPem,
    #[error("the private key is protected by a passphrase; give it without one")]
    KeyEncrypted,
    #[error("the private key cannot be used: P-256, P-384, Ed25519 and RSA of 2048 to 4096 bits are supported")]
    KeyUnsupported,

    #[error("the key that signs backups cannot be used: it is not 32 bytes in hexadecimal")]
    SigningKey,

    #[error("the signing request cannot be read")]
    RequestUnreadable,
    #[error("the signing request is not signed by the key that it names")]
    RequestNotProven,
    #[error("the public key in the signing request has an unsupported type")]
    RequestKeyUnsupported,
    #[error("{name:?} is not a DNS name that a certificate can carry")]
    BadDnsName { name: String },
    #[error("a validity of {validity:#} is not positive")]
    BadValidity { validity: SignedDuration },
    #[error("an RSA key cannot be created: {why}")]
    RsaGeneration { why: String },
    #[error("the certificate cannot be written")]
    Writing(#[from] rcgen::Error),
}

/// Why a certificate may not sign others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthorityLack {
    BasicConstraints,
    KeyCertSign,
}

impl fmt::Display for AuthorityLack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BasicConstraints => "its basicConstraints do not say CA:TRUE",
            Self::KeyCertSign => "its keyUsage lacks keyCertSign",
        })
    }
}
