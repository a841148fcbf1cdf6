//! `cargo xtask model`: the planner's property tests on many new cases, then the whole model check, with the runs that are too long for
//! `cargo test`. Each run prints the number of states it explored; the last line is the sum.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::host;

/// How many random worlds each property of the planner is tried in.
const CASES: &str = "10000";

pub fn run(filter: Option<&str>) -> Result<()> {
    let began = Instant::now();
    if filter.is_none() {
        let mut cargo = host::cargo()?;
        cargo.args(["test", "--release", "--locked", "--package", "quorate-core", "--test", "core"]);
        host::run(cargo.args(["--", "planner::"]).env("PROPTEST_CASES", CASES))?;
    }
    let mut cargo = host::cargo()?;
    cargo.args(["test", "--release", "--locked", "--package", "quorate-core", "--test", "model"]);
    // Each run uses both cores that CI has, and the runs stand one after another in the output.
    cargo.args(["--", "--include-ignored", "--nocapture", "--test-threads", "1"]).args(filter);
    let mut running =
        cargo.stdout(Stdio::inherit()).stderr(Stdio::piped()).spawn().context("cannot start `cargo test`")?;
    let output = running.stderr.take().context("`cargo test` has no output")?;
    let total = pass_on(BufReader::new(output), std::io::stderr())?;
    if !running.wait()?.success() {
        bail!("the model check failed after {} runs and {} states", total.runs, total.states);
    }
    println!("\n{} runs, {} states, {} s", total.runs, total.states, began.elapsed().as_secs());
    Ok(())
}

#[derive(Debug, Default, PartialEq)]
struct Total {
    runs: u64,
    states: u64,
}

/// Copies the output as it comes and adds up what the runs report.
fn pass_on(from: impl BufRead, mut to: impl Write) -> Result<Total> {
    let mut total = Total::default();
    for line in from.lines() {
        let line = line?;
        writeln!(to, "{line}")?;
        if let Some(states) = states_of(&line) {
            total.runs += 1;
            total.states += states;
        }
    }
    Ok(total)
}

/// Reads a line such as `from three to two: 4581 states, 40 moves deep, 0.8s`.
fn states_of(line: &str) -> Option<u64> {
    let (told, rest) = line.split_once(" states, ")?;
    rest.contains(" moves deep, ").then(|| told.rsplit(' ').next()?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_all_runs_are_added_and_the_output_is_unchanged() {
        let output = "\
from one to two: 2943 states, 41 moves deep, 261.2ms
  a learner added: 78 times
gone: 11658 states, 52 moves deep, 1.8s
a test may print 9 states, and mean something else
";
        let mut copy = Vec::new();
        let total = pass_on(output.as_bytes(), &mut copy).unwrap();
        assert_eq!(total, Total { runs: 2, states: 14601 });
        assert_eq!(String::from_utf8(copy).unwrap(), output);
    }
}
