//! `cargo xtask bench backup`: `quorate backup create` against etcd's own snapshot sent manually through zstd and age into the same
//! store, on a cluster full of data, while clients write. They take turns, so that whatever else the machine does meets both.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::CLUSTER;
use super::agent::agents;
use super::figures::{Samples, ratio, seconds, table, verdict};
use super::filled::{COMPRESSION, Filled, Latency, Options, QUORATES, Size};
use super::process::{self, Cost};
use crate::lab::Lab;

/// Of quorate's throughput to that of the manual backup.
const LEAST_RATIO: f64 = 0.9;
/// For quorate, and for an agent, whatever the size of the data.
const MOST_MEMORY: u64 = 64 << 20;
/// For the program of the tests, whose code alone takes a third more. It is half of the smallest snapshot that CI has backed up, so
/// what keeps all data in memory is still noticed.
const MOST_MEMORY_UNOPTIMIZED: u64 = 96 << 20;
const PATIENCE: Duration = Duration::from_secs(600);
/// How long clients are watched while nothing happens.
const REST: Duration = Duration::from_secs(5);
/// What was saved manually is below it in the bucket.
const BY_HAND: &str = "by-hand/";

/// What runs of one kind showed.
#[derive(Default)]
struct Side {
    time: Samples,
    half: Samples,
    most: Samples,
}

impl Side {
    fn add(&mut self, time: Duration, latency: &Latency) {
        self.time.add(time);
        self.half.add(latency.half);
        self.most.add(latency.most);
    }
}

#[derive(Default)]
struct Outcome {
    quorate: Side,
    by_hand: Side,
    rest: Side,
    /// Bytes of the snapshot, and of what either keeps of it.
    snapshot: u64,
    stored: u64,
    stored_by_hand: u64,
    /// Bytes of memory at most: of quorate, and of the agent that had the most.
    peak: u64,
    agents_peak: u64,
    /// Less than this is allowed for each of them.
    allowed: u64,
}

impl Outcome {
    /// How many times the throughput of the manual backup: the bytes are the same.
    fn ratio(&self) -> f64 {
        ratio(self.by_hand.time.median(), self.quorate.time.median())
    }

    fn is_fast(&self) -> bool {
        self.ratio() >= LEAST_RATIO
    }

    fn is_small(&self) -> bool {
        self.peak.max(self.agents_peak) < self.allowed
    }

    fn kept(&self, noisy: bool) -> bool {
        self.is_small() && (noisy || self.is_fast())
    }
}

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Others may use this machine meanwhile: tell how fast it is, and judge the memory alone
    #[arg(long)]
    noisy: bool,
}

pub fn run(lab: &Lab, arguments: &Arguments) -> Result<()> {
    let options = &arguments.options;
    let filled = Filled::prepare(lab, options.size, options.measured.programs())?;
    let allowed = if options.measured.unoptimized { MOST_MEMORY_UNOPTIMIZED } else { MOST_MEMORY };
    let mut outcome = Outcome { allowed, ..Outcome::default() };
    for pair in 1..=options.pairs {
        let (_, latency) = while_writing(&filled, || {
            sleep(REST);
            Ok(())
        })?;
        outcome.rest.add(REST, &latency);
        eprintln!("{pair}/{}: at rest {latency}", options.pairs);
        sample_by_hand(&filled, pair, &mut outcome)?;
        sample_quorate(&filled, &mut outcome)?;
    }
    let pairs = u64::from(options.pairs);
    outcome.stored = filled.store.size(QUORATES)? / pairs;
    outcome.stored_by_hand = filled.store.size(BY_HAND)? / pairs;
    for agent in agents(&filled.ground)? {
        outcome.agents_peak = agent.peak()?.max(outcome.agents_peak);
    }
    check(&outcome, options.size)?;
    filled.ground.destroy()?;
    print(&outcome, options);
    if !outcome.kept(arguments.noisy) {
        bail!("`quorate backup create --no-verify` takes more than it may");
    }
    Ok(())
}

fn sample_by_hand(filled: &Filled<'_>, pair: u32, outcome: &mut Outcome) -> Result<()> {
    let ((by_hand, bytes), latency) = while_writing(filled, || filled.save_by_hand(&format!("{BY_HAND}{pair}")))?;
    let (save, send) = (seconds(by_hand.save), seconds(by_hand.send));
    eprintln!("manually {}, of it {save} to save and {send} to send; {latency}", seconds(by_hand.time()));
    outcome.snapshot = bytes;
    outcome.by_hand.add(by_hand.time(), &latency);
    Ok(())
}

fn sample_quorate(filled: &Filled<'_>, outcome: &mut Outcome) -> Result<()> {
    let complaints = filled.directory.join("complaints");
    // Nothing is proven manually either.
    let arguments = ["backup", "create", CLUSTER, "--no-verify"];
    let create = || process::measure(filled.quorate().args(arguments), &complaints, PATIENCE);
    let (Cost { time, peak }, latency) = while_writing(filled, create)?;
    eprintln!("quorate {}, {}; {latency}", seconds(time), mebibytes(peak));
    outcome.peak = peak.max(outcome.peak);
    outcome.quorate.add(time, &latency);
    Ok(())
}

fn while_writing<T>(filled: &Filled<'_>, work: impl FnOnce() -> Result<T>) -> Result<(T, Latency)> {
    let writing = filled.begin_writing()?;
    let done = work();
    // Asked first: writers that broke off say more than what broke off with them.
    let latency = writing.end()?;
    Ok((done?, latency))
}

/// Figures of something else than whole backups would mean nothing.
fn check(outcome: &Outcome, size: Size) -> Result<()> {
    let Outcome { snapshot, stored, stored_by_hand, .. } = *outcome;
    ensure!(snapshot >= size.bytes(), "expected a snapshot of {size} or more, found {}", mebibytes(snapshot));
    for (who, stored) in [("quorate", stored), ("manually", stored_by_hand)] {
        // Half of it is random and cannot be made smaller.
        let least = size.bytes() / 2;
        ensure!(stored >= least, "expected {} or more stored by {who}, found {}", mebibytes(least), mebibytes(stored));
    }
    Ok(())
}

fn print(outcome: &Outcome, options: &Options) {
    let Outcome { quorate, by_hand, rest, snapshot, stored, stored_by_hand, peak, agents_peak, allowed } = outcome;
    let nothing = String::new;
    let throughput =
        |side: &Side| format!("{}/s", mebibytes((*snapshot as f64 / side.time.median().as_secs_f64()) as u64));
    let row = |what: &str, of: fn(&Side) -> &Samples| {
        [what.to_owned(), of(quorate).to_string(), of(by_hand).to_string(), of(rest).to_string(), nothing()]
    };
    let memory = |what: &str, peak: u64| {
        [what.to_owned(), mebibytes(peak), nothing(), nothing(), verdict(peak < *allowed).to_owned()]
    };
    let rows = [
        ["time".into(), quorate.time.to_string(), by_hand.time.to_string(), nothing(), nothing()],
        ["throughput".into(), throughput(quorate), throughput(by_hand), nothing(), verdict(outcome.is_fast()).into()],
        memory("most memory, quorate", *peak),
        memory("most memory, an agent", *agents_peak),
        row("half of the clients' writes within", |side| &side.half),
        row("99 % of the clients' writes within", |side| &side.most),
        ["stored".into(), mebibytes(*stored), mebibytes(*stored_by_hand), nothing(), nothing()],
    ];
    let Options { size, pairs, .. } = options;
    println!(
        "A backup of {size}, half of it random, while clients write: median of {pairs} runs each, in turns (shortest–longest).\n"
    );
    print!("{}", table(["", "`backup create --no-verify`", "manually", "idle", ""], &rows));
    println!("\nby hand: `etcdctl snapshot save`, then `zstd -{COMPRESSION} | age | rclone rcat`");
    println!(
        "throughput: of the snapshot's {}; quorate's is {:.2} × that of the manual one",
        mebibytes(*snapshot),
        outcome.ratio()
    );
    println!(
        "allowed: {LEAST_RATIO} × the throughput of the manual one or more, less than {} of memory",
        mebibytes(*allowed)
    );
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(quorate: u64, by_hand: u64) -> Outcome {
        let side = |time| Side { time: [Duration::from_millis(time)].into_iter().collect(), ..Side::default() };
        Outcome { quorate: side(quorate), by_hand: side(by_hand), allowed: MOST_MEMORY, ..Outcome::default() }
    }

    #[test]
    fn the_promise_is_nine_tenths_of_the_throughput_and_little_memory() {
        assert!(outcome(1000, 900).kept(false));
        assert!(!outcome(1000, 899).kept(false));
        assert!(outcome(1000, 899).kept(true));
        for noisy in [false, true] {
            assert!(!Outcome { peak: MOST_MEMORY, ..outcome(900, 1000) }.kept(noisy));
            assert!(!Outcome { agents_peak: MOST_MEMORY, ..outcome(900, 1000) }.kept(noisy));
            assert!(Outcome { peak: MOST_MEMORY - 1, ..outcome(900, 1000) }.kept(noisy));
        }
    }

    #[test]
    fn implausible_backup_sizes_are_refused() {
        let size: Size = "128MiB".parse().unwrap();
        let whole = || Outcome { snapshot: 130 << 20, stored: 66 << 20, stored_by_hand: 66 << 20, ..outcome(1, 1) };
        assert!(check(&whole(), size).is_ok());
        assert!(check(&Outcome { stored: 63 << 20, ..whole() }, size).is_err());
        assert!(check(&Outcome { snapshot: 127 << 20, ..whole() }, size).is_err());
    }
}
