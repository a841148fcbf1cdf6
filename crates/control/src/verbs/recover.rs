//! `recover`: permanent quorum loss. Shows what can be recovered, and records the confirmation.

use quorate_core::kinds::etcd::safety::requests;
use quorate_core::kinds::etcd::{Formation, RecoveryRequest};
use quorate_core::model::{Ledger, MemberName, Observation};
use quorate_core::planner::{Action, Plan};

use super::{Cluster, VerbError, consent, refuse_if_being_destroyed, refuse_if_off, refuse_unless};
use crate::home::Home;
use crate::run::controller;
use crate::run::error::ControlError;

/// Whether a recovery is possible.
pub fn check(ledger: &Ledger) -> Result<(), VerbError> {
    refuse_if_being_destroyed(Some(ledger))?;
    refuse_if_off(ledger)?;
    let fits = |formation: &Formation| matches!(formation, Formation::Formed { .. } | Formation::Recovering { .. });
    refuse_unless(ledger, fits, "there is nothing to recover")
}

/// The rest of a recovery that was interrupted after the survivor served again: its other members rejoin, within the given
/// consent. None: there is no such recovery, or the survivor was lost too.
pub async fn rest(home: &Home, cluster: &Cluster, ledger: &Ledger) -> Result<Option<Plan>, ControlError> {
    if ledger.etcd.recovered.is_none() {
        return Ok(None);
    }
    let plan = controller::plan(home, &cluster.spec, &cluster.brought, |_| {}).await?;
    Ok(Some(plan).filter(|plan| plan.end.blocked.is_empty()))
}

pub struct Recover {
    request: Request,
    pub plan: Plan,
}

struct Request {
    recovery: RecoveryRequest,
    /// The survivor from which a recovery continues that has begun.
    continues: Option<MemberName>,
    now: bool,
}

impl Recover {
    /// With `now`, unreachable machines count as dead at once.
    pub async fn prepare(
        home: &Home,
        cluster: &Cluster,
        (ledger, seen): (&Ledger, &Observation),
        shown: String,
        now: bool,
    ) -> Result<Self, ControlError> {
        let recovery = RecoveryRequest { consent: consent(shown), of: requests::lost_majority(ledger, seen) };
        let has_machine = |from: &MemberName| seen.machines.get().is_some_and(|machines| machines.contains_key(from));
        let continues = match &ledger.etcd.formation {
            Formation::Recovering { from, .. } => Some(from.clone()).filter(has_machine),
            _ => None,
        };
        let request = Request { recovery, continues, now };
        let change = |ledger: &mut Ledger| request.note(ledger);
        let plan = controller::plan(home, &cluster.spec, &cluster.brought, change).await?;
        Ok(Recover { request, plan })
    }

    /// Whether the plan results in a working cluster.
    pub fn succeeds(&self) -> bool {
        let leads = |action: &Action| matches!(action, Action::RecordRecovery { .. } | Action::RecordFormed { .. });
        self.plan.end.blocked.is_empty() || self.plan.steps.iter().any(|step| leads(&step.action))
    }

    pub fn note(&self, ledger: &mut Ledger) {
        self.request.note(ledger);
    }
}

impl Request {
    /// The confirmation under which a recovery has begun is kept while its survivor is there.
    fn note(&self, ledger: &mut Ledger) {
        super::add(&mut ledger.without_grace, &self.now.then(|| self.recovery.consent.clone()));
        let begun = matches!(&ledger.etcd.formation, Formation::Recovering { from, .. } if self.continues.as_ref() == Some(from));
        if !begun || ledger.etcd.recovery.is_none() {
            ledger.etcd.recovery = Some(self.recovery.clone());
        }
    }
}
