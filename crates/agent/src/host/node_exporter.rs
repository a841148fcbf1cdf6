//! The arguments of Prometheus's node exporter.

use std::net::{IpAddr, SocketAddr};

pub(super) const PORT: u16 = 9100;

/// It answers on the machine's own address alone, where the firewall says who may ask.
pub(super) fn render(address: IpAddr) -> String {
    let listen = SocketAddr::new(address, PORT);
    format!("# Written by quorate; changes are lost.\nARGS=\"--web.listen-address={listen}\"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_listens_on_the_machines_own_address() {
        let address = "10.0.0.1".parse().unwrap();
        assert!(render(address).ends_with("\nARGS=\"--web.listen-address=10.0.0.1:9100\"\n"));
        assert!(render("fd00::1".parse().unwrap()).contains("=[fd00::1]:9100\""));
    }
}
