//! The provider `aws` as types: where instances are created, from what, and how they get their seed. The spec contains no credentials:
//! they come from the usual sources of AWS tools.

mod check;
mod fixtures;
mod vpc;

use std::collections::BTreeMap;
use std::fmt;

use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::access::Access;
use super::admin::AdminSettings;
use super::program::ProgramSource;
use super::{MachineKind, MemberSpec, Settings};
use crate::model::{Build, DATA_VOLUME, FixtureId, FixtureWish, ZONE};
use crate::spec::check::{Cluster, Findings};
use crate::spec::{AddressRange, ClusterSpec, Millis, Size};
pub use fixtures::{Dns, LoadBalancer, SCHEME, Scheme};
pub use vpc::{Layout, USED_ZONES, is_reserved};

pub(super) const TEMPLATE: &str = include_str!("template.yaml");
/// The part of a build that has the types of an instance.
pub const INSTANCE_TYPE: &str = "instance type";

/// Instances of AWS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AwsSettings {
    /// The region. If absent, that of `AWS_REGION`, `AWS_DEFAULT_REGION` or the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub region: Option<String>,
    /// The profile of `~/.aws/config` that has the credentials. If absent, they come from the environment, from `AWS_PROFILE`, or
    /// from the instance that quorate runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub profile: Option<String>,
    /// URL of the API, for an endpoint in a VPC or for a test. Without TLS only on a loopback or link-local address. If absent,
    /// `AWS_ENDPOINT_URL`, or the endpoint of the region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "uri"))]
    pub endpoint: Option<String>,
    /// The VPC, by id. Machines are in its subnets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub vpc: Option<String>,
    /// The range of a VPC that quorate creates for this cluster, in place of an existing one, such as `10.99.0.0/16`. It gets a subnet in
    /// each zone, and is deleted with the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vpc_cidr: Option<AddressRange>,
    /// How machines in the VPC that quorate creates reach the Internet.
    #[serde(default)]
    pub internet: Internet,
    /// Subnets of one VPC, by id: the only ones that machines are in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<String>,
    /// Tags of the subnets that machines are in.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub subnet_tags: BTreeMap<String, String>,
    /// The availability zones that members are spread over. If absent, all that there are subnets in; with `vpc_cidr`, the first three
    /// of the region.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<String>,
    /// Types of instances. The first is used; each further one when AWS has no capacity for those before it.
    #[schemars(length(min = 1))]
    pub instance_types: Vec<String>,
    /// The image (AMI).
    pub image: Image,
    /// How an instance gets its configuration.
    #[serde(default)]
    pub seed: SeedFormat,
    /// Where an instance gets the agent's program. If absent, the image has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<ProgramSource>,
    /// The key pair for the image's default user, by name. If absent, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub key_name: Option<String>,
    /// The instance profile, by name or ARN. If absent, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub instance_profile: Option<String>,
    /// Existing security groups for each instance, by id. quorate does not change them. If absent, quorate creates a group from the
    /// settings of the firewall.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_groups: Option<Vec<String>>,
    /// Who may connect through the security groups that quorate creates.
    #[serde(default)]
    pub access: Access,
    /// The size of the root volume. If absent, that of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_size: Option<Size>,
    /// When set, each member gets a data volume of this size, which outlives its instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_size: Option<Size>,
    /// The type of volumes.
    #[serde(default)]
    pub volume_type: VolumeType,
    /// I/O operations per second of data volumes. If absent, the default of the type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u32>,
    /// Whether volumes are encrypted.
    #[serde(default = "yes")]
    pub encrypted: bool,
    /// A Network Load Balancer in front of etcd. If absent, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<LoadBalancer>,
    /// A name for the cluster in Route53. If absent, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<Dns>,
    /// Tags for everything that quorate creates, in addition to its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Refused: spot instances are taken away several at a time, which ends a quorum.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spot: bool,
    /// How long to wait for an instance to start, to boot, and for its agent to answer.
    #[serde(default = "default_boot_patience")]
    pub boot_patience: Millis,
    /// Who may log in by ssh. If absent, no one but the owner of the key pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<AdminSettings>,
}

fn yes() -> bool {
    true
}

fn default_boot_patience() -> Millis {
    Millis(600_000)
}

/// How machines in a VPC of ours reach the Internet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Internet {
    /// Through an internet gateway. Each machine has a public address, behind its security groups.
    #[default]
    Public,
    /// Through one NAT gateway, which costs extra. Machines cannot be reached from outside.
    Nat,
}

impl Internet {
    fn name(self) -> &'static str {
        match self {
            Internet::Public => "public",
            Internet::Nat => "nat",
        }
    }
}

/// The image of instances: by one of these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Image {
    /// Its id, such as `ami-0a1b2c3d4e5f60718`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub id: Option<String>,
    /// The newest of an owner that has such a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newest: Option<NewestImage>,
    /// A parameter of Systems Manager that has its id, by path.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub parameter: Option<String>,
}

/// The newest image of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewestImage {
    /// The account of the owner, or `self`, `amazon` or `aws-marketplace`.
    #[schemars(length(min = 1))]
    pub owner: String,
    /// The name, in which `*` is any text.
    #[schemars(length(min = 1))]
    pub name: String,
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.newest {
            Some(newest) => write!(f, "{} of {}", newest.name, newest.owner),
            None => f.write_str(self.id.as_deref().or(self.parameter.as_deref()).unwrap_or_default()),
        }
    }
}

/// How an instance gets its configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SeedFormat {
    /// By cloud-init, for Debian and Ubuntu.
    #[default]
    CloudInit,
    /// By Ignition, for Flatcar and Fedora CoreOS.
    Ignition,
    /// By quorate itself, for images of `quorate image build --ec2`.
    Quorate,
}

impl fmt::Display for SeedFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SeedFormat::CloudInit => "cloud-init",
            SeedFormat::Ignition => "Ignition",
            SeedFormat::Quorate => "quorate",
        })
    }
}

/// Types of volumes that are fast enough for etcd.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VolumeType {
    /// General purpose, as fast as it is large.
    Gp2,
    /// General purpose.
    #[default]
    Gp3,
    /// Provisioned I/O operations.
    Io2,
}

impl VolumeType {
    /// As AWS calls it.
    pub fn name(self) -> &'static str {
        match self {
            VolumeType::Gp2 => "gp2",
            VolumeType::Gp3 => "gp3",
            VolumeType::Io2 => "io2",
        }
    }
}

/// The instance of one member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AwsInstance {
    /// Its types, the first choice first. If absent, those of the provider.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub instance_types: Vec<String>,
    /// Its availability zone. If absent, quorate spreads members over zones.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub zone: Option<String>,
    /// The size of its root volume. If absent, that of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root_size: Option<Size>,
    /// The size of its data volume. If absent, that of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_size: Option<Size>,
}

static NO_SECTION: AwsInstance =
    AwsInstance { instance_types: Vec::new(), zone: None, root_size: None, data_size: None };

/// The section of a member; empty where there is none.
pub fn section(member: &MemberSpec) -> &AwsInstance {
    member.aws.as_ref().unwrap_or(&NO_SECTION)
}

impl AwsInstance {
    pub(crate) fn without_data(&self) -> Self {
        AwsInstance { data_size: Some(Size(0)), ..self.clone() }
    }
}

impl AwsSettings {
    pub fn types_of<'a>(&'a self, member: &'a MemberSpec) -> &'a [String] {
        let own = &section(member).instance_types;
        if own.is_empty() { &self.instance_types } else { own }
    }

    pub fn root_size_of(&self, member: &MemberSpec) -> Option<Size> {
        section(member).root_size.or(self.root_size)
    }

    pub fn data_size_of(&self, member: &MemberSpec) -> Option<Size> {
        section(member).data_size.or(self.data_size).filter(|size| size.0 > 0)
    }
}

impl Settings for AwsSettings {
    fn name(&self) -> &'static str {
        "aws"
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
        let data = self.data_size_of(member);
        let encrypted = if self.encrypted { "encrypted" } else { "not encrypted" };
        Some(Build::new([
            ("image", Some(self.image.to_string())),
            ("seed", Some(self.seed.to_string())),
            (INSTANCE_TYPE, Some(self.types_of(member).join(" or "))),
            (ZONE, section(member).zone.clone()),
            ("key pair", self.key_name.clone()),
            ("instance profile", self.instance_profile.clone()),
            ("root volume", size(self.root_size_of(member))),
            ("volume type", Some(self.volume_type.name().to_owned())),
            ("volumes", Some(encrypted.to_owned())),
            ("iops", self.iops.filter(|_| data.is_some()).map(|iops| iops.to_string())),
            (DATA_VOLUME, size(data)),
        ]))
    }

    fn fixtures(&self, cluster: &ClusterSpec) -> Vec<FixtureWish> {
        self.wished_fixtures(cluster)
    }

    fn present_fixture(&self, cluster: &ClusterSpec, recorded: &FixtureId) -> Option<FixtureId> {
        self.present_records(cluster, recorded)
    }

    fn names(&self, cluster: &ClusterSpec, member: &MemberSpec) -> Vec<String> {
        self.names_of(cluster, member.name.as_str())
    }

    fn cluster_name(&self, cluster: &ClusterSpec) -> Option<String> {
        self.dns.as_ref().map(|dns| dns.full_name(cluster))
    }

    fn fixed(&self) -> BTreeMap<String, String> {
        let fixed = [
            ("region", self.region.as_deref().unwrap_or("of the environment")),
            ("endpoint", self.endpoint.as_deref().unwrap_or("of the region")),
            ("vpc", self.vpc.as_deref().unwrap_or("of the subnets")),
        ];
        let fixed = fixed.map(|(field, value)| (field, value.to_owned()));
        let own = self.vpc_cidr.as_ref().map(|range| range.to_string());
        let own = [("internet", own.as_ref().map(|_| self.internet.name().to_owned())), ("vpc_cidr", own)];
        let own = own.map(|(field, value)| (field, value.unwrap_or_else(|| String::from("none"))));
        fixed.into_iter().chain(own).map(|(field, value)| (format!("provider.aws.{field}"), value)).collect()
    }

    fn check(&self, cluster: &Cluster<'_>, found: &mut Findings<'_>) {
        check::check(self, cluster, found);
    }
}
