//! What an agent reports of the etcd on its machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::AuthSeen;
use crate::model::{BinarySeen, ConfigAttempt, DataSeen, ServiceState, Stamp, TrustPlane, TrustSeen};

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct EtcdFacts {
    pub binary: BinarySeen,
    pub service: ServiceState,
    pub data: DataSeen,
    /// The last bootstrap in which etcd was started here, stored separately from the data: if this is set and the data
    /// is missing, it was lost.
    pub last_started: Option<Stamp>,
    /// Whether the peer port answers; if so, the next member of a bootstrap may start.
    pub peer_serving: bool,
    pub status: Option<EtcdStatus>,
    /// How far the log on disk goes; reported while etcd does not run.
    pub log: Option<LogEnd>,
    /// Why the log on disk cannot be read, if it cannot.
    #[serde(default)]
    pub log_damage: Option<String>,
    #[serde(default)]
    pub old_entries: OldEntries,
    /// Set if etcd is prevented from starting, because its peers know of later data than it holds.
    pub older: Option<OlderData>,
    /// The snapshot that is ready for a restore, next to the data.
    #[serde(default)]
    pub staged: Option<Staged>,
    /// The CAs that etcd trusts. Absent in the facts of older agents.
    #[serde(default)]
    pub trust: BTreeMap<TrustPlane, TrustSeen>,
    /// The result of the last configuration that this controller sent.
    #[serde(default)]
    pub attempt: ConfigAttempt,
}

/// A snapshot that was sent to a machine completely. It ends with this SHA-256, etcd's checksum of all that comes before.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Staged {
    pub sha256: String,
    pub bytes: u64,
}

/// The end of etcd's log on disk: the last entry, and the last one that the member knew to be committed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct LogEnd {
    pub term: u64,
    pub index: u64,
    pub commit: u64,
}

impl LogEnd {
    /// It exists, and its end is not known yet.
    pub const UNREAD: LogEnd = LogEnd { term: 0, index: 0, commit: 0 };
}

/// Entries of etcd's log that a release before 3.6 wrote in the format of the v2 API. etcd 3.7 cannot read them: it panics.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OldEntries {
    /// The log was not read yet.
    #[default]
    Unknown,
    None,
    Until {
        /// Of the last such entry.
        index: u64,
        /// Of the newest Raft snapshot. etcd reads the log from there on when it starts.
        snapshot: u64,
        /// etcd was started so that it takes a snapshot after the next entry.
        due: bool,
    },
}

/// A data directory that is older than what its member acknowledged.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct OlderData {
    /// The last index in the log on disk.
    pub holds: u64,
    /// What this member once acknowledged, as the leader remembers it.
    pub acknowledged: u64,
    /// The endpoint that reported it.
    pub told_by: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct EtcdStatus {
    pub member_id: u64,
    pub cluster_id: u64,
    /// Zero: none is known.
    pub leader: u64,
    pub is_learner: bool,
    /// A linearizable read was answered: this member has a quorum.
    pub healthy: bool,
    pub version: String,
    /// The cluster version, which all members have agreed on, such as 3.6.0.
    pub cluster_version: Option<String>,
    /// The minor version that the cluster is being downgraded to.
    pub downgrade_target: Option<String>,
    /// The format of the data on disk, such as 3.6.0. Reported from 3.6 on.
    pub storage_version: Option<String>,
    pub db_size: u64,
    pub db_size_in_use: u64,
    pub raft_term: u64,
    pub raft_index: u64,
    pub raft_applied_index: u64,
    pub revision: u64,
    pub members: Vec<MemberEntry>,
    pub alarms: Vec<AlarmSeen>,
    pub auth: AuthLook,
}

/// etcd's member list in short: the ID of each member, and whether it is a learner.
pub type Membership = BTreeMap<u64, bool>;

/// One row of etcd's own member list.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct MemberEntry {
    pub id: u64,
    /// Empty while that member has never started.
    pub name: String,
    pub peer_urls: Vec<String>,
    pub is_learner: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct AlarmSeen {
    pub member_id: u64,
    pub kind: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthLook {
    NotAsked,
    Seen(AuthSeen),
    Failed { why: String },
}
