//! Observations: what was seen, and when. What could not be observed never counts as absent.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{AgentSeen, Build, Facts, FixtureSeen, MachineId, MemberName, ProgramSeen};
use crate::kinds::etcd::EtcdStatus;

/// One observation of something that may not answer.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seen<T> {
    At(Timestamp, T),
    Unreachable { since: Timestamp, why: String },
}

impl<T> Seen<T> {
    pub fn get(&self) -> Option<&T> {
        match self {
            Seen::At(_, value) => Some(value),
            Seen::Unreachable { .. } => None,
        }
    }
}

/// One observation of a cluster: its machines through the provider, and its members through their agents.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Observation {
    pub now: Timestamp,
    pub machines: Seen<BTreeMap<MemberName, MachineSeen>>,
    pub agents: BTreeMap<MemberName, Seen<AgentSeen>>,
    /// The fixtures.
    #[serde(default = "none")]
    pub fixtures: Seen<Vec<FixtureSeen>>,
}

/// Of an observation by an older quorate, which knew of none.
fn none() -> Seen<Vec<FixtureSeen>> {
    Seen::At(Timestamp::UNIX_EPOCH, Vec::new())
}

impl Observation {
    /// The facts of a member whose agent is enrolled and answered.
    pub fn facts(&self, member: &MemberName) -> Option<&Facts> {
        match self.agents.get(member)?.get()? {
            AgentSeen::Enrolled(facts) => Some(facts),
            AgentSeen::Unenrolled { .. } | AgentSeen::Untrusted(_) | AgentSeen::OtherProtocol(_) => None,
        }
    }

    /// The machines of those members whose former machine is still there.
    pub fn successors(&self) -> BTreeMap<MemberName, MachineId> {
        let Some(machines) = self.machines.get() else { return BTreeMap::new() };
        let has_former =
            |member: &MemberName| machines.keys().any(|name| name.is_former() && name.seat() == member.as_str());
        let successors = machines.iter().filter(|(member, _)| has_former(member));
        successors.map(|(member, machine)| (member.clone(), MachineId::new(member, machine.incarnation))).collect()
    }

    /// The program of a member's agent, if reported.
    pub fn program(&self, member: &MemberName) -> Option<&ProgramSeen> {
        match self.agents.get(member)?.get()? {
            AgentSeen::Enrolled(facts) => Some(&facts.program),
            AgentSeen::OtherProtocol(program) => Some(program),
            AgentSeen::Unenrolled { .. } | AgentSeen::Untrusted(_) => None,
        }
    }

    /// The status of a member's etcd.
    pub fn status(&self, member: &MemberName) -> Option<&EtcdStatus> {
        self.facts(member)?.etcd.status.as_ref()
    }
}

/// Whether a machine runs, as its provider sees it. Most providers know nothing in between on and off.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PowerState {
    Off,
    /// It was switched on, and its provider has not finished.
    Starting,
    On,
    /// It was switched off, and something may still run on it.
    Stopping,
    /// Its provider does not answer about it now. It was created, so it may exist and run.
    Unknown,
}

impl MachineSeen {
    /// Whether its agent answers now or may soon.
    pub fn is_up(&self) -> bool {
        matches!(self.power, PowerState::On | PowerState::Starting | PowerState::Unknown)
    }

    /// Whether anything may be running on it.
    pub fn may_run(&self) -> bool {
        self.power != PowerState::Off || self.headless
    }
}

/// A machine as its provider reports it. Its mark (cluster, incarnation) was set when it was created.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct MachineSeen {
    pub cluster_id: String,
    pub incarnation: u64,
    pub power: PowerState,
    /// Its agent has ended, so it counts as off, and yet its etcd runs.
    pub headless: bool,
    /// Its agent is an older program than this one, and can be started again with this one.
    #[serde(default)]
    pub outdated: bool,
    /// None: it has none yet.
    pub address: Option<IpAddr>,
    /// What it was made of; not reported for all.
    #[serde(default)]
    pub build: Option<Build>,
    /// The place of its data, if that can outlive it.
    #[serde(default)]
    pub data: Option<String>,
    /// Its place, for providers with several places.
    #[serde(default)]
    pub place: Option<String>,
}
