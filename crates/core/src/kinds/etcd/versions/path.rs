//! The path from one etcd release to another: whether one exists, and by which procedure. The rules of etcd's upgrade
//! and downgrade guides are rows of a table, one for each pair of neighbouring minor versions; a refusal names the next
//! stop. Knows only releases, never the state of a cluster.

use super::{Gate, KNOWN_MINORS, gate};
use crate::model::Version;

/// The path from one release to another. Each is a rolling restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    Same,
    /// Within a minor, to a later or an earlier patch release. The cluster version stays as it is.
    ///
    /// Down is allowed too: data and protocol are versioned by minor alone, so nothing is to be converted. What the
    /// earlier release has as known defects, the gate says.
    Patch,
    /// To the next minor. The cluster version follows once every member runs the new release.
    Up,
    /// To the minor before, by etcd's own procedure: `downgrade enable` first, and no member restarts with the older
    /// release before the storage version of all has followed.
    Down,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct PathRefused {
    pub why: String,
    /// What the operator can do instead.
    pub remedy: String,
}

/// Two neighbouring minors of etcd 3 and what a cluster needs in which both run, whichever way it goes.
struct Border {
    lower: u32,
    /// The first patch release of the lower minor next to which the upper one may run.
    lower_patch: u32,
    /// Why there is no downgrade across this border.
    no_way_down: Option<NoWayDown>,
}

struct NoWayDown {
    why: &'static str,
    why_with_auth: &'static str,
    remedy: &'static str,
}

const BORDERS: [Border; 3] = [
    Border {
        lower: 4,
        lower_patch: 0,
        no_way_down: Some(NoWayDown {
            why: "3.5 has no procedure for downgrading to 3.4: only 3.4.32 and later can start on its data, with a \
                  flag of their own, and the 3.4 line gets no more fixes",
            why_with_auth: "authentication is on, and 3.4 cannot read what 3.5 wrote to its log about users; without \
                            it, only 3.4.32 and later could start, and the 3.4 line gets no more fixes",
            remedy: "form a new 3.4 cluster and copy the keys into it",
        }),
    },
    Border { lower: 5, lower_patch: 26, no_way_down: None },
    Border { lower: 6, lower_patch: 11, no_way_down: None },
];

impl Border {
    /// The border above this minor.
    fn above(minor: u32) -> Option<&'static Self> {
        BORDERS.iter().find(|border| border.lower == minor)
    }

    fn least(&self) -> Version {
        Version::new(3, self.lower, self.lower_patch)
    }
}

/// The way from the release that a cluster runs to another. `auth`: whether authentication is on. A release that may
/// not be asked for can still be where the way begins.
pub fn path(from: Version, to: Version, auth: bool) -> Result<Path, PathRefused> {
    if from == to {
        return Ok(Path::Same);
    }
    if let Gate::Refused(why) = gate(to) {
        return Err(PathRefused { why, remedy: format!("keep {from}, or ask for another release") });
    }
    if from.major != 3 || !KNOWN_MINORS.contains(&from.minor) {
        return Err(PathRefused {
            why: format!("the cluster runs etcd {from}, and this quorate supports no upgrade path from it"),
            remedy: format!("bring it to a release between 3.{} and 3.{} first", KNOWN_MINORS[0], KNOWN_MINORS[3]),
        });
    }
    if to.minor == from.minor {
        Ok(Path::Patch)
    } else if to.minor > from.minor {
        up(from, to)
    } else {
        down(from, to, auth)
    }
}

fn up(from: Version, to: Version) -> Result<Path, PathRefused> {
    if let Some(border) = Border::above(from.minor).filter(|border| from < border.least()) {
        let (least, next) = (border.least(), from.minor + 1);
        let line = from.line();
        let why = format!("{from} → {to}: before 3.{next} every member must run {least} or a later {line}");
        return Err(PathRefused { why, remedy: next_stop(&line, least) });
    }
    if to.minor == from.minor + 1 {
        return Ok(Path::Up);
    }
    let why = format!(
        "{from} → {to}: etcd upgrades one minor at a time; upgrade to {} first",
        lines(from.minor + 1..to.minor)
    );
    Err(PathRefused { why, remedy: next_stop(&format!("3.{}", from.minor + 1), least_stop(from.minor + 1)) })
}

fn down(from: Version, to: Version, auth: bool) -> Result<Path, PathRefused> {
    let closed = (to.minor..from.minor).rev().filter_map(Border::above).find_map(|border| border.no_way_down.as_ref());
    if let Some(closed) = closed {
        let NoWayDown { why, why_with_auth, remedy } = closed;
        let why = format!("{from} → {to}: {}", if auth { why_with_auth } else { why });
        return Err(PathRefused { why, remedy: format!("stay on {}, or {remedy}", from.line()) });
    }
    if to.minor + 1 < from.minor {
        let why = format!(
            "{from} → {to}: etcd is downgraded one minor version at a time; go through {}",
            lines(to.minor + 1..from.minor)
        );
        return Err(PathRefused {
            why,
            remedy: next_stop(&format!("3.{}", from.minor - 1), least_stop(from.minor - 1)),
        });
    }
    if let Some(border) = Border::above(to.minor).filter(|border| to < border.least()) {
        let (least, line) = (border.least(), from.line());
        let why =
            format!("{from} → {to}: both run side by side on the way, and next to {line} it must be {least} or later");
        return Err(PathRefused { why, remedy: next_stop(&to.line(), least) });
    }
    Ok(Path::Down)
}

/// The first patch release of a minor from which, or to which, the path continues.
fn least_stop(minor: u32) -> Version {
    Border::above(minor).map_or(Version::new(3, minor, 0), Border::least)
}

fn next_stop(line: &str, least: Version) -> String {
    format!("set `etcd.version` to {least} or a later {line} next")
}

fn lines(minors: std::ops::Range<u32>) -> String {
    minors.map(|minor| format!("3.{minor}.x")).collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(from: &str, to: &str) -> Result<Path, PathRefused> {
        path(from.parse().unwrap(), to.parse().unwrap(), false)
    }

    fn refused(from: &str, to: &str) -> (String, String) {
        let PathRefused { why, remedy } = way(from, to).expect_err("a refusal");
        (why, remedy)
    }

    #[test]
    fn the_ways_that_exist() {
        for (from, to, expected) in [
            ("3.6.14", "3.6.14", Path::Same),
            ("3.5.30", "3.5.33", Path::Patch),
            ("3.5.30", "3.5.16", Path::Patch),
            ("3.5.1", "3.5.33", Path::Patch),
            ("3.4.0", "3.5.3", Path::Up),
            ("3.4.23", "3.5.30", Path::Up),
            ("3.5.26", "3.6.0", Path::Up),
            ("3.6.11", "3.7.0", Path::Up),
            ("3.7.3", "3.6.11", Path::Down),
            ("3.6.0", "3.5.26", Path::Down),
        ] {
            assert_eq!(way(from, to), Ok(expected), "{from} → {to}");
        }
    }

    #[test]
    fn two_minors_at_once_are_refused_with_the_next_stop() {
        let (why, remedy) = refused("3.4.23", "3.7.3");
        assert_eq!(why, "3.4.23 → 3.7.3: etcd upgrades one minor at a time; upgrade to 3.5.x and 3.6.x first");
        assert_eq!(remedy, "set `etcd.version` to 3.5.26 or a later 3.5 next");
        assert_eq!(refused("3.5.30", "3.7.3").1, "set `etcd.version` to 3.6.11 or a later 3.6 next");
        let (why, remedy) = refused("3.7.3", "3.5.30");
        assert_eq!(why, "3.7.3 → 3.5.30: etcd is downgraded one minor version at a time; go through 3.6.x");
        assert_eq!(remedy, "set `etcd.version` to 3.6.11 or a later 3.6 next");
    }

    #[test]
    fn the_lower_side_of_a_border_must_be_new_enough_both_ways() {
        let (why, remedy) = refused("3.5.25", "3.6.16");
        assert_eq!(why, "3.5.25 → 3.6.16: before 3.6 every member must run 3.5.26 or a later 3.5");
        assert_eq!(remedy, "set `etcd.version` to 3.5.26 or a later 3.5 next");
        // A release in a refused range has the same remedy.
        assert_eq!(refused("3.5.1", "3.7.3").1, "set `etcd.version` to 3.5.26 or a later 3.5 next");
        assert!(refused("3.6.10", "3.7.0").0.contains("3.6.11"));
        let (why, remedy) = refused("3.7.3", "3.6.10");
        assert!(why.contains("next to 3.7 it must be 3.6.11 or later"), "{why}");
        assert_eq!(remedy, "set `etcd.version` to 3.6.11 or a later 3.6 next");
        assert!(refused("3.6.16", "3.5.16").0.contains("3.5.26"));
    }

    #[test]
    fn no_path_downgrades_to_3_4() {
        for from in ["3.5.30", "3.6.16", "3.7.3"] {
            let (why, remedy) = refused(from, "3.4.45");
            let stay = format!("stay on {}", &from[..3]);
            assert!(why.contains("3.4.32") && remedy.contains(&stay), "{why}; {remedy}");
        }
        let with_auth = path("3.5.30".parse().unwrap(), "3.4.45".parse().unwrap(), true).expect_err("a refusal");
        assert!(with_auth.why.contains("authentication is on"), "{with_auth}");
        assert_eq!(way("3.4.45", "3.4.23"), Ok(Path::Patch));
    }

    #[test]
    fn a_release_that_the_gate_refuses_is_no_goal() {
        assert!(refused("3.4.23", "3.5.2").0.contains("corrupt"));
        assert!(refused("3.7.3", "3.8.0").0.contains("not supported"));
        assert!(refused("3.3.27", "3.4.45").0.contains("supports no upgrade path from it"));
        assert!(refused("3.8.0", "3.7.3").1.contains("between 3.4 and 3.7"));
    }
}
