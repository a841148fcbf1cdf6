//! The next possible events: moves of the two controllers, and moves of the adversary within its budget.

use jiff::SignedDuration;
use quorate_core::kinds::etcd::{Formation, OlderData};
use quorate_core::model::{DataSeen, MemberName, PowerState, ServiceState};
use quorate_core::planner::simulate::{SimAgent, SimMachine, World};

use crate::agent;
use crate::controllers::{ClusterModel, Controller, State};
use crate::deeds::is_order;
use crate::etcd::{KILLED, backing_off, may_run, runs, url_of};
use crate::reached::Event;
use crate::shared::Shared;

/// How much the adversary may still do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Budget {
    /// Machines switched off, hung or destroyed, disks lost or set back, etcds that die.
    pub faults: u8,
    /// Controllers killed at any instant; each is then started again.
    pub crashes: u8,
    /// Locks taken while their holder still lives.
    pub takeovers: u8,
    /// Agents hidden from one look, in which the others tell whom they reach or do not.
    pub hidden: u8,
    /// Orders that seem to have failed, and reach their agent later.
    pub delays: u8,
    /// Orders that an agent has begun and that their controller gives up waiting for.
    pub slow: u8,
    /// Looks that show the world as it was one or two changes ago.
    pub stale: u8,
    /// Long times in which nothing happens.
    pub pauses: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    SwitchOff,
    /// It does not answer any more, and its provider takes it for running.
    Hang,
    Destroy,
    LoseDisk,
    /// The data directory comes back as it once was, and its agent finds out.
    SetBack,
    EtcdDies,
}

pub const EVERY_FAULT: &[Fault] =
    &[Fault::SwitchOff, Fault::Hang, Fault::Destroy, Fault::LoseDisk, Fault::SetBack, Fault::EtcdDies];

/// What a look shows.
#[derive(Clone, PartialEq, Debug)]
pub enum Sight {
    Clear,
    Hidden(MemberName),
    /// Nobody tells whom it reaches, and perhaps one is hidden too.
    Untold(Option<MemberName>),
    /// The provider finds a machine between on and off, or cannot be asked about it, and its agent does not answer.
    Between(MemberName, PowerState),
    /// The world before the last change of it, or the one before that.
    Old(usize),
}

#[derive(Clone, PartialEq, Debug)]
pub enum Move {
    Take(usize),
    Look { controller: usize, sight: Sight },
    Write(usize),
    Do { controller: usize, step: usize },
    Delay { controller: usize, step: usize },
    Deliver,
    Begin { controller: usize, step: usize },
    End,
    Finish(usize),
    Kill(usize),
    Strike(Fault, MemberName),
    EtcdComesUp(MemberName),
    Pause,
}

/// Longer than a machine may be unseen, and than a learner may be silent.
pub const LONG: SignedDuration = SignedDuration::from_mins(6);

impl ClusterModel {
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
                                if state.budget.slow > 0 && is_order(&work.steps[step].action) {
                                    moves.push(Move::Begin { controller: c, step });
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
        if state.in_hand.is_some() {
            moves.push(Move::End);
        }
        if state.budget.pauses > 0 && state.world.ledger.etcd.formation.is_formed() {
            moves.push(Move::Pause);
        }
        self.strikes(state, moves);
    }

    fn looks(&self, state: &State, controller: usize, moves: &mut Vec<Move>) {
        moves.push(Move::Look { controller, sight: Sight::Clear });
        if state.budget.hidden > 0 {
            let members = state.world.machines.keys().cloned();
            let between = [PowerState::Starting, PowerState::Stopping, PowerState::Unknown];
            let ways = |m: MemberName| {
                let between = between.map(|power| Sight::Between(m.clone(), power));
                [Sight::Hidden(m.clone()), Sight::Untold(Some(m))].into_iter().chain(between)
            };
            let sights = members.flat_map(ways).chain([Sight::Untold(None)]);
            moves.extend(sights.map(|sight| Move::Look { controller, sight }));
        }
        if state.budget.stale > 0 {
            moves.extend((0..state.views.len()).map(|age| Move::Look { controller, sight: Sight::Old(age) }));
        }
    }

    fn strikes(&self, state: &State, moves: &mut Vec<Move>) {
        if state.budget.faults > 0 && self.faults.contains(&Fault::LoseDisk) {
            moves.extend(state.world.kept.keys().map(|seat| Move::Strike(Fault::LoseDisk, seat.clone())));
        }
        for (member, machine) in &state.world.machines {
            let service = machine.facts().map(|f| &f.etcd.service);
            let on = machine.seen.power == PowerState::On;
            let empty = machine.facts().is_some_and(|f| f.etcd.data == DataSeen::Empty);
            if let (true, Some(ServiceState::BackingOff { .. })) = (on, service)
                && (empty || may_run(&state.world, &url_of(machine), machine))
            {
                moves.push(Move::EtcdComesUp(member.clone()));
            }
            if state.budget.faults > 0 {
                let able = self.faults.iter().filter(|fault| may_strike(**fault, machine));
                moves.extend(able.map(|fault| Move::Strike(*fault, member.clone())));
            }
        }
    }

    pub fn after(&self, last: &State, step: Move) -> Option<State> {
        let mut next = last.clone();
        let fault = matches!(step, Move::Strike(..));
        match step {
            Move::Take(c) => next.take(c),
            Move::Look { controller, sight } => self.look(&mut next, controller, &sight),
            Move::Write(c) => self.write(&mut next, c),
            Move::Do { controller, step } => self.act(&mut next, controller, step),
            Move::Delay { controller, step } => self.delay(&mut next, controller, step),
            Move::Deliver => self.deliver(&mut next),
            Move::Begin { controller, step } => self.begin(&mut next, controller, step),
            Move::End => self.end(&mut next),
            Move::Finish(c) => self.finish(&mut next, c),
            Move::Kill(c) => {
                next.budget.crashes -= 1;
                next.controllers[c] = Controller::Away;
                self.reached.count(Event::KilledAtWork);
            }
            Move::Strike(fault, member) => next.strike(fault, &member),
            Move::EtcdComesUp(m) => {
                let desired = self.desired(&next.world.ledger, 0);
                next.world.change(|world| agent::comes_up(world, &desired, &m));
            }
            Move::Pause => {
                next.budget.pauses -= 1;
                next.world.change(|world| world.now += LONG);
            }
        }
        next.forget_what_cannot_matter();
        if next.world != last.world {
            next.past.weigh(&last.world, &next.world, fault);
            next.keep_view(last);
        }
        (next != *last).then_some(next)
    }
}

fn may_strike(fault: Fault, machine: &SimMachine) -> bool {
    let on = machine.seen.power == PowerState::On;
    let facts = machine.facts();
    let holds_kept = matches!(&machine.agent, SimAgent::Fresh { data, .. } if *data != DataSeen::Empty);
    let has_data = holds_kept || facts.is_some_and(|f| f.etcd.data != DataSeen::Empty);
    match fault {
        Fault::Destroy => true,
        Fault::SwitchOff => on,
        Fault::Hang => on && facts.is_some(),
        Fault::LoseDisk => has_data,
        Fault::SetBack => has_data && facts.is_some_and(|f| f.etcd.older.is_none()),
        Fault::EtcdDies => on && facts.is_some_and(|f| matches!(f.etcd.service, ServiceState::Running { .. })),
    }
}

impl State {
    fn strike(&mut self, fault: Fault, member: &MemberName) {
        self.budget.faults -= 1;
        self.world.change(|world| {
            let now = world.now;
            let remembered = others_lead(world, member);
            let Some(machine) = world.machines.get_mut(member) else {
                world.kept.remove(member);
                return;
            };
            match fault {
                Fault::LoseDisk if machine.facts().is_none() => {
                    if let SimAgent::Fresh { data, .. } = &mut machine.agent {
                        *data = DataSeen::Empty;
                    }
                }
                Fault::Destroy => drop(world.machines.remove(member)),
                Fault::SwitchOff => machine.seen.power = PowerState::Off,
                Fault::Hang => machine.agent = SimAgent::Unknown { since: now, why: String::from("it hangs") },
                Fault::LoseDisk => with_etcd(machine, |f| {
                    f.etcd.data = DataSeen::Empty;
                    f.etcd.service = ServiceState::Stopped;
                }),
                // Where nobody leads, nobody remembers what it had: that cannot be found out.
                // One that was asked to stop is not started by that.
                Fault::SetBack if !remembered => with_etcd(machine, |f| {
                    if f.etcd.service != ServiceState::Stopped {
                        f.etcd.service = backing_off(KILLED);
                    }
                }),
                Fault::SetBack => with_etcd(machine, |f| {
                    f.etcd.older = Some(OlderData { holds: 1, acknowledged: 10, told_by: String::from("its leader") });
                    f.etcd.service = ServiceState::Stopped;
                }),
                Fault::EtcdDies => with_etcd(machine, |f| f.etcd.service = backing_off(KILLED)),
            }
        });
    }

    /// Remembers the world as it was before this change, for an observation that is made too late.
    fn keep_view(&mut self, last: &State) {
        if self.budget.stale == 0 {
            self.views.clear();
            return;
        }
        if self.world.machines == last.world.machines && self.world.listed == last.world.listed {
            return;
        }
        self.views.insert(0, (Shared::new(last.world.observe()), last.budget.faults));
        self.views.truncate(2);
    }
}

/// Whether those that are left without this one have a leader.
fn others_lead(world: &World, member: &MemberName) -> bool {
    let own = world.machines.get(member).map(url_of);
    let voters = || world.listed.iter().filter(|l| !l.is_learner);
    let running = voters().filter(|l| Some(&l.peer_url) != own.as_ref() && runs(world, l)).count();
    matches!(world.ledger.etcd.formation, Formation::Formed { .. }) && running > voters().count() / 2
}

fn with_etcd(machine: &mut SimMachine, change: impl FnOnce(&mut quorate_core::model::Facts)) {
    if let Some(facts) = machine.facts_mut() {
        change(facts);
        facts.etcd.peer_serving = false;
    }
}
