//! `replace`: a member gets a new machine, with its data where that is possible. A replacement in progress continues; one that could
//! not be completed does not begin.

use quorate_core::model::{Consent, Ledger, MemberName, Observation};
use quorate_core::planner::{Plan, UnsafeBecause, remember};

use super::{
    Cluster, VerbError, consent, member, new_refusals, observe, refuse_if_being_destroyed, refuse_if_off,
    refuse_unless_formed,
};
use crate::home::Home;
use crate::run::controller;
use crate::run::error::ControlError;

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Its data is not kept, even where that is possible.
    pub new_data: bool,
    pub allow_downtime: bool,
}

pub struct Replace {
    request: Request,
    pub plan: Plan,
    /// What is refused only because of the replacement.
    pub refused: Vec<UnsafeBecause>,
}

/// The member of this name, if it can be replaced now.
pub fn check(ledger: &Ledger, name: &str) -> Result<MemberName, VerbError> {
    refuse_if_being_destroyed(Some(ledger))?;
    let member = member(ledger, name)?;
    refuse_if_off(ledger)?;
    refuse_unless_formed(ledger, "none of its members can be replaced")?;
    Ok(member)
}

impl Replace {
    pub async fn prepare(
        home: &Home,
        cluster: &Cluster,
        ledger: &Ledger,
        member: &MemberName,
        options: Options,
    ) -> Result<Self, ControlError> {
        let seen = observe(home, ledger).await?;
        let (member, has) = (member.clone(), incarnation(ledger, member));
        let change = if is_under_way(ledger, &seen, &member) {
            Change::GoOn
        } else if keeps_data(ledger, &seen, &member) && !options.new_data {
            Change::Renew { member, has }
        } else {
            Change::Replace { member, has }
        };
        let mut request = Request { change, downtime: None };
        if options.allow_downtime {
            let without = request.plan(home, cluster).await?;
            let shown: Vec<String> = without.end.blocked.iter().map(ToString::to_string).collect();
            request.downtime = Some(consent(shown.join("; ")));
        }
        let plan = request.plan(home, cluster).await?;
        let mut refused = Vec::new();
        if !matches!(request.change, Change::GoOn) {
            let anyway = Request { change: Change::GoOn, downtime: None }.plan(home, cluster).await?;
            refused = new_refusals(&anyway, &plan);
        }
        Ok(Replace { request, plan, refused })
    }

    /// Whether a replacement that was begun before is continued.
    pub fn goes_on(&self) -> bool {
        matches!(self.request.change, Change::GoOn)
    }

    pub fn note(&self, ledger: &mut Ledger) {
        self.request.note(ledger);
    }
}

#[derive(Clone)]
enum Change {
    /// A new machine joins as a new member, and the former one leaves.
    Replace {
        member: MemberName,
        has: u64,
    },
    /// The data is kept, and with it the membership.
    Renew {
        member: MemberName,
        has: u64,
    },
    GoOn,
}

struct Request {
    change: Change,
    downtime: Option<Consent>,
}

impl Request {
    /// Requests the next incarnation, unless another run did so since it was shown.
    fn note(&self, ledger: &mut Ledger) {
        super::add(&mut ledger.downtime, &self.downtime);
        match &self.change {
            Change::Replace { member, has } if incarnation(ledger, member) == *has => {
                remember::raise_incarnation(ledger, member);
            }
            Change::Renew { member, has } => drop(remember::renew(ledger, member, has + 1)),
            Change::Replace { .. } | Change::GoOn => {}
        }
    }

    async fn plan(&self, home: &Home, cluster: &Cluster) -> Result<Plan, ControlError> {
        controller::plan(home, &cluster.spec, &cluster.brought, |ledger| self.note(ledger)).await
    }
}

/// Whether the member's data outlives the machine that it has, or had.
fn keeps_data(ledger: &Ledger, seen: &Observation, member: &MemberName) -> bool {
    let mut members = ledger.spec.members.iter();
    let wanted =
        members.find(|m| m.name.as_str() == member.as_str()).and_then(|m| ledger.spec.provider.settings().kept_data(m));
    let machine = seen.machines.get().and_then(|machines| machines.get(member));
    wanted.is_some() && machine.is_none_or(|machine| machine.data == wanted)
}

fn incarnation(ledger: &Ledger, member: &MemberName) -> u64 {
    ledger.members.get(member).map_or(1, |record| record.incarnation.max(1))
}

/// Whether the former machine is still there, or the new one does not vote yet, or has not shown its data.
fn is_under_way(ledger: &Ledger, seen: &Observation, member: &MemberName) -> bool {
    let recorded = ledger.members.get(member).is_some_and(|record| record.renewing.is_some());
    let renewed = recorded && keeps_data(ledger, seen, member);
    let former = |name: &MemberName| name.is_former() && name.seat() == member.as_str();
    let listed = ledger.joined().any(former);
    let machines = seen.machines.get().is_some_and(|machines| machines.keys().any(former));
    let learns = seen.facts(member).and_then(|f| f.etcd.status.as_ref()).is_some_and(|status| status.is_learner);
    let is_proxy = ledger.members.get(member).is_some_and(|record| record.proxy.is_some());
    renewed || listed || machines || learns || (!is_proxy && !ledger.joined().any(|joined| joined == member))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use quorate_core::kinds::etcd::spec::ClientAuth;
    use quorate_core::kinds::etcd::versions::DEFAULT;
    use quorate_core::kinds::etcd::{Formation, FormingMember};
    use quorate_core::model::{MachineSeen, Power, PowerState, Seen};
    use quorate_core::providers::local::{KEPT_DATA, LocalSettings};
    use quorate_core::spec::Provider;
    use quorate_core::spec::generated;

    use super::*;

    fn ledger() -> Ledger {
        let mut spec = generated("demo", 3, DEFAULT, ClientAuth::Certificate).unwrap();
        let mut ledger = Ledger::new(String::from("c"), spec.clusters.remove(0));
        let known = || FormingMember { machine_id: String::new(), peer_url: String::new(), learner: false };
        let members = ["etcd-1", "etcd-2", "etcd-3"].map(|name| (name.into(), known()));
        ledger.etcd.formation =
            Formation::Formed { token: String::from("t"), etcd_cluster_id: 1, members: members.into() };
        ledger
    }

    fn seen(machines: &[&str]) -> Observation {
        let now = Timestamp::UNIX_EPOCH;
        let machine = |name: &&str| {
            let address = Some("127.0.0.1".parse().unwrap());
            let cluster_id = String::from("c");
            (
                MemberName::from(*name),
                MachineSeen {
                    cluster_id,
                    incarnation: 1,
                    power: PowerState::On,
                    headless: false,
                    outdated: false,
                    address,
                    build: None,
                    data: Some(KEPT_DATA.to_owned()),
                    place: None,
                },
            )
        };
        let machines = Seen::At(now, machines.iter().map(machine).collect());
        Observation { now, machines, agents: BTreeMap::new(), fixtures: Seen::At(now, Vec::new()) }
    }

    #[test]
    fn a_replacement_is_under_way_until_the_former_machine_is_gone_and_the_new_one_votes() {
        let member = MemberName::from("etcd-2");
        let mut ledger = ledger();
        assert!(!is_under_way(&ledger, &seen(&["etcd-2"]), &member));
        assert!(is_under_way(&ledger, &seen(&["etcd-2", "etcd-2.1"]), &member));
        assert!(!is_under_way(&ledger, &seen(&["etcd-2", "etcd-1.1"]), &member));
        remember::raise_incarnation(&mut ledger, &member);
        assert!(is_under_way(&ledger, &seen(&[]), &member));
        let Formation::Formed { members, .. } = &mut ledger.etcd.formation else { unreachable!() };
        members.remove(&member.former(1));
        assert!(is_under_way(&ledger, &seen(&["etcd-2"]), &member));
    }

    #[test]
    fn an_incarnation_is_raised_once_even_if_others_ask_too() {
        let (mut ledger, member) = (ledger(), MemberName::from("etcd-2"));
        let asked = |change| Request { change, downtime: None };
        let replace = asked(Change::Replace { member: member.clone(), has: 1 });
        replace.note(&mut ledger);
        replace.note(&mut ledger);
        assert_eq!(incarnation(&ledger, &member), 2);
        asked(Change::GoOn).note(&mut ledger);
        asked(Change::Renew { member: member.clone(), has: 1 }).note(&mut ledger);
        assert_eq!((incarnation(&ledger, &member), ledger.members[&member].renewing), (2, None));
        asked(Change::Renew { member: member.clone(), has: 2 }).note(&mut ledger);
        assert_eq!((incarnation(&ledger, &member), ledger.members[&member].renewing), (2, Some(3)));
    }

    #[test]
    fn data_is_kept_if_the_spec_says_so_and_the_machine_stores_it_separately() {
        let (mut ledger, member) = (ledger(), MemberName::from("etcd-2"));
        assert!(!keeps_data(&ledger, &seen(&["etcd-2"]), &member));
        remember::renew(&mut ledger, &member, 2);
        assert!(!is_under_way(&ledger, &seen(&["etcd-2"]), &member), "it cannot stay any more");
        ledger.spec.provider = Provider::Local(LocalSettings { keep_data: true, ..LocalSettings::default() });
        assert!(is_under_way(&ledger, &seen(&["etcd-2"]), &member));
        assert!(keeps_data(&ledger, &seen(&["etcd-2"]), &member) && keeps_data(&ledger, &seen(&[]), &member));
        let mut elsewhere = seen(&["etcd-2"]);
        let Seen::At(_, machines) = &mut elsewhere.machines else { unreachable!() };
        machines.get_mut(&member).unwrap().data = None;
        assert!(!keeps_data(&ledger, &elsewhere, &member));
    }

    #[test]
    fn a_switchover_to_a_stranger_or_of_a_stopped_cluster_is_refused() {
        let mut ledger = ledger();
        assert_eq!(check(&ledger, "etcd-1").unwrap(), MemberName::from("etcd-1"));
        let VerbError::UnknownMember { member, members, .. } = check(&ledger, "etcd-9").unwrap_err() else { panic!() };
        assert_eq!((member.as_str(), members.join(", ").as_str()), ("etcd-9", "etcd-1, etcd-2, etcd-3"));
        ledger.power = Power::Off;
        let VerbError::NotNow { what, command, .. } = check(&ledger, "etcd-1").unwrap_err() else { panic!() };
        assert_eq!((what.as_str(), command.as_str()), ("cluster demo is off", "start demo"));
        ledger.power = Power::On;
        ledger.etcd.formation = Formation::Unformed;
        assert!(check(&ledger, "etcd-1").is_err());
    }
}
