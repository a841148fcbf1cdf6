//! `cargo xtask test`: prepares the machine (packages, etcd versions, an S3 store), then runs every test of the workspace with
//! plain `cargo test`. Its output is passed on as it comes; the totals stand alone on the last line.

use std::io::{BufRead, BufReader, Write};
use std::ops::AddAssign;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::host::{self, Need};
use crate::lab::Lab;
use crate::{etcd, weed};

const NEEDS: [Need; 3] = [
    Need::Command { name: "openssl", package: "openssl" },
    Need::Command { name: "ip", package: "iproute2" },
    Need::Command { name: "ps", package: "procps" },
];

pub fn run(lab: &Lab, filter: Option<&str>, arguments: &[String]) -> Result<()> {
    host::install_missing(&NEEDS)?;
    etcd::run(lab, false)?;
    weed::run(lab)?;

    let mut cargo = host::cargo()?;
    cargo.args(["test", "--workspace", "--locked", "--no-fail-fast"]).args(filter);
    if !arguments.is_empty() {
        cargo.arg("--").args(arguments);
    }
    let mut running =
        cargo.env("QUORATE_LAB", lab.root()).stdout(Stdio::piped()).spawn().context("cannot start `cargo test`")?;
    let output = running.stdout.take().context("`cargo test` has no output")?;
    let total = pass_on(BufReader::new(output), std::io::stdout())?;
    let status = running.wait()?;

    let versions: Vec<String> = lab.installed().keys().map(ToString::to_string).collect();
    println!("\nwith etcd {}", versions.join(", "));
    println!("{} passed, {} failed", total.passed, total.failed);
    // A test binary that crashes or does not compile counts no failure, but cargo knows.
    if !status.success() {
        bail!("`cargo test` failed: {status}");
    }
    Ok(())
}

#[derive(Debug, Default, PartialEq)]
struct Total {
    passed: u64,
    failed: u64,
}

impl AddAssign for Total {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// Copies the output line by line and adds up the result lines of the test binaries in it.
fn pass_on(mut from: impl BufRead, mut to: impl Write) -> Result<Total> {
    let mut total = Total::default();
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
        to.flush()?;
        if let Some(result) = parse_result(&String::from_utf8_lossy(&line)) {
            total += result;
        }
        line.clear();
    }
    Ok(total)
}

/// Reads a line such as `test result: ok. 3 passed; 1 failed; 0 ignored; …`, coloured or not.
fn parse_result(line: &str) -> Option<Total> {
    let words: Vec<&str> = line.strip_prefix("test result: ")?.split_whitespace().collect();
    let count = |name: &str| words.windows(2).find(|pair| pair[1] == name)?[0].parse().ok();
    Some(Total { passed: count("passed;")?, failed: count("failed;")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_binaries_are_added_and_the_output_is_unchanged() {
        let output = "\
running 2 tests
test a ... ok
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

a test may print: test result: ok. 9 passed; 9 failed;
test result: \u{1b}[31mFAILED\u{1b}[m. 3 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.20s
no line break at the end";
        let mut copy = Vec::new();
        let total = pass_on(output.as_bytes(), &mut copy).unwrap();
        assert_eq!(total, Total { passed: 5, failed: 1 });
        assert_eq!(String::from_utf8(copy).unwrap(), output);
    }
}
