//! What a cluster on AWS may have besides machines: a Network Load Balancer and records of Route53.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::AwsSettings;
use crate::model::{FixtureId, FixtureKind, FixtureWish};
use crate::spec::ClusterSpec;

/// The setting of a load balancer that cannot be changed.
pub const SCHEME: &str = "scheme";

/// A Network Load Balancer in front of etcd: TLS is passed through to members whose health page says that they serve.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoadBalancer {
    /// Where it can be reached from.
    pub scheme: Scheme,
    /// Its subnets, by id, one in each zone that members are in. If absent, one of the members' subnets in each zone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<String>,
}

/// From where a load balancer can be reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// The VPC and networks connected to it.
    #[default]
    Internal,
    /// Anywhere, by public addresses.
    InternetFacing,
}

impl fmt::Display for Scheme {
    /// As AWS calls it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheme::Internal => "internal",
            Scheme::InternetFacing => "internet-facing",
        })
    }
}

/// A name for the cluster, in a hosted zone of Route53.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dns {
    /// The hosted zone, by name, such as `example.com`.
    #[schemars(length(min = 1))]
    pub zone: String,
    /// The hosted zone, by id, where several have this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub zone_id: Option<String>,
    /// The name in the zone. If absent, that of the cluster. It points to the load balancer if there is one. Otherwise it points to the
    /// members, each member has a name below it, and SRV records list them for `--discovery-srv`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub name: Option<String>,
    /// For how many seconds resolvers keep addresses of members.
    #[serde(default = "minute")]
    #[schemars(range(min = 1, max = 86400))]
    pub ttl: u32,
}

fn minute() -> u32 {
    60
}

impl Dns {
    /// The zone's name, as Route53 has it but for the dot at its end.
    pub fn zone(&self) -> String {
        self.zone.trim_end_matches('.').to_lowercase()
    }

    /// The whole name of the cluster.
    pub fn full_name(&self, cluster: &ClusterSpec) -> String {
        let name = self.name.as_deref().unwrap_or(cluster.name.as_str());
        format!("{}.{}", name.to_lowercase(), self.zone())
    }
}

impl AwsSettings {
    /// Where the records of the spec are. Zones of one name are one place: to name the zone by its id as well, or by
    /// another id, makes no other records of them.
    pub fn records(&self, cluster: &ClusterSpec) -> Option<FixtureId> {
        let dns = self.dns.as_ref()?;
        Some(Self::records_in(&dns.zone(), &dns.full_name(cluster)))
    }

    fn records_in(zone: &str, name: &str) -> FixtureId {
        FixtureId { kind: FixtureKind::Records, place: format!("{zone}/{name}") }
    }

    /// Older versions recorded records under the id of their zone where the spec has one.
    pub(super) fn present_records(&self, cluster: &ClusterSpec, recorded: &FixtureId) -> Option<FixtureId> {
        let dns = self.dns.as_ref()?;
        let was = Self::records_in(dns.zone_id.as_deref()?, &dns.full_name(cluster));
        self.records(cluster).filter(|_| was == *recorded)
    }

    /// There is one at most, found by the cluster's id.
    pub fn balancer() -> FixtureId {
        FixtureId { kind: FixtureKind::LoadBalancer, place: String::from("region") }
    }

    pub(super) fn wished_fixtures(&self, cluster: &ClusterSpec) -> Vec<FixtureWish> {
        let balancer = self.load_balancer.as_ref().map(|balancer| FixtureWish {
            id: Self::balancer(),
            fixed: BTreeMap::from([(SCHEME.to_owned(), balancer.scheme.to_string())]),
            to_balancer: false,
        });
        let to_balancer = balancer.is_some();
        let records = self.records(cluster).map(|id| FixtureWish { id, fixed: BTreeMap::new(), to_balancer });
        balancer.into_iter().chain(records).collect()
    }

    /// The name of the cluster, and the member's own below it.
    pub(super) fn names_of(&self, cluster: &ClusterSpec, member: &str) -> Vec<String> {
        let Some(name) = self.dns.as_ref().map(|dns| dns.full_name(cluster)) else { return Vec::new() };
        let own = self.load_balancer.is_none().then(|| format!("{member}.{name}"));
        [Some(name), own].into_iter().flatten().collect()
    }
}
