//! The loop: observe, decide and act, until the cluster has converged or everything left is refused.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use quorate_core::desire::Wish;
use quorate_core::kinds::etcd::Formation;
use quorate_core::kinds::etcd::safety::revision;
use quorate_core::model::{AGENT_PORT, Desired, Ledger, MachineId, MemberName, Observation};
use quorate_core::planner;
use quorate_core::planner::remember;
use quorate_core::planner::safety::requests;
use quorate_core::planner::{Action, Outstanding, Plan, Step, Surroundings, UnsafeBecause, WaitingFor, decide};
use quorate_core::spec::ClusterSpec;
use tokio::time::Instant;

use crate::brought::BroughtFiles;
use crate::home::Home;
use crate::kinds::postgres::passwords;
use crate::ledger::{LedgerError, LedgerLock, Store};
use crate::run::error::ControlError;
use crate::run::event::{Agreed, Event, Reporter};
use crate::run::history::{History, Recorder};
use crate::run::observe::Observer;
use quorate_agent::process;

/// More rounds than any run needs; one that has not converged by then never would.
const MOST_ROUNDS: u32 = 1000;
/// How many formations one run may begin.
const MOST_FORMATIONS: u32 = 3;
/// How many consecutive rounds may fail before the loop gives up.
const MOST_FAILURES: u32 = 5;
/// How often the same step may end a wait. A step that is needed again and again makes no progress.
const MOST_REPEATS: u32 = 3;
/// While something else is waited for, users and roles are not asked for more often.
const BETWEEN_AUTH_LOOKS: Duration = Duration::from_secs(2);
const AFTER_FAILURE: Duration = Duration::from_millis(200);

/// How a run ended: converged, or with refusals.
#[derive(Debug)]
pub struct Outcome {
    pub steps_done: usize,
    pub blocked: Vec<UnsafeBecause>,
    pub seen: Observation,
    pub ledger: Ledger,
    /// The ledger itself was removed as the last step.
    pub forgotten: bool,
}

pub struct Controller {
    pub(crate) home: Home,
    pub(crate) held: Rc<LedgerLock>,
    pub(crate) sight: Observer,
    pub(crate) brought: BroughtFiles,
    history: History,
    verb: String,
    /// Agents that did not accept the new program in this run, and why.
    pub(crate) not_upgraded: RefCell<BTreeMap<MemberName, String>>,
    /// Members for whose machines the provider had no room in this run, and why.
    pub(crate) no_room: RefCell<BTreeMap<MemberName, String>>,
    /// The ledger as it was before this run.
    before: Option<Ledger>,
}

impl Controller {
    /// Takes the ledger's lock for this run, and records the spec.
    pub fn take(
        home: &Home,
        spec: &ClusterSpec,
        brought: BroughtFiles,
        verb: &str,
        change: impl FnOnce(&mut Ledger),
    ) -> Result<Self, ControlError> {
        let store = home.store(spec.name.as_str());
        let before = store.read()?;
        let mut ledger = before.clone().unwrap_or_else(|| new_ledger(spec));
        begin_run(&mut ledger, spec, Timestamp::now());
        change(&mut ledger);
        let holder = format!("quorate {verb}, by {}", process::user_name());
        let held = Rc::new(LedgerLock::take(store, ledger, &holder, Timestamp::now())?);
        let sight = Observer::new(home.provider(&held.ledger()));
        let history = History::new(home.history(spec.name.as_str()));
        Ok(Controller {
            home: home.clone(),
            held,
            sight,
            brought,
            history,
            verb: verb.to_owned(),
            not_upgraded: RefCell::default(),
            no_room: RefCell::default(),
            before,
        })
    }

    pub fn ledger(&self) -> Arc<Ledger> {
        self.held.ledger()
    }

    /// The desired state now. Each observation gets a new token, so no two bootstraps share one.
    pub(crate) fn desired(&self) -> Desired {
        let ledger = self.held.ledger();
        let brought = self.brought.fingerprints(&self.home, &ledger);
        let wish = Wish { spec: &ledger.spec, brought: &brought, arch: arch() };
        let (not_upgraded, no_room) = (self.not_upgraded.borrow().clone(), self.no_room.borrow().clone());
        Desired { not_upgraded, no_room, ..wish.desire(&ledger, &quorate_pki::random_hex(6)) }
    }

    /// Observes, decides and acts until nothing is left to do. However it ends, the lock is released here and nowhere else.
    pub async fn run(mut self, reporter: &dyn Reporter) -> Result<Outcome, ControlError> {
        let (provider, held) = (self.sight.provider(), self.held.clone());
        let admitted = Cell::new(false);
        // An observation, a new machine, a key or a download may each take longer than the lease.
        let ended = tokio::select! {
            ended = self.lead(reporter, &admitted) => ended,
            lost = held.keep() => Err(lost.into()),
        };
        if ended.as_ref().is_err_and(|error| !error.is_taken_over()) {
            // The reported error is why the run ended. A lock that cannot be released now expires.
            let _ = held.release(|_| {});
        }
        let dismissed = if admitted.get() { provider.dismiss(held.fence()).await } else { Ok(()) };
        let outcome = ended?;
        dismissed?;
        Ok(outcome)
    }

    async fn lead(&mut self, reporter: &dyn Reporter, admitted: &Cell<bool>) -> Result<Outcome, ControlError> {
        let (provider, fence) = (self.sight.provider(), self.held.fence());
        let ledger = self.held.ledger();
        // Machines have their names from before this run changed anything.
        let known = self.before.as_ref().filter(|before| before.cluster_id == ledger.cluster_id);
        let seen = self.sight.ask_first(known.unwrap_or(&ledger), &ledger, fence).await?;
        if !self.sight.knows_more().is_empty() {
            let before = self.before.take();
            return self.stand_back(before, 0, seen);
        }
        self.held.announce(Timestamp::now())?;
        let recorder = Recorder::begin(self.history.clone(), &self.verb, fence, self.before.as_ref(), &ledger)?;
        admitted.set(true);
        provider.admit(fence).await?;
        self.rounds(&recorder.through(reporter)).await
    }

    async fn rounds(&mut self, reporter: &dyn Reporter) -> Result<Outcome, ControlError> {
        let longest_pause = self.held.ledger().spec.provider.settings().longest_pause().unsigned_abs();
        let mut spent = Spent { longest_pause, ..Spent::default() };
        let mut asked = None;
        let mut still_true = None;
        loop {
            self.held.confirm(Timestamp::now())?;
            let ledger = self.held.ledger();
            let begun = Instant::now();
            let mut seen = match still_true.take() {
                Some(seen) => seen,
                None => self.sight.glance(&ledger, Some(self.held.fence())).await?,
            };
            if !self.sight.knows_more().is_empty() {
                return self.stand_back(None, spent.steps, seen);
            }
            let took = begun.elapsed();
            self.note(&seen)?;
            let mut desired = self.desired();
            let mut decision = decide(&desired, &seen);
            // Each request for users and roles goes through etcd's log: they come when nothing else is left to do.
            let wanted = decision.steps.is_empty() && decision.waiting.contains(&WaitingFor::AuthSight);
            if wanted
                && (decision.waiting.len() == 1 || asked.is_none_or(|at: Instant| at.elapsed() > BETWEEN_AUTH_LOOKS))
            {
                asked = Some(Instant::now());
                self.sight.ask_for_auth(&ledger, &mut seen, Some(self.held.fence())).await;
                self.note(&seen)?;
                desired = self.desired();
                decision = decide(&desired, &seen);
            }
            reporter.report(Event::Looked { seen: &seen, decision: &decision });
            if decision.steps.is_empty() && decision.waiting.is_empty() {
                // A machine may have switched off by itself since, after the controller that stopped it was killed.
                self.sight.provider().admit(self.held.fence()).await?;
                return self.end(spent.steps, decision.blocked, seen);
            }
            if decision.steps.iter().any(|s| s.action == Action::ForgetCluster) {
                return self.forget(spent.steps + 1, seen).await;
            }
            if reporter.agrees(&decision.steps).await? == Agreed::Now {
                continue;
            }
            let went = if decision.steps.is_empty() {
                match spent.wait(decision.waiting, self.sight.provider().patience(), took).await {
                    Err(waiting) => Err(self.out_of_patience(&seen, waiting).await),
                    Ok(()) => Ok(()),
                }
            } else {
                let done = self.act(&desired, &seen, &decision.steps, reporter).await;
                let went = spent.round(&decision.steps, done).await;
                still_true = Some(seen)
                    .filter(|_| went.is_ok() && changes_nothing_seen(&desired.etcd.formation, &decision.steps));
                went
            };
            went?;
        }
    }

    /// An agent that never answered reports nothing, but its machine may have.
    async fn out_of_patience(&self, seen: &Observation, waiting: Vec<WaitingFor>) -> ControlError {
        let provider = self.sight.provider();
        let mut last_words = Vec::new();
        for silent in &waiting {
            let (WaitingFor::Agent { member, .. } | WaitingFor::Reboot { member, .. }) = silent else { continue };
            let Some(machine) = seen.machines.get().and_then(|machines| machines.get(member)) else { continue };
            let words = provider.console(&MachineId::new(member, machine.incarnation)).await;
            last_words.extend(words.ok().filter(|words| !words.is_empty()).map(|words| (member.clone(), words)));
        }
        ControlError::OutOfPatience { waited: provider.patience(), waiting, last_words }
    }

    /// Records what this observation shows and the next run must know.
    fn note(&self, seen: &Observation) -> Result<(), ControlError> {
        let mut ledger = Ledger::clone(&self.held.ledger());
        if remember::sighting(&mut ledger, &self.desired(), seen) {
            self.held.write(seen.now, |l| *l = Ledger { lock: l.lock.clone(), ..ledger })?;
        }
        Ok(())
    }

    /// Agents show that this ledger is not the latest: nothing more is done, and another attempt finds the same. If instead
    /// another controller took over, whose number the agents have heard, the lock is lost, and that is reported.
    fn stand_back(
        &self,
        before: Option<Ledger>,
        steps_done: usize,
        seen: Observation,
    ) -> Result<Outcome, ControlError> {
        let blocked = self.sight.knows_more().to_vec();
        // A number that agents already know is released only if the next controller would not find out otherwise.
        let is_later = |because: &UnsafeBecause| matches!(because, UnsafeBecause::OlderLedger { agent, .. } if *agent > self.held.fence());
        let ledger = match before.is_none() && blocked.iter().all(is_later) {
            true => self.held.release(|_| {})?,
            false => self.held.stand_back(before)?,
        };
        Ok(Outcome { steps_done, blocked, seen, ledger, forgotten: false })
    }

    fn end(&self, steps_done: usize, blocked: Vec<UnsafeBecause>, seen: Observation) -> Result<Outcome, ControlError> {
        let statuses = seen.agents.keys().filter_map(|m| seen.facts(m)?.etcd.status.as_ref());
        let highest = revision::told(statuses).unwrap_or(0);
        let ledger = self.held.release(|ledger| {
            remember::answered(ledger);
            ledger.etcd.highest_revision = revision::remembered(ledger.etcd.highest_revision).max(highest);
            if blocked.is_empty() {
                ledger.spec_before = None;
            }
            if blocked.is_empty() && self.sight.saw_every_place() {
                forget_places(ledger, &seen);
            }
        })?;
        self.home.forget_snapshots(ledger.spec.name.as_str(), ledger.etcd.restore.as_ref())?;
        Ok(Outcome { steps_done, blocked, seen, ledger, forgotten: false })
    }

    async fn forget(&self, steps_done: usize, seen: Observation) -> Result<Outcome, ControlError> {
        let ledger = Ledger::clone(&self.held.ledger());
        self.sight.provider().forget().await?;
        self.history.remove()?;
        self.held.forget(Timestamp::now())?;
        Ok(Outcome { steps_done, blocked: Vec::new(), seen, ledger, forgotten: true })
    }
}

/// How much of its limits a run has used.
#[derive(Default)]
struct Spent {
    steps: usize,
    rounds: u32,
    /// In a row.
    failures: u32,
    formations: u32,
    waiting_since: Option<Instant>,
    /// Between two looks.
    longest_pause: Duration,
    outstanding: Outstanding,
    /// How often each step was done.
    done: HashMap<Action, u32>,
}

impl Spent {
    /// Waits if there is nothing else to do, up to a limit. The last observation took `look`.
    async fn wait(
        &mut self,
        waiting: Vec<WaitingFor>,
        patience: Duration,
        look: Duration,
    ) -> Result<(), Vec<WaitingFor>> {
        if self.outstanding.update(&waiting) {
            self.waiting_since = None;
        }
        let waited = self.waiting_since.get_or_insert_with(Instant::now).elapsed();
        if waited > patience {
            return Err(waiting);
        }
        tokio::time::sleep(pause(waited, look, self.longest_pause)).await;
        Ok(())
    }

    /// Counts a round that was done, or has failed and may be tried again.
    async fn round(&mut self, steps: &[Step], done: Result<(), ControlError>) -> Result<(), ControlError> {
        self.rounds += 1;
        if let Some(step) = steps.iter().find(|s| matches!(s.action, Action::AbandonFormation { .. })) {
            self.formations += 1;
            if self.formations >= MOST_FORMATIONS {
                return Err(ControlError::FormationFails { times: MOST_FORMATIONS, why: step.why.to_string() });
            }
        }
        match done {
            Ok(()) => {
                self.failures = 0;
                self.steps += steps.len();
                self.begin_another_wait(steps);
            }
            Err(e) if e.is_taken_over() || e.is_final() => return Err(e),
            Err(e) => {
                self.failures += 1;
                if self.failures >= MOST_FAILURES {
                    return Err(e);
                }
                tokio::time::sleep(AFTER_FAILURE).await;
            }
        }
        if self.rounds >= MOST_ROUNDS {
            return Err(ControlError::NeverSettles { rounds: MOST_ROUNDS, step: steps[0].action.to_string() });
        }
        Ok(())
    }

    /// A wait has led to a step. A step that is repeated over and over ends no wait.
    fn begin_another_wait(&mut self, steps: &[Step]) {
        let mut led_on = false;
        for step in steps {
            let times = self.done.entry(step.action.clone()).or_default();
            *times += 1;
            led_on |= *times <= MOST_REPEATS;
        }
        if led_on {
            self.waiting_since = None;
            self.outstanding = Outstanding::default();
        }
    }
}

/// What would be done, without touching anything.
pub async fn plan(
    home: &Home,
    spec: &ClusterSpec,
    brought: &BroughtFiles,
    change: impl FnOnce(&mut Ledger),
) -> Result<Plan, ControlError> {
    let store = home.store(spec.name.as_str());
    let mut ledger = store.read()?.unwrap_or_else(|| new_ledger(spec));
    begin_run(&mut ledger, spec, Timestamp::now());
    change(&mut ledger);
    let provider = home.observer(&ledger);
    let seen = Observer::new(provider.clone()).look(&ledger, None).await?;
    ledger.fence = latest_fence(&store, &ledger)?;
    let fingerprints = brought.fingerprints(home, &ledger);
    let wish = Wish { spec, brought: &fingerprints, arch: arch() };
    let configs = wish.configs(&ledger);
    let desired = wish.desire_with(&ledger, &configs, "");
    remember::sighting(&mut ledger, &desired, &seen);
    // A stored ledger has a higher number, also one that comes from a backup.
    let is_new = ledger.version == 0;
    let mut plan = Plan { is_new, ..planner::plan(wish, configs, &ledger, &seen) };
    let makes = |step: &Step| matches!(step.action, Action::CreateMachine { .. });
    let machines = if plan.steps.iter().any(makes) { provider.how_machines_run().await } else { None };
    let other_passwords = passwords::changed_files(&ledger, brought);
    let around = Surroundings { comes_from: comes_from(spec), machines, other_passwords };
    plan.remarks = planner::remarks(spec, &plan.steps, &seen, &around);
    Ok(plan)
}

/// The source address of this host for each member. No packet is sent.
fn comes_from(spec: &ClusterSpec) -> BTreeMap<MemberName, IpAddr> {
    let from = |to: IpAddr| -> io::Result<IpAddr> {
        let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((to, AGENT_PORT))?;
        Ok(socket.local_addr()?.ip())
    };
    let settings = spec.provider.settings();
    spec.machines()
        .filter_map(|machine| Some((machine.name.as_str().into(), from(settings.pinned(&machine)?).ok()?)))
        .collect()
}

/// The last number in use. A caller that only reads asks for it after its observation: a controller that came in between has recorded its
/// own before any agent heard it.
pub(crate) fn latest_fence(store: &Store, ledger: &Ledger) -> Result<u64, LedgerError> {
    let latest = store.read()?.filter(|latest| latest.cluster_id == ledger.cluster_id);
    Ok(latest.map_or(ledger.fence, |latest| latest.fence.max(ledger.fence)))
}

/// Requests of earlier runs stay open until they are answered; those that no longer count are dropped (`safety::requests`).
fn begin_run(ledger: &mut Ledger, spec: &ClusterSpec, now: Timestamp) {
    requests::drop_stale(ledger, now, ledger.spec != *spec);
    ledger.take_spec(spec);
    // It decides which agents a run may believe, and must be confirmed for each run.
    ledger.older_accepted = None;
    for record in ledger.members.values_mut() {
        record.join_failed = None;
    }
}

fn new_ledger(spec: &ClusterSpec) -> Ledger {
    Ledger::new(quorate_pki::random_hex(8), spec.clone())
}

/// As etcd's release archives name it.
pub(crate) fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Whether steps only recorded what was observed, so the next decision can use the same observation. At the end of a recovery, machines
/// have new names.
fn changes_nothing_seen(formation: &Formation, steps: &[Step]) -> bool {
    let begins = matches!(formation, Formation::Unformed | Formation::Forming { .. });
    begins && steps.iter().all(|step| matches!(step.action, Action::RecordForming { .. } | Action::RecordFormed { .. }))
}

/// A tenth of the time waited so far: fast starts are noticed within milliseconds, and for slow ones the observations, which load
/// members and a cloud's API, become rarer. The same applies if observations themselves are slow.
fn pause(waited: Duration, look: Duration, longest: Duration) -> Duration {
    let by_time = (waited / 10).min(longest).max(Duration::from_millis(5));
    by_time.max(look.min(Duration::from_millis(250)))
}

/// Observations end when no machine is left and none is wanted.
fn forget_places(ledger: &mut Ledger, seen: &Observation) {
    let settings = ledger.spec.provider.settings();
    let mut used: BTreeSet<String> = ledger.spec.machines().filter_map(|machine| settings.place(&machine)).collect();
    used.extend(seen.machines.get().into_iter().flatten().filter_map(|(_, machine)| machine.place.clone()));
    ledger.places.retain(|place| used.contains(place));
}

#[cfg(test)]
mod tests {
    use quorate_core::planner::{Precondition, Reason};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);
    const LOOK: Duration = Duration::from_millis(20);

    fn crash(restarts: u32) -> WaitingFor {
        let (how, last_words) = (String::from("exit status: 1"), String::from("invalid value"));
        WaitingFor::EtcdToStay { member: "e1".into(), restarts, how, last_words }
    }

    /// How long a run waits for these in turns.
    async fn waits(spent: &mut Spent, mut waiting: impl FnMut(u32) -> Vec<WaitingFor>) -> Duration {
        let begun = Instant::now();
        for turn in 0.. {
            if spent.wait(waiting(turn), PATIENCE, LOOK).await.is_err() {
                break;
            }
            assert!(begun.elapsed() < 10 * PATIENCE, "it waits without end");
        }
        begun.elapsed()
    }

    #[test]
    fn observations_become_rarer_up_to_the_providers_limit() {
        let seconds = Duration::from_secs;
        assert_eq!(pause(Duration::ZERO, LOOK, seconds(2)), LOOK);
        assert_eq!(pause(seconds(5), LOOK, seconds(2)), Duration::from_millis(500));
        assert_eq!(pause(seconds(60), LOOK, seconds(2)), seconds(2));
        assert_eq!(pause(seconds(60), LOOK, Duration::from_millis(100)), Duration::from_millis(100));
        assert_eq!(pause(seconds(60), seconds(9), Duration::from_millis(100)), Duration::from_millis(250));
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_ends_when_an_etcd_crashes_over_and_over() {
        let alternating = |turn: u32| match turn % 2 {
            0 => vec![crash(turn / 20)],
            _ => vec![crash(turn / 20), WaitingFor::AuthSight],
        };
        let took = waits(&mut Spent::default(), alternating).await;
        assert!(took >= PATIENCE && took < 2 * PATIENCE, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_begins_another_wait_unless_it_is_done_over_and_over() {
        let step = Step {
            action: Action::StartEtcd { member: "e1".into(), bootstrap: None },
            why: Reason::new("it does not run"),
            expects: Precondition::Nothing,
        };
        let mut spent = Spent { longest_pause: Duration::from_millis(100), ..Spent::default() };
        let begun = Instant::now();
        // Each round alone is far below the bound.
        for _ in 0..20 {
            for _ in 0..100 {
                if spent.wait(vec![crash(0)], PATIENCE, LOOK).await.is_err() {
                    let took = begun.elapsed();
                    assert!(took > PATIENCE && took < 3 * PATIENCE, "{took:?}");
                    return;
                }
            }
            spent.round(std::slice::from_ref(&step), Ok(())).await.unwrap();
        }
        panic!("it waits without end");
    }
}
