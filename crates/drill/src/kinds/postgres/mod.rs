//! Drills of PostgreSQL: clients append rows and transfer balances, at READ COMMITTED and SERIALIZABLE. No acknowledged commit may be lost
//! or happen twice, transfers keep the sum, a session on a replica never goes back in time, and there is one primary.
//!
//! The clients use PostgreSQL's protocol directly (`tokio-postgres`): for each transaction it must be known whether its commit was sent and
//! how PostgreSQL answered, which the output of a `psql` in a pipe does not show, and a hanging client must not cost a process.

pub mod check;
pub mod history;
mod lookup;
mod scenarios;
mod scene;
pub mod session;
mod settle;
mod workload;

use quorate_core::model::Ledger;
use quorate_core::spec::Kind;

use crate::faults::Fault;
use crate::scenario::{Downtime, Scenario, Target};
use crate::stage::Stage;
use crate::{Check, DrillError, Judged, Options, Site, Verdict, conclude};
use check::{Findings, Least};
use history::{Head, History};
use lookup::Lookup;
pub use scenarios::{SCENARIOS, downtime, lasts};
use scene::PostgresScene;

/// The log is written in files that are set aside, so a full disk is felt only after that much was written.
const LARGE_ROW: usize = 64 << 10;

/// Rehearses one scenario from beginning to end.
pub(crate) async fn run(
    site: &Site,
    ledger: &Ledger,
    scenario: Scenario,
    options: &Options,
    tell: &dyn Fn(&str),
) -> Result<(Verdict, History), DrillError> {
    let not_formed = || DrillError::NotFormed(site.cluster.clone());
    let settings = ledger.spec.postgres.as_ref().ok_or_else(not_formed)?;
    if !ledger.postgres.formation.is_formed() {
        return Err(not_formed());
    }
    let Some(etcd) = &settings.dcs.cluster else { return Err(DrillError::OtherDcs(site.cluster.clone())) };
    let access = lookup::access(site, ledger).await?;
    let scene = PostgresScene::new(site, etcd.as_str())?;
    let mut stage = Stage::set(scene, scenario, options, tell).await?;
    let members = ledger.spec.members.len();
    let downtime = |scenario: Scenario| scenario.downtime(members, !options.during.is_empty());
    let pauses = |scenario: Scenario| {
        scenario.target == Target::Leader
            && matches!(scenario.fault, Some(Fault::Stop | Fault::StopPatroni | Fault::Slow))
    };
    let mut allowed = downtime(scenario).max(options.first.map_or_else(Downtime::default, downtime));
    if options.during.iter().any(|word| word == "--allow-downtime") {
        allowed = Downtime::Outage;
    }
    let head = Head {
        cluster: site.cluster.clone(),
        version: settings.version.to_string(),
        scenario: scenario.name.to_owned(),
        downtime: allowed,
        pauses: pauses(scenario),
        ..Head::default()
    };
    let mut load = options.load;
    if scenario.fault == Some(Fault::FullDisk) {
        load.value_size = load.value_size.max(LARGE_ROW);
    }
    let mut workload = workload::start(head, access, load, Lookup(site.clone()))?;
    stage.play(&mut workload).await?;
    let mut checks = stage.settle(&mut workload).await?;
    stage.play_on(&workload, options.least).await;
    let (mut history, marks) = workload.finish()?;
    history.marks = marks;
    checks.extend(stage.clear().await);
    Ok((judge(&history, checks, &Least::default()), history))
}

/// From what was recorded to a verdict. The checks are those of the cluster itself, which a history does not hold.
pub fn judge(history: &History, checks: Vec<Check>, traffic: &Least) -> Verdict {
    let Findings { violations, too_little, settled } = check::check(history, traffic);
    conclude(Judged {
        scenario: &history.head.scenario,
        kind: Kind::Postgres,
        downtime: history.head.downtime,
        broken: violations.iter().map(|violation| (violation.rule.to_string(), violation.told())).collect(),
        too_little,
        settled,
        taken_back_writes: None,
        checks,
        held: String::from("were answered, no acknowledged commit was lost or doubled, and there was one primary"),
        answers: history.answers(),
        delays: Vec::new(),
        marks: &history.marks,
    })
}
