//! `quorate destroy`: shows what is deleted, asks for the cluster's name, and lets the loop remove it. Data that clients may
//! have written is deleted only where a verified backup holds it that the store has now, or with consent to do without.

use std::fs;
use std::io;

use quorate_control::backup::{self, Confirmed};
use quorate_control::brought::BroughtFiles;
use quorate_control::{controller, status};
use quorate_core::model::{Consent, Ledger};
use quorate_core::spec::Name;

use super::{Context, agree_by_name, consent, refused, run_loop};
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
    let mut worst = Exit::Done;
    for name in &names {
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
    // What the spec brings in files is not needed any more, and may be gone already.
    let brought = BroughtFiles::default();
    let shown = what_goes(&status::status(&context.home, &ledger, &brought).await?);
    output::talk(&shown);
    let waived = options.without_backup || ledger.without_backup.is_some();
    // What the ledger notes was there once.
    let backup = if waived { None } else { Some(backup::confirm(&ledger).await) };
    let words = Words { destroy: consent(shown), without_backup: options.without_backup, backup };
    let plan = controller::plan(&context.home, &ledger.spec, &brought, |ledger| words.write(ledger)).await?;
    if !plan.end.blocked.is_empty() {
        if let Some(why) = words.backup.as_ref().and_then(|backup| backup.why_not.as_ref()) {
            output::talk(&format!("{why}\n"));
        }
        return Ok(Some(refused(&plan.end.blocked)));
    }
    agree_by_name(options.yes, name, "destroy")?;
    let outcome = run_loop(context, &ledger.spec, &brought, "destroy", |ledger| words.write(ledger)).await?;
    if !outcome.blocked.is_empty() {
        return Ok(Some(refused(&outcome.blocked)));
    }
    remove_rest(context, name)
}

struct Words {
    destroy: Consent,
    without_backup: bool,
    /// None where it does not matter.
    backup: Option<Confirmed>,
}

impl Words {
    /// A word about the backup that was given before, in a run that was interrupted, still counts.
    fn write(&self, ledger: &mut Ledger) {
        ledger.destroy = Some(self.destroy.clone());
        if self.without_backup {
            ledger.without_backup = Some(self.destroy.clone());
        }
        if let (Some(found), Some(noted)) = (&self.backup, &mut ledger.backups) {
            noted.verified.clone_from(&found.verified);
        }
    }
}

fn what_goes(status: &status::Status) -> String {
    let mut rows = vec![["MEMBER", "ADDRESS", "DATA"].map(String::from).to_vec()];
    for member in &status.members {
        let address = member.address.clone().unwrap_or_else(|| String::from("-"));
        let data = member.db_size.map_or_else(|| String::from("unknown"), size);
        rows.push(vec![member.member.to_string(), address, data]);
    }
    format!("cluster {} goes, with all its data and keys:\n\n{}\n", status.cluster, table(&rows))
}

/// The machines and the ledger are gone; what is left of the cluster here is its clients' certificates.
fn remove_rest(context: &Context, name: &str) -> Result<Option<Exit>, Error> {
    if name.parse::<Name>().is_err() {
        return Ok(None);
    }
    let machines = context.home.machines().join(name);
    if machines.exists() {
        let what = format!("cluster {name} has no ledger, but machines in {}", machines.display());
        return Err(Error::refused(
            what,
            "bring the ledger back with `quorate ledger import`, then destroy the cluster",
        ));
    }
    let clients = context.home.clients(name);
    match fs::remove_dir_all(&clients) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Error::file("removed", &clients)(e)),
        _ => {}
    }
    let directory = context.home.cluster(name);
    match fs::remove_dir_all(&directory) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(Error::file("removed", &directory))?,
    }
    output::talk(&format!("cluster {name} is gone\n"));
    Ok(Some(Exit::Done))
}
