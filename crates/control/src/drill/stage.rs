//! One scenario as it is played: what is prepared, what strikes and when, how the cluster is brought back, and what is put
//! away afterwards.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::command::{Ended, Progress, Running};
use super::disk::SmallDisk;
use super::faults::{Fault, LASTS, Place, undo_leftovers};
use super::history::{Mark, MarkKind};
use super::machine::{Machine, machines};
use super::scenario::{Scenario, Target};
use super::settle::{Check, checks};
use super::workload::{Clock, Workload};
use super::{AFTER, BEFORE, DrillError, Options, SETTLING, Site};

/// How long a learner, or a leader, may take to appear.
const APPEARANCE: Duration = Duration::from_secs(60);
/// More runs than any change has boundaries of steps, twice over.
const MOST_KILLS: usize = 400;
const LOOK_AGAIN: Duration = Duration::from_millis(500);

pub(super) struct Stage<'a> {
    site: &'a Site,
    scenario: Scenario,
    options: &'a Options,
    tell: &'a dyn Fn(&str),
    /// The machine whose disk is small, if the scenario is to fill it.
    disk: Option<(Machine, SmallDisk)>,
}

impl<'a> Stage<'a> {
    /// Prepares what cannot be done under the clients' eyes.
    pub(super) async fn set(
        site: &'a Site,
        scenario: Scenario,
        options: &'a Options,
        tell: &'a dyn Fn(&str),
    ) -> Result<Self, DrillError> {
        let mut stage = Stage { site, scenario, options, tell, disk: None };
        for machine in machines(&site.home, &site.cluster) {
            undo_leftovers(Place { home: &site.home, cluster: &site.cluster, machine: &machine })?;
        }
        stage.settled_before().await?;
        if scenario.fault == Some(Fault::FullDisk) {
            let machine = stage.target().await?;
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

    /// What a new controller is told: the same spec again; or, where a verb had its say, what the ledger remembers of it.
    fn resumption(&self) -> Vec<String> {
        let during = &self.options.during;
        if during.first().is_some_and(|verb| verb == "apply") { during.clone() } else { self.remembered() }
    }

    fn start(&self, arguments: &[String], clock: Clock) -> Result<Running, DrillError> {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.site.program.start(&arguments, clock).map_err(DrillError::Program)
    }

    /// The traffic runs; the change begins, if there is one; the fault strikes.
    pub(super) async fn play(&mut self, workload: &mut Workload) -> Result<(), DrillError> {
        sleep(BEFORE).await;
        if workload.has_ended() {
            // It tells why when it is finished.
            return Ok(());
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
            (Some(fault), _) if during.is_empty() => {
                let mark = self.strike(fault, workload.clock()).await?;
                workload.mark(mark);
            }
            (Some(fault), _) => {
                let clock = workload.clock();
                let mut change = self.start(during, clock)?;
                change.next_step().await;
                let (ended, mark) = tokio::join!(change.end(), self.strike(fault, clock));
                began(&ended)?;
                ended.marks.into_iter().for_each(|mark| workload.mark(mark));
                workload.mark(mark?);
            }
        }
        Ok(())
    }

    async fn strike(&self, fault: Fault, clock: Clock) -> Result<Mark, DrillError> {
        let machine = match &self.disk {
            Some((machine, _)) => machine.clone(),
            None => self.target().await?,
        };
        let _prepared = fault.prepare(&machine).await?;
        let text = fault.text(machine.member.as_str());
        (self.tell)(&text);
        let from = clock.now();
        let place = Place { home: &self.site.home, cluster: &self.site.cluster, machine: &machine };
        let harm = fault.strike(place).await?;
        if fault.lasts() {
            sleep(LASTS).await;
        }
        drop(harm);
        Ok(Mark { kind: MarkKind::Fault, text, from, to: clock.now() })
    }

    /// Kills the controller before and after each step in turn, or stops it for a while. Without a change to disturb, it
    /// has a machine to switch on again.
    async fn disturb_controller(&self, fault: Fault, workload: &mut Workload) -> Result<(), DrillError> {
        let clock = workload.clock();
        let mut command = self.options.during.clone();
        if command.is_empty() {
            workload.mark(self.strike(Fault::PowerCut, clock).await?);
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
                check: "the controller ends well",
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

    /// Puts away what was prepared, and tells whether all is well without it.
    pub(super) async fn clear(mut self) -> Option<Check> {
        drop(self.disk.take()?);
        let (passed, found) = match self.settled_before().await {
            Ok(()) => (true, String::from("settled")),
            Err(error) => (false, error.to_string()),
        };
        Some(Check { check: "well on its own disk again", passed, found })
    }

    /// The machine that the scenario strikes, as roles are now.
    async fn target(&self) -> Result<Machine, DrillError> {
        let (role, fits): (&'static str, fn(&Role) -> bool) = match self.scenario.target {
            Target::Leader => ("leader", |role| *role == Role::Leader),
            Target::Learner => ("learner", |role| *role == Role::Learner),
            // The controller has a follower to bring back.
            Target::Follower | Target::Controller => ("follower", |role| *role == Role::Follower),
        };
        let deadline = Instant::now() + APPEARANCE;
        loop {
            let mut roles = self.roles().await;
            if let Some(at) = roles.iter().position(|(_, role)| fits(role)) {
                return Ok(roles.swap_remove(at).0);
            }
            // A cluster of one has no follower: its only member is what there is to strike.
            if role == "follower" && roles.len() == 1 && machines(&self.site.home, &self.site.cluster).len() == 1 {
                return Ok(roles.swap_remove(0).0);
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

    /// The roles of the members that answer.
    async fn roles(&self) -> Vec<(Machine, Role)> {
        let mut roles = Vec::new();
        for machine in machines(&self.site.home, &self.site.cluster) {
            let Ok(client) = self.site.access.client(&machine.endpoint()) else { continue };
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
                    let own = self.site.access.client(&machine.endpoint());
                    let leading = self.site.access.client(&leader.endpoint());
                    if let (Ok(own), Ok(leading)) = (own, leading)
                        && let Ok(status) = own.status().await
                    {
                        // Whether it went well, the next look tells.
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
