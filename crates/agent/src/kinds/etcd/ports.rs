//! From where etcd's ports may be reached.

use quorate_core::model::{CLIENT_PORT, FirewallConfig, HEALTH_PORT, PEER_PORT};

use crate::host::firewall::Opening;

pub(crate) fn openings(config: &FirewallConfig) -> Vec<Opening<'_>> {
    let FirewallConfig { rules, metrics, .. } = config;
    let metrics = metrics.as_ref().map(|metrics| (metrics.port.to_string(), Some(metrics.scrape_from.as_slice())));
    let always = [
        (PEER_PORT.to_string(), rules.peers_from.as_deref()),
        (format!("{{ {CLIENT_PORT}, {HEALTH_PORT} }}"), rules.clients_from.as_deref()),
    ];
    always.into_iter().chain(metrics).collect()
}
