//! A VPC that quorate creates: a subnet in each zone, an internet gateway, and a NAT gateway if the spec asks for one. Their tags are their
//! mark. The next run creates what is missing, wherever the last one stopped. Calls without a client token can create a resource twice:
//! then one is used and the others are deleted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quorate_core::providers::aws::{Internet, Layout, USED_ZONES, section};
use quorate_core::spec::AddressRange;
use tokio::time::sleep;

use super::Aws;
use super::error::AwsError;
use super::network::{Site, Subnet};
use super::session::Call;
use super::xml::Xml;
use crate::marks::{State, key};

/// How long a NAT gateway may take to be made, or to be deleted.
const GATEWAY_PATIENCE: Duration = Duration::from_secs(600);
/// How often a list is asked for what was just made, and a subnet deleted that is not free yet.
const ATTEMPTS: usize = 60;
const AFTER_CONFLICT: usize = 15;
const EVERYWHERE: &str = "0.0.0.0/0";
/// Of things for the NAT gateway. Others have none.
const NAT_ROLE: &str = "nat";
const IN_USE: [&str; 2] = ["DependencyViolation", "InvalidParameterValue"];

/// A kind of thing that a network consists of.
#[derive(Clone, Copy)]
struct Kind {
    what: &'static str,
    list: &'static str,
    set: &'static str,
    id: &'static str,
    /// In tags.
    resource: &'static str,
}

const VPC: Kind = Kind { what: "VPC", list: "DescribeVpcs", set: "vpcSet", id: "vpcId", resource: "vpc" };
const SUBNET: Kind =
    Kind { what: "subnet", list: "DescribeSubnets", set: "subnetSet", id: "subnetId", resource: "subnet" };
const GATEWAY: Kind = Kind {
    what: "internet gateway",
    list: "DescribeInternetGateways",
    set: "internetGatewaySet",
    id: "internetGatewayId",
    resource: "internet-gateway",
};
const TABLE: Kind = Kind {
    what: "route table",
    list: "DescribeRouteTables",
    set: "routeTableSet",
    id: "routeTableId",
    resource: "route-table",
};
const NAT: Kind = Kind {
    what: "NAT gateway",
    list: "DescribeNatGateways",
    set: "natGatewaySet",
    id: "natGatewayId",
    resource: "natgateway",
};
const ADDRESS: Kind = Kind {
    what: "elastic address",
    list: "DescribeAddresses",
    set: "addressesSet",
    id: "allocationId",
    resource: "elastic-ip",
};

/// Something of the network, as it was found by its mark.
#[derive(Clone, Debug)]
struct Thing {
    id: String,
    tags: BTreeMap<String, String>,
    seen: Xml,
}

impl Thing {
    fn read(kind: Kind, seen: &Xml) -> Option<Self> {
        Some(Thing { id: seen.text(kind.id)?, tags: seen.tags(), seen: seen.clone() })
    }

    fn is_whole(&self) -> bool {
        self.tags.get(&key("state")).is_some_and(|state| state == State::Whole.name())
    }

    fn is_for_nat(&self) -> bool {
        self.tags.get(&key("role")).is_some_and(|role| role == NAT_ROLE)
    }

    /// The VPC that it is in, or attached to.
    fn vpc(&self) -> Option<String> {
        let attached = || self.seen.items("attachmentSet").find_map(|one| one.text("vpcId"));
        self.seen.text("vpcId").or_else(attached)
    }
}

impl Aws {
    /// Resources of this cluster, the oldest mark first if there are several of one kind.
    async fn things(&self, kind: Kind) -> Result<Vec<Thing>, AwsError> {
        let call = Call::new(format!("list each {}", kind.what), kind.list);
        let call = call.filter(&format!("tag:{}", key("cluster_id")), [&self.cluster_id]);
        let found = self.session()?.call(&call).await?;
        let mut things: Vec<Thing> = found.items(kind.set).filter_map(|one| Thing::read(kind, one)).collect();
        things.retain(|thing| thing.tags.get(&key("cluster_id")) == Some(&self.cluster_id));
        // One that was deleted is listed for an hour.
        things.retain(|thing| thing.seen.text("state").is_none_or(|state| !["deleted", "failed"].contains(&&*state)));
        things.sort_by(|a, b| (!a.is_whole(), &a.id).cmp(&(!b.is_whole(), &b.id)));
        Ok(things)
    }

    fn network_tags(&self, name: &str, role: Option<&str>) -> BTreeMap<String, String> {
        let mut tags = self.tags(&format!("{}-{name}", self.spec.name));
        tags.insert(key("cluster_id"), self.cluster_id.clone());
        tags.extend(role.map(|role| (key("role"), role.to_owned())));
        tags
    }

    /// The one desired resource of its kind: the existing one, or what `call` creates. It may be listed a little later, and a repeated call
    /// may have created two.
    async fn one_of(&self, kind: Kind, fits: impl Fn(&Thing) -> bool, call: Call) -> Result<Thing, AwsError> {
        let find = async || Ok::<_, AwsError>(self.things(kind).await?.into_iter().find(|thing| fits(thing)));
        if let Some(thing) = find().await? {
            return Ok(thing);
        }
        let made = self.session()?.call(&call).await;
        let made = match made {
            // An earlier attempt was carried out, or there is something else in its place.
            Err(error) if error.has_code(&["InvalidSubnet.Conflict"]) => Err(error),
            made => Ok(made?),
        };
        let attempts = if made.is_ok() { ATTEMPTS } else { AFTER_CONFLICT };
        for _ in 0..attempts {
            if let Some(thing) = find().await? {
                return Ok(thing);
            }
            sleep(self.polling).await;
        }
        let lost = AwsError::Missing { what: kind.what, name: String::from("that was just made"), names: Vec::new() };
        Err(made.err().unwrap_or(lost))
    }

    /// Creates what is missing of the network, and corrects its routes.
    pub(super) async fn put_network(&self, range: &AddressRange) -> Result<Site, AwsError> {
        let unusable = || AwsError::Missing { what: "layout of", name: range.to_string(), names: Vec::new() };
        let layout = Layout::of(range).ok_or_else(unusable)?;
        let call = Call::new("create a VPC", "CreateVpc").with("CidrBlock", range);
        let call = call.tagged(VPC.resource, &self.network_tags("vpc", None));
        let vpc = self.one_of(VPC, |_| true, call).await?;
        if !vpc.is_whole() {
            // Names of private zones are resolved only so.
            let call = Call::new("let the VPC have names", "ModifyVpcAttribute").with("VpcId", &vpc.id);
            self.when_known(&call.with("EnableDnsHostnames.Value", true)).await?;
        }
        let gateway = self.put_gateway(&vpc.id).await?;
        let subnets = self.put_subnets(&vpc.id, layout).await?;
        let call = Call::new("list the main route table", TABLE.list)
            .filter("vpc-id", [&vpc.id])
            .filter("association.main", ["true"]);
        let main = self.session()?.call(&call).await?;
        let main = main.items(TABLE.set).find_map(|table| Thing::read(TABLE, table));
        let lost = || AwsError::Missing { what: "main route table of", name: vpc.id.clone(), names: Vec::new() };
        let main = main.ok_or_else(lost)?;
        match self.settings.internet {
            Internet::Public => self.put_route(&main, "GatewayId", "gatewayId", &gateway).await?,
            Internet::Nat => {
                let nat = self.put_nat(&vpc.id, layout, &subnets, &gateway).await?;
                self.put_route(&main, "NatGatewayId", "natGatewayId", &nat).await?;
            }
        }
        if !vpc.is_whole() {
            let whole = (key("state"), State::Whole.name().to_owned());
            self.tag("mark the VPC", &[&vpc.id], [whole]).await?;
        }
        let known = self.things(VPC).await?;
        for surplus in known.iter().filter(|other| other.id != vpc.id) {
            self.drop_vpc(&surplus.id).await?;
        }
        Ok(Site { vpc: vpc.id, subnets })
    }

    async fn put_gateway(&self, vpc: &str) -> Result<String, AwsError> {
        let fits = |gateway: &Thing| gateway.vpc().is_none_or(|at| at == vpc);
        let call = Call::new("create an internet gateway", "CreateInternetGateway");
        let call = call.tagged(GATEWAY.resource, &self.network_tags("internet", None));
        let mut gateway = self.one_of(GATEWAY, fits, call).await?;
        // One that is attached is better than what a repeated call has made besides.
        let all = self.things(GATEWAY).await?;
        gateway = all.iter().find(|one| one.vpc().as_deref() == Some(vpc)).cloned().unwrap_or(gateway);
        if gateway.vpc().is_none() {
            let call = Call::new("attach the internet gateway", "AttachInternetGateway");
            let call = call.with("InternetGatewayId", &gateway.id).with("VpcId", vpc);
            match self.when_known(&call).await {
                Err(error) if error.has_code(&["Resource.AlreadyAssociated"]) => {}
                attached => drop(attached?),
            }
        }
        for surplus in all.iter().filter(|one| one.id != gateway.id && one.vpc().is_none()) {
            self.delete(GATEWAY, "DeleteInternetGateway", "InternetGatewayId", &surplus.id).await?;
        }
        Ok(gateway.id)
    }

    /// The zones that machines are in: those of the spec, or those in which there are subnets already, and up to three of the region.
    async fn zones(&self, layout: Layout, there: &[Thing]) -> Result<Vec<String>, AwsError> {
        if !self.settings.zones.is_empty() {
            return Ok(self.settings.zones.clone());
        }
        let mut zones: Vec<String> = there.iter().filter_map(|subnet| subnet.seen.text("availabilityZone")).collect();
        zones.extend(self.spec.machines().filter_map(|member| section(&member).zone.clone()));
        if zones.len() < USED_ZONES {
            let call = Call::new("list the zones of the region", "DescribeAvailabilityZones");
            let found = self.session()?.call(&call.filter("state", ["available"])).await?;
            // Local zones and the like have another type, and few services.
            let usual = |zone: &&Xml| zone.text("zoneType").is_none_or(|kind| kind == "availability-zone");
            let found = found.items("availabilityZoneInfo").filter(usual).filter_map(|zone| zone.text("zoneName"));
            let mut found: Vec<String> = found.filter(|zone| layout.subnet(zone).is_some()).collect();
            found.sort();
            let more = found.into_iter().filter(|zone| !zones.contains(zone)).collect::<Vec<_>>();
            let missing = USED_ZONES - zones.len();
            zones.extend(more.into_iter().take(missing));
        }
        zones.sort();
        zones.dedup();
        Ok(zones)
    }

    async fn put_subnets(&self, vpc: &str, layout: Layout) -> Result<Vec<Subnet>, AwsError> {
        let mut there = self.things(SUBNET).await?;
        there.retain(|subnet| !subnet.is_for_nat() && subnet.vpc().as_deref() == Some(vpc));
        let zones = self.zones(layout, &there).await?;
        let mut subnets = Vec::new();
        for zone in &zones {
            let is_its = |subnet: &Thing| subnet.seen.text("availabilityZone").as_ref() == Some(zone);
            let is_there = |subnet: &Thing| is_its(subnet) && !subnet.is_for_nat();
            let found = match there.iter().find(|subnet| is_there(subnet)) {
                Some(subnet) => subnet.clone(),
                None => {
                    let nowhere =
                        || AwsError::Missing { what: "part of the VPC for", name: zone.clone(), names: Vec::new() };
                    let part = layout.subnet(zone).ok_or_else(nowhere)?;
                    let call = subnet_call(vpc, zone, &part).tagged(SUBNET.resource, &self.network_tags(zone, None));
                    let fits = |subnet: &Thing| is_there(subnet) && subnet.vpc().as_deref() == Some(vpc);
                    self.one_of(SUBNET, fits, call).await?
                }
            };
            subnets.extend(Subnet::read(&found.seen));
        }
        for left in there.iter().filter(|left| !subnets.iter().any(|subnet| subnet.id == left.id)) {
            // One with machines stays until they are elsewhere.
            match self.delete(SUBNET, "DeleteSubnet", "SubnetId", &left.id).await {
                Err(error) if error.has_code(&IN_USE) => {}
                deleted => deleted?,
            }
        }
        Ok(subnets)
    }

    /// The NAT gateway is in a subnet that the internet gateway serves.
    async fn put_nat(&self, vpc: &str, layout: Layout, subnets: &[Subnet], gateway: &str) -> Result<String, AwsError> {
        let (Some(zone), Some(part)) = (subnets.first().map(|subnet| &subnet.zone), layout.gateways()) else {
            return Err(AwsError::Missing { what: "subnet of", name: vpc.to_owned(), names: Vec::new() });
        };
        let here = |thing: &Thing| thing.vpc().as_deref() == Some(vpc) && thing.is_for_nat();
        let tags = self.network_tags(NAT_ROLE, Some(NAT_ROLE));
        let call = subnet_call(vpc, zone, &part).tagged(SUBNET.resource, &tags);
        let subnet = self.one_of(SUBNET, here, call).await?.id;
        let call = Call::new("create a route table", "CreateRouteTable").with("VpcId", vpc);
        let table = self.one_of(TABLE, here, call.tagged(TABLE.resource, &tags).once()).await?;
        if !table.seen.items("associationSet").any(|one| one.text("subnetId").as_ref() == Some(&subnet)) {
            let call = Call::new("associate a route table", "AssociateRouteTable").with("RouteTableId", &table.id);
            match self.session()?.call(&call.with("SubnetId", &subnet)).await {
                Err(error) if error.has_code(&["Resource.AlreadyAssociated"]) => {}
                done => drop(done?),
            }
        }
        self.put_route(&table, "GatewayId", "gatewayId", gateway).await?;
        let call = Call::new("allocate an elastic address", "AllocateAddress").with("Domain", "vpc");
        let address = self.one_of(ADDRESS, |_| true, call.tagged(ADDRESS.resource, &tags)).await?;
        let call = Call::new("create a NAT gateway", "CreateNatGateway").with("SubnetId", &subnet);
        let call = call.with("AllocationId", &address.id).tagged(NAT.resource, &tags).once();
        let is_usable = |nat: &Thing| here(nat) && nat.seen.text("state").is_none_or(|state| state != "deleting");
        let nat = self.one_of(NAT, is_usable, call).await?;
        self.await_nat(&nat.id, "available").await?;
        self.release_addresses(&nat).await?;
        Ok(nat.id)
    }

    /// Addresses that the gateway does not use: a repeated call has made them.
    async fn release_addresses(&self, nat: &Thing) -> Result<(), AwsError> {
        let used: Vec<String> =
            nat.seen.items("natGatewayAddressSet").filter_map(|one| one.text("allocationId")).collect();
        for address in self.things(ADDRESS).await?.iter().filter(|address| !used.contains(&address.id)) {
            if address.seen.text("associationId").is_none() {
                self.delete(ADDRESS, "ReleaseAddress", "AllocationId", &address.id).await?;
            }
        }
        Ok(())
    }

    /// Waits until a NAT gateway is in this state, or gone.
    async fn await_nat(&self, id: &str, wanted: &str) -> Result<(), AwsError> {
        let call = Call::new(format!("read the NAT gateway {id}"), NAT.list).list("NatGatewayId", [id]);
        let begun = Instant::now();
        loop {
            let found = self.session()?.unless_absent(&call).await?;
            let nat = found.as_ref().and_then(|found| found.items(NAT.set).next());
            let state = nat.and_then(|nat| nat.text("state")).unwrap_or_else(|| String::from("deleted"));
            if state == wanted {
                return Ok(());
            }
            let has_failed = ["failed", "deleted"].contains(&state.as_str());
            if has_failed || begun.elapsed() > GATEWAY_PATIENCE {
                let (what, seconds) = (format!("the NAT gateway {id}"), begun.elapsed().as_secs());
                let remedy = nat.and_then(|nat| nat.text("failureMessage"));
                return Err(AwsError::TooSlow { what, state, seconds, remedy });
            }
            sleep(self.polling).await;
        }
    }

    /// Makes everything else that leaves through this table go to a gateway.
    async fn put_route(&self, table: &Thing, field: &str, seen: &str, gateway: &str) -> Result<(), AwsError> {
        let is_default = |route: &&Xml| route.text("destinationCidrBlock").as_deref() == Some(EVERYWHERE);
        let there = table.seen.items("routeSet").find(is_default);
        if there.is_some_and(|route| route.text(seen).as_deref() == Some(gateway)) {
            return Ok(());
        }
        let call = |action| {
            let call = Call::new("set the default route", action).with("RouteTableId", &table.id);
            call.with("DestinationCidrBlock", EVERYWHERE).with(field, gateway)
        };
        if there.is_none() {
            match self.when_known(&call("CreateRoute")).await {
                Err(error) if error.has_code(&["RouteAlreadyExists"]) => {}
                made => return made.map(drop),
            }
        }
        self.session()?.call(&call("ReplaceRoute")).await.map(drop)
    }

    async fn delete(&self, kind: Kind, action: &'static str, field: &str, id: &str) -> Result<(), AwsError> {
        let call = Call::new(format!("delete the {} {id}", kind.what), action).with(field, id);
        self.session()?.unless_absent(&call).await.map(drop)
    }

    /// Deletes the network, if no other resources are in it. Returns what stays for that reason.
    pub(super) async fn drop_network(&self) -> Result<Vec<String>, AwsError> {
        if self.settings.vpc_cidr.is_none() {
            return Ok(Vec::new());
        }
        let mut known = self.site.lock().await;
        *known = None;
        let mut used = Vec::new();
        for vpc in self.things(VPC).await? {
            used.extend(self.drop_vpc(&vpc.id).await?);
        }
        for gateway in self.things(GATEWAY).await?.iter().filter(|gateway| gateway.vpc().is_none()) {
            self.delete(GATEWAY, "DeleteInternetGateway", "InternetGatewayId", &gateway.id).await?;
        }
        for address in self.things(ADDRESS).await? {
            if address.seen.text("associationId").is_none() {
                self.delete(ADDRESS, "ReleaseAddress", "AllocationId", &address.id).await?;
            }
        }
        Ok(used)
    }

    /// Returns why it stays, in words.
    async fn drop_vpc(&self, vpc: &str) -> Result<Option<String>, AwsError> {
        let here = |thing: &Thing| thing.vpc().as_deref() == Some(vpc);
        let mut nats = self.things(NAT).await?;
        nats.retain(here);
        let own: Vec<String> = nats.iter().flat_map(nat_interfaces).collect();
        let call = Call::new("list network interfaces of the VPC", "DescribeNetworkInterfaces");
        let interfaces = self.session()?.list(call.filter("vpc-id", [vpc]), "networkInterfaceSet").await?;
        let mut others: Vec<String> = interfaces.iter().filter_map(|one| one.text("networkInterfaceId")).collect();
        others.retain(|id| !own.contains(id));
        if !others.is_empty() {
            return Ok(Some(format!("{vpc} (the network interfaces {})", others.join(", "))));
        }
        let deleted = async {
            for nat in &nats {
                self.delete(NAT, "DeleteNatGateway", "NatGatewayId", &nat.id).await?;
            }
            for nat in &nats {
                self.await_nat(&nat.id, "deleted").await?;
            }
            for subnet in self.things(SUBNET).await?.iter().filter(|subnet| here(subnet)) {
                self.delete_subnet(&subnet.id).await?;
            }
            for table in self.things(TABLE).await?.iter().filter(|table| here(table)) {
                self.delete(TABLE, "DeleteRouteTable", "RouteTableId", &table.id).await?;
            }
            for gateway in self.things(GATEWAY).await?.iter().filter(|gateway| here(gateway)) {
                let call = Call::new("detach the internet gateway", "DetachInternetGateway");
                let call = call.with("InternetGatewayId", &gateway.id).with("VpcId", vpc);
                match self.session()?.unless_absent(&call).await {
                    Err(error) if error.has_code(&["Gateway.NotAttached"]) => {}
                    detached => drop(detached?),
                }
                self.delete(GATEWAY, "DeleteInternetGateway", "InternetGatewayId", &gateway.id).await?;
            }
            self.delete(VPC, "DeleteVpc", "VpcId", vpc).await
        };
        match deleted.await {
            Err(AwsError::Refused { code, said, .. }) if IN_USE.contains(&code.as_str()) => {
                Ok(Some(format!("{vpc} ({said})")))
            }
            deleted => deleted.map(|()| None),
        }
    }

    /// It is free a little later than what was in it is gone.
    async fn delete_subnet(&self, id: &str) -> Result<(), AwsError> {
        for attempt in 1.. {
            match self.delete(SUBNET, "DeleteSubnet", "SubnetId", id).await {
                Err(error) if error.has_code(&IN_USE) && attempt < ATTEMPTS => sleep(self.polling).await,
                deleted => return deleted,
            }
        }
        unreachable!("the last attempt returns")
    }
}

fn nat_interfaces(nat: &Thing) -> Vec<String> {
    nat.seen.items("natGatewayAddressSet").filter_map(|one| one.text("networkInterfaceId")).collect()
}

fn subnet_call(vpc: &str, zone: &str, part: &AddressRange) -> Call {
    Call::new(format!("create the subnet of {zone}"), "CreateSubnet")
        .with("VpcId", vpc)
        .with("AvailabilityZone", zone)
        .with("CidrBlock", part)
}
