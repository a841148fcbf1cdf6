//! `switchover`: another member of a PostgreSQL cluster becomes the primary. Patroni does it; quorate decides whether to ask it.

use quorate_core::kinds::postgres::{Role, SwitchoverRequest};
use quorate_core::model::{Consent, Ledger, MemberName, Observation};
use quorate_core::planner::{Plan, UnsafeBecause};
use quorate_core::spec::Kind;

use super::{
    Cluster, VerbError, consent, member, new_refusals, observe, refuse_if_being_destroyed, refuse_if_off,
    refuse_unless_formed,
};
use crate::home::Home;
use crate::run::controller;
use crate::run::error::ControlError;

pub struct Switchover {
    request: Request,
    pub plan: Plan,
    /// What is refused only because of the switchover.
    pub refused: Vec<UnsafeBecause>,
}

/// The member that will become the primary, if one is named and the cluster can switch over now.
pub fn check(ledger: &Ledger, to: Option<&str>) -> Result<Option<MemberName>, VerbError> {
    refuse_if_being_destroyed(Some(ledger))?;
    let name = &ledger.spec.name;
    if ledger.spec.kind != Kind::Postgres {
        let what = format!("cluster {name} is an etcd cluster, which has no primary to switch over");
        return Err(VerbError::Refused { what, hint: String::from("name a cluster of PostgreSQL") });
    }
    let to = to.map(|to| member(ledger, to)).transpose()?;
    refuse_if_off(ledger)?;
    refuse_unless_formed(ledger, "it has no primary")?;
    Ok(to)
}

impl Switchover {
    pub async fn prepare(
        home: &Home,
        cluster: &Cluster,
        ledger: &Ledger,
        to: Option<MemberName>,
        allow_downtime: bool,
    ) -> Result<Self, VerbError> {
        let (from, timeline) = primary(ledger, &observe(home, ledger).await?, to.as_ref())?;
        let without = |ledger: &mut Ledger| ledger.postgres.switchover = None;
        let anyway = controller::plan(home, &cluster.spec, &cluster.brought, without).await?;
        let switchover = SwitchoverRequest { consent: consent(String::new()), from, timeline, to };
        let mut request = Request { switchover, downtime: None };
        if allow_downtime {
            let without = request.plan(home, cluster).await?;
            let shown: Vec<String> = without.end.blocked.iter().map(ToString::to_string).collect();
            request.downtime = Some(consent(shown.join("; ")));
        }
        let plan = request.plan(home, cluster).await?;
        let shown: Vec<String> = plan.steps.iter().map(|step| step.action.to_string()).collect();
        request.switchover.consent.shown = shown.join("; ");
        let refused = new_refusals(&anyway, &plan);
        Ok(Switchover { request, plan, refused })
    }

    pub fn note(&self, ledger: &mut Ledger) {
        self.request.note(ledger);
    }
}

/// The current primary, and its timeline.
fn primary(
    ledger: &Ledger,
    seen: &Observation,
    to: Option<&MemberName>,
) -> Result<(MemberName, Option<u64>), VerbError> {
    let refused = |what: String, hint: String| Err(VerbError::Refused { what, hint });
    let name = &ledger.spec.name;
    let status = |member: &MemberName| seen.facts(member)?.postgres.as_ref()?.status.as_ref();
    let leads = |member: &&MemberName| status(member).is_some_and(|s| s.role == Role::Primary && s.state == "running");
    let leading: Vec<&MemberName> = seen.agents.keys().filter(leads).collect();
    match leading[..] {
        [primary] if Some(primary) == to => {
            refused(format!("{primary} is the primary of {name} already"), String::from("nothing has to be done"))
        }
        [primary] => Ok((primary.clone(), status(primary).and_then(|status| status.timeline))),
        [] => {
            let hint = format!("`quorate status {name}` shows why");
            refused(format!("no member of {name} says that it is the primary"), hint)
        }
        _ => {
            let names: Vec<String> = leading.iter().map(ToString::to_string).collect();
            let hint = format!("wait until Patroni has demoted all but one; `quorate status {name}` shows them");
            refused(format!("more than one member of {name} says that it is the primary: {}", names.join(", ")), hint)
        }
    }
}

struct Request {
    switchover: SwitchoverRequest,
    downtime: Option<Consent>,
}

impl Request {
    fn note(&self, ledger: &mut Ledger) {
        super::add(&mut ledger.downtime, &self.downtime);
        ledger.postgres.switchover = Some(self.switchover.clone());
    }

    async fn plan(&self, home: &Home, cluster: &Cluster) -> Result<Plan, ControlError> {
        controller::plan(home, &cluster.spec, &cluster.brought, |ledger| self.note(ledger)).await
    }
}
