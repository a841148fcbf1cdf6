//! The provider `incus`: system containers and virtual machines, over the REST API of a server on this host or elsewhere.
//!
//! The instance is created first and deleted last, and its mark names the volume that was created for it. While its files are written it
//! is a draft, which does not count as a machine; the next controller deletes it with everything that belongs to it. Incus cannot delete
//! under a condition, so an instance is renamed to a name with its UUID before it is deleted: a controller that was suspended then
//! cannot delete another one.

mod create;
mod error;
mod files;
mod hosts;
mod images;
mod instance;
mod network;
mod power;
mod remote;
mod room;
mod server;
mod volumes;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use hyper::Method;
use quorate_core::model::{Build, Ledger, MachineId, MachineSeen, MemberName, PowerState};
use quorate_core::providers::incus::{IncusSettings, InstanceKind};
use quorate_core::spec::ClusterSpec;
use serde_json::{Value, json};

use crate::{Data, Machines, NewMachine, Provider, ProviderError};
pub use error::IncusError;
pub use images::{Image, Imported, import};
use instance::{CLUSTER_KEY, DATA_DEVICE, Instance, Mark, SEED_DEVICE, State};
use server::{Call, Server, escaped};
use volumes::Volume;

/// How much of a console is shown when there is nothing else to show.
const LAST_LINES: usize = 20;
/// How long an instance may take to shut down before it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(60);
/// Attempts at a change that conflicts with another.
const TRIES: usize = 3;

pub struct Incus {
    settings: IncusSettings,
    spec: ClusterSpec,
    cluster_id: String,
    /// Addresses of members: the machine of one may be on a host that does not answer.
    known: Vec<IpAddr>,
    server: OnceCell<Server>,
    checked: Cell<bool>,
    stop_patience: Duration,
    /// Choices for machines that are created at the same time: the server does not know them yet.
    chosen: RefCell<BTreeMap<MachineId, Chosen>>,
    /// Console output by UUID of the instance. Incus returns each line of a running instance only once.
    consoles: RefCell<BTreeMap<String, String>>,
}

/// The content of a list of instances.
struct Listed {
    /// Instances with a mark of this cluster's name.
    marked: Vec<(Instance, Mark)>,
    /// Instances without a configuration, and the host of each, which does not answer.
    unread: Vec<(String, String)>,
}

#[derive(Clone, Default)]
struct Chosen {
    address: Option<IpAddr>,
    /// The host in an Incus cluster.
    target: Option<String>,
}

impl Incus {
    pub fn new(ledger: &Ledger, settings: &IncusSettings) -> Self {
        Incus {
            settings: settings.clone(),
            spec: ledger.spec.clone(),
            cluster_id: ledger.cluster_id.clone(),
            known: ledger.addresses().into_values().collect(),
            server: OnceCell::new(),
            checked: Cell::new(false),
            stop_patience: STOP_PATIENCE,
            chosen: RefCell::default(),
            consoles: RefCell::default(),
        }
    }

    /// Uses the server at another socket.
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

    async fn listed(&self, server: &Server) -> Result<Listed, IncusError> {
        let cluster = self.spec.name.as_str();
        let mut filter = format!("config.{CLUSTER_KEY} eq {cluster}");
        if server.is_clustered() {
            filter.push_str(" or status eq Error");
        }
        let path = format!("/1.0/instances?recursion=1&filter={}", escaped(&filter));
        let all = server.list("list instances", &path).await?;
        let found: Vec<Instance> = all.iter().filter_map(Instance::read).collect();
        let is_unread = |instance: &&Instance| instance.uuid.is_empty() && instance.power == PowerState::Unknown;
        let unread = found.iter().filter(is_unread).filter(|instance| instance.host().is_some());
        let unread = unread.map(|instance| (instance.name.clone(), instance.location.clone())).collect();
        let marked = found.into_iter().filter_map(|instance| Some((instance.clone(), instance.mark?)));
        Ok(Listed { marked: marked.filter(|(_, mark)| mark.cluster == cluster).collect(), unread })
    }

    /// Instances with a mark of this cluster's ID.
    async fn ours(&self, server: &Server) -> Result<Vec<(Instance, Mark)>, IncusError> {
        let marked = self.listed(server).await?.marked;
        Ok(marked.into_iter().filter(|(_, mark)| mark.cluster_id == self.cluster_id).collect())
    }

    async fn find(&self, server: &Server, machine: &MachineId) -> Result<Option<(Instance, Mark)>, IncusError> {
        let ours = self.ours(server).await?;
        Ok(ours.into_iter().find(|(_, mark)| mark.is_of(machine) && mark.state == State::Whole))
    }

    /// One instance, and its ETag.
    async fn look_at(&self, server: &Server, name: &str) -> Result<Option<(Instance, String)>, IncusError> {
        let found = server.get(&format!("read {name}"), &instance::path(name)).await?;
        Ok(found.and_then(|found| Some((Instance::read(&found.value)?, found.etag))))
    }

    /// Changes configuration and devices of an instance, unless another has its name by now.
    async fn change(&self, server: &Server, seen: &Instance, change: &Value) -> Result<(), IncusError> {
        let doing = format!("change {}", seen.name);
        for tried in 1.. {
            let now = self.look_at(server, &seen.name).await?.filter(|(now, _)| now.uuid == seen.uuid);
            let Some((_, etag)) = now else {
                return Err(IncusError::Refused { doing, code: 404, said: String::from("not found") });
            };
            let call = Call::new(doing.clone(), Method::PATCH, seen.path()).json(change).unless_changed(&etag);
            match server.change(call).await {
                Err(error) if error.is_outdated() && tried < TRIES => {}
                changed => return changed,
            }
        }
        unreachable!("the last try returns")
    }

    /// Deletes an instance with everything that was created for it.
    async fn clear(&self, server: &Server, seen: &Instance, mark: &Mark, data: Data) -> Result<(), IncusError> {
        let doomed = mark.data.clone().filter(|_| data == Data::Goes);
        if mark.state == State::Whole {
            // From now on it no longer counts as a machine, wherever this may be interrupted.
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

    /// Incus refuses to delete attached volumes.
    async fn detach(&self, server: &Server, seen: &Instance) -> Result<(), IncusError> {
        let Some(found) = server.get(&format!("read {}", seen.name), &seen.path()).await? else { return Ok(()) };
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

    /// Deletes partially deleted instances, and drafts that are `doomed`.
    async fn sweep(&self, doomed: impl Fn(&Mark) -> bool) -> Result<(), ProviderError> {
        let server = self.server().await?;
        for (seen, mark) in self.ours(server).await? {
            if mark.state == State::Going || mark.state == State::Draft && doomed(&mark) {
                // Data to keep is not in such a mark.
                self.clear(server, &seen, &mark, Data::Goes).await?;
            }
        }
        Ok(())
    }

    fn seen(instance: Instance, mark: Mark) -> (MemberName, MachineSeen) {
        let Mark { cluster_id, member, incarnation, address, build, .. } = mark;
        let (power, place) = (instance.power, instance.host().map(str::to_owned));
        let build = match &place {
            Some(host) => build.map(|build| build.found_on(host)),
            None => build,
        };
        let data = build.as_ref().and_then(Build::data);
        let (headless, outdated, address) = (false, false, Some(address));
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
        let server = self.server().await?;
        let listed = self.listed(server).await?;
        let away = self.away(server, &listed).await?;
        let whole = listed.marked.into_iter().filter(|(_, mark)| mark.state == State::Whole);
        Ok(Machines { found: whole.map(|(instance, mark)| Self::seen(instance, mark)).collect(), away })
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
        let listed = self.listed(server).await?;
        if let Some((name, host)) = self.hidden(&listed).first() {
            return Err(IncusError::Hidden { name: name.clone(), host: host.clone() }.into());
        }
        let ours = listed.marked.into_iter().filter(|(_, mark)| mark.cluster_id == self.cluster_id);
        let used: Vec<String> = ours.flat_map(|(_, mark)| mark.data.into_iter().chain(mark.seed)).collect();
        for volume in self.volumes(server).await?.into_iter().filter(|volume| !used.contains(&volume.name)) {
            self.delete_volume(server, &volume).await?;
        }
        Ok(())
    }
}
