//! What an agent reports of its machine. Facts only: the agent draws no conclusion from them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{MemberName, ProgramSeen};
use crate::kinds::etcd::EtcdFacts;
use crate::kinds::postgres::PostgresFacts;

/// What answered at a machine's agent port.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentSeen {
    /// An agent that has not yet been given a certificate by this cluster's controller.
    Unenrolled {
        public_key: String,
    },
    Enrolled(Box<Facts>),
    /// An agent that reports a number which no cluster reaches. The rest of its report is not believed either.
    Untrusted(Distrust),
    /// An agent with an unsupported protocol. Only its program is known.
    OtherProtocol(ProgramSeen),
}

/// Why an agent's report is not believed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Distrust {
    pub what: Number,
    /// The ledger's value, if it has one.
    pub known: Option<u64>,
    pub told: u64,
}

/// A number in an agent's report that is compared with other agents' numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Number {
    Fence,
    Generation,
    Revision,
    LogIndex,
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Number::Fence => "fencing number",
            Number::Generation => "configuration number",
            Number::Revision => "etcd revision",
            Number::LogIndex => "log index",
        })
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Facts {
    #[serde(default)]
    pub program: ProgramSeen,
    /// Created by the agent at its first start: a recreated machine has a different one.
    pub machine_id: String,
    /// The highest fencing number that the agent has obeyed.
    pub fence: u64,
    /// Generation and digest of the configuration that is in place.
    pub node_config: Option<(u64, String)>,
    pub certificates: BTreeMap<CertificateUse, CertificateSeen>,
    /// Signing requests for the keys that were created on the machine.
    pub requests: BTreeMap<CertificateUse, String>,
    pub etcd: EtcdFacts,
    /// Of a machine that runs PostgreSQL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postgres: Option<Box<PostgresFacts>>,
    /// Services that only need to be kept running, by name. etcd is reported separately.
    #[serde(default)]
    pub services: BTreeMap<String, ServiceState>,
    pub host: Host,
    /// For each requested address: whether a machine answers there.
    pub reaches: BTreeMap<IpAddr, bool>,
    /// The order that it carries out right now.
    #[serde(default)]
    pub busy: Option<Busy>,
    /// The reboot that it was ordered to make in this boot.
    #[serde(default)]
    pub reboot: Option<RebootSeen>,
    /// Clients wait here until a switchover is over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holds_clients: bool,
}

/// The time limit for upgrading the packages of a machine before it reboots.
pub const LONGEST_PACKAGE_UPGRADE: SignedDuration = SignedDuration::from_mins(30);

/// The progress of a reboot.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RebootSeen {
    UpgradingPackages {
        seconds: u64,
    },
    /// The machine goes down.
    Leaving,
    /// It failed. Only the controller that ordered it gets this report: a later one tries again.
    Failed {
        why: String,
    },
}

/// The last upgrade of packages that was ordered before a reboot and succeeded.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct PackagesSeen {
    /// The boot that the machine was in.
    pub boot: String,
    /// The package manager's summary.
    pub summary: String,
}

/// An order in progress. Its controller may be dead, and its effect is not visible yet.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Busy {
    pub order: String,
    /// The fencing number that it carried.
    pub fence: u64,
}

/// The use of a certificate on a machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CertificateUse {
    /// etcd's own, to its clients. In a cluster whose peers have no separate CA yet, to its peers too.
    Member,
    /// etcd's own, to its peers. Signed by the peers' CA.
    Peer,
    /// The agent's, as etcd user root.
    Root,
    /// The agent's, to its controller. Signed by the control CA.
    Agent,
    /// For health checks on the machine. Its name is no etcd user, unless the spec declares one.
    Health,
    /// A front's, to its clients and to members. It names no user. Signed by the CA of clients.
    Front,
}

impl CertificateUse {
    /// The common name that kubeadm gives the certificate for health checks.
    pub const HEALTH_NAME: &str = "kube-etcd-healthcheck-client";

    pub fn file_stem(self) -> &'static str {
        match self {
            CertificateUse::Member => "member",
            CertificateUse::Peer => "peer",
            CertificateUse::Root => "root",
            CertificateUse::Agent => "agent",
            CertificateUse::Health => "health",
            CertificateUse::Front => "front",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct CertificateSeen {
    pub fingerprint: String,
    pub common_name: Option<String>,
    pub organization: Option<String>,
    /// Key identifier of the CA that signed it.
    pub authority_key_id: Option<String>,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    /// DNS names and addresses, in text.
    pub sans: BTreeSet<String>,
    pub key_algorithm: String,
}

/// Whether a machine accepted its last configuration. A machine with data refuses one if its etcd program is missing: after a boot it could
/// not start. No machine accepts one that would overwrite other tools' files.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfigAttempt {
    /// An agent that accepts every configuration.
    #[default]
    Untold,
    /// This controller has sent none, or it was accepted and its program is there.
    Taken,
    /// The program of the configuration with this digest was not found.
    WithoutProgram { digest: String, seen: BinarySeen },
    /// The machine is not ready for the configuration with this digest, and only the operator can change that.
    NotReady { digest: String, why: String, remedy: String },
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BinarySeen {
    /// No configuration has named one yet.
    #[default]
    Unasked,
    Version(String),
    Missing {
        why: String,
    },
}

/// The digest of files that another tool changed: no configuration has it, so what runs with them is restarted.
pub const EDITED: &str = "edited";

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceState {
    Stopped,
    /// etcd's supervisor does not report. etcd may be running: nothing that needs a stopped etcd is safe.
    Unknown {
        why: String,
    },
    /// `digest` is that of the inputs it was started with.
    Running {
        since: Timestamp,
        digest: String,
        restarts: u32,
    },
    /// It exited by itself and is restarted after a pause.
    BackingOff {
        restarts: u32,
        last_exit: Exit,
    },
}

/// How a process exited, with its last log line.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Exit {
    pub at: Timestamp,
    pub how: String,
    pub last_words: String,
}

/// The bootstrap and cluster that a data directory belongs to, written next to it before etcd's first start.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Stamp {
    pub cluster_id: String,
    /// The initial token, with its random suffix.
    pub token: String,
    pub member: MemberName,
    pub incarnation: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataSeen {
    Empty,
    Stamped(Stamp),
    /// There is data without a stamp.
    Unstamped,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Host {
    pub memory_bytes: u64,
    pub disk_free_bytes: u64,
    pub clock: Option<Timestamp>,
    /// The slowest of some durable writes on the disk for etcd's data, before etcd had any there.
    #[serde(default)]
    pub fsync_micros: Option<u64>,
    /// The addresses of etcd's current clients.
    #[serde(default)]
    pub clients: BTreeSet<IpAddr>,
    /// Why the agent cannot follow the log forwarding configuration in another etcd.
    #[serde(default)]
    pub log_source_trouble: Option<String>,
    /// Differs after each boot of the machine. Absent where the agent is a process of the controller's host, and in what older agents report.
    #[serde(default)]
    pub boot: Option<String>,
    #[serde(default)]
    pub packages: Option<PackagesSeen>,
}
