//! `apply`: what the operator confirmed beyond the spec. Each confirmation is recorded with what would be refused without it.

use quorate_core::model::{Consent, Ledger, Observation};
use quorate_core::planner::{Plan, remember};

use super::{Cluster, consent, observe};
use crate::home::Home;
use crate::run::controller;
use crate::run::error::ControlError;

/// What the operator allows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed {
    pub downtime: bool,
    /// Machines that are not seen count as dead at once.
    pub now: bool,
    pub older_ledger: bool,
}

/// The ledger change when the run begins.
#[derive(Debug, Default)]
pub struct Apply {
    downtime: Option<Consent>,
    without_grace: Option<Consent>,
    spec_file: Option<String>,
    /// What the agents remember, when the ledger is to continue above it.
    above: Option<(Observation, Consent)>,
}

impl Apply {
    /// `spec_file` is where the spec comes from, if it is a file.
    pub async fn prepare(
        home: &Home,
        cluster: &Cluster,
        known: Option<&Ledger>,
        spec_file: Option<String>,
        allowed: Allowed,
    ) -> Result<Self, ControlError> {
        let mut apply = Apply { spec_file, ..Apply::default() };
        if let (true, Some(ledger)) = (allowed.older_ledger, known) {
            let seen = observe(home, ledger).await?;
            apply.above = Some((seen, consent(apply.refusals(home, cluster).await?)));
        }
        if allowed.now {
            apply.without_grace = Some(consent(apply.refusals(home, cluster).await?));
        }
        if allowed.downtime {
            apply.downtime = Some(consent(apply.refusals(home, cluster).await?));
        }
        Ok(apply)
    }

    /// The same for a plan without confirmation.
    pub fn assumed(allowed: Allowed) -> Self {
        let consent = |given: bool| given.then(|| consent(String::new()));
        Apply { downtime: consent(allowed.downtime), without_grace: consent(allowed.now), ..Apply::default() }
    }

    /// What is refused without the consent that is about to be given.
    async fn refusals(&self, home: &Home, cluster: &Cluster) -> Result<String, ControlError> {
        let before = self.plan(home, cluster).await?;
        let shown: Vec<String> = before.end.blocked.iter().map(ToString::to_string).collect();
        Ok(shown.join("; "))
    }

    pub async fn plan(&self, home: &Home, cluster: &Cluster) -> Result<Plan, ControlError> {
        controller::plan(home, &cluster.spec, &cluster.brought, |ledger| {
            self.note(ledger);
            cluster.register_users(home, ledger);
        })
        .await
    }

    pub fn note(&self, ledger: &mut Ledger) {
        super::add(&mut ledger.downtime, &self.downtime);
        super::add(&mut ledger.without_grace, &self.without_grace);
        if self.spec_file.is_some() {
            ledger.spec_file.clone_from(&self.spec_file);
        }
        if let Some((seen, consent)) = &self.above {
            remember::resume_above(ledger, seen);
            ledger.older_accepted = Some(consent.clone());
        }
    }
}
