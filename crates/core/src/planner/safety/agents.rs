//! What is forbidden while an agent is being upgraded.

use jiff::SignedDuration;

use crate::model::{MemberName, Seen};
use crate::planner::View;

/// Rule 9 for agents: while another agent is unreachable and may return, no agent is upgraded. It may be the one that was upgraded
/// last, and all others could fail in the same way. One that counts as dead does not matter.
pub fn another_agent_is_away<'a>(view: &View<'a>, member: &MemberName) -> Option<(&'a MemberName, &'a str)> {
    let View { desired, seen, .. } = *view;
    let machines = seen.machines.get()?;
    desired.machines().filter(|(other, _)| *other != member).find_map(|(other, wish)| {
        machines.get(other).filter(|machine| machine.is_up())?;
        let Seen::Unreachable { why, .. } = seen.agents.get(other)? else { return None };
        let unseen = wish.unseen_since.map_or(SignedDuration::ZERO, |since| seen.now.duration_since(since));
        let may_come_back = desired.grace.is_some_and(|grace| unseen < grace);
        may_come_back.then_some((other, why.as_str()))
    })
}
