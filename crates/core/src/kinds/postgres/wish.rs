//! The desired state of a PostgreSQL cluster, in addition to what all clusters share.

use std::collections::{BTreeMap, BTreeSet};

use super::record::{
    Formation, FormedWith, Previous, RestoreWish, RotationStage, SwitchoverRequest, Upgrade, UpgradeFailed,
};
use crate::Secret;
use crate::model::{MemberName, Version};

#[derive(Clone, PartialEq, Debug)]
pub struct Wish {
    pub formation: Formation,
    pub abandoned: BTreeSet<String>,
    /// Tokens of bootstraps whose data a restore has replaced.
    pub replaced: BTreeSet<String>,
    pub restore: Option<RestoreWish>,
    pub upgrade: Option<Upgrade>,
    pub upgrade_failed: Option<UpgradeFailed>,
    pub previous: Option<Previous>,
    /// Whether data that was replaced is deleted.
    pub discard: bool,
    /// Where backups and the log are stored; absent without backups.
    pub repository: Option<String>,
    pub form_with: FormedWith,
    pub formed_with: Option<FormedWith>,
    /// The token of the next bootstrap.
    pub next_token: String,
    /// The etcd with Patroni's state; absent while it cannot serve it yet, with the reason.
    pub dcs: Result<Dcs, String>,
    /// The desired shared configuration in the DCS: JSON with sorted keys.
    pub config: String,
    /// How many standbys must confirm a commit. None: commits do not wait.
    pub synchronous: Option<usize>,
    /// Fingerprints of what passwords are checked with, by user.
    pub users: BTreeMap<String, String>,
    /// With their owners.
    pub databases: BTreeMap<String, String>,
    pub extensions: BTreeMap<String, BTreeSet<String>>,
    pub switchover: Option<SwitchoverRequest>,
    pub rotation: Option<RotationWish>,
    /// Members whose tags say that they never become the primary.
    pub never_primary: BTreeSet<MemberName>,
}

impl Wish {
    /// The version of an existing cluster and the one that the spec wants, where they differ.
    pub(crate) fn version_change(&self) -> Option<(&str, &str)> {
        let then = self.formed_with.as_ref().filter(|_| self.formation.is_formed())?;
        let (from, to) = (then.version.as_str(), self.form_with.version.as_str());
        (from != to).then_some((from, to))
    }

    /// Whether members are stopped on purpose, until other data is in place.
    pub(crate) fn exchanges_data(&self) -> bool {
        self.restore.is_some() || self.upgrade.is_some()
    }

    /// Whether the cluster continues if nothing is restored.
    pub(crate) fn has_data(&self) -> bool {
        self.formation.has_data(self.upgrade.as_ref())
    }

    /// The bootstrap that begins with data that a member has prepared.
    pub(crate) fn prepared_token(&self) -> Option<&str> {
        let restore = self.restore.as_ref().map(|restore| &restore.token);
        restore.or(self.upgrade.as_ref().map(|upgrade| &upgrade.token)).map(String::as_str)
    }
}

/// Password changes in progress, identified by fingerprints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RotationWish {
    pub stage: RotationStage,
    /// Whose, for people.
    pub users: Vec<String>,
    /// The members' confirmation that they have applied it; absent if members are not involved.
    pub mark: Option<String>,
}

/// The etcd that Patroni keeps its state in, and how it logs in.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Dcs {
    /// `HOST:PORT` of each member.
    pub hosts: BTreeSet<String>,
    /// The CA that signed their certificates.
    pub ca: String,
    /// User and password.
    pub login: Option<(String, Secret)>,
    /// A client certificate and its key.
    pub identity: Option<(String, Secret)>,
    /// Of an etcd cluster that quorate operates.
    pub version: Option<Version>,
}
