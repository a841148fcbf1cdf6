//! What is in progress and only needs time.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::mem::Discriminant;

use serde::Serialize;

use super::voters::healthy_of;
use crate::model::{FixtureId, LONGEST_PACKAGE_UPGRADE, MemberName};

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum WaitingFor {
    Provider {
        why: String,
    },
    /// The fixtures to be listed.
    Fixtures {
        why: String,
    },
    /// One of these to serve.
    Fixture {
        fixture: FixtureId,
        why: String,
    },
    Agent {
        member: MemberName,
        why: String,
    },
    /// A machine that is being switched off.
    MachineOff {
        member: MemberName,
    },
    /// An order that its agent is still carrying out: its effect is not visible yet.
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
    /// A service that exits again and again.
    ServiceToStay {
        member: MemberName,
        service: String,
        restarts: u32,
        how: String,
        last_words: String,
    },
    /// A PostgreSQL that is neither the primary nor streams from it yet.
    PostgresHealth {
        member: MemberName,
        why: String,
    },
    /// A member that is the primary, or one that can become it.
    Primary {
        why: String,
    },
    /// A backup to be restored next to a member's data.
    Restore {
        member: MemberName,
        doing: String,
    },
    /// Work in the background on a member's machine.
    Task {
        member: MemberName,
        doing: String,
    },
    /// The other members to stream before this one is disturbed.
    Standbys {
        member: MemberName,
        others: Vec<MemberName>,
    },
    /// The others must be healthy before this member may be disturbed.
    Turn {
        member: MemberName,
        voters: usize,
        healthy: usize,
    },
    /// A proxy to serve, or to release the clients that it keeps waiting.
    Proxy {
        member: MemberName,
        why: String,
    },
    /// A member list newer than the last change.
    Membership,
    /// A learner to catch up.
    Learner {
        member: MemberName,
        lag: u64,
    },
    /// The cluster version to follow the version that all members run.
    ClusterVersion {
        now: String,
        wanted: String,
    },
    /// The older format of the data, before a member may be downgraded.
    StorageVersion {
        member: MemberName,
        now: String,
        wanted: String,
    },
    /// What this member runs and which format its data has; or, without a member, the version that the cluster speaks.
    VersionSight {
        member: Option<MemberName>,
        wanted: String,
    },
    /// The log of this member to be read by its agent, or, where it was, a Raft snapshot after its last old entry.
    RaftSnapshot {
        member: MemberName,
        entry: Option<u64>,
    },
    AuthSight,
    /// A machine to reboot and its member to be healthy again. `upgrading` is how long its packages have been upgrading, in seconds.
    Reboot {
        member: MemberName,
        why: String,
        upgrading: Option<u64>,
    },
}

impl WaitingFor {
    pub fn member(&self) -> Option<&MemberName> {
        match self {
            WaitingFor::Provider { .. }
            | WaitingFor::Fixtures { .. }
            | WaitingFor::Fixture { .. }
            | WaitingFor::Membership
            | WaitingFor::Primary { .. }
            | WaitingFor::ClusterVersion { .. }
            | WaitingFor::AuthSight => None,
            WaitingFor::VersionSight { member, .. } => member.as_ref(),
            WaitingFor::Agent { member, .. }
            | WaitingFor::MachineOff { member }
            | WaitingFor::Order { member, .. }
            | WaitingFor::PeerPort { member }
            | WaitingFor::Health { member, .. }
            | WaitingFor::EtcdToStay { member, .. }
            | WaitingFor::ServiceToStay { member, .. }
            | WaitingFor::Standbys { member, .. }
            | WaitingFor::Restore { member, .. }
            | WaitingFor::Task { member, .. }
            | WaitingFor::PostgresHealth { member, .. }
            | WaitingFor::Learner { member, .. }
            | WaitingFor::StorageVersion { member, .. }
            | WaitingFor::RaftSnapshot { member, .. }
            | WaitingFor::Reboot { member, .. }
            | WaitingFor::Proxy { member, .. }
            | WaitingFor::Turn { member, .. } => Some(member),
        }
    }

    /// What is waited for, without its progress.
    pub fn subject(&self) -> Awaited {
        (std::mem::discriminant(self), self.member().cloned())
    }
}

/// One thing that is waited for: its kind and its member.
pub type Awaited = (Discriminant<WaitingFor>, Option<MemberName>);

/// The progress of one wait. Recurring waits do not count as progress: each thing counts once, when it is over for the first time,
/// so a wait without a step in between is bounded.
#[derive(Debug, Default)]
pub struct Outstanding {
    now: HashSet<Awaited>,
    over: HashSet<Awaited>,
    /// The least that each learner has lagged by.
    lags: BTreeMap<MemberName, u64>,
    /// The longest that packages were seen to be upgrading.
    upgrading: BTreeMap<MemberName, u64>,
}

impl Outstanding {
    /// Updates what is waited for now. Returns whether there is progress: something was over for the first time, a learner lags less than
    /// ever, or packages are still being upgraded.
    pub fn update(&mut self, waiting: &[WaitingFor]) -> bool {
        let now: HashSet<Awaited> = waiting.iter().map(WaitingFor::subject).collect();
        let over = self.now.difference(&now).filter(|awaited| self.over.insert((*awaited).clone())).count();
        self.now = now;
        let closer = waiting.iter().filter(|waiting| self.is_closer(waiting)).count();
        over + closer > 0
    }

    fn is_closer(&mut self, waiting: &WaitingFor) -> bool {
        if let WaitingFor::Reboot { member, upgrading: Some(seconds), .. } = waiting {
            return self.still_upgrades(member, *seconds);
        }
        let WaitingFor::Learner { member, lag } = waiting else { return false };
        let least = self.lags.entry(member.clone()).or_insert(u64::MAX);
        let closer = lag < least;
        *least = *lag.min(least);
        closer
    }

    /// An agent ends an upgrade that takes too long. If it does not, the wait ends too.
    fn still_upgrades(&mut self, member: &MemberName, seconds: u64) -> bool {
        let longest = self.upgrading.entry(member.clone()).or_default();
        let goes_on = seconds > *longest && i128::from(seconds) <= i128::from(LONGEST_PACKAGE_UPGRADE.as_secs());
        *longest = seconds.max(*longest);
        goes_on
    }
}

impl fmt::Display for WaitingFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitingFor::Provider { why } => write!(f, "the provider to answer: {why}"),
            WaitingFor::Fixtures { why } => write!(f, "load balancers and DNS records to be listed: {why}"),
            WaitingFor::Fixture { fixture, why } => write!(f, "{fixture} to serve: {why}"),
            WaitingFor::Agent { member, why } => write!(f, "the agent of {member} to answer: {why}"),
            WaitingFor::MachineOff { member } => write!(f, "the machine of {member} to be off: it is stopping"),
            WaitingFor::Order { member, order } => {
                write!(f, "the agent of {member} to finish an order of an earlier run: {order}")
            }
            WaitingFor::PeerPort { member } => write!(f, "etcd on {member} to answer its peers"),
            WaitingFor::Health { member, why } => write!(f, "etcd on {member} to be healthy: {why}"),
            WaitingFor::ServiceToStay { member, service, restarts, how, last_words } => {
                let times = if *restarts == 1 { String::from("once") } else { format!("{restarts} times") };
                write!(f, "{service} on {member} to stay up: it exited ({how}) and was restarted {times}")?;
                if last_words.trim().is_empty() { Ok(()) } else { write!(f, "; its last log line: {last_words}") }
            }
            WaitingFor::PostgresHealth { member, why } => write!(f, "PostgreSQL on {member} to be healthy: {why}"),
            WaitingFor::Primary { why } => write!(f, "a primary: {why}"),
            WaitingFor::Restore { member, doing } => write!(f, "the backup to be restored on {member}: {doing}"),
            WaitingFor::Task { member, doing } => write!(f, "{member}: {doing}"),
            WaitingFor::Standbys { member, others } => {
                let others = others.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                write!(f, "{others} to stream, before {member} is disturbed")
            }
            WaitingFor::EtcdToStay { member, restarts, how, last_words } => {
                let times = if *restarts == 1 { "once" } else { &format!("{restarts} times") };
                write!(f, "etcd on {member} to stay up: it exited ({how}) and was restarted {times}")?;
                match last_words.lines().rfind(|line| !line.trim().is_empty()) {
                    None => Ok(()),
                    Some(words) => write!(f, "; its last log line: {words}"),
                }
            }
            WaitingFor::Turn { member, voters, healthy } => {
                write!(f, "the others to be healthy, then {member} restarts: {} now", healthy_of(*healthy, *voters))
            }
            WaitingFor::Proxy { member, why } => write!(f, "{member}: {why}"),
            WaitingFor::Membership => write!(f, "a member list newer than the last membership change"),
            WaitingFor::Learner { member, lag } => {
                let entries = if *lag == 1 { "entry" } else { "entries" };
                write!(f, "the learner {member} to catch up: it lags by {lag} {entries}")
            }
            WaitingFor::ClusterVersion { now, wanted } => {
                write!(f, "the cluster version to match etcd {wanted}: it is still {now}")
            }
            WaitingFor::StorageVersion { member, now, wanted } => {
                write!(f, "{member} to write its data in the format of etcd {wanted}: it still has that of {now}")
            }
            WaitingFor::VersionSight { member: Some(member), wanted } => write!(
                f,
                "etcd on {member} to report its version and the format of its data: until then there is no downgrade to \
                 {wanted}"
            ),
            WaitingFor::VersionSight { member: None, wanted } => {
                write!(f, "the cluster to report its version: until then there is no downgrade to {wanted}")
            }
            WaitingFor::RaftSnapshot { member, entry: None } => {
                write!(
                    f,
                    "the agent of {member} to read etcd's log: etcd 3.7 cannot read what releases before 3.6 wrote"
                )
            }
            WaitingFor::RaftSnapshot { member, entry: Some(entry) } => {
                write!(f, "etcd on {member} to take a Raft snapshot after entry {entry} of its log")
            }
            WaitingFor::AuthSight => write!(f, "a healthy member to report users and roles"),
            WaitingFor::Reboot { member, why, .. } => write!(f, "the machine of {member} to reboot: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(member: &str) -> WaitingFor {
        WaitingFor::Health { member: member.into(), why: String::from("it does not answer yet") }
    }

    fn crash(member: &str, restarts: u32) -> WaitingFor {
        let (how, last_words) = (String::from("exit status: 1"), String::from("invalid value"));
        WaitingFor::EtcdToStay { member: member.into(), restarts, how, last_words }
    }

    #[test]
    fn an_etcd_that_crashes_again_and_again_is_no_progress() {
        let mut outstanding = Outstanding::default();
        let rounds = (1..100).flat_map(|n| {
            [
                vec![crash("e1", n)],
                vec![crash("e1", n), WaitingFor::AuthSight],
                vec![health("e1")],
                vec![health("e1"), WaitingFor::AuthSight],
            ]
        });
        let progress: Vec<bool> = rounds.map(|waiting| outstanding.update(&waiting)).collect();
        assert!(progress[8..].iter().all(|progress| !progress), "{progress:?}");
    }

    #[test]
    fn each_thing_that_is_over_is_progress_once() {
        let mut outstanding = Outstanding::default();
        assert!(!outstanding.update(&[health("e1"), health("e2")]));
        assert!(!outstanding.update(&[health("e1"), health("e2")]));
        assert!(outstanding.update(&[health("e1")]));
        assert!(!outstanding.update(&[health("e1"), health("e2")]));
        assert!(!outstanding.update(&[health("e1")]));
        assert!(outstanding.update(&[WaitingFor::Membership]));
    }

    #[test]
    fn a_learner_makes_progress_when_it_comes_closer_than_before() {
        let mut outstanding = Outstanding::default();
        let lags = [100, 100, 90, 95, 92, 91, 90, 89];
        let progress: Vec<bool> =
            lags.map(|lag| outstanding.update(&[WaitingFor::Learner { member: "e1".into(), lag }])).into();
        assert_eq!(progress, [true, false, true, false, false, false, false, true]);
    }

    #[test]
    fn packages_are_waited_for_as_long_as_they_upgrade_and_no_longer() {
        let mut outstanding = Outstanding::default();
        let mut update = |seconds| {
            let why = String::from("its packages upgrade");
            outstanding.update(&[WaitingFor::Reboot { member: "e1".into(), why, upgrading: Some(seconds) }])
        };
        let limit = LONGEST_PACKAGE_UPGRADE.as_secs().unsigned_abs();
        assert_eq!([1, 60, 60, 59, 61, limit].map(&mut update), [true, true, false, false, true, true]);
        assert_eq!([limit + 1, u64::MAX].map(update), [false, false]);
    }

    #[test]
    fn numbers_agree_with_their_nouns() {
        assert!(crash("e1", 1).to_string().contains("was restarted once"));
        assert!(crash("e1", 19).to_string().contains("was restarted 19 times; its last log line: invalid value"));
        let learner = |lag| WaitingFor::Learner { member: "e1".into(), lag }.to_string();
        assert!(learner(1).ends_with("it lags by 1 entry") && learner(2).ends_with("it lags by 2 entries"));
    }
}
