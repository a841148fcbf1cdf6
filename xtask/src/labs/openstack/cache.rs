//! What the lab keeps of OpenStack: a root file system with Debian's packages, and the databases of a configured cloud. Each arrives by a
//! rename, so it is complete, and is created again when its inputs change.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use super::cloud;
use crate::host;
use crate::lab::Lab;
use crate::labs::image;

/// The last release of Debian whose neutron has the agent for plain bridges, which needs nothing else of the kernel.
const SUITE: &str = "bookworm";
const PACKAGES: [&str; 28] = [
    "cinder-api",
    "cinder-scheduler",
    "cinder-volume",
    "genisoimage",
    "glance-api",
    "iproute2",
    "ipset",
    "iptables",
    "keystone",
    "libvirt-clients",
    "libvirt-daemon",
    "libvirt-daemon-driver-qemu",
    "mariadb-server",
    "neutron-linuxbridge-agent",
    "neutron-server",
    "nova-api",
    "nova-compute",
    "nova-conductor",
    "nova-scheduler",
    "placement-api",
    "python3-libvirt",
    "python3-openstackclient",
    "qemu-system-x86",
    "qemu-utils",
    "rabbitmq-server",
    "sudo",
    "uwsgi-plugin-python3",
    "uwsgi-core",
];
const ROOT_VARIABLE: &str = "QUORATE_LAB_OPENSTACK_ROOT";
const STATE_VARIABLE: &str = "QUORATE_LAB_OPENSTACK_STATE";
/// Other checkouts may have others.
const KEPT: usize = 2;

pub struct Cache {
    /// The packages, as no run ever changes them.
    pub root: PathBuf,
    /// What a cloud that is set up has on top of them.
    pub state: PathBuf,
}

impl Cache {
    /// Makes what is missing. `set_up` has a cloud set up in its namespaces, and its databases put where they belong.
    pub fn ensure(lab: &Lab, set_up: impl FnOnce(&Self) -> Result<()>) -> Result<Self> {
        let place = lab.root().join("openstack");
        let packages = key(&(SUITE, PACKAGES));
        let root = place.join("roots").join(&packages);
        let state = place.join("states").join(key(&(packages, cloud::sources())));
        let cache = Cache { root, state };
        if cache.state.is_dir() && cache.root.is_dir() {
            return Ok(cache);
        }
        let filling = lab.lock()?;
        // Asked again under the lock: another run may have done the work meanwhile.
        if !cache.root.is_dir() {
            timed("installing OpenStack's packages below the lab's directory", || {
                let scratch = filling.scratch("openstack")?.join("root");
                install(&scratch)?;
                put(&scratch, &cache.root)
            })?;
        }
        if !cache.state.is_dir() {
            timed("setting up a cloud of OpenStack", || set_up(&cache))?;
        }
        Ok(cache)
    }

    /// The same as what runs inside gets it.
    pub fn tell(&self, inside: &mut Command) {
        inside.env(ROOT_VARIABLE, &self.root).env(STATE_VARIABLE, &self.state);
    }

    pub fn told() -> Result<Self> {
        let named =
            |name: &str| std::env::var_os(name).map(PathBuf::from).with_context(|| format!("{name} is not set"));
        Ok(Cache { root: named(ROOT_VARIABLE)?, state: named(STATE_VARIABLE)? })
    }
}

/// Moves a finished directory to where it stays, and removes the oldest next to it.
pub fn put(finished: &Path, place: &Path) -> Result<()> {
    let all = place.parent().context("a place in no directory")?;
    fs::create_dir_all(all).with_context(|| format!("cannot create {}", all.display()))?;
    fs::rename(finished, place).with_context(|| format!("cannot move into place {}", place.display()))?;
    image::keep_newest(all, KEPT)
}

fn install(root: &Path) -> Result<()> {
    let mut command = Command::new("mmdebstrap");
    command.args(["--mode=root", "--variant=minbase", "--quiet", "--aptopt=Apt::Install-Recommends \"0\""]);
    for place in ["man", "locale", "doc", "info", "lintian"] {
        command.arg(format!("--dpkgopt=path-exclude=/usr/share/{place}/*"));
    }
    host::run(command.arg(format!("--include={}", PACKAGES.join(","))).arg(SUITE).arg(root))
}

fn timed(what: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    eprintln!("{what}");
    let begun = Instant::now();
    work()?;
    eprintln!("{what}: {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

fn key(of: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
