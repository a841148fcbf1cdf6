//! Members that leave: those that the spec no longer names, and former machines.

use crate::kinds::postgres::safety::{self, postgres};
use crate::model::{DataSeen, MemberName, ServiceState};
use crate::planner::machines::in_the_way;
use crate::planner::{Action, Decision, Precondition, View};

/// Stops one member that the spec no longer names, when all wanted ones are healthy; or all but those that need its place.
pub(crate) fn shrink(view: &View<'_>, decision: &mut Decision) {
    let desired = view.desired;
    bring_back(view, decision);
    if !desired.is_formed() || !decision.steps.is_empty() {
        return;
    }
    let leaving = desired.all_joined().filter(|member| !desired.members.contains_key(*member));
    let leaving = leaving.filter(|member| safety::all_others_are_well(view, member));
    // The primary last: until then Patroni may choose a remaining standby to take over.
    let Some(member) = leaving.min_by_key(|member| (safety::leads(view, member), *member)) else { return };
    let survived = safety::members(view).healthy.saturating_sub(1 + usize::from(view.is_well(member)));
    let in_the_way = in_the_way(view, member, survived);
    let why = in_the_way.as_deref().unwrap_or("the spec no longer names it, and every other member is healthy");
    if restart_first(view, member, why, decision) {
        return;
    }
    let runs = |state: &ServiceState| *state != ServiceState::Stopped;
    let is_running = view.seen.facts(member).and_then(postgres).is_some_and(|found| runs(&found.service));
    match is_running {
        true => match safety::may_disturb(view, member) {
            Ok(()) => {
                decision.step_expecting(Action::StopPatroni { member: member.clone() }, why, Precondition::Replica);
            }
            Err(because) => decision.block(because),
        },
        // Waited for in `catalog`. Until Patroni has recorded another one, this may be the only standby that can take over.
        false if safety::too_few_synchronous(view).is_some() => {}
        false => decision.step(Action::RecordLeft { member: member.clone() }, "it does not run any more"),
    }
}

/// Without a primary, a member that was stopped to leave may be the only one that can take over: commits may have waited for it when
/// the primary was lost.
fn bring_back(view: &View<'_>, decision: &mut Decision) {
    let desired = view.desired;
    if !desired.is_formed() || desired.postgres().exchanges_data() || safety::primary(view).is_some() {
        return;
    }
    let token = desired.postgres().formation.token();
    let leaving: Vec<&MemberName> = desired.all_joined().filter(|m| !desired.members.contains_key(*m)).collect();
    for member in leaving.into_iter().filter(|member| !decision.has_business_with(member)).collect::<Vec<_>>() {
        let Some(found) = view.seen.facts(member).and_then(postgres) else { continue };
        let holds = matches!(&found.data, DataSeen::Stamped(stamp) if Some(stamp.token.as_str()) == token);
        if holds && found.service == ServiceState::Stopped {
            let why = format!("there is no primary, and {member} was stopped to leave: it may be able to take over");
            let action = Action::StartPatroni { member: member.clone() };
            decision.step_expecting(action, why, Precondition::Data(found.data.clone()));
        }
    }
}

/// A primary hands over before it leaves.
fn restart_first(view: &View<'_>, member: &MemberName, why: &str, decision: &mut Decision) -> bool {
    super::restart::hand_over(view, member, why, decision)
}

/// The members left without this one, if they suffice. Otherwise the decision says what is missing.
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
