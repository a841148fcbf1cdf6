//! The model check of PostgreSQL: the real planner changes a living cluster, in every order of its steps, Patroni's, clients' and an
//! adversary's.
//!
//! Patroni is modelled by what it promises: it records in the DCS which standbys commits wait for, and promotes only one of those, or the
//! former primary. A commit is confirmed when such a standby has it. The adversary ends a member's processes, cuts its stream, takes its
//! data or its machine, and kills the controller between two steps; each only as often as the run says. A restart is no instant: the
//! member is away until it returns, and anything may happen meanwhile.
//!
//! Held against all of it: each decision against what it was made on (`common/postgres.rs` has the rules in its own words), each step
//! against the commits and the members that it leaves, and each state against what a lone controller makes of it when nothing more goes
//! wrong.
//!
//! That it can fail was tried by breaking one rule at a time:
//!
//! | broken on purpose | caught by |
//! | --- | --- |
//! | `may_disturb`: whatever is left | model: clients never wait for a restart |
//! | `unwell_besides`: nobody is unwell | audit: a switchover while another does not stream |
//! | `unfit`: a standby that commits do not wait for may take over | audit: it may lack confirmed commits |
//! | the primary restarts, or leaves, without handing over | audit: the primary hands over first |
//! | a member has left before Patroni has recorded another standby | model: it settles when faults stop |
//! | one that was stopped to leave stays stopped without a primary | model: it settles when faults stop |
//! | one that leaves is stopped though it was promoted meanwhile | model: it settles when faults stop |
//! | data that outlives its machine gets another name in Patroni | model: somebody can take over |
//! | an upgrade stops a member though it was promoted meanwhile | model: it settles when faults stop |
//! | an upgrade waits for a machine that is gone | model: it settles when faults stop |
//! | before an upgrade nobody leaves | model: it settles when faults stop |
//! | restored data is put in place while members run | audit: somebody runs on the data of before |
//! | members stop before the restored data is ready | audit: an outage without consent |
//! | the ledger forgets which data a restore has replaced | model: what a restore replaces is kept |
//! | replaced data is wiped, not put aside | model: it settles when faults stop |
//! | the way back waits for a machine that is gone | model: it settles when faults stop |
//! | a rotation goes on before every member has confirmed it | audit: a member would be locked out |
//! | a rotation goes on before PostgreSQL has the new passwords | model: it settles when faults stop |
//!
//! Covered by stories, not by this model: an upgrade without consent or rehearsal, of data that another member is ahead of, or whose server
//! was killed; a way back to a copy that may lack commits, because the member with all of them is asked first. Tried, and caught by stories alone: a restart while Patroni has recorded no synchronous standby, and two members that both say
//! primary.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use quorate_core::kinds::postgres::{DataState, Formation, Role, Rotation, RotationStage};
use quorate_core::model::{Consent, DataSeen, Desired, MemberName, Reboot};
use quorate_core::planner::simulate::World;
use quorate_core::planner::{Action, Decision, Precondition, Step, UnsafeBecause, decide, remember};
use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::adversary::LONG;
use crate::controllers::tell_reach;
use crate::patroni::{Configured, Fault, Machine, Patroni, State, Wrong};
use crate::scene::Scene;
use crate::scene::postgres::{audit, cluster, go_back, provide, restore, rotate, switch_over, want_version};
use crate::shared::{Shared, hash};

/// More rounds than a controller that nobody disturbs ever needs.
const MOST_ROUNDS: usize = 60;
/// How often in a row it helps to wait.
const MOST_PATIENCE: usize = 3;

struct PostgresModel {
    scene: Scene,
    first: State,
    faults: &'static [Fault],
    /// Hashes of states from which the end is known to be right.
    right: Mutex<HashSet<u64>>,
    /// By the hash of the ledger: most of a run would be spent on rendering configurations.
    desired: Mutex<HashMap<u64, Arc<Desired>>>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Move {
    Look,
    /// The next step.
    Do,
    Crash,
    Commit,
    /// Patroni has commits wait for this one.
    Choose(Machine),
    Promote(Machine),
    Return(Machine),
    Fault(Fault, Machine),
}

impl PostgresModel {
    fn new(mut scene: Scene, changes: Changes<'_>, faults: &'static [Fault], budget: (u8, u8)) -> Self {
        provide(&mut scene);
        let mut settled = scene.run();
        scene.go_on_from(&settled);
        if let Some(before) = changes.before {
            before(&mut scene);
            settled = scene.run();
            scene.go_on_from(&settled);
        }
        (changes.change)(&mut scene);
        let mut world = Shared::new(settled.world);
        world.change(|world| {
            world.ledger = scene.ledger.clone();
            world.look_again();
        });
        let (faults_left, crashes) = budget;
        let patroni = Patroni::default();
        let mut first = State {
            world,
            patroni,
            steps: Vec::new(),
            surprised: false,
            faults: faults_left,
            crashes,
            wrongs: BTreeSet::new(),
        };
        first.patroni.leader = first.primary();
        let members: Vec<Machine> = first.machines().into_keys().collect();
        for machine in &members {
            first.change(machine, |postgres| {
                postgres.catalog.get_or_insert_default();
            });
        }
        first.patroni.written = members.iter().map(|machine| (machine.clone(), 0)).collect();
        let standby = members.iter().find(|machine| first.streams(machine)).cloned();
        first.patroni.synchronous.extend(standby);
        if let Some(previous) = first.world.ledger.postgres.previous.clone() {
            // A commit from before the upgrade, which only one copy must have.
            let keeps = |machine: &&Machine| first.postgres(machine).is_some_and(|found| found.replaced.is_some());
            let aside = members
                .iter()
                .filter(keeps)
                .map(|machine| (machine.clone(), u8::from(machine.0 == previous.member.seat())));
            first.patroni.aside = aside.collect();
            first.patroni.before_upgrade = 1;
        }
        first.report();
        if let Some(leaving) = first.machines().into_keys().find(|(name, _)| !is_wanted(&scene, name)) {
            first.keep_roles(None);
            first.patroni.synchronous.insert(leaving.clone());
            first.is_promoted(&leaving);
            first.is_chosen(&(String::from("pg-1"), 1));
            first.report();
        }
        PostgresModel { scene, first, faults, right: Mutex::default(), desired: Mutex::default() }
    }

    fn desired(&self, world: &World) -> Arc<Desired> {
        let mut known = self.desired.lock().expect("no holder panics");
        let desire = || Arc::new(self.scene.wish().desire(&world.ledger, "z"));
        known.entry(hash(&world.ledger)).or_insert_with(desire).clone()
    }

    fn decide(&self, state: &mut State) -> (Arc<Desired>, Decision) {
        let mut seen = state.world.observe();
        tell_reach(&mut seen, &state.world);
        let desired = self.desired(&state.world);
        state.world.change(|world| remember::sighting(&mut world.ledger, &desired, &seen));
        let desired = self.desired(&state.world);
        let decision = decide(&desired, &seen);
        (desired, decision)
    }

    /// What a step does, if those that it is asked of take it.
    fn perform(&self, state: &mut State, step: &Step) {
        let machines = state.machines();
        let of = |member: &MemberName| machines.iter().find(|(_, name)| *name == member).map(|(m, _)| m.clone());
        let (could, had) = (state.somebody_takes_over(), state.has_every_commit());
        let (could, had) = (could && !state.surprised, had && !state.surprised);
        let kept = state.keeps_what_was_replaced() && !state.surprised;
        let disturbed = match &step.action {
            Action::RestartPostgres { member }
            | Action::RestartPatroni { member }
            | Action::StopPatroni { member }
            | Action::StopMachine { member }
            | Action::RebootMachine { member, .. }
            | Action::DestroyMachine { member, .. } => of(member),
            _ => None,
        };
        // An upgrade and a restore stop clients, by consent.
        let stops = state.world.ledger.postgres.upgrade.is_some() || state.restores();
        let served = disturbed.is_some() && !state.surprised && !stops && self.serves_without(state, None);
        let desired = self.desired(&state.world);
        let found = step.action.member().and_then(of).and_then(|machine| Some(&state.postgres(&machine)?.data));
        if let (Some(found), Precondition::Data(expected)) = (found, &step.expects)
            && found != expected
        {
            return;
        }
        match &step.action {
            Action::Switchover { member, to } => {
                let (Some(from), Some(to)) = (of(member), of(to)) else { return };
                let fits = state.patroni.synchronous.contains(&to) && state.streams(&to);
                if state.primary().as_ref() != Some(&from) || !fits {
                    return;
                }
                let end = state.patroni.written[&from];
                state.patroni.written.insert(to.clone(), end);
                state.world.change(|world| remember::after(&mut world.ledger, &desired, &step.action, world.now));
                state.set_status(&from, |status| (status.role, status.streaming) = (Role::Replica, true));
                state.is_promoted(&to);
            }
            Action::RestartPostgres { member }
            | Action::RestartPatroni { member }
            | Action::RebootMachine { member, .. } => {
                let Some(machine) = of(member).filter(|machine| state.status(machine).is_some()) else { return };
                let leads = state.primary().as_ref() == Some(&machine);
                state.world.change(|world| world.perform(&desired, &step.action));
                state.keep_roles(leads.then_some(&machine));
                state.goes_away(&machine);
            }
            Action::JoinPostgres { member, .. } => {
                let Some(primary) = state.primary() else { return };
                state.world.change(|world| world.perform(&desired, &step.action));
                let end = state.patroni.written[&primary];
                state.keep_roles(Some(&primary));
                state.patroni.written.extend(of(member).map(|machine| (machine, end)));
            }
            Action::RestoreBackup { .. } => {
                state.world.change(|world| world.perform(&desired, &step.action));
                // The backup is from before the first commit.
                state.patroni.prepared = 0;
            }
            Action::TakeBack { member, .. } => {
                let taken = of(member).and_then(|machine| state.patroni.aside.remove(&machine));
                // Its agent finds nothing there.
                let Some(taken) = taken else { return };
                state.world.change(|world| world.perform(&desired, &step.action));
                state.patroni.prepared = taken;
                if state.patroni.prepared < state.patroni.before_upgrade {
                    state.wrongs.insert(Wrong::CommitLost);
                }
            }
            Action::SetAside { member, .. } => {
                let Some(machine) = of(member) else { return };
                state.world.change(|world| world.perform(&desired, &step.action));
                let written = state.patroni.written.remove(&machine).unwrap_or_default();
                state.patroni.aside.insert(machine, written);
            }
            Action::PushConfig { member, .. } => {
                let rotation = of(member).and_then(|machine| state.postgres(&machine)?.rotation.clone());
                let primary = state.primary();
                state.world.change(|world| world.perform(&desired, &step.action));
                state.keep_roles(primary.as_ref());
                if let Some(machine) = of(member) {
                    let record = &state.world.ledger.postgres;
                    let passwords = record.passwords.as_ref().map(|known| known.replicator.expose());
                    let configured = Configured {
                        mark: desired
                            .postgres
                            .as_ref()
                            .and_then(|wish| wish.rotation.as_ref())
                            .and_then(|rotation| rotation.mark.clone()),
                        has_new_passwords: passwords.is_some_and(|password| password.starts_with("new ")),
                    };
                    // Until Patroni takes it up, the rules are those of before.
                    state.change(&machine, |postgres| postgres.rotation = rotation);
                    state.patroni.configured.insert(machine, configured);
                }
            }
            Action::Catalog { .. } => {
                // It waits for a standby like any commit.
                if !state.commits_are_confirmed() {
                    return;
                }
                let primary = state.primary();
                state.world.change(|world| world.perform(&desired, &step.action));
                state.keep_roles(primary.as_ref());
                let is_set = |rotation: &Rotation| rotation.stage == RotationStage::Setting;
                state.patroni.has_new_passwords |= state.world.ledger.postgres.rotation.as_ref().is_some_and(is_set);
            }
            Action::PutRestored { member, .. } => {
                let Some(machine) = of(member) else { return };
                let had_data = matches!(state.postgres(&machine).map(|found| &found.data), Some(DataSeen::Stamped(_)));
                state.world.change(|world| world.perform(&desired, &step.action));
                if let Some(written) = state.patroni.written.get(&machine).copied().filter(|_| had_data) {
                    state.patroni.aside.insert(machine.clone(), written);
                }
                // By consent: other commits count from now on, and those of before are kept.
                if state.world.ledger.postgres.restore.is_some() && state.patroni.given_up.is_none() {
                    state.patroni.given_up = Some(state.patroni.confirmed);
                    state.patroni.confirmed = state.patroni.prepared;
                }
                // What Patroni has noted of the data before is removed.
                state.patroni.synchronous.clear();
                state.patroni.written.insert(machine.clone(), state.patroni.prepared);
                state.patroni.leader = Some(machine);
            }
            Action::UpgradeData { member, .. } => {
                let Some(machine) = of(member) else { return };
                state.world.change(|world| world.perform(&desired, &step.action));
                state.patroni.prepared = state.patroni.written.get(&machine).copied().unwrap_or_default();
            }
            Action::StopPatroni { member } if stops => {
                let Some(machine) = of(member) else { return };
                if step.expects == Precondition::Replica && state.primary().as_ref() == Some(&machine) {
                    return;
                }
                let timeline = state.status(&machine).and_then(|status| status.timeline).unwrap_or(1);
                let was_killed = state.status(&machine).is_none();
                let written = state.patroni.written.get(&machine).copied().unwrap_or_default();
                state.patroni.away.remove(&machine);
                let primary = state.primary().filter(|primary| *primary != machine);
                state.world.change(|world| world.perform(&desired, &step.action));
                state.keep_roles(primary.as_ref());
                state.change(&machine, |postgres| {
                    if let Some(control) = &mut postgres.control {
                        control.timeline = u32::try_from(timeline).expect("few timelines");
                        control.checkpoint = written.into();
                        control.state = if was_killed { DataState::InUse } else { control.state };
                    }
                });
            }
            // Its agent looks once more.
            Action::StopPatroni { member } if state.primary().is_some() && state.primary() == of(member) => {
                match step.expects {
                    // What was to follow on its machine is not done either.
                    Precondition::Replica => state.steps.retain(|step| step.action.member() != Some(member)),
                    _ => state.world.change(|world| world.perform(&desired, &step.action)),
                }
            }
            action => {
                let primary = state.primary();
                state.world.change(|world| world.perform(&desired, action));
                state.keep_roles(primary.as_ref());
            }
        }
        state.report();
        if served && !self.serves_without(state, disturbed.as_ref()) {
            state.wrongs.insert(Wrong::ClientsWait);
        }
        if could && !state.somebody_takes_over() {
            state.wrongs.insert(Wrong::NobodyTakesOver);
        }
        if had && !state.has_every_commit() {
            state.wrongs.insert(Wrong::CommitLost);
        }
        if kept && !state.keeps_what_was_replaced() {
            state.wrongs.insert(Wrong::ReplacedDataGone);
        }
    }

    /// Whether a lone controller comes to an end that is right, when nothing more goes wrong.
    fn settles(&self, state: &State) -> bool {
        self.settles_from(state, &mut |_| {})
    }

    /// Tells each decision on the way.
    fn settles_from(&self, state: &State, tell: &mut dyn FnMut(&Decision)) -> bool {
        let mut state = State { steps: Vec::new(), surprised: false, faults: 0, crashes: 0, ..state.clone() };
        let (mut way, mut patience) = (Vec::new(), 0);
        for _ in 0..MOST_ROUNDS {
            self.heal(&mut state);
            let mark = hash(&state);
            if self.is_known(mark) || !state.somebody_takes_over() {
                // Where the adversary took the data of all that may take over, only a restore helps.
                return self.all_right(way);
            }
            way.push(mark);
            let (_, decision) = self.decide(&mut state);
            tell(&decision);
            if decision.settled() {
                return self.is_right(&state) && self.all_right(way);
            }
            let asks = |because: &UnsafeBecause| {
                matches!(
                    because,
                    UnsafeBecause::CommitsWait { .. }
                        | UnsafeBecause::MajorUpgradeFailed { .. }
                        | UnsafeBecause::NoWayBack { .. }
                )
            };
            if decision.steps.is_empty() && decision.blocked.iter().any(asks) {
                // The operator is asked.
                return self.all_right(way);
            }
            patience = if decision.steps.is_empty() { patience + 1 } else { 0 };
            if patience > MOST_PATIENCE {
                return false;
            }
            if patience > 0 {
                state.world.change(|world| world.now += LONG);
            }
            for step in &decision.steps {
                self.perform(&mut state, step);
            }
        }
        false
    }

    fn is_known(&self, mark: u64) -> bool {
        self.right.lock().expect("no holder panics").contains(&mark)
    }

    fn all_right(&self, way: Vec<u64>) -> bool {
        self.right.lock().expect("no holder panics").extend(way);
        true
    }

    /// Whether clients can commit once everybody is back but this one.
    fn serves_without(&self, state: &State, away: Option<&Machine>) -> bool {
        let mut state = state.clone();
        self.heal_others(&mut state, away);
        state.commits_are_confirmed()
    }

    /// Everybody who can returns, and Patroni does its work.
    fn heal(&self, state: &mut State) {
        self.heal_others(state, None);
    }

    fn heal_others(&self, state: &mut State, away: Option<&Machine>) {
        let machines: Vec<Machine> = state.machines().into_keys().filter(|machine| Some(machine) != away).collect();
        let each = |state: &mut State, can: fn(&State, &Machine) -> bool, change: fn(&mut State, &Machine)| {
            for machine in &machines {
                if can(state, machine) {
                    change(state, machine);
                    state.report();
                }
            }
        };
        each(state, State::can_return, State::returns);
        each(state, State::can_be_promoted, State::is_promoted);
        each(state, |state, m| state.primary().is_some() && state.status(m).is_some(), State::streams_again);
        each(state, State::can_be_chosen, State::is_chosen);
    }

    fn is_right(&self, state: &State) -> bool {
        let Formation::Formed { members, .. } = &state.world.ledger.postgres.formation else { return false };
        let desired = self.desired(&state.world);
        let one_primary = state.with_role(Role::Primary).len() == 1;
        let up = state.machines().keys().all(|machine| {
            state.status(machine).is_some_and(|s| !s.pending_restart && (s.role == Role::Primary || s.streaming))
        });
        let is_closed = |machine: &Machine| state.postgres(machine).is_some_and(|found| found.rotation.is_none());
        let closed = state.machines().keys().all(is_closed) && state.world.ledger.postgres.rotation.is_none();
        let restored = self.scene.ledger.postgres.restore.as_ref().map(|restore| restore.token.as_str());
        let is_restored = restored.is_none() || state.world.ledger.postgres.formation.token() == restored;
        one_primary
            && closed
            && is_restored
            && up
            && members.keys().eq(desired.members.keys())
            && state.wrongs.is_empty()
    }
}

impl Model for PostgresModel {
    type State = State;
    type Action = Move;

    fn init_states(&self) -> Vec<State> {
        vec![self.first.clone()]
    }

    fn actions(&self, state: &State, moves: &mut Vec<Move>) {
        moves.push(if state.steps.is_empty() { Move::Look } else { Move::Do });
        if state.crashes > 0 && !state.steps.is_empty() {
            moves.push(Move::Crash);
        }
        moves.push(Move::Commit);
        for machine in state.machines().into_keys() {
            let of_patroni = [
                (state.can_be_chosen(&machine), Move::Choose(machine.clone())),
                (state.can_be_promoted(&machine), Move::Promote(machine.clone())),
                (state.can_return(&machine), Move::Return(machine.clone())),
            ];
            moves.extend(of_patroni.into_iter().filter(|(can, _)| *can).map(|(_, happens)| happens));
            let faults = self.faults.iter().filter(|fault| state.faults > 0 && state.can_strike(**fault, &machine));
            moves.extend(faults.map(|fault| Move::Fault(*fault, machine.clone())));
        }
    }

    fn next_state(&self, last: &State, happens: Move) -> Option<State> {
        let mut state = last.clone();
        match happens {
            Move::Look => {
                let could = state.somebody_takes_over();
                let (desired, decision) = self.decide(&mut state);
                // Patroni knows nobody by a name that the ledger has given up.
                if could && !state.somebody_takes_over() {
                    state.wrongs.insert(Wrong::NobodyTakesOver);
                }
                decision.steps.iter().for_each(|step| audit(&desired, &state.world, step));
                (state.steps, state.surprised) = (decision.steps, false);
            }
            Move::Do => {
                let step = state.steps.remove(0);
                self.perform(&mut state, &step);
            }
            Move::Crash => {
                state.crashes -= 1;
                state.steps.clear();
            }
            Move::Commit => state.commit()?,
            Move::Choose(machine) => state.is_chosen(&machine),
            Move::Promote(machine) => state.is_promoted(&machine),
            Move::Return(machine) => state.returns(&machine),
            Move::Fault(fault, machine) => {
                (state.faults, state.surprised) = (state.faults - 1, !state.steps.is_empty());
                state.strike(fault, &machine);
            }
        }
        state.report();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no confirmed commit is lost", |_, state: &State| {
                !state.wrongs.contains(&Wrong::CommitLost)
            }),
            Property::always("what a restore replaces is kept", |_, state: &State| {
                !state.wrongs.contains(&Wrong::ReplacedDataGone)
            }),
            Property::always("no member is locked out", |_, state: &State| !state.wrongs.contains(&Wrong::LockedOut)),
            Property::always("somebody can take over", |_, state: &State| {
                !state.wrongs.contains(&Wrong::NobodyTakesOver)
            }),
            Property::always("clients never wait for a restart", |_, state: &State| {
                !state.wrongs.contains(&Wrong::ClientsWait)
            }),
            Property::always("never two primaries", |_, state: &State| !state.wrongs.contains(&Wrong::TwoPrimaries)),
            Property::always("it settles when faults stop", PostgresModel::settles),
        ]
    }
}

fn is_wanted(scene: &Scene, member: &str) -> bool {
    scene.spec.members.iter().any(|wanted| wanted.name.as_str() == member)
}

const EVERY_FAULT: &[Fault] = &[Fault::Dies, Fault::Disconnects, Fault::LosesData, Fault::IsDestroyed];

/// What the operator asks for.
struct Changes<'a> {
    /// Done before anything goes wrong.
    before: Option<Change<'a>>,
    change: Change<'a>,
}

type Change<'a> = Box<dyn FnOnce(&mut Scene) + 'a>;

/// Explores every order of events.
fn check(name: &str, members: usize, change: impl FnOnce(&mut Scene), faults: &'static [Fault], budget: (u8, u8)) {
    explore(name, Scene::nothing(cluster("shop", members, "")), alone(change), faults, budget);
}

/// The same of a cluster that had another major version before.
fn check_back(name: &str, members: usize, faults: &'static [Fault], budget: (u8, u8)) {
    let changes = Changes { before: Some(Box::new(upgraded)), change: Box::new(gone_back) };
    explore(name, Scene::nothing(cluster("shop", members, "")), changes, faults, budget);
}

fn alone<'a>(change: impl FnOnce(&mut Scene) + 'a) -> Changes<'a> {
    Changes { before: None, change: Box::new(change) }
}

/// The same with data that outlives machines.
fn check_kept(name: &str, change: impl FnOnce(&mut Scene), faults: &'static [Fault], budget: (u8, u8)) {
    let spec = cluster("shop", 3, "    provider: {local: {keep_data: true}}\n");
    explore(name, Scene::nothing(spec), alone(change), faults, budget);
}

fn explore(name: &str, scene: Scene, changes: Changes<'_>, faults: &'static [Fault], budget: (u8, u8)) {
    let began = Instant::now();
    let model = PostgresModel::new(scene, changes, faults, budget);
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    eprintln!(
        "{name}: {} states, {} moves deep, {:.1?}",
        checker.unique_state_count(),
        checker.max_depth(),
        began.elapsed()
    );
    if let Some((property, path)) = checker.discoveries().into_iter().next() {
        eprintln!("violated: {property}");
        for (state, happens) in path.clone().into_vec() {
            let words = match &happens {
                Some(Move::Do) => state.steps[0].action.to_string(),
                _ => String::new(),
            };
            eprintln!("  {happens:?} {words}");
        }
        checker.model().settles_from(path.last_state(), &mut |decision| {
            let steps = decision.steps.iter().map(|step| step.action.to_string());
            let waiting = decision.waiting.iter().map(|waiting| format!("waiting for {waiting}"));
            let blocked = decision.blocked.iter().map(|blocked| format!("blocked: {blocked}"));
            eprintln!("    {}", steps.chain(waiting).chain(blocked).collect::<Vec<_>>().join("; "));
        });
    }
    assert!(checker.discoveries().is_empty(), "a property does not hold");
}

/// A parameter that needs a restart of every member.
fn larger_buffers(scene: &mut Scene) {
    scene.ledger.spec_before = Some(Box::new(scene.spec.clone()));
    scene.spec = cluster("shop", scene.spec.members.len(), "      parameters: {shared_buffers: 256MB}\n");
}

fn of_members(members: usize) -> impl FnOnce(&mut Scene) {
    move |scene| scene.spec = cluster("shop", members, "")
}

/// The machine of a member is replaced, by the operator's request.
fn replaced(member: &'static str) -> impl FnOnce(&mut Scene) {
    move |scene| {
        remember::raise_incarnation(&mut scene.ledger, &member.into());
    }
}

/// The same, and its data stays.
fn renewed(member: &'static str) -> impl FnOnce(&mut Scene) {
    move |scene| {
        remember::renew(&mut scene.ledger, &member.into(), 2);
    }
}

fn rebooted(members: &'static [&'static str]) -> impl FnOnce(&mut Scene) {
    move |scene| {
        let consent = consent(scene);
        for member in members {
            let record = scene.ledger.members.entry((*member).into()).or_default();
            record.reboot = Some(Reboot { consent: consent.clone(), upgrade_packages: false, ordered: None });
        }
    }
}

fn upgraded(scene: &mut Scene) {
    scene.ledger.downtime = Some(consent(scene));
    want_version(scene, "17");
}

fn switched_over(scene: &mut Scene) {
    let consent = consent(scene);
    switch_over(scene, consent, &[]);
}

fn restored(scene: &mut Scene) {
    let consent = consent(scene);
    restore(scene, "f1", consent);
}

/// To the data from before the upgrade.
fn gone_back(scene: &mut Scene) {
    scene.ledger.downtime = None;
    want_version(scene, "15");
    let consent = consent(scene);
    go_back(scene, consent);
}

/// Of everybody with whom members log in to each other.
fn rotated(scene: &mut Scene) {
    let consent = consent(scene);
    rotate(scene, consent, &["postgres", "replicator", "rewinder"]);
}

fn consent(scene: &Scene) -> Consent {
    Consent { at: scene.seen.now, by: String::from("root"), shown: String::new() }
}

#[test]
fn postgres_unchanged() {
    check("postgres, unchanged", 3, |_| {}, EVERY_FAULT, (2, 0));
}

#[test]
fn postgres_upgrade() {
    check("postgres, another major version", 3, upgraded, &[Fault::Dies], (1, 1));
}

#[test]
fn postgres_upgrade_of_two() {
    check("postgres, another major version of two members", 2, upgraded, EVERY_FAULT, (1, 1));
}

#[test]
fn postgres_restore() {
    check("postgres, a restore", 3, restored, &[Fault::Dies], (1, 1));
}

#[test]
fn postgres_restore_of_two() {
    check("postgres, a restore of two members", 2, restored, EVERY_FAULT, (1, 1));
}

#[test]
fn postgres_way_back() {
    check_back("postgres, the way back after an upgrade", 3, &[Fault::Dies], (1, 0));
}

#[test]
fn postgres_way_back_of_two() {
    check_back("postgres, the way back of two members", 2, EVERY_FAULT, (1, 1));
}

#[test]
fn postgres_passwords() {
    check("postgres, other passwords", 3, rotated, &[Fault::Dies], (1, 0));
}

#[test]
fn postgres_passwords_of_two() {
    check("postgres, other passwords of two members", 2, rotated, EVERY_FAULT, (1, 1));
}

#[test]
#[ignore = "longer; `cargo xtask model`"]
fn postgres_restore_and_every_fault() {
    check("postgres, a restore and every fault", 3, restored, EVERY_FAULT, (1, 1));
}

#[test]
#[ignore = "longer; `cargo xtask model`"]
fn postgres_way_back_and_every_fault() {
    check_back("postgres, the way back and every fault", 3, EVERY_FAULT, (1, 1));
}

#[test]
#[ignore = "longer; `cargo xtask model`"]
fn postgres_passwords_and_every_fault() {
    check("postgres, other passwords and every fault", 3, rotated, EVERY_FAULT, (1, 1));
}

#[test]
fn postgres_parameter() {
    check("postgres, a parameter", 3, larger_buffers, &[Fault::Dies], (1, 0));
}

#[test]
fn postgres_parameter_of_two() {
    check("postgres, a parameter of two members", 2, larger_buffers, EVERY_FAULT, (1, 1));
}

#[test]
fn postgres_primary_leaves() {
    check("postgres, the primary leaves", 3, of_members(2), EVERY_FAULT, (1, 1));
}

#[test]
fn postgres_member_joins() {
    check("postgres, a member joins", 2, of_members(3), EVERY_FAULT, (1, 0));
}

#[test]
fn postgres_switchover() {
    check("postgres, a switchover", 3, switched_over, EVERY_FAULT, (1, 1));
}

#[test]
fn postgres_standby_renewed() {
    check_kept(
        "postgres, the synchronous standby gets another machine with its data",
        renewed("pg-2"),
        EVERY_FAULT,
        (1, 1),
    );
}

#[test]
fn postgres_primary_reboots() {
    check("postgres, the primary and a standby reboot", 3, rebooted(&["pg-1", "pg-2"]), EVERY_FAULT, (1, 0));
}

#[test]
#[ignore = "longer; `cargo xtask model`"]
fn postgres_primary_renewed() {
    check_kept("postgres, the primary gets another machine with its data", renewed("pg-1"), EVERY_FAULT, (1, 1));
}

#[test]
#[ignore = "longer; `cargo xtask model`"]
fn postgres_parameter_and_every_fault() {
    check("postgres, a parameter and every fault", 3, larger_buffers, EVERY_FAULT, (1, 1));
}

#[test]
#[ignore = "longer; `cargo xtask model`"]
fn postgres_primary_replaced() {
    check("postgres, the primary is replaced", 3, replaced("pg-1"), EVERY_FAULT, (1, 1));
}

#[test]
#[ignore = "longer; `cargo xtask model`"]
fn postgres_two_faults_and_a_crash() {
    check("postgres, the primary leaves and two faults", 3, of_members(2), EVERY_FAULT, (2, 1));
}
