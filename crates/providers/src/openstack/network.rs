//! The network of machines: a port for each, created before its server, and the subnet of its address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;

use quorate_agent::api::boot;
use quorate_core::model::{CLIENT_PORT, MachineId};
use quorate_core::providers::openstack::{SeedSource, section};
use quorate_core::spec::{AddressRange, MemberSpec};
use reqwest::Method;
use serde_json::{Value, json};

use super::catalogue::Service::Network;
use super::error::{OpenstackError, check_room};
use super::session::Call;
use super::{Openstack, one_of, text};
use crate::marks::Mark;
use crate::web::escaped;
use crate::{NewMachine, ProviderError};

/// A network that ports are made on.
#[derive(Clone, Debug)]
pub(super) struct Place {
    id: String,
    /// As the spec has it.
    name: String,
    subnets: Vec<Subnet>,
    /// Whether its ports have security groups.
    is_guarded: bool,
}

/// Networks that were looked up, by name and subnet.
pub(super) type Places = BTreeMap<(String, Option<String>), Rc<Place>>;

#[derive(Clone, Debug)]
struct Subnet {
    id: String,
    name: String,
    range: AddressRange,
    gateway: Option<IpAddr>,
    dns: Vec<IpAddr>,
    has_dhcp: bool,
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
            has_dhcp: value.get("enable_dhcp").and_then(Value::as_bool).unwrap_or(true),
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
    /// For people.
    pub(super) name: String,
    mark: String,
    /// None: it was made before marks said so, and its name no longer does.
    pub(super) machine: Option<MachineId>,
    pub(super) fence: u64,
    /// The server that has it, by id.
    pub(super) device: Option<String>,
    /// Whether the network service has seen that it is plugged in.
    pub(super) is_up: bool,
    /// Its security groups, by id.
    pub(super) groups: Vec<String>,
    /// What else it may send from.
    pub(super) pairs: BTreeSet<AddressRange>,
    /// Whether it can have security groups and further addresses.
    pub(super) is_guarded: bool,
}

/// The server that has a port, by id.
fn device(port: &Value) -> Option<String> {
    text(port, "device_id").filter(|device| !device.is_empty())
}

impl OwnPort {
    /// Whether a server with this mark has it.
    pub(super) fn is_of(&self, mark: &Mark) -> bool {
        let was_made_for = self.machine.as_ref().is_some_and(|machine| mark.is_of(machine) && mark.fence == self.fence);
        was_made_for || mark.port.as_ref() == Some(&self.id)
    }
}

impl Place {
    /// The subnet of an address; without one, the only one there is, or the only one of IPv4.
    fn subnet(&self, address: Option<IpAddr>) -> Result<&Subnet, OpenstackError> {
        let fits = |subnet: &&Subnet| address.is_none_or(|address| subnet.range.contains(address));
        let fitting: Vec<&Subnet> = self.subnets.iter().filter(fits).collect();
        let network = self.name.clone();
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

    fn interface(&self, port: &Value) -> Result<boot::Interface, OpenstackError> {
        let fixed = port.get("fixed_ips").and_then(Value::as_array).into_iter().flatten();
        let mut addresses = fixed.filter_map(|fixed| text(fixed, "ip_address")?.parse::<IpAddr>().ok());
        let unreadable = |why: &str| OpenstackError::Unreadable { doing: String::from("read a port"), why: why.into() };
        let address = addresses.next().ok_or_else(|| unreadable("it has no address"))?;
        let subnet = self.subnet(Some(address))?;
        let more = addresses.map(|address| Ok((address, self.subnet(Some(address))?.range.prefix)));
        Ok(boot::Interface {
            mac: text(port, "mac_address").ok_or_else(|| unreadable("it has no MAC address"))?.to_lowercase(),
            address,
            prefix: subnet.range.prefix,
            gateway: subnet.gateway,
            dns: subnet.dns.clone(),
            more_addresses: more.collect::<Result<_, OpenstackError>>()?,
        })
    }
}

impl Openstack {
    /// A network, and those of its subnets that may be used. Looked up once in a run.
    async fn place(&self, network: &str, subnet: Option<&str>) -> Result<Rc<Place>, OpenstackError> {
        let mut known = self.places.lock().await;
        let key = (network.to_owned(), subnet.map(str::to_owned));
        if let Some(place) = known.get(&key) {
            return Ok(place.clone());
        }
        let place = Rc::new(self.find_place(network, subnet).await?);
        known.insert(key, place.clone());
        Ok(place)
    }

    async fn find_place(&self, name: &str, subnet: Option<&str>) -> Result<Place, OpenstackError> {
        let session = self.session()?;
        let path = "/networks?fields=id&fields=name&fields=port_security_enabled";
        let networks = session.list("list networks", Network, path, "networks", None).await?;
        let network = one_of("network", name, &networks)?;
        let id = text(network, "id").unwrap_or_default();
        let is_guarded = network.get("port_security_enabled").and_then(Value::as_bool).unwrap_or(true);
        let path = format!("/subnets?network_id={id}");
        let subnets = session.list("list subnets", Network, &path, "subnets", None).await?;
        let subnets: Vec<Subnet> = match subnet {
            Some(name) => Subnet::read(one_of("subnet", name, &subnets)?).into_iter().collect(),
            None => subnets.iter().filter_map(Subnet::read).collect(),
        };
        Ok(Place { id, name: name.to_owned(), subnets, is_guarded })
    }

    /// The network whose addresses are those of members.
    async fn site(&self) -> Result<Rc<Place>, OpenstackError> {
        self.place(&self.settings.network, self.settings.subnet.as_deref()).await
    }

    /// The operator's security groups, by id.
    pub(super) async fn given_groups(&self) -> Result<Vec<String>, OpenstackError> {
        self.given_groups.get_or_try_init(async || self.find_groups().await).await.cloned()
    }

    async fn find_groups(&self) -> Result<Vec<String>, OpenstackError> {
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

    /// Without a config drive, a server gets its address by DHCP, and its seed over the network.
    pub(super) async fn check_seed(&self, address: Option<IpAddr>) -> Result<(), OpenstackError> {
        if self.settings.seed == SeedSource::ConfigDrive {
            return Ok(());
        }
        let site = self.site().await?;
        let subnet = site.subnet(address)?;
        if !subnet.range.address.is_ipv4() {
            return Err(OpenstackError::NoMetadata { subnet: subnet.name.clone() });
        }
        if !subnet.has_dhcp {
            return Err(OpenstackError::NoDhcp { subnet: subnet.name.clone() });
        }
        Ok(())
    }

    fn read_port(&self, place: &Place, value: &Value, is_ours: bool) -> Result<Port, OpenstackError> {
        Ok(Port {
            id: text(value, "id").unwrap_or_default(),
            device: device(value),
            interface: place.interface(value)?,
            is_ours,
        })
    }

    /// What the marks of all that the network service has of this cluster begin with.
    pub(super) fn port_mark(&self) -> String {
        format!("quorate {}", self.cluster_id)
    }

    fn port_name(&self, machine: &MachineId, fence: u64) -> String {
        format!("{}-{}.{}.{fence}", self.spec.name, machine.member, machine.incarnation)
    }

    /// The mark of a port: for which machine and under which fencing number it was made, and its place among the
    /// machine's ports.
    fn port_mark_of(&self, new: &NewMachine<'_>, place: usize) -> String {
        let MachineId { member, incarnation } = &new.id;
        format!("{} port {member} {incarnation} {} {place}", self.port_mark(), new.fence)
    }

    /// For which machine, and under which fencing number, a port with this mark was made. None: it has no mark of this
    /// cluster.
    fn made_for(&self, mark: &str, name: &str) -> Option<(Option<MachineId>, u64)> {
        let rest = mark.strip_prefix(&self.port_mark())?;
        if rest.is_empty() {
            // As ports were marked before. Whatever is not known of it, it is older than all that is.
            return Some(self.made_for_by_name(name).map_or((None, 0), |(machine, fence)| (Some(machine), fence)));
        }
        let words: Vec<&str> = rest.strip_prefix(" port ")?.split(' ').collect();
        let [member, incarnation, fence, _] = words[..] else { return None };
        Some((Some(MachineId::new(&member.into(), incarnation.parse().ok()?)), fence.parse().ok()?))
    }

    fn made_for_by_name(&self, name: &str) -> Option<(MachineId, u64)> {
        let mut parts = name.strip_prefix(&format!("{}-", self.spec.name))?.rsplitn(3, '.');
        let fence = parts.next()?;
        // Further ports are numbered.
        let fence = fence.split_once('-').map_or(fence, |(fence, _)| fence).parse().ok()?;
        let incarnation = parts.next()?.parse().ok()?;
        Some((MachineId::new(&parts.next()?.into(), incarnation), fence))
    }

    /// Ports that were made for this cluster, in one list of the project's: neutron cannot look for a part of a
    /// description.
    pub(super) async fn ports(&self) -> Result<Vec<OwnPort>, OpenstackError> {
        const FIELDS: [&str; 9] = [
            "id",
            "name",
            "description",
            "project_id",
            "device_id",
            "status",
            "security_groups",
            "allowed_address_pairs",
            "port_security_enabled",
        ];
        let session = self.session()?;
        let project = session.project().await?;
        let fields: String = FIELDS.map(|field| format!("&fields={field}")).concat();
        let path = format!("/ports?project_id={}{fields}", escaped(&project));
        let all = session.list("list ports", Network, &path, "ports", None).await?;
        let read = |port: &Value| {
            let (id, name, mark) =
                (text(port, "id")?, text(port, "name").unwrap_or_default(), text(port, "description")?);
            let (machine, fence) = self.made_for(&mark, &name)?;
            let groups = port.get("security_groups").and_then(Value::as_array).into_iter().flatten();
            let pairs = port.get("allowed_address_pairs").and_then(Value::as_array).into_iter().flatten();
            Some(OwnPort {
                name: if name.is_empty() { id.clone() } else { name },
                id,
                mark,
                machine,
                fence,
                device: device(port),
                is_up: text(port, "status").as_deref() == Some("ACTIVE"),
                groups: groups.filter_map(Value::as_str).map(str::to_owned).collect(),
                pairs: pairs.filter_map(|pair| text(pair, "ip_address")?.parse().ok()).collect(),
                is_guarded: port.get("port_security_enabled").and_then(Value::as_bool).unwrap_or(true),
            })
        };
        // The owner of a network sees ports of other projects on it, which may have any description.
        let is_ours = |port: &&Value| text(port, "project_id").is_none_or(|of| of == project);
        Ok(all.iter().filter(is_ours).filter_map(read).collect())
    }

    /// Whether the quota has room for the ports, the floating IP and the security groups that a machine needs. Not
    /// every cloud tells.
    pub(super) async fn check_network_quota(
        &self,
        new: &NewMachine<'_>,
        member: &MemberSpec,
    ) -> Result<(), OpenstackError> {
        let session = self.session()?;
        let path = format!("/quotas/{}/details", escaped(&session.project().await?));
        let quota = match session.get("ask for the quota", Network, &path, None).await {
            Err(OpenstackError::Refused { .. }) => return Ok(()),
            quota => quota?.unwrap_or_default(),
        };
        let Some(quota) = quota.get("quota") else { return Ok(()) };
        let more = self.settings.more_ports_of(member).iter().filter(|port| port.port.is_none()).count();
        let ports = more + usize::from(section(member).port.is_none());
        let needs = [
            ("ports", "port", ports),
            ("floating IPs", "floatingip", self.missing_floating(new, member).await?),
            ("security groups", "security_group", self.missing_groups().await?),
        ];
        for (what, field, needed) in needs {
            let number = |of: &str| quota.get(field)?.get(of)?.as_i64();
            let used = number("used").map(|used| used + number("reserved").unwrap_or_default());
            let Some(numbers) = number("limit").zip(used) else { continue };
            check_room(what, numbers, needed as u64, "", member.name.as_str())?;
        }
        Ok(())
    }

    /// The ports for a machine, each the operator's or a new one. The first has the machine's address.
    pub(super) async fn ports_for(
        &self,
        new: &NewMachine<'_>,
        member: &MemberSpec,
    ) -> Result<Vec<Port>, ProviderError> {
        let site = self.site().await?;
        let first = match &section(member).port {
            Some(id) => self.given_port(&site, id, new).await?,
            None => {
                let (name, mark) = (self.port_name(&new.id, new.fence), self.port_mark_of(new, 0));
                self.new_port(&site, name, mark, new.address).await?
            }
        };
        let mut ports = vec![first];
        for (n, wanted) in self.settings.more_ports_of(member).iter().enumerate() {
            let mut port = match (&wanted.network, &wanted.port) {
                (Some(network), _) => {
                    let place = self.place(network, wanted.subnet.as_deref()).await?;
                    let name = format!("{}-{}", self.port_name(&new.id, new.fence), n + 1);
                    self.new_port(&place, name, self.port_mark_of(new, n + 1), wanted.address).await?
                }
                (None, port) => self.further_given_port(port.as_deref().unwrap_or_default()).await?,
            };
            // A second default route would send answers where nobody waits for them.
            (port.interface.gateway, port.interface.dns) = (None, Vec::new());
            ports.push(port);
        }
        Ok(ports)
    }

    async fn look_at_given_port(&self, id: &str) -> Result<Value, OpenstackError> {
        let found = self.session()?.get("read the port", Network, &format!("/ports/{id}"), None).await?;
        let found = found.and_then(|mut found| found.get_mut("port").map(Value::take));
        found.ok_or_else(|| OpenstackError::Missing { what: "port", name: id.to_owned(), names: Vec::new() })
    }

    /// One that is not on the network of members, or need not be.
    async fn further_given_port(&self, id: &str) -> Result<Port, OpenstackError> {
        let found = self.look_at_given_port(id).await?;
        let place = self.place(&text(&found, "network_id").unwrap_or_default(), None).await?;
        let port = self.read_port(&place, &found, false)?;
        match &port.device {
            Some(by) => Err(OpenstackError::PortInUse { port: id.to_owned(), by: by.clone() }),
            None => Ok(port),
        }
    }

    async fn given_port(&self, site: &Place, id: &str, new: &NewMachine<'_>) -> Result<Port, OpenstackError> {
        let found = self.look_at_given_port(id).await?;
        let mut port = self.read_port(site, &found, false)?;
        if let Some(address) = new.address {
            let first = (port.interface.address, port.interface.prefix);
            let others = std::mem::take(&mut port.interface.more_addresses);
            let all: Vec<(IpAddr, u8)> = std::iter::once(first).chain(others).collect();
            if !all.iter().any(|(known, _)| *known == address) {
                let found = all.iter().map(|(known, _)| known.to_string()).collect();
                let (port, member) = (id.to_owned(), new.id.member.to_string());
                return Err(OpenstackError::PortAddress { port, member, address, found });
            }
            let subnet = site.subnet(Some(address))?;
            (port.interface.address, port.interface.prefix) = (address, subnet.range.prefix);
            (port.interface.gateway, port.interface.dns) = (subnet.gateway, subnet.dns.clone());
            port.interface.more_addresses = all.into_iter().filter(|(known, _)| *known != address).collect();
        }
        match &port.device {
            Some(by) => Err(OpenstackError::PortInUse { port: id.to_owned(), by: by.clone() }),
            None => Ok(port),
        }
    }

    async fn new_port(
        &self,
        place: &Place,
        name: String,
        mark: String,
        address: Option<IpAddr>,
    ) -> Result<Port, ProviderError> {
        let subnet = place.subnet(address)?;
        let mut fixed = json!({ "subnet_id": subnet.id });
        if let Some(address) = address {
            if let Some(by) = self.holder(place, address).await? {
                return Err(ProviderError::AddressTaken { address, port: CLIENT_PORT, by: Some(by) });
            }
            fixed["ip_address"] = json!(address);
        }
        let mut port = json!({
            "name": name,
            "description": mark,
            "network_id": place.id,
            "fixed_ips": [fixed],
        });
        // Where nothing would enforce them neutron refuses groups. For members' own network that is an error, which says what to do.
        let is_guarded = place.is_guarded || place.name == self.settings.network;
        if is_guarded {
            port["security_groups"] = json!(self.groups_of_ports().await?);
        }
        if is_guarded && !self.settings.allowed_addresses.is_empty() {
            port["allowed_address_pairs"] = self.address_pairs();
        }
        let find = async || {
            let found = self.ports().await?.into_iter().find(|port| port.mark == mark);
            let Some(found) = found else { return Ok(None) };
            self.session()?.get("read the port", Network, &format!("/ports/{}", found.id), None).await
        };
        let call = Call::new(format!("create the port {name}"), Network, Method::POST, "/ports");
        let made = self.session()?.create(call.json(json!({ "port": port })), find).await;
        let made = match (made, address) {
            // Of another project, whose ports are not shown.
            (Err(error), Some(address)) if error.is_conflict() && error.to_string().contains(&address.to_string()) => {
                return Err(ProviderError::AddressTaken { address, port: CLIENT_PORT, by: None });
            }
            (Err(OpenstackError::Refused { code: 403, said, .. }), Some(address)) if said.contains("fixed_ips") => {
                let network = place.name.clone();
                return Err(OpenstackError::NotOwner { network, address, said }.into());
            }
            (Err(OpenstackError::Refused { said, .. }), _) if said.to_lowercase().contains("port security") => {
                return Err(OpenstackError::NoPortSecurity { network: place.name.clone(), said }.into());
            }
            (made, _) => made?,
        };
        Ok(self.read_port(place, made.get("port").unwrap_or(&Value::Null), true)?)
    }

    pub(super) fn address_pairs(&self) -> Value {
        self.settings.allowed_addresses.iter().map(|range| json!({ "ip_address": range.to_string() })).collect()
    }

    /// Who has this address.
    async fn holder(&self, place: &Place, address: IpAddr) -> Result<Option<String>, OpenstackError> {
        let fixed = escaped(&format!("ip_address={address}"));
        let path =
            format!("/ports?network_id={}&fixed_ips={fixed}&fields=id&fields=name&fields=device_owner", place.id);
        let found = self.session()?.list("find an address", Network, &path, "ports", None).await?;
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
