//! `quorate switchover`: shows which member takes over, asks, and runs the same loop as `apply`.

use quorate_control::verbs::Cluster;
use quorate_control::verbs::switchover::{self, Switchover};

use super::{Context, agree_to_request, conclude, refused, run_loop};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load;

pub async fn run(context: &Context, options: cli::Switchover) -> Result<Exit, Error> {
    let ledger = load::ledger(&context.home, &options.name)?;
    let to = switchover::check(&ledger, options.to.as_deref()).map_err(|error| context.error(error))?;
    let cluster = Cluster { brought: load::brought_files(&ledger)?, spec: ledger.spec.clone() };
    let prepared = Switchover::prepare(&context.home, &cluster, &ledger, to, options.allow_downtime).await;
    let switchover = prepared.map_err(|error| context.error(error))?;
    if !switchover.refused.is_empty() {
        return Ok(refused(&options.name, &switchover.refused));
    }
    context.show_plan(&options.name, &switchover.plan)?;
    agree_to_request(context, options.yes, switchover.plan.steps.len())?;
    let change = |ledger: &mut _| switchover.note(ledger);
    let outcome = run_loop(context, &cluster.spec, &cluster.brought, "switchover", change).await?;
    conclude(context, outcome)
}
