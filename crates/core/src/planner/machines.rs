//! Machines: every member has one, and it is switched on; or all are off, if the operator wants that.

use super::{Action, Decision, UnsafeBecause, View, WaitingFor, proxies, safety};
use crate::model::{AgentSeen, Data, Desired, DesiredMember, MachineSeen, MemberName, PowerState, Seen};

pub(crate) fn decide(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    let machines = match &seen.machines {
        Seen::At(_, machines) => machines,
        Seen::Unreachable { why, .. } => return decision.wait(WaitingFor::Provider { why: why.clone() }),
    };
    for (member, wish) in desired.machines() {
        match machines.get(member) {
            None if is_awaited_by_its_data(view, member, wish) => decision.step(
                Action::CreateMachine {
                    member: member.clone(),
                    incarnation: wish.renewing.unwrap_or(wish.incarnation),
                    data: Data::Stays,
                },
                format!("the machine of {member} is recreated and keeps its data and its membership"),
            ),
            // `repair`, or the restore, finds out what happened to it.
            None if desired.counts_on(member) || proxies::may_come_back(desired, member, wish) => {}
            None if !may_be_made(view, member, wish) => {}
            None => decision.step(
                Action::CreateMachine { member: member.clone(), incarnation: wish.incarnation, data: Data::Goes },
                match wish.incarnation {
                    0 | 1 => format!("{member} is in the spec and has no machine"),
                    next => format!("{member} gets a new machine in place of {member}.{}", next - 1),
                },
            ),
            Some(machine) if !is_ours(desired, machine) => decision.block(foreign(desired, member, machine)),
            // The next one is created in another place, and this one must be destroyed first or count as dead (`repair`).
            Some(machine) if machine.power == PowerState::Unknown && machine.place != wish.place => {
                wait_for_its_place(decision, member, machine);
            }
            Some(machine) if machine.power == PowerState::Stopping => wait_until_off(decision, member),
            Some(machine) if machine.power == PowerState::Off && safety::reboots::may_switch_on(view, member) => {
                let why = String::from("it is off");
                decision.wait(WaitingFor::Reboot { member: member.clone(), why, upgrading: None });
            }
            Some(machine) if machine.power == PowerState::Off => decision
                .step(Action::StartMachine { member: member.clone() }, format!("the machine of {member} does not run")),
            Some(machine) if machine.outdated => decision.step(
                Action::StartMachine { member: member.clone() },
                format!(
                    "the agent of {member} is an older program than this one: it is restarted; {} keeps running",
                    desired.program_name()
                ),
            ),
            Some(_) => {}
        }
    }
    let unwanted = machines.iter().filter(|(m, machine)| !desired.wants(m) && is_ours(desired, machine));
    for (member, machine) in unwanted {
        let needed = desired.belongs(member) && !desired.replaces_data();
        if needed && machine.power == PowerState::Stopping {
            wait_until_off(decision, member);
        } else if needed && (machine.power == PowerState::Off || machine.outdated) {
            let state = if machine.outdated { "its agent is an older program" } else { "does not run" };
            let why = format!("{member} belongs to the cluster until it is removed, and {state}");
            decision.step(Action::StartMachine { member: member.clone() }, why);
        }
    }
}

/// Whether its machine was removed for a renewal, or while one was recorded. If all data is being replaced, nothing waits for it.
fn is_awaited_by_its_data(view: &View<'_>, member: &MemberName, wish: &DesiredMember) -> bool {
    let View { desired, seen, .. } = *view;
    let known = desired.joined(member).filter(|_| desired.counts_on(member));
    let address = known.and_then(|known| known.address);
    let is_free =
        |address| !seen.machines.get().into_iter().flatten().any(|(_, machine)| machine.address == Some(address));
    wish.renewing.is_some() && !desired.replaces_data() && address.is_some_and(is_free)
}

/// Whether a machine must be removed before that of a member is created: it has its address, or it is no longer wanted and the provider has
/// no room for both.
pub(crate) fn makes_way(
    desired: &Desired,
    (other, machine): (&MemberName, &MachineSeen),
    member: &MemberName,
    wish: &DesiredMember,
) -> bool {
    let has_its_address = wish.address.is_some() && wish.address == machine.address;
    let has_its_room = desired.no_room.contains_key(member) && !desired.wants(other);
    other != member && (has_its_address || has_its_room)
}

/// Whether a member has no machine, and cannot have one before this other one is removed.
pub(crate) fn awaits(view: &View<'_>, coming: &MemberName, other: &MemberName) -> bool {
    let View { desired, seen, .. } = *view;
    let (Some(machines), Some(wish)) = (seen.machines.get(), desired.members.get(coming)) else { return false };
    let machine = machines.get(other).filter(|_| !machines.contains_key(coming));
    machine.is_some_and(|machine| makes_way(desired, (other, machine), coming, wish))
}

/// Why a former machine is removed before its successor is created, if it must be. Meanwhile, the cluster tolerates so many failures.
pub(crate) fn in_the_way(view: &View<'_>, other: &MemberName, survived: usize) -> Option<String> {
    let desired = view.desired;
    let coming = desired.members.keys().find(|member| awaits(view, member, other))?;
    let why = match desired.no_room.get(coming) {
        Some(why) => format!("there is no room for the new machine of {coming} next to it ({why})"),
        None => String::from(
            "its address is pinned for its new machine, which can only be created when this one is removed",
        ),
    };
    let failures = if survived == 1 { "failure" } else { "failures" };
    Some(format!("{why}; until that one has caught up, the cluster tolerates {survived} more {failures}"))
}

/// In a bootstrapped cluster a machine is created for a member that can join: while there is a quorum, and when no former
/// machine has the address or the room. If all data is being replaced, no member needs to join.
fn may_be_made(view: &View<'_>, member: &MemberName, wish: &DesiredMember) -> bool {
    let View { desired, seen, .. } = *view;
    if !desired.may_hold_data() {
        return true;
    }
    let machines = seen.machines.get().into_iter().flatten();
    let mut others = machines.filter(|(_, machine)| is_ours(desired, machine));
    let free = !others.any(|other| makes_way(desired, other, member, wish));
    let may_join = || desired.is_proxy(member) || (wish.join_failed.is_none() && view.takes_members());
    free && (desired.replaces_data() || may_join())
}

/// Removes unwanted machines: former ones, and those of members that the spec no longer names. At once while no client can have
/// written; otherwise when they are no longer members.
pub(crate) fn remove_leftover(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    let Some(machines) = seen.machines.get() else { return };
    let unwanted = |m: &&MemberName| !desired.wants(m) && !desired.is_proxy(m);
    for (member, machine) in machines.iter().filter(|(m, machine)| unwanted(m) && is_ours(desired, machine)) {
        if decision.has_business_with(member) {
            continue;
        }
        if machine.power == PowerState::Unknown {
            wait_for_its_place(decision, member, machine);
            continue;
        }
        if desired.may_hold_data() {
            if view.may_clear_away(member) {
                decision.step(
                    Action::DestroyMachine { member: member.clone(), data: Data::Goes },
                    "it has left the cluster, and the remaining members hold all of its data",
                );
            }
            continue;
        }
        remove_unformed(view, decision, member, machine);
    }
}

/// It is destroyed once it is known to hold no data of an unknown cluster.
fn remove_unformed(view: &View<'_>, decision: &mut Decision, member: &MemberName, machine: &MachineSeen) {
    let View { desired, seen, .. } = *view;
    let refused = seen.facts(member).and_then(|facts| {
        let current = safety::fence_is_current(desired.fence, member, facts);
        current.and_then(|()| view.data_is_known(member, facts)).err()
    });
    if let Some(because) = refused {
        return decision.block(because);
    }
    match seen.agents.get(member) {
        Some(Seen::At(_, AgentSeen::Enrolled(_) | AgentSeen::Unenrolled { .. })) => decision.step(
            Action::DestroyMachine { member: member.clone(), data: Data::Goes },
            format!("the spec no longer names {member}, and no client has written to the cluster yet"),
        ),
        _ if machine.power == PowerState::Stopping => wait_until_off(decision, member),
        _ if machine.power == PowerState::Off => decision.step(
            Action::StartMachine { member: member.clone() },
            format!("the spec no longer names {member}: its machine is destroyed once its data is known"),
        ),
        Some(Seen::At(_, AgentSeen::Untrusted(distrust))) => {
            decision.block(UnsafeBecause::Untrusted { member: member.clone(), distrust: *distrust });
        }
        // It is upgraded first (`agents`), or refused.
        Some(Seen::At(_, AgentSeen::OtherProtocol(_))) => {}
        Some(Seen::Unreachable { why, .. }) => {
            decision.wait(WaitingFor::Agent { member: member.clone(), why: why.clone() });
        }
        None => {
            let why = String::from("it has not been asked yet");
            decision.wait(WaitingFor::Agent { member: member.clone(), why });
        }
    }
}

/// Stops every machine of this cluster on which something runs.
pub(crate) fn switch_off(view: &View<'_>, decision: &mut Decision) {
    let View { desired, seen, .. } = *view;
    let machines = match &seen.machines {
        Seen::At(_, machines) => machines,
        Seen::Unreachable { why, .. } => return decision.wait(WaitingFor::Provider { why: why.clone() }),
    };
    for (member, machine) in machines {
        if is_ours(desired, machine) && machine.power == PowerState::Stopping {
            wait_until_off(decision, member);
        } else if is_ours(desired, machine) && machine.power == PowerState::Unknown {
            wait_for_its_place(decision, member, machine);
        } else if is_ours(desired, machine) && machine.may_run() {
            decision
                .step(Action::StopMachine { member: member.clone() }, "the cluster should be off; its data is kept");
        }
    }
}

/// What is about to stop neither runs nor can be started.
fn wait_until_off(decision: &mut Decision, member: &MemberName) {
    decision.wait(WaitingFor::MachineOff { member: member.clone() });
}

/// A machine whose provider does not answer cannot be changed.
pub(super) fn wait_for_its_place(decision: &mut Decision, member: &MemberName, machine: &MachineSeen) {
    let place = machine.place.as_deref().unwrap_or("its place");
    decision
        .wait(WaitingFor::Provider { why: format!("the machine of {member} is at {place}, which cannot be reached") });
}

pub(crate) fn is_ours(desired: &Desired, machine: &MachineSeen) -> bool {
    machine.cluster_id == desired.cluster_id
}

fn foreign(desired: &Desired, member: &MemberName, machine: &MachineSeen) -> UnsafeBecause {
    UnsafeBecause::ForeignMachine {
        member: member.clone(),
        found: machine.cluster_id.clone(),
        ours: desired.cluster_id.clone(),
    }
}
