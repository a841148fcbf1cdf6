//! A switchover that the operator requested. Restarts come first: if they make another member the primary, the request is done.

use crate::kinds::postgres::{Unfit, safety};
use crate::model::MemberName;
use crate::planner::{Action, Decision, UnsafeBecause, View, WaitingFor};

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let Some(request) = &view.desired.postgres().switchover else { return };
    if !view.desired.is_formed() || !decision.steps.is_empty() {
        return;
    }
    let Some(primary) = safety::primary(view) else {
        let why = String::from("a switchover was requested, and no member, or more than one, is the primary");
        return decision.wait(WaitingFor::Primary { why });
    };
    if *primary != request.from {
        return;
    }
    let others: Vec<MemberName> =
        safety::unwell_besides(view, primary).into_iter().filter(|other| request.to.as_ref() != Some(other)).collect();
    match successor(view, primary, request.to.as_ref()) {
        Err(unfit) => decision.block(UnsafeBecause::NoSuccessor { from: primary.clone(), unfit }),
        Ok(_) if !others.is_empty() && !view.desired.downtime => {
            decision.block(UnsafeBecause::SwitchoverAlone { from: primary.clone(), others });
        }
        Ok(to) => {
            let why = format!("requested by {}", request.consent.by);
            decision.step(Action::Switchover { member: primary.clone(), to }, why);
        }
    }
}

/// The member that takes over, or why each candidate cannot.
fn successor(
    view: &View<'_>,
    primary: &MemberName,
    asked: Option<&MemberName>,
) -> Result<MemberName, Vec<(MemberName, Unfit)>> {
    let unfit = |member: &MemberName| Some((member.clone(), safety::unfit(view, primary, member)?));
    match asked {
        Some(to) => match unfit(to) {
            Some(unfit) => Err(vec![unfit]),
            None => Ok(to.clone()),
        },
        None => safety::successor(view, primary)
            .ok_or_else(|| view.desired.members.keys().filter(|member| *member != primary).filter_map(unfit).collect()),
    }
}
