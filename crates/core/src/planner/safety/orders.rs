//! What must not be decided while an agent is still carrying out an order.

use super::reboots;
use crate::planner::{View, WaitingFor};

/// Rules 1 and 9: an order under way is a change or a disturbance that no facts show yet. The controller that gave it may have been
/// killed, so nobody waits for its answer; until it has ended, nothing else is begun. The machine that a member had
/// before is not asked: a replacement does not wait for the old machine.
pub fn orders_under_way(view: &View<'_>) -> Vec<WaitingFor> {
    let View { desired, seen, .. } = *view;
    let busy = desired.machines().filter_map(|(member, _)| Some((member, seen.facts(member)?.busy.as_ref()?)));
    let orders = busy.map(|(member, busy)| WaitingFor::Order { member: member.clone(), order: busy.order.clone() });
    orders.chain(reboots::under_way(view)).collect()
}
