//! The content of a certificate as plain facts that can be stored, compared and shown.

use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::X509Certificate;

use crate::certificate::{self, sha256_hex};
use crate::{Error, KeyPair, Secret, Usage};
use quorate_core::text::hex;

const SECONDS_PER_DAY: i64 = 24 * 60 * 60;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CertificateFacts {
    pub subject_common_name: Option<String>,
    /// In hexadecimal; equals [`subject_key_id`] of the CA that signed it.
    pub authority_key_id: Option<String>,
    /// SHA-256 of the DER, in hexadecimal.
    pub fingerprint: String,
    /// In hexadecimal.
    #[serde(default)]
    pub serial: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    pub dns: Vec<String>,
    pub addresses: Vec<IpAddr>,
    /// Usable as a server: extendedKeyUsage says so, or does not restrict it.
    pub server: bool,
    /// Usable as a client, likewise.
    pub client: bool,
    pub is_ca: bool,
    /// SHA-256 of the SubjectPublicKeyInfo, in hexadecimal.
    pub public_key_sha256: String,
}

/// The facts of the first certificate in the text.
pub fn inspect(pem: &str) -> Result<CertificateFacts, Error> {
    let chain = certificate::read_pem(pem)?;
    let parsed = certificate::parse_all(&chain[..1])?;
    Ok(facts(&parsed[0], &chain[0]))
}

fn facts(parsed: &X509Certificate<'_>, der: &[u8]) -> CertificateFacts {
    let (dns, addresses) = alternative_names(parsed);
    CertificateFacts {
        subject_common_name: certificate::common_name(parsed),
        authority_key_id: authority_key_id(parsed),
        fingerprint: sha256_hex(der),
        serial: hex(parsed.raw_serial()),
        not_before: certificate::not_before(parsed),
        not_after: certificate::not_after(parsed),
        dns,
        addresses,
        server: allows(parsed, Usage::Server),
        client: allows(parsed, Usage::Client),
        is_ca: parsed.is_ca(),
        public_key_sha256: sha256_hex(parsed.public_key().raw),
    }
}

/// The identifier by which leaves name the key of the first certificate in the text, in hexadecimal.
pub fn subject_key_id(ca_pem: &str) -> Option<String> {
    let chain = certificate::read_pem(ca_pem).ok()?;
    let parsed = certificate::parse_all(&chain[..1]).ok()?;
    Some(hex(&certificate::subject_key_identifier(&parsed[0])))
}

/// Whether a private key belongs to the first certificate in the text.
pub fn key_fits(certificate_pem: &str, key_pem: &Secret) -> Result<(), Error> {
    let chain = certificate::read_pem(certificate_pem)?;
    let parsed = certificate::parse_all(&chain[..1])?;
    match certificate::key_matches(&parsed[0], &KeyPair::from_pem(key_pem)?) {
        true => Ok(()),
        false => Err(Error::KeyDoesNotMatch { subject: certificate::subject(&parsed[0]) }),
    }
}

/// The same of every certificate in the text.
pub fn subject_key_ids(ca_pem: &str) -> Vec<String> {
    let chain = certificate::read_pem(ca_pem).unwrap_or_default();
    let parsed = certificate::parse_all(&chain).unwrap_or_default();
    parsed.iter().map(|one| hex(&certificate::subject_key_identifier(one))).collect()
}

/// Whole days until then; below zero once it is past.
pub fn days_left(not_after: Timestamp, now: Timestamp) -> i64 {
    not_after.duration_since(now).as_secs().div_euclid(SECONDS_PER_DAY)
}

/// The DNS names and addresses that a certificate is for.
pub(crate) fn alternative_names(certificate: &X509Certificate<'_>) -> (Vec<String>, Vec<IpAddr>) {
    let (mut dns, mut addresses) = (Vec::new(), Vec::new());
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return (dns, addresses) };
    for name in &names.value.general_names {
        match name {
            GeneralName::DNSName(name) => dns.push((*name).to_owned()),
            GeneralName::IPAddress(octets) => addresses.extend(address(octets)),
            _ => {}
        }
    }
    (dns, addresses)
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()
}

/// Whether extendedKeyUsage permits this; a certificate without it is not restricted.
pub(crate) fn allows(certificate: &X509Certificate<'_>, usage: Usage) -> bool {
    match certificate.extended_key_usage() {
        Ok(None) => true,
        Ok(Some(extension)) => {
            let allowed = extension.value;
            allowed.any
                || match usage {
                    Usage::Server => allowed.server_auth,
                    Usage::Client => allowed.client_auth,
                }
        }
        Err(_) => false,
    }
}

fn authority_key_id(certificate: &X509Certificate<'_>) -> Option<String> {
    certificate.iter_extensions().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|id| hex(id.0)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_left_counts_whole_days_down_through_zero() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        let days = |text: &str| days_left(text.parse().unwrap(), now);
        assert_eq!(days("2026-11-25T12:00:00Z"), 10);
        assert_eq!(days("2026-11-25T11:59:59Z"), 9);
        assert_eq!(days("2026-11-15T12:00:01Z"), 0);
        assert_eq!(days("2026-11-15T11:59:59Z"), -1);
    }

    #[test]
    fn text_without_a_certificate_is_refused() {
        assert_eq!(inspect("nothing here"), Err(Error::NotPem));
        assert_eq!(subject_key_id("nothing here"), None);
    }
}
