//! Computes the desired state of etcd from the spec and the ledger: its part of the configuration, its flags, its users, and the start of a
//! restore.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use jiff::Timestamp;

use super::pod::{RunAs, StaticPod};
use super::spec::{self, Binary, ClientAuth, CompactionMode, Keys, Package, TokenKind};
use super::{
    Access, AuthWish, FormedWith, Permission, Record, Restore, SERVICE, UserWish, Wish, flags, front, pki, versions,
};
use crate::Secret;
use crate::desire::password_fingerprint;
use crate::kinds::postgres::DcsUser;
use crate::model::{
    ADDRESS, Archive, Authorities, BinarySource, Brought, CLIENT_PORT, CertificateUse, ConfigFile, EtcdService, Ledger,
    NodeConfig, PEER_PORT, Pod, ROOT, Runs, ServiceConfig,
};
use crate::spec::{CertificateLayout, ClusterSpec, MemberSpec};

/// The path of root's password, below the agent's root directory.
pub const ROOT_PASSWORD_FILE: &str = "etc/quorate/root-password";
const JWT_PRIVATE_FILE: &str = "etc/etcd/jwt.key";
const JWT_PUBLIC_FILE: &str = "etc/etcd/jwt.pub";
const SIMPLE: &str = "simple";
/// The CAs that etcd trusts, of peers and of clients. They are part of the configuration because etcd reads them only
/// when it starts: a different bundle requires a restart.
pub const PEER_TRUST_FILE: &str = "etc/etcd/peer-ca.crt";
pub const CLIENT_TRUST_FILE: &str = "etc/etcd/client-ca.crt";
/// The revoked client certificates. etcd reads the list at each connection.
const CLIENT_CRL_FILE: &str = "etc/etcd/client.crl";
pub(crate) const CLIENT_CRL_FLAG: &str = "client-crl-file";
/// The same of peers.
const PEER_CRL_FILE: &str = "etc/etcd/peer.crl";
const PEER_CRL_FLAG: &str = "peer-crl-file";
const DATA_DIRECTORY: &str = "var/lib/etcd";
/// The URL of etcd's release archives.
const RELEASES: &str = "https://github.com/etcd-io/etcd/releases/download";

/// The CAs that etcd should trust if peers have a separate CA.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Trust {
    peers: String,
    clients: String,
}

impl Trust {
    pub(crate) fn of(ledger: &Ledger) -> Option<Self> {
        let Authorities { client, peer, .. } = &ledger.authorities;
        Some(Trust { peers: peer.as_ref()?.bundle(), clients: client.as_ref()?.certificate.clone() })
    }
}

/// A spec without a token type never changes the one of an existing cluster: another type logs every client out and restarts every member.
pub(crate) fn token_kind(spec: &ClusterSpec, ledger: &Ledger) -> TokenKind {
    match (spec.auth.token, &ledger.etcd.formed_with, spec.etcd.client_auth) {
        (Some(named), ..) => named,
        (None, Some(formed), _) if formed.token == SIMPLE => TokenKind::Simple,
        (None, Some(_), _) | (None, None, ClientAuth::Password | ClientAuth::CertificateAndPassword) => TokenKind::Jwt,
        (None, None, ClientAuth::Certificate) => TokenKind::Simple,
    }
}

pub(crate) fn wish(spec: &ClusterSpec, ledger: &Ledger, brought: &Brought, token_suffix: &str) -> Wish {
    let Record { formation, abandoned, last_change, recovery, awaits_restore, highest_revision, .. } = &ledger.etcd;
    Wish {
        formation: formation.clone(),
        abandoned: abandoned.clone(),
        form_with: form_with(spec, ledger),
        formed_with: formed_with(ledger),
        next_token: format!("{}-{token_suffix}", spec.initial_token),
        last_change: *last_change,
        recovery: recovery.is_some(),
        recovery_of: recovery.as_ref().and_then(|request| request.of.clone()),
        restore: restore(ledger, brought),
        awaits_restore: awaits_restore.clone(),
        highest_revision: *highest_revision,
        auth: spec.auth.bootstrap.then(|| auth(spec, ledger, brought)),
        patroni_certificates: patroni_certificates(spec, ledger),
        quota: spec.etcd.quota,
    }
}

pub(crate) fn form_with(spec: &ClusterSpec, ledger: &Ledger) -> FormedWith {
    FormedWith {
        version: spec.etcd.version.to_string(),
        client_auth: spec.etcd.client_auth.name().to_owned(),
        bootstrap: spec.auth.bootstrap.to_string(),
        token: match token_kind(spec, ledger) {
            TokenKind::Simple => String::from(SIMPLE),
            TokenKind::Jwt => String::from("jwt"),
        },
    }
}

/// As set when the cluster was created, or turned on since.
fn formed_with(ledger: &Ledger) -> Option<FormedWith> {
    let mut formed_with = ledger.etcd.formed_with.clone()?;
    if ledger.etcd.auth.users.contains_key("root") {
        formed_with.bootstrap = true.to_string();
    }
    Some(formed_with)
}

fn restore(ledger: &Ledger, brought: &Brought) -> Option<Restore> {
    let wish = ledger.etcd.restore.as_ref()?;
    Some(Restore {
        sha256: wish.sha256.clone(),
        bytes: wish.bytes,
        revision: wish.revision,
        bump_revision: wish.bump_revision,
        source: wish.source.clone(),
        at_hand: brought.snapshot.as_ref() == Some(&wish.sha256),
    })
}

pub(crate) fn node_config(
    spec: &ClusterSpec,
    ledger: &Ledger,
    member: &MemberSpec,
    binary: BinarySource,
) -> NodeConfig {
    let mut files = Vec::new();
    let mut inputs = BTreeSet::new();
    let token = token_kind(spec, ledger);
    if let (TokenKind::Jwt, Some(keys)) = (token, &ledger.etcd.auth.jwt) {
        files.push(ConfigFile::text(JWT_PRIVATE_FILE, 0o600, keys.private.clone()));
        files.push(ConfigFile::text(JWT_PUBLIC_FILE, 0o644, Secret::new(keys.public.clone())));
        inputs.extend([JWT_PRIVATE_FILE.to_owned(), JWT_PUBLIC_FILE.to_owned()]);
    }
    if let (true, Some(password)) = (wants_root_password(spec), &ledger.etcd.auth.root_password) {
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
    if let (Some(crl), Some(_), true) = (&ledger.issued.client_crl, &trust, signed_here) {
        let content = Secret::new(crl.clone());
        files.push(ConfigFile { hex: true, ..ConfigFile::text(CLIENT_CRL_FILE, 0o644, content) });
        // A list of the operator would replace quorate's. The spec check refuses it, but an older ledger may contain one.
        flags.insert(CLIENT_CRL_FLAG.to_owned(), format!("{ROOT}/{CLIENT_CRL_FILE}"));
    }
    if let (Some(crl), Some(_)) = (&ledger.issued.peer_crl, &trust) {
        let content = Secret::new(crl.clone());
        files.push(ConfigFile { hex: true, ..ConfigFile::text(PEER_CRL_FILE, 0o644, content) });
        flags.insert(PEER_CRL_FLAG.to_owned(), format!("{ROOT}/{PEER_CRL_FILE}"));
    }
    let runs = Runs::Etcd(EtcdService { version, binary, flags, layout: spec.tls.layout, pod: pod(spec) });
    let etcd = ServiceConfig { name: SERVICE.to_owned(), user: SERVICE.to_owned(), runs, inputs };
    let mut config = NodeConfig { files, services: vec![etcd], host: None };
    front::add_to(&mut config, spec, ledger, member);
    config
}

fn pod(spec: &ClusterSpec) -> Option<Pod> {
    let StaticPod { image, manifests } =
        spec.etcd.static_pod.clone().filter(|_| spec.etcd.run_as == RunAs::StaticPod)?;
    Some(Pod { image, manifests: manifests.display().to_string() })
}

/// Whom peers trust.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peers {
    OwnCa,
    /// Like clusters that were created before peers had a separate CA: any user's certificate is valid on the peer port.
    CaOfClients,
}

/// etcd's flags, except those that matter only at its first start.
pub fn etcd_flags(spec: &ClusterSpec, member: &MemberSpec, token: TokenKind, peers: Peers) -> BTreeMap<String, String> {
    let etcd = &spec.etcd;
    let layout = spec.tls.layout;
    let in_pki = |file: &str| format!("{ROOT}/{}/{file}", pki::directory(layout));
    let of =
        |of: CertificateUse, end: &str| in_pki(&format!("{}.{end}", pki::file_stem(layout, of).unwrap_or_default()));
    let below_root = |file: &str| format!("{ROOT}/{file}");
    let (peer, peer_trust, client_trust) = match (peers, layout) {
        (Peers::OwnCa, CertificateLayout::Standard) => {
            (CertificateUse::Peer, below_root(PEER_TRUST_FILE), below_root(CLIENT_TRUST_FILE))
        }
        // The agent puts the configuration's content of those files there too.
        (Peers::OwnCa, CertificateLayout::Kubeadm) => (CertificateUse::Peer, in_pki(pki::PEER_CA), in_pki(pki::CA)),
        (Peers::CaOfClients, _) => (CertificateUse::Member, in_pki(pki::CA), in_pki(pki::CA)),
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
        ("cert-file", of(CertificateUse::Member, "crt")),
        ("key-file", of(CertificateUse::Member, "key")),
        ("client-cert-auth", etcd.client_auth.asks_for_certificates().to_string()),
        ("peer-cert-file", of(peer, "crt")),
        ("peer-key-file", of(peer, "key")),
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
    // If etcd is given a CA for clients, it demands a certificate from them, whatever `client-cert-auth` says.
    if etcd.client_auth.asks_for_certificates() {
        flags.insert(String::from("trusted-ca-file"), client_trust);
    }
    flags.extend(metrics_url(spec).map(|url| (String::from("listen-metrics-urls"), url)));
    flags.extend(flags::translate(&etcd.flags, etcd.version).flags);
    flags
}

/// The URL of etcd's metrics, in addition to its client port.
pub(crate) fn metrics_url(spec: &ClusterSpec) -> Option<String> {
    spec.etcd.metrics.as_ref().map(|metrics| format!("http://{ADDRESS}:{}", metrics.port))
}

fn compaction_mode(mode: CompactionMode) -> &'static str {
    match mode {
        CompactionMode::Revision => "revision",
        CompactionMode::Periodic => "periodic",
    }
}

/// The source of the etcd programs that the spec wants.
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
        Some(Binary::Package(Package::Debian)) => BinarySource::DebianPackage,
        Some(Binary::Archive { url, sha256 }) => {
            BinarySource::Archive(Archive { url: url.clone(), sha256: sha256.to_string() })
        }
        Some(Binary::Mirror(base)) => match archive(base) {
            Some(archive) => BinarySource::Archive(archive),
            None => BinarySource::Search { otherwise: None },
        },
    }
}

pub(crate) fn wants_root_password(spec: &ClusterSpec) -> bool {
    spec.auth.bootstrap && spec.etcd.client_auth == ClientAuth::Password
}

/// Every Patroni that keeps its state here, if clients show a certificate and log in with a password.
pub(crate) fn patroni_has_certificates(spec: &ClusterSpec, ledger: &Ledger) -> bool {
    let clients = ledger.authorities.client.as_ref();
    spec.etcd.client_auth != ClientAuth::CertificateAndPassword
        || ledger.etcd.used_by.values().all(|used| used.certificate_of(clients).is_some())
}

fn patroni_certificates(spec: &ClusterSpec, ledger: &Ledger) -> BTreeMap<String, Range<Timestamp>> {
    let used_by = ledger.etcd.used_by.iter().filter(|_| spec.etcd.client_auth == ClientAuth::CertificateAndPassword);
    used_by.filter_map(|(name, used)| Some((name.clone(), used.certificate.as_ref()?.valid()))).collect()
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
    // A PostgreSQL cluster that keeps Patroni's state here may access only its own keys.
    let patroni_users = ledger.etcd.used_by.values().flat_map(DcsUser::logins).map(|(user, password)| {
        let password = Some(password_fingerprint(&ledger.cluster_id, password));
        (user.clone(), UserWish { roles: BTreeSet::from([user.clone()]), password })
    });
    let patroni_roles = ledger.etcd.used_by.values().flat_map(|used| {
        let permissions = BTreeSet::from([Permission::on_prefix(&used.prefix, Access::ReadWrite)]);
        used.logins().map(move |(user, _)| (user.clone(), permissions.clone()))
    });
    AuthWish {
        root_password: brought.root_password.clone(),
        users: users.chain(patroni_users).collect(),
        roles: roles.chain(patroni_roles).collect(),
        owned: ledger.etcd.auth.clone(),
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
