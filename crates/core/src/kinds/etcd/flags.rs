//! The command line flags of etcd: which release has which flag, which flags quorate sets itself, and the name of a flag in releases
//! that call it something else. The tables come from etcd's sources; a test compares them with the `--help` of real binaries. Checks
//! the names of flags and feature gates, and whether a value has the type that its flag expects.

mod kinds;
mod renamed;

use std::sync::LazyLock;

use crate::kinds::etcd::versions;
use crate::model::Version;

pub use kinds::Kind;
pub use renamed::{Conflict, Renamed, Translation, gate_names, translate};

/// The flag that lists feature gates, as `Name=true,Other=false`.
pub const FEATURE_GATES: &str = "feature-gates";

/// A flag, or a feature gate as `feature-gates=NAME`, and for each minor that knows it the first release that does.
struct Flag {
    name: &'static str,
    since: Vec<Version>,
}

/// In the order of names, as the file is.
static TABLE: LazyLock<Vec<Flag>> = LazyLock::new(|| {
    let rows = include_str!("flags/flags.tsv").lines().filter(|line| !line.starts_with('#'));
    rows.filter_map(|row| row.split_once('\t'))
        .map(|(name, releases)| Flag { name, since: releases.split(' ').filter_map(first_release).collect() })
        .collect()
});

/// `3.5` means from 3.5.0 on.
fn first_release(text: &str) -> Option<Version> {
    text.parse().or_else(|_| format!("{text}.0").parse()).ok()
}

/// How a release handles a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Knowledge {
    Known,
    /// The release is newer than the table, so it may know the flag or not.
    Uncertain,
    /// Only other releases know it: for each minor, the first that does.
    Elsewhere(Vec<Version>),
    /// No release knows it. A similar name that this release knows, if there is one.
    Unknown {
        nearest: Option<&'static str>,
    },
}

/// Whether this release of etcd knows `--NAME`, which may be a feature gate as `feature-gates=NAME`.
pub fn knowledge(name: &str, version: Version) -> Knowledge {
    let flag = TABLE.binary_search_by(|flag| flag.name.cmp(name)).ok().map(|index| &TABLE[index]);
    if flag.is_some_and(|flag| flag.known_to(version)) {
        return Knowledge::Known;
    }
    // The table was created from the newest known releases. It lacks flags that a later one added.
    if versions::newest_before(version).is_some() {
        return Knowledge::Uncertain;
    }
    match flag {
        Some(flag) => Knowledge::Elsewhere(flag.since.clone()),
        None => {
            let is_gate = name.contains('=');
            let alike = known(version).filter(|other| other.contains('=') == is_gate);
            Knowledge::Unknown { nearest: crate::spec::nearest(name, alike) }
        }
    }
}

/// The names of all flags and feature gates that this release knows, in order.
pub fn known(version: Version) -> impl Iterator<Item = &'static str> {
    TABLE.iter().filter(move |flag| flag.known_to(version)).map(|flag| flag.name)
}

impl Flag {
    fn known_to(&self, version: Version) -> bool {
        self.since.iter().any(|since| (since.major, since.minor) == (version.major, version.minor) && *since <= version)
    }
}

/// Flags that quorate sets itself or that must not be set, by name or prefix, and what to do instead. The first match
/// applies.
const MANAGED: [(&str, &str); 42] = [
    ("name", "it is the member's `name`"),
    ("data-dir", "quorate places the data directory"),
    ("wal-dir", "quorate places the data directory, and the log in it"),
    ("listen-metrics-urls", "use `metrics`"),
    ("listen-*", "it follows from the member's `address`"),
    ("advertise-client-urls", "it follows from the member's `address`"),
    ("initial-election-tick-advance", "quorate leaves it on: without it, starting takes longer"),
    ("initial-cluster-token", "it is made from the cluster's `initial_token`"),
    ("initial-*", "it follows from the cluster's `members`"),
    ("cert-file", "certificates are set under `tls`"),
    ("key-file", "certificates are set under `tls`"),
    ("trusted-ca-file", "certificates are set under `tls`"),
    ("client-cert-auth", "use `client_auth`"),
    ("client-cert-file", "certificates are set under `tls`"),
    ("client-key-file", "certificates are set under `tls`"),
    ("auto-tls", "certificates are set under `tls`"),
    ("self-signed-cert-validity", "use `leaf_validity` under `tls`"),
    ("peer-client-cert-auth", "peers always present certificates to each other"),
    ("peer-cert-file", "certificates are set under `tls`"),
    ("peer-key-file", "certificates are set under `tls`"),
    ("peer-trusted-ca-file", "certificates are set under `tls`"),
    ("peer-client-*", "certificates are set under `tls`"),
    ("peer-auto-tls", "certificates are set under `tls`"),
    ("peer-crl-file", "quorate signs the certificates of peers, and keeps the list of those that are refused"),
    ("auto-compaction-mode", "use `auto_compaction`, field `mode`"),
    ("auto-compaction-retention", "use `auto_compaction`, field `retention`"),
    ("quota-backend-bytes", "use `quota`"),
    ("enable-grpc-gateway", "use `grpc_gateway`"),
    ("heartbeat-interval", "use `heartbeat`"),
    ("election-timeout", "use `election`"),
    ("auth-token", "use `token` under `auth`"),
    ("force-new-cluster", "it is for recovery, not a setting"),
    ("config-file", "etcd would then ignore every other flag"),
    ("discovery*", "the spec names every member, so discovery is not needed"),
    ("proxy*", "a v2 proxy is not a member"),
    ("enable-v2", "quorate keeps only the v3 API"),
    ("experimental-enable-v2v3", "quorate keeps only the v3 API"),
    ("log-output*", "quorate places the log: see `quorate logs`"),
    ("logger", "quorate reads the log in the form that it sets itself"),
    ("log-format", "quorate reads the log in the form that it sets itself"),
    ("version", "it prints the version and ends"),
    ("help", "it prints the help and ends"),
];

/// Why a flag may not be passed through, or `None` when it may.
pub fn managed(name: &str) -> Option<&'static str> {
    let fits = |pattern: &str| match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    };
    MANAGED.iter().find(|(pattern, _)| fits(pattern)).map(|(_, instead)| *instead)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, version: &str) -> Knowledge {
        knowledge(name, version.parse().unwrap())
    }

    #[test]
    fn the_table_is_sorted_and_complete() {
        assert!(TABLE.is_sorted_by_key(|flag| flag.name));
        assert!(TABLE.len() > 140);
        assert!(TABLE.iter().all(|flag| !flag.since.is_empty()));
    }

    #[test]
    fn a_flag_is_known_from_the_release_that_brought_it() {
        assert_eq!(of("max-txn-ops", "3.4.0"), Knowledge::Known);
        assert_eq!(of("tls-min-version", "3.5.8"), Knowledge::Known);
        assert!(matches!(of("tls-min-version", "3.5.7"), Knowledge::Elsewhere(since) if since.len() == 4));
        assert_eq!(of("experimental-corrupt-check-time", "3.6.14"), Knowledge::Known);
        let gone = of("experimental-corrupt-check-time", "3.7.1");
        assert_eq!(
            gone,
            Knowledge::Elsewhere(vec![Version::new(3, 4, 0), Version::new(3, 5, 0), Version::new(3, 6, 0)])
        );
    }

    #[test]
    fn a_release_newer_than_the_table_may_know_more() {
        assert_eq!(of("brand-new", "3.6.99"), Knowledge::Uncertain);
        assert_eq!(of("max-txn-ops", "3.6.99"), Knowledge::Known);
    }

    #[test]
    fn a_misspelt_flag_gets_the_nearest_of_its_release() {
        assert_eq!(of("max-txn-op", "3.6.14"), Knowledge::Unknown { nearest: Some("max-txn-ops") });
        assert_eq!(of("zzzz", "3.6.14"), Knowledge::Unknown { nearest: None });
    }

    #[test]
    fn every_managed_pattern_fits_a_flag_that_exists() {
        for (pattern, _) in MANAGED {
            let beginning = pattern.trim_end_matches('*');
            assert!(TABLE.iter().any(|flag| flag.name.starts_with(beginning)), "{pattern}");
        }
        assert_eq!(managed("quota-backend-bytes"), Some("use `quota`"));
        assert!(managed("discovery-srv").is_some() && managed("listen-peer-urls").is_some());
        assert_eq!(managed("listen-metrics-urls"), Some("use `metrics`"));
        assert_eq!(managed("log-level"), None);
        assert_eq!(managed("snapshot-count"), None);
    }
}
