//! Rolling restarts, for changed settings and new versions that etcd reads only when it starts.

use super::{log, version};
use crate::kinds::etcd::safety;
use crate::model::{BinarySeen, DesiredMember, EDITED, Facts, MemberName, Observation, ServiceState};
use crate::planner::config::with_changes;
use crate::planner::{Action, Decision, UnsafeBecause, View, WaitingFor};

/// Restarts the members whose etcd runs with older settings, one at a time: an unhealthy one first, because the restart
/// may fix it; then followers; the leader last, after it has handed over.
pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    if !desired.etcd.formation.is_formed() || !decision.steps.is_empty() {
        return;
    }
    let Ok(path) = version::path(view) else { return };
    let behind: Vec<&MemberName> =
        desired.members.iter().filter(|(m, wish)| runs_older_inputs(seen, m, wish)).map(|(m, _)| m).collect();
    if version::takes_back(view, decision) {
        return;
    }
    if !log::is_ready(view) {
        return prepare_logs(view, decision);
    }
    if behind.is_empty() {
        return version::follow(view, decision);
    }
    if version::is_everywhere(view, path) && version::is_open(view, path) {
        disturb_one(view, decision, &behind, |member| {
            (Action::RestartEtcd { member: member.clone() }, restart_reason(view, member))
        });
    }
}

/// The same for the snapshots that a newer version needs before it starts.
fn prepare_logs(view: &View<'_>, decision: &mut Decision) {
    if let Some(wait) = log::awaited(view) {
        // Why a member does not answer may be reported already.
        let told = |member: &MemberName| {
            decision.has_business_with(member) || decision.waiting.iter().any(|wait| wait.member() == Some(member))
        };
        if !wait.member().is_some_and(told) {
            decision.wait(wait);
        }
        return;
    }
    disturb_one(view, decision, &log::behind(view), |member| {
        (Action::TakeRaftSnapshot { member: member.clone() }, log::why(view, member))
    });
}

/// Disturbs the next of these members if the rules allow it: the leader hands over first.
pub(crate) fn disturb_one(
    view: &View<'_>,
    decision: &mut Decision,
    behind: &[&MemberName],
    restart: impl Fn(&MemberName) -> (Action, String),
) {
    let seen = view.seen;
    let leads = |member: &MemberName| leads(seen, member);
    let unwell = |member: &MemberName| !seen.facts(member).is_some_and(safety::is_healthy_voter);
    let first = behind.iter().find(|m| unwell(m)).or_else(|| behind.iter().find(|m| !leads(m)));
    let Some(next) = first.or(behind.first()).filter(|next| !decision.has_business_with(next)) else { return };
    let safety::Voters { all, healthy } = safety::voters(view);
    match safety::may_disturb(view, next) {
        Ok(()) => {}
        // A member is starting: this needs time, not the operator.
        Err(UnsafeBecause::Quorum { .. }) if !decision.waiting.is_empty() => {
            return decision.wait(WaitingFor::Turn { member: (*next).clone(), voters: all, healthy });
        }
        Err(because) => return decision.block(because),
    }
    if leads(next)
        && !unwell(next)
        && let Some((to, to_id)) = successor(view, next)
    {
        let why = format!("{next} is the leader and about to restart; moving leadership first shortens the write gap");
        return decision.step(Action::MoveLeader { member: (*next).clone(), to, to_id }, why);
    }
    let (action, why) = restart(next);
    decision.step(action, told_with_numbers(view, next, &why));
}

pub(crate) fn leads(seen: &Observation, member: &MemberName) -> bool {
    seen.status(member).is_some_and(|s| s.leader == s.member_id)
}

/// Why a member is disturbed, and what that means for the others.
pub(crate) fn told_with_numbers(view: &View<'_>, member: &MemberName, why: &str) -> String {
    let seen = view.seen;
    let safety::Voters { all, healthy } = safety::voters(view);
    let quorum = safety::quorum(all);
    if !seen.facts(member).is_some_and(safety::is_healthy_voter) {
        return format!("{why}; {member} is not healthy, so a restart costs nothing and may repair it");
    }
    let remain = safety::other_voters(view, member).healthy;
    if remain < quorum {
        return format!("{why}; the cluster is down during the restart, as the operator allowed");
    }
    format!("{why}; {member} is a voter and {healthy} of {all} are healthy: {remain} remain, quorum is {quorum}")
}

fn restart_reason(view: &View<'_>, member: &MemberName) -> String {
    let View { desired, seen, .. } = *view;
    let wanted = &desired.members[member].etcd_version;
    if seen.facts(member).is_some_and(was_edited) {
        return String::from("another tool changed or removed its manifest");
    }
    match seen.status(member).map(|s| &s.version) {
        Some(running) if running != wanted => format!("it runs etcd {running}, and the spec asks for {wanted}"),
        _ => with_changes(desired, String::from("its settings changed")),
    }
}

fn was_edited(facts: &Facts) -> bool {
    matches!(&facts.etcd.service, ServiceState::Running { digest, .. } if digest == EDITED)
}

fn runs_older_inputs(seen: &Observation, member: &MemberName, wish: &DesiredMember) -> bool {
    let Some(facts) = seen.facts(member) else { return false };
    let in_place = facts.node_config.as_ref().is_some_and(|(_, digest)| *digest == wish.digest);
    let ServiceState::Running { digest, .. } = &facts.etcd.service else { return false };
    in_place && (*digest != wish.service_digest || runs_other_version(wish, facts))
}

/// Its program was replaced while it ran, and the wanted version is there again.
fn runs_other_version(wish: &DesiredMember, facts: &Facts) -> bool {
    let wanted = &wish.etcd_version;
    let is_there = facts.etcd.binary == BinarySeen::Version(wanted.clone());
    is_there && facts.etcd.status.as_ref().is_some_and(|status| status.version != *wanted)
}

fn successor(view: &View<'_>, leader: &MemberName) -> Option<(MemberName, u64)> {
    let desired = view.desired;
    let cluster = view.cluster()?;
    cluster.successor(desired, cluster.get(leader)?.id)
}
