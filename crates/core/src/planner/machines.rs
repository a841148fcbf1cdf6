//! Machines: every member has one, and it is switched on. Or none is, when the operator wants them off.

use super::{Action, Decision, UnsafeBecause, WaitingFor, safety};
use crate::model::{AgentSeen, Desired, Formation, MachineSeen, MemberName, Observation, Power, Seen};

pub(super) fn decide(desired: &Desired, seen: &Observation, decision: &mut Decision) {
    let machines = match &seen.machines {
        Seen::At(_, machines) => machines,
        Seen::Unreachable { why, .. } => return decision.wait(WaitingFor::Provider { why: why.clone() }),
    };
    for (member, wish) in &desired.members {
        match machines.get(member) {
            None if safety::held_data(desired, member) => {
                decision.block(UnsafeBecause::LostMachine { member: member.clone() });
            }
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

/// While no client can have written, a member that the spec no longer names leaves nothing behind.
pub(super) fn remove_leftover(desired: &Desired, seen: &Observation, decision: &mut Decision) {
    let Some(machines) = seen.machines.get() else { return };
    if matches!(desired.formation, Formation::Formed { .. }) {
        return;
    }
    let ours = |m: &&MemberName| machines.get(*m).is_some_and(|machine| is_ours(desired, machine));
    for member in desired.leftover.iter().filter(ours) {
        let refused = seen.facts(member).and_then(|facts| {
            let current = safety::fence_is_current(desired, member, facts);
            current.and_then(|()| safety::formation_is_known(desired, member, facts)).err()
        });
        if let Some(because) = refused {
            decision.block(because);
            continue;
        }
        match seen.agents.get(member) {
            Some(Seen::At(_, AgentSeen::Enrolled(_) | AgentSeen::Unenrolled { .. })) => decision.step(
                Action::DestroyMachine { member: member.clone() },
                format!("the spec no longer names {member}, and no client has written to the cluster yet"),
            ),
            _ if machines[member].power == Power::Off => decision.step(
                Action::StartMachine { member: member.clone() },
                format!("the spec no longer names {member}: its machine goes once it is seen what it holds"),
            ),
            Some(Seen::Unreachable { why, .. }) => {
                decision.wait(WaitingFor::Agent { member: member.clone(), why: why.clone() });
            }
            None => {
                let why = String::from("it was not asked yet");
                decision.wait(WaitingFor::Agent { member: member.clone(), why });
            }
        }
    }
}

/// Stops every machine of ours on which something runs.
pub(super) fn switch_off(desired: &Desired, seen: &Observation, decision: &mut Decision) {
    let machines = match &seen.machines {
        Seen::At(_, machines) => machines,
        Seen::Unreachable { why, .. } => return decision.wait(WaitingFor::Provider { why: why.clone() }),
    };
    for (member, machine) in machines {
        if is_ours(desired, machine) && (machine.power == Power::On || machine.headless) {
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
