//! What is recorded about a backup of PostgreSQL: what pgBackRest stored, and the result of restoring it.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{PatroniStatus, Role, safety};
use crate::model::{MemberName, Observation};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackupKind {
    Full,
    /// What has changed since the full backup.
    Differential,
    /// What has changed since the last backup of any kind.
    Incremental,
}

impl BackupKind {
    /// As pgBackRest calls it.
    pub fn in_pgbackrest(self) -> &'static str {
        match self {
            BackupKind::Full => "full",
            BackupKind::Differential => "diff",
            BackupKind::Incremental => "incr",
        }
    }
}

impl fmt::Display for BackupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BackupKind::Full => "full",
            BackupKind::Differential => "differential",
            BackupKind::Incremental => "incremental",
        })
    }
}

/// A row that is written before a backup is taken: what is restored must have it, and all before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mark {
    pub id: i64,
    /// How many rows there were, with this one.
    pub rows: i64,
    /// Every transaction with a lower number had ended before the backup began; absent in backups of older programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transaction: Option<u64>,
    /// Of the log at that moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<u64>,
}

/// A backup, as pgBackRest reports it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BackupTaken {
    /// pgBackRest's name of it.
    pub label: String,
    pub kind: BackupKind,
    /// The backup that it only has the differences from.
    pub prior: Option<String>,
    pub began: Timestamp,
    pub ended: Timestamp,
    /// The part of the log that makes it consistent.
    pub first_lsn: String,
    pub last_lsn: String,
    pub first_wal: String,
    pub last_wal: String,
    /// Of the data, when it is restored.
    pub bytes: u64,
    /// Of what it has added to the repository.
    pub stored_bytes: u64,
    pub system_id: String,
    pub postgres_version: String,
}

impl BackupTaken {
    /// The first digits of a piece of the log.
    pub fn timeline(&self) -> Option<u32> {
        u32::from_str_radix(self.last_wal.get(..8)?, 16).ok()
    }
}

/// What a restore into a temporary PostgreSQL showed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BackupChecked {
    /// The rows of quorate's own table up to the backup's mark.
    pub rows: i64,
    pub databases: u64,
    pub tables: u64,
    /// Whether `pg_amcheck` looked at all tables and indexes; PostgreSQL 13 has none.
    pub amcheck: bool,
    /// The blocks whose checksums were compared.
    pub blocks: u64,
    pub postgres_version: String,
}

/// Who takes part in a backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sources {
    pub primary: MemberName,
    /// Where a backup is verified: a replica, which has the least to do; the primary, if there is none.
    pub workshop: MemberName,
}

impl Sources {
    /// A replica from which a backup can be taken.
    pub fn replica(&self) -> Option<&MemberName> {
        Some(&self.workshop).filter(|workshop| **workshop != self.primary)
    }
}

/// As the members were observed. None where nobody, or more than one, is the primary.
pub fn sources(seen: &Observation) -> Option<Sources> {
    let statuses = || seen.agents.keys().filter_map(|member| Some((member, safety::status(seen, member)?)));
    let leads = |status: &PatroniStatus| status.role == Role::Primary && status.state == "running";
    let mut primaries = statuses().filter(|(_, status)| leads(status)).map(|(member, _)| member);
    let primary = primaries.next().filter(|_| primaries.next().is_none())?.clone();
    let replica = statuses().find(|(_, status)| status.role == Role::Replica && status.streaming);
    let workshop = replica.map_or_else(|| primary.clone(), |(member, _)| member.clone());
    Some(Sources { primary, workshop })
}
