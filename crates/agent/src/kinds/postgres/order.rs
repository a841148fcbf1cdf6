//! The orders that concern PostgreSQL and Patroni.

use std::collections::BTreeMap;

use quorate_core::Secret;
use quorate_core::kinds::postgres::{CatalogOp, LogEnd, RestoreTarget};
use quorate_core::model::{DataSeen, MemberName, Stamp};
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Creates the first data of a cluster where there is none, and starts nothing.
    Initialize {
        stamp: Stamp,
        /// Some are written into new data.
        parameters: BTreeMap<String, String>,
    },
    /// Starts Patroni on data that must be as expected. Where there is none, Patroni clones it, and this is its stamp.
    Start {
        expects: DataSeen,
        join: Option<Stamp>,
    },
    /// Stops Patroni, which stops PostgreSQL.
    Stop,
    /// The same, unless this member is the primary: the standbys that could take over from it are not known to the controller then.
    StopReplica,
    /// Stops and starts both where Patroni was started with other inputs.
    Restart,
    /// Restarts PostgreSQL, through Patroni, if a parameter waits for it.
    RestartPostgres,
    /// Makes the store of backups ready, and checks that the log gets there.
    PrepareRepository {
        place: String,
    },
    /// Begins to restore a backup next to the data. Facts say how far it has come.
    RestoreBackup {
        stamp: Stamp,
        target: RestoreTarget,
    },
    /// Puts the restored data in place of what is there, which is kept next to it.
    PutRestored {
        was: DataSeen,
        stamp: Stamp,
    },
    /// Puts the data of exactly this stamp aside.
    SetAside {
        stamp: Stamp,
    },
    /// Begins to upgrade a copy of the data to the next version, and deletes it. Facts say how far it has come.
    RehearseUpgrade {
        id: String,
    },
    /// Begins to make data of the next version next to what is there. Facts say how far it has come.
    UpgradeData {
        expects: DataSeen,
        stamp: Stamp,
    },
    /// Begins to collect statistics of all tables. Facts say how far it has come.
    Analyze {
        id: String,
    },
    /// Begins to make the data of this stamp, which an upgrade has replaced, ready to be put in place.
    TakeBack {
        was: Stamp,
        stamp: Stamp,
    },
    /// Deletes the data of exactly this stamp, which was replaced.
    DiscardReplaced {
        stamp: Stamp,
    },
    /// Writes the configuration of all members, in JSON, into the DCS.
    SetConfig {
        config: String,
    },
    /// Makes another member the primary, as Patroni calls it. This one must be it.
    Switchover {
        to: MemberName,
        /// It waits so long for transactions to end.
        #[serde(default)]
        drain_ms: u64,
    },
    /// Patroni may promote this member, if its log goes that far and no other may be promoted.
    LetTakeOver {
        end: LogEnd,
    },
    /// Has the HAProxy of this machine keep new clients of this server waiting, for a bounded time.
    HoldClients {
        server: String,
        for_ms: u64,
    },
    /// Sends clients to another server from now on, unless its health says otherwise.
    ReleaseClients {
        server: String,
        to: Option<String>,
    },
    /// Removes the data of exactly this stamp, and what Patroni has noted of that data in the DCS.
    WipeData {
        stamp: Stamp,
    },
    Catalog {
        op: CatalogOp,
        verifier: Option<Secret>,
    },
}

impl Order {
    /// For the log, which must not show what is in it.
    pub fn name(&self) -> &'static str {
        match self {
            Order::Initialize { .. } => "create data",
            Order::Start { .. } => "start Patroni",
            Order::Stop | Order::StopReplica => "stop Patroni",
            Order::Restart => "restart Patroni",
            Order::RestartPostgres => "restart PostgreSQL",
            Order::PrepareRepository { .. } => "prepare the store of backups",
            Order::RestoreBackup { .. } => "restore a backup",
            Order::PutRestored { .. } => "put restored data in place",
            Order::SetAside { .. } => "put data aside",
            Order::RehearseUpgrade { .. } => "rehearse an upgrade",
            Order::UpgradeData { .. } => "upgrade data",
            Order::Analyze { .. } => "collect statistics",
            Order::TakeBack { .. } => "make replaced data ready",
            Order::DiscardReplaced { .. } => "delete replaced data",
            Order::SetConfig { .. } => "configure Patroni",
            Order::Switchover { .. } => "switch over",
            Order::LetTakeOver { .. } => "let this member take over",
            Order::HoldClients { .. } => "hold clients back",
            Order::ReleaseClients { .. } => "release clients",
            Order::WipeData { .. } => "wipe data",
            Order::Catalog { .. } => "catalog",
        }
    }

    /// Whether it may take minutes: PostgreSQL writes all that is in memory before it stops.
    pub(crate) fn is_slow(&self) -> bool {
        match self {
            Order::Initialize { .. }
            | Order::Stop
            | Order::StopReplica
            | Order::Restart
            | Order::RestartPostgres
            | Order::Switchover { .. }
            | Order::PrepareRepository { .. }
            | Order::PutRestored { .. }
            | Order::SetAside { .. }
            | Order::UpgradeData { .. }
            | Order::DiscardReplaced { .. }
            | Order::WipeData { .. } => true,
            Order::Start { .. }
            | Order::RestoreBackup { .. }
            | Order::RehearseUpgrade { .. }
            | Order::Analyze { .. }
            | Order::TakeBack { .. }
            | Order::LetTakeOver { .. }
            | Order::HoldClients { .. }
            | Order::ReleaseClients { .. }
            | Order::SetConfig { .. }
            | Order::Catalog { .. } => false,
        }
    }
}
