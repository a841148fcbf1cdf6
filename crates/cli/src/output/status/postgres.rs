//! The members of a PostgreSQL cluster, as a table.

use quorate_control::kinds::status::{MemberStatus, PostgresMember, PostgresStatus, Status};
use quorate_core::text::plural;

use super::{Page, Style, health_style, size, table, validity_left};

/// Columns that a narrow terminal omits, the least important first.
pub(super) const DROPPED: [usize; 5] = [1, 9, 8, 6, 5];

pub(super) fn members(status: &Status) -> Vec<Vec<table::Cell>> {
    let head = ["MEMBER", "MACHINE", "ADDRESS", "ROLE", "HEALTH", "VERSION", "TIMELINE", "LAG", "CERTIFICATE", "AGENT"];
    let mut rows = vec![head.map(|title| (Style::Dim, title.to_owned())).to_vec()];
    rows.extend(status.members.iter().map(row));
    rows
}

fn row(member: &MemberStatus) -> Vec<table::Cell> {
    let cell = |value: Option<String>| (Style::Plain, value.unwrap_or_else(|| String::from("-")));
    let postgres = member.postgres.as_ref();
    vec![
        (Style::Bold, member.member.to_string()),
        cell(Some(member.machine.clone())),
        cell(member.address.clone()),
        cell(member.role.map(String::from)),
        (health_style(member.health), member.health.to_owned()),
        cell(member.version.clone()),
        cell(postgres.and_then(|postgres| postgres.timeline).map(|timeline| timeline.to_string())),
        cell(postgres.and_then(lag)),
        cell(member.certificate_left.map(validity_left)),
        cell(member.agent.as_ref().map(|program| program.version.clone())),
    ]
}

fn lag(member: &PostgresMember) -> Option<String> {
    let bytes = size(member.lag_bytes?);
    Some(match member.lag_seconds {
        Some(seconds) if seconds > 0 => format!("{bytes}, {seconds} s"),
        _ => bytes,
    })
}

/// Parameters that wait for a restart, and the state of the log and the backups.
pub(super) fn remarks(page: &mut Page, status: &Status, postgres: &PostgresStatus) {
    let waits = |member: &&MemberStatus| member.postgres.as_ref().is_some_and(|postgres| postgres.pending_restart);
    for member in status.members.iter().filter(waits) {
        page.plain(
            2,
            &format!("{} waits for a restart; `quorate apply {}` restarts it", member.member, status.cluster),
        );
    }
    if let Some(archive) = &postgres.archive {
        let log = match archive.waiting {
            0 => String::from("all finished pieces are stored"),
            waiting => format!("{} not stored yet, the oldest for {} s", plural(waiting, "piece"), archive.waits_s),
        };
        page.plain(2, &format!("log archive: {log}"));
    }
    if let Some(backup) = &status.backup {
        let proven = backup.verified.as_ref().and_then(|note| Some((note, note.verified_at?)));
        let proven = match proven {
            Some((note, at)) => format!("{}, verified {}", note.id, at.strftime("%Y-%m-%d %H:%M UTC")),
            None => String::from("none"),
        };
        page.plain(2, &format!("last verified backup: {proven}"));
    }
}
