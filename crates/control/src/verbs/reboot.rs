//! `reboot`: reboots machines one at a time, optionally after upgrading their packages. A reboot that has begun continues; one
//! that could not be completed does not begin.

use std::collections::BTreeMap;

use quorate_core::model::{Consent, Ledger, MemberName, Observation, PackagesSeen, Reboot as Record};
use quorate_core::planner::{Plan, UnsafeBecause};
use quorate_core::providers::MachineKind;
use serde::Serialize;

use super::{
    Cluster, VerbError, consent, member, new_refusals, observe, refuse_if_being_destroyed, refuse_if_off,
    refuse_unless_formed,
};
use crate::home::Home;
use crate::run::controller;
use crate::run::error::ControlError;

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub upgrade_packages: bool,
    pub allow_downtime: bool,
}

pub struct Reboot {
    request: Request,
    /// In which boot each machine was that answered.
    boots: BTreeMap<MemberName, Option<String>>,
    pub plan: Plan,
    /// What is refused only because of the reboot.
    pub refused: Vec<UnsafeBecause>,
}

/// The result for a machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Rebooted {
    pub member: MemberName,
    /// Absent if it does not answer.
    pub rebooted: Option<bool>,
    /// The package manager's summary.
    pub packages: Option<String>,
}

/// The members of these names, or all, if their machines can reboot now.
pub fn check(ledger: &Ledger, names: &[String]) -> Result<Vec<MemberName>, VerbError> {
    refuse_if_being_destroyed(Some(ledger))?;
    let members = match names {
        [] => ledger.spec.machines().map(|member| member.name.as_str().into()).collect(),
        names => names.iter().map(|name| member(ledger, name)).collect::<Result<Vec<_>, _>>()?,
    };
    if ledger.spec.provider.settings().machines() == MachineKind::Process {
        let name = &ledger.spec.name;
        let what = format!(
            "the members of cluster {name} are processes on this machine (provider {}), so none of them has a machine to reboot",
            ledger.spec.provider.settings().name()
        );
        let hint = String::from(
            "reboot this machine yourself; `quorate down` before and `quorate start` after it stop and start the members",
        );
        return Err(VerbError::Refused { what, hint });
    }
    refuse_if_off(ledger)?;
    refuse_unless_formed(ledger, "none of its machines can be rebooted")?;
    Ok(members)
}

impl Reboot {
    pub async fn prepare(
        home: &Home,
        cluster: &Cluster,
        ledger: &Ledger,
        members: Vec<MemberName>,
        options: Options,
    ) -> Result<Self, ControlError> {
        let boots = boots(&observe(home, ledger).await?, &members);
        let without = |ledger: &mut Ledger| ledger.members.values_mut().for_each(|record| record.reboot = None);
        let anyway = controller::plan(home, &cluster.spec, &cluster.brought, without).await?;
        let record =
            Record { consent: consent(String::new()), upgrade_packages: options.upgrade_packages, ordered: None };
        let mut request = Request { members, record, downtime: None };
        if options.allow_downtime {
            let without = request.plan(home, cluster).await?;
            let shown: Vec<String> = without.end.blocked.iter().map(ToString::to_string).collect();
            request.downtime = Some(consent(shown.join("; ")));
        }
        let plan = request.plan(home, cluster).await?;
        let shown: Vec<String> = plan.steps.iter().map(|step| step.action.to_string()).collect();
        request.record.consent.shown = shown.join("; ");
        let refused = new_refusals(&anyway, &plan);
        Ok(Reboot { request, boots, plan, refused })
    }

    pub fn note(&self, ledger: &mut Ledger) {
        self.request.note(ledger);
    }

    /// The result for each machine, as last observed.
    pub fn outcome(&self, seen: &Observation) -> Vec<Rebooted> {
        let outcome = |member: &MemberName| {
            let before = self.boots.get(member).cloned().flatten();
            let host = seen.facts(member).map(|facts| &facts.host);
            let boot = host.and_then(|host| host.boot.clone());
            let packages =
                host.and_then(|host| host.packages.as_ref()).filter(|packages| Some(&packages.boot) == before.as_ref());
            Rebooted {
                member: member.clone(),
                rebooted: boot.map(|boot| before.as_ref().is_some_and(|before| *before != boot)),
                packages: packages.map(|PackagesSeen { summary, .. }| summary.clone()),
            }
        };
        self.request.members.iter().map(outcome).collect()
    }
}

fn boots(seen: &Observation, members: &[MemberName]) -> BTreeMap<MemberName, Option<String>> {
    members
        .iter()
        .map(|member| (member.clone(), seen.facts(member).and_then(|facts| facts.host.boot.clone())))
        .collect()
}

struct Request {
    members: Vec<MemberName>,
    record: Record,
    downtime: Option<Consent>,
}

impl Request {
    /// A machine that was ordered to reboot already does so under that earlier request.
    fn note(&self, ledger: &mut Ledger) {
        super::add(&mut ledger.downtime, &self.downtime);
        for member in &self.members {
            let reboot = &mut ledger.members.entry(member.clone()).or_default().reboot;
            if reboot.as_ref().is_none_or(|open| open.ordered.is_none()) {
                *reboot = Some(self.record.clone());
            }
        }
    }

    async fn plan(&self, home: &Home, cluster: &Cluster) -> Result<Plan, ControlError> {
        controller::plan(home, &cluster.spec, &cluster.brought, |ledger| self.note(ledger)).await
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use quorate_core::kinds::etcd::Formation;
    use quorate_core::kinds::etcd::spec::ClientAuth;
    use quorate_core::kinds::etcd::versions::DEFAULT;
    use quorate_core::model::{Power, RebootOrder};
    use quorate_core::spec::{Provider, generated};

    use super::*;

    fn ledger() -> Ledger {
        let mut spec = generated("demo", 3, DEFAULT, ClientAuth::Certificate).unwrap();
        let mut ledger = Ledger::new(String::from("c"), spec.clusters.remove(0));
        let settings = serde_json::json!({"incus": {"image": "etcd", "network": "br0", "pool": "p"}});
        ledger.spec.provider = serde_json::from_value::<Provider>(settings).unwrap();
        ledger.etcd.formation =
            Formation::Formed { token: String::from("t"), etcd_cluster_id: 1, members: BTreeMap::new() };
        ledger
    }

    #[test]
    fn only_machines_of_a_cluster_that_runs_reboot() {
        let mut ledger = ledger();
        assert_eq!(check(&ledger, &[]).unwrap().len(), 3);
        assert_eq!(check(&ledger, &[String::from("etcd-2")]).unwrap(), [MemberName::from("etcd-2")]);
        assert!(matches!(check(&ledger, &[String::from("etcd-9")]), Err(VerbError::UnknownMember { .. })));
        ledger.power = Power::Off;
        assert!(matches!(check(&ledger, &[]), Err(VerbError::NotNow { .. })));
        ledger.power = Power::On;
        ledger.spec.provider = Provider::default();
        let refused = check(&ledger, &[]).unwrap_err().to_string();
        assert!(refused.contains("are processes on this machine (provider local)"), "{refused}");
    }

    #[test]
    fn a_request_replaces_one_that_has_not_begun_and_no_other() {
        let mut ledger = ledger();
        let record = |upgrade_packages| Record { consent: consent(String::new()), upgrade_packages, ordered: None };
        let ask = |upgrade| Request { members: vec!["etcd-1".into()], record: record(upgrade), downtime: None };
        let open = |ledger: &Ledger| ledger.members[&MemberName::from("etcd-1")].reboot.clone().unwrap();
        ask(false).note(&mut ledger);
        ask(true).note(&mut ledger);
        assert!(open(&ledger).upgrade_packages);
        let ordered = RebootOrder { boot: String::from("b"), at: Timestamp::now(), accepted: None };
        ledger.members.get_mut(&MemberName::from("etcd-1")).unwrap().reboot.as_mut().unwrap().ordered = Some(ordered);
        ask(false).note(&mut ledger);
        assert!(open(&ledger).upgrade_packages && open(&ledger).ordered.is_some());
    }
}
