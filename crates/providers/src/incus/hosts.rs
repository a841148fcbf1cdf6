//! The hosts of an Incus cluster: which of them answer, and which one gets a new instance. A standalone server has none.
//!
//! Incus lists instances on a host that does not answer, but without their configuration, so their marks cannot be read. Such hosts are
//! reported, and their instances never count as gone.

use std::collections::BTreeMap;

use quorate_core::model::MachineId;
use quorate_core::providers::incus::section;
use quorate_core::spec::MemberSpec;
use serde_json::Value;

use super::error::IncusError;
use super::instance::{self, Instance};
use super::server::Server;
use super::volumes::Volume;
use super::{Incus, Listed};

const ONLINE: &str = "Online";
const OFFLINE: &str = "Offline";

/// Hosts by name, with their status in the words of Incus.
type Hosts = BTreeMap<String, String>;

impl Incus {
    async fn hosts(&self, server: &Server) -> Result<Hosts, IncusError> {
        if !server.is_clustered() {
            return Ok(Hosts::new());
        }
        let hosts = server.list("list the hosts", "/1.0/cluster/members?recursion=1").await?;
        let text = |host: &Value, field: &str| host.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(hosts.iter().map(|host| (text(host, "server_name"), text(host, "status"))).collect())
    }

    /// Hosts that do not answer, and why that is believed. Incus calls one offline only after a while.
    pub(super) async fn away(&self, server: &Server, listed: &Listed) -> Result<BTreeMap<String, String>, IncusError> {
        let hosts = self.hosts(server).await?;
        let offline = hosts.into_iter().filter(|(_, status)| status == OFFLINE);
        let silent = listed.unread.iter().map(|(_, host)| (host.clone(), String::from("silent")));
        let told = |(host, status): (String, String)| {
            let why = format!("the host {host} of the Incus cluster is {}", status.to_lowercase());
            (host, why)
        };
        Ok(silent.chain(offline).map(told).collect())
    }

    /// Instances on hosts that do not answer whose names are those of this cluster's.
    pub(super) fn hidden<'a>(&self, listed: &'a Listed) -> Vec<&'a (String, String)> {
        let cluster = self.spec.name.as_str();
        let is_ours = |name: &str| {
            let first = |member: &MemberSpec| instance::name(cluster, &MachineId::new(&member.name.as_str().into(), 1));
            let later =
                |rest: &str| rest.is_empty() || rest.strip_prefix("-i").is_some_and(|n| n.parse::<u64>().is_ok());
            self.spec.machines().any(|member| name.strip_prefix(&first(&member)).is_some_and(later))
        };
        listed.unread.iter().filter(|(name, _)| is_ours(name)).collect()
    }

    /// The host for an instance: the one that the spec names, the one with its data, or the one with the fewest of the cluster's members.
    pub(super) async fn target(
        &self,
        server: &Server,
        machine: &MachineId,
        member: &MemberSpec,
        kept: Option<&Volume>,
    ) -> Result<Option<String>, IncusError> {
        let wanted = section(member).target.clone();
        if !server.is_clustered() {
            return wanted.map_or(Ok(None), |target| Err(IncusError::NotClustered { target }));
        }
        let hosts = self.hosts(server).await?;
        let kept = kept.map(|volume| volume.location.clone()).filter(|location| hosts.contains_key(location));
        if let Some(target) = wanted.or(kept) {
            return match hosts.get(&target) {
                None => {
                    let known = hosts.into_keys().collect();
                    Err(IncusError::Missing { what: "host in its cluster", name: target, known })
                }
                Some(status) if status != ONLINE => Err(IncusError::TargetDown { target, status: status.clone() }),
                Some(_) => Ok(Some(target)),
            };
        }
        let listed = self.listed(server).await?;
        let away = self.away(server, &listed).await?;
        let online = hosts.into_iter().filter(|(host, status)| status == ONLINE && !away.contains_key(host));
        let online = online.map(|(host, _)| host);
        let ours = listed.marked.iter().filter(|(_, mark)| mark.cluster_id == self.cluster_id);
        let ours: Vec<(MachineId, &Instance)> = ours.map(|(instance, mark)| (mark.machine(), instance)).collect();
        let mut chosen = self.chosen.borrow_mut();
        let mut taken: BTreeMap<MachineId, &str> = BTreeMap::new();
        taken.extend(chosen.iter().filter_map(|(other, chosen)| Some((other.clone(), chosen.target.as_deref()?))));
        taken.extend(ours.iter().map(|(machine, instance)| (machine.clone(), instance.location.as_str())));
        // The member's previous machine leaves its place to the new one.
        let is_another = |other: &MachineId| other.member.seat() != machine.member.seat();
        let here = |host: &String| taken.iter().filter(|(other, at)| is_another(other) && **at == host).count();
        let target = online.min_by_key(here);
        chosen.entry(machine.clone()).or_default().target.clone_from(&target);
        match target {
            None => Err(IncusError::NoHost),
            target => Ok(target),
        }
    }
}
