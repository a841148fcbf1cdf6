//! The scenarios of PostgreSQL clusters and of the etcd cluster below them, and what clients may notice.

use std::time::Duration;

use quorate_core::spec::Kind;

use crate::faults::Fault;
use crate::scenario::{Downtime, Scenario, Target};

/// Longer than Patroni's lease with the shortest `ttl` that it takes, so that another takes over meanwhile.
const BEYOND_THE_LEASE: Duration = Duration::from_secs(35);
const MINUTE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(8);

const fn on(name: &'static str, fault: Fault, target: Target) -> Scenario {
    Scenario { kind: Kind::Postgres, name, fault: Some(fault), target }
}

pub const SCENARIOS: &[Scenario] = &[
    Scenario { kind: Kind::Postgres, name: "calm", fault: None, target: Target::Follower },
    on("kill-primary", Fault::Kill, Target::Leader),
    on("kill-sync", Fault::Kill, Target::Synchronous),
    on("kill-replica", Fault::Kill, Target::Follower),
    on("kill-patroni-primary", Fault::KillPatroni, Target::Leader),
    on("kill-patroni-sync", Fault::KillPatroni, Target::Synchronous),
    on("kill-clone", Fault::KillPatroni, Target::Learner),
    on("kill-controller", Fault::Kill, Target::Controller),
    on("stop-primary", Fault::Stop, Target::Leader),
    on("stop-patroni-primary", Fault::StopPatroni, Target::Leader),
    on("stop-sync", Fault::Stop, Target::Synchronous),
    on("stop-replica", Fault::Stop, Target::Follower),
    on("stop-controller", Fault::Stop, Target::Controller),
    on("slow-primary", Fault::Slow, Target::Leader),
    on("slow-sync", Fault::Slow, Target::Synchronous),
    on("power-cut-primary", Fault::PowerCut, Target::Leader),
    on("power-cut-sync", Fault::PowerCut, Target::Synchronous),
    on("power-cut-replica", Fault::PowerCut, Target::Follower),
    on("power-cut-clone", Fault::PowerCut, Target::Learner),
    on("power-cut-all", Fault::PowerCut, Target::All),
    on("reboot-primary", Fault::Reboot, Target::Leader),
    on("reboot-sync", Fault::Reboot, Target::Synchronous),
    on("reboot-replica", Fault::Reboot, Target::Follower),
    on("wipe-primary", Fault::Wipe, Target::Leader),
    on("wipe-sync", Fault::Wipe, Target::Synchronous),
    on("wipe-replica", Fault::Wipe, Target::Follower),
    on("old-data-sync", Fault::OldData, Target::Synchronous),
    on("old-data-replica", Fault::OldData, Target::Follower),
    on("lose-primary", Fault::Lose, Target::Leader),
    on("lose-replica", Fault::Lose, Target::Follower),
    on("full-disk-primary", Fault::FullDisk, Target::Leader),
    on("full-disk-replica", Fault::FullDisk, Target::Follower),
    on("partition-primary", Fault::Partition, Target::Leader),
    on("partition-sync", Fault::Partition, Target::Synchronous),
    on("partition-replica", Fault::Partition, Target::Follower),
    on("partition-clone", Fault::Partition, Target::Learner),
    on("partition-dcs", Fault::Partition, Target::Dcs),
    on("kill-dcs", Fault::Kill, Target::Dcs),
    on("stop-dcs-majority", Fault::Stop, Target::DcsMajority),
];

pub fn lasts(target: Target) -> Duration {
    match target {
        Target::Leader | Target::Synchronous => BEYOND_THE_LEASE,
        Target::DcsMajority => MINUTE,
        _ => SHORT,
    }
}

/// With one synchronous standby, whatever happens to it holds writes up until there is another.
pub fn downtime(scenario: &Scenario, members: usize, during_change: bool) -> Downtime {
    let usual = match (scenario.fault, scenario.target) {
        (_, Target::All) => Downtime::Outage,
        (Some(_), _) if members < 3 => Downtime::Outage,
        (Some(Fault::FullDisk), _) => Downtime::Outage,
        (Some(Fault::KillPatroni), _) | (None, _) => Downtime::None,
        (Some(Fault::Kill | Fault::Reboot), Target::Leader | Target::Synchronous) => Downtime::Switchover,
        (Some(_), Target::Leader | Target::Synchronous) => Downtime::Failover,
        (Some(_), Target::Dcs | Target::DcsMajority) => Downtime::Switchover,
        (Some(_), _) => Downtime::None,
    };
    // A change moves roles about, so that the fault may strike where two members are missed at once.
    match (usual, during_change, scenario.fault) {
        (usual, false, _) => usual,
        (usual, true, None) => usual.max(Downtime::Switchover),
        (usual, true, Some(_)) if scenario.target == Target::Controller => usual.max(Downtime::Switchover),
        (usual, true, Some(_)) => usual.max(Downtime::Failover),
    }
}
