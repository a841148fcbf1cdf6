//! The concerns of etcd alone, one file each, and the order in which an etcd cluster's concerns are asked.

pub(crate) mod auth;
pub(crate) mod formation;
pub(crate) mod front;
pub(crate) mod log;
pub(crate) mod loss;
pub(crate) mod membership;
pub(crate) mod patroni;
pub(crate) mod program;
pub(crate) mod recovery;
pub(crate) mod renewal;
pub(crate) mod restart;
pub(crate) mod restore;
pub(crate) mod version;

pub use formation::is_silent;

use crate::planner::{self, Decision, View};
use membership::Growth;

/// Asks each concern in turn. A refused concern does not stop the others.
pub(crate) fn decide(view: &View<'_>, as_formed: bool, decision: &mut Decision) {
    let desired = view.desired;
    if let Some(restore) = desired.etcd.restore.as_ref().filter(|_| as_formed) {
        restore::decide(view, restore, decision);
        return;
    }
    if desired.etcd.recovery && recovery::is_to_begin(view) {
        planner::machines::decide(view, decision);
        if decision.steps.is_empty() {
            recovery::begin(view, decision);
        }
        return;
    }
    planner::machines::decide(view, decision);
    planner::repair::decide(view, decision);
    planner::enrolment::decide(view, decision);
    if as_formed {
        planner::certificates::decide(view, decision);
        planner::config::decide(view, decision);
    }
    formation::decide(view, decision);
    recovery::go_on(view, decision);
    let growing = membership::grow(view, decision);
    if as_formed && growing != Growth::UnderWay {
        restart::decide(view, decision);
        planner::renewal::decide(view, decision);
        planner::reboot::decide(view, decision);
    }
    // A member leaves only when clients no longer connect to it.
    planner::fixtures::decide(view, decision);
    membership::shrink(view, decision, growing != Growth::None);
    membership::tell_failures(desired, decision);
    planner::machines::remove_leftover(view, decision);
    front::decide(view, decision);
    planner::proxies::decide(view, decision);
    if as_formed {
        auth::decide(view, decision);
        patroni::decide(view, decision);
        planner::trust::decide(view, decision);
    }
    restore::clean_up(view, decision);
    if as_formed {
        planner::revocation::decide(view, decision);
    }
    planner::fixtures::wait_until_they_serve(view, decision);
}
