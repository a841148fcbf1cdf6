//! Restarts: one member at a time, replicas first. The primary hands over before it restarts, so clients wait for a switchover instead of a
//! restart. Lowered limits are the exception: a standby must not have lower limits than its primary, so the primary restarts first, without
//! handing over.

use std::collections::BTreeMap;

use crate::kinds::postgres::parameters::Changed;
use crate::kinds::postgres::safety::{self, postgres};
use crate::model::{MemberName, ServiceState};
use crate::planner::config::with_changes;
use crate::planner::{Action, Decision, View, WaitingFor};

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let desired = view.desired;
    if !desired.is_formed() || !decision.steps.is_empty() {
        return;
    }
    let mut due: Vec<(bool, &MemberName)> = desired
        .members
        .keys()
        .filter(|member| restart(view, member).is_some() && !decision.has_business_with(member))
        .map(|member| (safety::leads(view, member), member))
        .collect();
    let limits = match safety::lowered_limits(view) {
        Ok(limits) => limits,
        Err(because) => return decision.block(because),
    };
    due.sort_by_key(|(leads, member)| (*leads == limits.is_empty(), *member));
    let Some((leads, member)) = due.first().copied() else { return };
    let Some((action, mut why)) = restart(view, member) else { return };
    if standbys_come_first(view, member, decision) {
        return;
    }
    let in_place = leads && !limits.is_empty();
    if in_place {
        let limits = limits.join(", ");
        why = format!("{why}; {member} is the primary, and no standby may have less of {limits}: it restarts first");
    }
    // A standby that must restart too would take over and hand back: clients would wait twice. `catalog` waits for it.
    if leads && !in_place && safety::behind_configuration(view).next().is_some() {
        return;
    }
    if !in_place && primary_hands_over(view, member, &why, decision) {
        return;
    }
    match safety::may_disturb(view, member) {
        Ok(()) => decision.step(action, with_numbers(view, member, &why)),
        Err(because) => decision.block(because),
    }
}

/// Whether a member must wait before it is disturbed: for others that do not stream, or until Patroni has recorded which standbys may take
/// over.
pub(super) fn standbys_come_first(view: &View<'_>, member: &MemberName, decision: &mut Decision) -> bool {
    let others = safety::unwell_besides(view, member);
    if !others.is_empty() {
        decision.wait(WaitingFor::Standbys { member: member.clone(), others });
        return true;
    }
    // Waited for in `catalog`.
    safety::too_few_synchronous(view).is_some() && !view.desired.downtime
}

/// Whether this member is the primary and something must come first: another one takes over, or the operator must consent, because none
/// can.
pub(super) fn primary_hands_over(view: &View<'_>, member: &MemberName, why: &str, decision: &mut Decision) -> bool {
    let desired = view.desired;
    if !safety::leads(view, member) || desired.members.len() == 1 {
        return false;
    }
    match safety::never_replaced(view, member) {
        Some(because) if !desired.downtime => {
            decision.block(because);
            true
        }
        Some(_) => false,
        None => hand_over(view, member, why, decision),
    }
}

/// Which restart a member needs, and why.
fn restart(view: &View<'_>, member: &MemberName) -> Option<(Action, String)> {
    let View { desired, seen, .. } = *view;
    let (facts, wish) = (seen.facts(member)?, desired.members.get(member)?);
    let found = postgres(facts)?;
    let in_place = facts.node_config.as_ref().is_some_and(|(_, digest)| *digest == wish.digest);
    let ServiceState::Running { digest, .. } = &found.service else { return None };
    if in_place && *digest != wish.service_digest {
        let why = with_changes(desired, String::from("Patroni's settings have changed"));
        return Some((Action::RestartPatroni { member: member.clone() }, why));
    }
    let status = found.status.as_ref()?;
    let why = match (status.pending_restart, found.other_release()) {
        (true, _) if status.pending.is_empty() => {
            String::from("a parameter changed that takes effect when PostgreSQL restarts")
        }
        (true, _) => format!("{} with a restart", named(&status.pending)),
        (false, Some((running, installed))) => format!("PostgreSQL {running} runs, and {installed} is installed"),
        (false, None) => return None,
    };
    Some((Action::RestartPostgres { member: member.clone() }, why))
}

/// The parameters that wait for a restart, with their values.
fn named(pending: &BTreeMap<String, Changed>) -> String {
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| String::from("its default"));
    let changes: Vec<String> = pending
        .iter()
        .map(|(name, (old, new))| format!("{name} changes from {} to {}", value(old), value(new)))
        .collect();
    changes.join(", ")
}

/// Lets another member take over from the primary. Returns whether that comes first.
pub(crate) fn hand_over(view: &View<'_>, member: &MemberName, why: &str, decision: &mut Decision) -> bool {
    if !safety::leads(view, member) {
        return false;
    }
    match safety::successor(view, member) {
        Some(to) => {
            let why = format!("{why}; {member} is the primary, and clients wait less when it hands over first");
            decision.step(Action::Switchover { member: member.clone(), to }, why);
        }
        None => decision.wait(WaitingFor::Primary {
            why: format!("{member} is the primary, and no standby is close enough to take over"),
        }),
    }
    true
}

/// Why a member is disturbed, and what that means for the others.
pub(crate) fn with_numbers(view: &View<'_>, member: &MemberName, why: &str) -> String {
    let others = safety::members(view);
    let remain = others.healthy.saturating_sub(usize::from(view.is_well(member)));
    match remain {
        0 => format!("{why}; the cluster is down during the restart, as the operator allowed"),
        _ => format!("{why}; {remain} of {} members remain healthy", others.all),
    }
}
