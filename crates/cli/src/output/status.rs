//! The status of clusters, for people: a table, what ails whom, and one line of verdict.

use std::fmt::Write;

use jiff::SignedDuration;
use quorate_control::status::{MemberStatus, Status, Verdict};

use super::{count, size, table};

/// One cluster in full.
pub fn full(status: &Status) -> String {
    let mut text = format!(
        "cluster {}: etcd {}, provider {}, {}\n\n",
        status.cluster, status.etcd_version, status.provider, status.formation
    );
    let head = [
        "MEMBER",
        "MACHINE",
        "ROLE",
        "HEALTH",
        "VERSION",
        "DB OF QUOTA",
        "RAFT INDEX",
        "LAG",
        "CERTIFICATE",
        "GENERATION",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    rows.extend(status.members.iter().map(row));
    text.push_str(&table(&rows));
    text.push('\n');
    // Of a cluster that is off by wish, the verdict says enough.
    for member in status.members.iter().filter(|_| status.verdict != Verdict::Off) {
        if let Some(why) = &member.why {
            let _ = writeln!(text, "{} is {}: {}", member.member, member.health, why.trim_end());
        }
    }
    for member in status.members.iter().filter(|m| m.leaving) {
        let _ = writeln!(text, "{} leaves: {}", member.member, leaves(member));
    }
    for (member, micros) in status.members.iter().filter_map(|m| Some((&m.member, m.slow_disk()?))) {
        let _ = writeln!(
            text,
            "warning: the disk of {member} is slow: the slowest of 32 durable writes took {} ms before etcd had data there, and etcd \
             wants 99 of 100 within 10 ms; leaders change and writes wait where it stays so",
            micros / 1000
        );
    }
    for member in &status.members {
        if let Some(trouble) = &member.log_source_trouble {
            let _ = writeln!(text, "{}: the configuration for its logs is not followed: {trouble}", member.member);
        }
    }
    for alarm in &status.alarms {
        let _ = writeln!(text, "alarm {} on {}", alarm.kind, alarm.member);
        if let Some(remedy) = alarm.remedy() {
            let _ = writeln!(text, "  remedy: {remedy}");
        }
    }
    text.push_str(&pending(status));
    if let Some(signer) = status.backup.as_ref().and_then(|backup| backup.signed_by.as_ref()) {
        let _ = writeln!(text, "backups are signed by {signer}");
    }
    for problem in status.backup.iter().flat_map(|backup| &backup.problems) {
        let _ = writeln!(text, "backup: {problem}");
    }
    let _ = writeln!(text, "{}", status.summary);
    text
}

/// Many clusters, a line each.
pub fn brief<'a>(statuses: impl Iterator<Item = &'a Status>) -> String {
    let row = |s: &Status| {
        let alarms = if s.alarms.is_empty() { String::new() } else { format!("; {}", count(s.alarms.len(), "alarm")) };
        let backup = s.backup.as_ref().is_some_and(|backup| !backup.problems.is_empty());
        let backup = if backup { "; its backups need a look" } else { "" };
        vec![s.cluster.clone(), format!("{}{alarms}{backup}", s.summary)]
    };
    table(&statuses.map(row).collect::<Vec<_>>())
}

fn row(member: &MemberStatus) -> Vec<String> {
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| String::from("-"));
    vec![
        member.member.to_string(),
        member.machine.clone(),
        or_dash(member.role.map(String::from)),
        member.health.to_owned(),
        or_dash(member.version.clone()),
        or_dash(member.db_size.map(|used| format!("{}/{}", size(used), size(member.db_quota)))),
        or_dash(member.raft_index.map(|n| n.to_string())),
        or_dash(member.raft_lag.map(|n| n.to_string())),
        or_dash(member.certificate_left.map(validity_left)),
        or_dash(member.generation.map(|n| n.to_string())),
    ]
}

/// "364 days", "2 h", "expired".
fn validity_left(left: SignedDuration) -> String {
    match left.as_hours() {
        _ if left.is_negative() || left.is_zero() => String::from("expired"),
        0 => String::from("under 1 h"),
        hours @ 1..48 => format!("{hours} h"),
        hours => count(usize::try_from(hours / 24).unwrap_or(0), "day"),
    }
}

fn leaves(member: &MemberStatus) -> String {
    match member.member.is_former() {
        true => format!("it is a former machine of {}, which has another by now", member.member.seat()),
        false => String::from("the spec no longer names it"),
    }
}

fn pending(status: &Status) -> String {
    let mut text = String::new();
    if status.pending.steps > 0 {
        let steps = count(status.pending.steps, "step");
        let _ = writeln!(text, "{steps} can be taken at once: see `quorate plan {}`", status.cluster);
    }
    for waiting in &status.pending.waiting {
        let _ = writeln!(text, "waiting for {waiting}");
    }
    for blocked in &status.pending.blocked {
        let _ = writeln!(text, "blocked: {blocked}");
    }
    text
}

#[cfg(test)]
mod tests {
    use quorate_control::status::{AlarmStatus, Pending};

    use super::*;

    fn member(name: &str, health: &'static str, why: Option<&str>) -> MemberStatus {
        let healthy = health == "healthy";
        MemberStatus {
            member: name.into(),
            machine: name.to_owned(),
            leaving: name.contains('.'),
            address: Some(String::from("127.64.0.1")),
            endpoint: None,
            role: healthy.then_some("leader"),
            health,
            why: why.map(String::from),
            version: healthy.then(|| String::from("3.6.14")),
            db_size: healthy.then_some(20_992),
            db_quota: 8 << 30,
            raft_index: healthy.then_some(12),
            raft_lag: healthy.then_some(0),
            certificate_days_left: healthy.then_some(364),
            certificate_left: healthy.then_some(SignedDuration::from_hours(364 * 24 + 5)),
            generation: healthy.then_some(1),
            restarts: None,
            fsync_micros: None,
            agent: None,
            log_source_trouble: None,
        }
    }

    fn status() -> Status {
        Status {
            cluster: String::from("demo"),
            cluster_id: String::from("c"),
            provider: String::from("local"),
            formation: "formed",
            etcd_version: String::from("3.6.14"),
            verdict: Verdict::Down,
            summary: String::from("down: 1 of 2 voters are healthy, quorum is 2"),
            voters: 2,
            healthy: 1,
            quorum: 2,
            failures_survived: 0,
            members: vec![member("etcd-1", "healthy", None), member("etcd-2", "off", Some("its machine does not run"))],
            alarms: vec![AlarmStatus { member: String::from("etcd-1"), kind: String::from("NOSPACE") }],
            pending: Pending { steps: 1, ..Pending::default() },
            renew_by: None,
            backup: None,
        }
    }

    #[test]
    fn the_table_says_who_is_not_well_and_why() {
        let expected = "\
cluster demo: etcd 3.6.14, provider local, formed

MEMBER  MACHINE  ROLE    HEALTH   VERSION  DB OF QUOTA     RAFT INDEX  LAG  CERTIFICATE  GENERATION
etcd-1  etcd-1   leader  healthy  3.6.14   20.5 KiB/8 GiB  12          0    364 days     1
etcd-2  etcd-2   -       off      -        -               -           -    -            -

etcd-2 is off: its machine does not run
alarm NOSPACE on etcd-1
  remedy: raise `etcd.quota` and apply, or delete keys; compact with `etcdctl compact REVISION` and run `etcdctl defrag` for each \
member; then `etcdctl alarm disarm`, as etcd does not lift the alarm by itself
1 step can be taken at once: see `quorate plan demo`
down: 1 of 2 voters are healthy, quorum is 2
";
        assert_eq!(full(&status()), expected);
    }

    #[test]
    fn what_is_left_of_a_certificate_is_told_in_hours_at_the_end() {
        let left = |hours: i64, minutes: i64| {
            validity_left(SignedDuration::from_hours(hours) + SignedDuration::from_mins(minutes))
        };
        assert_eq!([left(364 * 24, 0), left(49, 0)], ["364 days", "2 days"]);
        assert_eq!([left(47, 59), left(3, 20), left(0, 59)], ["47 h", "3 h", "under 1 h"]);
        assert_eq!([left(0, 0), left(-5, 0)], ["expired", "expired"]);
    }

    #[test]
    fn a_disk_that_is_too_slow_for_etcd_is_told_with_its_number() {
        let mut status = status();
        status.members[0].fsync_micros = Some(10_000);
        assert!(!full(&status).contains("slow"));
        status.members[0].fsync_micros = Some(35_400);
        let text = full(&status);
        assert!(text.contains("warning: the disk of etcd-1 is slow") && text.contains("took 35 ms"), "{text}");
    }

    #[test]
    fn a_former_machine_is_told_from_the_members() {
        let mut status = status();
        status.members.push(member("etcd-2.1", "healthy", None));
        let text = full(&status);
        let told = "etcd-2.1 leaves: it is a former machine of etcd-2, which has another by now\n";
        assert!(text.contains(told), "{text}");
    }

    #[test]
    fn many_clusters_get_a_line_each() {
        let line = "demo  down: 1 of 2 voters are healthy, quorum is 2; 1 alarm\n";
        assert_eq!(brief([status(), status()].iter()), line.repeat(2));
    }
}
