//! Changes of etcd's membership, each made only if the list is as expected when it is read with a quorum just before.

use quorate_core::model::Membership;

use crate::AgentError;
use crate::agent::Agent;
use crate::api::Refusal;

impl Agent {
    pub(crate) async fn add_learner(&self, expects: &Membership, peer_url: String) -> Result<(), Refusal> {
        let client = self.access.client(&self.state.get())?;
        let members = client.members(true).await.map_err(AgentError::Etcd)?;
        if members.iter().any(|m| m.peer_urls.contains(&peer_url)) {
            return Ok(());
        }
        check(expects, &members)?;
        client.member_add(vec![peer_url], true).await.map_err(AgentError::Etcd)?;
        Ok(())
    }

    pub(crate) async fn promote(&self, expects: &Membership, id: u64) -> Result<(), Refusal> {
        let client = self.access.client(&self.state.get())?;
        let members = client.members(true).await.map_err(AgentError::Etcd)?;
        if members.iter().any(|m| m.id == id && !m.is_learner) {
            return Ok(());
        }
        check(expects, &members)?;
        Ok(client.member_promote(id).await.map_err(AgentError::Etcd)?)
    }

    pub(crate) async fn remove_member(&self, expects: &Membership, id: u64) -> Result<(), Refusal> {
        let client = self.access.client(&self.state.get())?;
        let members = client.members(true).await.map_err(AgentError::Etcd)?;
        if !members.iter().any(|m| m.id == id) {
            return Ok(());
        }
        check(expects, &members)?;
        Ok(client.member_remove(id).await.map_err(AgentError::Etcd)?)
    }
}

fn check(expects: &Membership, found: &[quorate_etcd::Member]) -> Result<(), Refusal> {
    let found: Membership = found.iter().map(|m| (m.id, m.is_learner)).collect();
    if found == *expects {
        return Ok(());
    }
    Err(Refusal::NotAsExpected { expected: in_words(expects), found: in_words(&found) })
}

fn in_words(membership: &Membership) -> String {
    let (learners, voters): (Vec<_>, Vec<_>) = membership.iter().partition(|(_, learner)| **learner);
    let list =
        |members: Vec<(&u64, &bool)>| members.iter().map(|(id, _)| format!("{id:x}")).collect::<Vec<_>>().join(", ");
    format!("voters {}; learners {}", list(voters), list(learners))
}
