//! `quorate replace`: shows the steps that move a member to another machine, asks, and runs the same loop as `apply`.

use quorate_control::verbs::Cluster;
use quorate_control::verbs::replace::{self, Options, Replace};

use super::{Context, agree, conclude, refused, run_loop};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;

pub async fn run(context: &Context, options: cli::Replace) -> Result<Exit, Error> {
    let ledger = load::ledger(&context.home, &options.name)?;
    let member = replace::check(&ledger, &options.member).map_err(|error| context.error(error))?;
    let cluster = Cluster { brought: load::brought_files(&ledger)?, spec: ledger.spec.clone() };
    let how = Options { new_data: options.new_data, allow_downtime: options.allow_downtime };
    let replace = Replace::prepare(&context.home, &cluster, &ledger, &member, how).await?;
    if replace.goes_on() {
        output::talk(&format!("{member} is being replaced already; continuing\n"));
    }
    if !replace.refused.is_empty() {
        return Ok(refused(&options.name, &replace.refused));
    }
    context.show_plan(&options.name, &replace.plan)?;
    // It would stay in the ledger, and a later run would carry it out without asking.
    if !replace.goes_on() && replace.plan.steps.is_empty() {
        output::talk(
            "\nnot done: the replacement cannot begin now, so it is not requested; re-run the command later\n",
        );
        return Ok(Exit::Blocked);
    }
    agree(context, options.yes, replace.plan.steps.len())?;
    let change = |ledger: &mut _| replace.note(ledger);
    let outcome = run_loop(context, &cluster.spec, &cluster.brought, "replace", change).await?;
    conclude(context, outcome)
}
