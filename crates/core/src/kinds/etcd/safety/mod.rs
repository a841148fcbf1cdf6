//! The safety rules of etcd: quorum, members, bootstrap tokens and data. Concerns ask these rules and never override them.

mod log;
mod renewal;
pub mod requests;
pub mod restore;
pub mod revision;
mod space;

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::cluster::{Cluster, Listed};
use super::{AuthLook, Formation, FormingMember, Wish};
use crate::model::Version;
use crate::model::{
    AgentSeen, BackupNote, Data, DataSeen, Desired, Destruction, Facts, MachineSeen, MemberName, Observation, Seen,
    ServiceState, Stamp, TrustPlane, address_in,
};
use crate::planner::machines::makes_way;
use crate::planner::{Action, Change, UnsafeBecause, View};

pub(crate) use log::{Log, log_of, may_join_this_log, reader};
pub use renewal::{may_renew, may_replace};
pub(crate) use space::quota_has_room;

pub use crate::planner::voters::{Strength, Voters, failures_survived, healthy_of, quorum};

/// The revision of an etcd that no client has written to.
const UNWRITTEN: u64 = 1;

/// A new etcd has its data on disk after this time.
const FIRST_WRITE: SignedDuration = SignedDuration::from_secs(30);

/// Clocks of controllers differ by less.
const CLOCKS_AGREE: SignedDuration = SignedDuration::from_mins(1);

/// Counts voters as etcd lists them. An unreachable voter counts as a voter and not as healthy. If no member has a
/// quorum, all members in the ledger count.
pub fn voters(view: &View<'_>) -> Voters {
    view.cluster().map_or_else(|| count_known(view, |_| true), Cluster::count)
}

/// The voters without this one, in the same way. Nothing is subtracted, because the list of voters and a member's own claim
/// to vote may come from different sources.
pub fn other_voters(view: &View<'_>, member: &MemberName) -> Voters {
    match view.cluster() {
        Some(cluster) => cluster.count_without(member),
        None => count_known(view, |name| name != member),
    }
}

/// Whether a member is known to authenticate clients.
pub(crate) fn authenticates(view: &View<'_>) -> bool {
    let seen = view.desired.members.keys().filter_map(|member| view.seen.facts(member)?.etcd.status.as_ref());
    seen.into_iter().any(|status| matches!(&status.auth, AuthLook::Seen(found) if found.enabled))
}

fn count_known(view: &View<'_>, counts: impl Fn(&MemberName) -> bool) -> Voters {
    let View { desired, seen, .. } = *view;
    let names: Vec<&MemberName> = match desired.etcd.formation.members() {
        Some(members) => members.iter().filter(|(_, known)| !known.learner).map(|(name, _)| name).collect(),
        None => desired.members.keys().collect(),
    };
    let names: Vec<&MemberName> = names.into_iter().filter(|name| counts(name)).collect();
    let healthy = names.iter().filter(|m| seen.facts(m).is_some_and(is_healthy_voter)).count();
    Voters { all: names.len(), healthy }
}

pub fn is_healthy_voter(facts: &Facts) -> bool {
    facts.etcd.status.as_ref().is_some_and(|s| s.healthy && !s.is_learner)
}

/// The state of a member's data in the current bootstrap (`NewWithinOneFormation`, `FormationsShareNothing`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DataVerdict {
    /// Never started here in this formation: it may start as `new` while forming.
    MayBeginAsNew,
    /// Its data belongs to this bootstrap: it may start on it.
    MayGoOn,
    /// It had data of this bootstrap, and has none now.
    Lost,
    /// A leftover of an earlier bootstrap of this cluster that no client ever wrote to.
    Leftover(Stamp),
    /// Not ours to touch.
    Foreign(String),
}

/// Judges what is in a member's data directory against the formation's token. `None` means that no formation has begun.
pub fn judge_data(
    desired: &Desired,
    member: &MemberName,
    token: Option<&str>,
    now: Timestamp,
    seen: &Facts,
) -> DataVerdict {
    let ours = |s: &Stamp| s.cluster_id == desired.cluster_id && s.member.as_str() == member.seat();
    let present = |s: &Stamp| ours(s) && Some(s.token.as_str()) == token;
    match &seen.etcd.data {
        DataSeen::Stamped(stamp) if present(stamp) => DataVerdict::MayGoOn,
        DataSeen::Stamped(stamp) if ours(stamp) => DataVerdict::Leftover(stamp.clone()),
        DataSeen::Stamped(stamp) => DataVerdict::Foreign(format!(
            "its stamp says member {} of cluster {}, bootstrap {}",
            stamp.member, stamp.cluster_id, stamp.token
        )),
        DataSeen::Unstamped => {
            DataVerdict::Foreign(String::from("it has no stamp that says which cluster it belongs to"))
        }
        DataSeen::Empty => match &seen.etcd.last_started {
            None => DataVerdict::MayBeginAsNew,
            // A new etcd needs a moment until its data is on disk. One that has run for longer writes to deleted files.
            Some(stamp) if present(stamp) && has_just_started(seen, now) => DataVerdict::MayGoOn,
            Some(stamp) if present(stamp) => DataVerdict::Lost,
            Some(stamp) => DataVerdict::Leftover(stamp.clone()),
        },
    }
}

/// `DataDiesOnlyByConsent`: if clients wrote to an etcd, a ledger that knows of no formed cluster is not the latest.
/// Nothing is wiped because of such a ledger.
pub fn no_client_wrote(view: &View<'_>) -> Result<(), UnsafeBecause> {
    let View { desired, seen, .. } = *view;
    let wrote = |member: &MemberName| {
        let revision = seen.facts(member)?.etcd.status.as_ref()?.revision;
        (revision > UNWRITTEN).then(|| (member.clone(), revision))
    };
    match desired.members.keys().find_map(wrote) {
        None => Ok(()),
        Some((member, revision)) => Err(UnsafeBecause::ClientsWrote { member, revision }),
    }
}

/// Whether the data of an etcd that was started here is gone, also where that etcd still serves from files that were deleted.
pub fn has_lost_data(facts: &Facts, now: Timestamp) -> bool {
    facts.etcd.data == DataSeen::Empty && facts.etcd.last_started.is_some() && !has_just_started(facts, now)
}

fn has_just_started(facts: &Facts, now: Timestamp) -> bool {
    matches!(facts.etcd.service, ServiceState::Running { since, .. } if now.duration_since(since) < FIRST_WRITE)
}

/// `DataDiesOnlyByConsent` for leftovers of formations: no client can have written only while the cluster was never formed.
pub fn may_wipe_leftover(formation: &Formation) -> bool {
    matches!(formation, Formation::Unformed | Formation::Forming { .. })
}

/// `DataDiesOnlyByConsent` for the whole cluster: once clients may have written, a confirmed `destroy` does not yet mean
/// that no backup is needed.
///
/// A ledger that says that nothing was formed is not enough, because it may be an older one: a machine that was not observed
/// to be empty may hold data.
pub fn may_destroy(view: &View<'_>, word: &Destruction) -> Result<(), UnsafeBecause> {
    let View { desired, seen, .. } = *view;
    let machines = seen.machines.get().into_iter().flatten();
    let mut ours = machines.filter(|(_, machine)| machine.cluster_id == desired.cluster_id);
    let formed = !may_wipe_leftover(&desired.etcd.formation);
    let holds_nothing = |(m, _): (&MemberName, _)| was_never_used(seen, m);
    match word {
        Destruction::BackupWaived => Ok(()),
        _ if !formed && ours.all(holds_nothing) => Ok(()),
        Destruction::BackupMissing => Err(UnsafeBecause::NoBackup),
        Destruction::BackupVerified(backup) => is_in_backup(view, backup),
    }
}

/// `DataDiesOnlyByConsent`, `UnseenIsUnsafe`: whether a verified backup holds everything that was ever written. The latest
/// revision is known only if a quorum of voters reports it: a partitioned member may be far behind. If no machine is left,
/// there is nothing to lose.
fn is_in_backup(view: &View<'_>, backup: &BackupNote) -> Result<(), UnsafeBecause> {
    let View { desired, seen, .. } = *view;
    let ours = |machine: &MachineSeen| machine.cluster_id == desired.cluster_id;
    if seen.machines.get().is_some_and(|machines| !machines.values().any(ours)) {
        return Ok(());
    }
    let cluster = view.cluster().filter(|cluster| {
        let Voters { all, healthy } = cluster.count();
        healthy >= quorum(all)
    });
    let told = cluster.and_then(|cluster| {
        revision::told(cluster.voters().filter(|m| m.healthy).filter_map(|m| m.facts?.etcd.status.as_ref()))
    });
    let data = told.map(|told| told.max(revision::remembered(desired.etcd.highest_revision)));
    match data {
        Some(data) if data <= backup.revision => Ok(()),
        _ => Err(UnsafeBecause::BackupOlder { id: backup.id.clone(), at: backup.at, backup: backup.revision, data }),
    }
}

/// Whether this member's machine is known to have never run etcd.
fn was_never_used(seen: &Observation, member: &MemberName) -> bool {
    match seen.agents.get(member).and_then(Seen::get) {
        Some(AgentSeen::Unenrolled { .. }) => true,
        Some(AgentSeen::Enrolled(facts)) => facts.etcd.data == DataSeen::Empty && facts.etcd.last_started.is_none(),
        Some(AgentSeen::Untrusted(_) | AgentSeen::OtherProtocol(_)) | None => false,
    }
}

/// `NewWithinOneFormation`, `DataDiesOnlyByConsent`: data of a formation that this ledger neither began nor abandoned belongs
/// to a cluster that it does not know, although it has the same name.
pub fn formation_is_known(desired: &Desired, member: &MemberName, facts: &Facts) -> Result<(), UnsafeBecause> {
    let current = desired.etcd.formation.token();
    let unknown = |s: &&Stamp| {
        s.cluster_id == desired.cluster_id
            && Some(s.token.as_str()) != current
            && !desired.etcd.abandoned.contains(&s.token)
    };
    let in_data = match &facts.etcd.data {
        DataSeen::Stamped(stamp) => Some(stamp),
        DataSeen::Empty | DataSeen::Unstamped => None,
    };
    match in_data.into_iter().chain(&facts.etcd.last_started).find(unknown) {
        Some(stamp) => Err(UnsafeBecause::UnknownFormation { member: member.clone(), token: stamp.token.clone() }),
        None => Ok(()),
    }
}

/// Fixed settings of an existing etcd cluster: the field, its value at creation, and the spec's value now.
pub(crate) fn fixed_at_formation(wish: &Wish) -> Vec<(&'static str, &String, &String)> {
    let Some(then) = &wish.formed_with else { return Vec::new() };
    let now = &wish.form_with;
    // Authentication may be turned on later, but not off again.
    let bootstrap = if now.bootstrap == "true" { &now.bootstrap } else { &then.bootstrap };
    vec![("etcd.client_auth", &then.client_auth, &now.client_auth), ("auth.bootstrap", bootstrap, &now.bootstrap)]
}

/// `QuorumIsKept`, `UnseenIsUnsafe`, `OneDisturbance`: may this member restart now? All others must be healthy; the member
/// itself need not be, because the restart may fix it.
pub fn may_disturb(view: &View<'_>, member: &MemberName) -> Result<(), UnsafeBecause> {
    let desired = view.desired;
    let Voters { all, healthy } = voters(view);
    let others = other_voters(view, member);
    if others.healthy < others.all {
        return Err(UnsafeBecause::Quorum { member: member.clone(), voters: all, healthy, quorum: quorum(all) });
    }
    if healthy >= quorum(all) && others.healthy < quorum(all) && !desired.downtime {
        return Err(UnsafeBecause::Outage { member: member.clone(), voters: all });
    }
    Ok(())
}

/// The health before or after the step, whichever is worse. `None` before the cluster is bootstrapped.
pub fn strength_during(view: &View<'_>, action: &Action) -> Option<Strength> {
    let desired = view.desired;
    if !desired.etcd.formation.is_formed() {
        return None;
    }
    let Voters { all, healthy } = voters(view);
    let others = |m: &MemberName| other_voters(view, m);
    let cluster = view.cluster();
    let votes = |m: &MemberName| cluster.and_then(|c| c.get(m)).is_some_and(|l| !l.is_learner);
    let after = match action {
        Action::RestartEtcd { member }
        | Action::TakeRaftSnapshot { member }
        | Action::RebootMachine { member, .. }
        | Action::StopEtcd { member }
        | Action::StopMachine { member }
        | Action::DestroyMachine { member, data: Data::Stays } => (all, others(member).healthy),
        Action::Promote { .. } => (all + 1, healthy + 1),
        Action::RemoveMember { member, .. } if votes(member) => (others(member).all, others(member).healthy),
        _ => (all, healthy),
    };
    let strength = |(voters, healthy)| Strength {
        voters,
        healthy,
        quorum: quorum(voters),
        failures_survived: failures_survived(voters, healthy),
    };
    let (before, after) = (strength((all, healthy)), strength(after));
    Some(if before.failures_survived < after.failures_survived { before } else { after })
}

/// `OneMembershipChange`: a list of members counts only if it was reported after the last change.
pub fn is_fresh(desired: &Desired, cluster: &Cluster<'_>) -> bool {
    // A change with a future date was made by a clock that has been set back since; the agent compares the member lists anyway.
    desired.etcd.last_change.is_none_or(|at| cluster.told_at > at || at.duration_since(cluster.told_at) > CLOCKS_AGREE)
}

/// `OneMembershipChange`: an unknown voter may be a change in progress by another tool.
pub fn knows_every_voter(cluster: &Cluster<'_>) -> Result<(), UnsafeBecause> {
    match cluster.voters().find(|m| !m.known) {
        None => Ok(()),
        Some(m) => Err(UnsafeBecause::StrangerVoter { id: format!("{:x}", m.id), peer_url: m.peer_url.clone() }),
    }
}

/// `LearnerFirst`, `QuorumIsKept`, `OneDisturbance`: a learner joins while every voter is healthy and no other learner joins.
pub fn may_add_learner(cluster: &Cluster<'_>, member: &MemberName) -> Result<(), UnsafeBecause> {
    let Voters { all, healthy } = cluster.count();
    if healthy == all && cluster.learners().next().is_none() {
        return Ok(());
    }
    Err(refused(member, Change::Join, all, healthy, quorum(all + 1)))
}

/// `LearnerFirst`, `QuorumIsKept`: a learner is promoted if the cluster then tolerates as many failures as before. Returns
/// the voters after it.
pub fn may_promote(cluster: &Cluster<'_>, learner: &Listed<'_>) -> Result<Voters, UnsafeBecause> {
    let Voters { all, healthy } = cluster.count();
    let after = Voters { all: all + 1, healthy: healthy + 1 };
    let enough = after.healthy >= quorum(after.all);
    let weaker = failures_survived(after.all, after.healthy) < failures_survived(all, healthy);
    if enough && !weaker {
        return Ok(after);
    }
    Err(refused(&learner.name, Change::Promotion, all, healthy, quorum(after.all)))
}

/// `QuorumIsKept`, `OneDisturbance`: a voter leaves if the others have a quorum. A healthy one leaves only if all the others
/// are healthy too. Returns the voters after it.
pub fn may_remove(cluster: &Cluster<'_>, member: &Listed<'_>) -> Result<Voters, UnsafeBecause> {
    let Voters { all, healthy } = cluster.count();
    if cluster.count_without(&member.name).all == 0 {
        return Err(UnsafeBecause::LastVoter { member: member.name.clone() });
    }
    let after = cluster.count_without(&member.name);
    let commits = healthy >= quorum(all);
    let undisturbed = !member.healthy || after.healthy == after.all;
    if commits && undisturbed && after.healthy >= quorum(after.all) {
        return Ok(after);
    }
    Err(refused(&member.name, Change::Removal, all, healthy, quorum(after.all)))
}

fn refused(member: &MemberName, change: Change, voters: usize, healthy: usize, quorum: usize) -> UnsafeBecause {
    UnsafeBecause::Membership { member: member.clone(), change, voters, healthy, quorum }
}

/// Whether only a confirmed recovery can continue. Members that have their data and are only stopped are not lost.
pub fn majority_is_lost(view: &View<'_>) -> Result<(), UnsafeBecause> {
    let desired = view.desired;
    if matches!(desired.etcd.formation, Formation::Recovering { .. }) {
        return Ok(());
    }
    let there = match view.cluster() {
        Some(cluster) => cluster.count(),
        None => able(view),
    };
    if there.healthy >= quorum(there.all) {
        return Err(UnsafeBecause::NotLost { voters: there.all, healthy: there.healthy });
    }
    serves_nobody(view, there)
}

/// `UnseenIsUnsafe` for a quorum: even if this controller does not reach one, it exists if a member answered a linearizable
/// read.
fn serves_nobody(view: &View<'_>, there: Voters) -> Result<(), UnsafeBecause> {
    let View { desired, seen, .. } = *view;
    let Formation::Formed { etcd_cluster_id, .. } = &desired.etcd.formation else { return Ok(()) };
    let serves = |m: &&MemberName| seen.status(m).is_some_and(|s| s.healthy && s.cluster_id == *etcd_cluster_id);
    match seen.agents.keys().find(serves) {
        None => Ok(()),
        Some(member) => {
            let Voters { all: voters, healthy } = there;
            Err(UnsafeBecause::Serves { member: member.clone(), voters, healthy, quorum: quorum(voters) })
        }
    }
}

/// Whether enough members hold their data to agree on anything, once they all run.
pub fn majority_is_there(view: &View<'_>) -> Result<(), UnsafeBecause> {
    let Voters { all, healthy } = able(view);
    // While no etcd reports the voters, the ledger may list one too many: quorate waits for those that come up.
    let comes_up = healthy > 0 && voters_told(view).is_none();
    if healthy >= quorum(all) || comes_up {
        return Ok(());
    }
    Err(UnsafeBecause::MajorityLost { voters: all, healthy, quorum: quorum(all) })
}

/// The voters, and how many of them are reachable with their data, running or not. If no etcd reports who votes, the ledger
/// counts.
pub(crate) fn able(view: &View<'_>) -> Voters {
    let View { desired, seen, .. } = *view;
    let Formation::Formed { token, members, .. } = &desired.etcd.formation else {
        return Voters { all: 0, healthy: 0 };
    };
    let voters = voters_told(view);
    let votes = |known: &FormingMember| match &voters {
        Some(voters) => voters.contains(&known.peer_url),
        None => !known.learner,
    };
    let holds = |m: &MemberName| {
        let verdict = |facts| judge_data(desired, m, Some(token), seen.now, facts);
        let sound = |facts: &Facts| facts.etcd.older.is_none() && facts.etcd.log_damage.is_none();
        seen.facts(m).is_some_and(|facts| sound(facts) && verdict(facts) == DataVerdict::MayGoOn)
    };
    let healthy = members.iter().filter(|(m, known)| votes(known) && holds(m)).count();
    let all = voters.as_ref().map_or_else(|| members.values().filter(|known| votes(known)).count(), BTreeSet::len);
    Voters { all, healthy }
}

/// The peer URLs of the voters, as the etcd with the longest log reports them, with or without a quorum.
fn voters_told<'a>(view: &View<'a>) -> Option<BTreeSet<&'a String>> {
    let View { desired, seen, .. } = *view;
    let Formation::Formed { etcd_cluster_id, .. } = &desired.etcd.formation else { return None };
    let statuses = seen.agents.keys().filter_map(|m| seen.facts(m)?.etcd.status.as_ref());
    let told = statuses.filter(|s| s.cluster_id == *etcd_cluster_id && !s.members.is_empty());
    let told = told.max_by_key(|s| s.raft_applied_index)?;
    Some(told.members.iter().filter(|m| !m.is_learner).filter_map(|m| m.peer_urls.first()).collect())
}

/// `QuorumIsKept`: whether a lost member may be removed. Returns the voters that are left.
pub fn may_lose(cluster: &Cluster<'_>, member: &MemberName) -> Result<String, UnsafeBecause> {
    let Voters { all, healthy } = cluster.count();
    if let Some(voter) = cluster.voters().find(|m| m.name == *member && !m.healthy) {
        may_remove(cluster, voter)?;
    }
    Ok(format!("{}, quorum is {}", healthy_of(healthy, all), quorum(all)))
}

/// `KnownVersions`: a new member runs the cluster's version, or the next minor.
pub fn may_join_at_this_version(
    desired: &Desired,
    cluster: &Cluster<'_>,
    member: &MemberName,
) -> Result<(), UnsafeBecause> {
    let wanted = &desired.members[member].etcd_version;
    let minor = |v: &str| v.parse::<Version>().ok().map(|v| v.minor);
    let Some(joins) = minor(wanted) else { return Ok(()) };
    // During a downgrade etcd admits no new member.
    let statuses = || cluster.voters().filter_map(|m| m.facts?.etcd.status.as_ref());
    let going_down = statuses().any(|s| s.downgrade_target.is_some() || minor(&s.version) > Some(joins));
    // A new cluster needs some seconds to agree on its version; until then it is what its members run.
    let runs = || statuses().filter_map(|s| minor(&s.version)).min();
    let spoken = cluster.cluster_version.as_deref().and_then(minor).or_else(runs);
    if !going_down && spoken.is_some_and(|spoken| joins == spoken || joins == spoken + 1) {
        return Ok(());
    }
    Err(UnsafeBecause::JoinVersion {
        member: member.clone(),
        cluster: cluster.cluster_version.clone().unwrap_or_default(),
        wanted: wanted.clone(),
    })
}

/// `DataDiesOnlyByConsent`: the machine of a former member is destroyed when every wanted member is healthy, because its data
/// is then not needed; or when its address or its room is needed.
pub fn may_clear_away(view: &View<'_>, member: &MemberName) -> bool {
    let View { desired, seen, .. } = *view;
    let Some(cluster) = view.cluster().filter(|c| is_fresh(desired, c)) else { return false };
    let Some(machine) = seen.machines.get().and_then(|m| m.get(member)) else { return false };
    // A machine that was given up returns with an address that its successor has now.
    let is_anothers = |l: &Listed<'_>| {
        l.name != *member && desired.members.contains_key(&l.name) && !desired.etcd.formation.has_member(member)
    };
    let is_there = |l: &Listed<'_>| machine.address.is_some_and(|a| address_in(&l.peer_url) == Some(a));
    let listed = cluster.listed.iter().any(|l| l.name == *member || is_there(l) && !is_anothers(l));
    let complete = desired.members.keys().all(|m| cluster.get(m).is_some_and(|l| l.healthy));
    let in_the_way = desired.members.iter().any(|(name, wish)| makes_way(desired, (member, machine), name, wish));
    !listed && (complete || in_the_way)
}

/// A running etcd trusts the CAs it was started with, a stopped one those it will read. For one that keeps exiting this is
/// unknown.
pub(crate) fn trusts(facts: &Facts, key_id: &str) -> bool {
    let Some(trust) = facts.etcd.trust.get(&TrustPlane::Peer) else { return false };
    match facts.etcd.service {
        ServiceState::Running { .. } => trust.running.contains(key_id),
        ServiceState::Stopped => trust.on_disk.contains(key_id),
        ServiceState::BackingOff { .. } | ServiceState::Unknown { .. } => false,
    }
}
