//! What an operator should know before a plan is carried out: how machines will run, and which clients their firewall would block.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::Serialize;

use super::{Action, Step};
use crate::model::{AGENT_PORT, CertificateUse, MemberName, Observation, PowerState};
use crate::providers::MachineKind;
use crate::spec::{AddressRange, ClusterSpec, Firewall, MemberSpec};

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Remark {
    pub kind: RemarkKind,
    pub text: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RemarkKind {
    /// How new machines will run.
    Machines,
    /// Addresses that the firewall would block.
    CutOff,
    /// Different versions of members after the plan.
    Versions,
    /// Agents that are too old for the requested settings.
    Agents,
    /// Machines whose provider does not answer.
    Places,
    /// A release that machines must have already.
    Programs,
    /// Users whose file has a different password than the one in force.
    Passwords,
}

/// Facts about the surroundings that only the controller knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Surroundings {
    /// The address of this host from which it connects to each member, if there is a route.
    pub comes_from: BTreeMap<MemberName, IpAddr>,
    /// How the provider would run machines, in words.
    pub machines: Option<String>,
    /// Users of PostgreSQL whose file has a different password than the one in force.
    pub other_passwords: Vec<String>,
}

/// Remarks on the steps.
pub fn remarks(spec: &ClusterSpec, steps: &[Step], seen: &Observation, around: &Surroundings) -> Vec<Remark> {
    let mut remarks = Vec::new();
    if steps.iter().any(|step| matches!(step.action, Action::CreateMachine { .. })) {
        let text = around.machines.iter().cloned();
        remarks.extend(text.map(|text| Remark { kind: RemarkKind::Machines, text }));
    }
    if steps.iter().any(|step| matches!(step.action, Action::PushConfig { .. })) {
        let cut_off = cut_off(spec, seen, around).into_iter();
        remarks.extend(cut_off.map(|text| Remark { kind: RemarkKind::CutOff, text }));
    }
    remarks.extend(versions(spec, steps, seen).map(|text| Remark { kind: RemarkKind::Versions, text }));
    remarks.extend(spec.kind.no_download(spec, steps, seen).map(|text| Remark { kind: RemarkKind::Programs, text }));
    remarks.extend(older_agents(seen).map(|text| Remark { kind: RemarkKind::Agents, text }));
    remarks.extend(other_passwords(spec, around).map(|text| Remark { kind: RemarkKind::Passwords, text }));
    remarks.extend(out_of_reach(seen).map(|text| Remark { kind: RemarkKind::Places, text }));
    remarks
}

/// A password changes in steps that members confirm, so it takes a command.
fn other_passwords(spec: &ClusterSpec, around: &Surroundings) -> Option<String> {
    let users = &around.other_passwords;
    (!users.is_empty()).then(|| {
        let flags: Vec<String> = users.iter().map(|user| format!("--user {user}")).collect();
        format!(
            "the password in the file of {} is not the one in force: `quorate passwords rotate {} {}` takes it up",
            users.join(", "),
            spec.name,
            flags.join(" ")
        )
    })
}

/// Such machines cannot be changed, although their agents may answer.
fn out_of_reach(seen: &Observation) -> impl Iterator<Item = String> {
    let machines = seen.machines.get().into_iter().flatten();
    let hidden = machines.filter(|(_, machine)| machine.power == PowerState::Unknown);
    let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (member, machine) in hidden {
        places.entry(machine.place.as_deref().unwrap_or_default()).or_default().push(member.as_str());
    }
    places.into_iter().map(|(place, members)| {
        let members = members.join(", ");
        format!(
            "{place} cannot be reached: machines there ({members}) cannot be created, started, stopped or destroyed"
        )
    })
}

/// A new machine starts with the version of the spec, even if the others cannot change to it.
fn versions(spec: &ClusterSpec, steps: &[Step], seen: &Observation) -> Option<String> {
    let wanted = spec.etcd.version.to_string();
    let is_made = |member: &MemberName| {
        let makes = |step: &Step| matches!(&step.action, Action::CreateMachine { member: made, .. } if made == member);
        steps.iter().any(makes)
    };
    let goes_there = |member: &MemberName| {
        let restarts = |step: &Step| matches!(&step.action, Action::RestartEtcd { member: it, .. } if it == member);
        steps.iter().any(restarts)
    };
    let mut stay: BTreeMap<&str, BTreeSet<MemberName>> = BTreeMap::new();
    for member in seen.agents.keys().filter(|member| !goes_there(member) && !is_made(member)) {
        let runs = seen.status(member).map(|status| status.version.as_str()).filter(|version| *version != wanted);
        if let Some(version) = runs {
            stay.entry(version).or_default().insert(member.clone());
        }
    }
    let made: BTreeSet<MemberName> =
        spec.members.iter().map(|member| member.name.as_str().into()).filter(is_made).collect();
    let stay: Vec<String> = stay.iter().map(|(version, members)| format!("{} on {version}", listed(members))).collect();
    let both = !made.is_empty() && !stay.is_empty();
    both.then(|| {
        format!("{} starts with etcd {wanted}, and these stay as they are: {}", listed(&made), stay.join("; "))
    })
}

/// Agents that cannot be restarted with this program, and create no key for peers.
fn older_agents(seen: &Observation) -> Option<String> {
    let outdated = |m: &MemberName| seen.machines.get().and_then(|all| all.get(m)).is_some_and(|m| m.outdated);
    let older = |m: &&MemberName| {
        seen.facts(m).is_some_and(|facts| !facts.requests.contains_key(&CertificateUse::Peer)) && !outdated(m)
    };
    let older: BTreeSet<MemberName> = seen.agents.keys().filter(older).cloned().collect();
    (!older.is_empty()).then(|| {
        format!(
            "the agents of {} are older than this program and cannot have a certificate of a separate peer CA: until their \
             machines are replaced (`quorate replace`), any user's certificate is valid on the peer port",
            listed(&older)
        )
    })
}

/// Members that would be cut off from one another are refused with the spec itself.
fn cut_off(spec: &ClusterSpec, seen: &Observation, around: &Surroundings) -> Vec<String> {
    let firewall = spec.host.as_ref().map(|host| host.firewall.clone()).unwrap_or_default();
    if spec.provider.settings().machines() == MachineKind::Process || !firewall.enabled {
        return Vec::new();
    }
    let Firewall { clients_from, controller_from, .. } = &firewall;
    let mut told = Vec::new();
    if let Some(ranges) = controller_from {
        told.extend(controller(spec, ranges, around));
    }
    if let Some(ranges) = clients_from {
        told.extend(clients_here(spec, ranges, around));
        told.extend(clients_now(ranges, seen));
    }
    told
}

/// Members that are reached over a serial port need no route for the controller.
fn controller(spec: &ClusterSpec, ranges: &[AddressRange], around: &Surroundings) -> Vec<String> {
    let by_network = |member: &&MemberSpec| spec.provider.settings().reaches_by_network(member);
    let members = spec.members.iter().filter(by_network).map(|member| MemberName::from(member.name.as_str()));
    let kept_out = outside(ranges, members.filter_map(|m| Some((*around.comes_from.get(&m)?, m))));
    let tell = |(address, members): (IpAddr, BTreeSet<MemberName>)| {
        format!(
            "this host ({address}) is in none of `host.firewall.controller_from`: quorate could no longer reach the \
             agents of {} \
             (port {AGENT_PORT}) from here",
            listed(&members)
        )
    };
    kept_out.into_iter().map(tell).collect()
}

fn clients_here(spec: &ClusterSpec, ranges: &[AddressRange], around: &Surroundings) -> Vec<String> {
    let (client, port) = spec.kind.client();
    let members = around.comes_from.iter().map(|(member, address)| (*address, member.clone()));
    let tell = |(address, members): (IpAddr, BTreeSet<MemberName>)| {
        format!(
            "this host ({address}) is in none of `host.firewall.clients_from`: {client} here is refused by {} (port \
             {port})",
            listed(&members)
        )
    };
    outside(ranges, members).into_iter().map(tell).collect()
}

/// Existing connections are not cut; the next ones are refused.
fn clients_now(ranges: &[AddressRange], seen: &Observation) -> Vec<String> {
    let connected = seen.agents.keys().flat_map(|member| {
        let clients = seen.facts(member).into_iter().flat_map(|facts| facts.host.clients.iter());
        clients.map(move |client| (*client, member.clone()))
    });
    let tell = |(address, members): (IpAddr, BTreeSet<MemberName>)| {
        format!(
            "the client {address} is connected to {} now and is in none of `host.firewall.clients_from`: its next \
             connection is refused",
            listed(&members)
        )
    };
    outside(ranges, connected).into_iter().map(tell).collect()
}

/// Addresses outside of all ranges, with the members that they connect to.
fn outside(
    ranges: &[AddressRange],
    all: impl Iterator<Item = (IpAddr, MemberName)>,
) -> BTreeMap<IpAddr, BTreeSet<MemberName>> {
    let mut found: BTreeMap<IpAddr, BTreeSet<MemberName>> = BTreeMap::new();
    for (address, member) in all.filter(|(address, _)| !ranges.iter().any(|range| range.contains(*address))) {
        found.entry(address).or_default().insert(member);
    }
    found
}

fn listed(members: &BTreeSet<MemberName>) -> String {
    members.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
