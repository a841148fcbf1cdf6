//! Machines that are removed while their members stay.

use super::{Voters, may_disturb, may_lose, may_remove, quorum, voters};
use crate::kinds::etcd::cluster::{Cluster, Listed};
use crate::model::{Desired, MemberName};
use crate::planner::safety::{Absence, judge_absence};
use crate::planner::{UnsafeBecause, View};

/// Rules 3, 8 and 9: may this member's machine be replaced, with its data kept? If a restart is allowed. An unreachable member may be
/// healthy: then the others need a quorum without it, or it must count as dead, or downtime must be allowed.
pub fn may_renew(view: &View<'_>, member: &MemberName) -> Result<(), UnsafeBecause> {
    let View { desired, seen, .. } = *view;
    let as_a_restart = may_disturb(view, member);
    if seen.facts(member).is_some() {
        return as_a_restart;
    }
    let Voters { all, healthy } = voters(view);
    let refused = match as_a_restart {
        Ok(()) if healthy >= quorum(all) || desired.downtime => return Ok(()),
        Ok(()) => UnsafeBecause::Outage { member: member.clone(), voters: all },
        Err(because) => because,
    };
    // If peers could not be asked about it, other unreachable members may need it.
    let others_do = view.cluster().is_some_and(|cluster| may_lose(cluster, member).is_ok());
    match judge_absence(view, member, "it does not answer") {
        Ok(Absence::Dead(_)) if others_do => Ok(()),
        _ => Err(refused),
    }
}

/// Rule 3: may a healthy member be given up for another machine? All others must be healthy; and if its address must be free
/// first, they need a quorum.
pub fn may_replace(desired: &Desired, cluster: &Cluster<'_>, member: &Listed<'_>) -> Result<(), UnsafeBecause> {
    let Voters { all: voters, healthy } = cluster.count();
    if healthy < voters {
        return Err(UnsafeBecause::Quorum { member: member.name.clone(), voters, healthy, quorum: quorum(voters) });
    }
    let pinned = desired.members.get(&member.name).is_some_and(|wish| wish.address.is_some());
    if pinned { may_remove(cluster, member).map(drop) } else { Ok(()) }
}
