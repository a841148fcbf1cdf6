//! The running cluster, read through its agents. One source reads one member. It prefers a healthy follower that does not lag, because
//! reading it disturbs clients least. If that member fails, another one is chosen.

use async_trait::async_trait;
use futures_util::StreamExt;
use quorate_agent::api::{ReadFailure, Refusal};
use quorate_agent::client::{AgentClient, ClientError};
use quorate_backup::source::{
    About, ChangeStream, Changes, Event, HashKv, Member, RangeQuery, RangeResult, SnapshotStream, Source, SourceError,
};
use quorate_core::kinds::etcd::EtcdStatus;
use quorate_core::model::{CLIENT_PORT, Ledger, MachineSeen, MemberName, Observation, https_url};
use quorate_core::planner::Decision;
use quorate_etcd::wire::WatchResponse;

use crate::backup::{BackupError, note};
use crate::home::Home;
use crate::kinds::etcd::status::summarize;
use crate::run::observe::Observer;
use quorate_core::text::with_causes;

/// No member can be this many entries ahead of all others: they are observed within a few seconds.
const AHEAD: u64 = 1_000_000;

/// Read access to a cluster. It does not take the lock.
pub(super) struct Members<'a> {
    home: &'a Home,
    /// As last observed: members are replaced, and CAs renewed, while a recorder runs.
    ledger: Ledger,
    sight: Observer,
}

impl<'a> Members<'a> {
    pub fn new(home: &'a Home, ledger: &Ledger) -> Self {
        Members { home, ledger: ledger.clone(), sight: Observer::new(home.provider(ledger)) }
    }

    /// Observes, and returns the readable members, the best first.
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

/// Healthy voters: followers before the leader, those that lag least first. A member's own report never improves its place: no index
/// counts for more than the highest that another member reports, and an absurdly high one comes last.
fn ranked(seen: &Observation) -> Vec<(&MemberName, &EtcdStatus)> {
    let statuses = seen.agents.keys().filter_map(|member| Some((member, seen.facts(member)?.etcd.status.as_ref()?)));
    by_rank(statuses.filter(|(_, status)| status.healthy && !status.is_learner).collect())
}

fn by_rank<'a>(mut readable: Vec<(&'a MemberName, &'a EtcdStatus)>) -> Vec<(&'a MemberName, &'a EtcdStatus)> {
    let claims: Vec<_> = readable.iter().map(|(member, status)| (*member, status.raft_applied_index)).collect();
    let of_others = |member: &MemberName| {
        let others = claims.iter().filter(|(other, _)| *other != member).map(|(_, index)| *index);
        others.max().unwrap_or(u64::MAX)
    };
    readable.sort_by_key(|(member, status)| {
        let (own, others) = (status.raft_applied_index, of_others(member));
        let is_absurd = own > others.saturating_add(AHEAD);
        (is_absurd, status.leader == status.member_id, std::cmp::Reverse(own.min(others)), *member)
    });
    readable
}

fn about(ledger: &Ledger, seen: &Observation, from: &MemberName) -> Option<About> {
    let status = seen.facts(from)?.etcd.status.as_ref()?;
    let client_urls = |name: &str| {
        let machine: Option<&MachineSeen> = seen.machines.get().and_then(|machines| machines.get(&name.into()));
        machine.and_then(|machine| machine.address).map(|address| https_url(address, CLIENT_PORT)).into_iter().collect()
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
            SourceError::Other(with_causes(&error))
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_core::kinds::etcd::AuthLook;

    use super::*;

    fn status(member_id: u64, raft_applied_index: u64) -> EtcdStatus {
        EtcdStatus {
            member_id,
            cluster_id: 1,
            leader: 1,
            is_learner: false,
            healthy: true,
            version: String::new(),
            cluster_version: None,
            downgrade_target: None,
            storage_version: None,
            db_size: 0,
            db_size_in_use: 0,
            raft_term: 1,
            raft_index: raft_applied_index,
            raft_applied_index,
            revision: 1,
            members: Vec::new(),
            alarms: Vec::new(),
            auth: AuthLook::NotAsked,
        }
    }

    /// The order in which they are read, by their reported applied index. The first is the leader.
    fn order(indices: &[u64]) -> Vec<usize> {
        let members: Vec<(MemberName, EtcdStatus)> = indices
            .iter()
            .zip(1..)
            .map(|(index, id)| (format!("etcd-{id}").as_str().into(), status(id, *index)))
            .collect();
        let ranked = by_rank(members.iter().map(|(name, status)| (name, status)).collect());
        ranked.iter().map(|(_, status)| usize::try_from(status.member_id).unwrap()).collect()
    }

    #[test]
    fn the_follower_with_the_least_lag_is_read_and_a_claim_alone_is_ignored() {
        assert_eq!(order(&[100, 90, 99]), [3, 2, 1]);
        assert_eq!(order(&[100, 100, 103]), [2, 3, 1], "they are looked at one after the other");
        assert_eq!(order(&[100, 99, 1 << 40]), [2, 1, 3]);
        assert_eq!(order(&[1 << 40, 99, 98]), [2, 3, 1]);
        assert_eq!(order(&[7]), [1]);
    }
}
