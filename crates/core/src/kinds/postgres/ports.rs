//! The source addresses that may connect to the ports of PostgreSQL, Patroni, HAProxy and PgBouncer.

use super::{BACKUP_PORT, CLIENT_PORT, REST_PORT};
use crate::model::{Audience, FirewallConfig, NodeConfig, Opening};

/// Members replicate from each other and query each other's Patroni, so everyone allowed as a peer can connect to both, regardless of the
/// clients' ranges. With backups, only members can connect to the port of the primary's files.
pub(crate) fn openings(config: &NodeConfig, firewall: &FirewallConfig) -> Vec<Opening> {
    let (clients, peers) = (&firewall.rules.clients_from, &firewall.rules.peers_from);
    let proxy = config.haproxy().map(|haproxy| [haproxy.primary_port, haproxy.replica_port]);
    let pooler = config.pgbouncer().map(|pgbouncer| pgbouncer.port);
    let members: &[u16] = if config.patroni().is_some() { &[CLIENT_PORT, REST_PORT] } else { &[] };
    let all: Vec<u16> = members.iter().copied().chain(proxy.into_iter().flatten()).chain(pooler).collect();
    let to_peers = |ports: &[u16]| Opening { to: Audience::Peers, ports: ports.to_vec(), from: peers.clone() };
    let between = (clients.is_some() && peers.is_some() && !members.is_empty()).then(|| to_peers(members));
    let has_backups = config.patroni().is_some_and(|patroni| patroni.backup.is_some());
    let backup = has_backups.then(|| to_peers(&[BACKUP_PORT]));
    let to_clients = Opening { to: Audience::Clients, ports: all, from: clients.clone() };
    std::iter::once(to_clients).chain(between).chain(backup).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::Secret;
    use crate::model::{HaproxyService, PatroniService, Runs, ServiceConfig};
    use crate::spec::{AddressRange, Firewall};

    use super::*;

    fn to(to: Audience, ports: &[u16], from: &Option<Vec<AddressRange>>) -> Opening {
        Opening { to, ports: ports.to_vec(), from: from.clone() }
    }

    /// A member, or a machine with nothing but HAProxy.
    fn config(is_member: bool) -> NodeConfig {
        let patroni = Runs::Patroni(PatroniService {
            version: 15,
            programs: None,
            next: None,
            patroni: None,
            locale: String::new(),
            config: Secret::new(""),
            backup: None,
        });
        let haproxy = HaproxyService {
            program: None,
            primary_port: 5000,
            replica_port: 5001,
            max_connections: 1,
            check_every_ms: 1,
            servers: BTreeMap::new(),
        };
        let service = |name: &str, runs| ServiceConfig {
            name: name.to_owned(),
            user: String::from("postgres"),
            runs,
            inputs: Default::default(),
        };
        let mut services = vec![service("haproxy", Runs::Haproxy(haproxy))];
        services.extend(is_member.then(|| service("patroni", patroni)));
        NodeConfig { files: Vec::new(), services, host: None }
    }

    #[test]
    fn members_reach_each_other_regardless_of_the_clients() {
        let ranges = |range: &str| Some(vec![range.parse().unwrap()]);
        let firewall = |clients_from, peers_from| {
            let rules = Firewall { clients_from, peers_from, ..Firewall::default() };
            FirewallConfig { rules, scrape_from: Vec::new(), metrics: None }
        };
        let open = firewall(None, ranges("10.0.0.0/24"));
        assert_eq!(openings(&config(true), &open), [to(Audience::Clients, &[5432, 8008, 5000, 5001], &None)]);
        let closed = firewall(ranges("10.9.0.0/16"), ranges("10.0.0.0/24"));
        let expected = [
            to(Audience::Clients, &[5432, 8008, 5000, 5001], &closed.rules.clients_from),
            to(Audience::Peers, &[5432, 8008], &closed.rules.peers_from),
        ];
        assert_eq!(openings(&config(true), &closed), expected);
        let of_proxy = [to(Audience::Clients, &[5000, 5001], &closed.rules.clients_from)];
        assert_eq!(openings(&config(false), &closed), of_proxy);
    }

    #[test]
    fn only_members_reach_the_files_of_the_primary() {
        let patroni = |backup: Option<&str>| {
            let runs = Runs::Patroni(PatroniService {
                version: 15,
                programs: None,
                patroni: None,
                locale: String::new(),
                config: Secret::new("{}"),
                backup: backup.map(Secret::new),
                next: None,
            });
            let (name, user) = (String::from("patroni"), String::from("postgres"));
            let service = ServiceConfig { name, user, runs, inputs: Default::default() };
            NodeConfig { files: Vec::new(), services: vec![service], host: None }
        };
        let peers_from = Some(vec!["10.0.0.0/24".parse().unwrap()]);
        let rules = Firewall { peers_from, ..Firewall::default() };
        let firewall = FirewallConfig { rules, scrape_from: Vec::new(), metrics: None };
        let clients = to(Audience::Clients, &[5432, 8008], &None);
        assert_eq!(openings(&patroni(None), &firewall), std::slice::from_ref(&clients));
        let members = to(Audience::Peers, &[8432], &firewall.rules.peers_from);
        assert_eq!(openings(&patroni(Some("[global]")), &firewall), [clients, members]);
    }
}
