//! The state of the simulated cluster, how it begins and how it is observed.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use jiff::Timestamp;

use crate::kinds::etcd::simulate::SimListed;
use crate::kinds::etcd::{AuthLook, AuthSeen, EtcdFacts, OldEntries};
use crate::model::Version;
use crate::model::{
    AgentSeen, BinarySeen, CertificateUse, ConfigAttempt, DataSeen, Distrust, Facts, FixtureSeen, Host, Ledger,
    MachineSeen, MemberName, Observation, PEER_PORT, Program, ProgramSeen, Seen, ServiceState, https_url,
};

/// A simulated cluster: the true state of each machine, whether it is visible or not.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    pub ledger: Ledger,
    pub now: Timestamp,
    pub machines: BTreeMap<MemberName, SimMachine>,
    /// What a healthy member would report about users and roles.
    pub auth: AuthLook,
    /// Set while the provider does not answer.
    pub(crate) provider_away: Option<String>,
    /// Whether an etcd was changed here, so the report of each must be simulated too.
    pub(crate) touched: bool,
    /// etcd's number of the member that leads.
    pub(crate) leader: Option<u64>,
    /// Who belongs to the formed cluster.
    pub listed: Vec<SimListed>,
    /// The cluster version.
    pub(crate) agreed: Option<Version>,
    /// The version of a downgrade that is enabled, until every member runs it.
    pub(crate) going_down: Option<Version>,
    /// The version of each etcd that was started, which is not always that of the program on its disk.
    pub(crate) versions: BTreeMap<String, String>,
    /// Data that outlived the machines of these members.
    pub kept: BTreeMap<MemberName, DataSeen>,
    /// The fixtures, or why they are not known.
    pub fixtures: Seen<Vec<FixtureSeen>>,
    /// The number of the last created machine.
    pub(super) made: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SimMachine {
    pub seen: MachineSeen,
    pub agent: SimAgent,
    /// Its etcd should have answered long ago. Nothing suggests that it ever will, until it is started again.
    pub(crate) hangs: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum SimAgent {
    Fresh {
        public_key: String,
        /// The data on its disk.
        data: DataSeen,
    },
    /// Shared between copies of the simulation until one of them changes it.
    Enrolled(Arc<Facts>),
    /// Nothing that it reports is believed.
    Untrusted(Distrust),
    /// Only its program is known.
    OtherProtocol(ProgramSeen),
    /// It was not observed, so nothing is simulated.
    Unknown { since: Timestamp, why: String },
}

impl World {
    /// The cluster as observed. What was not observed stays unknown.
    pub fn imagine(ledger: Ledger, seen: Observation) -> Self {
        let now = seen.now;
        let mut world = World::empty(ledger, now);
        world.fixtures = seen.fixtures;
        match seen.machines {
            Seen::Unreachable { why, .. } => world.provider_away = Some(why),
            Seen::At(_, machines) => {
                for (member, machine) in machines {
                    let agent = match seen.agents.get(&member) {
                        Some(Seen::At(_, AgentSeen::Unenrolled { public_key })) => {
                            let data = world.expected_data(&member);
                            SimAgent::Fresh { public_key: public_key.clone(), data }
                        }
                        Some(Seen::At(_, AgentSeen::Enrolled(facts))) => SimAgent::Enrolled(Arc::from(facts.clone())),
                        Some(Seen::At(_, AgentSeen::Untrusted(distrust))) => SimAgent::Untrusted(*distrust),
                        Some(Seen::At(_, AgentSeen::OtherProtocol(program))) => {
                            SimAgent::OtherProtocol(program.clone())
                        }
                        Some(Seen::Unreachable { since, why }) => SimAgent::Unknown { since: *since, why: why.clone() },
                        None => SimAgent::Unknown { since: now, why: String::from("it was not asked") },
                    };
                    world.machines.insert(member, SimMachine { seen: machine, agent, hangs: false });
                }
            }
        }
        let members: Vec<MemberName> = world.ledger.joined().cloned().collect();
        for member in members.into_iter().filter(|m| !world.machines.contains_key(m)) {
            let data = world.expected_data(&member);
            world.kept.insert(member, data);
        }
        world.take_up_etcd();
        world
    }

    /// An empty simulation.
    pub fn empty(ledger: Ledger, now: Timestamp) -> Self {
        World {
            ledger,
            now,
            machines: BTreeMap::new(),
            auth: AuthLook::Seen(AuthSeen::default()),
            provider_away: None,
            touched: false,
            leader: None,
            listed: Vec::new(),
            agreed: None,
            going_down: None,
            versions: BTreeMap::new(),
            kept: BTreeMap::new(),
            fixtures: Seen::At(now, Vec::new()),
            made: 0,
        }
    }

    pub fn observe(&self) -> Observation {
        let now = self.now;
        if let Some(why) = &self.provider_away {
            let machines = Seen::Unreachable { since: now, why: why.clone() };
            return Observation { now, machines, agents: BTreeMap::new(), fixtures: self.fixtures.clone() };
        }
        let machines = self.machines.iter().map(|(member, m)| (member.clone(), m.seen.clone())).collect();
        let agents = self.machines.iter().map(|(member, m)| (member.clone(), self.look(member, m))).collect();
        Observation { now, machines: Seen::At(now, machines), agents, fixtures: self.fixtures.clone() }
    }

    fn look(&self, member: &MemberName, machine: &SimMachine) -> Seen<AgentSeen> {
        if !machine.seen.is_up() {
            return Seen::Unreachable { since: self.now, why: String::from("its machine is off") };
        }
        match &machine.agent {
            SimAgent::Unknown { since, why } => Seen::Unreachable { since: *since, why: why.clone() },
            SimAgent::Untrusted(distrust) => Seen::At(self.now, AgentSeen::Untrusted(*distrust)),
            SimAgent::OtherProtocol(program) => Seen::At(self.now, AgentSeen::OtherProtocol(program.clone())),
            SimAgent::Fresh { public_key, .. } => {
                Seen::At(self.now, AgentSeen::Unenrolled { public_key: public_key.clone() })
            }
            SimAgent::Enrolled(facts) => {
                let mut facts = Box::new(Facts::clone(facts));
                if self.touched || facts.etcd.status.is_none() {
                    facts.etcd.status = self.status(member, &facts);
                }
                Seen::At(self.now, AgentSeen::Enrolled(facts))
            }
        }
    }
}

impl SimMachine {
    pub(crate) fn peer_url(&self) -> String {
        self.seen.address.map(|address| https_url(address, PEER_PORT)).unwrap_or_default()
    }

    /// Whether this is the peer URL of its etcd.
    pub fn is_at(&self, peer_url: &str) -> bool {
        let at = peer_url.strip_prefix("https://").and_then(|rest| rest.parse().ok());
        at.is_some() && at == self.seen.address.map(|address| SocketAddr::new(address, PEER_PORT))
    }

    pub fn facts_mut(&mut self) -> Option<&mut Facts> {
        match &mut self.agent {
            SimAgent::Enrolled(facts) => Some(Arc::make_mut(facts)),
            SimAgent::Fresh { .. } | SimAgent::Unknown { .. } | SimAgent::Untrusted(_) | SimAgent::OtherProtocol(_) => {
                None
            }
        }
    }

    pub fn facts(&self) -> Option<&Facts> {
        match &self.agent {
            SimAgent::Enrolled(facts) => Some(facts),
            SimAgent::Fresh { .. } | SimAgent::Unknown { .. } | SimAgent::Untrusted(_) | SimAgent::OtherProtocol(_) => {
                None
            }
        }
    }
}

impl Facts {
    pub(crate) fn version_there(&self) -> Option<String> {
        match &self.etcd.binary {
            BinarySeen::Version(version) => Some(version.clone()),
            BinarySeen::Unasked | BinarySeen::Missing { .. } => None,
        }
    }
}

pub(super) fn imagined_address(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 64, 0, number))
}

pub(super) fn imagined_machine(number: u8) -> String {
    format!("machine-of-key-{number}")
}

pub(crate) fn running(digest: String) -> ServiceState {
    ServiceState::Running { since: Timestamp::UNIX_EPOCH, digest, restarts: 0 }
}

pub(super) fn blank(machine_id: &str) -> Facts {
    use CertificateUse::{Agent, Front, Health, Member, Peer, Root};
    let uses = [Member, Peer, Root, Agent, Health, Front];
    Facts {
        program: ProgramSeen { runs: Program::this().clone(), failed: None },
        machine_id: machine_id.to_owned(),
        fence: 0,
        node_config: None,
        certificates: BTreeMap::new(),
        requests: uses.into_iter().map(|of| (of, String::new())).collect(),
        postgres: None,
        etcd: EtcdFacts {
            binary: BinarySeen::Unasked,
            service: ServiceState::Stopped,
            data: DataSeen::Empty,
            last_started: None,
            peer_serving: false,
            status: None,
            log: None,
            log_damage: None,
            old_entries: OldEntries::None,
            older: None,
            staged: None,
            attempt: ConfigAttempt::Untold,
            trust: BTreeMap::new(),
        },
        services: BTreeMap::new(),
        host: Host { boot: Some(String::from("1")), ..Host::default() },
        reaches: BTreeMap::new(),
        busy: None,
        reboot: None,
        holds_clients: false,
    }
}
