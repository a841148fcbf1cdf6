//! Names: a machine is named by its membership, or as a former one if the ledger wants another incarnation. Two controllers with
//! different ledgers may use different names for the same machine.

use std::collections::BTreeMap;

use quorate_core::model::{Desired, Ledger, MachineSeen, MemberName, Observation, Seen};
use quorate_core::planner::simulate::{SimMachine, World};

/// Whether this controller calls every machine as the ledger does.
pub fn are_alike(world: &World, desired: &Desired) -> bool {
    desired.members.iter().all(|(member, wish)| wanted(&world.ledger, member) == wish.incarnation)
}

/// Lets a controller act in a world whose machines are called as it knows them.
pub fn called_as<R>(world: &mut World, desired: &Desired, act: impl FnOnce(&mut World) -> R) -> R {
    if are_alike(world, desired) {
        return act(world);
    }
    let machines = std::mem::take(&mut world.machines);
    let known = |seat: &MemberName| desired.members.get(seat).map(|wish| wish.incarnation);
    world.machines = renamed(machines, |m| &m.seen, |seat| known(seat).unwrap_or_else(|| wanted(&world.ledger, seat)));
    let result = act(world);
    rename(world);
    result
}

/// Calls all machines as the ledger has it.
pub fn rename(world: &mut World) {
    let is_called_so = |(name, machine): (&MemberName, &SimMachine)| {
        let seat = MemberName::from(name.seat());
        name.is_former() == (machine.seen.incarnation != wanted(&world.ledger, &seat))
    };
    if world.machines.iter().all(is_called_so) {
        return;
    }
    let machines = std::mem::take(&mut world.machines);
    world.machines = renamed(machines, |m| &m.seen, |seat| wanted(&world.ledger, seat));
}

/// What was seen, called as this ledger has it.
pub fn rename_seen(seen: &Observation, ledger: &Ledger) -> Observation {
    let Seen::At(at, machines) = &seen.machines else { return seen.clone() };
    let both = machines.iter().map(|(name, m)| (name.clone(), (m.clone(), seen.agents.get(name).cloned()))).collect();
    let both: BTreeMap<_, (MachineSeen, _)> = renamed(both, |(m, _)| m, |seat| wanted(ledger, seat));
    let agents = both.iter().filter_map(|(name, (_, agent))| Some((name.clone(), agent.clone()?))).collect();
    let machines = both.into_iter().map(|(name, (machine, _))| (name, machine)).collect();
    Observation { now: seen.now, machines: Seen::At(*at, machines), agents, fixtures: seen.fixtures.clone() }
}

fn renamed<T>(
    machines: BTreeMap<MemberName, T>,
    seen: impl Fn(&T) -> &MachineSeen,
    wanted: impl Fn(&MemberName) -> u64,
) -> BTreeMap<MemberName, T> {
    let named = machines.into_iter().map(|(name, machine)| {
        let seat = MemberName::from(name.seat());
        let incarnation = seen(&machine).incarnation;
        let name = if incarnation == wanted(&seat) { seat } else { seat.former(incarnation) };
        (name, machine)
    });
    named.collect()
}

fn wanted(ledger: &Ledger, seat: &MemberName) -> u64 {
    ledger.members.get(seat).map_or(1, |r| r.incarnation.max(1))
}
