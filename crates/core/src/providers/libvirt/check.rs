//! Checks of libvirt machines: interfaces and addresses, disks, who may log in. What only libvirt knows, such as whether a pool
//! exists, is checked when machines are created.

use std::collections::HashMap;
use std::net::IpAddr;

use super::{Attachment, InterfaceSpec, LibvirtSettings, MemberSpec, is_here, section};
use crate::spec::check::{Cluster, Findings};
use crate::spec::{ClusterSpec, Millis, Size, Spec};

/// Less does not boot.
const LEAST_MEMORY: Size = Size(256 << 20);
/// Nothing boots faster.
const LEAST_PATIENCE: Millis = Millis(1000);
/// The longest name of a network interface in Linux.
const LONGEST_DEVICE: usize = 15;

pub(super) fn check(settings: &LibvirtSettings, cluster: &Cluster, found: &mut Findings) {
    size(cluster, settings, found);
    settings.admin.check(&cluster.at("provider.libvirt.admin"), found);
    cloud_init(cluster, settings, found);
    for (entry, member) in cluster.spec.entries() {
        let at = |field: &str| cluster.at(&format!("{entry}.libvirt.{field}"));
        if member.address.is_some() {
            found.error(
                cluster.at(&format!("{entry}.address")),
                "the address of a member that libvirt makes is that of its first interface",
                "remove `address` here, and give one in `libvirt.interfaces`",
            );
        }
        let machine = section(member);
        processors(machine.vcpus, at("vcpus"), found);
        memory(machine.memory, at("memory"), found);
        disks(settings, member, &at, found);
        hypervisor(machine.uri.as_deref(), at("uri"), found);
        interfaces(settings, member, &at, found);
    }
    brought_volumes(cluster, settings, found);
}

/// The same address or MAC twice in one file, whichever clusters they are in.
pub(in crate::providers) fn check_all(spec: &Spec, found: &mut Findings) {
    let mut addresses: HashMap<IpAddr, String> = HashMap::new();
    let mut macs: HashMap<String, String> = HashMap::new();
    for (path, interface) in spec.clusters.iter().enumerate().flat_map(|(index, cluster)| all_of(index, cluster)) {
        let at = format!("{path}.address");
        if let Some(first) = addresses.insert(interface.address, at.clone()) {
            let line = found.line_of(&first);
            let message = format!("the address {} is given twice; the first is in line {line}", interface.address);
            found.error(at, message, "give each interface a different address");
        }
        let Some(mac) = &interface.mac else { continue };
        let at = format!("{path}.mac");
        if let Some(first) = macs.insert(mac.to_string(), at.clone()) {
            let line = found.line_of(&first);
            let message = format!("the MAC {mac} is given twice; the first is in line {line}");
            found.error(
                at,
                message,
                "give each interface a different one, or leave `mac` out and quorate generates one",
            );
        }
    }
}

fn all_of(index: usize, cluster: &ClusterSpec) -> impl Iterator<Item = (String, &InterfaceSpec)> {
    cluster.entries().flat_map(move |(at, spec)| {
        let path = move |n: usize| format!("clusters[{index}].{at}.libvirt.interfaces[{n}]");
        section(spec).interfaces.iter().enumerate().map(move |(n, interface)| (path(n), interface))
    })
}

fn size(cluster: &Cluster, settings: &LibvirtSettings, found: &mut Findings) {
    let at = |field: &str| cluster.at(&format!("provider.libvirt.{field}"));
    hypervisor(Some(&settings.uri), at("uri"), found);
    processors(Some(settings.vcpus), at("vcpus"), found);
    memory(Some(settings.memory), at("memory"), found);
    if settings.boot_patience < LEAST_PATIENCE {
        found.error(
            at("boot_patience"),
            format!("no machine boots within {}", settings.boot_patience),
            format!("give them at least {LEAST_PATIENCE}; 10m is the default"),
        );
    }
}

/// Addresses that `virsh` cannot use. Whether libvirt can be reached shows when machines are listed.
fn hypervisor(uri: Option<&str>, at: String, found: &mut Findings) {
    let Some(uri) = uri else { return };
    if !uri.contains("://") || uri.contains(char::is_whitespace) || uri.starts_with('-') {
        found.error(
            at,
            format!("`{uri}` is not the URI of a libvirt"),
            "write `qemu:///system` for this host, or `qemu+ssh://HOST/system` for another",
        );
    }
}

fn processors(vcpus: Option<u32>, at: String, found: &mut Findings) {
    if vcpus == Some(0) {
        found.error(at, "a machine without processors does not run", "give it 2, the default");
    }
}

fn memory(memory: Option<Size>, at: String, found: &mut Findings) {
    if let Some(memory) = memory.filter(|memory| *memory < LEAST_MEMORY) {
        found.error(
            at,
            format!("{memory} is too little to boot with; a bare number counts bytes"),
            format!("give it at least {LEAST_MEMORY}; {} is the default", Size::gibibytes(8)),
        );
    }
}

fn cloud_init(cluster: &Cluster, settings: &LibvirtSettings, found: &mut Findings) {
    let name = &settings.cloud_init.name;
    let at = cluster.at("provider.libvirt.cloud_init.name");
    if name.contains('/') {
        found.error(
            at,
            format!("`{name}` has a slash, which no volume's name can have"),
            "put the pool in `cloud_init.pool`",
        );
    } else if !name.contains("<name>") {
        found.error(
            at,
            format!("`{name}` would be the name of the disk of every machine"),
            "write `<name>` in place of the machine's name, as in `<name>-cloud-init.iso`",
        );
    }
}

fn disks(settings: &LibvirtSettings, member: &MemberSpec, at: &impl Fn(&str) -> String, found: &mut Findings) {
    if settings.image.is_none() && section(member).root_volume.is_none() {
        found.error(
            at("root_volume"),
            format!(
                "`{}` has nothing to boot from: the provider has no `image`, and the member no `root_volume`",
                member.name
            ),
            "give the provider `image: {volume: NAME}`, or each member a volume",
        );
    }
}

/// A volume belongs to one machine, so no two may bring the same.
fn brought_volumes(cluster: &Cluster, settings: &LibvirtSettings, found: &mut Findings) {
    let brought: Vec<(String, String)> = cluster
        .spec
        .entries()
        .flat_map(|(at, member)| {
            let machine = section(member);
            let both = [("root_volume", &machine.root_volume), ("data_volume", &machine.data_volume)];
            let uri = settings.uri_of(member);
            both.into_iter().filter_map(move |(field, volume)| Some((at.clone(), field, uri, volume.as_ref()?)))
        })
        .map(|(entry, field, uri, volume)| {
            let (pool, name) = volume.within(&settings.pool);
            let at = if uri == settings.uri { String::new() } else { format!(" at {uri}") };
            (cluster.at(&format!("{entry}.libvirt.{field}")), format!("{pool}/{name}{at}"))
        })
        .collect();
    found.repeated(
        brought.iter().map(|(_, volume)| volume),
        |n| brought[n].0.clone(),
        |volume| format!("the volume `{volume}`"),
    );
}

fn interfaces(settings: &LibvirtSettings, member: &MemberSpec, at: &impl Fn(&str) -> String, found: &mut Findings) {
    let machine = section(member);
    if machine.interfaces.is_empty() {
        found.error(
            at("interfaces"),
            format!("`{}` has no network interface", member.name),
            "give it `libvirt: {interfaces: [{network: default, address: 192.168.122.11, prefix: 24}]}`",
        );
    }
    if !is_here(settings.uri_of(member)) && machine.is_on_macvtap_alone() {
        found.error(
            at("interfaces"),
            format!(
                "`{}` is on macvtap alone, and then only its host reaches its agent, over a serial port; libvirt is on \
                 another host here",
                member.name
            ),
            "run quorate on that host, or add an interface on a libvirt network that leads here",
        );
    }
    for (index, interface) in machine.interfaces.iter().enumerate() {
        let at = |field: &str| at(&format!("interfaces[{index}].{field}"));
        addresses(interface, &at, found);
        if let Attachment::Macvtap(device) = &interface.to
            && (device.len() > LONGEST_DEVICE || device.contains(['/', ' ', '\'']))
        {
            let message = format!("`{device}` is not the name of a network interface");
            found.error(at("macvtap"), message, "`ip link` on the host lists them, such as `eth0` or `ens3`");
        }
    }
}

fn addresses(interface: &InterfaceSpec, at: &impl Fn(&str) -> String, found: &mut Findings) {
    let InterfaceSpec { address, prefix, gateway, .. } = interface;
    let most = if address.is_ipv4() { 32 } else { 128 };
    if *prefix == 0 || *prefix > most {
        let message = format!("the prefix of {address} can have 1 to {most} bits, not {prefix}");
        return found.error(at("prefix"), message, "24 is usual for IPv4, 64 for IPv6");
    }
    let hint = format!("choose another in {}/{prefix}", network_of(*address, *prefix));
    if address.is_unspecified() || address.is_loopback() || address.is_multicast() {
        found.error(
            at("address"),
            format!("{address} cannot be the address of a machine"),
            "use an address of its network",
        );
    } else if is_first_or_last(*address, *prefix) {
        let message = format!("{address} is the first or last address of its network, which no host can have");
        found.error(at("address"), message, hint);
    }
    let Some(gateway) = gateway else { return };
    if gateway.is_ipv4() != address.is_ipv4() {
        let message = format!("{address} and its gateway {gateway} are not both IPv4 or both IPv6");
        found.error(at("gateway"), message, "give a gateway of the same kind, or none");
    } else if network_of(*gateway, *prefix) != network_of(*address, *prefix) {
        found.error(
            at("address"),
            format!(
                "{address} is outside the network of its gateway {gateway}, {}/{prefix}",
                network_of(*gateway, *prefix)
            ),
            "change the address, the gateway or the prefix",
        );
    } else if gateway == address {
        found.error(
            at("gateway"),
            format!("{gateway} is the machine's own address"),
            "give the address of the router there",
        );
    }
}

/// The address with all bits after the prefix cleared.
fn network_of(address: IpAddr, prefix: u32) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            IpAddr::V4((u32::from(v4) & u32::MAX.checked_shl(32_u32.saturating_sub(prefix)).unwrap_or(0)).into())
        }
        IpAddr::V6(v6) => {
            IpAddr::V6((u128::from(v6) & u128::MAX.checked_shl(128_u32.saturating_sub(prefix)).unwrap_or(0)).into())
        }
    }
}

/// Of a network that has more than two addresses.
fn is_first_or_last(address: IpAddr, prefix: u32) -> bool {
    let IpAddr::V4(v4) = address else { return false };
    let host = u32::MAX.checked_shr(prefix).unwrap_or(0);
    prefix < 31 && [0, host].contains(&(u32::from(v4) & host))
}
