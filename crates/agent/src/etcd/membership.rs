//! Changes of etcd's membership, each made only if the list is as expected when it is read with a quorum just before. An
//! order that was carried out and comes again, since its answer was lost, is answered as the first time.

use std::time::{Duration, Instant};

use quorate_core::model::Membership;
use quorate_etcd::{Client, Error, Member};

use crate::AgentError;
use crate::agent::Agent;
use crate::api::Refusal;

/// For about five seconds after a start or a change, etcd does not count its peers as connected and refuses to add to them.
const SETTLING: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(200);

impl Agent {
    pub(crate) async fn add_learner(&self, expects: &Membership, peer_url: String) -> Result<(), Refusal> {
        let client = self.access.client(&self.state.get())?;
        let begun = Instant::now();
        loop {
            let members = list(&client).await?;
            if is_added(expects, &members, &peer_url) {
                return Ok(());
            }
            check(expects, &members)?;
            match client.member_add(vec![peer_url.clone()], true).await {
                Ok(_) => return Ok(()),
                Err(Error::UnhealthyCluster) if begun.elapsed() < SETTLING => tokio::time::sleep(PAUSE).await,
                Err(error) => return Err(AgentError::Etcd(error).into()),
            }
        }
    }

    pub(crate) async fn promote(&self, expects: &Membership, id: u64) -> Result<(), Refusal> {
        let client = self.access.client(&self.state.get())?;
        let members = list(&client).await?;
        let mut promoted = expects.clone();
        promoted.insert(id, false);
        if in_short(&members) == promoted {
            return Ok(());
        }
        check(expects, &members)?;
        match client.member_promote(id).await {
            Err(Error::LearnerNotReady) => {
                Err(Refusal::Failed { why: format!("learner {id:x} is not in sync with the leader yet") })
            }
            done => Ok(done.map_err(AgentError::Etcd)?),
        }
    }

    pub(crate) async fn remove_member(&self, expects: &Membership, id: u64) -> Result<(), Refusal> {
        let client = self.access.client(&self.state.get())?;
        let members = list(&client).await?;
        let mut left = expects.clone();
        left.remove(&id);
        if in_short(&members) == left {
            return Ok(());
        }
        check(expects, &members)?;
        Ok(client.member_remove(id).await.map_err(AgentError::Etcd)?)
    }
}

/// The list as a quorum has agreed to it. etcd 3.4 always answers what this member knows, so a read that needs a quorum goes
/// before: what was agreed until then, this member knows afterwards.
async fn list(client: &Client) -> Result<Vec<Member>, AgentError> {
    client.linearizable_read_ok().await?;
    Ok(client.members(true).await?)
}

/// Whether what was expected has grown by this learner and nothing else.
fn is_added(expects: &Membership, found: &[Member], peer_url: &str) -> bool {
    let (before, new): (Vec<&Member>, Vec<&Member>) = found.iter().partition(|m| expects.contains_key(&m.id));
    let unchanged = before.len() == expects.len() && before.iter().all(|m| expects[&m.id] == m.is_learner);
    unchanged && matches!(new[..], [learner] if learner.is_learner && learner.peer_urls == [peer_url])
}

fn check(expects: &Membership, found: &[Member]) -> Result<(), Refusal> {
    let found = in_short(found);
    if found == *expects {
        return Ok(());
    }
    Err(Refusal::NotAsExpected { expected: in_words(expects), found: in_words(&found) })
}

fn in_short(members: &[Member]) -> Membership {
    members.iter().map(|m| (m.id, m.is_learner)).collect()
}

fn in_words(membership: &Membership) -> String {
    let list = |learners: bool| {
        let ids: Vec<_> =
            membership.iter().filter(|(_, is)| **is == learners).map(|(id, _)| format!("{id:x}")).collect();
        if ids.is_empty() { String::from("none") } else { ids.join(", ") }
    };
    format!("voters {}; learners {}", list(false), list(true))
}
