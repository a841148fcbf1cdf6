//! `cargo xtask bench postgres`: a PostgreSQL cluster of ours compared with plain Patroni that is started and changed manually in the best
//! order, with the same settings. Both are up at the same time and take turns, so that whatever else the machine does meets both.

mod manual;
mod ours;
mod release;
mod writer;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::figures::{Samples, ratio, seconds, table, verdict};
use super::{Ground, Measured};
use crate::lab::{Lab, Version};
use crate::{etcd, host, postgres};
use manual::Manual;
use ours::Ours;
use release::Release;
use writer::Writer;

const MEMBERS: [&str; 3] = ["pg-1", "pg-2", "pg-3"];
/// Patroni's times, in seconds: the shortest lease that it takes.
const TTL: u32 = 20;
const LOOP_WAIT: u32 = 1;
const RETRY_TIMEOUT: u32 = 5;
/// `max_connections` at first. Each change of a parameter adds one.
const CONNECTIONS: u32 = 50;
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(20);
/// How long clients write before something happens, so that it is seen that they can.
const LEAD: Duration = Duration::from_secs(2);
/// What a write may have to wait at most in a rolling restart, compared with the manual one.
const GAP: Bound = Bound::WithAllowance(1.2, Duration::from_millis(100));

#[derive(clap::Args)]
pub struct Options {
    /// How often each of the two runs
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Measure the bring-up alone
    #[arg(long)]
    bring_up: bool,
    #[command(flatten)]
    measured: Measured,
}

/// A cluster of three members, however it is made.
trait Side {
    fn name(&self) -> &'static str;
    /// From nothing to three members that stream, one of them synchronously.
    fn bring_up(&mut self) -> Result<()>;
    /// What libpq must be told to connect as the superuser.
    fn variables(&self) -> Result<Vec<(String, String)>>;
    /// The same through HAProxy, where there is one.
    fn through_proxy(&self) -> Result<Vec<(String, String)>>;
    fn primary(&self) -> Result<String>;
    /// Everything that a member's machine runs works below this directory.
    fn directory(&self, member: &str) -> PathBuf;
    fn switch_over(&mut self) -> Result<()>;
    fn set_connections(&mut self, connections: u32) -> Result<()>;
    /// Another minor release takes the place of the installed one, and every member restarts with it.
    fn take_release(&mut self, release: &Path) -> Result<()>;
    /// Brings a member back whose power was cut, and waits until it streams.
    fn bring_back(&mut self, member: &str) -> Result<()>;
    /// Nothing is left.
    fn take_down(&mut self) -> Result<()>;
}

/// What quorate may take, compared with the manual way.
#[derive(Clone, Copy)]
enum Bound {
    Factor(f64),
    /// And a little for what is not done manually.
    WithAllowance(f64, Duration),
    None,
}

impl Bound {
    fn of(self, manual: Duration) -> Option<Duration> {
        match self {
            Bound::Factor(factor) => Some(manual.mul_f64(factor)),
            Bound::WithAllowance(factor, allowance) => Some(manual.mul_f64(factor) + allowance),
            Bound::None => None,
        }
    }
}

struct Outcome {
    what: &'static str,
    bound: Bound,
    ours: Samples,
    manual: Samples,
}

impl Outcome {
    fn kept(&self) -> bool {
        self.bound.of(self.manual.median()).is_none_or(|bound| self.ours.median() <= bound)
    }

    fn row(&self) -> [String; 6] {
        let bound = self.bound.of(self.manual.median());
        [
            self.what.to_owned(),
            self.ours.to_string(),
            self.manual.to_string(),
            format!("{:.2}", ratio(self.ours.median(), self.manual.median())),
            bound.map(seconds).unwrap_or_default(),
            bound.map(|_| verdict(self.kept()).to_owned()).unwrap_or_default(),
        ]
    }
}

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    let version = etcd::ensure_any(lab)?;
    let patroni = postgres::ensure(lab)?;
    postgres::minor::ensure(lab)?;
    let programs = Programs { etcd: lab.etcd(version), version, patroni };
    let releases = [lab.older_postgres(), PathBuf::from(postgres::PROGRAMS_DIRECTORY)];
    // Nobody writes during a bring-up.
    let writer = if options.bring_up { None } else { Some(build_writer()?) };
    let ground = Ground::prepare_with(lab, options.measured.programs())?;
    let mut manual = Manual::prepare(&ground, &programs)?;
    let mut ours = Ours::prepare(&ground, &programs)?;
    let measured = measure(writer.as_deref(), &releases, &mut ours, &mut manual, options.pairs);
    let down = ours.take_down().and(manual.take_down());
    let outcomes = measured?;
    down?;
    print(&outcomes, options.pairs);
    ensure!(outcomes.iter().all(Outcome::kept), "clients of quorate wait, or quorate takes, longer than allowed");
    Ok(())
}

struct Programs {
    etcd: PathBuf,
    version: Version,
    patroni: PathBuf,
}

fn build_writer() -> Result<PathBuf> {
    let example = ["--package", "quorate-drill", "--example", "postgres_writer"];
    host::run(host::cargo()?.args(["build", "--locked"]).args(example))?;
    Ok(host::debug_directory()?.join("examples/postgres_writer"))
}

fn measure(
    writer: Option<&Path>,
    releases: &[PathBuf; 2],
    ours: &mut Ours<'_>,
    manual: &mut Manual,
    pairs: u32,
) -> Result<Vec<Outcome>> {
    let (of_ours, of_manual) = each(pairs, "bring-up", ours, manual, |side, last| {
        let begun = Instant::now();
        side.bring_up()?;
        let time = begun.elapsed();
        if !last {
            side.take_down()?;
        }
        Ok(time)
    })?;
    let mut outcomes = vec![Outcome { what: "bring-up", bound: Bound::Factor(1.2), ours: of_ours, manual: of_manual }];
    let Some(writer) = writer else { return Ok(outcomes) };
    let switchover = each(pairs, "switchover", ours, manual, |side, _| {
        gap(writer, side, |side| side.switch_over()).map(|(gap, _)| gap)
    })?;
    let mut connections = CONNECTIONS;
    let parameter = each(pairs, "parameter", ours, manual, |side, _| {
        connections += 1;
        gap(writer, side, |side| side.set_connections(connections)).map(|(gap, _)| gap)
    })?;
    let minor = each_numbered(pairs, "minor release", ours, manual, |side, pair| {
        // The older one first: the other is installed.
        let release = &releases[usize::from(pair % 2 == 0)];
        gap(writer, side, |side| side.take_release(release)).map(|(gap, _)| gap)
    })?;
    let failover = each(pairs, "failover", ours, manual, |side, _| fail_over(writer, side))?;
    let rows = [
        ("switchover: longest write gap", Bound::Factor(1.05), switchover),
        ("changed parameter, rolling restart: longest write gap", GAP, parameter),
        ("minor release, rolling restart: longest write gap", GAP, minor),
        ("failover: longest write gap", Bound::Factor(1.05), failover),
    ];
    outcomes.extend(rows.map(|(what, bound, (ours, manual))| Outcome { what, bound, ours, manual }));
    for side in [ours as &mut dyn Side, manual] {
        host::read(pgbench().args(["-i", "-q", "-s", "10"]).envs(side.variables()?))?;
    }
    let direct = "pgbench, 8 clients: time of 1,000 transactions";
    outcomes.push(throughput(direct, ours, manual, pairs, |side| side.variables())?);
    // Only now: the other side has none, and it would count in the bring-up.
    ours.add_proxy()?;
    let proxied = "the same through HAProxy, plain Patroni directly";
    outcomes.push(throughput(proxied, ours, manual, pairs, |side| side.through_proxy())?);
    Ok(outcomes)
}

/// Runs one thing on both sides, in turns. It is told whether it runs for the last time.
fn each(
    pairs: u32,
    what: &str,
    ours: &mut Ours<'_>,
    manual: &mut Manual,
    mut sample: impl FnMut(&mut dyn Side, bool) -> Result<Duration>,
) -> Result<(Samples, Samples)> {
    each_numbered(pairs, what, ours, manual, |side, pair| sample(side, pair == pairs))
}

/// The same; it is told which pair it is, from 1 on.
fn each_numbered(
    pairs: u32,
    what: &str,
    ours: &mut Ours<'_>,
    manual: &mut Manual,
    mut sample: impl FnMut(&mut dyn Side, u32) -> Result<Duration>,
) -> Result<(Samples, Samples)> {
    let (mut of_ours, mut of_manual) = (Samples::default(), Samples::default());
    for pair in 1..=pairs {
        let mut take = |side: &mut dyn Side| {
            let name = side.name();
            sample(side, pair).with_context(|| format!("{what}, {name}, {pair} of {pairs}"))
        };
        // The one that goes first changes: it may find the machine warmer or colder.
        let (by_quorate, by_hand) = if pair % 2 == 1 {
            let by_hand = take(manual)?;
            (take(ours)?, by_hand)
        } else {
            (take(ours)?, take(manual)?)
        };
        eprintln!("{what}, {pair}/{pairs}: quorate {}; manually {}", seconds(by_quorate), seconds(by_hand));
        of_ours.add(by_quorate);
        of_manual.add(by_hand);
    }
    Ok((of_ours, of_manual))
}

/// The longest time between two commits while something is done, and until a commit follows it.
fn gap<T>(
    writer: &Path,
    side: &mut dyn Side,
    change: impl FnOnce(&mut dyn Side) -> Result<T>,
) -> Result<(Duration, T)> {
    let writer = Writer::start(writer, side.variables()?)?;
    writer.wait_for_commit()?;
    sleep(LEAD);
    let begun = Instant::now();
    let done = change(side)?;
    writer.wait_for_commit()?;
    Ok((writer.longest_gap_since(begun), done))
}

/// All that runs on the primary's machine is killed at once, and nothing there starts it again.
fn fail_over(writer: &Path, side: &mut dyn Side) -> Result<Duration> {
    let primary = side.primary()?;
    let cut = |side: &mut dyn Side| -> Result<()> {
        kill_all_below(&side.directory(&primary))?;
        until("another primary", || Ok(side.primary().is_ok_and(|now| now != primary)))
    };
    let (gap, ()) = gap(writer, side, cut)?;
    side.bring_back(&primary)?;
    Ok(gap)
}

fn kill_all_below(directory: &Path) -> Result<()> {
    let all = below(directory)?;
    ensure!(!all.is_empty(), "nothing runs below {}", directory.display());
    let pids = all.iter().map(u32::to_string);
    // One that ended meanwhile is no failure; the rest is looked for again.
    let _ = host::read(Command::new("kill").arg("-KILL").args(pids));
    until("the end of what was killed", || Ok(below(directory)?.is_empty()))
}

/// Processes that work in this directory, or were told to.
fn below(directory: &Path) -> Result<Vec<u32>> {
    let text = directory.display().to_string();
    let is_below = |pid: &u32| {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let works_there = fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(directory));
        let told = fs::read(process.join("cmdline")).unwrap_or_default();
        works_there || String::from_utf8_lossy(&told).contains(&format!("{text}/"))
    };
    let entries = fs::read_dir("/proc").context("no /proc")?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    Ok(pids.filter(is_below).collect())
}

/// Transactions per second, shown as the time that 1,000 of them take.
fn throughput(
    what: &'static str,
    ours: &mut Ours<'_>,
    manual: &mut Manual,
    pairs: u32,
    variables: impl Fn(&dyn Side) -> Result<Vec<(String, String)>>,
) -> Result<Outcome> {
    let (ours, manual) = each(pairs, "pgbench", ours, manual, |side, _| {
        let told = host::read(pgbench().args(["-c", "8", "-j", "2", "-T", "10"]).envs(variables(side)?))?;
        Ok(Duration::from_secs_f64(1000.0 / transactions_per_second(&told)?))
    })?;
    Ok(Outcome { what, bound: Bound::None, ours, manual })
}

fn pgbench() -> Command {
    Command::new(format!("{}/pgbench", postgres::PROGRAMS_DIRECTORY))
}

fn transactions_per_second(told: &str) -> Result<f64> {
    let line = told.lines().find_map(|line| line.strip_prefix("tps = "));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.with_context(|| format!("pgbench told no throughput:\n{told}"))
}

fn until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so()? {
        if Instant::now() > deadline {
            bail!("{what}: not within {} s", PATIENCE.as_secs());
        }
        sleep(PAUSE);
    }
    Ok(())
}

fn print(outcomes: &[Outcome], pairs: u32) {
    let rows: Vec<_> = outcomes.iter().map(Outcome::row).collect();
    println!("Three members, one synchronous standby: median of {pairs} runs each, in turns (shortest–longest).\n");
    print!("{}", table(["", "quorate", "plain Patroni", "ratio", "allowed", ""], &rows));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_factors_with_or_without_an_allowance() {
        let outcome = |bound, ours: u64, manual: u64| {
            let samples = |time| [Duration::from_millis(time)].into_iter().collect();
            Outcome { what: "", bound, ours: samples(ours), manual: samples(manual) }
        };
        assert!(outcome(Bound::Factor(1.2), 1200, 1000).kept() && !outcome(Bound::Factor(1.2), 1201, 1000).kept());
        assert!(outcome(GAP, 1300, 1000).kept() && !outcome(GAP, 1301, 1000).kept());
        assert!(outcome(Bound::None, 9000, 1).kept());
    }

    #[test]
    fn throughput_is_read_from_what_pgbench_prints() {
        let told = "latency average = 4.2 ms\ntps = 1234.5 (without initial connection time)\n";
        assert_eq!(transactions_per_second(told).unwrap(), 1234.5);
        assert!(transactions_per_second("latency average = 4.2 ms\n").is_err());
    }
}
