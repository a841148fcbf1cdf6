//! `quorate discard`: deletes what a restore or an upgrade has replaced. Afterwards there is no way back.

use quorate_control::kinds::postgres::upgrade::Discard;
use quorate_control::verbs::Cluster;
use quorate_core::spec::Kind;

use super::{Context, agree_by_name, conclude, run_loop};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;

pub async fn run(context: &Context, options: cli::Discard) -> Result<Exit, Error> {
    let (name, ledger) = (&options.name, load::ledger(&context.home, &options.name)?);
    if ledger.spec.kind != Kind::Postgres {
        let what = format!("cluster {name} is an etcd cluster, which keeps no replaced data");
        return Err(Error::refused(what, "name a cluster of PostgreSQL"));
    }
    let cluster = Cluster { brought: load::brought_files(&ledger)?, spec: ledger.spec.clone() };
    let discard = Discard::prepare(&context.home, &cluster, &ledger).await.map_err(|error| context.error(error))?;
    if let Some(previous) = &ledger.postgres.previous {
        output::talk(&format!("afterwards there is no way back to PostgreSQL {}\n", previous.version));
    }
    context.show_plan(name, &discard.plan)?;
    agree_by_name(options.yes, name, "delete the replaced data of")?;
    let change = |ledger: &mut _| discard.note(ledger);
    let outcome = run_loop(context, &cluster.spec, &cluster.brought, "discard", change).await?;
    conclude(context, outcome)
}
