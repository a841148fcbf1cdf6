//! The drill: rehearses faults on a running cluster while clients are at work, and gives a verdict.
//!
//! ```text
//! workload ──► history ──► check ──┐
//! faults, `quorate apply` ─► marks ├──► verdict ──► report
//! settle: is all as it should be? ─┘
//! ```
//! The faults strike machines of the local provider, from outside, as the world would; on others, only the controller is disturbed. Whatever the drill does to a cluster is undone when
//! it ends, is interrupted or panics; what a drill leaves that is itself killed, the next one undoes. Workload, history and checker of each
//! kind of cluster are in its room below `kinds`.

mod command;
mod disk;
mod faults;
pub mod kinds;
mod machine;
pub mod mark;
pub mod measure;
pub mod record;
pub mod report;
pub mod scenario;
mod settle;
mod stage;
pub mod traffic;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_core::model::Ledger;
use quorate_core::providers::MachineKind;
use quorate_core::spec::Kind;
use serde::Serialize;

use command::Program;
use machine::Machine;
use mark::{Mark, MarkKind, Moment};
use measure::{Answer, Came, Measures};
use quorate_control::brought::BroughtFiles;
use quorate_control::clients::ClientError;
use quorate_control::home::Home;
use quorate_control::ledger::LedgerError;
use quorate_providers::ProviderError;
use record::Record;
use scenario::{Downtime, Scenario, Target};
pub use settle::Check;
use traffic::{Load, WorkloadError};

/// Traffic before the fault, to compare with, and after all is well again.
const BEFORE: Duration = Duration::from_secs(3);
const AFTER: Duration = Duration::from_secs(2);
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
    #[error("a drill of PostgreSQL also injects faults into its etcd, and that of {0} is not managed by quorate")]
    OtherDcs(String),
    #[error("scenario {scenario} needs {needs}")]
    Needs { scenario: &'static str, needs: &'static str },
    #[error("{scenario} cannot be used with --first: the fault must be instantaneous and leave something to repair")]
    CannotBeFirst { scenario: &'static str },
    #[error("there is nothing to restore, as no backup could be taken: {why}")]
    NoBackup { why: String },
    #[error("the primary does not move, which it must before etcd is restored: {why}")]
    NoSwitchover { why: String },
    #[error("a learner cannot be added at an address where nothing answers: {why}")]
    NoGhost { why: String },
    #[error("there is no {role} to inject the fault into: {why}")]
    NoTarget { role: &'static str, why: String },
    #[error("quorate cannot be run")]
    Program(#[source] io::Error),
    #[error("{} cannot be read", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("the certificates of clients cannot be used: {why}")]
    Certificates { why: String },
    #[error("the --during command changed nothing, so no fault was injected: {why}")]
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
    /// Where clients of etcd connect, instead of to the members.
    pub through: Vec<String>,
    /// The fault before the change begins, under traffic.
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
#[derive(Clone)]
pub(crate) struct Site {
    home: Home,
    cluster: String,
    kind: Kind,
    program: Program,
}

impl Site {
    /// As it is now: a change may have come meanwhile.
    fn ledger(&self) -> Result<Ledger, DrillError> {
        let ledger = self.home.store(&self.cluster).read()?;
        ledger.ok_or_else(|| DrillError::NotFormed(self.cluster.clone()))
    }

    /// The newest machine of every member, in the order of their names.
    fn machines(&self) -> Vec<Machine> {
        self.of_members(machine::machines(&self.home, &self.cluster, self.kind))
    }

    /// Former machines too.
    fn every_machine(&self) -> Vec<Machine> {
        self.of_members(machine::every_machine(&self.home, &self.cluster, self.kind))
    }

    fn of_members(&self, machines: Vec<Machine>) -> Vec<Machine> {
        let proxies = self.proxy_names();
        machines.into_iter().filter(|machine| !proxies.contains(machine.member.as_str())).collect()
    }

    /// Machines that are no members, and lead clients to them.
    fn proxies(&self) -> Vec<Machine> {
        let proxies = self.proxy_names();
        let machines = machine::machines(&self.home, &self.cluster, self.kind).into_iter();
        machines.filter(|machine| proxies.contains(machine.member.as_str())).collect()
    }

    fn proxy_names(&self) -> BTreeSet<String> {
        let Ok(ledger) = self.ledger() else { return BTreeSet::new() };
        ledger.spec.proxies().map(|proxy| proxy.name.to_string()).collect()
    }

    /// The machines of the members that the spec has now.
    fn wished_machines(&self) -> Result<Vec<Machine>, LedgerError> {
        let ledger = self.home.store(&self.cluster).read()?;
        let members = ledger.into_iter().flat_map(|l| l.spec.members);
        let wished: BTreeSet<String> = members.map(|m| m.name.to_string()).collect();
        Ok(self.machines().into_iter().filter(|m| wished.contains(m.member.as_str())).collect())
    }
}

fn read(path: &Path) -> Result<String, DrillError> {
    std::fs::read_to_string(path).map_err(|source| DrillError::File { path: path.to_owned(), source })
}

/// A broken promise.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Violation {
    pub rule: String,
    /// Names the operations and their moments.
    pub text: String,
}

impl Violation {
    /// A rule has the same name in JSON as its kind's checker gives it.
    fn new(rule: &impl Serialize, text: &str) -> Self {
        let rule = serde_json::to_value(rule).ok().and_then(|name| name.as_str().map(str::to_owned));
        Violation { rule: rule.unwrap_or_default(), text: text.to_owned() }
    }
}

/// Writes without an answer that happened, and that did not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Settled {
    pub happened: usize,
    pub did_not_happen: usize,
}

/// The result of one scenario.
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
    /// Writes without an answer: whether they happened was found out later.
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
) -> Result<(Verdict, Record), DrillError> {
    can_be_rehearsed(ledger, scenario, options)?;
    let (cluster, kind) = (ledger.spec.name.to_string(), ledger.spec.kind);
    let program = Program::current(home).map_err(DrillError::Program)?;
    let site = Site { home: home.clone(), cluster, kind, program };
    match kind {
        Kind::Etcd => {
            let (verdict, history) = kinds::etcd::run(&site, ledger, brought, scenario, options, tell).await?;
            Ok((verdict, Record::Etcd(history)))
        }
        Kind::Postgres => {
            let (verdict, history) = kinds::postgres::run(&site, ledger, scenario, options, tell).await?;
            Ok((verdict, Record::Postgres(history)))
        }
    }
}

/// Faults reach into machines from outside, which works where they are processes of this host. On other machines, only the controller is
/// disturbed.
const ONLY_HERE: &str = "machines that are processes of this host (provider `local`); on others there are `calm`, and with --during \
    `kill-controller` and `stop-controller`";

fn can_be_rehearsed(ledger: &Ledger, scenario: Scenario, options: &Options) -> Result<(), DrillError> {
    let reaches_in = ledger.spec.provider.settings().machines() == MachineKind::Process;
    if !reaches_in && ledger.spec.kind == Kind::Postgres {
        let needs = "machines that are processes of this host (provider `local`), as every drill of PostgreSQL does";
        return Err(DrillError::Needs { scenario: scenario.name, needs });
    }
    let only_disturbs_controller = match scenario.fault {
        None => true,
        Some(_) => scenario.target == Target::Controller && !options.during.is_empty(),
    };
    if !reaches_in && (!only_disturbs_controller || options.first.is_some()) {
        return Err(DrillError::Needs { scenario: scenario.name, needs: ONLY_HERE });
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
    match options.first {
        Some(first) if first.target == Target::Learner || !first.fault.is_some_and(|f| f.can_be_first()) => {
            Err(DrillError::CannotBeFirst { scenario: first.name })
        }
        _ => Ok(()),
    }
}

/// The findings of a kind's checker.
struct Judged<'a> {
    scenario: &'a str,
    kind: Kind,
    downtime: Downtime,
    /// Broken promises, each with the words for it.
    broken: Vec<(String, Violation)>,
    too_little: Vec<String>,
    settled: Settled,
    taken_back_writes: Option<usize>,
    checks: Vec<Check>,
    /// What holds of all operations if nothing is broken.
    held: String,
    answers: Vec<Answer>,
    delays: Vec<(Moment, Moment)>,
    marks: &'a [Mark],
}

/// The verdict.
fn conclude(judged: Judged<'_>) -> Verdict {
    let Judged { downtime, broken, mut too_little, settled, taken_back_writes, checks, marks, .. } = judged;
    let measures = measure::measure(&judged.answers, &judged.delays);
    let mut problems: Vec<String> = broken.iter().map(|(rule, v)| format!("{rule}: {}", v.text)).collect();
    let missed = checks.iter().filter(|c| !c.passed);
    problems.extend(missed.map(|c| format!("not so in the final state: {}: {}", c.check, c.found)));
    if let (Some(gap), Some(most)) = (measures.longest_write_gap, downtime.longest_gap())
        && gap.seconds() > most.as_secs_f64()
    {
        let (stood, most) = (gap.seconds(), most.as_secs());
        problems
            .push(format!("writes paused for {stood:.2} s from {:.2} s on; at most {most} s was expected", gap.from));
    }
    let struck = marks.iter().filter(|mark| mark.kind == MarkKind::Fault).map(|mark| mark.from).min();
    let written_before =
        |moment| judged.answers.iter().any(|answer| answer.came == Came::Write && answer.ended < moment);
    if struck.is_some_and(|moment| !written_before(moment)) {
        too_little.push(String::from("no write was acknowledged before the fault"));
    }
    let result = match (problems.is_empty(), too_little.is_empty()) {
        (false, _) => Ending::Failed,
        (true, false) => Ending::NotEnoughTraffic,
        (true, true) => Ending::Passed,
    };
    let answered: usize = measures.operations.values().map(|c| c.answered).sum();
    let summary = match result {
        Ending::Passed => format!(
            "passed: {answered} operations {}; writes paused for {:.2} s at most",
            judged.held,
            measures.longest_write_gap.map_or(0.0, measure::Gap::seconds)
        ),
        Ending::Failed if problems.len() == 1 => format!("failed: {}", problems[0]),
        Ending::Failed => format!("failed, for {} reasons, the first of which is: {}", problems.len(), problems[0]),
        Ending::NotEnoughTraffic => format!("not enough traffic for a verdict: {}", too_little.join("; ")),
    };
    if result == Ending::NotEnoughTraffic {
        problems = too_little;
    }
    Verdict {
        scenario: judged.scenario.to_owned(),
        does: Scenario::named(judged.kind, judged.scenario).map(|s| s.does()).unwrap_or_default(),
        result,
        summary,
        downtime_expected: downtime.text(),
        problems,
        violations: broken.into_iter().map(|(_, violation)| violation).collect(),
        checks,
        unanswered_writes: settled,
        taken_back_writes,
        measures,
        marks: marks.to_vec(),
    }
}
