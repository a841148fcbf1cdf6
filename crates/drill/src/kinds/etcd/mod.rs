//! Drills of etcd: clients put, get, swap and delete shared keys, and the history must be linearizable.

pub mod check;
pub mod history;
mod lookup;
mod scenarios;
mod scene;
mod settle;
pub mod workload;

use quorate_control::brought::BroughtFiles;
use quorate_control::kinds::etcd::clients::{self, Environment};
use quorate_core::kinds::etcd::Formation;
use quorate_core::kinds::etcd::pod::RunAs;
use quorate_core::model::Ledger;
use quorate_etcd::Login;

use crate::faults::Fault;
use crate::scenario::{Downtime, Scenario};
use crate::stage::Stage;
use crate::{Check, DrillError, Judged, Options, Site, Verdict, conclude};
use check::{Findings, Least};
use history::{Head, History, Operation, Outcome};
pub use scenarios::SCENARIOS;
use scene::EtcdScene;
use workload::Access;

/// etcd sets room aside for what it will write, so a full disk is felt only after that much was written.
const LARGE_VALUE: usize = 32 << 10;

/// Rehearses one scenario from beginning to end.
pub(crate) async fn run(
    site: &Site,
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
    if !matches!(ledger.etcd.formation, Formation::Formed { .. }) {
        return Err(DrillError::NotFormed(site.cluster.clone()));
    }
    let access = access(&clients::environment(&site.home, ledger, brought).await?)?;
    let scene = EtcdScene::new(site, access.clone())?;
    let mut stage = Stage::set(scene, scenario, options, tell).await?;
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
    let mut workload = workload::start(head, access, load, lookup::endpoints(site, &options.through))?;
    stage.play(&mut workload).await?;
    let mut checks = stage.settle(&mut workload).await?;
    stage.play_on(&workload, options.least).await;
    let (mut history, marks) = workload.finish()?;
    history.marks = marks;
    history.head.taken_back = stage.scene().taken_back();
    checks.extend(stage.clear().await);
    Ok((judge(&history, checks, &Least::default()), history))
}

fn access(environment: &Environment) -> Result<Access, DrillError> {
    let identity = match &environment.certificate {
        Some((certificate, key)) => Some((crate::read(certificate)?, crate::read(key)?)),
        None => None,
    };
    let login = environment.password.as_ref();
    let login = login.map(|p| Login { user: String::from("root"), password: p.expose().to_owned() });
    Ok(Access { ca: crate::read(&environment.ca)?, identity, login, dial: environment.dial.clone() })
}

/// From what was recorded to a verdict. The checks are those of the cluster itself, which a history does not hold.
pub fn judge(history: &History, checks: Vec<Check>, traffic: &Least) -> Verdict {
    let Findings { violations, too_little, settled } = check::check(history, traffic);
    let taken_back_writes = taken_back_writes(history);
    let lost = match taken_back_writes {
        None => String::from("no acknowledged write was lost"),
        Some(count) => format!("no acknowledged write was lost but the {count} after the backup"),
    };
    conclude(Judged {
        scenario: &history.head.scenario,
        kind: quorate_core::spec::Kind::Etcd,
        downtime: history.head.downtime,
        broken: violations.iter().map(|violation| (violation.rule.to_string(), violation.told())).collect(),
        too_little,
        settled,
        taken_back_writes,
        checks,
        held: format!("are linearizable and {lost}"),
        answers: history.answers(),
        delays: history.watch_delays(),
        marks: &history.marks,
    })
}

fn taken_back_writes(history: &History) -> Option<usize> {
    let taken = history.head.taken_back?;
    let is_taken = |o: &&Operation| matches!(o.outcome, Outcome::Written { revision } if taken.takes(revision));
    Some(history.operations.iter().filter(is_taken).count())
}
