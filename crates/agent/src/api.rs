//! The protocol between a controller and an agent: JSON over mutual TLS, one request and one answer. Two things are streams
//! instead: etcd's answers to a read call, and a file that is sent: a snapshot for a restore, or a new program.
//!
//! Read requests need no fencing number; every order carries one. `seed.json` is the only file that reaches a machine in
//! another way, and it contains no permanent secret.

pub mod boot;
pub(crate) mod frame;
mod kept;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use jiff::Timestamp;
use quorate_core::Secret;
use quorate_core::model::{CertificateUse, MemberName, NodeConfig};
use quorate_pki::KeyAlgorithm;
use serde::{Deserialize, Serialize};

pub use crate::kinds::etcd::order::{Bootstrap, Order as EtcdOrder};
pub use crate::kinds::postgres::jobs::{
    Job, JobAnswer, JobOutcome, JobRequest, Pass, PrimaryFiles, ServedPaths, ServerPass,
};
pub use crate::kinds::postgres::order::Order as PostgresOrder;
pub use kept::Kept;

/// Where each request goes.
pub mod path {
    pub const FACTS: &str = "/v1/facts";
    pub const ORDERS: &str = "/v1/orders";
    pub const LOGS: &str = "/v1/logs";
    /// Work on backups of PostgreSQL.
    pub const JOB: &str = "/v1/job";
    /// Followed by `SERVICE/METHOD` of etcd's API.
    pub const READ: &str = "/v1/read/";
    pub const STAGE: &str = "/v1/stage";
    /// A new program for the machine. The same in every version.
    pub const PROGRAM: &str = "/v1/program";
    pub const ENROL: &str = "/v1/enrol";
    pub const ENROL_CERTIFICATE: &str = "/v1/enrol/certificate";
}

/// The announcement of a snapshot or a program. The same in every version.
pub(crate) mod header {
    pub(crate) const FENCE: &str = "quorate-fence";
    pub(crate) const SHA256: &str = "quorate-sha256";
    pub(crate) const BYTES: &str = "quorate-bytes";
}

/// The name in the certificate of a controller.
pub const CONTROLLER: &str = "controller";

/// The machine and cluster of an agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    pub cluster_id: String,
    pub member: MemberName,
    pub incarnation: u64,
}

impl Identity {
    pub fn common_name(&self) -> String {
        agent_common_name(&self.cluster_id, &self.member, self.incarnation)
    }
}

/// The name in an agent's certificate.
pub fn agent_common_name(cluster_id: &str, member: &MemberName, incarnation: u64) -> String {
    format!("agent:{cluster_id}:{member}:{incarnation}")
}

/// What a new machine gets through the provider. Many can read it, so it contains only public data and a token that
/// expires.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Seed {
    pub cluster: String,
    pub cluster_id: String,
    pub member: MemberName,
    pub incarnation: u64,
    pub address: IpAddr,
    /// The control CA's certificate: the agent obeys only controllers with a certificate of this CA.
    pub control_ca: String,
    pub token: Secret,
    pub token_expires: Timestamp,
}

/// Sent to agents of every version, so new fields must be optional.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FactsRequest {
    /// Sent by a controller that holds the lock: from then on the agent refuses older ones.
    pub fence: Option<u64>,
    /// Whether to list users too: those of etcd with their roles, or those of PostgreSQL with its databases.
    pub auth: bool,
    /// Addresses of machines that the controller cannot reach: does this one?
    #[serde(default)]
    pub reach: BTreeSet<IpAddr>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Envelope {
    pub fence: u64,
    pub order: Order,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Makes files and programs match the configuration. Running services are not touched; those that it no longer has are stopped. On a
    /// machine with data, a configuration is refused if its etcd is missing: the previous one stays in force as a whole, and the facts
    /// say why.
    Converge {
        generation: u64,
        /// Identifies a configuration. Only controllers compute it, so it stays the same when an agent of another version parses the
        /// configuration differently.
        digest: String,
        /// The same for the inputs that require a restart of a service, by name.
        services: BTreeMap<String, String>,
        config: Kept<NodeConfig>,
        /// The PATH of the controller, where it is on the same machine.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        search: Option<String>,
    },
    /// Installs a new set of certificates atomically.
    InstallCertificates {
        trust: String,
        certificates: BTreeMap<CertificateUse, Certificate>,
    },
    /// Acts on a service that only needs to be kept running. A service of a kind has separate orders.
    Service {
        name: String,
        command: ServiceCommand,
    },
    Etcd(EtcdOrder),
    Postgres(PostgresOrder),
    /// Stops the front of this machine from opening connections to a member for this time, if another one serves. Zero: allows them again.
    Drain {
        member: MemberName,
        for_ms: u64,
    },
    /// Reboots the machine if it is still in this boot. Answered at once; facts report the progress.
    Reboot {
        boot: String,
        upgrade_packages: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceCommand {
    /// Keeps it running from now on.
    Start,
    /// Restarts it if it runs with other inputs than those of the current configuration.
    Restart,
    Stop,
}

impl Order {
    /// Sends this configuration to a machine.
    pub fn converge(generation: u64, config: NodeConfig, search: Option<String>) -> Order {
        let (digest, services) = (config.digest(), config.service_digests());
        Order::Converge { generation, digest, services, config: Kept::new(config), search }
    }

    /// For the log, which must not show the content.
    pub fn name(&self) -> &'static str {
        match self {
            Order::Converge { .. } => "converge",
            Order::InstallCertificates { .. } => "install certificates",
            Order::Service { command: ServiceCommand::Start, .. } => "start a service",
            Order::Service { command: ServiceCommand::Restart, .. } => "restart a service",
            Order::Service { command: ServiceCommand::Stop, .. } => "stop a service",
            Order::Etcd(order) => order.name(),
            Order::Postgres(order) => order.name(),
            Order::Drain { .. } => "drain",
            Order::Reboot { .. } => "reboot",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Certificate {
    pub chain: String,
    /// Only for user-provided keys.
    pub key: Option<Secret>,
}

/// Why an order was not carried out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    #[error("the agent already obeys fencing number {obeyed}; this order carries {carried}")]
    StaleFence { obeyed: u64, carried: u64 },
    #[error("generation {in_place} is in place; this order carries {carried}")]
    StaleGeneration { in_place: u64, carried: u64 },
    #[error("generation {generation} is in place with other content")]
    ChangedContent { generation: u64 },
    #[error("expected {expected}, found {found}")]
    NotAsExpected { expected: String, found: String },
    #[error("this agent is not enrolled")]
    NotEnrolled,
    #[error("this agent is enrolled already")]
    AlreadyEnrolled,
    #[error("{why}")]
    Failed { why: String },
}

impl Refusal {
    pub(crate) fn failed(why: impl Into<String>) -> Self {
        Refusal::Failed { why: why.into() }
    }

    pub(crate) fn not_as_expected(expected: String, found: String) -> Self {
        Refusal::NotAsExpected { expected, found }
    }
}

/// Announces a snapshot or a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UploadRequest {
    pub fence: u64,
    /// Of the whole program; of a snapshot, that with which it ends. In lower-case hexadecimal.
    pub sha256: String,
    pub bytes: u64,
}

/// How a reading call ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReadEnd {
    Complete,
    Failed(ReadFailure),
}

/// Why a read call failed or broke off, by what the reader does about it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum ReadFailure {
    /// `oldest` is the first revision that can still be read, if etcd reports it.
    #[error("the requested revision has been compacted{}", oldest.map(|oldest| format!("; the oldest is {oldest}")).unwrap_or_default())]
    Compacted { oldest: Option<i64> },
    #[error("etcd does not let the agent read: {why}")]
    Denied { why: String },
    /// Another member may answer, or this one later.
    #[error("etcd does not serve now: {why}")]
    Unavailable { why: String },
    #[error("etcd refuses to read: {why}")]
    Other { why: String },
}

impl From<quorate_etcd::Error> for ReadFailure {
    fn from(error: quorate_etcd::Error) -> Self {
        use quorate_etcd::Error;
        let why = quorate_core::text::with_causes(&error);
        match error {
            Error::Compacted { oldest } => ReadFailure::Compacted { oldest },
            Error::Unauthenticated(_) | Error::PermissionDenied => ReadFailure::Denied { why },
            Error::Unreachable { .. }
            | Error::Timeout
            | Error::NoLeader
            | Error::Unavailable { .. }
            | Error::NotForLearner => ReadFailure::Unavailable { why },
            _ => ReadFailure::Other { why },
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EnrolRequest {
    /// Its exact bytes are part of the proof.
    pub nonce: String,
    /// For the keys that are created on the machine.
    pub key_algorithm: KeyAlgorithm,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EnrolAnswer {
    pub machine_id: String,
    /// SHA-256, in hexadecimal, over the SubjectPublicKeyInfo of the key that the agent also serves TLS with.
    pub public_key: String,
    /// `quorate_pki::enrolment_proof` over nonce, public key and machine id, keyed with the token, in hexadecimal.
    pub proof: String,
    pub requests: BTreeMap<CertificateUse, String>,
}

impl EnrolAnswer {
    /// Whether this answer proves that its sender has the token, for the key that was `served` on the same connection.
    pub fn proves(&self, token: &Secret, nonce: &str, served: &ServedKey) -> bool {
        let proof: Option<Vec<u8>> = (0..self.proof.len())
            .step_by(2)
            .map(|at| self.proof.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok()))
            .collect();
        let fits = |proof: Vec<u8>| {
            quorate_pki::verify_enrolment_proof(token, nonce.as_bytes(), &served.der, &self.machine_id, &proof)
        };
        self.public_key == served.sha256 && proof.is_some_and(fits)
    }
}

/// The public key with which an agent served TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServedKey {
    /// The SubjectPublicKeyInfo.
    pub der: Vec<u8>,
    /// Of `der`, in hexadecimal.
    pub sha256: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EnrolCertificate {
    pub chain: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogOf {
    Service(String),
    Agent,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogRequest {
    pub of: LogOf,
    /// Where to continue; absent: the last `lines`.
    pub from: Option<u64>,
    pub lines: usize,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogAnswer {
    pub text: String,
    /// The next value for `from`.
    pub next: u64,
}
