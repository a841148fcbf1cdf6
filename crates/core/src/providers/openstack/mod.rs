//! The provider `openstack` as types: which cloud, what servers are created from, and how they are connected. The spec contains no
//! credentials: they come from `clouds.yaml` or the environment, as for every OpenStack tool.

mod check;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::access::Access;
use super::admin::AdminSettings;
use super::program::ProgramSource;
use super::{MachineKind, MemberSpec, Settings};
use crate::model::{Build, DATA_VOLUME};
use crate::spec::check::{Cluster, Findings};
use crate::spec::{AddressRange, Millis, Size};
use crate::text::hex;

pub(super) const TEMPLATE: &str = include_str!("template.yaml");

/// Servers of OpenStack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenstackSettings {
    /// The cloud, by its name in `clouds.yaml`. If absent, that of `OS_CLOUD`, or the one that `OS_AUTH_URL` and the other variables
    /// describe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub cloud: Option<String>,
    /// The region. If absent, that of the cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub region: Option<String>,
    /// The image, by name or id. It contains quorate's agent, or cloud-init, which gets the agent from `program`.
    #[schemars(length(min = 1))]
    pub image: String,
    /// How a server gets its configuration.
    #[serde(default)]
    pub seed: SeedSource,
    /// Where cloud-init gets the agent's program. If absent, the image has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<ProgramSource>,
    /// The flavor of each server, by name or id; a member may have another.
    #[schemars(length(min = 1))]
    pub flavor: String,
    /// The network, by name or id.
    #[schemars(length(min = 1))]
    pub network: String,
    /// The subnet, by name or id. If absent, the only one of the network that addresses fit in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub subnet: Option<String>,
    /// Further interfaces of each server, in this order; a member may have others. They have no gateway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_ports: Vec<MorePort>,
    /// When set, each member gets a floating IP of this external network, by name or id; it is deleted with the member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub floating_network: Option<String>,
    /// The key pair for cloud-init's default user, by name. If absent, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub key_pair: Option<String>,
    /// The availability zone of each server; a member may have another. If absent, OpenStack chooses. Volumes do not
    /// follow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub availability_zone: Option<String>,
    /// Whether members share a host.
    #[serde(default)]
    pub spread: Spread,
    /// Existing security groups for each port, by name or id; empty on a network without port security. quorate does not change them. If
    /// absent, quorate creates a group from the settings of the firewall.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_groups: Option<Vec<String>>,
    /// Who may connect through the security groups that quorate creates.
    #[serde(default)]
    pub access: Access,
    /// Further addresses that servers may send from, such as one that moves between them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_addresses: Vec<AddressRange>,
    /// When set, servers boot from a volume of this size, which is made from the image. If absent, from a disk of the flavor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_size: Option<Size>,
    /// When set, each member gets a data volume of this size, which outlives its server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_size: Option<Size>,
    /// The type of volumes. If absent, the default of the cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub volume_type: Option<String>,
    /// The availability zone of volumes; a member may have another. Its zones may have other names than those of
    /// servers. If absent, OpenStack chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub volume_zone: Option<String>,
    /// How long to wait for a server to be built, to boot, and for its agent to answer.
    #[serde(default = "default_boot_patience")]
    pub boot_patience: Millis,
    /// Who may log in by ssh. If absent, no one but the owner of the key pair, where cloud-init is in the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<AdminSettings>,
}

fn default_boot_patience() -> Millis {
    Millis(600_000)
}

/// How a server gets its configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SeedSource {
    /// From a config drive, for quorate's own image and for stock images. The enrolment token is nowhere else.
    #[default]
    ConfigDrive,
    /// From the metadata service, by cloud-init. Every process on the server can read the enrolment token.
    CloudInit,
    /// From the metadata service, by quorate itself, for images of `quorate image build --openstack`. The same is true of the token.
    Quorate,
}

impl SeedSource {
    /// What an existing server has of it as a part of its build; one with a config drive has none.
    fn part(self) -> Option<String> {
        match self {
            SeedSource::ConfigDrive => None,
            SeedSource::CloudInit => Some(String::from("user data for cloud-init")),
            SeedSource::Quorate => Some(String::from("user data for quorate")),
        }
    }
}

/// Whether members share a host: the policy of the server group that quorate creates for the cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// On different hosts where there are enough of them.
    #[default]
    SoftAntiAffinity,
    /// On different hosts; otherwise a server is not created.
    AntiAffinity,
    /// No server group is made.
    None,
}

impl Spread {
    /// The policy, as OpenStack calls it.
    pub fn policy(self) -> Option<&'static str> {
        match self {
            Spread::SoftAntiAffinity => Some("soft-anti-affinity"),
            Spread::AntiAffinity => Some("anti-affinity"),
            Spread::None => None,
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.policy().unwrap_or("none"))
    }
}

/// A further interface of a server: on a network, or with an existing port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MorePort {
    /// The network, by name or id; quorate creates the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub network: Option<String>,
    /// The subnet, by name or id. If absent, the only one of the network that the address fits in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub subnet: Option<String>,
    /// Its address there, for one member only. If absent, OpenStack chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// An existing port, by id, instead of a network; for one member only. quorate does not change or delete it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub port: Option<String>,
}

impl MorePort {
    /// Whether no second server can have it at the same time.
    pub fn is_exclusive(&self) -> bool {
        self.port.is_some() || self.address.is_some()
    }
}

impl fmt::Display for MorePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [self.port.clone(), self.network.clone(), self.subnet.clone(), self.address.map(|a| a.to_string())];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

/// Where a member's floating IP comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floating<'a> {
    /// quorate creates it, from this external network.
    Of(&'a str),
    /// An existing one, by id.
    Given(&'a str),
}

/// The server of one member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServerSettings {
    /// Its flavor, by name or id. If absent, that of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub flavor: Option<String>,
    /// Its availability zone. If absent, that of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub availability_zone: Option<String>,
    /// An existing port, by id. quorate does not change or delete it. If absent, quorate creates one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub port: Option<String>,
    /// Its further interfaces. When empty, those of the provider.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub more_ports: Vec<MorePort>,
    /// The external network of its floating IP, by name or id. If absent, that of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub floating_network: Option<String>,
    /// An existing floating IP, by id. quorate assigns it to the member's server and does not delete it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub floating_ip: Option<String>,
    /// The size of its boot volume. If absent, that of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root_size: Option<Size>,
    /// The size of its data volume. If absent, that of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_size: Option<Size>,
    /// The availability zone of its volumes. If absent, that of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub volume_zone: Option<String>,
}

static NO_SECTION: ServerSettings = ServerSettings {
    flavor: None,
    availability_zone: None,
    port: None,
    more_ports: Vec::new(),
    floating_network: None,
    floating_ip: None,
    root_size: None,
    data_size: None,
    volume_zone: None,
};

/// The section of a member; empty where there is none.
pub fn section(member: &MemberSpec) -> &ServerSettings {
    member.openstack.as_ref().unwrap_or(&NO_SECTION)
}

impl ServerSettings {
    pub(crate) fn without_data(&self) -> Self {
        ServerSettings { data_size: Some(Size(0)), ..self.clone() }
    }
}

impl OpenstackSettings {
    pub fn flavor_of<'a>(&'a self, member: &'a MemberSpec) -> &'a str {
        section(member).flavor.as_ref().unwrap_or(&self.flavor)
    }

    pub fn zone_of<'a>(&'a self, member: &'a MemberSpec) -> Option<&'a str> {
        section(member).availability_zone.as_deref().or(self.availability_zone.as_deref())
    }

    pub fn volume_zone_of<'a>(&'a self, member: &'a MemberSpec) -> Option<&'a str> {
        section(member).volume_zone.as_deref().or(self.volume_zone.as_deref())
    }

    pub fn more_ports_of<'a>(&'a self, member: &'a MemberSpec) -> &'a [MorePort] {
        let own = &section(member).more_ports;
        if own.is_empty() { &self.more_ports } else { own }
    }

    pub fn floating_of<'a>(&'a self, member: &'a MemberSpec) -> Option<Floating<'a>> {
        let own = section(member);
        let given = own.floating_ip.as_deref().map(Floating::Given);
        given.or_else(|| own.floating_network.as_deref().or(self.floating_network.as_deref()).map(Floating::Of))
    }

    pub fn root_size_of(&self, member: &MemberSpec) -> Option<Size> {
        section(member).root_size.or(self.root_size)
    }

    pub fn data_size_of(&self, member: &MemberSpec) -> Option<Size> {
        section(member).data_size.or(self.data_size).filter(|size| size.0 > 0)
    }
}

/// The part of a build that says of which type its volumes are.
pub const VOLUME_TYPE: &str = "volume type";

/// The part of a build that says in which zone its volumes are.
pub const VOLUME_ZONE: &str = "volume zone";

/// The place of the data that outlives a machine. A volume keeps its type and its zone, so a change means another volume.
pub fn data_of(build: &Build) -> Option<String> {
    let volume = build.data()?;
    let part = |what: &str, name: &str| build.part(name).map(|value| format!(" {what} {value}")).unwrap_or_default();
    Some(format!("{volume}{}{}", part("of the type", VOLUME_TYPE), part("in the zone", VOLUME_ZONE)))
}

/// As a part of a build, which is a value of a server's metadata. A list that does not fit is told from others by its digest.
fn further_ports(ports: &[MorePort]) -> Option<String> {
    /// Of such a value, in bytes: Nova refuses more.
    const LONGEST: usize = 255;
    let all = ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let told = if all.len() <= LONGEST {
        all
    } else {
        format!("{} with the digest {}", ports.len(), hex(&Sha256::digest(&all)))
    };
    Some(told).filter(|told| !told.is_empty())
}

impl Settings for OpenstackSettings {
    fn name(&self) -> &'static str {
        "openstack"
    }

    fn machines(&self) -> MachineKind {
        MachineKind::Vm
    }

    fn boots_within(&self) -> SignedDuration {
        SignedDuration::from_millis(i64::try_from(self.boot_patience.0).unwrap_or(i64::MAX))
    }

    fn longest_pause(&self) -> SignedDuration {
        SignedDuration::from_secs(2)
    }

    fn build(&self, member: &MemberSpec) -> Option<Build> {
        let size = |size: Option<Size>| size.map(|size| size.to_string());
        let has_volumes = self.root_size_of(member).is_some() || self.data_size_of(member).is_some();
        Some(Build::new([
            ("image", Some(self.image.clone())),
            ("seed", self.seed.part()),
            ("flavor", Some(self.flavor_of(member).to_owned())),
            ("availability zone", self.zone_of(member).map(str::to_owned)),
            ("key pair", self.key_pair.clone()),
            ("spread", Some(self.spread.to_string())),
            ("further ports", further_ports(self.more_ports_of(member))),
            ("boot volume", size(self.root_size_of(member))),
            (VOLUME_TYPE, self.volume_type.clone().filter(|_| has_volumes)),
            (VOLUME_ZONE, self.volume_zone_of(member).filter(|_| has_volumes).map(str::to_owned)),
            (DATA_VOLUME, size(self.data_size_of(member))),
        ]))
    }

    fn kept_data(&self, member: &MemberSpec) -> Option<String> {
        data_of(&self.build(member)?)
    }

    fn fixed(&self) -> BTreeMap<String, String> {
        let cloud = self.cloud.as_deref().unwrap_or("of the environment");
        let region = self.region.as_deref().unwrap_or("of the cloud");
        let fixed = [("cloud", cloud), ("region", region), ("network", &self.network)];
        fixed.into_iter().map(|(field, value)| (format!("provider.openstack.{field}"), value.to_owned())).collect()
    }

    fn check(&self, cluster: &Cluster<'_>, found: &mut Findings<'_>) {
        check::check(self, cluster, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_of_further_ports_fits_in_a_value_of_metadata() {
        let id = |n: u8| format!("3f1d2f3e-0d2b-4d0f-9c8a-8d2c6c1b7a{n:02}");
        let port = |n: u8| MorePort { network: Some(id(n)), subnet: Some(id(n + 50)), ..MorePort::default() };
        let told = |last: u8| further_ports(&[port(1), port(2), port(3), port(last)]).unwrap();
        assert!(told(4).len() <= 255 && told(4).starts_with("4 with the digest "), "{}", told(4));
        assert_ne!(told(4), told(5), "another list is another build");
        assert_eq!(further_ports(&[port(1)]), Some(port(1).to_string()), "as it was always written");
        assert_eq!(further_ports(&[]), None);
    }

    #[test]
    fn data_moves_with_the_zone_and_the_type_of_its_volume_and_not_with_the_zone_of_its_server() {
        let member: MemberSpec = serde_json::from_value(serde_json::json!({ "name": "etcd-1" })).unwrap();
        let kept = |more: serde_json::Value| {
            let mut all = serde_json::json!({ "image": "m", "flavor": "f", "network": "n", "data_size": "1GiB" });
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value::<OpenstackSettings>(all).unwrap().kept_data(&member).unwrap()
        };
        let plain = kept(serde_json::json!({}));
        assert_eq!(plain, "1GiB", "as it always was");
        assert_eq!(kept(serde_json::json!({ "availability_zone": "a" })), plain);
        assert_ne!(kept(serde_json::json!({ "volume_type": "ssd" })), plain);
        assert_ne!(kept(serde_json::json!({ "volume_zone": "a" })), plain);
        assert_ne!(kept(serde_json::json!({ "volume_zone": "a" })), kept(serde_json::json!({ "volume_zone": "b" })));
    }
}
