//! Observation: machines through the provider, members through their agents, all in parallel, each with a time limit.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use futures_util::future::join_all;
use jiff::Timestamp;
use quorate_agent::api::{FactsRequest, Identity};
use quorate_agent::client::{AgentClient, Look};
use quorate_core::Secret;
use quorate_core::kinds::etcd::Formation;
use quorate_core::kinds::postgres::Role;
use quorate_core::model::{AgentSeen, Ledger, MachineId, MachineSeen, MemberName, Observation, PowerState, Seen};
use quorate_core::planner::{UnsafeBecause, safety};
use quorate_core::spec::Kind;

use crate::run::error::ControlError;
use crate::run::met::{Met, judge, look_first};
use crate::secrets;
use quorate_providers::{Dial, Machines, Provider, ProviderError};

/// Observes for a controller. It keeps one connection to each agent between observations.
pub struct Observer {
    provider: Rc<dyn Provider>,
    identity: Option<Shown>,
    agents: BTreeMap<MemberName, Contact>,
    /// Machines, by member and incarnation, whose agents reported the number they remember before they heard ours, or had none.
    asked: RefCell<BTreeSet<(String, u64)>>,
    /// Agents that remember our number, or a higher one, though nobody told it.
    knows_more: Vec<UnsafeBecause>,
    /// Whether the provider could list all places, the last time.
    saw_every_place: bool,
}

/// This controller's certificate chain and key for agents. It expires, and a controller that runs longer creates another before.
struct Shown {
    identity: (String, Secret),
    made: Timestamp,
    /// The CA that signed it.
    authority: String,
}

/// Half the time is left for connections that are made with it.
fn is_worn(shown: &Shown, ledger: &Ledger, now: Timestamp) -> bool {
    let age = now.duration_since(shown.made);
    if ledger.authorities.control.as_ref().is_none_or(|control| control.certificate != shown.authority) {
        return true;
    }
    // A clock that was set back says nothing about the certificate's end.
    age >= secrets::CONTROLLER_VALIDITY / 2 || age.is_negative()
}

/// A reachable agent, and its address.
struct Contact {
    machine: MachineSeen,
    dial: Dial,
    client: AgentClient,
}

/// The member that is asked for users: etcd's leader, or the primary of PostgreSQL.
fn knows_users<'a>(ledger: &Ledger, seen: &'a Observation) -> Option<&'a MemberName> {
    match ledger.spec.kind {
        Kind::Etcd => {
            if !ledger.spec.auth.bootstrap || !matches!(ledger.etcd.formation, Formation::Formed { .. }) {
                return None;
            }
            let healthy = seen.agents.keys().filter_map(|m| Some((m, seen.facts(m)?.etcd.status.as_ref()?)));
            let healthy = healthy.filter(|(_, status)| status.healthy && !status.is_learner);
            healthy.min_by_key(|(_, status)| status.leader != status.member_id).map(|(member, _)| member)
        }
        Kind::Postgres => {
            let role = |member: &MemberName| Some(seen.facts(member)?.postgres.as_ref()?.status.as_ref()?.role);
            seen.agents.keys().find(|member| role(member) == Some(Role::Primary))
        }
    }
}

impl Observer {
    pub fn new(provider: Rc<dyn Provider>) -> Self {
        Observer {
            provider,
            identity: None,
            agents: BTreeMap::new(),
            asked: RefCell::default(),
            knows_more: Vec::new(),
            saw_every_place: false,
        }
    }

    pub fn provider(&self) -> Rc<dyn Provider> {
        self.provider.clone()
    }

    pub fn agent(&self, member: &MemberName) -> Option<&AgentClient> {
        self.agents.get(member).map(|contact| &contact.client)
    }

    /// Returns the client of an agent, for use outside of observations. The next observation creates another.
    pub fn part_with(&mut self, member: &MemberName) -> Option<AgentClient> {
        self.agents.remove(member).map(|contact| contact.client)
    }

    /// An agent that hears this controller's number now, outside of observations. It has obeyed no other controller, or was asked what it
    /// remembers; a number that it reports from now on is this controller's.
    pub fn told(&self, member: &MemberName) {
        if let Some(contact) = self.agents.get(member) {
            self.asked.borrow_mut().insert(key(member, &contact.machine));
        }
    }

    /// The machine of a member as it was seen last.
    pub fn machine(&self, member: &MemberName) -> Option<&MachineSeen> {
        self.agents.get(member).map(|contact| &contact.machine)
    }

    /// Observes without sending this number: agents that remember it, or a higher one, have obeyed a controller that this ledger does
    /// not know. Machines have the names in `known`; `ledger` decides which answers count.
    pub async fn ask_first(
        &mut self,
        known: &Ledger,
        ledger: &Ledger,
        fence: u64,
    ) -> Result<Observation, ControlError> {
        let seen = self.ask(known, None).await?;
        let (mut claims, mut agrees) = (Vec::new(), false);
        for member in seen.agents.keys() {
            if let (Some(facts), Some(contact)) = (seen.facts(member), self.agents.get(member)) {
                match safety::fence_is_current(fence.saturating_sub(1), member, facts) {
                    Ok(()) => {
                        agrees = true;
                        self.asked.get_mut().insert(key(member, &contact.machine));
                    }
                    Err(because) => claims.push((because, is_witness(ledger, member, contact))),
                }
            }
        }
        let counts = claims.into_iter().filter(|(_, witness)| *witness || !agrees);
        self.knows_more.extend(counts.map(|(because, _)| because));
        Ok(seen)
    }

    /// Whether no machine can be where the provider could not look.
    pub fn saw_every_place(&self) -> bool {
        self.saw_every_place
    }

    /// What shows that the ledger is not the latest, where anything does.
    pub fn knows_more(&self) -> &[UnsafeBecause] {
        &self.knows_more
    }

    /// Observes one cluster, including users and roles. With a fence, every agent that answers refuses older controllers from then on.
    pub async fn look(&mut self, ledger: &Ledger, fence: Option<u64>) -> Result<Observation, ControlError> {
        let mut seen = self.ask(ledger, fence).await?;
        if !self.knows_more.is_empty() {
            return Ok(seen);
        }
        self.ask_for_auth(ledger, &mut seen, fence).await;
        Ok(seen)
    }

    /// Every such question goes through etcd's log, so only one member is asked: the leader, where it answers.
    pub async fn ask_for_auth(&self, ledger: &Ledger, seen: &mut Observation, fence: Option<u64>) {
        let Some(member) = knows_users(ledger, seen) else { return };
        let Some(agent) = self.agent(member) else { return };
        if let Ok(Look::Facts(facts)) = agent.look(&FactsRequest { fence, auth: true, reach: BTreeSet::new() }).await {
            seen.agents.insert(member.clone(), Seen::At(Timestamp::now(), safety::believe(ledger, member, facts)));
        }
    }

    /// Observes without asking for users and roles, because each such request goes through etcd's log.
    pub async fn glance(&mut self, ledger: &Ledger, fence: Option<u64>) -> Result<Observation, ControlError> {
        self.ask(ledger, fence).await
    }

    async fn ask(&mut self, ledger: &Ledger, fence: Option<u64>) -> Result<Observation, ControlError> {
        let now = Timestamp::now();
        let Machines { found, away } = match self.provider.machines().await {
            Ok(machines) => machines,
            Err(e @ ProviderError::Io { .. }) => return Err(e.into()),
            Err(e) => {
                let machines = Seen::Unreachable { since: now, why: e.to_string() };
                let fixtures = Seen::Unreachable { since: now, why: e.to_string() };
                return Ok(Observation { now, machines, agents: BTreeMap::new(), fixtures });
            }
        };
        let mut machines = by_name(ledger, found);
        let hidden = add_hidden(ledger, &mut machines, &away);
        self.saw_every_place = away.is_empty();
        self.meet(ledger, &machines, now)?;
        let asked = self.asked.borrow().clone();
        let looks = self.agents.iter().map(async |(member, contact)| {
            let machine = key(member, &contact.machine);
            let number = fence.filter(|_| !asked.contains(&machine));
            let tell = || {
                self.asked.borrow_mut().insert(machine);
            };
            let ask =
                async |fence| contact.client.look(&FactsRequest { fence, auth: false, reach: BTreeSet::new() }).await;
            (member, contact, look_first(ask, ledger, member, (number, tell), fence).await)
        });
        let (looks, fixtures) = futures_util::future::join(join_all(looks), self.provider.fixtures()).await;
        let fixtures = match fixtures {
            Ok(fixtures) => Seen::At(now, fixtures),
            Err(e) => Seen::Unreachable { since: now, why: e.to_string() },
        };
        let agrees = looks.iter().any(|(.., met)| matches!(met, Ok(Met::Agent(AgentSeen::Enrolled(_)))));
        let judged = looks.into_iter().map(|(member, contact, met)| {
            let counts = !agrees || is_witness(ledger, member, contact);
            let (seen, knows_more) = judge(met, member, counts, now);
            (member.clone(), seen, knows_more)
        });
        let looks: Vec<_> = judged.collect();
        let mut agents = BTreeMap::new();
        for (member, seen, knows_more) in looks {
            self.knows_more.extend(knows_more);
            agents.insert(member, seen);
        }
        agents.extend(without_address(ledger, &machines, now));
        for (member, away) in hidden {
            match agents.get_mut(&member) {
                Some(Seen::Unreachable { why, .. }) => *why = format!("{away}; {why}"),
                Some(Seen::At(..)) => {}
                None => drop(agents.insert(member, Seen::Unreachable { since: now, why: away })),
            }
        }
        let mut seen = Observation { now, machines: Seen::At(now, machines), agents, fixtures };
        if self.knows_more.is_empty() {
            self.ask_who_reaches(ledger, &mut seen, fence).await?;
        }
        Ok(seen)
    }

    /// Asks those that answered whether they reach the machines of those that did not.
    async fn ask_who_reaches(
        &self,
        ledger: &Ledger,
        seen: &mut Observation,
        fence: Option<u64>,
    ) -> Result<(), ControlError> {
        let silent = seen.agents.iter().filter(|(_, agent)| agent.get().is_none()).map(|(member, _)| member);
        let shown = silent.filter_map(|m| seen.machines.get()?.get(m)?.address);
        // A provider that shows no machine may be wrong.
        let joined = ledger.addresses().into_keys();
        let known = joined.chain(ledger.spec.proxies().map(|proxy| proxy.name.as_str().into()));
        let missing = known.filter(|m| !seen.agents.contains_key(m)).filter_map(|m| ledger.known_address(&m));
        let reach: BTreeSet<_> = shown.chain(missing).collect();
        if reach.is_empty() {
            return Ok(());
        }
        let request = FactsRequest { fence, auth: false, reach };
        let answering = seen.agents.keys().filter(|m| seen.facts(m).is_some());
        let looks = answering.filter_map(|m| Some((m, self.agent(m)?))).map(async |(member, agent)| {
            let Ok(Look::Facts(facts)) = agent.look(&request).await else { return None };
            Some((member.clone(), Seen::At(Timestamp::now(), safety::believe(ledger, member, facts))))
        });
        let answers: Vec<_> = join_all(looks).await.into_iter().flatten().collect();
        seen.agents.extend(answers);
        Ok(())
    }

    /// Creates the certificate for agents, first and again before it expires. Clients with the old one are replaced.
    fn renew(&mut self, ledger: &Ledger, now: Timestamp) -> Result<(), ControlError> {
        if self.identity.as_ref().is_some_and(|shown| !is_worn(shown, ledger, now)) {
            return Ok(());
        }
        let authority = ledger.authorities.control.as_ref().map(|control| control.certificate.clone());
        let made = secrets::controller_identity(ledger, now)?;
        self.identity = made.zip(authority).map(|(identity, authority)| Shown { identity, made: now, authority });
        self.agents.clear();
        Ok(())
    }

    /// Keeps one client for each running machine of this cluster.
    fn meet(
        &mut self,
        ledger: &Ledger,
        machines: &BTreeMap<MemberName, MachineSeen>,
        now: Timestamp,
    ) -> Result<(), ControlError> {
        self.renew(ledger, now)?;
        let (Some(shown), Some(control)) = (&self.identity, &ledger.authorities.control) else { return Ok(()) };
        let provider = &self.provider;
        self.agents.retain(|member, contact| {
            let same = |now: &MachineSeen| *now == contact.machine && dial(&**provider, member, now) == contact.dial;
            machines.get(member).is_some_and(same)
        });
        for (member, machine) in machines {
            let ours = machine.cluster_id == ledger.cluster_id;
            if !ours || !machine.is_up() || self.agents.contains_key(member) {
                continue;
            }
            let Some(address) = machine.address else { continue };
            let expected = Identity {
                cluster_id: ledger.cluster_id.clone(),
                member: member.seat().into(),
                incarnation: machine.incarnation,
            };
            let dial = dial(&*self.provider, member, machine);
            let client = AgentClient::new(address, &control.certificate, shown.identity.clone(), expected)?;
            let client = client.by(dial.clone());
            self.agents.insert(member.clone(), Contact { machine: machine.clone(), dial, client });
        }
        Ok(())
    }
}

/// Adds the machines of members that were made where the provider could not look, with what kept it from looking. They count as there:
/// nothing may be made in their place.
fn add_hidden(
    ledger: &Ledger,
    machines: &mut BTreeMap<MemberName, MachineSeen>,
    away: &BTreeMap<String, String>,
) -> Vec<(MemberName, String)> {
    let settings = ledger.spec.provider.settings();
    let mut hidden = Vec::new();
    for member in ledger.spec.machines() {
        let name = MemberName::from(member.name.as_str());
        let record = ledger.members.get(&name);
        let place = record.and_then(|record| record.place.clone()).or_else(|| settings.place(&member));
        let is_found = machines.get(&name).is_some_and(|machine| machine.cluster_id == ledger.cluster_id);
        let Some((place, why)) = place.and_then(|place| away.get_key_value(&place)).filter(|_| !is_found) else {
            continue;
        };
        let known = ledger.known_address(&name);
        let machine = MachineSeen {
            cluster_id: ledger.cluster_id.clone(),
            incarnation: record.map_or(1, |record| record.incarnation.max(1)),
            power: PowerState::Unknown,
            headless: false,
            outdated: false,
            address: known.or_else(|| settings.pinned(&member)),
            build: None,
            data: None,
            place: Some(place.clone()),
        };
        machines.insert(name.clone(), machine);
        hidden.push((name, why.clone()));
    }
    hidden
}

/// Agents that cannot be asked yet.
fn without_address(
    ledger: &Ledger,
    machines: &BTreeMap<MemberName, MachineSeen>,
    now: Timestamp,
) -> Vec<(MemberName, Seen<AgentSeen>)> {
    let ours = machines.iter().filter(|(_, machine)| machine.cluster_id == ledger.cluster_id && machine.is_up());
    let silent = ours.filter(|(_, machine)| machine.address.is_none() && machine.power != PowerState::Unknown);
    let why = || String::from("its machine has no address yet");
    silent.map(|(member, _)| (member.clone(), Seen::Unreachable { since: now, why: why() })).collect()
}

/// How to connect to a machine, under any name.
pub(crate) fn dial(provider: &dyn Provider, name: &MemberName, machine: &MachineSeen) -> Dial {
    provider.dial(&MachineId::new(&name.seat().into(), machine.incarnation), machine)
}

/// If no other agent agrees with the ledger, every answer counts.
fn is_witness(ledger: &Ledger, member: &MemberName, contact: &Contact) -> bool {
    safety::is_witness(ledger, member.seat(), contact.machine.incarnation)
}

/// A machine, under any name.
fn key(member: &MemberName, machine: &MachineSeen) -> (String, u64) {
    (member.seat().to_owned(), machine.incarnation)
}

/// A machine of another incarnation than the ledger wants is a former one, and is named so.
pub fn by_name(ledger: &Ledger, machines: Vec<(MemberName, MachineSeen)>) -> BTreeMap<MemberName, MachineSeen> {
    let named = |(member, machine): (MemberName, MachineSeen)| {
        let wanted = ledger.members.get(&member).map_or(1, |r| r.incarnation.max(1));
        let ours = machine.cluster_id == ledger.cluster_id;
        let name = if ours && machine.incarnation != wanted { member.former(machine.incarnation) } else { member };
        (name, machine)
    };
    // A name may be that of a machine of another cluster too. It is reported only where it is in the place of ours.
    let (ours, foreign): (Vec<_>, Vec<_>) =
        machines.into_iter().map(named).partition(|(_, machine)| machine.cluster_id == ledger.cluster_id);
    foreign.into_iter().chain(ours).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use jiff::SignedDuration;
    use quorate_core::kinds::etcd::spec::ClientAuth;
    use quorate_core::kinds::etcd::versions::DEFAULT;
    use quorate_core::model::{MemberRecord, SecretKind};
    use quorate_core::spec::generated;

    use super::*;
    use crate::brought::BroughtFiles;
    use crate::home::Home;

    fn ledger(now: Timestamp) -> Ledger {
        let spec = generated("demo", 1, DEFAULT, ClientAuth::Certificate).unwrap().clusters.remove(0);
        let mut ledger = Ledger::new(String::from("c"), spec.clone());
        let kinds = [SecretKind::ControlAuthority].into();
        secrets::make(&mut ledger, &kinds, &spec, &BroughtFiles::default(), now).unwrap();
        ledger
    }

    fn machine(cluster_id: &str, incarnation: u64) -> MachineSeen {
        MachineSeen {
            cluster_id: cluster_id.to_owned(),
            incarnation,
            address: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            power: PowerState::On,
            headless: false,
            outdated: false,
            build: None,
            data: None,
            place: None,
        }
    }

    #[test]
    fn a_machine_of_another_cluster_hides_none_of_ours_in_whatever_order_they_come() {
        let ledger = ledger(Timestamp::now());
        let etcd_1 = || MemberName::from("etcd-1");
        let both = [(etcd_1(), machine("c", 1)), (etcd_1(), machine("other", 7))];
        let reversed = both.iter().rev().cloned().collect();
        for machines in [both.to_vec(), reversed] {
            let named = by_name(&ledger, machines);
            assert_eq!(named[&etcd_1()].cluster_id, "c");
        }
        let alone = by_name(&ledger, vec![(etcd_1(), machine("other", 7))]);
        assert_eq!(alone[&etcd_1()].cluster_id, "other", "it is told about where it is in the place of ours");
    }

    #[test]
    fn a_machine_on_an_unreachable_host_counts_as_existing() {
        let mut ledger = ledger(Timestamp::now());
        let settings = serde_json::json!({"libvirt": {"pool": "etcd"}});
        ledger.spec.provider = serde_json::from_value(settings).unwrap();
        let names: Vec<MemberName> = ["etcd-1", "etcd-2", "etcd-3"].map(MemberName::from).into();
        let hosts = ["qemu+ssh://a/system", "qemu+ssh://b/system", "qemu+ssh://b/system"];
        ledger.spec.members = names
            .iter()
            .zip(hosts)
            .zip(1..)
            .map(|((name, uri), n)| {
                let interface = serde_json::json!({"network": "n", "address": format!("192.0.2.{n}"), "prefix": 24});
                serde_json::from_value(
                    serde_json::json!({"name": name, "libvirt": {"uri": uri, "interfaces": [interface]}}),
                )
                .unwrap()
            })
            .collect();
        // Its machine was made on the first host, before the spec moved it to the second.
        let record = MemberRecord { incarnation: 4, place: Some(hosts[0].to_owned()), ..MemberRecord::default() };
        ledger.members.insert(names[2].clone(), record);
        let hidden = |away: &[&str]| {
            let away = away.iter().map(|place| ((*place).to_owned(), String::from("no route"))).collect();
            let mut machines = BTreeMap::new();
            let hidden = add_hidden(&ledger, &mut machines, &away);
            assert!(hidden.iter().all(|(name, why)| machines.contains_key(name) && why == "no route"));
            machines
        };
        assert!(hidden(&[]).is_empty());
        assert_eq!(hidden(&[hosts[1]]).into_keys().collect::<Vec<_>>(), [names[1].clone()]);
        let machines = hidden(&[hosts[0]]);
        assert_eq!(machines.keys().collect::<Vec<_>>(), [&names[0], &names[2]]);
        let moved = &machines[&names[2]];
        assert_eq!((moved.power, moved.incarnation, moved.place.as_deref()), (PowerState::Unknown, 4, Some(hosts[0])));
        assert_eq!(moved.address, Some("192.0.2.3".parse().unwrap()), "its agent may answer all the same");
    }

    #[tokio::test]
    async fn a_long_running_controller_renews_its_certificate() {
        let (home, now) = (tempfile::tempdir().unwrap(), Timestamp::now());
        let (ledger, of_another_ca) = (ledger(now), ledger(now));
        let mut sight = Observer::new(Home::new(home.path()).provider(&ledger));
        let machines = BTreeMap::from([(MemberName::from("etcd-1"), machine("c", 1))]);
        let mut shown = |hours: i64| {
            let at = now + SignedDuration::from_hours(hours);
            sight.renew(&ledger, at).unwrap();
            let kept = sight.agents.len();
            sight.meet(&ledger, &machines, at).unwrap();
            assert_eq!(sight.agents.len(), 1);
            let chain = sight.identity.as_ref().unwrap().identity.0.clone();
            let ends = quorate_pki::inspect(&chain).unwrap().not_after;
            assert!(ends > at + SignedDuration::from_hours(1), "{hours}");
            (chain, kept)
        };
        let (first, _) = shown(0);
        assert_eq!(shown(1), (first.clone(), 1), "it is used again, and so are clients");
        let (second, kept) = shown(23);
        assert!(second != first && kept == 0, "a machine that shows the old one gets another");
        let (third, _) = shown(60);
        assert_ne!(third, second);
        let at = now + SignedDuration::from_hours(61);
        sight.renew(&of_another_ca, at).unwrap();
        assert_ne!(sight.identity.unwrap().identity.0, third);
    }
}
