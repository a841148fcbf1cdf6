//! `cargo xtask bench machines`: from `quorate apply` to healthy members on new machines, TLS, authentication and all, against the
//! same machines started by a bare script from the same image and a ready-made seed, and against a trimmed cloud-init. All are emulated,
//! in libvirt's lab, and take turns, so that whatever else the host does meets all of them.

mod applied;
mod bare;
mod certificates;
mod cloud_init;
mod compared;
mod emulated;
mod image;
pub mod incus;
mod members;
mod quorate;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::figures::seconds;
use super::words_inside;
use crate::etcd;
use crate::host::{self, Need};
use crate::lab::Lab;
use crate::labs::libvirt;
use crate::labs::libvirt::machine::Wanted;
use compared::{Aims, Outcome, Round};
use emulated::Emulated;

const AIMS: Aims = Aims { machines: "emulated machines", of_bare: 1.15, of_cloud_init: 0.5 };
/// In memory, and gone with the namespaces.
const GROUND: &str = "/var/lib/libvirt/bench";
const NEEDS: [Need; 2] =
    [Need::Command { name: "openssl", package: "openssl" }, Need::Command { name: "mkfs.vfat", package: "dosfstools" }];

#[derive(clap::Args)]
pub struct Options {
    /// How often each of the three runs
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How many members the cluster has
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    members: u8,
    /// Without cloud-init, which takes longest
    #[arg(long)]
    without_cloud_init: bool,
    /// Already in the lab's namespaces, with this static quorate
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
}

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    options.inside.as_deref().map_or_else(|| enter(lab, options), |program| measure(lab, options, program))
}

/// Builds all that is needed, and goes where libvirt is.
fn enter(lab: &Lab, options: &Options) -> Result<()> {
    host::install_missing(&NEEDS)?;
    let machine = libvirt::prepare(lab, Wanted { cloud_init: !options.without_cloud_init, postgres: false })?;
    let further = options.without_cloud_init.then_some("--without-cloud-init");
    let words = words_inside("machines", (options.rounds, options.members), &machine.program, further)?;
    libvirt::enter(&machine, &words)
}

fn measure(lab: &Lab, options: &Options, program: &Path) -> Result<()> {
    libvirt::start()?;
    let ground = Path::new(GROUND);
    fs::create_dir_all(ground).with_context(|| format!("cannot create {GROUND}"))?;
    let version = etcd::ensure_any(lab)?;
    let members = emulated::members(options.members.into());
    let emulated = Emulated { members, etcdctl: lab.etcd(version).join("etcdctl"), ground: ground.to_owned() };
    eprintln!("making images and seeds");
    let quorate = quorate::prepare(ground, program, members)?;
    let bare = bare::prepare(&emulated)?;
    let cloud_init = if options.without_cloud_init { None } else { Some(cloud_init::prepare(&emulated)?) };
    let mut outcome = Outcome { members: members.count, aims: AIMS, rounds: Vec::new() };
    for number in 1..=options.rounds {
        let bare = emulated.sample(&bare).context("the bare script")?;
        let quorate = quorate.sample()?;
        eprint!("{number}/{}: quorate {}; bare script {}", options.rounds, seconds(quorate), seconds(bare));
        let cloud_init = cloud_init.as_ref().map(|seeds| emulated.sample(seeds)).transpose().context("cloud-init")?;
        eprintln!("{}", cloud_init.map(|time| format!("; cloud-init {}", seconds(time))).unwrap_or_default());
        outcome.rounds.push(Round { quorate, bare, cloud_init });
    }
    outcome.print();
    match outcome.kept() {
        true => Ok(()),
        false => bail!("`quorate apply` takes longer on machines than it may"),
    }
}
