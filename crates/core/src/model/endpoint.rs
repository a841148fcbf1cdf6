//! Addresses in URLs. The only place that formats address and port, because IPv6 addresses need brackets.

use std::net::{IpAddr, SocketAddr};

/// The URL of a port on a machine.
pub fn https_url(address: IpAddr, port: u16) -> String {
    format!("https://{}", SocketAddr::new(address, port))
}

/// The address in such a URL; none if its host is a name.
pub fn address_in(url: &str) -> Option<IpAddr> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split('/').next()?;
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_out_of_its_url() {
        for (address, url) in [("10.0.0.1", "https://10.0.0.1:2380"), ("fd00::1", "https://[fd00::1]:2380")] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(https_url(address, 2380), url);
            assert_eq!(address_in(url), Some(address));
        }
    }

    #[test]
    fn other_urls_have_no_address() {
        assert_eq!(address_in("https://etcd-1.example.org:2380"), None);
        assert_eq!(address_in("fd00::1"), None);
        assert_eq!(address_in("http://10.0.0.1:2380/x"), "10.0.0.1".parse().ok());
    }
}
