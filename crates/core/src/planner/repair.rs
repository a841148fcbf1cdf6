//! Repair: a member whose machine or data is gone for good gets a new machine. Only the decision is here; the old one leaves
//! and the new one joins like any other (`membership`).

use jiff::SignedDuration;

use super::safety::{self, Absence};
use super::{Action, Decision, View, WaitingFor, renewal};
use crate::kinds::etcd;
use crate::kinds::etcd::Formation;
use crate::kinds::etcd::cluster::{Listed, peer_url};
use crate::kinds::etcd::safety::DataVerdict;
use crate::model::{Desired, DesiredMember, MachineSeen, MemberName, Observation, PowerState, Seen};

/// Why a member must have a new machine.
enum Loss {
    /// For certain.
    Known(String),
    /// It is not seen, which may end.
    Unseen(String),
}

pub(super) fn decide(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    let Formation::Formed { token, .. } = &desired.etcd.formation else { return };
    if seen.machines.get().is_none() {
        return;
    }
    let cluster = view.cluster();
    for (member, wish) in &desired.members {
        // What becomes of a learner is told by its patience alone: it has no vote.
        let is_learner = cluster.and_then(|c| c.get(member)).is_some_and(|l| l.is_learner);
        if is_learner || decision.has_business_with(member) {
            continue;
        }
        if let Err(because) = safety::address_is_free(view, member, wish) {
            decision.block(because);
            continue;
        }
        let may_be_made = cluster.is_some() && !is_out_of_reach(seen, member, wish);
        let never_came = never_came(view, member, wish).filter(|_| may_be_made);
        if let Some(why) = never_came {
            let incarnation = wish.incarnation + 1;
            decision.step(Action::RecordReplacement { member: member.clone(), incarnation }, why);
            continue;
        }
        match loss(view, token, member, wish) {
            None => {}
            Some(Loss::Known(why)) => replace(view, decision, member, &why),
            // It is about to go in any case (`renewal`).
            Some(Loss::Unseen(_)) if renewal::is_recorded(seen, member, wish) => {}
            Some(Loss::Unseen(why)) if is_booting(view, member, wish) => {
                decision.wait(WaitingFor::Agent { member: member.clone(), why });
            }
            // Its next machine could not be made either: it is where this one is.
            Some(Loss::Unseen(why)) if is_out_of_reach(seen, member, wish) => {
                decision.wait(WaitingFor::Agent { member: member.clone(), why });
            }
            Some(Loss::Unseen(what)) => match safety::judge_absence(view, member, &what) {
                Ok(Absence::Dead(why)) if votes(view, member) && renewal::keeps_data(seen, member, wish) => {
                    renew(view, decision, member, &why);
                }
                Ok(Absence::Dead(why)) => replace(view, decision, member, &why),
                Ok(Absence::Brief) => decision.wait(WaitingFor::Agent { member: member.clone(), why: what }),
                Err(because) => decision.block(because),
            },
        }
    }
}

/// Gives the seat another machine, if the others can do without the one it had.
fn replace(view: &View<'_>, decision: &mut Decision, member: &MemberName, why: &str) {
    let desired = view.desired;
    if let Some(left) = others_can_do_without(view, decision, member) {
        let incarnation = desired.members[member].incarnation + 1;
        decision.step(Action::RecordReplacement { member: member.clone(), incarnation }, format!("{why}; {left}"));
    }
}

/// Gives the member another machine with the data of the one that is lost. Should that data not be there, the seat is lost like any
/// other. Where there is no machine at all, a new one takes nothing from anybody.
fn renew(view: &View<'_>, decision: &mut Decision, member: &MemberName, why: &str) {
    let View { desired, seen, .. } = *view;
    let is_there = seen.machines.get().is_some_and(|machines| machines.contains_key(member));
    if is_there && others_can_do_without(view, decision, member).is_none() {
        return;
    }
    let incarnation = desired.members[member].incarnation + 1;
    let why = format!("{why}; if its data outlived it, {member} keeps it and its membership");
    decision.step(Action::RecordRenewal { member: member.clone(), incarnation }, why);
}

/// What is left without it, if that is enough. Else it is told what is missing.
fn others_can_do_without(view: &View<'_>, decision: &mut Decision, member: &MemberName) -> Option<String> {
    let Some(cluster) = view.cluster() else {
        match etcd::safety::majority_is_there(view) {
            Ok(()) => {
                let why = String::from("the others must agree on its successor, and do not answer yet");
                decision.wait(WaitingFor::Health { member: member.clone(), why });
            }
            Err(because) => decision.block(because),
        }
        return None;
    };
    etcd::safety::may_lose(cluster, member).map_err(|because| decision.block(because)).ok()
}

fn loss(view: &View<'_>, token: &str, member: &MemberName, wish: &DesiredMember) -> Option<Loss> {
    let View { desired, seen, .. } = *view;
    if !desired.etcd.formation.has_member(member) {
        return used_up(view, token, member);
    }
    let machines = seen.machines.get()?;
    let Some(machine) = machines.get(member) else {
        let with_it = if wish.data.is_some() { "" } else { ", and its data with it" };
        let what = format!("the machine of {member} is missing{with_it}");
        return Some(Loss::Unseen(what));
    };
    if machine.cluster_id != desired.cluster_id || !machine.is_up() {
        return None;
    }
    let Some(facts) = seen.facts(member) else {
        let Some(Seen::Unreachable { why, .. }) = seen.agents.get(member) else { return None };
        let what = format!("the machine of {member} does not answer: {why}");
        return Some(Loss::Unseen(what));
    };
    if let (Some(pinned), Some(has)) = (wish.address, machine.address)
        && pinned != has
    {
        return Some(Loss::Known(format!("the spec gives {member} the address {pinned}, and it has {has}")));
    }
    if let Some(older) = &facts.etcd.older {
        return Some(Loss::Known(format!(
            "the data of {member} has gone back in time: its log ends at {}, and it had acknowledged {} (according to \
             {}): it could vote twice",
            older.holds, older.acknowledged, older.told_by
        )));
    }
    let listed = view.cluster().and_then(|c| c.get(member));
    match etcd::safety::judge_data(desired, member, Some(token), seen.now, facts) {
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
fn used_up(view: &View<'_>, token: &str, member: &MemberName) -> Option<Loss> {
    let View { desired, seen, .. } = *view;
    let fresh = view.cluster().is_some_and(|c| etcd::safety::is_fresh(desired, c) && c.get(member).is_none());
    let facts = seen.facts(member).filter(|_| fresh)?;
    match etcd::safety::judge_data(desired, member, Some(token), seen.now, facts) {
        DataVerdict::MayBeginAsNew | DataVerdict::Foreign(_) => None,
        DataVerdict::MayGoOn | DataVerdict::Lost | DataVerdict::Leftover(_) => Some(Loss::Known(format!(
            "the machine of {member} was a member before, and etcd does not take its data back"
        ))),
    }
}

/// Whether the provider cannot be asked about its machine, nor make another one.
fn is_out_of_reach(seen: &Observation, member: &MemberName, wish: &DesiredMember) -> bool {
    let machine = seen.machines.get().and_then(|machines| machines.get(member));
    machine.is_some_and(|machine| machine.power == PowerState::Unknown && machine.place == wish.place)
}

/// A new machine that has not had the time to come up: its agent was never heard of.
fn is_booting(view: &View<'_>, member: &MemberName, wish: &DesiredMember) -> bool {
    let View { desired, seen, .. } = *view;
    let is_on = seen.machines.get().and_then(|m| m.get(member)).is_some_and(MachineSeen::is_up);
    let is_new = wish.enrolment.as_ref().is_some_and(|enrolment| enrolment.bound_key.is_none());
    let unseen = wish.unseen_since.map_or(SignedDuration::ZERO, |since| seen.now.duration_since(since));
    is_on && is_new && unseen < desired.boots_within
}

/// A machine that was to join and is not seen for too long. It is no member, so that nothing is lost with it; but only the time
/// tells it from one that is still coming up, whatever the operator said of the members. If that were less than it takes, each
/// would be given up for the next, without end.
fn never_came(view: &View<'_>, member: &MemberName, wish: &DesiredMember) -> Option<String> {
    let View { desired, seen, .. } = *view;
    if desired.etcd.formation.has_member(member) {
        return None;
    }
    seen.machines.get()?.get(member).filter(|machine| machine.is_up())?;
    let Some(Seen::Unreachable { why, .. }) = seen.agents.get(member) else { return None };
    safety::peers_miss(view, member).ok()?;
    let (unseen, grace) = (seen.now.duration_since(wish.unseen_since?), desired.grace?.max(desired.boots_within));
    let (seconds, patience) = (unseen.as_secs(), grace.as_secs());
    let why = format!("the machine of {member} does not answer: {why}, for {seconds} s (limit {patience} s)");
    (unseen >= grace).then(|| format!("{why}; it is not a member yet, so nothing is lost"))
}

/// One that was about to join has no data that is worth waiting for.
fn votes(view: &View<'_>, member: &MemberName) -> bool {
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

/// Somebody else removed it. A list that is older than the last change says nothing.
fn was_removed(view: &View<'_>, member: &MemberName) -> bool {
    let View { desired, seen, .. } = *view;
    let Some(cluster) = view.cluster().filter(|c| etcd::safety::is_fresh(desired, c)) else { return false };
    // Somebody may have changed its URL: etcd knows it by its number.
    let (url, id) = (peer_url(seen, member), seen.status(member).map(|status| status.member_id));
    let is_it = |l: &Listed<'_>| Some(&l.peer_url) == url.as_ref() || Some(l.id) == id;
    cluster.get(member).is_none() && !cluster.listed.iter().any(is_it)
}
