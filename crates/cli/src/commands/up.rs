//! `quorate up`: creates a cluster on this machine without a file, through the same code as any other cluster.

mod postgres;

use std::path::PathBuf;

use quorate_agent::kinds::etcd::binaries;
use quorate_core::kinds::etcd::spec::{Binary, ClientAuth};
use quorate_core::kinds::etcd::versions;
use quorate_core::model::Version;
use quorate_core::model::{Ledger, Power};
use quorate_core::spec::{ClusterSpec, Document, HostFacts, Kind, Name, Severity, generated};

use super::{Context, conclude, run_loop};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load::{self, Cluster};
use crate::output;

const MEMBERS: u16 = 3;
/// More are started only when they are confirmed.
const MANY: u16 = 9;

pub async fn run(context: &Context, options: cli::Up) -> Result<Exit, Error> {
    let known = load::remembered(&context.home, &options.name)?;
    context.refuse_if_being_destroyed(known.as_ref())?;
    if kind_to_run(known.as_ref(), &options)? == cli::Runs::Postgres {
        return postgres::run(context, &options, known).await;
    }
    let Cluster { spec, brought } = match known {
        Some(ledger) => {
            let cluster = go_on(&ledger, &options)?;
            output::talk(&format!("cluster {} already exists; continuing with its settings\n", options.name));
            cluster
        }
        None => Cluster { spec: new_spec(context, &options).await?, brought: Default::default() },
    };
    let outcome = run_loop(context, &spec, &brought, "up", |ledger| {
        ledger.power = Power::On;
        ledger.downtime = None;
    });
    conclude(context, outcome.await?)
}

/// A cluster that exists runs what it runs.
fn kind_to_run(known: Option<&Ledger>, options: &cli::Up) -> Result<cli::Runs, Error> {
    let asked = options.kind;
    let (runs, called) = match known.map(|ledger| ledger.spec.kind) {
        None => return Ok(asked.unwrap_or(cli::Runs::Etcd)),
        Some(Kind::Etcd) => (cli::Runs::Etcd, "etcd"),
        Some(Kind::Postgres) => (cli::Runs::Postgres, "PostgreSQL"),
    };
    if asked.is_some_and(|asked| asked != runs) {
        let what = format!("cluster {} exists, and runs {called}", options.name);
        return Err(Error::refused(what, "give the new cluster another name"));
    }
    Ok(runs)
}

/// The cluster exists: it keeps the settings it has.
fn go_on(ledger: &Ledger, options: &cli::Up) -> Result<Cluster, Error> {
    refuse_other_size(&ledger.spec, options)?;
    refuse_other_etcd(&ledger.spec, options)?;
    Ok(Cluster { spec: ledger.spec.clone(), brought: load::brought_files(ledger)? })
}

fn refuse_other_size(spec: &ClusterSpec, options: &cli::Up) -> Result<(), Error> {
    let asked = options.members.map(|members| members.to_string());
    refuse_other(&spec.name, "--members", &spec.members.len().to_string(), asked)
}

fn refuse_other_etcd(spec: &ClusterSpec, options: &cli::Up) -> Result<(), Error> {
    let asked = options.etcd_version.map(|version| version.to_string());
    refuse_other(&spec.name, "--etcd-version", &spec.etcd.version.to_string(), asked)?;
    let asked = options.client_auth.map(|login| ClientAuth::from(login).name().to_owned());
    refuse_other(&spec.name, "--client-auth", spec.etcd.client_auth.name(), asked)
}

fn refuse_other(cluster: &Name, what: &str, has: &str, asked: Option<String>) -> Result<(), Error> {
    match asked {
        Some(asked) if asked != has => Err(Error::refused(
            format!("cluster {cluster} exists with {what} {has}, and {asked} was requested"),
            "leave that option out to start it with its current settings, or give the new cluster another name",
        )),
        _ => Ok(()),
    }
}

async fn new_spec(context: &Context, options: &cli::Up) -> Result<ClusterSpec, Error> {
    let found = match options.etcd_version {
        Some(_) => None,
        None => found_version(context).await?,
    };
    let version = options.etcd_version.or(found.as_ref().map(|found| found.1)).unwrap_or(versions::DEFAULT);
    let members = options.members.unwrap_or(MEMBERS);
    let auth = options.client_auth.map_or(ClientAuth::Certificate, ClientAuth::from);
    let hint = "choose a name such as `demo-1`";
    let mut spec =
        generated(&options.name, members.into(), version, auth).map_err(|e| Error::refused(e.to_string(), hint))?;
    // A release newer than this quorate runs from its path.
    if let Some((path, _)) = found.filter(|_| versions::newest_before(version).is_some()) {
        spec.clusters[0].etcd.binary = Some(Binary::Path(path));
    }
    // Checked like a file, with the same refusals and warnings.
    let document = Document::parse("up", &spec.to_yaml()).expect("what quorate writes is YAML");
    for problem in document.spec(&HostFacts::default()).problems {
        let hint = problem.hint.unwrap_or_default();
        match problem.severity {
            Severity::Error => return Err(Error::refused(problem.message, hint)),
            Severity::Warning => output::talk(&format!("warning: {}\n  hint: {hint}\n", problem.message)),
        }
    }
    agree(members, options.yes)?;
    Ok(spec.clusters.into_iter().next().expect("one was generated"))
}

/// This many processes on one machine may be a typing error.
fn agree(members: u16, yes: bool) -> Result<(), Error> {
    if yes || members <= MANY {
        return Ok(());
    }
    if !output::can_ask() {
        let what = format!("{members} members are {} processes on this machine", 2 * members);
        return Err(Error::refused(what, "pass --yes if you mean that; 3 or 5 are usual"));
    }
    match output::ask(&format!("start {members} members? [y/N] "))?.to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Error::Declined),
    }
}

/// The etcd on PATH and its version, if there is one.
pub(super) async fn found_version(context: &Context) -> Result<Option<(PathBuf, Version)>, Error> {
    let Ok(etcd) = binaries::on_path(std::env::var_os("PATH").as_deref()) else { return Ok(None) };
    let found = binaries::version_of(&etcd, &context.home.programs()).await?;
    let version = found.parse().map_err(|_| {
        let what = format!("{} is etcd {found}, which is not a release", etcd.display());
        Error::refused(what, "specify a release with --etcd-version")
    })?;
    Ok(Some((etcd, version)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(members: Option<u16>) -> cli::Up {
        cli::Up { name: String::from("demo"), members, kind: None, yes: false, etcd_version: None, client_auth: None }
    }

    #[test]
    fn a_known_cluster_keeps_its_settings_and_a_conflict_names_both() {
        let mut spec = generated("demo", 3, versions::DEFAULT, ClientAuth::Certificate).unwrap();
        let ledger = Ledger::new(String::from("c"), spec.clusters.remove(0));
        assert_eq!(go_on(&ledger, &options(None)).unwrap().spec, ledger.spec);
        assert!(go_on(&ledger, &options(Some(3))).is_ok());
        let refusal = go_on(&ledger, &options(Some(5))).unwrap_err().to_string();
        assert_eq!(refusal, "cluster demo exists with --members 3, and 5 was requested");
    }

    #[test]
    fn a_known_cluster_runs_what_it_runs() {
        let spec = quorate_core::spec::generated_postgres("demo", 3, 15, versions::DEFAULT).unwrap();
        let known = |kind: Kind| {
            let spec = spec.clusters.iter().find(|spec| spec.kind == kind).unwrap().clone();
            Ledger::new(String::from("c"), ClusterSpec { name: "demo".parse().unwrap(), ..spec })
        };
        let (etcd, postgres) = (known(Kind::Etcd), known(Kind::Postgres));
        let runs = |known: Option<&Ledger>, kind| kind_to_run(known, &cli::Up { kind, ..options(None) });
        assert_eq!(runs(None, None).unwrap(), cli::Runs::Etcd);
        assert_eq!(runs(None, Some(cli::Runs::Postgres)).unwrap(), cli::Runs::Postgres);
        assert_eq!(runs(Some(&postgres), None).unwrap(), cli::Runs::Postgres);
        assert_eq!(runs(Some(&etcd), None).unwrap(), cli::Runs::Etcd);
        let refusal = runs(Some(&etcd), Some(cli::Runs::Postgres)).unwrap_err().to_string();
        assert_eq!(refusal, "cluster demo exists, and runs etcd");
        let refusal = runs(Some(&postgres), Some(cli::Runs::Etcd)).unwrap_err().to_string();
        assert_eq!(refusal, "cluster demo exists, and runs PostgreSQL");
    }
}
