//! The provider `incus` as types: which server, what instances are created from, and how they are connected.

mod check;

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::admin::AdminSettings;
use super::{MachineKind, MemberSpec, Settings};
use crate::model::{Build, DATA_VOLUME, TARGET};
use crate::spec::check::{Cluster, Findings};
use crate::spec::{Millis, Size};

pub(super) const TEMPLATE: &str = include_str!("template.yaml");

/// Instances of Incus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IncusSettings {
    /// The server, by its name in `incus remote list`. If absent, the one on this host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub remote: Option<String>,
    /// The project that instances are made in. If absent, that of the remote, or `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub project: Option<String>,
    /// Whether members are system containers or virtual machines.
    #[serde(default, rename = "type")]
    pub kind: InstanceKind,
    /// The image: an alias or fingerprint on the server, or `REMOTE:ALIAS` for one that the server fetches.
    #[schemars(length(min = 1))]
    pub image: String,
    /// Whether the image contains quorate's agent. If not, it is copied to each instance.
    #[serde(default)]
    pub has_agent: bool,
    /// Profiles of each instance, in order. Settings of the spec override them.
    #[serde(default = "default_profiles")]
    pub profiles: Vec<String>,
    /// The storage pool for root disks and data volumes.
    #[serde(default = "default_pool")]
    #[schemars(length(min = 1))]
    pub pool: String,
    /// The network: one that Incus manages, such as `incusbr0` or an OVN network, or a bridge of the host.
    #[serde(default = "default_network")]
    #[schemars(length(min = 1))]
    pub network: String,
    /// The length of the network's prefix. Needed only for a network that Incus does not manage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<u8>,
    /// The gateway. If absent, that of the managed network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Name servers. If absent, that of the managed bridge; an OVN network has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dns: Vec<IpAddr>,
    /// How many processors each instance may use; a member may have its own number. If absent, as the profiles say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Memory of each instance; a member may have its own size. If absent, as the profiles say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// The size of each root disk. If absent, as the pool says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_size: Option<Size>,
    /// When set, each member gets a data volume of this size, which outlives its instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_size: Option<Size>,
    /// How long to wait for an instance to boot and its agent to answer.
    #[serde(default = "default_boot_patience")]
    pub boot_patience: Millis,
    /// Who may log in by ssh. If absent, no one: `incus exec` always works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<AdminSettings>,
}

fn default_profiles() -> Vec<String> {
    vec![String::from("default")]
}

fn default_pool() -> String {
    String::from("default")
}

fn default_network() -> String {
    String::from("incusbr0")
}

fn default_boot_patience() -> Millis {
    Millis(180_000)
}

/// The type of instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InstanceKind {
    /// A system container: boots in seconds, shares the host's kernel, page cache and clock.
    #[default]
    Container,
    /// A virtual machine: its own kernel, and memory that nothing else on the host can take.
    Vm,
}

impl InstanceKind {
    pub fn name(self) -> &'static str {
        match self {
            InstanceKind::Container => "container",
            InstanceKind::Vm => "vm",
        }
    }
}

/// The instance of one member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InstanceSettings {
    /// The host in an Incus cluster that its instance is on. If absent, quorate spreads members over the hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub target: Option<String>,
    /// Further addresses, such as one of the other family. etcd does not use them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub more_addresses: Vec<IpAddr>,
    /// Its processors. If absent, those of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Its memory. If absent, that of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// The size of its root disk. If absent, that of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root_size: Option<Size>,
    /// The size of its data volume. If absent, that of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_size: Option<Size>,
}

static NO_SECTION: InstanceSettings = InstanceSettings {
    target: None,
    more_addresses: Vec::new(),
    cpus: None,
    memory: None,
    root_size: None,
    data_size: None,
};

/// The section of a member; empty where there is none.
pub fn section(member: &MemberSpec) -> &InstanceSettings {
    member.incus.as_ref().unwrap_or(&NO_SECTION)
}

impl InstanceSettings {
    pub(crate) fn without_data(&self) -> Self {
        InstanceSettings { data_size: Some(Size(0)), ..self.clone() }
    }
}

impl IncusSettings {
    pub fn cpus_of(&self, member: &MemberSpec) -> Option<u32> {
        section(member).cpus.or(self.cpus)
    }

    pub fn memory_of(&self, member: &MemberSpec) -> Option<Size> {
        section(member).memory.or(self.memory)
    }

    pub fn root_size_of(&self, member: &MemberSpec) -> Option<Size> {
        section(member).root_size.or(self.root_size)
    }

    pub fn data_size_of(&self, member: &MemberSpec) -> Option<Size> {
        section(member).data_size.or(self.data_size).filter(|size| size.0 > 0)
    }
}

impl Settings for IncusSettings {
    fn name(&self) -> &'static str {
        "incus"
    }

    fn machines(&self) -> MachineKind {
        match self.kind {
            InstanceKind::Container => MachineKind::Container,
            InstanceKind::Vm => MachineKind::Vm,
        }
    }

    fn boots_within(&self) -> SignedDuration {
        SignedDuration::from_millis(i64::try_from(self.boot_patience.0).unwrap_or(i64::MAX))
    }

    fn memory(&self, member: &MemberSpec) -> Option<Size> {
        self.memory_of(member)
    }

    fn build(&self, member: &MemberSpec) -> Option<Build> {
        let told = |size: Option<Size>| size.map(|size| size.to_string());
        Some(Build::new([
            ("type", Some(self.kind.name().to_owned())),
            ("image", Some(self.image.clone())),
            ("cpus", self.cpus_of(member).map(|cpus| cpus.to_string())),
            ("memory", told(self.memory_of(member))),
            ("root size", told(self.root_size_of(member))),
            (TARGET, section(member).target.clone()),
            (DATA_VOLUME, told(self.data_size_of(member))),
        ]))
    }

    fn place(&self, member: &MemberSpec) -> Option<String> {
        section(member).target.clone()
    }

    fn fixed(&self) -> BTreeMap<String, String> {
        let remote = self.remote.as_deref().unwrap_or("local");
        let project = self.project.as_deref().unwrap_or("default");
        let fixed = [("remote", remote), ("project", project)];
        fixed.into_iter().map(|(field, value)| (format!("provider.incus.{field}"), value.to_owned())).collect()
    }

    fn check(&self, cluster: &Cluster<'_>, found: &mut Findings<'_>) {
        check::check(self, cluster, found);
    }
}
