//! `quorate destroy`: shows what is deleted, asks for the cluster's name, and runs the loop. Data that clients may have
//! written is deleted only if a verified backup in the store covers it, or with consent.

use quorate_control::brought::BroughtFiles;
use quorate_control::kinds::postgres::dcs;
use quorate_control::kinds::status::Status;
use quorate_control::verbs::destroy::{self, Destroy};
use quorate_control::verbs::status::status;
use quorate_core::model::Ledger;
use quorate_core::spec::{ClusterSpec, Kind};

use super::{Context, agree_by_name, refused, run_loop};
use crate::cli;
use crate::error::Error;
use crate::exit::Exit;
use crate::load;
use crate::output::{self, size, table};

pub async fn run(context: &Context, options: cli::Destroy) -> Result<Exit, Error> {
    let Some(names) = load::names_in_file(&context.home, &options.target)? else {
        return match destroy(context, &options.target, &options).await? {
            Some(exit) => Ok(exit),
            None => Err(load::unknown(&context.home, &options.target)),
        };
    };
    // An etcd cluster is deleted after the PostgreSQL clusters that use it.
    let is_etcd = |name: &String| matches!(load::remembered(&context.home, name), Ok(Some(ledger)) if ledger.spec.kind == Kind::Etcd);
    let (etcd, others): (Vec<String>, Vec<String>) = names.into_iter().partition(is_etcd);
    let mut worst = Exit::Done;
    for name in others.iter().chain(&etcd) {
        let exit = match destroy(context, name, &options).await {
            Ok(Some(exit)) => exit,
            Ok(None) => {
                output::talk(&format!("cluster {name} does not exist\n"));
                Exit::Done
            }
            Err(error) => {
                output::talk(&error.render(Some(name)));
                error.exit()
            }
        };
        worst = worst.max(exit);
    }
    Ok(worst)
}

/// None: there is no such cluster.
async fn destroy(context: &Context, name: &str, options: &cli::Destroy) -> Result<Option<Exit>, Error> {
    let Some(ledger) = load::remembered(&context.home, name)? else { return remove_rest(context, name) };
    let brought = BroughtFiles::default();
    let shown = deletion_summary(&status(&context.home, &ledger, &brought).await?);
    output::talk(&shown);
    let destroy = Destroy::prepare(&context.home, &ledger, shown, options.without_backup).await?;
    if !destroy.plan.end.blocked.is_empty() {
        if let Some(why) = destroy.why_no_backup() {
            output::talk(&format!("{why}\n"));
        }
        return Ok(Some(refused(name, &destroy.plan.end.blocked)));
    }
    agree_by_name(options.yes, name, "destroy")?;
    let outcome = run_loop(context, &ledger.spec, &brought, "destroy", |ledger| destroy.note(ledger)).await?;
    if !outcome.blocked.is_empty() {
        return Ok(Some(refused(name, &outcome.blocked)));
    }
    leave_etcd(context, &ledger.spec).await?;
    let exit = remove_rest(context, name)?;
    output::talk(&kept_backups(&ledger));
    Ok(exit)
}

/// The key that signs backups was only in the ledger, and a restore needs its public half.
fn kept_backups(ledger: &Ledger) -> String {
    let named = ledger.spec.backup.as_ref().and_then(|backup| backup.signed_by.as_ref());
    match &ledger.backup_signing {
        Some(signing) if named.is_none() => format!(
            "its backups stay, signed by {0}\n  hint: keep this key: a restore needs it as `--signed-by {0}`, or as \
             `backup.signed_by` in the spec\n",
            signing.public
        ),
        _ => String::new(),
    }
}

/// Removes a PostgreSQL cluster's data from its etcd: Patroni's keys, and the user that it logged in as.
async fn leave_etcd(context: &Context, spec: &ClusterSpec) -> Result<(), Error> {
    if let Err(why) = dcs::clear(&context.home, spec).await {
        output::talk(&format!("warning: {why}\n"));
    }
    let Some(etcd) = dcs::own_etcd(spec) else { return Ok(()) };
    let Some(known) = load::remembered(&context.home, &etcd)? else { return Ok(()) };
    let brought = load::brought_files(&known)?;
    output::talk(&format!("removing the user of Patroni from etcd cluster {etcd}\n"));
    let remove = |ledger: &mut Ledger| drop(ledger.etcd.used_by.remove(spec.name.as_str()));
    let outcome = run_loop(context, &known.spec, &brought, "destroy", remove).await?;
    if !outcome.blocked.is_empty() {
        refused(&etcd, &outcome.blocked);
    }
    Ok(())
}

fn deletion_summary(status: &Status) -> String {
    let mut rows = vec![["MEMBER", "ADDRESS", "DATA"].map(String::from).to_vec()];
    for member in &status.members {
        let address = member.address.clone().unwrap_or_else(|| String::from("-"));
        let data = member.db_size.map_or_else(|| String::from("unknown"), size);
        rows.push(vec![member.member.to_string(), address, data]);
    }
    format!("this will delete cluster {} with all data and keys:\n\n{}", status.cluster, table(&rows))
}

/// The machines and the ledger are gone; what is left of the cluster here is its clients' certificates.
fn remove_rest(context: &Context, name: &str) -> Result<Option<Exit>, Error> {
    match destroy::remove_rest(&context.home, name).map_err(|error| context.error(error))? {
        false => Ok(None),
        true => {
            output::talk(&format!("cluster {name} is deleted\n"));
            Ok(Some(Exit::Done))
        }
    }
}
