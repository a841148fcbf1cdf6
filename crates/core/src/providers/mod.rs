//! Machines in the spec: one folder for each provider, with its settings, their checks, its template and their meaning
//! for the planner. Nothing outside a provider's folder names its fields. The crate `providers` creates the machines.

pub mod access;
pub mod admin;
pub mod aws;
pub mod incus;
pub mod libvirt;
pub mod local;
pub mod openstack;
pub mod program;

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::SignedDuration;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use crate::kinds::postgres::spec::Tags;
use crate::model::{Build, FixtureId, FixtureWish};
use crate::spec::check::{Cluster, Findings};
use crate::spec::{ClusterSpec, Name, Size, Spec};

/// Where machines are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(transform = add_words)]
pub enum Provider {
    /// On this machine, as processes.
    Local(local::LocalSettings),
    /// As virtual machines of libvirt.
    Libvirt(Box<libvirt::LibvirtSettings>),
    /// As system containers or virtual machines of Incus.
    Incus(Box<incus::IncusSettings>),
    /// As servers of OpenStack.
    Openstack(Box<openstack::OpenstackSettings>),
    /// As instances of AWS.
    Aws(Box<aws::AwsSettings>),
}

/// Providers whose name alone is enough: all their settings have defaults.
const WORDS: [&str; 1] = ["local"];

/// The beginning of a commented spec for each provider: all that is about machines.
pub const TEMPLATES: [(&str, &str); 5] = [
    ("local", local::TEMPLATE),
    ("libvirt", libvirt::TEMPLATE),
    ("incus", incus::TEMPLATE),
    ("openstack", openstack::TEMPLATE),
    ("aws", aws::TEMPLATE),
];

impl Provider {
    pub fn settings(&self) -> &dyn Settings {
        match self {
            Provider::Local(settings) => settings,
            Provider::Libvirt(settings) => settings.as_ref(),
            Provider::Incus(settings) => settings.as_ref(),
            Provider::Openstack(settings) => settings.as_ref(),
            Provider::Aws(settings) => settings.as_ref(),
        }
    }
}

impl Default for Provider {
    fn default() -> Self {
        Provider::Local(local::LocalSettings::default())
    }
}

/// A member of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberSpec {
    /// Name of the member. It cannot be changed.
    pub name: Name,
    /// A pinned address. If absent, the provider chooses one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Its machine, under the provider `libvirt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub libvirt: Option<libvirt::MachineSettings>,
    /// Its instance, under the provider `incus`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incus: Option<incus::InstanceSettings>,
    /// Its server, under the provider `openstack`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub openstack: Option<openstack::ServerSettings>,
    /// Its instance, under the provider `aws`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aws: Option<aws::AwsInstance>,
    /// Patroni's tags for it, in PostgreSQL clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Tags>,
}

impl MemberSpec {
    /// A member of which nothing but the name is said.
    pub fn named(name: Name) -> Self {
        MemberSpec { name, address: None, libvirt: None, incus: None, openstack: None, aws: None, tags: None }
    }

    /// The same machine without a disk for data: it has none that should outlive it.
    pub(crate) fn without_data(&self) -> Self {
        MemberSpec {
            libvirt: Some(libvirt::section(self).without_data()),
            incus: Some(incus::section(self).without_data()),
            openstack: Some(openstack::section(self).without_data()),
            aws: Some(aws::section(self).without_data()),
            ..self.clone()
        }
    }

    /// Settings that concern data, by their path.
    pub(crate) fn data_settings(&self) -> Vec<&'static str> {
        let settings = [
            ("libvirt.data_volume", libvirt::section(self).data_volume.is_some()),
            ("libvirt.data_size", libvirt::section(self).data_size.is_some()),
            ("incus.data_size", incus::section(self).data_size.is_some()),
            ("openstack.data_size", openstack::section(self).data_size.is_some()),
            ("aws.data_size", aws::section(self).data_size.is_some()),
        ];
        settings.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
    }

    /// The names of the providers that it has a section for.
    fn sections(&self) -> Vec<&'static str> {
        let sections = [
            ("libvirt", self.libvirt.is_some()),
            ("incus", self.incus.is_some()),
            ("openstack", self.openstack.is_some()),
            ("aws", self.aws.is_some()),
        ];
        sections.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
    }
}

/// The kind of machine, as the planner distinguishes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MachineKind {
    /// Processes of this host, which share its clock, its firewall and its logs, and start at once.
    Process,
    /// A system container: it boots, and has its host's kernel and clock.
    Container,
    /// A virtual machine. It boots, and quorate manages everything on it.
    Vm,
}

/// The meaning of a provider's part of a spec. Pure: what only the provider itself knows is checked when machines are created.
pub trait Settings {
    fn name(&self) -> &'static str;

    fn machines(&self) -> MachineKind;

    /// How long a machine may take to boot.
    fn boots_within(&self) -> SignedDuration {
        SignedDuration::ZERO
    }

    /// The pause between observations of a waiting run. A cloud limits the calls of its clients, and its machines take longer than that.
    fn longest_pause(&self) -> SignedDuration {
        SignedDuration::from_millis(100)
    }

    /// The memory of a member's machine. None: that of this host, or, of a virtual machine, nothing that a spec says.
    fn memory(&self, _: &MemberSpec) -> Option<Size> {
        None
    }

    /// The pinned address of a member.
    fn pinned(&self, member: &MemberSpec) -> Option<IpAddr> {
        member.address
    }

    /// The build of a member's machine; nothing if machines are processes.
    fn build(&self, _: &MemberSpec) -> Option<Build> {
        None
    }

    /// The place of a member's machine, for providers with several places, each of which may be unreachable.
    fn place(&self, _: &MemberSpec) -> Option<String> {
        None
    }

    /// The place of a member's data, if its next machine can use it too.
    fn kept_data(&self, member: &MemberSpec) -> Option<String> {
        self.build(member)?.data()
    }

    /// Whether only the machines themselves, and clients that this host puts there, are on their network.
    fn is_isolated(&self) -> bool {
        false
    }

    /// The command prefix for clients on this host; empty if its own network reaches the machines.
    fn clients_start_with(&self) -> &'static str {
        ""
    }

    /// Whether the controller reaches the agent of a member over the network.
    fn reaches_by_network(&self, _: &MemberSpec) -> bool {
        true
    }

    /// The cluster's fixtures, dependencies first.
    fn fixtures(&self, _: &ClusterSpec) -> Vec<FixtureWish> {
        Vec::new()
    }

    /// What a fixture of this cluster is called now, if an older version recorded it under another id.
    fn present_fixture(&self, _: &ClusterSpec, _recorded: &FixtureId) -> Option<FixtureId> {
        None
    }

    /// Names of these by which clients connect to a member.
    fn names(&self, _: &ClusterSpec, _: &MemberSpec) -> Vec<String> {
        Vec::new()
    }

    /// The one name for the whole cluster, if the spec has one.
    fn cluster_name(&self, _: &ClusterSpec) -> Option<String> {
        None
    }

    /// Settings that cannot be changed once a cluster exists, by their path in the spec.
    fn fixed(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// The problems of a cluster's settings and of its members' sections.
    fn check(&self, cluster: &Cluster<'_>, found: &mut Findings<'_>);
}

/// Reads a provider. A name alone means that all settings have their defaults.
pub(crate) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Provider, D::Error> {
    let value = match Value::deserialize(deserializer)? {
        Value::String(word) => json!({ word: {} }),
        settings => settings,
    };
    serde_json::from_value(value).map_err(serde::de::Error::custom)
}

fn add_words(schema: &mut Schema) {
    if let Some(variants) = schema.get_mut("oneOf").and_then(Value::as_array_mut) {
        variants.extend(WORDS.map(|word| json!({ "type": "string", "const": word })));
    }
}

/// Checks of one cluster: its provider's own, and that no member has a section of another provider.
pub(crate) fn check(cluster: &Cluster<'_>, found: &mut Findings<'_>) {
    let settings = cluster.spec.provider.settings();
    for (at, member) in cluster.spec.entries() {
        for other in member.sections().into_iter().filter(|section| *section != settings.name()) {
            found.error(
                cluster.at(&format!("{at}.{other}")),
                format!(
                    "`{other}` is for machines of the provider `{other}`, and the provider is `{}`",
                    settings.name()
                ),
                format!("remove it, or write `provider: {{{other}: …}}`"),
            );
        }
    }
    settings.check(cluster, found);
}

/// Checks across the clusters of a file.
pub(crate) fn check_all(spec: &Spec, found: &mut Findings<'_>) {
    libvirt::check_all(spec, found);
}

/// Where a field of an older spec is now. Shown in place of "unknown field".
pub(crate) fn moved(path: &str) -> Option<String> {
    let (within, field) = path.rsplit_once('.')?;
    match field {
        "interfaces" | "root_volume" | "data_volume" if within.contains(".members[") => {
            Some(format!("{within}.libvirt.{field}"))
        }
        "network" | "keep_data" if within.starts_with("clusters[") && !within.contains('.') => {
            Some(format!("{within}.provider.local.{field}"))
        }
        _ => None,
    }
}

/// Converts the spec in a ledger of format 2 or older.
pub fn migrate(spec: &mut Value) {
    let Some(cluster) = spec.as_object_mut() else { return };
    let mut local: serde_json::Map<String, Value> = serde_json::Map::new();
    for field in ["network", "keep_data"] {
        local.extend(cluster.remove(field).map(|value| (field.to_owned(), value)));
    }
    if cluster.get("provider").is_none_or(|provider| provider == "local") {
        cluster.insert("provider".to_owned(), json!({ "local": local }));
    }
    for member in cluster.get_mut("members").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(member) = member.as_object_mut() else { continue };
        let mut section = serde_json::Map::new();
        for field in ["interfaces", "root_volume", "data_volume"] {
            section.extend(member.remove(field).map(|value| (field.to_owned(), value)));
        }
        if !section.is_empty() {
            member.insert("libvirt".to_owned(), Value::Object(section));
        }
    }
}
