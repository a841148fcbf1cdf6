//! Membership: missing members join as learners, catch up and are promoted; members that are not in the spec leave. One change at a time,
//! each based on a member list newer than the last change. Dead members are removed first, because etcd accepts no new member while they
//! are listed. Then the cluster grows; after all restarts, it shrinks.

use std::cmp::Ordering;

use jiff::SignedDuration;

use crate::kinds::etcd::FormingMember;
use crate::kinds::etcd::cluster::{Cluster, Listed, peer_url};
use crate::kinds::etcd::safety::{self, Voters};
use crate::model::{DataSeen, Desired, DesiredMember, Facts, MemberName, ServiceState, Stamp};
use crate::planner::machines::{in_the_way, makes_way};
use crate::planner::{Action, Decision, Precondition, UnsafeBecause, View, WaitingFor};
use crate::text::plural;

/// A learner that lags by at most this many entries is promoted at once.
const MOST_LAG: u64 = 1000;
/// A learner that has not answered for this long since it joined is removed again.
const LEARNER_PATIENCE: SignedDuration = SignedDuration::from_secs(40);
/// A learner whose etcd runs may still be copying the data.
const COPYING_PATIENCE: SignedDuration = SignedDuration::from_mins(5);

/// Whether members are to join.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Growth {
    None,
    /// Existing members restart first.
    AfterRestarts,
    UnderWay,
}

/// Heals and grows.
pub(crate) fn grow(view: &View<'_>, decision: &mut Decision) -> Growth {
    let desired = view.desired;
    let Some(cluster) = changeable(view, decision) else {
        tell_of_no_quorum(view, decision);
        return Growth::None;
    };
    if let Some(learner) = cluster.learners().next() {
        bring_up(view, decision, cluster, learner);
        return Growth::UnderWay;
    }
    if let Some(dead) = cluster.voters().find(|m| !is_wanted(desired, m) && !m.healthy) {
        leave(desired, decision, cluster, dead, "it is no longer wanted and does not answer");
        return Growth::UnderWay;
    }
    join(view, decision, cluster)
}

/// Removes the voters that the spec does not want, followers first. While the cluster grows, only those whose place is needed.
pub(crate) fn shrink(view: &View<'_>, decision: &mut Decision, growing: bool) {
    let desired = view.desired;
    if !decision.steps.is_empty() {
        return;
    }
    let Some(cluster) = changeable(view, decision) else { return };
    if cluster.learners().next().is_some() {
        return;
    }
    let unwanted = cluster.voters().filter(|m| !is_wanted(desired, m));
    let going = unwanted.filter_map(|m| match growing {
        true => in_the_way(view, &m.name, survived_without(cluster, m)).map(|why| (m, Some(why))),
        false => Some((m, None)),
    });
    let Some((next, in_the_way)) = going.min_by_key(|(m, _)| m.leads) else { return };
    let is_named = desired.members.contains_key(&next.name.seat().into());
    let why = match in_the_way {
        Some(why) => why,
        None if is_named => format!("the new machine of {} votes in its place", next.name.seat()),
        None => format!("the spec no longer names {}", next.name.seat()),
    };
    leave(desired, decision, cluster, next, &why);
}

fn survived_without(cluster: &Cluster<'_>, member: &Listed<'_>) -> usize {
    let Voters { all, healthy } = cluster.count_without(&member.name);
    safety::failures_survived(all, healthy)
}

/// The membership, if it may be changed now.
fn changeable<'v, 'a>(view: &'v View<'a>, decision: &mut Decision) -> Option<&'v Cluster<'a>> {
    let cluster = view.cluster()?;
    if !safety::is_fresh(view.desired, cluster) {
        decision.wait(WaitingFor::Membership);
        return None;
    }
    if let Err(because) = safety::knows_every_voter(cluster) {
        decision.block(because);
        return None;
    }
    Some(cluster)
}

/// A bootstrapped cluster without a reporting voter has not converged, even if every wanted member has everything it needs.
fn tell_of_no_quorum(view: &View<'_>, decision: &mut Decision) {
    let desired = view.desired;
    let told = !decision.steps.is_empty() || !decision.waiting.is_empty() || !decision.blocked.is_empty();
    if told || !desired.etcd.formation.is_formed() {
        return;
    }
    match safety::majority_is_there(view) {
        Ok(()) => decision.wait(WaitingFor::Membership),
        Err(because) => decision.block(because),
    }
}

fn is_wanted(desired: &Desired, member: &Listed<'_>) -> bool {
    member.known && desired.members.contains_key(&member.name)
}

/// A member that was added and does not vote yet: it starts, catches up and is promoted, or is removed again.
fn bring_up(view: &View<'_>, decision: &mut Decision, cluster: &Cluster<'_>, learner: &Listed<'_>) {
    let View { desired, seen, .. } = *view;
    let Some(wish) = desired.members.get(&learner.name).filter(|_| learner.known) else {
        let why = "it is a learner that the spec does not ask for, probably left by an interrupted change";
        return expel(decision, cluster, learner, None, why);
    };
    if decision.has_business_with(&learner.name) {
        return;
    }
    // It may have been switched off and on again since it joined.
    let since = desired.etcd.last_change.max(wish.unseen_since);
    let waited = since.map_or(SignedDuration::ZERO, |at| seen.now.duration_since(at));
    let runs = |f: &Facts| matches!(f.etcd.service, ServiceState::Running { .. }) && f.etcd.data != DataSeen::Empty;
    let patience = if learner.facts.is_some_and(runs) { COPYING_PATIENCE } else { LEARNER_PATIENCE };
    let late = waited >= patience;
    let Some(facts) = learner.facts else {
        return give_up_or_wait(decision, cluster, learner, late, "its agent does not answer");
    };
    if facts.etcd.older.is_some() {
        let why = "its data is older than what the member acknowledged";
        return expel(decision, cluster, learner, Some(why), why);
    }
    let token = desired.etcd.formation.token();
    match safety::judge_data(desired, &learner.name, token, seen.now, facts) {
        safety::DataVerdict::MayBeginAsNew => start(desired, decision, cluster, learner, wish),
        safety::DataVerdict::MayGoOn => catch_up(desired, decision, cluster, learner, facts, late),
        _ => expel(decision, cluster, learner, Some("its data is lost"), "it lost what it had copied"),
    }
}

fn start(
    desired: &Desired,
    decision: &mut Decision,
    cluster: &Cluster<'_>,
    learner: &Listed<'_>,
    wish: &DesiredMember,
) {
    let stamp = Stamp {
        cluster_id: desired.cluster_id.clone(),
        token: desired.etcd.formation.token().unwrap_or_default().to_owned(),
        member: learner.name.clone(),
        incarnation: wish.incarnation,
    };
    let initial_cluster = cluster.listed.iter().map(|m| (m.name.clone(), m.peer_url.clone())).collect();
    decision.step_expecting(
        Action::JoinEtcd { member: learner.name.clone(), stamp, initial_cluster },
        format!("{} is listed as a learner and has no data yet: it copies the leader's", learner.name),
        Precondition::Data(DataSeen::Empty),
    );
}

fn catch_up(
    desired: &Desired,
    decision: &mut Decision,
    cluster: &Cluster<'_>,
    learner: &Listed<'_>,
    facts: &Facts,
    late: bool,
) {
    if facts.etcd.service == ServiceState::Stopped {
        return decision.step_expecting(
            Action::StartEtcd { member: learner.name.clone(), bootstrap: None },
            format!("etcd on {} does not run; it has begun to copy the leader's data", learner.name),
            Precondition::Data(facts.etcd.data.clone()),
        );
    }
    let status = facts.etcd.status.as_ref().filter(|_| facts.etcd.peer_serving);
    let Some(status) = status.filter(|s| s.is_learner && s.member_id == learner.id) else {
        return give_up_or_wait(decision, cluster, learner, late, "etcd on it does not answer");
    };
    let lag = cluster.index.saturating_sub(status.raft_applied_index);
    if lag > MOST_LAG {
        return decision.wait(WaitingFor::Learner { member: learner.name.clone(), lag });
    }
    match safety::may_promote(cluster, learner) {
        Err(because) => decision.block(because),
        Ok(after) => {
            let Some(through) = through(decision, cluster, None) else { return };
            let even = if after.all % 2 == 0 { even(desired, after.all) } else { String::new() };
            decision.step_expecting(
                Action::Promote { through, member: learner.name.clone(), id: learner.id },
                format!(
                    "it lags by {lag} {}; {} of {} voters will be healthy then{even}",
                    if lag == 1 { "entry" } else { "entries" },
                    after.healthy,
                    after.all
                ),
                Precondition::Membership(cluster.membership()),
            );
        }
    }
}

fn even(desired: &Desired, voters: usize) -> String {
    let until = match voters.cmp(&desired.members.len()) {
        Ordering::Less => "until the next one is promoted",
        Ordering::Equal => "as the spec wants it",
        Ordering::Greater => "until the old member is removed",
    };
    format!("; {voters} voters (quorum {}) tolerate {}, {until}", safety::quorum(voters), failures(voters))
}

/// How many failures so many healthy voters tolerate.
fn failures(voters: usize) -> String {
    match voters.saturating_sub(safety::quorum(voters)) {
        0 => String::from("no failure"),
        some => plural(some, "failure"),
    }
}

fn give_up_or_wait(decision: &mut Decision, cluster: &Cluster<'_>, learner: &Listed<'_>, late: bool, why: &str) {
    if late {
        let reason = format!("{why}, long after it joined: a learner that never starts must not block the next");
        return expel(decision, cluster, learner, Some(why), &reason);
    }
    decision.wait(WaitingFor::Health { member: learner.name.clone(), why: why.to_owned() });
}

/// A learner has no vote, so removing it is safe.
fn expel(decision: &mut Decision, cluster: &Cluster<'_>, learner: &Listed<'_>, failed: Option<&str>, why: &str) {
    let Some(through) = through(decision, cluster, None) else { return };
    decision.step_expecting(
        Action::RemoveMember {
            through,
            member: learner.name.clone(),
            id: learner.id,
            failed: failed.map(str::to_owned),
        },
        format!("{why}; it has no vote"),
        Precondition::Membership(cluster.membership()),
    );
}

/// The next member to add.
fn join(view: &View<'_>, decision: &mut Decision, cluster: &Cluster<'_>) -> Growth {
    let View { desired, seen, .. } = *view;
    let missing: Vec<&MemberName> =
        desired.members.keys().filter(|m| cluster.get(m).is_none_or(|l| !l.known)).collect();
    let Some(first) = missing.first() else { return Growth::None };
    if let Err(because) = safety::may_join_at_this_version(desired, cluster, first) {
        decision.block(because);
        return Growth::None;
    }
    match safety::may_join_this_log(desired, cluster, first) {
        Some(Ok(())) => {}
        None => {
            let leader = cluster.voters().find(|voter| voter.leads);
            if let Some(leader) = leader.filter(|leader| !decision.has_business_with(&leader.name)) {
                decision.wait(WaitingFor::RaftSnapshot { member: leader.name.clone(), entry: None });
            }
            return Growth::UnderWay;
        }
        Some(Err(because)) => return change_leader(view, decision, cluster, because),
    }
    let ready = missing.iter().find(|m| is_ready(view, decision, m));
    let Some(member) = ready else {
        let coming: Vec<&MemberName> =
            missing.into_iter().filter(|m| desired.members[*m].join_failed.is_none()).collect();
        let told =
            |m: &MemberName| decision.has_business_with(m) || decision.waiting.iter().any(|w| w.member() == Some(m));
        let silent = coming.iter().find(|m| !told(m) && may_come(view, m));
        if let Some(member) = silent.filter(|_| decision.blocked.is_empty()) {
            let why = String::from("it is not ready to join");
            decision.wait(WaitingFor::Health { member: (*member).clone(), why });
        }
        return if coming.is_empty() { Growth::None } else { Growth::UnderWay };
    };
    if let Err(because) = safety::may_add_learner(cluster, member) {
        let heals = !decision.waiting.is_empty();
        if !heals {
            decision.block(because);
        }
        return Growth::UnderWay;
    }
    let (Some(through), Some(url), Some(facts)) =
        (through(decision, cluster, None), peer_url(seen, member), seen.facts(member))
    else {
        return Growth::UnderWay;
    };
    let Voters { all, healthy } = cluster.count();
    let joining = FormingMember { machine_id: facts.machine_id.clone(), peer_url: url, learner: true };
    decision.step_expecting(
        Action::AddLearner { through, member: (*member).clone(), joining },
        format!("{}; a learner has no vote, so nothing depends on it yet", safety::healthy_of(healthy, all)),
        Precondition::Membership(cluster.membership()),
    );
    Growth::UnderWay
}

/// The new member could not read what the leader sends. A voter that runs the new version already leads instead; where there is none yet,
/// one is restarted first.
fn change_leader(view: &View<'_>, decision: &mut Decision, cluster: &Cluster<'_>, because: UnsafeBecause) -> Growth {
    let leader = cluster.voters().find(|voter| voter.leads && voter.healthy);
    if let (Some(leader), Some(reader)) = (leader, safety::reader(cluster)) {
        let why = format!("{because}; {} runs that version already", reader.name);
        let (member, to, to_id) = (leader.name.clone(), reader.name.clone(), reader.id);
        decision.step(Action::MoveLeader { member, to, to_id }, why);
        return Growth::UnderWay;
    }
    let may_restart =
        |voter: &Listed<'_>| is_wanted(view.desired, voter) && safety::may_disturb(view, &voter.name).is_ok();
    if cluster.voters().any(may_restart) {
        return Growth::AfterRestarts;
    }
    decision.block(because);
    Growth::UnderWay
}

/// Whether no other machine has its place any more.
fn may_come(view: &View<'_>, member: &MemberName) -> bool {
    let View { desired, seen, .. } = *view;
    let wish = &desired.members[member];
    !seen.machines.get().into_iter().flatten().any(|other| makes_way(desired, other, member, wish))
}

/// Whether a machine has everything it needs to join.
fn is_ready(view: &View<'_>, decision: &Decision, member: &MemberName) -> bool {
    let View { desired, seen, .. } = *view;
    let wish = &desired.members[member];
    let Some(facts) = seen.facts(member) else { return false };
    let configured = facts.node_config.as_ref().is_some_and(|(_, digest)| *digest == wish.digest);
    let untouched = facts.etcd.data == DataSeen::Empty && facts.etcd.last_started.is_none();
    wish.join_failed.is_none()
        && configured
        && untouched
        && facts.etcd.service == ServiceState::Stopped
        && !decision.has_business_with(member)
}

/// A voter leaves: the leader hands over first.
fn leave(desired: &Desired, decision: &mut Decision, cluster: &Cluster<'_>, member: &Listed<'_>, why: &str) {
    let after = match safety::may_remove(cluster, member) {
        Ok(after) => after,
        Err(because) => return decision.block(because),
    };
    if member.leads && member.healthy {
        let Some((to, to_id)) = cluster.successor(desired, member.id) else { return };
        let why =
            format!("{} is the leader and about to leave; moving leadership first shortens the write gap", member.name);
        return decision.step(Action::MoveLeader { member: member.name.clone(), to, to_id }, why);
    }
    let Some(through) = through(decision, cluster, Some(member.id)) else { return };
    let Voters { all, healthy } = after;
    let tolerated = if all % 2 == 0 { format!(", tolerating {}", failures(all)) } else { String::new() };
    decision.step_expecting(
        Action::RemoveMember { through, member: member.name.clone(), id: member.id, failed: None },
        format!(
            "{why}; {healthy} of {all} {} healthy, quorum is then {}{tolerated}",
            if all == 1 { "voter remains" } else { "voters remain" },
            safety::quorum(all)
        ),
        Precondition::Membership(cluster.membership()),
    );
}

/// The voter through which a change is made; never one that is not known to belong to this cluster.
fn through(decision: &Decision, cluster: &Cluster<'_>, except: Option<u64>) -> Option<MemberName> {
    cluster.spokesman(except, |member| !decision.bars_orders(member)).cloned()
}

/// Reports the additions that failed in this run.
pub(crate) fn tell_failures(desired: &Desired, decision: &mut Decision) {
    for (member, wish) in &desired.members {
        if let Some(why) = &wish.join_failed {
            decision.block(UnsafeBecause::JoinFailed { member: member.clone(), why: why.clone() });
        }
    }
}
