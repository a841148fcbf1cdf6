//! Services next to etcd, as a part of the configuration. The agent writes their files and lets each program check its own.

use serde::{Deserialize, Serialize};

use crate::Secret;
use crate::kinds::etcd::spec::Metrics;
use crate::spec::{AddressRange, Chrony, Firewall};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostConfig {
    /// Absent: the image's own time setting stays.
    pub chrony: Option<Chrony>,
    pub node_exporter: bool,
    /// Absent: none is created, and one of quorate's is removed.
    pub firewall: Option<FirewallConfig>,
    pub install_dependencies: bool,
    pub log_forwarding: Option<LogForwardingConfig>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FirewallConfig {
    pub rules: Firewall,
    /// Source ranges for the node exporter.
    pub scrape_from: Vec<AddressRange>,
    /// Source ranges for etcd's metrics, and their port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
}

/// With the contents of the operator's files.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogForwardingConfig {
    pub etcd_tag: String,
    pub node_exporter_tag: String,
    /// The services whose logs are sent instead of etcd's, in a cluster of another kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceLog>,
    pub forward: Option<ForwardConfig>,
    pub from_etcd: Option<LogSourceConfig>,
}

/// A service with a log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceLog {
    pub service: String,
    /// The user whose group may read it.
    pub user: String,
    pub tag: String,
}

/// Who takes the logs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ForwardConfig {
    pub host: String,
    pub port: u16,
    pub hostname: String,
    pub shared_key: Secret,
    pub ca: String,
    /// How many bytes are kept on disk while the receiver is unavailable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<u64>,
}

/// Another etcd, whose keys below a prefix become fluent-bit's configuration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogSourceConfig {
    pub prefix: String,
    pub endpoints: Vec<String>,
    pub ca: String,
    pub login: SourceLogin,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceLogin {
    Certificate { chain: String, key: Secret },
    Password { user: String, password: Secret },
}

/// What the operator provides for log forwarding.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogSecrets {
    pub forward: Option<ForwardSecrets>,
    pub source: Option<SourceSecrets>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForwardSecrets {
    pub shared_key: Secret,
    pub ca: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceSecrets {
    pub ca: String,
    pub login: SourceLogin,
}
