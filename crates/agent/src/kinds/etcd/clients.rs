//! The clients that are connected to etcd now, according to the kernel.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use quorate_core::model::CLIENT_PORT;
use tokio::sync::Mutex;

/// The kernel lists every connection of the machine, which on a busy one takes it a while; looks come several times a second.
const FRESH: Duration = Duration::from_secs(10);

/// How the kernel marks a connection that stands.
const ESTABLISHED: &str = "01";

/// Other hosts with a connection to etcd's client port, as of some seconds ago.
#[derive(Default)]
pub(crate) struct Clients {
    last: Mutex<Option<(Instant, BTreeSet<IpAddr>)>>,
}

impl Clients {
    pub(crate) async fn connected(&self) -> BTreeSet<IpAddr> {
        let mut last = self.last.lock().await;
        match &*last {
            Some((at, known)) if at.elapsed() < FRESH => known.clone(),
            _ => {
                let Ok(found) = crate::blocking(|| Ok::<_, Infallible>(connected())).await;
                *last = Some((Instant::now(), found.clone()));
                found
            }
        }
    }
}

fn connected() -> BTreeSet<IpAddr> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().filter_map(|path| File::open(path).ok());
    tables
        .flat_map(|table| BufReader::new(table).lines().map_while(Result::ok))
        .filter_map(|line| client(&line))
        .collect()
}

/// `sl local_address rem_address st …`, where an address is hexadecimal and a port follows it. What the machine asks itself is no
/// client.
fn client(line: &str) -> Option<IpAddr> {
    let mut words = line.split_whitespace().skip(1);
    let (local, remote, state) = (words.next()?, words.next()?, words.next()?);
    let (local, port) = local.split_once(':')?;
    let remote = address(remote.split_once(':')?.0)?;
    let stands = state == ESTABLISHED && u16::from_str_radix(port, 16) == Ok(CLIENT_PORT);
    (stands && address(local)? != remote).then_some(remote)
}

/// In words of the machine's own byte order.
fn address(text: &str) -> Option<IpAddr> {
    let words: Option<Vec<[u8; 4]>> = (0..text.len() / 8)
        .map(|at| u32::from_str_radix(text.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes))
        .collect();
    match words?.as_flattened() {
        [a, b, c, d] => Some(Ipv4Addr::new(*a, *b, *c, *d).into()),
        long => Some(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(long).ok()?)).to_canonical()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_client_of_etcd_is_known_by_its_address_for_as_long_as_it_is_connected() {
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let etcd = IpAddr::from([127, 206, high, low]);
        let listener = TcpListener::bind((etcd, CLIENT_PORT)).unwrap();
        let stream = TcpStream::connect((etcd, CLIENT_PORT)).unwrap();
        let here = stream.local_addr().unwrap().ip();
        assert_ne!(here, etcd);
        assert!(connected().contains(&here));
        drop((stream, listener));
    }

    #[tokio::test]
    async fn the_kernel_is_not_queried_at_each_observation() {
        let clients = Clients::default();
        let before = clients.connected().await;
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let etcd = IpAddr::from([127, 210, high, low]);
        let listener = TcpListener::bind((etcd, CLIENT_PORT)).unwrap();
        let _streams: Vec<_> = (0..3).map(|_| TcpStream::connect((etcd, CLIENT_PORT)).unwrap()).collect();
        assert_eq!(clients.connected().await, before);
        *clients.last.lock().await = None;
        assert!(clients.connected().await.contains(&IpAddr::from([127, 0, 0, 1])));
        drop(listener);
    }

    #[test]
    fn only_connections_to_etcds_port_count() {
        let line = |port: &str, remote: &str, state: &str| format!("   0: 0B00000A:{port} {remote}:C350 {state} 0 0");
        let other = Some(IpAddr::from([10, 0, 0, 9]));
        assert_eq!(client(&line("094B", "0900000A", "01")), other);
        assert_eq!(client(&line("094C", "0900000A", "01")), None, "another port");
        assert_eq!(client(&line("094B", "0900000A", "06")), None, "it has ended");
        assert_eq!(client(&line("094B", "0B00000A", "01")), None, "it is the machine itself");
        let v4_in_v6 = "  0: 0000000000000000FFFF00000B00000A:094B 0000000000000000FFFF00000900000A:C350 01 0";
        assert_eq!(client(v4_in_v6), other);
        assert_eq!(client("  sl  local_address rem_address   st tx_queue rx_queue"), None);
    }
}
