//! The node config: given to every machine, and taken up by etcd through a rolling restart where it must be. A change of etcd's
//! version is one of these changes (`version`).

use super::{Action, Decision, UnsafeBecause, View, WaitingFor};
use crate::kinds::etcd::versions::Path;
use crate::kinds::etcd::{self};
use crate::model::{
    BinarySeen, BinarySource, ConfigAttempt, Desired, DesiredMember, Facts, MemberName, Observation, ServiceState,
};
use crate::spec::Change;

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    match etcd::planner::version::path(view) {
        Err(because) => return decision.block(because),
        // A machine that starts anew runs what its config says; an older version could not, before etcd has agreed.
        Ok(Path::Down) if !etcd::planner::version::may_go_down(view, decision) => return,
        Ok(_) => {}
    }
    for (member, wish) in &desired.members {
        let why = match seen.facts(member) {
            None if decision.enrols(member) => format!("{member} has no configuration yet"),
            Some(facts) if !decision.has_business_with(member) => match &facts.node_config {
                _ if let Some(because) = refused(member, wish, facts) => {
                    decision.block(because);
                    continue;
                }
                Some((generation, digest)) if *generation == wish.generation && *digest == wish.digest => {
                    match wrong_binary(member, wish, &facts.etcd.binary) {
                        None => continue,
                        Some(because) if facts.etcd.attempt == ConfigAttempt::Untold => {
                            decision.block(because);
                            continue;
                        }
                        // It may have been put there since.
                        Some(because) => format!("{because}: it looks again"),
                    }
                }
                None => format!("{member} has no configuration yet"),
                Some(_) => with_changes(desired, String::from("configuration differs")),
            },
            _ => continue,
        };
        decision.step(Action::PushConfig { member: member.clone(), generation: wish.generation }, why);
    }
}

/// Restarts, one after another, the members whose etcd runs with older inputs: one that is not well first, for that may
/// heal it; then followers; the leader last and only after it has handed over.
pub(crate) fn restart(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    if !desired.etcd.formation.is_formed() || !decision.steps.is_empty() {
        return;
    }
    let Ok(path) = etcd::planner::version::path(view) else { return };
    let behind: Vec<&MemberName> =
        desired.members.iter().filter(|(m, wish)| runs_older_inputs(seen, m, wish)).map(|(m, _)| m).collect();
    let leads = |member: &MemberName| leads(seen, member);
    let unwell = |member: &MemberName| !seen.facts(member).is_some_and(etcd::safety::is_healthy_voter);
    let first = behind.iter().find(|m| unwell(m)).or_else(|| behind.iter().find(|m| !leads(m)));
    if etcd::planner::version::takes_back(view, decision) {
        return;
    }
    let Some(next) = first.or(behind.first()) else { return etcd::planner::version::follow(view, decision) };
    let prepared = etcd::planner::version::is_everywhere(view, path) && etcd::planner::version::is_open(view, path);
    if decision.has_business_with(next) || !prepared {
        return;
    }
    let etcd::safety::Voters { all, healthy } = etcd::safety::voters(view);
    match etcd::safety::may_disturb(view, next) {
        Ok(()) => {}
        // Somebody is on the way back: that needs time, not the operator.
        Err(UnsafeBecause::Quorum { .. }) if !decision.waiting.is_empty() => {
            return decision.wait(WaitingFor::Turn { member: (*next).clone(), voters: all, healthy });
        }
        Err(because) => return decision.block(because),
    }
    if leads(next)
        && !unwell(next)
        && let Some((to, to_id)) = successor(view, next)
    {
        let why = format!("{next} leads and is about to restart: clients wait less when it hands over first");
        return decision.step(Action::MoveLeader { member: (*next).clone(), to, to_id }, why);
    }
    let why = told_with_numbers(view, next, &what_changed(view, next));
    decision.step(Action::RestartEtcd { member: (*next).clone() }, why);
}

pub(crate) fn leads(seen: &Observation, member: &MemberName) -> bool {
    seen.status(member).is_some_and(|s| s.leader == s.member_id)
}

/// Why a member is disturbed, and what that means for the others.
pub(crate) fn told_with_numbers(view: &View<'_>, member: &MemberName, why: &str) -> String {
    let seen = view.seen;
    let etcd::safety::Voters { all, healthy } = etcd::safety::voters(view);
    let quorum = etcd::safety::quorum(all);
    if !seen.facts(member).is_some_and(etcd::safety::is_healthy_voter) {
        return format!("{why}; {member} is not healthy, so a restart costs nothing and may repair it");
    }
    let remain = etcd::safety::other_voters(view, member).healthy;
    if remain < quorum {
        return format!("{why}; the cluster is down during the restart, as the operator allowed");
    }
    format!("{why}; {member} is a voter and {healthy} of {all} are healthy: {remain} remain, quorum is {quorum}")
}

fn what_changed(view: &View<'_>, member: &MemberName) -> String {
    let View { desired, seen, .. } = *view;
    let wanted = &desired.members[member].etcd_version;
    match seen.status(member).map(|s| &s.version) {
        Some(running) if running != wanted => format!("it runs etcd {running}, and the spec asks for {wanted}"),
        _ => with_changes(desired, String::from("its settings changed")),
    }
}

/// So many changes are named in a reason; the plan lists them all.
const NAMED: usize = 3;

/// A reason with the changed settings that reach the machine.
fn with_changes(desired: &Desired, why: String) -> String {
    let reaches = |change: &&Change| ["etcd.", "tls.", "host."].iter().any(|section| change.path.starts_with(section));
    let changes: Vec<String> = desired.changes.iter().filter(reaches).map(Change::brief).collect();
    match changes.len() {
        0 => why,
        few @ 1..=NAMED => format!("{why}: {}", changes[..few].join(", ")),
        many => format!("{why}: {}, and {} more", changes[..NAMED].join(", "), many - NAMED),
    }
}

fn runs_older_inputs(seen: &Observation, member: &MemberName, wish: &DesiredMember) -> bool {
    let Some(facts) = seen.facts(member) else { return false };
    let in_place = facts.node_config.as_ref().is_some_and(|(_, digest)| *digest == wish.digest);
    let ServiceState::Running { digest, .. } = &facts.etcd.service else { return false };
    in_place && (*digest != wish.etcd_digest || runs_other_version(wish, facts))
}

/// Its program was exchanged under it, and the one that the spec asks for is there again.
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

/// A machine does not take a config whose etcd it does not have; what it has stays in force.
fn refused(member: &MemberName, wish: &DesiredMember, facts: &Facts) -> Option<UnsafeBecause> {
    match &facts.etcd.attempt {
        ConfigAttempt::WithoutProgram { digest, seen } if *digest == wish.digest => wrong_binary(member, wish, seen),
        _ => None,
    }
}

/// Why nothing was downloaded.
fn without_archive(wish: &DesiredMember) -> &'static str {
    match wish.config.etcd().map(|etcd| &etcd.binary) {
        Some(BinarySource::Search { otherwise: None }) => {
            " on its PATH, and this quorate knows no checksum with which it could download that release"
        }
        _ => "",
    }
}

fn wrong_binary(member: &MemberName, wish: &DesiredMember, seen: &BinarySeen) -> Option<UnsafeBecause> {
    let wanted = &wish.etcd_version;
    let found = match seen {
        BinarySeen::Version(version) if version == wanted => return None,
        BinarySeen::Version(version) => format!("finds {version}{}", without_archive(wish)),
        BinarySeen::Missing { why } => format!("finds none: {why}{}", without_archive(wish)),
        BinarySeen::Unasked => return None,
    };
    Some(UnsafeBecause::WrongBinary { member: member.clone(), wanted: wanted.clone(), found })
}
