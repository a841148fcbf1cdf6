//! `cargo xtask bench incus`: from `quorate apply` to three healthy members in new system containers, against the same containers made by a
//! bare script, which pushes ready-made files and certificates over the API, and against a trimmed cloud-init. All run in the lab of
//! Incus and take turns, so that whatever else the host does meets all of them.

mod bare;
mod cloud_init;
mod instances;
mod quorate;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::compared::{Aims, Outcome, Round};
use super::image::Root;
use super::members::Members;
use crate::bench::figures::seconds;
use crate::etcd;
use crate::host::{self, Need};
use crate::lab::Lab;
use crate::labs::incus as lab_of_incus;
use instances::Instances;

const AIMS: Aims = Aims { machines: "system containers of Incus", of_bare: 1.15, of_cloud_init: 0.6 };
/// In memory, and gone with the namespaces.
const GROUND: &str = "/var/lib/incus/bench";
/// The pool. Its images are copied by reference, as on any server that is meant for work.
const POOL: &str = "bench";
const NEEDS: [Need; 3] = [
    Need::Command { name: "openssl", package: "openssl" },
    Need::Command { name: "curl", package: "curl" },
    Need::Command { name: "mkfs.btrfs", package: "btrfs-progs" },
];
const PREFIX: u8 = 16;
/// etcd's own defaults.
const MEMBERS: Members =
    Members { count: 3, address, heartbeat: 100, election: 1000, patience: Duration::from_secs(120) };

fn address(number: usize) -> String {
    format!("10.78.9.{number}")
}

#[derive(clap::Args)]
pub struct Options {
    /// How often each of the three runs
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Already in the lab's namespaces, with this static quorate and this image with cloud-init
    #[arg(long, hide = true, num_args = 2)]
    inside: Option<Vec<PathBuf>>,
}

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    match options.inside.as_deref() {
        Some([program, cloud_init]) => measure(lab, options, program, cloud_init),
        Some(_) => bail!("--inside has two values"),
        None => enter(lab, options),
    }
}

fn enter(lab: &Lab, options: &Options) -> Result<()> {
    host::install_missing(&NEEDS)?;
    let prepared = lab_of_incus::prepare(lab)?;
    let cloud_init = lab_of_incus::cloud_init_image(lab, &prepared)?;
    let text = |path: &Path| path.to_str().map(str::to_owned).context("a path is not text");
    let (program, cloud_init, rounds) = (text(&prepared.program)?, text(&cloud_init)?, options.rounds.to_string());
    lab_of_incus::enter(&prepared, &["bench", "incus", "--rounds", &rounds, "--inside", &program, &cloud_init])
}

fn measure(lab: &Lab, options: &Options, program: &Path, cloud_init: &Path) -> Result<()> {
    lab_of_incus::start()?;
    let ground = Path::new(GROUND);
    fs::create_dir_all(ground).with_context(|| format!("cannot create {GROUND}"))?;
    host::read(Command::new("incus").args(["storage", "create", POOL, "btrfs", "size=8GiB"]))?;
    let version = etcd::ensure_any(lab)?;
    let instances = Instances { etcdctl: lab.etcd(version).join("etcdctl"), ground: ground.to_owned() };
    eprintln!("making images");
    let quorate = quorate::prepare(ground, program)?;
    let bare = bare::prepare(&instances)?;
    let cloud_init = cloud_init::prepare(&instances, cloud_init)?;
    let mut outcome = Outcome { members: MEMBERS.count, aims: AIMS, rounds: Vec::new() };
    // The first copy of an image to the pool is not part of any comparison.
    eprintln!("a first run of each, which does not count");
    for number in 0..=options.rounds {
        let bare = instances.sample(&bare).context("the bare script")?;
        let quorate = quorate.sample()?;
        let cloud_init = instances.sample(&cloud_init).context("cloud-init")?;
        let [a, b, c] = [quorate, bare, cloud_init].map(seconds);
        eprintln!("{number}/{}: quorate {a}; bare script {b}; cloud-init {c}", options.rounds);
        if number > 0 {
            outcome.rounds.push(Round { quorate, bare, cloud_init: Some(cloud_init) });
        }
    }
    quorate.print_phases();
    outcome.print();
    match outcome.kept() {
        true => Ok(()),
        false => bail!("`quorate apply` takes longer on system containers than it may"),
    }
}

/// Imports an image under this name: the one in the file, changed by what `change` does to its directory and to its root.
fn vary(name: &str, image: &Path, change: impl FnOnce(&Path, &Root) -> Result<()>) -> Result<()> {
    let place = Path::new(GROUND).join(name);
    fs::create_dir_all(&place).with_context(|| format!("cannot create {}", place.display()))?;
    let tar = |words: &[&str], file: &Path| {
        host::run(Command::new("tar").args(words).arg("--file").arg(file).arg("--directory").arg(&place))
    };
    tar(&["--extract", "--gzip", "--numeric-owner", "--xattrs"], image)?;
    change(&place, &Root::at(place.join("rootfs")))?;
    let changed = place.with_extension("tar");
    let mut pack = Command::new("tar");
    pack.args(["--create", "--numeric-owner", "--xattrs", "--file"])
        .arg(&changed)
        .arg("--directory")
        .arg(&place)
        .arg(".");
    host::run(&mut pack)?;
    host::read(Command::new("incus").args(["image", "import"]).arg(&changed).args(["--alias", name]))?;
    fs::remove_file(&changed).with_context(|| format!("cannot remove {}", changed.display()))?;
    fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))
}

fn mac(number: usize) -> String {
    format!("02:16:3e:00:09:{number:02x}")
}

/// The device of a network interface, as quorate creates it.
fn interface(number: usize) -> serde_json::Value {
    serde_json::json!({
        "type": "nic", "name": "eth0", "network": lab_of_incus::NAME, "hwaddr": mac(number), "ipv4.address": address(number),
    })
}
