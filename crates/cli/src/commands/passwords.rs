//! `quorate passwords rotate`: shows the steps, asks, and runs the same loop as `apply`.

use quorate_control::verbs::Cluster;
use quorate_control::verbs::passwords::{self, Rotate};

use super::{Context, agree, conclude, run_loop};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load;

pub async fn run(context: &Context, options: cli::RotatePasswords) -> Result<Exit, Error> {
    let ledger = load::ledger(&context.home, &options.name)?;
    let users = passwords::check(&ledger, &options.users).map_err(|error| context.error(error))?;
    let cluster = Cluster { brought: load::brought_files(&ledger)?, spec: ledger.spec.clone() };
    let rotate = Rotate::prepare(&context.home, &cluster, users).await.map_err(|error| context.error(error))?;
    context.show_plan(&options.name, &rotate.plan)?;
    agree(context, options.yes, rotate.plan.steps.len())?;
    let change = |ledger: &mut _| rotate.note(ledger);
    let outcome = run_loop(context, &cluster.spec, &cluster.brought, "passwords", change).await?;
    conclude(context, outcome)
}
