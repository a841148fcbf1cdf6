//! What must not be decided while an agent is still carrying out an order.

use super::reboots;
use crate::planner::{View, WaitingFor};

/// Rules 1 and 9: an order in progress is a change or a disturbance that no facts show yet. Its controller may have been killed and
/// not wait for the answer; until the order has ended, nothing else begins. The previous machine of a member does not count: a
/// replacement does not wait for it.
pub fn orders_under_way(view: &View<'_>) -> Vec<WaitingFor> {
    let View { desired, seen, .. } = *view;
    let busy = desired.machines().filter_map(|(member, _)| Some((member, seen.facts(member)?.busy.as_ref()?)));
    let orders = busy.map(|(member, busy)| WaitingFor::Order { member: member.clone(), order: busy.order.clone() });
    orders.chain(reboots::under_way(view)).collect()
}
