//! The desired state of an etcd cluster, in addition to what all clusters share.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use jiff::Timestamp;

use super::{AuthRecord, Formation, FormedWith, LostMajority, Permission};
use crate::spec::Size;

#[derive(Clone, PartialEq, Debug)]
pub struct Wish {
    pub formation: Formation,
    /// Tokens of bootstraps that were abandoned before any client could write.
    pub abandoned: BTreeSet<String>,
    /// Settings that are fixed at creation, from the spec and from the ledger.
    pub form_with: FormedWith,
    pub formed_with: Option<FormedWith>,
    /// The token of the next bootstrap, if there is one; it has a random suffix.
    pub next_token: String,
    /// When the membership was last changed.
    pub last_change: Option<Timestamp>,
    /// The operator confirmed that the majority is lost permanently.
    pub recovery: bool,
    /// What was left when that was confirmed. If absent, a recovery that has begun continues, and none begins.
    pub recovery_of: Option<LostMajority>,
    /// The operator confirmed that the data of all members is replaced.
    pub restore: Option<Restore>,
    /// What the cluster must be restored from before it exists.
    pub awaits_restore: Option<String>,
    /// The highest revision ever seen.
    pub highest_revision: u64,
    pub auth: Option<AuthWish>,
    /// When the certificates of Patroni are valid, by the cluster that it belongs to.
    pub patroni_certificates: BTreeMap<String, Range<Timestamp>>,
    /// Space quota of the database.
    pub quota: Size,
}

/// What all members are restored from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restore {
    pub sha256: String,
    pub bytes: u64,
    /// The revision that the snapshot ends at.
    pub revision: u64,
    /// By how much its revision is raised; set once it was verified with this.
    pub bump_revision: Option<u64>,
    /// Where it is from, in words.
    pub source: String,
    /// Whether it is stored here, for members that do not have it yet.
    pub at_hand: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub struct AuthWish {
    /// Fingerprint of root's password if the operator provides it.
    pub root_password: Option<String>,
    pub users: BTreeMap<String, UserWish>,
    pub roles: BTreeMap<String, BTreeSet<Permission>>,
    /// What quorate made before.
    pub owned: AuthRecord,
}

#[derive(Clone, PartialEq, Debug)]
pub struct UserWish {
    pub roles: BTreeSet<String>,
    /// Fingerprint of the password; absent: the user has none.
    pub password: Option<String>,
}
