//! Machines that go while their members stay, or are to.

use super::{Absence, UnsafeBecause, Voters, judge_absence, may_disturb, may_lose, may_remove, quorum};
use crate::model::{Desired, MemberName, Observation};
use crate::planner::cluster::{Cluster, Listed};

/// Rules 3, 8 and 9: may the machine of this member be taken away for another one, its data kept? Where a restart may be; and where it
/// counts as dead and the others have their quorum, for then that takes nothing away.
pub fn may_renew(desired: &Desired, seen: &Observation, member: &MemberName) -> Result<(), UnsafeBecause> {
    let refused = match may_disturb(desired, seen, member) {
        Ok(()) => return Ok(()),
        Err(because) => because,
    };
    // One that peers could not be asked about may be needed by those that are not seen either.
    let others_do = Cluster::see(desired, seen).is_some_and(|cluster| may_lose(&cluster, member).is_ok());
    match judge_absence(desired, seen, member, "it does not answer") {
        Ok(Absence::Dead(_)) if others_do && seen.facts(member).is_none() => Ok(()),
        _ => Err(refused),
    }
}

/// Rule 3: may a member that is well be given up for another machine? All the others are well; and where its address must be free
/// first, they have their quorum.
pub fn may_replace(desired: &Desired, cluster: &Cluster<'_>, member: &Listed<'_>) -> Result<(), UnsafeBecause> {
    let Voters { all: voters, healthy } = cluster.count();
    if healthy < voters {
        return Err(UnsafeBecause::Quorum { member: member.name.clone(), voters, healthy, quorum: quorum(voters) });
    }
    let pinned = desired.members.get(&member.name).is_some_and(|wish| wish.address.is_some());
    if pinned { may_remove(cluster, member).map(drop) } else { Ok(()) }
}
