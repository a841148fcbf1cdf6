//! Computes what is desired from the spec and the ledger: the configuration, certificates and users of each member.
//!
//! Pure: the same spec and ledger always give the same result, so an unchanged spec never changes a machine.

mod host;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::SignedDuration;
use sha2::{Digest, Sha256};

use crate::Secret;
use crate::kinds::etcd::JwtKeys;
use crate::kinds::etcd::spec::TokenKind;
use crate::kinds::{self, etcd, postgres};
use crate::model::{
    Authorities, Brought, CertificateWish, Desired, DesiredMember, Destruction, FixtureId, FormedWith, Ledger,
    MemberName, MemberRecord, NodeConfig, Opening, Plane, PlaneWish, Program, Revocable, SecretKind,
};
use crate::spec::{self, Change, ClusterSpec, MemberSpec, Millis};

/// An agent's certificate to its controller; renewed like any other when a third of it is left.
pub const AGENT_VALIDITY: SignedDuration = SignedDuration::from_hours(24 * 365);

/// The node configs of a cluster and their digests. They follow from the spec and the secrets alone, so a caller that
/// needs them repeatedly renders them once.
#[derive(Clone, PartialEq, Debug)]
pub struct Configs {
    members: BTreeMap<String, Rendered>,
    jwt: Option<JwtKeys>,
    root_password: Option<Secret>,
    token: TokenKind,
    postgres: Option<postgres::Passwords>,
    rotation: Option<postgres::Rotation>,
    called: BTreeMap<MemberName, String>,
    servers: BTreeMap<MemberName, IpAddr>,
    versions: (Option<u16>, Option<String>),
    trust: Option<etcd::desire::Trust>,
    crl: Option<String>,
    peer_crl: Option<String>,
    peer_lists: BTreeMap<String, String>,
    listed: BTreeSet<IpAddr>,
    proxies: BTreeSet<IpAddr>,
    fronted: BTreeMap<MemberName, IpAddr>,
    /// Differences from the previous spec, only for the reasons of steps.
    pub(crate) changes: Vec<Change>,
}

#[derive(Clone, PartialEq, Debug)]
struct Rendered {
    config: Arc<NodeConfig>,
    digest: String,
    service_digest: String,
    etcd_version: String,
}

impl Configs {
    fn render(spec: &ClusterSpec, ledger: &Ledger, brought: &Brought, arch: &str) -> Self {
        let neighbours = host::neighbours(spec, ledger);
        let proxied = match spec.kind {
            // With fronts, members connect to each other as clients.
            spec::Kind::Etcd => spec.kind.proxied_addresses(spec, ledger),
            spec::Kind::Postgres => ledger.proxy_addresses(spec),
        };
        let rendered = spec.members.iter().map(|member| {
            let mut config = spec.kind.node_config(spec, ledger, member, brought, arch);
            config.host = host::config(spec, member, brought, &neighbours).map(Box::new);
            host::let_proxies_in(&mut config, &proxied);
            let digest = config.digest();
            let service_digest = config.service_digests().remove(spec.kind.service()).unwrap_or_default();
            let etcd_version = spec.etcd.version.to_string();
            (member.name.to_string(), Rendered { config: Arc::new(config), digest, service_digest, etcd_version })
        });
        let proxies = spec.proxies().map(|proxy| {
            let mut config = spec.kind.proxy_config(spec, ledger);
            config.host = host::config(spec, &proxy, brought, &neighbours).map(Box::new);
            let (digest, service_digest) = (config.digest(), String::new());
            let etcd_version = spec.etcd.version.to_string();
            (proxy.name.to_string(), Rendered { config: Arc::new(config), digest, service_digest, etcd_version })
        });
        let members = rendered.chain(proxies).collect();
        let (jwt, root_password) = (ledger.etcd.auth.jwt.clone(), ledger.etcd.auth.root_password.clone());
        let trust = etcd::desire::Trust::of(ledger);
        let (crl, peer_crl) = (ledger.issued.client_crl.clone(), ledger.issued.peer_crl.clone());
        let changes = ledger.spec_before.as_ref().map_or_else(Vec::new, |before| spec::changes(before, spec));
        Configs {
            members,
            jwt,
            root_password,
            token: etcd::desire::token_kind(spec, ledger),
            postgres: ledger.postgres.passwords.clone(),
            rotation: ledger.postgres.rotation.clone(),
            called: called(ledger),
            servers: postgres::desire::servers(ledger),
            versions: postgres::desire::versions(spec, ledger),
            trust,
            crl,
            peer_crl,
            peer_lists: ledger.issued.peer_lists.clone(),
            listed: host::listed(ledger),
            proxies: ledger.proxy_addresses(spec),
            fronted: etcd::front::servers(ledger),
            changes,
        }
    }

    /// Whether they would be rendered the same for this ledger, from the same spec.
    pub fn are_current(&self, spec: &ClusterSpec, ledger: &Ledger) -> bool {
        self.jwt == ledger.etcd.auth.jwt
            && self.root_password == ledger.etcd.auth.root_password
            && self.token == etcd::desire::token_kind(spec, ledger)
            && self.postgres == ledger.postgres.passwords
            && self.rotation == ledger.postgres.rotation
            && self.called == called(ledger)
            && self.servers == postgres::desire::servers(ledger)
            && self.versions == postgres::desire::versions(spec, ledger)
            && self.trust == etcd::desire::Trust::of(ledger)
            && self.crl == ledger.issued.client_crl
            && self.peer_crl == ledger.issued.peer_crl
            && self.peer_lists == ledger.issued.peer_lists
            && self.listed == host::listed(ledger)
            && self.proxies == ledger.proxy_addresses(spec)
            && self.fronted == etcd::front::servers(ledger)
    }
}

/// The open ports on the machines of a cluster, whether or not their firewall is on. For the security groups of a cloud, which have one
/// list for all machines. Machines of the cluster connect to each other as peers and clients.
pub fn openings(ledger: &Ledger) -> Vec<Opening> {
    let mut spec = ledger.spec.clone();
    spec.host.get_or_insert_default().firewall.enabled = true;
    // Ports depend neither on passwords nor on the passphrase of backups, which may not exist yet.
    spec.backup.iter_mut().for_each(|backup| backup.recipients.clear());
    let mut ledger = ledger.clone();
    ledger.postgres.passwords.get_or_insert_with(postgres::Passwords::empty);
    let configs = Configs::render(&spec, &ledger, &Brought::default(), "");
    let all = configs.members.values().filter_map(|member| kinds::openings(&member.config)).flatten();
    all.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The operator's input, apart from the ledger.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    pub spec: &'a ClusterSpec,
    pub brought: &'a Brought,
    pub arch: &'a str,
}

impl Wish<'_> {
    /// Combines the spec with the ledger. `token_suffix` is random: it is the end of the next bootstrap token, if one is needed.
    pub fn desire(&self, ledger: &Ledger, token_suffix: &str) -> Desired {
        self.desire_with(ledger, &self.configs(ledger), token_suffix)
    }

    pub fn configs(&self, ledger: &Ledger) -> Configs {
        Configs::render(self.spec, ledger, self.brought, self.arch)
    }

    /// The same with configurations that were already rendered for this spec and these secrets.
    pub fn desire_with(&self, ledger: &Ledger, configs: &Configs, token_suffix: &str) -> Desired {
        let Wish { spec, brought, .. } = *self;
        let members: BTreeMap<MemberName, DesiredMember> =
            spec.members.iter().map(|m| (m.name.as_str().into(), member(spec, ledger, m, configs))).collect();
        let proxy =
            |p: MemberSpec| (p.name.as_str().into(), DesiredMember { data: None, ..member(spec, ledger, &p, configs) });
        let known = |(name, record): (&MemberName, &MemberRecord)| {
            Some((name.clone(), record.proxy.as_ref()?.addresses.clone()))
        };
        Desired {
            cluster: spec.name.to_string(),
            cluster_id: ledger.cluster_id.clone(),
            kind: self.spec.kind,
            program: Program::this().clone(),
            not_upgraded: BTreeMap::new(),
            no_room: BTreeMap::new(),
            power: ledger.power,
            destroy: destruction(ledger),
            downtime: ledger.downtime.is_some(),
            grace: ledger.without_grace.is_none().then(|| grace(spec)),
            boots_within: spec.provider.settings().boots_within(),
            machines: spec.provider.settings().machines(),
            form_with: form_with(spec),
            formed_with: ledger.formed_with.clone(),
            secrets_missing: secrets_missing(spec, ledger),
            fence: ledger.fence,
            members,
            proxies: spec.proxies().map(proxy).collect(),
            known_proxies: ledger.members.iter().filter_map(known).collect(),
            fixtures: spec.provider.settings().fixtures(spec),
            known_fixtures: ledger.fixtures.0.keys().cloned().collect(),
            certificates: certificates(spec, ledger, brought),
            revocable: revocable(spec, ledger),
            changes: configs.changes.clone(),
            etcd: etcd::desire::wish(spec, ledger, brought, token_suffix),
            postgres: postgres::desire::wish(spec, ledger, brought, token_suffix).map(Box::new),
        }
    }
}

/// Patroni's name of each member, which is in its configuration.
fn called(ledger: &Ledger) -> BTreeMap<MemberName, String> {
    match ledger.spec.kind {
        spec::Kind::Etcd => BTreeMap::new(),
        spec::Kind::Postgres => {
            let called = |(name, record): (&MemberName, &MemberRecord)| {
                (name.clone(), ledger.postgres.formation.patroni_name(name, record.incarnation))
            };
            ledger.members.iter().map(called).collect()
        }
    }
}

fn form_with(spec: &ClusterSpec) -> FormedWith {
    FormedWith {
        namespace: spec.namespace.as_ref().map_or_else(|| String::from("none"), ToString::to_string),
        key_algorithm: match spec.tls.key_algorithm {
            spec::KeyAlgorithm::P256 => String::from("p256"),
            spec::KeyAlgorithm::Rsa => String::from("rsa"),
            spec::KeyAlgorithm::Ed25519 => String::from("ed25519"),
        },
        provider: spec.provider.settings().name().to_owned(),
        machines: spec.provider.settings().fixed(),
    }
}

fn grace(spec: &ClusterSpec) -> SignedDuration {
    duration(spec.replace_after)
}

fn duration(time: Millis) -> SignedDuration {
    SignedDuration::from_millis(i64::try_from(time.0).unwrap_or(i64::MAX))
}

fn destruction(ledger: &Ledger) -> Option<Destruction> {
    ledger.destroy.as_ref()?;
    if ledger.without_backup.is_some() {
        return Some(Destruction::BackupWaived);
    }
    let verified = ledger.backups.as_ref().and_then(|backups| backups.verified.clone());
    Some(verified.map_or(Destruction::BackupMissing, Destruction::BackupVerified))
}

/// Distinguishes two passwords of one cluster without keeping them.
pub fn password_fingerprint(cluster_id: &str, password: &Secret) -> String {
    let digest = Sha256::new().chain_update(cluster_id).chain_update([0]).chain_update(password.expose()).finalize();
    crate::text::hex(&digest[..16])
}

fn member(spec: &ClusterSpec, ledger: &Ledger, member: &MemberSpec, configs: &Configs) -> DesiredMember {
    let Rendered { config, digest, service_digest, etcd_version } = configs.members[member.name.as_str()].clone();
    let name = MemberName::from(member.name.as_str());
    let record = ledger.members.get(&name).cloned().unwrap_or_default();
    let incarnation = record.incarnation.max(1);
    DesiredMember {
        machine: spec.machine_name(member.name.as_str(), incarnation),
        incarnation,
        address: spec.provider.settings().pinned(member),
        generation: if record.digest == digest { record.generation } else { record.generation + 1 },
        config,
        digest,
        service_digest,
        etcd_version,
        enrolment: record.enrolment,
        unseen_since: record.unseen_since,
        place: spec.provider.settings().place(member),
        build: spec.provider.settings().build(member),
        data: spec.provider.settings().kept_data(member),
        names: names(spec, ledger, member),
        renewing: record.renewing,
        join_failed: record.join_failed,
        reboot: record.reboot,
    }
}

/// Names by which clients connect to a member: those in the spec, and those that the provider assigned to fixtures.
fn names(spec: &ClusterSpec, ledger: &Ledger, member: &MemberSpec) -> BTreeSet<String> {
    let wanted: BTreeSet<FixtureId> = spec.provider.settings().fixtures(spec).into_iter().map(|wish| wish.id).collect();
    let known = ledger.fixtures.0.iter().filter(|(id, _)| wanted.contains(id));
    let given = known.flat_map(|(_, record)| record.names.iter().cloned());
    given.chain(spec.provider.settings().names(spec, member)).collect()
}

/// Present if users log in with certificates that are signed here. If peers share the CA of clients, the list is added
/// together with the peers' own CA, so one restart applies both.
fn wants_client_list(spec: &ClusterSpec, ledger: &Ledger) -> bool {
    let Authorities { client, peer, .. } = &ledger.authorities;
    let signs = client.as_ref().is_none_or(|authority| authority.key.is_some() && peer.is_some());
    let asks = spec.kind == spec::Kind::Etcd && spec.etcd.client_auth.asks_for_certificates();
    asks && spec.tls.given.is_none() && signs
}

/// Present if peers have a separate CA, which quorate always signs with.
fn wants_peer_list(ledger: &Ledger) -> bool {
    let Authorities { client, peer, .. } = &ledger.authorities;
    client.is_none() || peer.as_ref().is_some_and(|peers| peers.trusted.iter().any(|authority| authority.key.is_some()))
}

fn revocable(spec: &ClusterSpec, ledger: &Ledger) -> Revocable {
    let mut revocable = Revocable::default();
    let is_declared = |name: &str| spec.auth.users.iter().any(|user| user.name.as_str() == name);
    let issued = ledger.issued.users.iter().filter(|c| !c.revoked && !is_declared(&c.user));
    for certificate in issued.filter(|_| wants_client_list(spec, ledger)) {
        *revocable.users.entry(certificate.user.clone()).or_default() += 1;
    }
    for given in ledger.issued.machines.iter().filter(|given| !given.revoked) {
        *revocable.machines.entry((given.member.clone(), given.incarnation)).or_default() += 1;
    }
    revocable
}

fn secrets_missing(spec: &ClusterSpec, ledger: &Ledger) -> BTreeSet<SecretKind> {
    let Authorities { client, peer, .. } = &ledger.authorities;
    let (of_clients, of_peers) = (wants_client_list(spec, ledger), wants_peer_list(ledger));
    let listed = (!of_clients || ledger.issued.client_crl.is_some()) && (!of_peers || ledger.issued.peer_crl.is_some());
    let is_etcd = spec.kind == spec::Kind::Etcd;
    let listed = listed && (is_etcd || peer.as_ref().is_none_or(|peers| peers.lists(&ledger.issued).is_some()));
    let (has_root_password, has_jwt) = (ledger.etcd.auth.root_password.is_some(), ledger.etcd.auth.jwt.is_some());
    let wanted = [
        (SecretKind::ClientAuthority, true, client.is_some()),
        // If only clients have a CA, peers share it; `trust` decides whether they can get their own.
        (SecretKind::PeerAuthority, client.is_none(), peer.is_some()),
        (SecretKind::ControlAuthority, true, ledger.authorities.control.is_some()),
        (SecretKind::RootPassword, is_etcd && etcd::desire::wants_root_password(spec), has_root_password),
        (SecretKind::JwtKeys, is_etcd && etcd::desire::token_kind(spec, ledger) == TokenKind::Jwt, has_jwt),
        (SecretKind::PostgresPasswords, !is_etcd, postgres::desire::has_passwords(spec, ledger)),
        (SecretKind::BackupSigning, spec.backup.is_some(), ledger.backup_signing.is_some()),
        (SecretKind::Revocations, of_clients || of_peers, listed),
        (SecretKind::PatroniCertificates, is_etcd, etcd::desire::patroni_has_certificates(spec, ledger)),
    ];
    wanted.into_iter().filter(|(_, wanted, there)| *wanted && !there).map(|(kind, ..)| kind).collect()
}

fn certificates(spec: &ClusterSpec, ledger: &Ledger, brought: &Brought) -> CertificateWish {
    CertificateWish {
        client_authority: ledger.authorities.client.as_ref().map(|a| a.key_id.clone()),
        control_authority: ledger.authorities.control.as_ref().map(|a| a.key_id.clone()),
        client_authority_ends: ledger.authorities.client.as_ref().map(|a| a.not_after),
        control_authority_ends: ledger.authorities.control.as_ref().map(|a| a.not_after),
        peer: ledger.authorities.peer.as_ref().and_then(plane),
        organization: spec.tls.organization.clone(),
        extra_sans: spec.tls.extra_sans.iter().map(ToString::to_string).collect(),
        proxied: spec.kind.proxied_addresses(spec, ledger),
        validity: spec.tls.leaf_validity.as_duration(),
        renew_before: spec.tls.renew_before().as_duration(),
        brought_authority: brought.authority.clone(),
        root: spec.kind == spec::Kind::Etcd && spec.etcd.client_auth.asks_for_certificates(),
        health: wants_health(spec),
        fronts: etcd::front::with_certificates(spec, ledger),
        brought: brought.members.clone(),
        brought_root: brought.root.clone(),
    }
}

/// kubeadm has a certificate for health checks. It is useful if clients authenticate with certificates, and signed if quorate signs them.
fn wants_health(spec: &ClusterSpec) -> bool {
    let signs = spec.etcd.client_auth.asks_for_certificates() && spec.tls.given.is_none();
    signs && spec.tls.layout == spec::CertificateLayout::Kubeadm
}

fn plane(plane: &Plane) -> Option<PlaneWish> {
    let signing = plane.signing()?;
    Some(PlaneWish {
        epoch: signing.epoch,
        signs: signing.key_id.clone(),
        ends: signing.not_after,
        trusted: plane.trusted.iter().map(|authority| (authority.epoch, authority.key_id.clone())).collect(),
    })
}

#[cfg(test)]
mod tests;
