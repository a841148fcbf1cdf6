//! etcd's version: which way leads from what runs to what is wanted, and what etcd must have agreed to before, and does after. The
//! restarts themselves are those of any changed config.

use super::cluster::{Cluster, Listed};
use super::{Action, Decision, UnsafeBecause, WaitingFor};
use crate::model::{BinarySeen, Desired, DesiredMember, Formation, MemberName, Observation};
use crate::versions::{self, Path, Version};

/// How the cluster comes from what it runs to what is wanted, or why it may not. A member that does not answer counts as what
/// the cluster ran when all did.
pub(super) fn path(desired: &Desired, seen: &Observation) -> Result<Path, UnsafeBecause> {
    let Formation::Formed { members, .. } = &desired.formation else { return Ok(Path::Same) };
    let Some(wish) = desired.members.values().next() else { return Ok(Path::Same) };
    let wanted = &wish.config.etcd.version;
    let settled = desired.formed_with.as_ref().map(|f| f.etcd_version.as_str());
    let spoken = Cluster::see(desired, seen)
        .filter(|cluster| {
            cluster.listed.iter().all(|m| seen.status(&m.name).is_none_or(|s| s.downgrade_target.is_none()))
        })
        .and_then(|cluster| cluster.cluster_version?.parse::<Version>().ok());
    let mut path = Path::Same;
    for member in members.keys() {
        let told = seen.status(member).map(|s| s.version.as_str());
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

/// Rule 10 at work: programs first, everywhere.
pub(super) fn is_everywhere(desired: &Desired, seen: &Observation, path: Path) -> bool {
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
pub(super) fn may_go_down(desired: &Desired, seen: &Observation, decision: &mut Decision) -> bool {
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
pub(super) fn takes_back(desired: &Desired, seen: &Observation, decision: &mut Decision) -> bool {
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
pub(super) fn follow(desired: &Desired, seen: &Observation, decision: &mut Decision) {
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
