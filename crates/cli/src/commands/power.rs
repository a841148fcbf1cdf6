//! `quorate down` and `quorate start`: record the request in the ledger and run the same loop as `apply`. PostgreSQL is not started without
//! its etcd.

use quorate_control::kinds::postgres::dcs;
use quorate_control::kinds::status::Verdict;
use quorate_control::verbs::status::status;
use quorate_core::model::{Ledger, Power};
use quorate_core::spec::Kind;

use super::apply::settled;
use super::{Context, conclude, run_loop};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load::{self, Cluster};
use crate::output;

pub async fn down(context: &Context, options: cli::Down) -> Result<Exit, Error> {
    let name = &options.name;
    let users = dcs::users_of(&context.home, &load::ledger(&context.home, name)?);
    if !users.is_empty() {
        output::talk(&without_etcd(name, &users.join(", ")));
    }
    // Data is kept and `start` undoes it, so scripts need not confirm.
    if !options.yes && output::can_ask() {
        let answer =
            output::ask(&format!("stop all machines of cluster {name}? It does not serve until `start`. [y/N] "))?;
        if !matches!(answer.to_ascii_lowercase().as_str(), "y" | "yes") {
            return Err(Error::Declined);
        }
    }
    switch_off(context, name).await
}

pub async fn start(context: &Context, named: cli::Named) -> Result<Exit, Error> {
    let ledger = load::ledger(&context.home, &named.name)?;
    context.refuse_if_being_destroyed(Some(&ledger))?;
    let clusters = with_etcd_that_is_down(context, ledger).await?;
    switch_on(context, clusters, "start", forget_reboots).await
}

/// A known cluster, and the etcd cluster that its Patroni needs if that does not serve. The ledger alone does not show it: an
/// interrupted run has recorded already that etcd is to be on, and local machines do not survive a reboot of this host.
pub(super) async fn with_etcd_that_is_down(context: &Context, ledger: Ledger) -> Result<Vec<Cluster>, Error> {
    let mut clusters = Vec::new();
    if let Some(etcd) = load::etcd_of(&context.home, &ledger.spec)? {
        let brought = load::brought_files(&etcd)?;
        let verdict = status(&context.home, &etcd, &brought).await?.verdict;
        if matches!(verdict, Verdict::Off | Verdict::Down | Verdict::Unformed) {
            clusters.push(Cluster { brought, spec: etcd.spec });
        }
    }
    clusters.push(Cluster { brought: load::brought_files(&ledger)?, spec: ledger.spec });
    Ok(clusters)
}

/// Runs the loop for clusters that are to be on, etcd before the PostgreSQL cluster that needs it.
pub(super) async fn switch_on(
    context: &Context,
    clusters: Vec<Cluster>,
    verb: &str,
    also: impl Fn(&mut Ledger),
) -> Result<Exit, Error> {
    let mut exit = Exit::Done;
    let clusters = load::with_their_etcd(&context.home, clusters)?;
    let serves_patroni = clusters.len() > 1;
    for cluster in clusters {
        refuse_if_changed(context, &cluster)?;
        if serves_patroni && cluster.spec.kind == Kind::Etcd {
            let name = &cluster.spec.name;
            output::talk(&format!("etcd cluster {name} comes first; Patroni keeps its state in it\n"));
        }
        let brought = settled(&cluster);
        let outcome = run_loop(context, &cluster.spec, &brought, verb, |ledger| {
            ledger.power = Power::On;
            ledger.downtime = None;
            also(ledger);
            if serves_patroni {
                cluster.register_users(&context.home, ledger);
            }
        });
        exit = exit.max(conclude(context, outcome.await?)?);
    }
    Ok(exit)
}

/// The run of etcd may have taken minutes: what was applied to the other cluster meanwhile is not undone.
fn refuse_if_changed(context: &Context, cluster: &Cluster) -> Result<(), Error> {
    let name = &cluster.spec.name;
    let known = load::remembered(&context.home, name.as_str())?;
    context.refuse_if_being_destroyed(known.as_ref())?;
    if known.is_some_and(|known| known.spec != cluster.spec) {
        let what = format!("the settings of cluster {name} have changed since this command began");
        return Err(Error::refused(what, "re-run the command"));
    }
    Ok(())
}

/// Machines that go off boot when they come back.
fn forget_reboots(ledger: &mut Ledger) {
    ledger.members.values_mut().for_each(|record| record.reboot = None);
}

fn without_etcd(name: &str, users: &str) -> String {
    format!(
        "warning: {users} keeps Patroni's state in {name}. While {name} is down, the primary stays the primary only while it reaches all \
         members (`failsafe_mode`), no other can take over, and nothing can be changed\n"
    )
}

async fn switch_off(context: &Context, name: &str) -> Result<Exit, Error> {
    let ledger = load::ledger(&context.home, name)?;
    context.refuse_if_being_destroyed(Some(&ledger))?;
    let brought = load::brought_files(&ledger)?;
    let outcome = run_loop(context, &ledger.spec, &brought, "down", |ledger| {
        ledger.power = Power::Off;
        ledger.downtime = None;
        forget_reboots(ledger);
    });
    conclude(context, outcome.await?)
}
