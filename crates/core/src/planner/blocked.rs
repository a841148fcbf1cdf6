//! Refusals: what quorate does not do, by which rule, with the numbers, and what the operator can do about it.

mod remedy;

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use super::rule::Rule;
use super::voters::{healthy_of, quorum};
use crate::kinds::etcd::limits::MARGIN;
use crate::kinds::postgres::Unfit;
use crate::listed::listed;
use crate::model::{Distrust, FixtureId, MemberName, Program};
use crate::text::list;

listed! {
    #[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize)]
    #[serde(rename_all = "snake_case", tag = "kind")]
    pub enum UnsafeBecause {
        ForeignMachine { member: MemberName, found: String, ours: String },
        FixtureObstructed { fixture: FixtureId, what: String, remedy: String },
        SecondKey { member: MemberName },
        OlderLedger { member: MemberName, what: &'static str, ledger: u64, agent: u64 },
        Untrusted { member: MemberName, distrust: Distrust },
        NewerAgent { member: MemberName, runs: Program, ours: Program },
        UpgradeFailed { member: MemberName, runs: Program, to: Program, why: String },
        WrongBinary { member: MemberName, wanted: String, found: String, remedy: String },
        NotReady { member: MemberName, why: String, remedy: String },
        ForeignData { member: MemberName, found: String },
        Unseen { member: MemberName, what: String, seconds: u64, grace: u64, majority: Option<(usize, usize)> },
        PeersReach { member: MemberName, by: BTreeSet<MemberName> },
        PeersUntold { member: MemberName, miss: usize, needed: usize, untold: BTreeSet<MemberName> },
        MajorityLost { voters: usize, healthy: usize, quorum: usize },
        NotLost { voters: usize, healthy: usize },
        Serves { member: MemberName, voters: usize, healthy: usize, quorum: usize },
        NothingSurvives { voters: usize, silent: BTreeSet<MemberName> },
        OtherLoss { before: Vec<MemberName>, now: Vec<MemberName> },
        SurvivorGone { member: MemberName },
        SnapshotGone { member: MemberName, source: String },
        RestoreUnfinished { token: String },
        AwaitsRestore { source: String },
        JoinFailed { member: MemberName, why: String },
        NotRebooted { member: MemberName, why: String },
        StrangerVoter { id: String, peer_url: String },
        Membership { member: MemberName, change: Change, voters: usize, healthy: usize, quorum: usize },
        LastVoter { member: MemberName },
        AddressHeld { member: MemberName, address: String, by: MemberName },
        JoinVersion { member: MemberName, cluster: String, wanted: String },
        ClientsWrote { member: MemberName, revision: u64 },
        UnknownFormation { member: MemberName, token: String },
        FixedAtFormation { field: String, was: String, wanted: String },
        OtherFormation { member: MemberName, found: String, ours: String },
        OldEntries { member: MemberName, leader: MemberName, runs: String, wanted: String },
        VersionPath { running: String, wanted: String, why: String, remedy: String },
        VersionUnknown { member: MemberName, told: String, wanted: String },
        Quorum { member: MemberName, voters: usize, healthy: usize, quorum: usize },
        Outage { member: MemberName, voters: usize },
        AuthUnseen { member: MemberName, why: String },
        AuthorityDiffers { ledger: String, brought: String },
        RootPasswordDiffers,
        NoBackup,
        /// No other proxy would forward clients to the cluster, or not all others do.
        LastProxy { member: MemberName, down: Vec<MemberName> },
        /// A machine of a member should become a proxy, or the other way round.
        OtherRole { member: MemberName, was_proxy: bool },
        /// Without this member too few standbys are left to confirm commits.
        CommitsWait { member: MemberName, left: usize, needed: usize },
        /// No member, or not the one that was asked for, can take over from the primary.
        NoSuccessor { from: MemberName, unfit: Vec<(MemberName, Unfit)> },
        /// Some limits of PostgreSQL should be lowered and others raised.
        LimitsBothWays { lowered: Vec<String>, raised: Vec<String> },
        /// A switchover while another member does not stream.
        SwitchoverAlone { from: MemberName, others: Vec<MemberName> },
        DcsUnusable { why: String },
        /// etcd was restored, there is no primary, and too many members have not reported their log.
        CommitsUnknown { silent: Vec<MemberName>, may_be_silent: usize },
        /// The same, and no member that has all commits may become the primary.
        FurthestIsBarred { member: MemberName },
        /// A backup could not be restored. `has_data`: next to the data of the cluster, which nobody has touched.
        RestoreFailed { member: MemberName, why: String, has_data: bool },
        /// Data of PostgreSQL does not become data of an older version. `back`: what there was before the last upgrade is kept.
        MajorDowngrade { from: String, to: String, back: bool },
        /// The data from before the last upgrade is still kept.
        UpgradeKept { version: String },
        UpgradeAlone { from: String, to: String },
        UpgradeStops { from: String, to: String },
        RehearsalFailed { member: MemberName, from: String, to: String, why: String },
        /// It was tried, and the cluster runs the version that it had.
        MajorUpgradeFailed { from: String, to: String, why: String },
        NoWayBack { why: String },
        BackupOlder { id: String, at: Timestamp, backup: u64, data: Option<u64> },
        /// The same for PostgreSQL: these are numbers of transactions, and every one that ended has a lower number.
        BackupBehind { id: String, at: Timestamp, backup: u64, data: Option<u64> },
        /// Since that backup PostgreSQL's data was restored, upgraded, or got another primary.
        BackupOfOtherHistory { id: String, at: Timestamp },
    }
}

/// A change of the membership.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    Join,
    Promotion,
    Removal,
}

/// The properties of a refusal, apart from its text.
struct About<'a> {
    rule: Rule,
    member: Option<&'a MemberName>,
    bars_orders: bool,
}

impl<'a> About<'a> {
    fn on(self, member: &'a MemberName) -> Self {
        About { member: Some(member), ..self }
    }

    fn bars_orders(self) -> Self {
        About { bars_orders: true, ..self }
    }
}

fn by<'a>(rule: Rule) -> About<'a> {
    About { rule, member: None, bars_orders: false }
}

impl UnsafeBecause {
    fn about(&self) -> About<'_> {
        match self {
            UnsafeBecause::ForeignMachine { member, .. } | UnsafeBecause::ForeignData { member, .. } => {
                by(Rule::DataDiesOnlyByConsent).on(member).bars_orders()
            }
            UnsafeBecause::FixtureObstructed { .. } => by(Rule::OthersAreLeftAlone),
            UnsafeBecause::SecondKey { member } => by(Rule::OneKeyPerToken).on(member).bars_orders(),
            UnsafeBecause::OlderLedger { member, .. } => by(Rule::OneController).on(member).bars_orders(),
            UnsafeBecause::Untrusted { member, .. } => by(Rule::UnseenIsUnsafe).on(member).bars_orders(),
            UnsafeBecause::NewerAgent { member, .. } => by(Rule::KnownVersions).on(member).bars_orders(),
            UnsafeBecause::OtherFormation { member, .. } => by(Rule::FormationsShareNothing).on(member).bars_orders(),
            UnsafeBecause::WrongBinary { member, .. } => by(Rule::KnownVersions).on(member),
            UnsafeBecause::NotReady { member, .. } => by(Rule::MachineIsReady).on(member),
            // An agent that was not upgraded still does what its own protocol has.
            UnsafeBecause::UpgradeFailed { .. }
            | UnsafeBecause::VersionPath { .. }
            | UnsafeBecause::VersionUnknown { .. }
            | UnsafeBecause::OldEntries { .. }
            | UnsafeBecause::JoinVersion { .. } => by(Rule::KnownVersions),
            UnsafeBecause::Unseen { member, .. }
            | UnsafeBecause::PeersReach { member, .. }
            | UnsafeBecause::PeersUntold { member, .. } => by(Rule::UnseenIsUnsafe).on(member),
            UnsafeBecause::AuthUnseen { .. } => by(Rule::UnseenIsUnsafe),
            UnsafeBecause::ClientsWrote { member, .. }
            | UnsafeBecause::SurvivorGone { member }
            | UnsafeBecause::SnapshotGone { member, .. } => by(Rule::DataDiesOnlyByConsent).on(member),
            UnsafeBecause::NotLost { .. }
            | UnsafeBecause::Serves { .. }
            | UnsafeBecause::NothingSurvives { .. }
            | UnsafeBecause::OtherLoss { .. }
            | UnsafeBecause::RestoreUnfinished { .. }
            | UnsafeBecause::AwaitsRestore { .. }
            | UnsafeBecause::NoBackup
            | UnsafeBecause::BackupOlder { .. }
            | UnsafeBecause::BackupBehind { .. }
            | UnsafeBecause::BackupOfOtherHistory { .. } => by(Rule::DataDiesOnlyByConsent),
            UnsafeBecause::UnknownFormation { member, .. } => by(Rule::OneController).on(member),
            UnsafeBecause::FixedAtFormation { .. } => by(Rule::SomeThingsStay),
            UnsafeBecause::CommitsWait { member, .. } => by(Rule::CommitsSurvive).on(member),
            UnsafeBecause::CommitsUnknown { .. } => by(Rule::CommitsSurvive),
            UnsafeBecause::FurthestIsBarred { .. } => by(Rule::CommitsSurvive),
            UnsafeBecause::NoSuccessor { .. } => by(Rule::StandbyIsReady),
            UnsafeBecause::LimitsBothWays { .. } => by(Rule::StandbyKeepsUp),
            UnsafeBecause::SwitchoverAlone { .. } => by(Rule::OneDisturbance),
            UnsafeBecause::DcsUnusable { .. } => by(Rule::MachineIsReady),
            UnsafeBecause::LastProxy { member, .. } => by(Rule::ProxyServes).on(member),
            UnsafeBecause::OtherRole { member, .. } => by(Rule::SomeThingsStay).on(member),
            UnsafeBecause::RestoreFailed { member, .. } => by(Rule::DataDiesOnlyByConsent).on(member),
            UnsafeBecause::MajorDowngrade { .. }
            | UnsafeBecause::UpgradeKept { .. }
            | UnsafeBecause::NoWayBack { .. } => by(Rule::DataDiesOnlyByConsent),
            UnsafeBecause::UpgradeAlone { .. } => by(Rule::OneDisturbance),
            UnsafeBecause::UpgradeStops { .. } => by(Rule::StopsByConsent),
            UnsafeBecause::RehearsalFailed { member, .. } => by(Rule::UpgradeIsRehearsed).on(member),
            UnsafeBecause::MajorUpgradeFailed { .. } => by(Rule::UpgradeIsRehearsed),
            UnsafeBecause::StrangerVoter { .. } => by(Rule::OneMembershipChange),
            UnsafeBecause::JoinFailed { member, .. } => by(Rule::LearnerFirst).on(member),
            UnsafeBecause::Quorum { member, .. } | UnsafeBecause::NotRebooted { member, .. } => {
                by(Rule::OneDisturbance).on(member)
            }
            UnsafeBecause::Outage { member, .. }
            | UnsafeBecause::LastVoter { member }
            | UnsafeBecause::AddressHeld { member, .. } => by(Rule::QuorumIsKept).on(member),
            UnsafeBecause::Membership { .. } | UnsafeBecause::MajorityLost { .. } => by(Rule::QuorumIsKept),
            UnsafeBecause::AuthorityDiffers { .. } | UnsafeBecause::RootPasswordDiffers => by(Rule::TrustComesFirst),
        }
    }

    pub fn rule(&self) -> Rule {
        self.about().rule
    }

    pub fn member(&self) -> Option<&MemberName> {
        self.about().member
    }

    /// Whether the member may not belong to this cluster, or this ledger may not be authoritative for it: then nothing at
    /// all is asked of it.
    pub(crate) fn bars_orders(&self) -> bool {
        self.about().bars_orders
    }
}

impl fmt::Display for UnsafeBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnsafeBecause::ForeignMachine { member, found, ours } => write!(
                f,
                "the machine of {member} exists already and belongs to another cluster (its mark says {found}, this \
                 cluster is {ours})"
            ),
            UnsafeBecause::FixtureObstructed { fixture, what, .. } => {
                write!(f, "{fixture} cannot be put in place: {what}")
            }
            UnsafeBecause::SecondKey { member } => write!(
                f,
                "an agent with another key answers as {member}: another key has already used the enrolment \
                 token"
            ),
            UnsafeBecause::OlderLedger { member, what, ledger, agent } if ledger == agent => write!(
                f,
                "the agent of {member} has different content for {what} {agent} than the ledger: this ledger is older \
                 than the cluster"
            ),
            UnsafeBecause::OlderLedger { member, what, ledger, agent } => write!(
                f,
                "the agent of {member} remembers {what} {agent}, and the ledger only {ledger}: this ledger is older than \
                 the cluster"
            ),
            UnsafeBecause::Untrusted { member, distrust: Distrust { what, known: Some(known), told } } => write!(
                f,
                "the agent of {member} reports {what} {told}, and the ledger knows {known}: nothing confirms this, so its reports are ignored"
            ),
            UnsafeBecause::Untrusted { member, distrust: Distrust { what, known: None, told } } => write!(
                f,
                "the agent of {member} reports {what} {told}: nothing confirms this, so its reports are ignored"
            ),
            UnsafeBecause::NewerAgent { member, runs, ours } => {
                write!(f, "the agent of {member} runs {runs}, which this {ours} does not understand")
            }
            UnsafeBecause::UpgradeFailed { member, runs, to, why } => {
                write!(f, "the agent of {member} still runs {runs}, because the upgrade to {to} failed: {why}")
            }
            UnsafeBecause::WrongBinary { member, wanted, found, .. } => {
                write!(f, "{member} needs etcd {wanted}, but {found}")
            }
            UnsafeBecause::CommitsWait { member, needed: 0, .. } => {
                write!(f, "{member} is the only healthy member: the cluster is down while it restarts")
            }
            UnsafeBecause::CommitsWait { member, left, needed } => {
                let standbys = if *needed == 1 { "standby" } else { "standbys" };
                write!(
                    f,
                    "without {member} writes stop: commits wait for {needed} {standbys}, and {left} would be left"
                )
            }
            UnsafeBecause::MajorDowngrade { from, to, .. } => {
                write!(f, "the cluster runs PostgreSQL {from}, and its data cannot become data of PostgreSQL {to}")
            }
            UnsafeBecause::UpgradeKept { version } => write!(
                f,
                "the members still keep the data of PostgreSQL {version} from before the last upgrade, which the next one would replace"
            ),
            UnsafeBecause::UpgradeAlone { from, to } => write!(
                f,
                "an upgrade from PostgreSQL {from} to {to} changes nothing else, and other settings of the spec differ from what runs, \
                 or another request is open"
            ),
            UnsafeBecause::UpgradeStops { from, to } => write!(
                f,
                "an upgrade from PostgreSQL {from} to {to} stops all clients: all members stop, one copies and upgrades the data, and the \
                 new version starts there; the others clone it afterwards"
            ),
            UnsafeBecause::RehearsalFailed { member, from, to, why } => write!(
                f,
                "the upgrade from PostgreSQL {from} to {to} failed on a copy of the data on {member}, and nothing else was touched: {why}"
            ),
            UnsafeBecause::MajorUpgradeFailed { from, to, why } => {
                write!(
                    f,
                    "the upgrade to PostgreSQL {to} failed, and the cluster runs PostgreSQL {from} as before: {why}"
                )
            }
            UnsafeBecause::NoWayBack { why } => write!(f, "there is no way back to before the upgrade: {why}"),
            UnsafeBecause::RestoreFailed { member, why, has_data: true } => {
                write!(f, "the backup could not be restored on {member}, and nothing else was touched: {why}")
            }
            UnsafeBecause::RestoreFailed { member, why, has_data: false } => {
                write!(f, "the backup could not be restored on {member}, and the cluster has no other data: {why}")
            }
            UnsafeBecause::NoSuccessor { from, unfit } if unfit.is_empty() => {
                write!(f, "{from} is the only member: no member can take over")
            }
            UnsafeBecause::NoSuccessor { from, unfit } if unfit.len() == 1 => {
                write!(f, "{} cannot take over from {from}: {}", unfit[0].0, unfit[0].1)
            }
            UnsafeBecause::NoSuccessor { from, unfit } => {
                let unfit: Vec<String> = unfit.iter().map(|(member, why)| format!("{member}: {why}")).collect();
                write!(f, "no standby can take over from {from}. {}", unfit.join("; "))
            }
            UnsafeBecause::LimitsBothWays { lowered, raised } => write!(
                f,
                "the spec lowers {} and raises {}: the primary would have to restart first for the one, and the standbys \
                 for the other",
                list(lowered),
                list(raised)
            ),
            UnsafeBecause::SwitchoverAlone { from, others } => write!(
                f,
                "{} {} not stream: if {from} does not come back after the switchover, too few members are left",
                list(others),
                if others.len() == 1 { "does" } else { "do" }
            ),
            UnsafeBecause::LastProxy { member, down } if down.is_empty() => {
                write!(f, "{member} is the only proxy: no client gets through it until it is back")
            }
            UnsafeBecause::LastProxy { member, down } => write!(
                f,
                "{} {} not serve clients: {member} is left alone until then",
                list(down),
                if down.len() == 1 { "does" } else { "do" }
            ),
            UnsafeBecause::OtherRole { member, was_proxy } => {
                let (was, is) = if *was_proxy { ("proxy", "member") } else { ("member", "proxy") };
                write!(f, "the machine of {member} was created for a {was}, and the spec names it as a {is}")
            }
            UnsafeBecause::CommitsUnknown { silent, may_be_silent } => write!(
                f,
                "etcd was restored and there is no primary. quorate cannot tell which member has all confirmed commits: the end of the log \
                 of {} is unknown, and {} must be known",
                list(silent),
                match may_be_silent {
                    0 => String::from("that of every member"),
                    1 => String::from("that of all members but one"),
                    some => format!("that of all members but {some}"),
                }
            ),
            UnsafeBecause::FurthestIsBarred { member } => write!(
                f,
                "etcd was restored and there is no primary. {member} has the most recent log, but may not become the primary"
            ),
            UnsafeBecause::DcsUnusable { why } => write!(f, "Patroni cannot keep its state in that etcd: {why}"),
            UnsafeBecause::NotReady { member, why, .. } => {
                write!(f, "{member} is not ready for its configuration: {why}")
            }
            UnsafeBecause::ForeignData { member, found } => {
                write!(f, "the data directory of {member} is not empty and not of this cluster: {found}")
            }
            UnsafeBecause::Unseen { what, seconds, majority: Some((there, voters)), .. } => {
                let quorum = quorum(*voters);
                write!(f, "{what}, for {seconds} s, and {there} of {voters} voters are available: quorum is {quorum}")
            }
            UnsafeBecause::Unseen { what, seconds, grace, .. } => {
                write!(f, "{what}, for {seconds} s: it counts as dead after {grace} s")
            }
            UnsafeBecause::PeersReach { member, by } => {
                write!(f, "this controller does not reach {member}, but its peers do: {}", list(by))
            }
            UnsafeBecause::PeersUntold { member, miss, needed, untold } => {
                let peers = miss + untold.len();
                let confirm = if *miss == 1 { "confirms" } else { "confirm" };
                write!(
                    f,
                    "this controller does not reach {member}, and {miss} of its {peers} peers {confirm} it ({needed} \
                     needed); no \
                     answer from {}",
                    list(untold)
                )
            }
            UnsafeBecause::MajorityLost { voters, healthy, quorum } => write!(
                f,
                "{healthy} of {voters} {} available (quorum {quorum}): without a quorum the cluster cannot even replace \
                 a member",
                if *voters == 1 { "voter is" } else { "voters are" }
            ),
            UnsafeBecause::NotLost { voters, healthy } => {
                let have = if *voters == 1 {
                    "voter has its data or may have it"
                } else {
                    "voters have their data or may have it"
                };
                write!(f, "the quorum is not lost: {healthy} of {voters} {have}")
            }
            UnsafeBecause::Serves { member, voters, healthy, quorum } => write!(
                f,
                "etcd on {member} answered a linearizable read, which takes {quorum} of {voters} voters: the cluster \
                 serves clients, although this controller reaches only {healthy} of them"
            ),
            UnsafeBecause::NothingSurvives { voters, silent } => {
                write!(f, "none of the {voters} members is known to have data of this cluster")?;
                if silent.is_empty() { Ok(()) } else { write!(f, ", and there is no answer from {}", list(silent)) }
            }
            UnsafeBecause::OtherLoss { before, now } => {
                let list = |names: &[MemberName]| match names {
                    [] => String::from("no member"),
                    names => names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
                };
                let (before, now) = (list(before), list(now));
                if before == now {
                    return write!(
                        f,
                        "the recovery was confirmed when the data of {before} was more recent than it is now"
                    );
                }
                write!(f, "the recovery was confirmed when {before} had data of the cluster; now {now} has")
            }
            UnsafeBecause::SurvivorGone { member } => {
                write!(f, "the cluster is being recovered from the data of {member}, and its machine is missing")
            }
            UnsafeBecause::SnapshotGone { member, source } => {
                write!(f, "{member} will be restored from {source}, but the snapshot is no longer here")
            }
            UnsafeBecause::RestoreUnfinished { token } => {
                write!(
                    f,
                    "a restore that has begun is not finished (bootstrap {token}), and the ledger no longer says what it restores"
                )
            }
            UnsafeBecause::AwaitsRestore { source } => {
                write!(
                    f,
                    "the cluster was to be restored from {source}, which did not succeed; it is not created empty instead"
                )
            }
            UnsafeBecause::JoinFailed { member, why } => {
                write!(f, "{member} did not become a voter and was removed again: {why}")
            }
            UnsafeBecause::NotRebooted { member, why } => {
                write!(f, "the reboot of {member} failed, so no other machine is rebooted: {why}")
            }
            UnsafeBecause::StrangerVoter { id, peer_url } => {
                write!(f, "etcd lists a voter that quorate did not add: {id} at {peer_url}")
            }
            UnsafeBecause::Membership { member, change, voters, healthy, quorum } => {
                let what = match change {
                    Change::Join => "add it",
                    Change::Promotion => "promote it",
                    Change::Removal => "remove it",
                };
                let now = healthy_of(*healthy, *voters);
                write!(f, "{member}: it is not safe to {what} while {now}; quorum would then be {quorum}")
            }
            UnsafeBecause::LastVoter { member } => {
                write!(f, "{member} is the only voter: the data would be lost with it")
            }
            UnsafeBecause::AddressHeld { member, address, by } => {
                write!(f, "the spec gives {member} the address {address}, which {by} has and keeps")
            }
            UnsafeBecause::JoinVersion { member, cluster, wanted } if cluster.is_empty() => {
                write!(f, "{member} would join with etcd {wanted}, and the cluster version is unknown")
            }
            UnsafeBecause::JoinVersion { member, cluster, wanted } => {
                write!(f, "{member} would join with etcd {wanted}, and the cluster version is {cluster}")
            }
            UnsafeBecause::OldEntries { member, leader, runs, wanted } => write!(
                f,
                "{member} would join with etcd {wanted} and get the log from {leader}, which runs {runs} and still has \
                 entries that a release before 3.6 wrote: etcd 3.7 panics on them"
            ),
            UnsafeBecause::ClientsWrote { member, revision } => write!(
                f,
                "etcd on {member} is at revision {revision}: clients have written to it, and this ledger knows of no \
                 bootstrapped cluster, so a new bootstrap would lose what they wrote"
            ),
            UnsafeBecause::OtherFormation { member, found, ours } => {
                write!(f, "{member} belongs to {found}, and this cluster is {ours}")
            }
            UnsafeBecause::VersionPath { running, wanted, why, .. } => {
                // Where the reason names both, they are not named twice.
                let why = why.strip_prefix(&format!("{running} → {wanted}: ")).unwrap_or(why);
                write!(f, "the cluster runs etcd {running}, and the spec asks for {wanted}: {why}")
            }
            UnsafeBecause::VersionUnknown { member, told, wanted } if told.is_empty() => write!(
                f,
                "the version of etcd on {member} is unknown, so quorate cannot tell whether {wanted} may follow it"
            ),
            UnsafeBecause::VersionUnknown { member, told, wanted } => write!(
                f,
                "etcd on {member} reports version `{told}`, which is not a release, so quorate cannot tell whether \
                 {wanted} may follow it"
            ),
            UnsafeBecause::Quorum { member, voters, healthy, quorum } => write!(
                f,
                "{member} must be restarted, and only {}: quorum is {quorum}, so a restart could cause an outage",
                healthy_of(*healthy, *voters)
            ),
            UnsafeBecause::Outage { member, voters: 1 } => {
                write!(f, "{member} must be restarted and is the only voter: the cluster is down while it restarts")
            }
            UnsafeBecause::Outage { member, voters } => write!(
                f,
                "{member} must be restarted, and {voters} voters need all {voters}: the cluster is down while it restarts"
            ),
            UnsafeBecause::AuthUnseen { member, why } => {
                write!(f, "etcd's users and roles could not be read through {member}: {why}")
            }
            UnsafeBecause::UnknownFormation { member, token } => write!(
                f,
                "{member} took part in the bootstrap with token {token}, which this ledger does not know: the ledger \
                 is older than the cluster"
            ),
            UnsafeBecause::FixedAtFormation { field, was, wanted } => {
                write!(f, "the cluster was created with `{field}` {was}, and the spec now says {wanted}")
            }
            UnsafeBecause::AuthorityDiffers { ledger, brought } => write!(
                f,
                "the spec names another CA (key {}) than the one that the members trust (key {})",
                short(brought),
                short(ledger)
            ),
            UnsafeBecause::RootPasswordDiffers => {
                write!(
                    f,
                    "the file with root's password contains a different password from the one the cluster was created with"
                )
            }
            UnsafeBecause::NoBackup => write!(f, "there is no verified backup of this cluster's data"),
            UnsafeBecause::BackupOlder { id, at, backup, data: Some(data) } => write!(
                f,
                "the newest verified backup, {id}, ends at revision {backup} ({}), and the data is at revision {data}: {}",
                to_the_second(*at),
                not_in_it(*data, *backup)
            ),
            UnsafeBecause::BackupOlder { id, at, backup, data: None } => write!(
                f,
                "the newest verified backup, {id}, ends at revision {backup} ({}), and no quorum of voters reports the \
                 revision of the data",
                to_the_second(*at)
            ),
            UnsafeBecause::BackupOfOtherHistory { id, at } => write!(
                f,
                "the newest verified backup, {id} ({}), was taken before the last change of the primary, restore or \
                 upgrade, so whether it has all transactions is unknown",
                to_the_second(*at)
            ),
            UnsafeBecause::BackupBehind { id, at, backup, data: Some(data) } => write!(
                f,
                "the newest verified backup, {id} ({}), has all transactions before {backup}, and the data has later ones, \
                 up to {}",
                to_the_second(*at),
                data.saturating_sub(1)
            ),
            UnsafeBecause::BackupBehind { id, at, backup, data: None } => write!(
                f,
                "the newest verified backup, {id} ({}), has all transactions before {backup}, and no primary that reaches \
                 its DCS reports the last one",
                to_the_second(*at)
            ),
        }
    }
}

fn to_the_second(at: Timestamp) -> impl fmt::Display {
    at.strftime("%Y-%m-%d %H:%M:%S UTC")
}

/// A restore or a recovery raises the revision by a billion, which no client wrote.
fn not_in_it(data: u64, backup: u64) -> String {
    match data.saturating_sub(backup) {
        1 => String::from("1 revision is not in it"),
        raised if raised >= MARGIN => String::from(
            "a restore or recovery has raised the revision since, and what was written after it is not in the backup",
        ),
        lost => format!("{lost} revisions are not in it"),
    }
}

/// Enough of a key's identifier to distinguish two.
fn short(key_id: &str) -> &str {
    key_id.get(..16).unwrap_or(key_id)
}
