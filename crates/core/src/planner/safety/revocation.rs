//! Which certificates may be revoked.

use crate::model::{MachineSeen, MemberName};
use crate::planner::View;

/// Whether this machine no longer belongs to the cluster, and never will again. Revoking a member's certificates would cut it
/// off from its peers, so all of these are required: the provider does not have the machine, the ledger does not depend on it,
/// and the spec does not want it.
pub fn is_gone(view: &View<'_>, member: &MemberName, incarnation: u64) -> bool {
    let View { desired, seen, .. } = *view;
    let Some(machines) = seen.machines.get() else { return false };
    let is_it = |(name, machine): (&MemberName, &MachineSeen)| {
        name.seat() == member.seat() && machine.incarnation == incarnation && machine.cluster_id == desired.cluster_id
    };
    let current = desired.machine(member).map(|wish| wish.incarnation);
    let is_current = current.is_none_or(|current| current == incarnation);
    let listed =
        desired.joined(&member.former(incarnation)).is_some() || (is_current && desired.joined(member).is_some());
    current != Some(incarnation) && !listed && !machines.iter().any(is_it)
}
