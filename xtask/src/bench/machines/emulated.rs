//! Manually defined and started machines, each with a disk over the same image and a prepared seed disk, and the check that etcd
//! is healthy on all of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::certificates::Certificates;
use super::members::{Members, name};
use crate::host;
use crate::labs::libvirt::{self, virsh};

pub const MEMORY: u32 = 512;
pub const PREFIX: u8 = 16;
/// In milliseconds. Emulated machines that share two cores are late more often than others.
pub const HEARTBEAT: u32 = 500;
pub const ELECTION: u32 = 5000;
const PATIENCE: Duration = Duration::from_secs(600);

pub fn address(number: usize) -> String {
    format!("10.77.9.{number}")
}

pub fn mac(number: usize) -> String {
    format!("52:54:00:09:00:{number:02x}")
}

pub fn members(count: usize) -> Members {
    Members { count, address, heartbeat: HEARTBEAT, election: ELECTION, patience: PATIENCE }
}

/// What machines are made of.
pub struct Seeds {
    /// A volume in the lab's pool.
    pub image: &'static str,
    pub certificates: Certificates,
    /// A disk for each.
    pub disks: Vec<PathBuf>,
}

pub struct Emulated {
    pub members: Members,
    pub etcdctl: PathBuf,
    pub ground: PathBuf,
}

impl Emulated {
    pub fn certificates(&self, of: &str) -> Result<Certificates> {
        self.members.certificates(self.ground.join(of).join("certificates"))
    }

    /// A disk that cloud-init and scripts find by its label.
    pub fn seed_disk(&self, of: &str, number: usize, files: &[(&str, String)]) -> Result<PathBuf> {
        let directory = self.ground.join(of).join(name(number));
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let disk = directory.with_extension("seed");
        host::read(Command::new("mkfs.vfat").args(["-n", "cidata", "-C"]).arg(&disk).arg("1440"))?;
        for (name, text) in files {
            let file = directory.join(name);
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
            host::read(Command::new("mcopy").arg("-i").arg(&disk).arg(&file).arg("::"))?;
        }
        Ok(disk)
    }

    /// From the first disk to the moment at which all are well. Nothing is left of them then.
    pub fn sample(&self, seeds: &Seeds) -> Result<Duration> {
        let begun = Instant::now();
        let started = self.members.numbers().try_for_each(|number| start(seeds, number));
        let well = started.and_then(|()| {
            self.members.until_well(&self.etcdctl, &seeds.certificates, begun, || last_words(self.members))
        });
        let time = begun.elapsed();
        let left: Vec<Result<()>> = self.members.numbers().map(remove).collect();
        well?;
        left.into_iter().collect::<Result<()>>()?;
        Ok(time)
    }
}

fn domain(number: usize) -> String {
    format!("bench-{number}")
}

fn root_disk(number: usize) -> PathBuf {
    libvirt::volume_path(&format!("bench-{number}-root.qcow2"))
}

fn start(seeds: &Seeds, number: usize) -> Result<()> {
    let root = root_disk(number);
    let mut create = Command::new("qemu-img");
    create.args(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"]).arg(libvirt::volume_path(seeds.image)).arg(&root);
    host::read(&mut create)?;
    libvirt::define("define", &description(number, &root, &seeds.disks[number - 1]))?;
    host::read(virsh().args(["start", &domain(number)])).map(drop)
}

fn remove(number: usize) -> Result<()> {
    // What never came to be cannot be removed.
    let _ = host::read(virsh().args(["destroy", &domain(number)]));
    host::read(virsh().args(["undefine", &domain(number)]))?;
    let root = root_disk(number);
    fs::remove_file(&root).with_context(|| format!("cannot remove {}", root.display()))
}

/// The same machine as quorate's provider makes.
fn description(number: usize, root: &Path, seed: &Path) -> String {
    let disk = |file: &Path, format: &str, target: &str, more: &str| {
        format!(
            "<disk type='file' device='disk'><driver name='qemu' type='{format}'/><source file='{}'/>\
             <target dev='{target}' bus='virtio'/>{more}</disk>",
            file.display()
        )
    };
    format!(
        "<domain type='qemu'><name>{}</name><memory unit='MiB'>{MEMORY}</memory><vcpu>1</vcpu>\
         <cpu mode='custom' match='exact'><model>qemu64</model></cpu>\
         <os><type arch='x86_64' machine='q35'>hvm</type><boot dev='hd'/></os>\
         <features><acpi/><apic/></features><clock offset='utc'/>\
         <devices>{}{}\
         <interface type='network'><mac address='{}'/><source network='{}'/><model type='virtio'/></interface>\
         <serial type='pty'><log file='{}' append='off'/><target port='0'/></serial>\
         <console type='pty'><target type='serial' port='0'/></console>\
         <rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>\
         <memballoon model='none'/>\
         </devices></domain>",
        domain(number),
        disk(root, "qcow2", "vda", ""),
        disk(seed, "raw", "vdc", "<readonly/>"),
        mac(number),
        libvirt::NAME,
        console(number),
    )
}

fn console(number: usize) -> String {
    format!("/var/log/libvirt/qemu/bench-{number}-console.log")
}

fn last_words(members: Members) -> String {
    let last = |number| {
        let text = fs::read(console(number)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        format!("the console of {}:\n{}\n", name(number), lines[lines.len().saturating_sub(20)..].join("\n"))
    };
    members.numbers().map(last).collect()
}
