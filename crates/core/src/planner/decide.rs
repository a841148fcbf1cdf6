//! The entry point of every decision. Handles what comes first in every cluster, then asks the concerns of the cluster's kind in turn
//! (`kinds/NAME/planner`), including the shared ones.

use super::{Action, Decision, UnsafeBecause, View, action, agents, destroy, machines, safety};
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
    // These facts do not show what an order is still changing, so nothing is decided on them.
    let under_way = safety::orders_under_way(view);
    if !under_way.is_empty() {
        decision.waiting = under_way;
        return decision;
    }
    let other_roles = safety::roles_are_kept(view);
    if !other_roles.is_empty() {
        other_roles.into_iter().for_each(|because| decision.block(because));
        return decision;
    }
    if agents::decide(view, &mut decision) {
        return decision;
    }
    // Half of a forbidden change is worse than none: if the spec contradicts fixed settings, members are kept running as
    // they are.
    let fixed = safety::fixed_at_formation(desired);
    let as_formed = fixed.is_empty();
    fixed.into_iter().for_each(|because| decision.block(because));
    if as_formed && !desired.secrets_missing.is_empty() {
        let kinds = desired.secrets_missing.clone();
        let why = action::missing_secrets(&kinds);
        decision.step(Action::MakeSecrets { kinds }, why);
        return decision;
    }
    view.decide_for_kind(as_formed, &mut decision);
    decision
}

/// Machines that will be removed need no trust.
fn refuse_the_untrusted(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    for (member, agent) in seen.agents.iter().filter(|(member, _)| desired.wants(member)) {
        if let Some(AgentSeen::Untrusted(distrust)) = Seen::get(agent) {
            decision.block(UnsafeBecause::Untrusted { member: member.clone(), distrust: *distrust });
        }
    }
}
