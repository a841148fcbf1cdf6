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
use std::time::Duration;

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
    let machine = libvirt::prepare(lab, Wanted { cloud_init: !options.without_cloud_init })?;
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
    for number in 1..=options.rounds {
        let bare = trio.sample(&bare).context("the bare script")?;
        let quorate = quorate.sample()?;
        eprint!("{number}/{}: quorate {}; bare script {}", options.rounds, seconds(quorate), seconds(bare));
        let cloud_init = cloud_init.as_ref().map(|seeds| trio.sample(seeds)).transpose().context("cloud-init")?;
        eprintln!("{}", cloud_init.map(|time| format!("; cloud-init {}", seconds(time))).unwrap_or_default());
        outcome.0.push(Round { quorate, bare, cloud_init });
    }
    outcome.print();
    match outcome.kept() {
        true => Ok(()),
        false => bail!("`quorate apply` takes longer on machines than it may"),
    }
}

struct Round {
    quorate: Duration,
    bare: Duration,
    cloud_init: Option<Duration>,
}

#[derive(Default)]
struct Outcome(Vec<Round>);

/// What quorate is held against: name, times round by round, and the most that it may take of them.
struct Other {
    name: &'static str,
    times: Vec<Duration>,
    allowed: f64,
}

impl Outcome {
    fn others(&self) -> Vec<Other> {
        let of = |name, allowed, time: fn(&Round) -> Option<Duration>| {
            let times: Vec<Duration> = self.0.iter().filter_map(time).collect();
            (!times.is_empty()).then_some(Other { name, times, allowed })
        };
        let bare = of("bare script", OF_BARE, |round| Some(round.bare));
        let cloud_init = of("trimmed cloud-init", OF_CLOUD_INIT, |round| round.cloud_init);
        bare.into_iter().chain(cloud_init).collect()
    }

    /// Of each round its own: a host that becomes slower between rounds changes them little.
    fn ratios(&self, other: &Other) -> Vec<f64> {
        let pairs = self.0.iter().zip(&other.times);
        let mut ratios: Vec<f64> = pairs.map(|(round, time)| ratio(round.quorate, *time)).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }

    fn is_within(&self, other: &Other) -> bool {
        median(&self.ratios(other)) <= other.allowed
    }

    fn kept(&self) -> bool {
        self.others().iter().all(|other| self.is_within(other))
    }

    fn print(&self) {
        let quorate: Samples = self.0.iter().map(|round| round.quorate).collect();
        let row = |other: Other| {
            let ratios = self.ratios(&other);
            let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
            [
                other.name.to_owned(),
                quorate.to_string(),
                other.times.iter().copied().collect::<Samples>().to_string(),
                format!("{:.2} ({least:.2}–{most:.2})", median(&ratios)),
                format!("{:.2}", other.allowed),
                verdict(self.is_within(&other)).to_owned(),
            ]
        };
        let rows: Vec<_> = self.others().into_iter().map(row).collect();
        let rounds = self.0.len();
        println!(
            "From nothing to three healthy members on emulated machines: median of {rounds} runs each, in turns, and of their ratios (least–most).\n"
        );
        print!("{}", table(["beside", "`quorate apply`", "the other", "ratio", "allowed", ""], &rows));
    }
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(rounds: &[(u64, u64, u64)]) -> bool {
        let time = Duration::from_millis;
        let round = |(quorate, bare, cloud_init): &(u64, u64, u64)| Round {
            quorate: time(*quorate),
            bare: time(*bare),
            cloud_init: Some(time(*cloud_init)),
        };
        Outcome(rounds.iter().map(round).collect()).kept()
    }

    #[test]
    fn the_promise_is_little_more_than_the_script_and_half_of_cloud_init() {
        assert!(kept(&[(22_999, 20_000, 50_000)]));
        assert!(!kept(&[(23_100, 20_000, 50_000)]));
        assert!(!kept(&[(22_000, 20_000, 43_000)]));
    }

    #[test]
    fn a_round_counts_by_its_own_ratio() {
        // The host became slower; the medians of the times alone would say 1.20.
        assert!(kept(&[(10_000, 10_000, 30_000), (24_000, 20_000, 60_000), (31_000, 30_000, 90_000)]));
        assert!(!kept(&[(10_000, 10_000, 30_000), (24_000, 20_000, 60_000), (36_000, 30_000, 90_000)]));
    }
}
