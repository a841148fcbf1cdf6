//! quorate's side: the image and the spec.

use std::path::Path;

use anyhow::Result;

use super::super::applied::Applied;
use super::super::members::name;
use super::{POOL, address, bare, vary};
use crate::bench::CLUSTER;
use crate::labs::incus as lab_of_incus;

const IMAGE: &str = "bench-quorate";

/// The lab's image may carry an older agent.
pub fn prepare(ground: &Path, program: &Path) -> Result<Applied> {
    vary(IMAGE, &bare::image()?, |_, root| root.copy(program, "usr/lib/quorate/quorate"))?;
    Applied::prepare(ground, program, &spec())
}

fn spec() -> String {
    let member = |number: usize| format!("\x20     - {{name: {}, address: {}}}\n", name(number), address(number));
    let members: String = (1..=3).map(member).collect();
    format!(
        "quorate: 1\n\
         clusters:\n\
         \x20 - name: {CLUSTER}\n\
         \x20   provider:\n\
         \x20     incus: {{image: {IMAGE}, has_agent: true, network: {}, pool: {POOL}, profiles: []}}\n\
         \x20   members:\n\
         {members}\
         \x20   etcd: {{version: 3.4.23, binary: {{path: /usr/bin/etcd}}}}\n\
         \x20   host: {{install_dependencies: false}}\n",
        lab_of_incus::NAME
    )
}
