//! Loopback addresses of local machines: each has one in 127.0.0.0/8, so all can use etcd's standard ports.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener};

use quorate_core::model::{AGENT_PORT, CLIENT_PORT, HEALTH_PORT, PEER_PORT};
use quorate_pki::Sha256;

use super::ProviderError;
use quorate_agent::process;

const TRIES: u32 = 1000;

/// Finds a free address that no known machine has. Where to begin depends on the salt alone, so that clusters made
/// in parallel rarely meet.
pub(super) fn choose(salt: &str, known: &[IpAddr]) -> Result<IpAddr, ProviderError> {
    for attempt in 0..TRIES {
        let hash = Sha256::digest(format!("{salt}/{attempt}"));
        let candidate = IpAddr::V4(Ipv4Addr::new(127, 64 + (hash[0] & 63), hash[1], 1 + hash[2] % 254));
        if !known.contains(&candidate) && check(candidate).is_ok() {
            return Ok(candidate);
        }
    }
    Err(ProviderError::NoAddress { range: format!("127.64.0.0/10 after {TRIES} tries") })
}

/// Makes sure that every port a member needs is free at this address.
pub(super) fn check(address: IpAddr) -> Result<(), ProviderError> {
    for port in [CLIENT_PORT, PEER_PORT, AGENT_PORT, HEALTH_PORT] {
        match TcpListener::bind((address, port)) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                return Err(ProviderError::AddressTaken { address, port, by: listener(address, port) });
            }
            Err(e) => return Err(ProviderError::AddressUnusable { address, why: e.to_string() }),
        }
    }
    Ok(())
}

/// Who listens there, as far as this user may know.
fn listener(address: IpAddr, port: u16) -> Option<String> {
    let inode = listening_inode(address, port)?;
    let socket = format!("socket:[{inode}]");
    let holds = |pid: &u32| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        descriptors.filter_map(|d| fs::read_link(d.path()).ok()).any(|target| target.to_string_lossy() == socket)
    };
    let pid = process::pids().find(holds)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!("{} (process {pid})", name.trim()))
}

/// The socket that listens at this address, or at all addresses.
fn listening_inode(address: IpAddr, port: u16) -> Option<String> {
    const LISTENING: &str = "0A";
    let IpAddr::V4(address) = address else { return None };
    let hex = |ip: Ipv4Addr| format!("{:08X}:{port:04X}", u32::from(ip).swap_bytes());
    let wanted = [hex(address), hex(Ipv4Addr::UNSPECIFIED)];
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        (wanted.iter().any(|w| w == local) && *state == LISTENING).then(|| (*inode).to_owned())
    })
}
