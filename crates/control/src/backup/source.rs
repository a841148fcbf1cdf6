//! The living cluster, read through the agents of its members. One source speaks to one member; which one that is, is decided by looking:
//! a healthy follower that is not behind disturbs clients least. Whoever finds it gone looks again.

use async_trait::async_trait;
use futures_util::StreamExt;
use quorate_agent::api::{ReadFailure, Refusal};
use quorate_agent::client::{AgentClient, ClientError};
use quorate_backup::source::{
    About, ChangeStream, Changes, Event, HashKv, Member, RangeQuery, RangeResult, SnapshotStream, Source, SourceError,
};
use quorate_core::model::{CLIENT_PORT, EtcdStatus, Ledger, MachineSeen, MemberName, Observation, https_url};
use quorate_core::planner::Decision;
use quorate_etcd::wire::WatchResponse;

use super::{BackupError, note};
use crate::brought::chain_of;
use crate::home::Home;
use crate::observe::Sight;
use crate::providers;
use crate::status::summarize;

/// All that can be read of a cluster. It does not take the lock.
pub(super) struct Members<'a> {
    home: &'a Home,
    /// As it was when it was looked last: members are replaced, and CAs renewed, while a recorder stays.
    ledger: Ledger,
    sight: Sight,
}

impl<'a> Members<'a> {
    pub fn new(home: &'a Home, ledger: &Ledger) -> Self {
        Members { home, ledger: ledger.clone(), sight: Sight::new(providers::provider(ledger, home)) }
    }

    /// Looks, and gives those who can be read, the best first.
    pub async fn readable(&mut self) -> Result<Vec<AgentSource>, BackupError> {
        self.ledger = note::ledger_of_now(self.home, &self.ledger);
        let seen = self.sight.glance(&self.ledger, None).await?;
        let ranked: Vec<MemberName> = ranked(&seen).into_iter().map(|(member, _)| member.clone()).collect();
        let sources: Vec<AgentSource> = ranked
            .iter()
            .filter_map(|member| {
                let about = about(&self.ledger, &seen, member)?;
                Some(AgentSource { agent: self.sight.part_with(member)?, about })
            })
            .collect();
        if sources.is_empty() {
            let cluster = self.ledger.spec.name.to_string();
            let summary = summarize(&self.ledger, &seen, &Decision::default()).summary;
            return Err(BackupError::NobodyToRead { cluster, summary });
        }
        Ok(sources)
    }
}

/// Healthy voters: followers before the leader, those that lag least first.
fn ranked(seen: &Observation) -> Vec<(&MemberName, &EtcdStatus)> {
    let statuses = seen.agents.keys().filter_map(|member| Some((member, seen.facts(member)?.etcd.status.as_ref()?)));
    let mut readable: Vec<_> = statuses.filter(|(_, status)| status.healthy && !status.is_learner).collect();
    readable.sort_by_key(|(member, status)| {
        (status.leader == status.member_id, std::cmp::Reverse(status.raft_applied_index), *member)
    });
    readable
}

fn about(ledger: &Ledger, seen: &Observation, from: &MemberName) -> Option<About> {
    let status = seen.facts(from)?.etcd.status.as_ref()?;
    let client_urls = |name: &str| {
        let machine: Option<&MachineSeen> = seen.machines.get().and_then(|machines| machines.get(&name.into()));
        machine.map(|machine| https_url(machine.address, CLIENT_PORT)).into_iter().collect()
    };
    let members = status.members.iter().map(|entry| Member {
        name: entry.name.clone(),
        id: format!("{:x}", entry.id),
        peer_urls: entry.peer_urls.clone(),
        client_urls: client_urls(&entry.name),
    });
    Some(About {
        cluster: ledger.spec.name.to_string(),
        cluster_id: ledger.cluster_id.clone(),
        etcd_version: status.version.clone(),
        from_member: from.to_string(),
        members: members.collect(),
    })
}

/// One member.
pub(super) struct AgentSource {
    agent: AgentClient,
    about: About,
}

impl AgentSource {
    pub fn member(&self) -> &str {
        &self.about.from_member
    }
}

#[async_trait]
impl Source for AgentSource {
    async fn about(&self) -> Result<About, SourceError> {
        Ok(self.about.clone())
    }

    async fn snapshot(&self) -> Result<SnapshotStream, SourceError> {
        let chunks = self.agent.snapshot().await.map_err(told)?;
        Ok(chunks.map(|chunk| chunk.map_err(told)).boxed())
    }

    async fn hash_kv(&self, revision: i64) -> Result<HashKv, SourceError> {
        self.agent.hash_kv(revision).await.map_err(told)
    }

    async fn changes(&self, from: i64) -> Result<ChangeStream, SourceError> {
        let answers = self.agent.changes(from).await.map_err(told)?;
        Ok(answers.map(|answer| answer.map(changes).map_err(told)).boxed())
    }

    async fn lease_ttl(&self, id: i64) -> Result<Option<i64>, SourceError> {
        self.agent.lease_ttl(id).await.map_err(told)
    }

    async fn range(&self, query: RangeQuery) -> Result<RangeResult, SourceError> {
        Ok(self.agent.range(&query.into()).await.map_err(told)?.into())
    }
}

fn changes(answer: WatchResponse) -> Changes {
    Changes {
        revision: answer.header.unwrap_or_default().revision,
        unfinished: answer.fragment,
        events: answer.events.into_iter().filter_map(Event::from_wire).collect(),
    }
}

fn told(error: ClientError) -> SourceError {
    match error {
        ClientError::Read(ReadFailure::Compacted { oldest }) => SourceError::Compacted { oldest },
        ClientError::Read(ReadFailure::Denied { why }) => SourceError::Denied(why),
        ClientError::Read(ReadFailure::Unavailable { why })
        | ClientError::Refused(Refusal::Failed { why })
        | ClientError::Unreachable { why, .. } => SourceError::Unreachable(why),
        ClientError::Read(ReadFailure::Other { why }) => SourceError::Other(why),
        error @ (ClientError::Refused(_) | ClientError::Protocol { .. } | ClientError::Tls(_)) => {
            SourceError::Other(chain_of(&error))
        }
    }
}
