//! Machines: every member has one, and it is switched on. Or none is, when the operator wants them off.

use super::{Action, Decision, UnsafeBecause, WaitingFor};
use crate::model::{Desired, MachineSeen, MemberName, Observation, Power, Seen};

pub(super) fn decide(desired: &Desired, seen: &Observation, decision: &mut Decision) {
    let machines = match &seen.machines {
        Seen::At(_, machines) => machines,
        Seen::Unreachable { why, .. } => return decision.wait(WaitingFor::Provider { why: why.clone() }),
    };
    for (member, wish) in &desired.members {
        match machines.get(member) {
            None => decision.step(
                Action::CreateMachine { member: member.clone(), incarnation: wish.incarnation },
                format!("{member} is in the spec and has no machine"),
            ),
            Some(machine) if !is_ours(desired, machine) => decision.block(foreign(desired, member, machine)),
            Some(machine) if machine.power == Power::Off => decision
                .step(Action::StartMachine { member: member.clone() }, format!("the machine of {member} does not run")),
            Some(_) => {}
        }
    }
}

/// Stops every machine of ours that runs.
pub(super) fn switch_off(desired: &Desired, seen: &Observation, decision: &mut Decision) {
    let machines = match &seen.machines {
        Seen::At(_, machines) => machines,
        Seen::Unreachable { why, .. } => return decision.wait(WaitingFor::Provider { why: why.clone() }),
    };
    for (member, machine) in machines {
        if is_ours(desired, machine) && machine.power == Power::On {
            decision
                .step(Action::StopMachine { member: member.clone() }, "the cluster is to be down; its data is kept");
        }
    }
}

pub(super) fn is_ours(desired: &Desired, machine: &MachineSeen) -> bool {
    machine.cluster_id == desired.cluster_id
}

fn foreign(desired: &Desired, member: &MemberName, machine: &MachineSeen) -> UnsafeBecause {
    UnsafeBecause::ForeignMachine {
        member: member.clone(),
        found: machine.cluster_id.clone(),
        ours: desired.cluster_id.clone(),
    }
}
