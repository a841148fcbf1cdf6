//! What an agent reports of its machine. Facts only: the agent draws no conclusion from them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{MemberName, ProgramSeen};
use crate::kinds::etcd::EtcdFacts;
use crate::kinds::postgres::PostgresFacts;

/// Who answered at a machine's agent port.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentSeen {
    /// An agent that has not yet been given a certificate by this cluster's controller.
    Unenrolled {
        public_key: String,
    },
    Enrolled(Box<Facts>),
    /// An agent that reports a number which no cluster reaches. Nothing else that it reports is believed either.
    Untrusted(Distrust),
    /// An agent whose protocol this program does not speak. Nothing but its program is known.
    OtherProtocol(ProgramSeen),
}

/// Why nothing that an agent reports is believed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Distrust {
    pub what: Number,
    /// What the ledger knows of it, where it knows anything.
    pub known: Option<u64>,
    pub told: u64,
}

/// A number that an agent reports and that others are compared with.
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
    /// Created by the agent at its first start: a recreated machine has another.
    pub machine_id: String,
    /// The highest fencing number that the agent has obeyed.
    pub fence: u64,
    /// Generation and digest of the node config that is in place.
    pub node_config: Option<(u64, String)>,
    pub certificates: BTreeMap<CertificateUse, CertificateSeen>,
    /// Signing requests for the keys that were made on the machine.
    pub requests: BTreeMap<CertificateUse, String>,
    pub etcd: EtcdFacts,
    /// Of a machine that runs PostgreSQL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postgres: Option<Box<PostgresFacts>>,
    /// By name, those services that need no more than to be kept running. etcd reports on its own.
    #[serde(default)]
    pub services: BTreeMap<String, ServiceState>,
    pub host: Host,
    /// Of the addresses it was asked about: whether a machine answers there.
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

/// For how long the packages of a machine may be upgraded before it reboots.
pub const LONGEST_PACKAGE_UPGRADE: SignedDuration = SignedDuration::from_mins(30);

/// How far a reboot has come.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RebootSeen {
    UpgradingPackages {
        seconds: u64,
    },
    /// The machine goes down.
    Leaving,
    /// It does not. Only the controller that ordered it hears of this: a later one tries again.
    Failed {
        why: String,
    },
}

/// The last upgrade of packages that was ordered before a reboot and succeeded.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct PackagesSeen {
    /// The boot that the machine was in.
    pub boot: String,
    /// What the package manager did, in its words.
    pub summary: String,
}

/// An order under way. The controller that gave it may be dead, and its effect is not visible yet.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Busy {
    pub order: String,
    /// The fencing number that it carried.
    pub fence: u64,
}

/// What a certificate on a machine is for.
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

/// Whether a machine took the last node config that it was given. One that has data takes none whose etcd it does not have: after a boot it
/// could start nothing. And none takes a config that would overwrite files of another tool.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfigAttempt {
    /// An agent that takes every config.
    #[default]
    Untold,
    /// This controller has given none, or it was taken with its program.
    Taken,
    /// The program of the config with this digest was not found.
    WithoutProgram { digest: String, seen: BinarySeen },
    /// The machine is not ready for the config with this digest, and what helps is up to the operator.
    NotReady { digest: String, why: String, remedy: String },
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BinarySeen {
    /// No node config has named one yet.
    #[default]
    Unasked,
    Version(String),
    Missing {
        why: String,
    },
}

/// The digest of inputs that another tool changed: no config has it, so what runs with them is restarted.
pub const EDITED: &str = "edited";

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceState {
    Stopped,
    /// Who keeps etcd running does not say. It may run: nothing that needs a stopped etcd is safe.
    Unknown {
        why: String,
    },
    /// `digest` is that of the inputs it was started with.
    Running {
        since: Timestamp,
        digest: String,
        restarts: u32,
    },
    /// It ended by itself and is started again after a pause.
    BackingOff {
        restarts: u32,
        last_exit: Exit,
    },
}

/// How a process ended, and the last it had to say.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Exit {
    pub at: Timestamp,
    pub how: String,
    pub last_words: String,
}

/// Which formation of which cluster a data directory belongs to, written next to it before etcd's first start.
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
    /// There is data without a stamp that says whose it is.
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
    /// From where etcd's clients are connected now.
    #[serde(default)]
    pub clients: BTreeSet<IpAddr>,
    /// Why the configuration for forwarding logs, which is kept in an etcd elsewhere, is not followed.
    #[serde(default)]
    pub log_source_trouble: Option<String>,
    /// Differs after each boot of the machine. Absent where the agent is a process of the controller's host, and in what older agents report.
    #[serde(default)]
    pub boot: Option<String>,
    #[serde(default)]
    pub packages: Option<PackagesSeen>,
}
