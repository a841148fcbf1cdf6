//! The cells: which change is combined with which fault. Combinations without a meaning, such as a learner's fault where no member joins,
//! are left out.

use std::fmt;

use anyhow::Result;

use super::Rehearsal;
use super::ground::Place;
use super::rehearsal::{self, Verdict};

/// A change of a living cluster, each a row of the table in docs/changes.md.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Only the fault.
    None,
    Settings,
    /// From one line of etcd to another.
    Version {
        from: Line,
        to: Line,
    },
    Scale {
        from: usize,
        to: usize,
    },
    Replace(Role),
    /// A member whose address the spec gives.
    ReplacePinned,
    /// A machine is gone permanently.
    DeadMachine(Role),
    WipedDisk,
    OldData,
    /// A learner was added at an address where nobody answers.
    GhostLearner,
    /// All machines but one are gone permanently.
    Recover,
    /// All members are restored from a backup that was taken under the traffic.
    Restore,
    /// A wiped disk, another version, other settings and other members.
    Several,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Leader,
    Follower,
}

/// A line of etcd releases, for which the lab has one version.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Line {
    V34,
    V35,
    V36,
    V37,
}

impl Line {
    pub fn minor(self) -> u32 {
        match self {
            Line::V34 => 4,
            Line::V35 => 5,
            Line::V36 => 6,
            Line::V37 => 7,
        }
    }
}

/// How clients and agents log in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Login {
    Certificate,
    SimpleToken,
    Jwt,
}

/// What clients may notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Downtime {
    /// Leaders move, and nothing else.
    None,
    /// Leaders are lost, or a member is, while another restarts.
    Election,
    /// The cluster cannot bridge it.
    Outage,
}

impl Downtime {
    /// The longest that writes may stand still, in seconds, on a busy host.
    pub fn longest_gap(self) -> f64 {
        match self {
            Downtime::None => 3.0,
            Downtime::Election => 10.0,
            Downtime::Outage => f64::INFINITY,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    pub change: Change,
    /// The scenario of `quorate drill`.
    pub fault: &'static str,
    /// Whether it is one of the fixed set.
    pub quick: bool,
}

/// A change, its faults of the fixed set, and its other ones.
type Row = (Change, &'static [&'static str], &'static [&'static str]);

const UPGRADE: Change = Change::Version { from: Line::V35, to: Line::V36 };
const DOWNGRADE: Change = Change::Version { from: Line::V36, to: Line::V35 };
const OLD_UPGRADE: Change = Change::Version { from: Line::V34, to: Line::V35 };
const NEW_UPGRADE: Change = Change::Version { from: Line::V36, to: Line::V37 };
const GROW: Change = Change::Scale { from: 3, to: 5 };
const SHRINK: Change = Change::Scale { from: 5, to: 3 };

#[rustfmt::skip]
const ROWS: &[Row] = &[
    (Change::None, &["kill-leader", "stop-leader", "full-disk-follower", "partition-leader"], &[
        "calm", "kill-controller", "stop-controller", "kill-follower", "term-leader", "term-follower", "stop-follower",
        "power-cut-leader", "power-cut-follower", "wipe-leader", "old-data-leader", "full-disk-leader",
        "partition-follower", "delay-leader", "delay-follower",
    ]),
    (Change::Settings, &["kill-controller", "power-cut-follower"], &[
        "calm", "stop-controller", "kill-leader", "kill-follower", "term-leader", "stop-leader", "stop-follower",
        "power-cut-leader", "wipe-follower", "old-data-follower", "full-disk-follower", "partition-leader",
        "partition-follower", "delay-leader",
    ]),
    (UPGRADE, &["kill-controller", "kill-leader"], &[
        "calm", "stop-controller", "kill-follower", "stop-leader", "power-cut-follower", "wipe-follower",
        "partition-follower",
    ]),
    (OLD_UPGRADE, &[], &["calm", "kill-controller", "power-cut-leader"]),
    (NEW_UPGRADE, &["kill-controller"], &["calm", "power-cut-leader"]),
    (DOWNGRADE, &["kill-controller", "power-cut-follower"], &["calm", "kill-leader"]),
    (Change::Scale { from: 1, to: 3 }, &["kill-controller"], &["calm", "stop-controller", "kill-learner"]),
    (GROW, &["kill-controller", "kill-learner"], &[
        "calm", "stop-controller", "kill-leader", "term-learner", "stop-learner", "power-cut-learner", "wipe-learner",
        "wipe-follower", "partition-learner", "delay-learner",
    ]),
    (SHRINK, &["kill-controller"], &["calm", "kill-leader", "stop-follower", "power-cut-follower"]),
    (Change::Scale { from: 3, to: 1 }, &["kill-controller"], &["calm"]),
    (Change::Replace(Role::Follower), &["kill-controller", "stop-controller", "wipe-learner"], &[
        "calm", "kill-leader", "kill-learner", "term-learner", "stop-learner", "power-cut-leader",
        "power-cut-learner", "partition-learner", "delay-learner", "delay-leader",
    ]),
    (Change::Replace(Role::Leader), &["kill-controller"], &[
        "calm", "stop-controller", "kill-leader", "kill-learner", "partition-leader",
    ]),
    (Change::ReplacePinned, &["kill-controller"], &["calm", "kill-learner"]),
    (Change::DeadMachine(Role::Follower), &["kill-controller"], &["calm", "stop-controller", "kill-learner"]),
    (Change::DeadMachine(Role::Leader), &[], &["calm", "kill-controller"]),
    (Change::WipedDisk, &["kill-controller"], &["calm", "stop-controller", "wipe-learner"]),
    (Change::OldData, &["kill-controller"], &["calm", "kill-learner"]),
    (Change::GhostLearner, &["kill-controller"], &["calm", "kill-leader"]),
    (Change::Recover, &["kill-controller", "stop-controller", "calm"], &[]),
    (Change::Restore, &["kill-controller", "stop-controller", "calm"], &["power-cut-follower"]),
    (Change::Several, &["kill-controller", "kill-leader"], &["calm", "power-cut-follower"]),
];

pub fn all() -> Vec<Cell> {
    let cells = |(change, quick, others): &Row| {
        let cell = |quick| move |fault: &&'static str| Cell { change: *change, fault, quick };
        quick.iter().map(cell(true)).chain(others.iter().map(cell(false))).collect::<Vec<Cell>>()
    };
    ROWS.iter().flat_map(cells).collect()
}

impl Rehearsal for Cell {
    fn is_quick(&self) -> bool {
        self.quick
    }

    fn rehearse(&self, place: &Place) -> Result<Verdict> {
        rehearsal::rehearse(place, self)
    }
}

impl Cell {
    /// Certificates, and passwords with both kinds of tokens, take turns, so that all of them meet every row and every kind of fault.
    pub fn login(&self) -> Login {
        match self.fault {
            "kill-controller" => Login::SimpleToken,
            "stop-controller" => Login::Jwt,
            _ => Login::Certificate,
        }
    }

    pub fn needs_namespaces(&self) -> bool {
        self.fault.starts_with("partition-") || self.fault.starts_with("delay-")
    }

    pub fn downtime(&self) -> Downtime {
        match self.change {
            Change::Scale { from: 1, .. } | Change::Recover | Change::Restore => Downtime::Outage,
            Change::DeadMachine(Role::Leader) => Downtime::Election,
            // A change moves leaders about, so that the fault may strike where two members are missed at once.
            _ if self.fault == "calm" || self.strikes("controller") => Downtime::None,
            Change::None if self.strikes("follower") => Downtime::None,
            _ => Downtime::Election,
        }
    }

    fn strikes(&self, target: &str) -> bool {
        self.fault.ends_with(target)
    }

    /// Its place among all cells.
    pub fn number(&self) -> usize {
        all().iter().position(|cell| cell == self).unwrap_or_default()
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {}", self.change, self.fault)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::None => write!(f, "none"),
            Change::Settings => write!(f, "settings"),
            Change::Version { from, to } => {
                let way = if from < to { "upgrade" } else { "downgrade" };
                write!(f, "{way}-3.{}-3.{}", from.minor(), to.minor())
            }
            Change::Scale { from, to } => write!(f, "scale-{from}-{to}"),
            Change::Replace(role) => write!(f, "replace-{role}"),
            Change::ReplacePinned => write!(f, "replace-pinned"),
            Change::DeadMachine(role) => write!(f, "dead-{role}"),
            Change::WipedDisk => write!(f, "wiped-disk"),
            Change::OldData => write!(f, "old-data"),
            Change::GhostLearner => write!(f, "ghost-learner"),
            Change::Recover => write!(f, "recover"),
            Change::Restore => write!(f, "restore"),
            Change::Several => write!(f, "several"),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Leader => "leader",
            Role::Follower => "follower",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::named;
    use super::*;

    #[test]
    fn every_change_meets_calm_and_a_killed_controller_and_almost_every_one_the_latter_in_the_fixed_set() {
        for (change, quick, others) in ROWS {
            let all: Vec<&str> = quick.iter().chain(*others).copied().collect();
            assert!(all.contains(&"calm") && all.contains(&"kill-controller"), "{change}");
            // Their like is there.
            let slow = ["none", "upgrade-3.4-3.5", "dead-leader"];
            assert!(quick.contains(&"kill-controller") || slow.contains(&change.to_string().as_str()), "{change}");
        }
    }

    #[test]
    fn recover_and_restore_meet_every_kind_of_login_in_the_fixed_set() {
        for change in [Change::Recover, Change::Restore] {
            let quick = all().into_iter().filter(|cell| cell.quick && cell.change == change);
            let logins: Vec<Login> = quick.map(|cell| cell.login()).collect();
            let has = |login| logins.contains(&login);
            assert!(has(Login::Certificate) && has(Login::SimpleToken) && has(Login::Jwt), "{change}: {logins:?}");
        }
    }

    #[test]
    fn names_are_unique_and_found() {
        let names: BTreeSet<String> = all().iter().map(Rehearsal::file_name).collect();
        assert_eq!(names.len(), all().len());
        assert!(all().into_iter().all(|cell| named(&all(), &cell.to_string()) == Some(cell)));
        assert_eq!(named(&all(), "upgrade-3.5-3.6 x calm").unwrap().change, UPGRADE);
        assert_eq!(named(&all(), "earthquake x calm"), None);
    }

    #[test]
    fn a_learner_is_struck_only_where_one_joins() {
        let joins = |change| !matches!(change, Change::None | Change::Settings | Change::Version { .. });
        assert!(all().iter().filter(|cell| cell.strikes("learner")).all(|cell| joins(cell.change)));
    }
}
