//! Reboots that the operator requested: one machine at a time, under the rules of a restart. The next machine waits until the previous
//! one is back and healthy.

use super::safety::reboots::{self, Progress};
use super::{Action, Decision, UnsafeBecause, View, WaitingFor, proxies};
use crate::model::{Facts, MemberName, Reboot};

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    if !desired.is_formed() || !decision.steps.is_empty() {
        return;
    }
    // `repair` waits for an unreachable machine, or refuses; meanwhile the others may not be disturbed.
    let open = desired.machines().filter_map(|(member, wish)| {
        let (reboot, facts) = (wish.reboot.as_ref()?, seen.facts(member)?);
        Some((member, reboot, facts, reboots::progress(reboot, facts, desired.fence, view.is_well(member))))
    });
    let open: Vec<_> = open.filter(|(.., progress)| *progress != Progress::Done).collect();
    for (member, _, _, progress) in &open {
        match progress {
            Progress::Failed { why } => {
                return decision.block(UnsafeBecause::NotRebooted { member: (*member).clone(), why: why.clone() });
            }
            Progress::UnderWay { why } => return wait(decision, member, why),
            Progress::NotBegun | Progress::OrderLost | Progress::Done => {}
        }
    }
    // An order whose answer was lost may still arrive, so no other machine is disturbed before this one has rebooted.
    let lost = open.iter().filter(|(.., progress)| *progress == Progress::OrderLost);
    let mut next: Vec<&MemberName> = lost.map(|(member, ..)| *member).collect();
    if next.is_empty() {
        next = open.iter().map(|(member, ..)| *member).collect();
    }
    if next.is_empty() {
        return;
    }
    let disturb = |member: &MemberName| {
        let found = open.iter().find(|(open, ..)| *open == member);
        let (_, reboot, facts, _) = found.expect("only machines whose reboot is open are disturbed");
        (action(member, reboot, facts), why(reboot))
    };
    let (proxies, members): (Vec<&MemberName>, Vec<_>) = next.into_iter().partition(|next| desired.is_proxy(next));
    match proxies.first() {
        Some(proxy) if members.is_empty() => proxies::disturb(view, decision, proxy, disturb(proxy)),
        _ => view.disturb_one(decision, &members, disturb),
    }
}

fn action(member: &MemberName, reboot: &Reboot, facts: &Facts) -> Action {
    Action::RebootMachine {
        member: member.clone(),
        boot: facts.host.boot.clone().unwrap_or_default(),
        upgrade_packages: reboot.upgrade_packages,
    }
}

fn why(reboot: &Reboot) -> String {
    format!("requested by {}", reboot.consent.by)
}

fn wait(decision: &mut Decision, member: &MemberName, why: &str) {
    // Another entry may already say what its member lacks.
    if !decision.waiting.iter().any(|waiting| waiting.member() == Some(member)) {
        decision.wait(WaitingFor::Reboot { member: member.clone(), why: why.to_owned(), upgrading: None });
    }
}
