//! `quorate reboot`: shows which machines reboot in which order, asks, and runs the same loop as `apply`.

use quorate_control::Outcome;
use quorate_control::verbs::Cluster;
use quorate_control::verbs::reboot::{self, Options, Reboot, Rebooted};
use serde::Serialize;

use super::{Context, agree_to_request, conclude, refused, run_loop};
use crate::cli::{self, Format};
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;

#[derive(Serialize)]
struct Ending<'a> {
    cluster: &'a str,
    machines: Vec<Rebooted>,
}

pub async fn run(context: &Context, options: cli::Reboot) -> Result<Exit, Error> {
    let ledger = load::ledger(&context.home, &options.name)?;
    let members = reboot::check(&ledger, &options.members).map_err(|error| context.error(error))?;
    let cluster = Cluster { brought: load::brought_files(&ledger)?, spec: ledger.spec.clone() };
    let how = Options { upgrade_packages: options.upgrade_packages, allow_downtime: options.allow_downtime };
    let reboot = Reboot::prepare(&context.home, &cluster, &ledger, members, how).await?;
    if !reboot.refused.is_empty() {
        return Ok(refused(&options.name, &reboot.refused));
    }
    let json = options.output.format == Format::Json;
    if json && !options.yes {
        let hint = "pass --yes, or run it without --output json to see the plan first";
        return Err(Error::refused("there is no confirmation prompt with JSON output", hint));
    }
    if !json {
        context.show_plan(&options.name, &reboot.plan)?;
    }
    agree_to_request(context, options.yes, reboot.plan.steps.len())?;
    let change = |ledger: &mut _| reboot.note(ledger);
    let outcome = run_loop(context, &cluster.spec, &cluster.brought, "reboot", change).await?;
    let machines = reboot.outcome(&outcome.seen);
    if json {
        return print(&options.name, machines, outcome);
    }
    machines.iter().for_each(|machine| output::talk(&line(machine)));
    conclude(context, outcome)
}

fn print(cluster: &str, machines: Vec<Rebooted>, outcome: Outcome) -> Result<Exit, Error> {
    output::print_json(&Ending { cluster, machines })?;
    Ok(if outcome.blocked.is_empty() { Exit::Done } else { refused(cluster, &outcome.blocked) })
}

fn line(Rebooted { member, rebooted, packages }: &Rebooted) -> String {
    let what = match rebooted {
        Some(true) => "has rebooted",
        Some(false) => "was not rebooted",
        None => "does not answer",
    };
    match packages {
        Some(packages) => format!("the machine of {member} {what}; packages: {packages}\n"),
        None => format!("the machine of {member} {what}\n"),
    }
}
