//! Creates an instance: everything is checked first, then a draft is created and its files are written. Only then does it become a
//! machine.

use std::borrow::Cow;
use std::net::IpAddr;

use hyper::Method;
use quorate_agent::api::boot;
use quorate_core::model::MachineId;
use quorate_core::providers::Settings;
use quorate_core::providers::incus::{InstanceKind, section};
use quorate_core::spec::MemberSpec;
use quorate_pki::Sha256;
use serde_json::{Value, json};

use super::instance::{DATA_DEVICE, Instance, Mark, SEED_DEVICE, State};
use super::network::Network;
use super::remote::ImageServer;
use super::server::{Call, Server, escaped, names};
use super::volumes::Volume;
use super::{Incus, IncusError};
use crate::fat::Drive;
use crate::seed_disk::{seed_disk, static_program};
use crate::{Data, NewMachine, ProviderError};

/// Where a machine has its data volume.
const DATA_PATH: &str = "/var/lib/etcd.disk";

/// Everything that must be known before an instance is created.
struct Prepared {
    address: IpAddr,
    interface: boot::Interface,
    /// The device of its network interface.
    device: Value,
    source: Value,
    target: Option<String>,
    /// The data volume of the member's last machine.
    kept: Option<Volume>,
}

impl Incus {
    fn member(&self, machine: &MachineId) -> Result<Cow<'_, MemberSpec>, IncusError> {
        self.spec
            .machine(machine.member.seat())
            .ok_or_else(|| IncusError::NotInSpec { member: machine.member.to_string() })
    }

    /// Checks everything that a new machine needs, before anything is created.
    async fn prepare(
        &self,
        server: &Server,
        new: &NewMachine<'_>,
        member: &MemberSpec,
    ) -> Result<Prepared, ProviderError> {
        self.check_kind(server).await?;
        let kept = match new.data {
            Data::Stays if self.settings.data_size_of(member).is_some() => {
                self.kept_data(server, member.name.as_str()).await?
            }
            _ => None,
        };
        let target = self.target(server, &new.id, member, kept.as_ref()).await?;
        self.check_room(server, member, target.as_deref()).await?;
        for profile in &self.settings.profiles {
            if server.get("find a profile", &format!("/1.0/profiles/{}", escaped(profile))).await?.is_none() {
                let known = names(&server.list("list profiles", "/1.0/profiles?recursion=1").await?);
                return Err(IncusError::Missing { what: "profile", name: profile.clone(), known }.into());
            }
        }
        let source = self.source(server).await?;
        let network = self.network(server).await?;
        let address = self.address(server, &network, new).await?;
        let interface = self.interface(&network, member, address)?;
        let device = device(&network, &interface);
        Ok(Prepared { address, interface, device, source, target, kept })
    }

    /// A server without QEMU would refuse virtual machines only later. Of a cluster, one host cannot speak for the others.
    async fn check_kind(&self, server: &Server) -> Result<(), IncusError> {
        if !self.is_vm() || server.is_clustered() {
            return Ok(());
        }
        let found = server.get("read the server", "/1.0").await?;
        let driver = found.and_then(|found| found.value.pointer("/environment/driver")?.as_str().map(str::to_owned));
        let driver = driver.unwrap_or_default();
        if driver.contains("qemu") { Ok(()) } else { Err(IncusError::NoVirtualMachines { driver }) }
    }

    /// The image, as the API expects it.
    async fn source(&self, server: &Server) -> Result<Value, IncusError> {
        let image = &self.settings.image;
        if let Some((remote, alias)) = image.split_once(':') {
            let ImageServer { url, protocol, certificate } = ImageServer::find(remote)?;
            let mut source =
                json!({ "type": "image", "mode": "pull", "server": url, "protocol": protocol, "alias": alias });
            if let Some(certificate) = certificate {
                source["certificate"] = json!(certificate);
            }
            return Ok(source);
        }
        let alias = server.get("find the image", &format!("/1.0/images/aliases/{}", escaped(image))).await?;
        let fingerprint = alias.and_then(|found| found.value.get("target")?.as_str().map(str::to_owned));
        if let Some(fingerprint) = fingerprint {
            return Ok(json!({ "type": "image", "fingerprint": fingerprint }));
        }
        let images = server.list("list images", "/1.0/images?recursion=1").await?;
        let fingerprint = |image: &Value| image.get("fingerprint").and_then(Value::as_str).map(str::to_owned);
        let is_hex = image.len() >= 12 && image.bytes().all(|byte| byte.is_ascii_hexdigit());
        let found = images.iter().filter_map(fingerprint).find(|known| is_hex && known.starts_with(image.as_str()));
        match found {
            Some(fingerprint) => Ok(json!({ "type": "image", "fingerprint": fingerprint })),
            None => {
                let known = server.list("list images", "/1.0/images/aliases?recursion=1").await?;
                Err(IncusError::Missing { what: "image", name: image.clone(), known: names(&known) })
            }
        }
    }

    fn interface(
        &self,
        network: &Network,
        member: &MemberSpec,
        address: IpAddr,
    ) -> Result<boot::Interface, IncusError> {
        let (prefix, gateway) = self.place_in(network, address)?;
        let more = section(member).more_addresses.iter();
        let more: Result<Vec<_>, IncusError> =
            more.map(|address| Ok((*address, self.place_in(network, *address)?.0))).collect();
        let own = gateway.filter(|_| network.resolves() && self.settings.dns.is_empty());
        Ok(boot::Interface {
            mac: mac(&self.cluster_id, address),
            address,
            prefix,
            gateway,
            dns: self.settings.dns.iter().copied().chain(own).collect(),
            more_addresses: more?,
        })
    }

    pub(super) fn is_vm(&self) -> bool {
        self.settings.kind == InstanceKind::Vm
    }

    fn mark(&self, new: &NewMachine<'_>, member: &MemberSpec, address: IpAddr) -> Mark {
        Mark {
            cluster: self.spec.name.to_string(),
            cluster_id: self.cluster_id.clone(),
            member: new.id.member.clone(),
            incarnation: new.id.incarnation,
            address,
            fence: new.fence,
            state: State::Draft,
            data: None,
            seed: self.is_vm().then(|| self.new_seed(member.name.as_str(), new.id.incarnation, new.fence)),
            build: self.settings.build(member),
        }
    }

    /// The body of the request that creates an instance.
    fn description(&self, name: &str, member: &MemberSpec, mark: &Mark, prepared: &Prepared) -> Value {
        let mut root = json!({ "type": "disk", "path": "/", "pool": self.settings.pool });
        if let Some(size) = self.settings.root_size_of(member) {
            root["size"] = json!(size.0.to_string());
        }
        let mut config = json!(mark.config());
        if let Some(cpus) = self.settings.cpus_of(member) {
            config["limits.cpu"] = json!(cpus.to_string());
        }
        if let Some(memory) = self.settings.memory_of(member) {
            config["limits.memory"] = json!(memory.0.to_string());
        }
        // Images of quorate's own have a BIOS's boot loader.
        if self.is_vm() && self.settings.has_agent {
            config["security.csm"] = json!("true");
            config["security.secureboot"] = json!("false");
        }
        let kind = if self.is_vm() { "virtual-machine" } else { "container" };
        json!({
            "name": name,
            "description": format!("{} of the cluster {}, managed by quorate", mark.member, mark.cluster),
            "type": kind,
            "source": prepared.source,
            "profiles": self.settings.profiles,
            "config": config,
            "devices": { "root": root, "eth0": prepared.device },
        })
    }

    /// Creates a draft, writes its files, and only then makes it a machine.
    pub(super) async fn make(&self, server: &Server, name: &str, new: &NewMachine<'_>) -> Result<(), ProviderError> {
        let member = &*self.member(&new.id)?;
        let prepared = self.prepare(server, new, member).await?;
        let program = if self.settings.has_agent { None } else { Some(static_program()?) };
        let seed = new.seed(self.spec.name.as_str(), &self.cluster_id, prepared.address);
        let mut mark = self.mark(new, member, prepared.address);
        let size = self.settings.data_size_of(member);
        let new_data = size
            .filter(|_| prepared.kept.is_none())
            .map(|size| (self.new_data(member.name.as_str(), new.id.incarnation, new.fence), size.0));
        // Data to keep does not belong to the draft.
        mark.data = new_data.as_ref().map(|(name, _)| name.clone());
        let target = prepared.target.as_deref();
        let path =
            target.map_or_else(|| String::from("/1.0/instances"), |t| format!("/1.0/instances?target={}", escaped(t)));
        let description = self.description(name, member, &mark, &prepared);
        server.change(Call::new(format!("create {name}"), Method::POST, path).json(&description)).await?;
        if let Some((volume, bytes)) = &new_data {
            self.make_volume(server, volume, *bytes, target).await?;
        }
        mark.data = mark.data.or_else(|| prepared.kept.map(|volume| volume.name));
        let machine = self.machine(new, prepared.interface, mark.data.is_some());
        match &mark.seed {
            Some(volume) => {
                let disk = seed_disk(&seed, &machine, program.as_deref(), Drive::Cdrom);
                self.make_cdrom(server, volume, disk, target).await?;
            }
            None => server.push_files(name, &seed, &machine, program).await?,
        }
        let Some((seen, _)) = self.look_at(server, name).await? else {
            return Err(IncusError::Refused {
                doing: format!("show {name}"),
                code: 404,
                said: String::from("not found"),
            }
            .into());
        };
        self.finish(server, &seen, mark).await?;
        self.power_on(server, &seen).await?;
        Ok(self.remove_left_data(server, member.name.as_str()).await?)
    }

    /// Attaches its volumes and marks it as complete.
    async fn finish(&self, server: &Server, seen: &Instance, mark: Mark) -> Result<(), IncusError> {
        let disk = |volume: &String| json!({ "type": "disk", "pool": self.settings.pool, "source": volume });
        let mut devices = json!({});
        if let Some(volume) = &mark.data {
            devices[DATA_DEVICE] = disk(volume);
            // A virtual machine has it as a disk, and mounts it itself.
            if !self.is_vm() {
                devices[DATA_DEVICE]["path"] = json!(DATA_PATH);
            }
        }
        if let Some(volume) = &mark.seed {
            devices[SEED_DEVICE] = disk(volume);
        }
        let config = Mark { state: State::Whole, ..mark }.config();
        self.change(server, seen, &json!({ "config": config, "devices": devices })).await
    }

    /// The `machine.json` of its seed.
    fn machine(&self, new: &NewMachine<'_>, interface: boot::Interface, has_data: bool) -> boot::Machine {
        let admin = self.settings.admin.as_ref().map(|admin| boot::Admin {
            user: admin.user.clone(),
            ssh_keys: admin.ssh_keys.clone(),
            console_password_hash: admin.console_password_hash.clone(),
        });
        boot::Machine {
            // A dot would begin a domain.
            hostname: new.name.replace('.', "-"),
            interfaces: vec![interface],
            admin,
            data_disk: has_data.then(|| boot::DataDisk { serial: DATA_DEVICE.to_owned() }),
            channel: false,
        }
    }
}

/// The device of a network interface, with the addresses that Incus reserves for it.
fn device(network: &Network, interface: &boot::Interface) -> Value {
    let mut device = json!({ "type": "nic", "name": "eth0", "hwaddr": interface.mac });
    if network.managed {
        device["network"] = json!(network.name);
    } else {
        device["nictype"] = json!("bridged");
        device["parent"] = json!(network.name);
    }
    let more = interface.more_addresses.iter().map(|(address, _)| *address);
    for address in std::iter::once(interface.address).chain(more).filter(|address| network.reserves(*address)) {
        let key = if address.is_ipv4() { "ipv4.address" } else { "ipv6.address" };
        if device.get(key).is_none() {
            device[key] = json!(address.to_string());
        }
    }
    device
}

/// A locally administered address, which follows from the IP address: hosts on the same network that have talked to a member's last machine
/// reach the next one at once if it has the same address. Machines that exist at the same time have different addresses.
fn mac(cluster_id: &str, address: IpAddr) -> String {
    let hash = Sha256::digest(format!("{cluster_id}/{address}"));
    format!("02:16:3e:{:02x}:{:02x}:{:02x}", hash[0], hash[1], hash[2])
}
