//! `quorate down` and `quorate start`: record the request in the ledger and run the same loop as `apply`.

use quorate_control::kinds::postgres::dcs;
use quorate_core::model::Power;

use super::{Context, conclude, run_loop};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
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
    switch(context, name, "down", Power::Off).await
}

pub async fn start(context: &Context, named: cli::Named) -> Result<Exit, Error> {
    switch(context, &named.name, "start", Power::On).await
}

fn without_etcd(name: &str, users: &str) -> String {
    format!(
        "warning: {users} keeps Patroni's state in {name}. While {name} is down, the primary stays the primary only while it reaches all \
         members (`failsafe_mode`), no other can take over, and nothing can be changed\n"
    )
}

async fn switch(context: &Context, name: &str, verb: &str, power: Power) -> Result<Exit, Error> {
    let ledger = load::ledger(&context.home, name)?;
    context.refuse_if_being_destroyed(Some(&ledger))?;
    let brought = load::brought_files(&ledger)?;
    let outcome = run_loop(context, &ledger.spec, &brought, verb, |ledger| {
        ledger.power = power;
        ledger.downtime = None;
        // Machines that are switched off boot again later.
        ledger.members.values_mut().for_each(|record| record.reboot = None);
    });
    conclude(context, outcome.await?)
}
