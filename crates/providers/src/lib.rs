//! Providers, which create machines. A provider knows machines and their marks, and nothing about etcd; it never
//! touches anything without this cluster's mark.

mod aws;
mod fat;
mod incus;
mod kept;
mod libvirt;
mod local;
mod marks;
mod openstack;
mod rules;
mod seed_disk;
mod stock;
mod web;
mod words;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use quorate_agent::api::{LogOf, Seed};
pub use quorate_agent::dial::Dial;
use quorate_core::Secret;
pub use quorate_core::model::Data;
use quorate_core::model::{FixtureId, FixtureSeen, Ledger, MachineId, MachineSeen, MemberName};
use quorate_core::spec;

pub use aws::{Aws, AwsError};
pub use incus::{Image, Imported, Incus, IncusError, import as import_image};
pub use libvirt::{Libvirt, LibvirtError};
pub use local::{Local, is_controllers_alone, mark, netns};
#[doc(hidden)]
pub use openstack::upload_with as upload_image_with;
pub use openstack::{Openstack, OpenstackError, Upload, Uploaded, upload as upload_image};

/// The provider of one cluster's machines. Every call can be repeated safely.
#[async_trait(?Send)]
pub trait Provider {
    /// How long to wait for its machines without progress.
    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// How new machines would run, for people; absent if there is nothing to report.
    async fn how_machines_run(&self) -> Option<String> {
        None
    }

    /// Every machine with this cluster's name, by any creator: the mark on each shows which.
    async fn machines(&self) -> Result<Machines, ProviderError>;

    /// Allows the controller with this fencing number to create machines, and none with a lower one from now on: their unfinished
    /// resources are removed, and leftovers of machines that are off. Called at the beginning of a run, before the lock is confirmed,
    /// and at its end.
    async fn admit(&self, fence: u64) -> Result<(), ProviderError>;

    /// The controller with this fencing number creates no more machines.
    async fn dismiss(&self, fence: u64) -> Result<(), ProviderError>;

    /// Creates a machine and switches it on; an existing one is only switched on. The provider chooses its address, keeps it for
    /// this machine and puts it into the seed; from then on `machines` shows it, at once or when the machine has it.
    async fn create(&self, new: &NewMachine<'_>) -> Result<(), ProviderError>;

    async fn start(&self, machine: &MachineId) -> Result<(), ProviderError>;
    async fn stop(&self, machine: &MachineId) -> Result<(), ProviderError>;

    /// Removes a machine. Data that `Stays` is kept for the member's next one.
    async fn destroy(&self, machine: &MachineId, data: Data) -> Result<(), ProviderError>;

    /// The cluster's fixtures, and obstacles in the place of desired ones. Providers without fixtures return nothing.
    async fn fixtures(&self) -> Result<Vec<FixtureSeen>, ProviderError> {
        Ok(Vec::new())
    }

    /// Creates or corrects a fixture of the spec. It points to these members from then on or, if there are none and the spec says so, to
    /// another fixture. Resources of others are refused.
    async fn put_fixture(
        &self,
        fixture: &FixtureId,
        _leads_to: &BTreeMap<MemberName, IpAddr>,
    ) -> Result<(), ProviderError> {
        Err(ProviderError::NoSuchFixture { fixture: fixture.clone() })
    }

    /// Removes a fixture, if it exists and belongs to this cluster.
    async fn drop_fixture(&self, _fixture: &FixtureId) -> Result<(), ProviderError> {
        Ok(())
    }

    /// The end of a machine's console, for people: the only output of a machine whose agent never answers.
    async fn console(&self, machine: &MachineId) -> Result<String, ProviderError>;

    /// The path of a machine's log on this host, for use when its agent does not answer. None: only on the machine.
    fn log_file(&self, _machine: &MachineId, _of: &LogOf) -> Option<PathBuf> {
        None
    }

    /// How this host connects to a machine that `machines` has returned.
    fn dial(&self, _id: &MachineId, _machine: &MachineSeen) -> Dial {
        Dial::Address
    }

    /// The cluster has no machine any more: removes leftovers of interrupted calls, and kept data.
    async fn forget(&self) -> Result<(), ProviderError>;
}

/// The machines that a provider has.
#[derive(Clone, Debug, Default)]
pub struct Machines {
    pub found: Vec<(MemberName, MachineSeen)>,
    /// Places that could not be listed, and why. Machines there may exist all the same.
    pub away: BTreeMap<String, String>,
}

/// A machine to create.
#[derive(Clone, Debug)]
pub struct NewMachine<'a> {
    /// Its name in the provider's own tools.
    pub name: &'a str,
    pub id: MachineId,
    /// The address that it must have. None: the provider chooses.
    pub address: Option<IpAddr>,
    /// If it `Stays`, the machine gets the data of the member's last one.
    pub data: Data,
    /// The fencing number of the controller that creates it.
    pub fence: u64,
    pub control_ca: &'a str,
    pub token: &'a Secret,
    pub token_expires: Timestamp,
}

impl NewMachine<'_> {
    /// The machine's settings, once its address is known.
    fn seed(&self, cluster: &str, cluster_id: &str, address: IpAddr) -> Seed {
        Seed {
            cluster: cluster.to_owned(),
            cluster_id: cluster_id.to_owned(),
            member: self.id.member.clone(),
            incarnation: self.id.incarnation,
            address,
            control_ca: self.control_ca.to_owned(),
            token: self.token.clone(),
            token_expires: self.token_expires,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    #[error("{} cannot be {what}", path.display())]
    Io { what: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{} is already taken{}", SocketAddr::new(*address, *port), by.as_ref().map(|b| format!(" by {b}")).unwrap_or_default())]
    AddressTaken { address: IpAddr, port: u16, by: Option<String> },
    #[error("{address} cannot be used on this machine: {why}")]
    AddressUnusable { address: IpAddr, why: String },
    #[error("no free address was found in {range}")]
    NoAddress { range: String },
    #[error("{} belongs to another cluster: it is marked as {found}", path.display())]
    NotOurs { path: PathBuf, found: String },
    #[error("there is no machine {machine} in cluster {cluster}")]
    NoSuchMachine { cluster: String, machine: String },
    #[error("this provider cannot create {fixture}")]
    NoSuchFixture { fixture: FixtureId },
    #[error("the agent of {member} did not come up; its log ends with: {last_words}")]
    AgentDied { member: MemberName, last_words: String },
    #[error("`network: netns` needs {what}")]
    NetnsNeeds { what: String },
    #[error("the spec names another `network` than that of the cluster's machines: destroy it first, or put it back")]
    OtherNetwork,
    #[error("{member} cannot be cut off or slowed down: that needs a cluster with `network: netns`")]
    OnLoopback { member: MemberName },
    #[error("`{command}` failed: {said}")]
    Command { command: String, said: String },
    #[error(transparent)]
    Libvirt(#[from] LibvirtError),
    #[error(transparent)]
    Incus(#[from] IncusError),
    #[error(transparent)]
    Openstack(#[from] OpenstackError),
    #[error(transparent)]
    Aws(#[from] AwsError),
    #[error(
        "{} is not statically linked, so it may not start on a machine: name one that is in {}, or use an image that has the \
         agent and say `has_agent: true`",
        path.display(),
        seed_disk::PROGRAM_VARIABLE
    )]
    NotStatic { path: PathBuf },
    #[error("{} has {bytes} bytes, too many for a seed disk: strip it of its symbols", path.display())]
    ProgramTooLarge { path: PathBuf, bytes: usize },
}

impl ProviderError {
    /// What the operator can do, where another attempt alone does not help.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            ProviderError::AddressTaken { .. } => {
                Some("free it, or give the member another `address` in the spec; then re-run the same command")
            }
            ProviderError::AddressUnusable { .. } => {
                Some("give the member another `address` in the spec, then re-run the same command")
            }
            _ => None,
        }
    }

    /// Why the provider has no room for another machine, if that is the error: one that is removed makes room.
    pub fn no_room(&self) -> Option<String> {
        match self {
            ProviderError::Openstack(error) => error.no_room(),
            _ => None,
        }
    }
}

/// The providers' directory on this host.
#[derive(Clone, Debug)]
pub struct Directories {
    /// Machines that are processes of this host.
    pub machines: PathBuf,
    /// etcd programs, shared by all machines here.
    pub programs: PathBuf,
    /// Files that may be deleted at any time.
    pub cache: PathBuf,
}

/// The provider of one cluster's machines.
pub fn provider(ledger: &Ledger, directories: &Directories) -> Rc<dyn Provider> {
    match &ledger.spec.provider {
        spec::Provider::Local(settings) => Rc::new(Local::new(directories, ledger, settings)),
        spec::Provider::Libvirt(settings) => Rc::new(Libvirt::new(directories, ledger, settings)),
        spec::Provider::Incus(settings) => Rc::new(Incus::new(ledger, settings)),
        spec::Provider::Openstack(settings) => Rc::new(Openstack::new(ledger, settings)),
        spec::Provider::Aws(settings) => Rc::new(Aws::new(ledger, settings)),
    }
}

/// The same for a command that only shows clusters, one at a time.
pub fn observer(ledger: &Ledger, directories: &Directories) -> Rc<dyn Provider> {
    match &ledger.spec.provider {
        spec::Provider::Openstack(settings) => Rc::new(Openstack::new(ledger, settings).only_looking()),
        _ => provider(ledger, directories),
    }
}

/// The place of machines on this host of a cluster whose ledger is gone. None for providers that cannot tell without a spec.
pub fn machines_without_ledger(directories: &Directories, cluster: &str) -> Option<PathBuf> {
    local::machines_of(directories, cluster)
}

/// The end of a log, if there is any.
fn last_lines(path: &Path, most: usize) -> String {
    let tail = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(8192)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.trim_end().lines().collect();
        Ok(lines[lines.len().saturating_sub(most)..].join("\n"))
    };
    tail().unwrap_or_default()
}
