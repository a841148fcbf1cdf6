//! Repair: a member whose machine or data is permanently lost gets a new machine. Only the decision is here; the old one leaves
//! and the new one joins like any other (`membership`).

use jiff::SignedDuration;

use super::safety::{self, Absence};
use super::{Action, Decision, UnsafeBecause, View, WaitingFor, proxies, renewal};
use crate::model::{DesiredMember, MachineSeen, MemberName, Observation, PowerState, Seen};

/// Why a member must have a new machine.
pub(crate) enum Loss {
    /// For certain.
    Known(String),
    /// It is unreachable, which may be temporary.
    Unseen(String),
}

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    if !desired.is_formed() || seen.machines.get().is_none() {
        return;
    }
    for (member, wish) in desired.machines() {
        // A member that does not count yet is judged by the waiting time only.
        if view.learns(member) || decision.has_business_with(member) {
            continue;
        }
        if let Err(because) = safety::address_is_free(view, member, wish) {
            decision.block(because);
            continue;
        }
        let can_join = desired.is_proxy(member) || view.takes_members();
        let may_be_made = can_join && !is_out_of_reach(seen, member, wish);
        let never_came = never_came(view, member, wish).filter(|_| may_be_made);
        if let Some(why) = never_came {
            let incarnation = wish.incarnation + 1;
            decision.step(Action::RecordReplacement { member: member.clone(), incarnation }, why);
            continue;
        }
        match loss(view, member, wish) {
            None => {}
            Some(Loss::Known(why)) => replace(view, decision, member, &why),
            // It is about to be removed anyway (`renewal`).
            Some(Loss::Unseen(_)) if renewal::is_recorded(seen, member, wish) => {}
            Some(Loss::Unseen(why)) if safety::reboots::is_away(view, member) => {
                decision.wait(WaitingFor::Reboot { member: member.clone(), why, upgrading: None });
            }
            Some(Loss::Unseen(why)) if is_booting(view, member, wish) => {
                decision.wait(WaitingFor::Agent { member: member.clone(), why });
            }
            // Its next machine could not be created either: it would be in the same place.
            Some(Loss::Unseen(why)) if is_out_of_reach(seen, member, wish) => {
                decision.wait(WaitingFor::Agent { member: member.clone(), why });
            }
            Some(Loss::Unseen(what)) => match safety::judge_absence(view, member, &what) {
                Ok(Absence::Dead(why)) if view.counts(member) && renewal::keeps_data(seen, member, wish) => {
                    renew(view, decision, member, &why);
                }
                Ok(Absence::Dead(why)) => replace(view, decision, member, &why),
                Ok(Absence::Brief) => decision.wait(WaitingFor::Agent { member: member.clone(), why: what }),
                Err(because) => decision.block(because),
            },
        }
    }
}

/// All data is being replaced, so a member whose machine is lost simply gets another.
pub(crate) fn give_up_the_lost(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    let Some(machines) = seen.machines.get() else { return };
    for (member, wish) in &desired.members {
        if decision.has_business_with(member) {
            continue;
        }
        let Some(machine) = machines.get(member) else {
            // A former machine that returns under the same number would be mistaken for its successor.
            if desired.counts_on(member) {
                replace_freely(decision, member, wish, format!("the machine of {member} is missing"));
            } else if let Some((by, address)) = holder_of_its_address(seen, wish) {
                decision.block(UnsafeBecause::AddressHeld { member: member.clone(), address, by });
            }
            continue;
        };
        if let (Some(pinned), Some(has)) = (wish.address, machine.address)
            && pinned != has
        {
            let why = format!("the spec gives {member} the address {pinned}, and it has {has}");
            replace_freely(decision, member, wish, why);
            continue;
        }
        let Some(Seen::Unreachable { why, .. }) = seen.agents.get(member) else { continue };
        // A machine that is still starting has nothing to lose, and only the grace time distinguishes it from a dead one.
        let claimed = wish.enrolment.as_ref().is_some_and(|e| e.bound_key.is_some());
        if !claimed && desired.grace.is_none() {
            continue;
        }
        let what = format!("the machine of {member} does not answer: {why}");
        match safety::judge_absence(view, member, &what) {
            Ok(Absence::Dead(why)) => replace_freely(decision, member, wish, why),
            Ok(Absence::Brief) => {}
            Err(because) => decision.block(because),
        }
    }
}

fn holder_of_its_address(seen: &Observation, wish: &DesiredMember) -> Option<(MemberName, String)> {
    let address = wish.address?;
    let mut machines = seen.machines.get()?.iter();
    machines.find(|(_, machine)| machine.address == Some(address)).map(|(by, _)| (by.clone(), address.to_string()))
}

fn replace_freely(decision: &mut Decision, member: &MemberName, wish: &DesiredMember, why: String) {
    let action = Action::RecordReplacement { member: member.clone(), incarnation: wish.incarnation + 1 };
    decision.step(action, format!("{why}; the data of all members is replaced, so nothing is lost"));
}

/// Gives the member another machine, if the others can continue without the current one.
fn replace(view: &View<'_>, decision: &mut Decision, member: &MemberName, why: &str) {
    let desired = view.desired;
    if let Some(proxy) = desired.proxies.get(member) {
        let action = Action::RecordReplacement { member: member.clone(), incarnation: proxy.incarnation + 1 };
        return decision.step(action, format!("{why}; it is a proxy and has no data"));
    }
    if let Some(left) = view.others_can_do_without(member, decision) {
        let incarnation = desired.members[member].incarnation + 1;
        decision.step(Action::RecordReplacement { member: member.clone(), incarnation }, format!("{why}; {left}"));
    }
}

/// Gives the member another machine with the data of the lost one. If that data is missing, the member is lost like any other. If
/// there is no machine at all, a new one changes nothing for others.
fn renew(view: &View<'_>, decision: &mut Decision, member: &MemberName, why: &str) {
    let View { desired, seen, .. } = *view;
    let is_there = seen.machines.get().is_some_and(|machines| machines.contains_key(member));
    if is_there && view.others_can_do_without(member, decision).is_none() {
        return;
    }
    let incarnation = desired.members[member].incarnation + 1;
    let why = format!("{why}; if its data outlived it, {member} keeps it and its membership");
    decision.step(Action::RecordRenewal { member: member.clone(), incarnation }, why);
}

fn loss(view: &View<'_>, member: &MemberName, wish: &DesiredMember) -> Option<Loss> {
    let View { desired, seen, .. } = *view;
    let is_proxy = desired.is_proxy(member);
    if is_proxy && !proxies::may_come_back(desired, member, wish) {
        return None;
    }
    if !desired.belongs(member) && !is_proxy {
        return view.loss_of_new(member);
    }
    let machines = seen.machines.get()?;
    let Some(machine) = machines.get(member) else {
        let with_it = if wish.data.is_some() || is_proxy { "" } else { ", and its data with it" };
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
    // A serving one is replaced in its turn (`proxies`).
    if is_proxy {
        return None;
    }
    if let (Some(pinned), Some(has)) = (wish.address, machine.address)
        && pinned != has
    {
        return Some(Loss::Known(format!("the spec gives {member} the address {pinned}, and it has {has}")));
    }
    view.loss(member, facts)
}

/// Whether the provider does not answer about its machine, and cannot create another one.
fn is_out_of_reach(seen: &Observation, member: &MemberName, wish: &DesiredMember) -> bool {
    let machine = seen.machines.get().and_then(|machines| machines.get(member));
    machine.is_some_and(|machine| machine.power == PowerState::Unknown && machine.place == wish.place)
}

/// A new machine that may still be starting: its agent never answered.
fn is_booting(view: &View<'_>, member: &MemberName, wish: &DesiredMember) -> bool {
    let View { desired, seen, .. } = *view;
    let is_on = seen.machines.get().and_then(|m| m.get(member)).is_some_and(MachineSeen::is_up);
    let is_new = wish.enrolment.as_ref().is_some_and(|enrolment| enrolment.bound_key.is_none());
    let unseen = wish.unseen_since.map_or(SignedDuration::ZERO, |since| seen.now.duration_since(since));
    is_on && is_new && unseen < desired.boots_within
}

/// A machine that was about to join and has been unreachable for too long. It is not a member, so nothing is lost with it. Only
/// time distinguishes it from one that is still starting, whatever the operator said about members. If that time were too short,
/// each would be replaced by the next, without end.
fn never_came(view: &View<'_>, member: &MemberName, wish: &DesiredMember) -> Option<String> {
    let View { desired, seen, .. } = *view;
    if desired.belongs(member) || proxies::may_come_back(desired, member, wish) {
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
