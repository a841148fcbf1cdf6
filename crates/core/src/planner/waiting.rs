//! What is under way and needs nothing but time.

use std::fmt;

use serde::Serialize;

use crate::model::MemberName;

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum WaitingFor {
    Provider {
        why: String,
    },
    Agent {
        member: MemberName,
        why: String,
    },
    PeerPort {
        member: MemberName,
    },
    Health {
        member: MemberName,
        why: String,
    },
    EtcdToStay {
        member: MemberName,
        restarts: u32,
        how: String,
        last_words: String,
    },
    /// The others are to be healthy before this member may be disturbed.
    Turn {
        member: MemberName,
        voters: usize,
        healthy: usize,
    },
    AuthSight,
}

impl WaitingFor {
    pub fn member(&self) -> Option<&MemberName> {
        match self {
            WaitingFor::Provider { .. } | WaitingFor::AuthSight => None,
            WaitingFor::Agent { member, .. }
            | WaitingFor::PeerPort { member }
            | WaitingFor::Health { member, .. }
            | WaitingFor::EtcdToStay { member, .. }
            | WaitingFor::Turn { member, .. } => Some(member),
        }
    }
}

impl fmt::Display for WaitingFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitingFor::Provider { why } => write!(f, "the provider to answer: {why}"),
            WaitingFor::Agent { member, why } => write!(f, "the agent of {member} to answer: {why}"),
            WaitingFor::PeerPort { member } => write!(f, "etcd on {member} to answer its peers"),
            WaitingFor::Health { member, why } => write!(f, "etcd on {member} to be healthy: {why}"),
            WaitingFor::EtcdToStay { member, restarts, how, last_words } => {
                write!(f, "etcd on {member} to stay up: it ended ({how}) and was restarted {restarts} times")?;
                if last_words.is_empty() { Ok(()) } else { write!(f, "; its last words: {last_words}") }
            }
            WaitingFor::Turn { member, voters, healthy } => {
                write!(
                    f,
                    "the others to be healthy, then {member} restarts: {healthy} of {voters} voters are healthy now"
                )
            }
            WaitingFor::AuthSight => write!(f, "a healthy member to tell its users and roles"),
        }
    }
}
