//! Checks of OpenStack servers: names, addresses and sizes. What only the cloud knows, such as whether an image exists, is checked
//! when servers are created.

use std::net::IpAddr;

use super::{Access, MemberSpec, MorePort, OpenstackSettings, SeedSource, section};
use crate::spec::check::{Cluster, Findings};
use crate::spec::{Millis, Size};

/// No server is built and booted faster.
const LEAST_PATIENCE: Millis = Millis(10_000);
/// Cinder counts in GiB.
const GIB: u64 = 1 << 30;
/// The longest name of a cluster: with `quorate.` it is a tag.
const LONGEST_NAME: usize = 50;

pub(super) fn check(settings: &OpenstackSettings, cluster: &Cluster, found: &mut Findings) {
    let at = |field: &str| cluster.at(&format!("provider.openstack.{field}"));
    let length = cluster.spec.name.as_str().len();
    if length > LONGEST_NAME {
        found.error(
            cluster.at("name"),
            format!("a name of {length} characters does not fit in a tag of OpenStack"),
            format!("use {LONGEST_NAME} at most"),
        );
    }
    names(settings, &at, found);
    if settings.boot_patience < LEAST_PATIENCE {
        found.error(
            at("boot_patience"),
            format!("no server is built and boots within {}", settings.boot_patience),
            format!("give it at least {LEAST_PATIENCE}; 10m is the default"),
        );
    }
    sizes(settings.root_size, settings.data_size, &at, found);
    if settings.access == Access::Groups && settings.security_groups.is_some() {
        found.error(
            at("access"),
            "`access` is about security groups that quorate creates, and `security_groups` names yours",
            "leave out one of them",
        );
    }
    seed(settings, cluster, found);
    if let Some(program) = &settings.program {
        program.check(&at("program"), found);
    }
    if let Some(admin) = &settings.admin {
        admin.check(&at("admin"), found);
    }
    for (n, port) in settings.more_ports.iter().enumerate() {
        let at = |field: &str| at(&format!("more_ports[{n}].{field}"));
        more_port(port, &at, found);
        if port.is_exclusive() {
            let field = if port.port.is_some() { "port" } else { "address" };
            let message = "all members would have it, and only one server can";
            found.error(at(field), message, "say it in `members[].openstack.more_ports`");
        }
    }
    let mut taken: Vec<(&str, &str)> = Vec::new();
    for (entry, member) in cluster.spec.entries() {
        self::member(settings, cluster, (&entry, member), found);
        let own = section(member);
        let more = own
            .more_ports
            .iter()
            .enumerate()
            .filter_map(|(n, more)| Some((format!("more_ports[{n}].port"), "port", more.port.as_deref()?)));
        let own_port = own.port.as_deref().map(|port| (String::from("port"), "port", port));
        let floating = own.floating_ip.as_deref().map(|id| (String::from("floating_ip"), "floating IP", id));
        for (field, what, id) in own_port.into_iter().chain(more).chain(floating) {
            if taken.contains(&(what, id)) {
                found.error(
                    cluster.at(&format!("{entry}.openstack.{field}")),
                    format!("the {what} {id} is named twice"),
                    format!("a {what} belongs to one server: give each member its own"),
                );
            }
            taken.push((what, id));
        }
    }
}

/// Without a config drive, a server has one interface, whose address DHCP gives it, and no place for secrets.
fn seed(settings: &OpenstackSettings, cluster: &Cluster, found: &mut Findings) {
    const ADDRESS: &str = "169.254.169.254";
    if settings.seed == SeedSource::ConfigDrive {
        return;
    }
    let at = |field: &str| cluster.at(&format!("provider.openstack.{field}"));
    if settings.seed == SeedSource::Quorate && settings.program.is_some() {
        found.error(
            at("program"),
            "with `seed: quorate` the image has the agent, and nothing on it would fetch another one",
            "remove `program`; `quorate apply` brings newer agents to machines itself",
        );
    }
    if settings.admin.as_ref().is_some_and(|admin| admin.console_password_hash.is_some()) {
        found.error(
            at("admin.console_password_hash"),
            "without a config drive it would be in user data, which every process on the server can read",
            "remove it, or set `seed: config_drive`",
        );
    }
    let of_member = |(entry, member): (String, &MemberSpec)| {
        let has_more = !section(member).more_ports.is_empty();
        has_more.then(|| cluster.at(&format!("{entry}.openstack.more_ports")))
    };
    let more = (!settings.more_ports.is_empty()).then(|| at("more_ports"));
    for at in more.into_iter().chain(cluster.spec.entries().filter_map(of_member)) {
        let message = "without a config drive a server has one interface, which DHCP sets up";
        found.error(at, message, "remove `more_ports`, or set `seed: config_drive`");
    }
    for (entry, member) in cluster.spec.entries() {
        if let Some(address) = member.address.filter(IpAddr::is_ipv6) {
            found.error(
                cluster.at(&format!("{entry}.address")),
                format!("a server with the address {address} does not reach the metadata service at {ADDRESS}"),
                "give the member an IPv4 address, or set `seed: config_drive`",
            );
        }
    }
}

fn names(settings: &OpenstackSettings, at: &impl Fn(&str) -> String, found: &mut Findings) {
    let named = [
        ("cloud", settings.cloud.as_ref()),
        ("region", settings.region.as_ref()),
        ("image", Some(&settings.image)),
        ("flavor", Some(&settings.flavor)),
        ("network", Some(&settings.network)),
        ("subnet", settings.subnet.as_ref()),
        ("floating_network", settings.floating_network.as_ref()),
        ("key_pair", settings.key_pair.as_ref()),
        ("availability_zone", settings.availability_zone.as_ref()),
        ("volume_type", settings.volume_type.as_ref()),
        ("volume_zone", settings.volume_zone.as_ref()),
    ];
    let groups = settings.security_groups.iter().flatten().enumerate();
    let groups = groups.map(|(n, name)| (format!("security_groups[{n}]"), Some(name)));
    for (field, name) in named.into_iter().map(|(field, name)| (field.to_owned(), name)).chain(groups) {
        if let Some(name) = name.filter(|name| !is_name(name)) {
            found.error(
                at(&field),
                format!("{name:?} is not a name in OpenStack"),
                "names begin and end with a visible character and have at most 255 of them; `openstack` lists them",
            );
        }
    }
}

fn is_name(name: &str) -> bool {
    name.len() <= 255 && name.trim() == name && !name.chars().any(char::is_control)
}

fn sizes(root: Option<Size>, data: Option<Size>, at: &impl Fn(&str) -> String, found: &mut Findings) {
    let sized = [("root_size", root), ("data_size", data)];
    for (field, size) in sized.into_iter().filter_map(|(field, size)| Some((field, size?))) {
        if size.0 % GIB != 0 {
            found.error(
                at(field),
                format!("{size} is not the size of a volume; a bare number counts bytes"),
                "OpenStack creates volumes of whole GiB, such as 20GiB",
            );
        }
    }
}

fn member(settings: &OpenstackSettings, cluster: &Cluster, (entry, member): (&str, &MemberSpec), found: &mut Findings) {
    let within = |field: &str| cluster.at(&format!("{entry}.{field}"));
    let at = |field: &str| within(&format!("openstack.{field}"));
    let server = section(member);
    sizes(server.root_size, server.data_size, &at, found);
    let named = [
        ("flavor", &server.flavor),
        ("availability_zone", &server.availability_zone),
        ("volume_zone", &server.volume_zone),
        ("floating_network", &server.floating_network),
    ];
    for (field, name) in named.into_iter().filter_map(|(field, name)| Some((field, name.as_ref()?))) {
        if !is_name(name) {
            found.error(at(field), format!("{name:?} is not a name in OpenStack"), "`openstack` lists them");
        }
    }
    if let Some(port) = server.port.as_ref().filter(|port| !is_id(port)) {
        found.error(
            at("port"),
            format!("{port:?} is not the id of a port"),
            "names of ports are not unique: give its id, as `openstack port list` shows it",
        );
    }
    for (n, port) in server.more_ports.iter().enumerate() {
        more_port(port, &|field: &str| at(&format!("more_ports[{n}].{field}")), found);
    }
    floating(server, &at, found);
    if let Some(address) = member.address.filter(IpAddr::is_ipv6)
        && settings.floating_of(member).is_some()
    {
        found.error(
            within("address"),
            format!("a floating IP needs an IPv4 address, and {address} is an IPv6 address"),
            "leave out `floating_network` and `floating_ip`, or give the member an IPv4 address",
        );
    }
    if member.address.is_none() && server.more_ports.iter().any(MorePort::is_exclusive) {
        found.error(
            within("address"),
            format!("`{}` has a further port that only one server can have, but no address", member.name),
            "give the member its `address` too: then the old server is deleted before the new one is created",
        );
    }
    match member.address {
        None if server.port.is_some() => found.error(
            within("address"),
            format!(
                "`{}` has a port but no address, and a new server is created before the old one is deleted",
                member.name
            ),
            "give the member the `address` of the port too: then the old server is deleted first",
        ),
        Some(address) => self::address(address, within("address"), found),
        None => {}
    }
}

fn address(address: IpAddr, at: String, found: &mut Findings) {
    if address.is_unspecified() || address.is_loopback() || address.is_multicast() {
        let message = format!("{address} cannot be the address of a machine");
        found.error(at, message, "use an address of its subnet");
    }
}

fn more_port(port: &MorePort, at: &dyn Fn(&str) -> String, found: &mut Findings) {
    let named = [("network", &port.network), ("subnet", &port.subnet)];
    for (field, name) in named.into_iter().filter_map(|(field, name)| Some((field, name.as_ref()?))) {
        if !is_name(name) {
            found.error(at(field), format!("{name:?} is not a name in OpenStack"), "`openstack` lists them");
        }
    }
    match (&port.network, &port.port) {
        (None, None) => found.error(
            at("network"),
            "a further port needs a network",
            "name the `network`, or an existing `port` by id",
        ),
        (Some(_), Some(_)) => found.error(
            at("port"),
            "an existing port is already on its network",
            "leave out `network`, or leave out `port`, and quorate creates one",
        ),
        (_, Some(id)) if !is_id(id) => found.error(
            at("port"),
            format!("{id:?} is not the id of a port"),
            "names of ports are not unique: give its id, as `openstack port list` shows it",
        ),
        _ => {}
    }
    if port.port.is_some() && (port.subnet.is_some() || port.address.is_some()) {
        let field = if port.subnet.is_some() { "subnet" } else { "address" };
        found.error(at(field), "an existing port already has its address", format!("leave out `{field}`"));
    }
    if let Some(address) = port.address {
        self::address(address, at("address"), found);
    }
}

fn floating(server: &super::ServerSettings, at: &dyn Fn(&str) -> String, found: &mut Findings) {
    let Some(id) = &server.floating_ip else { return };
    if !is_id(id) {
        found.error(
            at("floating_ip"),
            format!("{id:?} is not the id of a floating IP"),
            "give its id, as `openstack floating ip list` shows it",
        );
    }
    if server.floating_network.is_some() {
        found.error(
            at("floating_network"),
            "an existing floating IP already belongs to a network",
            "leave out `floating_network`, or leave out `floating_ip`, and quorate creates one",
        );
    }
}

/// Ids have 32 digits, with or without hyphens.
fn is_id(text: &str) -> bool {
    let digits = text.bytes().filter(|byte| *byte != b'-');
    digits.clone().count() == 32 && digits.clone().all(|byte| byte.is_ascii_hexdigit())
}
