//! The two controllers, which run the real planner in the simulated cluster.
//!
//! A controller takes the lock, observes, writes to the ledger what must be recorded first, takes its steps one by one
//! and records their results; anything else may happen between any two of these. A controller that lost the lock keeps
//! its last known ledger and continues until it is refused.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use quorate_core::desire::Wish;
use quorate_core::kinds::etcd::Formation;
use quorate_core::model::{AgentSeen, Brought, Busy, Data, Desired, Ledger, MemberName, Observation, PowerState, Seen};
use quorate_core::planner::simulate::{SimAgent, SimMachine, World};
use quorate_core::planner::{Action, Decision, Reason, Step, UnsafeBecause, decide, remember};
use quorate_core::spec::ClusterSpec;

use crate::adversary::{Budget, Fault, Sight};
use crate::agent::{self, Obeyed, Refusal};
use crate::audit::audit;
use crate::deeds::{Deeds, is_done_by_the_write, is_order, machine_id, named_token, prepare, prepares, writes_ledger};
use crate::etcd::Voters;
use crate::names::{called_as, rename, rename_seen};
use crate::past::{Past, Wrong};
use crate::reached::{Event, Reached};
use crate::scenarios::brought;
use crate::shared::{Shared, hash};

#[derive(Clone, PartialEq, Debug, Hash)]
pub struct State {
    pub world: Shared<World>,
    pub controllers: [Controller; 2],
    pub under_way: Option<Shared<Order>>,
    /// What an agent carries out: it has looked at the fence and at what was expected, and the effect is still to come.
    pub in_hand: Option<Shared<Order>>,
    /// What a look showed before the last changes, the newest first, and how many faults were left then.
    pub views: Vec<(Shared<Observation>, u8)>,
    pub budget: Budget,
    pub past: Past,
}

#[derive(Clone, PartialEq, Debug, Hash)]
pub enum Controller {
    /// Not started, or killed: it takes the lock when it begins.
    Away,
    Holding {
        fence: u64,
        /// The ledger as it last knew it; absent while nobody else has written.
        stale: Option<Shared<Ledger>>,
        work: Option<Shared<Work>>,
    },
    /// It found out that another one took over.
    Ended,
}

/// The steps of one decision, and how far they have come.
#[derive(Clone, Debug)]
pub struct Work {
    desired: Arc<Desired>,
    pub steps: Vec<Step>,
    done: Vec<Action>,
    /// Whether the ledger knows what it must know before the first effect.
    pub written: bool,
    /// How many faults were left when the look was made.
    faults_left: u8,
    old: bool,
}

impl Hash for Work {
    /// Of what is desired, the effects use only what follows from the spec, which never changes here, and incarnations.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.steps, &self.done, self.written, self.faults_left, self.old).hash(state);
        self.desired.members.values().for_each(|m| m.incarnation.hash(state));
    }
}

/// An order that has left its controller and has not reached its agent.
#[derive(Clone, Debug)]
pub struct Order {
    machine_id: String,
    fence: u64,
    desired: Arc<Desired>,
    step: Step,
    faults_left: u8,
}

impl Hash for Order {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.machine_id, self.fence, &self.step, self.faults_left).hash(state);
    }
}

pub struct ClusterModel {
    pub spec: ClusterSpec,
    pub start: World,
    pub budget: Budget,
    pub faults: &'static [Fault],
    /// Whether machines are prepared in one move. How that can be interrupted, the runs of formations have explored.
    pub coarse: bool,
    pub reached: Reached,
    brought: Brought,
    /// What is desired follows from the ledger alone, and few ledgers are reached.
    wishes: Mutex<HashMap<u64, Arc<Desired>>>,
    /// Worlds from which a lone controller is known to settle.
    pub settling: Mutex<HashSet<u64>>,
}

impl ClusterModel {
    pub fn new(spec: ClusterSpec, start: World, budget: Budget, faults: &'static [Fault], coarse: bool) -> Self {
        ClusterModel {
            spec,
            start,
            budget,
            faults,
            coarse,
            reached: Reached::default(),
            brought: brought(),
            wishes: Mutex::default(),
            settling: Mutex::default(),
        }
    }

    pub fn first(&self) -> State {
        let mut world = self.start.clone();
        world.ledger.fence += 1;
        // The spec that counts is the model's; the ledger's copy of it would be cloned with every world.
        world.ledger.spec.members.clear();
        let fence = world.ledger.fence;
        let majority_lost = world.ledger.etcd.formation.is_formed() && Voters::of(&world).lost();
        let formations = u8::from(world.ledger.etcd.formation.is_formed());
        let world = Shared::new(world);
        let controllers = [Controller::Holding { fence, stale: None, work: None }, Controller::Away];
        let past = Past { majority_lost, formations, ..Past::default() };
        State { world, controllers, under_way: None, in_hand: None, views: Vec::new(), budget: self.budget, past }
    }

    pub fn desired(&self, ledger: &Ledger, formations: u8) -> Arc<Desired> {
        let key = hash(&(ledger, formations));
        if let Some(known) = self.wishes.lock().expect("no holder panics").get(&key) {
            return known.clone();
        }
        let wish = Wish { spec: &self.spec, brought: &self.brought, arch: "amd64" };
        let desired = Arc::new(wish.desire(ledger, &(formations + 1).to_string()));
        self.wishes.lock().expect("no holder panics").insert(key, desired.clone());
        desired
    }

    /// Looks through the eyes of one controller: agents that are off or hidden are not seen, and one that obeys a newer
    /// controller ends it.
    pub fn look(&self, state: &mut State, c: usize, sight: &Sight) {
        let Controller::Holding { fence, stale, .. } = state.controllers[c].clone() else { return };
        let hidden = match sight {
            Sight::Hidden(member) | Sight::Untold(Some(member)) | Sight::Between(member, _) => Some(member),
            Sight::Clear | Sight::Untold(None) | Sight::Old(_) => None,
        };
        let members: Vec<MemberName> = state.world.machines.keys().filter(|m| Some(*m) != hidden).cloned().collect();
        let refused = state.world.change(|world| {
            if stale.is_none() {
                world.look_again();
            }
            let mut refuses = |m: &MemberName| agent::learn_fence(world, m, fence).err() == Some(Refusal::StaleFence);
            members.iter().filter(|m| refuses(m)).count() > 0
        });
        if refused {
            self.reached.count(Event::StaleOrderRefused);
            state.controllers[c] = Controller::Ended;
            return;
        }
        let (mut seen, faults_left) = match sight {
            Sight::Old(age) => {
                let (view, faults) = &state.views[*age];
                (Observation::clone(view), *faults)
            }
            Sight::Clear | Sight::Hidden(_) | Sight::Untold(_) | Sight::Between(..) => {
                (state.world.observe(), state.budget.faults)
            }
        };
        match sight {
            Sight::Clear => {}
            Sight::Old(_) => state.budget.stale -= 1,
            Sight::Hidden(_) | Sight::Untold(_) | Sight::Between(..) => state.budget.hidden -= 1,
        }
        hidden.iter().for_each(|member| hide(&mut seen, member));
        if let (Sight::Between(member, power), Seen::At(_, machines)) = (sight, &mut seen.machines)
            && let Some(machine) = machines.get_mut(member)
        {
            machine.power = *power;
        }
        if !matches!(sight, Sight::Untold(_)) {
            tell_reach(&mut seen, &state.world);
        }
        let ledger: &Ledger = stale.as_deref().unwrap_or(&state.world.ledger);
        let seen = rename_seen(&seen, ledger);
        let desired = self.desired(ledger, state.past.formations);
        let mut noted = ledger.clone();
        let desired = if remember::sighting(&mut noted, &desired, &seen) {
            if stale.is_some() {
                self.reached.count(Event::StaleWriteRefused);
                state.controllers[c] = Controller::Ended;
                return;
            }
            state.world.change(|world| world.ledger = noted);
            self.desired(&state.world.ledger, state.past.formations)
        } else {
            desired
        };
        let decision = decide(&desired, &seen);
        self.reached.decided(&decision);
        let is_at_work = |order: &Shared<Order>| {
            let of = |m: &MemberName| seen.facts(m).is_some_and(|f| f.machine_id == order.machine_id);
            desired.members.keys().any(of)
        };
        if (decision.settled() || !decision.steps.is_empty()) && state.in_hand.as_ref().is_some_and(is_at_work) {
            state.past.wrongs.insert(Wrong::DecidedTooEarly);
        }
        state.past.wrongs.extend(audit(&desired, &seen, &decision));
        let ends = decision.steps.is_empty() && decision.waiting.is_empty();
        let told_lost = ends && decision.blocked.iter().any(|b| matches!(b, UnsafeBecause::MajorityLost { .. }));
        if told_lost && *sight == Sight::Clear && stale.is_none() && !Voters::of(&state.world).lost() {
            state.past.wrongs.insert(Wrong::FalselyLost);
        }
        self.set_to_work(state, c, desired, decision, sight, faults_left);
    }

    fn set_to_work(
        &self,
        state: &mut State,
        c: usize,
        desired: Arc<Desired>,
        decision: Decision,
        sight: &Sight,
        faults_left: u8,
    ) {
        let Controller::Holding { stale, work, .. } = &mut state.controllers[c] else { return };
        if decision.steps.is_empty() {
            return;
        }
        let old = matches!(sight, Sight::Old(_));
        match sight {
            Sight::Clear => {}
            Sight::Hidden(_) | Sight::Untold(_) => self.reached.count(Event::Hidden),
            Sight::Between(..) => self.reached.count(Event::Between),
            Sight::Old(_) => self.reached.count(Event::OldDecision),
        }
        let steps: Vec<Step> = decision.steps.into_iter().map(|s| Step { why: Reason::new(""), ..s }).collect();
        if steps.iter().any(|s| matches!(s.action, Action::CreateMachine { data: Data::Stays, .. })) {
            self.reached.count(Event::Resumed);
        }
        if self.coarse && stale.is_none() && steps.iter().all(|s| prepares(&s.action)) {
            state.world.change(|world| steps.iter().for_each(|s| prepare(world, &desired, s)));
            return;
        }
        let ledger: &Ledger = stale.as_deref().unwrap_or(&state.world.ledger);
        let mut copy = ledger.clone();
        let now = state.world.now;
        let changes = |s: &Step| remember::before(&mut copy, &desired, &s.action, now) || writes_ledger(&s.action);
        let written = !steps.iter().any(changes);
        *work = Some(Shared::new(Work { desired, steps, done: Vec::new(), written, faults_left, old }));
    }

    /// One conditional write of all that must be known before the first effect.
    pub fn write(&self, state: &mut State, c: usize) {
        let taken_over = state.somebody_else_acts(c);
        let Controller::Holding { stale, work: Some(work), .. } = &mut state.controllers[c] else { return };
        if stale.is_some() {
            self.reached.count(Event::StaleWriteRefused);
            state.controllers[c] = Controller::Ended;
            return;
        }
        state.world.change(|world| {
            for step in &work.steps {
                remember::before(&mut world.ledger, &work.desired, &step.action, world.now);
                if is_done_by_the_write(&step.action) {
                    world.effect(&work.desired, &step.action);
                }
            }
            rename(world);
        });
        for step in &work.steps {
            match &step.action {
                Action::RecordForming { token, members } => {
                    state.past.formations += 1;
                    let machines = members.iter().map(|(name, m)| (name.clone(), m.machine_id.clone())).collect();
                    state.past.began.insert(token.clone(), machines);
                }
                Action::RecordRecovery { .. } => state.past.formations += 1,
                Action::RecordRestoring { .. } => {
                    // The first formation is the one that is replaced.
                    if state.past.formations > 1 {
                        self.reached.count(Event::RestoredAgain);
                    }
                    state.past.formations += 1;
                }
                Action::AbandonFormation { .. } => self.reached.count(Event::Abandoned),
                Action::RecordDistrust { .. } => self.reached.count(Event::Distrusted),
                Action::RevokeMachine { .. } => self.reached.count(Event::Revoked),
                Action::RecordRenewal { .. } => self.reached.count(Event::RenewalRecorded),
                Action::RecordReplacement { member, .. } => {
                    state.past.judge_given_up(&state.world, member);
                    self.reached.count(Event::Replaced);
                    if taken_over {
                        self.reached.count(Event::ReplacedInTakeover);
                    }
                }
                _ => {}
            }
        }
        work.change(|work| {
            work.steps.retain(|s| !s.action.is_recorded());
            work.written = true;
        });
        self.end_of_work(state, c);
    }

    pub fn act(&self, state: &mut State, c: usize, index: usize) {
        let Controller::Holding { fence, stale, work: Some(work) } = &mut state.controllers[c] else { return };
        let step = work.change(|work| work.steps.remove(index));
        let (desired, old) = (work.desired.clone(), work.old);
        let disturbed = work.faults_left != state.budget.faults;
        let (fence, stale) = (*fence, stale.is_some());
        let before = state.world.clone();
        let done = state.world.change(|world| {
            let past = &mut state.past;
            let order = Deeds { past, before: &before, desired: &desired, fence, disturbed };
            // A provider is asked only after another look at the lock.
            if !is_order(&step.action) && stale { Err(Refusal::StaleFence) } else { order.carry_out(world, &step) }
        });
        match done {
            Ok(obeyed) => {
                if obeyed == Obeyed::Done {
                    self.note(state, &step.action);
                }
                if let Controller::Holding { work: Some(work), .. } = &mut state.controllers[c] {
                    work.change(|work| work.done.push(step.action.clone()));
                }
            }
            Err(Refusal::StaleFence) => {
                self.reached.count(Event::StaleOrderRefused);
                state.controllers[c] = Controller::Ended;
                return;
            }
            Err(refusal) => {
                if refusal == Refusal::NotAsExpected {
                    self.reached.count(if old { Event::OldDecisionRefused } else { Event::NotAsExpected });
                }
                if let Controller::Holding { work: Some(work), .. } = &mut state.controllers[c] {
                    work.change(|work| work.steps.retain(|s| s.action.member() != step.action.member()));
                }
            }
        }
        self.end_of_work(state, c);
    }

    fn note(&self, state: &State, action: &Action) {
        let event = match action {
            Action::AddLearner { .. } => Event::Joined,
            Action::Promote { .. } => {
                if state.budget.crashes < self.budget.crashes {
                    self.reached.count(Event::PromotedAfterCrash);
                }
                Event::Promoted
            }
            Action::RemoveMember { failed: Some(_), .. } => Event::Expelled,
            Action::RemoveMember { .. } => Event::Removed,
            Action::MoveLeader { .. } => Event::LeaderMoved,
            Action::RestartEtcd { .. } | Action::TakeRaftSnapshot { .. } => Event::Restarted,
            Action::RebootMachine { .. } => Event::Rebooted,
            Action::DestroyMachine { data: Data::Stays, .. } => Event::Renewed,
            Action::DestroyMachine { .. } => Event::Destroyed,
            Action::Rebuild { .. } => Event::Recovered,
            Action::RestoreData { .. } => Event::Restored,
            Action::DropSnapshot { .. } => Event::SnapshotDropped,
            _ => return,
        };
        self.reached.count(event);
    }

    /// The controller gets no answer, and takes the order for failed.
    pub fn delay(&self, state: &mut State, c: usize, index: usize) {
        let Controller::Holding { fence, work: Some(work), .. } = &mut state.controllers[c] else { return };
        let step = work.change(|work| work.steps.remove(index));
        work.change(|work| work.steps.retain(|s| s.action.member() != step.action.member()));
        state.budget.delays -= 1;
        let (desired, faults_left) = (work.desired.clone(), work.faults_left);
        let to = state.world.change(|world| called_as(world, &desired, |world| machine_id(world, &step.action)));
        if let Some(machine_id) = to {
            let order = Order { machine_id, fence: *fence, desired, step, faults_left };
            state.under_way = Some(Shared::new(order));
        }
        self.end_of_work(state, c);
    }

    pub fn deliver(&self, state: &mut State) {
        let Some(order) = state.under_way.take() else { return };
        let disturbed = order.faults_left != state.budget.faults;
        let past = &mut state.past;
        let before = state.world.clone();
        let done = state.world.change(|world| {
            // A machine that was recreated has another key, and no connection of the one before.
            let there = |world: &mut World| machine_id(world, &order.step.action);
            if called_as(world, &order.desired, there).as_ref() != Some(&order.machine_id) {
                return Err(Refusal::Unreachable);
            }
            let deeds = Deeds { past, before: &before, desired: &order.desired, fence: order.fence, disturbed };
            deeds.carry_out(world, &order.step)
        });
        if done == Ok(Obeyed::Done) {
            self.reached.count(Event::DeliveredLate);
            // To what was decided before, this is as a fault.
            for controller in &mut state.controllers {
                if let Controller::Holding { work: Some(work), .. } = controller {
                    work.change(|work| work.faults_left = u8::MAX);
                }
            }
        }
    }

    /// The agent begins, and the controller gets no answer.
    pub fn begin(&self, state: &mut State, c: usize, index: usize) {
        let Controller::Holding { fence, work: Some(work), .. } = &state.controllers[c] else { return };
        let (step, desired, fence, faults_left) =
            (work.steps[index].clone(), work.desired.clone(), *fence, work.faults_left);
        let (before, mut past) = (state.world.clone(), state.past.clone());
        let mut trial = World::clone(&state.world);
        let deeds = Deeds { past: &mut past, before: &before, desired: &desired, fence, disturbed: true };
        if deeds.carry_out(&mut trial, &step) != Ok(Obeyed::Done) {
            return self.act(state, c, index);
        }
        let Controller::Holding { work: Some(work), .. } = &mut state.controllers[c] else { return };
        work.change(|work| work.steps.retain(|s| s.action.member() != step.action.member()));
        state.budget.slow -= 1;
        let busy = Busy { order: step.action.kind().to_owned(), fence };
        let begun = state.world.change(|world| {
            called_as(world, &desired, |world| {
                let facts = world.machines.get_mut(step.action.member()?).and_then(SimMachine::facts_mut)?;
                (facts.busy, facts.fence) = (Some(busy), fence);
                Some(facts.machine_id.clone())
            })
        });
        if let Some(machine_id) = begun {
            state.in_hand = Some(Shared::new(Order { machine_id, fence, desired, step, faults_left }));
        }
        self.end_of_work(state, c);
    }

    /// The effect comes, or does not where something else than was expected is found. The fence was looked at before.
    pub fn end(&self, state: &mut State) {
        let Some(order) = state.in_hand.take() else { return };
        let disturbed = order.faults_left != state.budget.faults;
        let past = &mut state.past;
        let before = state.world.clone();
        let done = state.world.change(|world| {
            let mut machines = world.machines.values_mut().filter_map(SimMachine::facts_mut);
            let facts = machines.find(|facts| facts.machine_id == order.machine_id).ok_or(Refusal::Unreachable)?;
            facts.busy = None;
            let fence = facts.fence;
            let there = |world: &mut World| machine_id(world, &order.step.action);
            if called_as(world, &order.desired, there).as_ref() != Some(&order.machine_id) {
                return Err(Refusal::Unreachable);
            }
            let deeds = Deeds { past, before: &before, desired: &order.desired, fence, disturbed };
            deeds.carry_out(world, &order.step)
        });
        if done == Ok(Obeyed::Done) {
            self.note(state, &order.step.action);
            self.reached.count(Event::EndedLate);
        }
    }

    /// What only holds afterwards is written where there is something to write.
    fn end_of_work(&self, state: &mut State, c: usize) {
        let now = state.world.now;
        let Controller::Holding { stale, work, .. } = &mut state.controllers[c] else { return };
        let Some(finished) = work.as_ref().filter(|w| w.steps.is_empty()) else { return };
        let known: &Ledger = stale.as_deref().unwrap_or(&state.world.ledger);
        let mut ledger = known.clone();
        if !finished.done.iter().any(|a| remember::after(&mut ledger, &finished.desired, a, now)) {
            *work = None;
        }
    }

    pub fn finish(&self, state: &mut State, c: usize) {
        let Controller::Holding { stale, work, .. } = &mut state.controllers[c] else { return };
        let Some(finished) = work.take() else { return };
        if stale.is_some() {
            self.reached.count(Event::StaleWriteRefused);
            state.controllers[c] = Controller::Ended;
            return;
        }
        state.world.change(|world| {
            for action in &finished.done {
                remember::after(&mut world.ledger, &finished.desired, action, world.now);
            }
            rename(world);
        });
    }
}

impl State {
    /// Whether a controller holds the lock and nobody took it from there.
    pub fn somebody_leads(&self) -> bool {
        self.controllers.iter().any(|c| matches!(c, Controller::Holding { stale: None, .. }))
    }

    fn somebody_else_acts(&self, c: usize) -> bool {
        matches!(&self.controllers[1 - c], Controller::Holding { work: Some(_), .. })
    }

    /// A new run takes the lock, and tries again what the last one gave up.
    pub fn take(&mut self, c: usize) {
        if self.somebody_leads() {
            self.budget.takeovers -= 1;
        }
        let last_known = Shared::new(self.world.ledger.clone());
        for other in &mut self.controllers {
            if let Controller::Holding { stale: stale @ None, .. } = other {
                *stale = Some(last_known.clone());
            }
        }
        let fence = self.world.ledger.fence + 1;
        self.world.change(|world| {
            world.ledger.fence = fence;
            begin_run(&mut world.ledger);
        });
        self.controllers[c] = Controller::Holding { fence, stale: None, work: None };
    }

    /// A formation that neither a ledger nor an order names can never be started again.
    pub fn forget_what_cannot_matter(&mut self) {
        let mut alive: BTreeSet<String> = token(&self.world.ledger.etcd.formation).into_iter().collect();
        for controller in &self.controllers {
            if let Controller::Holding { stale, work, .. } = controller {
                alive.extend(stale.as_ref().and_then(|l| token(&l.etcd.formation)));
                let steps = work.iter().flat_map(|w| &w.steps);
                alive.extend(steps.filter_map(|s| named_token(&s.action)));
            }
        }
        let orders = self.under_way.iter().chain(&self.in_hand);
        alive.extend(orders.filter_map(|order| named_token(&order.step.action)));
        self.past.told_new.retain(|(token, _)| alive.contains(token));
        self.past.began.retain(|token, _| alive.contains(token));
    }
}

impl Controller {
    /// What it is about to do.
    pub fn steps(&self) -> &[Step] {
        match self {
            Controller::Holding { work: Some(work), .. } => &work.steps,
            _ => &[],
        }
    }
}

impl Work {
    /// Steps for one machine are done in their order; machines proceed in parallel.
    pub fn is_next(&self, index: usize) -> bool {
        let member = self.steps[index].action.member();
        self.steps[..index].iter().all(|s| s.action.member() != member)
    }
}

pub fn begin_run(ledger: &mut Ledger) {
    ledger.members.values_mut().for_each(|record| record.join_failed = None);
}

pub fn token(formation: &Formation) -> Option<String> {
    formation.token().map(str::to_owned)
}

fn hide(seen: &mut Observation, member: &MemberName) {
    let unseen: Seen<AgentSeen> = Seen::Unreachable { since: seen.now, why: String::from("hidden") };
    seen.agents.insert(member.clone(), unseen);
}

/// Those that answer are asked whether they reach the machines of those that do not.
pub fn tell_reach(seen: &mut Observation, world: &World) {
    let silent = seen.agents.iter().filter(|(_, agent)| agent.get().is_none()).map(|(member, _)| member);
    let shown = silent.filter_map(|m| seen.machines.get()?.get(m)?.address);
    // A provider that shows no machine may be wrong.
    let etcd = world.ledger.etcd.formation.members().into_iter().flatten().map(|(m, known)| (m, known.address()));
    let postgres = world.ledger.postgres.formation.members().into_iter().flatten().map(|(m, known)| (m, known.address));
    let missing = etcd.chain(postgres).filter(|(m, _)| !seen.agents.contains_key(m)).filter_map(|(_, address)| address);
    let lives = |address: IpAddr| {
        let there = world.machines.values().find(|w| w.seen.address == Some(address));
        there.is_some_and(|w| w.seen.power == PowerState::On && !matches!(w.agent, SimAgent::Unknown { .. }))
    };
    let reach: Vec<_> = shown.chain(missing).map(|address| (address, lives(address))).collect();
    if reach.is_empty() {
        return;
    }
    for agent in seen.agents.values_mut() {
        if let Seen::At(_, AgentSeen::Enrolled(facts)) = agent {
            facts.reaches.extend(reach.iter().copied());
        }
    }
}
