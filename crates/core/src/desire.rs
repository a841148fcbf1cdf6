//! From the spec and the ledger to what is desired: the node config of each member, the certificates, the users.
//!
//! Pure: the same spec and the same ledger always desire the same, so an unchanged spec never changes a machine.

mod host;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::SignedDuration;
use sha2::{Digest, Sha256};

use crate::Secret;
use crate::flags;
use crate::model::{
    ADDRESS, Access, Archive, AuthWish, Authorities, BinarySource, Brought, CLIENT_PORT, CertificateWish, ConfigFile,
    Desired, DesiredMember, Destruction, EtcdService, FormedWith, JwtKeys, Ledger, MemberName, NodeConfig, PEER_PORT,
    Permission, Plane, PlaneWish, Program, ROOT, Restore, Revocable, SecretKind, UserWish,
};
use crate::spec::{self, Binary, Change, ClientAuth, ClusterSpec, Keys, MemberSpec, Millis, TokenKind};
use crate::versions;

/// Where the agent finds root's password, below its root directory.
pub const ROOT_PASSWORD_FILE: &str = "etc/quorate/root-password";
const JWT_PRIVATE_FILE: &str = "etc/etcd/jwt.key";
const JWT_PUBLIC_FILE: &str = "etc/etcd/jwt.pub";
const SIMPLE: &str = "simple";
const PKI_DIRECTORY: &str = "etc/etcd/pki";
/// The CAs that etcd trusts: of its peers, and of its clients. They are part of the node config, as etcd reads them only
/// when it starts: another bundle is a reason to restart it.
pub const PEER_TRUST_FILE: &str = "etc/etcd/peer-ca.crt";
pub const CLIENT_TRUST_FILE: &str = "etc/etcd/client-ca.crt";
/// The certificates of clients that etcd refuses. It reads them at each connection.
const CLIENT_CRL_FILE: &str = "etc/etcd/client.crl";
pub(crate) const CLIENT_CRL_FLAG: &str = "client-crl-file";
/// The same of peers.
const PEER_CRL_FILE: &str = "etc/etcd/peer.crl";
const PEER_CRL_FLAG: &str = "peer-crl-file";
/// An agent's certificate to its controller; renewed like any other when a third of it is left.
pub const AGENT_VALIDITY: SignedDuration = SignedDuration::from_hours(24 * 365);
const DATA_DIRECTORY: &str = "var/lib/etcd";
/// Where etcd publishes its release archives.
const RELEASES: &str = "https://github.com/etcd-io/etcd/releases/download";

/// The node configs of a cluster and their digests. They follow from the spec and the secrets alone, so whoever desires
/// over and over renders them once.
#[derive(Clone, PartialEq, Debug)]
pub struct Configs {
    members: BTreeMap<String, Rendered>,
    jwt: Option<JwtKeys>,
    root_password: Option<Secret>,
    formed_token: Option<String>,
    trust: Option<Trust>,
    crl: Option<String>,
    peer_crl: Option<String>,
    listed: BTreeSet<IpAddr>,
    /// What differs from the spec before: in the reasons of steps, no more.
    pub(crate) changes: Vec<Change>,
}

/// What etcd is to trust where peers have a CA of their own.
#[derive(Clone, PartialEq, Debug)]
struct Trust {
    peers: String,
    clients: String,
}

impl Trust {
    fn of(ledger: &Ledger) -> Option<Self> {
        let Authorities { etcd, peer, .. } = &ledger.authorities;
        Some(Trust { peers: peer.as_ref()?.bundle(), clients: etcd.as_ref()?.certificate.clone() })
    }
}

#[derive(Clone, PartialEq, Debug)]
struct Rendered {
    config: Arc<NodeConfig>,
    digest: String,
    etcd_digest: String,
}

impl Configs {
    fn render(spec: &ClusterSpec, ledger: &Ledger, brought: &Brought, arch: &str) -> Self {
        let binary = binary(spec, arch);
        let neighbours = host::neighbours(spec, ledger);
        let rendered = spec.members.iter().map(|member| {
            let mut config = node_config(spec, ledger, member, binary.clone());
            config.host = host::config(spec, member, brought, &neighbours).map(Box::new);
            let (digest, etcd_digest) = (config.digest(), config.etcd_digest());
            (member.name.to_string(), Rendered { config: Arc::new(config), digest, etcd_digest })
        });
        let members = rendered.collect();
        let formed_token = ledger.formed_with.as_ref().map(|formed| formed.token.clone());
        let (jwt, root_password) = (ledger.auth.jwt.clone(), ledger.auth.root_password.clone());
        let trust = Trust::of(ledger);
        let (crl, peer_crl) = (ledger.auth.crl.clone(), ledger.auth.peer_crl.clone());
        let changes = ledger.spec_before.as_ref().map_or_else(Vec::new, |before| spec::changes(before, spec));
        Configs {
            members,
            jwt,
            root_password,
            formed_token,
            trust,
            crl,
            peer_crl,
            listed: host::listed(ledger),
            changes,
        }
    }

    /// Whether they would be rendered the same for this ledger.
    pub fn are_current(&self, ledger: &Ledger) -> bool {
        let formed_token = ledger.formed_with.as_ref().map(|formed| &formed.token);
        self.jwt == ledger.auth.jwt
            && self.root_password == ledger.auth.root_password
            && self.formed_token.as_ref() == formed_token
            && self.trust == Trust::of(ledger)
            && self.crl == ledger.auth.crl
            && self.peer_crl == ledger.auth.peer_crl
            && self.listed == host::listed(ledger)
    }
}

/// What the operator wants and brought, apart from the ledger.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    pub spec: &'a ClusterSpec,
    pub brought: &'a Brought,
    pub arch: &'a str,
}

impl Wish<'_> {
    /// Lays the wish over the ledger. `token_suffix` is random: it ends the token of a formation, should one begin.
    pub fn desire(&self, ledger: &Ledger, token_suffix: &str) -> Desired {
        self.desire_with(ledger, &self.configs(ledger), token_suffix)
    }

    pub fn configs(&self, ledger: &Ledger) -> Configs {
        Configs::render(self.spec, ledger, self.brought, self.arch)
    }

    /// The same with node configs that were rendered before, for this spec and these secrets.
    pub fn desire_with(&self, ledger: &Ledger, configs: &Configs, token_suffix: &str) -> Desired {
        let Wish { spec, brought, .. } = *self;
        let members: BTreeMap<MemberName, DesiredMember> =
            spec.members.iter().map(|m| (m.name.as_str().into(), member(spec, ledger, m, configs))).collect();
        Desired {
            cluster: spec.name.to_string(),
            cluster_id: ledger.cluster_id.clone(),
            program: Program::this().clone(),
            not_upgraded: BTreeMap::new(),
            power: ledger.power,
            destroy: destruction(ledger),
            downtime: ledger.downtime.is_some(),
            grace: ledger.without_grace.is_none().then(|| grace(spec)),
            boots_within: spec.provider.settings().boots_within(),
            machines: spec.provider.settings().machines(),
            recovery: ledger.recovery.is_some(),
            recovery_of: ledger.recovery.as_ref().and_then(|request| request.of.clone()),
            restore: restore(ledger, brought),
            last_change: ledger.last_change,
            highest_revision: ledger.highest_revision,
            formation: ledger.formation.clone(),
            abandoned: ledger.abandoned.clone(),
            form_with: form_with(spec, ledger),
            formed_with: formed_with(ledger),
            next_token: format!("{}-{token_suffix}", spec.initial_token),
            secrets_missing: secrets_missing(spec, ledger),
            fence: ledger.fence,
            members,
            certificates: certificates(spec, ledger, brought),
            auth: spec.auth.bootstrap.then(|| auth(spec, ledger, brought)),
            revocable: revocable(spec, ledger),
            changes: configs.changes.clone(),
        }
    }
}

fn form_with(spec: &ClusterSpec, ledger: &Ledger) -> FormedWith {
    FormedWith {
        etcd_version: spec.etcd.version.to_string(),
        client_auth: spec.etcd.client_auth.name().to_owned(),
        bootstrap: spec.auth.bootstrap.to_string(),
        namespace: spec.namespace.as_ref().map_or_else(|| String::from("none"), ToString::to_string),
        key_algorithm: match spec.tls.key_algorithm {
            spec::KeyAlgorithm::P256 => String::from("p256"),
            spec::KeyAlgorithm::Rsa => String::from("rsa"),
            spec::KeyAlgorithm::Ed25519 => String::from("ed25519"),
        },
        provider: spec.provider.settings().name().to_owned(),
        machines: spec.provider.settings().fixed(),
        token: match token_kind(spec, ledger) {
            TokenKind::Simple => String::from(SIMPLE),
            TokenKind::Jwt => String::from("jwt"),
        },
    }
}

/// A spec that names none never changes what a cluster has: another kind logs every client out and restarts every member.
fn token_kind(spec: &ClusterSpec, ledger: &Ledger) -> TokenKind {
    match (spec.auth.token, &ledger.formed_with, spec.etcd.client_auth) {
        (Some(named), ..) => named,
        (None, Some(formed), _) if formed.token == SIMPLE => TokenKind::Simple,
        (None, Some(_), _) | (None, None, ClientAuth::Password | ClientAuth::CertificateAndPassword) => TokenKind::Jwt,
        (None, None, ClientAuth::Certificate) => TokenKind::Simple,
    }
}

/// As it was settled at formation; authentication that was turned on later counts as well.
fn formed_with(ledger: &Ledger) -> Option<FormedWith> {
    let mut formed_with = ledger.formed_with.clone()?;
    if ledger.auth.users.contains_key("root") {
        formed_with.bootstrap = true.to_string();
    }
    Some(formed_with)
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

fn restore(ledger: &Ledger, brought: &Brought) -> Option<Restore> {
    let wish = ledger.restore.as_ref()?;
    Some(Restore {
        sha256: wish.sha256.clone(),
        bytes: wish.bytes,
        revision: wish.revision,
        bump_revision: wish.bump_revision,
        source: wish.source.clone(),
        at_hand: brought.snapshot.as_ref() == Some(&wish.sha256),
    })
}

/// Tells two passwords of one cluster apart without keeping them.
pub fn password_fingerprint(cluster_id: &str, password: &Secret) -> String {
    let digest = Sha256::new().chain_update(cluster_id).chain_update([0]).chain_update(password.expose()).finalize();
    crate::text::hex(&digest[..16])
}

fn member(spec: &ClusterSpec, ledger: &Ledger, member: &MemberSpec, configs: &Configs) -> DesiredMember {
    let Rendered { config, digest, etcd_digest } = configs.members[member.name.as_str()].clone();
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
        etcd_digest,
        enrolment: record.enrolment,
        unseen_since: record.unseen_since,
        build: spec.provider.settings().build(member),
        data: spec.provider.settings().kept_data(member),
        renewing: record.renewing,
        join_failed: record.join_failed,
    }
}

fn node_config(spec: &ClusterSpec, ledger: &Ledger, member: &MemberSpec, binary: BinarySource) -> NodeConfig {
    let mut files = Vec::new();
    let mut inputs = BTreeSet::new();
    let token = token_kind(spec, ledger);
    if let (TokenKind::Jwt, Some(keys)) = (token, &ledger.auth.jwt) {
        files.push(ConfigFile::text(JWT_PRIVATE_FILE, 0o600, keys.private.clone()));
        files.push(ConfigFile::text(JWT_PUBLIC_FILE, 0o644, Secret::new(keys.public.clone())));
        inputs.extend([JWT_PRIVATE_FILE.to_owned(), JWT_PUBLIC_FILE.to_owned()]);
    }
    if let (true, Some(password)) = (wants_root_password(spec), &ledger.auth.root_password) {
        files.push(ConfigFile::text(ROOT_PASSWORD_FILE, 0o600, password.clone()));
    }
    let trust = Trust::of(ledger);
    if let Some(Trust { peers, clients }) = &trust {
        let by_certificate = spec.etcd.client_auth.asks_for_certificates();
        let clients = by_certificate.then_some((CLIENT_TRUST_FILE, clients));
        for (path, bundle) in [Some((PEER_TRUST_FILE, peers)), clients].into_iter().flatten() {
            files.push(ConfigFile::text(path, 0o644, Secret::new(bundle.clone())));
            inputs.insert(path.to_owned());
        }
    }
    let version = spec.etcd.version.to_string();
    let peers = if trust.is_some() { Peers::OwnCa } else { Peers::CaOfClients };
    let mut flags = etcd_flags(spec, member, token, peers);
    let signed_here = spec.etcd.client_auth.asks_for_certificates() && spec.tls.given.is_none();
    if let (Some(crl), Some(_), true) = (&ledger.auth.crl, &trust, signed_here) {
        let content = Secret::new(crl.clone());
        files.push(ConfigFile { hex: true, ..ConfigFile::text(CLIENT_CRL_FILE, 0o644, content) });
        // A list of the operator's would take the place of this one. The spec check refuses it, but an older ledger may hold it.
        flags.insert(CLIENT_CRL_FLAG.to_owned(), format!("{ROOT}/{CLIENT_CRL_FILE}"));
    }
    if let (Some(crl), Some(_)) = (&ledger.auth.peer_crl, &trust) {
        let content = Secret::new(crl.clone());
        files.push(ConfigFile { hex: true, ..ConfigFile::text(PEER_CRL_FILE, 0o644, content) });
        flags.insert(PEER_CRL_FLAG.to_owned(), format!("{ROOT}/{PEER_CRL_FILE}"));
    }
    let etcd = EtcdService { version, binary, flags, inputs };
    NodeConfig { files, etcd, host: None }
}

/// Whom peers trust.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peers {
    OwnCa,
    /// As in clusters that were made before peers had a CA of their own: any user's certificate is valid on the peer port.
    CaOfClients,
}

/// The flags with which etcd runs, apart from those that matter only at its first start.
pub fn etcd_flags(spec: &ClusterSpec, member: &MemberSpec, token: TokenKind, peers: Peers) -> BTreeMap<String, String> {
    let etcd = &spec.etcd;
    let pki = |file: &str| format!("{ROOT}/{PKI_DIRECTORY}/{file}");
    let below_root = |file: &str| format!("{ROOT}/{file}");
    let (peer, peer_trust, client_trust) = match peers {
        Peers::OwnCa => ("peer", below_root(PEER_TRUST_FILE), below_root(CLIENT_TRUST_FILE)),
        Peers::CaOfClients => ("member", pki("ca.crt"), pki("ca.crt")),
    };
    let client_url = format!("https://{ADDRESS}:{CLIENT_PORT}");
    let auth_token = match token {
        TokenKind::Simple => String::from(SIMPLE),
        TokenKind::Jwt => {
            format!("jwt,pub-key={ROOT}/{JWT_PUBLIC_FILE},priv-key={ROOT}/{JWT_PRIVATE_FILE},sign-method=ES256,ttl=10m")
        }
    };
    let ours = [
        ("name", member.name.to_string()),
        ("data-dir", format!("{ROOT}/{DATA_DIRECTORY}")),
        ("listen-client-urls", client_url.clone()),
        ("advertise-client-urls", client_url),
        ("listen-peer-urls", format!("https://{ADDRESS}:{PEER_PORT}")),
        ("cert-file", pki("member.crt")),
        ("key-file", pki("member.key")),
        ("client-cert-auth", etcd.client_auth.asks_for_certificates().to_string()),
        ("peer-cert-file", pki(&format!("{peer}.crt"))),
        ("peer-key-file", pki(&format!("{peer}.key"))),
        ("peer-trusted-ca-file", peer_trust),
        ("peer-client-cert-auth", String::from("true")),
        ("auto-compaction-mode", compaction_mode(etcd.auto_compaction.mode).to_owned()),
        ("auto-compaction-retention", etcd.auto_compaction.retention().to_string()),
        ("quota-backend-bytes", etcd.quota.0.to_string()),
        ("enable-grpc-gateway", etcd.grpc_gateway.to_string()),
        ("heartbeat-interval", etcd.heartbeat.0.to_string()),
        ("election-timeout", etcd.election.0.to_string()),
        ("auth-token", auth_token),
        ("logger", String::from("zap")),
    ];
    let mut flags: BTreeMap<String, String> = ours.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
    // Where etcd is told a CA for clients, it demands a certificate of them, whatever `client-cert-auth` says.
    if etcd.client_auth.asks_for_certificates() {
        flags.insert(String::from("trusted-ca-file"), client_trust);
    }
    flags.extend(metrics_url(spec).map(|url| (String::from("listen-metrics-urls"), url)));
    flags.extend(flags::translate(&etcd.flags, etcd.version).flags);
    flags
}

/// Where etcd shows its metrics, besides its client port.
fn metrics_url(spec: &ClusterSpec) -> Option<String> {
    spec.etcd.metrics.as_ref().map(|metrics| format!("http://{ADDRESS}:{}", metrics.port))
}

fn compaction_mode(mode: spec::CompactionMode) -> &'static str {
    match mode {
        spec::CompactionMode::Revision => "revision",
        spec::CompactionMode::Periodic => "periodic",
    }
}

/// Where the programs of the spec's etcd come from.
pub fn binary(spec: &ClusterSpec, arch: &str) -> BinarySource {
    let version = spec.etcd.version;
    let archive = |base: &str| {
        let sha256 = versions::release_checksum(version, arch)?;
        let name = versions::release_archive_name(version, arch);
        Some(Archive { url: format!("{}/v{version}/{name}", base.trim_end_matches('/')), sha256: sha256.to_owned() })
    };
    match &spec.etcd.binary {
        None => BinarySource::Search { otherwise: archive(RELEASES) },
        Some(Binary::Path(path)) => BinarySource::Path(path.display().to_string()),
        Some(Binary::Package(spec::Package::Debian)) => BinarySource::DebianPackage,
        Some(Binary::Archive { url, sha256 }) => {
            BinarySource::Archive(Archive { url: url.clone(), sha256: sha256.to_string() })
        }
        Some(Binary::Mirror(base)) => match archive(base) {
            Some(archive) => BinarySource::Archive(archive),
            None => BinarySource::Search { otherwise: None },
        },
    }
}

fn wants_root_password(spec: &ClusterSpec) -> bool {
    spec.auth.bootstrap && spec.etcd.client_auth == ClientAuth::Password
}

/// Where users log in with certificates that are signed here. In a cluster whose peers share the CA of clients, the list
/// comes with their own: both are taken up by one restart.
fn wants_client_list(spec: &ClusterSpec, ledger: &Ledger) -> bool {
    let Authorities { etcd, peer, .. } = &ledger.authorities;
    let signs = etcd.as_ref().is_none_or(|authority| authority.key.is_some() && peer.is_some());
    spec.etcd.client_auth.asks_for_certificates() && spec.tls.given.is_none() && signs
}

/// Where peers have a CA of their own, which is always signed for here.
fn wants_peer_list(ledger: &Ledger) -> bool {
    let Authorities { etcd, peer, .. } = &ledger.authorities;
    etcd.is_none() || peer.as_ref().is_some_and(|peers| peers.trusted.iter().any(|authority| authority.key.is_some()))
}

fn revocable(spec: &ClusterSpec, ledger: &Ledger) -> Revocable {
    let mut revocable = Revocable::default();
    let is_declared = |name: &str| spec.auth.users.iter().any(|user| user.name.as_str() == name);
    let issued = ledger.auth.certificates.iter().filter(|c| !c.revoked && !is_declared(&c.user));
    for certificate in issued.filter(|_| wants_client_list(spec, ledger)) {
        *revocable.users.entry(certificate.user.clone()).or_default() += 1;
    }
    for given in ledger.auth.machines.iter().filter(|given| !given.revoked) {
        *revocable.machines.entry((given.member.clone(), given.incarnation)).or_default() += 1;
    }
    revocable
}

fn secrets_missing(spec: &ClusterSpec, ledger: &Ledger) -> BTreeSet<SecretKind> {
    let Authorities { etcd, peer, .. } = &ledger.authorities;
    let (of_clients, of_peers) = (wants_client_list(spec, ledger), wants_peer_list(ledger));
    let listed = (!of_clients || ledger.auth.crl.is_some()) && (!of_peers || ledger.auth.peer_crl.is_some());
    let wanted = [
        (SecretKind::EtcdAuthority, true, etcd.is_some()),
        // Where clients have a CA and peers have none, peers share it: whether they can have their own, `trust` decides.
        (SecretKind::PeerAuthority, etcd.is_none(), peer.is_some()),
        (SecretKind::ControlAuthority, true, ledger.authorities.control.is_some()),
        (SecretKind::RootPassword, wants_root_password(spec), ledger.auth.root_password.is_some()),
        (SecretKind::JwtKeys, token_kind(spec, ledger) == TokenKind::Jwt, ledger.auth.jwt.is_some()),
        (SecretKind::BackupSigning, spec.backup.is_some(), ledger.backup_signing.is_some()),
        (SecretKind::Revocations, of_clients || of_peers, listed),
    ];
    wanted.into_iter().filter(|(_, wanted, there)| *wanted && !there).map(|(kind, ..)| kind).collect()
}

fn certificates(spec: &ClusterSpec, ledger: &Ledger, brought: &Brought) -> CertificateWish {
    let hours = |v: spec::Validity| SignedDuration::from_hours(i64::try_from(v.as_hours()).unwrap_or(i64::MAX / 3600));
    CertificateWish {
        etcd_authority: ledger.authorities.etcd.as_ref().map(|a| a.key_id.clone()),
        control_authority: ledger.authorities.control.as_ref().map(|a| a.key_id.clone()),
        etcd_authority_ends: ledger.authorities.etcd.as_ref().map(|a| a.not_after),
        control_authority_ends: ledger.authorities.control.as_ref().map(|a| a.not_after),
        peer: ledger.authorities.peer.as_ref().and_then(plane),
        organization: spec.tls.organization.clone(),
        extra_sans: spec.tls.extra_sans.iter().map(ToString::to_string).collect(),
        validity: hours(spec.tls.leaf_validity),
        renew_before: hours(spec.tls.renew_before()),
        brought_authority: brought.authority.clone(),
        root: spec.etcd.client_auth.asks_for_certificates(),
        brought: brought.members.clone(),
        brought_root: brought.root.clone(),
    }
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

fn auth(spec: &ClusterSpec, ledger: &Ledger, brought: &Brought) -> AuthWish {
    let users = spec.auth.users.iter().map(|user| {
        let wish = UserWish {
            roles: user.roles.iter().map(ToString::to_string).collect(),
            password: brought.passwords.get(user.name.as_str()).cloned(),
        };
        (user.name.to_string(), wish)
    });
    let roles = spec.auth.roles.iter().map(|role| {
        let permissions = role.permissions.iter().map(permission).collect();
        (role.name.to_string(), permissions)
    });
    AuthWish {
        root_password: brought.root_password.clone(),
        users: users.collect(),
        roles: roles.collect(),
        owned: ledger.auth.clone(),
    }
}

fn permission(permission: &spec::Permission) -> Permission {
    let access = match permission.access {
        spec::Access::Read => Access::Read,
        spec::Access::Write => Access::Write,
        spec::Access::ReadWrite => Access::ReadWrite,
    };
    match &permission.keys {
        Keys::Key(key) => Permission::on_key(key, access),
        Keys::Prefix(prefix) => Permission::on_prefix(prefix, access),
    }
}

#[cfg(test)]
mod tests;
