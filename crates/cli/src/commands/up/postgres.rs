//! `quorate up --kind postgres`: creates a PostgreSQL cluster and the etcd cluster for Patroni's state.

use std::path::Path;

use quorate_control::kinds::postgres::dcs;
use quorate_core::kinds::etcd::versions;
use quorate_core::model::{Ledger, Power};
use quorate_core::spec::{ClusterSpec, Kind, generated_postgres};

use super::{MEMBERS, agree, found_version};
use crate::cli;
use crate::commands::apply::settled;
use crate::commands::{Context, conclude, run_loop};
use crate::error::Error;
use crate::exit::Exit;
use crate::load::{self, Cluster};
use crate::output;

/// Where Debian's packages put PostgreSQL.
const DEBIAN: &str = "/usr/lib/postgresql";
/// The versions that quorate knows.
const KNOWN: std::ops::RangeInclusive<u16> = 13..=18;

pub(super) async fn run(context: &Context, options: &cli::Up, known: Option<Ledger>) -> Result<Exit, Error> {
    let clusters = match known {
        Some(ledger) if ledger.spec.kind != Kind::Postgres => {
            let what = format!("cluster {} exists, and runs etcd", options.name);
            return Err(Error::refused(what, "give the new cluster another name"));
        }
        Some(ledger) => {
            output::talk(&format!("cluster {} already exists; continuing with its settings\n", options.name));
            let etcd = etcd_that_is_off(context, &ledger.spec)?;
            let own = Cluster { brought: load::brought_files(&ledger)?, spec: ledger.spec };
            etcd.into_iter().chain([own]).collect()
        }
        None => new_clusters(context, options).await?,
    };
    let mut exit = Exit::Done;
    for cluster in load::with_their_etcd(&context.home, clusters)? {
        if cluster.spec.kind == Kind::Etcd {
            let name = &cluster.spec.name;
            output::talk(&format!("etcd cluster {name} comes first; Patroni keeps its state in it\n"));
        }
        let brought = settled(&cluster);
        let outcome = run_loop(context, &cluster.spec, &brought, "up", |ledger| {
            ledger.power = Power::On;
            ledger.downtime = None;
            cluster.register_users(&context.home, ledger);
        });
        exit = exit.max(conclude(context, outcome.await?)?);
    }
    Ok(exit)
}

/// Patroni needs its etcd: if that was stopped too, it is started first.
fn etcd_that_is_off(context: &Context, spec: &ClusterSpec) -> Result<Option<Cluster>, Error> {
    let Some(name) = dcs::own_etcd(spec) else { return Ok(None) };
    let etcd = load::remembered(&context.home, &name)?.filter(|etcd| etcd.power == Power::Off);
    etcd.map(|etcd| Ok(Cluster { brought: load::brought_files(&etcd)?, spec: etcd.spec })).transpose()
}

async fn new_clusters(context: &Context, options: &cli::Up) -> Result<Vec<Cluster>, Error> {
    let members = options.members.unwrap_or(MEMBERS);
    let found = found_version(context).await?.map(|(_, version)| version);
    let etcd = options.etcd_version.or(found).unwrap_or(versions::DEFAULT);
    let hint = "names have lower case letters, digits and hyphens";
    let spec = generated_postgres(&options.name, members.into(), newest_there()?, etcd);
    let spec = spec.map_err(|e| Error::refused(e.to_string(), hint))?;
    agree(members, options.yes)?;
    Ok(spec.clusters.into_iter().map(|spec| Cluster { spec, brought: Default::default() }).collect())
}

/// The newest PostgreSQL on this machine.
fn newest_there() -> Result<u16, Error> {
    let entries = std::fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let versions = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u16>().ok());
    let there = versions.filter(|version| Path::new(DEBIAN).join(version.to_string()).join("bin/postgres").exists());
    there.filter(|version| KNOWN.contains(version)).max().ok_or_else(|| {
        let what = format!("no PostgreSQL server was found in {DEBIAN}");
        Error::refused(what, "install one, on Debian `apt-get install postgresql`; or name its programs in a spec")
    })
}
