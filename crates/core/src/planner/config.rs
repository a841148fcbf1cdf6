//! The node config: given to every machine, and taken up by etcd through a rolling restart where it must be.

use super::{Action, Decision, UnsafeBecause, WaitingFor, safety};
use crate::model::{
    BinarySeen, Desired, DesiredMember, EtcdStatus, Facts, Formation, MemberName, Observation, ServiceState,
};

pub(super) fn decide(desired: &Desired, seen: &Observation, decision: &mut Decision) {
    for (member, wish) in &desired.members {
        if decision.has_business_with(member) {
            continue;
        }
        let Some(facts) = seen.facts(member) else { continue };
        if let Some(because) = version_differs(desired, member, wish, facts) {
            decision.block(because);
            continue;
        }
        match &facts.node_config {
            Some((generation, digest)) if *generation == wish.generation && *digest == wish.digest => {
                if let Some(because) = wrong_binary(member, wish, facts) {
                    decision.block(because);
                }
            }
            found => decision.step(
                Action::PushConfig { member: member.clone(), generation: wish.generation },
                match found {
                    None => format!("{member} has no node config yet"),
                    Some((generation, _)) => {
                        format!("{member} holds generation {generation}, and the spec asks for something else now")
                    }
                },
            ),
        }
    }
}

/// Restarts, one after another, the members whose etcd runs with older inputs: one that is not well first, for that may
/// heal it; then followers; the leader last and only after it has handed over.
pub(super) fn restart(desired: &Desired, seen: &Observation, decision: &mut Decision) {
    if !matches!(desired.formation, Formation::Formed { .. }) || !decision.steps.is_empty() {
        return;
    }
    let behind: Vec<&MemberName> =
        desired.members.iter().filter(|(m, wish)| runs_older_inputs(seen, m, wish)).map(|(m, _)| m).collect();
    let leads = |member: &MemberName| status(seen, member).is_some_and(|s| s.leader == s.member_id);
    let unwell = |member: &MemberName| !seen.facts(member).is_some_and(safety::is_healthy_voter);
    let first = behind.iter().find(|m| unwell(m)).or_else(|| behind.iter().find(|m| !leads(m)));
    let Some(next) = first.or(behind.first()) else { return };
    if decision.has_business_with(next) {
        return;
    }
    let safety::Voters { all, healthy } = safety::voters(desired, seen);
    match safety::may_disturb(desired, seen, next) {
        Ok(()) => {}
        // Somebody is on the way back: that needs time, not the operator.
        Err(UnsafeBecause::Quorum { .. }) if !decision.waiting.is_empty() => {
            return decision.wait(WaitingFor::Turn { member: (*next).clone(), voters: all, healthy });
        }
        Err(because) => return decision.block(because),
    }
    if leads(next)
        && !unwell(next)
        && let Some((to, to_id)) = successor(desired, seen, next)
    {
        let why = format!("{next} leads and is about to restart: clients wait less when it hands over first");
        return decision.step(Action::MoveLeader { member: (*next).clone(), to, to_id }, why);
    }
    let quorum = safety::quorum(all);
    let why = if unwell(next) {
        format!("its settings changed; {next} is not healthy, so its restart takes nothing away and may heal it")
    } else if healthy - 1 < quorum {
        String::from("its settings changed; the cluster is down meanwhile, as the operator allowed")
    } else {
        let remain = healthy - 1;
        format!(
            "its settings changed; {next} is a voter and {healthy} of {all} are healthy: {remain} remain, quorum is {quorum}"
        )
    };
    decision.step(Action::RestartEtcd { member: (*next).clone() }, why);
}

fn runs_older_inputs(seen: &Observation, member: &MemberName, wish: &DesiredMember) -> bool {
    let Some(facts) = seen.facts(member) else { return false };
    let in_place = facts.node_config.as_ref().is_some_and(|(_, digest)| *digest == wish.digest);
    in_place && matches!(&facts.etcd.service, ServiceState::Running { digest, .. } if *digest != wish.etcd_digest)
}

fn successor(desired: &Desired, seen: &Observation, leader: &MemberName) -> Option<(MemberName, u64)> {
    let others = safety::voter_names(desired).into_iter().filter(|m| *m != leader);
    others
        .filter_map(|m| Some((m, seen.facts(m)?)))
        .filter(|(_, f)| safety::is_healthy_voter(f))
        .find_map(|(m, f)| Some((m.clone(), f.etcd.status.as_ref()?.member_id)))
}

fn status<'a>(seen: &'a Observation, member: &MemberName) -> Option<&'a EtcdStatus> {
    seen.facts(member)?.etcd.status.as_ref()
}

/// Also where a member does not answer: its data is of the version that the cluster was formed with.
fn version_differs(
    desired: &Desired,
    member: &MemberName,
    wish: &DesiredMember,
    facts: &Facts,
) -> Option<UnsafeBecause> {
    let told = facts.etcd.status.as_ref().map(|s| &s.version);
    let running = told.or(desired.formed_with.as_ref().map(|f| &f.etcd_version))?.clone();
    let wanted = wish.config.etcd.version.clone();
    (running != wanted).then(|| UnsafeBecause::VersionDiffers { member: member.clone(), running, wanted })
}

fn wrong_binary(member: &MemberName, wish: &DesiredMember, facts: &Facts) -> Option<UnsafeBecause> {
    let wanted = &wish.config.etcd.version;
    let found = match &facts.etcd.binary {
        BinarySeen::Version(version) if version == wanted => return None,
        BinarySeen::Version(version) => format!("finds {version}"),
        BinarySeen::Missing { why } => format!("finds none: {why}"),
        BinarySeen::Unasked => return None,
    };
    Some(UnsafeBecause::WrongBinary { member: member.clone(), wanted: wanted.clone(), found })
}
