//! Observations: what was seen, and when. What could not be observed never counts as absent.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{AgentSeen, Build, Facts, FixtureSeen, MemberName, ProgramSeen};
use crate::kinds::etcd::EtcdStatus;

/// One look at something that may not answer.
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

/// One look at one cluster: its machines through the provider, and its members through their agents.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Observation {
    pub now: Timestamp,
    pub machines: Seen<BTreeMap<MemberName, MachineSeen>>,
    pub agents: BTreeMap<MemberName, Seen<AgentSeen>>,
    /// What there is besides machines.
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

    /// What a member's agent runs, where it said so.
    pub fn program(&self, member: &MemberName) -> Option<&ProgramSeen> {
        match self.agents.get(member)?.get()? {
            AgentSeen::Enrolled(facts) => Some(&facts.program),
            AgentSeen::OtherProtocol(program) => Some(program),
            AgentSeen::Unenrolled { .. } | AgentSeen::Untrusted(_) => None,
        }
    }

    /// What a member's etcd says of itself.
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
    /// Its provider cannot be asked about it now. It was made, so it may be there and may run.
    Unknown,
}

impl MachineSeen {
    /// Whether its agent answers now or may soon.
    pub fn is_up(&self) -> bool {
        matches!(self.power, PowerState::On | PowerState::Starting | PowerState::Unknown)
    }

    /// Whether anything may run on it.
    pub fn may_run(&self) -> bool {
        self.power != PowerState::Off || self.headless
    }
}

/// A machine as its provider sees it. The mark on it (whose, which incarnation) was put there at its creation.
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
    /// Where its data is stored, if that can outlive it.
    #[serde(default)]
    pub data: Option<String>,
    /// Where its provider has it, for providers with several such places.
    #[serde(default)]
    pub place: Option<String>,
}
