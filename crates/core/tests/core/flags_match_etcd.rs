//! Compares the tables of flags, feature gates and renamed flags with real etcd binaries, which `cargo xtask etcd` puts into the cache.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use quorate_core::kinds::etcd::flags::{self, FEATURE_GATES, Kind};
use quorate_core::kinds::etcd::spec::FlagValue;
use quorate_core::kinds::etcd::versions::{Gate, gate};
use quorate_core::model::Version;

/// The releases that must be there; others are compared when they are.
const NEEDED: [&str; 2] = ["3.4.23", "3.5.30"];

/// The help of 3.7 still speaks of these, and the program refuses them.
const GONE: [&str; 2] = ["discovery", "discovery-proxy"];

fn lab() -> PathBuf {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    cache.expect("HOME is set").join("quorate-lab/etcd")
}

/// Standard output and error together.
fn output(etcd: &Path, argument: &str) -> String {
    let output = Command::new(etcd).args([argument, "--version"]).output().expect("etcd runs");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// Flags that the help lists, each at the beginning of a line.
fn listed(etcd: &Path) -> BTreeSet<String> {
    let help = output(etcd, "--help");
    let names = help.lines().filter_map(|line| line.strip_prefix(' ')?.trim_start().strip_prefix("--"));
    names
        .map(|line| line.split(|end: char| !end.is_ascii_alphanumeric() && end != '-').next().unwrap().to_owned())
        .collect()
}

/// Feature gates that the help lists, each as `NAME=true|false` at the beginning of a line.
fn listed_gates(etcd: &Path) -> BTreeSet<String> {
    let help = output(etcd, "--help");
    let names = help.lines().filter_map(|line| line.trim_start().split_once("=true|false"));
    names.map(|(name, _)| format!("{FEATURE_GATES}={name}")).collect()
}

/// Whether the program itself takes the flag, which its help may not say.
fn takes(etcd: &Path, flag: &str) -> bool {
    !output(etcd, &format!("--{flag}=1")).contains("flag provided but not defined")
}

fn releases() -> Vec<(Version, PathBuf)> {
    let lab = lab();
    for version in NEEDED {
        assert!(lab.join(version).join("etcd").is_file(), "etcd {version} is not in the cache: run `cargo xtask etcd`");
    }
    let names = fs::read_dir(&lab).unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let versions = names.filter_map(|name| name.parse::<Version>().ok());
    let usable = versions.filter(|version| !matches!(gate(*version), Gate::Refused(_)));
    usable.map(|version| (version, lab.join(version.to_string()).join("etcd"))).collect()
}

#[test]
fn the_table_agrees_with_real_binaries() {
    for (version, etcd) in releases() {
        let listed = listed(&etcd);
        assert!(listed.len() > 60, "etcd {version} lists only {} flags", listed.len());
        let (gates, table): (BTreeSet<String>, _) =
            flags::known(version).map(str::to_owned).partition(|name| name.contains('='));
        assert_eq!(gates, listed_gates(&etcd), "the feature gates of etcd {version}");
        for flag in listed.difference(&table) {
            assert!(
                GONE.contains(&flag.as_str()) && !takes(&etcd, flag),
                "etcd {version} knows `{flag}`, the table does not"
            );
        }
        for flag in table.difference(&listed) {
            assert!(takes(&etcd, flag), "the table says that etcd {version} knows `{flag}`, and it does not");
        }
    }
}

/// The help of 3.6 says of each old name which one to use instead.
#[test]
fn replacements_for_old_flags_match_the_help_of_etcd_3_6() {
    let newest = Version::new(3, 7, 3);
    for (version, etcd) in releases().into_iter().filter(|(version, _)| version.line() == "3.6") {
        let help = output(&etcd, "--help");
        let mut flag = "";
        let mut compared = 0;
        for line in help.lines().map(str::trim) {
            if let Some(begun) = line.strip_prefix("--") {
                flag = begun.split(' ').next().unwrap();
            }
            let Some((_, instead)) = line.split_once("Use '--") else { continue };
            let instead = instead.split('\'').next().unwrap();
            let (name, value) = match instead.split_once('=') {
                Some((name, gate)) => (name, gate),
                None => (instead, "true"),
            };
            let given = BTreeMap::from([(flag.to_owned(), FlagValue("true".to_owned()))]);
            let written = flags::translate(&given, newest).flags;
            assert_eq!(written, BTreeMap::from([(name.to_owned(), value.to_owned())]), "`{flag}` of etcd {version}");
            compared += 1;
        }
        assert!(compared > 20, "etcd {version} speaks of only {compared} old names");
    }
}

/// Whether the operator gave the oldest or the newest names.
#[test]
fn flags_written_for_a_release_are_accepted_by_it() {
    let given = [
        ("experimental-initial-corrupt-check", "true"),
        ("experimental-corrupt-check-time", "1h"),
        ("experimental-watch-progress-notify-interval", "1m"),
    ];
    let older = given.map(|(name, value)| (name.to_owned(), FlagValue(value.to_owned())));
    let newest = flags::translate(&BTreeMap::from(older.clone()), Version::new(3, 7, 3)).flags;
    let newer = newest.into_iter().map(|(name, value)| (name, FlagValue(value))).collect();
    for (version, etcd) in releases() {
        for given in [&BTreeMap::from(older.clone()), &newer] {
            for (name, value) in flags::translate(given, version).flags {
                let answer = output(&etcd, &format!("--{name}={value}"));
                assert!(answer.contains("etcd Version"), "etcd {version} on `{name}={value}`: {answer}");
            }
        }
    }
}

/// Each kind of value is tried on each flag once, with the first release that has it.
#[test]
fn etcd_takes_the_values_that_the_table_says() {
    let mut tried = BTreeSet::new();
    for (version, etcd) in releases() {
        for flag in flags::known(version).filter(|flag| flags::managed(flag).is_none()) {
            let Some(kind) = Kind::of(flag).filter(|_| tried.insert(flag)) else { continue };
            for value in ["maybe", "-1", "1h"] {
                let taken = output(&etcd, &format!("--{flag}={value}")).contains("etcd Version");
                assert_eq!(kind.takes(value), taken, "etcd {version}, `{flag}={value}`, {kind:?}");
            }
        }
    }
    assert!(tried.len() > 50, "{} flags", tried.len());
}
