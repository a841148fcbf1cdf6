//! The way back from a major version upgrade: restores all members from the previous data, which one member keeps.

use quorate_core::kinds::postgres::{Previous, RestoreWish, parameters};
use quorate_core::model::{Consent, Ledger};
use quorate_core::planner::Plan;
use quorate_core::spec::ClusterSpec;

use crate::home::Home;
use crate::run::controller;
use crate::run::error::ControlError;
use crate::verbs::{Cluster, VerbError, consent, refuse_if_being_destroyed, refuse_if_off};

/// The data to return to, and the spec for it.
pub fn way_back(ledger: &Ledger) -> Result<(Previous, ClusterSpec), VerbError> {
    let refused = |what: String, hint: &str| VerbError::Refused { what, hint: hint.to_owned() };
    let name = &ledger.spec.name;
    let previous = ledger.postgres.previous.clone().ok_or_else(|| {
        refused(
            format!("cluster {name} keeps no data from before an upgrade"),
            "restore a backup instead; `quorate backup list` lists them",
        )
    })?;
    let mut spec = ledger.spec.clone();
    if let (Some(postgres), Ok(version)) = (&mut spec.postgres, previous.version.parse()) {
        postgres.version = version;
        let unknown =
            postgres.parameters.iter().find(|(name, value)| parameters::wrong(version, name, &value.0).is_some());
        if let Some((parameter, _)) = unknown {
            return Err(refused(
                format!("parameter {parameter} of the spec is not one of PostgreSQL {version}"),
                "remove it from the spec and apply that first",
            ));
        }
    }
    Ok((previous, spec))
}

pub struct Request {
    confirmed: Consent,
    token: String,
    version: String,
}

impl Request {
    pub fn new(name: &str, previous: &Previous, shown: String) -> Self {
        let token = format!("{name}-back-{}", quorate_pki::random_hex(4));
        Request { confirmed: consent(shown), token, version: previous.version.clone() }
    }

    pub async fn plan(&self, home: &Home, cluster: &Cluster) -> Result<Plan, ControlError> {
        controller::plan(home, &cluster.spec, &cluster.brought, |ledger: &mut Ledger| self.note(ledger)).await
    }

    pub fn note(&self, ledger: &mut Ledger) {
        ledger.postgres.restore = Some(RestoreWish {
            consent: self.confirmed.clone(),
            token: self.token.clone(),
            target: None,
            source: format!("the data of PostgreSQL {} from before the upgrade", self.version),
        });
    }
}

/// The operator's confirmation that replaced data of a restore or an upgrade is deleted.
pub struct Discard {
    confirmed: Consent,
    pub plan: Plan,
}

impl Discard {
    pub async fn prepare(home: &Home, cluster: &Cluster, ledger: &Ledger) -> Result<Self, VerbError> {
        refuse_if_being_destroyed(Some(ledger))?;
        refuse_if_off(ledger)?;
        let confirmed = consent(String::from("delete the replaced data of all members"));
        let note = |ledger: &mut Ledger| ledger.postgres.discard = Some(confirmed.clone());
        let plan = controller::plan(home, &cluster.spec, &cluster.brought, note).await?;
        Ok(Discard { confirmed, plan })
    }

    pub fn note(&self, ledger: &mut Ledger) {
        ledger.postgres.discard = Some(self.confirmed.clone());
    }
}
