//! What an agent reports of the PostgreSQL on its machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::parameters::Changed;
use crate::model::{BinarySeen, DataSeen, ServiceState, Stamp};

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct PostgresFacts {
    /// The version of PostgreSQL's programs, such as 15.18.
    pub postgres: BinarySeen,
    pub patroni: BinarySeen,
    /// pgBackRest's program; not asked for without backups.
    #[serde(default)]
    pub pgbackrest: BinarySeen,
    /// Patroni.
    pub service: ServiceState,
    pub data: DataSeen,
    /// The last bootstrap in which Patroni was started here, stored separately from the data.
    pub last_started: Option<Stamp>,
    /// The identity that `initdb` gave the data on disk; clones share it.
    pub system_id: Option<String>,
    /// What Patroni reports; absent while it does not answer.
    pub status: Option<PatroniStatus>,
    /// The shared configuration as loaded by Patroni here: JSON with sorted keys.
    #[serde(default)]
    pub applied: Option<String>,
    /// What the access rules show about a password rotation, and whether a standby has yet to log in with the password in its
    /// configuration.
    #[serde(default)]
    pub rotation: Option<String>,
    /// The repositories of backups that were prepared and checked from here.
    #[serde(default)]
    pub repository: Option<String>,
    /// The archiving of the write-ahead log.
    #[serde(default)]
    pub archive: Option<ArchiveSeen>,
    /// Data that is being restored next to the current data, or was.
    #[serde(default)]
    pub restored: Option<RestoreSeen>,
    /// Databases and users. Reported by the primary, when asked for.
    pub catalog: Option<Catalog>,
    /// Every transaction that has ended has a lower number. Reported together with the catalog.
    #[serde(default)]
    pub transaction: Option<u64>,
    /// The programs of the major version that the cluster is to be upgraded to.
    #[serde(default)]
    pub next: BinarySeen,
    /// The control file of the data on disk.
    #[serde(default)]
    pub control: Option<ControlSeen>,
    /// Replaced data of a restore or an upgrade that is kept.
    #[serde(default)]
    pub replaced: Option<ReplacedSeen>,
    /// Work in the background: the rehearsal of an upgrade, or what comes after one. Forgotten when the agent ends.
    #[serde(default)]
    pub task: Option<TaskSeen>,
}

impl PostgresFacts {
    /// The minor release that runs and the one that is installed now, where they differ: the programs were exchanged since it started.
    /// Versions with other words in them, such as those of a beta, are not compared.
    pub fn other_release(&self) -> Option<(&str, &str)> {
        let BinarySeen::Version(installed) = &self.postgres else { return None };
        let running = self.status.as_ref()?.server_version.as_deref()?;
        let is_release = |text: &str| {
            let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            text.split_once('.').is_some_and(|(major, minor)| number(major) && number(minor))
        };
        let major = |text: &str| text.split('.').next().map(str::to_owned);
        let differ = is_release(installed) && major(running) == major(installed) && running != installed;
        differ.then_some((running, installed))
    }
}

/// The control file of a data directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ControlSeen {
    pub state: DataState,
    pub timeline: u32,
    /// Where the last checkpoint is in the log, in bytes.
    pub checkpoint: u64,
}

impl ControlSeen {
    /// Whether no server uses it, and none was killed while using it.
    pub fn is_shut_down(&self) -> bool {
        self.state != DataState::InUse
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataState {
    /// It was shut down as a primary: its end is the end of the log.
    ShutDown,
    /// It was shut down as a standby.
    ShutDownInRecovery,
    /// It is in use, or its server was killed.
    InUse,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ReplacedSeen {
    pub stamp: Stamp,
    pub control: ControlSeen,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct TaskSeen {
    /// What the controller called it.
    pub id: String,
    pub state: RestoreState,
    /// How long it took.
    pub seconds: Option<u64>,
}

/// Pieces of the write-ahead log that are finished and not stored in the repository yet.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct ArchiveSeen {
    pub waiting: u64,
    /// For how many seconds the oldest of them has waited.
    pub waits_s: u64,
}

/// Data of a backup on a machine, next to the current data.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RestoreSeen {
    /// Of the bootstrap that it is for.
    pub token: String,
    pub state: RestoreState,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestoreState {
    Running {
        doing: String,
    },
    /// It was recovered to the requested point, and stopped.
    Ready,
    Failed {
        why: String,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Primary,
    Replica,
    /// PostgreSQL is not up, or Patroni does not know.
    Unknown,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Primary => "primary",
            Role::Replica => "replica",
            Role::Unknown => "unknown",
        })
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct PatroniStatus {
    pub role: Role,
    /// In Patroni's words: `running`, `starting`, `creating replica`, `stopped`, …
    pub state: String,
    /// Whether a replica streams from the primary.
    pub streaming: bool,
    pub timeline: Option<u64>,
    /// The end of the log that was written here (primary) or received (replica), in bytes.
    pub location: Option<u64>,
    /// How far the log was replayed; of a replica.
    pub replayed: Option<u64>,
    /// When the last transaction that was replayed ended on the primary.
    #[serde(default)]
    pub replayed_at: Option<Timestamp>,
    pub system_id: Option<String>,
    /// Of PostgreSQL, such as 15.18.
    pub server_version: Option<String>,
    pub patroni_version: Option<String>,
    /// A parameter changed that takes effect when PostgreSQL restarts.
    pub pending_restart: bool,
    /// Which ones, with the current value and the one after a restart.
    #[serde(default)]
    pub pending: BTreeMap<String, Changed>,
    /// Automatic failover is switched off with `patronictl pause`.
    pub paused: bool,
    /// The connections of standbys, by the name of the member; reported by the primary.
    pub standbys: BTreeMap<String, Standby>,
    /// The shared configuration in the DCS: JSON with sorted keys.
    pub config: Option<String>,
    /// Whether Patroni reaches its DCS.
    pub dcs: bool,
    /// Patroni may promote no member, because its DCS was restored (`older_dcs`): the end of this member's log. Known when all of that
    /// log was replayed.
    #[serde(default)]
    pub held: Option<LogEnd>,
}

/// Of two ends, the one on the later timeline is further: it includes everything that was confirmed on the earlier one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct LogEnd {
    pub timeline: u64,
    /// In bytes.
    pub location: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Standby {
    /// In PostgreSQL's words: `streaming`, `catchup`, …
    pub state: String,
    /// Whether a commit waits for it, and Patroni has recorded that it may take over.
    pub synchronous: bool,
}

/// Databases and users that quorate manages.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Catalog {
    /// With the owner of each.
    pub databases: BTreeMap<String, String>,
    /// Users who can log in, and the fingerprint of what their password is checked with.
    pub users: BTreeMap<String, Option<String>>,
    /// Extensions, by database.
    pub extensions: BTreeMap<String, BTreeSet<String>>,
}

/// One change of databases and users, made on the primary. It can be repeated.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "op")]
pub enum CatalogOp {
    /// Creates a user who can log in, or gives one another password.
    SetUser {
        user: String,
    },
    CreateDatabase {
        database: String,
        owner: String,
    },
    SetOwner {
        database: String,
        owner: String,
    },
    CreateExtension {
        database: String,
        extension: String,
    },
}

impl fmt::Display for CatalogOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CatalogOp::SetUser { user } => write!(f, "create user {user} with its password"),
            CatalogOp::CreateDatabase { database, owner } => write!(f, "create database {database}, owned by {owner}"),
            CatalogOp::SetOwner { database, owner } => write!(f, "make {owner} the owner of database {database}"),
            CatalogOp::CreateExtension { database, extension } => {
                write!(f, "create extension {extension} in database {database}")
            }
        }
    }
}
