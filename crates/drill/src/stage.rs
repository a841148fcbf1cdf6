//! One scenario as it is played: what is prepared, what strikes and when, how the cluster is brought back, and what is put
//! away afterwards.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quorate_core::kinds::etcd::Formation;
use quorate_core::kinds::etcd::limits::MARGIN;
use quorate_core::model::address_in;
use quorate_etcd::{Client, Error};
use tokio::time::sleep;

use super::command::{Ended, Progress, Running};
use super::disk::SmallDisk;
use super::faults::{Fault, Harm, LASTS, Place, undo_leftovers};
use super::history::{Mark, MarkKind, Moment, TakenBack};
use super::machine::{Machine, every_machine, machines};
use super::scenario::{Scenario, Target};
use super::settle::{Check, checks};
use super::workload::{Clock, Workload};
use super::{AFTER, BEFORE, DrillError, Options, SETTLING, Site};

/// How long a learner, or a leader, may take to appear.
const APPEARANCE: Duration = Duration::from_secs(60);
/// More runs than any change has boundaries of steps, twice over.
const MOST_KILLS: usize = 400;
/// How long a learner that nobody answers for stays before the change begins.
const GHOST_STAYS: Duration = Duration::from_secs(30);
const GHOST: &str = "https://127.255.255.254:2380";
const LOOK_AGAIN: Duration = Duration::from_millis(500);

pub(super) struct Stage<'a> {
    site: &'a Site,
    scenario: Scenario,
    options: &'a Options,
    tell: &'a dyn Fn(&str),
    /// As it was when the drill began.
    formation: Formation,
    /// The revision that a restore goes back to.
    backed_up: Option<i64>,
    /// The machine whose disk is small, if the scenario is to fill it.
    disk: Option<(Machine, SmallDisk)>,
    /// By endpoint. A login by password costs a member much, so that one who logs in again for each look slows all others down.
    clients: RefCell<BTreeMap<String, Client>>,
}

impl<'a> Stage<'a> {
    /// Prepares what cannot be done under the clients' eyes.
    pub(super) async fn set(
        site: &'a Site,
        scenario: Scenario,
        options: &'a Options,
        tell: &'a dyn Fn(&str),
    ) -> Result<Self, DrillError> {
        let formation = site.ledger()?.etcd.formation;
        let clients = RefCell::default();
        let mut stage = Stage { site, scenario, options, tell, formation, backed_up: None, disk: None, clients };
        for machine in every_machine(&site.home, &site.cluster) {
            undo_leftovers(Place { home: &site.home, cluster: &site.cluster, machine: &machine })?;
        }
        stage.settled_before().await?;
        if scenario.fault == Some(Fault::FullDisk) {
            let mut machines = stage.targets(scenario.target).await?;
            let machine = machines.swap_remove(0);
            tell(&format!("{}: its data is put on a small disk", machine.member));
            let disk = SmallDisk::put_in(&machine)?;
            stage.disk = Some((machine.clone(), disk));
            stage.settled_before().await?;
            if scenario.target == Target::Leader {
                stage.make_leader(&machine).await?;
            }
        }
        Ok(stage)
    }

    /// A drill begins with a cluster that is well, or its verdict would be about something else.
    async fn settled_before(&self) -> Result<(), DrillError> {
        let deadline = Instant::now() + SETTLING;
        loop {
            let ended = self.start(&self.remembered(), Clock::begin())?.end().await;
            let missed: Vec<Check> = checks(self.site).await.into_iter().filter(|c| !c.passed).collect();
            match missed.first() {
                None if ended.code == Some(0) => return Ok(()),
                _ if Instant::now() < deadline => sleep(LOOK_AGAIN).await,
                Some(check) => {
                    return Err(DrillError::Unsettled { why: format!("{}: {}", check.check, check.found) });
                }
                None => return Err(DrillError::Unsettled { why: ended.last_words }),
            }
        }
    }

    /// The spec as the ledger remembers it.
    fn remembered(&self) -> Vec<String> {
        ["apply", &self.site.cluster, "--yes"].map(str::to_owned).into()
    }

    /// What a new controller is told: the same spec again; or, where a command was run, what the ledger remembers of it. The word that
    /// the majority is lost ends with its run, so that it is given until there is a cluster again; that to restore, until the ledger has it.
    fn resumption(&self) -> Vec<String> {
        let during = &self.options.during;
        let again = match during.first().map(String::as_str) {
            Some("apply") => true,
            Some("recover") => !self.is_another_formation(),
            Some("restore") => !self.is_another_formation() && !self.restore_is_noted(),
            _ => false,
        };
        if again { during.clone() } else { self.remembered() }
    }

    fn is_another_formation(&self) -> bool {
        let ledger = self.site.ledger();
        ledger
            .is_ok_and(|l| matches!(&l.etcd.formation, Formation::Formed { .. }) && l.etcd.formation != self.formation)
    }

    fn restore_is_noted(&self) -> bool {
        self.site.ledger().is_ok_and(|ledger| ledger.etcd.restore.is_some())
    }

    /// What the restore took back: all after the backup. It counts on so far above that nothing of before comes near.
    pub(super) fn taken_back(&self) -> Option<TakenBack> {
        let after = self.backed_up.filter(|_| self.is_another_formation())?;
        let room = i64::try_from(MARGIN / 2).unwrap_or(i64::MAX);
        Some(TakenBack { after, until: after.saturating_add(room) })
    }

    /// So that a restore has something to bring back of what the clients wrote, and something to take back.
    async fn back_up(&mut self, workload: &mut Workload) -> Result<(), DrillError> {
        let arguments = ["backup", "create", &self.site.cluster, "--output", "json"];
        let text = format!("quorate {}", arguments.join(" "));
        let from = workload.clock().now();
        let output = self.site.program.output(&arguments).await.map_err(DrillError::Program)?;
        workload.mark(Mark { kind: MarkKind::Command, text, from, to: workload.clock().now() });
        let told: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
        let revision = told.and_then(|told| told["verification"]["revision"].as_i64());
        let why = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
        self.backed_up = Some(revision.ok_or_else(|| DrillError::NoBackup { why: why() })?);
        sleep(BEFORE).await;
        Ok(())
    }

    fn start(&self, arguments: &[String], clock: Clock) -> Result<Running, DrillError> {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.site.program.start(&arguments, clock).map_err(DrillError::Program)
    }

    /// The traffic runs; the change begins, if there is one; the fault strikes.
    pub(super) async fn play(&mut self, workload: &mut Workload) -> Result<(), DrillError> {
        sleep(BEFORE).await;
        if workload.has_ended() {
            // It says why when it is finished.
            return Ok(());
        }
        if let Some(Scenario { fault: Some(fault), target, .. }) = self.options.first {
            let mark = self.strike(fault, target, workload.clock()).await?;
            workload.mark(mark);
        }
        if self.options.restores() {
            self.back_up(workload).await?;
        }
        let during = &self.options.during;
        match (self.scenario.fault, self.scenario.target) {
            (None, _) if during.is_empty() => {}
            (None, _) => {
                let ended = self.start(during, workload.clock())?.end().await;
                began(&ended)?;
                ended.marks.into_iter().for_each(|mark| workload.mark(mark));
            }
            (Some(fault), Target::Controller) => self.disturb_controller(fault, workload).await?,
            (Some(fault), target) if during.is_empty() => {
                let mark = self.strike(fault, target, workload.clock()).await?;
                workload.mark(mark);
            }
            (Some(fault), Target::Learner) => {
                let change = self.start(during, workload.clock())?;
                let (ended, mark) = self.strike_learner(fault, change, workload.clock()).await?;
                ended.marks.into_iter().chain([mark]).for_each(|mark| workload.mark(mark));
            }
            (Some(fault), target) => {
                let clock = workload.clock();
                let mut change = self.start(during, clock)?;
                change.next_step().await;
                let (ended, mark) = tokio::join!(change.end(), self.strike(fault, target, clock));
                began(&ended)?;
                ended.marks.into_iter().for_each(|mark| workload.mark(mark));
                workload.mark(mark?);
            }
        }
        Ok(())
    }

    async fn strike(&self, fault: Fault, target: Target, clock: Clock) -> Result<Mark, DrillError> {
        if fault == Fault::Ghost {
            return self.add_ghost(clock).await;
        }
        let machines = match &self.disk {
            Some((machine, _)) if fault == Fault::FullDisk => vec![machine.clone()],
            _ => self.targets(target).await?,
        };
        Ok(self.blow(fault, &machines, clock).await?.end(clock).await)
    }

    async fn blow(&self, fault: Fault, machines: &[Machine], clock: Clock) -> Result<Blow, DrillError> {
        let mut prepared = Vec::new();
        for machine in machines {
            prepared.push(fault.prepare(machine).await?);
        }
        let names: Vec<&str> = machines.iter().map(|machine| machine.member.as_str()).collect();
        let text = fault.text(&names.join(" and "));
        (self.tell)(&text);
        let from = clock.now();
        let mut harm = Vec::new();
        for machine in machines {
            harm.push(fault.strike(Place { home: &self.site.home, cluster: &self.site.cluster, machine }).await?);
        }
        Ok(Blow { fault, text, from, harm })
    }

    /// Strikes the first learner that the change starts. The controller stands still from the moment on at which it says so, lest the
    /// learner votes before it is struck.
    async fn strike_learner(
        &self,
        fault: Fault,
        mut change: Running,
        clock: Clock,
    ) -> Result<(Ended, Mark), DrillError> {
        while let Some(progress) = change.next_step().await {
            let Some(member) = progress.started_learner() else { continue };
            change.stop();
            let learner = self.learner(member).await;
            let Some(learner) = learner else {
                change.go_on();
                continue;
            };
            let blow = self.blow(fault, &[learner], clock).await?;
            change.go_on();
            return Ok(tokio::join!(change.end(), blow.end(clock)));
        }
        let ended = change.end().await;
        let why = format!("none was started by the change: {}", ended.last_words);
        Err(DrillError::NoTarget { role: "learner", why })
    }

    /// The machine of a learner that was just started, once there is something to strike; none where it votes already.
    async fn learner(&self, member: &str) -> Option<Machine> {
        let deadline = Instant::now() + APPEARANCE;
        while Instant::now() < deadline {
            let newest =
                machines(&self.site.home, &self.site.cluster).into_iter().find(|m| m.member.as_str() == member);
            if let Some(machine) = newest.filter(|m| m.etcd().is_some() && m.data().join("member").exists()) {
                return self.still_learns(&machine).await.then_some(machine);
            }
            sleep(Duration::from_millis(5)).await;
        }
        None
    }

    /// As the others report: a learner itself logs nobody in.
    async fn still_learns(&self, machine: &Machine) -> bool {
        let others = every_machine(&self.site.home, &self.site.cluster).into_iter().filter(|other| other != machine);
        for other in others {
            let Ok(client) = self.client(&other) else { continue };
            if let Ok(listed) = client.members(true).await {
                let is_its = |url: &String| address_in(url) == Some(machine.address);
                return listed.iter().any(|m| m.is_learner && m.peer_urls.iter().any(is_its));
            }
        }
        false
    }

    /// What a join leaves whose machine never came. etcd takes nobody in for some seconds after a start, so it may take a while.
    async fn add_ghost(&self, clock: Clock) -> Result<Mark, DrillError> {
        let text = Fault::Ghost.text(GHOST);
        (self.tell)(&text);
        let deadline = Instant::now() + APPEARANCE;
        let mut why = String::from("there is no leader");
        while Instant::now() < deadline {
            let from = clock.now();
            let leader = self.roles().await.into_iter().find(|(_, role)| *role == Role::Leader);
            if let Some(client) = leader.and_then(|(leader, _)| self.client(&leader).ok()) {
                match client.member_add(vec![String::from(GHOST)], true).await {
                    Ok(_) => {
                        sleep(GHOST_STAYS).await;
                        return Ok(Mark { kind: MarkKind::Fault, text, from, to: clock.now() });
                    }
                    Err(error) => why = error.to_string(),
                }
            }
            sleep(LOOK_AGAIN).await;
        }
        Err(DrillError::NoGhost { why })
    }

    /// Kills the controller before and after each step in turn, or stops it for a while. Without a change to disturb, it
    /// has a machine to switch on again.
    async fn disturb_controller(&self, fault: Fault, workload: &mut Workload) -> Result<(), DrillError> {
        let clock = workload.clock();
        let mut command = self.options.during.clone();
        if command.is_empty() {
            if self.options.first.is_none() {
                workload.mark(self.strike(Fault::PowerCut, Target::Follower, clock).await?);
            }
            command = self.remembered();
        }
        // Each run gets one line further than the last: to the first at which none was disturbed yet. A step whose order was on
        // its way when the controller died is done all the same, and the next run begins after it.
        let mut known = Vec::new();
        for _ in 0..MOST_KILLS {
            let mut running = self.start(&command, clock)?;
            let step = loop {
                match running.next_step().await {
                    Some(step) if known.contains(&step) => {}
                    other => break other,
                }
            };
            let Some(step) = step else {
                let ended = running.end().await;
                if known.is_empty() {
                    began(&ended)?;
                }
                ended.marks.into_iter().for_each(|mark| workload.mark(mark));
                return Ok(());
            };
            known.push(step.clone());
            let from = clock.now();
            let (kind, again) = (MarkKind::Fault, fault == Fault::Kill);
            let ended = if again {
                running.kill().await
            } else {
                running.stop();
                sleep(LASTS).await;
                running.go_on();
                workload.mark(Mark { kind, text: disturbed("stopped", &step), from, to: clock.now() });
                running.end().await
            };
            ended.marks.into_iter().for_each(|mark| workload.mark(mark));
            if !again {
                return Ok(());
            }
            let text = disturbed("killed", &step);
            (self.tell)(&text);
            workload.mark(Mark { kind, text, from, to: from });
            if !self.options.during.is_empty() {
                command = self.resumption();
            }
        }
        Ok(())
    }

    /// Runs a new controller until all is well, or for as long as there is patience.
    pub(super) async fn settle(&self, workload: &mut Workload) -> Result<Vec<Check>, DrillError> {
        let deadline = Instant::now() + SETTLING;
        let mut pause = LOOK_AGAIN;
        loop {
            let ended = self.start(&self.resumption(), workload.clock())?.end().await;
            let mut found = checks(self.site).await;
            ended.marks.into_iter().for_each(|mark| workload.mark(mark));
            let (done, found_words) = (ended.code == Some(0), ended.last_words);
            found.push(Check {
                check: "`apply` exits with 0",
                passed: done,
                found: if done { String::from("exit code 0") } else { found_words },
            });
            if found.iter().all(|c| c.passed) || Instant::now() > deadline || workload.has_ended() {
                return Ok(found);
            }
            sleep(pause).await;
            pause *= 2;
        }
    }

    pub(super) async fn play_on(&self, workload: &Workload, least: Duration) {
        let passed = Duration::from_micros(workload.clock().now());
        sleep(least.saturating_sub(passed).max(AFTER)).await;
    }

    /// Puts away what was prepared, and returns whether all is well without it.
    pub(super) async fn clear(mut self) -> Option<Check> {
        drop(self.disk.take()?);
        let (passed, found) = match self.settled_before().await {
            Ok(()) => (true, String::from("converged")),
            Err(error) => (false, error.to_string()),
        };
        Some(Check { check: "well on its own disk again", passed, found })
    }

    /// The machines that are struck, as roles are now: at least one.
    async fn targets(&self, target: Target) -> Result<Vec<Machine>, DrillError> {
        let role = match target {
            Target::Leader => "leader",
            Target::Learner => "learner",
            Target::Follower | Target::Majority | Target::Controller | Target::Membership => "follower",
        };
        let fits = |found: &Role| match target {
            Target::Leader => *found == Role::Leader,
            Target::Learner => *found == Role::Learner,
            _ => *found == Role::Follower,
        };
        let deadline = Instant::now() + APPEARANCE;
        loop {
            let mut roles = self.roles().await;
            let newest = machines(&self.site.home, &self.site.cluster);
            // A former machine may lead to the last; one that only follows may be gone before it is struck.
            let stays = |machine: &Machine| target == Target::Leader || newest.contains(machine);
            let fitting = roles.iter().filter(|(machine, role)| fits(role) && stays(machine));
            let fitting = fitting.map(|(machine, _)| machine.clone());
            // The majority is known only when all but the leader answer.
            let found: Vec<Machine> = match target {
                Target::Majority => fitting.collect(),
                _ => fitting.take(1).collect(),
            };
            let least = if target == Target::Majority { newest.len().saturating_sub(1) } else { 1 };
            if !found.is_empty() && found.len() >= least {
                return Ok(found);
            }
            // A cluster of one has no follower: its only member is what there is to strike.
            if role == "follower" && roles.len() == 1 && newest.len() == 1 {
                return Ok(vec![roles.swap_remove(0).0]);
            }
            if Instant::now() > deadline {
                return Err(DrillError::NoTarget {
                    role,
                    why: format!("none was seen for {} s", APPEARANCE.as_secs()),
                });
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    fn client(&self, machine: &Machine) -> Result<Client, Error> {
        let endpoint = machine.endpoint();
        if let Some(known) = self.clients.borrow().get(&endpoint) {
            return Ok(known.clone());
        }
        let client = self.site.access.client(&endpoint)?;
        self.clients.borrow_mut().insert(endpoint, client.clone());
        Ok(client)
    }

    /// The roles of the members that answer.
    async fn roles(&self) -> Vec<(Machine, Role)> {
        let mut roles = Vec::new();
        for machine in every_machine(&self.site.home, &self.site.cluster) {
            let Ok(client) = self.client(&machine) else { continue };
            let Ok(status) = client.status().await else { continue };
            let role = match () {
                () if status.is_learner => Role::Learner,
                () if status.leader == status.member_id => Role::Leader,
                () => Role::Follower,
            };
            roles.push((machine, role));
        }
        roles
    }

    async fn make_leader(&self, machine: &Machine) -> Result<(), DrillError> {
        let deadline = Instant::now() + APPEARANCE;
        loop {
            let roles = self.roles().await;
            let leader = roles.iter().find(|(_, role)| *role == Role::Leader);
            match leader {
                Some((leader, _)) if leader == machine => return Ok(()),
                Some((leader, _)) => {
                    if let (Ok(own), Ok(leading)) = (self.client(machine), self.client(leader))
                        && let Ok(status) = own.status().await
                    {
                        // Whether it went well, the next observation shows.
                        let _ = leading.move_leader(status.member_id).await;
                    }
                }
                None => {}
            }
            if Instant::now() > deadline {
                let why = format!("{} would not lead", machine.member);
                return Err(DrillError::NoTarget { role: "leader", why });
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// A fault that has struck. A lasting fault continues until this is dropped.
struct Blow {
    fault: Fault,
    text: String,
    from: Moment,
    harm: Vec<Harm>,
}

impl Blow {
    async fn end(self, clock: Clock) -> Mark {
        let Blow { fault, text, from, harm } = self;
        if fault.lasts() {
            sleep(LASTS).await;
        }
        drop(harm);
        Mark { kind: MarkKind::Fault, text, from, to: clock.now() }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Leader,
    Follower,
    Learner,
}

/// A change may be refused or fail half-way because of the fault, and is resumed then; but one that does nothing at all is none.
fn began(ended: &Ended) -> Result<(), DrillError> {
    if ended.marks.iter().any(|mark| mark.kind == MarkKind::Step) {
        return Ok(());
    }
    Err(DrillError::NoChange { why: ended.last_words.clone() })
}

fn disturbed(how: &str, step: &Progress) -> String {
    match step {
        Progress::Begins(step) => format!("controller {how} before: {step}"),
        Progress::Done(step) => format!("controller {how} after: {step}"),
        Progress::Failed(step) => format!("controller {how} after the failure of: {step}"),
    }
}
