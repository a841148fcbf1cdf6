//! The bare script: quorate's image without the agent. Everything that a machine needs is prepared, including certificates, and is pushed
//! over the API before the start. The machine ends up with the same services as one of quorate's.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::json;

use super::super::members::{FIREWALL, name};
use super::instances::{Instances, Made, Pushed};
use super::{MEMBERS, PREFIX, address, mac, vary};
use crate::labs::incus as lab_of_incus;

const NAME: &str = "bench-bare";

pub fn image() -> Result<PathBuf> {
    std::env::var_os(lab_of_incus::IMAGE_VARIABLE).map(PathBuf::from).context("the image of machines is not named")
}

pub fn prepare(instances: &Instances) -> Result<Made> {
    let mut etcd = None;
    vary(NAME, &image()?, |_, root| {
        for unit in ["quorate-boot.service", "quorate-agent.service"] {
            root.disable(unit)?;
        }
        for unit in ["nftables.service", "prometheus-node-exporter.service", "etcd.service"] {
            root.enable(unit)?;
        }
        etcd = root.user("etcd")?;
        Ok(())
    })?;
    let etcd = etcd.context("the image has no user etcd")?;
    let certificates = instances.certificates(NAME)?;
    let each = |number: usize| -> Result<_> {
        let member = name(number);
        let file = |path, mode, owner, text| Pushed { path, mode, owner, text: Some(text) };
        let files = vec![
            file("/etc/hostname", "0644", 0, format!("{member}\n")),
            file("/etc/hosts", "0644", 0, format!("127.0.0.1 localhost\n127.0.1.1 {member}\n")),
            file("/etc/systemd/network/05-etcd.network", "0644", 0, network(number)),
            file("/etc/nftables.conf", "0644", 0, FIREWALL.to_owned()),
            file("/etc/systemd/system/etcd.service", "0644", 0, MEMBERS.etcd_unit(number)),
            Pushed { path: "/etc/etcd", mode: "0750", owner: etcd, text: None },
            file("/etc/etcd/ca.crt", "0600", etcd, certificates.read("ca.crt")?),
            file("/etc/etcd/server.crt", "0600", etcd, certificates.read(&format!("{member}.crt"))?),
            file("/etc/etcd/server.key", "0600", etcd, certificates.read(&format!("{member}.key"))?),
        ];
        Ok((json!({}), files))
    };
    let each = (1..=3).map(each).collect::<Result<_>>()?;
    Ok(Made { name: NAME, certificates, each })
}

fn network(number: usize) -> String {
    format!(
        "[Match]\nMACAddress={}\n\n[Network]\nDHCP=no\nIPv6AcceptRA=no\nLLMNR=no\nMulticastDNS=no\nAddress={}/{PREFIX}\n",
        mac(number),
        address(number)
    )
}
