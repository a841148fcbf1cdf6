//! The network of instances: its settings in Incus, and its free addresses.

use std::net::IpAddr;

use quorate_core::model::CLIENT_PORT;
use serde_json::Value;

use super::Incus;
use super::error::IncusError;
use super::instance::Instance;
use super::server::{Found, Server, escaped, names};
use crate::{NewMachine, ProviderError};

/// A network that instances can be on.
pub(super) struct Network {
    pub(super) name: String,
    pub(super) managed: bool,
    kind: String,
    /// Address of the gateway and length of the prefix, for each family.
    subnets: Vec<(IpAddr, u8)>,
    /// Ranges that Incus leases by DHCP. Machines get addresses outside of them.
    dhcp: Vec<(IpAddr, IpAddr)>,
    /// Whether Incus leases IPv4 addresses in it, and IPv6 addresses. Only then it can reserve one.
    leases_v4: bool,
    leases_v6: bool,
}

impl Network {
    fn read(name: &str, value: &Value) -> Self {
        let config = |key: &str| value.get("config")?.get(key)?.as_str();
        let subnets = ["ipv4.address", "ipv6.address"].into_iter().filter_map(|key| {
            let (address, prefix) = config(key)?.split_once('/')?;
            Some((address.parse().ok()?, prefix.parse().ok()?))
        });
        let ranges = config("ipv4.dhcp.ranges").unwrap_or_default().split(',');
        let ranges = ranges.filter_map(|range| {
            let (first, last) = range.split_once('-')?;
            Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
        });
        let leases = |key: &str| !config(key).is_some_and(|text| matches!(text, "false" | "0" | "no" | "off"));
        let stateful = config("ipv6.dhcp.stateful").is_some_and(|text| matches!(text, "true" | "1" | "yes" | "on"));
        Network {
            name: name.to_owned(),
            managed: value.get("managed").and_then(Value::as_bool).unwrap_or_default(),
            kind: value.get("type").and_then(Value::as_str).unwrap_or_default().to_owned(),
            subnets: subnets.collect(),
            dhcp: ranges.collect(),
            leases_v4: leases("ipv4.dhcp"),
            leases_v6: leases("ipv6.dhcp") && stateful,
        }
    }

    /// The subnet of the address's family.
    pub(super) fn subnet(&self, address: IpAddr) -> Option<(IpAddr, u8)> {
        self.subnets.iter().copied().find(|(gateway, _)| gateway.is_ipv4() == address.is_ipv4())
    }

    fn is_gateway(&self, address: IpAddr) -> bool {
        self.subnets.iter().any(|(gateway, _)| *gateway == address)
    }

    fn shown(&self) -> String {
        let subnets: Vec<String> = self.subnets.iter().map(|(gateway, prefix)| format!("{gateway}/{prefix}")).collect();
        if subnets.is_empty() { String::from("no addresses") } else { subnets.join(" and ") }
    }

    /// Whether its gateway answers questions about names. The router of an OVN network does not.
    pub(super) fn resolves(&self) -> bool {
        self.managed && self.kind == "bridge"
    }

    /// Whether Incus can reserve this address in it. The machine itself is told its addresses in any case.
    pub(super) fn reserves(&self, address: IpAddr) -> bool {
        let leases = if address.is_ipv4() { self.leases_v4 } else { self.leases_v6 };
        self.managed && leases && matches!(self.kind.as_str(), "bridge" | "ovn")
    }
}

impl Incus {
    pub(super) async fn network(&self, server: &Server) -> Result<Network, IncusError> {
        let name = &self.settings.network;
        let found = server.get("find the network", &format!("/1.0/networks/{}", escaped(name))).await?;
        match found {
            Some(Found { value, .. }) => Ok(Network::read(name, &value)),
            None => {
                let known = server.list("list networks", "/1.0/networks?recursion=1").await?;
                let usable = |network: &&Value| network.get("type").is_some_and(|kind| kind != "loopback");
                let known: Vec<Value> = known.iter().filter(usable).cloned().collect();
                Err(IncusError::Missing { what: "network", name: name.clone(), known: names(&known) })
            }
        }
    }

    /// Length of the prefix of an address, and its gateway.
    pub(super) fn place_in(&self, network: &Network, address: IpAddr) -> Result<(u8, Option<IpAddr>), IncusError> {
        if let Some(prefix) = self.settings.prefix {
            return Ok((prefix, self.settings.gateway));
        }
        if !network.managed {
            return Err(IncusError::NotManaged { network: network.name.clone() });
        }
        let Some((gateway, prefix)) = network.subnet(address) else {
            let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            let member = String::from("a member");
            return Err(IncusError::NoFamily { network: network.name.clone(), family, member, address });
        };
        if !is_within(address, gateway, prefix) {
            let (network, subnet) = (network.name.clone(), network.shown());
            return Err(IncusError::OutsideNetwork { address, network, subnet });
        }
        Ok((prefix, Some(self.settings.gateway.unwrap_or(gateway))))
    }

    /// The address for a machine: the one in the spec, unless it is taken, or a free one.
    pub(super) async fn address(
        &self,
        server: &Server,
        network: &Network,
        new: &NewMachine<'_>,
    ) -> Result<IpAddr, ProviderError> {
        // Addresses are shared between projects.
        let others = server.instances_of_all_projects().await?;
        let others: Vec<Instance> = others.iter().filter_map(Instance::read).collect();
        let leases = self.leases(server, network).await?;
        let mut chosen = self.chosen.borrow_mut();
        let holder = |address: IpAddr| {
            let meanwhile = chosen.iter().find(|(other, chosen)| **other != new.id && chosen.address == Some(address));
            let instance = others.iter().find(|other| other.has(address)).map(shown);
            let lease = || leases.iter().find(|(leased, _)| *leased == address).map(|(_, by)| by.clone());
            let network = network.is_gateway(address).then(|| format!("the network {} itself", network.name));
            network.or(instance).or_else(lease).or_else(|| meanwhile.map(|(other, _)| other.to_string()))
        };
        if let Some(address) = new.address {
            self.place_in(network, address)?;
            return match holder(address) {
                Some(by) => Err(ProviderError::AddressTaken { address, port: CLIENT_PORT, by: Some(by) }),
                None => Ok(address),
            };
        }
        let Some((gateway, prefix)) = network.subnets.first().copied().filter(|_| network.managed) else {
            return Err(IncusError::NotManaged { network: network.name.clone() }.into());
        };
        let leased = |address: &IpAddr| network.dhcp.iter().any(|(first, last)| (first..=last).contains(&address));
        let mut all = hosts(gateway, prefix);
        let is_known = |address: &IpAddr| server.is_clustered() && self.known.contains(address);
        let free = all.find(|address| !leased(address) && !is_known(address) && holder(*address).is_none());
        let free = free.ok_or_else(|| ProviderError::NoAddress { range: format!("{gateway}/{prefix}") })?;
        chosen.entry(new.id.clone()).or_default().address = Some(free);
        Ok(free)
    }

    /// Leased addresses, and who has them.
    async fn leases(&self, server: &Server, network: &Network) -> Result<Vec<(IpAddr, String)>, IncusError> {
        if !network.managed {
            return Ok(Vec::new());
        }
        let leases = server.list("list leases", &format!("/1.0/networks/{}/leases", escaped(&network.name))).await?;
        let read = |lease: &Value| {
            let text = |field: &str| lease.get(field).and_then(Value::as_str);
            Some((text("address")?.parse().ok()?, text("hostname").unwrap_or("a lease").to_owned()))
        };
        Ok(leases.iter().filter_map(read).collect())
    }
}

fn shown(instance: &Instance) -> String {
    match &instance.mark {
        Some(mark) => format!("{} of cluster {}", mark.member, mark.cluster),
        None => format!("the instance {}", instance.name),
    }
}

fn is_within(address: IpAddr, gateway: IpAddr, prefix: u8) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32_u32),
        IpAddr::V6(v6) => (u128::from(v6), 128),
    };
    let ((a, length), (b, _)) = (bits(address), bits(gateway));
    let shift = length.saturating_sub(u32::from(prefix));
    a.checked_shr(shift).unwrap_or(0) == b.checked_shr(shift).unwrap_or(0)
}

/// The addresses of a subnet that hosts can have, from the lowest; of a large one, the first few thousand.
fn hosts(gateway: IpAddr, prefix: u8) -> Box<dyn Iterator<Item = IpAddr>> {
    const MOST: u32 = 4096;
    match gateway {
        IpAddr::V4(v4) => {
            let size = 1_u64 << (32 - u32::from(prefix.min(32)));
            let base = u64::from(u32::from(v4)) / size * size;
            let last = (size.saturating_sub(1)).min(u64::from(MOST));
            Box::new((1..last).filter_map(move |n| Some(IpAddr::V4(u32::try_from(base + n).ok()?.into()))))
        }
        IpAddr::V6(v6) => {
            let bits = u32::from(prefix.min(128));
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            let base = u128::from(v6) & mask;
            // Where no router is, and nobody counts manually.
            Box::new((0x100..0x100 + MOST).map(move |n| IpAddr::V6((base | u128::from(n)).into())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_network_reports_its_subnets_and_leases() {
        let value = json!({"managed": true, "type": "bridge", "config": {
            "ipv4.address": "10.77.0.1/24", "ipv6.address": "none", "ipv4.dhcp.ranges": "10.77.0.100-10.77.0.200, 10.77.0.210-10.77.0.220",
        }});
        let network = Network::read("incusbr0", &value);
        assert_eq!(network.subnets, [("10.77.0.1".parse().unwrap(), 24)]);
        assert_eq!(network.dhcp.len(), 2);
        assert!(network.subnet("fd00::1".parse().unwrap()).is_none());
    }

    #[test]
    fn addresses_are_reserved_where_incus_leases_them_and_only_bridges_resolve_names() {
        let reserves = |kind: &str, config: Value| {
            let network = Network::read("n", &json!({"managed": true, "type": kind, "config": config}));
            ["10.77.0.11", "fd00::11"].map(|address| network.reserves(address.parse().unwrap()))
        };
        for kind in ["bridge", "ovn"] {
            assert_eq!(reserves(kind, json!({})), [true, false]);
            assert_eq!(reserves(kind, json!({"ipv6.dhcp.stateful": "true"})), [true, true]);
            assert_eq!(reserves(kind, json!({"ipv4.dhcp": "false", "ipv6.dhcp.stateful": "false"})), [false, false]);
            assert_eq!(reserves(kind, json!({"ipv6.dhcp": "false", "ipv6.dhcp.stateful": "true"})), [true, false]);
        }
        let resolves = |kind: &str| Network::read("n", &json!({"managed": true, "type": kind})).resolves();
        assert!(resolves("bridge") && !resolves("ovn"));
        assert_eq!(reserves("macvlan", json!({"ipv6.dhcp.stateful": "true"})), [false, false]);
    }

    #[test]
    fn an_address_is_within_its_subnet_or_not() {
        let within = |address: &str, gateway: &str, prefix| {
            is_within(address.parse().unwrap(), gateway.parse().unwrap(), prefix)
        };
        assert!(within("10.77.0.200", "10.77.0.1", 24) && !within("10.77.1.1", "10.77.0.1", 24));
        assert!(within("fd00::2:1", "fd00::1", 64) && !within("fd00:0:0:1::1", "fd00::1", 64));
        assert!(within("10.0.0.1", "10.0.0.1", 32) && !within("10.0.0.2", "10.0.0.1", 32));
    }

    #[test]
    fn hosts_are_neither_first_nor_last() {
        let all: Vec<IpAddr> = hosts("192.0.2.5".parse().unwrap(), 29).collect();
        assert_eq!((all[0], all.len(), all[5]), ("192.0.2.1".parse().unwrap(), 6, "192.0.2.6".parse().unwrap()));
        let first = hosts("fd00::1".parse().unwrap(), 64).next();
        assert_eq!(first, "fd00::100".parse().ok());
    }
}
