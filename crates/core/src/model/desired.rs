//! The desired state of one cluster: the spec combined with the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{
    BackupNote, Build, Enrolment, FixtureId, FixtureWish, FormedWith, LogSecrets, MemberName, NodeConfig, Power,
    Program, Reboot, SecretKind,
};
use crate::Secret;
use crate::kinds::{etcd, postgres};
use crate::providers::MachineKind;
use crate::spec::{Change, Kind, StoreKeys};

/// Everything that `decide` knows about the spec, the operator's requests and the ledger.
#[derive(Clone, PartialEq, Debug)]
pub struct Desired {
    pub cluster: String,
    pub cluster_id: String,
    /// What it runs.
    pub kind: Kind,
    pub power: Power,
    /// The operator confirmed that the cluster is deleted.
    pub destroy: Option<Destruction>,
    /// The operator allowed restarts that cause downtime.
    pub downtime: bool,
    /// How long a machine may be unreachable before it counts as dead; `None`: at once, because the operator confirmed
    /// it.
    pub grace: Option<SignedDuration>,
    /// How long a new machine may take before it is expected to answer.
    pub boots_within: SignedDuration,
    /// The kind of machine of the spec's provider.
    pub machines: MachineKind,
    /// Settings that are fixed at creation, from the spec and from the ledger.
    pub form_with: FormedWith,
    pub formed_with: Option<FormedWith>,
    pub secrets_missing: BTreeSet<SecretKind>,
    /// The program that every agent should run: the controller's own.
    pub program: Program,
    /// Members whose agents did not take it when this run tried, and why.
    pub not_upgraded: BTreeMap<MemberName, String>,
    /// Members for whose machines the provider had no room when this run tried to create them, and why.
    pub no_room: BTreeMap<MemberName, String>,
    /// The highest fencing number ever given out.
    pub fence: u64,
    pub members: BTreeMap<MemberName, DesiredMember>,
    /// Machines that only forward clients to members. They are not members: they do not count, hold no data and are not trusted.
    pub proxies: BTreeMap<MemberName, DesiredMember>,
    /// Those that the ledger knows, with their addresses; among them some that the spec no longer names.
    pub known_proxies: BTreeMap<MemberName, BTreeSet<IpAddr>>,
    /// The desired fixtures, dependencies first.
    pub fixtures: Vec<FixtureWish>,
    /// Those that the ledger knows.
    pub known_fixtures: BTreeSet<FixtureId>,
    pub certificates: CertificateWish,
    pub revocable: Revocable,
    /// Settings that differ from those carried out before. They explain steps and decide nothing.
    pub changes: Vec<Change>,
    /// What only a cluster of etcd has.
    pub etcd: etcd::Wish,
    /// What only a cluster of PostgreSQL has.
    pub postgres: Option<Box<postgres::Wish>>,
}

impl Desired {
    /// Every machine that the cluster is to have.
    pub fn machines(&self) -> impl Iterator<Item = (&MemberName, &DesiredMember)> {
        self.members.iter().chain(&self.proxies)
    }

    pub fn machine(&self, name: &MemberName) -> Option<&DesiredMember> {
        self.members.get(name).or_else(|| self.proxies.get(name))
    }

    pub fn wants(&self, name: &MemberName) -> bool {
        self.machine(name).is_some()
    }

    /// Whether this machine is or was a proxy, former ones included.
    pub fn is_proxy(&self, name: &MemberName) -> bool {
        if self.proxies.is_empty() && self.known_proxies.is_empty() {
            return false;
        }
        let seat = MemberName::from(name.seat());
        self.proxies.contains_key(&seat) || self.known_proxies.contains_key(&seat)
    }
}

/// Certificates that were issued and are not revoked, by serial number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Revocable {
    /// Of users that are no longer declared.
    pub users: BTreeMap<String, usize>,
    /// Of machines, by member and incarnation, including those that are part of the cluster.
    pub machines: BTreeMap<(MemberName, u64), usize>,
}

/// What the operator confirmed about the data when requesting the deletion.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Destruction {
    /// Nothing, and no verified backup is known.
    BackupMissing,
    /// Nothing, and this is the newest verified backup.
    BackupVerified(BackupNote),
    /// That no backup is needed.
    BackupWaived,
}

#[derive(Clone, PartialEq, Debug)]
pub struct DesiredMember {
    /// The name of its machine, including the namespace.
    pub machine: String,
    pub incarnation: u64,
    /// Pinned by the operator.
    pub address: Option<IpAddr>,
    pub generation: u64,
    pub config: Arc<NodeConfig>,
    pub digest: String,
    /// Of what the service of its kind must be restarted for.
    pub service_digest: String,
    pub etcd_version: String,
    pub enrolment: Option<Enrolment>,
    pub unseen_since: Option<Timestamp>,
    /// The place for its machine, for providers with several places.
    pub place: Option<String>,
    /// The desired build of its machine; absent if that makes no difference.
    pub build: Option<Build>,
    /// The place of its data, if its next machine can use it too.
    pub data: Option<String>,
    /// Additional names by which clients connect to it.
    pub names: BTreeSet<String>,
    /// The incarnation of its next machine, which takes over the data of the current one.
    pub renewing: Option<u64>,
    /// Why it did not become a voter when this run tried.
    pub join_failed: Option<String>,
    /// The operator requested that its machine reboots.
    pub reboot: Option<Reboot>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct CertificateWish {
    /// Key identifiers of the CAs of clients and of agents; absent until they are made.
    pub client_authority: Option<String>,
    pub control_authority: Option<String>,
    /// The CAs of peers; absent in a cluster that was created before they had a separate one.
    pub peer: Option<PlaneWish>,
    /// The ends of the CAs: no certificate outlives the one that signed it.
    pub client_authority_ends: Option<Timestamp>,
    pub control_authority_ends: Option<Timestamp>,
    pub organization: Option<String>,
    pub extra_sans: BTreeSet<String>,
    /// Addresses of proxies through which clients connect to members.
    pub proxied: BTreeSet<IpAddr>,
    pub validity: SignedDuration,
    pub renew_before: SignedDuration,
    /// Key identifier of the CA that the operator provides, if any.
    pub brought_authority: Option<String>,
    /// Whether the agent needs a client certificate as user root.
    pub root: bool,
    /// Whether the machine gets one for health checks.
    pub health: bool,
    /// The machines that get one for their front.
    pub fronts: BTreeSet<MemberName>,
    /// Set for user-provided certificates: exactly these are wanted.
    pub brought: Option<BTreeMap<MemberName, String>>,
    pub brought_root: Option<String>,
}

/// The CAs of one purpose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlaneWish {
    /// The one that signs: its epoch, its key identifier, and when it ends.
    pub epoch: u64,
    pub signs: String,
    pub ends: Timestamp,
    /// Epoch and key identifier of each that is trusted, the one that signs among them.
    pub trusted: BTreeMap<u64, String>,
}

/// What the operator provides in files, known to the planner by fingerprints only.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Brought {
    /// Key identifier of the CA.
    pub authority: Option<String>,
    /// Of the members' certificates, and of the root client's.
    pub members: Option<BTreeMap<MemberName, String>>,
    pub root: Option<String>,
    pub root_password: Option<String>,
    /// Of the users' passwords.
    pub passwords: BTreeMap<String, String>,
    /// The SHA-256 of the snapshot that is ready for a restore.
    pub snapshot: Option<String>,
    /// For log forwarding: a part of the node config.
    pub log_forwarding: Option<LogSecrets>,
    /// The etcd in which Patroni keeps its state, or why it cannot serve.
    pub dcs: Option<Result<postgres::Dcs, String>>,
    /// The keys to the stores of backups, by the number of the store, for machines that store their own.
    pub store_keys: BTreeMap<u8, StoreKeys>,
    /// The CAs of those stores, in PEM, where the spec names one.
    pub store_cas: BTreeMap<u8, String>,
    /// PostgreSQL's password verifiers.
    pub verifiers: BTreeMap<String, Secret>,
    /// The same for pending passwords, with the passwords themselves.
    pub next_verifiers: BTreeMap<String, (Secret, Secret)>,
}
