//! Chooses the member that takes over if no primary runs after the etcd below was restored. Patroni promotes no member then (`older_dcs`),
//! because it no longer knows which one has all commits. quorate finds out from the members and tells Patroni, which does the rest.

use crate::kinds::postgres::safety;
use crate::model::{DataSeen, MemberName};
use crate::planner::{Action, Decision, UnsafeBecause, View, WaitingFor};
use crate::text::list;

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let desired = view.desired;
    let leads = |member| safety::leads(view, member);
    let is_idle = desired.is_formed() && !desired.postgres().exchanges_data();
    if !is_idle || desired.all_joined().any(leads) || !safety::is_held(view) {
        return;
    }
    match safety::member_with_every_commit(view) {
        Ok((member, end)) => {
            let why = format!(
                "etcd was restored and there is no primary; {member} has the most recent log (timeline {}, {})",
                end.timeline, end.location
            );
            decision.step(Action::LetTakeOver { member, end }, why);
        }
        // It starts, or replays its log.
        Err(UnsafeBecause::CommitsUnknown { silent, .. })
            if !decision.steps.is_empty() || silent.iter().all(|member| has_data(view, member)) =>
        {
            let why = format!("etcd was restored, and the end of the log of {} is not known yet", list(&silent));
            decision.wait(WaitingFor::Primary { why });
        }
        Err(because) => decision.block(because),
    }
}

fn has_data(view: &View<'_>, member: &MemberName) -> bool {
    let found = view.seen.facts(member).and_then(safety::postgres);
    found.is_some_and(|found| matches!(found.data, DataSeen::Stamped(_)))
}
