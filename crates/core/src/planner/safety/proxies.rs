//! Rules of proxies: machines that only forward clients to members. One proxy keeps serving while another is changed, and none is
//! touched while clients wait in it for a switchover.

use std::collections::BTreeSet;

use crate::model::{MemberName, ServiceState};
use crate::planner::machines::is_ours;
use crate::planner::{UnsafeBecause, View};

/// Whether a proxy runs everything that it should.
pub fn serves(view: &View<'_>, proxy: &MemberName) -> bool {
    let View { desired, seen, .. } = *view;
    let Some(facts) = seen.facts(proxy) else { return false };
    let runs = |state: &ServiceState| matches!(state, ServiceState::Running { .. });
    match desired.proxies.get(&proxy.seat().into()) {
        Some(wish) => wish.config.services.iter().all(|service| facts.services.get(&service.name).is_some_and(runs)),
        None => facts.services.values().any(runs),
    }
}

/// A proxy that keeps clients waiting for a switchover, possibly for a controller that has exited. It releases them by itself when
/// the time is up. If it never did, it could not be removed, so the operator's consent to downtime overrides this.
pub fn held<'a>(view: &View<'a>) -> Option<&'a MemberName> {
    let View { desired, seen, .. } = *view;
    let holds = |proxy: &&MemberName| seen.facts(proxy).is_some_and(|facts| facts.holds_clients);
    seen.agents.keys().filter(|name| !desired.downtime && desired.is_proxy(name)).find(holds)
}

/// `ProxyServes`: may this proxy be removed, or reboot, now? All others must serve, and there must be others.
pub fn may_disturb_proxy(view: &View<'_>, proxy: &MemberName) -> Result<(), UnsafeBecause> {
    let desired = view.desired;
    if desired.downtime || !serves(view, proxy) {
        return Ok(());
    }
    let others: Vec<&MemberName> = desired.proxies.keys().filter(|other| other.as_str() != proxy.seat()).collect();
    let down: Vec<MemberName> = others.iter().filter(|other| !serves(view, other)).map(|m| (*m).clone()).collect();
    match down.is_empty() && !others.is_empty() {
        true => Ok(()),
        false => Err(UnsafeBecause::LastProxy { member: proxy.clone(), down }),
    }
}

/// `ProxyServes`: may the machine of a proxy be removed that the spec does not name, or that has a successor? All that the spec
/// names must serve. If its successor needs its address, all others must serve.
pub fn may_clear_away_proxy(view: &View<'_>, proxy: &MemberName) -> bool {
    let View { desired, seen, .. } = *view;
    let successor = desired.proxies.get(&proxy.seat().into()).and_then(|wish| wish.address);
    let address = seen.machines.get().and_then(|machines| machines.get(proxy)?.address);
    let is_in_the_way = successor.is_some() && successor == address;
    match is_in_the_way {
        true => may_disturb_proxy(view, proxy).is_ok(),
        false => desired.downtime || !serves(view, proxy) || desired.proxies.keys().all(|wanted| serves(view, wanted)),
    }
}

/// A configuration that breaks one proxy reaches no other: each gets it when those that have it serve.
pub fn may_configure_proxy(view: &View<'_>, proxy: &MemberName) -> Result<(), MemberName> {
    let View { desired, seen, .. } = *view;
    let fails = |(other, wish): &(&MemberName, &crate::model::DesiredMember)| {
        let has_it = |held: &(u64, String)| held.1 == wish.digest;
        *other != proxy
            && seen.facts(other).is_some_and(|facts| facts.node_config.as_ref().is_some_and(has_it))
            && !serves(view, other)
    };
    desired.proxies.iter().find(fails).map_or(Ok(()), |(other, _)| Err(other.clone()))
}

/// A machine keeps its role. A proxy is less trusted than a member, and a member has data.
pub fn roles_are_kept(view: &View<'_>) -> Vec<UnsafeBecause> {
    let View { desired, seen, .. } = *view;
    if desired.proxies.is_empty() && desired.known_proxies.is_empty() {
        return Vec::new();
    }
    let machines = seen.machines.get().into_iter().flatten().filter(|(_, machine)| is_ours(desired, machine));
    let there: BTreeSet<&str> = machines.map(|(name, _)| name.seat()).collect();
    let joined: BTreeSet<&str> = desired.all_joined().map(MemberName::seat).collect();
    let was_proxy = |name: &&MemberName| desired.known_proxies.contains_key(*name) && there.contains(name.as_str());
    let was_member = |name: &&MemberName| {
        let is_there = there.contains(name.as_str()) && !desired.known_proxies.contains_key(*name);
        is_there || joined.contains(name.as_str())
    };
    let other = |member: &MemberName, was_proxy| UnsafeBecause::OtherRole { member: member.clone(), was_proxy };
    let to_members = desired.members.keys().filter(was_proxy).map(|name| other(name, true));
    to_members.chain(desired.proxies.keys().filter(was_member).map(|name| other(name, false))).collect()
}
