//! The members of a PostgreSQL cluster, as a table.

use quorate_control::kinds::etcd::status::{MemberStatus, Status};

use super::{Style, health_style, size, table, validity_left};

/// Columns that a narrow terminal does without, the least needed first.
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
        cell(postgres.and_then(|postgres| postgres.lag_bytes).map(size)),
        cell(member.certificate_left.map(validity_left)),
        cell(member.agent.as_ref().map(|program| program.version.clone())),
    ]
}
