//! The spec's `host` section as types: what machines of every provider run beside etcd, and whom they let in. Plain data; what
//! fields mean together is checked in `check`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::{AddressRange, Millis};

/// What machines run beside etcd, and whom they let in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HostSettings {
    /// Where the time comes from. When absent, the image's own setting stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chrony: Option<Chrony>,
    /// Prometheus's node exporter, on port 9100.
    pub node_exporter: NodeExporter,
    /// Who may reach what on a machine.
    pub firewall: Firewall,
    /// Whether packages that are missing on a machine are installed there; without, a machine that lacks one is refused.
    pub install_dependencies: bool,
    /// Sends logs elsewhere, by fluent-bit. When absent, they stay on the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_forwarding: Option<LogForwarding>,
}

impl Default for HostSettings {
    fn default() -> Self {
        HostSettings {
            chrony: None,
            node_exporter: NodeExporter::default(),
            firewall: Firewall::default(),
            install_dependencies: true,
            log_forwarding: None,
        }
    }
}

/// Where the time comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Chrony {
    /// Single servers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<TimeSource>,
    /// Names behind which there are several servers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<TimeSource>,
    /// When a clock that is far off is set at once instead of slowly.
    pub makestep: MakeStep,
}

/// A server of the time, or a pool of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimeSource {
    /// Name or address.
    #[schemars(length(min = 1))]
    pub address: String,
    /// chrony's options, such as `iburst` or `maxpoll 10`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// When a clock is set at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MakeStep {
    /// From this difference on.
    pub threshold: Millis,
    /// In so many of the first comparisons.
    pub limit: u32,
    /// In all of them, whatever the limit.
    pub always: bool,
}

impl Default for MakeStep {
    fn default() -> Self {
        MakeStep { threshold: Millis(1000), limit: 3, always: false }
    }
}

/// Prometheus's node exporter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NodeExporter {
    /// Whether it runs.
    pub enabled: bool,
    /// From where it may be asked, while the firewall is on; it tells everything to everybody.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scrape_from: Vec<AddressRange>,
}

impl Default for NodeExporter {
    fn default() -> Self {
        NodeExporter { enabled: true, scrape_from: Vec::new() }
    }
}

/// Who may reach what on a machine. What is not named here is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Firewall {
    /// Whether there is one.
    pub enabled: bool,
    /// Who may reach port 2380. When absent, the other members alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers_from: Option<Vec<AddressRange>>,
    /// Clients of etcd, on port 2379, and load balancers that ask for its health. When absent, from anywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients_from: Option<Vec<AddressRange>>,
    /// Who logs in, on port 22. When absent, from anywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh_from: Option<Vec<AddressRange>>,
    /// The controller. When absent, from anywhere: its certificate is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_from: Option<Vec<AddressRange>>,
}

impl Default for Firewall {
    fn default() -> Self {
        Firewall { enabled: true, peers_from: None, clients_from: None, ssh_from: None, controller_from: None }
    }
}

/// Sends logs elsewhere, by fluent-bit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogForwarding {
    /// Tag of what etcd logs.
    #[serde(default = "default_etcd_tag")]
    #[schemars(length(min = 1))]
    pub etcd_tag: String,
    /// Tag of what the node exporter logs.
    #[serde(default = "default_node_exporter_tag")]
    #[schemars(length(min = 1))]
    pub node_exporter_tag: String,
    /// The fluentd or fluent-bit that takes the logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<Forward>,
    /// An etcd that holds fluent-bit's configuration, which is followed as it changes. What is said here and in `forward` is then
    /// there for that configuration to include.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_etcd: Option<LogSource>,
}

fn default_etcd_tag() -> String {
    String::from("etcd")
}

fn default_node_exporter_tag() -> String {
    String::from("node-exporter")
}

/// A fluentd or fluent-bit that takes logs, over TLS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Forward {
    /// Its name or address.
    #[schemars(length(min = 1))]
    pub host: String,
    /// Its port.
    #[serde(default = "default_forward_port")]
    #[schemars(range(min = 1))]
    pub port: u16,
    /// By what name a machine calls itself there. When absent, by its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub hostname: Option<String>,
    /// File with the secret that both sides share; a relative path begins at the spec's directory.
    #[schemars(length(min = 1))]
    pub shared_key_file: PathBuf,
    /// File with the certificate of the CA that signed its certificate.
    #[schemars(length(min = 1))]
    pub ca: PathBuf,
}

fn default_forward_port() -> u16 {
    24224
}

/// Keys of an etcd elsewhere that become fluent-bit's configuration: `PREFIX` + `index.conf` is where fluent-bit begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogSource {
    /// What the keys begin with; the rest of each is a file's name.
    #[schemars(length(min = 1))]
    pub prefix: String,
    /// Where that etcd answers, each as `HOST:PORT`; over TLS.
    #[schemars(length(min = 1))]
    pub endpoints: Vec<String>,
    /// File with the certificate of the CA that signed its certificates.
    #[schemars(length(min = 1))]
    pub ca: PathBuf,
    /// File with the certificate to log in with; goes with `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub certificate: Option<PathBuf>,
    /// File with that certificate's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub key: Option<PathBuf>,
    /// The user to log in as, instead of by certificate; goes with `password_file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub username: Option<String>,
    /// File with that user's password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub password_file: Option<PathBuf>,
}
