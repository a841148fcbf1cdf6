//! Checks whether other machines can be reached from this one. It only connects: a machine whose agent or etcd accepts a
//! connection is reachable, whatever it would answer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(50);
const DISCARD: u16 = 9;

/// Whether a machine accepts a connection at one of these ports, by address.
pub(crate) async fn all(addresses: BTreeSet<IpAddr>, ports: &[u16]) -> BTreeMap<IpAddr, bool> {
    let mut knocking: JoinSet<_> = addresses
        .into_iter()
        .map(|address| {
            let ports = ports.to_vec();
            async move { (address, reaches(address, ports).await) }
        })
        .collect();
    let mut reached = BTreeMap::new();
    while let Some(Ok((address, answers))) = knocking.join_next().await {
        reached.insert(address, answers);
    }
    reached
}

/// Whether this machine gets its own address in time.
pub(crate) async fn is_bound(address: IpAddr, patience: Duration) -> bool {
    let bound = async {
        while TcpListener::bind((address, 0)).await.is_err() {
            tokio::time::sleep(PAUSE).await;
        }
    };
    timeout(patience, bound).await.is_ok()
}

/// Makes this machine known to its network as soon as it has its address. Hosts that have asked for the address before keep asking only once
/// a second, and those that knew the member's previous machine still send to its MAC address. The kernel has to find a neighbour before
/// it can send to it, and asks everyone; all who want to reach this machine learn its MAC address from the question. The datagram is empty,
/// for the port that discards, and may get lost.
pub(crate) async fn announce(address: IpAddr, patience: Duration) {
    // With IPv6, neighbours are not asked for by broadcast.
    if let IpAddr::V4(address) = address
        && is_bound(address.into(), patience).await
        && let Ok(socket) = UdpSocket::bind((address, 0)).await
    {
        let _ = socket.send_to(&[], (beside(address), DISCARD)).await;
    }
}

/// An address on the same network. Where it is not, the gateway is asked for instead.
fn beside(address: Ipv4Addr) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(address) ^ 1)
}

async fn reaches(address: IpAddr, ports: Vec<u16>) -> bool {
    let opens = |port| async move { matches!(timeout(PATIENCE, TcpStream::connect((address, port))).await, Ok(Ok(_))) };
    join_all(ports.into_iter().map(opens)).await.contains(&true)
}

#[cfg(test)]
mod tests {
    use quorate_core::model::{AGENT_PORT, PEER_PORT};

    use super::*;

    #[tokio::test]
    async fn an_address_is_waited_for_up_to_a_bound() {
        let beside = [[10, 0, 0, 2], [10, 0, 0, 3]].map(|address| super::beside(address.into()));
        assert_eq!(beside, [[10, 0, 0, 3], [10, 0, 0, 2]].map(std::net::Ipv4Addr::from));
        assert!(is_bound(IpAddr::from([127, 0, 0, 1]), Duration::ZERO).await);
        // For documentation alone, so that no machine has it.
        assert!(!is_bound(IpAddr::from([192, 0, 2, 1]), Duration::from_millis(120)).await);
    }

    #[tokio::test]
    async fn a_machine_that_accepts_at_either_port_is_reached() {
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let [by_agent, by_etcd, nobody] = [203, 204, 205].map(|block| IpAddr::from([127, block, high, low]));
        let _agent = tokio::net::TcpListener::bind((by_agent, AGENT_PORT)).await.unwrap();
        let _etcd = tokio::net::TcpListener::bind((by_etcd, PEER_PORT)).await.unwrap();
        let reached = all(BTreeSet::from([by_agent, by_etcd, nobody]), &[AGENT_PORT, PEER_PORT]).await;
        assert_eq!(reached, BTreeMap::from([(by_agent, true), (by_etcd, true), (nobody, false)]));
    }
}
