//! A CA that can sign: generated here, or user-provided. [`LeafWish`] alone decides the content of a leaf certificate. Of a
//! signing request only the public key is used, after the request has proven possession of the private one.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyUsagePurpose, PublicKeyData, RevokedCertParams, SanType,
    SerialNumber, SigningKey, SubjectPublicKeyInfo,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer};
use x509_parser::prelude::{FromDer, X509Certificate, X509CertificationRequest};

use crate::certificate::{self, sha256_hex};
use crate::random::serial_number;
use crate::{Error, KeyAlgorithm, KeyPair, Secret, der};

/// Certificates begin this long before now: clocks differ, that of a machine which just started perhaps by a time zone,
/// and a certificate from the future is refused. It costs nothing, as nobody held the key before.
const BACKDATED: SignedDuration = SignedDuration::from_hours(24);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuthoritySubject {
    pub common_name: String,
    pub organization: Option<String>,
}

/// What a leaf is to say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeafWish {
    /// Empty for a certificate without any subject, which etcd's gateway wants of its clients.
    pub common_name: String,
    pub organization: Option<String>,
    pub dns: Vec<String>,
    pub addresses: Vec<IpAddr>,
    pub server: bool,
    pub client: bool,
    pub validity: SignedDuration,
}

pub struct Authority {
    /// The signing certificate, then whatever was given with it.
    certificate_pem: String,
    /// What must accompany a leaf so that it can be followed up to a root: nothing if the signing certificate is one.
    intermediates_pem: String,
    certificate: CertificateDer<'static>,
    not_before: Timestamp,
    not_after: Timestamp,
    key: KeyPair,
    key_pem: Secret,
    /// Whether it signs only while it is valid itself.
    dated: bool,
}

impl Authority {
    /// A separate root that signs leaves and no further CAs.
    pub fn generate(
        subject: &AuthoritySubject,
        algorithm: KeyAlgorithm,
        validity: SignedDuration,
        now: Timestamp,
    ) -> Result<Self, Error> {
        let key = KeyPair::generate(algorithm)?;
        let mut params = params(&subject.common_name, subject.organization.as_deref());
        set_validity(&mut params, now, end_of(validity, now)?);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key.0)?;
        Self::new(vec![certificate.into()], key)
    }

    /// Takes a CA whose own dates nobody checks, as is so with that of agents: rustls asks whether it trusts a CA, not since
    /// when. It signs even where it was made with a clock that was ahead.
    pub fn load_undated(certificate_pem: &str, key_pem: &Secret) -> Result<Self, Error> {
        let chain = certificate::read_pem(certificate_pem)?;
        let key = KeyPair::from_pem(key_pem)?;
        let authority = Self::new(chain, key)?;
        if !certificate::key_matches(&authority.parsed(), &authority.key) {
            return Err(Error::KeyDoesNotMatch { subject: certificate::subject(&authority.parsed()) });
        }
        Ok(Authority { dated: false, ..authority })
    }

    /// Takes a CA that was made elsewhere. The first certificate signs; the rest, its chain or further roots to trust, is kept.
    pub fn load(certificate_pem: &str, key_pem: &Secret, now: Timestamp) -> Result<Self, Error> {
        let chain = certificate::read_pem(certificate_pem)?;
        let parsed = certificate::parse_all(&chain)?;
        let first = &parsed[0];
        if let Some(lack) = certificate::authority_lack(first) {
            return Err(Error::NotAnAuthority { subject: certificate::subject(first), lack });
        }
        certificate::check_validity(first, now)?;
        let key = KeyPair::from_pem(key_pem)?;
        if !certificate::key_matches(first, &key) {
            return Err(Error::KeyDoesNotMatch { subject: certificate::subject(first) });
        }
        Self::new(chain, key)
    }

    fn new(chain: Vec<CertificateDer<'static>>, key: KeyPair) -> Result<Self, Error> {
        let parsed = certificate::parse_all(&chain)?;
        Ok(Self {
            certificate_pem: chain.iter().map(|der| certificate::to_pem(der)).collect(),
            intermediates_pem: intermediates(&parsed).map(|one| certificate::to_pem(one.as_raw())).collect(),
            not_before: certificate::not_before(&parsed[0]),
            not_after: certificate::not_after(&parsed[0]),
            certificate: chain[0].clone(),
            key_pem: key.to_pem(),
            key,
            dated: true,
        })
    }

    /// What clients trust: the signing certificate first, then whatever was given with it.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    pub fn key_pem(&self) -> &Secret {
        &self.key_pem
    }

    /// SHA-256 of the signing certificate's DER, in hexadecimal.
    pub fn fingerprint(&self) -> String {
        sha256_hex(&self.certificate)
    }

    pub fn not_before(&self) -> Timestamp {
        self.not_before
    }

    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// The leaf in PEM, followed by the intermediates where this CA is one itself. It never outlives this CA.
    pub fn sign(&self, csr_pem: &str, wish: &LeafWish, now: Timestamp) -> Result<String, Error> {
        let authority = self.parsed();
        if self.dated {
            certificate::check_validity(&authority, now)?;
        }
        let public_key = proven_public_key(csr_pem)?;
        let mut params = leaf_params(wish, &public_key)?;
        set_validity(&mut params, now, end_of(wish.validity, now)?.min(self.not_after));
        let leaf = params.signed_by(&public_key, &Issuer::new(issuer_params(&authority), &self.key.0))?;
        let leaf = with_issuer(leaf.der(), ISSUER_OF_LEAF, authority.subject().as_raw(), &self.key)?;
        Ok(certificate::to_pem(&leaf) + &self.intermediates_pem)
    }

    /// A list of certificates of this CA that are not to be accepted any more, by their serial numbers, in DER. It is valid exactly as long as
    /// the CA: OpenSSL refuses everybody once a list has ended or has not begun, and neither an absent controller nor a wrong clock may cause that.
    pub fn revoke(&self, serials: &[Vec<u8>], now: Timestamp) -> Result<Vec<u8>, Error> {
        let authority = self.parsed();
        let at = |at: Timestamp| {
            rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(at.as_second().max(0).unsigned_abs())
        };
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from_slice(serial),
            revocation_time: at(now),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: at(self.not_before),
            next_update: at(self.not_after),
            crl_number: SerialNumber::from(now.as_second().max(0).unsigned_abs()),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::PreSpecified(certificate::subject_key_identifier(&authority)),
        };
        let list = params.signed_by(&Issuer::new(crl_issuer(&authority), &self.key.0))?;
        with_issuer(list.der(), ISSUER_OF_LIST, authority.subject().as_raw(), &self.key)
    }

    fn parsed(&self) -> X509Certificate<'_> {
        X509Certificate::from_der(&self.certificate).expect("it was read when this authority was made").1
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("fingerprint", &self.fingerprint())
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

/// From the signing certificate up to, and without, the root. Each is looked for once, so a loop of cross-signed
/// certificates ends.
fn intermediates<'a, 'b>(chain: &'a [X509Certificate<'b>]) -> impl Iterator<Item = &'a X509Certificate<'b>> {
    let mut next = chain.first();
    let mut others: Vec<_> = chain.iter().skip(1).collect();
    std::iter::from_fn(move || {
        let current = next.filter(|one| one.subject().as_raw() != one.issuer().as_raw())?;
        let above = others.iter().position(|other| certificate::is_issued_by(current, other));
        next = above.map(|index| others.swap_remove(index));
        Some(current)
    })
}

fn params(common_name: &str, organization: Option<&str>) -> CertificateParams {
    let mut name = DistinguishedName::new();
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    if !common_name.is_empty() {
        name.push(DnType::CommonName, common_name);
    }
    let mut params = CertificateParams::default();
    params.distinguished_name = name;
    params.serial_number = Some(SerialNumber::from_slice(&serial_number()));
    params.use_authority_key_identifier_extension = true;
    params
}

fn leaf_params(wish: &LeafWish, public_key: &SubjectPublicKeyInfo) -> Result<CertificateParams, Error> {
    let mut params = params(&wish.common_name, wish.organization.as_deref());
    params.is_ca = IsCa::ExplicitNoCa;
    params.subject_alt_names = alternative_names(wish)?;
    params.key_usages.push(KeyUsagePurpose::DigitalSignature);
    if public_key.algorithm() == &rcgen::PKCS_RSA_SHA256 {
        params.key_usages.push(KeyUsagePurpose::KeyEncipherment);
    }
    if wish.server {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    if wish.client {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
    }
    Ok(params)
}

fn alternative_names(wish: &LeafWish) -> Result<Vec<SanType>, Error> {
    let mut names = Vec::new();
    for name in &wish.dns {
        let bad = || Error::BadDnsName { name: name.clone() };
        if !is_dns_name(name) {
            return Err(bad());
        }
        names.push(SanType::DnsName(name.as_str().try_into().map_err(|_| bad())?));
    }
    names.extend(wish.addresses.iter().map(|address| SanType::IpAddress(address.to_canonical())));
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    Ok(names)
}

/// Labels of letters, digits, `-` and `_`, the first of which may be `*`. A bad name would otherwise show up at the first
/// handshake.
fn is_dns_name(name: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    name.len() <= 253 && name.strip_prefix("*.").unwrap_or(name).split('.').all(label)
}

/// The key of a signing request whose signature shows that the sender holds the private half.
fn proven_public_key(csr_pem: &str) -> Result<SubjectPublicKeyInfo, Error> {
    let der = CertificateSigningRequestDer::from_pem_slice(csr_pem.as_bytes()).map_err(|_| Error::RequestUnreadable)?;
    let (_, request) = X509CertificationRequest::from_der(&der).map_err(|_| Error::RequestUnreadable)?;
    let public_key = &request.certification_request_info.subject_pki;
    let supported = SubjectPublicKeyInfo::from_der(public_key.raw).map_err(|_| Error::RequestKeyUnsupported)?;
    request.verify_signature().map_err(|_| Error::RequestNotProven)?;
    Ok(supported)
}

/// SHA-256, in hexadecimal, over the SubjectPublicKeyInfo for which a signing request asks.
pub fn request_key_sha256(csr_pem: &str) -> Result<String, Error> {
    let der = CertificateSigningRequestDer::from_pem_slice(csr_pem.as_bytes()).map_err(|_| Error::RequestUnreadable)?;
    let (_, request) = X509CertificationRequest::from_der(&der).map_err(|_| Error::RequestUnreadable)?;
    Ok(sha256_hex(request.certification_request_info.subject_pki.raw))
}

/// What rcgen needs to know about the issuer: its key identifier. The name is put in by [`with_issuer`].
fn issuer_params(authority: &X509Certificate<'_>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.key_identifier_method = KeyIdMethod::PreSpecified(certificate::subject_key_identifier(authority));
    params
}

fn crl_issuer(authority: &X509Certificate<'_>) -> CertificateParams {
    let mut params = issuer_params(authority);
    params.key_usages = vec![KeyUsagePurpose::CrlSign];
    params
}

/// After version, serial number and algorithm.
const ISSUER_OF_LEAF: usize = 3;
/// After version and algorithm.
const ISSUER_OF_LIST: usize = 2;

/// Names the issuer byte for byte as its own certificate does, and signs again. rcgen keeps one value for each kind of
/// attribute, so a CA of `DC=com, DC=example` would not be found by the name that rcgen writes.
fn with_issuer(signed: &[u8], at: usize, issuer: &[u8], key: &KeyPair) -> Result<Vec<u8>, Error> {
    let parts = der::inner(signed).expect("rcgen writes DER");
    let (content, algorithm) = (parts[0], parts[1]);
    let mut fields = der::inner(content).expect("rcgen writes DER");
    fields[at] = issuer;
    let content = der::wrap(der::SEQUENCE, &fields);
    let signature = key.0.sign(&content)?;
    let no_unused_bits: &[u8] = &[0];
    let signature = der::wrap(der::BIT_STRING, &[no_unused_bits, &signature]);
    Ok(der::wrap(der::SEQUENCE, &[&content, algorithm, &signature]))
}

fn end_of(validity: SignedDuration, now: Timestamp) -> Result<Timestamp, Error> {
    if !validity.is_positive() {
        return Err(Error::BadValidity { validity });
    }
    Ok(now.checked_add(validity).unwrap_or(Timestamp::MAX))
}

/// rcgen speaks another library's time, which counting from 1970 avoids to depend on.
fn set_validity(params: &mut CertificateParams, now: Timestamp, not_after: Timestamp) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since_epoch = |at: Timestamp| Duration::from_secs(at.as_second().max(0).unsigned_abs());
    params.not_before = epoch + since_epoch(now - BACKDATED);
    params.not_after = epoch + since_epoch(not_after);
}
