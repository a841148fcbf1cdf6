//! The status of one cluster of any kind, in a shape that scripts can rely on. Each kind fills it in (`kinds/NAME/status.rs`); what all
//! of them report in the same way is here.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use quorate_core::kinds::postgres::ArchiveSeen;
use quorate_core::model::{
    AgentSeen, Authorities, Ledger, MachineSeen, MemberName, Observation, PowerState, Program, Seen,
};
use quorate_core::planner::{Decision, UnsafeBecause, WaitingFor, renewal_window};
use serde::Serialize;

use crate::backup::BackupStatus;
use crate::requests;

#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub cluster: String,
    pub cluster_id: String,
    pub provider: String,
    /// The one address for all clients, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    pub formation: &'static str,
    pub etcd_version: String,
    pub verdict: Verdict,
    /// The verdict in one line.
    pub summary: String,
    pub voters: usize,
    pub healthy: usize,
    pub quorum: usize,
    pub failures_survived: usize,
    pub members: Vec<MemberStatus>,
    /// Machines that only forward clients to members.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub proxies: Vec<ProxyStatus>,
    pub alarms: Vec<AlarmStatus>,
    /// Problems for the next `apply`.
    pub pending: Pending,
    /// What was confirmed and is not carried out yet.
    pub requests: Vec<requests::Open>,
    /// By when the next `apply` must renew certificates.
    pub renew_by: Option<Timestamp>,
    /// When the first of the CAs expires.
    pub ca_expires: Option<Timestamp>,
    /// Absent if the spec wants no backups.
    pub backup: Option<BackupStatus>,
    /// For PostgreSQL clusters only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub postgres: Option<PostgresStatus>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every voter is healthy.
    Healthy,
    /// It serves, with less tolerance than it should have.
    Degraded,
    /// It does not serve.
    Down,
    /// This program does not understand the agents, so it cannot say whether the cluster serves.
    Unknown,
    /// Its machines are switched off, as the operator requested.
    Off,
    /// It is not formed yet.
    Unformed,
}

#[derive(Clone, Debug, Serialize)]
pub struct MemberStatus {
    pub member: MemberName,
    pub machine: String,
    /// The member has another machine by now, or is no longer in the spec: this machine will be destroyed.
    pub leaving: bool,
    pub address: Option<String>,
    pub endpoint: Option<String>,
    pub role: Option<&'static str>,
    /// One word: healthy, unhealthy, starting, stopped, failing, off, unseen, untrusted, other_protocol, unenrolled, absent.
    pub health: &'static str,
    /// Why it is not healthy.
    pub why: Option<String>,
    pub version: Option<String>,
    pub db_size: Option<u64>,
    pub db_quota: u64,
    pub raft_index: Option<u64>,
    /// Entries behind the leader, if a leader answered.
    pub raft_lag: Option<u64>,
    pub certificate_days_left: Option<i64>,
    /// The same in full, for people.
    #[serde(skip)]
    pub certificate_left: Option<SignedDuration>,
    /// The quorate that its agent runs.
    pub agent: Option<Program>,
    pub generation: Option<u64>,
    pub restarts: Option<u32>,
    /// The slowest of some durable writes on its disk, before etcd had data there; not reported for local machines.
    pub fsync_micros: Option<u64>,
    /// Why the configuration of its log forwarding cannot be followed.
    pub log_source_trouble: Option<String>,
    /// For members of PostgreSQL clusters only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub postgres: Option<PostgresMember>,
}

impl MemberStatus {
    /// etcd's recommendation for its disk: 99 of 100 durable writes within 10 ms.
    const FSYNC_MICROS: u64 = 10_000;

    /// How long a durable write takes on its disk, if that is too long for etcd.
    pub fn slow_disk(&self) -> Option<u64> {
        self.fsync_micros.filter(|micros| *micros > Self::FSYNC_MICROS)
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct AlarmStatus {
    pub member: String,
    pub kind: String,
    /// Of `NOSPACE`: the database is below the quota that etcd runs with, so only the alarm is left.
    pub has_room: bool,
}

impl AlarmStatus {
    pub(crate) const NOSPACE: &str = "NOSPACE";
    const CORRUPT: &str = "CORRUPT";

    /// Whether etcd refuses requests of clients for it.
    pub fn stops_clients(&self) -> bool {
        [Self::NOSPACE, Self::CORRUPT].contains(&self.kind.as_str())
    }

    pub(crate) fn means(&self) -> String {
        let AlarmStatus { member, kind, has_room } = self;
        match kind.as_str() {
            Self::NOSPACE if *has_room => format!(
                "etcd refuses all writes until the alarm {kind} is disarmed: the database of {member} had reached its quota, and is below \
                 it now"
            ),
            Self::CORRUPT => {
                format!(
                    "etcd refuses all requests, because the data of {member} differs from that of the others (alarm {kind})"
                )
            }
            _ => format!(
                "etcd refuses all writes, because the database of {member} has reached its quota (alarm {kind})"
            ),
        }
    }

    /// What ends it.
    pub fn remedy(&self) -> Option<String> {
        match self.kind.as_str() {
            Self::NOSPACE if self.has_room => Some(String::from(
                "`etcdctl alarm disarm`: there is room again, and etcd does not lift the alarm by itself",
            )),
            Self::NOSPACE => Some(String::from(
                "raise `etcd.quota` and apply, or delete keys; compact with `etcdctl compact REVISION` and run `etcdctl defrag` for \
                 each member; then `etcdctl alarm disarm`, as etcd does not lift the alarm by itself",
            )),
            Self::CORRUPT => Some(format!(
                "find the member that differs with `etcdctl endpoint hashkv`, give it a new machine with `quorate replace`, then \
                 `etcdctl alarm disarm`; {} raised it",
                self.member
            )),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Pending {
    pub steps: usize,
    pub waiting: Vec<String>,
    pub blocked: Vec<String>,
}

impl Pending {
    pub(crate) fn of(decision: &Decision) -> Self {
        // Users and roles were not asked for, so waiting for them means nothing here.
        let waiting = decision.waiting.iter().filter(|waiting| **waiting != WaitingFor::AuthSight);
        Pending {
            steps: decision.steps.len(),
            waiting: waiting.map(ToString::to_string).collect(),
            blocked: decision.blocked.iter().map(ToString::to_string).collect(),
        }
    }
}

/// The status that only PostgreSQL clusters have.
#[derive(Clone, Debug, Serialize)]
pub struct PostgresStatus {
    pub version: String,
    pub primary: Option<MemberName>,
    /// How many standbys must confirm a commit.
    pub synchronous_nodes: u16,
    /// Whether writes stop while there are fewer.
    pub strict: bool,
    /// Automatic failover is switched off.
    pub paused: bool,
    /// The part of the primary's log that is complete and not archived yet; absent without backups.
    pub archive: Option<ArchiveSeen>,
}

#[derive(Clone, Debug, Serialize)]
pub struct PostgresMember {
    pub timeline: Option<u64>,
    /// Behind the primary, in bytes.
    pub lag_bytes: Option<u64>,
    /// The age of the last transaction that was replayed, where it is behind.
    pub lag_seconds: Option<u64>,
    /// Whether a commit waits for it.
    pub synchronous: bool,
    pub pending_restart: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct ProxyStatus {
    pub proxy: MemberName,
    pub machine: String,
    pub address: Option<String>,
    /// The spec does not name it any more, or it has a successor.
    pub leaving: bool,
    pub health: &'static str,
    pub why: Option<String>,
    #[serde(skip)]
    pub certificate_left: Option<SignedDuration>,
    pub certificate_days_left: Option<i64>,
    pub agent: Option<Program>,
}

/// Whether this machine, former ones included, is or was one of a proxy.
pub(crate) fn is_proxy(ledger: &Ledger, name: &MemberName) -> bool {
    let recorded = ledger.members.get(&name.seat().into()).is_some_and(|record| record.proxy.is_some());
    recorded || ledger.spec.proxies().any(|proxy| proxy.name.as_str() == name.seat())
}

/// The members of the spec, other members of the running cluster, and machines of this cluster that will be destroyed.
pub(crate) fn known_members(ledger: &Ledger, seen: &Observation) -> Vec<MemberName> {
    let mut names: Vec<MemberName> = ledger.spec.members.iter().map(|m| m.name.as_str().into()).collect();
    let etcd = ledger.etcd.formation.members().into_iter().flat_map(|members| members.keys());
    let postgres = ledger.postgres.formation.members().into_iter().flat_map(|members| members.keys());
    let members = etcd.chain(postgres);
    let machines = seen.machines.get().into_iter().flatten();
    let ours = machines.filter(|(_, machine)| machine.cluster_id == ledger.cluster_id).map(|(name, _)| name);
    let left_out = members.chain(ours).filter(|m| !names.contains(m) && !is_proxy(ledger, m));
    let left_out: BTreeSet<MemberName> = left_out.cloned().collect();
    names.extend(left_out);
    names
}

/// As the provider knows it.
pub(crate) fn machine_name(ledger: &Ledger, member: &MemberName, machine: Option<&MachineSeen>) -> String {
    let recorded = || ledger.members.get(member).map_or(1, |r| r.incarnation);
    ledger.spec.machine_name(member.seat(), machine.map_or_else(recorded, |m| m.incarnation))
}

/// Of a member whose agent reports nothing.
pub(crate) fn unseen(
    seen: &Observation,
    member: &MemberName,
    machine: Option<&MachineSeen>,
) -> (&'static str, Option<String>) {
    match (machine, seen.agents.get(member)) {
        (None, _) => ("absent", Some(String::from("it has no machine"))),
        (Some(m), _) if m.power == PowerState::Off => ("off", Some(String::from("its machine does not run"))),
        (Some(m), _) if m.power == PowerState::Stopping => ("off", Some(String::from("its machine is stopping"))),
        (Some(m), Some(Seen::Unreachable { .. }) | None) if m.power == PowerState::Starting => {
            ("starting", Some(String::from("its machine is starting")))
        }
        (_, Some(Seen::At(_, AgentSeen::Unenrolled { .. }))) => ("unenrolled", None),
        (_, Some(Seen::At(_, AgentSeen::Untrusted(distrust)))) => {
            let because = UnsafeBecause::Untrusted { member: member.clone(), distrust: *distrust };
            ("untrusted", Some(because.to_string()))
        }
        (_, Some(Seen::At(_, AgentSeen::OtherProtocol(program)))) => {
            ("other_protocol", Some(format!("its agent runs {}", program.runs)))
        }
        (_, Some(Seen::Unreachable { why, .. })) => ("unreachable", Some(why.clone())),
        _ => ("unreachable", None),
    }
}

/// The summary of a cluster that is not bootstrapped yet. If something is refused, `apply` would refuse the same.
pub(crate) fn unformed(ledger: &Ledger, decision: &Decision) -> String {
    match decision.blocked.is_empty() {
        true => format!("not bootstrapped yet: `quorate apply {}` continues", ledger.spec.name),
        false => String::from("not bootstrapped yet"),
    }
}

pub(crate) fn ca_expires(ledger: &Ledger) -> Option<Timestamp> {
    let Authorities { client, control, peer } = &ledger.authorities;
    let peers = peer.iter().flat_map(|plane| &plane.trusted);
    client.iter().chain(control).chain(peers).map(|authority| authority.not_after).min()
}

/// The first moment at which a certificate enters its renewal window.
pub fn renew_by(ledger: &Ledger, seen: &Observation) -> Option<Timestamp> {
    if ledger.spec.tls.given.is_some() {
        return None;
    }
    let window = ledger.spec.tls.renew_before().as_duration();
    let from = |until: Timestamp, window| until.saturating_sub(window).unwrap_or(until);
    let of_machines = seen.agents.keys().filter_map(|m| seen.facts(m)).flat_map(|f| &f.certificates);
    let of_patroni = ledger.etcd.used_by.values().filter_map(|used| used.certificate.as_ref());
    of_machines
        .map(|(of, c)| from(c.not_after, renewal_window(*of, window)))
        .chain(of_patroni.map(|c| from(c.not_after, window)))
        .min()
}
