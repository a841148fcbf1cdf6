//! Runs one scenario: prepares it, causes the fault, repairs the cluster, and cleans up. [`Scene`] has what differs
//! between kinds of clusters.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::command::{Ended, Progress, Running};
use super::disk::SmallDisk;
use super::faults::{Fault, Harm, LASTS, Victim, undo_leftovers};
use super::machine::Machine;
use super::mark::{Clock, Mark, MarkKind, Moment};
use super::scenario::{Scenario, Target};
use super::settle::Check;
use super::traffic::Workload;
use super::{AFTER, BEFORE, DrillError, Options, SETTLING, Site};

/// How long a learner, or a leader, may take to appear.
pub(super) const APPEARANCE: Duration = Duration::from_secs(60);
/// More runs than any change has boundaries of steps, twice over.
const MOST_KILLS: usize = 400;
const BEGINNING: Duration = Duration::from_millis(10);
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What a stage must know about a kind of cluster.
pub(super) trait Scene {
    fn site(&self) -> &Site;

    /// The required final state of the cluster.
    async fn checks(&self) -> Vec<Check>;

    /// The machines that are struck, as roles are now: at least one. Each with the cluster that it belongs to.
    async fn targets(&self, target: Target) -> Result<Vec<Struck>, DrillError>;

    /// Makes a member the leader, which it was before its disk was exchanged.
    async fn make_leader(&self, machine: &Machine) -> Result<(), DrillError>;

    /// The member that a step has just added, if it was one that adds a member.
    fn joined<'a>(&self, progress: &'a Progress) -> Option<&'a str>;

    /// The machine of a member that was just added, once there is something to strike; none where it is past that.
    async fn joining(&self, member: &str) -> Option<Machine>;

    /// Whether the change must be asked for with the same words again after an interruption, or the ledger knows it.
    fn must_repeat(&self, during: &[String]) -> bool;

    /// The cluster whose ledger knows a change that was interrupted.
    async fn interrupted(&self, _during: &[String]) -> String {
        self.site().cluster.clone()
    }

    /// Done under the traffic before the change begins.
    async fn before_change(&mut self, _during: &[String], _clock: Clock) -> Result<Option<Mark>, DrillError> {
        Ok(None)
    }

    /// Faults that happen to no machine.
    async fn strike_no_machine(
        &self,
        _fault: Fault,
        _clock: Clock,
        _tell: &dyn Fn(&str),
    ) -> Option<Result<Mark, DrillError>> {
        None
    }

    /// Every machine on which a fault of an earlier drill may have been left.
    fn all_machines(&self) -> Vec<Struck>;
}

/// A machine that is struck, and its cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Struck {
    pub cluster: String,
    pub machine: Machine,
}

pub(super) struct Stage<'a, S> {
    scene: S,
    scenario: Scenario,
    options: &'a Options,
    tell: &'a dyn Fn(&str),
    /// The machine whose disk is small, if the scenario is to fill it.
    disk: Option<(Struck, SmallDisk)>,
}

impl<'a, S: Scene> Stage<'a, S> {
    /// Prepares what cannot be done under the clients' eyes.
    pub(super) async fn set(
        scene: S,
        scenario: Scenario,
        options: &'a Options,
        tell: &'a dyn Fn(&str),
    ) -> Result<Self, DrillError> {
        let mut stage = Stage { scene, scenario, options, tell, disk: None };
        for Struck { cluster, machine } in stage.scene.all_machines() {
            undo_leftovers(Victim { home: &stage.site().home, cluster: &cluster, machine: &machine })?;
        }
        stage.settled_before().await?;
        if scenario.fault == Some(Fault::FullDisk) {
            let mut struck = stage.scene.targets(scenario.target).await?;
            let struck = struck.swap_remove(0);
            tell(&format!("{}: its data is put on a small disk", struck.machine.member));
            let disk = SmallDisk::put_in(&struck.machine)?;
            stage.disk = Some((struck.clone(), disk));
            stage.settled_before().await?;
            if scenario.target == Target::Leader {
                stage.scene.make_leader(&struck.machine).await?;
            }
        }
        Ok(stage)
    }

    pub(super) fn scene(&self) -> &S {
        &self.scene
    }

    fn site(&self) -> &Site {
        self.scene.site()
    }

    /// A drill begins with a cluster that is well, or its verdict would be about something else.
    async fn settled_before(&self) -> Result<(), DrillError> {
        let deadline = Instant::now() + SETTLING;
        loop {
            let ended = self.start(&remembered(&self.site().cluster), Clock::begin())?.end().await;
            let missed: Vec<Check> = self.scene.checks().await.into_iter().filter(|c| !c.passed).collect();
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

    /// What a new controller is told: the same words again; or, where the ledger remembers them, to carry on.
    async fn resumption(&self) -> Vec<String> {
        let during = &self.options.during;
        if self.scene.must_repeat(during) { during.clone() } else { remembered(&self.scene.interrupted(during).await) }
    }

    fn start(&self, arguments: &[String], clock: Clock) -> Result<Running, DrillError> {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.site().program.start(&arguments, clock).map_err(DrillError::Program)
    }

    /// The traffic runs; the change begins, if there is one; the fault strikes.
    pub(super) async fn play<H>(&mut self, workload: &mut Workload<H>) -> Result<(), DrillError> {
        while !workload.has_begun() && !workload.has_ended() {
            sleep(BEGINNING).await;
        }
        sleep(BEFORE).await;
        if workload.has_ended() {
            // It says why when it is finished.
            return Ok(());
        }
        if let Some(first) = self.options.first
            && let Some(fault) = first.fault
        {
            let mark = self.strike(fault, first, workload.clock()).await?;
            workload.mark(mark);
        }
        let during = &self.options.during;
        let before = self.scene.before_change(during, workload.clock()).await?;
        if let Some(mark) = before {
            workload.mark(mark);
            sleep(BEFORE).await;
        }
        match (self.scenario.fault, self.scenario.target) {
            (None, _) if during.is_empty() => {}
            (None, _) => {
                let ended = self.start(during, workload.clock())?.end().await;
                began(&ended)?;
                ended.marks.into_iter().for_each(|mark| workload.mark(mark));
            }
            (Some(fault), Target::Controller) => self.disturb_controller(fault, workload).await?,
            (Some(fault), _) if during.is_empty() => {
                let mark = self.strike(fault, self.scenario, workload.clock()).await?;
                workload.mark(mark);
            }
            (Some(fault), Target::Learner) => {
                let change = self.start(during, workload.clock())?;
                let (ended, mark) = self.strike_learner(fault, change, workload.clock()).await?;
                ended.marks.into_iter().chain([mark]).for_each(|mark| workload.mark(mark));
            }
            (Some(fault), _) => {
                let clock = workload.clock();
                let mut change = self.start(during, clock)?;
                change.next_step().await;
                let (ended, mark) = tokio::join!(change.end(), self.strike(fault, self.scenario, clock));
                began(&ended)?;
                ended.marks.into_iter().for_each(|mark| workload.mark(mark));
                workload.mark(mark?);
            }
        }
        Ok(())
    }

    async fn strike(&self, fault: Fault, scenario: Scenario, clock: Clock) -> Result<Mark, DrillError> {
        if let Some(done) = self.scene.strike_no_machine(fault, clock, self.tell).await {
            return done;
        }
        let struck = match &self.disk {
            Some((struck, _)) if fault == Fault::FullDisk => vec![struck.clone()],
            _ => self.scene.targets(scenario.target).await?,
        };
        Ok(self.blow(fault, &struck, scenario.lasts(), clock).await?.end(clock).await)
    }

    async fn blow(&self, fault: Fault, struck: &[Struck], lasts: Duration, clock: Clock) -> Result<Blow, DrillError> {
        let mut prepared = Vec::new();
        for Struck { machine, .. } in struck {
            prepared.push(fault.prepare(machine).await?);
        }
        let names: Vec<&str> = struck.iter().map(|struck| struck.machine.member.as_str()).collect();
        let program = struck.first().map_or("", |struck| struck.machine.program());
        let text = fault.text(&names.join(" and "), program);
        (self.tell)(&text);
        let from = clock.now();
        let mut harm = Vec::new();
        for Struck { cluster, machine } in struck {
            harm.push(fault.strike(Victim { home: &self.site().home, cluster, machine }).await?);
        }
        Ok(Blow { lasts, text, from, harm })
    }

    /// Causes the fault on the first member that the change adds. The controller is paused from the moment it reports the member,
    /// so the member is not complete before the fault.
    async fn strike_learner(
        &self,
        fault: Fault,
        mut change: Running,
        clock: Clock,
    ) -> Result<(Ended, Mark), DrillError> {
        while let Some(progress) = change.next_step().await {
            let Some(member) = self.scene.joined(&progress) else { continue };
            change.stop();
            let learner = self.scene.joining(member).await;
            let Some(learner) = learner else {
                change.go_on();
                continue;
            };
            let struck = [Struck { cluster: self.site().cluster.clone(), machine: learner }];
            let blow = self.blow(fault, &struck, self.scenario.lasts(), clock).await?;
            change.go_on();
            return Ok(tokio::join!(change.end(), blow.end(clock)));
        }
        let ended = change.end().await;
        let why = format!("none was started by the change: {}", ended.last_words);
        Err(DrillError::NoTarget { role: "new member", why })
    }

    /// Kills the controller before and after each step in turn, or stops it for a while. Without a change to disturb, it
    /// has a machine to switch on again.
    async fn disturb_controller<H>(&self, fault: Fault, workload: &mut Workload<H>) -> Result<(), DrillError> {
        let clock = workload.clock();
        let mut command = self.options.during.clone();
        if command.is_empty() {
            if self.options.first.is_none() {
                let fault = Some(Fault::PowerCut);
                let power_cut = Scenario { fault, target: Target::Follower, ..self.scenario };
                workload.mark(self.strike(Fault::PowerCut, power_cut, clock).await?);
            }
            command = remembered(&self.site().cluster);
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
                command = self.resumption().await;
            }
        }
        Ok(())
    }

    /// Runs a new controller until all is well, or for as long as there is patience.
    pub(super) async fn settle<H>(&self, workload: &mut Workload<H>) -> Result<Vec<Check>, DrillError> {
        let deadline = Instant::now() + SETTLING;
        let mut pause = LOOK_AGAIN;
        loop {
            let ended = self.start(&self.resumption().await, workload.clock())?.end().await;
            let mut found = self.scene.checks().await;
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

    pub(super) async fn play_on<H>(&self, workload: &Workload<H>, least: Duration) {
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
}

/// A fault that has struck. A lasting fault continues until this is dropped.
struct Blow {
    lasts: Duration,
    text: String,
    from: Moment,
    harm: Vec<Harm>,
}

impl Blow {
    async fn end(self, clock: Clock) -> Mark {
        let Blow { lasts, text, from, harm } = self;
        sleep(lasts).await;
        drop(harm);
        Mark { kind: MarkKind::Fault, text, from, to: clock.now() }
    }
}

/// The spec as the ledger of a cluster remembers it.
fn remembered(cluster: &str) -> Vec<String> {
    ["apply", cluster, "--yes"].map(str::to_owned).into()
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
