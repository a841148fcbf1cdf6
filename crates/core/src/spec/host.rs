//! The spec's `host` section as types: services that machines of every provider run next to etcd, and who may connect to them.
//! Plain data; `check` has the rules that involve several fields.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Kind;
use super::units::{AddressRange, Millis, Size};

/// Services next to etcd and the firewall. Not used by the provider `local`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HostSettings {
    /// Time synchronization. If absent, the image's setting stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chrony: Option<Chrony>,
    /// The Prometheus node exporter, on port 9100.
    pub node_exporter: NodeExporter,
    /// The firewall of the machine.
    pub firewall: Firewall,
    /// Whether quorate installs missing packages on a machine. If not, a machine that lacks one refuses its configuration.
    pub install_dependencies: bool,
    /// Forwards logs with fluent-bit. If absent, they stay on the machine.
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

/// Time synchronization with chrony.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Chrony {
    /// NTP servers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<TimeSource>,
    /// NTP pools: names that resolve to several servers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<TimeSource>,
    /// When to step a clock that is far off instead of slewing it.
    pub makestep: MakeStep,
}

/// An NTP server or pool.
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

/// When to step the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MakeStep {
    /// Step if the clock is off by more than this.
    pub threshold: Millis,
    /// Step only in this many first updates.
    pub limit: u32,
    /// Step at any update, whatever `limit` says.
    pub always: bool,
}

impl Default for MakeStep {
    fn default() -> Self {
        MakeStep { threshold: Millis(1000), limit: 3, always: false }
    }
}

/// The Prometheus node exporter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NodeExporter {
    /// Whether it runs.
    pub enabled: bool,
    /// Source ranges allowed to scrape it (unauthenticated); enforced by the firewall.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scrape_from: Vec<AddressRange>,
}

impl Default for NodeExporter {
    fn default() -> Self {
        NodeExporter { enabled: true, scrape_from: Vec::new() }
    }
}

/// The firewall of the machine. It rejects everything that it does not name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Firewall {
    /// Whether it is on.
    pub enabled: bool,
    /// Source ranges for peers, port 2380. If absent, the other members only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers_from: Option<Vec<AddressRange>>,
    /// Source ranges for etcd clients (port 2379) and health checks of load balancers (port 2391). If absent, anywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients_from: Option<Vec<AddressRange>>,
    /// Source ranges for ssh, port 22. If absent, anywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh_from: Option<Vec<AddressRange>>,
    /// Source ranges for the controller, port 2390. If absent, anywhere: the agent requires a certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_from: Option<Vec<AddressRange>>,
}

impl Default for Firewall {
    fn default() -> Self {
        Firewall { enabled: true, peers_from: None, clients_from: None, ssh_from: None, controller_from: None }
    }
}

/// Forwards logs with fluent-bit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogForwarding {
    /// Tag of etcd's logs.
    #[serde(default = "default_etcd_tag")]
    #[schemars(length(min = 1))]
    pub etcd_tag: String,
    /// Tag of the log of Patroni and PostgreSQL, in clusters of PostgreSQL.
    #[serde(default = "default_patroni_tag")]
    #[schemars(length(min = 1))]
    pub patroni_tag: String,
    /// Tag of HAProxy's log, in clusters of PostgreSQL that have it.
    #[serde(default = "default_haproxy_tag")]
    #[schemars(length(min = 1))]
    pub haproxy_tag: String,
    /// Tag of PgBouncer's log, in clusters of PostgreSQL that have it.
    #[serde(default = "default_pgbouncer_tag")]
    #[schemars(length(min = 1))]
    pub pgbouncer_tag: String,
    /// Tag of the front's log, in clusters of etcd that have it.
    #[serde(default = "default_front_tag")]
    #[schemars(length(min = 1))]
    pub front_tag: String,
    /// Tag of the node exporter's logs.
    #[serde(default = "default_node_exporter_tag")]
    #[schemars(length(min = 1))]
    pub node_exporter_tag: String,
    /// The fluentd or fluent-bit that receives the logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<Forward>,
    /// Another etcd that holds fluent-bit's configuration. Machines follow it as it changes. That configuration may include
    /// the files that the other fields here produce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_etcd: Option<LogSource>,
}

impl LogForwarding {
    /// By the field that sets it, each tag that is in use.
    pub fn tags(&self, kind: Kind) -> Vec<(&'static str, &str)> {
        let exporter = ("node_exporter_tag", &*self.node_exporter_tag);
        match kind {
            Kind::Etcd => vec![("etcd_tag", &*self.etcd_tag), exporter, ("front_tag", &*self.front_tag)],
            Kind::Postgres => {
                let proxies = [("haproxy_tag", &*self.haproxy_tag), ("pgbouncer_tag", &*self.pgbouncer_tag)];
                [("patroni_tag", &*self.patroni_tag), exporter].into_iter().chain(proxies).collect()
            }
        }
    }
}

fn default_etcd_tag() -> String {
    String::from("etcd")
}

fn default_patroni_tag() -> String {
    String::from("patroni")
}

fn default_front_tag() -> String {
    String::from("front")
}

fn default_pgbouncer_tag() -> String {
    String::from("pgbouncer")
}

fn default_haproxy_tag() -> String {
    String::from("haproxy")
}

fn default_node_exporter_tag() -> String {
    String::from("node-exporter")
}

/// A fluentd or fluent-bit that receives logs, over TLS.
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
    /// The host name in the logs. If absent, the machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub hostname: Option<String>,
    /// File with the secret that both sides share.
    #[schemars(length(min = 1))]
    pub shared_key_file: PathBuf,
    /// File with the certificate of the CA that signed its certificate.
    #[schemars(length(min = 1))]
    pub ca: PathBuf,
    /// How much is kept on the machine's disk while the receiver is away, and sent when it is back; beyond that the oldest is lost. If absent,
    /// fluent-bit keeps a little in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<Size>,
}

fn default_forward_port() -> u16 {
    24224
}

/// Another etcd with fluent-bit's configuration. fluent-bit starts at the key `PREFIX` + `index.conf`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogSource {
    /// Prefix of the keys; the rest of each key is a file name.
    #[schemars(length(min = 1))]
    pub prefix: String,
    /// Its endpoints, each as `HOST:PORT`, over TLS.
    #[schemars(length(min = 1))]
    pub endpoints: Vec<String>,
    /// File with the certificate of the CA that signed its certificates.
    #[schemars(length(min = 1))]
    pub ca: PathBuf,
    /// File with a client certificate to log in with; requires `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub certificate: Option<PathBuf>,
    /// File with that certificate's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub key: Option<PathBuf>,
    /// User to log in as, instead of a certificate; requires `password_file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub username: Option<String>,
    /// File with that user's password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub password_file: Option<PathBuf>,
}
