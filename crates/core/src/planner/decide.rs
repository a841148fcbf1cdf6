//! Asks each concern in turn.

use super::{
    Action, Decision, UnsafeBecause, View, action, agents, certificates, config, destroy, enrolment, machines, renewal,
    repair, revocation, safety, trust,
};
use crate::kinds::etcd::planner::membership::Growth;
use crate::kinds::etcd::planner::{auth, formation, membership, recovery, restart, restore};
use crate::model::{AgentSeen, Desired, Observation, Power, Seen};

/// Decides for one cluster. A refused concern does not stop the others.
pub fn decide(desired: &Desired, seen: &Observation) -> Decision {
    let view = &View::new(desired, seen);
    let mut decision = Decision::default();
    if let Some(word) = &desired.destroy {
        destroy::decide(view, word, &mut decision);
        return decision;
    }
    if desired.power == Power::Off {
        machines::switch_off(view, &mut decision);
        return decision;
    }
    refuse_the_untrusted(view, &mut decision);
    // What an order still changes is not in these facts, so nothing that rests on them is decided.
    let under_way = safety::orders_under_way(view);
    if !under_way.is_empty() {
        decision.waiting = under_way;
        return decision;
    }
    if agents::decide(view, &mut decision) {
        return decision;
    }
    // Half of a change that may not be made is worse than none: where the spec contradicts what was settled at formation,
    // the members are kept running as they are.
    let fixed = safety::fixed_at_formation(desired);
    let as_formed = fixed.is_empty();
    fixed.into_iter().for_each(|because| decision.block(because));
    if as_formed && !desired.secrets_missing.is_empty() {
        let kinds = desired.secrets_missing.clone();
        let why = action::missing_secrets(&kinds);
        decision.step(Action::MakeSecrets { kinds }, why);
        return decision;
    }
    if let Some(restore) = desired.etcd.restore.as_ref().filter(|_| as_formed) {
        restore::decide(view, restore, &mut decision);
        return decision;
    }
    if desired.etcd.recovery && recovery::is_to_begin(view) {
        machines::decide(view, &mut decision);
        if decision.steps.is_empty() {
            recovery::begin(view, &mut decision);
        }
        return decision;
    }
    machines::decide(view, &mut decision);
    repair::decide(view, &mut decision);
    enrolment::decide(view, &mut decision);
    if as_formed {
        certificates::decide(view, &mut decision);
        config::decide(view, &mut decision);
    }
    formation::decide(view, &mut decision);
    recovery::go_on(view, &mut decision);
    let growing = membership::grow(view, &mut decision);
    if as_formed && growing != Growth::UnderWay {
        restart::decide(view, &mut decision);
        renewal::decide(view, &mut decision);
    }
    membership::shrink(view, &mut decision, growing != Growth::None);
    membership::tell_failures(desired, &mut decision);
    machines::remove_leftover(view, &mut decision);
    if as_formed {
        auth::decide(view, &mut decision);
        trust::decide(view, &mut decision);
    }
    restore::clean_up(view, &mut decision);
    if as_formed {
        revocation::decide(view, &mut decision);
    }
    decision
}

/// Machines that go anyway need no trust.
fn refuse_the_untrusted(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    for (member, agent) in seen.agents.iter().filter(|(member, _)| desired.members.contains_key(*member)) {
        if let Some(AgentSeen::Untrusted(distrust)) = Seen::get(agent) {
            decision.block(UnsafeBecause::Untrusted { member: member.clone(), distrust: *distrust });
        }
    }
}
