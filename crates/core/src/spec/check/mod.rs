//! Checks that involve several fields of a spec: names, addresses and counts here; etcd, TLS, auth, backups and hosts in one file
//! each. A check states the facts and the remedy, and never prevents later checks.

mod backup;
mod host;
pub(crate) mod other_etcd;
mod tls;

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

use super::units::LONGEST_NAME;
use super::{ClusterSpec, Document, HostFacts, Kind, Positions, Problem, Severity, Spec};
use crate::kinds::{etcd, postgres};
use crate::providers::{self, MachineKind};

pub(super) fn check(document: &Document, places: &Positions, spec: &Spec, host: &HostFacts) -> Vec<Problem> {
    let mut found = Findings { document, places, problems: Vec::new() };
    if spec.clusters.is_empty() {
        found.error("clusters", "no cluster is declared", "`quorate init` prints a spec to start from");
    }
    cluster_names(spec, &mut found);
    addresses(spec, &mut found);
    providers::check_all(spec, &mut found);
    let spec_of_all = spec;
    for (index, spec) in spec.clusters.iter().enumerate() {
        let cluster = Cluster { index, spec };
        members(&cluster, &mut found);
        providers::check(&cluster, &mut found);
        match cluster.spec.kind {
            Kind::Etcd => {
                etcd::check::check(&cluster, host, &mut found);
                postgres::check::refuse_tags(&cluster, &mut found);
            }
            Kind::Postgres => postgres::check::check(&cluster, spec_of_all, host, &mut found),
        }
        tls::check(&cluster, &mut found);
        backup::check(&cluster, &mut found);
        host::check(&cluster, &mut found);
    }
    found.problems
}

/// Collects problems, placing them by their path.
pub struct Findings<'a> {
    document: &'a Document,
    places: &'a Positions,
    problems: Vec<Problem>,
}

impl Findings<'_> {
    pub(crate) fn error(&mut self, path: impl Into<String>, message: impl Into<String>, hint: impl Into<String>) {
        self.at(Severity::Error, path.into(), message.into(), hint.into());
    }

    pub(crate) fn warning(&mut self, path: impl Into<String>, message: impl Into<String>, hint: impl Into<String>) {
        self.at(Severity::Warning, path.into(), message.into(), hint.into());
    }

    fn at(&mut self, severity: Severity, path: String, message: String, hint: String) {
        let path = self.places.in_file(&path);
        self.problems.push(self.document.problem(severity, path, message, Some(hint)));
    }

    /// A problem with the key that a path ends in, not with its value.
    pub(crate) fn about_key(&mut self, severity: Severity, path: String, message: String, hint: String) {
        let path = self.places.in_file(&path);
        let span = self.document.locate_key(&path);
        self.problems.push(Problem { span, ..self.document.problem(severity, path, message, Some(hint)) });
    }

    pub(crate) fn line_of(&self, path: &str) -> usize {
        self.document.locate(&self.places.in_file(path)).line
    }

    /// Reports each duplicate key. `what` names it in a sentence.
    pub(crate) fn repeated<K: Eq + Hash>(
        &mut self,
        keys: impl Iterator<Item = K>,
        path: impl Fn(usize) -> String,
        what: impl Fn(&K) -> String,
    ) {
        let mut first: HashMap<K, usize> = HashMap::new();
        for (index, key) in keys.enumerate() {
            if let Some(earlier) = first.get(&key) {
                let line = self.line_of(&path(*earlier));
                let message = format!("{} is given twice; the first is in line {line}", what(&key));
                self.error(path(index), message, "keep one of them, or rename one");
            } else {
                first.insert(key, index);
            }
        }
    }
}

/// A cluster and its place in the file.
pub struct Cluster<'a> {
    pub(crate) index: usize,
    pub(crate) spec: &'a ClusterSpec,
}

impl Cluster<'_> {
    pub(crate) fn at(&self, field: &str) -> String {
        format!("clusters[{}].{field}", self.index)
    }

    /// The smallest memory of the members' machines in bytes, and its owner. None: only the provider knows. For processes and containers
    /// it is this host's memory; virtual machines elsewhere are independent of it.
    pub(crate) fn memory(&self, host: &HostFacts) -> Option<(u64, &'static str)> {
        let settings = self.spec.provider.settings();
        match self.spec.members.iter().filter_map(|member| settings.memory(member)).min() {
            Some(smallest) => Some((smallest.0, "its machines")),
            None if settings.machines() == MachineKind::Vm => None,
            None => Some((host.memory?, "this machine")),
        }
    }
}

fn cluster_names(spec: &Spec, found: &mut Findings) {
    let path = |index| format!("clusters[{index}].name");
    found
        .repeated(spec.clusters.iter().map(|cluster| &cluster.name), path, |name| format!("the cluster name `{name}`"));
}

fn members(cluster: &Cluster, found: &mut Findings) {
    let entries: Vec<_> = cluster.spec.entries().collect();
    let path = |index: usize| cluster.at(&format!("{}.name", entries[index].0));
    let names = entries.iter().map(|(_, member)| &member.name);
    found.repeated(names, path, |name| format!("the member name `{name}`"));
    for (index, (_, member)) in entries.iter().enumerate() {
        // A name alone is short enough already; only a namespace can make it too long.
        let Some(namespace) = &cluster.spec.namespace else { break };
        let length = member.name.as_str().len() + 1 + namespace.as_str().len();
        if length > LONGEST_NAME {
            found.error(
                path(index),
                format!(
                    "the machine name `{}` has {length} characters, and may have {LONGEST_NAME}",
                    cluster.spec.machine_name(member.name.as_str(), 1)
                ),
                "shorten the member's name or the namespace",
            );
        }
    }
}

fn addresses(spec: &Spec, found: &mut Findings) {
    let mut owners: HashMap<(Option<usize>, IpAddr), (String, String)> = HashMap::new();
    for (cluster_index, cluster) in spec.clusters.iter().enumerate() {
        for (at, member) in cluster.entries() {
            let Some(address) = member.address else { continue };
            let path = format!("clusters[{cluster_index}].{at}.address");
            // Separate networks cannot overlap.
            let shared_with = cluster.provider.settings().is_isolated().then_some(cluster_index);
            let owner = format!("`{}` in cluster `{}`", member.name, cluster.name);
            let (first, owner) = owners.entry((shared_with, address)).or_insert((path.clone(), owner));
            if *first != path {
                let line = found.line_of(first);
                found.error(
                    path,
                    format!("address {address} is already used by {owner} (line {line})"),
                    "give each member a different address, or leave `address` out",
                );
            }
        }
    }
}
