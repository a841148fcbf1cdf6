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
    /// An order that its agent still carries out: what it changes is not seen yet.
    Order {
        member: MemberName,
        order: String,
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
    /// A list of members that is newer than the last change.
    Membership,
    /// A learner to catch up.
    Learner {
        member: MemberName,
        lag: u64,
    },
    /// What all members agree to speak, to follow the version that they run.
    ClusterVersion {
        now: String,
        wanted: String,
    },
    /// The format of the data, before a member may go back to the version that knows no other.
    StorageVersion {
        member: MemberName,
        now: String,
        wanted: String,
    },
    /// What this member runs and in which format its data lies; or, without one, what the cluster speaks.
    VersionSight {
        member: Option<MemberName>,
        wanted: String,
    },
    AuthSight,
}

impl WaitingFor {
    pub fn member(&self) -> Option<&MemberName> {
        match self {
            WaitingFor::Provider { .. }
            | WaitingFor::Membership
            | WaitingFor::ClusterVersion { .. }
            | WaitingFor::AuthSight => None,
            WaitingFor::VersionSight { member, .. } => member.as_ref(),
            WaitingFor::Agent { member, .. }
            | WaitingFor::Order { member, .. }
            | WaitingFor::PeerPort { member }
            | WaitingFor::Health { member, .. }
            | WaitingFor::EtcdToStay { member, .. }
            | WaitingFor::Learner { member, .. }
            | WaitingFor::StorageVersion { member, .. }
            | WaitingFor::Turn { member, .. } => Some(member),
        }
    }
}

impl fmt::Display for WaitingFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitingFor::Provider { why } => write!(f, "the provider to answer: {why}"),
            WaitingFor::Agent { member, why } => write!(f, "the agent of {member} to answer: {why}"),
            WaitingFor::Order { member, order } => {
                write!(f, "the agent of {member} to finish an order of an earlier run: {order}")
            }
            WaitingFor::PeerPort { member } => write!(f, "etcd on {member} to answer its peers"),
            WaitingFor::Health { member, why } => write!(f, "etcd on {member} to be healthy: {why}"),
            WaitingFor::EtcdToStay { member, restarts, how, last_words } => {
                write!(f, "etcd on {member} to stay up: it ended ({how}) and was restarted {restarts} times")?;
                match last_words.lines().last() {
                    None => Ok(()),
                    Some(words) => write!(f, "; its last words: {words}"),
                }
            }
            WaitingFor::Turn { member, voters, healthy } => {
                write!(
                    f,
                    "the others to be healthy, then {member} restarts: {healthy} of {voters} voters are healthy now"
                )
            }
            WaitingFor::Membership => write!(f, "a list of members that is newer than the last change of it"),
            WaitingFor::Learner { member, lag } => {
                write!(f, "the learner {member} to catch up: it lags by {lag} entries")
            }
            WaitingFor::ClusterVersion { now, wanted } => {
                write!(f, "the cluster version to follow: it is {now}, and is to be that of {wanted}")
            }
            WaitingFor::StorageVersion { member, now, wanted } => {
                write!(f, "the data of {member} to be written in the format of {wanted}: it is in that of {now}")
            }
            WaitingFor::VersionSight { member: Some(member), wanted } => write!(
                f,
                "etcd on {member} to tell what it runs and in which format its data lies: until then nothing goes down to {wanted}"
            ),
            WaitingFor::VersionSight { member: None, wanted } => {
                write!(f, "the cluster to tell which version it speaks: until then nothing goes down to {wanted}")
            }
            WaitingFor::AuthSight => write!(f, "a healthy member to tell its users and roles"),
        }
    }
}
