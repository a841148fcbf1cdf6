//! Liveness: from every state that the adversary can cause, a single controller that sees everything reaches a correct
//! final state when no further faults happen. Deterministic, so it is checked like any other property of a state.

use std::sync::Arc;

use quorate_core::kinds::etcd::safety::requests;
use quorate_core::kinds::etcd::{Formation, LostMajority};
use quorate_core::model::{DataSeen, Desired, MemberName, Observation, ServiceState};
use quorate_core::planner::simulate::{SimMachine, World};
use quorate_core::planner::{Action, Decision, UnsafeBecause, WaitingFor, decide, remember};

use crate::adversary::LONG;
use crate::agent;
use crate::controllers::{ClusterModel, State, begin_run, tell_reach};
use crate::deeds::{is_done_by_the_write, is_order, provide};
use crate::etcd::Voters;
use crate::names::rename;
use crate::reached::Event;
use crate::shared::hash;

/// More rounds than a controller that nobody disturbs ever needs from any state.
const MOST_ROUNDS: usize = 80;
/// How often in a row it helps to wait, or to begin another run.
const MOST_PATIENCE: usize = 3;

impl ClusterModel {
    /// Whether a lone controller that sees everything comes to an end that is right, when nothing more goes wrong.
    pub fn settles(&self, state: &State) -> bool {
        let as_it_is = hash(&state.world);
        self.is_known(as_it_is) || self.settles_from(state, as_it_is, &mut |_| {})
    }

    /// Tells each decision on the way.
    pub fn settles_from(&self, state: &State, as_it_is: u64, tell: &mut dyn FnMut(&Decision)) -> bool {
        let mut world = World::clone(&state.world);
        let mut way = vec![as_it_is];
        let mut formations = state.past.formations;
        let mut patience = 0;
        world.ledger.fence += 1;
        begin_run(&mut world.ledger);
        // What was under way has ended without effect.
        let busy = world.machines.values_mut().filter(|m| m.facts().is_some_and(|facts| facts.busy.is_some()));
        busy.filter_map(SimMachine::facts_mut).for_each(|f| f.busy = None);
        loop {
            self.bring_up(&mut world);
            world.look_again();
            let mark = hash(&without_fences(&world));
            if patience == 0 {
                if self.is_known(mark) {
                    break;
                }
                way.push(mark);
            }
            let (desired, seen) = self.see(&mut world, formations);
            let decision = decide(&desired, &seen);
            tell(&decision);
            if decision.settled() {
                if !self.is_right(&world, &desired) {
                    return false;
                }
                self.reached.count(Event::Settled);
                break;
            }
            if decision.steps.is_empty() {
                if self.is_needless(&world, &decision) {
                    self.reached.count(Event::Settled);
                    break;
                }
                if self.is_lost_for_good(&world, &decision) {
                    self.reached.count(Event::LostForGood);
                    break;
                }
                // Time passes, and the operator tries again.
                patience += 1;
                world.now += LONG;
                begin_run(&mut world.ledger);
                if patience > MOST_PATIENCE {
                    return false;
                }
                continue;
            }
            patience = 0;
            if way.len() > MOST_ROUNDS {
                return false;
            }
            formations += do_steps(&mut world, &desired, &decision);
        }
        self.settling.lock().expect("no holder panics").extend(way);
        true
    }

    fn is_known(&self, mark: u64) -> bool {
        self.settling.lock().expect("no holder panics").contains(&mark)
    }

    /// Etcds that can come up do.
    fn bring_up(&self, world: &mut World) {
        let desired = self.desired(&world.ledger, 0);
        let members: Vec<MemberName> = world.machines.keys().cloned().collect();
        for member in members {
            let facts = world.machines[&member].facts();
            if facts.is_some_and(|f| matches!(f.etcd.service, ServiceState::BackingOff { .. })) {
                agent::comes_up(world, &desired, &member);
            }
        }
    }

    fn see(&self, world: &mut World, formations: u8) -> (Arc<Desired>, Observation) {
        let mut seen = world.observe();
        tell_reach(&mut seen, world);
        let desired = self.desired(&world.ledger, formations);
        if remember::sighting(&mut world.ledger, &desired, &seen) {
            return (self.desired(&world.ledger, formations), seen);
        }
        (desired, seen)
    }

    /// Settled means: formed, everybody who is wanted votes and nobody else, and all run what was declared.
    fn is_right(&self, world: &World, desired: &Desired) -> bool {
        let seen = world.observe();
        let voters = world.listed.iter().filter(|l| !l.is_learner).count();
        let well = |(m, wish): (&MemberName, &quorate_core::model::DesiredMember)| {
            let facts = seen.facts(m);
            let healthy = facts.and_then(|f| f.etcd.status.as_ref()).is_some_and(|s| s.healthy && !s.is_learner);
            let service = facts.map(|f| &f.etcd.service);
            let no_snapshot = facts.is_some_and(|f| f.etcd.staged.is_none());
            healthy
                && no_snapshot
                && wish.reboot.is_none()
                && matches!(service, Some(ServiceState::Running { digest, .. }) if *digest == wish.service_digest)
        };
        world.ledger.etcd.formation.is_formed()
            && world.ledger.etcd.restore.is_none()
            && voters == desired.members.len()
            && world.listed.len() == voters
            && world.machines.len() == desired.members.len()
            && desired.members.iter().all(well)
    }

    /// The word to recover was given, and nothing is lost; or it was given for another loss than there is.
    fn is_needless(&self, world: &World, end: &Decision) -> bool {
        if end.blocked.iter().any(|b| matches!(b, UnsafeBecause::OtherLoss { .. })) {
            let survivors = |of: Option<LostMajority>| of.map(|of| of.survivors);
            let confirmed = world.ledger.etcd.recovery.as_ref().and_then(|request| request.of.clone());
            return survivors(confirmed) != survivors(requests::lost_majority(&world.ledger, &world.observe()));
        }
        let told =
            end.blocked.iter().any(|b| matches!(b, UnsafeBecause::NotLost { .. } | UnsafeBecause::Serves { .. }));
        told && world.ledger.etcd.recovery.is_some() && Voters::of(world).quorate()
    }

    /// Blocked, and for the loss of the majority: right only where it is truly lost.
    fn is_lost_for_good(&self, world: &World, end: &Decision) -> bool {
        let told = end
            .blocked
            .iter()
            .any(|b| matches!(b, UnsafeBecause::MajorityLost { .. } | UnsafeBecause::NothingSurvives { .. }));
        match &world.ledger.etcd.formation {
            // Where nobody is left to tell who votes, or a successor hangs, that one may be waited for, which says what it waits for.
            Formation::Formed { .. } => {
                let waits =
                    end.waiting.iter().any(|w| matches!(w, WaitingFor::EtcdToStay { .. } | WaitingFor::Agent { .. }));
                (told || waits) && Voters::of(world).lost()
            }
            // The one survivor that was chosen was lost as well.
            Formation::Recovering { was, token, from, .. } => {
                let data = world.machines.get(from).and_then(|m| m.facts()).map(|f| &f.etcd.data);
                !matches!(data, Some(DataSeen::Stamped(s)) if s.token == *was || s.token == *token)
            }
            Formation::Unformed | Formation::Forming { .. } | Formation::Restoring { .. } => false,
        }
    }
}

/// Says how many formations were begun.
fn do_steps(world: &mut World, desired: &Desired, decision: &Decision) -> u8 {
    let mut begun = 0;
    let fence = world.ledger.fence;
    for step in &decision.steps {
        remember::before(&mut world.ledger, desired, &step.action, world.now);
        if is_done_by_the_write(&step.action) {
            world.effect(desired, &step.action);
        }
        begun += u8::from(matches!(
            step.action,
            Action::RecordForming { .. } | Action::RecordRecovery { .. } | Action::RecordRestoring { .. }
        ));
    }
    for step in decision.steps.iter().filter(|s| !s.action.is_recorded()) {
        let done = match &step.action {
            action if !is_order(action) => provide(world, desired, action),
            _ => agent::obey(world, desired, fence, step),
        };
        if done.is_ok() {
            remember::after(&mut world.ledger, desired, &step.action, world.now);
        }
    }
    rename(world);
    begun
}

/// Fencing numbers mean nothing to a controller that is newer than all of them.
fn without_fences(world: &World) -> World {
    let mut world = world.clone();
    world.ledger.fence = 0;
    world.machines.values_mut().filter_map(SimMachine::facts_mut).for_each(|f| f.fence = 0);
    world
}
