//! From where etcd's ports may be reached.

use crate::model::{Audience, CLIENT_PORT, FirewallConfig, HEALTH_PORT, Opening, PEER_PORT};

pub(crate) fn openings(config: &FirewallConfig) -> Vec<Opening> {
    let FirewallConfig { rules, metrics, .. } = config;
    let metrics = metrics.as_ref().map(|metrics| Opening {
        to: Audience::Monitoring,
        ports: vec![metrics.port],
        from: Some(metrics.scrape_from.clone()),
    });
    let peers = Opening { to: Audience::Peers, ports: vec![PEER_PORT], from: rules.peers_from.clone() };
    let clients =
        Opening { to: Audience::Clients, ports: vec![CLIENT_PORT, HEALTH_PORT], from: rules.clients_from.clone() };
    [peers, clients].into_iter().chain(metrics).collect()
}
