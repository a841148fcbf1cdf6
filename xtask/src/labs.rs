//! `cargo xtask lab NAME`: a real system for tests that need more than this checkout. Machines of a provider, for its conformance suite and
//! for stories of clusters on it; an older quorate, for upgrades; Kubernetes, for clusters that it stores its objects in; others' tests
//! of etcd's v2 API, for the one that quorate serves.

pub mod aws;
mod image;
pub mod incus;
mod kubernetes;
pub mod libvirt;
mod openstack;
mod static_pod;
mod upgrade;
mod v2;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Subcommand;

pub use image::NEEDS;

use crate::host;
use crate::lab::Lab;
use crate::test::build;

#[derive(Subcommand)]
pub enum Which {
    /// libvirt with software emulation, in separate namespaces; nothing is left when it ends
    Libvirt {
        #[command(flatten)]
        options: Options,
        /// Build the image and the programs, and run nothing
        #[arg(long)]
        prepare: bool,
        /// Already in those namespaces
        #[arg(long, hide = true)]
        inside: bool,
    },
    /// An older quorate, built from its commit: clusters that it made are upgraded under load
    Upgrade {
        #[command(flatten)]
        options: upgrade::Options,
    },
    /// python-etcd's integration tests and etcd's own tests of v2, with quorate in place of etcd
    V2,
    /// Kubernetes' API server, built from its Go modules: it runs on clusters while they change
    Kubernetes {
        #[command(flatten)]
        options: kubernetes::Options,
    },
    /// kubelets that run etcd as static pods, in separate namespaces; nothing is left when it ends
    StaticPod {
        #[command(flatten)]
        options: static_pod::Options,
        /// Build the kubelet, the images and the tests, and run nothing
        #[arg(long)]
        prepare: bool,
        /// Already in those namespaces
        #[arg(long, hide = true)]
        inside: bool,
    },
    /// A control plane of OpenStack, in separate namespaces; nothing is left when it ends
    Openstack {
        #[command(flatten)]
        options: openstack::Options,
        /// Install the packages, set up the cloud, build the image and the programs, and run nothing
        #[arg(long)]
        prepare: bool,
        /// Already in those namespaces
        #[arg(long, hide = true)]
        inside: bool,
        /// In them, only set up what later runs start from
        #[arg(long, hide = true)]
        set_up: bool,
    },
    /// moto's server in place of AWS, in separate namespaces; nothing is left when it ends
    Aws {
        #[command(flatten)]
        options: aws::Options,
        /// Install moto, Ignition and the system of instances, and run nothing
        #[arg(long)]
        prepare: bool,
        /// Already in those namespaces
        #[arg(long, hide = true)]
        inside: bool,
    },
    /// Incus with system containers, in separate namespaces; nothing is left when it ends
    Incus {
        #[command(flatten)]
        options: Options,
        /// Build the image and the programs, and run nothing
        #[arg(long)]
        prepare: bool,
        /// Already in those namespaces
        #[arg(long, hide = true)]
        inside: bool,
    },
}

/// What is to be run on machines of a provider.
#[derive(Clone, Default, clap::Args)]
pub struct Options {
    /// Run only what has this in its name
    filter: Option<String>,
    /// Of the stories on real machines, run only the first: create, kill, replace, destroy
    #[arg(long)]
    core: bool,
}

impl Options {
    /// The same in words of the command line.
    fn words(&self) -> impl Iterator<Item = &str> {
        self.filter.as_deref().into_iter().chain(self.core.then_some("--core"))
    }

    /// Whether this story is told.
    fn has(&self, story: &str) -> bool {
        !self.core && self.filter.as_ref().is_none_or(|filter| story.contains(filter.as_str()))
    }

    /// What the names of the stories to run contain.
    fn stories(&self, core: &str, all: &str) -> String {
        let usual = if self.core { core } else { all };
        self.filter.clone().unwrap_or_else(|| usual.to_owned())
    }
}

/// Runs this program again with these arguments, in new namespaces.
fn enter(words: &[impl AsRef<OsStr>], tell: impl FnOnce(&mut Command)) -> Result<()> {
    let this = std::env::current_exe().context("cannot find this program's own file")?;
    let mut lab = host::tethered("unshare");
    lab.args(["--mount", "--net", "--pid", "--mount-proc", "--fork", "--kill-child=KILL"]);
    // The first process must take leave of others' children, or daemons wait for machines that have long ended.
    lab.args(["sh", "-c", "\"$@\"; exit $?", "sh"]).arg(this).args(words);
    // There is no network inside, and the tests were built before.
    lab.env(build::BUILT, "1");
    tell(&mut lab);
    host::run(&mut lab)
}

/// In a lab's own mounts: names of network namespaces, which are files, are not in the way of other runs and do not stay.
fn keep_namespaces_to_itself() -> Result<()> {
    const NAMES: &str = "/run/netns";
    fs::create_dir_all(NAMES).with_context(|| format!("cannot create {NAMES}"))?;
    host::run(Command::new("mount").args(["-t", "tmpfs", "tmpfs", NAMES]))
}

/// Tells a suite to leave out every test that is not of the core.
fn leave_out_all_but(core: &[&str], suite: &mut Command) -> Result<()> {
    let mut list = Command::new(suite.get_program());
    list.args(["--list", "--format=terse"]);
    list.envs(suite.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let names = build::test_names(&host::read(&mut list)?);
    for name in core {
        ensure!(names.iter().any(|known| known == name), "the suite has no test {name}");
    }
    let others = names.iter().filter(|name| !core.contains(&name.as_str()));
    suite.args(others.flat_map(|name| ["--skip", name]));
    Ok(())
}

/// Control groups are not in any namespace: those of containers that were killed with a lab stay behind.
fn remove_groups(is_ours: impl Fn(&str) -> bool) {
    let root = PathBuf::from("/sys/fs/cgroup");
    let hierarchies = directories(&root);
    for group in hierarchies.iter().chain([&root]).flat_map(|hierarchy| directories(hierarchy)) {
        if is_ours(&group.file_name().unwrap_or_default().to_string_lossy()) {
            remove_group(&group);
        }
    }
}

/// Groups below it are removed first. One with processes stays.
fn remove_group(group: &Path) {
    directories(group).iter().for_each(|below| remove_group(below));
    let _ = fs::remove_dir(group);
}

fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

pub fn run(lab: &Lab, which: &Which) -> Result<()> {
    match which {
        Which::Libvirt { prepare: true, options, .. } => libvirt::prepare(lab, libvirt::wanted(options)).map(drop),
        Which::Libvirt { options, inside: false, .. } => libvirt::run(lab, options),
        Which::Libvirt { options, inside: true, .. } => libvirt::inside(options),
        Which::Upgrade { options } => upgrade::run(lab, options),
        Which::V2 => v2::run(lab),
        Which::Kubernetes { options } => kubernetes::run(lab, options),
        Which::StaticPod { prepare: true, .. } => static_pod::prepare(lab).map(drop),
        Which::StaticPod { options, inside: false, .. } => static_pod::run(lab, options),
        Which::StaticPod { options, inside: true, .. } => static_pod::inside(options),
        Which::Openstack { prepare: true, options, .. } => openstack::prepare(lab, options).map(drop),
        Which::Openstack { options, inside: false, .. } => openstack::run(lab, options),
        Which::Openstack { options, inside: true, set_up, .. } => openstack::inside(options, *set_up),
        Which::Aws { prepare: true, options, .. } => aws::prepare(lab, options).map(drop),
        Which::Aws { options, inside: false, .. } => aws::run(lab, options),
        Which::Aws { options, inside: true, .. } => aws::inside(lab, options),
        Which::Incus { prepare: true, .. } => incus::prepare(lab).map(drop),
        Which::Incus { options, inside: false, .. } => incus::run(lab, options),
        Which::Incus { options, inside: true, .. } => incus::inside(options),
    }
}
