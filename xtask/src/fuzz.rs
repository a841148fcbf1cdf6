//! `cargo xtask fuzz`: runs the fuzz tests longer than `cargo xtask test` does, with new input and bounded memory. These are the
//! tests with `fuzz` in their names; see `crates/fuzz`.

use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::host;
use crate::test::build::{self, Binary};

/// A reader that needs more, for input of at most 64 KiB, has no bound. Much of it is address space of the test binary itself.
const MOST_MEMORY: u64 = 2 << 30;

#[derive(clap::Args)]
pub struct Options {
    /// Only targets with this in their name, such as `wal`
    target: Option<String>,
    /// For how long, all targets together
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
}

pub fn run(options: &Options) -> Result<()> {
    let targets = targets(options)?;
    if targets.is_empty() {
        bail!("no target has `{}` in its name", options.target.as_deref().unwrap_or_default());
    }
    let seconds = (options.minutes * 60 / targets.len() as u64).max(1);
    let mut failed = Vec::new();
    for (binary, test) in &targets {
        let began = Instant::now();
        let mut command = Command::new("prlimit");
        command.arg(format!("--as={MOST_MEMORY}")).arg(&binary.program).args(["--exact", test, "--nocapture"]);
        command.current_dir(&binary.directory).env("CARGO_MANIFEST_DIR", &binary.directory);
        command.env("QUORATE_FUZZ_SECONDS", seconds.to_string());
        let ended = host::read(&mut command);
        let word = if ended.is_ok() { "ok    " } else { "FAILED" };
        let inputs = ended.as_ref().ok().and_then(|said| said.lines().find(|line| line.contains(" inputs, seed ")));
        println!("{word} {:4} s  {} {test}  {}", began.elapsed().as_secs(), binary.label(), inputs.unwrap_or_default());
        if let Err(error) = ended {
            println!("{error:#}");
            failed.push(test.clone());
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} targets failed: {}", failed.len(), targets.len(), failed.join(", "));
    }
    println!("{} targets, {seconds} s each, nothing found", targets.len());
    Ok(())
}

/// Each target with the binary that holds it.
fn targets(options: &Options) -> Result<Vec<(Binary, String)>> {
    let mut targets = Vec::new();
    for binary in build::build()? {
        let tests = binary.list(&[String::from("fuzz")])?;
        let wanted = tests.into_iter().filter(|test| options.target.as_ref().is_none_or(|part| test.contains(part)));
        targets.extend(wanted.map(|test| (binary.clone(), test)));
    }
    // The harness and this program have separate tests.
    targets.retain(|(binary, _)| !["quorate-fuzz", "xtask"].contains(&binary.package.as_str()));
    Ok(targets)
}
