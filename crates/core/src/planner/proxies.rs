//! Proxies: machines of a cluster that are not members and only forward clients to members. They are created, enrolled, configured and
//! repaired like members' machines (`machines`, `enrolment`, `config`, `repair`). This file decides only the order in which they change.

use super::machines::{is_ours, wait_for_its_place};
use super::{Action, Decision, UnsafeBecause, View, WaitingFor, safety};
use crate::model::{Data, Desired, DesiredMember, MemberName, PowerState};

/// Whether a proxy had a machine that may only be unreachable. In an unused cluster, no client misses it.
pub(super) fn may_come_back(desired: &Desired, name: &MemberName, wish: &DesiredMember) -> bool {
    let is_claimed = wish.enrolment.as_ref().is_some_and(|enrolment| enrolment.bound_key.is_some());
    desired.proxies.contains_key(name) && is_claimed && desired.may_hold_data()
}

/// Whether a configured proxy must wait for its next configuration: while clients wait in one, and while another applies its own.
pub(super) fn config_must_wait(view: &View<'_>, decision: &mut Decision, name: &MemberName) -> bool {
    let View { desired, seen, .. } = *view;
    let in_place = seen.facts(name).and_then(|facts| facts.node_config.as_ref());
    let Some(wish) = desired.proxies.get(name).filter(|wish| in_place.is_some_and(|(_, has)| *has != wish.digest))
    else {
        return false;
    };
    if wait_for_clients(view, decision) {
        return true;
    }
    let is_pushed = |other: &MemberName| {
        let pushes = |action: &Action| matches!(action, Action::PushConfig { member, .. } if member == other);
        other != name && decision.steps.iter().any(|step| pushes(&step.action))
    };
    if desired.proxies.keys().any(is_pushed) {
        return true;
    }
    match safety::may_configure_proxy(view, name) {
        Ok(()) => false,
        Err(other) => {
            let why = format!("it does not serve yet with the configuration that {} gets next", wish.machine);
            decision.wait(WaitingFor::Proxy { member: other, why });
            true
        }
    }
}

/// Whether a proxy keeps clients waiting for a switchover. Then none is touched.
fn wait_for_clients(view: &View<'_>, decision: &mut Decision) -> bool {
    let Some(held) = safety::held(view) else { return false };
    let why = String::from("clients wait there until a switchover is over");
    decision.wait(WaitingFor::Proxy { member: held.clone(), why });
    true
}

/// Waits for proxies that do not serve. When nothing else is left to do, unwanted machines are removed, and outdated ones are
/// replaced, one at a time.
pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    if desired.proxies.is_empty() && desired.known_proxies.is_empty() {
        return;
    }
    for proxy in desired.proxies.keys().filter(|proxy| !decision.has_business_with(proxy)).collect::<Vec<_>>() {
        let is_configured = seen.facts(proxy).is_some_and(|facts| facts.node_config.is_some());
        let is_awaited = decision.waiting.iter().any(|waiting| waiting.member() == Some(proxy));
        if is_configured && !is_awaited && !safety::serves(view, proxy) {
            let why = String::from("it does not serve clients yet");
            decision.wait(WaitingFor::Proxy { member: proxy.clone(), why });
        }
    }
    if decision.steps.is_empty() {
        remove(view, decision);
    }
    if desired.is_formed() && decision.steps.is_empty() {
        exchange(view, decision);
    }
}

/// A serving machine is removed only when its successor runs, unless that needs its address.
fn exchange(view: &View<'_>, decision: &mut Decision) {
    let another =
        view.desired.proxies.iter().filter_map(|(proxy, wish)| Some((proxy, wish, difference(view, proxy, wish)?)));
    let another = another.filter(|(proxy, ..)| !decision.has_business_with(proxy));
    let Some((proxy, wish, why)) = another.min_by_key(|(proxy, ..)| safety::serves(view, proxy)) else { return };
    let action = Action::RecordReplacement { member: proxy.clone(), incarnation: wish.incarnation + 1 };
    disturb(view, decision, proxy, (action, why));
}

/// Why a proxy needs another machine.
fn difference(view: &View<'_>, proxy: &MemberName, wish: &DesiredMember) -> Option<String> {
    let View { desired, seen, .. } = *view;
    let machine = seen.machines.get()?.get(proxy)?;
    if !is_ours(desired, machine) || machine.power == PowerState::Unknown {
        return None;
    }
    if let (Some(pinned), Some(has)) = (wish.address, machine.address)
        && pinned != has
    {
        return Some(format!("the spec gives {proxy} the address {pinned}, and it has {has}"));
    }
    let difference = machine.build.as_ref()?.difference(wish.build.as_ref()?)?;
    Some(format!("{proxy}'s machine {difference}"))
}

/// Carries this out on a proxy if the rules allow it now.
pub(super) fn disturb(view: &View<'_>, decision: &mut Decision, proxy: &MemberName, (action, why): (Action, String)) {
    if wait_for_clients(view, decision) {
        return;
    }
    match safety::may_disturb_proxy(view, proxy) {
        Ok(()) => decision.step(action, format!("{why}; {}", others(view, proxy))),
        // Those that do not serve yet need time, not the operator.
        Err(UnsafeBecause::LastProxy { down, .. }) if !down.is_empty() && !decision.waiting.is_empty() => {}
        Err(because) => decision.block(because),
    }
}

fn others(view: &View<'_>, proxy: &MemberName) -> String {
    let others = view.desired.proxies.keys().filter(|other| other.as_str() != proxy.seat());
    let serving = others.filter(|other| safety::serves(view, other)).count();
    match serving {
        0 => String::from("no other proxy serves clients during this"),
        1 => String::from("1 other proxy serves clients during this"),
        many => format!("{many} other proxies serve clients during this"),
    }
}

/// Machines of proxies that have a successor, or that the spec no longer names.
fn remove(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    let machines = seen.machines.get().into_iter().flatten();
    let unwanted = |m: &MemberName| !desired.wants(m) && desired.is_proxy(m) && !decision.has_business_with(m);
    let unwanted: Vec<_> = machines.filter(|(m, machine)| unwanted(m) && is_ours(desired, machine)).collect();
    for (proxy, machine) in unwanted {
        if machine.power == PowerState::Unknown {
            wait_for_its_place(decision, proxy, machine);
            continue;
        }
        if wait_for_clients(view, decision) {
            return;
        }
        if safety::may_clear_away_proxy(view, proxy) {
            let why = match proxy.is_former() && desired.proxies.contains_key(&proxy.seat().into()) {
                true => format!("its successor takes its place; {}", others(view, proxy)),
                false if desired.proxies.is_empty() => String::from("the spec no longer names it, nor any other proxy"),
                false => format!("the spec no longer names it; {}", others(view, proxy)),
            };
            return decision.step(Action::DestroyMachine { member: proxy.clone(), data: Data::Goes }, why);
        }
    }
}
