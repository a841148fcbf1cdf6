//! Checks of the `host` settings: the source of the time, who would be cut off, and values that go into other programs'
//! files.

use super::other_etcd::{WayIn, endpoints, is_host};
use super::{Cluster, Findings};
use crate::providers::MachineKind;
use crate::spec::{AddressRange, Firewall, Forward, HostSettings, Kind, LogSource, Size, TimeSource};

pub(super) fn check(cluster: &Cluster, found: &mut Findings) {
    let Some(host) = &cluster.spec.host else { return };
    if cluster.spec.provider.settings().machines() == MachineKind::Process {
        found.warning(
            cluster.at("host"),
            "nothing of `host` is used under the provider `local`, whose machines are processes of this one",
            "remove it, or name a provider of real machines",
        );
    }
    chrony(cluster, host, found);
    firewall(cluster, host, found);
    log_forwarding(cluster, host, found);
}

fn chrony(cluster: &Cluster, host: &HostSettings, found: &mut Findings) {
    let Some(chrony) = &host.chrony else { return };
    if chrony.servers.is_empty() && chrony.pools.is_empty() {
        found.error(
            cluster.at("host.chrony"),
            "chrony has neither servers nor pools, and would let the clock drift",
            "name some, such as `pools: [{address: pool.ntp.org, options: [iburst]}]`, or remove `chrony`",
        );
    }
    for (field, sources) in [("servers", &chrony.servers), ("pools", &chrony.pools)] {
        for (at, source) in sources.iter().enumerate() {
            time_source(cluster, &format!("host.chrony.{field}[{at}]"), source, found);
        }
    }
}

fn time_source(cluster: &Cluster, field: &str, source: &TimeSource, found: &mut Findings) {
    if !is_host(&source.address) {
        found.error(
            cluster.at(&format!("{field}.address")),
            format!("`{}` is neither a host's name nor an address", source.address),
            "write it such as `ntp.example.org` or `192.0.2.1`",
        );
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, ' ' | '.' | '-');
    for (at, option) in source.options.iter().enumerate() {
        if option.trim().is_empty() || !option.chars().all(plain) {
            found.error(
                cluster.at(&format!("{field}.options[{at}]")),
                format!("{option:?} cannot be an option of chrony"),
                "one option each, such as `iburst` or `maxpoll 10`",
            );
        }
    }
}

/// Reports members that the rules would cut off from one another, before it happens.
fn firewall(cluster: &Cluster, host: &HostSettings, found: &mut Findings) {
    let Firewall { enabled, peers_from, clients_from, ssh_from, controller_from } = &host.firewall;
    if !enabled {
        let ranges = [peers_from, clients_from, ssh_from, controller_from];
        if ranges.iter().any(|ranges| ranges.is_some()) {
            found.warning(
                cluster.at("host.firewall"),
                "the firewall is off, so its ranges have no effect",
                "remove `enabled: false`, or the ranges",
            );
        }
        return;
    }
    let is_etcd = cluster.spec.kind == Kind::Etcd;
    // Before a member starts again, its agent asks the others on the client port how far it had followed them.
    for (field, ranges, what) in [
        ("peers_from", peers_from, "the other members would be cut off from it"),
        ("clients_from", clients_from, "it could not ask the other members how much of its data they remember"),
    ] {
        for member in &cluster.spec.members {
            // Members of PostgreSQL come as peers.
            let Some(ranges) = ranges.as_ref().filter(|_| is_etcd || field == "peers_from") else { continue };
            let Some(address) =
                cluster.spec.provider.settings().pinned(member).filter(|address| !is_in(ranges, *address))
            else {
                continue;
            };
            found.error(
                cluster.at(&format!("host.firewall.{field}")),
                format!("{} ({address}) is in none of these ranges, and {what}", member.name),
                "add its address, or a range that holds all members",
            );
        }
    }
    for (field, ranges, who) in [
        ("clients_from", clients_from, "no client could reach the cluster"),
        ("controller_from", controller_from, "quorate itself could not reach the machines by network"),
    ] {
        if ranges.as_ref().is_some_and(Vec::is_empty) {
            let message = format!("no range is given: {who}");
            found.warning(
                cluster.at(&format!("host.firewall.{field}")),
                message,
                "name a range, or remove the list: then all may",
            );
        }
    }
}

fn is_in(ranges: &[AddressRange], address: std::net::IpAddr) -> bool {
    ranges.iter().any(|range| range.contains(address))
}

/// Of fluent-bit's pieces, several.
const SMALLEST_BUFFER: Size = Size(16 << 20);

fn log_forwarding(cluster: &Cluster, host: &HostSettings, found: &mut Findings) {
    let Some(forwarding) = &host.log_forwarding else { return };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let tags = forwarding.tags(cluster.spec.kind);
    for (field, tag) in &tags {
        if !tag.chars().all(plain) {
            found.error(
                cluster.at(&format!("host.log_forwarding.{field}")),
                format!("`{tag}` cannot be a tag"),
                "letters, digits, dots, hyphens and underscores",
            );
        }
    }
    let mut distinct = std::collections::BTreeSet::new();
    if let Some((_, tag)) = tags.iter().find(|(_, tag)| !distinct.insert(tag)) {
        let message = format!("two kinds of logs have the tag `{tag}`, and could not be distinguished");
        found.error(cluster.at("host.log_forwarding"), message, "give them two tags");
    }
    match (&forwarding.forward, &forwarding.from_etcd) {
        (None, None) => found.error(
            cluster.at("host.log_forwarding"),
            "logs would go nowhere",
            "add `forward` with the receiver, or `from_etcd` with where fluent-bit's configuration is kept",
        ),
        (forward, source) => {
            forward.iter().for_each(|forward| check_forward(cluster, forward, found));
            source.iter().for_each(|source| log_source(cluster, source, found));
        }
    }
}

fn check_forward(cluster: &Cluster, forward: &Forward, found: &mut Findings) {
    if let Some(buffer) = forward.buffer.filter(|buffer| *buffer < SMALLEST_BUFFER) {
        let message = format!("`buffer` is {buffer}, and fluent-bit keeps logs in pieces of 2MiB");
        let at = cluster.at("host.log_forwarding.forward.buffer");
        found.error(at, message, format!("set at least {SMALLEST_BUFFER}, or leave it out"));
    }
    for (field, name) in [("host", Some(&forward.host)), ("hostname", forward.hostname.as_ref())] {
        if let Some(name) = name.filter(|name| !is_host(name)) {
            found.error(
                cluster.at(&format!("host.log_forwarding.forward.{field}")),
                format!("`{name}` is neither a host's name nor an address"),
                "write it such as `logs.example.org` or `192.0.2.1`",
            );
        }
    }
}

fn log_source(cluster: &Cluster, source: &LogSource, found: &mut Findings) {
    let at = |field: &str| cluster.at(&format!("host.log_forwarding.from_etcd{field}"));
    endpoints(&source.endpoints, at, found);
    let way_in = WayIn {
        certificate: (source.certificate.is_some(), source.key.is_some()),
        password: (source.username.is_some(), source.password_file.is_some()),
    };
    if way_in.check(at, found) && way_in.has_both() {
        let hint = "keep the certificate and its key, or user and password";
        found.error(at(""), "there are two ways to log in", hint);
    }
}
