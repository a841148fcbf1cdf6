//! The provider `libvirt` as types: where machines, their disks and their network interfaces come from.

mod check;

use std::net::IpAddr;

use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::admin::AdminSettings;
use super::{MachineKind, MemberSpec, Settings};
use crate::model::{Build, DATA_VOLUME, HYPERVISOR};
use crate::spec::check::{Cluster, Findings};
use crate::spec::{Mac, Malformed, Millis, Size, Uuid, VolumeName};
pub(super) use check::check_all;

pub(super) const TEMPLATE: &str = include_str!("template.yaml");

/// Machines made by libvirt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LibvirtSettings {
    /// URI of libvirt, as for `virsh --connect`. A member may have another.
    #[serde(default = "default_uri")]
    #[schemars(length(min = 1))]
    pub uri: String,
    /// The storage pool that volumes are made in.
    #[schemars(length(min = 1))]
    pub pool: String,
    /// The image that root disks are made from. Not needed where every member brings a `root_volume`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSettings>,
    /// When set, each member gets a data volume of this size, which outlives its machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_size: Option<Size>,
    /// Virtual processors of each machine; a member may have its own number.
    #[serde(default = "default_vcpus")]
    pub vcpus: u32,
    /// Memory of each machine; a member may have its own size.
    #[serde(default = "default_memory")]
    pub memory: Size,
    /// Whether machines use KVM or are emulated.
    #[serde(default)]
    pub acceleration: Acceleration,
    /// How long to wait for a machine to boot and its agent to answer.
    #[serde(default = "default_boot_patience")]
    pub boot_patience: Millis,
    /// The seed disk: a small disk with a machine's settings.
    #[serde(default)]
    pub cloud_init: CloudInitSettings,
    /// Who may log in to the machines.
    #[serde(default)]
    pub admin: AdminSettings,
}

fn default_uri() -> String {
    "qemu:///system".to_owned()
}

fn default_vcpus() -> u32 {
    2
}

fn default_memory() -> Size {
    Size::gibibytes(8)
}

/// A machine that boots under emulation, with cloud-init at work, takes minutes.
fn default_boot_patience() -> Millis {
    Millis(600_000)
}

/// Whether a libvirt runs on this very host: its URI names no other.
pub fn is_here(uri: &str) -> bool {
    let Some((_, rest)) = uri.split_once("://") else { return true };
    rest.starts_with('/') || rest.is_empty()
}

/// The machine of one member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MachineSettings {
    /// URI of the libvirt that runs its machine. If absent, that of the provider. A member whose `uri` changes gets a new machine there and
    /// copies its data from the others.
    #[schemars(length(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// Its network interfaces, in order. etcd is at the address of the first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<InterfaceSpec>,
    /// An existing volume to boot from, `NAME` or `POOL/NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root_volume: Option<VolumeName>,
    /// An existing volume for etcd's data. It is formatted only if it is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_volume: Option<VolumeName>,
    /// The size of its data volume. If absent, that of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_size: Option<Size>,
    /// Its virtual processors. If absent, those of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    /// Its memory. If absent, that of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
}

static NO_SECTION: MachineSettings = MachineSettings {
    uri: None,
    interfaces: Vec::new(),
    root_volume: None,
    data_volume: None,
    data_size: None,
    vcpus: None,
    memory: None,
};

/// The section of a member; empty where there is none.
pub fn section(member: &MemberSpec) -> &MachineSettings {
    member.libvirt.as_ref().unwrap_or(&NO_SECTION)
}

impl MachineSettings {
    pub(crate) fn without_data(&self) -> Self {
        MachineSettings { data_volume: None, data_size: Some(Size(0)), ..self.clone() }
    }

    /// Whether the host cannot send packets to the machine.
    pub fn is_on_macvtap_alone(&self) -> bool {
        !self.interfaces.is_empty() && self.interfaces.iter().all(|i| matches!(i.to, Attachment::Macvtap(_)))
    }
}

impl LibvirtSettings {
    pub fn uri_of<'a>(&'a self, member: &'a MemberSpec) -> &'a str {
        section(member).uri.as_deref().unwrap_or(&self.uri)
    }

    pub fn vcpus_of(&self, member: &MemberSpec) -> u32 {
        section(member).vcpus.unwrap_or(self.vcpus)
    }

    pub fn memory_of(&self, member: &MemberSpec) -> Size {
        section(member).memory.unwrap_or(self.memory)
    }

    pub fn data_size_of(&self, member: &MemberSpec) -> Option<Size> {
        section(member).data_size.or(self.data_size).filter(|size| size.0 > 0)
    }
}

impl Settings for LibvirtSettings {
    fn name(&self) -> &'static str {
        "libvirt"
    }

    fn machines(&self) -> MachineKind {
        MachineKind::Vm
    }

    fn boots_within(&self) -> SignedDuration {
        SignedDuration::from_millis(i64::try_from(self.boot_patience.0).unwrap_or(i64::MAX))
    }

    fn memory(&self, member: &MemberSpec) -> Option<Size> {
        Some(self.memory_of(member))
    }

    fn pinned(&self, member: &MemberSpec) -> Option<IpAddr> {
        member.address.or_else(|| Some(section(member).interfaces.first()?.address))
    }

    fn build(&self, member: &MemberSpec) -> Option<Build> {
        let machine = section(member);
        let image = self.image.as_ref().filter(|_| machine.root_volume.is_none());
        let data = machine.data_volume.as_ref().map(ToString::to_string);
        Some(Build::new([
            ("image", image.map(|image| image.volume.to_string())),
            ("root size", image.and_then(|image| image.root_size).map(|size| size.to_string())),
            ("root volume", machine.root_volume.as_ref().map(ToString::to_string)),
            ("vcpus", Some(self.vcpus_of(member).to_string())),
            ("memory", Some(self.memory_of(member).to_string())),
            (HYPERVISOR, Some(self.uri_of(member)).filter(|uri| *uri != self.uri).map(str::to_owned)),
            (DATA_VOLUME, data.or_else(|| self.data_size_of(member).map(|size| size.to_string()))),
        ]))
    }

    fn place(&self, member: &MemberSpec) -> Option<String> {
        Some(self.uri_of(member).to_owned())
    }

    fn reaches_by_network(&self, member: &MemberSpec) -> bool {
        !section(member).is_on_macvtap_alone()
    }

    fn check(&self, cluster: &Cluster<'_>, found: &mut Findings<'_>) {
        check::check(self, cluster, found);
    }
}

/// Where root disks come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageSettings {
    /// A volume with the image, `NAME` in the pool or `POOL/NAME`: a stock cloud image, or one that quorate built.
    pub volume: VolumeName,
    /// The size of a root disk. If absent, that of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_size: Option<Size>,
    /// Whether the image contains quorate's agent. If not, the seed disk has it.
    #[serde(default)]
    pub has_agent: bool,
}

/// Whether machines use KVM or are emulated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Acceleration {
    /// KVM if a trial machine boots with it, otherwise emulation.
    #[default]
    Probe,
    /// With KVM.
    Kvm,
    /// Emulated, many times slower.
    Emulation,
}

/// The seed disk: a small disk with a machine's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CloudInitSettings {
    /// The storage pool for these disks. If absent, that of the other volumes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub pool: Option<String>,
    /// The name of each; `<name>` in it stands for the machine's.
    #[schemars(length(min = 1))]
    pub name: String,
}

impl Default for CloudInitSettings {
    fn default() -> Self {
        Self { pool: None, name: String::from("<name>-cloud-init.iso") }
    }
}

/// A network interface of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "InterfaceFields", into = "InterfaceFields")]
pub struct InterfaceSpec {
    pub to: Attachment,
    pub address: IpAddr,
    /// At most 32 or 128, which a check makes sure of.
    pub prefix: u32,
    pub gateway: Option<IpAddr>,
    pub dns: Vec<IpAddr>,
    pub mac: Option<Mac>,
}

/// What an interface is connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attachment {
    /// A libvirt network, by its name.
    Network(String),
    /// A libvirt network, by its id.
    NetworkId(Uuid),
    /// A network interface of the host, through macvtap in bridge mode.
    Macvtap(String),
}

impl JsonSchema for InterfaceSpec {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Interface".into()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        InterfaceFields::json_schema(generator)
    }
}

/// A network interface, connected to one of `network`, `network_id` or `macvtap`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("oneOf" = [
    {"required": ["network"]}, {"required": ["network_id"]}, {"required": ["macvtap"]}
]))]
struct InterfaceFields {
    /// Name of a libvirt network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    network: Option<String>,
    /// Id (UUID) of a libvirt network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    network_id: Option<Uuid>,
    /// Network interface of the host, to connect to in macvtap's bridge mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    macvtap: Option<String>,
    /// Address of the machine there.
    address: IpAddr,
    /// Length of the network's prefix, such as 24.
    prefix: u32,
    /// Address of the network's gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    /// Addresses of DNS servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    dns: Vec<IpAddr>,
    /// The interface's MAC address. If absent, one that follows from the cluster and the member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mac: Option<Mac>,
}

impl TryFrom<InterfaceFields> for InterfaceSpec {
    type Error = Malformed;
    fn try_from(fields: InterfaceFields) -> Result<Self, Malformed> {
        let to = match (fields.network, fields.network_id, fields.macvtap) {
            (Some(name), None, None) => Attachment::Network(name),
            (None, Some(id), None) => Attachment::NetworkId(id),
            (None, None, Some(device)) => Attachment::Macvtap(device),
            _ => return Err(Malformed("an interface has one of network, network_id or macvtap".to_owned())),
        };
        let InterfaceFields { address, prefix, gateway, dns, mac, .. } = fields;
        Ok(Self { to, address, prefix, gateway, dns, mac })
    }
}

impl From<InterfaceSpec> for InterfaceFields {
    fn from(spec: InterfaceSpec) -> Self {
        let InterfaceSpec { to, address, prefix, gateway, dns, mac } = spec;
        let (network, network_id, macvtap) = match to {
            Attachment::Network(name) => (Some(name), None, None),
            Attachment::NetworkId(id) => (None, Some(id), None),
            Attachment::Macvtap(device) => (None, None, Some(device)),
        };
        Self { network, network_id, macvtap, address, prefix, gateway, dns, mac }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(uri: Option<&str>) -> MemberSpec {
        let mut member = MemberSpec::named("a".parse().unwrap());
        member.libvirt = Some(MachineSettings { uri: uri.map(str::to_owned), ..MachineSettings::default() });
        member
    }

    #[test]
    fn a_machine_on_another_host_is_another_one_and_its_data_stays_behind() {
        let settings: LibvirtSettings =
            serde_json::from_value(serde_json::json!({"pool": "etcd", "data_size": "1GiB"})).unwrap();
        let build = |uri| settings.build(&member(uri)).unwrap();
        let (here, there) = (build(None), build(Some("qemu+ssh://b/system")));
        assert_eq!(build(Some("qemu:///system")), here, "the same host in other words is no difference");
        let difference = here.difference(&there).unwrap();
        assert_eq!(difference, "has no hypervisor, and the spec says hypervisor qemu+ssh://b/system");
        assert_eq!(here.data().as_deref(), Some("1GiB"));
        assert_eq!(there.data().as_deref(), Some("1GiB at qemu+ssh://b/system"));
        assert_eq!(here.found_at(Some(String::from("qemu+ssh://b/system"))), there);
        assert_eq!(settings.place(&member(None)).as_deref(), Some("qemu:///system"));
    }
}
