//! `quorate passwords rotate`: shows the steps, asks, and runs the same loop as `apply`.

use quorate_control::kinds::postgres::dcs;
use quorate_control::verbs::Cluster;
use quorate_control::verbs::passwords::{self, Rotate};
use quorate_core::model::Ledger;

use super::{Context, agree, conclude, refused, run_loop};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output;

pub async fn run(context: &Context, options: cli::RotatePasswords) -> Result<Exit, Error> {
    let ledger = load::ledger(&context.home, &options.name)?;
    if options.dcs {
        passwords::check_dcs(&ledger).map_err(|error| context.error(error))?;
        return rotate_dcs(context, &ledger, options.yes).await;
    }
    let cluster = Cluster { brought: load::brought_files(&ledger)?, spec: ledger.spec.clone() };
    let checked = passwords::check(&ledger, &cluster.brought, &options.users);
    let users = checked.map_err(|error| context.error(error))?;
    let rotate = Rotate::prepare(&context.home, &cluster, users).await.map_err(|error| context.error(error))?;
    context.show_plan(&options.name, &rotate.plan)?;
    agree(context, options.yes, rotate.plan.steps.len())?;
    let change = |ledger: &mut _| rotate.note(ledger);
    let outcome = run_loop(context, &cluster.spec, &cluster.brought, "passwords", change).await?;
    conclude(context, outcome)
}

/// Changing the password would end Patroni's session, and demote the primary. So etcd gets a second user; when every member has
/// confirmed that it uses that one, the first is removed. If re-run, it continues.
async fn rotate_dcs(context: &Context, ledger: &Ledger, yes: bool) -> Result<Exit, Error> {
    let Some(name) = dcs::own_etcd(&ledger.spec) else {
        let what =
            format!("the etcd in which Patroni of {} keeps its state is not managed by quorate", ledger.spec.name);
        let hint = "create a second user there, name it in `postgres.dcs`, and `apply`; then remove the first";
        return Err(Error::refused(what, hint));
    };
    let (cluster, brought) = (ledger.spec.name.as_str(), load::brought_files(ledger)?);
    let etcd = load::ledger(&context.home, &name)?;
    let of_etcd = load::brought_files(&etcd)?;
    output::talk(&format!("Patroni of {cluster} logs in to {name} as another user, and the current one is removed\n"));
    agree(context, yes, 1)?;
    let added = run_loop(context, &etcd.spec, &of_etcd, "passwords", |etcd| dcs::add_login(etcd, cluster)).await?;
    if !added.blocked.is_empty() {
        return Ok(refused(&name, &added.blocked));
    }
    let confirmed = run_loop(context, &ledger.spec, &brought, "passwords", passwords::confirm_dcs).await?;
    if !confirmed.blocked.is_empty() || confirmed.ledger.postgres.rotation.is_some() {
        return conclude(context, confirmed);
    }
    let removed = run_loop(context, &etcd.spec, &of_etcd, "passwords", |etcd| dcs::drop_former_login(etcd, cluster));
    conclude(context, removed.await?)
}
