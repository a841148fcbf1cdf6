//! Parameters that a spec cannot set, or not to every value: other components set them, or they would break the cluster's promises about
//! commits.

use super::parameters::{self, Wrong};
use super::spec::Synchronous;

/// Parameters that Patroni sets on all members itself, from its own settings, or leaves out of the configuration.
const OF_PATRONI: [&str; 21] = [
    "cluster_name",
    "config_file",
    "data_directory",
    "hba_file",
    "hot_standby",
    "ident_file",
    "listen_addresses",
    "port",
    "primary_conninfo",
    "primary_slot_name",
    "recovery_target",
    "recovery_target_action",
    "recovery_target_inclusive",
    "recovery_target_lsn",
    "recovery_target_name",
    "recovery_target_time",
    "recovery_target_timeline",
    "recovery_target_xid",
    "synchronous_standby_names",
    "unix_socket_directories",
    "wal_log_hints",
];

/// Parameters that quorate sets: certificates and how passwords are stored.
const OF_QUORATE: [&str; 7] =
    ["ssl", "ssl_cert_file", "ssl_key_file", "ssl_ca_file", "ssl_crl_file", "ssl_crl_dir", "password_encryption"];

/// Parameters that Patroni would pass on to every standby and that no cluster can have: the reason and the remedy.
const OF_STANDBYS: [(&str, &str, &str); 5] = [
    (
        "archive_cleanup_command",
        "runs on every standby and deletes log there, also log that a backup or a restore needs",
        "leave it out; `backup prune` deletes log that no backup needs",
    ),
    (
        "promote_trigger_file",
        "lets a file promote a standby without Patroni: there would be two primaries",
        "leave it out; `quorate switchover` makes another member the primary",
    ),
    (
        "recovery_end_command",
        "runs at the end of every recovery, including when a backup is verified or restored next to the data",
        "leave it out; clients find the primary through `quorate env` or `haproxy`",
    ),
    (
        "recovery_min_apply_delay",
        "delays every standby: the one that takes over must catch up first, while there is no primary",
        "leave it out; to go back in time, restore a backup with `--at`",
    ),
    (
        "restore_command",
        "lets standbys read log from a place that quorate does not know, which can belong to other data",
        "leave it out; standbys get the log from the primary, and restores get it from the backups",
    ),
];

/// Switches: the dangerous position, the reason and the remedy.
const DANGEROUS: [(&str, bool, &str, &str); 6] = [
    (
        "fsync",
        false,
        "a crash of the machine then loses confirmed commits or leaves damaged data",
        "leave it out; `synchronous_commit: off` for a session or a role makes commits faster without damage",
    ),
    (
        "full_page_writes",
        false,
        "a crash can then leave pages that are half written, and `pg_rewind` and backups from a replica need it",
        "leave it out; `wal_compression` makes such pages smaller",
    ),
    (
        "data_sync_retry",
        true,
        "PostgreSQL then treats data as stored although the disk failed to write it, and loses it silently",
        "leave it out; PostgreSQL then stops and recovers from its log, or another member takes over",
    ),
    (
        "ignore_checksum_failure",
        true,
        "every session then reads damaged pages as if they were sound, and backups cannot show it",
        "leave it out; for a rescue, `SET` it in one session",
    ),
    (
        "ignore_invalid_pages",
        true,
        "a standby then continues although pages are missing, and can become the primary without them",
        "leave it out; `quorate replace` clones a damaged standby again",
    ),
    (
        "zero_damaged_pages",
        true,
        "every session then deletes the rows on damaged pages",
        "leave it out; for a rescue, `SET` it in one session",
    ),
];

/// Why a spec cannot set this parameter.
pub(super) fn reserved(name: &str) -> Option<Wrong> {
    if OF_PATRONI.contains(&name) {
        let message = format!("`{name}` is set by Patroni, which ignores or overwrites it");
        return Some(Wrong { message, hint: String::from("leave it out") });
    }
    if OF_QUORATE.contains(&name) {
        let message = format!("`{name}` is set by quorate, which provides certificates and passwords");
        return Some(Wrong { message, hint: String::from("leave it out; see `tls`") });
    }
    let (_, why, hint) = OF_STANDBYS.iter().find(|(known, ..)| *known == name)?;
    Some(Wrong { message: format!("`{name}` {why}"), hint: (*hint).to_owned() })
}

/// Why this value, which PostgreSQL accepts, endangers data.
pub(super) fn dangerous(name: &str, value: &str) -> Option<Wrong> {
    let (_, position, why, hint) = DANGEROUS.iter().find(|(known, ..)| *known == name)?;
    (parameters::boolean(value) == Some(*position)).then(|| {
        let position = if *position { "on" } else { "off" };
        Wrong { message: format!("`{name}` is {position}: {why}"), hint: (*hint).to_owned() }
    })
}

/// Why commits would be confirmed before the standbys that `synchronous` names have them on disk.
pub(super) fn confirms_early(value: &str, synchronous: &Synchronous) -> Option<Wrong> {
    let value = value.trim().to_ascii_lowercase();
    if synchronous.nodes == 0 || value == "remote_apply" || parameters::boolean(&value) == Some(true) {
        return None;
    }
    let when = match value.as_str() {
        "remote_write" => "before a standby has it on disk",
        "local" => "before a standby has it",
        _ => "before any member has it on disk",
    };
    let message =
        format!("with `synchronous_commit` `{value}` a commit is confirmed {when}, so a failover can lose it");
    let session = "where commits may be lost, set it for a session or a role: `ALTER ROLE … SET synchronous_commit`";
    let hint = match synchronous.strict {
        true => {
            format!("use `on` or `remote_apply`; {session}; or give up the promise, with `strict: false` or `nodes: 0`")
        }
        false => format!("use `on` or `remote_apply`; {session}"),
    };
    Some(Wrong { message, hint })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_parameter_of_some_version_and_in_one_list() {
        let standbys = OF_STANDBYS.iter().map(|(name, ..)| *name);
        let switches = DANGEROUS.iter().map(|(name, ..)| *name);
        let all: Vec<&str> = OF_PATRONI.into_iter().chain(OF_QUORATE).chain(standbys).chain(switches).collect();
        for name in &all {
            assert!((13..=18).any(|version| parameters::find(version, name).is_some()), "{name}");
            assert_eq!(all.iter().filter(|other| *other == name).count(), 1, "{name}");
        }
    }

    #[test]
    fn switches_are_dangerous_in_one_position_however_it_is_written() {
        for value in ["off", "FALSE", "no", "0", "f"] {
            assert!(
                dangerous("fsync", value).is_some_and(|wrong| wrong.message.starts_with("`fsync` is off: ")),
                "{value}"
            );
            assert_eq!(dangerous("zero_damaged_pages", value), None, "{value}");
        }
        assert_eq!(dangerous("fsync", "on"), None);
        assert!(dangerous("zero_damaged_pages", "on").is_some());
        assert_eq!(dangerous("jit", "off"), None);
    }

    #[test]
    fn only_what_waits_for_standbys_keeps_the_promise() {
        let of = |nodes, strict| Synchronous { nodes, strict };
        for value in ["on", "ON", "true", "1", " remote_apply"] {
            assert_eq!(confirms_early(value, &of(1, true)), None, "{value}");
        }
        for value in ["off", "false", "0", "local", "LOCAL", "remote_write"] {
            let refused = confirms_early(value, &of(1, true)).unwrap();
            assert!(refused.hint.contains("`strict: false`"), "{value}: {}", refused.hint);
            assert!(confirms_early(value, &of(2, false)).is_some(), "{value}");
            assert_eq!(confirms_early(value, &of(0, true)), None, "{value}");
        }
    }
}
