//! cloud-init, trimmed: it looks for one kind of seed only and runs only the needed modules, on a standard cloud image. User data has the
//! same files as the bare script's seed disk.

use anyhow::Result;

use super::certificates::Certificates;
use super::emulated::{Emulated, PREFIX, Seeds, address, mac};
use super::members::{FIREWALL, Members, name};
use super::{bare, image};
use crate::labs::libvirt;

const IMAGE: &str = "bench-cloud-init.qcow2";
/// Where cloud-init puts what came with the user data.
const FILES: &str = "/run/bench";
pub const TRIMMED: &str = "\
datasource_list: [NoCloud]
cloud_init_modules: [write-files, set_hostname, users-groups, ssh]
cloud_config_modules: [runcmd]
cloud_final_modules: [scripts-user]
ssh_genkeytypes: [ed25519]
";

pub fn prepare(emulated: &Emulated) -> Result<Seeds> {
    image::vary(IMAGE, libvirt::CLOUD_INIT_IMAGE, |root| root.put("etc/cloud/cloud.cfg.d/99-trimmed.cfg", TRIMMED))?;
    let certificates = emulated.certificates("cloud-init")?;
    let disk = |number: usize| -> Result<_> {
        let member = name(number);
        let files = [
            ("user-data", user_data(&emulated.members, &certificates, number)?),
            ("meta-data", format!("instance-id: {member}\nlocal-hostname: {member}\n")),
            ("network-config", network_config(&mac(number), &address(number), PREFIX)),
        ];
        emulated.seed_disk("cloud-init", number, &files)
    };
    let disks = emulated.members.numbers().map(disk).collect::<Result<_>>()?;
    Ok(Seeds { image: IMAGE, certificates, disks })
}

pub fn user_data(members: &Members, certificates: &Certificates, number: usize) -> Result<String> {
    let member = name(number);
    let written = [
        ("etcd.service", members.etcd_unit(number)),
        ("nftables.conf", FIREWALL.to_owned()),
        ("ca.crt", certificates.read("ca.crt")?),
        ("server.crt", certificates.read(&format!("{member}.crt"))?),
        ("server.key", certificates.read(&format!("{member}.key"))?),
    ];
    let indented = |text: &str| text.lines().map(|line| format!("      {line}\n")).collect::<String>();
    let file = |(name, text): &(&str, String)| format!("  - path: {FILES}/{name}\n    content: |\n{}", indented(text));
    let files: String = written.iter().map(file).collect();
    Ok(format!(
        "#cloud-config\n\
         users:\n\
         \x20 - {{name: ubuntu, shell: /bin/bash, sudo: \"ALL=(ALL:ALL) NOPASSWD:ALL\"}}\n\
         write_files:\n\
         {files}\
         runcmd:\n\
         \x20 - |\n{}",
        indented(&bare::services(FILES))
    ))
}

pub fn network_config(mac: &str, address: &str, prefix: u8) -> String {
    format!(
        "version: 2\nethernets:\n  bench:\n    match: {{macaddress: \"{mac}\"}}\n    dhcp4: false\n    addresses: [{address}/{prefix}]\n"
    )
}
