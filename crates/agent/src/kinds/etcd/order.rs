//! The orders that concern etcd.

use std::collections::{BTreeMap, BTreeSet};

use quorate_core::Secret;
use quorate_core::kinds::etcd::{AuthOp, Membership};
use quorate_core::model::{DataSeen, MemberName, Stamp};
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Starts etcd on data that must be as expected.
    Start {
        expects: DataSeen,
        bootstrap: Option<Bootstrap>,
        /// The client URLs of the others, for a machine that does not know them yet.
        #[serde(default)]
        peers: BTreeSet<String>,
    },
    Restart,
    /// Restarts etcd with what it runs now, but so that it takes a Raft snapshot after the next entry.
    TakeRaftSnapshot,
    Stop,
    /// The same if its data is given up: without waiting for a graceful end.
    Halt,
    /// Removes the data of exactly this stamp.
    WipeData {
        stamp: Stamp,
    },
    MoveLeader {
        to: u64,
    },
    /// Adds a member without a vote. Each change of the membership is made only if etcd's own list, from a linearizable
    /// read just before, is as expected.
    AddLearner {
        expects: Membership,
        peer_url: String,
    },
    Promote {
        expects: Membership,
        id: u64,
    },
    RemoveMember {
        expects: Membership,
        id: u64,
    },
    /// Lets members of an older version join, by etcd's own procedure.
    Downgrade {
        version: String,
    },
    /// Takes that back.
    CancelDowngrade,
    /// Creates the data of a new one-member cluster from a copy of the present data, which is kept next to it.
    Rebuild {
        /// Of the data at hand.
        was: Stamp,
        stamp: Stamp,
        peer_url: String,
        /// By how much the revision goes up; all before is marked as compacted.
        bump_revision: u64,
    },
    /// Creates the data of a new cluster from the staged snapshot. The present data is kept next to it.
    RestoreData {
        /// What must be in the data directory.
        was: DataSeen,
        stamp: Stamp,
        /// All members of the new formation, this one among them.
        initial_cluster: BTreeMap<MemberName, String>,
        peer_url: String,
        sha256: String,
        /// By how much the revision goes up; all before is marked as compacted.
        bump_revision: u64,
    },
    /// Removes the uploaded snapshot.
    DropStaged,
    Auth {
        op: AuthOp,
        password: Option<Secret>,
    },
}

impl Order {
    /// For the log, which must not show what is in it.
    pub fn name(&self) -> &'static str {
        match self {
            Order::Start { .. } => "start etcd",
            Order::Restart => "restart etcd",
            Order::TakeRaftSnapshot => "take Raft snapshot",
            Order::Stop => "stop etcd",
            Order::Halt => "halt etcd",
            Order::WipeData { .. } => "wipe data",
            Order::MoveLeader { .. } => "move leader",
            Order::AddLearner { .. } => "add learner",
            Order::Promote { .. } => "promote",
            Order::RemoveMember { .. } => "remove member",
            Order::Downgrade { .. } => "downgrade",
            Order::CancelDowngrade => "cancel downgrade",
            Order::Rebuild { .. } => "rebuild",
            Order::RestoreData { .. } => "restore data",
            Order::DropStaged => "drop staged",
            Order::Auth { .. } => "auth",
        }
    }
}

/// What etcd is given at its first start, and the stamp to set next to its data before.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Bootstrap {
    pub stamp: Stamp,
    pub initial_cluster: BTreeMap<MemberName, String>,
    /// `new` in a formation; `existing` when joining a living cluster.
    pub existing: bool,
}
