//! What a member has lost with its data, and whether the others can continue without it.

use crate::kinds::etcd::cluster::{Listed, peer_url};
use crate::kinds::etcd::safety::{self, DataVerdict};
use crate::model::{Desired, Facts, MemberName};
use crate::planner::{Decision, Loss, View, WaitingFor};

/// Of a member whose machine answers.
pub(crate) fn of_member(view: &View<'_>, member: &MemberName, facts: &Facts) -> Option<Loss> {
    let View { desired, seen, .. } = *view;
    if let Some(older) = &facts.etcd.older {
        return Some(Loss::Known(format!(
            "the data of {member} is older than what the member acknowledged: its log ends at {}, and it had acknowledged {} (according to \
             {}): it could vote twice",
            older.holds, older.acknowledged, older.told_by
        )));
    }
    let listed = view.cluster().and_then(|c| c.get(member));
    match safety::judge_data(desired, member, desired.etcd.formation.token(), seen.now, facts) {
        DataVerdict::Lost => Some(Loss::Known(format!("the data of {member} is lost: its disk was wiped or replaced"))),
        DataVerdict::MayBeginAsNew if machine_of(desired, member) != Some(facts.machine_id.as_str()) => {
            Some(Loss::Known(format!("the machine of {member} is not the one that joined, and holds no data")))
        }
        DataVerdict::MayBeginAsNew if listed.is_some_and(|l| !l.is_learner) => {
            Some(Loss::Known(format!("{member} votes, and its data directory is empty: its disk was lost")))
        }
        DataVerdict::MayGoOn if was_removed(view, member) => {
            Some(Loss::Known(format!("etcd no longer lists {member}: it was removed, and its data is useless")))
        }
        _ => None,
    }
}

/// A member that the spec names again while the machine from which it was removed is still there: etcd never takes it back with
/// that data.
pub(crate) fn of_new(view: &View<'_>, member: &MemberName) -> Option<Loss> {
    let View { desired, seen, .. } = *view;
    let fresh = view.cluster().is_some_and(|c| safety::is_fresh(desired, c) && c.get(member).is_none());
    let facts = seen.facts(member).filter(|_| fresh)?;
    match safety::judge_data(desired, member, desired.etcd.formation.token(), seen.now, facts) {
        DataVerdict::MayBeginAsNew | DataVerdict::Foreign(_) => None,
        DataVerdict::MayGoOn | DataVerdict::Lost | DataVerdict::Leftover(_) => Some(Loss::Known(format!(
            "the machine of {member} was removed from the cluster, and etcd rejects its old data"
        ))),
    }
}

/// The members left without it, if they suffice. Otherwise the decision says what is missing.
pub(crate) fn others_can_do_without(view: &View<'_>, member: &MemberName, decision: &mut Decision) -> Option<String> {
    let Some(cluster) = view.cluster() else {
        match safety::majority_is_there(view) {
            Ok(()) => {
                let why = String::from("the others must agree on its successor, and do not answer yet");
                decision.wait(WaitingFor::Health { member: member.clone(), why });
            }
            Err(because) => decision.block(because),
        }
        return None;
    };
    safety::may_lose(cluster, member).map_err(|because| decision.block(because)).ok()
}

/// A member that was about to join has no data to wait for.
pub(crate) fn votes(view: &View<'_>, member: &MemberName) -> bool {
    let known = view.desired.etcd.formation.members().and_then(|members| members.get(member));
    match view.cluster() {
        Some(cluster) => cluster.get(member).is_some_and(|listed| !listed.is_learner),
        None => known.is_some_and(|known| !known.learner),
    }
}

/// The machine with which the member joined.
fn machine_of<'a>(desired: &'a Desired, member: &MemberName) -> Option<&'a str> {
    desired.etcd.formation.members()?.get(member).map(|known| known.machine_id.as_str())
}

/// Another tool removed it. A member list older than the last change does not show that.
fn was_removed(view: &View<'_>, member: &MemberName) -> bool {
    let View { desired, seen, .. } = *view;
    let Some(cluster) = view.cluster().filter(|c| safety::is_fresh(desired, c)) else { return false };
    // Another tool may have changed its URL: etcd identifies it by its ID.
    let (url, id) = (peer_url(seen, member), seen.status(member).map(|status| status.member_id));
    let is_it = |l: &Listed<'_>| Some(&l.peer_url) == url.as_ref() || Some(l.id) == id;
    cluster.get(member).is_none() && !cluster.listed.iter().any(is_it)
}
