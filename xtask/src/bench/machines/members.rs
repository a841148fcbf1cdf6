//! Members without quorate: their certificates, how etcd is started on them, and the check that all are healthy.

use std::net::{SocketAddr, TcpStream};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::certificates::Certificates;

const PAUSE: Duration = Duration::from_millis(100);

pub const FIREWALL: &str = "\
table inet bench {
    chain input {
        type filter hook input priority filter; policy accept;
        ct state established,related accept
        iif lo accept
        tcp dport { 22, 2379, 2380, 9100 } accept
        meta l4proto { icmp, ipv6-icmp } accept
        reject
    }
}
";

pub fn name(number: usize) -> String {
    format!("etcd-{number}")
}

#[derive(Clone, Copy)]
pub struct Members {
    pub count: usize,
    pub address: fn(usize) -> String,
    /// Both in milliseconds.
    pub heartbeat: u32,
    pub election: u32,
    /// How long they may take to become healthy.
    pub patience: Duration,
}

impl Members {
    pub fn numbers(&self) -> RangeInclusive<usize> {
        1..=self.count
    }

    pub fn certificates(&self, directory: PathBuf) -> Result<Certificates> {
        let members: Vec<_> = self.numbers().map(|number| (name(number), (self.address)(number))).collect();
        Certificates::make(directory, &members)
    }

    pub fn etcd_unit(&self, number: usize) -> String {
        let (name, address) = (name(number), (self.address)(number));
        let (heartbeat, election) = (self.heartbeat, self.election);
        let all: Vec<String> = self.numbers().map(|number| self.peer(number)).collect();
        format!(
            "[Unit]\nDescription=etcd\nAfter=network-online.target\nWants=network-online.target\n\n\
             [Service]\nType=exec\nUser=etcd\nRestart=always\nRestartSec=500ms\nLimitNOFILE=65536\n\
             ExecStart=/usr/bin/etcd --name {name} --data-dir /var/lib/etcd/data \
             --listen-client-urls https://{address}:2379 --advertise-client-urls https://{address}:2379 \
             --listen-peer-urls https://{address}:2380 --initial-advertise-peer-urls https://{address}:2380 \
             --initial-cluster {} --initial-cluster-state new --initial-cluster-token bench \
             --heartbeat-interval {heartbeat} --election-timeout {election} \
             --trusted-ca-file /etc/etcd/ca.crt --cert-file /etc/etcd/server.crt --key-file /etc/etcd/server.key --client-cert-auth \
             --peer-trusted-ca-file /etc/etcd/ca.crt --peer-cert-file /etc/etcd/server.crt --peer-key-file /etc/etcd/server.key \
             --peer-client-cert-auth\n",
            all.join(",")
        )
    }

    fn peer(&self, number: usize) -> String {
        format!("{}=https://{}:2380", name(number), (self.address)(number))
    }

    /// Returns when all are well. `last_words` are shown where that takes too long.
    pub fn until_well(
        &self,
        etcdctl: &Path,
        certificates: &Certificates,
        begun: Instant,
        last_words: impl Fn() -> String,
    ) -> Result<()> {
        // etcdctl asked too early waits longer than needed.
        while !(self.numbers().all(|number| self.answers(number)) && self.are_well(etcdctl, certificates)) {
            if begun.elapsed() > self.patience {
                bail!("etcd was not well within {:?}\n{}", self.patience, last_words());
            }
            sleep(PAUSE);
        }
        Ok(())
    }

    fn are_well(&self, etcdctl: &Path, certificates: &Certificates) -> bool {
        let endpoints: Vec<String> =
            self.numbers().map(|number| format!("https://{}:2379", (self.address)(number))).collect();
        let mut command = Command::new(etcdctl);
        command.args(["endpoint", "health", "--endpoints", &endpoints.join(",")]).env("ETCDCTL_API", "3");
        for (flag, file) in [("--cacert", "ca.crt"), ("--cert", "root.crt"), ("--key", "root.key")] {
            command.arg(flag).arg(certificates.file(file));
        }
        command.output().is_ok_and(|output| output.status.success())
    }

    fn answers(&self, number: usize) -> bool {
        let Ok(address) = format!("{}:2379", (self.address)(number)).parse::<SocketAddr>() else { return false };
        TcpStream::connect_timeout(&address, PAUSE).is_ok()
    }
}
