//! The provider `libvirt`: virtual machines on one or several hosts, each with its own libvirt. If a host cannot be reached,
//! only its own machines are hidden.

mod data;
mod domain;
mod hypervisor;
mod orphans;
mod power;
mod probe;
mod virsh;
mod volumes;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::join_all;
use quorate_core::model::{Ledger, MachineId, MachineSeen};
use quorate_core::providers::libvirt::LibvirtSettings;
use quorate_core::spec::ClusterSpec;

use crate::{Data, Dial, Directories, Machines, NewMachine, Provider, ProviderError};
use hypervisor::Hypervisor;
pub use virsh::LibvirtError;

/// How long a host among several may take to list its machines.
const LOOK: Duration = Duration::from_secs(20);
/// A host that did not answer is not asked again before this time, so that it does not delay every observation.
const PAUSE: Duration = Duration::from_secs(15);

pub struct Libvirt {
    /// Those that the spec names come first.
    hypervisors: Vec<Hypervisor>,
    settings: LibvirtSettings,
    spec: ClusterSpec,
    cluster_id: String,
    /// Hosts that did not answer, when, and what they said instead.
    away: RefCell<BTreeMap<String, (Instant, String)>>,
    /// Hosts that were unreachable when this controller was admitted.
    missed: RefCell<BTreeSet<String>>,
}

impl Libvirt {
    pub fn new(directories: &Directories, ledger: &Ledger, settings: &LibvirtSettings) -> Self {
        let named = ledger.spec.machines().map(|machine| settings.uri_of(&machine).to_owned());
        let mut uris: Vec<String> = Vec::new();
        // Machines may be left where the spec has none any more.
        for uri in named.chain(ledger.places.iter().cloned()) {
            if !uris.contains(&uri) {
                uris.push(uri);
            }
        }
        Libvirt {
            hypervisors: uris.iter().map(|uri| Hypervisor::new(directories, ledger, settings, uri)).collect(),
            settings: settings.clone(),
            spec: ledger.spec.clone(),
            cluster_id: ledger.cluster_id.clone(),
            away: RefCell::default(),
            missed: RefCell::default(),
        }
    }

    /// Speaks to libvirt through another program than the `virsh` of the PATH.
    pub fn through(mut self, program: PathBuf) -> Self {
        self.hypervisors = self.hypervisors.into_iter().map(|h| h.through(program.clone())).collect();
        self
    }

    /// Switches machines off earlier that do not shut down.
    pub fn stopping_within(mut self, patience: Duration) -> Self {
        self.hypervisors = self.hypervisors.into_iter().map(|h| h.stopping_within(patience)).collect();
        self
    }

    fn is_alone(&self) -> bool {
        self.hypervisors.len() == 1
    }

    /// The host of a machine. An unreachable host may have it: then the machine is not reported as missing.
    async fn host_of(&self, machine: &MachineId) -> Result<Option<&Hypervisor>, ProviderError> {
        if let [only] = &self.hypervisors[..] {
            return Ok(Some(only));
        }
        let is_it = |(_, member, seen): &Found| {
            seen.cluster_id == self.cluster_id && MachineId::new(member, seen.incarnation) == *machine
        };
        let mut unseen = None;
        for hypervisor in &self.hypervisors {
            match self.look_at(hypervisor).await {
                Ok(found) if found.iter().any(is_it) => return Ok(Some(hypervisor)),
                Ok(_) => {}
                Err(error) if error.is_away() => unseen = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        unseen.map_or(Ok(None), |error| Err(error.into()))
    }

    /// Whether a host among several can be reached now. A single host is always tried.
    async fn answers(&self, hypervisor: &Hypervisor) -> Result<bool, ProviderError> {
        if self.is_alone() {
            return Ok(true);
        }
        match self.look_at(hypervisor).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_away() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The machines on one host. One that did not answer a moment ago is not asked again yet.
    async fn look_at(&self, hypervisor: &Hypervisor) -> Result<Vec<Found>, LibvirtError> {
        if self.is_alone() {
            return hypervisor.machines().await;
        }
        let uri = hypervisor.uri().to_owned();
        if let Some((since, said)) = self.away.borrow().get(&uri)
            && since.elapsed() < PAUSE
        {
            return Err(LibvirtError::Unreachable { uri, said: said.clone() });
        }
        let silent =
            |_| LibvirtError::Unreachable { uri: uri.clone(), said: format!("no answer within {} s", LOOK.as_secs()) };
        let looked = tokio::time::timeout(LOOK, hypervisor.machines()).await.map_err(silent).flatten();
        match &looked {
            Err(error) if error.is_away() => {
                let said = match error {
                    LibvirtError::Unreachable { said, .. } => said.clone(),
                    error => error.to_string(),
                };
                self.away.borrow_mut().insert(uri, (Instant::now(), said));
            }
            _ => drop(self.away.borrow_mut().remove(&uri)),
        }
        looked
    }

    /// The owner of an address on another host, if that can be reached.
    async fn held_elsewhere(&self, host: &Hypervisor, address: IpAddr) -> Result<Option<String>, ProviderError> {
        for other in self.hypervisors.iter().filter(|other| other.uri() != host.uri()) {
            if self.answers(other).await?
                && let Some(by) = other.holder_of(address).await?
            {
                return Ok(Some(by));
            }
        }
        Ok(None)
    }
}

/// A machine that was found, with the UUID of its domain.
type Found = (String, quorate_core::model::MemberName, MachineSeen);

#[async_trait(?Send)]
impl Provider for Libvirt {
    fn patience(&self) -> Duration {
        Duration::from_millis(self.settings.boot_patience.0)
    }

    async fn how_machines_run(&self) -> Option<String> {
        if let [only] = &self.hypervisors[..] {
            return Some(only.how_machines_run().await);
        }
        let each = self.hypervisors.iter().map(async |h| format!("{}: {}", h.uri(), h.how_machines_run().await));
        Some(join_all(each).await.join("; "))
    }

    async fn machines(&self) -> Result<Machines, ProviderError> {
        let looks = join_all(self.hypervisors.iter().map(|hypervisor| self.look_at(hypervisor))).await;
        let (mut machines, mut domains) = (Machines::default(), BTreeSet::new());
        let mut unseen = None;
        for (hypervisor, looked) in self.hypervisors.iter().zip(looks) {
            match looked {
                // Two URIs may lead to the same host.
                Ok(found) => machines.found.extend(
                    found.into_iter().filter(|(uuid, ..)| domains.insert(uuid.clone())).map(|(_, m, seen)| (m, seen)),
                ),
                Err(error) if error.is_away() => {
                    machines.away.insert(hypervisor.uri().to_owned(), error.to_string());
                    unseen = Some(error);
                }
                Err(error) => return Err(error.into()),
            }
        }
        match unseen {
            Some(error) if machines.away.len() == self.hypervisors.len() => Err(error.into()),
            _ => Ok(machines),
        }
    }

    fn dial(&self, id: &MachineId, _: &MachineSeen) -> Dial {
        self.hypervisors.iter().find_map(|hypervisor| hypervisor.line(id)).map_or(Dial::Address, Dial::Line)
    }

    async fn admit(&self, fence: u64) -> Result<(), ProviderError> {
        self.missed.borrow_mut().clear();
        for hypervisor in &self.hypervisors {
            if self.answers(hypervisor).await? {
                hypervisor.admit(fence).await?;
            } else {
                self.missed.borrow_mut().insert(hypervisor.uri().to_owned());
            }
        }
        Ok(())
    }

    async fn dismiss(&self, fence: u64) -> Result<(), ProviderError> {
        for hypervisor in &self.hypervisors {
            if self.answers(hypervisor).await? {
                hypervisor.dismiss(fence).await?;
            }
        }
        Ok(())
    }

    async fn create(&self, new: &NewMachine<'_>) -> Result<(), ProviderError> {
        let missing = || LibvirtError::NotInSpec { member: new.id.member.to_string() };
        let member = self.spec.machine(new.id.member.seat()).ok_or_else(missing)?;
        let uri = self.settings.uri_of(&member);
        let host = self.hypervisors.iter().find(|hypervisor| hypervisor.uri() == uri).ok_or_else(missing)?;
        // What earlier controllers left half made there goes first.
        if self.missed.borrow().contains(uri) {
            host.admit(new.fence).await?;
            self.missed.borrow_mut().remove(uri);
        }
        let elsewhere = match new.address {
            Some(address) => self.held_elsewhere(host, address).await?,
            None => None,
        };
        host.create(new, elsewhere).await
    }

    async fn start(&self, machine: &MachineId) -> Result<(), ProviderError> {
        match self.host_of(machine).await? {
            Some(host) => host.start(machine).await,
            None => {
                Err(ProviderError::NoSuchMachine { cluster: self.spec.name.to_string(), machine: machine.to_string() })
            }
        }
    }

    async fn stop(&self, machine: &MachineId) -> Result<(), ProviderError> {
        match self.host_of(machine).await? {
            Some(host) => host.stop(machine).await,
            None => Ok(()),
        }
    }

    async fn destroy(&self, machine: &MachineId, data: Data) -> Result<(), ProviderError> {
        if let Some(host) = self.host_of(machine).await? {
            return host.destroy(machine, data).await;
        }
        for hypervisor in &self.hypervisors {
            hypervisor.destroy(machine, data).await?;
        }
        Ok(())
    }

    async fn forget(&self) -> Result<(), ProviderError> {
        for hypervisor in &self.hypervisors {
            hypervisor.forget().await?;
        }
        Ok(())
    }

    async fn console(&self, machine: &MachineId) -> Result<String, ProviderError> {
        match self.host_of(machine).await? {
            Some(host) => host.console(machine).await,
            None => Ok(String::new()),
        }
    }
}
