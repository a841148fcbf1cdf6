//! Certificates as the facts report them.

use std::time::Duration;

use quorate_core::model::CertificateSeen;
use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::oid_registry;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::tls;

pub(crate) fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let last = parsed.subject().iter_common_name().last()?;
    last.as_str().ok().map(str::to_owned)
}

/// The last moment at which a certificate was valid.
pub(crate) fn last_second(certificate: &CertificateDer<'_>) -> Option<UnixTime> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let seconds = u64::try_from(parsed.validity().not_after.timestamp()).ok()?;
    Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
}

/// The facts of the first certificate of a chain in PEM.
pub(crate) fn seen(chain: &str) -> Option<CertificateSeen> {
    let facts = quorate_pki::inspect(chain).ok()?;
    let certificates = tls::chain_from_pem(chain).ok()?;
    let (_, parsed) = X509Certificate::from_der(certificates.first()?).ok()?;
    let organization = parsed.subject().iter_organization().next().and_then(|name| name.as_str().ok());
    let addresses = facts.addresses.iter().map(ToString::to_string);
    Some(CertificateSeen {
        fingerprint: facts.fingerprint,
        common_name: facts.subject_common_name,
        organization: organization.map(str::to_owned),
        authority_key_id: facts.authority_key_id,
        not_before: facts.not_before,
        not_after: facts.not_after,
        sans: facts.dns.iter().cloned().chain(addresses).collect(),
        key_algorithm: key_algorithm(parsed.public_key()),
    })
}

/// As in the spec.
fn key_algorithm(key: &SubjectPublicKeyInfo<'_>) -> String {
    let curve = key.algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
    let name = if key.algorithm.algorithm == oid_registry::OID_PKCS1_RSAENCRYPTION {
        "rsa"
    } else if key.algorithm.algorithm == oid_registry::OID_SIG_ED25519 {
        "ed25519"
    } else if curve == Some(oid_registry::OID_EC_P256) {
        "p256"
    } else if curve == Some(oid_registry::OID_NIST_EC_P384) {
        "p384"
    } else {
        "other"
    };
    name.to_owned()
}
