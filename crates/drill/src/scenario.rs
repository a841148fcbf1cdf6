//! The scenarios that a drill knows: a fault, where it strikes, and whether clients may notice.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::faults::Fault;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub fault: Option<Fault>,
    pub target: Target,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    Leader,
    Follower,
    /// There is one only while a change is under way.
    Learner,
    /// Everyone but the leader, at once.
    Majority,
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
    /// The cluster cannot bridge the fault.
    Outage,
}

impl Downtime {
    /// The longest that writes may stand still. A busy host makes all of it slower, so these are bounds, not wishes.
    pub fn longest_gap(self) -> Option<Duration> {
        match self {
            Downtime::None => Some(Duration::from_secs(3)),
            Downtime::Election => Some(Duration::from_secs(10)),
            Downtime::Outage => None,
        }
    }

    pub fn text(self) -> &'static str {
        match self {
            Downtime::None => "none",
            Downtime::Election => "seconds, while a leader is elected",
            Downtime::Outage => "until the member is back: the cluster cannot bridge it",
        }
    }
}

const fn on(name: &'static str, fault: Fault, target: Target) -> Scenario {
    Scenario { name, fault: Some(fault), target }
}

pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "calm", fault: None, target: Target::Follower },
    on("kill-leader", Fault::Kill, Target::Leader),
    on("kill-follower", Fault::Kill, Target::Follower),
    on("kill-learner", Fault::Kill, Target::Learner),
    on("kill-controller", Fault::Kill, Target::Controller),
    on("term-leader", Fault::Terminate, Target::Leader),
    on("term-follower", Fault::Terminate, Target::Follower),
    on("term-learner", Fault::Terminate, Target::Learner),
    on("stop-leader", Fault::Stop, Target::Leader),
    on("stop-follower", Fault::Stop, Target::Follower),
    on("stop-learner", Fault::Stop, Target::Learner),
    on("stop-controller", Fault::Stop, Target::Controller),
    on("power-cut-leader", Fault::PowerCut, Target::Leader),
    on("power-cut-follower", Fault::PowerCut, Target::Follower),
    on("power-cut-learner", Fault::PowerCut, Target::Learner),
    on("wipe-leader", Fault::Wipe, Target::Leader),
    on("wipe-follower", Fault::Wipe, Target::Follower),
    on("wipe-learner", Fault::Wipe, Target::Learner),
    on("old-data-leader", Fault::OldData, Target::Leader),
    on("old-data-follower", Fault::OldData, Target::Follower),
    on("lose-leader", Fault::Lose, Target::Leader),
    on("lose-follower", Fault::Lose, Target::Follower),
    on("lose-majority", Fault::Lose, Target::Majority),
    on("ghost-learner", Fault::Ghost, Target::Membership),
    on("full-disk-leader", Fault::FullDisk, Target::Leader),
    on("full-disk-follower", Fault::FullDisk, Target::Follower),
    on("partition-leader", Fault::Partition, Target::Leader),
    on("partition-follower", Fault::Partition, Target::Follower),
    on("partition-learner", Fault::Partition, Target::Learner),
    on("delay-leader", Fault::Delay, Target::Leader),
    on("delay-follower", Fault::Delay, Target::Follower),
    on("delay-learner", Fault::Delay, Target::Learner),
];

/// What is rehearsed when nothing is named: all of it harmless to a cluster of three.
pub const DEFAULT: [&str; 4] = ["kill-follower", "term-leader", "kill-leader", "stop-follower"];

impl Scenario {
    pub fn named(name: &str) -> Option<Scenario> {
        SCENARIOS.iter().find(|s| s.name == name).copied()
    }

    pub fn does(&self) -> String {
        let target = match self.target {
            Target::Leader => "the leader",
            Target::Follower => "a follower",
            Target::Learner => "a learner",
            Target::Majority => "every member but the leader",
            Target::Controller => "the controller",
            Target::Membership => "the membership",
        };
        match (self.fault, self.target) {
            (None, _) => String::from("nothing fails: only the traffic, and the change that is given"),
            (Some(Fault::Kill), Target::Controller) => {
                String::from("the controller is killed before and after each step, and run again")
            }
            (Some(_), Target::Controller) => String::from("the controller is stopped for a while in its first step"),
            (Some(Fault::Kill), _) => format!("{target}'s etcd is killed"),
            (Some(Fault::Terminate), _) => format!("SIGTERM to {target}'s etcd"),
            (Some(Fault::Stop), _) => format!("{target}'s etcd is paused, then resumed"),
            (Some(Fault::PowerCut), _) => format!("the power of {target} fails: agent and etcd end at once"),
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

    /// What it needs that not every cluster has.
    pub fn needs(&self) -> Option<&'static str> {
        match (self.fault, self.target) {
            (Some(fault), _) if fault.needs_netns() => Some("network: netns"),
            (Some(Fault::FullDisk), _) => Some("root"),
            (Some(fault), _) if fault.must_be_first() => Some("to be --first"),
            (_, Target::Learner) => Some("--during a change that adds a member"),
            _ => None,
        }
    }

    /// What clients of a cluster with so many voters may notice. A change moves the leader, if nothing else does.
    pub fn downtime(&self, voters: usize, during_change: bool) -> Downtime {
        match (self.fault, self.target) {
            (_, Target::Majority) => Downtime::Outage,
            _ if voters < 3 && (self.fault.is_some() || during_change) => Downtime::Outage,
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
        let names: BTreeSet<&str> = SCENARIOS.iter().map(|s| s.name).collect();
        assert_eq!(names.len(), SCENARIOS.len());
        assert!(DEFAULT.iter().all(|name| names.contains(name)));
    }

    #[test]
    fn downtime_is_expected_of_leaders_and_of_small_clusters() {
        let downtime = |name: &str, voters| Scenario::named(name).unwrap().downtime(voters, false);
        assert_eq!(downtime("kill-follower", 3), Downtime::None);
        assert_eq!(downtime("kill-leader", 3), Downtime::Election);
        assert_eq!(downtime("kill-follower", 2), Downtime::Outage);
        assert_eq!(Scenario::named("calm").unwrap().downtime(3, true), Downtime::Election);
    }
}
