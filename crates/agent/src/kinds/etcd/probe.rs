//! etcd's status. While etcd starts, a prober polls it at short intervals and facts are answered from the result, so a
//! bring-up loses no time. Afterwards etcd is queried only when facts are requested, within limits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_core::kinds::etcd::{AlarmSeen, AuthLook, EtcdStatus, MemberEntry};
use quorate_etcd::{Client, Error, Member, Status};
use tokio::time::timeout;

use super::pages;
use super::prober::Look;
use crate::agent::Agent;

/// For each question of a look; they are asked at once.
const ANSWER: Duration = Duration::from_secs(1);
/// Most answers come within it.
const HEAD_START: Duration = Duration::from_millis(100);
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// An etcd that is not well by then is looked at when facts are asked for, like a steady one.
const PATIENCE: Duration = Duration::from_secs(60);

impl Agent {
    /// Asks an etcd that is starting until it is well.
    pub(super) fn begin_probing(self: &Arc<Self>) {
        let agent = self.clone();
        self.etcd.prober.begin(async move {
            agent.probe_until_healthy().await;
            agent.etcd.prober.forget();
        });
    }

    async fn probe_until_healthy(&self) {
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut look = Look::default();
        while begun.elapsed() < PATIENCE {
            let asked = Instant::now();
            if !look.peer_serving {
                look.peer_serving = self.peer_serves().await;
                if look.peer_serving {
                    self.etcd.service.first_start_succeeded();
                    self.etcd.prober.report(look.clone());
                    pause = FIRST_PAUSE;
                }
            }
            if look.peer_serving {
                look.status = self.ask_status().await.map(|(status, _)| status);
                look.peer_serving = look.status.is_some() || self.peer_serves().await;
                self.etcd.prober.report(look.clone());
            }
            if look.status.as_ref().is_some_and(|status| status.healthy) {
                tracing::info!(after = ?begun.elapsed(), "etcd is healthy");
                return;
            }
            // It answers no linearizable read, however well it is.
            if look.status.as_ref().is_some_and(|status| status.is_learner) {
                tracing::info!(after = ?begun.elapsed(), "etcd is a learner");
                return;
            }
            // Where answers are slow the machine is, and the questions take from etcd what it needs to start.
            tokio::time::sleep(pause.max(asked.elapsed().min(LONGEST_PAUSE))).await;
            pause = (pause * 5 / 4).min(LONGEST_PAUSE);
        }
    }

    /// What etcd says now, or what the prober last found.
    pub(crate) async fn look_at_etcd(self: &Arc<Self>) -> Look {
        if let Some(look) = self.etcd.prober.found() {
            return look;
        }
        let ((status, peer_serving), cluster_version) =
            tokio::join!(self.ask_status_or_peer(), self.ask_cluster_version());
        let Some((status, peers)) = status else { return Look { peer_serving, status: None } };
        if !status.members.is_empty() {
            self.remember_peers(peers);
        }
        Look { peer_serving, status: Some(EtcdStatus { cluster_version, ..status }) }
    }

    /// And whether peers are served, as they are before clients: only where clients wait for an answer that is asked too.
    async fn ask_status_or_peer(&self) -> (Option<(EtcdStatus, BTreeSet<String>)>, bool) {
        let mut status = std::pin::pin!(self.ask_status());
        if let Ok(status) = timeout(HEAD_START, &mut status).await {
            let peer_serving = status.is_some() || self.peer_serves().await;
            return (status, peer_serving);
        }
        let (status, peer_serving) = tokio::join!(status, self.peer_serves());
        let peer_serving = peer_serving || status.is_some();
        (status, peer_serving)
    }

    /// And the endpoints of the other members.
    async fn ask_status(&self) -> Option<(EtcdStatus, BTreeSet<String>)> {
        let client = self.etcd.access.client(&self.state.get()).ok()?;
        let (status, healthy, members) = tokio::join!(
            timeout(ANSWER, client.status()),
            timeout(ANSWER, client.linearizable_read_ok()),
            timeout(ANSWER, client.members(false)),
        );
        let members = members.ok().and_then(Result::ok);
        let status = match status {
            Ok(Ok(status)) => Some(in_our_words(status)),
            // A learner logs nobody in, and from 3.5.30 on it reports its status only to an administrator.
            Ok(Err(Error::Unauthenticated(_) | Error::PermissionDenied | Error::NotForLearner)) => {
                let (url, config) = self.etcd.access.pages(&self.state.get())?;
                pages::status(&url, config, ANSWER).await
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "etcd gives no status");
                None
            }
            Err(_) => None,
        };
        let mut status = status?;
        status.healthy = matches!(healthy, Ok(Ok(())));
        let members = match members {
            Some(members) => members,
            // What the pages show is not enough: one that got its membership by a snapshot does not count itself a learner there.
            None => {
                let (cluster_id, members) = self.ask_peer_page().await.unwrap_or((status.cluster_id, Vec::new()));
                status.cluster_id = cluster_id;
                status.is_learner |= members.iter().any(|m| m.id == status.member_id && m.is_learner);
                members
            }
        };
        let others = members.iter().filter(|member| member.id != status.member_id);
        let peers = others.flat_map(|member| member.client_urls.iter().cloned()).collect();
        status.members = members.into_iter().map(member_in_our_words).collect();
        Some((status, peers))
    }

    pub(super) async fn ask_cluster_version(&self) -> Option<String> {
        let (url, config) = self.etcd.access.pages(&self.state.get())?;
        pages::cluster_version(&url, config, ANSWER).await
    }

    async fn peer_serves(&self) -> bool {
        self.ask_peer_page().await.is_some()
    }

    /// The cluster's number and its members, as etcd reports them to its peers.
    async fn ask_peer_page(&self) -> Option<(u64, Vec<Member>)> {
        let (url, config) = self.etcd.access.peer(&self.state.get())?;
        pages::members(&url, config, ANSWER).await
    }

    /// Whether a linearizable read is answered, for the health page.
    pub(crate) async fn etcd_health(&self) -> Result<(), &'static str> {
        let client = self.etcd.access.client(&self.state.get()).map_err(|_| "etcd is not set up")?;
        match timeout(ANSWER, client.linearizable_read_ok()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(quorate_etcd::Error::NoLeader)) => Err("etcd has no leader"),
            Ok(Err(quorate_etcd::Error::Unreachable { .. })) => Err("etcd does not run"),
            Ok(Err(_)) => Err("etcd refuses to read"),
            Err(_) => Err("etcd does not answer in time"),
        }
    }
}

fn in_our_words(status: Status) -> EtcdStatus {
    let size = |bytes: i64| u64::try_from(bytes).unwrap_or_default();
    EtcdStatus {
        member_id: status.member_id,
        cluster_id: status.cluster_id,
        leader: status.leader,
        is_learner: status.is_learner,
        healthy: false,
        version: status.version,
        cluster_version: None,
        downgrade_target: status.downgrade_target,
        storage_version: status.storage_version,
        db_size: size(status.db_size),
        db_size_in_use: size(status.db_size_in_use),
        raft_term: status.raft_term,
        raft_index: status.raft_index,
        raft_applied_index: status.raft_applied_index,
        revision: size(status.revision),
        members: Vec::new(),
        alarms: status.errors.iter().filter_map(|error| alarm_in(error)).collect(),
        auth: AuthLook::NotAsked,
    }
}

fn member_in_our_words(member: Member) -> MemberEntry {
    let Member { id, name, peer_urls, is_learner, client_urls: _ } = member;
    MemberEntry { id, name, peer_urls, is_learner }
}

/// Status lists alarms as text, `memberID:7 alarm:NOSPACE`. Asking for them in their own call would write to the raft log
/// each time, and needs a quorum.
fn alarm_in(text: &str) -> Option<AlarmSeen> {
    let field = |name: &str| text.split_whitespace().find_map(|word| word.strip_prefix(name));
    Some(AlarmSeen { member_id: field("memberID:")?.parse().ok()?, kind: field("alarm:")?.to_owned() })
}

/// Lists users and roles: only when asked for, as etcd sends each of these questions through its log.
pub(crate) async fn ask_auth(client: &Client) -> AuthLook {
    match timeout(super::auth::LOOK, super::auth::look(client)).await {
        Ok(Ok(seen)) => AuthLook::Seen(seen),
        // The caller waits and asks again.
        Err(_) | Ok(Err(Error::Timeout | Error::NoLeader | Error::Unavailable { .. } | Error::Unreachable { .. })) => {
            AuthLook::NotAsked
        }
        Ok(Err(error)) => AuthLook::Failed { why: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_are_read_from_the_text_of_the_status() {
        let expected = AlarmSeen { member_id: 10_501_334_649_042_878_790, kind: String::from("NOSPACE") };
        assert_eq!(alarm_in("memberID:10501334649042878790 alarm:NOSPACE "), Some(expected.clone()));
        assert_eq!(alarm_in("memberID:10501334649042878790  alarm:NOSPACE"), Some(expected));
        assert_eq!(alarm_in("etcdserver: no leader"), None);
    }
}
