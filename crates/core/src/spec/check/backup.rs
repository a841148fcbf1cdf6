//! Checks of the `backup` settings: places, schedule, retention, recipients and compression. Contacts no store and opens no
//! file.

use super::{Cluster, Findings};
use crate::spec::{BackupSettings, Destination, Keep, Kind, Millis, S3Destination};

/// More often, one would not end before the next begins.
const SHORTEST_SCHEDULE: Millis = Millis(60_000);
/// A year. A longer schedule is a mistake, and adding it to a date could overflow.
const LONGEST_SCHEDULE: Millis = Millis(365 * 24 * 3_600_000);
const COMPRESSION: std::ops::RangeInclusive<u32> = 1..=19;
/// Names of buckets have at least and at most so many letters.
const BUCKET: std::ops::RangeInclusive<usize> = 3..=63;

pub(super) fn check(cluster: &Cluster, found: &mut Findings) {
    let Some(backup) = &cluster.spec.backup else { return };
    destination(cluster, "backup.to", &backup.to, found);
    if let Some(second) = &backup.also_to {
        destination(cluster, "backup.also_to", second, found);
        if is_same_place(&backup.to, second) {
            let message = format!("`also_to` is the same place as `to`: {second}");
            found.error(cluster.at("backup.also_to"), message, "name another place, or remove it");
        }
    }
    numbers(cluster, backup, found);
    incremental(cluster, backup, found);
    recipients(cluster, backup, found);
}

fn destination(cluster: &Cluster, field: &str, destination: &Destination, found: &mut Findings) {
    let Destination::S3(s3) = destination else { return };
    let at = |name: &str| cluster.at(&format!("{field}.s3.{name}"));
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let ends = |text: &str| text.starts_with(['-', '.']) || text.ends_with(['-', '.']);
    if !BUCKET.contains(&s3.bucket.len()) || !s3.bucket.bytes().all(fits) || ends(&s3.bucket) {
        found.error(
            at("bucket"),
            format!("`{}` cannot be the name of a bucket", s3.bucket),
            "3 to 63 lower case letters, digits, inner hyphens and dots",
        );
    }
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    let parts = s3.prefix.strip_suffix('/').unwrap_or(&s3.prefix);
    if !s3.prefix.is_empty() && (!parts.split('/').all(plain) || s3.prefix.chars().any(char::is_control)) {
        found.error(
            at("prefix"),
            format!("the prefix `{}` begins with a slash or has an empty or dotted part", s3.prefix),
            "write it such as `etcd/` or `backups/etcd/`",
        );
    }
    endpoint(s3, at("endpoint"), found);
}

fn endpoint(s3: &S3Destination, at: String, found: &mut Findings) {
    let Some(endpoint) = &s3.endpoint else { return };
    let (_, rest) = endpoint.split_once("://").unwrap_or_default();
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if host.contains('@') {
        let message = "the endpoint holds a user or a password before its host";
        return found.error(
            at,
            message,
            "write the address alone, and say with `credentials` where the keys come from",
        );
    }
    if !rest[host.len()..].trim_start_matches('/').is_empty() {
        let message = format!("the endpoint `{endpoint}` has a path after its host");
        return found.error(at, message, "write the address alone; what follows it belongs into `bucket` and `prefix`");
    }
    if s3.ca.is_some() && endpoint.starts_with("http://") {
        let message = format!("`{endpoint}` has no TLS, so `ca` has no certificate to check");
        return found.error(at, message, "use an https:// address, or leave `ca` out");
    }
    let local = ["127.", "localhost", "[::1]"].iter().any(|own| host.starts_with(own));
    if endpoint.starts_with("http://") && !local {
        found.warning(
            at,
            format!("`{endpoint}` is not encrypted: anyone on the network path can change what is stored, and read what has no recipients"),
            "use https://",
        );
    }
}

fn is_same_place(one: &Destination, other: &Destination) -> bool {
    match (one, other) {
        (Destination::Directory(one), Destination::Directory(other)) => one == other,
        (Destination::S3(one), Destination::S3(other)) => {
            let place = |s3: &S3Destination| {
                let endpoint = s3.endpoint.as_deref().map(|e| e.trim_end_matches('/').to_owned());
                (endpoint, s3.bucket.clone(), s3.prefix.trim_end_matches('/').to_owned())
            };
            place(one) == place(other)
        }
        _ => false,
    }
}

fn numbers(cluster: &Cluster, backup: &BackupSettings, found: &mut Findings) {
    if backup.schedule < SHORTEST_SCHEDULE {
        found.error(
            cluster.at("backup.schedule"),
            format!("a full backup every {} is more often than every {SHORTEST_SCHEDULE}", backup.schedule),
            "6h or 24h are usual; what happens in between is recorded as it comes",
        );
    }
    if backup.schedule > LONGEST_SCHEDULE {
        found.error(
            cluster.at("backup.schedule"),
            format!("a full backup every {} is less often than once a year ({LONGEST_SCHEDULE})", backup.schedule),
            "6h or 24h are usual",
        );
    }
    if !COMPRESSION.contains(&backup.compression) {
        found.error(
            cluster.at("backup.compression"),
            format!("the level {} is not between 1 and 19", backup.compression),
            "3 is the default; 1 is the fastest, 19 the smallest",
        );
    }
    let Keep { last, hourly, daily, weekly, monthly } = backup.keep;
    if [last, hourly, daily, weekly, monthly] == [0; 5] {
        found.error(
            cluster.at("backup.keep"),
            "nothing would be kept but the newest verified backup",
            "keep at least one: `last: 7`",
        );
    }
}

fn incremental(cluster: &Cluster, backup: &BackupSettings, found: &mut Findings) {
    let Some(every) = backup.incremental else { return };
    let at = cluster.at("backup.incremental");
    if cluster.spec.kind == Kind::Etcd {
        let hint = "leave it out: `quorate backup watch` records every change of etcd";
        found.error(at, "there are no incremental backups of etcd", hint);
    } else if every >= backup.schedule || every < SHORTEST_SCHEDULE {
        let message = format!("an incremental backup every {every} is not between {SHORTEST_SCHEDULE} and `schedule`");
        found.error(at, message, "set a time between the two, or leave it out");
    }
}

fn recipients(cluster: &Cluster, backup: &BackupSettings, found: &mut Findings) {
    let path = |index| cluster.at(&format!("backup.recipients[{index}]"));
    found.repeated(backup.recipients.iter(), path, |recipient| format!("the recipient `{recipient}`"));
    if backup.recipients.is_empty() {
        found.warning(
            cluster.at("backup"),
            "backups are not encrypted, because there are no `recipients`: anyone who can read the store can read the data, and \
             the ledger with the CA keys is not stored with them",
            "make a key with `age-keygen -o key.txt`, keep it away from here, and name its public part in `recipients`",
        );
    }
}
