//! The ledger: what must outlive a run beyond the spec. Pure data; `control::ledger` stores it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Authorities, AuthorityRecord, IssuedCertificate, MachineCertificate, MemberName, Plane};
use crate::Secret;
use crate::providers;
use crate::spec::{ClusterSpec, Signer};

/// The format that this program writes. A newer one is refused. Up to 1, secrets were stored as they are; up to 2, the
/// spec had settings of single providers among those of clusters and members.
pub const LEDGER_FORMAT: u32 = 3;

/// Brings the content of a ledger of an older format to the present shape.
pub fn migrate_ledger(ledger: &mut Value, format: u32) {
    if format > 2 {
        return;
    }
    for spec in ["spec", "spec_before"] {
        ledger.get_mut(spec).map(providers::migrate);
    }
    let Some(formed) = ledger.get_mut("formed_with").and_then(Value::as_object_mut) else { return };
    let network = formed.remove("network").unwrap_or_else(|| "loopback".into());
    if formed.get("provider").is_none_or(|provider| provider == "local") {
        formed.insert("machines".to_owned(), json!({ "provider.local.network": network }));
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ledger {
    pub format: u32,
    /// Raised by one with each write; a write of a version that exists already is refused.
    pub version: u64,
    /// Random, made once: tells this cluster from another that once had its name.
    pub cluster_id: String,
    /// The spec as it was last applied.
    pub spec: ClusterSpec,
    /// The spec before, until all that differs is carried out: an interrupted run still knows what it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_before: Option<Box<ClusterSpec>>,
    pub lock: Option<Lock>,
    /// The highest fencing number ever given out.
    pub fence: u64,
    pub power: Power,
    pub destroy: Option<Consent>,
    /// The operator's word that the data may go without a backup.
    #[serde(default)]
    pub without_backup: Option<Consent>,
    /// The operator's word that a restart may interrupt a cluster that cannot bridge it.
    pub downtime: Option<Consent>,
    /// The operator's word that this ledger, though older than its cluster, is the one to go on with.
    pub older_accepted: Option<Consent>,
    /// The operator's word that machines which are not seen count as dead at once.
    #[serde(default)]
    pub without_grace: Option<Consent>,
    /// The operator's request to recover from the loss of the majority, and what may be lost with it.
    #[serde(default)]
    pub recovery: Option<RecoveryRequest>,
    /// The word under which the cluster was recovered, until all members that are wanted vote again.
    #[serde(default)]
    pub recovered: Option<Consent>,
    /// The operator's word that the data of all members is replaced, and by what.
    #[serde(default)]
    pub restore: Option<RestoreWish>,
    /// The file that the spec was applied from last, where it was a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_file: Option<String>,
    /// What is known here of the backups; the store knows the rest.
    #[serde(default)]
    pub backups: Option<BackupRecord>,
    /// When the membership was last changed: only what was seen later may lead to the next change.
    #[serde(default)]
    pub last_change: Option<Timestamp>,
    pub formation: Formation,
    /// Tokens of formations that were given up before any client could write: only their data may be wiped.
    pub abandoned: BTreeSet<String>,
    /// What was settled when the cluster was formed.
    pub formed_with: Option<FormedWith>,
    pub members: BTreeMap<MemberName, MemberRecord>,
    /// Where the provider has made machines, for providers with several such places: it looks there until nothing is left.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub places: BTreeSet<String>,
    pub authorities: Authorities,
    pub auth: AuthRecord,
    /// The key that signs the cluster's backups.
    #[serde(default)]
    pub backup_signing: Option<BackupSigning>,
    /// The highest etcd revision ever seen: a restore must go past it.
    pub highest_revision: u64,
}

/// Who may act, until when, and the number that every one of its orders carries.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lock {
    pub fence: u64,
    /// The verb and the user, for people.
    pub holder: String,
    pub host: String,
    /// Changes when the host is booted; a process id means nothing after that.
    pub boot_id: String,
    pub pid: u32,
    /// In clock ticks since boot: tells a process from a later one with the same id.
    pub pid_started: u64,
    /// Containers of one host have process ids of their own; empty where an older quorate wrote it.
    #[serde(default)]
    pub pid_namespace: String,
    pub since: Timestamp,
    pub expires: Timestamp,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Power {
    #[default]
    On,
    Off,
}

/// The operator's word, with what was shown when it was given.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Consent {
    pub at: Timestamp,
    pub by: String,
    pub shown: String,
}

/// The operator's confirmation that the majority is lost permanently, for the loss that was shown.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RecoveryRequest {
    #[serde(flatten)]
    pub consent: Consent,
    /// Absent where an older quorate wrote it: such a request only lets a recovery continue that has begun.
    #[serde(default)]
    pub of: Option<LostMajority>,
}

/// What was left of a cluster when its recovery was confirmed.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct LostMajority {
    /// The formation whose majority is lost.
    pub token: String,
    /// The members that still held their data.
    pub survivors: BTreeSet<MemberName>,
    /// The index that the furthest of their logs reached.
    pub index: u64,
}

/// The operator's word that all members begin anew from one snapshot.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RestoreWish {
    pub consent: Consent,
    /// Of the plain snapshot's bytes, all of them, as the members are to hold them.
    pub sha256: String,
    pub bytes: u64,
    /// The revision that the snapshot ends at.
    pub revision: u64,
    /// Where the snapshot is from, in words.
    pub source: String,
    /// Raised by one with each restore that is asked for.
    pub epoch: u64,
    /// By how much the revision goes up: the snapshot was tried with this.
    #[serde(default)]
    pub bump_revision: Option<u64>,
}

/// What proves that a backup is this cluster's: without it, anyone who can write to a store could make one up.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct BackupSigning {
    pub key: Secret,
    pub public: Signer,
    /// Backups of before have no signature.
    pub since: Timestamp,
}

/// The newest full backup, and the newest that was proven by restoring it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct BackupRecord {
    pub newest: BackupNote,
    pub verified: Option<BackupNote>,
    /// What the store holds under the cluster's name that is not this cluster's, in words; the first few.
    #[serde(default)]
    pub forged: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct BackupNote {
    pub id: String,
    /// The moment up to which it goes, recorded changes included.
    pub at: Timestamp,
    /// The revision up to which it goes, recorded changes included.
    pub revision: u64,
    pub verified_at: Option<Timestamp>,
}

/// How far the cluster has come into being. It goes forward only; back from `Forming` to `Unformed` while no client
/// can have written, and from anywhere to `Restoring` on the operator's word.
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
    /// The majority of the formation `was` is lost, and a new one begins from what one survivor holds. `members` are those
    /// of the lost one.
    Recovering {
        was: String,
        token: String,
        from: MemberName,
        members: BTreeMap<MemberName, FormingMember>,
    },
    /// All that is wanted begins anew from one snapshot, which every member has. `was` is the formation that is given up for it,
    /// where there was one.
    Restoring {
        was: Option<String>,
        token: String,
        members: BTreeMap<MemberName, FormingMember>,
        /// Of the snapshot.
        sha256: String,
        /// By how much its revision goes up.
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
    /// The address in its URL.
    pub fn address(&self) -> Option<IpAddr> {
        super::address_in(&self.peer_url)
    }
}

/// Settings that a living cluster keeps, as text. A spec that names others is refused, not half applied.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct FormedWith {
    pub etcd_version: String,
    pub client_auth: String,
    pub bootstrap: String,
    pub namespace: String,
    pub key_algorithm: String,
    #[serde(default = "first_provider")]
    pub provider: String,
    /// Those of the provider, by their place in the spec.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub machines: BTreeMap<String, String>,
    /// Kind of the tokens of etcd. The spec may name another; one that names none keeps it.
    #[serde(default = "first_token")]
    pub token: String,
}

/// Clusters of a ledger that does not say were formed when there was no other.
fn first_provider() -> String {
    String::from("local")
}

fn first_token() -> String {
    String::from("simple")
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct MemberRecord {
    pub incarnation: u64,
    /// Of the node config last sent, and the digest of its content.
    pub generation: u64,
    pub digest: String,
    pub enrolment: Option<Enrolment>,
    /// The incarnation of the machine that it gets next, or has got, with the data of the one before; until that data was seen there.
    #[serde(default)]
    pub renewing: Option<u64>,
    /// Since when its machine or its agent is not seen, across runs.
    #[serde(default)]
    pub unseen_since: Option<Timestamp>,
    /// When that was last found so: what was not looked at for long may have come and gone.
    #[serde(default)]
    pub unseen_at: Option<Timestamp>,
    /// Why it did not become a voter when that was last tried. The next run tries again.
    #[serde(default)]
    pub join_failed: Option<String>,
    /// Where its machine was made, or was about to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Enrolment {
    pub token: Secret,
    pub expires: Timestamp,
    /// SHA-256 of the first public key that proved to know the token. No other is ever signed for it.
    pub bound_key: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct AuthRecord {
    pub root_password: Option<Secret>,
    pub jwt: Option<JwtKeys>,
    /// What quorate itself made, and may therefore remove.
    pub users: BTreeMap<String, OwnedUser>,
    pub roles: BTreeSet<String>,
    /// Certificates that were issued to users: until they have ended, and forever if they are revoked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<IssuedCertificate>,
    /// Certificates that machines were given, by the same rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<MachineCertificate>,
    /// The list of those that etcd refuses of its clients, signed, in DER and hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crl: Option<String>,
    /// The same for its peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_crl: Option<String>,
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
    /// Another tool made the user: its password is kept as declared, and it is never removed.
    #[serde(default)]
    pub adopted: bool,
}

/// Secrets that quorate makes once and keeps in the ledger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretKind {
    EtcdAuthority,
    PeerAuthority,
    ControlAuthority,
    RootPassword,
    JwtKeys,
    BackupSigning,
    /// The lists of certificates that are refused.
    Revocations,
}

impl std::hash::Hash for Ledger {
    /// Leaves the spec out: it is large, and two ledgers that differ in it alone are still told apart by `Eq`.
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.version, self.fence, self.power, &self.destroy, &self.without_backup, &self.formation, &self.abandoned)
            .hash(state);
        (&self.members, &self.authorities, &self.auth, &self.recovery, &self.recovered, self.last_change).hash(state);
        (&self.downtime, &self.without_grace, &self.formed_with, self.highest_revision).hash(state);
        (&self.restore, &self.backups, &self.backup_signing).hash(state);
    }
}

impl Ledger {
    /// Takes up a spec, and keeps the one before until all that differs is carried out.
    pub fn take_spec(&mut self, spec: &ClusterSpec) {
        let before = std::mem::replace(&mut self.spec, spec.clone());
        if before != *spec {
            self.spec_before.get_or_insert_with(|| Box::new(before));
        }
    }

    /// Visits every text that must not be read by whoever gets hold of a copy of the ledger. Every field is named here: a new one
    /// does not compile until somebody has decided whether it is secret.
    pub fn each_secret(&mut self, mut visit: impl FnMut(&mut String)) {
        let Ledger {
            format: _,
            version: _,
            cluster_id: _,
            spec: _,
            spec_before: _,
            spec_file: _,
            lock: _,
            fence: _,
            power: _,
            destroy: _,
            without_backup: _,
            downtime: _,
            older_accepted: _,
            without_grace: _,
            recovery: _,
            recovered: _,
            restore: _,
            backups: _,
            last_change: _,
            formation: _,
            abandoned: _,
            formed_with: _,
            members,
            places: _,
            authorities: Authorities { etcd, control, peer },
            auth: AuthRecord { root_password, jwt, users, roles: _, certificates: _, machines: _, crl: _, peer_crl: _ },
            backup_signing,
            highest_revision: _,
        } = self;
        if let Some(BackupSigning { key, public: _, since: _ }) = backup_signing {
            visit(key.expose_mut());
        }
        for member in members.values_mut() {
            let MemberRecord {
                incarnation: _,
                generation: _,
                digest: _,
                enrolment,
                renewing: _,
                unseen_since: _,
                unseen_at: _,
                join_failed: _,
                place: _,
            } = member;
            if let Some(Enrolment { token, expires: _, bound_key: _ }) = enrolment {
                visit(token.expose_mut());
            }
        }
        let peers = peer.iter_mut().flat_map(|Plane { signs: _, trusted }| trusted);
        for authority in [etcd, control].into_iter().flatten().chain(peers) {
            let AuthorityRecord { epoch: _, certificate: _, key, key_id: _, not_after: _ } = authority;
            key.iter_mut().for_each(|key| visit(key.expose_mut()));
        }
        root_password.iter_mut().for_each(|password| visit(password.expose_mut()));
        if let Some(JwtKeys { private, public: _ }) = jwt {
            visit(private.expose_mut());
        }
        // A fingerprint is enough to try passwords against.
        for OwnedUser { password, adopted: _ } in users.values_mut() {
            password.iter_mut().for_each(&mut visit);
        }
    }

    pub fn new(cluster_id: String, spec: ClusterSpec) -> Self {
        Ledger {
            format: LEDGER_FORMAT,
            version: 0,
            cluster_id,
            spec,
            lock: None,
            fence: 0,
            power: Power::On,
            destroy: None,
            without_backup: None,
            downtime: None,
            older_accepted: None,
            without_grace: None,
            recovery: None,
            recovered: None,
            restore: None,
            spec_before: None,
            spec_file: None,
            backups: None,
            last_change: None,
            formation: Formation::Unformed,
            abandoned: BTreeSet::new(),
            formed_with: None,
            members: BTreeMap::new(),
            places: BTreeSet::new(),
            authorities: Authorities::default(),
            auth: AuthRecord::default(),
            backup_signing: None,
            highest_revision: 0,
        }
    }
}
