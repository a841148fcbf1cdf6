//! The model: the simulated world, two controllers that run the real planner, and an adversary.
//!
//! A controller takes the lock, looks, writes to the ledger what must be known before, does its steps one by one
//! and writes what only holds afterwards; between any two of these anything else may happen. A controller that was taken
//! over from keeps the ledger as it last knew it and goes on until somebody refuses it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use quorate_core::desire::Wish;
use quorate_core::model::{
    AgentSeen, Brought, DataSeen, Desired, Exit, Facts, Formation, Ledger, MemberName, Observation, Power, Seen,
    ServiceState,
};
use quorate_core::planner::simulate::{SimAgent, SimMachine, World};
use quorate_core::planner::{Action, Decision, Reason, Step, decide, remember};
use quorate_core::spec::ClusterSpec;

use crate::agent::{self, Obeyed, Refusal};
use crate::shared::{Shared, hash};

/// How much the adversary may still do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Budget {
    /// Machines switched off or destroyed, disks lost, etcds that die.
    pub faults: u8,
    /// Controllers killed at any instant; each is then started again.
    pub crashes: u8,
    /// Locks taken while their holder still lives.
    pub takeovers: u8,
    /// Agents hidden from one look.
    pub hidden: u8,
    /// Orders that seem to have failed, and reach their agent later.
    pub delays: u8,
}

#[derive(Clone, PartialEq, Debug, Hash)]
pub struct State {
    pub world: Shared<World>,
    pub controllers: [Controller; 2],
    under_way: Option<Shared<Order>>,
    pub budget: Budget,
    pub past: Past,
}

/// What has happened, as far as the properties ask for it.
#[derive(Clone, PartialEq, Debug, Default, Hash)]
pub struct Past {
    pub formations: u8,
    /// Who was told `new`, under which token.
    told_new: BTreeSet<(String, MemberName)>,
    /// The machines with which each formation began.
    began: BTreeMap<String, BTreeMap<MemberName, String>>,
    /// Formations that a client has written to.
    pub written: BTreeSet<String>,
    pub wrongs: BTreeSet<Wrong>,
}

/// What must never happen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Wrong {
    /// A member began as `new` twice under the ledger's token: it forgot its votes. Where the ledger has gone on to another,
    /// no client will ever write to what this begins, and it is cleared away.
    NewTwice,
    /// `new` was said on a machine that the formation did not begin with.
    NewElsewhere,
    NewAfterFormed,
    WipedAfterFormed,
    DestroyedAfterFormed,
    WroteBeforeFormed,
    OlderFenceObeyed,
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
    steps: Vec<Step>,
    done: Vec<Action>,
    /// Whether the ledger knows what it must know before the first effect.
    written: bool,
}

impl Hash for Work {
    /// Of what is desired, the effects use only what follows from the spec, which never changes here.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.steps, &self.done, self.written).hash(state);
    }
}

/// An order that has left its controller and has not reached its agent.
#[derive(Clone, Debug)]
struct Order {
    machine_id: String,
    fence: u64,
    desired: Arc<Desired>,
    step: Step,
}

impl Hash for Order {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.machine_id, self.fence, &self.step).hash(state);
    }
}

#[derive(Clone, PartialEq, Debug)]
pub enum Move {
    Take(usize),
    Look { controller: usize, hidden: Option<MemberName> },
    Write(usize),
    Do { controller: usize, step: usize },
    Delay { controller: usize, step: usize },
    Deliver,
    Finish(usize),
    Kill(usize),
    SwitchOff(MemberName),
    DestroyMachine(MemberName),
    LoseData(MemberName),
    EtcdDies(MemberName),
    EtcdReturns(MemberName),
}

/// How often something was reached: a model in which nothing happens proves nothing.
#[derive(Default)]
pub struct Reached {
    pub abandoned: AtomicUsize,
    pub stale_order_refused: AtomicUsize,
    pub stale_write_refused: AtomicUsize,
    pub not_as_expected: AtomicUsize,
    pub delivered_late: AtomicUsize,
    pub killed_at_work: AtomicUsize,
    pub settled: AtomicUsize,
    pub lost_for_good: AtomicUsize,
}

pub struct FormationModel {
    pub spec: ClusterSpec,
    pub start: World,
    pub budget: Budget,
    pub reached: Reached,
    brought: Brought,
    /// What is desired follows from the ledger alone, and few ledgers are reached.
    wishes: Mutex<HashMap<u64, Arc<Desired>>>,
    /// Worlds from which a lone controller is known to settle.
    pub settling: Mutex<HashSet<u64>>,
}

impl FormationModel {
    pub fn new(spec: ClusterSpec, start: World, budget: Budget) -> Self {
        FormationModel {
            spec,
            start,
            budget,
            reached: Reached::default(),
            brought: Brought::default(),
            wishes: Mutex::default(),
            settling: Mutex::default(),
        }
    }

    pub fn first(&self) -> State {
        let mut world = self.start.clone();
        world.ledger.fence = 1;
        let world = Shared::new(world);
        let holder = Controller::Holding { fence: 1, stale: None, work: None };
        let controllers = [holder, Controller::Away];
        State { world, controllers, under_way: None, budget: self.budget, past: Past::default() }
    }

    pub fn moves(&self, state: &State, moves: &mut Vec<Move>) {
        for (c, controller) in state.controllers.iter().enumerate() {
            match controller {
                Controller::Ended => {}
                Controller::Away => {
                    if !state.somebody_leads() || state.budget.takeovers > 0 {
                        moves.push(Move::Take(c));
                    }
                }
                Controller::Holding { work, .. } => {
                    match work {
                        None => self.looks(state, c, moves),
                        Some(work) if !work.written => moves.push(Move::Write(c)),
                        Some(work) if work.steps.is_empty() => moves.push(Move::Finish(c)),
                        Some(work) => {
                            for step in (0..work.steps.len()).filter(|i| work.is_next(*i)) {
                                moves.push(Move::Do { controller: c, step });
                                if state.budget.delays > 0 && is_order(&work.steps[step].action) {
                                    moves.push(Move::Delay { controller: c, step });
                                }
                            }
                        }
                    }
                    if work.is_some() && state.budget.crashes > 0 {
                        moves.push(Move::Kill(c));
                    }
                }
            }
        }
        if state.under_way.is_some() {
            moves.push(Move::Deliver);
        }
        for (member, machine) in &state.world.machines {
            let member = || member.clone();
            let service = machine.facts().map(|f| &f.etcd.service);
            let on = machine.seen.power == Power::On;
            if let (true, Some(ServiceState::BackingOff { .. })) = (on, service) {
                moves.push(Move::EtcdReturns(member()));
            }
            if state.budget.faults == 0 {
                continue;
            }
            moves.push(Move::DestroyMachine(member()));
            if on {
                moves.push(Move::SwitchOff(member()));
            }
            if machine.facts().is_some_and(|f| f.etcd.data != DataSeen::Empty) {
                moves.push(Move::LoseData(member()));
            }
            if let (true, Some(ServiceState::Running { .. })) = (on, service) {
                moves.push(Move::EtcdDies(member()));
            }
        }
    }

    fn looks(&self, state: &State, controller: usize, moves: &mut Vec<Move>) {
        moves.push(Move::Look { controller, hidden: None });
        if state.budget.hidden > 0 {
            let members = state.world.machines.keys().cloned();
            moves.extend(members.map(|m| Move::Look { controller, hidden: Some(m) }));
        }
    }

    pub fn after(&self, last: &State, step: Move) -> Option<State> {
        let mut next = last.clone();
        match step {
            Move::Take(c) => next.take(c),
            Move::Look { controller, hidden } => self.look(&mut next, controller, hidden.as_ref()),
            Move::Write(c) => self.write(&mut next, c),
            Move::Do { controller, step } => self.act(&mut next, controller, step),
            Move::Delay { controller, step } => self.delay(&mut next, controller, step),
            Move::Deliver => self.deliver(&mut next),
            Move::Finish(c) => self.finish(&mut next, c),
            Move::Kill(c) => {
                next.budget.crashes -= 1;
                next.controllers[c] = Controller::Away;
                count(&self.reached.killed_at_work);
            }
            Move::SwitchOff(m) => next.fault(&m, |machine| machine.seen.power = Power::Off),
            Move::DestroyMachine(m) => {
                next.budget.faults -= 1;
                next.world.change(|world| drop(world.machines.remove(&m)));
            }
            Move::LoseData(m) => next.fault(&m, |machine| {
                if let Some(facts) = facts_mut(machine) {
                    facts.etcd.data = DataSeen::Empty;
                    facts.etcd.service = ServiceState::Stopped;
                    facts.etcd.peer_serving = false;
                }
            }),
            Move::EtcdDies(m) => next.fault(&m, |machine| {
                if let Some(facts) = facts_mut(machine) {
                    facts.etcd.service = backing_off();
                    facts.etcd.peer_serving = false;
                }
            }),
            Move::EtcdReturns(m) => next.world.change(|world| self.etcd_returns(world, &m)),
        }
        next.forget_what_cannot_matter();
        (next != *last).then_some(next)
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

    /// Looks through the eyes of one controller: agents that obey a newer one, are off or hidden are not seen.
    fn look(&self, state: &mut State, c: usize, hidden: Option<&MemberName>) {
        let Controller::Holding { fence, stale, .. } = state.controllers[c].clone() else { return };
        if hidden.is_some() {
            state.budget.hidden -= 1;
        }
        let members: Vec<MemberName> = state.world.machines.keys().cloned().collect();
        let refusing: Vec<MemberName> = state.world.change(|world| {
            let unseen = |m: &MemberName| {
                Some(m) == hidden || agent::learn_fence(world, m, fence).err() == Some(Refusal::StaleFence)
            };
            members.into_iter().filter(unseen).collect()
        });
        let mut seen = state.world.observe();
        refusing.iter().for_each(|m| hide(&mut seen, m));
        let ledger: &Ledger = stale.as_deref().unwrap_or(&state.world.ledger);
        let desired = self.desired(ledger, state.past.formations);
        let Decision { steps, .. } = decide(&desired, &seen);
        if steps.is_empty() {
            return;
        }
        let steps: Vec<Step> = steps.into_iter().map(|s| Step { why: Reason::new(""), ..s }).collect();
        let mut copy = ledger.clone();
        let changes = |s: &Step| remember::before(&mut copy, &desired, &s.action, now) || writes_ledger(&s.action);
        let written = !steps.iter().any(changes);
        let work = Some(Shared::new(Work { desired, steps, done: Vec::new(), written }));
        state.controllers[c] = Controller::Holding { fence, stale, work };
    }

    /// One conditional write of all that must be known before the first effect.
    fn write(&self, state: &mut State, c: usize) {
        let Controller::Holding { stale, work: Some(work), .. } = &mut state.controllers[c] else { return };
        if stale.is_some() {
            count(&self.reached.stale_write_refused);
            state.controllers[c] = Controller::Ended;
            return;
        }
        for step in &work.steps {
            state.world.change(|world| {
                remember::before(&mut world.ledger, &work.desired, &step.action, world.now);
                if let Action::MakeSecrets { .. } = step.action {
                    world.effect(&work.desired, &step.action);
                }
            });
            match &step.action {
                Action::RecordForming { token, members } => {
                    state.past.formations += 1;
                    let machines = members.iter().map(|(name, m)| (name.clone(), m.machine_id.clone())).collect();
                    state.past.began.insert(token.clone(), machines);
                }
                Action::AbandonFormation { .. } => count(&self.reached.abandoned),
                _ => {}
            }
        }
        work.change(|work| {
            work.steps.retain(|s| s.action.member().is_some());
            work.written = true;
        });
        self.end_of_work(state, c);
    }

    fn act(&self, state: &mut State, c: usize, index: usize) {
        let Controller::Holding { fence, stale, work: Some(work) } = &mut state.controllers[c] else { return };
        let step = work.change(|work| work.steps.remove(index));
        let desired = work.desired.clone();
        let stale = stale.is_some();
        let formed = matches!(state.world.ledger.formation, Formation::Formed { .. });
        let before = state.world.clone();
        let done = match &step.action {
            action if !is_order(action) => {
                // A provider is asked only after another look at the lock.
                if stale {
                    Err(Refusal::StaleFence)
                } else {
                    state.world.change(|world| provide(world, &desired, action))
                }
            }
            _ => state.world.change(|world| agent::obey(world, &desired, *fence, &step)),
        };
        match done {
            Ok(obeyed) => {
                work.change(|work| work.done.push(step.action.clone()));
                let fence = *fence;
                if obeyed == Obeyed::Done {
                    state.past.judge(&before, formed, fence, &step);
                }
            }
            Err(refusal) => {
                if refusal == Refusal::NotAsExpected {
                    count(&self.reached.not_as_expected);
                }
                if refusal == Refusal::StaleFence {
                    count(&self.reached.stale_order_refused);
                    state.controllers[c] = Controller::Ended;
                    return;
                }
                work.change(|work| work.steps.retain(|s| s.action.member() != step.action.member()));
            }
        }
        self.end_of_work(state, c);
    }

    /// The controller waits in vain for the answer, and takes the order for failed.
    fn delay(&self, state: &mut State, c: usize, index: usize) {
        let Controller::Holding { fence, work: Some(work), .. } = &mut state.controllers[c] else { return };
        let step = work.change(|work| work.steps.remove(index));
        work.change(|work| work.steps.retain(|s| s.action.member() != step.action.member()));
        state.budget.delays -= 1;
        if let Some(machine_id) = machine_id(&state.world, &step.action) {
            let order = Order { machine_id, fence: *fence, desired: work.desired.clone(), step };
            state.under_way = Some(Shared::new(order));
        }
        self.end_of_work(state, c);
    }

    fn deliver(&self, state: &mut State) {
        let Some(order) = state.under_way.take() else { return };
        // A machine that was made anew has another key, and no connection of the one before.
        if machine_id(&state.world, &order.step.action).as_ref() != Some(&order.machine_id) {
            return;
        }
        let formed = matches!(state.world.ledger.formation, Formation::Formed { .. });
        let before = state.world.clone();
        let done = state.world.change(|world| agent::obey(world, &order.desired, order.fence, &order.step));
        if done == Ok(Obeyed::Done) {
            count(&self.reached.delivered_late);
            state.past.judge(&before, formed, order.fence, &order.step);
        }
    }

    /// What only holds afterwards is written where there is something to write.
    fn end_of_work(&self, state: &mut State, c: usize) {
        let Controller::Holding { stale, work, .. } = &mut state.controllers[c] else { return };
        let Some(finished) = work.as_ref().filter(|w| w.steps.is_empty()) else { return };
        let known: &Ledger = stale.as_deref().unwrap_or(&state.world.ledger);
        let mut ledger = known.clone();
        if !finished.done.iter().any(|a| remember::after(&mut ledger, &finished.desired, a, now)) {
            *work = None;
        }
    }

    fn finish(&self, state: &mut State, c: usize) {
        let Controller::Holding { stale, work, .. } = &mut state.controllers[c] else { return };
        let Some(finished) = work.take() else { return };
        if stale.is_some() {
            count(&self.reached.stale_write_refused);
            state.controllers[c] = Controller::Ended;
            return;
        }
        state.world.change(|world| {
            for action in &finished.done {
                remember::after(&mut world.ledger, &finished.desired, action, world.now);
            }
        });
    }

    pub fn etcd_returns(&self, world: &mut World, member: &MemberName) {
        let digest = self.desired(&world.ledger, 0).members[member].etcd_digest.clone();
        let Some(facts) = world.machines.get_mut(member).and_then(facts_mut) else { return };
        if facts.etcd.data == DataSeen::Empty {
            facts.etcd.service = ServiceState::Stopped;
            return;
        }
        facts.etcd.service = ServiceState::Running { since: Timestamp::UNIX_EPOCH, digest, restarts: 0 };
        facts.etcd.peer_serving = true;
    }
}

impl State {
    /// Whether a controller holds the lock and nobody took it from there.
    fn somebody_leads(&self) -> bool {
        self.controllers.iter().any(|c| matches!(c, Controller::Holding { stale: None, .. }))
    }

    fn take(&mut self, c: usize) {
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
        self.world.change(|world| world.ledger.fence = fence);
        self.controllers[c] = Controller::Holding { fence, stale: None, work: None };
    }

    fn fault(&mut self, member: &MemberName, change: impl FnOnce(&mut SimMachine)) {
        self.budget.faults -= 1;
        self.world.change(|world| world.machines.get_mut(member).map(change));
    }

    /// A formation that neither a ledger nor an order names can never be started again.
    fn forget_what_cannot_matter(&mut self) {
        let mut alive: BTreeSet<String> = token(&self.world.ledger.formation).into_iter().collect();
        for controller in &self.controllers {
            if let Controller::Holding { stale, work, .. } = controller {
                alive.extend(stale.as_ref().and_then(|l| token(&l.formation)));
                let steps = work.iter().flat_map(|w| &w.steps);
                alive.extend(steps.filter_map(|s| named_token(&s.action)));
            }
        }
        alive.extend(self.under_way.as_ref().and_then(|order| named_token(&order.step.action)));
        self.past.told_new.retain(|(token, _)| alive.contains(token));
        self.past.began.retain(|token, _| alive.contains(token));
    }
}

impl Past {
    /// Notes what an order that was carried out means, seen from the world in which it was.
    fn judge(&mut self, before: &World, formed: bool, fence: u64, step: &Step) {
        let mut wrong = |happened: bool, wrong: Wrong| {
            if happened {
                self.wrongs.insert(wrong);
            }
        };
        let Some(member) = step.action.member() else { return };
        let facts = before.machines.get(member).and_then(|m| m.facts());
        wrong(is_order(&step.action) && facts.is_some_and(|f| f.fence > fence), Wrong::OlderFenceObeyed);
        match &step.action {
            Action::StartEtcd { bootstrap: Some(stamp), .. } => {
                let began_on = self.began.get(&stamp.token).and_then(|m| m.get(member));
                wrong(began_on != facts.map(|f| &f.machine_id), Wrong::NewElsewhere);
                wrong(formed, Wrong::NewAfterFormed);
                let again = !self.told_new.insert((stamp.token.clone(), member.clone()));
                let present = token(&before.ledger.formation).as_ref() == Some(&stamp.token);
                if again && present {
                    self.wrongs.insert(Wrong::NewTwice);
                }
            }
            Action::WipeData { .. } => wrong(formed, Wrong::WipedAfterFormed),
            Action::DestroyMachine { .. } => wrong(formed, Wrong::DestroyedAfterFormed),
            Action::Auth { .. } => {
                let written = agent::token_on_disk(before, member);
                wrong(!formed || written != token(&before.ledger.formation), Wrong::WroteBeforeFormed);
                self.written.extend(written);
            }
            _ => {}
        }
    }
}

impl Work {
    /// Steps for one machine are done in their order; machines go on beside each other.
    fn is_next(&self, index: usize) -> bool {
        let member = self.steps[index].action.member();
        self.steps[..index].iter().all(|s| s.action.member() != member)
    }
}

/// Steps of which a part is kept in the ledger by the very act, so that the lock is checked with them.
fn writes_ledger(action: &Action) -> bool {
    matches!(action, Action::CreateMachine { .. } | Action::Enrol { .. } | Action::MakeSecrets { .. })
}

fn is_for_provider(action: &Action) -> bool {
    matches!(action, Action::StartMachine { .. } | Action::StopMachine { .. } | Action::DestroyMachine { .. })
}

/// Whether an enrolled agent does it.
pub fn is_order(action: &Action) -> bool {
    action.member().is_some() && !writes_ledger(action) && !is_for_provider(action)
}

fn machine_id(world: &World, action: &Action) -> Option<String> {
    Some(world.machines.get(action.member()?)?.facts()?.machine_id.clone())
}

/// The formation that a step begins or begins in.
fn named_token(action: &Action) -> Option<String> {
    match action {
        Action::StartEtcd { bootstrap: Some(stamp), .. } => Some(stamp.token.clone()),
        Action::RecordForming { token, .. } => Some(token.clone()),
        _ => None,
    }
}

/// The provider does what it is asked where it can; a machine that exists is not made again.
pub fn provide(world: &mut World, desired: &Desired, action: &Action) -> Result<Obeyed, Refusal> {
    match action {
        Action::CreateMachine { member, .. } if world.machines.contains_key(member) => Err(Refusal::NotAsExpected),
        Action::StartMachine { member } | Action::Enrol { member } if !world.machines.contains_key(member) => {
            Err(Refusal::Unreachable)
        }
        Action::Enrol { member } if world.machines[member].seen.power == Power::Off => Err(Refusal::Unreachable),
        _ => {
            world.effect(desired, action);
            Ok(Obeyed::Done)
        }
    }
}

pub fn token(formation: &Formation) -> Option<String> {
    match formation {
        Formation::Unformed => None,
        Formation::Forming { token, .. } | Formation::Formed { token, .. } => Some(token.clone()),
    }
}

pub fn facts_mut(machine: &mut SimMachine) -> Option<&mut Facts> {
    match &mut machine.agent {
        SimAgent::Enrolled(facts) => Some(facts),
        _ => None,
    }
}

fn backing_off() -> ServiceState {
    let last_exit = Exit { at: Timestamp::UNIX_EPOCH, how: String::from("killed"), last_words: String::new() };
    ServiceState::BackingOff { restarts: 1, last_exit }
}

fn hide(seen: &mut Observation, member: &MemberName) {
    let unseen: Seen<AgentSeen> = Seen::Unreachable { since: seen.now, why: String::from("hidden") };
    seen.agents.insert(member.clone(), unseen);
}

pub fn count(counter: &AtomicUsize) {
    counter.fetch_add(1, Ordering::Relaxed);
}
