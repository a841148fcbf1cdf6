//! The concerns of PostgreSQL alone, one file each, and the order in which a PostgreSQL cluster's concerns are asked.

pub(crate) mod catalog;
pub(crate) mod formation;
pub(crate) mod machine;
pub(crate) mod membership;
mod proxy;
pub(crate) mod repository;
pub(crate) mod restart;
mod restore;
mod rotation;
pub(crate) mod switchover;
mod takeover;
pub(crate) mod upgrade;

use crate::planner::{self, Decision, UnsafeBecause, View};
use upgrade::Upgrading;

/// Asks each concern in turn. A refused concern does not stop the others.
pub(crate) fn decide(view: &View<'_>, as_formed: bool, decision: &mut Decision) {
    planner::machines::decide(view, decision);
    match view.desired.replaces_data() {
        true => planner::repair::give_up_the_lost(view, decision),
        false => planner::repair::decide(view, decision),
    }
    planner::enrolment::decide(view, decision);
    if as_formed {
        planner::certificates::decide(view, decision);
        planner::config::decide(view, decision);
    }
    let upgrading = upgrade::decide(view, as_formed, decision);
    if upgrading != Upgrading::UnderWay {
        formation::decide(view, decision);
        takeover::decide(view, decision);
    }
    if as_formed && upgrading == Upgrading::No {
        catalog::decide(view, decision);
        rotation::decide(view, decision);
        restart::decide(view, decision);
        planner::renewal::decide(view, decision);
        planner::reboot::decide(view, decision);
        repository::decide(view, decision);
        upgrade::finish(view, decision);
        upgrade::discard(view, decision);
        switchover::decide(view, decision);
    }
    if upgrading != Upgrading::UnderWay {
        membership::shrink(view, decision);
    }
    planner::machines::remove_leftover(view, decision);
    proxy::decide(view, decision);
    planner::proxies::decide(view, decision);
    if as_formed {
        planner::revocation::decide(view, decision);
    }
}

/// A configuration names the etcd that Patroni keeps its state in.
pub(crate) fn may_configure(view: &View<'_>, decision: &mut Decision) -> bool {
    match &view.desired.postgres().dcs {
        Ok(_) => true,
        Err(why) => {
            decision.block(UnsafeBecause::DcsUnusable { why: why.clone() });
            false
        }
    }
}
