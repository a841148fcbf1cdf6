//! Steps: one action each, with its reason and its precondition.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::kinds::etcd::AuthOp;
use crate::kinds::etcd::{FormingMember, Membership};
use crate::model::{CertificateUse, Data, DataSeen, MemberName, Program, SecretKind, Stamp, TrustPlane};

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Step {
    pub action: Action,
    pub why: Reason,
    pub expects: Precondition,
}

/// Why a step is taken, in words for the operator.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Reason(String);

impl Reason {
    pub fn new(text: impl Into<String>) -> Self {
        Reason(text.into())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What must still be so when the step is done; the agent checks it again.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precondition {
    Nothing,
    Data(DataSeen),
    /// etcd's own list of members.
    Membership(Membership),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Action {
    MakeSecrets {
        kinds: BTreeSet<SecretKind>,
    },
    CreateMachine {
        member: MemberName,
        incarnation: u64,
        data: Data,
    },
    StartMachine {
        member: MemberName,
    },
    StopMachine {
        member: MemberName,
    },
    DestroyMachine {
        member: MemberName,
        data: Data,
    },
    Enrol {
        member: MemberName,
    },
    InstallCertificates {
        member: MemberName,
        uses: BTreeSet<CertificateUse>,
    },
    /// Exchanges the agent's program for the controller's own.
    UpgradeAgent {
        member: MemberName,
        from: Program,
        to: Program,
    },
    PushConfig {
        member: MemberName,
        generation: u64,
    },
    RecordForming {
        token: String,
        members: BTreeMap<MemberName, FormingMember>,
    },
    AbandonFormation {
        token: String,
    },
    StartEtcd {
        member: MemberName,
        bootstrap: Option<Stamp>,
    },
    StopEtcd {
        member: MemberName,
    },
    WipeData {
        member: MemberName,
        stamp: Stamp,
    },
    RecordFormed {
        etcd_cluster_id: u64,
    },
    MoveLeader {
        member: MemberName,
        to: MemberName,
        to_id: u64,
    },
    RestartEtcd {
        member: MemberName,
    },
    RecordReplacement {
        member: MemberName,
        incarnation: u64,
    },
    RecordRenewal {
        member: MemberName,
        incarnation: u64,
    },
    AddLearner {
        through: MemberName,
        member: MemberName,
        joining: FormingMember,
    },
    JoinEtcd {
        member: MemberName,
        stamp: Stamp,
        initial_cluster: BTreeMap<MemberName, String>,
    },
    Promote {
        through: MemberName,
        member: MemberName,
        id: u64,
    },
    RemoveMember {
        through: MemberName,
        member: MemberName,
        id: u64,
        failed: Option<String>,
    },
    EnableDowngrade {
        through: MemberName,
        version: String,
    },
    CancelDowngrade {
        through: MemberName,
    },
    RecordRecovery {
        was: String,
        token: String,
        from: MemberName,
    },
    Rebuild {
        member: MemberName,
        was: Stamp,
        stamp: Stamp,
        peer_url: String,
        bump_revision: u64,
    },
    StageSnapshot {
        member: MemberName,
        sha256: String,
        bytes: u64,
    },
    DropSnapshot {
        member: MemberName,
    },
    RecordRestoring {
        was: Option<String>,
        token: String,
        members: BTreeMap<MemberName, FormingMember>,
        sha256: String,
        bump_revision: u64,
    },
    RestoreData {
        member: MemberName,
        was: DataSeen,
        stamp: Stamp,
        initial_cluster: BTreeMap<MemberName, String>,
        peer_url: String,
        sha256: String,
        bump_revision: u64,
    },
    Auth {
        member: MemberName,
        op: AuthOp,
    },
    /// From here on this CA signs.
    RecordSigner {
        plane: TrustPlane,
        epoch: u64,
    },
    /// From here on this CA is not trusted.
    RecordDistrust {
        plane: TrustPlane,
        epoch: u64,
    },
    /// From here on the certificates of a user who is gone are refused.
    RevokeUser {
        user: String,
    },
    /// The same of a machine.
    RevokeMachine {
        member: MemberName,
        incarnation: u64,
    },
    ForgetCluster,
}

/// What a step can cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    Harmless,
    /// A member stops, restarts or gives up the lead.
    Interrupts,
    /// Something is deleted that cannot be brought back.
    Destroys,
}

impl Action {
    /// The machine on which it is done; none for what concerns the ledger alone.
    pub fn member(&self) -> Option<&MemberName> {
        match self {
            Action::MakeSecrets { .. }
            | Action::RecordForming { .. }
            | Action::AbandonFormation { .. }
            | Action::RecordFormed { .. }
            | Action::RecordReplacement { .. }
            | Action::RecordRenewal { .. }
            | Action::RecordRecovery { .. }
            | Action::RecordRestoring { .. }
            | Action::RecordSigner { .. }
            | Action::RecordDistrust { .. }
            | Action::RevokeUser { .. }
            | Action::RevokeMachine { .. }
            | Action::ForgetCluster => None,
            Action::AddLearner { through, .. }
            | Action::Promote { through, .. }
            | Action::RemoveMember { through, .. }
            | Action::EnableDowngrade { through, .. }
            | Action::CancelDowngrade { through } => Some(through),
            Action::CreateMachine { member, .. }
            | Action::StartMachine { member }
            | Action::StopMachine { member }
            | Action::DestroyMachine { member, .. }
            | Action::Enrol { member }
            | Action::InstallCertificates { member, .. }
            | Action::UpgradeAgent { member, .. }
            | Action::PushConfig { member, .. }
            | Action::StartEtcd { member, .. }
            | Action::StopEtcd { member }
            | Action::WipeData { member, .. }
            | Action::MoveLeader { member, .. }
            | Action::RestartEtcd { member }
            | Action::JoinEtcd { member, .. }
            | Action::Rebuild { member, .. }
            | Action::StageSnapshot { member, .. }
            | Action::DropSnapshot { member }
            | Action::RestoreData { member, .. }
            | Action::Auth { member, .. } => Some(member),
        }
    }

    /// The member that it is about: where it is done, or whom it changes through another.
    pub fn about(&self) -> Option<&MemberName> {
        match self {
            Action::AddLearner { member, .. }
            | Action::Promote { member, .. }
            | Action::RemoveMember { member, .. }
            | Action::RecordReplacement { member, .. }
            | Action::RecordRenewal { member, .. } => Some(member),
            Action::RecordRecovery { from, .. } => Some(from),
            other => other.member(),
        }
    }

    /// What it means for data and clients, as far as somebody should look twice.
    pub fn effect(&self) -> Effect {
        match self {
            Action::DestroyMachine { data: Data::Stays, .. } => Effect::Interrupts,
            Action::DestroyMachine { .. }
            | Action::WipeData { .. }
            | Action::RemoveMember { .. }
            | Action::Rebuild { .. }
            | Action::RestoreData { .. }
            | Action::RevokeUser { .. }
            | Action::ForgetCluster => Effect::Destroys,
            Action::RestartEtcd { .. }
            | Action::StopEtcd { .. }
            | Action::StopMachine { .. }
            | Action::MoveLeader { .. } => Effect::Interrupts,
            _ => Effect::Harmless,
        }
    }

    /// A short word for each kind of action; `KINDS` has them all.
    pub fn kind(&self) -> &'static str {
        match self {
            Action::MakeSecrets { .. } => "make-secrets",
            Action::CreateMachine { .. } => "create-machine",
            Action::StartMachine { .. } => "start-machine",
            Action::StopMachine { .. } => "stop-machine",
            Action::DestroyMachine { .. } => "destroy-machine",
            Action::Enrol { .. } => "enrol",
            Action::InstallCertificates { .. } => "install-certificates",
            Action::UpgradeAgent { .. } => "upgrade-agent",
            Action::PushConfig { .. } => "push-config",
            Action::RecordForming { .. } => "record-forming",
            Action::AbandonFormation { .. } => "abandon-formation",
            Action::StartEtcd { .. } => "start-etcd",
            Action::StopEtcd { .. } => "stop-etcd",
            Action::WipeData { .. } => "wipe-data",
            Action::RecordFormed { .. } => "record-formed",
            Action::MoveLeader { .. } => "move-leader",
            Action::RestartEtcd { .. } => "restart-etcd",
            Action::RecordReplacement { .. } => "record-replacement",
            Action::RecordRenewal { .. } => "record-renewal",
            Action::AddLearner { .. } => "add-learner",
            Action::JoinEtcd { .. } => "join-etcd",
            Action::Promote { .. } => "promote",
            Action::RemoveMember { .. } => "remove-member",
            Action::EnableDowngrade { .. } => "enable-downgrade",
            Action::CancelDowngrade { .. } => "cancel-downgrade",
            Action::RecordRecovery { .. } => "record-recovery",
            Action::Rebuild { .. } => "rebuild",
            Action::StageSnapshot { .. } => "stage-snapshot",
            Action::DropSnapshot { .. } => "drop-snapshot",
            Action::RecordRestoring { .. } => "record-restoring",
            Action::RestoreData { .. } => "restore-data",
            Action::Auth { .. } => "auth",
            Action::RecordSigner { .. } => "record-signer",
            Action::RecordDistrust { .. } => "record-distrust",
            Action::RevokeUser { .. } => "revoke-user",
            Action::RevokeMachine { .. } => "revoke-machine",
            Action::ForgetCluster => "forget-cluster",
        }
    }

    pub const KINDS: [&str; 37] = [
        "make-secrets",
        "create-machine",
        "start-machine",
        "stop-machine",
        "destroy-machine",
        "enrol",
        "install-certificates",
        "upgrade-agent",
        "push-config",
        "record-forming",
        "abandon-formation",
        "start-etcd",
        "stop-etcd",
        "wipe-data",
        "record-formed",
        "move-leader",
        "restart-etcd",
        "record-replacement",
        "record-renewal",
        "add-learner",
        "join-etcd",
        "promote",
        "remove-member",
        "enable-downgrade",
        "cancel-downgrade",
        "record-recovery",
        "rebuild",
        "stage-snapshot",
        "drop-snapshot",
        "record-restoring",
        "restore-data",
        "auth",
        "record-signer",
        "record-distrust",
        "revoke-user",
        "revoke-machine",
        "forget-cluster",
    ];
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::MakeSecrets { kinds } => {
                write!(f, "put {} into the ledger", list(kinds.iter().map(|k| secret_name(*k))))
            }
            Action::CreateMachine { member, incarnation: 1, .. } => write!(f, "create the machine of {member}"),
            Action::CreateMachine { member, incarnation, data: Data::Goes } => {
                write!(f, "create machine {member}.{incarnation}")
            }
            Action::CreateMachine { member, incarnation, data: Data::Stays } => {
                write!(f, "create machine {member}.{incarnation} with the data of the previous one")
            }
            Action::StartMachine { member } => write!(f, "start the machine of {member}"),
            Action::StopMachine { member } => write!(f, "stop the machine of {member}"),
            Action::DestroyMachine { member, data: Data::Goes } => write!(f, "destroy the machine of {member}"),
            Action::DestroyMachine { member, data: Data::Stays } => {
                write!(f, "destroy the machine of {member} and keep its data")
            }
            Action::Enrol { member } => write!(f, "enrol the agent of {member}"),
            Action::InstallCertificates { member, uses } => {
                write!(f, "install certificates on {member} ({})", list(uses.iter().map(|u| u.file_stem())))
            }
            Action::UpgradeAgent { member, from, to } if from.protocol == to.protocol => {
                write!(f, "upgrade the agent of {member} from quorate {} to {}", from.version, to.version)
            }
            Action::UpgradeAgent { member, from, to } => write!(
                f,
                "upgrade the agent of {member} from quorate {} to {} (protocol {} to {})",
                from.version, to.version, from.protocol, to.protocol
            ),
            Action::PushConfig { member, generation } => {
                write!(f, "update the configuration of {member} (generation {generation})")
            }
            Action::RecordForming { token, .. } => write!(f, "begin to bootstrap the cluster, with token {token}"),
            Action::AbandonFormation { token } => write!(f, "abandon the bootstrap with token {token}"),
            Action::StartEtcd { member, bootstrap: Some(_) } => write!(f, "start etcd on {member} for the first time"),
            Action::StartEtcd { member, bootstrap: None } => write!(f, "start etcd on {member}"),
            Action::StopEtcd { member } => write!(f, "stop etcd on {member}"),
            Action::WipeData { member, stamp } => {
                write!(f, "wipe the data of the bootstrap with token {} from {member}", stamp.token)
            }
            Action::RecordFormed { .. } => write!(f, "record that the cluster is bootstrapped"),
            Action::MoveLeader { member, to, .. } => write!(f, "move the leader from {member} to {to}"),
            Action::RestartEtcd { member } => write!(f, "restart etcd on {member}"),
            Action::RecordReplacement { member, incarnation } => {
                write!(f, "replace the machine of {member} with {member}.{incarnation}")
            }
            Action::RecordRenewal { member, incarnation } => {
                write!(f, "replace the machine of {member} with {member}.{incarnation}, keeping its data")
            }
            Action::AddLearner { member, .. } => write!(f, "add {member} to the cluster as a learner"),
            Action::JoinEtcd { member, .. } => write!(f, "start etcd on {member} as a learner"),
            Action::Promote { member, .. } => write!(f, "promote {member} to a voter"),
            Action::RemoveMember { member, .. } => write!(f, "remove {member} from the cluster"),
            Action::EnableDowngrade { version, .. } => write!(f, "enable the downgrade to etcd {version}"),
            Action::CancelDowngrade { .. } => write!(f, "cancel the downgrade"),
            Action::RecordRecovery { from, .. } => write!(f, "begin the recovery from {from}"),
            Action::Rebuild { member, .. } => write!(f, "rebuild the data of {member} as a cluster of one"),
            Action::StageSnapshot { member, .. } => write!(f, "send the snapshot to {member}"),
            Action::DropSnapshot { member } => write!(f, "remove the snapshot from {member}"),
            Action::RecordRestoring { token, .. } => {
                write!(f, "begin to bootstrap the cluster from the snapshot, with token {token}")
            }
            Action::RestoreData { member, .. } => write!(f, "restore the data of {member} from the snapshot"),
            Action::Auth { op, member } => write!(f, "{op}, through {member}"),
            Action::RecordSigner { plane, epoch } => {
                write!(f, "sign the certificates of {} with CA {epoch} from now on", of_plane(*plane))
            }
            Action::RecordDistrust { plane, epoch } => {
                write!(f, "drop CA {epoch} from those trusted for {}", of_plane(*plane))
            }
            Action::RevokeUser { user } => write!(f, "revoke the certificates of user {user}"),
            Action::RevokeMachine { member, incarnation } => {
                write!(f, "revoke the certificates of machine {member}.{incarnation}")
            }
            Action::ForgetCluster => write!(f, "forget the cluster"),
        }
    }
}

fn of_plane(plane: TrustPlane) -> &'static str {
    match plane {
        TrustPlane::Peer => "peers",
        TrustPlane::Client => "clients",
    }
}

fn secret_name(kind: SecretKind) -> &'static str {
    match kind {
        SecretKind::ClientAuthority => "the client CA",
        SecretKind::PeerAuthority => "the peer CA",
        SecretKind::ControlAuthority => "the control CA",
        SecretKind::RootPassword => "root's password",
        SecretKind::JwtKeys => "the keys that sign tokens",
        SecretKind::BackupSigning => "the key that signs backups",
        SecretKind::Revocations => "the lists of revoked certificates",
    }
}

pub(super) fn missing_secrets(kinds: &BTreeSet<SecretKind>) -> String {
    if kinds.iter().eq([&SecretKind::Revocations]) {
        return String::from(
            "etcd reads them at each connection, so they must be there before a certificate can be revoked",
        );
    }
    let them = if kinds.len() == 1 { "it" } else { "them" };
    format!("the ledger does not hold {them} yet, and everything else rests on {them}")
}

/// "a", "a and b", "a, b and c".
pub(super) fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|i| i.to_string()).collect();
    match items.as_slice() {
        [] => String::from("nothing"),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}
