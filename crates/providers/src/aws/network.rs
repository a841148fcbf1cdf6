//! The network of machines: their subnets, and an interface for each, created before its instance and not deleted with it.

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use quorate_agent::api::boot;
use quorate_core::model::{CLIENT_PORT, MachineId, MemberName};
use quorate_core::providers::aws::{Internet, is_reserved, section};
use quorate_core::spec::{AddressRange, MemberSpec};

use super::Aws;
use super::error::AwsError;
use super::session::Call;
use super::xml::Xml;
use crate::marks::{State, key, parts_of};
use crate::{NewMachine, ProviderError};

/// The resolver of every VPC.
const RESOLVER: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 253);

/// How often something is tried that needs what was just made.
const APPEARING: usize = 30;
/// How long an instance that has ended may still be shown with its interface.
const RELEASING: Duration = Duration::from_secs(90);

/// Where machines of the cluster may be.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) vpc: String,
    pub(super) subnets: Vec<Subnet>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Subnet {
    pub(super) id: String,
    vpc: String,
    pub(super) zone: String,
    range: AddressRange,
    free: u64,
}

impl Subnet {
    pub(super) fn read(value: &Xml) -> Option<Self> {
        Some(Subnet {
            id: value.text("subnetId")?,
            vpc: value.text("vpcId")?,
            zone: value.text("availabilityZone")?,
            range: value.text("cidrBlock")?.parse().ok()?,
            free: value.text("availableIpAddressCount").and_then(|count| count.parse().ok()).unwrap_or(1),
        })
    }

    fn shown(&self) -> String {
        format!("{} ({}, {})", self.id, self.zone, self.range)
    }

    fn gateway(&self) -> Option<IpAddr> {
        match self.range.address {
            IpAddr::V4(first) => Some(IpAddr::from((first.to_bits() + 1).to_be_bytes())),
            IpAddr::V6(_) => None,
        }
    }
}

/// The subnets in which a member's machine can be, one for each zone, the best one first.
pub(super) fn choices<'a>(subnets: &'a [Subnet], zones: &[String], wish: &Wish<'_>) -> Vec<&'a Subnet> {
    let mut best = fitting(subnets, zones, wish);
    best.dedup_by(|b, a| a.zone == b.zone);
    let turn = wish.turn % best.len().max(1);
    best.rotate_left(turn);
    best
}

/// The same, and then the others of each zone: the best one may have become full.
fn all_choices<'a>(subnets: &'a [Subnet], zones: &[String], wish: &Wish<'_>) -> Vec<&'a Subnet> {
    let best = choices(subnets, zones, wish);
    let others = fitting(subnets, zones, wish).into_iter().filter(|subnet| !best.contains(subnet));
    let others: Vec<&Subnet> = others.collect();
    best.into_iter().chain(others).collect()
}

/// Zone by zone, and in each those first that have room.
fn fitting<'a>(subnets: &'a [Subnet], zones: &[String], wish: &Wish<'_>) -> Vec<&'a Subnet> {
    let mut fitting: Vec<&Subnet> = subnets
        .iter()
        .filter(|subnet| zones.is_empty() || zones.contains(&subnet.zone))
        .filter(|subnet| wish.zone.is_none_or(|zone| subnet.zone == zone))
        .filter(|subnet| wish.address.is_none_or(|address| subnet.range.contains(address)))
        .collect();
    let order = |subnet: &Subnet| zones.iter().position(|zone| *zone == subnet.zone);
    fitting.sort_by(|a, b| (order(a), &a.zone, a.free == 0, &a.id).cmp(&(order(b), &b.zone, b.free == 0, &b.id)));
    fitting
}

/// What decides where a machine is.
#[derive(Clone, Copy, Default)]
pub(super) struct Wish<'a> {
    pub(super) zone: Option<&'a str>,
    pub(super) address: Option<IpAddr>,
    /// The member's place in the spec: members next to each other are in different zones.
    pub(super) turn: usize,
}

/// An interface of this cluster, as it is found by its mark.
#[derive(Clone, Debug)]
pub(super) struct Interface {
    pub(super) id: String,
    pub(super) subnet: String,
    pub(super) machine: MachineId,
    pub(super) fence: u64,
    pub(super) state: State,
    pub(super) address: IpAddr,
    mac: String,
    /// The instance that has it.
    pub(super) used_by: Option<String>,
    /// Its security groups, by id.
    pub(super) groups: Vec<String>,
}

impl Interface {
    fn read(value: &Xml) -> Option<Self> {
        let tags = value.tags();
        let part = |name: &str| tags.get(&key(name));
        let member: MemberName = part("member")?.as_str().into();
        Some(Interface {
            id: value.text("networkInterfaceId")?,
            subnet: value.text("subnetId")?,
            machine: MachineId::new(&member, part("incarnation")?.parse().ok()?),
            fence: part("fence")?.parse().ok()?,
            state: State::read(part("state")?)?,
            address: value.text("privateIpAddress")?.parse().ok()?,
            mac: value.text("macAddress")?.to_lowercase(),
            used_by: value.text("attachment/instanceId"),
            groups: value.items("groupSet").filter_map(|group| group.text("groupId")).collect(),
        })
    }
}

impl Aws {
    /// Looked up once in a run, or made.
    pub(super) async fn site(&self) -> Result<Rc<Site>, AwsError> {
        let mut known = self.site.lock().await;
        if let Some(site) = &*known {
            return Ok(site.clone());
        }
        let found = match &self.settings.vpc_cidr {
            Some(range) => self.put_network(range).await?,
            None => self.find_site().await?,
        };
        Ok(known.insert(Rc::new(found)).clone())
    }

    async fn find_site(&self) -> Result<Site, AwsError> {
        let mut call = Call::new("list subnets", "DescribeSubnets");
        if !self.settings.subnets.is_empty() {
            call = call.filter("subnet-id", &self.settings.subnets);
        }
        if let Some(vpc) = &self.settings.vpc {
            call = call.filter("vpc-id", [vpc]);
        }
        for (name, value) in &self.settings.subnet_tags {
            call = call.filter(&format!("tag:{name}"), [value]);
        }
        let found = self.session()?.list(call, "subnetSet").await?;
        let subnets: Vec<Subnet> = found.iter().filter_map(Subnet::read).collect();
        for id in &self.settings.subnets {
            if !subnets.iter().any(|subnet| subnet.id == *id) {
                let region = self.session()?.region().to_owned();
                let name = format!("{id} in the region {region}");
                return Err(AwsError::Missing { what: "subnet", name, names: Vec::new() });
            }
        }
        let mut vpcs: Vec<String> = subnets.iter().map(|subnet| subnet.vpc.clone()).collect();
        vpcs.sort();
        vpcs.dedup();
        match &vpcs[..] {
            [vpc] => Ok(Site { vpc: vpc.clone(), subnets }),
            [] => {
                let tags = self.settings.subnet_tags.iter().map(|(name, value)| format!("{name}={value}"));
                let of: Vec<String> = self.settings.vpc.iter().cloned().chain(tags).collect();
                Err(AwsError::Missing { what: "subnet of", name: of.join(" with "), names: Vec::new() })
            }
            _ => Err(AwsError::SeveralVpcs { vpcs }),
        }
    }

    /// The subnets in which a member's machine can be, the best one first.
    pub(super) async fn subnets_for(
        &self,
        member: &MemberSpec,
        address: Option<IpAddr>,
        zone: Option<&str>,
    ) -> Result<Vec<Subnet>, AwsError> {
        let site = self.site().await?;
        let turn = self.spec.machines().position(|entry| entry.name == member.name).unwrap_or_default();
        let wish = Wish { zone: zone.or(section(member).zone.as_deref()), address, turn };
        let found = all_choices(&site.subnets, &self.settings.zones, &wish);
        if found.is_empty() {
            let zone = wish.zone.map(|zone| format!("in the zone {zone}"));
            let wanted = zone.or_else(|| address.map(|address| format!("with the address {address}")));
            let there = site.subnets.iter().map(Subnet::shown).collect();
            return Err(AwsError::NoSubnet { member: member.name.to_string(), wanted, there });
        }
        Ok(found.into_iter().cloned().collect())
    }

    /// Interfaces that were made for this cluster, in one list.
    pub(super) async fn interfaces(&self) -> Result<Vec<Interface>, AwsError> {
        let call = Call::new("list network interfaces", "DescribeNetworkInterfaces");
        let call = call.filter(&format!("tag:{}", key("cluster_id")), [&self.cluster_id]);
        let all = self.session()?.list(call, "networkInterfaceSet").await?;
        Ok(all.iter().filter_map(Interface::read).collect())
    }

    /// The interface for a machine: what the member's last one left, or a new one.
    pub(super) async fn interface(
        &self,
        new: &NewMachine<'_>,
        subnet: &Subnet,
        kept: &[Interface],
    ) -> Result<Interface, ProviderError> {
        let fits =
            |kept: &&Interface| kept.subnet == subnet.id && new.address.is_none_or(|address| address == kept.address);
        let Some(kept) = kept.iter().find(fits) else { return self.new_interface(new, subnet).await };
        let marks = parts_of(&self.cluster_id, &new.id, new.fence);
        self.tag("mark a network interface", &[&kept.id], marks).await?;
        self.set_groups(kept).await?;
        Ok(kept.clone())
    }

    async fn new_interface(&self, new: &NewMachine<'_>, subnet: &Subnet) -> Result<Interface, ProviderError> {
        if let Some(address) = new.address {
            if is_reserved(&subnet.range, address) {
                return Err(AwsError::Reserved { address, range: subnet.range.to_string() }.into());
            }
            if let Some(by) = self.holder(subnet, address).await? {
                return Err(ProviderError::AddressTaken { address, port: CLIENT_PORT, by: Some(by) });
            }
        }
        let name = format!("{}-{}.{}.{}", self.spec.name, new.id.member, new.id.incarnation, new.fence);
        let mut tags = self.tags(&name);
        tags.extend(parts_of(&self.cluster_id, &new.id, new.fence));
        tags.insert(key("state"), State::Draft.name().to_owned());
        let call = Call::new(format!("create the network interface {name}"), "CreateNetworkInterface")
            .with("SubnetId", &subnet.id)
            .with("Description", format!("quorate {name}"))
            .list("SecurityGroupId", self.groups_of_interfaces().await?)
            .maybe("PrivateIpAddress", new.address)
            .tagged("network-interface", &tags)
            .once();
        let made = match (self.session()?.call(&call).await, new.address) {
            (Err(error), Some(address)) if error.has_code(&["InvalidIPAddress.InUse"]) => {
                return Err(ProviderError::AddressTaken { address, port: CLIENT_PORT, by: None });
            }
            (made, _) => made?,
        };
        let made = made.get("networkInterface");
        let unreadable = || AwsError::Unreadable { doing: format!("create {name}"), why: String::from("no interface") };
        let made = made.ok_or_else(unreadable)?;
        let id = made.text("networkInterfaceId").ok_or_else(unreadable)?;
        if self.settings.vpc_cidr.is_some() && self.settings.internet == Internet::Public {
            let call = Call::new(format!("give {name} a public address"), "ModifyNetworkInterfaceAttribute");
            let call = call.with("NetworkInterfaceId", &id).with("AssociatePublicIpAddress", true);
            self.when_known(&call).await?;
        }
        // Its tags are listed a little later than it is.
        let address = made.text("privateIpAddress").and_then(|address| address.parse().ok());
        Ok(Interface {
            id,
            subnet: subnet.id.clone(),
            machine: new.id.clone(),
            fence: new.fence,
            state: State::Draft,
            address: address.ok_or_else(unreadable)?,
            mac: made.text("macAddress").ok_or_else(unreadable)?.to_lowercase(),
            used_by: None,
            groups: Vec::new(),
        })
    }

    /// Returns when this instance, which has ended, no longer has the interface: AWS may show it there a little longer.
    pub(super) async fn await_release(&self, interface: &str, instance: &str) -> Result<(), AwsError> {
        let begun = Instant::now();
        while begun.elapsed() < RELEASING {
            let all = self.interfaces().await?;
            if !all.iter().any(|one| one.id == interface && one.used_by.as_deref() == Some(instance)) {
                return Ok(());
            }
            tokio::time::sleep(self.polling).await;
        }
        let (what, state) = (format!("the network interface {interface}"), format!("in use by {instance}"));
        Err(AwsError::TooSlow { what, state, seconds: RELEASING.as_secs(), remedy: None })
    }

    /// Carries out a call about something that was just made, and that not all of AWS knows of yet.
    pub(super) async fn when_known(&self, call: &Call) -> Result<Xml, AwsError> {
        for _ in 0..APPEARING {
            match self.session()?.call(call).await {
                Err(error) if error.is_absent() => tokio::time::sleep(self.polling).await,
                answer => return answer,
            }
        }
        self.session()?.call(call).await
    }

    /// Who has this address.
    async fn holder(&self, subnet: &Subnet, address: IpAddr) -> Result<Option<String>, AwsError> {
        let call = Call::new("find an address", "DescribeNetworkInterfaces")
            .filter("subnet-id", [&subnet.id])
            .filter("addresses.private-ip-address", [address]);
        let found = self.session()?.list(call, "networkInterfaceSet").await?;
        Ok(found.first().map(|found| {
            let name = found.tags().get("Name").cloned().filter(|name| !name.is_empty());
            let name = name.or_else(|| found.text("description")).or_else(|| found.text("networkInterfaceId"));
            format!("the network interface {}", name.unwrap_or_default())
        }))
    }

    /// What the machine is told of its network.
    pub(super) fn told(&self, interface: &Interface, subnet: &Subnet) -> boot::Interface {
        boot::Interface {
            mac: interface.mac.clone(),
            address: interface.address,
            prefix: subnet.range.prefix,
            gateway: subnet.gateway(),
            dns: vec![RESOLVER.into()],
            more_addresses: Vec::new(),
        }
    }

    /// Returns when it is gone. One that an instance still has is waited for.
    pub(super) async fn delete_interface(&self, id: &str) -> Result<(), AwsError> {
        let call = Call::new(format!("delete the network interface {id}"), "DeleteNetworkInterface");
        let call = call.with("NetworkInterfaceId", id);
        let begun = Instant::now();
        loop {
            match self.session()?.unless_absent(&call).await {
                // It is released a little later than its instance is gone.
                Err(error) if is_in_use(&error) && begun.elapsed() < self.patience => {}
                deleted => return deleted.map(drop),
            }
            tokio::time::sleep(self.polling).await;
        }
    }
}

fn is_in_use(error: &AwsError) -> bool {
    error.has_code(&["InvalidNetworkInterface.InUse", "InvalidParameterValue"]) && error.to_string().contains("in use")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnet(id: &str, zone: &str, range: &str) -> Subnet {
        let range = range.parse().unwrap();
        Subnet { id: id.to_owned(), vpc: String::from("vpc-1"), zone: zone.to_owned(), range, free: 100 }
    }

    fn subnets() -> Vec<Subnet> {
        vec![
            subnet("s-c", "z-c", "10.0.3.0/24"),
            subnet("s-a", "z-a", "10.0.1.0/24"),
            subnet("s-a2", "z-a", "10.0.4.0/24"),
            subnet("s-b", "z-b", "10.0.2.0/24"),
        ]
    }

    fn ids(zones: &[&str], wish: Wish<'_>) -> Vec<String> {
        let zones: Vec<String> = zones.iter().map(ToString::to_string).collect();
        choices(&subnets(), &zones, &wish).into_iter().map(|subnet| subnet.id.clone()).collect()
    }

    #[test]
    fn members_are_spread_over_zones_and_each_zone_is_tried() {
        let turn = |turn| ids(&[], Wish { turn, ..Wish::default() });
        assert_eq!(turn(0), ["s-a", "s-b", "s-c"]);
        assert_eq!(turn(1), ["s-b", "s-c", "s-a"]);
        assert_eq!(turn(4), turn(1));
        assert_eq!(ids(&["z-c", "z-a"], Wish::default()), ["s-c", "s-a"], "in the order of the spec");
        assert_eq!(ids(&[], Wish { zone: Some("z-b"), ..Wish::default() }), ["s-b"]);
        assert_eq!(ids(&["z-a"], Wish { zone: Some("z-b"), ..Wish::default() }), Vec::<String>::new());
    }

    #[test]
    fn an_address_decides_the_subnet() {
        let address = |text: &str| ids(&[], Wish { address: text.parse().ok(), turn: 1, ..Wish::default() });
        assert_eq!(address("10.0.4.9"), ["s-a2"]);
        assert_eq!(address("10.9.4.9"), Vec::<String>::new());
    }

    #[test]
    fn a_full_subnet_comes_last_in_its_zone() {
        let mut all = subnets();
        all[1].free = 0;
        let found = choices(&all, &[], &Wish::default());
        assert_eq!(found[0].id, "s-a2");
    }

    #[test]
    fn other_subnets_of_a_zone_come_after_each_zone_was_tried() {
        let all = subnets();
        let found = |wish: Wish<'_>| {
            all_choices(&all, &[], &wish).into_iter().map(|subnet| subnet.id.clone()).collect::<Vec<String>>()
        };
        assert_eq!(found(Wish { turn: 1, ..Wish::default() }), ["s-b", "s-c", "s-a", "s-a2"]);
        assert_eq!(found(Wish { zone: Some("z-a"), ..Wish::default() }), ["s-a", "s-a2"]);
    }

    #[test]
    fn the_gateway_has_the_first_address() {
        let subnet = subnet("s", "z", "10.0.1.128/25");
        assert_eq!(subnet.gateway(), "10.0.1.129".parse().ok());
    }
}
