//! `quorate down` and `quorate start`: record the request in the ledger and run the same loop as `apply`. PostgreSQL is not started without
//! its etcd.

use quorate_control::kinds::postgres::dcs;
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
    switch_on(context, with_etcd_that_is_off(context, ledger)?, "start", forget_reboots).await
}

/// A known cluster, and the etcd cluster that Patroni of it needs if that is off.
pub(super) fn with_etcd_that_is_off(context: &Context, ledger: Ledger) -> Result<Vec<Cluster>, Error> {
    let etcd = dcs::own_etcd(&ledger.spec).map(|name| load::remembered(&context.home, &name)).transpose()?.flatten();
    let etcd = etcd.filter(|etcd| etcd.power == Power::Off);
    let known = |ledger: Ledger| Ok(Cluster { brought: load::brought_files(&ledger)?, spec: ledger.spec });
    etcd.into_iter().chain([ledger]).map(known).collect()
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
