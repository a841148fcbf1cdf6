//! Liveness: from every state that the adversary can bring about, a lone controller that sees everything comes to an end
//! that is right, when nothing more goes wrong. Deterministic, so it is one more thing to hold in every state.

use quorate_core::model::{Formation, MemberName, ServiceState};
use quorate_core::planner::simulate::World;
use quorate_core::planner::{Action, Decision, UnsafeBecause, WaitingFor, decide, remember};

use crate::agent;
use crate::formation::{FormationModel, State, count, facts_mut, is_order, provide};
use crate::shared::hash;

/// More rounds than a controller that nobody disturbs ever needs from any state.
const MOST_ROUNDS: usize = 40;

impl FormationModel {
    /// Whether a lone controller that sees everything comes to an end that is right, when nothing more goes wrong.
    pub fn settles(&self, state: &State) -> bool {
        let as_it_is = hash(&state.world);
        if self.settling.lock().expect("no holder panics").contains(&as_it_is) {
            return true;
        }
        let mut world = World::clone(&state.world);
        let mut way = vec![as_it_is];
        let mut formations = state.past.formations;
        world.ledger.fence += 1;
        let fence = world.ledger.fence;
        let members: Vec<MemberName> = world.machines.keys().cloned().collect();
        for member in members {
            if is_backing_off(&world, &member) {
                self.etcd_returns(&mut world, &member);
            }
        }
        loop {
            let mark = hash(&without_fences(&world));
            if self.settling.lock().expect("no holder panics").contains(&mark) {
                break;
            }
            way.push(mark);
            let desired = self.desired(&world.ledger, formations);
            let decision = decide(&desired, &world.observe());
            if decision.steps.is_empty() {
                if !self.ends_well(&world, &decision) {
                    return false;
                }
                break;
            }
            if way.len() > MOST_ROUNDS {
                return false;
            }
            for step in &decision.steps {
                remember::before(&mut world.ledger, &desired, &step.action, world.now);
                formations += u8::from(matches!(step.action, Action::RecordForming { .. }));
                let done = match &step.action {
                    action if !is_order(action) => provide(&mut world, &desired, action),
                    _ => agent::obey(&mut world, &desired, fence, step),
                };
                if done.is_ok() {
                    remember::after(&mut world.ledger, &desired, &step.action, world.now);
                }
            }
        }
        self.settling.lock().expect("no holder panics").extend(way);
        true
    }

    /// Settled, formed and healthy; or, where data of the formed cluster is truly gone, blocked for that and nothing else.
    fn ends_well(&self, world: &World, end: &Decision) -> bool {
        let formed = matches!(world.ledger.formation, Formation::Formed { .. });
        if end.settled() {
            count(&self.reached.settled);
            return formed && all_healthy(world);
        }
        let gone = |member: &MemberName| agent::token_on_disk(world, member).is_none();
        let only_losses = end.blocked.iter().all(|b| match b {
            UnsafeBecause::LostData { member } | UnsafeBecause::LostMachine { member } => gone(member),
            _ => false,
        });
        let only_quorum = end.waiting.iter().all(|w| matches!(w, WaitingFor::Health { .. }));
        if formed && !end.blocked.is_empty() && only_losses && only_quorum {
            count(&self.reached.lost_for_good);
            return true;
        }
        false
    }
}

fn all_healthy(world: &World) -> bool {
    let seen = world.observe();
    let healthy = |m: &MemberName| seen.facts(m).and_then(|f| f.etcd.status.as_ref()).is_some_and(|s| s.healthy);
    world.ledger.members.keys().all(healthy)
}

fn is_backing_off(world: &World, member: &MemberName) -> bool {
    let facts = world.machines[member].facts();
    facts.is_some_and(|f| matches!(f.etcd.service, ServiceState::BackingOff { .. }))
}

/// Fencing numbers mean nothing to a controller that is newer than all of them.
fn without_fences(world: &World) -> World {
    let mut world = world.clone();
    world.ledger.fence = 0;
    world.machines.values_mut().filter_map(facts_mut).for_each(|f| f.fence = 0);
    world
}
