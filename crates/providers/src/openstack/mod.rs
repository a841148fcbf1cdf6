//! The provider `openstack`: servers with ports and volumes, over the REST APIs of a cloud.
//!
//! A server is created last and deleted first, because the resources that it uses must exist before it and after it. So each of them has
//! a mark: servers and volumes in their metadata, ports in their description, a server group in its name. A killed controller leaves a
//! draft, or a port or a volume without a server, and the next controller deletes it.

mod catalogue;
mod compute;
mod create;
mod credentials;
mod error;
mod floating;
mod groups;
mod images;
mod listing;
mod network;
#[cfg(test)]
mod script;
mod server;
mod session;
mod sweep;
#[cfg(test)]
mod trouble_tests;
mod volumes;

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use quorate_core::desire;
use quorate_core::model::{Ledger, MachineId, MachineSeen, MemberName, Opening};
use quorate_core::providers::Settings;
use quorate_core::providers::openstack::{OpenstackSettings, VOLUME_ZONE, data_of};
use quorate_core::spec::ClusterSpec;
use serde_json::Value;

use crate::marks::{Mark, State};
use crate::{Data, Machines, NewMachine, Provider, ProviderError};
pub use error::OpenstackError;
pub use images::{Upload, Uploaded, upload, upload_with};
use network::Places;
use server::Server;
use session::Session;

/// How much of a console is shown when there is nothing else to show.
const LAST_LINES: usize = 20;
const POLLING: Duration = Duration::from_secs(1);
const DELETING: Duration = Duration::from_secs(300);
/// The same for one whose deletion began before: it may never end.
const LINGERING: Duration = Duration::from_secs(60);

pub struct Openstack {
    settings: OpenstackSettings,
    spec: ClusterSpec,
    cluster_id: String,
    patience: Duration,
    polling: Duration,
    /// How long a server or a volume may take to be deleted.
    deleting: Duration,
    session: OnceCell<Rc<Session>>,
    /// Whether the result is only shown, so that a list may be shared with other clusters.
    only_looks: bool,
    /// Whether the compute service is new enough.
    checked: tokio::sync::OnceCell<()>,
    places: tokio::sync::Mutex<Places>,
    /// External networks: names, and ids.
    externals: tokio::sync::Mutex<BTreeMap<String, String>>,
    /// Security groups of the operator, by id.
    given_groups: tokio::sync::OnceCell<Vec<String>>,
    /// The server group, by id.
    group: tokio::sync::Mutex<Option<String>>,
    /// What machines have open; empty where security groups are the operator's.
    openings: Vec<Opening>,
    /// The security group of members that quorate creates, by id, once it has its rules.
    member_group: tokio::sync::Mutex<Option<String>>,
}

impl Openstack {
    pub fn new(ledger: &Ledger, settings: &OpenstackSettings) -> Self {
        Openstack {
            settings: settings.clone(),
            spec: ledger.spec.clone(),
            cluster_id: ledger.cluster_id.clone(),
            patience: Duration::from_millis(settings.boot_patience.0),
            polling: POLLING,
            deleting: DELETING,
            session: OnceCell::new(),
            only_looks: false,
            checked: tokio::sync::OnceCell::new(),
            places: tokio::sync::Mutex::default(),
            externals: tokio::sync::Mutex::default(),
            given_groups: tokio::sync::OnceCell::new(),
            group: tokio::sync::Mutex::new(None),
            openings: if settings.security_groups.is_none() { desire::openings(ledger) } else { Vec::new() },
            member_group: tokio::sync::Mutex::new(None),
        }
    }

    /// For a command that only shows clusters, one after the other: they share lists.
    #[must_use]
    pub fn only_looking(self) -> Self {
        Openstack { only_looks: true, ..self }
    }

    /// Reads credentials from this file, and looks more often, and repeats failed requests sooner and less often.
    pub fn impatient(self, clouds: &Path, attempts: u32, pause: Duration) -> Result<Self, OpenstackError> {
        let (cloud, region) = (self.settings.cloud.as_deref(), self.settings.region.as_deref());
        let session = Session::of_file(clouds, cloud, region, attempts, pause)?;
        Ok(Openstack { session: OnceCell::from(Rc::new(session)), polling: pause, ..self })
    }

    fn session(&self) -> Result<&Session, OpenstackError> {
        if self.session.get().is_none() {
            let session = Session::of(self.settings.cloud.as_deref(), self.settings.region.as_deref())?;
            let _ = self.session.set(session);
        }
        Ok(self.session.get().expect("it was set"))
    }

    async fn find(&self, machine: &MachineId) -> Result<Option<(Server, Mark)>, OpenstackError> {
        let ours = self.ours().await?;
        Ok(ours.into_iter().find(|(_, mark)| mark.is_of(machine) && mark.state == State::Whole))
    }

    fn seen(&self, server: &Server, mark: Mark) -> (MemberName, MachineSeen) {
        let member = self.spec.machine(mark.member.seat());
        let wanted = member.and_then(|member| self.settings.build(&member));
        let is_bound = wanted.is_some_and(|wanted| wanted.part(VOLUME_ZONE).is_some());
        // Where the spec says no zone, each is as good as the others.
        let build = server.build(&mark).map(|build| if is_bound { build } else { build.without(VOLUME_ZONE) });
        let data = build.as_ref().and_then(data_of);
        let Mark { cluster_id, member, incarnation, address, .. } = mark;
        let (headless, outdated, address, place) = (server.is_frozen(), false, Some(address), None);
        let power = server.power();
        (member, MachineSeen { cluster_id, incarnation, power, headless, outdated, address, build, data, place })
    }
}

#[async_trait(?Send)]
impl Provider for Openstack {
    fn patience(&self) -> Duration {
        self.patience
    }

    async fn machines(&self) -> Result<Machines, ProviderError> {
        let marked = if self.only_looks { self.marked_in_common().await? } else { self.marked().await? };
        let whole = marked.into_iter().filter(|(_, mark)| mark.state == State::Whole);
        let found = whole.map(|(server, mark)| self.seen(&server, mark)).collect();
        Ok(Machines { found, ..Machines::default() })
    }

    async fn admit(&self, fence: u64) -> Result<(), ProviderError> {
        for (server, _) in self.ours().await?.iter().filter(|(_, mark)| mark.state == State::Whole) {
            self.set_right(server).await?;
        }
        // What is stuck is reported at the end of the run, which it need not stop.
        if let Some(ports) = self.sweep(|made, _| made < fence).await?.ports {
            self.keep_groups(&ports).await?;
        }
        Ok(())
    }

    async fn dismiss(&self, fence: u64) -> Result<(), ProviderError> {
        Ok(self.sweep(|made, _| made <= fence).await?.completed()?)
    }

    async fn create(&self, new: &NewMachine<'_>) -> Result<(), ProviderError> {
        let mut ours = self.ours().await?;
        let mut ports = self.ports().await?;
        ports.retain(|port| port.machine.as_ref() == Some(&new.id));
        let unlisted = self.unlisted(&ours, &ports.iter().collect::<Vec<_>>()).await?;
        ours.extend(unlisted);
        let there = ours.iter().find(|(_, mark)| mark.is_of(&new.id) && mark.state == State::Whole);
        if let Some((server, _)) = there {
            return Ok(self.power_on(server).await?);
        }
        // A draft of an earlier attempt in this run.
        while let Some(at) = ours.iter().position(|(_, mark)| mark.is_of(&new.id)) {
            let (server, mark) = ours.swap_remove(at);
            self.clear(&server, &mark, Data::Goes).await?;
        }
        for port in ports {
            self.delete_port(&port.id).await?;
        }
        // Some versions of Nova make a host name of it, in which a dot would begin a domain.
        let name = format!("{}-{}", self.spec.name, new.name.replace('.', "-i"));
        self.make(&name, new, &ours).await
    }

    async fn start(&self, machine: &MachineId) -> Result<(), ProviderError> {
        match self.find(machine).await? {
            Some((server, _)) => Ok(self.power_on(&server).await?),
            None => {
                Err(ProviderError::NoSuchMachine { cluster: self.spec.name.to_string(), machine: machine.to_string() })
            }
        }
    }

    async fn stop(&self, machine: &MachineId) -> Result<(), ProviderError> {
        match self.find(machine).await? {
            Some((server, _)) => Ok(self.shut_down(&server).await?),
            None => Ok(()),
        }
    }

    async fn destroy(&self, machine: &MachineId, data: Data) -> Result<(), ProviderError> {
        if let Some((server, mark)) = self.find(machine).await? {
            if data == Data::Stays {
                self.shut_down(&server).await?;
            }
            self.clear(&server, &mark, data).await?;
        }
        // What an interrupted attempt has left of it, and its data volume if that goes.
        self.sweep(|_, left| left == Some(machine)).await.map(drop)
    }

    async fn console(&self, machine: &MachineId) -> Result<String, ProviderError> {
        let Some((server, _)) = self.find(machine).await? else { return Ok(String::new()) };
        let state = server.hindrance().map(|hindrance| hindrance.to_string());
        let output = self.console_output(&server, LAST_LINES).await?;
        let parts: Vec<String> = state.into_iter().chain(Some(output).filter(|output| !output.is_empty())).collect();
        Ok(parts.join("\n"))
    }

    async fn forget(&self) -> Result<(), ProviderError> {
        self.sweep(|_, _| true).await?.completed()?;
        let used: Vec<String> = self.ours().await?.into_iter().filter_map(|(_, mark)| mark.data).collect();
        for volume in self.volumes().await?.iter().filter(|volume| !used.contains(&volume.id)) {
            self.delete_volume(volume).await?;
        }
        self.delete_all_floating().await?;
        match self.delete_groups().await {
            // Without `spread` now there may never have been one, in a cloud that does not offer them.
            Err(error) if self.settings.spread.policy().is_none() && (error.is_absent() || error.is_forbidden()) => {}
            deleted => deleted?,
        }
        // Report ports that are left: once the ledger is deleted, nothing would find them.
        let ports = self.ports().await?.into_iter().map(|port| format!("the port {} is still there", port.name));
        let what: Vec<String> = ports.collect();
        if !what.is_empty() {
            return Err(OpenstackError::Stuck { what }.into());
        }
        match self.drop_groups(&[]).await? {
            used if used.is_empty() => Ok(()),
            groups => Err(OpenstackError::GroupsInUse { groups }.into()),
        }
    }
}

/// A field that is text.
fn text(value: &Value, field: &str) -> Option<String> {
    value.get(field).and_then(Value::as_str).map(str::to_owned)
}

/// The one with this id, or the only one with this name.
fn one_of<'a>(what: &'static str, name: &str, all: &'a [Value]) -> Result<&'a Value, OpenstackError> {
    if let Some(found) = all.iter().find(|one| text(one, "id").as_deref() == Some(name)) {
        return Ok(found);
    }
    let named: Vec<&Value> = all.iter().filter(|one| text(one, "name").as_deref() == Some(name)).collect();
    let name = name.to_owned();
    match &named[..] {
        [one] => Ok(one),
        [] => {
            let mut names: Vec<String> = all.iter().filter_map(|one| text(one, "name")).collect();
            names.sort();
            names.truncate(20);
            Err(OpenstackError::Missing { what, name, names })
        }
        several => {
            let ids = several.iter().filter_map(|one| text(one, "id")).collect();
            Err(OpenstackError::Ambiguous { what, name, ids })
        }
    }
}
