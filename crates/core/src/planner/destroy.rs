//! Destruction, once confirmed: every machine of the cluster is destroyed, then its ledger is removed.

use super::{Action, Decision, View, WaitingFor, fixtures, machines};
use crate::model::{Data, Destruction, PowerState, Seen};

pub(super) fn decide(view: &View<'_>, word: &Destruction, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    if matches!(word, Destruction::BackupVerified(_)) && view.can_tell_more() {
        return decision.wait(WaitingFor::AuthSight);
    }
    if let Err(because) = view.may_destroy(word) {
        return decision.block(because);
    }
    // Fixtures are removed first, so networks are unused when the last machine is destroyed.
    if fixtures::remove_all(view, decision) {
        return;
    }
    let found = match &seen.machines {
        Seen::At(_, machines) => machines,
        Seen::Unreachable { why, .. } => return decision.wait(WaitingFor::Provider { why: why.clone() }),
    };
    for (member, machine) in found {
        if machines::is_ours(desired, machine) && machine.power == PowerState::Unknown {
            machines::wait_for_its_place(decision, member, machine);
        } else if machines::is_ours(desired, machine) {
            decision.step(
                Action::DestroyMachine { member: member.clone(), data: Data::Goes },
                "the operator confirmed that this cluster and its data are deleted",
            );
        }
    }
    if decision.steps.is_empty() && decision.waiting.is_empty() {
        decision.step(Action::ForgetCluster, "no machine of it is left");
    }
}
