//! Checks of pinned addresses under the provider `local`, and of what its networks do not support.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{LocalSettings, Network};
use crate::kinds::etcd::spec::Binary;
use crate::spec::check::{Cluster, Findings};

pub(super) fn check(settings: &LocalSettings, cluster: &Cluster, found: &mut Findings) {
    for (at, member) in cluster.spec.entries() {
        let Some(address) = member.address else { continue };
        let path = cluster.at(&format!("{at}.address"));
        match settings.network {
            Network::Loopback => local_address(address, path, found),
            Network::Netns => private_address(address, path, found),
        }
    }
    if settings.network == Network::Netns {
        fetched(cluster, found);
        one_range(cluster, found);
    }
}

fn fetched(cluster: &Cluster, found: &mut Findings) {
    if let Some(Binary::Package(_) | Binary::Archive { .. } | Binary::Mirror(_)) = &cluster.spec.etcd.binary {
        found.warning(
            cluster.at("etcd.binary"),
            "under `network: netns` machines reach nothing outside, so they cannot fetch what is not here already",
            "give a `path`, or leave `binary` out and have etcd on PATH",
        );
    }
}

fn local_address(address: IpAddr, path: String, found: &mut Findings) {
    let hint = "use one such as 127.0.10.1, or leave `address` out and quorate chooses";
    match address {
        IpAddr::V4(Ipv4Addr::LOCALHOST) => found.error(
            path,
            "127.0.0.1 is shared by all programs of this machine, so it cannot be one member's own",
            hint,
        ),
        IpAddr::V4(v4) if matches!(v4.octets(), [127, 0, 0, 0] | [127, 255, 255, 255]) => {
            found.error(
                path,
                format!("{v4} is the first or last address of 127.0.0.0/8, which no host can have"),
                hint,
            );
        }
        IpAddr::V4(v4) if v4.is_loopback() => {}
        other => {
            found.error(path, format!("the provider `local` has addresses in 127.0.0.0/8 only, not {other}"), hint)
        }
    }
}

/// An address on the bridge of a cluster's own network.
fn private_address(address: IpAddr, path: String, found: &mut Findings) {
    let hint = "use one such as 10.1.2.11 or fd00:1:2::11, or leave `address` out and quorate chooses";
    let last = match address {
        IpAddr::V4(v4) => v4.octets()[3].into(),
        IpAddr::V6(v6) => v6.segments()[7],
    };
    let broadcast = if address.is_ipv4() { Some(255) } else { None };
    if !is_private(address) {
        let why =
            "`network: netns` has private addresses only, in 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or fc00::/7";
        found.error(path, format!("{why}, not {address}"), hint);
    } else if last == 0 || Some(last) == broadcast {
        found.error(path, format!("{address} is the first or last address of its range, which no host can have"), hint);
    } else if last == 1 {
        let what = "is the address of the network itself, from which members are reached";
        found.error(path, format!("{address} {what}"), hint);
    }
}

fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_private(),
        IpAddr::V6(v6) => v6.is_unique_local(),
    }
}

/// The range that members with pinned addresses share, because all of a cluster are on one bridge.
fn range(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            format!("{a}.{b}.{c}.0/24")
        }
        IpAddr::V6(v6) => format!("{}/112", Ipv6Addr::from(u128::from(v6) & !0xffff)),
    }
}

fn one_range(cluster: &Cluster, found: &mut Findings) {
    let pinned = cluster.spec.entries().filter_map(|(at, member)| Some((at, member.address?)));
    // The check of each single address reports the others.
    let mut pinned = pinned.filter(|(_, address)| is_private(*address)).peekable();
    let Some((_, first)) = pinned.peek() else { return };
    let shared = range(*first);
    for (at, other) in pinned.filter(|(_, address)| range(*address) != shared) {
        found.error(
            cluster.at(&format!("{at}.address")),
            format!("{other} is not in {shared}, where the first pinned address of this cluster is"),
            "pin all addresses of a cluster in one such range",
        );
    }
}
