//! An independent statement of the rules: every decision is checked against the observation it was based on. That observation
//! may be old or incomplete, and must still justify the decision.

use std::collections::{BTreeMap, BTreeSet};

use quorate_core::kinds::etcd::{EtcdStatus, Formation, MemberEntry};
use quorate_core::model::{
    AgentSeen, Data, DataSeen, Desired, Facts, MemberName, Observation, PEER_PORT, ServiceState, https_url,
};
use quorate_core::planner::{Action, Decision, Precondition};

use crate::etcd::quorum;
use crate::past::Wrong;

/// The cluster as one look shows it.
struct Look<'a> {
    seen: &'a Observation,
    /// As a voter with a quorum behind it lists it; empty where there is none.
    list: &'a [MemberEntry],
    leader: u64,
    /// The voters that were seen to be healthy, by etcd's number.
    healthy: BTreeSet<u64>,
}

impl<'a> Look<'a> {
    fn at(seen: &'a Observation) -> Self {
        let healthy = || {
            let statuses = seen.agents.keys().filter_map(|m| seen.facts(m)?.etcd.status.as_ref());
            statuses.filter(|s| s.healthy && !s.is_learner)
        };
        let told: Option<&EtcdStatus> = healthy().next();
        Look {
            seen,
            list: told.map_or(&[], |s| &s.members),
            leader: told.map_or(0, |s| s.leader),
            healthy: healthy().map(|s| s.member_id).collect(),
        }
    }

    fn voters(&self) -> impl Iterator<Item = &MemberEntry> {
        self.list.iter().filter(|m| !m.is_learner)
    }

    fn learners(&self) -> usize {
        self.list.iter().filter(|m| m.is_learner).count()
    }

    fn id_of(&self, member: &MemberName) -> Option<u64> {
        Some(self.facts(member)?.etcd.status.as_ref()?.member_id)
    }

    fn facts(&self, member: &MemberName) -> Option<&Facts> {
        self.seen.facts(member)
    }
}

/// What is wrong with a decision.
pub fn audit(desired: &Desired, seen: &Observation, decision: &Decision) -> Vec<Wrong> {
    let look = Look::at(seen);
    let mut wrongs = Vec::new();
    let of = |kinds: &[&str]| decision.steps.iter().filter(|s| kinds.contains(&s.action.kind())).count();
    if of(&["add-learner", "promote", "remove-member"]) > 1 {
        wrongs.push(Wrong::TwoChanges);
    }
    if of(&["restart-etcd", "reboot-machine", "remove-member", "move-leader"]) > 1 {
        wrongs.push(Wrong::TwoDisturbances);
    }
    let formed = matches!(desired.etcd.formation, Formation::Formed { .. });
    for step in &decision.steps {
        wrongs.extend(judge(desired, &look, formed, &step.action));
        let changes = matches!(step.action.kind(), "add-learner" | "promote" | "remove-member");
        if changes && !matches!(&step.expects, Precondition::Membership(m) if m.len() == look.list.len()) {
            wrongs.push(Wrong::UnguardedChange);
        }
        if changes && desired.etcd.last_change.is_some_and(|at| seen.now <= at) {
            wrongs.push(Wrong::ChangedOnAnOldList);
        }
    }
    wrongs
}

fn judge(desired: &Desired, look: &Look<'_>, formed: bool, action: &Action) -> Option<Wrong> {
    let all = look.voters().count();
    let healthy = look.voters().filter(|v| look.healthy.contains(&v.id)).count();
    let known = |v: &MemberEntry| {
        let mut members = desired.etcd.formation.members().into_iter().flatten();
        members.any(|(_, m)| v.peer_urls.contains(&m.peer_url))
    };
    let changes = matches!(action.kind(), "add-learner" | "promote" | "remove-member");
    if changes && !look.voters().all(known) {
        return Some(Wrong::ChangedAmongStrangers);
    }
    match action {
        Action::AddLearner { .. } if look.learners() > 0 => Some(Wrong::TwoLearners),
        Action::AddLearner { .. } => (healthy < all || all == 0).then_some(Wrong::JoinedBesideTheUnwell),
        Action::Promote { member, id, .. } => {
            let answers = look.facts(member).is_some_and(|f| is_running(f) && f.etcd.status.is_some());
            let learner = look.list.iter().any(|m| m.id == *id && m.is_learner);
            let enough = healthy + 1 >= quorum(all + 1);
            if !answers || !learner {
                return Some(Wrong::PromotedWhoDoesNotRun);
            }
            (!enough).then_some(Wrong::QuorumGivenAway)
        }
        Action::RemoveMember { id, .. } => judge_removal(look, *id),
        Action::RestartEtcd { member } | Action::TakeRaftSnapshot { member } | Action::RebootMachine { member, .. } => {
            judge_disturbance(desired, look, member)
        }
        Action::DestroyMachine { member, data: Data::Stays } => judge_renewal(desired, look, member),
        Action::DestroyMachine { member, .. } if formed => judge_destruction(desired, look, member),
        Action::WipeData { .. } => formed.then_some(Wrong::WipedAfterFormed),
        Action::StartEtcd { bootstrap: Some(_), .. } => formed.then_some(Wrong::NewAfterFormed),
        Action::RecordRecovery { from, .. } => {
            let confirmed = desired.etcd.recovery_of.as_ref().is_some_and(|of| of.survivors.contains(from));
            (!desired.etcd.recovery || !confirmed || !look.healthy.is_empty()).then_some(Wrong::RecoveredWithoutNeed)
        }
        Action::StopEtcd { member } if formed && is_renewed(desired, member) => judge_renewal(desired, look, member),
        Action::StopEtcd { .. } if formed => {
            (!desired.etcd.recovery || !look.healthy.is_empty()).then_some(Wrong::RecoveredWithoutNeed)
        }
        Action::Rebuild { .. } => {
            (!matches!(desired.etcd.formation, Formation::Recovering { .. })).then_some(Wrong::RecoveredWithoutNeed)
        }
        Action::RecordRestoring { sha256, bump_revision, .. } => {
            let verified = desired.etcd.restore.as_ref().and_then(|restore| restore.bump_revision);
            let has_no_data = |m: &MemberName| look.facts(m).is_some_and(|f| f.etcd.data == DataSeen::Empty);
            if verified != Some(*bump_revision) && !look.seen.agents.keys().all(has_no_data) {
                return Some(Wrong::GivenUpBeforeVerified);
            }
            let has = |m: &MemberName| {
                look.facts(m).and_then(|f| f.etcd.staged.as_ref()).is_some_and(|s| s.sha256 == *sha256)
            };
            let all_have = desired.members.keys().all(has);
            (desired.etcd.restore.is_none() || !all_have).then_some(Wrong::GivenUpBeforeStaged)
        }
        Action::DropSnapshot { .. } => (!formed || desired.etcd.restore.is_some()).then_some(Wrong::DroppedWhileNeeded),
        Action::RestoreData { stamp, .. } => {
            let runs = |m: &MemberName| look.facts(m).is_some_and(|f| f.etcd.service != ServiceState::Stopped);
            let other = desired.etcd.formation.token() != Some(stamp.token.as_str());
            (other || look.seen.agents.keys().any(runs)).then_some(Wrong::OldAndNew)
        }
        Action::RecordRenewal { member, .. } => judge_recorded(desired, look, member),
        Action::RecordReplacement { member, .. } => judge_replacement(desired, look, member),
        _ => None,
    }
}

/// Taken away for a moment: all others are well, it does not lead, and they have their quorum.
fn judge_disturbance(desired: &Desired, look: &Look<'_>, member: &MemberName) -> Option<Wrong> {
    let all = look.voters().count();
    let id = look.id_of(member).unwrap_or(0);
    let others = look.healthy.iter().filter(|h| **h != id).count();
    let well = look.healthy.contains(&id);
    if all > 0 && others + 1 < all {
        return Some(Wrong::TwoDisturbances);
    }
    if well && look.leader == id && others > 0 {
        return Some(Wrong::LeaderDisturbed);
    }
    (well && others < quorum(all) && !desired.downtime).then_some(Wrong::QuorumGivenAway)
}

fn is_renewed(desired: &Desired, member: &MemberName) -> bool {
    desired.members.get(member).is_some_and(|wish| wish.renewing.is_some())
}

/// A machine goes and its data stays: the ledger says so before. One that is not enrolled yet never ran anything; one that counts as
/// dead takes nothing away.
fn judge_renewal(desired: &Desired, look: &Look<'_>, member: &MemberName) -> Option<Wrong> {
    if !is_renewed(desired, member) {
        return Some(Wrong::UnrecordedRenewal);
    }
    match look.seen.agents.get(member).and_then(|agent| agent.get()) {
        Some(AgentSeen::Unenrolled { .. }) => None,
        Some(AgentSeen::Enrolled(_)) => judge_disturbance(desired, look, member),
        Some(AgentSeen::Untrusted(_) | AgentSeen::OtherProtocol(_)) | None => {
            judge_disturbance(desired, look, member).and_then(|_| judge_replacement(desired, look, member))
        }
    }
}

fn judge_removal(look: &Look<'_>, id: u64) -> Option<Wrong> {
    let going = look.list.iter().find(|m| m.id == id)?;
    if going.is_learner {
        return None;
    }
    let others: Vec<u64> = look.voters().map(|v| v.id).filter(|v| *v != id).collect();
    let healthy = others.iter().filter(|v| look.healthy.contains(v)).count();
    let well = look.healthy.contains(&id);
    let commits = healthy + usize::from(well) >= quorum(others.len() + 1);
    if !commits || healthy < quorum(others.len()) || others.is_empty() {
        return Some(Wrong::QuorumGivenAway);
    }
    if well && healthy < others.len() {
        return Some(Wrong::TwoDisturbances);
    }
    (well && look.leader == id).then_some(Wrong::LeaderDisturbed)
}

/// The machine of one that etcd lists, or that the ledger counts as a member, stays. An empty list proves nothing.
fn judge_destruction(desired: &Desired, look: &Look<'_>, member: &MemberName) -> Option<Wrong> {
    let machine = look.seen.machines.get()?.get(member)?;
    let enrolled = look.seen.facts(member).is_some();
    let url = https_url(machine.address?, PEER_PORT);
    let listed = look.list.iter().any(|m| m.peer_urls.contains(&url));
    let member_of_ours = desired.etcd.formation.has_member(member);
    (listed || (enrolled && member_of_ours) || (enrolled && look.list.is_empty())).then_some(Wrong::MemberDestroyed)
}

/// A renewal is recorded for one that may be disturbed, once it has handed over; that counts as dead; or that has no machine.
fn judge_recorded(desired: &Desired, look: &Look<'_>, member: &MemberName) -> Option<Wrong> {
    if !look.seen.machines.get()?.contains_key(member) {
        return None;
    }
    match judge_disturbance(desired, look, member) {
        None | Some(Wrong::LeaderDisturbed) => None,
        Some(_) => judge_replacement(desired, look, member),
    }
}

/// Who is given up must be lost: its data gone or gone back, or nobody sees its machine for long enough.
fn judge_replacement(desired: &Desired, look: &Look<'_>, member: &MemberName) -> Option<Wrong> {
    let wish = desired.members.get(member)?;
    let id = look.id_of(member);
    if id.is_some_and(|id| look.healthy.contains(&id)) {
        return Some(Wrong::GivenUpTooEarly);
    }
    let all = look.voters().count();
    let healthy = look.voters().filter(|v| look.healthy.contains(&v.id)).count();
    let known = desired.etcd.formation.members().and_then(|members| members.get(member));
    let votes = known.is_some_and(|known| look.voters().any(|v| v.peer_urls.contains(&known.peer_url)));
    // Where all data is replaced, nobody must agree.
    if desired.etcd.restore.is_none() && (all == 0 || (votes && healthy < quorum(all))) {
        return Some(Wrong::QuorumGivenAway);
    }
    if let Some(facts) = look.facts(member) {
        let works = is_running(facts) && facts.etcd.status.is_some();
        return works.then_some(Wrong::GivenUpTooEarly);
    }
    let address = look.seen.machines.get()?.get(member).and_then(|m| m.address);
    let known_at = address.or_else(|| known?.address());
    let told = |word: bool| {
        let says = |m: &&MemberName| look.facts(m).and_then(|f| f.reaches.get(&known_at?)) == Some(&word);
        look.seen.agents.keys().filter(|m| *m != member).filter(says).count()
    };
    let reached = told(true) > 0;
    let unseen = wish.unseen_since.map_or(0, |since| look.seen.now.duration_since(since).as_secs());
    // Where all data is replaced, a machine that does not exist is not waited for.
    let made_anew = desired.etcd.restore.is_some() && address.is_none();
    let patient = made_anew || desired.grace.is_none_or(|grace| unseen >= grace.as_secs());
    // Half of those who vote must have told that they miss it, where the operator did not say that it is dead.
    let votes = if all > 0 { all } else { desired.etcd.formation.members().map_or(0, BTreeMap::len) };
    let missed = made_anew || desired.grace.is_none() || told(false) >= votes / 2;
    (reached || !patient || !missed).then_some(Wrong::GivenUpTooEarly)
}

fn is_running(facts: &Facts) -> bool {
    matches!(facts.etcd.service, ServiceState::Running { .. })
}
