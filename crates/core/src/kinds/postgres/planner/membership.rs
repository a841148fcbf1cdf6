//! Members that leave: those that the spec no longer names, and former machines.

use crate::kinds::postgres::safety::{self, postgres};
use crate::model::{MemberName, ServiceState};
use crate::planner::{Action, Decision, View};

/// Stops one member that is not wanted any more, when all that are wanted are well.
pub(crate) fn shrink(view: &View<'_>, decision: &mut Decision) {
    let desired = view.desired;
    let complete = || desired.members.keys().all(|member| view.is_well(member));
    if !desired.is_formed() || !decision.steps.is_empty() || !complete() {
        return;
    }
    let leaving = desired.all_joined().filter(|member| !desired.members.contains_key(*member));
    // The primary last: until then Patroni may choose a standby that stays as the one that takes over.
    let Some(member) = leaving.min_by_key(|member| (safety::leads(view, member), *member)) else { return };
    let why = "the spec no longer names it, and every other member is healthy";
    if restart_first(view, member, why, decision) {
        return;
    }
    let runs = |state: &ServiceState| *state != ServiceState::Stopped;
    let is_running = view.seen.facts(member).and_then(postgres).is_some_and(|found| runs(&found.service));
    match is_running {
        true => match safety::may_disturb(view, member) {
            Ok(()) => decision.step(Action::StopPatroni { member: member.clone() }, why),
            Err(because) => decision.block(because),
        },
        false => decision.step(Action::RecordLeft { member: member.clone() }, "it does not run any more"),
    }
}

/// A primary hands over before it leaves.
fn restart_first(view: &View<'_>, member: &MemberName, why: &str, decision: &mut Decision) -> bool {
    super::restart::hand_over(view, member, why, decision)
}

/// What is left without this member, if that is enough. Else the decision says what is missing.
pub(crate) fn others_can_do_without(view: &View<'_>, member: &MemberName, decision: &mut Decision) -> Option<String> {
    let primary = safety::primary(view).filter(|primary| *primary != member);
    let Some(primary) = primary else {
        let why = format!("{member} is lost, and no other member is the primary yet");
        decision.wait(crate::planner::WaitingFor::Primary { why });
        return None;
    };
    let members = safety::members(view);
    Some(format!("{primary} is the primary, {} of {} members are healthy", members.healthy, members.all))
}
