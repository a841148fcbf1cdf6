//! The part of the ledger that only etcd clusters have.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::Secret;
use crate::kinds::Joined;
use crate::kinds::postgres::DcsUser;
use crate::model::{Consent, MemberName, address_in};

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    pub formation: Formation,
    /// Tokens of bootstraps that were abandoned before any client could write: only their data may be wiped.
    pub abandoned: BTreeSet<String>,
    /// Settings that are fixed when the cluster is created.
    pub formed_with: Option<FormedWith>,
    /// When the membership was last changed. Only a later observation may lead to the next change.
    pub last_change: Option<Timestamp>,
    /// The operator's request to recover from the loss of the majority, and what may be lost.
    pub recovery: Option<RecoveryRequest>,
    /// The confirmation of the recovery, until all wanted members vote again.
    pub recovered: Option<Consent>,
    /// The operator's confirmation that the data of all members is replaced, and by what.
    pub restore: Option<RestoreWish>,
    /// The source of a restore into a cluster that did not exist when the restore was confirmed. This outlives the request, so no empty
    /// cluster is created instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub awaits_restore: Option<String>,
    /// The highest revision ever seen: a restore must go past it.
    pub highest_revision: u64,
    pub auth: AuthRecord,
    /// PostgreSQL clusters that keep Patroni's state here, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub used_by: BTreeMap<String, DcsUser>,
}

impl Record {
    /// Records that the data of all members is to be replaced.
    pub fn request_restore(&mut self, wish: RestoreWish) {
        if matches!(self.formation, Formation::Unformed | Formation::Forming { .. }) {
            self.awaits_restore = Some(wish.source.clone());
        }
        let epoch = self.restore.as_ref().map_or(0, |earlier| earlier.epoch) + 1;
        self.restore = Some(RestoreWish { epoch, ..wish });
    }

    /// Visits every text that must stay secret in a copy of the ledger. Every field is named here: a new one
    /// does not compile until someone has decided whether it is secret.
    pub(crate) fn each_secret(&mut self, visit: &mut impl FnMut(&mut String)) {
        let Record {
            formation: _,
            abandoned: _,
            formed_with: _,
            last_change: _,
            recovery: _,
            recovered: _,
            restore: _,
            awaits_restore: _,
            highest_revision: _,
            auth: AuthRecord { root_password, jwt, users, roles: _ },
            used_by,
        } = self;
        for DcsUser { user: _, password, prefix: _, next, certificate } in used_by.values_mut() {
            next.iter_mut().for_each(|next| visit(next.password.expose_mut()));
            certificate.iter_mut().for_each(|certificate| visit(certificate.key.expose_mut()));
            visit(password.expose_mut());
        }
        root_password.iter_mut().for_each(|password| visit(password.expose_mut()));
        if let Some(JwtKeys { private, public: _ }) = jwt {
            visit(private.expose_mut());
        }
        // A fingerprint is enough to test guessed passwords.
        for OwnedUser { password, adopted: _, unconfirmed: _ } in users.values_mut() {
            password.iter_mut().for_each(&mut *visit);
        }
    }
}

/// Settings of etcd that an existing cluster keeps, as text. A spec that names others is refused, not half applied.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct FormedWith {
    pub version: String,
    pub client_auth: String,
    pub bootstrap: String,
    /// Type of etcd's login tokens. The spec may name another; one that names none keeps it.
    #[serde(default = "first_token")]
    pub token: String,
}

/// Older ledgers do not have this field; all clusters of that time had the same type.
fn first_token() -> String {
    String::from("simple")
}

/// The operator's confirmation that the majority is lost permanently, for the loss that was shown.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RecoveryRequest {
    #[serde(flatten)]
    pub consent: Consent,
    /// Absent in requests of an older quorate: such a request only continues a recovery that has begun.
    #[serde(default)]
    pub of: Option<LostMajority>,
}

/// What was left of the cluster when its recovery was confirmed.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct LostMajority {
    /// The formation whose majority is lost.
    pub token: String,
    /// The members that still held their data.
    pub survivors: BTreeSet<MemberName>,
    /// The index that the furthest of their logs reached.
    pub index: u64,
}

/// The confirmation that all members are restored from one snapshot.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RestoreWish {
    pub consent: Consent,
    /// Of the plain snapshot's bytes, all of them, as the members are to hold them.
    pub sha256: String,
    pub bytes: u64,
    /// The revision that the snapshot ends at.
    pub revision: u64,
    /// How many keys it has, if that is known.
    #[serde(default)]
    pub keys: Option<i64>,
    /// Where the snapshot is from, in words.
    pub source: String,
    /// Raised by one with each restore that is asked for.
    pub epoch: u64,
    /// By how much the revision is raised; set once the snapshot was verified with it.
    #[serde(default)]
    pub bump_revision: Option<u64>,
}

/// The state of the bootstrap. It moves forward only; back from `Forming` to `Unformed` while no client can have
/// written, and from any state to `Restoring` after confirmation.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Formation {
    #[default]
    Unformed,
    Forming {
        token: String,
        members: BTreeMap<MemberName, FormingMember>,
    },
    /// `members` are those that etcd lists, or is about to list: learners and former machines too.
    Formed {
        token: String,
        /// etcd's own identity of the cluster.
        etcd_cluster_id: u64,
        members: BTreeMap<MemberName, FormingMember>,
    },
    /// The majority of the bootstrap `was` is lost, and a new one begins with one survivor's data. `members` are those of
    /// the lost one.
    Recovering {
        was: String,
        token: String,
        from: MemberName,
        members: BTreeMap<MemberName, FormingMember>,
    },
    /// All wanted members are restored from one snapshot, which each of them has. `was` is the bootstrap that it replaces, if
    /// there was one.
    Restoring {
        was: Option<String>,
        token: String,
        members: BTreeMap<MemberName, FormingMember>,
        /// Of the snapshot.
        sha256: String,
        /// By how much its revision is raised.
        bump_revision: u64,
    },
}

impl Formation {
    pub fn is_formed(&self) -> bool {
        matches!(self, Formation::Formed { .. })
    }

    /// The present formation's token.
    pub fn token(&self) -> Option<&str> {
        match self {
            Formation::Unformed => None,
            Formation::Forming { token, .. }
            | Formation::Formed { token, .. }
            | Formation::Recovering { token, .. }
            | Formation::Restoring { token, .. } => Some(token),
        }
    }

    /// The members that the ledger knows of.
    pub fn members(&self) -> Option<&BTreeMap<MemberName, FormingMember>> {
        match self {
            Formation::Unformed => None,
            Formation::Forming { members, .. }
            | Formation::Formed { members, .. }
            | Formation::Recovering { members, .. }
            | Formation::Restoring { members, .. } => Some(members),
        }
    }

    /// Whether the ledger counts this machine among the members of a cluster that was formed, or is being formed again.
    pub fn counts_on(&self, member: &MemberName) -> bool {
        match self {
            Formation::Unformed | Formation::Forming { .. } => false,
            Formation::Formed { members, .. }
            | Formation::Recovering { members, .. }
            | Formation::Restoring { members, .. } => members.contains_key(member),
        }
    }

    /// Whether the ledger counts this machine among the members of a formed cluster.
    pub fn has_member(&self, member: &MemberName) -> bool {
        self.is_formed() && self.members().is_some_and(|members| members.contains_key(member))
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct FormingMember {
    pub machine_id: String,
    pub peer_url: String,
    /// It was added and does not vote yet.
    #[serde(default)]
    pub learner: bool,
}

impl FormingMember {
    pub(crate) fn joined(&self) -> Joined<'_> {
        Joined { machine_id: &self.machine_id, address: self.address(), learns: self.learner }
    }

    /// The address in its URL.
    pub fn address(&self) -> Option<IpAddr> {
        address_in(&self.peer_url)
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct AuthRecord {
    pub root_password: Option<Secret>,
    pub jwt: Option<JwtKeys>,
    /// What quorate itself created, and may therefore remove.
    pub users: BTreeMap<String, OwnedUser>,
    pub roles: BTreeSet<String>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct JwtKeys {
    pub private: Secret,
    pub public: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct OwnedUser {
    /// Of the password last set.
    pub password: Option<String>,
    /// Another tool created the user: its password is kept as declared, and it is never removed.
    #[serde(default)]
    pub adopted: bool,
    /// It was to be added, and has not been seen with all its roles since: it may be missing, or lack some.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfirmed: bool,
}
