//! Checks of a machine before etcd depends on it: how long a durable write takes, and, where a download is needed, whether names
//! resolve and outgoing connections work.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use quorate_core::model::{BinarySource, DataSeen};
use tokio::net::{TcpStream, lookup_host};

use crate::agent::Agent;

/// As etcd's own measure of disks has it: small writes, each made durable before the next.
const WRITES: usize = 32;
const BYTES: usize = 2300;
const PATIENCE: Duration = Duration::from_secs(5);

impl Agent {
    /// Measured once, before etcd has any data here: later it would take the disk's time from etcd. None where the disk is not this
    /// machine's own affair.
    pub(crate) async fn fsync_micros(&self, data: &DataSeen) -> Option<u64> {
        if !self.keeps_host || (*data != DataSeen::Empty && !self.etcd.fsync.initialized()) {
            return self.etcd.fsync.get().copied().flatten();
        }
        let place = self.layout.data();
        let measure = || async move {
            let measured = crate::blocking(move || slowest_write(place.parent().unwrap_or(&place))).await;
            measured.inspect_err(|error| tracing::warn!(%error, "the disk could not be measured")).ok()
        };
        *self.etcd.fsync.get_or_init(measure).await
    }

    /// Why what must be fetched cannot be, as far as the network is to blame.
    pub(crate) async fn network_trouble(&self, source: &BinarySource) -> Option<String> {
        let url = match source {
            BinarySource::Archive(archive) => &archive.url,
            BinarySource::Search { otherwise: Some(archive) } => &archive.url,
            _ => return None,
        };
        if !self.keeps_host {
            return None;
        }
        let (host, port) = host_and_port(url)?;
        trouble(&host, port).await
    }
}

/// The slowest of some durable writes, in microseconds.
fn slowest_write(directory: &Path) -> io::Result<u64> {
    let path = directory.join(".quorate-preflight");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
    let mut slowest = Duration::ZERO;
    let written = (0..WRITES).try_for_each(|_| {
        let begun = Instant::now();
        file.write_all(&[0; BYTES])?;
        file.sync_data()?;
        slowest = slowest.max(begun.elapsed());
        Ok(())
    });
    fs::remove_file(&path)?;
    written.map(|()| u64::try_from(slowest.as_micros()).unwrap_or(u64::MAX))
}

fn host_and_port(url: &str) -> Option<(String, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let standard = if scheme == "http" { 80 } else { 443 };
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => Some((host.to_owned(), port.parse().ok()?)),
        _ => Some((authority.to_owned(), standard)),
    }
}

async fn trouble(host: &str, port: u16) -> Option<String> {
    let plain = host.trim_start_matches('[').trim_end_matches(']');
    let addresses = match tokio::time::timeout(PATIENCE, lookup_host((plain, port))).await {
        Ok(Ok(addresses)) => addresses.collect::<Vec<_>>(),
        Ok(Err(error)) => return Some(unresolved(plain, &error.to_string())),
        Err(_) => return Some(unresolved(plain, "no name server answers")),
    };
    let mut why = String::from("the name has no address");
    for address in &addresses {
        why = match tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await {
            Ok(Ok(_)) => return None,
            Ok(Err(error)) => error.to_string(),
            Err(_) => String::from("no answer"),
        };
    }
    let at = addresses.first().map_or_else(|| plain.to_owned(), ToString::to_string);
    Some(format!(
        "this machine cannot reach {plain} at {at} ({why}); check the gateway of its interfaces and whether outgoing traffic is let out"
    ))
}

fn unresolved(host: &str, why: &str) -> String {
    format!("the name {host} does not resolve on this machine ({why}); check the dns of its interfaces")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_measured_and_left_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        assert!(slowest_write(directory.path()).unwrap() > 0);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(slowest_write(&directory.path().join("absent")).is_err());
    }

    #[test]
    fn an_address_says_whom_to_ask() {
        let expected = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(host_and_port("https://example.org/a:1/b"), expected("example.org", 443));
        assert_eq!(host_and_port("http://example.org:8080/a"), expected("example.org", 8080));
        assert_eq!(host_and_port("https://[::1]/a"), expected("[::1]", 443));
        assert_eq!(host_and_port("https://[::1]:7/a"), expected("[::1]", 7));
        assert_eq!(host_and_port("example.org"), None);
    }

    #[tokio::test]
    async fn an_unresolvable_name_and_a_closed_port_have_different_errors() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(trouble("127.0.0.1", port).await, None);
        drop(listener);
        let said = trouble("127.0.0.1", port).await.unwrap();
        assert!(said.contains("check the gateway"), "{said}");
        let said = trouble("no-such-host.invalid", 443).await.unwrap();
        assert!(said.contains("does not resolve"), "{said}");
    }
}
