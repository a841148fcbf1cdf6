//! The bare script: the same image, where a script on the seed disk runs instead of the agent. All settings of a machine are
//! prepared next to it, including certificates, and the machine ends up with the same services as one of quorate's.

use anyhow::Result;

use super::emulated::{Emulated, PREFIX, Seeds, address, mac};
use super::image;
use super::members::{FIREWALL, name};
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

pub fn prepare(emulated: &Emulated) -> Result<Seeds> {
    image::vary(IMAGE, libvirt::MACHINE_IMAGE, |root| {
        for unit in ["quorate-boot.service", "quorate-agent.service"] {
            root.disable(unit)?;
        }
        root.put("etc/systemd/system/bare.service", UNIT)?;
        root.enable("bare.service")
    })?;
    let certificates = emulated.certificates("bare")?;
    let disk = |number: usize| -> Result<_> {
        let member = name(number);
        let files = [
            ("setup.sh", setup(number)),
            ("etcd.network", network(number)),
            ("etcd.service", emulated.members.etcd_unit(number)),
            ("nftables.conf", FIREWALL.to_owned()),
            ("ca.crt", certificates.read("ca.crt")?),
            ("server.crt", certificates.read(&format!("{member}.crt"))?),
            ("server.key", certificates.read(&format!("{member}.key"))?),
        ];
        emulated.seed_disk("bare", number, &files)
    };
    let disks = emulated.members.numbers().map(disk).collect::<Result<_>>()?;
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
