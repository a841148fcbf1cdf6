//! etcd's version: the path from the running to the wanted version, and what etcd must confirm before and after. The restarts are
//! those of any changed configuration.

use super::{log, program};
use crate::kinds::etcd::cluster::Listed;
use crate::kinds::etcd::safety;
use crate::kinds::etcd::versions::{self, Path};
use crate::kinds::etcd::{EtcdStatus, Formation};
use crate::model::Version;
use crate::model::{BinarySeen, DesiredMember, MemberName};
use crate::planner::{Action, Decision, UnsafeBecause, View, WaitingFor};

/// From here on etcd reports the format of its data.
pub(crate) const FORMAT_TOLD: Version = Version::new(3, 6, 0);

/// Whether machines may get their configuration now. A member that starts later runs the version in its configuration. An older version
/// could not start before etcd has agreed to a downgrade, nor a newer one on a log that it cannot read.
pub(crate) fn may_configure(view: &View<'_>, decision: &mut Decision) -> bool {
    match safety::quota_has_room(view).and_then(|()| path(view)) {
        Err(because) => {
            decision.block(because);
            false
        }
        Ok(Path::Down) => may_go_down(view, decision),
        Ok(_) => log::is_ready(view),
    }
}

/// The path from the running version to the wanted one, or why there is none. A member that does not answer counts with the
/// last version that all members ran; if that is unknown, there is no path.
pub(crate) fn path(view: &View<'_>) -> Result<Path, UnsafeBecause> {
    let View { desired, seen, .. } = *view;
    let Formation::Formed { members, .. } = &desired.etcd.formation else { return Ok(Path::Same) };
    let Some(wish) = desired.members.values().next() else { return Ok(Path::Same) };
    let wanted = &wish.etcd_version;
    let settled = desired.etcd.formed_with.as_ref().map(|f| f.version.as_str());
    let spoken = view
        .cluster()
        .filter(|cluster| {
            cluster.listed.iter().all(|m| seen.status(&m.name).is_none_or(|s| s.downgrade_target.is_none()))
        })
        .and_then(|cluster| cluster.cluster_version.as_ref()?.parse::<Version>().ok());
    let mut path = Path::Same;
    let Ok(to) = wanted.parse::<Version>() else { return Ok(Path::Same) };
    if let Some(because) = desired.members.iter().find_map(|(member, wish)| program::wrong_image(seen, member, wish)) {
        return Err(because);
    }
    for member in members.keys() {
        if seen.facts(member).is_some_and(|f| f.etcd.last_started.is_none()) {
            continue;
        }
        let told = seen.status(member).map(|s| s.version.as_str());
        let running = told.or(settled).unwrap_or_default();
        let Ok(from) = running.parse::<Version>() else {
            return Err(UnsafeBecause::VersionUnknown {
                member: member.clone(),
                told: running.to_owned(),
                wanted: wanted.clone(),
            });
        };
        // While the cluster version is the older one, no member has written anything that only the newer one can read. A member that
        // does not report its version may be the last one of a downgrade, with its data in the newer format.
        let unfinished = spoken
            .is_some_and(|spoken| spoken.line() == to.line() && from.line() != to.line() && from > to)
            && has_not_written(to, seen.status(member));
        let way = if unfinished { Ok(Path::Patch) } else { versions::path(from, to, desired.etcd.auth.is_some()) };
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

/// Rule 10: all machines get the new program before the first restart.
pub(crate) fn is_everywhere(view: &View<'_>, path: Path) -> bool {
    let View { desired, seen, .. } = *view;
    if path == Path::Same {
        return true;
    }
    let in_place = |(member, wish): (&MemberName, &DesiredMember)| {
        !desired.etcd.formation.has_member(member)
            || seen.facts(member).is_some_and(|f| {
                f.node_config.as_ref().is_some_and(|(_, digest)| *digest == wish.digest)
                    && f.etcd.binary == BinarySeen::Version(wish.etcd_version.clone())
            })
    };
    desired.members.iter().all(in_place)
}

/// The progress of a downgrade's preparation.
enum WayDown {
    /// etcd has agreed, and all data is written as the older version can read it.
    Open,
    Enable {
        through: Option<MemberName>,
        version: String,
        why: String,
    },
    Wait(WaitingFor),
    /// No voter reports for the cluster.
    Unseen,
}

/// etcd agrees to the downgrade, and writes its data in the older format; then members may restart.
pub(crate) fn may_go_down(view: &View<'_>, decision: &mut Decision) -> bool {
    match way_down(view, |m| !decision.has_business_with(m)) {
        WayDown::Open => return true,
        // etcd accepts no second downgrade while the first one is in progress, even if that has been carried out.
        WayDown::Enable { .. } if takes_back(view, decision) => {}
        WayDown::Enable { through: Some(through), version, why } => {
            decision.step(Action::EnableDowngrade { through, version }, why);
        }
        // Why a member does not answer may be reported already.
        WayDown::Wait(wait) if wait.member().is_some_and(|m| decision.has_business_with(m)) => {}
        WayDown::Wait(wait) => decision.wait(wait),
        WayDown::Enable { through: None, .. } | WayDown::Unseen => {}
    }
    false
}

/// Whether all members can restart with the older version.
pub(crate) fn is_open(view: &View<'_>, path: Path) -> bool {
    path != Path::Down || matches!(way_down(view, |_| true), WayDown::Open)
}

/// quorate waits for missing reports: it assumes neither the cluster version nor the format of any data.
fn way_down(view: &View<'_>, trusted: impl Fn(&MemberName) -> bool) -> WayDown {
    let desired = view.desired;
    let Some(cluster) = view.cluster() else { return WayDown::Unseen };
    let Some(goal) = desired.members.values().next().and_then(|w| w.etcd_version.parse::<Version>().ok()) else {
        return WayDown::Unseen;
    };
    let wanted = Version { patch: 0, ..goal }.to_string();
    let line = |v: &str| v.parse::<Version>().ok().map(|v| (v.major, v.minor));
    let Some(now) = cluster.cluster_version.clone().filter(|now| line(now).is_some()) else {
        return WayDown::Wait(WaitingFor::VersionSight { member: None, wanted });
    };
    if line(&now) != line(&wanted) {
        let told = |m: &Listed<'_>| m.facts?.etcd.status.as_ref()?.downgrade_target.clone();
        if cluster.voters().filter_map(told).any(|to| wanted.starts_with(&to)) {
            return WayDown::Wait(WaitingFor::ClusterVersion { now, wanted });
        }
        let why = format!(
            "{goal} is below the cluster version: the downgrade must be enabled before the first member restarts"
        );
        return WayDown::Enable { through: cluster.spokesman(None, trusted).cloned(), version: wanted, why };
    }
    for member in cluster.voters() {
        match readable_by(goal, member.facts.and_then(|f| f.etcd.status.as_ref())) {
            Readable::Yes => {}
            Readable::No { now } => {
                return WayDown::Wait(WaitingFor::StorageVersion { member: member.name.clone(), now, wanted });
            }
            Readable::Untold => {
                return WayDown::Wait(WaitingFor::VersionSight { member: Some(member.name.clone()), wanted });
            }
        }
    }
    WayDown::Open
}

/// Whether an older version can read what a member has written.
enum Readable {
    Yes,
    No { now: String },
    Untold,
}

/// Whether an upgraded member has not yet written in the newer format. Before 3.6 no member reports that, and no member writes it
/// before the cluster version is raised.
fn has_not_written(to: Version, status: Option<&EtcdStatus>) -> bool {
    let runs = status.and_then(|s| s.version.parse::<Version>().ok());
    runs.is_some_and(|runs| runs < FORMAT_TOLD || matches!(readable_by(to, status), Readable::Yes))
}

/// A member that runs the older version, or one before it, can read what it has written; each of the others must report it.
fn readable_by(goal: Version, status: Option<&EtcdStatus>) -> Readable {
    let line = |v: Version| (v.major, v.minor);
    let Some((status, runs)) = status.and_then(|s| Some((s, s.version.parse::<Version>().ok()?))) else {
        return Readable::Untold;
    };
    if line(runs) <= line(goal) {
        return Readable::Yes;
    }
    match status.storage_version.as_ref().and_then(|now| Some((now, now.parse::<Version>().ok()?))) {
        Some((_, format)) if line(format) <= line(goal) => Readable::Yes,
        Some((now, _)) => Readable::No { now: now.clone() },
        None => Readable::Untold,
    }
}

/// Cancels a downgrade that the spec no longer asks for: while it is enabled, etcd does not upgrade and admits no new member.
pub(crate) fn takes_back(view: &View<'_>, decision: &mut Decision) -> bool {
    let desired = view.desired;
    let Some(cluster) = view.cluster() else { return false };
    let Some(wish) = desired.members.values().next() else { return false };
    let wanted = &wish.etcd_version;
    let told = |m: &Listed<'_>| m.facts?.etcd.status.as_ref()?.downgrade_target.clone();
    let Some(target) = cluster.voters().filter_map(told).find(|to| !wanted.starts_with(&line_of(to))) else {
        return false;
    };
    let Some(through) = cluster.spokesman(None, |m| !decision.has_business_with(m)).cloned() else { return false };
    let why = format!("etcd is being downgraded to {target}, and the spec asks for {wanted}");
    decision.step(Action::CancelDowngrade { through }, why);
    true
}

/// `3.5.` of `3.5` and of `3.5.0`.
fn line_of(version: &str) -> String {
    version.split('.').take(2).map(|part| format!("{part}.")).collect()
}

/// All members run the wanted version; the cluster version follows.
pub(crate) fn follow(view: &View<'_>, decision: &mut Decision) {
    let desired = view.desired;
    let Some(cluster) = view.cluster() else { return };
    let Some(wish) = desired.members.values().next() else { return };
    let wanted = &wish.etcd_version;
    let line = |v: &str| v.parse::<Version>().ok().map(|v| (v.major, v.minor));
    let all_run_it = cluster
        .voters()
        .all(|m| m.facts.and_then(|f| f.etcd.status.as_ref()).is_some_and(|s| line(&s.version) == line(wanted)));
    if let Some(now) = cluster.cluster_version.as_deref().filter(|now| all_run_it && line(now) != line(wanted)) {
        decision.wait(WaitingFor::ClusterVersion { now: now.to_owned(), wanted: wanted.clone() });
    }
}
