//! The status of clusters, for people: a table, the problems of each member, and a one-line verdict.

mod postgres;

use jiff::SignedDuration;
use quorate_control::kinds::status::{MemberStatus, Status, Verdict};

use super::page::{Look, Page, Style};
use super::{size, table};
use quorate_core::text::plural;

/// One cluster in full.
pub fn page(status: &Status, look: Look) -> Page {
    let mut page = Page::new();
    head(&mut page, status);
    page.blank();
    match &status.postgres {
        None => page.append(table::page(&members(status), &DROPPED, look)),
        Some(_) => page.append(table::page(&postgres::members(status), &postgres::DROPPED, look)),
    }
    if !status.proxies.is_empty() {
        page.blank();
        page.append(table::page(&proxies(status), &[1, 5], look));
    }
    page.blank();
    for proxy in status.proxies.iter().filter(|_| status.verdict != Verdict::Off) {
        if let Some(why) = &proxy.why {
            let (name, why) = (proxy.proxy.to_string(), format!(": {}", why.trim_end()));
            let health = (health_style(proxy.health), proxy.health);
            page.line(2, [(Style::Bold, name.as_str()), (Style::Plain, " is "), health, (Style::Plain, &why)]);
        }
    }
    // For a cluster that was switched off, the verdict is enough.
    for member in status.members.iter().filter(|_| status.verdict != Verdict::Off) {
        if let Some(why) = &member.why {
            let style = health_style(member.health);
            let name = member.member.to_string();
            let spans = [(Style::Bold, name.as_str()), (Style::Plain, " is "), (style, member.health)];
            page.line(2, spans.into_iter().chain([(Style::Plain, format!(": {}", why.trim_end()).as_str())]));
        }
    }
    for member in status.members.iter().filter(|m| m.leaving) {
        page.plain(2, &format!("{} leaves: {}", member.member, leaves(member)));
    }
    for (member, micros) in status.members.iter().filter_map(|m| Some((&m.member, m.slow_disk()?))) {
        let slow = format!(
            "the disk of {member} is slow: the slowest of 32 durable writes took {} ms before etcd had data there; etcd needs 99 of \
             100 within 10 ms, otherwise leaders change and writes wait",
            micros / 1000
        );
        page.line(2, [(Style::Yellow, "warning: "), (Style::Plain, &slow)]);
    }
    for member in &status.members {
        if let Some(trouble) = &member.log_source_trouble {
            page.plain(2, &format!("{}: cannot follow its log forwarding configuration: {trouble}", member.member));
        }
    }
    for alarm in &status.alarms {
        page.line(2, [(Style::Red, format!("alarm {} on {}", alarm.kind, alarm.member).as_str())]);
        if let Some(remedy) = alarm.remedy() {
            page.plain(4, &format!("  remedy: {remedy}"));
        }
    }
    if let Some(postgres) = status.postgres.as_ref().filter(|_| status.verdict != Verdict::Off) {
        postgres::remarks(&mut page, status, postgres);
    }
    pending(&mut page, status);
    for request in &status.requests {
        let text = format!("{} (`quorate requests {}`)", request.what, status.cluster);
        page.line(2, [(Style::Yellow, "open request: "), (Style::Plain, &text)]);
    }
    if let Some(signer) = status.backup.as_ref().and_then(|backup| backup.signed_by.as_ref()) {
        page.plain(2, &format!("backups are signed by {signer}"));
    }
    for problem in status.backup.iter().flat_map(|backup| &backup.problems) {
        page.line(2, [(Style::Yellow, "backup: "), (Style::Plain, problem)]);
    }
    page.line(2, [(verdict_style(status.verdict), status.summary.as_str())]);
    page
}

fn head(page: &mut Page, status: &Status) {
    let ca = status.ca_expires.map(|at| format!(", CA expires {}", at.strftime("%Y-%m-%d"))).unwrap_or_default();
    let runs = match &status.postgres {
        None => format!("etcd {}", status.etcd_version),
        Some(postgres) => format!("PostgreSQL {}", postgres.version),
    };
    let rest = format!(": {runs}, provider {}{}{ca}", status.provider, stage(status.formation));
    page.line(2, [(Style::Plain, "cluster "), (Style::Bold, status.cluster.as_str()), (Style::Plain, &rest)]);
    if let Some(url) = &status.url {
        page.plain(2, &format!("clients connect to {url}"));
    }
}

/// Printed only until the cluster serves.
fn stage(formation: &str) -> &'static str {
    match formation {
        "unformed" => ", not bootstrapped",
        "forming" => ", bootstrapping",
        "recovering" => ", recovering",
        "restoring" => ", restoring",
        _ => "",
    }
}

/// Many clusters, a line each.
pub fn brief<'a>(statuses: impl Iterator<Item = &'a Status>) -> Page {
    let statuses: Vec<&Status> = statuses.collect();
    let width = statuses.iter().map(|s| s.cluster.len()).max().unwrap_or(0);
    let mut page = Page::new();
    for s in statuses {
        let alarms = if s.alarms.is_empty() { String::new() } else { format!("; {}", plural(s.alarms.len(), "alarm")) };
        let backup = s.backup.as_ref().is_some_and(|backup| !backup.problems.is_empty());
        let backup = if backup { "; check its backups" } else { "" };
        let name = format!("{:width$}  ", s.cluster);
        let rest = format!("{alarms}{backup}");
        page.line(
            width + 2,
            [
                (Style::Bold, name.as_str()),
                (verdict_style(s.verdict), s.summary.as_str()),
                (Style::Plain, rest.as_str()),
            ],
        );
    }
    page
}

pub fn verdict_style(verdict: Verdict) -> Style {
    match verdict {
        Verdict::Healthy => Style::Green,
        Verdict::Degraded | Verdict::Unformed | Verdict::Unknown => Style::Yellow,
        Verdict::Down => Style::Red,
        Verdict::Off => Style::Dim,
    }
}

fn health_style(health: &str) -> Style {
    match health {
        "healthy" => Style::Green,
        "unhealthy" | "failing" | "untrusted" | "absent" | "unreachable" => Style::Red,
        _ => Style::Yellow,
    }
}

/// Columns that a narrow terminal omits, the least important first.
const DROPPED: [usize; 7] = [7, 1, 10, 8, 9, 6, 5];

fn members(status: &Status) -> Vec<Vec<table::Cell>> {
    let head = [
        "MEMBER",
        "MACHINE",
        "ADDRESS",
        "ROLE",
        "HEALTH",
        "VERSION",
        "DB/QUOTA",
        "RAFT INDEX",
        "LAG",
        "CERTIFICATE",
        "AGENT",
    ];
    let mut rows = vec![head.map(|title| (Style::Dim, title.to_owned())).to_vec()];
    rows.extend(status.members.iter().map(row));
    rows
}

/// The certificate is that of its agent: it has no other.
fn proxies(status: &Status) -> Vec<Vec<table::Cell>> {
    let head = ["PROXY", "MACHINE", "ADDRESS", "HEALTH", "CERTIFICATE", "AGENT"];
    let mut rows = vec![head.map(|title| (Style::Dim, title.to_owned())).to_vec()];
    let cell = |value: Option<String>| (Style::Plain, value.unwrap_or_else(|| String::from("-")));
    rows.extend(status.proxies.iter().map(|proxy| {
        vec![
            (Style::Bold, proxy.proxy.to_string()),
            cell(Some(proxy.machine.clone())),
            cell(proxy.address.clone()),
            (health_style(proxy.health), proxy.health.to_owned()),
            cell(proxy.certificate_left.map(validity_left)),
            cell(proxy.agent.as_ref().map(|program| program.version.clone())),
        ]
    }));
    rows
}

fn row(member: &MemberStatus) -> Vec<table::Cell> {
    let cell = |value: Option<String>| (Style::Plain, value.unwrap_or_else(|| String::from("-")));
    vec![
        (Style::Bold, member.member.to_string()),
        cell(Some(member.machine.clone())),
        cell(member.address.clone()),
        cell(member.role.map(String::from)),
        (health_style(member.health), member.health.to_owned()),
        cell(member.version.clone()),
        cell(member.db_size.map(|used| format!("{}/{}", size(used), size(member.db_quota)))),
        cell(member.raft_index.map(|n| n.to_string())),
        cell(member.raft_lag.map(|n| n.to_string())),
        cell(member.certificate_left.map(validity_left)),
        cell(member.agent.as_ref().map(|program| program.version.clone())),
    ]
}

/// "364 days", "2 h", "expired".
fn validity_left(left: SignedDuration) -> String {
    match left.as_hours() {
        _ if left.is_negative() || left.is_zero() => String::from("expired"),
        0 => String::from("under 1 h"),
        hours @ 1..48 => format!("{hours} h"),
        hours => plural(usize::try_from(hours / 24).unwrap_or(0), "day"),
    }
}

fn leaves(member: &MemberStatus) -> String {
    match member.member.is_former() {
        true => format!("it is a former machine of {}, which has a newer one", member.member.seat()),
        false => String::from("the spec no longer names it"),
    }
}

fn pending(page: &mut Page, status: &Status) {
    if status.pending.steps > 0 {
        // These are only the next ones; how many follow from them, a plan knows.
        page.plain(
            2,
            &format!("there are steps to take: `quorate plan {}` shows what `apply` would do", status.cluster),
        );
    }
    // The members' lines are not repeated.
    let said = |waiting: &&String| {
        let of_member = |m: &MemberStatus| m.why.as_ref().is_some_and(|why| waiting.contains(why.trim_end()));
        status.members.iter().any(|m| waiting.contains(m.member.as_str()) && of_member(m))
    };
    for waiting in status.pending.waiting.iter().filter(|waiting| !said(waiting)) {
        page.plain(2, &format!("waiting for {waiting}"));
    }
    for blocked in &status.pending.blocked {
        page.line(2, [(Style::Red, "blocked: "), (Style::Plain, blocked)]);
    }
}

#[cfg(test)]
mod tests {
    use quorate_control::kinds::status::{AlarmStatus, Pending};
    use quorate_core::model::Program;

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
            agent: healthy.then(|| Program { version: String::from("0.3.0"), protocol: 4 }),
            log_source_trouble: None,
            postgres: None,
        }
    }

    fn full(status: &Status) -> String {
        page(status, Look::default()).render(Look::default())
    }

    fn status() -> Status {
        Status {
            cluster: String::from("demo"),
            cluster_id: String::from("c"),
            provider: String::from("local"),
            url: None,
            formation: "formed",
            etcd_version: String::from("3.6.14"),
            verdict: Verdict::Down,
            summary: String::from("down: 1 of 2 voters are healthy, quorum is 2"),
            voters: 2,
            healthy: 1,
            quorum: 2,
            failures_survived: 0,
            members: vec![member("etcd-1", "healthy", None), member("etcd-2", "off", Some("its machine does not run"))],
            proxies: Vec::new(),
            alarms: vec![AlarmStatus {
                member: String::from("etcd-1"),
                kind: String::from("NOSPACE"),
                has_room: false,
            }],
            requests: Vec::new(),
            pending: Pending { steps: 1, ..Pending::default() },
            renew_by: None,
            ca_expires: Some("2036-11-13T00:00:00Z".parse().unwrap()),
            backup: None,
            postgres: None,
        }
    }

    #[test]
    fn the_table_says_who_is_not_well_and_why() {
        let expected = "\
cluster demo: etcd 3.6.14, provider local, CA expires 2036-11-13

MEMBER  MACHINE  ADDRESS     ROLE    HEALTH   VERSION  DB/QUOTA        RAFT INDEX  LAG  CERTIFICATE  AGENT
etcd-1  etcd-1   127.64.0.1  leader  healthy  3.6.14   20.5 KiB/8 GiB  12          0    364 days     0.3.0
etcd-2  etcd-2   127.64.0.1  -       off      -        -               -           -    -            -

etcd-2 is off: its machine does not run
alarm NOSPACE on etcd-1
  remedy: raise `etcd.quota` and apply, or delete keys; compact with `etcdctl compact REVISION` and run `etcdctl defrag` for each \
member; then `etcdctl alarm disarm`, as etcd does not lift the alarm by itself
there are steps to take: `quorate plan demo` shows what `apply` would do
down: 1 of 2 voters are healthy, quorum is 2
";
        assert_eq!(full(&status()), expected);
    }

    #[test]
    fn an_alarm_that_outlives_its_cause_has_another_remedy() {
        let mut status = status();
        status.alarms[0].has_room = true;
        let text = full(&status);
        let remedy =
            "  remedy: `etcdctl alarm disarm`: there is room again, and etcd does not lift the alarm by itself\n";
        assert!(text.contains(remedy) && !text.contains("raise `etcd.quota`"), "{text}");
    }

    #[test]
    fn at_80_columns_the_table_keeps_what_matters_and_sentences_wrap() {
        let look = Look { width: Some(80), colour: false };
        let text = page(&status(), look).render(look);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(
            text.contains("MEMBER  ADDRESS     ROLE    HEALTH   VERSION  DB/QUOTA        LAG  CERTIFICATE\n"),
            "{text}"
        );
    }

    #[test]
    fn the_remaining_validity_is_shown_in_hours_at_the_end() {
        let left = |hours: i64, minutes: i64| {
            validity_left(SignedDuration::from_hours(hours) + SignedDuration::from_mins(minutes))
        };
        assert_eq!([left(364 * 24, 0), left(49, 0)], ["364 days", "2 days"]);
        assert_eq!([left(47, 59), left(3, 20), left(0, 59)], ["47 h", "3 h", "under 1 h"]);
        assert_eq!([left(0, 0), left(-5, 0)], ["expired", "expired"]);
    }

    #[test]
    fn a_disk_that_is_too_slow_for_etcd_is_reported_with_its_latency() {
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
        let told = "etcd-2.1 leaves: it is a former machine of etcd-2, which has a newer one\n";
        assert!(text.contains(told), "{text}");
    }

    #[test]
    fn many_clusters_get_a_line_each() {
        let line = "demo  down: 1 of 2 voters are healthy, quorum is 2; 1 alarm\n";
        assert_eq!(brief([status(), status()].iter()).render(Look::default()), line.repeat(2));
    }
}
