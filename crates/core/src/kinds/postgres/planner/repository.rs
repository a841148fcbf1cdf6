//! The backup store: prepared once, through the primary, when it archives its log.

use crate::kinds::postgres::safety::{self, postgres};
use crate::model::MemberName;
use crate::planner::{Action, Decision, View};

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let desired = view.desired;
    let Some(place) = desired.postgres().repository.clone() else { return };
    let is_prepared = |member: &MemberName| {
        let found = view.seen.facts(member).and_then(postgres);
        found.is_some_and(|found| found.repository.as_ref() == Some(&place))
    };
    if !desired.is_formed() || !decision.steps.is_empty() || desired.all_joined().any(is_prepared) {
        return;
    }
    let Some(primary) = safety::primary(view) else { return };
    // Its archiving begins with a restart, and with strict synchronous replication the check waits for a standby.
    let restarts = safety::status(view.seen, primary).is_some_and(|status| status.pending_restart);
    if restarts || !desired.members.keys().all(|member| view.is_well(member)) {
        return;
    }
    let why = "the spec has backups; the log is checked to arrive there".to_owned();
    decision.step(Action::PrepareRepository { member: primary.clone(), place }, why);
}
