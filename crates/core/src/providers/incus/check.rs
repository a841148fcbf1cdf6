//! Checks of Incus instances: names, addresses, sizes, and settings that containers do not support. What only the server knows, such as
//! whether a pool exists, is checked when instances are created.

use std::net::IpAddr;

use super::{IncusSettings, InstanceKind, MemberSpec, section};
use crate::spec::check::{Cluster, Findings};
use crate::spec::{Millis, Size};

/// systemd, the agent and etcd do not start with less.
const LEAST_MEMORY: Size = Size(128 << 20);
/// Nothing boots faster.
const LEAST_PATIENCE: Millis = Millis(1000);
/// The longest name of an instance: it is the name of a host.
const LONGEST_NAME: usize = 63;
/// The rest of the name of an instance: a hyphen, and later `-i` and the incarnation.
const REST_OF_NAME: usize = 7;

pub(super) fn check(settings: &IncusSettings, cluster: &Cluster, found: &mut Findings) {
    let at = |field: &str| cluster.at(&format!("provider.incus.{field}"));
    names(settings, &at, found);
    network(settings, &at, found);
    if settings.boot_patience < LEAST_PATIENCE {
        found.error(
            at("boot_patience"),
            format!("no instance boots within {}", settings.boot_patience),
            format!("give it at least {LEAST_PATIENCE}; 3m is the default"),
        );
    }
    limits(settings.cpus, settings.memory, &at, found);
    if let Some(admin) = &settings.admin {
        admin.check(&at("admin"), found);
    }
    clock(settings, cluster, found);
    for (at, member) in cluster.spec.entries() {
        self::member(settings, cluster, (&at, member), found);
    }
}

fn names(settings: &IncusSettings, at: &impl Fn(&str) -> String, found: &mut Findings) {
    let named = [
        ("remote", settings.remote.as_ref()),
        ("project", settings.project.as_ref()),
        ("pool", Some(&settings.pool)),
        ("network", Some(&settings.network)),
    ];
    let profiles = settings.profiles.iter().enumerate().map(|(n, name)| (format!("profiles[{n}]"), Some(name)));
    for (field, name) in named.into_iter().map(|(field, name)| (field.to_owned(), name)).chain(profiles) {
        if let Some(name) = name.filter(|name| !is_plain(name)) {
            found.error(
                at(&field),
                format!("`{name}` is not a name in Incus"),
                "names have no spaces, slashes or colons; `incus list` and `incus remote list` show them",
            );
        }
    }
    if settings.image.contains(char::is_whitespace) {
        found.error(
            at("image"),
            format!("`{}` is not the name of an image", settings.image),
            "give an alias or fingerprint from `incus image list`, or REMOTE:ALIAS such as `images:debian/12`",
        );
    }
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || matches!(c, '/' | ':' | '?' | '&' | '#'))
}

fn network(settings: &IncusSettings, at: &impl Fn(&str) -> String, found: &mut Findings) {
    let Some(prefix) = settings.prefix else {
        if settings.gateway.is_some() {
            found.error(
                at("gateway"),
                "a gateway without a prefix: quorate cannot tell whether instances reach it",
                "add `prefix`, or remove `gateway` where Incus manages the network",
            );
        }
        return;
    };
    let most = settings.gateway.map_or(128, |gateway| if gateway.is_ipv4() { 32 } else { 128 });
    if prefix == 0 || prefix > most {
        found.error(
            at("prefix"),
            format!("a prefix has 1 to {most} bits, not {prefix}"),
            "24 is usual for IPv4, 64 for IPv6",
        );
    }
}

fn limits(cpus: Option<u32>, memory: Option<Size>, at: &impl Fn(&str) -> String, found: &mut Findings) {
    if cpus == Some(0) {
        found.error(at("cpus"), "an instance without processors does not run", "give it 2");
    }
    if let Some(memory) = memory.filter(|memory| *memory < LEAST_MEMORY) {
        found.error(
            at("memory"),
            format!("{memory} is too little to boot with; a bare number counts bytes"),
            format!("give it at least {LEAST_MEMORY}"),
        );
    }
}

/// A container has the clock of its host.
fn clock(settings: &IncusSettings, cluster: &Cluster, found: &mut Findings) {
    let has_chrony = cluster.spec.host.as_ref().is_some_and(|host| host.chrony.is_some());
    if settings.kind == InstanceKind::Container && has_chrony {
        found.error(
            cluster.at("host.chrony"),
            "a container has its host's clock and cannot set it",
            "synchronize the clock of the Incus host, and remove `chrony`; or use `type: vm`",
        );
    }
}

fn member(settings: &IncusSettings, cluster: &Cluster, (entry, member): (&str, &MemberSpec), found: &mut Findings) {
    let within = |field: &str| cluster.at(&format!("{entry}.{field}"));
    let at = |field: &str| within(&format!("incus.{field}"));
    let machine = section(member);
    limits(machine.cpus, machine.memory, &at, found);
    if let Some(target) = machine.target.as_ref().filter(|target| !is_plain(target)) {
        let message = format!("`{target}` is not the name of a host in an Incus cluster");
        found.error(at("target"), message, "`incus cluster list` shows them");
    }
    let length = cluster.spec.name.as_str().len() + member.name.as_str().len() + REST_OF_NAME;
    if length > LONGEST_NAME {
        found.error(
            within("name"),
            format!("with the cluster's name, the name of its instance has up to {length} characters"),
            format!("Incus allows {LONGEST_NAME}: choose shorter names"),
        );
    }
    if let Some(address) = member.address {
        self::address(address, within("address"), found);
    }
    for (n, address) in machine.more_addresses.iter().enumerate() {
        self::address(*address, at(&format!("more_addresses[{n}]")), found);
    }
    if member.address.is_none() && !machine.more_addresses.is_empty() {
        found.error(
            at("more_addresses"),
            "two machines cannot have these addresses, and without `address` a new machine is created before the old one is deleted",
            "give the member an `address` too",
        );
    }
    if settings.prefix.is_some() && member.address.is_none() {
        found.error(
            within("address"),
            format!(
                "`{}` has no address, and on a network that Incus does not manage quorate cannot choose one",
                member.name
            ),
            "give each member an `address`, or remove `prefix` where Incus manages the network",
        );
    }
}

fn address(address: IpAddr, at: String, found: &mut Findings) {
    if address.is_unspecified() || address.is_loopback() || address.is_multicast() {
        found.error(at, format!("{address} cannot be the address of a machine"), "use an address of its network");
    }
}
