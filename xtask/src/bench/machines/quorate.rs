//! quorate's side: the image and the spec.

use std::path::Path;

use anyhow::Result;

use super::applied::Applied;
use super::emulated::{ELECTION, HEARTBEAT, MEMORY, PREFIX, address};
use super::image;
use super::members::{Members, name};
use crate::bench::CLUSTER;
use crate::labs::libvirt;

const IMAGE: &str = "bench-quorate.qcow2";

/// The lab's image may carry an older agent, or one that is not made for speed.
pub fn prepare(ground: &Path, program: &Path, members: Members) -> Result<Applied> {
    image::vary(IMAGE, libvirt::MACHINE_IMAGE, |root| root.copy(program, "usr/lib/quorate/quorate"))?;
    Applied::prepare(ground, program, &spec(members))
}

fn spec(members: Members) -> String {
    let network = libvirt::NAME;
    let member = |number: usize| {
        let (name, address) = (name(number), address(number));
        format!(
            "\x20     - name: {name}\n\
             \x20       libvirt: {{interfaces: [{{network: {network}, address: {address}, prefix: {PREFIX}}}]}}\n"
        )
    };
    let members: String = members.numbers().map(member).collect();
    format!(
        "quorate: 1\n\
         clusters:\n\
         \x20 - name: {CLUSTER}\n\
         \x20   provider:\n\
         \x20     libvirt:\n\
         \x20       pool: {network}\n\
         \x20       image: {{volume: {IMAGE}, has_agent: true}}\n\
         \x20       vcpus: 1\n\
         \x20       memory: {MEMORY}MiB\n\
         \x20       acceleration: emulation\n\
         \x20       admin: {{ssh_keys: [\"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBenchBenchBenchBenchBenchBenchBenchBenchBenc bench\"]}}\n\
         \x20   members:\n\
         {members}\
         \x20   etcd:\n\
         \x20     version: 3.4.23\n\
         \x20     binary: {{path: /usr/bin/etcd}}\n\
         \x20     heartbeat: {HEARTBEAT}ms\n\
         \x20     election: {ELECTION}ms\n\
         \x20   host: {{install_dependencies: false}}\n"
    )
}
