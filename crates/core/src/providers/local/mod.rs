//! The provider `local`: machines are processes of this host, on its loopback or in network namespaces.

mod check;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{MachineKind, MemberSpec, Settings};
use crate::spec::check::{Cluster, Findings};

pub(super) const TEMPLATE: &str = include_str!("template.yaml");

/// Where the data of a machine is stored that outlives it, as the planner compares it.
pub const KEPT_DATA: &str = "kept";

/// Machines as processes of this host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LocalSettings {
    /// How the machines are connected.
    pub network: Network,
    /// Whether a member keeps its data and its membership when its machine is replaced, as with a data volume.
    pub keep_data: bool,
}

/// How machines of the provider `local` are connected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Each machine has its address in 127.0.0.0/8.
    #[default]
    Loopback,
    /// Each machine has a network namespace that reaches only the cluster's other machines.
    Netns,
}

impl Network {
    fn name(self) -> &'static str {
        match self {
            Network::Loopback => "loopback",
            Network::Netns => "netns",
        }
    }
}

impl Settings for LocalSettings {
    fn name(&self) -> &'static str {
        "local"
    }

    fn machines(&self) -> MachineKind {
        MachineKind::Process
    }

    fn kept_data(&self, _: &MemberSpec) -> Option<String> {
        self.keep_data.then(|| KEPT_DATA.to_owned())
    }

    fn is_isolated(&self) -> bool {
        self.network == Network::Netns
    }

    fn clients_start_with(&self) -> &'static str {
        if self.is_isolated() { "ip netns exec \"$QUORATE_NETNS\" " } else { "" }
    }

    fn fixed(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(String::from("provider.local.network"), self.network.name().to_owned())])
    }

    fn check(&self, cluster: &Cluster<'_>, found: &mut Findings<'_>) {
        check::check(self, cluster, found);
    }
}
