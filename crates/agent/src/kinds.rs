//! What only one kind of cluster has on its machines: one module per kind.

pub mod etcd;
pub mod postgres;

use quorate_core::model::{FirewallConfig, NodeConfig};

use crate::agent::Agent;
use crate::host::firewall::Opening;

/// The ports of what a machine with this config runs for its cluster.
pub(crate) fn openings<'a>(config: &NodeConfig, firewall: &'a FirewallConfig) -> Vec<Opening<'a>> {
    match config.patroni().is_some() || config.haproxy().is_some() {
        true => postgres::openings(config, firewall),
        false => etcd::openings(firewall),
    }
}

impl Agent {
    /// Whether this member can serve clients, for the health page.
    pub(crate) async fn health(&self) -> Result<(), &'static str> {
        if self.has_patroni() { self.postgres_health().await } else { self.etcd_health().await }
    }
}
