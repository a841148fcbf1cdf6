//! What PostgreSQL needs before a member's machine is replaced or reboots: the same as before a restart. Patroni is stopped first, so
//! PostgreSQL writes everything in memory to the disk that stays.

use super::restart::{primary_hands_over, standbys_come_first, with_numbers};
use crate::kinds::postgres::safety::{self, postgres};
use crate::model::{MemberName, ServiceState};
use crate::planner::{Action, Decision, Precondition, View};

/// Returns whether the machine must wait for something else.
pub(crate) fn let_go(view: &View<'_>, member: &MemberName, why: &str, decision: &mut Decision) -> bool {
    if standbys_come_first(view, member, decision) || primary_hands_over(view, member, why, decision) {
        return true;
    }
    let runs = |state: &ServiceState| *state != ServiceState::Stopped;
    if view.seen.facts(member).and_then(postgres).is_some_and(|found| runs(&found.service)) {
        let action = Action::StopPatroni { member: member.clone() };
        match safety::leads(view, member) {
            // With the operator's consent to downtime only.
            true => decision.step(action, why),
            false => decision.step_expecting(action, why, Precondition::Replica),
        }
    }
    false
}

/// Disturbs the next of these members if the rules allow it: unhealthy ones first, then replicas, then the primary.
pub(crate) fn disturb_one(
    view: &View<'_>,
    decision: &mut Decision,
    members: &[&MemberName],
    disturb: impl Fn(&MemberName) -> (Action, String),
) {
    let turn = |member: &&&MemberName| (view.is_well(member), safety::leads(view, member));
    let Some(next) = members.iter().min_by_key(turn).filter(|next| !decision.has_business_with(next)) else { return };
    let (action, why) = disturb(next);
    if standbys_come_first(view, next, decision) || primary_hands_over(view, next, &why, decision) {
        return;
    }
    match safety::may_disturb(view, next) {
        Ok(()) => decision.step(action, with_numbers(view, next, &why)),
        Err(because) => decision.block(because),
    }
}
