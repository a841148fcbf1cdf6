//! `destroy`: the conditions for deleting a cluster, the ledger entry, and what is left afterwards.

use std::fs;
use std::io;

use quorate_core::model::{Consent, Ledger};
use quorate_core::planner::Plan;
use quorate_core::spec::{Kind, Name};
use quorate_providers::machines_without_ledger;

use super::{VerbError, consent};
use crate::backup::Confirmed;
use crate::brought::BroughtFiles;
use crate::home::Home;
use crate::kinds::etcd;
use crate::kinds::postgres::{self, dcs};
use crate::run::controller;
use crate::run::error::ControlError;

pub struct Destroy {
    request: Request,
    pub plan: Plan,
}

struct Request {
    confirmed: Consent,
    without_backup: bool,
    /// None if it does not matter.
    backup: Option<Confirmed>,
}

impl Destroy {
    /// Data that clients may have written is deleted only if the store has a verified backup of it now, or with consent. The
    /// ledger only remembers what was there once. Files that the spec names are not needed any more.
    pub async fn prepare(
        home: &Home,
        ledger: &Ledger,
        shown: String,
        without_backup: bool,
    ) -> Result<Self, ControlError> {
        refuse_if_used(home, ledger)?;
        let waived = without_backup || ledger.without_backup.is_some();
        let backup = if waived { None } else { Some(confirm_backup(ledger).await) };
        let request = Request { confirmed: consent(shown), without_backup, backup };
        let brought = BroughtFiles::default();
        let plan = controller::plan(home, &ledger.spec, &brought, |ledger| request.note(ledger)).await?;
        Ok(Destroy { request, plan })
    }

    /// Why no backup counts, if that matters.
    pub fn why_no_backup(&self) -> Option<&str> {
        self.request.backup.as_ref()?.why_not.as_deref()
    }

    pub fn note(&self, ledger: &mut Ledger) {
        self.request.note(ledger);
    }
}

impl Request {
    /// Consent to do without a backup that was given before, in a run that was interrupted, still counts.
    fn note(&self, ledger: &mut Ledger) {
        ledger.destroy = Some(self.confirmed.clone());
        if self.without_backup {
            ledger.without_backup = Some(self.confirmed.clone());
        }
        if let (Some(found), Some(noted)) = (&self.backup, &mut ledger.backups) {
            noted.verified.clone_from(&found.verified);
        }
    }
}

async fn confirm_backup(ledger: &Ledger) -> Confirmed {
    match ledger.spec.kind {
        Kind::Etcd => etcd::backup::confirm(ledger).await,
        Kind::Postgres => postgres::backup::confirm(ledger).await,
    }
}

/// Patroni without its etcd cannot change the primary.
fn refuse_if_used(home: &Home, ledger: &Ledger) -> Result<(), ControlError> {
    let users = dcs::users_of(home, ledger);
    if users.is_empty() {
        return Ok(());
    }
    Err(ControlError::UsedBy { cluster: ledger.spec.name.to_string(), users: users.join(", ") })
}

/// Removes what is left here of a cluster whose machines and ledger are gone. Returns whether there was anything.
pub fn remove_rest(home: &Home, name: &str) -> Result<bool, VerbError> {
    if name.parse::<Name>().is_err() {
        return Ok(false);
    }
    if let Some(machines) = machines_without_ledger(&home.directories(), name) {
        let what = format!("cluster {name} has no ledger, but machines in {}", machines.display());
        let hint = String::from("bring the ledger back with `quorate ledger import`, then destroy the cluster");
        return Err(VerbError::Refused { what, hint });
    }
    let remove = |path: std::path::PathBuf| match fs::remove_dir_all(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(VerbError::File { path, source }),
        Ok(()) => Ok(true),
    };
    remove(home.clients(name))?;
    remove(home.cluster(name))
}
