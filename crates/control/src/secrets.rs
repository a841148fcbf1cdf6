//! The secrets that quorate makes once and keeps in the ledger: the two CAs, root's password, the keys of tokens and of backups.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use quorate_core::Secret;
use quorate_core::model::{AuthorityRecord, JwtKeys, Ledger, SecretKind};
use quorate_core::spec::{self, ClusterSpec};
use quorate_pki::{Authority, AuthoritySubject, JwtAlgorithm, KeyAlgorithm, KeyPair, LeafWish};

use crate::brought::BroughtFiles;

/// The control CA serves quorate alone, so its life is not the operator's concern.
const CONTROL_CA_VALIDITY: SignedDuration = SignedDuration::from_hours(24 * 365 * 20);
/// A controller's own certificate lives as long as its run, and a day is more than that.
pub(crate) const CONTROLLER_VALIDITY: SignedDuration = SignedDuration::from_hours(24);

/// Makes or takes in what is missing.
pub(crate) fn make(
    ledger: &mut Ledger,
    kinds: &BTreeSet<SecretKind>,
    spec: &ClusterSpec,
    brought: &BroughtFiles,
    now: Timestamp,
) -> Result<(), quorate_pki::Error> {
    for kind in kinds {
        match kind {
            SecretKind::EtcdAuthority => ledger.authorities.etcd = Some(etcd_authority(spec, brought, now)?),
            SecretKind::ControlAuthority => ledger.authorities.control = Some(control_authority(spec, now)?),
            SecretKind::RootPassword => {
                let password = brought.root_password.clone().unwrap_or_else(quorate_pki::random_token);
                ledger.auth.root_password = Some(password);
            }
            SecretKind::JwtKeys => {
                let (private, public) = quorate_pki::jwt_keypair(JwtAlgorithm::Es256)?;
                ledger.auth.jwt = Some(JwtKeys { private, public });
            }
            SecretKind::BackupSigning => ledger.backup_signing = Some(crate::backup::signing::record(now)),
        }
    }
    Ok(())
}

fn etcd_authority(
    spec: &ClusterSpec,
    brought: &BroughtFiles,
    now: Timestamp,
) -> Result<AuthorityRecord, quorate_pki::Error> {
    if let Some(given) = &brought.given {
        let not_after = quorate_pki::inspect(&given.trust)?.not_after;
        return Ok(record(given.trust.clone(), None, not_after));
    }
    let authority = match &brought.authority {
        Some(pair) => Authority::load(&pair.chain, &pair.key, now)?,
        None => {
            let subject = AuthoritySubject {
                common_name: format!("etcd CA of {}", spec.name),
                organization: spec.tls.organization.clone(),
            };
            let hours = i64::try_from(spec.tls.ca_validity.as_hours()).unwrap_or(i64::MAX / 3600);
            Authority::generate(&subject, key_algorithm(spec), SignedDuration::from_hours(hours), now)?
        }
    };
    Ok(record(authority.certificate_pem().to_owned(), Some(authority.key_pem().clone()), authority.not_after()))
}

fn control_authority(spec: &ClusterSpec, now: Timestamp) -> Result<AuthorityRecord, quorate_pki::Error> {
    let subject = AuthoritySubject { common_name: format!("control CA of {}", spec.name), organization: None };
    let authority = Authority::generate(&subject, KeyAlgorithm::P256, CONTROL_CA_VALIDITY, now)?;
    Ok(record(authority.certificate_pem().to_owned(), Some(authority.key_pem().clone()), authority.not_after()))
}

fn record(certificate: String, key: Option<Secret>, not_after: Timestamp) -> AuthorityRecord {
    let key_id = quorate_pki::subject_key_id(&certificate).unwrap_or_default();
    AuthorityRecord { epoch: 1, certificate, key, key_id, not_after }
}

pub(crate) fn key_algorithm(spec: &ClusterSpec) -> KeyAlgorithm {
    match spec.tls.key_algorithm {
        spec::KeyAlgorithm::P256 => KeyAlgorithm::P256,
        spec::KeyAlgorithm::Rsa => KeyAlgorithm::Rsa,
        spec::KeyAlgorithm::Ed25519 => KeyAlgorithm::Ed25519,
    }
}

/// The certificate with which a controller speaks to agents, made anew for each run and kept in memory.
pub(crate) fn controller_identity(
    ledger: &Ledger,
    now: Timestamp,
) -> Result<Option<(String, Secret)>, quorate_pki::Error> {
    let Some(control) = &ledger.authorities.control else { return Ok(None) };
    let Some(key) = &control.key else { return Ok(None) };
    let authority = Authority::load(&control.certificate, key, now)?;
    let own = KeyPair::generate(KeyAlgorithm::P256)?;
    let wish = LeafWish {
        common_name: String::from(quorate_agent::api::CONTROLLER),
        organization: None,
        dns: Vec::new(),
        addresses: Vec::new(),
        server: false,
        client: true,
        validity: CONTROLLER_VALIDITY,
    };
    let chain = authority.sign(&own.csr(quorate_agent::api::CONTROLLER)?, &wish, now)?;
    Ok(Some((chain, own.to_pem())))
}
