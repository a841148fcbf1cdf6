//! The network of machines: a port for each, made before its server, and the subnet that its address is in.

use std::collections::BTreeSet;
use std::net::IpAddr;

use quorate_agent::api::boot;
use quorate_core::model::{CLIENT_PORT, MachineId};
use quorate_core::providers::openstack::section;
use quorate_core::spec::{AddressRange, MemberSpec};
use reqwest::Method;
use serde_json::{Value, json};

use super::catalogue::Service::Network;
use super::error::OpenstackError;
use super::session::Call;
use super::{Openstack, one_of, text};
use crate::web::escaped;
use crate::{NewMachine, ProviderError};

/// What machines of the cluster need of their network.
#[derive(Clone, Debug)]
pub(super) struct Site {
    network: String,
    subnets: Vec<Subnet>,
    /// Those of the operator, by id.
    pub(super) security_groups: Vec<String>,
}

#[derive(Clone, Debug)]
struct Subnet {
    id: String,
    name: String,
    range: AddressRange,
    gateway: Option<IpAddr>,
    dns: Vec<IpAddr>,
}

impl Subnet {
    fn read(value: &Value) -> Option<Self> {
        let addresses = value.get("dns_nameservers").and_then(Value::as_array).into_iter().flatten();
        Some(Subnet {
            id: text(value, "id")?,
            name: text(value, "name").unwrap_or_default(),
            range: text(value, "cidr")?.parse().ok()?,
            gateway: text(value, "gateway_ip").and_then(|gateway| gateway.parse().ok()),
            dns: addresses.filter_map(|address| address.as_str()?.parse().ok()).collect(),
        })
    }
}

/// A port that a machine gets.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) id: String,
    /// The server that has it.
    device: Option<String>,
    pub(super) interface: boot::Interface,
    /// Whether quorate made it.
    pub(super) is_ours: bool,
}

/// A port of this cluster, as it is found by its mark.
#[derive(Clone, Debug)]
pub(super) struct OwnPort {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) machine: MachineId,
    pub(super) fence: u64,
    /// Its security groups, by id.
    pub(super) groups: Vec<String>,
    /// What else it may send from.
    pub(super) pairs: BTreeSet<AddressRange>,
}

impl Openstack {
    /// Looked up once in a run.
    pub(super) async fn site(&self) -> Result<&Site, OpenstackError> {
        self.site.get_or_try_init(async || self.find_site().await).await
    }

    async fn find_site(&self) -> Result<Site, OpenstackError> {
        let session = self.session()?;
        let path = "/networks?fields=id&fields=name";
        let networks = session.list("list networks", Network, path, "networks", None).await?;
        let network = one_of("network", &self.settings.network, &networks)?;
        let network = text(network, "id").unwrap_or_default();
        let path = format!("/subnets?network_id={network}");
        let subnets = session.list("list subnets", Network, &path, "subnets", None).await?;
        let subnets: Vec<Subnet> = match &self.settings.subnet {
            Some(name) => Subnet::read(one_of("subnet", name, &subnets)?).into_iter().collect(),
            None => subnets.iter().filter_map(Subnet::read).collect(),
        };
        let security_groups = self.given_groups().await?;
        Ok(Site { network, subnets, security_groups })
    }

    /// The operator's security groups, by id.
    async fn given_groups(&self) -> Result<Vec<String>, OpenstackError> {
        let given = self.settings.security_groups.as_deref().unwrap_or_default();
        if given.is_empty() {
            return Ok(Vec::new());
        }
        let path = "/security-groups?fields=id&fields=name";
        let groups = self.session()?.list("list security groups", Network, path, "security_groups", None).await?;
        let id =
            |name: &String| one_of("security group", name, &groups).map(|group| text(group, "id").unwrap_or_default());
        given.iter().map(id).collect()
    }

    /// The subnet of an address; without one, the only one there is, or the only one of IPv4.
    fn subnet<'a>(&self, site: &'a Site, address: Option<IpAddr>) -> Result<&'a Subnet, OpenstackError> {
        let fits = |subnet: &&Subnet| address.is_none_or(|address| subnet.range.contains(address));
        let fitting: Vec<&Subnet> = site.subnets.iter().filter(fits).collect();
        let network = self.settings.network.clone();
        let v4: Vec<&Subnet> = fitting.iter().copied().filter(|subnet| subnet.range.address.is_ipv4()).collect();
        match (&fitting[..], &v4[..]) {
            ([one], _) | (_, [one]) => Ok(one),
            ([], _) => Err(OpenstackError::NoSubnet { network, address }),
            (several, _) => {
                let subnets = several.iter().map(|subnet| subnet.name.clone()).collect();
                Err(OpenstackError::ManySubnets { network, subnets })
            }
        }
    }

    fn interface(&self, site: &Site, port: &Value) -> Result<boot::Interface, OpenstackError> {
        let fixed = port.get("fixed_ips").and_then(Value::as_array).into_iter().flatten();
        let mut addresses = fixed.filter_map(|fixed| text(fixed, "ip_address")?.parse::<IpAddr>().ok());
        let unreadable =
            |why: &str| OpenstackError::Unreadable { doing: String::from("look at a port"), why: why.into() };
        let address = addresses.next().ok_or_else(|| unreadable("it has no address"))?;
        let subnet = self.subnet(site, Some(address))?;
        let more = addresses.map(|address| Ok((address, self.subnet(site, Some(address))?.range.prefix)));
        Ok(boot::Interface {
            mac: text(port, "mac_address").ok_or_else(|| unreadable("it has no MAC address"))?.to_lowercase(),
            address,
            prefix: subnet.range.prefix,
            gateway: subnet.gateway,
            dns: subnet.dns.clone(),
            more_addresses: more.collect::<Result<_, OpenstackError>>()?,
        })
    }

    fn read_port(&self, site: &Site, value: &Value, is_ours: bool) -> Result<Port, OpenstackError> {
        Ok(Port {
            id: text(value, "id").unwrap_or_default(),
            device: text(value, "device_id").filter(|device| !device.is_empty()),
            interface: self.interface(site, value)?,
            is_ours,
        })
    }

    /// The mark of the cluster's ports, by which they are listed.
    pub(super) fn port_mark(&self) -> String {
        format!("quorate {}", self.cluster_id)
    }

    fn port_name(&self, machine: &MachineId, fence: u64) -> String {
        format!("{}-{}.{}.{fence}", self.spec.name, machine.member, machine.incarnation)
    }

    /// Ports that were made for this cluster, in one list.
    pub(super) async fn ports(&self) -> Result<Vec<OwnPort>, OpenstackError> {
        let session = self.session()?;
        let project = session.project().await?;
        let mark = escaped(&self.port_mark());
        let path = format!("/ports?project_id={}&description={mark}", escaped(&project));
        let all = session.list("list ports", Network, &path, "ports", None).await?;
        let beginning = format!("{}-", self.spec.name);
        let read = |port: &Value| {
            let name = text(port, "name")?;
            let mut parts = name.strip_prefix(&beginning)?.rsplitn(3, '.');
            let (fence, incarnation) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            let machine = MachineId::new(&parts.next()?.into(), incarnation);
            let groups = port.get("security_groups").and_then(Value::as_array).into_iter().flatten();
            let pairs = port.get("allowed_address_pairs").and_then(Value::as_array).into_iter().flatten();
            Some(OwnPort {
                id: text(port, "id")?,
                name,
                machine,
                fence,
                groups: groups.filter_map(Value::as_str).map(str::to_owned).collect(),
                pairs: pairs.filter_map(|pair| text(pair, "ip_address")?.parse().ok()).collect(),
            })
        };
        // The owner of a network sees ports of other projects on it, which may have any description.
        let is_marked = |port: &&Value| {
            text(port, "description").as_deref() == Some(&self.port_mark())
                && text(port, "project_id").is_none_or(|of| of == project)
        };
        Ok(all.iter().filter(is_marked).filter_map(read).collect())
    }

    /// The port for a machine: the operator's, or a new one.
    pub(super) async fn port(&self, new: &NewMachine<'_>, member: &MemberSpec) -> Result<Port, ProviderError> {
        let site = self.site().await?;
        match &section(member).port {
            Some(id) => Ok(self.given_port(site, id, new).await?),
            None => self.new_port(site, new).await,
        }
    }

    async fn given_port(&self, site: &Site, id: &str, new: &NewMachine<'_>) -> Result<Port, OpenstackError> {
        let found = self.session()?.get("look at the port", Network, &format!("/ports/{id}"), None).await?;
        let found = found.as_ref().and_then(|found| found.get("port"));
        let found =
            found.ok_or_else(|| OpenstackError::Missing { what: "port", name: id.to_owned(), names: Vec::new() })?;
        let mut port = self.read_port(site, found, false)?;
        if let Some(address) = new.address {
            let first = (port.interface.address, port.interface.prefix);
            let others = std::mem::take(&mut port.interface.more_addresses);
            let all: Vec<(IpAddr, u8)> = std::iter::once(first).chain(others).collect();
            if !all.iter().any(|(known, _)| *known == address) {
                let found = all.iter().map(|(known, _)| known.to_string()).collect();
                let (port, member) = (id.to_owned(), new.id.member.to_string());
                return Err(OpenstackError::PortAddress { port, member, address, found });
            }
            let subnet = self.subnet(site, Some(address))?;
            (port.interface.address, port.interface.prefix) = (address, subnet.range.prefix);
            (port.interface.gateway, port.interface.dns) = (subnet.gateway, subnet.dns.clone());
            port.interface.more_addresses = all.into_iter().filter(|(known, _)| *known != address).collect();
        }
        match &port.device {
            Some(by) => Err(OpenstackError::PortInUse { port: id.to_owned(), by: by.clone() }),
            None => Ok(port),
        }
    }

    async fn new_port(&self, site: &Site, new: &NewMachine<'_>) -> Result<Port, ProviderError> {
        let subnet = self.subnet(site, new.address)?;
        let mut fixed = json!({ "subnet_id": subnet.id });
        if let Some(address) = new.address {
            if let Some(by) = self.holder(site, address).await? {
                return Err(ProviderError::AddressTaken { address, port: CLIENT_PORT, by: Some(by) });
            }
            fixed["ip_address"] = json!(address);
        }
        let name = self.port_name(&new.id, new.fence);
        let mut port = json!({
            "name": name,
            "description": self.port_mark(),
            "network_id": site.network,
            "fixed_ips": [fixed],
            "security_groups": self.groups_of_ports().await?,
        });
        if !self.settings.allowed_addresses.is_empty() {
            port["allowed_address_pairs"] = self.address_pairs();
        }
        let find = async || {
            let found = self.ports().await?.into_iter().find(|port| port.name == name);
            let Some(found) = found else { return Ok(None) };
            self.session()?.get("look at the port", Network, &format!("/ports/{}", found.id), None).await
        };
        let call = Call::new(format!("create the port {name}"), Network, Method::POST, "/ports");
        let made = self.session()?.create(call.json(json!({ "port": port })), find).await;
        let made = match (made, new.address) {
            // Of another project, whose ports are not shown.
            (Err(error), Some(address)) if error.is_conflict() && error.to_string().contains(&address.to_string()) => {
                return Err(ProviderError::AddressTaken { address, port: CLIENT_PORT, by: None });
            }
            (Err(OpenstackError::Refused { code: 403, said, .. }), Some(address)) if said.contains("fixed_ips") => {
                let network = self.settings.network.clone();
                return Err(OpenstackError::NotOwner { network, address, said }.into());
            }
            (Err(OpenstackError::Refused { said, .. }), _) if said.to_lowercase().contains("port security") => {
                return Err(OpenstackError::NoPortSecurity { network: self.settings.network.clone(), said }.into());
            }
            (made, _) => made?,
        };
        Ok(self.read_port(site, made.get("port").unwrap_or(&Value::Null), true)?)
    }

    pub(super) fn address_pairs(&self) -> Value {
        self.settings.allowed_addresses.iter().map(|range| json!({ "ip_address": range.to_string() })).collect()
    }

    /// Who has this address.
    async fn holder(&self, site: &Site, address: IpAddr) -> Result<Option<String>, OpenstackError> {
        let fixed = escaped(&format!("ip_address={address}"));
        let path =
            format!("/ports?network_id={}&fixed_ips={fixed}&fields=id&fields=name&fields=device_owner", site.network);
        let found = self.session()?.list("look for an address", Network, &path, "ports", None).await?;
        Ok(found.first().map(|port| {
            let named = |field: &str| text(port, field).filter(|name| !name.is_empty());
            let name = named("name").or_else(|| named("device_owner")).or_else(|| named("id"));
            format!("the port {}", name.unwrap_or_default())
        }))
    }

    pub(super) async fn delete_port(&self, id: &str) -> Result<(), OpenstackError> {
        self.session()?.delete("delete a port", Network, &format!("/ports/{id}")).await
    }
}
