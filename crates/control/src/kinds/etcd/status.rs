//! The status of an etcd cluster.

use quorate_core::kinds::etcd::planner::is_silent;
use quorate_core::kinds::etcd::safety;
use quorate_core::kinds::etcd::{EtcdStatus, Formation};
use quorate_core::model::{
    AgentSeen, CLIENT_PORT, CertificateUse, Exit, Facts, Ledger, MachineSeen, MemberName, Observation, Power, Program,
    Seen, ServiceState, https_url,
};
use quorate_core::planner::Decision;
use quorate_core::text::plural;

use crate::backup;
use crate::kinds::proxies;
use crate::kinds::status::{
    AlarmStatus, MemberStatus, Pending, Status, Verdict, ca_expires, known_members, machine_name, renew_by, unformed,
    unseen,
};
use crate::requests;

pub(crate) fn summarize(ledger: &Ledger, seen: &Observation, decision: &Decision) -> Status {
    let spec = &ledger.spec;
    let furthest = statuses(seen).find(|s| s.leader == s.member_id).map(|s| s.raft_index);
    let members: Vec<MemberStatus> =
        known_members(ledger, seen).into_iter().map(|member| member_status(ledger, seen, member, furthest)).collect();
    let (voters, healthy) = count_voters(ledger, seen, &members);
    let quorum = safety::quorum(voters);
    let alarms = alarms(seen, spec.etcd.quota.0, !decision.steps.is_empty() || !decision.blocked.is_empty());
    let foreign = other_programs(seen);
    let verdict = match verdict(ledger, voters, healthy) {
        // It answers reads, which is not enough.
        Verdict::Healthy if alarms.iter().any(AlarmStatus::stops_clients) => Verdict::Degraded,
        Verdict::Down if ledger.etcd.formation.is_formed() && healthy + foreign.len() >= quorum => Verdict::Unknown,
        other => other,
    };
    let proxies = proxies::status(ledger, seen);
    let (serving, fronts) = proxies::serving(&proxies);
    let verdict = if verdict == Verdict::Healthy && serving < fronts { Verdict::Degraded } else { verdict };
    Status {
        cluster: spec.name.to_string(),
        cluster_id: ledger.cluster_id.clone(),
        provider: spec.provider.settings().name().to_owned(),
        url: ledger.url(),
        formation: match ledger.etcd.formation {
            Formation::Unformed => "unformed",
            Formation::Forming { .. } => "forming",
            Formation::Formed { .. } => "formed",
            Formation::Recovering { .. } => "recovering",
            Formation::Restoring { .. } => "restoring",
        },
        etcd_version: spec.etcd.version.to_string(),
        verdict,
        summary: match alarms.iter().find(|alarm| alarm.stops_clients()) {
            Some(alarm) if verdict == Verdict::Degraded => {
                format!("degraded: {}; {}", alarm.means(), safety::healthy_of(healthy, voters))
            }
            None if verdict == Verdict::Unformed => unformed(ledger, decision),
            _ => summary(ledger, verdict, (voters, healthy), &foreign) + &proxies::summary(verdict, serving, fronts),
        },
        voters,
        healthy,
        quorum,
        failures_survived: safety::failures_survived(voters, healthy),
        members,
        proxies,
        alarms,
        pending: Pending::of(decision),
        requests: requests::open(ledger),
        renew_by: renew_by(ledger, seen),
        ca_expires: ca_expires(ledger),
        backup: backup::standing(ledger, seen.now),
        postgres: None,
    }
}

/// As etcd lists them; if no member has a quorum, as in the ledger.
fn count_voters(ledger: &Ledger, seen: &Observation, members: &[MemberStatus]) -> (usize, usize) {
    let told = statuses(seen).filter(|s| s.healthy && !s.is_learner).max_by_key(|s| s.raft_applied_index);
    // A former machine that was removed may not know it yet.
    let listed = |m: &MemberStatus| {
        let id = seen.facts(&m.member).and_then(|f| Some(f.etcd.status.as_ref()?.member_id));
        told.is_none_or(|told| told.members.iter().any(|entry| Some(entry.id) == id))
    };
    let votes = |m: &&MemberStatus| m.health == "healthy" && m.role != Some("learner") && listed(m);
    let healthy = members.iter().filter(votes).count();
    let voters = match (told, &ledger.etcd.formation) {
        (Some(told), Formation::Formed { .. }) => told.members.iter().filter(|m| !m.is_learner).count(),
        (None, Formation::Formed { members, .. }) => members.len(),
        (_, Formation::Unformed | Formation::Forming { .. }) => ledger.spec.members.len(),
        (_, Formation::Recovering { .. } | Formation::Restoring { .. }) => ledger.spec.members.len(),
    };
    (voters, healthy)
}

fn verdict(ledger: &Ledger, voters: usize, healthy: usize) -> Verdict {
    if ledger.power == Power::Off {
        Verdict::Off
    } else if matches!(ledger.etcd.formation, Formation::Recovering { .. } | Formation::Restoring { .. }) {
        Verdict::Down
    } else if !ledger.etcd.formation.is_formed() {
        Verdict::Unformed
    } else if healthy == voters {
        Verdict::Healthy
    } else if healthy >= safety::quorum(voters) {
        Verdict::Degraded
    } else {
        Verdict::Down
    }
}

/// The programs of agents that this one does not understand.
fn other_programs(seen: &Observation) -> Vec<&Program> {
    let programs = seen.agents.values().filter_map(|agent| match agent {
        Seen::At(_, AgentSeen::OtherProtocol(program)) => Some(&program.runs),
        _ => None,
    });
    programs.collect()
}

fn unknown(ledger: &Ledger, foreign: &[&Program], ours: &Program) -> String {
    let newest = foreign.iter().copied().reduce(|a, b| if a.is_older_than(b) { b } else { a }).unwrap_or(ours);
    let name = &ledger.spec.name;
    let what_to_do = if newest.protocol > ours.protocol {
        format!("use {newest} or newer")
    } else if newest.takes_programs() {
        format!("`quorate apply {name}` upgrades the agents; etcd keeps running")
    } else {
        String::from("such an agent cannot be upgraded: use the quorate that installed it")
    };
    let runs = match foreign.len() {
        1 => String::from("1 agent runs"),
        many => format!("{many} agents run"),
    };
    format!("unknown: {runs} {newest}, which this {ours} does not understand; {what_to_do}")
}

fn summary(ledger: &Ledger, verdict: Verdict, (voters, healthy): (usize, usize), foreign: &[&Program]) -> String {
    let quorum = safety::quorum(voters);
    if let (Verdict::Down, Formation::Recovering { from, .. }) = (verdict, &ledger.etcd.formation) {
        return format!("down: being recovered from {from}; `quorate recover` continues it");
    }
    if let (Verdict::Down, Formation::Restoring { .. }) = (verdict, &ledger.etcd.formation) {
        let source = ledger.etcd.restore.as_ref().map_or("a snapshot", |wish| &wish.source);
        return format!("down: being restored from {source}; `quorate apply` continues it");
    }
    match (verdict, safety::failures_survived(voters, healthy)) {
        (Verdict::Off, _) => String::from("off: its machines are stopped, its data is kept"),
        (Verdict::Unformed, _) => String::from("not bootstrapped yet"),
        (Verdict::Unknown, _) => unknown(ledger, foreign, Program::this()),
        (Verdict::Down, _) => format!("down: {}, quorum is {quorum}", safety::healthy_of(healthy, voters)),
        (Verdict::Healthy, 0) if voters == 1 => String::from("healthy: 1 of 1 voter; no fault tolerance"),
        (Verdict::Healthy, 0) => format!("healthy: {healthy} of {voters} voters; no fault tolerance"),
        (Verdict::Healthy, n) => format!("healthy: {healthy} of {voters} voters; tolerates {}", plural(n, "failure")),
        (Verdict::Degraded, 0) => {
            format!(
                "degraded: {healthy} of {voters} voters healthy (quorum {quorum}); one more failure means an outage"
            )
        }
        (Verdict::Degraded, n) => {
            format!(
                "degraded: {healthy} of {voters} voters healthy (quorum {quorum}); tolerates {}",
                plural(n, "failure")
            )
        }
    }
}

fn member_status(ledger: &Ledger, seen: &Observation, member: MemberName, furthest: Option<u64>) -> MemberStatus {
    let machine = seen.machines.get().and_then(|m| m.get(&member));
    let facts = seen.facts(&member);
    let status = facts.and_then(|f| f.etcd.status.as_ref());
    let of_etcd = [CertificateUse::Member, CertificateUse::Peer];
    let certificates = facts.into_iter().flat_map(|f| of_etcd.iter().filter_map(|of| f.certificates.get(of)));
    let ends = certificates.map(|certificate| certificate.not_after).min();
    let spec = &ledger.spec;
    let (health, why) = health(seen, &member, machine, facts, &spec.etcd.version.to_string());
    MemberStatus {
        machine: machine_name(ledger, &member, machine),
        leaving: !spec.members.iter().any(|m| m.name.as_str() == member.as_str()),
        address: machine.and_then(|m| m.address).map(|address| address.to_string()),
        endpoint: machine.and_then(|m| m.address).map(|address| https_url(address, CLIENT_PORT)),
        role: status.map(role),
        health,
        why,
        version: status.map(|s| s.version.clone()),
        db_size: status.map(|s| s.db_size),
        db_quota: spec.etcd.quota.0,
        raft_index: status.map(|s| s.raft_index),
        raft_lag: status.and_then(|s| Some(furthest?.saturating_sub(s.raft_index))),
        certificate_days_left: ends.map(|ends| quorate_pki::days_left(ends, seen.now)),
        certificate_left: ends.map(|ends| ends.duration_since(seen.now)),
        generation: facts.and_then(|f| f.node_config.as_ref()).map(|(generation, _)| *generation),
        restarts: facts.and_then(|f| match &f.etcd.service {
            ServiceState::Running { restarts, .. } | ServiceState::BackingOff { restarts, .. } => Some(*restarts),
            ServiceState::Stopped | ServiceState::Unknown { .. } => None,
        }),
        fsync_micros: facts.and_then(|f| f.host.fsync_micros),
        agent: seen.program(&member).map(|program| program.runs.clone()),
        log_source_trouble: facts.and_then(|f| f.host.log_source_trouble.clone()),
        postgres: None,
        member,
    }
}

fn role(status: &EtcdStatus) -> &'static str {
    if status.is_learner {
        "learner"
    } else if status.leader == status.member_id {
        "leader"
    } else {
        "voter"
    }
}

fn health(
    seen: &Observation,
    member: &MemberName,
    machine: Option<&MachineSeen>,
    facts: Option<&Facts>,
    wanted: &str,
) -> (&'static str, Option<String>) {
    let Some(facts) = facts else { return unseen(seen, member, machine) };
    match (&facts.etcd.service, &facts.etcd.status) {
        (ServiceState::Stopped, _) => ("stopped", None),
        (ServiceState::Unknown { why }, _) => ("unknown", Some(format!("cannot tell whether etcd is running: {why}"))),
        (ServiceState::BackingOff { last_exit, .. }, _) => {
            let Exit { how, last_words, .. } = last_exit;
            ("failing", Some(if last_words.is_empty() { how.clone() } else { format!("{how}: {last_words}") }))
        }
        (ServiceState::Running { .. }, _) if safety::has_lost_data(facts, seen.now) => {
            let why = "its data directory was deleted while it runs, and what it holds is lost when it ends; `quorate apply` \
                       moves it to a new machine";
            ("failing", Some(why.to_owned()))
        }
        (_, Some(status)) if status.healthy && status.version != wanted => {
            ("healthy", Some(format!("it runs etcd {}, and the spec says {wanted}", status.version)))
        }
        (_, Some(status)) if status.healthy => ("healthy", None),
        (_, Some(status)) if status.leader == 0 => ("unhealthy", Some(String::from("it sees no leader"))),
        (_, Some(_)) => ("unhealthy", Some(String::from("it does not answer reads"))),
        (service, None) => match is_silent(service, seen.now) {
            Some(why) => ("unhealthy", Some(why)),
            None => ("starting", Some(String::from("it does not answer yet"))),
        },
    }
}

fn statuses(seen: &Observation) -> impl Iterator<Item = &EtcdStatus> {
    seen.agents.keys().filter_map(|m| seen.facts(m)?.etcd.status.as_ref())
}

/// etcd raises its alarm when a request would reach the quota, and takes none that is larger.
const LARGEST_REQUEST: u64 = 2 << 20;

/// Alarms as any member reports them, each once. While something is left to do, etcd may still run with an earlier quota.
fn alarms(seen: &Observation, quota: u64, is_pending: bool) -> Vec<AlarmStatus> {
    let name = |id: u64| {
        let of_id = statuses(seen).flat_map(|s| s.members.iter()).find(|m| m.id == id);
        of_id.map_or_else(|| format!("{id:x}"), |m| m.name.clone())
    };
    let mut alarms: Vec<AlarmStatus> = Vec::new();
    for alarm in statuses(seen).flat_map(|s| s.alarms.iter()) {
        let (member, kind) = (name(alarm.member_id), alarm.kind.clone());
        if !alarms.iter().any(|a| a.member == member && a.kind == kind) {
            let own = statuses(seen).find(|status| status.member_id == alarm.member_id);
            let below = own.is_some_and(|status| status.db_size.saturating_add(LARGEST_REQUEST) < quota);
            let has_room = kind == AlarmStatus::NOSPACE && below && !is_pending;
            alarms.push(AlarmStatus { member, kind, has_room });
        }
    }
    alarms
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use quorate_core::kinds::etcd::FormingMember;
    use quorate_core::kinds::etcd::spec::ClientAuth;
    use quorate_core::kinds::etcd::versions::DEFAULT;
    use quorate_core::model::ProgramSeen;
    use quorate_core::spec::generated;

    use super::*;

    /// A bootstrapped cluster of three whose first agents run a quorate of this protocol, while the others do not answer.
    fn summarized(others: usize, protocol: u32) -> Status {
        let mut spec = generated("demo", 3, DEFAULT, ClientAuth::Certificate).unwrap();
        let mut ledger = Ledger::new(String::from("c"), spec.clusters.remove(0));
        let names: Vec<MemberName> = ledger.spec.members.iter().map(|m| m.name.as_str().into()).collect();
        let member = FormingMember { machine_id: String::new(), peer_url: String::new(), learner: false };
        let members: BTreeMap<_, _> = names.iter().map(|name| (name.clone(), member.clone())).collect();
        ledger.etcd.formation = Formation::Formed { token: String::from("t"), etcd_cluster_id: 1, members };
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let runs = Program { protocol, version: String::from("7.7.7") };
        let agent = Seen::At(now, AgentSeen::OtherProtocol(ProgramSeen { runs, failed: None }));
        let agents = names.into_iter().take(others).map(|name| (name, agent.clone())).collect();
        let fixtures = Seen::At(now, Vec::new());
        let seen = Observation { now, machines: Seen::At(now, BTreeMap::new()), agents, fixtures };
        summarize(&ledger, &seen, &Decision::default())
    }

    #[test]
    fn agents_of_another_protocol_make_the_state_unknown_and_the_verdict_says_what_to_do() {
        let of = |protocol: u32| summarized(2, protocol).summary;
        let ours = Program::this();
        assert_eq!(summarized(2, 2).verdict, Verdict::Unknown);
        let why = |protocol: u32| {
            format!(
                "unknown: 2 agents run quorate 7.7.7 (protocol {protocol}), which this {ours} does not understand; "
            )
        };
        assert_eq!(of(2), why(2) + "`quorate apply demo` upgrades the agents; etcd keeps running");
        assert_eq!(of(9), why(9) + "use quorate 7.7.7 (protocol 9) or newer");
        assert!(of(1).ends_with("cannot be upgraded: use the quorate that installed it"), "{}", of(1));
    }

    #[test]
    fn without_a_possible_quorum_it_is_down() {
        assert_eq!(summarized(1, 9).verdict, Verdict::Down);
    }
}
