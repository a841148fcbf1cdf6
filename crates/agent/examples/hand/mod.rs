//! Certificates and addresses of a manually created cluster, for the benchmarks.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, TcpListener};

use jiff::{SignedDuration, Timestamp};
use quorate_core::model::{CLIENT_PORT, PEER_PORT};
use quorate_pki::{Authority, KeyAlgorithm, KeyPair, LeafWish};

pub const ONE_DAY: SignedDuration = SignedDuration::from_hours(24);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A certificate and its key, in PEM: a member's where there is an address, else a client's.
pub fn issue(authority: &Authority, name: &str, address: Option<IpAddr>) -> Result<(String, String)> {
    let key = KeyPair::generate(KeyAlgorithm::P256)?;
    // Connections between addresses of the loopback come from 127.0.0.1, and etcd compares.
    let addresses = address.map(|address| vec![address, IpAddr::V4(Ipv4Addr::LOCALHOST)]);
    let wish = LeafWish {
        common_name: name.to_owned(),
        organization: None,
        dns: Vec::new(),
        server: addresses.is_some(),
        addresses: addresses.unwrap_or_default(),
        client: true,
        validity: ONE_DAY,
    };
    let certificate = authority.sign(&key.csr("")?, &wish, Timestamp::now())?;
    Ok((certificate, key.to_pem().expose().to_owned()))
}

/// Addresses in 127.NET.0.0/16 where nothing listens at etcd's ports.
pub fn free_addresses(net: u8, count: usize) -> Result<Vec<IpAddr>> {
    let [_, _, high, low] = std::process::id().wrapping_mul(97).to_be_bytes();
    let begin = u16::from_be_bytes([high, low]);
    let candidates = (0..=u16::MAX).map(|offset| begin.wrapping_add(offset).to_be_bytes());
    let addresses =
        candidates.filter(|[_, low]| (1..=254).contains(low)).map(|[high, low]| [127, net, high, low].into());
    let is_free =
        |address: &IpAddr| [CLIENT_PORT, PEER_PORT].iter().all(|port| TcpListener::bind((*address, *port)).is_ok());
    let found: Vec<IpAddr> = addresses.filter(is_free).take(count).collect();
    if found.len() < count { Err(format!("too few free addresses in 127.{net}.0.0/16").into()) } else { Ok(found) }
}
