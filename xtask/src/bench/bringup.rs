//! `cargo xtask bench bringup`: `quorate up` from nothing (keys, certificates, enrolment, authentication and all) against
//! the floor, the same etcd started by a bare loop. They take turns, so that whatever else the machine does meets both.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Ground;
use super::figures::{Samples, ratio, seconds, table, verdict};
use crate::lab::{Lab, Version};
use crate::{etcd, host};

const SIZES: [usize; 2] = [3, 5];
/// What quorate may take: this many times the floor, and a little for what the floor does not do at all.
const FACTOR: f64 = 1.5;
const ALLOWANCE: Duration = Duration::from_millis(300);

#[derive(clap::Args)]
pub struct Options {
    /// With this etcd instead of the newest in the lab; can be given several times
    #[arg(long = "etcd-version", value_name = "VERSION")]
    versions: Vec<Version>,
    /// How often each of the two runs
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
}

struct Outcome {
    version: Version,
    members: usize,
    up: Samples,
    floor: Samples,
}

impl Outcome {
    fn bound(&self) -> Duration {
        self.floor.median().mul_f64(FACTOR) + ALLOWANCE
    }

    fn kept(&self) -> bool {
        self.up.median() <= self.bound()
    }
}

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    let versions = versions(lab, &options.versions)?;
    let ground = Ground::prepare(lab)?;
    let mut outcomes = Vec::new();
    for version in versions {
        for members in SIZES {
            outcomes.push(measure(&ground, lab, version, members, options.pairs)?);
        }
    }
    print(&outcomes, options.pairs);
    if !outcomes.iter().all(Outcome::kept) {
        bail!("`quorate up` takes longer than it may");
    }
    Ok(())
}

fn versions(lab: &Lab, wanted: &[Version]) -> Result<Vec<Version>> {
    if wanted.is_empty() {
        return Ok(vec![etcd::ensure_any(lab)?]);
    }
    if wanted.iter().any(|version| !lab.installed().contains_key(version)) {
        etcd::ensure(lab, false)?;
    }
    let installed = lab.installed();
    match wanted.iter().find(|version| !installed.contains_key(version)) {
        Some(version) => bail!("etcd {version} is not in the lab\n\nhint: `cargo xtask etcd` shows what is"),
        None => Ok(wanted.to_vec()),
    }
}

fn measure(ground: &Ground, lab: &Lab, version: Version, members: usize, pairs: u32) -> Result<Outcome> {
    let mut outcome = Outcome { version, members, up: Samples::default(), floor: Samples::default() };
    for pair in 1..=pairs {
        let floor = time_floor(ground, &lab.etcd(version), members)?;
        let begun = Instant::now();
        ground.up(lab, version, members)?;
        let up = begun.elapsed();
        ground.destroy()?;
        let (up_text, floor_text) = (seconds(up), seconds(floor));
        eprintln!("etcd {version}, {members} members, {pair}/{pairs}: up {up_text}, floor {floor_text}");
        outcome.up.add(up);
        outcome.floor.add(floor);
    }
    Ok(outcome)
}

pub fn time_floor(ground: &Ground, etcd: &Path, members: usize) -> Result<Duration> {
    let printed = host::read(&mut ground.bare_loop(etcd, members)?)?;
    let milliseconds: f64 = printed.trim().parse().with_context(|| format!("no time: `{printed}`"))?;
    Ok(Duration::from_secs_f64(milliseconds / 1000.0))
}

fn print(outcomes: &[Outcome], pairs: u32) {
    let row = |outcome: &Outcome| {
        let Outcome { version, members, up, floor } = outcome;
        [
            version.to_string(),
            members.to_string(),
            up.to_string(),
            floor.to_string(),
            format!("{:.2}", ratio(up.median(), floor.median())),
            seconds(outcome.bound()),
            verdict(outcome.kept()).to_owned(),
        ]
    };
    let rows: Vec<_> = outcomes.iter().map(row).collect();
    println!("From nothing to a healthy cluster: median of {pairs} runs each, in turns (shortest–longest).\n");
    print!("{}", table(["etcd", "members", "`quorate up`", "bare loop", "ratio", "allowed", ""], &rows));
    println!("\nallowed: {FACTOR} × bare loop + {}", seconds(ALLOWANCE));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(up: u64, floor: u64) -> Outcome {
        let samples = |time| [Duration::from_millis(time)].into_iter().collect();
        Outcome { version: Version::new(3, 7, 3), members: 3, up: samples(up), floor: samples(floor) }
    }

    #[test]
    fn the_promise_is_one_and_a_half_times_the_floor_and_a_little() {
        assert!(outcome(900, 400).kept());
        assert!(!outcome(901, 400).kept());
    }
}
