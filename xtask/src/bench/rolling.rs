//! `cargo xtask bench rolling`: how long clients must wait for a write while a living cluster of three is changed by quorate, against
//! the same done manually in the best way. They take turns, each on a fresh cluster, so that whatever else the machine does meets both.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::Ground;
use super::figures::{Samples, ratio, seconds, table, verdict};
use crate::lab::{Lab, Version};
use crate::{etcd, host};

const OLDER: Version = Version::new(3, 5, 30);
const NEWER: Version = Version::new(3, 6, 16);
/// What a write may have to wait at most: this many times what it waits in the manual change, and a little for what is not done there.
const GAP: Bound = Bound { factor: 1.2, allowance: Duration::from_millis(100) };
/// What a whole upgrade may take.
const UPGRADE: Bound = Bound { factor: 1.5, allowance: Duration::ZERO };

#[derive(clap::Args)]
pub struct Options {
    /// How often each of the two runs
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Only this change; can be given several times
    #[arg(long = "change", value_enum)]
    changes: Vec<Change>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Change {
    Restart,
    Upgrade,
    Replace,
}

impl Change {
    /// As the sampling program knows it.
    fn word(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Upgrade => "upgrade",
            Self::Replace => "replace",
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restart => f.write_str("rolling restart for a changed quota"),
            Self::Upgrade => write!(f, "upgrade {OLDER} → {NEWER}"),
            Self::Replace => f.write_str("replacement of the leader"),
        }
    }
}

/// What one run showed.
struct Sample {
    gap: Duration,
    /// Until every member was well again.
    well: Duration,
    /// Until the command had ended, or the last manual step was done.
    ended: Duration,
}

struct Bound {
    factor: f64,
    allowance: Duration,
}

impl Bound {
    fn of(&self, by_hand: Duration) -> Duration {
        by_hand.mul_f64(self.factor) + self.allowance
    }
}

/// One promise, and how it was kept.
struct Outcome {
    what: String,
    bound: &'static Bound,
    quorate: Samples,
    by_hand: Samples,
    /// In the order in which they were taken.
    pairs: Vec<(Duration, Duration)>,
}

impl Outcome {
    fn new(what: String, bound: &'static Bound, pairs: Vec<(Duration, Duration)>) -> Self {
        let quorate = pairs.iter().map(|(quorate, _)| *quorate).collect();
        let by_hand = pairs.iter().map(|(_, by_hand)| *by_hand).collect();
        Self { what, bound, quorate, by_hand, pairs }
    }

    fn allowed(&self) -> Duration {
        self.bound.of(self.by_hand.median())
    }

    fn kept(&self) -> bool {
        self.quorate.median() <= self.allowed()
    }
}

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    ensure_versions(lab)?;
    let ground = Ground::prepare(lab)?;
    host::run(host::cargo()?.args([
        "build",
        "--release",
        "--locked",
        "--package",
        "quorate-agent",
        "--example",
        "rolling",
    ]))?;
    let all = [Change::Restart, Change::Upgrade, Change::Replace];
    let wanted = |change: &Change| options.changes.is_empty() || options.changes.contains(change);
    let mut outcomes = Vec::new();
    for change in all.into_iter().filter(wanted) {
        outcomes.extend(measure(&ground, lab, change, options.pairs)?);
    }
    print(&outcomes, options.pairs);
    if !outcomes.iter().all(Outcome::kept) {
        bail!("clients of quorate wait, or quorate takes, longer than allowed");
    }
    Ok(())
}

fn ensure_versions(lab: &Lab) -> Result<()> {
    let missing = || [OLDER, NEWER].into_iter().find(|version| !lab.installed().contains_key(version));
    if missing().is_some() {
        etcd::ensure(lab, false)?;
    }
    match missing() {
        Some(version) => bail!("etcd {version} is not in the lab\n\nhint: `cargo xtask etcd` shows what is"),
        None => Ok(()),
    }
}

fn measure(ground: &Ground, lab: &Lab, change: Change, pairs: u32) -> Result<Vec<Outcome>> {
    let mut taken = Vec::new();
    for pair in 1..=pairs {
        let by_hand = sample_by_hand(ground, lab, change)?;
        let quorate = sample_quorate(ground, lab, change)?;
        eprintln!("{change}, {pair}/{pairs}: quorate {quorate}; manually {by_hand}");
        taken.push((quorate, by_hand));
    }
    let pairs_of = |figure: fn(&Sample) -> Duration| {
        taken.iter().map(|(quorate, by_hand)| (figure(quorate), figure(by_hand))).collect()
    };
    let mut outcomes = vec![Outcome::new(format!("longest write gap, {change}"), &GAP, pairs_of(|sample| sample.gap))];
    if change == Change::Upgrade {
        outcomes.push(Outcome::new(format!("whole {change}"), &UPGRADE, pairs_of(|sample| sample.well)));
    }
    Ok(outcomes)
}

fn sample_by_hand(ground: &Ground, lab: &Lab, change: Change) -> Result<Sample> {
    let directory = ground.directory("rolling")?;
    sample(ground, lab, change, "by-hand", &directory)
}

fn sample_quorate(ground: &Ground, lab: &Lab, change: Change) -> Result<Sample> {
    let directory = ground.directory("rolling")?;
    let quorate = &ground.program;
    let quorate = quorate.to_str().context("the path of quorate is not text")?;
    let sample = sample(ground, lab, change, quorate, &directory);
    if sample.is_ok() {
        ground.destroy()?;
    }
    sample
}

fn sample(ground: &Ground, lab: &Lab, change: Change, who: &str, directory: &Path) -> Result<Sample> {
    let (before, after) = write_specs(lab, change, directory)?;
    let mut command = Command::new(ground.examples.join("rolling"));
    command.args([who, change.word()]).args([before, after]);
    command.env("TMPDIR", directory).env("QUORATE_HOME", ground.home()).env("PATH", "");
    host::read(&mut command)?.parse()
}

fn write_specs(lab: &Lab, change: Change, directory: &Path) -> Result<(PathBuf, PathBuf)> {
    let (before, after) = match change {
        Change::Restart => (spec(lab, NEWER, "2GiB"), spec(lab, NEWER, "4GiB")),
        Change::Upgrade => (spec(lab, OLDER, "2GiB"), spec(lab, NEWER, "2GiB")),
        Change::Replace => (spec(lab, NEWER, "2GiB"), spec(lab, NEWER, "2GiB")),
    };
    let write = |name: &str, text: String| -> Result<PathBuf> {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    };
    Ok((write("before.yaml", before)?, write("after.yaml", after)?))
}

fn spec(lab: &Lab, version: Version, quota: &str) -> String {
    super::spec_of_three(version, &lab.etcd(version).join("etcd"), quota)
}

impl std::str::FromStr for Sample {
    type Err = anyhow::Error;

    fn from_str(printed: &str) -> Result<Self> {
        let numbers: Vec<f64> = printed
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()
            .with_context(|| format!("no times: `{printed}`"))?;
        let [gap, well, ended] = numbers[..] else { bail!("not three times: `{printed}`") };
        let [gap, well, ended] = [gap, well, ended].map(|time| Duration::from_secs_f64(time / 1000.0));
        Ok(Self { gap, well, ended })
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gap, well, ended } = self;
        write!(f, "gap {}, all well after {}, ended after {}", seconds(*gap), seconds(*well), seconds(*ended))
    }
}

fn print(outcomes: &[Outcome], pairs: u32) {
    let row = |outcome: &Outcome| {
        let Outcome { what, quorate, by_hand, .. } = outcome;
        [
            what.clone(),
            quorate.to_string(),
            by_hand.to_string(),
            format!("{:.2}", ratio(quorate.median(), by_hand.median())),
            seconds(outcome.allowed()),
            verdict(outcome.kept()).to_owned(),
        ]
    };
    let rows: Vec<_> = outcomes.iter().map(row).collect();
    println!("Three members, TLS, authentication: median of {pairs} runs each, in turns (shortest–longest).\n");
    print!("{}", table(["", "quorate", "manually", "ratio", "allowed", ""], &rows));
    println!(
        "\nallowed: {} × the manual one + {} for a gap, {} × for the time",
        GAP.factor,
        seconds(GAP.allowance),
        UPGRADE.factor
    );
    println!("\nAll samples, in seconds, quorate/manually:\n");
    for Outcome { what, pairs, .. } in outcomes {
        let pair = |(quorate, by_hand): &(Duration, Duration)| {
            format!("{:.3}/{:.3}", quorate.as_secs_f64(), by_hand.as_secs_f64())
        };
        println!("- {what}: {}", pairs.iter().map(pair).collect::<Vec<_>>().join(" "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(bound: &'static Bound, quorate: u64, by_hand: u64) -> Outcome {
        let pair = (Duration::from_millis(quorate), Duration::from_millis(by_hand));
        Outcome::new(String::new(), bound, vec![pair])
    }

    #[test]
    fn a_gap_may_be_a_fifth_longer_and_a_little_and_an_upgrade_half_as_long_again() {
        assert!(outcome(&GAP, 220, 100).kept());
        assert!(!outcome(&GAP, 221, 100).kept());
        assert!(outcome(&UPGRADE, 3000, 2000).kept());
        assert!(!outcome(&UPGRADE, 3001, 2000).kept());
    }

    #[test]
    fn a_sample_is_three_times() {
        let sample: Sample = "130.5 4000.0 4100.0\n".parse().unwrap();
        assert_eq!(sample.gap, Duration::from_micros(130_500));
        assert_eq!(sample.ended, Duration::from_millis(4100));
        for wrong in ["", "1 2", "1 2 x", "1 2 3 4"] {
            assert!(wrong.parse::<Sample>().is_err(), "{wrong}");
        }
    }
}
