//! The provider `incus`: system containers and virtual machines, over the REST API of a server on this host or elsewhere.
//!
//! The instance is created first and removed last, and its mark names the volume that was created for it. While its files are written it
//! is a draft and no machine; the next controller that is admitted removes it with everything that belongs to it. Incus knows no
//! condition for a deletion, so an instance is renamed to a name of its own before it is deleted: a controller that wakes late
//! can delete only what it has meant.

mod error;
mod files;
mod images;
mod instance;
mod network;
mod power;
mod remote;
mod server;
mod volumes;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use hyper::Method;
use quorate_agent::api::boot;
use quorate_core::model::{Build, Ledger, MachineId, MachineSeen, MemberName, PowerState};
use quorate_core::providers::Settings;
use quorate_core::providers::incus::{IncusSettings, InstanceKind, section};
use quorate_core::spec::{ClusterSpec, MemberSpec, Size};
use quorate_pki::Sha256;
use serde_json::{Value, json};

use crate::fat::Drive;
use crate::seed_disk::{seed_disk, static_program};
use crate::{Data, Machines, NewMachine, Provider, ProviderError};
pub use error::IncusError;
pub use images::{Imported, import};
use instance::{CLUSTER_KEY, DATA_DEVICE, Instance, Mark, SEED_DEVICE, State};
use network::Network;
use server::{Call, Server, escaped, names};
use volumes::Volume;

/// Where a machine has its data volume.
const DATA_PATH: &str = "/var/lib/etcd.disk";
/// How much of a console is shown when there is nothing else to show.
const LAST_LINES: usize = 20;
/// How long an instance may take to shut down before it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(60);
/// How often a change is tried again that met another change.
const TRIES: usize = 3;

pub struct Incus {
    settings: IncusSettings,
    spec: ClusterSpec,
    cluster_id: String,
    server: OnceCell<Server>,
    checked: Cell<bool>,
    stop_patience: Duration,
    /// What instances said on their consoles, by their UUID. Incus tells each line of one that runs only once.
    consoles: RefCell<BTreeMap<String, String>>,
}

/// All that must be known before an instance is created.
struct Prepared {
    address: IpAddr,
    interface: boot::Interface,
    /// The device of its network interface.
    device: Value,
    source: Value,
    target: Option<String>,
    /// Data that the member's last machine has left.
    kept: Option<Volume>,
}

impl Incus {
    pub fn new(ledger: &Ledger, settings: &IncusSettings) -> Self {
        Incus {
            settings: settings.clone(),
            spec: ledger.spec.clone(),
            cluster_id: ledger.cluster_id.clone(),
            server: OnceCell::new(),
            checked: Cell::new(false),
            stop_patience: STOP_PATIENCE,
            consoles: RefCell::default(),
        }
    }

    /// Speaks to the server at another socket.
    pub fn through(self, socket: PathBuf) -> Self {
        let server = OnceCell::from(Server::at(socket, self.settings.project.as_deref()));
        Incus { server, ..self }
    }

    /// Kills instances earlier that do not shut down.
    pub fn stopping_within(self, stop_patience: Duration) -> Self {
        Incus { stop_patience, ..self }
    }

    async fn server(&self) -> Result<&Server, IncusError> {
        let server = match self.server.get() {
            Some(server) => server,
            None => {
                let new = Server::new(self.settings.remote.as_deref(), self.settings.project.as_deref())?;
                self.server.get_or_init(|| new)
            }
        };
        if !self.checked.get() {
            server.check().await?;
            self.checked.set(true);
        }
        Ok(server)
    }

    /// Those of this cluster's name, with their marks.
    async fn marked(&self, server: &Server) -> Result<Vec<(Instance, Mark)>, IncusError> {
        let cluster = self.spec.name.as_str();
        let filter = escaped(&format!("config.{CLUSTER_KEY} eq {cluster}"));
        let all = server.list("list instances", &format!("/1.0/instances?recursion=1&filter={filter}")).await?;
        let found = all.iter().filter_map(Instance::read);
        let marked = found.filter_map(|instance| Some((instance.clone(), instance.mark?)));
        Ok(marked.filter(|(_, mark)| mark.cluster == cluster).collect())
    }

    /// Those that this very cluster has made or begun.
    async fn ours(&self, server: &Server) -> Result<Vec<(Instance, Mark)>, IncusError> {
        let marked = self.marked(server).await?;
        Ok(marked.into_iter().filter(|(_, mark)| mark.cluster_id == self.cluster_id).collect())
    }

    async fn find(&self, server: &Server, machine: &MachineId) -> Result<Option<(Instance, Mark)>, IncusError> {
        let ours = self.ours(server).await?;
        Ok(ours.into_iter().find(|(_, mark)| mark.is_of(machine) && mark.state == State::Whole))
    }

    /// One instance, with what guards a change of it.
    async fn look_at(&self, server: &Server, name: &str) -> Result<Option<(Instance, String)>, IncusError> {
        let found = server.get(&format!("look at {name}"), &instance::path(name)).await?;
        Ok(found.and_then(|found| Some((Instance::read(&found.value)?, found.etag))))
    }

    /// Changes configuration and devices of exactly the instance that was seen: one that has its name by now is another.
    async fn change(&self, server: &Server, seen: &Instance, change: &Value) -> Result<(), IncusError> {
        let doing = format!("change {}", seen.name);
        for tried in 1.. {
            let now = self.look_at(server, &seen.name).await?.filter(|(now, _)| now.uuid == seen.uuid);
            let Some((_, etag)) = now else {
                return Err(IncusError::Refused { doing, code: 404, said: String::from("it is gone") });
            };
            let call = Call::new(doing.clone(), Method::PATCH, seen.path()).json(change).unless_changed(&etag);
            match server.change(call).await {
                Err(error) if error.is_outdated() && tried < TRIES => {}
                changed => return changed,
            }
        }
        unreachable!("the last try returns")
    }

    /// Removes an instance with all that was made for it.
    async fn clear(&self, server: &Server, seen: &Instance, mark: &Mark, data: Data) -> Result<(), IncusError> {
        let doomed = mark.data.clone().filter(|_| data == Data::Goes);
        if mark.state == State::Whole {
            // From now on it is nobody's machine, wherever this may be interrupted.
            let going = Mark { state: State::Going, data: doomed.clone(), ..mark.clone() };
            match self.change(server, seen, &json!({ "config": going.config() })).await {
                Err(error) if error.is_absent() => return Ok(()),
                changed => changed?,
            }
        }
        self.power_off(server, seen).await?;
        if [DATA_DEVICE, SEED_DEVICE].iter().any(|device| seen.devices.get(device).is_some()) {
            self.detach(server, seen).await?;
        }
        for name in mark.seed.clone().into_iter().chain(doomed) {
            self.delete_volume(server, &Volume { name, location: seen.location.clone() }).await?;
        }
        self.delete(server, seen).await
    }

    /// Volumes that an instance has cannot be deleted.
    async fn detach(&self, server: &Server, seen: &Instance) -> Result<(), IncusError> {
        let Some(found) = server.get(&format!("look at {}", seen.name), &seen.path()).await? else { return Ok(()) };
        let mut value = found.value;
        if let Some(devices) = value.get_mut("devices").and_then(Value::as_object_mut) {
            devices.retain(|name, _| ![DATA_DEVICE, SEED_DEVICE].contains(&name.as_str()));
        }
        let doing = format!("detach the volumes of {}", seen.name);
        let call = Call::new(doing, Method::PUT, seen.path()).json(&value).unless_changed(&found.etag);
        server.change(call).await
    }

    async fn delete(&self, server: &Server, seen: &Instance) -> Result<(), IncusError> {
        let last_name = format!("quorate-going-{}", seen.uuid);
        if seen.name != last_name {
            let doing = format!("rename {} before it is deleted", seen.name);
            match server.change(Call::new(doing, Method::POST, seen.path()).json(&json!({ "name": last_name }))).await {
                Err(error) if error.is_absent() => return Ok(()),
                renamed => renamed?,
            }
        }
        let call = Call::new(format!("delete {}", seen.name), Method::DELETE, instance::path(&last_name));
        match server.change(call).await {
            Err(error) if error.is_absent() => Ok(()),
            deleted => deleted,
        }
    }

    /// Removes what is half made or half removed, where these words fit its mark.
    async fn sweep(&self, doomed: impl Fn(&Mark) -> bool) -> Result<(), ProviderError> {
        let server = self.server().await?;
        for (seen, mark) in self.ours(server).await? {
            if mark.state == State::Going || mark.state == State::Draft && doomed(&mark) {
                // Data that is to stay is not in such a mark.
                self.clear(server, &seen, &mark, Data::Goes).await?;
            }
        }
        Ok(())
    }

    fn member(&self, machine: &MachineId) -> Result<&MemberSpec, IncusError> {
        let found = self.spec.members.iter().find(|member| member.name.as_str() == machine.member.seat());
        found.ok_or_else(|| IncusError::NotInSpec { member: machine.member.to_string() })
    }

    /// What is in the way of a new machine, or missing for it, told before anything is made.
    async fn prepare(
        &self,
        server: &Server,
        new: &NewMachine<'_>,
        member: &MemberSpec,
    ) -> Result<Prepared, ProviderError> {
        let kept = match new.data {
            Data::Stays if self.settings.data_size_of(member).is_some() => {
                self.kept_data(server, member.name.as_str()).await?
            }
            _ => None,
        };
        self.check_space(server, member, kept.is_some()).await?;
        for profile in &self.settings.profiles {
            if server.get("look for a profile", &format!("/1.0/profiles/{}", escaped(profile))).await?.is_none() {
                let known = names(&server.list("list profiles", "/1.0/profiles?recursion=1").await?);
                return Err(IncusError::Missing { what: "profile", name: profile.clone(), known }.into());
            }
        }
        let source = self.source(server).await?;
        let network = self.network(server).await?;
        let address = self.address(server, &network, new.address).await?;
        let interface = self.interface(&network, member, address)?;
        let device = device(&network, &interface);
        let target = self.target(server, member, kept.as_ref()).await?;
        Ok(Prepared { address, interface, device, source, target, kept })
    }

    async fn check_space(&self, server: &Server, member: &MemberSpec, has_data: bool) -> Result<(), IncusError> {
        let left = self.left_in_pool(server).await?;
        let bytes = |size: Option<Size>| size.map_or(0, |size| size.0);
        let data = if has_data { 0 } else { bytes(self.settings.data_size_of(member)) };
        let needed = bytes(self.settings.root_size_of(member)).saturating_add(data);
        if needed <= left {
            return Ok(());
        }
        let (pool, member) = (self.settings.pool.clone(), member.name.to_string());
        Err(IncusError::NoSpace { pool, member, needed: rounded(needed), left: rounded(left) })
    }

    /// The image, in the words of Incus.
    async fn source(&self, server: &Server) -> Result<Value, IncusError> {
        let image = &self.settings.image;
        if let Some((remote, alias)) = image.split_once(':') {
            let (url, protocol) = remote::image_server(remote)?;
            return Ok(json!({ "type": "image", "mode": "pull", "server": url, "protocol": protocol, "alias": alias }));
        }
        let alias = server.get("look for the image", &format!("/1.0/images/aliases/{}", escaped(image))).await?;
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
        let own = gateway.filter(|_| network.managed && self.settings.dns.is_empty());
        Ok(boot::Interface {
            mac: mac(&self.cluster_id, member),
            address,
            prefix,
            gateway,
            dns: self.settings.dns.iter().copied().chain(own).collect(),
            more_addresses: more?,
        })
    }

    /// The host in an Incus cluster that an instance is to be on: where its data is, or where the fewest others are.
    async fn target(
        &self,
        server: &Server,
        member: &MemberSpec,
        kept: Option<&Volume>,
    ) -> Result<Option<String>, IncusError> {
        let cluster = server.get("look at the cluster", "/1.0/cluster").await?;
        let clustered = cluster.is_some_and(|found| found.value.get("enabled") == Some(&Value::Bool(true)));
        let wanted = section(member).target.clone();
        if !clustered {
            return wanted.map_or(Ok(None), |target| Err(IncusError::NotClustered { target }));
        }
        let hosts = server.list("list the hosts", "/1.0/cluster/members?recursion=1").await?;
        let text = |host: &Value, field: &str| host.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let hosts: BTreeMap<String, String> =
            hosts.iter().map(|host| (text(host, "server_name"), text(host, "status"))).collect();
        let kept = kept.map(|volume| volume.location.clone()).filter(|location| hosts.contains_key(location));
        if let Some(target) = wanted.or(kept) {
            return match hosts.get(&target) {
                None => {
                    let known = hosts.into_keys().collect();
                    Err(IncusError::Missing { what: "host in its cluster", name: target, known })
                }
                Some(status) if status != "Online" => Err(IncusError::TargetDown { target, status: status.clone() }),
                Some(_) => Ok(Some(target)),
            };
        }
        let ours = self.ours(server).await?;
        let here = |host: &String| ours.iter().filter(|(instance, _)| instance.location == *host).count();
        Ok(hosts.into_iter().filter(|(_, status)| status == "Online").map(|(host, _)| host).min_by_key(here))
    }

    fn is_vm(&self) -> bool {
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

    /// As Incus takes it.
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
            "description": format!("{} of the etcd cluster {}, managed by quorate", mark.member, mark.cluster),
            "type": kind,
            "source": prepared.source,
            "profiles": self.settings.profiles,
            "config": config,
            "devices": { "root": root, "eth0": prepared.device },
        })
    }

    /// Makes a draft, writes its files, and only then lets it be a machine.
    async fn make(&self, server: &Server, name: &str, new: &NewMachine<'_>) -> Result<(), ProviderError> {
        let member = self.member(&new.id)?;
        let prepared = self.prepare(server, new, member).await?;
        let program = if self.settings.has_agent { None } else { Some(static_program()?) };
        let seed = new.seed(self.spec.name.as_str(), &self.cluster_id, prepared.address);
        let mut mark = self.mark(new, member, prepared.address);
        let size = self.settings.data_size_of(member);
        let new_data = size
            .filter(|_| prepared.kept.is_none())
            .map(|size| (self.new_data(member.name.as_str(), new.id.incarnation, new.fence), size.0));
        // Data that is to stay is not the draft's to lose.
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
                said: String::from("it is gone"),
            }
            .into());
        };
        self.finish(server, &seen, mark).await?;
        self.power_on(server, &seen).await?;
        Ok(self.remove_left_data(server, member.name.as_str()).await?)
    }

    /// From now on it is a machine.
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

    /// What the machine is told that it is.
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

    fn seen(mark: Mark, power: PowerState) -> (MemberName, MachineSeen) {
        let Mark { cluster_id, member, incarnation, address, build, .. } = mark;
        let data = build.as_ref().and_then(Build::data);
        let (headless, outdated, place, address) = (false, false, None, Some(address));
        (member, MachineSeen { cluster_id, incarnation, power, headless, outdated, address, build, data, place })
    }
}

#[async_trait(?Send)]
impl Provider for Incus {
    fn patience(&self) -> Duration {
        Duration::from_millis(self.settings.boot_patience.0)
    }

    async fn how_machines_run(&self) -> Option<String> {
        Some(String::from(match self.settings.kind {
            InstanceKind::Container => "machines are containers: they share the kernel and the clock of their host",
            InstanceKind::Vm => "machines are virtual machines",
        }))
    }

    async fn machines(&self) -> Result<Machines, ProviderError> {
        let marked = self.marked(self.server().await?).await?;
        let whole = marked.into_iter().filter(|(_, mark)| mark.state == State::Whole);
        let found = whole.map(|(instance, mark)| Self::seen(mark, instance.power)).collect();
        Ok(Machines { found, away: BTreeMap::new() })
    }

    async fn admit(&self, fence: u64) -> Result<(), ProviderError> {
        self.sweep(|mark| mark.fence < fence).await
    }

    async fn dismiss(&self, fence: u64) -> Result<(), ProviderError> {
        self.sweep(|mark| mark.fence == fence).await
    }

    async fn create(&self, new: &NewMachine<'_>) -> Result<(), ProviderError> {
        let server = self.server().await?;
        let name = instance::name(self.spec.name.as_str(), &new.id);
        if let Some((found, _)) = self.look_at(server, &name).await? {
            match &found.mark {
                Some(mark) if mark.cluster_id != self.cluster_id => {
                    return Err(ProviderError::NotOurs { path: name.into(), found: mark.cluster_id.clone() });
                }
                Some(mark) if mark.state == State::Whole => return Ok(self.power_on(server, &found).await?),
                Some(mark) => self.clear(server, &found, mark, Data::Goes).await?,
                None => return Err(IncusError::NameTaken { name }.into()),
            }
        }
        self.make(server, &name, new).await
    }

    async fn start(&self, machine: &MachineId) -> Result<(), ProviderError> {
        let server = self.server().await?;
        match self.find(server, machine).await? {
            Some((seen, _)) => Ok(self.power_on(server, &seen).await?),
            None => {
                Err(ProviderError::NoSuchMachine { cluster: self.spec.name.to_string(), machine: machine.to_string() })
            }
        }
    }

    async fn stop(&self, machine: &MachineId) -> Result<(), ProviderError> {
        let server = self.server().await?;
        match self.find(server, machine).await? {
            Some((seen, _)) => Ok(self.keep_off(server, &seen).await?),
            None => Ok(()),
        }
    }

    async fn destroy(&self, machine: &MachineId, data: Data) -> Result<(), ProviderError> {
        let server = self.server().await?;
        let Some((seen, mark)) = self.find(server, machine).await? else {
            return self.sweep(|_| false).await;
        };
        if data == Data::Stays {
            self.shut_down(server, &seen).await?;
        }
        Ok(self.clear(server, &seen, &mark, data).await?)
    }

    async fn console(&self, machine: &MachineId) -> Result<String, ProviderError> {
        let server = self.server().await?;
        let Some((seen, _)) = self.find(server, machine).await? else { return Ok(String::new()) };
        let log =
            server.read(&format!("read the console of {}", seen.name), &format!("{}/console", seen.path())).await?;
        let mut consoles = self.consoles.borrow_mut();
        let text = consoles.entry(seen.uuid).or_default();
        text.push_str(&String::from_utf8_lossy(&log.unwrap_or_default()));
        let lines: Vec<&str> = text.trim_end().lines().collect();
        let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
        text.clone_from(&last);
        Ok(last)
    }

    async fn forget(&self) -> Result<(), ProviderError> {
        self.sweep(|_| true).await?;
        let server = self.server().await?;
        let ours = self.ours(server).await?;
        let used: Vec<String> = ours.into_iter().flat_map(|(_, mark)| mark.data.into_iter().chain(mark.seed)).collect();
        for volume in self.volumes(server).await?.into_iter().filter(|volume| !used.contains(&volume.name)) {
            self.delete_volume(server, &volume).await?;
        }
        Ok(())
    }
}

/// The device of a network interface. On networks that Incus manages, the addresses are reserved there, and nobody else can use them.
fn device(network: &Network, interface: &boot::Interface) -> Value {
    let mut device = json!({ "type": "nic", "name": "eth0", "hwaddr": interface.mac });
    if network.managed {
        device["network"] = json!(network.name);
    } else {
        device["nictype"] = json!("bridged");
        device["parent"] = json!(network.name);
    }
    if network.reserves() {
        let more = interface.more_addresses.iter().map(|(address, _)| *address);
        for address in std::iter::once(interface.address).chain(more) {
            let key = if address.is_ipv4() { "ipv4.address" } else { "ipv6.address" };
            if device.get(key).is_none() {
                device[key] = json!(address.to_string());
            }
        }
    }
    device
}

/// In the range that is for everybody's own use. It follows from cluster and member, so that a member's next machine has it too.
fn mac(cluster_id: &str, member: &MemberSpec) -> String {
    let hash = Sha256::digest(format!("{cluster_id}/{}/0", member.name));
    format!("02:16:3e:{:02x}:{:02x}:{:02x}", hash[0], hash[1], hash[2])
}

/// In whole mebibytes, which read better than bytes.
fn rounded(bytes: u64) -> String {
    Size(((bytes >> 20).max(1)) << 20).to_string()
}
