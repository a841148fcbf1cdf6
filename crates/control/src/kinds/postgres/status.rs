//! The status of a PostgreSQL cluster.

use jiff::Timestamp;
use quorate_core::kinds::postgres::{ArchiveSeen, CLIENT_PORT, Formation, PatroniStatus, PostgresFacts, Role};
use quorate_core::model::{CertificateUse, Exit, Ledger, MemberName, Observation, Power, ServiceState};
use quorate_core::planner::Decision;
use quorate_core::text::plural;

use crate::backup::{self, BackupStatus};
use crate::kinds::proxies;
use crate::kinds::status::{
    MemberStatus, Pending, PostgresMember, PostgresStatus, Status, Verdict, ca_expires, known_members, machine_name,
    renew_by, unformed, unseen,
};
use crate::requests;

pub(crate) fn summarize(ledger: &Ledger, seen: &Observation, decision: &Decision) -> Status {
    let spec = &ledger.spec;
    let settings = spec.postgres.as_ref();
    let primary = primary(seen);
    let members: Vec<MemberStatus> =
        known_members(ledger, seen).into_iter().map(|member| member_status(ledger, seen, member, primary)).collect();
    let wanted = || members.iter().filter(|member| !member.leaving);
    let (all, healthy) = (wanted().count(), wanted().filter(|member| member.health == "healthy").count());
    let nodes = settings.map_or(0, |postgres| postgres.synchronous.nodes);
    let strict = settings.is_some_and(|postgres| postgres.synchronous.strict);
    // With Patroni, commits wait for as many standbys as there are, up to `nodes`. Only the loss of the last one stops writes.
    let needed = if strict { usize::from(nodes.min(1)) } else { 0 };
    let writes = primary.is_some() && (needed == 0 || healthy > needed);
    let verdict = match &ledger.postgres.formation {
        _ if ledger.power == Power::Off => Verdict::Off,
        Formation::Unformed | Formation::Forming { .. } => Verdict::Unformed,
        Formation::Formed { .. } if !writes => Verdict::Down,
        Formation::Formed { .. } if healthy == all => Verdict::Healthy,
        Formation::Formed { .. } => Verdict::Degraded,
    };
    let proxies = proxies::status(ledger, seen);
    let (serving, all_proxies) = proxies::serving(&proxies);
    let verdict = if verdict == Verdict::Healthy && serving < all_proxies { Verdict::Degraded } else { verdict };
    // How many may fail so that a member with every confirmed commit remains. Patroni lets no other take over.
    let spare = match nodes > 0 && !has_synchronous_standby(primary) {
        true => 0,
        false => healthy.saturating_sub(1 + needed),
    };
    Status {
        cluster: spec.name.to_string(),
        cluster_id: ledger.cluster_id.clone(),
        provider: spec.provider.settings().name().to_owned(),
        url: ledger.url(),
        formation: match &ledger.postgres.formation {
            Formation::Unformed => "unformed",
            Formation::Forming { .. } => "forming",
            Formation::Formed { .. } => "formed",
        },
        etcd_version: String::new(),
        verdict,
        summary: match verdict {
            Verdict::Unformed => unformed(ledger, decision),
            _ => {
                summary(verdict, primary.map(|(name, _)| name), (all, healthy), spare)
                    + &proxies::summary(verdict, serving, all_proxies)
            }
        },
        voters: all,
        healthy,
        quorum: 1,
        failures_survived: spare,
        members,
        proxies,
        alarms: Vec::new(),
        pending: Pending::of(decision),
        requests: requests::open(ledger),
        renew_by: renew_by(ledger, seen),
        ca_expires: ca_expires(ledger),
        backup: backup_status(ledger, seen, primary.map(|(name, _)| name)),
        postgres: Some(PostgresStatus {
            version: settings.map(|postgres| postgres.version.to_string()).unwrap_or_default(),
            primary: primary.map(|(name, _)| name.clone()),
            synchronous_nodes: nodes,
            strict,
            paused: primary.is_some_and(|(_, status)| status.paused),
            archive: primary.and_then(|(name, _)| archive(seen, name)).cloned(),
        }),
    }
}

fn archive<'a>(seen: &'a Observation, primary: &MemberName) -> Option<&'a ArchiveSeen> {
    found(seen, primary)?.archive.as_ref()
}

/// How long a complete segment of the log may wait.
const LATE: u64 = 120;

/// According to the ledger, and whether the log is archived: otherwise the disk of the primary fills up.
fn backup_status(ledger: &Ledger, seen: &Observation, primary: Option<&MemberName>) -> Option<BackupStatus> {
    let mut status = backup::standing(ledger, seen.now)?;
    let found = primary.and_then(|primary| archive(seen, primary));
    if let (Some(primary), Some(ArchiveSeen { waiting, waits_s })) = (primary, found)
        && *waits_s > LATE
    {
        status.problems.push(format!(
            "{} of the log on {primary} {} not stored yet, the oldest for {waits_s} s: until the store takes it, its disk fills up; \
             see `quorate logs {} {primary}`",
            plural(*waiting, "piece"),
            if *waiting == 1 { "is" } else { "are" },
            ledger.spec.name
        ));
    }
    Some(status)
}

fn summary(verdict: Verdict, primary: Option<&MemberName>, (all, healthy): (usize, usize), spare: usize) -> String {
    let tolerates = match spare {
        0 => String::from("no fault tolerance"),
        spare => format!("tolerates {}", plural(spare, "failure")),
    };
    match (verdict, primary) {
        (Verdict::Off, _) => String::from("off: its machines are stopped, its data is kept"),
        (Verdict::Unformed, _) => String::from("not bootstrapped yet"),
        (Verdict::Healthy, Some(primary)) => {
            format!("healthy: {healthy} of {all} members, {primary} is the primary; {tolerates}")
        }
        (Verdict::Degraded, Some(primary)) => {
            format!("degraded: {healthy} of {all} members healthy, {primary} is the primary; {tolerates}")
        }
        (_, Some(primary)) => {
            format!("down: {primary} is the primary and writes wait, because there is no synchronous standby")
        }
        (_, None) => format!("down: there is no primary; {healthy} of {all} members healthy"),
    }
}

fn found<'a>(seen: &'a Observation, member: &MemberName) -> Option<&'a PostgresFacts> {
    seen.facts(member)?.postgres.as_deref()
}

fn primary(seen: &Observation) -> Option<(&MemberName, &PatroniStatus)> {
    let mut statuses = seen.agents.keys().filter_map(|member| Some((member, found(seen, member)?.status.as_ref()?)));
    statuses.find(|(_, status)| status.role == Role::Primary && status.state == "running")
}

fn has_synchronous_standby(primary: Option<(&MemberName, &PatroniStatus)>) -> bool {
    primary.is_some_and(|(_, status)| status.standbys.values().any(|standby| standby.synchronous))
}

fn member_status(
    ledger: &Ledger,
    seen: &Observation,
    member: MemberName,
    primary: Option<(&MemberName, &PatroniStatus)>,
) -> MemberStatus {
    let machine = seen.machines.get().and_then(|m| m.get(&member));
    let facts = seen.facts(&member);
    let status = found(seen, &member).and_then(|found| found.status.as_ref());
    let shown = [CertificateUse::Member, CertificateUse::Peer];
    let certificates = facts.into_iter().flat_map(|f| shown.iter().filter_map(|of| f.certificates.get(of)));
    let ends = certificates.map(|certificate| certificate.not_after).min();
    let incarnation = ledger.members.get(&member).map_or(1, |record| record.incarnation);
    let called = ledger.postgres.formation.patroni_name(&member, incarnation);
    let standby = primary.and_then(|(_, leading)| leading.standbys.get(&called));
    let synchronous = standby.is_some_and(|standby| standby.synchronous);
    let end = primary.and_then(|(_, leading)| leading.location);
    let (health, why) = match facts {
        None => unseen(seen, &member, machine),
        Some(_) => health(found(seen, &member), primary),
    };
    MemberStatus {
        machine: machine_name(ledger, &member, machine),
        leaving: !ledger.spec.members.iter().any(|m| m.name.as_str() == member.as_str()),
        address: machine.and_then(|m| m.address).map(|address| address.to_string()),
        endpoint: machine.and_then(|m| m.address).map(|a| std::net::SocketAddr::new(a, CLIENT_PORT).to_string()),
        role: status.map(|status| match status.role {
            Role::Primary => "primary",
            Role::Replica if synchronous => "sync standby",
            Role::Replica => "replica",
            Role::Unknown => "unknown",
        }),
        health,
        why,
        version: status.and_then(|status| status.server_version.clone()),
        db_size: None,
        db_quota: 0,
        raft_index: None,
        raft_lag: None,
        certificate_days_left: ends.map(|ends| quorate_pki::days_left(ends, seen.now)),
        certificate_left: ends.map(|ends| ends.duration_since(seen.now)),
        generation: facts.and_then(|f| f.node_config.as_ref()).map(|(generation, _)| *generation),
        restarts: found(seen, &member).and_then(|found| match &found.service {
            ServiceState::Running { restarts, .. } | ServiceState::BackingOff { restarts, .. } => Some(*restarts),
            ServiceState::Stopped | ServiceState::Unknown { .. } => None,
        }),
        fsync_micros: None,
        agent: seen.program(&member).map(|program| program.runs.clone()),
        log_source_trouble: facts.and_then(|f| f.host.log_source_trouble.clone()),
        postgres: status.map(|status| PostgresMember {
            timeline: status.timeline,
            lag_bytes: end.and_then(|end| Some(end.saturating_sub(status.location?))),
            lag_seconds: lag_seconds(status, end, seen.now),
            synchronous,
            pending_restart: status.pending_restart,
        }),
        member,
    }
}

/// A standby that has replayed everything does not lag, however old the last transaction is.
fn lag_seconds(status: &PatroniStatus, end: Option<u64>, now: Timestamp) -> Option<u64> {
    if status.role != Role::Replica {
        return None;
    }
    match status.replayed? >= end? {
        true => Some(0),
        false => u64::try_from(now.duration_since(status.replayed_at?).as_secs()).ok(),
    }
}

fn health(
    found: Option<&PostgresFacts>,
    primary: Option<(&MemberName, &PatroniStatus)>,
) -> (&'static str, Option<String>) {
    let Some(found) = found else { return ("stopped", Some(String::from("it has no configuration yet"))) };
    let timeline = primary.and_then(|(_, leading)| leading.timeline);
    match (&found.service, &found.status) {
        (ServiceState::Stopped, _) => ("stopped", None),
        (ServiceState::Unknown { why }, _) => {
            ("unknown", Some(format!("cannot tell whether Patroni is running: {why}")))
        }
        (ServiceState::BackingOff { last_exit: Exit { how, last_words, .. }, .. }, _) => {
            ("failing", Some(if last_words.is_empty() { how.clone() } else { format!("{how}: {last_words}") }))
        }
        (_, None) => ("starting", Some(String::from("Patroni does not answer yet"))),
        (_, Some(status)) if status.role == Role::Primary && status.state == "running" => healthy(status),
        (_, Some(status)) if status.streaming && status.timeline == timeline => healthy(status),
        (_, Some(status)) => ("unhealthy", Some(status.state.clone())),
    }
}

fn healthy(status: &PatroniStatus) -> (&'static str, Option<String>) {
    let why = if status.pending_restart {
        Some(String::from("a changed parameter takes effect when PostgreSQL restarts"))
    } else if !status.dcs {
        Some(String::from("Patroni does not reach its etcd"))
    } else {
        None
    };
    ("healthy", why)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use quorate_core::kinds::etcd::versions::DEFAULT;
    use quorate_core::model::{AgentSeen, BinarySeen, DataSeen, Facts, Seen};
    use quorate_core::spec::{BackupSettings, generated_postgres};
    use serde_json::json;

    use super::*;

    const NOW: &str = "2026-01-01T12:00:00Z";

    fn ledger(backup: Option<BackupSettings>) -> Ledger {
        let mut spec = generated_postgres("shop", 3, 15, DEFAULT).unwrap();
        let mut ledger = Ledger::new(String::from("c"), spec.clusters.pop().unwrap());
        ledger.spec.backup = backup;
        ledger.postgres.formation =
            Formation::Formed { token: String::from("t"), system_id: String::from("1"), members: BTreeMap::new() };
        ledger
    }

    fn backup() -> BackupSettings {
        serde_json::from_value(json!({"to": {"directory": "/srv/backups"}})).unwrap()
    }

    /// What an agent reports whose PostgreSQL has this role, with so many pieces of the log that wait, the oldest for so long.
    fn facts(role: Role, waiting: u64, waits_s: u64) -> Facts {
        let stopped = serde_json::to_value(ServiceState::Stopped).unwrap();
        let (empty, unasked) =
            (serde_json::to_value(DataSeen::Empty).unwrap(), serde_json::to_value(BinarySeen::Unasked).unwrap());
        let status = json!({
            "role": role, "state": "running", "streaming": role == Role::Replica, "timeline": 1, "location": 1,
            "replayed": null, "system_id": "1", "server_version": "15.18", "patroni_version": "4.1.5",
            "pending_restart": false, "paused": false, "standbys": {}, "config": null, "dcs": true,
        });
        let postgres = json!({
            "postgres": unasked, "patroni": unasked, "data": empty, "last_started": null, "system_id": "1", "catalog": null,
            "service": ServiceState::Running { since: NOW.parse().unwrap(), digest: String::new(), restarts: 0 },
            "status": status, "archive": ArchiveSeen { waiting, waits_s },
        });
        let etcd = json!({
            "binary": unasked, "service": stopped, "data": empty, "last_started": null, "peer_serving": false,
            "status": null, "log": null, "older": null,
        });
        serde_json::from_value(json!({
            "machine_id": "", "fence": 0, "node_config": null, "certificates": {}, "requests": {}, "reaches": {},
            "host": {"memory_bytes": 0, "disk_free_bytes": 0, "clock": null}, "etcd": etcd, "postgres": postgres,
        }))
        .unwrap()
    }

    /// The problems of the backups of a cluster whose primary is pg-2.
    fn problems(ledger: &Ledger, waiting: u64, waits_s: u64) -> Option<Vec<String>> {
        let now: Timestamp = NOW.parse().unwrap();
        let agent = |facts: Facts| Seen::At(now, AgentSeen::Enrolled(Box::new(facts)));
        let agents = BTreeMap::from([
            // A replica archives nothing, so its log does not count.
            (MemberName::from("pg-1"), agent(facts(Role::Replica, 99, 9999))),
            (MemberName::from("pg-2"), agent(facts(Role::Primary, waiting, waits_s))),
        ]);
        let (machines, fixtures) = (Seen::At(now, BTreeMap::new()), Seen::At(now, Vec::new()));
        let status = summarize(ledger, &Observation { now, machines, agents, fixtures }, &Decision::default());
        let postgres = status.postgres.expect("a cluster of PostgreSQL");
        assert_eq!(postgres.primary, Some(MemberName::from("pg-2")));
        assert_eq!(postgres.archive, Some(ArchiveSeen { waiting, waits_s }), "scripts see the figures");
        status.backup.map(|backup| backup.problems.into_iter().filter(|problem| problem.contains("the log")).collect())
    }

    #[test]
    fn a_log_that_does_not_get_to_the_store_is_a_problem_when_it_is_late() {
        let ledger = ledger(Some(backup()));
        let late = |waiting, waits_s| problems(&ledger, waiting, waits_s).expect("backups are wanted");
        assert_eq!(late(0, 0), [""; 0]);
        assert_eq!(late(40, LATE), [""; 0], "it is stored within two minutes");
        assert_eq!(
            late(1, LATE + 1),
            [
                "1 piece of the log on pg-2 is not stored yet, the oldest for 121 s: until the store takes it, its disk fills up; \
              see `quorate logs shop pg-2`"
            ]
        );
        let several = late(12, 3600).remove(0);
        assert!(
            several.starts_with("12 pieces of the log on pg-2 are not stored yet, the oldest for 3600 s: "),
            "{several}"
        );
    }

    #[test]
    fn without_backups_the_log_is_not_reported() {
        assert_eq!(problems(&ledger(None), 12, 3600), None);
    }
}
