//! The bare script: the same image, in which a script on the seed disk is run in place of the agent. All that a machine is told lies
//! ready-made beside it, certificates included, and in the end the machine runs the same as one of quorate's.

use anyhow::Result;

use super::image;
use super::trio::{ELECTION, HEARTBEAT, PREFIX, Seeds, Trio, address, mac, name};
use crate::labs::libvirt;

const IMAGE: &str = "bench-bare.qcow2";
/// As early as the agent's own.
const UNIT: &str = "\
[Unit]
Description=Runs the script on the seed disk
DefaultDependencies=no
Requires=local-fs.target
After=local-fs.target systemd-udev-trigger.service
Before=network-pre.target systemd-networkd.service ssh.service shutdown.target
Wants=network-pre.target
Conflicts=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'until [ -e /dev/disk/by-label/cidata ] || [ -e /dev/disk/by-label/CIDATA ]; do sleep 0.05; done; \
    mkdir -p /run/seed; mount -o ro LABEL=cidata /run/seed || mount -o ro LABEL=CIDATA /run/seed; sh -e /run/seed/setup.sh; umount /run/seed'
StandardOutput=journal+console
StandardError=inherit

[Install]
WantedBy=multi-user.target
";

pub fn prepare(trio: &Trio) -> Result<Seeds> {
    image::vary(IMAGE, libvirt::MACHINE_IMAGE, |root| {
        for unit in ["quorate-boot.service", "quorate-agent.service"] {
            root.disable(unit)?;
        }
        root.put("etc/systemd/system/bare.service", UNIT)?;
        root.enable("bare.service")
    })?;
    let certificates = trio.certificates("bare")?;
    let disk = |number: usize| -> Result<_> {
        let member = name(number);
        let files = [
            ("setup.sh", setup(number)),
            ("etcd.network", network(number)),
            ("etcd.service", etcd_unit(number)),
            ("nftables.conf", FIREWALL.to_owned()),
            ("ca.crt", certificates.read("ca.crt")?),
            ("server.crt", certificates.read(&format!("{member}.crt"))?),
            ("server.key", certificates.read(&format!("{member}.key"))?),
        ];
        trio.seed_disk("bare", number, &files)
    };
    let disks = (1..=3).map(disk).collect::<Result<_>>()?;
    Ok(Seeds { image: IMAGE, certificates, disks })
}

fn setup(number: usize) -> String {
    let name = name(number);
    format!(
        "cd /run/seed\n\
         echo {name} > /etc/hostname\n\
         printf '127.0.0.1 localhost\\n127.0.1.1 {name}\\n' > /etc/hosts\n\
         hostname {name}\n\
         cp etcd.network /etc/systemd/network/05-etcd.network\n\
         useradd --create-home --shell /bin/bash ubuntu\n\
         echo 'ubuntu ALL=(ALL:ALL) NOPASSWD:ALL' > /etc/sudoers.d/90-ubuntu\n\
         {}",
        services("/run/seed")
    )
}

/// What is left to do on either side once names, addresses and users are there.
pub fn services(files: &str) -> String {
    format!(
        "install -d -m 0750 -o etcd -g etcd /etc/etcd\n\
         install -m 0600 -o etcd -g etcd {files}/ca.crt {files}/server.crt {files}/server.key /etc/etcd\n\
         cp {files}/etcd.service /etc/systemd/system/etcd.service\n\
         cp {files}/nftables.conf /etc/nftables.conf\n\
         systemctl daemon-reload\n\
         systemctl start --no-block nftables.service prometheus-node-exporter.service etcd.service\n"
    )
}

fn network(number: usize) -> String {
    format!(
        "[Match]\nMACAddress={}\n\n[Network]\nDHCP=no\nIPv6AcceptRA=no\nLLMNR=no\nMulticastDNS=no\nAddress={}/{PREFIX}\n",
        mac(number),
        address(number)
    )
}

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

pub fn etcd_unit(number: usize) -> String {
    let (name, address) = (name(number), address(number));
    let all: Vec<String> = (1..=3).map(peer).collect();
    format!(
        "[Unit]\nDescription=etcd\nAfter=network-online.target\nWants=network-online.target\n\n\
         [Service]\nType=exec\nUser=etcd\nRestart=always\nRestartSec=500ms\nLimitNOFILE=65536\n\
         ExecStart=/usr/bin/etcd --name {name} --data-dir /var/lib/etcd/data \
         --listen-client-urls https://{address}:2379 --advertise-client-urls https://{address}:2379 \
         --listen-peer-urls https://{address}:2380 --initial-advertise-peer-urls https://{address}:2380 \
         --initial-cluster {} --initial-cluster-state new --initial-cluster-token bench \
         --heartbeat-interval {HEARTBEAT} --election-timeout {ELECTION} \
         --trusted-ca-file /etc/etcd/ca.crt --cert-file /etc/etcd/server.crt --key-file /etc/etcd/server.key --client-cert-auth \
         --peer-trusted-ca-file /etc/etcd/ca.crt --peer-cert-file /etc/etcd/server.crt --peer-key-file /etc/etcd/server.key \
         --peer-client-cert-auth\n",
        all.join(",")
    )
}

fn peer(number: usize) -> String {
    format!("{}=https://{}:2380", name(number), address(number))
}
