//! The node config: given to every machine, and taken up by etcd through a rolling restart where it must be.

use super::{Action, Decision, UnsafeBecause, facts, safety};
use crate::model::{
    BinarySeen, Desired, DesiredMember, EtcdStatus, Facts, Formation, MemberName, Observation, ServiceState,
};

pub(super) fn decide(desired: &Desired, seen: &Observation, decision: &mut Decision) {
    for (member, wish) in &desired.members {
        if decision.has_business_with(member) {
            continue;
        }
        let Some(facts) = facts(seen, member) else { continue };
        if let Some(because) = version_differs(member, wish, facts) {
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
                    Some((generation, _)) => format!("{member} holds generation {generation} and the wish has changed"),
                },
            ),
        }
    }
}

/// Restarts, one after another, the members whose etcd runs with older inputs: followers first, the leader last and
/// only after it has handed over.
pub(super) fn restart(desired: &Desired, seen: &Observation, decision: &mut Decision) {
    if !matches!(desired.formation, Formation::Formed { .. }) || !decision.steps.is_empty() {
        return;
    }
    let behind: Vec<&MemberName> =
        desired.members.iter().filter(|(m, wish)| runs_older_inputs(seen, m, wish)).map(|(m, _)| m).collect();
    let leads = |member: &MemberName| status(seen, member).is_some_and(|s| s.leader == s.member_id);
    let Some(next) = behind.iter().find(|m| !leads(m)).or(behind.first()) else { return };
    if decision.has_business_with(next) {
        return;
    }
    if let Err(because) = safety::may_disturb(desired, seen, next) {
        return decision.block(because);
    }
    let safety::Voters { all, healthy } = safety::voters(desired, seen);
    if leads(next)
        && let Some((to, to_id)) = successor(desired, seen, next)
    {
        let why = format!("{next} leads and is about to restart: clients wait less when it hands over first");
        return decision.step(Action::MoveLeader { member: (*next).clone(), to, to_id }, why);
    }
    let why = format!(
        "its settings changed; {next} is a voter and {healthy} of {all} are healthy: {} remain, quorum is {}",
        healthy - 1,
        safety::quorum(all)
    );
    decision.step(Action::RestartEtcd { member: (*next).clone() }, why);
}

fn runs_older_inputs(seen: &Observation, member: &MemberName, wish: &DesiredMember) -> bool {
    let Some(facts) = facts(seen, member) else { return false };
    let in_place = facts.node_config.as_ref().is_some_and(|(_, digest)| *digest == wish.digest);
    in_place && matches!(&facts.etcd.service, ServiceState::Running { digest, .. } if *digest != wish.etcd_digest)
}

fn successor(desired: &Desired, seen: &Observation, leader: &MemberName) -> Option<(MemberName, u64)> {
    let others = desired.members.keys().filter(|m| *m != leader);
    others
        .filter_map(|m| Some((m, facts(seen, m)?)))
        .filter(|(_, f)| safety::is_healthy_voter(f))
        .find_map(|(m, f)| Some((m.clone(), f.etcd.status.as_ref()?.member_id)))
}

fn status<'a>(seen: &'a Observation, member: &MemberName) -> Option<&'a EtcdStatus> {
    facts(seen, member)?.etcd.status.as_ref()
}

fn version_differs(member: &MemberName, wish: &DesiredMember, facts: &Facts) -> Option<UnsafeBecause> {
    let running = facts.etcd.status.as_ref().map(|s| s.version.clone())?;
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
