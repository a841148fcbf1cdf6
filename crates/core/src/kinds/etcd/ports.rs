//! The source addresses that may connect to etcd's ports.

use crate::model::{Audience, CLIENT_PORT, FirewallConfig, HEALTH_PORT, NodeConfig, Opening, PEER_PORT};

/// A machine with a front and no etcd has the front's port alone.
pub(crate) fn openings(config: &NodeConfig, firewall: &FirewallConfig) -> Vec<Opening> {
    let FirewallConfig { rules, metrics, .. } = firewall;
    let front = config.front().map(|front| front.port);
    let to_clients = |ports: Vec<u16>| Opening { to: Audience::Clients, ports, from: rules.clients_from.clone() };
    if let (None, Some(front)) = (config.etcd(), front) {
        return vec![to_clients(vec![front])];
    }
    let metrics = metrics.as_ref().map(|metrics| Opening {
        to: Audience::Monitoring,
        ports: vec![metrics.port],
        from: Some(metrics.scrape_from.clone()),
    });
    let peers = Opening { to: Audience::Peers, ports: vec![PEER_PORT], from: rules.peers_from.clone() };
    let clients = to_clients([CLIENT_PORT, HEALTH_PORT].into_iter().chain(front).collect());
    [peers, clients].into_iter().chain(metrics).collect()
}
