//! The ledger: everything beyond the spec that must survive a run. Plain data; `control::ledger` stores it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    Authorities, AuthorityRecord, CLIENT_PORT, FixtureId, FixtureKind, Fixtures, Issued, MemberName, Plane, Program,
};
use crate::Secret;
use crate::kinds::{etcd, postgres};
use crate::providers;
use crate::spec::{ClusterSpec, Signer};

/// The format that this program writes. A newer one is refused. Up to 1, secrets were stored as they are; up to 2, the
/// spec had settings of single providers among those of clusters and members; up to 3, what only etcd has was among what
/// every cluster has; up to 4, fields were added without a new number, and a ledger did not say who wrote it.
///
/// Raised with every change of what a ledger can hold; `tests/core/shape.rs` compares.
pub const LEDGER_FORMAT: u32 = 5;

/// Converts the content of a ledger of an older format. Ledgers of format 4 have the current shape already.
pub fn migrate_ledger(ledger: &mut Value, format: u32) {
    if format <= 2 {
        to_sections_of_providers(ledger);
    }
    if format <= 3 {
        to_sections_of_kinds(ledger);
    }
}

fn to_sections_of_providers(ledger: &mut Value) {
    for spec in ["spec", "spec_before"] {
        ledger.get_mut(spec).map(providers::migrate);
    }
    let Some(formed) = ledger.get_mut("formed_with").and_then(Value::as_object_mut) else { return };
    let network = formed.remove("network").unwrap_or_else(|| "loopback".into());
    if formed.get("provider").is_none_or(|provider| provider == "local") {
        formed.insert("machines".to_owned(), json!({ "provider.local.network": network }));
    }
}

fn to_sections_of_kinds(ledger: &mut Value) {
    let Some(ledger) = ledger.as_object_mut() else { return };
    let mut etcd = Map::new();
    let of_etcd = ["formation", "abandoned", "last_change", "recovery", "recovered", "restore", "highest_revision"];
    take(ledger, &mut etcd, of_etcd.map(|name| (name, name)));
    if let Some(formed) = ledger.get_mut("formed_with").and_then(Value::as_object_mut) {
        let mut settled = Map::new();
        let of_etcd = [
            ("etcd_version", "version"),
            ("client_auth", "client_auth"),
            ("bootstrap", "bootstrap"),
            ("token", "token"),
        ];
        take(formed, &mut settled, of_etcd);
        etcd.insert("formed_with".to_owned(), settled.into());
    }
    if let Some(Value::Object(mut auth)) = ledger.remove("auth") {
        let mut issued = Map::new();
        let lists =
            [("certificates", "users"), ("machines", "machines"), ("crl", "client_crl"), ("peer_crl", "peer_crl")];
        take(&mut auth, &mut issued, lists);
        ledger.insert("issued".to_owned(), issued.into());
        etcd.insert("auth".to_owned(), auth.into());
    }
    if let Some(authorities) = ledger.get_mut("authorities").and_then(Value::as_object_mut)
        && let Some(authority) = authorities.remove("etcd")
    {
        authorities.insert("client".to_owned(), authority);
    }
    ledger.insert("etcd".to_owned(), etcd.into());
}

/// Moves fields to another place, where they may have another name.
fn take<const N: usize>(from: &mut Map<String, Value>, to: &mut Map<String, Value>, fields: [(&str, &str); N]) {
    for (was, is) in fields {
        if let Some(value) = from.remove(was) {
            to.insert(is.to_owned(), value);
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ledger {
    pub format: u32,
    /// The version of the quorate that wrote this; empty up to format 4. Like `format`, it stays where it is in every format.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub written_by: String,
    /// Raised by one with each write; a write of a version that exists already is refused.
    pub version: u64,
    /// Random, created once: distinguishes this cluster from an earlier one with the same name.
    pub cluster_id: String,
    /// The spec as it was last applied.
    pub spec: ClusterSpec,
    /// The previous spec, until all differences are carried out: an interrupted run still knows what it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_before: Option<Box<ClusterSpec>>,
    pub lock: Option<Lock>,
    /// The highest fencing number ever given out.
    pub fence: u64,
    pub power: Power,
    pub destroy: Option<Consent>,
    /// Consent to delete the data without a backup.
    #[serde(default)]
    pub without_backup: Option<Consent>,
    /// Consent to restarts that cause downtime.
    pub downtime: Option<Consent>,
    /// Consent to continue with this ledger although it is older than its cluster.
    pub older_accepted: Option<Consent>,
    /// Consent to treat unreachable machines as dead at once.
    #[serde(default)]
    pub without_grace: Option<Consent>,
    /// The file of the last applied spec, if it was a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_file: Option<String>,
    /// What is known here about backups; the store knows the rest.
    #[serde(default)]
    pub backups: Option<BackupRecord>,
    /// Settings that are fixed when the cluster is created.
    pub formed_with: Option<FormedWith>,
    pub members: BTreeMap<MemberName, MemberRecord>,
    /// The places where the provider has created machines, for providers with several places: it looks there until nothing is left.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub places: BTreeSet<String>,
    /// Fixtures that the provider has created, or was about to create.
    #[serde(default, skip_serializing_if = "Fixtures::is_empty")]
    pub fixtures: Fixtures,
    pub authorities: Authorities,
    /// Certificates that were signed here, and the lists of those that are refused.
    #[serde(default)]
    pub issued: Issued,
    /// The key that signs the cluster's backups.
    #[serde(default)]
    pub backup_signing: Option<BackupSigning>,
    /// What only a cluster of etcd has.
    #[serde(default)]
    pub etcd: etcd::Record,
    /// What only a cluster of PostgreSQL has.
    #[serde(default, skip_serializing_if = "postgres::Record::is_empty")]
    pub postgres: postgres::Record,
}

/// The lock: the holder, its end, and the fencing number of every order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lock {
    pub fence: u64,
    /// The command and the user, for people.
    pub holder: String,
    pub host: String,
    /// Changes when the host is booted; a process id means nothing after that.
    pub boot_id: String,
    pub pid: u32,
    /// In clock ticks since boot: distinguishes a process from a later one with the same id.
    pub pid_started: u64,
    /// Containers of one host have separate process ids; empty where an older quorate wrote it.
    #[serde(default)]
    pub pid_namespace: String,
    pub since: Timestamp,
    pub expires: Timestamp,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Power {
    #[default]
    On,
    Off,
}

/// The operator's consent, with what was shown when it was given.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Consent {
    pub at: Timestamp,
    pub by: String,
    pub shown: String,
}

/// Proves that a backup belongs to this cluster: without it, anyone who can write to a store could forge one.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct BackupSigning {
    pub key: Secret,
    pub public: Signer,
    /// Earlier backups have no signature.
    pub since: Timestamp,
}

/// The newest full backup, and the newest that was proven by restoring it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct BackupRecord {
    pub newest: BackupNote,
    pub verified: Option<BackupNote>,
    /// Objects in the store under the cluster's name that do not belong to this cluster; the first few.
    #[serde(default)]
    pub forged: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct BackupNote {
    pub id: String,
    /// The moment up to which it goes, recorded changes included.
    pub at: Timestamp,
    /// The revision up to which it goes, recorded changes included.
    pub revision: u64,
    pub verified_at: Option<Timestamp>,
    /// For PostgreSQL, where a revision is a transaction number: numbers of different histories cannot be compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<History>,
}

/// Which data of PostgreSQL: a restore or a failover may give the same numbers to other transactions.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct History {
    /// The identifier from `initdb`.
    pub system_id: String,
    pub timeline: u64,
}

/// Settings that an existing cluster keeps, as text. A spec that names others is refused, not half applied.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct FormedWith {
    pub namespace: String,
    pub key_algorithm: String,
    #[serde(default = "first_provider")]
    pub provider: String,
    /// Those of the provider, by their path in the spec.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub machines: BTreeMap<String, String>,
}

/// Clusters of a ledger that does not say were formed when there was no other.
fn first_provider() -> String {
    String::from("local")
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct MemberRecord {
    pub incarnation: u64,
    /// The generation of the last configuration that was sent, and the digest of its content.
    pub generation: u64,
    pub digest: String,
    pub enrolment: Option<Enrolment>,
    /// The incarnation of its next machine, or of the one it got, that takes over the previous data; until that data was seen there.
    #[serde(default)]
    pub renewing: Option<u64>,
    /// Since when its machine or agent has been unreachable, across runs.
    #[serde(default)]
    pub unseen_since: Option<Timestamp>,
    /// When that was last observed: something that was not observed for long may have come and gone.
    #[serde(default)]
    pub unseen_at: Option<Timestamp>,
    /// Why it did not become a voter when that was last tried. The next run tries again.
    #[serde(default)]
    pub join_failed: Option<String>,
    /// The place of its machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// Until its machine has rebooted and the member is healthy again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot: Option<Reboot>,
    /// It is not a member: its machine only forwards clients to members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<ProxyRecord>,
}

/// What is known of a proxy besides its machine.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct ProxyRecord {
    /// The addresses where its machines were last seen: the current one, and a previous one that still exists.
    pub addresses: BTreeSet<IpAddr>,
}

/// The operator's request that a member's machine reboots.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Reboot {
    pub consent: Consent,
    /// Whether its system's packages are upgraded first.
    pub upgrade_packages: bool,
    /// The last order for it, recorded before it is given.
    pub ordered: Option<RebootOrder>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RebootOrder {
    /// The boot that the machine was in: in a different one, it has rebooted.
    pub boot: String,
    pub at: Timestamp,
    /// The fencing number of the controller whose order the agent accepted. Absent while no answer is known.
    pub accepted: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Enrolment {
    pub token: Secret,
    pub expires: Timestamp,
    /// SHA-256 of the first public key that proved to know the token. No other key is ever signed for it.
    pub bound_key: Option<String>,
}

/// Secrets that quorate creates once and keeps in the ledger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretKind {
    ClientAuthority,
    PeerAuthority,
    ControlAuthority,
    RootPassword,
    JwtKeys,
    BackupSigning,
    /// Of PostgreSQL's users.
    PostgresPasswords,
    /// The lists of certificates that are refused.
    Revocations,
    /// With which Patroni of other clusters connects to an etcd that asks for certificates and passwords.
    PatroniCertificates,
}

impl std::hash::Hash for Ledger {
    /// Omits the spec: it is large, and `Eq` still compares it.
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.version, self.fence, self.power, &self.destroy, &self.without_backup, &self.etcd, &self.postgres)
            .hash(state);
        (&self.members, &self.authorities, &self.issued, &self.downtime, &self.without_grace).hash(state);
        (&self.formed_with, &self.backups, &self.backup_signing, &self.fixtures).hash(state);
    }
}

impl Ledger {
    /// The known addresses of the spec's proxies.
    pub fn proxy_addresses(&self, spec: &ClusterSpec) -> BTreeSet<IpAddr> {
        let known = spec.proxies().filter_map(|proxy| self.members.get(&proxy.name.as_str().into())?.proxy.as_ref());
        known.flat_map(|proxy| proxy.addresses.iter().copied()).collect()
    }

    /// The one address for all clients, where the cluster has a name or a load balancer: the name of the spec, or the one that the provider
    /// gave.
    pub fn url(&self) -> Option<String> {
        let settings = self.spec.provider.settings();
        let wished = settings.fixtures(&self.spec);
        let made = || wished.iter().filter_map(|wish| self.fixtures.0.get_key_value(&wish.id));
        let given = || made().flat_map(|(_, record)| record.names.iter()).next().cloned();
        let is_made = made().any(|(id, _)| id.kind == FixtureKind::Records);
        let name = settings.cluster_name(&self.spec).filter(|_| is_made).or_else(given)?;
        Some(format!("https://{name}:{CLIENT_PORT}"))
    }

    /// The last known address of a member's or proxy's machine.
    pub fn known_address(&self, name: &MemberName) -> Option<IpAddr> {
        let proxy = || self.members.get(name)?.proxy.as_ref()?.addresses.first().copied();
        self.addresses().get(name).copied().or_else(proxy)
    }

    /// Updates the ids of fixtures that an older version recorded. The fixtures themselves are unchanged.
    pub fn rename_fixtures(&mut self) {
        let specs: Vec<&ClusterSpec> = [Some(&self.spec), self.spec_before.as_deref()].into_iter().flatten().collect();
        let present = |id: &FixtureId| {
            let found = specs.iter().find_map(|spec| spec.provider.settings().present_fixture(spec, id));
            found.unwrap_or_else(|| id.clone())
        };
        let mut renamed = Fixtures::default();
        for (id, record) in &self.fixtures.0 {
            renamed.0.entry(present(id)).or_default().names.extend(record.names.iter().cloned());
        }
        self.fixtures = renamed;
    }

    /// Applies a spec, and keeps the previous one until all differences are carried out.
    pub fn take_spec(&mut self, spec: &ClusterSpec) {
        let before = std::mem::replace(&mut self.spec, spec.clone());
        if before != *spec {
            self.spec_before.get_or_insert_with(|| Box::new(before));
        }
    }

    /// Visits every text that must stay secret in a copy of the ledger. Every field is named here: a new one
    /// does not compile until someone has decided whether it is secret.
    pub fn each_secret(&mut self, mut visit: impl FnMut(&mut String)) {
        let Ledger {
            format: _,
            written_by: _,
            version: _,
            cluster_id: _,
            spec: _,
            spec_before: _,
            spec_file: _,
            lock: _,
            fence: _,
            power: _,
            destroy: _,
            without_backup: _,
            downtime: _,
            older_accepted: _,
            without_grace: _,
            backups: _,
            formed_with: _,
            members,
            places: _,
            fixtures: _,
            authorities: Authorities { client, control, peer },
            issued: Issued { users: _, machines: _, client_crl: _, peer_crl: _, peer_lists: _ },
            backup_signing,
            etcd,
            postgres,
        } = self;
        if let Some(BackupSigning { key, public: _, since: _ }) = backup_signing {
            visit(key.expose_mut());
        }
        for member in members.values_mut() {
            let MemberRecord {
                incarnation: _,
                generation: _,
                digest: _,
                enrolment,
                renewing: _,
                unseen_since: _,
                unseen_at: _,
                join_failed: _,
                place: _,
                reboot: _,
                proxy: _,
            } = member;
            if let Some(Enrolment { token, expires: _, bound_key: _ }) = enrolment {
                visit(token.expose_mut());
            }
        }
        let peers = peer.iter_mut().flat_map(|Plane { signs: _, trusted }| trusted);
        for authority in [client, control].into_iter().flatten().chain(peers) {
            let AuthorityRecord { epoch: _, certificate: _, key, key_id: _, not_after: _ } = authority;
            key.iter_mut().for_each(|key| visit(key.expose_mut()));
        }
        etcd.each_secret(&mut visit);
        postgres.each_secret(&mut visit);
    }

    /// The same, as this program writes it.
    pub fn as_written_here(&self) -> Self {
        Ledger { format: LEDGER_FORMAT, written_by: Program::this().version.clone(), ..self.clone() }
    }

    pub fn new(cluster_id: String, spec: ClusterSpec) -> Self {
        Ledger {
            format: LEDGER_FORMAT,
            written_by: Program::this().version.clone(),
            version: 0,
            cluster_id,
            spec,
            lock: None,
            fence: 0,
            power: Power::On,
            destroy: None,
            without_backup: None,
            downtime: None,
            older_accepted: None,
            without_grace: None,
            spec_before: None,
            spec_file: None,
            backups: None,
            formed_with: None,
            members: BTreeMap::new(),
            places: BTreeSet::new(),
            fixtures: Fixtures::default(),
            authorities: Authorities::default(),
            issued: Issued::default(),
            backup_signing: None,
            etcd: etcd::Record::default(),
            postgres: postgres::Record::default(),
        }
    }
}
