//! Secrets that quorate creates once and keeps in the ledger: the three CAs, root's password, the keys of tokens and of backups.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use quorate_core::Secret;
use quorate_core::kinds::etcd::JwtKeys;
use quorate_core::model::{Authorities, AuthorityRecord, Ledger, Plane, SecretKind};
use quorate_core::spec::{self, ClusterSpec};
use quorate_pki::{Authority, AuthoritySubject, JwtAlgorithm, KeyAlgorithm, KeyPair, LeafWish};

use crate::brought::BroughtFiles;
use crate::kinds::postgres::{dcs, passwords};

/// The control CA serves quorate alone, so its life is not the operator's concern.
const CONTROL_CA_VALIDITY: SignedDuration = SignedDuration::from_hours(24 * 365 * 20);
/// A controller's own certificate lives as long as its run, and a day is more than that.
pub(crate) const CONTROLLER_VALIDITY: SignedDuration = SignedDuration::from_hours(24);

/// Creates or reads what is missing.
pub(crate) fn make(
    ledger: &mut Ledger,
    kinds: &BTreeSet<SecretKind>,
    spec: &ClusterSpec,
    brought: &BroughtFiles,
    now: Timestamp,
) -> Result<(), quorate_pki::Error> {
    let shared = ledger.authorities.client.clone();
    for kind in kinds {
        match kind {
            SecretKind::PeerAuthority => ledger.authorities.peer = Some(peer_plane(spec, shared.as_ref(), now)?),
            SecretKind::ClientAuthority => ledger.authorities.client = Some(client_authority(spec, brought, now)?),
            SecretKind::ControlAuthority => ledger.authorities.control = Some(control_authority(spec, now)?),
            SecretKind::RootPassword => {
                let password = brought.root_password.clone().unwrap_or_else(quorate_pki::random_token);
                ledger.etcd.auth.root_password = Some(password);
            }
            SecretKind::JwtKeys => {
                let (private, public) = quorate_pki::jwt_keypair(JwtAlgorithm::Es256)?;
                ledger.etcd.auth.jwt = Some(JwtKeys { private, public });
            }
            SecretKind::BackupSigning => ledger.backup_signing = Some(crate::backup::signing::record(now)),
            SecretKind::PostgresPasswords => passwords::make(ledger, spec, brought),
            SecretKind::Revocations => sign_lists(ledger, now)?,
            SecretKind::PatroniCertificates => dcs::certify(ledger, spec, now)?,
        }
    }
    Ok(())
}

fn client_authority(
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
                common_name: format!("{} CA of {}", spec.kind.service(), spec.name),
                organization: spec.tls.organization.clone(),
            };
            Authority::generate(&subject, key_algorithm(spec), spec.tls.ca_validity.as_duration(), now)?
        }
    };
    Ok(record(authority.certificate_pem().to_owned(), Some(authority.key_pem().clone()), authority.not_after()))
}

/// Peers trust a CA that signs only for them, whoever signs for clients: it is always created here. If they have used
/// the clients' CA (`shared`) until now, both are trusted at first.
fn peer_plane(
    spec: &ClusterSpec,
    shared: Option<&AuthorityRecord>,
    now: Timestamp,
) -> Result<Plane, quorate_pki::Error> {
    let subject = AuthoritySubject {
        common_name: format!("peer CA of {}", spec.name),
        organization: spec.tls.organization.clone(),
    };
    let authority = Authority::generate(&subject, key_algorithm(spec), spec.tls.ca_validity.as_duration(), now)?;
    let own = record(authority.certificate_pem().to_owned(), Some(authority.key_pem().clone()), authority.not_after());
    Ok(match shared {
        Some(shared) => Plane::new(shared.clone()).and_trusts(own),
        None => Plane::new(own),
    })
}

/// Signs the lists of certificates that members are to refuse: of clients, where they are signed here, and of peers. None
/// ever leaves them: whether a certificate has ended is judged by a clock, which may be wrong, and a serial number is short.
pub(crate) fn sign_lists(ledger: &mut Ledger, now: Timestamp) -> Result<(), quorate_pki::Error> {
    let Authorities { client, peer, .. } = &ledger.authorities;
    // etcd checks no signature of a list. Where the CA that signs for peers is brought, their own is there already.
    let peers = peer.iter().flat_map(|peers| peers.signing().into_iter().chain(&peers.trusted));
    let crl = list(client, ledger.issued.refused_of_clients(), now)?;
    let peer_crl = list(peers, ledger.issued.refused_of_peers(), now)?;
    let peer_lists = match ledger.spec.kind {
        spec::Kind::Etcd => BTreeMap::new(),
        spec::Kind::Postgres => lists_of_peers(ledger, now)?,
    };
    (ledger.issued.client_crl, ledger.issued.peer_crl, ledger.issued.peer_lists) = (crl, peer_crl, peer_lists);
    Ok(())
}

/// In PEM, by the key identifier of each CA that peers trust. OpenSSL looks for the list of the very CA that signed a certificate. All have
/// all serial numbers: which CA has signed which is not recorded, and none of the others has the same.
fn lists_of_peers(ledger: &Ledger, now: Timestamp) -> Result<BTreeMap<String, String>, quorate_pki::Error> {
    let mut lists = BTreeMap::new();
    for authority in ledger.authorities.peer.iter().flat_map(|peers| &peers.trusted) {
        if let Some(list) = list([authority], ledger.issued.refused_of_peers(), now)?.and_then(|list| from_hex(&list)) {
            lists.insert(authority.key_id.clone(), quorate_pki::list_to_pem(&list));
        }
    }
    Ok(lists)
}

/// A list, in DER and hexadecimal, signed by the first CA whose key is here.
fn list<'a>(
    authorities: impl IntoIterator<Item = &'a AuthorityRecord>,
    serials: impl Iterator<Item = &'a str>,
    now: Timestamp,
) -> Result<Option<String>, quorate_pki::Error> {
    let signing = authorities.into_iter().find_map(|a| Some((&a.certificate, a.key.as_ref()?)));
    let Some((certificate, key)) = signing else { return Ok(None) };
    let serials: Vec<Vec<u8>> = serials.filter_map(from_hex).collect();
    let list = Authority::load(certificate, key, now)?.revoke(&serials, now)?;
    Ok(Some(quorate_core::text::hex(&list)))
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = |at| text.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
    (0..text.len()).step_by(2).map(digits).collect()
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

/// The certificate with which a controller speaks to agents, created for each run and kept in memory.
pub(crate) fn controller_identity(
    ledger: &Ledger,
    now: Timestamp,
) -> Result<Option<(String, Secret)>, quorate_pki::Error> {
    let Some(control) = &ledger.authorities.control else { return Ok(None) };
    let Some(key) = &control.key else { return Ok(None) };
    let authority = Authority::load_undated(&control.certificate, key)?;
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

#[cfg(test)]
mod tests {
    use quorate_core::kinds::etcd::spec::ClientAuth;
    use quorate_core::kinds::etcd::versions::DEFAULT;
    use quorate_core::model::IssuedCertificate;
    use quorate_core::spec::generated;

    use super::*;

    #[test]
    fn members_get_a_list_of_every_ca_that_they_trust() {
        let text = "quorate: 1\nclusters:\n  - name: shop\n    members: [{name: pg-1}, {name: pg-2}]\n    postgres: {version: 15, dcs: {cluster: orders}}\n  \
                    - name: orders\n    members: [{name: e-1}]\n    etcd: {client_auth: password, grpc_gateway: true}\n";
        let read = spec::Document::parse("shop.yaml", text).expect("YAML").spec(&spec::HostFacts::default());
        let spec = read.spec.expect("a good spec").clusters.remove(0);
        let now = Timestamp::now();
        let mut ledger = Ledger::new(String::from("id"), spec.clone());
        let kinds = [SecretKind::ClientAuthority, SecretKind::PeerAuthority, SecretKind::Revocations].into();
        make(&mut ledger, &kinds, &spec, &BroughtFiles::default(), now).expect("secrets");
        let peers = ledger.authorities.peer.clone().expect("a plane");
        assert!(peers.lists(&ledger.issued).expect("a list").starts_with("-----BEGIN X509 CRL-----\n"));
        let next = peer_plane(&spec, None, now).expect("a CA").trusted.remove(0);
        ledger.authorities.peer = Some(peers.and_trusts(next));
        let peers = ledger.authorities.peer.clone().expect("a plane");
        assert_eq!(peers.lists(&ledger.issued), None, "a list is missing, so none may be used");
        sign_lists(&mut ledger, now).expect("lists");
        assert_eq!(peers.lists(&ledger.issued).expect("lists").matches("BEGIN X509 CRL").count(), 2);
    }

    #[test]
    fn patroni_gets_a_certificate_of_the_current_ca_and_another_before_it_ends() {
        let text = "quorate: 1\nclusters:\n  - name: shop\n    members: [{name: pg-1}]\n    postgres: {version: 15, dcs: {cluster: orders}, synchronous: {nodes: 0}}\n  \
                    - name: orders\n    members: [{name: e-1}]\n    etcd: {client_auth: certificate_and_password, grpc_gateway: true}\n";
        let read = spec::Document::parse("shop.yaml", text).expect("YAML").spec(&spec::HostFacts::default());
        let [shop, orders]: [ClusterSpec; 2] = read.spec.expect("a good spec").clusters.try_into().expect("two");
        let mut ledger = Ledger::new(String::from("id"), orders.clone());
        dcs::register(&mut ledger, &shop);
        let mut certificate = |kinds: &[SecretKind], now: Timestamp| {
            make(&mut ledger, &kinds.iter().copied().collect(), &orders, &BroughtFiles::default(), now).unwrap();
            ledger.etcd.used_by["shop"].certificate.clone().expect("a certificate")
        };
        let (now, day) = (Timestamp::now(), SignedDuration::from_hours(24));
        let of_patroni = [SecretKind::PatroniCertificates];
        let first = certificate(&[SecretKind::ClientAuthority, SecretKind::PatroniCertificates], now);
        assert_eq!(quorate_pki::inspect(&first.chain).unwrap().subject_common_name, None);
        assert_eq!(certificate(&of_patroni, now + day), first, "it has long to live");
        let window = orders.tls.renew_before().as_duration();
        let second = certificate(&of_patroni, first.not_after - window);
        assert_ne!(second, first);
        // The clock is right again: a certificate that is not valid yet is of no use.
        let third = certificate(&of_patroni, now);
        assert_ne!(third, second);
        let fourth = certificate(&[SecretKind::ClientAuthority, SecretKind::PatroniCertificates], now);
        assert_ne!(fourth.authority_key_id, third.authority_key_id);
    }

    #[test]
    fn a_clock_that_is_ahead_for_one_run_loses_no_revocation() {
        let now = Timestamp::now();
        let spec = generated("demo", 1, DEFAULT, ClientAuth::Certificate).unwrap().clusters.remove(0);
        let mut ledger = Ledger::new(String::from("c"), spec.clone());
        let serial = String::from("0f1e2d3c4b5a69788796a5b4c3d2e1f0");
        let not_after = now + SignedDuration::from_hours(24 * 365);
        let user = String::from("app");
        let issued = IssuedCertificate { user, serial: serial.clone(), not_after, recorded: None, revoked: false };
        ledger.issued.users.push(issued);
        ledger.issued.revoke_user("app");
        let mut make = |kind: SecretKind, now: Timestamp| {
            make(&mut ledger, &[kind].into(), &spec, &BroughtFiles::default(), now).unwrap();
            ledger.issued.client_crl.clone().unwrap_or_default()
        };
        make(SecretKind::ClientAuthority, now);
        assert!(make(SecretKind::Revocations, now).contains(&serial));
        assert!(make(SecretKind::Revocations, now + SignedDuration::from_hours(24 * 400)).contains(&serial));
        assert!(make(SecretKind::Revocations, now).contains(&serial));
    }
}
