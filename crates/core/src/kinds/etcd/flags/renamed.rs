//! Flags that etcd has renamed or turned into feature gates, and how to write a given flag for one release. A name that
//! the release knows stays as it is, because a changed command line requires a restart. etcd does not start if a
//! setting is given under both names, so only one is written.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::{FEATURE_GATES, Knowledge, knowledge};
use crate::kinds::etcd::spec::FlagValue;
use crate::model::Version;

/// A flag and its replacement in a later minor version: another flag, or a feature gate as `feature-gates=NAME`.
struct Row {
    older: &'static str,
    newer: &'static str,
}

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let rows = include_str!("renamed.tsv").lines().filter(|line| !line.starts_with('#'));
    rows.filter_map(|row| row.split_once('\t')).map(|(older, newer)| Row { older, newer }).collect()
});

/// The operator's flags as written for one release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Translation {
    pub flags: BTreeMap<String, String>,
    pub renamed: Vec<Renamed>,
    /// Settings that are given under both names with different values; they stay in `flags` as given.
    pub conflicts: Vec<Conflict>,
}

/// A setting that is written under another name than the operator used. Names of feature gates are `feature-gates=NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renamed {
    pub given: &'static str,
    pub written: &'static str,
    /// Whether the release knows the given name, which is left out only because the other one is given too.
    pub doubled: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub older: &'static str,
    pub older_value: String,
    pub newer: &'static str,
    pub newer_value: String,
}

/// How these flags are written for this release.
pub fn translate(given: &BTreeMap<String, FlagValue>, version: Version) -> Translation {
    let mut settings = Settings::read(given);
    let (mut renamed, mut conflicts) = (Vec::new(), Vec::new());
    let known = |name: &str| knowledge(name, version) == Knowledge::Known;
    for Row { older, newer } in ROWS.iter() {
        let (older_value, newer_value) = (settings.get(older), settings.get(newer));
        let (value, doubled) = match (older_value, newer_value) {
            (None, None) => continue,
            (Some(_), None) if known(older) => continue,
            (None, Some(_)) if known(newer) => continue,
            (Some(a), Some(b)) if !same(a, b) => {
                let (older_value, newer_value) = (a.to_owned(), b.to_owned());
                conflicts.push(Conflict { older, older_value, newer, newer_value });
                continue;
            }
            (Some(value), Some(_)) => (value.to_owned(), true),
            (Some(value), None) | (None, Some(value)) => (value.to_owned(), false),
        };
        let (goes, written) = if known(newer) {
            (older, newer)
        } else if known(older) {
            (newer, older)
        } else {
            continue;
        };
        renamed.push(Renamed { given: goes, written, doubled: doubled && known(goes) });
        settings.remove(goes);
        settings.set(written, value);
    }
    Translation { flags: settings.write(), renamed, conflicts }
}

/// The feature gates in a value of `feature-gates`, each as `feature-gates=NAME`.
pub fn gate_names(value: &str) -> impl Iterator<Item = String> {
    gates(value).map(|(name, _)| format!("{FEATURE_GATES}={name}"))
}

/// Flags and feature gates under one kind of name.
struct Settings {
    flags: BTreeMap<String, String>,
    /// In the order given. Written again only when they were touched, so that the operator's text stays as it is.
    gates: Vec<(String, String)>,
    touched: bool,
}

impl Settings {
    fn read(given: &BTreeMap<String, FlagValue>) -> Self {
        let listed = given.get(FEATURE_GATES).map_or("", |value| value.0.as_str());
        let gates = gates(listed).map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let flags = given.iter().map(|(name, value)| (name.clone(), value.0.clone())).collect();
        Self { flags, gates, touched: false }
    }

    fn get(&self, name: &str) -> Option<&str> {
        match gate_of(name) {
            // The last one counts, as in etcd.
            Some(gate) => self.gates.iter().rev().find(|(name, _)| name == gate).map(|(_, value)| value.as_str()),
            None => self.flags.get(name).map(String::as_str),
        }
    }

    fn remove(&mut self, name: &str) {
        match gate_of(name) {
            Some(gate) => {
                self.gates.retain(|(name, _)| name != gate);
                self.touched = true;
            }
            None => drop(self.flags.remove(name)),
        }
    }

    fn set(&mut self, name: &str, value: String) {
        if self.get(name).is_some() {
            return;
        }
        match gate_of(name) {
            Some(gate) => {
                self.gates.push((gate.to_owned(), value));
                self.touched = true;
            }
            None => drop(self.flags.insert(name.to_owned(), value)),
        }
    }

    fn write(mut self) -> BTreeMap<String, String> {
        if self.touched {
            let listed: Vec<_> = self.gates.iter().map(|(name, value)| format!("{name}={value}")).collect();
            self.flags.remove(FEATURE_GATES);
            if !listed.is_empty() {
                self.flags.insert(FEATURE_GATES.to_owned(), listed.join(","));
            }
        }
        self.flags
    }
}

fn gate_of(name: &str) -> Option<&str> {
    name.strip_prefix(FEATURE_GATES)?.strip_prefix('=')
}

fn gates(value: &str) -> impl Iterator<Item = (&str, &str)> {
    let entries = value.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    entries.map(|entry| entry.split_once('=').map_or((entry, ""), |(name, value)| (name.trim(), value.trim())))
}

fn same(a: &str, b: &str) -> bool {
    a == b || truth(a).is_some_and(|a| truth(b) == Some(a))
}

/// The spellings that etcd takes for true and false.
fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::etcd::flags;

    fn texts(given: &[(&str, &str)]) -> BTreeMap<String, String> {
        given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn for_release(version: &str, given: &[(&str, &str)]) -> Translation {
        let given = texts(given).into_iter().map(|(name, value)| (name, FlagValue(value))).collect();
        translate(&given, version.parse().unwrap())
    }

    #[track_caller]
    fn becomes(version: &str, given: &[(&str, &str)], expected: &[(&str, &str)]) {
        let translation = for_release(version, given);
        assert_eq!(translation.flags, texts(expected), "etcd {version}");
        assert!(translation.conflicts.is_empty(), "{translation:?}");
    }

    #[test]
    fn every_row_names_what_some_release_knows_and_has_a_way_on() {
        assert!(ROWS.len() > 20);
        let releases = ["3.4.45", "3.5.33", "3.6.16", "3.7.3"].map(|text| text.parse::<Version>().unwrap());
        let known = |name, version: &Version| knowledge(name, *version) == Knowledge::Known;
        for Row { older, newer } in ROWS.iter() {
            assert!(releases.iter().any(|version| known(older, version)), "{older}");
            assert!(known(newer, &releases[3]) && !known(older, &releases[3]), "{newer}");
        }
    }

    #[test]
    fn no_flag_that_lost_its_old_name_is_missing_from_the_rows() {
        let (before, after) = (Version::new(3, 6, 16), Version::new(3, 7, 3));
        let gone = flags::known(before).filter(|name| knowledge(name, after) != Knowledge::Known);
        for name in gone.filter(|name| flags::managed(name).is_none()) {
            assert!(ROWS.iter().any(|row| row.older == name), "{name} has no row");
        }
    }

    #[test]
    fn a_name_that_the_release_knows_stays() {
        for version in ["3.4.23", "3.5.30", "3.6.16"] {
            let given = [("experimental-corrupt-check-time", "1h"), ("experimental-initial-corrupt-check", "true")];
            becomes(version, &given, &given);
        }
        let gates = [("feature-gates", " LeaseCheckpoint = true,InitialCorruptCheck=t"), ("corrupt-check-time", "1h")];
        becomes("3.6.16", &gates, &gates);
        becomes("3.7.3", &gates, &gates);
        becomes("3.7.3", &[("no-such-thing", "x")], &[("no-such-thing", "x")]);
    }

    #[test]
    fn going_up_flags_lose_their_old_name_and_gates_are_merged() {
        becomes("3.7.3", &[("experimental-corrupt-check-time", "1h")], &[("corrupt-check-time", "1h")]);
        // A release newer than the table has no more old names than the newest in it.
        becomes("3.7.99", &[("experimental-corrupt-check-time", "1h")], &[("corrupt-check-time", "1h")]);
        becomes(
            "3.5.30",
            &[("experimental-backend-bbolt-freelist-type", "map")],
            &[("backend-bbolt-freelist-type", "map")],
        );
        let given = [
            ("experimental-initial-corrupt-check", "true"),
            ("experimental-stop-grpc-service-on-defrag", "false"),
            ("feature-gates", "PriorityRequest=true, LeaseCheckpoint=true"),
        ];
        let merged = "PriorityRequest=true,LeaseCheckpoint=true,InitialCorruptCheck=true,StopGRPCServiceOnDefrag=false";
        becomes("3.7.3", &given, &[("feature-gates", merged)]);
    }

    #[test]
    fn going_down_flags_get_their_old_name_back() {
        let given = [("corrupt-check-time", "1h"), ("feature-gates", "InitialCorruptCheck=true,LeaseCheckpoint=false")];
        let expected = [
            ("experimental-corrupt-check-time", "1h"),
            ("experimental-enable-lease-checkpoint", "false"),
            ("experimental-initial-corrupt-check", "true"),
        ];
        becomes("3.5.30", &given, &expected);
        // Gates that 3.5 does not have stay, so the check refuses them.
        let left = [("experimental-initial-corrupt-check", "true"), ("feature-gates", "PriorityRequest=true")];
        becomes("3.5.30", &[("feature-gates", "PriorityRequest=true,InitialCorruptCheck=true")], &left);
        let too_early = [("feature-gates", "CompactHashCheck=true")];
        becomes("3.5.4", &too_early, &too_early);
    }

    #[test]
    fn a_setting_given_by_both_names_is_written_once() {
        let both = [("experimental-initial-corrupt-check", "1"), ("feature-gates", "InitialCorruptCheck=true")];
        let older = [("experimental-initial-corrupt-check", "1")];
        let newer = [("feature-gates", "InitialCorruptCheck=true")];
        becomes("3.5.30", &both, &older);
        becomes("3.6.16", &both, &newer);
        becomes("3.7.3", &both, &newer);
        let told = |version| for_release(version, &both).renamed;
        let (older, newer) = ("experimental-initial-corrupt-check", "feature-gates=InitialCorruptCheck");
        assert_eq!(told("3.5.30"), [Renamed { given: newer, written: older, doubled: false }]);
        assert_eq!(told("3.6.16"), [Renamed { given: older, written: newer, doubled: true }]);
        assert_eq!(told("3.7.3"), [Renamed { given: older, written: newer, doubled: false }]);
    }

    #[test]
    fn two_names_with_two_values_are_a_conflict_in_every_release() {
        for version in ["3.5.30", "3.6.16", "3.7.3"] {
            let given = [("experimental-corrupt-check-time", "1h"), ("corrupt-check-time", "2h")];
            let translation = for_release(version, &given);
            assert_eq!(translation.flags, texts(&given));
            let [conflict] = &translation.conflicts[..] else { panic!("{translation:?}") };
            assert_eq!((conflict.older, conflict.newer_value.as_str()), ("experimental-corrupt-check-time", "2h"));
        }
    }

    #[test]
    fn translating_twice_changes_nothing_more() {
        let given = [("experimental-initial-corrupt-check", "true"), ("feature-gates", "LeaseCheckpoint=true")];
        for version in ["3.4.23", "3.5.30", "3.6.16", "3.7.3"] {
            let once = for_release(version, &given).flags;
            let again: Vec<_> = once.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let twice = for_release(version, &again);
            assert_eq!((&twice.flags, twice.renamed.len()), (&once, 0), "etcd {version}");
        }
    }
}
