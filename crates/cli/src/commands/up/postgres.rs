//! `quorate up --kind postgres`: creates a PostgreSQL cluster and the etcd cluster for Patroni's state.

use std::path::Path;

use quorate_control::Home;
use quorate_control::kinds::postgres::dcs;
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::etcd::versions;
use quorate_core::kinds::postgres::check::can_serve;
use quorate_core::model::Ledger;
use quorate_core::spec::{ClusterSpec, generated_postgres};

use super::{MEMBERS, agree, found_version, refuse_other_etcd, refuse_other_size};
use crate::cli;
use crate::commands::Context;
use crate::commands::power::{switch_on, with_etcd_that_is_down};
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
        Some(ledger) => {
            go_on(context, &ledger, options)?;
            output::talk(&format!("cluster {} already exists; continuing with its settings\n", options.name));
            with_etcd_that_is_down(context, ledger).await?
        }
        None => new_clusters(context, options).await?,
    };
    switch_on(context, clusters, "up", |_| {}).await
}

/// The cluster exists: it and its etcd keep the settings they have.
fn go_on(context: &Context, ledger: &Ledger, options: &cli::Up) -> Result<(), Error> {
    refuse_other_size(&ledger.spec, options)?;
    match load::etcd_of(&context.home, &ledger.spec)? {
        Some(etcd) => refuse_other_etcd(&etcd.spec, options),
        None if options.etcd_version.is_some() || options.client_auth.is_some() => {
            let what = match dcs::own_etcd(&ledger.spec) {
                Some(etcd) => {
                    format!("Patroni of {} uses etcd cluster {etcd}, which is not in this home", options.name)
                }
                None => format!("the etcd that Patroni of {} uses is not managed by quorate", options.name),
            };
            Err(Error::refused(what, "leave out `--etcd-version` and `--client-auth`"))
        }
        None => Ok(()),
    }
}

async fn new_clusters(context: &Context, options: &cli::Up) -> Result<Vec<Cluster>, Error> {
    if let Some(login) = options.client_auth.map(ClientAuth::from).filter(|login| *login != ClientAuth::Password) {
        let what = format!("Patroni logs in to etcd with a password, and --client-auth {} was requested", login.name());
        return Err(Error::refused(what, "leave that option out"));
    }
    let members = options.members.unwrap_or(MEMBERS);
    let found = found_version(context).await?.map(|(_, version)| version);
    let etcd = options.etcd_version.or(found).unwrap_or(versions::DEFAULT);
    let hint = "choose a name such as `demo-1`";
    let spec = generated_postgres(&options.name, members.into(), newest_there()?, etcd);
    let spec = spec.map_err(|e| Error::refused(e.to_string(), hint))?;
    agree(members, options.yes)?;
    spec.clusters.into_iter().map(|spec| new_or_known(&context.home, spec, options)).collect()
}

/// An etcd cluster of that name keeps the settings it has, as when an earlier run was interrupted.
fn new_or_known(home: &Home, spec: ClusterSpec, options: &cli::Up) -> Result<Cluster, Error> {
    let Some(known) = load::remembered(home, spec.name.as_str())? else {
        return Ok(Cluster { spec, brought: Default::default() });
    };
    if known.spec.kind != spec.kind {
        let what =
            format!("cluster {} exists and runs PostgreSQL, but {} needs it to run etcd", spec.name, options.name);
        return Err(Error::refused(what, "give the new cluster another name"));
    }
    refuse_other_etcd(&known.spec, options)?;
    can_serve(&known.spec).map_err(|unusable| {
        let what = format!("etcd cluster {} exists, and Patroni cannot use it: {}", spec.name, unusable.why);
        Error::refused(what, "give the new cluster another name")
    })?;
    output::talk(&format!("etcd cluster {} already exists; continuing with its settings\n", spec.name));
    Ok(Cluster { brought: load::brought_files(&known)?, spec: known.spec })
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

#[cfg(test)]
mod tests {
    use quorate_core::spec::Kind;

    use super::*;

    fn options(etcd_version: &str) -> cli::Up {
        cli::Up {
            name: String::from("shop"),
            members: None,
            kind: Some(cli::Runs::Postgres),
            yes: false,
            etcd_version: Some(etcd_version.parse().unwrap()),
            client_auth: None,
        }
    }

    fn generated(members: usize) -> [ClusterSpec; 2] {
        let spec = generated_postgres("shop", members, 15, versions::DEFAULT).unwrap();
        spec.clusters.try_into().unwrap()
    }

    #[test]
    fn an_etcd_cluster_of_that_name_keeps_its_settings() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(directory.path().to_owned());
        let [etcd, shop] = generated(3);
        let mut known = etcd.clone();
        known.members.truncate(1);
        known.etcd.version = "3.5.21".parse().unwrap();
        let taken = |options: &cli::Up| new_or_known(&home, etcd.clone(), options).map(|cluster| cluster.spec);
        assert_eq!(taken(&options("3.5.21")).unwrap(), etcd, "there is none yet");
        home.store("shop-etcd").write(&mut Ledger::new(String::from("e"), known.clone())).unwrap();
        assert_eq!(taken(&options("3.5.21")).unwrap(), known);
        let refusal = taken(&options("3.6.14")).unwrap_err().to_string();
        assert_eq!(refusal, "cluster shop-etcd exists with --etcd-version 3.5.21, and 3.6.14 was requested");

        let mut without_passwords = known.clone();
        without_passwords.etcd.client_auth = ClientAuth::Certificate;
        let mut ledger = Ledger { version: 1, ..Ledger::new(String::from("e"), without_passwords) };
        home.store("shop-etcd").write(&mut ledger).unwrap();
        let refusal = taken(&options("3.5.21")).unwrap_err().to_string();
        assert_eq!(
            refusal,
            "etcd cluster shop-etcd exists, and Patroni cannot use it: clients log in with certificates, which etcd refuses at its gateway"
        );

        let other = ClusterSpec { name: etcd.name.clone(), ..shop };
        assert_eq!(other.kind, Kind::Postgres);
        let mut ledger = Ledger { version: 2, ..Ledger::new(String::from("p"), other) };
        home.store("shop-etcd").write(&mut ledger).unwrap();
        let refusal = taken(&options("3.5.21")).unwrap_err().to_string();
        assert_eq!(refusal, "cluster shop-etcd exists and runs PostgreSQL, but shop needs it to run etcd");
    }
}
