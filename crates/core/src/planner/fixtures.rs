//! Fixtures: what the cluster has besides machines, such as a load balancer and DNS records. They follow the members, and change only when
//! nothing else is left to do in a round of a bootstrapped cluster, so a provider that refuses them does not prevent repairs. Members leave
//! after them, when clients are directed elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{Action, Decision, UnsafeBecause, View, WaitingFor};
use crate::model::{FixtureId, FixtureKind, FixtureSeen, FixtureWish, MemberName, Obstacle, Seen};
use crate::text::list;

type Members = BTreeMap<MemberName, IpAddr>;

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let Some(found) = look(view, decision) else { return };
    // A load balancer is created while the first machines boot: its name is in their certificates from the beginning.
    let is_free = decision.steps.is_empty() || !view.desired.is_formed();
    for wish in &view.desired.fixtures {
        if let Some(Obstacle { what, remedy }) = at(found, &wish.id).and_then(|there| there.obstacle.clone()) {
            decision.block(UnsafeBecause::FixtureObstructed { fixture: wish.id.clone(), what, remedy });
        } else if is_free {
            keep(view, found, wish, decision);
        }
    }
    if decision.steps.is_empty() {
        drop_unwanted(view, found, decision);
    }
}

/// All of them are deleted, before the machines. Returns whether there is anything to do or to wait for.
pub(super) fn remove_all(view: &View<'_>, decision: &mut Decision) -> bool {
    let Some(found) = look(view, decision) else { return !decision.waiting.is_empty() };
    for id in in_order(found.iter().filter(|there| there.is_ours).map(|there| &there.id)) {
        decision.step(
            Action::DropFixture { fixture: id.clone() },
            "the operator confirmed that this cluster and its data are deleted",
        );
    }
    !decision.steps.is_empty()
}

/// Existing fixtures that do not serve yet. Nothing else waits for them.
pub(crate) fn wait_until_they_serve(view: &View<'_>, decision: &mut Decision) {
    let found = view.seen.fixtures.get().into_iter().flatten();
    for there in found.filter(|there| there.is_ours && view.desired.fixtures.iter().any(|wish| wish.id == there.id)) {
        if let Some(why) = &there.pending {
            decision.wait(WaitingFor::Fixture { fixture: there.id.clone(), why: why.clone() });
        }
    }
}

/// None: it does not exist, or it was not observed.
fn look<'a>(view: &View<'a>, decision: &mut Decision) -> Option<&'a [FixtureSeen]> {
    if view.desired.fixtures.is_empty() && view.desired.known_fixtures.is_empty() {
        return None;
    }
    match &view.seen.fixtures {
        Seen::At(_, found) => Some(found),
        Seen::Unreachable { why, .. } => {
            decision.wait(WaitingFor::Fixtures { why: why.clone() });
            None
        }
    }
}

fn at<'a>(found: &'a [FixtureSeen], id: &FixtureId) -> Option<&'a FixtureSeen> {
    found.iter().find(|there| there.id == *id)
}

fn keep(view: &View<'_>, found: &[FixtureSeen], wish: &FixtureWish, decision: &mut Decision) {
    let put = |leads_to: Members, is_new: bool| Action::PutFixture { fixture: wish.id.clone(), leads_to, is_new };
    let there = at(found, &wish.id).filter(|there| there.is_ours);
    if let Some(there) = there
        && let Some(why) = made_otherwise(wish, there)
    {
        return decision.step(Action::DropFixture { fixture: wish.id.clone() }, why);
    }
    if wish.to_balancer {
        // Its name is known when it exists.
        let is_there = found.iter().any(|there| there.id.kind == FixtureKind::LoadBalancer && there.is_ours);
        match there {
            _ if !is_there => {}
            None => decision.step(put(Members::new(), true), "the spec names it, but there is no such record"),
            Some(there) => {
                let differs =
                    (!there.to_balancer).then(|| String::from("it points to members, not to the load balancer"));
                if let Some(why) = there.fault.clone().or(differs) {
                    decision.step(put(Members::new(), false), why);
                }
            }
        }
        return;
    }
    match (there, view.serving()) {
        (None, serving) if wish.id.kind == FixtureKind::LoadBalancer => {
            decision.step(put(serving.unwrap_or_default(), true), "the spec has a load balancer, but none exists");
        }
        (None, Some(serving)) => decision.step(put(serving, true), "the spec names it, but there is no such record"),
        // The serving members are unknown: existing fixtures stay as they are.
        (_, None) => {}
        (Some(there), Some(serving)) => {
            let differs = difference(there, &serving);
            if let Some(why) = there.fault.clone().or(differs) {
                decision.step(put(serving, false), why);
            }
        }
    }
}

/// Settings that require creating it again.
fn made_otherwise(wish: &FixtureWish, there: &FixtureSeen) -> Option<String> {
    let differs = |(name, wanted): &(&String, &String)| there.fixed.get(*name).is_some_and(|has| has != *wanted);
    let (name, wanted) = wish.fixed.iter().find(differs)?;
    Some(format!(
        "its {name} is {}, and the spec has {wanted}: it is created again, under another name",
        there.fixed[name]
    ))
}

/// Its targets compared with the desired ones.
fn difference(there: &FixtureSeen, serving: &Members) -> Option<String> {
    if there.to_balancer {
        return Some(String::from("it points to a load balancer that the spec no longer has"));
    }
    let is_led_to = |member: &MemberName, address: &IpAddr| {
        there.leads_to.get(address).is_some_and(|name| name.as_ref().is_none_or(|name| name == member))
    };
    let missing: Vec<&MemberName> =
        serving.iter().filter(|(member, address)| !is_led_to(member, address)).map(|(member, _)| member).collect();
    let wanted: BTreeSet<&IpAddr> = serving.values().collect();
    let surplus: Vec<&IpAddr> = there.leads_to.keys().filter(|address| !wanted.contains(address)).collect();
    match (&missing[..], &surplus[..]) {
        ([], []) => None,
        ([], surplus) => Some(format!("no remaining member has {}", list(surplus))),
        (missing, []) => Some(format!("it does not point to {} yet", list(missing))),
        (missing, surplus) => {
            let (missing, surplus) = (list(missing), list(surplus));
            Some(format!("it does not point to {missing} yet, and no remaining member has {surplus}"))
        }
    }
}

/// Deletes what the spec no longer has. A load balancer stays while a name points to it.
fn drop_unwanted(view: &View<'_>, found: &[FixtureSeen], decision: &mut Decision) {
    let is_wanted = |id: &FixtureId| view.desired.fixtures.iter().any(|wish| wish.id == *id);
    let unwanted = found.iter().filter(|there| there.is_ours && !is_wanted(&there.id));
    for id in in_order(unwanted.map(|there| &there.id)) {
        let awaited = |there: &FixtureSeen| there.is_ours && there.to_balancer && is_wanted(&there.id);
        if id.kind == FixtureKind::LoadBalancer && found.iter().any(awaited) {
            continue;
        }
        decision.step(Action::DropFixture { fixture: id.clone() }, "the spec no longer has it");
    }
}

/// Dependent ones are deleted first.
fn in_order<'a>(ids: impl Iterator<Item = &'a FixtureId>) -> Vec<&'a FixtureId> {
    let mut ids: Vec<&FixtureId> = ids.collect();
    ids.sort_by(|a, b| b.cmp(a));
    ids
}
