//! `passwords rotate`: new passwords for the users of a PostgreSQL cluster, quorate's own and declared ones.

use std::collections::BTreeMap;

use quorate_core::kinds::postgres::{REPLICATOR, REWINDER, Rotation, SUPERUSER};
use quorate_core::model::Ledger;
use quorate_core::planner::Plan;
use quorate_core::spec::Kind;

use super::{Cluster, VerbError, consent, refuse_if_being_destroyed, refuse_if_off, refuse_unless_formed};
use crate::brought::BroughtFiles;
use crate::home::Home;
use crate::kinds::postgres::passwords::new;
use crate::run::controller;

pub struct Rotate {
    rotation: Rotation,
    pub plan: Plan,
}

/// The users whose passwords change, if they can change now.
pub fn check(ledger: &Ledger, brought: &BroughtFiles, users: &[String]) -> Result<Vec<String>, VerbError> {
    check_cluster(ledger)?;
    refuse_if_changing(ledger)?;
    let name = &ledger.spec.name;
    let declared = ledger.spec.postgres.iter().flat_map(|postgres| &postgres.users).map(|user| user.name.to_string());
    let known: Vec<String> = [SUPERUSER, REPLICATOR, REWINDER].map(str::to_owned).into_iter().chain(declared).collect();
    if let Some(unknown) = users.iter().find(|user| !known.contains(user)) {
        let hint = format!("users are {}", known.join(", "));
        return Err(VerbError::Refused { what: format!("cluster {name} has no user `{unknown}`"), hint });
    }
    let in_force = |user: &str| ledger.postgres.passwords.as_ref().and_then(|all| all.of(user));
    let is_unchanged = |user: &String| brought.passwords.get(user).is_some_and(|it| in_force(user) == Some(it));
    let mut asked = users.to_vec();
    if users.is_empty() {
        asked = known.into_iter().filter(|user| !is_unchanged(user)).collect();
    }
    match asked.iter().find(|user| is_unchanged(user)) {
        None if !asked.is_empty() => Ok(asked),
        unchanged => Err(VerbError::Refused {
            what: match unchanged {
                Some(user) => format!("the file of {user} holds the password that is in force"),
                None => String::from("the files of all users hold the passwords that are in force"),
            },
            hint: String::from("write a new password into the file, and re-run"),
        }),
    }
}

/// Whether the password for the DCS can change now. An interrupted change of it is continued.
pub fn check_dcs(ledger: &Ledger) -> Result<(), VerbError> {
    check_cluster(ledger)?;
    match &ledger.postgres.rotation {
        Some(rotation) if rotation.dcs => Ok(()),
        _ => refuse_if_changing(ledger),
    }
}

fn refuse_if_changing(ledger: &Ledger) -> Result<(), VerbError> {
    let name = &ledger.spec.name;
    match ledger.postgres.rotation {
        Some(_) => Err(VerbError::Refused {
            what: format!("passwords of {name} are being changed already"),
            hint: format!("`quorate apply {name}` completes it, `quorate requests {name}` shows it"),
        }),
        None => Ok(()),
    }
}

fn check_cluster(ledger: &Ledger) -> Result<(), VerbError> {
    refuse_if_being_destroyed(Some(ledger))?;
    let name = &ledger.spec.name;
    if ledger.spec.kind != Kind::Postgres {
        let hint = String::from("change the `password_file` of its users, and run `quorate apply`");
        let what = format!("cluster {name} is an etcd cluster, whose passwords come from files");
        return Err(VerbError::Refused { what, hint });
    }
    refuse_if_off(ledger)?;
    refuse_unless_formed(ledger, "it has no passwords")
}

/// Every member is to confirm the user that its configuration has for the DCS.
pub fn confirm_dcs(ledger: &mut Ledger) {
    let rotation = || Rotation::of_dcs(consent(String::from("the user for etcd")), quorate_pki::random_hex(8));
    ledger.postgres.rotation.get_or_insert_with(rotation);
}

impl Rotate {
    pub async fn prepare(home: &Home, cluster: &Cluster, users: Vec<String>) -> Result<Self, VerbError> {
        let next: BTreeMap<_, _> = users.into_iter().map(|user| (user.clone(), new(&cluster.brought, &user))).collect();
        let id = quorate_pki::random_hex(8);
        let mut rotation = Rotation::new(consent(String::new()), id, next);
        let note = |ledger: &mut Ledger| ledger.postgres.rotation = Some(rotation.clone());
        let plan = controller::plan(home, &cluster.spec, &cluster.brought, note).await?;
        let steps: Vec<String> = plan.steps.iter().map(|step| step.action.to_string()).collect();
        rotation.consent.shown = steps.join("; ");
        Ok(Rotate { rotation, plan })
    }

    /// One that was requested meanwhile is completed instead.
    pub fn note(&self, ledger: &mut Ledger) {
        ledger.postgres.rotation.get_or_insert_with(|| self.rotation.clone());
    }
}
