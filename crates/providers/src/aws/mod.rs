//! The provider `aws`: instances of EC2 with network interfaces and volumes, over its query protocol.
//!
//! An instance is created last and deleted first, because the resources that it uses must exist before it and after it. So each of them has
//! a mark in its tags. A killed controller leaves a draft, or an interface or a volume without an instance, and the next controller deletes
//! it.

mod balancer;
mod compute;
mod create;
mod credentials;
mod error;
mod groups;
mod image;
mod instance;
mod network;
mod profile;
mod records;
mod seed;
mod session;
mod sign;
#[cfg(test)]
mod test_server;
mod volumes;
mod vpc;
mod xml;
mod zones;

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use quorate_core::desire;
use quorate_core::model::{
    Build, FixtureId, FixtureKind, FixtureSeen, Ledger, MachineId, MachineSeen, MemberName, Opening,
};
use quorate_core::providers::Settings;
use quorate_core::providers::aws::AwsSettings;
use quorate_core::spec::ClusterSpec;

use crate::marks::{Mark, State, key};
use crate::web::Retry;
use crate::{Data, Machines, NewMachine, Provider, ProviderError};
pub use error::AwsError;
use instance::Instance;
use network::{Interface, Site};
use session::Session;
use volumes::Volume;

/// How much of a console is shown when there is nothing else to show.
const LAST_LINES: usize = 20;
const POLLING: Duration = Duration::from_secs(1);
/// Between two looks at load balancers and records: Route53 takes five requests per second from an account.
const LOOKS_BETWEEN: u32 = 5;

pub struct Aws {
    settings: AwsSettings,
    spec: ClusterSpec,
    cluster_id: String,
    patience: Duration,
    polling: Duration,
    session: OnceCell<Rc<Session>>,
    /// The possible places of machines, once they were looked up in a run. Locked while a VPC is created or deleted.
    site: tokio::sync::Mutex<Option<Rc<Site>>>,
    /// Instances that the last list had, by id.
    known: RefCell<BTreeSet<String>>,
    /// The machines' open ports; empty if the operator provides security groups.
    openings: Vec<Opening>,
    /// The security group of members that quorate creates, by id, once it has its rules.
    member_group: tokio::sync::Mutex<Option<String>>,
    /// Fixtures: those of the spec, and those in the ledger.
    fixtures: BTreeSet<FixtureId>,
    /// These as they were last seen.
    seen_fixtures: RefCell<Option<(Instant, Vec<FixtureSeen>)>>,
    /// The ids of hosted zones, by their name.
    zones: RefCell<BTreeMap<String, BTreeSet<String>>>,
    /// Zones in which this cluster has nothing at a name, and where this run makes nothing.
    empty_zones: RefCell<BTreeSet<(String, String)>>,
}

impl Aws {
    pub fn new(ledger: &Ledger, settings: &AwsSettings) -> Self {
        let wished = settings.fixtures(&ledger.spec).into_iter().map(|wish| wish.id);
        Aws {
            settings: settings.clone(),
            spec: ledger.spec.clone(),
            cluster_id: ledger.cluster_id.clone(),
            patience: Duration::from_millis(settings.boot_patience.0),
            polling: POLLING,
            session: OnceCell::new(),
            site: tokio::sync::Mutex::new(None),
            known: RefCell::default(),
            openings: if settings.security_groups.is_none() { desire::openings(ledger) } else { Vec::new() },
            member_group: tokio::sync::Mutex::new(None),
            fixtures: wished.chain(ledger.fixtures.0.keys().cloned()).collect(),
            seen_fixtures: RefCell::default(),
            zones: RefCell::default(),
            empty_zones: RefCell::default(),
        }
    }

    /// With these variables in place of the environment's; looks more often, and repeats failed requests sooner and less often.
    pub fn impatient(self, variables: &[(&str, &str)], attempts: u32, pause: Duration) -> Result<Self, AwsError> {
        let variables: Vec<(String, String)> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let find = move |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let retry = Retry { attempts, first: pause, longest: pause * 2 };
        let session = Session::new(&self.settings, Rc::new(find), retry)?;
        Ok(Aws { session: OnceCell::from(Rc::new(session)), polling: pause, ..self })
    }

    fn session(&self) -> Result<&Session, AwsError> {
        if self.session.get().is_none() {
            let _ = self.session.set(Session::of(&self.settings)?);
        }
        Ok(self.session.get().expect("it was set"))
    }

    async fn find(&self, machine: &MachineId) -> Result<Option<(Instance, Mark)>, AwsError> {
        let ours = self.ours().await?;
        Ok(ours.into_iter().find(|(_, mark)| mark.is_of(machine) && mark.state == State::Whole))
    }

    /// Whether a machine's interface stays for the next one, which is to have the same address.
    fn keeps_interface(&self, mark: &Mark, data: Data) -> bool {
        let pinned = self.spec.machine(mark.member.seat()).and_then(|member| member.address);
        data == Data::Stays || pinned == Some(mark.address)
    }

    /// Deletes an instance with everything that was created for it.
    async fn clear(&self, instance: &Instance, mark: &Mark, data: Data) -> Result<(), AwsError> {
        let volume = mark.data.clone().filter(|_| data == Data::Goes);
        let interface = mark.port.clone().filter(|_| mark.state != State::Whole || !self.keeps_interface(mark, data));
        let going = || (key("state"), State::Going.name().to_owned());
        // Once the instance is gone, only their own marks show that these are to be deleted too.
        for id in [&volume, &interface].into_iter().flatten() {
            match self.tag("mark what goes with an instance", &[id], [going()]).await {
                Err(error) if error.is_absent() => {}
                changed => changed?,
            }
        }
        if mark.state == State::Whole {
            // From now on it no longer counts as a machine, wherever this may be interrupted.
            let tags = [
                going(),
                (key("data"), volume.clone().unwrap_or_default()),
                (key("port"), interface.clone().unwrap_or_default()),
            ];
            match self.tag(&format!("mark {}", instance.name), &[&instance.id], tags).await {
                Err(error) if error.is_absent() => {}
                changed => changed?,
            }
        }
        self.terminate(&instance.id).await?;
        if let Some(interface) = &interface {
            self.delete_interface(interface).await?;
        }
        Ok(())
    }

    /// Deletes partially deleted resources, and drafts, interfaces and volumes that are `doomed`: created under such a fencing number,
    /// for such a machine. Returns the remaining interfaces; none: nothing that needs a group is left.
    async fn sweep(
        &self,
        doomed: impl Fn(u64, Option<&MachineId>) -> bool,
    ) -> Result<Option<Vec<Interface>>, ProviderError> {
        let mut kept = Vec::new();
        for (instance, mark) in self.ours().await? {
            if mark.state == State::Going || mark.state == State::Draft && doomed(mark.fence, None) {
                // Data to keep is not in such a mark.
                self.clear(&instance, &mark, Data::Goes).await?;
            } else {
                kept.push(mark);
            }
        }
        let mut left = Vec::new();
        for interface in self.interfaces().await? {
            let is_used = kept.iter().any(|mark| mark.port.as_ref() == Some(&interface.id));
            // One that is whole waits for its member's next machine.
            let is_unwanted = match interface.state {
                State::Going => true,
                State::Draft => doomed(interface.fence, Some(&interface.machine)),
                State::Whole => self.spec.machine(interface.machine.member.seat()).is_none(),
            };
            if is_unwanted && !is_used {
                self.delete_interface(&interface.id).await?;
            } else {
                left.push(interface);
            }
        }
        let volumes: Vec<String> = kept.iter().filter_map(|mark| mark.data.clone()).collect();
        self.sweep_volumes(&volumes, |volume: &Volume| doomed(volume.fence(), None)).await?;
        if !kept.is_empty() || !left.is_empty() {
            return Ok(Some(left));
        }
        // Those that the operator's machines have stay until the cluster is forgotten.
        self.drop_groups(&[]).await?;
        Ok(None)
    }

    fn seen(&self, instance: &Instance, mark: Mark) -> (MemberName, MachineSeen) {
        let member = self.spec.machine(mark.member.seat());
        let build = instance.build(&mark, &self.settings, member.as_deref());
        let data = build.as_ref().and_then(Build::data);
        let power = instance.power();
        let Mark { cluster_id, member, incarnation, address, .. } = mark;
        let (headless, outdated, address, place) = (false, false, Some(address), None);
        (member, MachineSeen { cluster_id, incarnation, power, headless, outdated, address, build, data, place })
    }
}

#[async_trait(?Send)]
impl Provider for Aws {
    fn patience(&self) -> Duration {
        self.patience
    }

    async fn machines(&self) -> Result<Machines, ProviderError> {
        let whole = self.marked().await?.into_iter().filter(|(_, mark)| mark.state == State::Whole);
        let found = whole.map(|(instance, mark)| self.seen(&instance, mark)).collect();
        Ok(Machines { found, ..Machines::default() })
    }

    async fn admit(&self, fence: u64) -> Result<(), ProviderError> {
        if let Some(interfaces) = self.sweep(|made, _| made < fence).await? {
            if self.settings.vpc_cidr.is_some() {
                // Compared again, and corrected.
                *self.site.lock().await = None;
                self.site().await?;
            }
            self.keep_groups(&interfaces).await?;
        }
        Ok(())
    }

    async fn dismiss(&self, fence: u64) -> Result<(), ProviderError> {
        if self.sweep(|made, _| made <= fence).await?.is_none() {
            // One that others use stays until the cluster is forgotten.
            self.drop_network().await?;
        }
        Ok(())
    }

    async fn create(&self, new: &NewMachine<'_>) -> Result<(), ProviderError> {
        let mut ours = self.ours().await?;
        let there = ours.iter().find(|(_, mark)| mark.is_of(&new.id) && mark.state == State::Whole);
        if let Some((instance, _)) = there {
            return Ok(self.power_on(instance).await?);
        }
        // A draft of an earlier attempt in this run.
        while let Some(at) = ours.iter().position(|(_, mark)| mark.is_of(&new.id)) {
            let (instance, mark) = ours.swap_remove(at);
            self.clear(&instance, &mark, Data::Goes).await?;
        }
        for left in self.interfaces().await?.iter().filter(|left| left.machine == new.id && left.state == State::Draft)
        {
            self.delete_interface(&left.id).await?;
        }
        let name = format!("{}-{}", self.spec.name, new.name);
        self.make(&name, new, &ours).await
    }

    async fn start(&self, machine: &MachineId) -> Result<(), ProviderError> {
        match self.find(machine).await? {
            Some((instance, _)) => Ok(self.power_on(&instance).await?),
            None => {
                Err(ProviderError::NoSuchMachine { cluster: self.spec.name.to_string(), machine: machine.to_string() })
            }
        }
    }

    async fn stop(&self, machine: &MachineId) -> Result<(), ProviderError> {
        match self.find(machine).await? {
            Some((instance, _)) => Ok(self.shut_down(&instance).await?),
            None => Ok(()),
        }
    }

    async fn destroy(&self, machine: &MachineId, data: Data) -> Result<(), ProviderError> {
        if let Some((instance, mark)) = self.find(machine).await? {
            if data == Data::Stays {
                self.shut_down(&instance).await?;
            }
            self.clear(&instance, &mark, data).await?;
        }
        // What an interrupted attempt has left of it, and its data volume if that goes.
        self.sweep(|_, left| left == Some(machine)).await.map(drop)
    }

    async fn fixtures(&self) -> Result<Vec<FixtureSeen>, ProviderError> {
        let fresh = self.polling * LOOKS_BETWEEN;
        if let Some((_, seen)) = self.seen_fixtures.borrow().as_ref().filter(|(at, _)| at.elapsed() < fresh) {
            return Ok(seen.clone());
        }
        let mut found = Vec::new();
        for fixture in &self.fixtures {
            found.extend(match fixture.kind {
                FixtureKind::LoadBalancer => self.see_balancer().await?,
                FixtureKind::Records => self.see_records(fixture).await?,
            });
        }
        *self.seen_fixtures.borrow_mut() = Some((Instant::now(), found.clone()));
        Ok(found)
    }

    async fn put_fixture(
        &self,
        fixture: &FixtureId,
        leads_to: &BTreeMap<MemberName, IpAddr>,
    ) -> Result<(), ProviderError> {
        *self.seen_fixtures.borrow_mut() = None;
        match fixture.kind {
            FixtureKind::LoadBalancer => self.put_balancer(leads_to).await?,
            FixtureKind::Records => self.put_records(fixture, leads_to).await?,
        }
        Ok(())
    }

    async fn drop_fixture(&self, fixture: &FixtureId) -> Result<(), ProviderError> {
        *self.seen_fixtures.borrow_mut() = None;
        match fixture.kind {
            FixtureKind::LoadBalancer => self.drop_balancer().await?,
            FixtureKind::Records => self.drop_records(fixture).await?,
        }
        Ok(())
    }

    async fn console(&self, machine: &MachineId) -> Result<String, ProviderError> {
        let Some((instance, _)) = self.find(machine).await? else { return Ok(String::new()) };
        let mut parts: Vec<String> = instance.remark().into_iter().collect();
        parts.extend(self.health(&instance).await?);
        parts.extend(Some(self.console_output(&instance, LAST_LINES).await?).filter(|output| !output.is_empty()));
        Ok(parts.join("\n"))
    }

    async fn forget(&self) -> Result<(), ProviderError> {
        self.sweep(|_, _| true).await?;
        let kept: Vec<Mark> = self.ours().await?.into_iter().map(|(_, mark)| mark).collect();
        let has =
            |id: &String| kept.iter().any(|mark| mark.data.as_ref() == Some(id) || mark.port.as_ref() == Some(id));
        for volume in self.volumes().await?.iter().filter(|volume| !has(&volume.id)) {
            self.delete_volume(volume).await?;
        }
        for interface in self.interfaces().await?.iter().filter(|interface| !has(&interface.id)) {
            self.delete_interface(&interface.id).await?;
        }
        match self.drop_groups(&[]).await? {
            used if used.is_empty() => {}
            groups => return Err(AwsError::GroupsInUse { groups }.into()),
        }
        match self.drop_network().await? {
            used if used.is_empty() => Ok(()),
            vpcs => Err(AwsError::VpcInUse { vpcs }.into()),
        }
    }
}
