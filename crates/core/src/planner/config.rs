//! The node config: given to every machine, and taken up by etcd through a rolling restart where it must be. A change of etcd's
//! version is one of these changes: its program is everywhere before the first restart.

use super::cluster::{Cluster, Listed};
use super::{Action, Decision, UnsafeBecause, WaitingFor, safety};
use crate::model::{
    BinarySeen, Desired, DesiredMember, EtcdStatus, Facts, Formation, MemberName, Observation, ServiceState,
};
use crate::versions::{self, Path, Version};

pub(super) fn decide(desired: &Desired, seen: &Observation, decision: &mut Decision) {
    match version_path(desired, seen) {
        Err(because) => return decision.block(because),
        // A machine that starts anew runs what its config says; an older version could not, before etcd has agreed.
        Ok(Path::Down) if !may_go_down(desired, seen, decision) => return,
        Ok(_) => {}
    }
    for (member, wish) in &desired.members {
        if decision.has_business_with(member) {
            continue;
        }
        let Some(facts) = seen.facts(member) else { continue };
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

/// How the cluster comes from what it runs to what is wanted, or why it may not. A member that does not answer counts as what
/// the cluster ran when all did.
fn version_path(desired: &Desired, seen: &Observation) -> Result<Path, UnsafeBecause> {
    let Formation::Formed { members, .. } = &desired.formation else { return Ok(Path::Same) };
    let Some(wish) = desired.members.values().next() else { return Ok(Path::Same) };
    let wanted = &wish.config.etcd.version;
    let settled = desired.formed_with.as_ref().map(|f| f.etcd_version.as_str());
    let spoken = Cluster::see(desired, seen)
        .filter(|cluster| {
            cluster.listed.iter().all(|m| status(seen, &m.name).is_none_or(|s| s.downgrade_target.is_none()))
        })
        .and_then(|cluster| cluster.cluster_version?.parse::<Version>().ok());
    let mut path = Path::Same;
    for member in members.keys() {
        let told = status(seen, member).map(|s| s.version.as_str());
        let joining = seen.facts(member).is_some_and(|f| f.etcd.last_started.is_none());
        let Some(running) = told.or(settled).filter(|_| !joining) else { continue };
        let (Ok(from), Ok(to)) = (running.parse::<Version>(), wanted.parse::<Version>()) else { continue };
        // Where the cluster still speaks the older version, nobody has written anything that only the newer one reads.
        let unfinished =
            spoken.is_some_and(|spoken| spoken.line() == to.line() && from.line() != to.line() && from > to);
        let way = if unfinished { Ok(Path::Patch) } else { versions::path(from, to, desired.auth.is_some()) };
        match way {
            Ok(Path::Same) => {}
            Ok(other) => path = other,
            Err(refused) => {
                return Err(UnsafeBecause::VersionPath {
                    running: running.to_owned(),
                    wanted: wanted.clone(),
                    why: refused.why,
                    remedy: refused.remedy,
                });
            }
        }
    }
    Ok(path)
}

/// Restarts, one after another, the members whose etcd runs with older inputs: one that is not well first, for that may
/// heal it; then followers; the leader last and only after it has handed over.
pub(super) fn restart(desired: &Desired, seen: &Observation, decision: &mut Decision) {
    if !desired.formation.is_formed() || !decision.steps.is_empty() {
        return;
    }
    let Ok(path) = version_path(desired, seen) else { return };
    let behind: Vec<&MemberName> =
        desired.members.iter().filter(|(m, wish)| runs_older_inputs(seen, m, wish)).map(|(m, _)| m).collect();
    let leads = |member: &MemberName| status(seen, member).is_some_and(|s| s.leader == s.member_id);
    let unwell = |member: &MemberName| !seen.facts(member).is_some_and(safety::is_healthy_voter);
    let first = behind.iter().find(|m| unwell(m)).or_else(|| behind.iter().find(|m| !leads(m)));
    if takes_back(desired, seen, decision) {
        return;
    }
    let Some(next) = first.or(behind.first()) else { return follow(desired, seen, decision) };
    if decision.has_business_with(next) || !may_change_version(desired, seen, path) {
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
    let changed = what_changed(desired, seen, next);
    let quorum = safety::quorum(all);
    let why = if unwell(next) {
        format!("{changed}; {next} is not healthy, so its restart takes nothing away and may heal it")
    } else if healthy - 1 < quorum {
        format!("{changed}; the cluster is down meanwhile, as the operator allowed")
    } else {
        let remain = healthy - 1;
        format!("{changed}; {next} is a voter and {healthy} of {all} are healthy: {remain} remain, quorum is {quorum}")
    };
    decision.step(Action::RestartEtcd { member: (*next).clone() }, why);
}

fn what_changed(desired: &Desired, seen: &Observation, member: &MemberName) -> String {
    let wanted = &desired.members[member].config.etcd.version;
    match status(seen, member).map(|s| &s.version) {
        Some(running) if running != wanted => format!("it runs etcd {running}, and the spec asks for {wanted}"),
        _ => String::from("its settings changed"),
    }
}

/// Rule 10 at work: programs first, everywhere.
fn may_change_version(desired: &Desired, seen: &Observation, path: Path) -> bool {
    if path == Path::Same {
        return true;
    }
    let in_place = |(member, wish): (&MemberName, &DesiredMember)| {
        !desired.formation.has_member(member)
            || seen.facts(member).is_some_and(|f| {
                f.node_config.as_ref().is_some_and(|(_, digest)| *digest == wish.digest)
                    && f.etcd.binary == BinarySeen::Version(wish.config.etcd.version.clone())
            })
    };
    desired.members.iter().all(in_place)
}

/// etcd agrees to go down, and writes its data as the older version can read it; then members may restart.
fn may_go_down(desired: &Desired, seen: &Observation, decision: &mut Decision) -> bool {
    let Some(cluster) = Cluster::see(desired, seen) else { return false };
    let Some(wanted) = desired.members.values().next().and_then(|w| w.config.etcd.version.parse::<Version>().ok())
    else {
        return false;
    };
    let target = Version { patch: 0, ..wanted }.to_string();
    let line = |v: &str| v.parse::<Version>().ok().map(|v| (v.major, v.minor));
    let goal = Some((wanted.major, wanted.minor));
    if let Some(now) = cluster.cluster_version.clone().filter(|now| line(now) != goal) {
        let told = |m: &Listed<'_>| m.facts?.etcd.status.as_ref()?.downgrade_target.clone();
        if cluster.voters().filter_map(told).any(|to| target.starts_with(&to)) {
            decision.wait(WaitingFor::ClusterVersion { now, wanted: target });
            return false;
        }
        let Some(through) = cluster.spokesman(None, |m| !decision.has_business_with(m)) else { return false };
        let why = format!(
            "{wanted} is older than what the cluster speaks: etcd must agree to it before the first member restarts"
        );
        decision.step(Action::EnableDowngrade { through: through.clone(), version: target }, why);
        return false;
    }
    for member in cluster.voters() {
        let Some(status) = member.facts.and_then(|f| f.etcd.status.as_ref()) else { continue };
        let Some(now) = status.storage_version.as_deref().filter(|now| line(now) > goal) else { continue };
        if line(&status.version) > goal {
            let (member, now) = (member.name.clone(), now.to_owned());
            decision.wait(WaitingFor::StorageVersion { member, now, wanted: target });
            return false;
        }
    }
    true
}

/// A way down that the spec no longer asks for is left: while it is open, etcd goes up no more and lets nobody join.
fn takes_back(desired: &Desired, seen: &Observation, decision: &mut Decision) -> bool {
    let Some(cluster) = Cluster::see(desired, seen) else { return false };
    let Some(wish) = desired.members.values().next() else { return false };
    let wanted = &wish.config.etcd.version;
    let told = |m: &Listed<'_>| m.facts?.etcd.status.as_ref()?.downgrade_target.clone();
    let Some(target) = cluster.voters().filter_map(told).find(|to| !wanted.starts_with(&line_of(to))) else {
        return false;
    };
    let Some(through) = cluster.spokesman(None, |m| !decision.has_business_with(m)).cloned() else { return false };
    let why = format!("etcd was told to go down to {target}, and the spec asks for {wanted}");
    decision.step(Action::CancelDowngrade { through }, why);
    true
}

/// `3.5.` of `3.5` and of `3.5.0`.
fn line_of(version: &str) -> String {
    version.split('.').take(2).map(|part| format!("{part}.")).collect()
}

/// All run what is wanted; what they have agreed to speak follows.
fn follow(desired: &Desired, seen: &Observation, decision: &mut Decision) {
    let Some(cluster) = Cluster::see(desired, seen) else { return };
    let Some(wish) = desired.members.values().next() else { return };
    let wanted = &wish.config.etcd.version;
    let line = |v: &str| v.parse::<Version>().ok().map(|v| (v.major, v.minor));
    let all_run_it = cluster
        .voters()
        .all(|m| m.facts.and_then(|f| f.etcd.status.as_ref()).is_some_and(|s| line(&s.version) == line(wanted)));
    if let Some(now) = cluster.cluster_version.as_deref().filter(|now| all_run_it && line(now) != line(wanted)) {
        decision.wait(WaitingFor::ClusterVersion { now: now.to_owned(), wanted: wanted.clone() });
    }
}

fn runs_older_inputs(seen: &Observation, member: &MemberName, wish: &DesiredMember) -> bool {
    let Some(facts) = seen.facts(member) else { return false };
    let in_place = facts.node_config.as_ref().is_some_and(|(_, digest)| *digest == wish.digest);
    in_place && matches!(&facts.etcd.service, ServiceState::Running { digest, .. } if *digest != wish.etcd_digest)
}

fn successor(desired: &Desired, seen: &Observation, leader: &MemberName) -> Option<(MemberName, u64)> {
    let cluster = Cluster::see(desired, seen)?;
    cluster.successor(desired, cluster.get(leader)?.id)
}

fn status<'a>(seen: &'a Observation, member: &MemberName) -> Option<&'a EtcdStatus> {
    seen.facts(member)?.etcd.status.as_ref()
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
