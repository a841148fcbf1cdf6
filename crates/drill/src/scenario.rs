//! The scenarios of a drill: a fault, its target, and what clients may notice. Each kind lists its own.

use std::time::Duration;

use quorate_core::spec::Kind;
use serde::{Deserialize, Serialize};

use super::faults::Fault;
use super::kinds::{etcd, postgres};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scenario {
    pub kind: Kind,
    pub name: &'static str,
    pub fault: Option<Fault>,
    pub target: Target,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// The leader of etcd, the primary of PostgreSQL.
    Leader,
    /// A follower of etcd, a replica of PostgreSQL.
    Follower,
    /// The standby of PostgreSQL that commits wait for.
    Synchronous,
    /// A member that is being added: a learner of etcd, a clone of PostgreSQL. There is one only while a change is under way.
    Learner,
    /// Everyone but the leader, at once.
    Majority,
    /// Everyone, at once.
    All,
    /// Every member of the etcd cluster that PostgreSQL's Patroni uses, at once.
    Dcs,
    /// A majority of them.
    DcsMajority,
    /// `quorate apply` itself.
    Controller,
    /// Etcd's list of members.
    Membership,
}

/// What clients may notice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Downtime {
    #[default]
    /// Writes continue: clients of the member that fails use another.
    None,
    /// Writes stand still while a leader is elected.
    Election,
    /// Writes stand still while PostgreSQL restarts, hands over, or gets another synchronous standby.
    Switchover,
    /// Writes stand still until Patroni's lease has run out and a standby has taken over.
    Failover,
    /// The cluster cannot bridge the fault.
    Outage,
}

impl Downtime {
    /// The longest that writes may stand still. A busy host makes all of it slower, so these are bounds, not wishes.
    pub fn longest_gap(self) -> Option<Duration> {
        match self {
            Downtime::None => Some(Duration::from_secs(3)),
            Downtime::Election => Some(Duration::from_secs(10)),
            Downtime::Switchover => Some(Duration::from_secs(20)),
            Downtime::Failover => Some(Duration::from_secs(70)),
            Downtime::Outage => None,
        }
    }

    pub fn text(self) -> &'static str {
        match self {
            Downtime::None => "none",
            Downtime::Election => "seconds, while a leader is elected",
            Downtime::Switchover => "seconds, while PostgreSQL restarts or hands over",
            Downtime::Failover => "until Patroni's lease (`ttl`) has run out and a standby has taken over",
            Downtime::Outage => "until the member is back: the cluster cannot tolerate the loss",
        }
    }
}

/// Every scenario of a kind.
pub fn scenarios(kind: Kind) -> &'static [Scenario] {
    match kind {
        Kind::Etcd => etcd::SCENARIOS,
        Kind::Postgres => postgres::SCENARIOS,
    }
}

/// The default scenarios: all harmless to a cluster of three.
pub fn harmless(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Etcd => &["kill-follower", "term-leader", "kill-leader", "stop-follower"],
        Kind::Postgres => &["kill-replica", "kill-patroni-primary", "kill-primary"],
    }
}

impl Scenario {
    pub fn named(kind: Kind, name: &str) -> Option<Scenario> {
        scenarios(kind).iter().find(|s| s.name == name).copied()
    }

    fn target_text(&self) -> &'static str {
        match (self.target, self.kind) {
            (Target::Leader, Kind::Etcd) => "the leader",
            (Target::Leader, Kind::Postgres) => "the primary",
            (Target::Follower, Kind::Etcd) => "a follower",
            (Target::Follower, Kind::Postgres) => "a replica",
            (Target::Synchronous, _) => "the synchronous standby",
            (Target::Learner, Kind::Etcd) => "a learner",
            (Target::Learner, Kind::Postgres) => "a member that is being cloned",
            (Target::Majority, _) => "every member but the leader",
            (Target::All, _) => "every member",
            (Target::Dcs, _) => "every member of the etcd cluster",
            (Target::DcsMajority, _) => "a majority of the etcd cluster",
            (Target::Controller, _) => "the controller",
            (Target::Membership, _) => "the membership",
        }
    }

    /// The services on the affected machines.
    fn program(&self) -> &'static str {
        match (self.target, self.kind) {
            (Target::Dcs | Target::DcsMajority, _) | (_, Kind::Etcd) => "etcd",
            (_, Kind::Postgres) => "PostgreSQL",
        }
    }

    pub fn does(&self) -> String {
        let (target, program) = (self.target_text(), self.program());
        let all = if program == "etcd" { "agent and etcd" } else { "agent, Patroni and PostgreSQL" };
        match (self.fault, self.target) {
            (None, _) => String::from("nothing fails: only the traffic, and the change of --during"),
            (Some(Fault::Kill), Target::Controller) => {
                String::from("the controller is killed before and after each step, and run again")
            }
            (Some(_), Target::Controller) => String::from("the controller is stopped for a while in its first step"),
            (Some(Fault::Kill), _) => format!("{program} of {target} is killed"),
            (Some(Fault::KillPatroni), _) => format!("Patroni of {target} is killed; PostgreSQL continues"),
            (Some(Fault::Terminate), _) => format!("SIGTERM to {program} of {target}"),
            (Some(Fault::Stop), _) if program == "etcd" => format!("etcd of {target} is paused, then resumed"),
            (Some(Fault::Stop), _) => format!("Patroni and PostgreSQL of {target} are paused, then resumed"),
            (Some(Fault::StopPatroni), _) => {
                format!("Patroni of {target} is paused beyond its lease, then resumed; PostgreSQL continues")
            }
            (Some(Fault::Slow), _) => format!("Patroni and PostgreSQL of {target} run a fifth of the time for a while"),
            (Some(Fault::PowerCut), _) => format!("the power of {target} fails: {all} end at once"),
            (Some(Fault::Reboot), _) => format!("{target} is shut down in order, and switched on again"),
            (Some(Fault::Wipe), _) => format!("the power of {target} fails, and its data is lost"),
            (Some(Fault::OldData), _) => {
                format!("the power of {target} fails, and its data is an older copy afterwards")
            }
            (Some(Fault::Lose), _) => format!("the machine of {target} is lost permanently"),
            (Some(Fault::Ghost), _) => {
                String::from("a learner is added at an address where nothing answers, and stays for half a minute")
            }
            (Some(Fault::FullDisk), _) => format!("the disk of {target} is full for a while"),
            (Some(Fault::Partition), _) => format!("{target} is cut off for a while"),
            (Some(Fault::Delay), _) => format!("packets to and from {target} are delayed for a while"),
        }
    }

    /// Its requirements that not every cluster meets.
    pub fn needs(&self) -> Option<&'static str> {
        match (self.fault, self.target) {
            (Some(fault), _) if fault.needs_netns() => Some("network: netns"),
            (Some(Fault::FullDisk), _) => Some("root"),
            (Some(fault), _) if fault.must_be_first() => Some("to be --first"),
            (_, Target::Learner) => Some("--during a change that adds a member"),
            _ => None,
        }
    }

    /// How long the fault lasts, if it ends by itself.
    pub fn lasts(&self) -> Duration {
        match (self.kind, self.fault, self.target) {
            (_, None, _) => Duration::ZERO,
            (_, Some(fault), _) if !fault.lasts() => Duration::ZERO,
            (Kind::Etcd, ..) => Duration::from_secs(5),
            (Kind::Postgres, _, target) => postgres::lasts(target),
        }
    }

    /// What clients of a cluster with so many members may notice. A change moves the leader, if nothing else does.
    pub fn downtime(&self, members: usize, during_change: bool) -> Downtime {
        if self.kind == Kind::Postgres {
            return postgres::downtime(self, members, during_change);
        }
        match (self.fault, self.target) {
            (_, Target::Majority) => Downtime::Outage,
            _ if members < 3 && (self.fault.is_some() || during_change) => Downtime::Outage,
            (Some(_), Target::Leader) => Downtime::Election,
            _ if during_change => Downtime::Election,
            _ => Downtime::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_the_default_ones_exist() {
        for kind in [Kind::Etcd, Kind::Postgres] {
            let names: BTreeSet<&str> = scenarios(kind).iter().map(|s| s.name).collect();
            assert_eq!(names.len(), scenarios(kind).len());
            assert!(harmless(kind).iter().all(|name| names.contains(name)));
        }
    }

    #[test]
    fn downtime_is_expected_of_leaders_and_of_small_clusters() {
        let downtime = |name: &str, voters| Scenario::named(Kind::Etcd, name).unwrap().downtime(voters, false);
        assert_eq!(downtime("kill-follower", 3), Downtime::None);
        assert_eq!(downtime("kill-leader", 3), Downtime::Election);
        assert_eq!(downtime("kill-follower", 2), Downtime::Outage);
        assert_eq!(Scenario::named(Kind::Etcd, "calm").unwrap().downtime(3, true), Downtime::Election);
    }
}
