//! Changes of etcd's membership. Each is made only if a linearizable read just before it returns the expected member
//! list. An order that is repeated because its answer was lost gets the same answer as the first time.

use std::time::{Duration, Instant};

use quorate_core::kinds::etcd::Membership;
use quorate_etcd::{Client, Error, Member};

use crate::AgentError;
use crate::agent::Agent;
use crate::api::Refusal;

/// For about five seconds after a start or a change, etcd does not count its peers as connected and refuses to change them.
const SETTLING: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(200);

/// One change, and the list that it was decided on.
pub(crate) enum Change {
    AddLearner { peer_url: String },
    Promote { id: u64 },
    Remove { id: u64 },
}

impl Change {
    async fn make(&self, client: &Client) -> Result<(), Error> {
        match self {
            Change::AddLearner { peer_url } => client.member_add(vec![peer_url.clone()], true).await.map(drop),
            Change::Promote { id } => client.member_promote(*id).await,
            Change::Remove { id } => client.member_remove(*id).await,
        }
    }

    /// Whether what was expected has become what this change makes of it, and nothing else.
    fn is_made(&self, expects: &Membership, found: &[Member]) -> bool {
        let mut after = expects.clone();
        match self {
            Change::AddLearner { peer_url } => return is_added(expects, found, peer_url),
            Change::Promote { id } => drop(after.insert(*id, false)),
            Change::Remove { id } => drop(after.remove(id)),
        }
        in_short(found) == after
    }
}

impl Agent {
    /// Makes one change, once etcd is willing.
    pub(crate) async fn change_membership(&self, expects: &Membership, change: Change) -> Result<(), Refusal> {
        let client = self.etcd.access.client(&self.state.get())?;
        let begun = Instant::now();
        loop {
            let members = list(&client).await?;
            if change.is_made(expects, &members) {
                return Ok(());
            }
            check(expects, &members)?;
            // A later controller may have decided otherwise while etcd was not willing.
            self.check_still_obeyed()?;
            match change.make(&client).await {
                Ok(()) => return Ok(()),
                Err(Error::UnhealthyCluster) if begun.elapsed() < SETTLING => tokio::time::sleep(PAUSE).await,
                Err(Error::LearnerNotReady) => {
                    return Err(Refusal::Failed {
                        why: String::from("the learner is not in sync with the leader yet"),
                    });
                }
                Err(error) => return Err(AgentError::Etcd(error).into()),
            }
        }
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
