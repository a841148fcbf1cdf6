//! The scenarios of etcd clusters.

use quorate_core::spec::Kind;

use crate::faults::Fault;
use crate::scenario::{Scenario, Target};

const fn on(name: &'static str, fault: Fault, target: Target) -> Scenario {
    Scenario { kind: Kind::Etcd, name, fault: Some(fault), target }
}

pub const SCENARIOS: &[Scenario] = &[
    Scenario { kind: Kind::Etcd, name: "calm", fault: None, target: Target::Follower },
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
