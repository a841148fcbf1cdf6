//! Reads certificates: from PEM text to parsed X.509, and the checks that are shared by loading an authority, inspecting a
//! certificate and checking a user-provided one.

use jiff::Timestamp;
use ring::digest;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{AuthorityLack, Error, KeyPair};
use quorate_core::text::hex;

/// The DER of every certificate in the text, at least one.
pub(crate) fn read_pem(pem: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let mut chain = Vec::new();
    for block in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let position = chain.len() + 1;
        chain.push(block.map_err(|error| Error::NotACertificate { position, why: error.to_string() })?);
    }
    if chain.is_empty() { Err(Error::NotPem) } else { Ok(chain) }
}

pub(crate) fn parse_all<'a>(chain: &'a [CertificateDer<'static>]) -> Result<Vec<X509Certificate<'a>>, Error> {
    chain.iter().enumerate().map(|(index, der)| parse(der, index + 1)).collect()
}

fn parse(der: &[u8], position: usize) -> Result<X509Certificate<'_>, Error> {
    let unreadable = |why: String| Error::NotACertificate { position, why };
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) => Err(unreadable("bytes follow its end".to_owned())),
        Err(error) => Err(unreadable(error.to_string())),
    }
}

pub(crate) fn to_pem(der: &[u8]) -> String {
    pem_block("CERTIFICATE", der)
}

/// A list of revoked certificates, for programs that read no DER.
pub fn list_to_pem(der: &[u8]) -> String {
    pem_block("X509 CRL", der)
}

pub(crate) fn pem_block(label: &str, der: &[u8]) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new(label, der), config)
}

pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

/// How messages name a certificate.
pub(crate) fn subject(certificate: &X509Certificate<'_>) -> String {
    name(certificate.subject())
}

pub(crate) fn issuer(certificate: &X509Certificate<'_>) -> String {
    name(certificate.issuer())
}

fn name(name: &x509_parser::x509::X509Name<'_>) -> String {
    match name.to_string() {
        empty if empty.is_empty() => "(no name)".to_owned(),
        text => text,
    }
}

/// Go, and so etcd, takes the last where there are several.
pub(crate) fn common_name(certificate: &X509Certificate<'_>) -> Option<String> {
    let last = certificate.subject().iter_common_name().last()?;
    last.as_str().ok().map(str::to_owned)
}

pub(crate) fn not_before(certificate: &X509Certificate<'_>) -> Timestamp {
    timestamp(certificate.validity().not_before.timestamp())
}

pub(crate) fn not_after(certificate: &X509Certificate<'_>) -> Timestamp {
    timestamp(certificate.validity().not_after.timestamp())
}

/// X.509 reaches a day further than jiff, to the end of the year 9999.
fn timestamp(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or(if second < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

pub(crate) fn check_validity(certificate: &X509Certificate<'_>, now: Timestamp) -> Result<(), Error> {
    let (not_before, not_after) = (not_before(certificate), not_after(certificate));
    if now < not_before {
        return Err(Error::NotYetValid { subject: subject(certificate), not_before, now });
    }
    if now > not_after {
        return Err(Error::Expired { subject: subject(certificate), not_after, now });
    }
    Ok(())
}

/// A certificate without keyUsage is not restricted by it; one without basicConstraints is never a CA.
pub(crate) fn authority_lack(certificate: &X509Certificate<'_>) -> Option<AuthorityLack> {
    if !certificate.is_ca() {
        return Some(AuthorityLack::BasicConstraints);
    }
    match certificate.key_usage() {
        Ok(None) => None,
        Ok(Some(usage)) if usage.value.key_cert_sign() => None,
        _ => Some(AuthorityLack::KeyCertSign),
    }
}

pub(crate) fn key_matches(certificate: &X509Certificate<'_>, key: &KeyPair) -> bool {
    certificate.public_key().subject_public_key.data.as_ref() == key.0.public_key_raw()
}

/// Whether `certificate` names `issuer` as its issuer and carries its signature.
pub(crate) fn is_issued_by(certificate: &X509Certificate<'_>, issuer: &X509Certificate<'_>) -> bool {
    certificate.issuer().as_raw() == issuer.subject().as_raw()
        && certificate.verify_signature(Some(issuer.public_key())).is_ok()
}

/// The identifier by which leaves name this CA's key: its own, or, where an old CA has none, one made from the key.
pub(crate) fn subject_key_identifier(certificate: &X509Certificate<'_>) -> Vec<u8> {
    const LENGTH: usize = 20;
    let own = certificate.iter_extensions().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
        _ => None,
    });
    own.unwrap_or_else(|| {
        let digest = ring::digest::digest(&ring::digest::SHA256, certificate.public_key().raw);
        digest.as_ref()[..LENGTH].to_vec()
    })
}
