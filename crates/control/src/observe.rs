//! Looking: machines through the provider, members through their agents, all at once, each with a time limit.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use futures_util::future::join_all;
use jiff::Timestamp;
use quorate_agent::api::{FactsRequest, Identity};
use quorate_agent::client::{AgentClient, Look};
use quorate_core::Secret;
use quorate_core::model::{AgentSeen, Formation, Ledger, MachineSeen, MemberName, Observation, Power, Seen};

use crate::controller::ControlError;
use crate::providers::{Provider, ProviderError, Reach};
use crate::secrets;

/// The eyes of a controller. It keeps one connection to each agent between looks.
pub struct Sight {
    provider: Rc<dyn Provider>,
    identity: Option<(String, Secret)>,
    agents: BTreeMap<MemberName, Met>,
}

/// An agent that can be spoken to, and where that is.
struct Met {
    machine: MachineSeen,
    reach: Reach,
    client: AgentClient,
}

impl Sight {
    pub fn new(provider: Rc<dyn Provider>) -> Self {
        Sight { provider, identity: None, agents: BTreeMap::new() }
    }

    pub fn provider(&self) -> Rc<dyn Provider> {
        self.provider.clone()
    }

    pub fn agent(&self, member: &MemberName) -> Option<&AgentClient> {
        self.agents.get(member).map(|met| &met.client)
    }

    /// Hands out the client of an agent, to be used apart from any look. The next look makes another.
    pub fn part_with(&mut self, member: &MemberName) -> Option<AgentClient> {
        self.agents.remove(member).map(|met| met.client)
    }

    /// The machine of a member as it was seen last.
    pub fn machine(&self, member: &MemberName) -> Option<&MachineSeen> {
        self.agents.get(member).map(|met| &met.machine)
    }

    /// Looks at one cluster, users and roles included. A fence makes every agent that answers deaf to older controllers.
    pub async fn look(&mut self, ledger: &Ledger, fence: Option<u64>) -> Result<Observation, ControlError> {
        let mut seen = self.ask(ledger, fence).await?;
        if ledger.spec.auth.bootstrap && matches!(ledger.formation, Formation::Formed { .. }) {
            self.ask_for_auth(&mut seen, fence).await;
        }
        Ok(seen)
    }

    /// Every such question goes through etcd's log, so only one member is asked: the leader, where it answers.
    async fn ask_for_auth(&self, seen: &mut Observation, fence: Option<u64>) {
        let healthy = seen.agents.keys().filter_map(|m| Some((m, seen.facts(m)?.etcd.status.as_ref()?)));
        let healthy = healthy.filter(|(_, status)| status.healthy && !status.is_learner);
        let Some((member, _)) = healthy.min_by_key(|(_, status)| status.leader != status.member_id) else { return };
        let Some(agent) = self.agent(member) else { return };
        if let Ok(Look::Facts(facts)) = agent.look(&FactsRequest { fence, auth: true, reach: BTreeSet::new() }).await {
            seen.agents.insert(member.clone(), Seen::At(Timestamp::now(), AgentSeen::Enrolled(facts)));
        }
    }

    /// Looks without asking for users and roles: each such question goes through etcd's log.
    pub async fn glance(&mut self, ledger: &Ledger, fence: Option<u64>) -> Result<Observation, ControlError> {
        self.ask(ledger, fence).await
    }

    async fn ask(&mut self, ledger: &Ledger, fence: Option<u64>) -> Result<Observation, ControlError> {
        let now = Timestamp::now();
        self.provider.enter(ledger.spec.name.as_str())?;
        let machines = match self.provider.machines(ledger.spec.name.as_str()).await {
            Ok(machines) => by_name(ledger, machines),
            Err(e @ ProviderError::Io { .. }) => return Err(e.into()),
            Err(e) => {
                let machines = Seen::Unreachable { since: now, why: e.to_string() };
                return Ok(Observation { now, machines, agents: BTreeMap::new() });
            }
        };
        self.meet(ledger, &machines, now)?;
        let request = FactsRequest { fence, auth: false, reach: BTreeSet::new() };
        let looks = self.agents.iter().map(async |(member, met)| {
            let seen = match met.client.look(&request).await {
                Ok(Look::Facts(facts)) => Seen::At(Timestamp::now(), AgentSeen::Enrolled(facts)),
                Ok(Look::Unenrolled { public_key }) => Seen::At(Timestamp::now(), AgentSeen::Unenrolled { public_key }),
                Err(e) if e.is_stale_fence() => return Err(ControlError::TakenOver { by: e.to_string() }),
                Err(e) => Seen::Unreachable { since: now, why: e.to_string() },
            };
            Ok((member.clone(), seen))
        });
        let agents = join_all(looks).await.into_iter().collect::<Result<_, _>>()?;
        let mut seen = Observation { now, machines: Seen::At(now, machines), agents };
        self.ask_who_reaches(ledger, &mut seen, fence).await?;
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
        let shown = silent.filter_map(|m| Some(seen.machines.get()?.get(m)?.address));
        // A provider that shows no machine may be wrong.
        let members = ledger.formation.members().into_iter().flatten();
        let missing = members.filter(|(m, _)| !seen.agents.contains_key(m)).filter_map(|(_, known)| known.address());
        let reach: BTreeSet<_> = shown.chain(missing).collect();
        if reach.is_empty() {
            return Ok(());
        }
        let request = FactsRequest { fence, auth: false, reach };
        let answering = seen.agents.keys().filter(|m| seen.facts(m).is_some());
        let looks = answering.filter_map(|m| Some((m, self.agent(m)?))).map(async |(member, agent)| {
            let Ok(Look::Facts(facts)) = agent.look(&request).await else { return None };
            Some((member.clone(), Seen::At(Timestamp::now(), AgentSeen::Enrolled(facts))))
        });
        let answers: Vec<_> = join_all(looks).await.into_iter().flatten().collect();
        seen.agents.extend(answers);
        Ok(())
    }

    /// Keeps one client for each machine of ours that is on.
    fn meet(
        &mut self,
        ledger: &Ledger,
        machines: &BTreeMap<MemberName, MachineSeen>,
        now: Timestamp,
    ) -> Result<(), ControlError> {
        if self.identity.is_none() {
            self.identity = secrets::controller_identity(ledger, now)?;
        }
        let (Some(identity), Some(control)) = (&self.identity, &ledger.authorities.control) else { return Ok(()) };
        let provider = &self.provider;
        self.agents.retain(|member, met| {
            machines.get(member).is_some_and(|now| *now == met.machine && provider.reach(member, now) == met.reach)
        });
        for (member, machine) in machines {
            let ours = machine.cluster_id == ledger.cluster_id;
            if !ours || machine.power == Power::Off || self.agents.contains_key(member) {
                continue;
            }
            let expected = Identity {
                cluster_id: ledger.cluster_id.clone(),
                member: member.seat().into(),
                incarnation: machine.incarnation,
            };
            let reach = self.provider.reach(member, machine);
            let client = AgentClient::new(machine.address, &control.certificate, identity.clone(), expected)?;
            let client = match &reach {
                Reach::Network => client,
                Reach::Socket(path) => client.over_line(path.clone()),
            };
            self.agents.insert(member.clone(), Met { machine: machine.clone(), reach, client });
        }
        Ok(())
    }
}

/// A machine of another incarnation than the ledger wants is a former one, and is called so.
pub(crate) fn by_name(ledger: &Ledger, machines: Vec<(MemberName, MachineSeen)>) -> BTreeMap<MemberName, MachineSeen> {
    let named = machines.into_iter().map(|(member, machine)| {
        let wanted = ledger.members.get(&member).map_or(1, |r| r.incarnation.max(1));
        let ours = machine.cluster_id == ledger.cluster_id;
        let name = if ours && machine.incarnation != wanted { member.former(machine.incarnation) } else { member };
        (name, machine)
    });
    named.collect()
}
