//! The drill: rehearses faults on a running cluster while clients are at work, and gives a verdict.
//!
//! ```text
//! workload ──► history ──► check ──┐
//! faults, `quorate apply` ─► marks ├──► verdict ──► report
//! settle: is all as it should be? ─┘
//! ```
//! The faults strike machines of the local provider, from outside, as the world would. Whatever the drill does to a cluster is undone when
//! it ends, is interrupted or panics; what a drill leaves that is itself killed, the next one undoes.

pub mod check;
mod command;
mod disk;
mod faults;
pub mod history;
mod machine;
pub mod measure;
pub mod report;
pub mod scenario;
mod settle;
mod stage;
pub mod workload;

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use quorate_core::kinds::etcd::Formation;
use quorate_core::kinds::etcd::pod::RunAs;
use quorate_core::model::Ledger;
use quorate_etcd::Login;
use serde::Serialize;

use check::{Findings, Least, Settled, Violation};
use command::Program;
use faults::Fault;
use history::{Head, History, Mark, Operation, Outcome};
use machine::{Machine, machines};
use measure::Measures;
use quorate_control::brought::BroughtFiles;
use quorate_control::home::Home;
use quorate_control::kinds::etcd::clients::{self, ClientError, Environment};
use quorate_control::ledger::LedgerError;
use quorate_providers::ProviderError;
use scenario::{Downtime, Scenario, Target};
pub use settle::Check;
use stage::Stage;
use workload::{Access, Endpoints, Load, Workload, WorkloadError};

/// Traffic before the fault, to compare with, and after all is well again.
const BEFORE: Duration = Duration::from_secs(3);
const AFTER: Duration = Duration::from_secs(2);
/// etcd sets room aside for what it will write, so a full disk is felt only after that much was written.
const LARGE_VALUE: usize = 32 << 10;
/// How long a cluster may take to settle.
const SETTLING: Duration = Duration::from_secs(120);

#[derive(Debug, thiserror::Error)]
pub enum DrillError {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Provider(#[from] ProviderError),
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    #[error(transparent)]
    Fault(#[from] faults::FaultError),
    #[error("cluster {0} is not bootstrapped, so there is nothing to rehearse")]
    NotFormed(String),
    #[error("scenario {scenario} needs {needs}")]
    Needs { scenario: &'static str, needs: &'static str },
    #[error("{scenario} cannot be --first: it is not over at once, or leaves nothing to deal with")]
    CannotBeFirst { scenario: &'static str },
    #[error("there is nothing to restore, as no backup could be taken: {why}")]
    NoBackup { why: String },
    #[error("a learner cannot be added at an address where nothing answers: {why}")]
    NoGhost { why: String },
    #[error("there is no {role} to strike: {why}")]
    NoTarget { role: &'static str, why: String },
    #[error("quorate cannot be run")]
    Program(#[source] io::Error),
    #[error("{} cannot be read", path.display())]
    File { path: std::path::PathBuf, source: io::Error },
    #[error("the change that was given did nothing, so nothing could happen during it: {why}")]
    NoChange { why: String },
    #[error("the cluster has not converged before the drill begins: {why}")]
    Unsettled { why: String },
}

/// How to rehearse.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The shortest duration of the traffic.
    pub least: Duration,
    pub load: Load,
    /// Without which a verdict means nothing.
    pub traffic: Least,
    /// What happens before the change begins, with the clients at work.
    pub first: Option<Scenario>,
    /// A command of quorate that is run meanwhile: the change during which the fault strikes.
    pub during: Vec<String>,
}

impl Options {
    /// Whether the change is a restore from a backup.
    fn restores(&self) -> bool {
        self.during.first().is_some_and(|verb| verb == "restore")
    }
}

/// The cluster that is rehearsed with.
pub(crate) struct Site {
    home: Home,
    cluster: String,
    program: Program,
    access: Access,
}

impl Site {
    async fn new(home: &Home, ledger: &Ledger, brought: &BroughtFiles) -> Result<Self, DrillError> {
        let cluster = ledger.spec.name.to_string();
        if !matches!(ledger.etcd.formation, Formation::Formed { .. }) {
            return Err(DrillError::NotFormed(cluster));
        }
        let access = access(&clients::environment(home, ledger, brought).await?)?;
        let program = Program::current(home).map_err(DrillError::Program)?;
        Ok(Site { home: home.clone(), cluster, program, access })
    }

    fn endpoints(&self) -> Endpoints {
        let of = |machines: Vec<Machine>| machines.iter().map(Machine::endpoint).collect();
        let (home, cluster) = (self.home.clone(), self.cluster.clone());
        let (same_home, same_cluster) = (home.clone(), cluster.clone());
        Endpoints {
            all: Box::new(move || of(machines(&home, &cluster))),
            wished: Box::new(move || of(wished_machines(&same_home, &same_cluster).unwrap_or_default())),
        }
    }

    /// As it is now: a change may have come meanwhile.
    fn ledger(&self) -> Result<Ledger, DrillError> {
        let ledger = self.home.store(&self.cluster).read()?;
        ledger.ok_or_else(|| DrillError::NotFormed(self.cluster.clone()))
    }
}

/// The machines of the members that the spec has now.
fn wished_machines(home: &Home, cluster: &str) -> Result<Vec<Machine>, LedgerError> {
    let ledger = home.store(cluster).read()?;
    let members = ledger.into_iter().flat_map(|l| l.spec.members);
    let wished: BTreeSet<String> = members.map(|m| m.name.to_string()).collect();
    Ok(machines(home, cluster).into_iter().filter(|m| wished.contains(m.member.as_str())).collect())
}

fn access(environment: &Environment) -> Result<Access, DrillError> {
    let read = |path: &std::path::PathBuf| {
        std::fs::read_to_string(path).map_err(|source| DrillError::File { path: path.clone(), source })
    };
    let identity = match &environment.certificate {
        Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
        None => None,
    };
    let login = environment.password.as_ref();
    let login = login.map(|p| Login { user: String::from("root"), password: p.expose().to_owned() });
    Ok(Access { ca: read(&environment.ca)?, identity, login, dial: environment.dial.clone() })
}

/// What came of one scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    pub scenario: String,
    pub does: String,
    pub result: Ending,
    /// The verdict in words.
    pub summary: String,
    pub downtime_expected: &'static str,
    /// Every reason for a failure, or why the traffic proves too little.
    pub problems: Vec<String>,
    pub violations: Vec<Violation>,
    pub checks: Vec<Check>,
    /// Writes without an answer, settled by the watches.
    pub unanswered_writes: Settled,
    /// Acknowledged writes that a restore took back, as it was asked to; none where nothing was restored.
    pub taken_back_writes: Option<usize>,
    pub measures: Measures,
    pub marks: Vec<Mark>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    Passed,
    Failed,
    /// Nothing is wrong, and nothing is proven.
    NotEnoughTraffic,
}

/// Rehearses one scenario from beginning to end.
pub async fn run(
    home: &Home,
    ledger: &Ledger,
    brought: &BroughtFiles,
    scenario: Scenario,
    options: &Options,
    tell: &dyn Fn(&str),
) -> Result<(Verdict, History), DrillError> {
    if ledger.spec.etcd.run_as == RunAs::StaticPod {
        let needs = "etcd as a service (`run_as: service`): what a kubelet runs is outside of the machine that the drill damages";
        return Err(DrillError::Needs { scenario: scenario.name, needs });
    }
    let has_netns = ledger.spec.provider.settings().is_isolated();
    match scenario.needs() {
        Some(needs) if scenario.fault.is_some_and(|f| f.needs_netns()) && !has_netns => {
            return Err(DrillError::Needs { scenario: scenario.name, needs });
        }
        Some(needs) if scenario.target == Target::Learner && options.during.is_empty() => {
            return Err(DrillError::Needs { scenario: scenario.name, needs });
        }
        Some(needs) if scenario.fault.is_some_and(|f| f.must_be_first()) => {
            return Err(DrillError::Needs { scenario: scenario.name, needs });
        }
        _ => {}
    }
    if let Some(first) = options.first
        && (first.target == Target::Learner || !first.fault.is_some_and(|f| f.can_be_first()))
    {
        return Err(DrillError::CannotBeFirst { scenario: first.name });
    }
    let site = Site::new(home, ledger, brought).await?;
    let mut stage = Stage::set(&site, scenario, options, tell).await?;
    let voters = ledger.spec.members.len();
    let downtime = |scenario: Scenario| match options.restores() {
        true => Downtime::Outage,
        false => scenario.downtime(voters, !options.during.is_empty()),
    };
    let head = Head {
        cluster: site.cluster.clone(),
        etcd_version: ledger.spec.etcd.version.to_string(),
        scenario: scenario.name.to_owned(),
        downtime: downtime(scenario).max(options.first.map_or_else(Downtime::default, downtime)),
        ..Head::default()
    };
    let mut load = options.load;
    if scenario.fault == Some(Fault::FullDisk) {
        load.value_size = load.value_size.max(LARGE_VALUE);
    }
    let mut workload = Workload::start(head, site.access.clone(), load, site.endpoints())?;
    stage.play(&mut workload).await?;
    let mut checks = stage.settle(&mut workload).await?;
    stage.play_on(&workload, options.least).await;
    let mut history = workload.finish()?;
    history.head.taken_back = stage.taken_back();
    checks.extend(stage.clear().await);
    Ok((judge(&history, checks, &options.traffic), history))
}

/// From what was recorded to a verdict. The checks are those of the cluster itself, which a history does not hold.
pub fn judge(history: &History, checks: Vec<Check>, traffic: &Least) -> Verdict {
    let downtime = history.head.downtime;
    let Findings { violations, too_little, settled } = check::check(history, traffic);
    let measures = measure::measure(history);
    let mut problems: Vec<String> = violations.iter().map(|v| format!("{}: {}", v.rule, v.text)).collect();
    let missed = checks.iter().filter(|c| !c.passed);
    problems.extend(missed.map(|c| format!("not so in the end: {}: {}", c.check, c.found)));
    if let (Some(gap), Some(most)) = (measures.longest_write_gap, downtime.longest_gap())
        && gap.seconds() > most.as_secs_f64()
    {
        let (stood, most) = (gap.seconds(), most.as_secs());
        problems
            .push(format!("writes paused for {stood:.2} s from {:.2} s on; at most {most} s was expected", gap.from));
    }
    let result = match (problems.is_empty(), too_little.is_empty()) {
        (false, _) => Ending::Failed,
        (true, false) => Ending::NotEnoughTraffic,
        (true, true) => Ending::Passed,
    };
    let taken_back_writes = taken_back_writes(history);
    let lost = match taken_back_writes {
        None => String::from("no acknowledged write was lost"),
        Some(count) => format!("no acknowledged write was lost but the {count} after the backup"),
    };
    let answered: usize = measures.operations.values().map(|c| c.answered).sum();
    let summary = match result {
        Ending::Passed => format!(
            "passed: {answered} operations are linearizable and {lost}; writes paused for {:.2} s at most",
            measures.longest_write_gap.map_or(0.0, measure::Gap::seconds)
        ),
        Ending::Failed if problems.len() == 1 => format!("failed: {}", problems[0]),
        Ending::Failed => format!("failed, for {} reasons, the first of which is: {}", problems.len(), problems[0]),
        Ending::NotEnoughTraffic => format!("not enough traffic to tell: {}", too_little.join("; ")),
    };
    if result == Ending::NotEnoughTraffic {
        problems = too_little;
    }
    Verdict {
        scenario: history.head.scenario.clone(),
        does: Scenario::named(&history.head.scenario).map(|s| s.does()).unwrap_or_default(),
        result,
        summary,
        downtime_expected: downtime.text(),
        problems,
        violations,
        checks,
        unanswered_writes: settled,
        taken_back_writes,
        measures,
        marks: history.marks.clone(),
    }
}

fn taken_back_writes(history: &History) -> Option<usize> {
    let taken = history.head.taken_back?;
    let is_taken = |o: &&Operation| matches!(o.outcome, Outcome::Written { revision } if taken.takes(revision));
    Some(history.operations.iter().filter(is_taken).count())
}
