//! `cargo xtask bench machines`: from `quorate apply` to three healthy members on new machines, TLS, authentication and all, against the
//! same machines started by a bare script from the same image and a ready-made seed, and against a trimmed cloud-init. All are emulated,
//! in libvirt's lab, and take turns, so that whatever else the host does meets all of them.

mod bare;
mod certificates;
mod cloud_init;
mod image;
mod quorate;
mod trio;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::figures::{Samples, ratio, seconds, table, verdict};
use crate::etcd;
use crate::host::{self, Need};
use crate::lab::Lab;
use crate::labs::libvirt;
use crate::labs::libvirt::machine::Wanted;
use trio::Trio;

/// What `quorate apply` may take of what the bare script takes.
const OF_BARE: f64 = 1.15;
/// What it may take of what cloud-init takes.
const OF_CLOUD_INIT: f64 = 0.5;
/// In memory, and gone with the namespaces.
const GROUND: &str = "/var/lib/libvirt/bench";
const NEEDS: [Need; 2] =
    [Need::Command { name: "openssl", package: "openssl" }, Need::Command { name: "mkfs.vfat", package: "dosfstools" }];

#[derive(clap::Args)]
pub struct Options {
    /// How often each of the three runs
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Without cloud-init, which takes longest
    #[arg(long)]
    without_cloud_init: bool,
    /// Already in the lab's namespaces, with this static quorate
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
}

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    match &options.inside {
        Some(program) => measure(lab, options, program),
        None => enter(lab, options),
    }
}

/// Builds all that is needed, and goes where libvirt is.
fn enter(lab: &Lab, options: &Options) -> Result<()> {
    host::install_missing(&NEEDS)?;
    let machine = libvirt::prepare(lab, Wanted { release: true, cloud_init: !options.without_cloud_init })?;
    let rounds = options.rounds.to_string();
    let program = machine.program.to_str().context("the path of quorate is not text")?;
    let mut words = vec!["bench", "machines", "--rounds", &rounds, "--inside", program];
    words.extend(options.without_cloud_init.then_some("--without-cloud-init"));
    libvirt::enter(&machine, &words)
}

fn measure(lab: &Lab, options: &Options, program: &Path) -> Result<()> {
    libvirt::start()?;
    let ground = Path::new(GROUND);
    fs::create_dir_all(ground).with_context(|| format!("cannot create {GROUND}"))?;
    let version = etcd::ensure_any(lab)?;
    let trio = Trio { etcdctl: lab.etcd(version).join("etcdctl"), ground: ground.to_owned() };
    eprintln!("making images and seeds");
    let quorate = quorate::Quorate::prepare(ground, program)?;
    let bare = bare::prepare(&trio)?;
    let cloud_init = if options.without_cloud_init { None } else { Some(cloud_init::prepare(&trio)?) };
    let mut outcome = Outcome::default();
    for round in 1..=options.rounds {
        let bare = trio.sample(&bare).context("the bare script")?;
        let applied = quorate.sample()?;
        eprint!("{round}/{}: quorate {}; bare script {}", options.rounds, seconds(applied), seconds(bare));
        outcome.quorate.add(applied);
        outcome.bare.add(bare);
        if let Some(seeds) = &cloud_init {
            let time = trio.sample(seeds).context("cloud-init")?;
            eprint!("; cloud-init {}", seconds(time));
            outcome.cloud_init.add(time);
        }
        eprintln!();
    }
    outcome.print(options);
    match outcome.kept(options) {
        true => Ok(()),
        false => bail!("`quorate apply` takes longer on machines than it may"),
    }
}

#[derive(Default)]
struct Outcome {
    quorate: Samples,
    bare: Samples,
    cloud_init: Samples,
}

impl Outcome {
    /// Name, time, and the most that quorate may take of it.
    fn others(&self, options: &Options) -> Vec<(&'static str, &Samples, f64)> {
        let cloud_init =
            (!options.without_cloud_init).then_some(("trimmed cloud-init", &self.cloud_init, OF_CLOUD_INIT));
        [("bare script", &self.bare, OF_BARE)].into_iter().chain(cloud_init).collect()
    }

    fn within(&self, other: &Samples, factor: f64) -> bool {
        self.quorate.median() <= other.median().mul_f64(factor)
    }

    fn kept(&self, options: &Options) -> bool {
        self.others(options).into_iter().all(|(_, samples, factor)| self.within(samples, factor))
    }

    fn print(&self, options: &Options) {
        let row = |(name, samples, factor): (&str, &Samples, f64)| {
            [
                name.to_owned(),
                self.quorate.to_string(),
                samples.to_string(),
                format!("{:.2}", ratio(self.quorate.median(), samples.median())),
                format!("{factor:.2}"),
                verdict(self.within(samples, factor)).to_owned(),
            ]
        };
        let rows: Vec<_> = self.others(options).into_iter().map(row).collect();
        let rounds = options.rounds;
        println!(
            "From nothing to three healthy members on emulated machines: median of {rounds} runs each, in turns (shortest–longest).\n"
        );
        print!("{}", table(["beside", "`quorate apply`", "the other", "ratio", "allowed", ""], &rows));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn kept(quorate: u64, bare: u64, cloud_init: u64) -> bool {
        let samples = |time| [Duration::from_millis(time)].into_iter().collect();
        let outcome = Outcome { quorate: samples(quorate), bare: samples(bare), cloud_init: samples(cloud_init) };
        outcome.kept(&Options { rounds: 1, without_cloud_init: false, inside: None })
    }

    #[test]
    fn the_promise_is_little_more_than_the_script_and_half_of_cloud_init() {
        assert!(kept(22_999, 20_000, 50_000));
        assert!(!kept(23_100, 20_000, 50_000));
        assert!(!kept(22_000, 20_000, 43_000));
    }
}
