//! The cluster as etcd reports it: members, voters, the leader, and which members are healthy. Read from the healthy voter with the
//! highest index. If no voter has a quorum, nothing is known about the cluster, and no step that depends on it is taken.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;

use crate::kinds::etcd::{EtcdStatus, Formation, Membership};
use crate::model::{AgentSeen, Desired, Facts, MemberName, Observation, PEER_PORT, Seen, address_in, https_url};
use crate::planner::voters::Voters;

/// One observation of the membership.
#[derive(Clone, Debug)]
pub struct Cluster<'a> {
    pub listed: Vec<Listed<'a>>,
    /// The end of the log, as far as any voter reports it.
    pub index: u64,
    pub told_at: Timestamp,
    pub cluster_version: Option<String>,
}

/// A member as etcd lists it.
#[derive(Clone, Debug)]
pub struct Listed<'a> {
    /// The ledger's name of the machine at this address. An unknown machine is named by its number.
    pub name: MemberName,
    pub known: bool,
    pub id: u64,
    pub peer_url: String,
    pub is_learner: bool,
    pub leads: bool,
    pub healthy: bool,
    /// What its agent reported, if it answered.
    pub facts: Option<&'a Facts>,
}

impl<'a> Cluster<'a> {
    /// `None` if no observed voter has a quorum.
    pub fn see(desired: &'a Desired, seen: &'a Observation) -> Option<Self> {
        let Formation::Formed { etcd_cluster_id, members, .. } = &desired.etcd.formation else { return None };
        let answers: Vec<(Timestamp, &EtcdStatus)> = seen.agents.values().filter_map(answer).collect();
        let voters = answers.iter().filter(|(_, s)| s.healthy && !s.is_learner && s.cluster_id == *etcd_cluster_id);
        let told = voters.filter(|(_, s)| !s.members.is_empty()).max_by_key(|(_, s)| s.raft_applied_index);
        let (told_at, told) = told.copied()?;
        let listed = told.members.iter().map(|entry| {
            let peer_url = entry.peer_urls.first().cloned().unwrap_or_default();
            let name = members.iter().find(|(_, m)| m.peer_url == peer_url).map(|(name, _)| name.clone());
            let known = name.is_some();
            let name = name.unwrap_or_else(|| format!("{:x}", entry.id).into());
            let facts = if known { seen.facts(&name) } else { None };
            let status = facts.and_then(|f| f.etcd.status.as_ref()).filter(|s| s.member_id == entry.id);
            Listed {
                known,
                id: entry.id,
                peer_url,
                is_learner: entry.is_learner,
                leads: told.leader == entry.id,
                healthy: !entry.is_learner && status.is_some_and(|s| s.healthy && !s.is_learner),
                facts,
                name,
            }
        });
        Some(Cluster {
            listed: listed.collect(),
            index: answers.iter().map(|(_, s)| s.raft_index).max().unwrap_or(0),
            told_at,
            cluster_version: told.cluster_version.clone(),
        })
    }

    pub fn voters(&self) -> impl Iterator<Item = &Listed<'a>> {
        self.listed.iter().filter(|m| !m.is_learner)
    }

    pub fn learners(&self) -> impl Iterator<Item = &Listed<'a>> {
        self.listed.iter().filter(|m| m.is_learner)
    }

    pub fn get(&self, member: &MemberName) -> Option<&Listed<'a>> {
        self.listed.iter().find(|m| m.name == *member)
    }

    pub fn count(&self) -> Voters {
        Voters { all: self.voters().count(), healthy: self.voters().filter(|m| m.healthy).count() }
    }

    /// The same without one of them.
    pub fn count_without(&self, member: &MemberName) -> Voters {
        let others = || self.voters().filter(|m| m.name != *member);
        Voters { all: others().count(), healthy: others().filter(|m| m.healthy).count() }
    }

    pub fn membership(&self) -> Membership {
        self.listed.iter().map(|m| (m.id, m.is_learner)).collect()
    }

    /// The healthy voter through which changes are made: the leader if its agent answers, and never the member that leaves.
    pub fn spokesman(&self, except: Option<u64>, trusted: impl Fn(&MemberName) -> bool) -> Option<&MemberName> {
        let able = self.voters().filter(|m| m.healthy && Some(m.id) != except && trusted(&m.name));
        able.min_by_key(|m| !m.leads).map(|m| &m.name)
    }

    /// The voter that should lead instead of this one: a healthy one that stays.
    pub fn successor(&self, desired: &Desired, leader: u64) -> Option<(MemberName, u64)> {
        let able = self.voters().filter(|m| m.healthy && m.id != leader);
        let next = able.min_by_key(|m| !desired.members.contains_key(&m.name))?;
        Some((next.name.clone(), next.id))
    }
}

/// The voters that clients connect to.
pub(crate) fn serving(desired: &Desired, cluster: &Cluster<'_>) -> Option<BTreeMap<MemberName, IpAddr>> {
    let mut serving = BTreeMap::new();
    for member in desired.members.keys() {
        let own = cluster.voters().find(|voter| voter.name == *member);
        let former = || cluster.voters().filter(|voter| voter.known && voter.name.seat() == member.as_str()).last();
        let Some(voter) = own.or_else(former) else { continue };
        serving.insert(member.clone(), address_in(&voter.peer_url)?);
    }
    Some(serving).filter(|serving| !serving.is_empty())
}

fn answer(seen: &Seen<AgentSeen>) -> Option<(Timestamp, &EtcdStatus)> {
    match seen {
        Seen::At(at, AgentSeen::Enrolled(facts)) => Some((*at, facts.etcd.status.as_ref()?)),
        _ => None,
    }
}

/// The URL at which a machine's etcd serves its peers.
pub fn peer_url(seen: &Observation, member: &MemberName) -> Option<String> {
    let address = seen.machines.get()?.get(member)?.address?;
    Some(https_url(address, PEER_PORT))
}
