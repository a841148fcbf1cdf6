//! The part of the ledger that only PostgreSQL clusters have.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{REPLICATOR, REWINDER, SUPERUSER};
use crate::Secret;
use crate::kinds::Joined;
use crate::model::{AuthorityRecord, Consent, MemberName};
use jiff::Timestamp;

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    pub formation: Formation,
    /// Tokens of bootstraps that were abandoned before any client could write: only their data may be wiped.
    pub abandoned: BTreeSet<String>,
    /// Tokens of bootstraps whose data a restore has replaced: that data is put aside.
    pub replaced: BTreeSet<String>,
    pub formed_with: Option<FormedWith>,
    pub passwords: Option<Passwords>,
    /// Until another member is the primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switchover: Option<SwitchoverRequest>,
    /// Until all passwords are the new ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<Rotation>,
    /// A restore that was confirmed and is not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore: Option<RestoreWish>,
    /// An upgrade to another major version, from the moment that members may stop for it until the new version serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<Upgrade>,
    /// Why the last one failed. The cluster runs the version that it had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upgrade_failed: Option<UpgradeFailed>,
    /// What the last one has replaced: the way back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<Previous>,
    /// The operator's confirmation that data replaced by a restore or an upgrade is not needed any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discard: Option<Consent>,
}

/// An upgrade to another major version that has begun.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Upgrade {
    /// Of the bootstrap that begins with the upgraded data.
    pub token: String,
    pub from: String,
    pub to: String,
    /// The member that was the primary until all members stopped. Only its data is known to have every commit.
    pub source: Option<MemberName>,
    /// What the cluster returns to if no client has written to the upgraded data.
    pub was: Option<Formation>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct UpgradeFailed {
    pub to: String,
    pub why: String,
    /// The fencing number of the controller that reported the failure: it does not try again.
    pub fence: u64,
}

/// The data from before an upgrade, which its members keep.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Previous {
    pub version: String,
    /// Of the bootstrap that it is from.
    pub token: String,
    /// The member whose copy has every commit.
    pub member: MemberName,
    /// Whether the planner's statistics, which an upgrade does not carry over, were collected again.
    pub analyzed: bool,
}

/// Data of a backup that will replace all data of the cluster.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RestoreWish {
    pub consent: Consent,
    /// Of the bootstrap that begins with the restored data.
    pub token: String,
    /// Absent: the data from before the last upgrade.
    pub target: Option<RestoreTarget>,
    /// The backup and how far the log is replayed, for people.
    pub source: String,
}

/// What is restored.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RestoreTarget {
    /// pgBackRest's name of the backup.
    pub label: String,
    /// pgBackRest's number of the store. Neither the backup nor the log comes from another one.
    #[serde(default = "first_repository")]
    pub repository: u8,
    pub until: Until,
    /// The timeline whose log is replayed; if absent, the newest that leads on from the backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<u32>,
    /// At most so many bytes are needed on disk.
    pub bytes: u64,
}

fn first_repository() -> u8 {
    1
}

/// How far the log is replayed on top of the backup.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Until {
    /// As far as it was stored.
    End,
    /// To the first moment at which the backup is consistent.
    Backup,
    Time(Timestamp),
    Lsn(String),
    Xid(u64),
}

/// The operator's request that another member becomes the primary. It was confirmed for one primary on one timeline: after any other change of
/// the primary it is void.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct SwitchoverRequest {
    pub consent: Consent,
    pub from: MemberName,
    pub timeline: Option<u64>,
    /// Absent: the one that quorate chooses.
    pub to: Option<MemberName>,
}

/// The operator's request that passwords change.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Rotation {
    pub consent: Consent,
    /// Identifies the rotation in the members' confirmations.
    pub id: String,
    /// The new passwords, by user.
    pub next: BTreeMap<String, Secret>,
    pub stage: RotationStage,
    /// Patroni logs in to the DCS as another user; every member must confirm that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dcs: bool,
}

/// The progress of a rotation. A role has one password, so members that log in to each other cannot accept the old and the new one at
/// once. Meanwhile a certificate of the members' CA is enough.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RotationStage {
    /// Members must accept each other by certificate. Their configurations have the old passwords.
    Opening,
    /// They do so. PostgreSQL gets the new passwords.
    Setting,
    /// It has them. The configurations of members get them.
    Switching,
}

impl Rotation {
    /// Passwords of users that members do not use concern PostgreSQL only.
    pub fn new(consent: Consent, id: String, next: BTreeMap<String, Secret>) -> Self {
        let mut rotation = Rotation { consent, id, next, stage: RotationStage::Opening, dcs: false };
        if !rotation.concerns_members() {
            rotation.stage = RotationStage::Setting;
        }
        rotation
    }

    /// Nothing changes in PostgreSQL: members only confirm what their configurations have.
    pub fn of_dcs(consent: Consent, id: String) -> Self {
        Rotation { consent, id, next: BTreeMap::new(), stage: RotationStage::Switching, dcs: true }
    }

    /// Whether members log in as one of these users.
    pub fn concerns_members(&self) -> bool {
        self.dcs || [SUPERUSER, REPLICATOR, REWINDER].iter().any(|user| self.next.contains_key(*user))
    }

    /// What a member's access rules show during a rotation.
    pub(crate) fn mark(&self) -> String {
        let stage = match self.stage {
            RotationStage::Opening | RotationStage::Setting => "old",
            RotationStage::Switching => "new",
        };
        format!("{} {stage}", self.id)
    }
}

impl Passwords {
    /// Of this user, as far as it has one.
    pub fn of(&self, user: &str) -> Option<&Secret> {
        match user {
            SUPERUSER => Some(&self.superuser),
            REPLICATOR => Some(&self.replicator),
            REWINDER => Some(&self.rewinder),
            user => self.users.get(user),
        }
    }

    pub(crate) fn change(&mut self, user: &str, password: Secret) {
        match user {
            SUPERUSER => self.superuser = password,
            REPLICATOR => self.replicator = password,
            REWINDER => self.rewinder = password,
            user => drop(self.users.insert(user.to_owned(), password)),
        }
    }
}

/// The state of the bootstrap.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Formation {
    #[default]
    Unformed,
    /// One member creates the data. No other member starts before it is the primary.
    Forming { token: String, first: MemberName, members: BTreeMap<MemberName, Known> },
    /// `members` are those that were started on a copy of the data, or are about to be: former machines too.
    Formed { token: String, system_id: String, members: BTreeMap<MemberName, Known> },
}

/// The machine with which a member joined.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Known {
    pub machine_id: String,
    pub address: Option<IpAddr>,
    /// Patroni names it after the machine with this number. Data that outlives its machine keeps the name: Patroni may have recorded in the
    /// DCS that only this name can take over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
}

impl Known {
    pub(crate) fn joined(&self) -> Joined<'_> {
        Joined { machine_id: &self.machine_id, address: self.address, learns: false }
    }
}

impl Formation {
    /// Patroni's name of a member whose machine has this number.
    pub fn patroni_name(&self, member: &MemberName, incarnation: u64) -> String {
        let known = self.members().and_then(|members| members.get(member)?.number);
        super::desire::patroni_name(member.as_str(), known.unwrap_or(incarnation))
    }

    pub fn is_formed(&self) -> bool {
        matches!(self, Formation::Formed { .. })
    }

    /// Whether the cluster has data that it can continue with, also if nothing is restored.
    pub(crate) fn has_data(&self, upgrade: Option<&Upgrade>) -> bool {
        match self {
            Formation::Unformed => false,
            Formation::Forming { token, .. } => upgrade.is_some_and(|upgrade| upgrade.token == *token),
            Formation::Formed { .. } => true,
        }
    }

    pub fn token(&self) -> Option<&str> {
        match self {
            Formation::Unformed => None,
            Formation::Forming { token, .. } | Formation::Formed { token, .. } => Some(token),
        }
    }

    pub fn members(&self) -> Option<&BTreeMap<MemberName, Known>> {
        match self {
            Formation::Unformed => None,
            Formation::Forming { members, .. } | Formation::Formed { members, .. } => Some(members),
        }
    }

    pub fn members_mut(&mut self) -> Option<&mut BTreeMap<MemberName, Known>> {
        match self {
            Formation::Unformed => None,
            Formation::Forming { members, .. } | Formation::Formed { members, .. } => Some(members),
        }
    }
}

/// Settings that an existing cluster keeps, as text. A spec that names others is refused, not half applied.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct FormedWith {
    pub version: String,
    /// The etcd cluster with Patroni's state, and where in it.
    pub dcs: String,
    pub key: String,
    pub locale: String,
}

/// The passwords of PostgreSQL's users. The agents get those that Patroni needs.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Passwords {
    pub superuser: Secret,
    pub replicator: Secret,
    pub rewinder: Secret,
    /// Of the users that the spec declares.
    #[serde(default)]
    pub users: BTreeMap<String, Secret>,
    /// Decrypts the repository of backups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<Secret>,
}

impl Passwords {
    /// Placeholders for passwords that a new cluster does not have yet, for code that does not depend on them.
    pub(crate) fn empty() -> Self {
        let none = || Secret::new("");
        let (superuser, replicator, rewinder) = (none(), none(), none());
        Passwords { superuser, replicator, rewinder, users: BTreeMap::new(), repository: None }
    }
}

/// In the ledger of an etcd cluster: a PostgreSQL cluster that keeps Patroni's state there, and how it logs in.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct DcsUser {
    pub user: String,
    pub password: Secret,
    /// The only keys that it may read and write.
    pub prefix: String,
    /// The user that takes its place, with the same rights: etcd ends the sessions of one whose password changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<DcsLogin>,
    /// Where etcd asks for one besides the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<DcsCertificate>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct DcsLogin {
    pub user: String,
    pub password: Secret,
}

/// It names no user: etcd refuses certificates with a name at its gateway.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct DcsCertificate {
    pub chain: String,
    pub key: Secret,
    /// Of the CA that signed it.
    pub authority_key_id: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

impl DcsCertificate {
    pub fn valid(&self) -> Range<Timestamp> {
        self.not_before..self.not_after
    }
}

impl DcsUser {
    /// All users that may log in.
    pub fn logins(&self) -> impl Iterator<Item = (&String, &Secret)> {
        [(&self.user, &self.password)].into_iter().chain(self.next.iter().map(|next| (&next.user, &next.password)))
    }

    /// Its certificate, if the CA that signs for clients now has signed it.
    pub fn certificate_of(&self, clients: Option<&AuthorityRecord>) -> Option<&DcsCertificate> {
        self.certificate.as_ref().filter(|known| clients.is_some_and(|ca| ca.key_id == known.authority_key_id))
    }

    /// From here on only the next one may.
    pub fn promote(&mut self) {
        if let Some(DcsLogin { user, password }) = self.next.take() {
            (self.user, self.password) = (user, password);
        }
    }
}

impl Record {
    pub fn is_empty(&self) -> bool {
        *self == Record::default()
    }

    /// A request that has not begun is valid only in the situation in which it was confirmed.
    pub(crate) fn drop_stale(&mut self, counts: impl Fn(&Consent) -> bool) {
        let stays = self.restore_must_complete();
        self.restore = self.restore.take().filter(|restore| stays || counts(&restore.consent));
        self.discard = self.discard.take().filter(&counts);
        self.switchover = self.switchover.take().filter(|request| counts(&request.consent));
        // Before any password has changed it can be dropped; later, only completed.
        let begun = |rotation: &Rotation| rotation.stage != RotationStage::Opening;
        self.rotation = self.rotation.take().filter(|rotation| begun(rotation) || counts(&rotation.consent));
    }

    /// The major version of the data, if known: a different one than the spec's until an upgrade is complete.
    pub fn data_version(&self) -> Option<&str> {
        let token = self.formation.token();
        let upgraded = self.upgrade.as_ref().filter(|upgrade| token == Some(&upgrade.token)).map(|upgrade| &upgrade.to);
        let back = self.restore.as_ref().filter(|back| back.target.is_none() && token == Some(&back.token));
        let back = back.and(self.previous.as_ref()).map(|previous| &previous.version);
        upgraded.or(back).or(self.formed_with.as_ref().map(|with| &with.version)).map(String::as_str)
    }

    /// The major version of data that is to come, whatever the spec says meanwhile.
    pub(crate) fn version_to_come(&self) -> Option<&str> {
        let back = self.restore.as_ref().filter(|restore| restore.target.is_none()).and(self.previous.as_ref());
        let back = back.map(|previous| &previous.version);
        back.or(self.upgrade.as_ref().map(|upgrade| &upgrade.to)).map(String::as_str)
    }

    /// `DataDiesOnlyByConsent`: whether a restore can only be completed, or replaced by another one. The restored data may be in place already,
    /// or the cluster has no other data to continue with: if the restore were forgotten, it would begin empty.
    pub fn restore_must_complete(&self) -> bool {
        let Some(restore) = &self.restore else { return false };
        self.formation.token() == Some(&restore.token) || !self.formation.has_data(self.upgrade.as_ref())
    }

    /// Unless it can only be completed.
    pub fn withdraw_restore(&mut self) {
        if !self.restore_must_complete() {
            self.restore = None;
        }
    }

    /// Visits every text that must stay secret in a copy of the ledger. Every field is named here: a new one does not
    /// compile until someone has decided whether it is secret.
    pub(crate) fn each_secret(&mut self, visit: &mut impl FnMut(&mut String)) {
        let Record {
            formation: _,
            abandoned: _,
            replaced: _,
            formed_with: _,
            passwords,
            restore: _,
            switchover: _,
            rotation,
            upgrade: _,
            upgrade_failed: _,
            previous: _,
            discard: _,
        } = self;
        for password in rotation.iter_mut().flat_map(|rotation| rotation.next.values_mut()) {
            visit(password.expose_mut());
        }
        if let Some(Passwords { superuser, replicator, rewinder, users, repository }) = passwords {
            for password in [superuser, replicator, rewinder].into_iter().chain(users.values_mut()).chain(repository) {
                visit(password.expose_mut());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_restore_is_dropped_where_there_is_data_and_stays_where_there_is_none() {
        let consent = Consent { at: Timestamp::UNIX_EPOCH, by: String::new(), shown: String::new() };
        let target = RestoreTarget { label: String::new(), repository: 1, until: Until::End, timeline: None, bytes: 0 };
        let wish = RestoreWish { consent, token: String::from("b"), target: Some(target), source: String::new() };
        let mut record = Record { restore: Some(wish), ..Record::default() };
        record.drop_stale(|_| false);
        assert!(record.restore.is_some(), "the next run would begin with nothing");
        let formed = |token: &str| Formation::Formed {
            token: token.to_owned(),
            system_id: String::new(),
            members: BTreeMap::new(),
        };
        record.formation = formed("b");
        record.drop_stale(|_| false);
        assert!(record.restore.is_some(), "it has begun");
        record.formation = formed("a");
        record.drop_stale(|_| false);
        assert!(record.restore.is_none());
    }

    #[test]
    fn a_restore_is_withdrawn_only_where_the_cluster_has_other_data() {
        let consent = Consent { at: Timestamp::UNIX_EPOCH, by: String::new(), shown: String::new() };
        let restore = RestoreWish { consent, token: String::from("b"), target: None, source: String::new() };
        let forming = |token: &str| Formation::Forming {
            token: token.to_owned(),
            first: "pg-1".into(),
            members: BTreeMap::new(),
        };
        let upgrade = |token: &str| {
            let (from, to) = (String::from("15"), String::from("17"));
            Some(Upgrade { token: token.to_owned(), from, to, source: None, was: None })
        };
        let formed = Formation::Formed { token: String::from("a"), system_id: String::new(), members: BTreeMap::new() };
        for (formation, upgrade, stays) in [
            (Formation::Unformed, None, true),
            // Of this restore, and of one before.
            (forming("b"), None, true),
            (forming("c"), None, true),
            (forming("u"), upgrade("u"), false),
            (formed.clone(), upgrade("u"), false),
            (formed, None, false),
        ] {
            let restore = Some(restore.clone());
            let mut record = Record { formation, upgrade, restore, ..Record::default() };
            record.withdraw_restore();
            assert_eq!(record.restore.is_some(), stays, "{record:?}");
        }
    }
}
