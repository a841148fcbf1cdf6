//! The list of all actions that the planner can decide on. Their names and properties are defined here. The effect of an action is
//! implemented twice: in the simulated cluster (`simulate`) and in the real one (the controller's `act.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::kinds::etcd::{AuthOp, FormingMember};
use crate::kinds::postgres::{CatalogOp, Known, LogEnd, RestoreTarget, RotationStage};
use crate::listed::listed;
use crate::model::{
    CertificateUse, Data, DataSeen, FixtureId, FixtureKind, MemberName, Program, SecretKind, Stamp, TrustPlane,
};
use crate::text::list;

listed! {
    #[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case", tag = "kind")]
    pub enum Action {
        MakeSecrets { kinds: BTreeSet<SecretKind> },
        CreateMachine { member: MemberName, incarnation: u64, data: Data },
        StartMachine { member: MemberName },
        StopMachine { member: MemberName },
        DestroyMachine { member: MemberName, data: Data },
        Enrol { member: MemberName },
        InstallCertificates { member: MemberName, uses: BTreeSet<CertificateUse> },
        /// Replaces the agent's program by the controller's own.
        UpgradeAgent { member: MemberName, from: Program, to: Program },
        PushConfig { member: MemberName, generation: u64 },
        RecordForming { token: String, members: BTreeMap<MemberName, FormingMember> },
        AbandonFormation { token: String },
        StartEtcd { member: MemberName, bootstrap: Option<Stamp> },
        StopEtcd { member: MemberName },
        WipeData { member: MemberName, stamp: Stamp },
        RecordFormed { etcd_cluster_id: u64 },
        MoveLeader { member: MemberName, to: MemberName, to_id: u64 },
        RestartEtcd { member: MemberName },
        /// Restarts etcd as it is, to make it take a Raft snapshot after the next entry.
        TakeRaftSnapshot { member: MemberName },
        /// Reboots the machine if it is still in this boot.
        RebootMachine { member: MemberName, boot: String, upgrade_packages: bool },
        RecordReplacement { member: MemberName, incarnation: u64 },
        RecordRenewal { member: MemberName, incarnation: u64 },
        AddLearner { through: MemberName, member: MemberName, joining: FormingMember },
        JoinEtcd { member: MemberName, stamp: Stamp, initial_cluster: BTreeMap<MemberName, String> },
        Promote { through: MemberName, member: MemberName, id: u64 },
        RemoveMember { through: MemberName, member: MemberName, id: u64, failed: Option<String> },
        EnableDowngrade { through: MemberName, version: String },
        CancelDowngrade { through: MemberName },
        RecordRecovery { was: String, token: String, from: MemberName },
        Rebuild { member: MemberName, was: Stamp, stamp: Stamp, peer_url: String, bump_revision: u64 },
        StageSnapshot { member: MemberName, sha256: String, bytes: u64 },
        DropSnapshot { member: MemberName },
        /// Restores the snapshot into a temporary etcd, raised as the members will raise it.
        VerifySnapshot { sha256: String, bump_revision: u64 },
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
        Auth { member: MemberName, op: AuthOp },
        /// From here on this member may create the data of a PostgreSQL cluster.
        RecordInitializing { token: String, first: MemberName, members: BTreeMap<MemberName, Known> },
        InitializePostgres { member: MemberName, stamp: Stamp },
        /// From here on the data is that of a living cluster.
        RecordInitialized { system_id: String },
        StartPatroni { member: MemberName },
        StopPatroni { member: MemberName },
        RestartPatroni { member: MemberName },
        /// Starts Patroni on an empty disk: it clones the data.
        JoinPostgres { member: MemberName, stamp: Stamp, joining: Known },
        RecordLeft { member: MemberName },
        WipePostgres { member: MemberName, stamp: Stamp },
        /// Prepares the backup store for this cluster and checks that the log arrives there.
        PrepareRepository { member: MemberName, place: String },
        /// Restores a backup next to the current data and recovers it to the requested point.
        RestoreBackup { member: MemberName, stamp: Stamp, target: RestoreTarget },
        /// Replaces the current data by the restored data, and keeps the current data next to it.
        PutRestored { member: MemberName, was: DataSeen, stamp: Stamp },
        /// Puts data aside that a restore has replaced.
        SetAside { member: MemberName, stamp: Stamp },
        /// Has a member upgrade a copy of its data to another major version, which is then deleted.
        RehearseUpgrade { member: MemberName, id: String, to: String },
        /// From here on all members stop, and restart with upgraded data or with their current data.
        RecordUpgrading { token: String, from: String, to: String },
        /// Converts a copy of this member's data to another major version, next to it.
        UpgradeData { member: MemberName, stamp: Stamp, to: String },
        /// From here on the cluster is as before the upgrade.
        AbandonUpgrade { token: String, to: String, why: String },
        /// Collects statistics of all tables.
        AnalyzePostgres { member: MemberName, id: String },
        RecordAnalyzed,
        /// Prepares the data from before an upgrade to be put in place.
        TakeBack { member: MemberName, was: Stamp, stamp: Stamp },
        /// Deletes data that a restore or an upgrade has replaced.
        DiscardReplaced { member: MemberName, stamp: Stamp },
        RecordDiscarded,
        /// Restarts PostgreSQL, through Patroni.
        RestartPostgres { member: MemberName },
        Switchover { member: MemberName, to: MemberName },
        /// Patroni may promote this member, whose log ends there, and no other.
        LetTakeOver { member: MemberName, end: LogEnd },
        /// The new stage of a password rotation; none: it is done.
        RecordRotation { stage: Option<RotationStage> },
        /// Writes the shared configuration into the DCS.
        ConfigurePatroni { member: MemberName, config: String },
        Catalog { member: MemberName, op: CatalogOp },
        /// From here on this CA signs.
        RecordSigner { plane: TrustPlane, epoch: u64 },
        /// From here on this CA is not trusted.
        RecordDistrust { plane: TrustPlane, epoch: u64 },
        /// From here on the certificates of a removed user are refused.
        RevokeUser { user: String },
        /// The same for a machine.
        RevokeMachine { member: MemberName, incarnation: u64 },
        /// Creates a fixture, or points it to these members; to the load balancer if there are none.
        PutFixture { fixture: FixtureId, leads_to: BTreeMap<MemberName, IpAddr>, is_new: bool },
        DropFixture { fixture: FixtureId },
        ForgetCluster,
    }
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

/// The properties of an action that plans, progress and later concerns need.
struct Profile<'a> {
    on: Option<&'a MemberName>,
    /// The controller itself works on it.
    here: bool,
    about: Option<&'a MemberName>,
    effect: Effect,
    stage: Option<&'static str>,
    stage_after: Option<&'static str>,
}

/// Concerns the ledger alone.
const RECORDED: Profile<'static> =
    Profile { on: None, here: false, about: None, effect: Effect::Harmless, stage: None, stage_after: None };

/// The controller's machine does it.
const HERE: Profile<'static> = Profile { here: true, ..RECORDED };

/// A member's machine does it, or its etcd is asked to.
fn on(member: &MemberName) -> Profile<'_> {
    Profile { on: Some(member), about: Some(member), ..RECORDED }
}

impl<'a> Profile<'a> {
    fn about(self, member: &'a MemberName) -> Self {
        Profile { about: Some(member), ..self }
    }

    fn shown(self, stage: &'static str) -> Self {
        Profile { stage: Some(stage), ..self }
    }

    fn then(self, stage: &'static str) -> Self {
        Profile { stage_after: Some(stage), ..self }
    }

    fn interrupts(self) -> Self {
        Profile { effect: Effect::Interrupts, ..self }
    }

    fn destroys(self) -> Self {
        Profile { effect: Effect::Destroys, ..self }
    }
}

impl Action {
    fn profile(&self) -> Profile<'_> {
        match self {
            Action::MakeSecrets { .. } => RECORDED,
            Action::CreateMachine { member, .. } => on(member).shown("creating"),
            Action::StartMachine { member } => on(member).shown("starting machine"),
            Action::StopMachine { member } => on(member).shown("stopping machine").then("stopped").interrupts(),
            Action::DestroyMachine { member, data: Data::Stays } => {
                on(member).shown("destroying").then("gone").interrupts()
            }
            Action::DestroyMachine { member, data: Data::Goes } => {
                on(member).shown("destroying").then("gone").destroys()
            }
            Action::Enrol { member } => on(member).shown("enrolling"),
            Action::InstallCertificates { member, .. } => on(member).shown("certificates"),
            Action::UpgradeAgent { member, .. } => on(member).shown("upgrading its agent"),
            Action::PushConfig { member, .. } => on(member).shown("configuring"),
            Action::RecordForming { .. } | Action::AbandonFormation { .. } | Action::RecordFormed { .. } => RECORDED,
            Action::StartEtcd { member, .. } => on(member).shown("starting").then("voting"),
            Action::StopEtcd { member } => on(member).shown("stopping").interrupts(),
            Action::WipeData { member, .. } => on(member).shown("wiping").destroys(),
            Action::MoveLeader { member, .. } => on(member).interrupts(),
            Action::RestartEtcd { member } | Action::TakeRaftSnapshot { member } => {
                on(member).shown("restarting").then("voting").interrupts()
            }
            Action::RebootMachine { member, .. } => on(member).shown("rebooting").then("voting").interrupts(),
            Action::RecordReplacement { member, .. } | Action::RecordRenewal { member, .. } => RECORDED.about(member),
            Action::AddLearner { through, member, .. } => on(through).about(member),
            Action::JoinEtcd { member, .. } => on(member).shown("joining").then("learning"),
            Action::Promote { through, member, .. } => on(through).about(member),
            Action::RemoveMember { through, member, .. } => on(through).about(member).destroys(),
            Action::EnableDowngrade { through, .. } => on(through),
            Action::CancelDowngrade { through } => on(through),
            Action::RecordRecovery { from, .. } => RECORDED.about(from),
            Action::Rebuild { member, .. } => on(member).shown("rebuilding").destroys(),
            Action::StageSnapshot { member, .. } => on(member).shown("snapshot"),
            Action::DropSnapshot { member } => on(member).shown("cleaning up"),
            Action::VerifySnapshot { .. } => HERE,
            Action::RecordRestoring { .. } => RECORDED,
            Action::RestoreData { member, .. } => on(member).shown("restoring").destroys(),
            Action::Auth { member, .. } => on(member),
            Action::RecordInitializing { .. } | Action::RecordInitialized { .. } | Action::RecordRotation { .. } => {
                RECORDED
            }
            Action::RecordLeft { member } => RECORDED.about(member),
            Action::InitializePostgres { member, .. } => on(member).shown("creating data"),
            Action::StartPatroni { member } => on(member).shown("starting"),
            Action::JoinPostgres { member, .. } => on(member).shown("cloning").then("cloning"),
            Action::StopPatroni { member } => on(member).shown("stopping").interrupts(),
            Action::RestartPatroni { member } | Action::RestartPostgres { member } => {
                on(member).shown("restarting").interrupts()
            }
            Action::WipePostgres { member, .. } => on(member).shown("wiping").destroys(),
            Action::Switchover { member, .. } => on(member).shown("handing over").interrupts(),
            Action::LetTakeOver { member, .. } => on(member).shown("taking over"),
            Action::ConfigurePatroni { member, .. }
            | Action::Catalog { member, .. }
            | Action::PrepareRepository { member, .. } => on(member),
            Action::RestoreBackup { member, .. } | Action::TakeBack { member, .. } => on(member).shown("restoring"),
            Action::RehearseUpgrade { member, .. } => on(member).shown("rehearsing the upgrade"),
            Action::UpgradeData { member, .. } => on(member).shown("upgrading data"),
            Action::AnalyzePostgres { member, .. } => on(member).shown("collecting statistics"),
            Action::RecordUpgrading { .. } | Action::AbandonUpgrade { .. } => RECORDED,
            Action::RecordAnalyzed | Action::RecordDiscarded => RECORDED,
            Action::DiscardReplaced { member, .. } => on(member).shown("cleaning up").destroys(),
            Action::PutRestored { member, .. } | Action::SetAside { member, .. } => {
                on(member).shown("restoring").destroys()
            }
            Action::PutFixture { .. } => HERE,
            Action::DropFixture { .. } => HERE.interrupts(),
            Action::RecordSigner { .. } | Action::RecordDistrust { .. } | Action::RevokeMachine { .. } => RECORDED,
            Action::RevokeUser { .. } | Action::ForgetCluster => RECORDED.destroys(),
        }
    }

    /// The machine that does it; none for what the controller does itself, or the ledger records.
    pub fn member(&self) -> Option<&MemberName> {
        self.profile().on
    }

    /// Whether it only writes the ledger.
    pub fn is_recorded(&self) -> bool {
        let Profile { on, here, .. } = self.profile();
        on.is_none() && !here
    }

    /// The member that it concerns: the one that does it, or the one that is changed through another.
    pub fn about(&self) -> Option<&MemberName> {
        self.profile().about
    }

    /// Its risk for data and clients, if a person should check it.
    pub fn effect(&self) -> Effect {
        self.profile().effect
    }

    /// The member's stage meanwhile, in a word or two; none for actions on the whole cluster.
    pub fn stage(&self) -> Option<&'static str> {
        self.profile().stage
    }

    /// The member's stage afterwards, if it differs.
    pub fn stage_after(&self) -> Option<&'static str> {
        self.profile().stage_after
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::MakeSecrets { kinds } => {
                write!(f, "store {} in the ledger", list(kinds.iter().map(|k| secret_name(*k))))
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
            Action::PushConfig { member, .. } => write!(f, "update the configuration of {member}"),
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
            Action::TakeRaftSnapshot { member } => {
                write!(f, "restart etcd on {member} to make it take a Raft snapshot")
            }
            Action::RebootMachine { member, upgrade_packages: false, .. } => {
                write!(f, "reboot the machine of {member}")
            }
            Action::RebootMachine { member, upgrade_packages: true, .. } => {
                write!(f, "upgrade the packages of {member} and reboot its machine")
            }
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
            Action::VerifySnapshot { .. } => write!(f, "verify the snapshot in a temporary etcd"),
            Action::RecordRestoring { token, .. } => {
                write!(f, "begin to bootstrap the cluster from the snapshot, with token {token}")
            }
            Action::RestoreData { member, .. } => write!(f, "restore the data of {member} from the snapshot"),
            Action::Auth { op, member } => write!(f, "{op}, through {member}"),
            Action::RecordInitializing { token, first, .. } => {
                write!(f, "begin to bootstrap the cluster on {first}, with token {token}")
            }
            Action::InitializePostgres { member, .. } => write!(f, "create the data of the cluster on {member}"),
            Action::RecordInitialized { .. } => write!(f, "record that the cluster is bootstrapped"),
            Action::StartPatroni { member } => write!(f, "start PostgreSQL on {member}"),
            Action::StopPatroni { member } => write!(f, "stop PostgreSQL on {member}"),
            Action::RestartPatroni { member } => write!(f, "restart Patroni and PostgreSQL on {member}"),
            Action::JoinPostgres { member, .. } => write!(f, "clone the data to {member} and start it as a replica"),
            Action::RecordLeft { member } => write!(f, "record that {member} has left the cluster"),
            Action::WipePostgres { member, stamp } => {
                write!(f, "wipe the data of the bootstrap with token {} from {member}", stamp.token)
            }
            Action::PrepareRepository { member, place } => write!(f, "prepare {place} for backups, through {member}"),
            Action::RestoreBackup { member, target, .. } => {
                write!(f, "restore backup {} on {member}, next to its data", target.label)
            }
            Action::PutRestored { member, was: DataSeen::Empty, .. } => {
                write!(f, "move the prepared data into place on {member}")
            }
            Action::PutRestored { member, .. } => {
                write!(f, "replace the data of {member} with the prepared data, and keep a copy of the old")
            }
            Action::SetAside { member, .. } => write!(f, "put the replaced data of {member} aside"),
            Action::RehearseUpgrade { member, to, .. } => {
                write!(f, "rehearse the upgrade to PostgreSQL {to} on {member}, with a copy of its data")
            }
            Action::RecordUpgrading { from, to, .. } => write!(f, "begin the upgrade from PostgreSQL {from} to {to}"),
            Action::UpgradeData { member, to, .. } => {
                write!(f, "upgrade the data of {member} to PostgreSQL {to}, next to what is there")
            }
            Action::AbandonUpgrade { to, .. } => write!(f, "abandon the upgrade to PostgreSQL {to}"),
            Action::AnalyzePostgres { member, .. } => write!(f, "collect statistics of all tables, through {member}"),
            Action::RecordAnalyzed => write!(f, "record that the upgrade is complete"),
            Action::DiscardReplaced { member, .. } => write!(f, "delete the replaced data of {member}"),
            Action::RecordDiscarded => write!(f, "record that no replaced data is kept"),
            Action::TakeBack { member, .. } => {
                write!(f, "prepare the data from before the upgrade on {member}, next to its data")
            }
            Action::RestartPostgres { member } => write!(f, "restart PostgreSQL on {member}"),
            Action::Switchover { member, to } => write!(f, "switch the primary from {member} to {to}"),
            Action::LetTakeOver { member, .. } => write!(f, "let {member} become the primary"),
            Action::RecordRotation { stage } => f.write_str(match stage {
                Some(RotationStage::Opening) => "begin to change passwords",
                Some(RotationStage::Setting) => "record that members let each other in by certificate",
                Some(RotationStage::Switching) => "record that PostgreSQL has the new passwords",
                None => "record that the passwords are changed",
            }),
            Action::ConfigurePatroni { member, .. } => {
                write!(f, "update the configuration of Patroni, through {member}")
            }
            Action::Catalog { member, op } => write!(f, "{op}, through {member}"),
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
            Action::PutFixture { fixture, leads_to, is_new } => {
                let members = list(leads_to.keys());
                match (fixture.kind, leads_to.is_empty(), is_new) {
                    (FixtureKind::LoadBalancer, _, true) => write!(f, "create {fixture}"),
                    (FixtureKind::Records, true, _) => write!(f, "point {fixture} to the load balancer"),
                    (FixtureKind::LoadBalancer | FixtureKind::Records, ..) => {
                        write!(f, "point {fixture} to {members}")
                    }
                }
            }
            Action::DropFixture { fixture } => match fixture.kind {
                FixtureKind::LoadBalancer => write!(f, "delete {fixture}"),
                FixtureKind::Records => write!(f, "delete the records of {fixture}"),
            },
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
        SecretKind::PostgresPasswords => "the passwords of PostgreSQL's users",
        SecretKind::Revocations => "the lists of revoked certificates",
        SecretKind::PatroniCertificates => "the certificates of Patroni",
    }
}

pub(super) fn missing_secrets(kinds: &BTreeSet<SecretKind>) -> String {
    if kinds.iter().eq([&SecretKind::Revocations]) {
        return String::from(
            "members read them before they accept a certificate, so they must be there before a certificate can be revoked",
        );
    }
    use SecretKind::{JwtKeys, PatroniCertificates, PostgresPasswords};
    let is_one = |kind: &SecretKind| !matches!(kind, JwtKeys | PostgresPasswords | PatroniCertificates);
    let them = if kinds.len() == 1 && kinds.iter().all(is_one) { "it" } else { "them" };
    format!("the ledger does not have {them} yet; all later steps require {them}")
}
