//! The orders that concern PostgreSQL and Patroni.

use std::collections::BTreeMap;

use quorate_core::Secret;
use quorate_core::kinds::postgres::{CatalogOp, LogEnd, RestoreTarget};
use quorate_core::model::{DataSeen, MemberName, Stamp};
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Creates the first data of a cluster if there is none, and starts nothing.
    Initialize {
        stamp: Stamp,
        /// Some are written into new data.
        parameters: BTreeMap<String, String>,
    },
    /// Starts Patroni on data that must be as expected. If there is none, Patroni clones it, and this is its stamp.
    Start {
        expects: DataSeen,
        join: Option<Stamp>,
    },
    /// Stops Patroni, which stops PostgreSQL.
    Stop,
    /// The same, unless this member is the primary: then the controller does not know which standbys could take over.
    StopReplica,
    /// Restarts both if Patroni was started with other inputs.
    Restart,
    /// Restarts PostgreSQL, through Patroni, if a parameter waits for it.
    RestartPostgres,
    /// Prepares the backup store, and checks that the log arrives there.
    PrepareRepository {
        place: String,
    },
    /// Starts to restore a backup next to the data. Facts report the progress.
    RestoreBackup {
        stamp: Stamp,
        target: RestoreTarget,
    },
    /// Replaces the current data by the restored data, and keeps the current data next to it.
    PutRestored {
        was: DataSeen,
        stamp: Stamp,
    },
    /// Puts the data of exactly this stamp aside.
    SetAside {
        stamp: Stamp,
    },
    /// Starts to upgrade a copy of the data to the next version, which is then deleted. Facts report the progress.
    RehearseUpgrade {
        id: String,
    },
    /// Starts to create data of the next version next to the current data. Facts report the progress.
    UpgradeData {
        expects: DataSeen,
        stamp: Stamp,
    },
    /// Starts to collect statistics of all tables. Facts report the progress.
    Analyze {
        id: String,
    },
    /// Starts to prepare the data of this stamp, which an upgrade has replaced, to be put in place.
    TakeBack {
        was: Stamp,
        stamp: Stamp,
    },
    /// Deletes the data of exactly this stamp, which was replaced.
    DiscardReplaced {
        stamp: Stamp,
    },
    /// Writes the shared configuration, in JSON, into the DCS.
    SetConfig {
        config: String,
    },
    /// Makes another member the primary, as Patroni calls it. This one must be it.
    Switchover {
        to: MemberName,
        /// How long it waits for transactions to end.
        #[serde(default)]
        drain_ms: u64,
    },
    /// Allows Patroni to promote this member, if its log reaches that far and no other may be promoted.
    LetTakeOver {
        end: LogEnd,
    },
    /// Makes the HAProxy of this machine hold new clients of this server, for a limited time.
    HoldClients {
        server: String,
        for_ms: u64,
    },
    /// Sends clients to another server from now on, unless its health says otherwise.
    ReleaseClients {
        server: String,
        to: Option<String>,
    },
    /// Removes the data of exactly this stamp, and Patroni's keys for that data in the DCS.
    WipeData {
        stamp: Stamp,
    },
    Catalog {
        op: CatalogOp,
        verifier: Option<Secret>,
    },
}

impl Order {
    /// For the log, which must not show the content.
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
