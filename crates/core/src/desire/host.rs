//! Services that a machine runs in addition to its members' services: clock, firewall, metrics and logs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::model::{
    Brought, FirewallConfig, ForwardConfig, HostConfig, Ledger, LogForwardingConfig, LogSecrets, LogSourceConfig,
    NodeConfig,
};
use crate::providers::MachineKind;
use crate::spec::{self, ClusterSpec, MemberSpec};

/// Local machines are processes of this host. quorate does not manage its clock, firewall and logs.
pub(super) fn config(
    spec: &ClusterSpec,
    member: &MemberSpec,
    brought: &Brought,
    neighbours: &BTreeSet<IpAddr>,
) -> Option<HostConfig> {
    (spec.provider.settings().machines() != MachineKind::Process)
        .then(|| host_config(spec, member, brought, neighbours))
}

/// The addresses of the members: those in the spec, and those of members that still belong to the cluster. Empty if the provider
/// chooses them.
pub(super) fn neighbours(spec: &ClusterSpec, ledger: &Ledger) -> BTreeSet<IpAddr> {
    let settings = spec.provider.settings();
    let pinned: Option<BTreeSet<IpAddr>> = spec.members.iter().map(|member| settings.pinned(member)).collect();
    let Some(mut addresses) = pinned.filter(|_| settings.machines() != MachineKind::Process) else {
        return BTreeSet::new();
    };
    addresses.extend(listed(ledger));
    addresses
}

/// The addresses of members in the ledger. Unused if machines are processes of this host.
pub(super) fn listed(ledger: &Ledger) -> BTreeSet<IpAddr> {
    let are_processes = ledger.spec.provider.settings().machines() == MachineKind::Process;
    if are_processes { BTreeSet::new() } else { ledger.addresses().into_values().collect() }
}

pub(super) fn host_config(
    spec: &ClusterSpec,
    member: &MemberSpec,
    brought: &Brought,
    neighbours: &BTreeSet<IpAddr>,
) -> HostConfig {
    let settings = spec.host.clone().unwrap_or_default();
    let spec::HostSettings { chrony, node_exporter, mut firewall, install_dependencies, log_forwarding } = settings;
    // Only members use the peer port.
    if firewall.peers_from.is_none() && !neighbours.is_empty() {
        firewall.peers_from = Some(neighbours.iter().map(|address| spec::AddressRange::of(*address)).collect());
    }
    let scrape_from = if node_exporter.enabled { node_exporter.scrape_from } else { Vec::new() };
    let secrets = brought.log_forwarding.clone().unwrap_or_default();
    let log_forwarding = log_forwarding.map(|settings| log_forwarding_config(settings, secrets, spec, member));
    let metrics = spec.etcd.metrics.clone();
    let rules = letting_members_knock(firewall, spec);
    HostConfig {
        chrony,
        node_exporter: node_exporter.enabled,
        firewall: rules.enabled.then_some(FirewallConfig { rules, scrape_from, metrics }),
        install_dependencies,
        log_forwarding,
    }
}

/// Proxies connect to members as clients, whatever source ranges are allowed for other clients.
pub(super) fn let_proxies_in(config: &mut NodeConfig, proxies: &BTreeSet<IpAddr>) {
    let firewall = config.host.as_mut().and_then(|host| host.firewall.as_mut());
    if let Some(clients) = firewall.and_then(|firewall| firewall.rules.clients_from.as_mut()) {
        clients.extend(proxies.iter().map(|address| spec::AddressRange::of(*address)));
    }
}

/// Members check each other's agents for reachability: a member that blocks them would count as dead when its etcd is down
/// too. The port requires the controller's certificate.
fn letting_members_knock(mut firewall: spec::Firewall, spec: &ClusterSpec) -> spec::Firewall {
    let members =
        spec.members.iter().filter_map(|member| spec.provider.settings().pinned(member)).map(spec::AddressRange::from);
    let others: Vec<_> = members.chain(firewall.peers_from.iter().flatten().cloned()).collect();
    if let Some(controller) = &mut firewall.controller_from {
        let missing: BTreeSet<_> = others.into_iter().filter(|range| !controller.contains(range)).collect();
        controller.extend(missing);
    }
    firewall
}

fn log_forwarding_config(
    settings: spec::LogForwarding,
    secrets: LogSecrets,
    spec: &ClusterSpec,
    member: &MemberSpec,
) -> LogForwardingConfig {
    let machine = spec.machine_name(member.name.as_str(), 1);
    let services = spec.kind.logs(&settings, spec, member);
    let forward = settings.forward.zip(secrets.forward).map(|(forward, secrets)| ForwardConfig {
        host: forward.host,
        port: forward.port,
        hostname: forward.hostname.unwrap_or(machine),
        shared_key: secrets.shared_key,
        ca: secrets.ca,
        buffer: forward.buffer.map(|size| size.0),
    });
    let from_etcd = settings.from_etcd.zip(secrets.source).map(|(source, secrets)| LogSourceConfig {
        prefix: source.prefix,
        endpoints: source.endpoints,
        ca: secrets.ca,
        login: secrets.login,
    });
    let spec::LogForwarding { etcd_tag, node_exporter_tag, .. } = settings;
    LogForwardingConfig { etcd_tag, node_exporter_tag, services, forward, from_etcd }
}
