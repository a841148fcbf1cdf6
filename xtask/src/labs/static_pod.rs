//! Real kubelets that run etcd as static pods: one with its own containerd for each member, in separate namespaces for processes, mounts
//! and network. Their directories are in memory, and when the first process of the namespace ends, all the others do and nothing is left.

mod image;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::kubernetes;
use crate::etcd;
use crate::host::{self, Need};
use crate::lab::{Lab, Version};
use crate::test::build;

/// The newest minor whose kubelet still runs on the control groups of version 1, which some hosts of labs have.
const KUBERNETES: Version = Version::new(1, 36, 4);
/// The versions of etcd that have an image.
const ETCD: [Version; 2] = [Version::new(3, 5, 30), Version::new(3, 6, 16)];
const NEEDS: [Need; 5] = [
    Need::Command { name: "containerd", package: "containerd" },
    Need::Command { name: "runc", package: "runc" },
    Need::Command { name: "ip", package: "iproute2" },
    Need::Command { name: "tar", package: "tar" },
    Need::Command { name: "setpriv", package: "util-linux" },
];
/// Where the tests look for the kubelet and the images.
pub const VARIABLE: &str = "QUORATE_LAB_STATIC_POD";
const LABEL: &str = "quorate::cli";
/// Hidden by memory that only the lab sees.
const DIRECTORIES: [&str; 3] = ["/run", "/var/log", "/var/lib/kubelet"];
const TEMPORARY: &str = "/run/lab";
/// Control groups that containerd makes for containers of pods.
const GROUPS: &str = "k8s.io";

#[derive(Clone, Default, clap::Args)]
pub struct Options {
    /// Run only what has this in its name
    filter: Option<String>,
}

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    let place = prepare(lab)?;
    let words: Vec<&str> = ["lab", "static-pod", "--inside"].into_iter().chain(options.filter.as_deref()).collect();
    let outcome = super::enter(&words, |inside| {
        inside.env(VARIABLE, &place).env("QUORATE_LAB", lab.root());
    });
    super::remove_groups(|group| group == GROUPS);
    outcome
}

/// The kubelet, images, and the tests: inside there is no network.
pub fn prepare(lab: &Lab) -> Result<PathBuf> {
    if fs::metadata("/proc/self").context("cannot tell which user this is")?.uid() != 0 {
        bail!("the lab of static pods needs root: its namespaces are made with `unshare` and `mount`");
    }
    let place = programs(lab)?;
    build::find(LABEL)?;
    Ok(place)
}

/// The directory with the kubelet and the images, and what else machines with static pods need of this host.
pub fn programs(lab: &Lab) -> Result<PathBuf> {
    host::install_missing(&NEEDS)?;
    etcd::ensure(lab, false)?;
    let kubelet = kubernetes::programs::kubelet(lab, KUBERNETES)?;
    let place = lab.root().join("static-pod");
    fs::create_dir_all(&place).with_context(|| format!("cannot create {}", place.display()))?;
    image::ensure(lab, &place, &ETCD)?;
    let link = place.join("kubelet");
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(&kubelet, &link).with_context(|| format!("cannot link {}", link.display()))?;
    Ok(place)
}

pub fn inside(options: &Options) -> Result<()> {
    for directory in DIRECTORIES {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {directory}"))?;
        host::run(Command::new("mount").args(["-t", "tmpfs", "-o", "mode=755", "lab", directory]))?;
    }
    fs::create_dir_all(TEMPORARY).with_context(|| format!("cannot create {TEMPORARY}"))?;
    host::run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    let filter = options.filter.as_deref().unwrap_or("static_pod::");
    let mut tests = build::find(LABEL)?.command();
    host::run(tests.args(["--ignored", "--nocapture", "--test-threads=1", filter]).env("TMPDIR", TEMPORARY))
}
