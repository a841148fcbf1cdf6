//! `cargo xtask test`: prepares the machine (packages, etcd versions, an S3 store), then runs every test of the workspace with
//! plain `cargo test`. Its output is passed on as it comes; the totals stand alone on the last line.
//!
//! Tests on real clusters share this machine with each other, and some machines are slow now and then. So a few of them that
//! fail are run once more, each alone; what passes then is named at the end, for it deserves a look. What needs no cluster gets
//! no second chance: a rule that was broken once is broken.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};

use crate::host::{self, Need};
use crate::lab::Lab;
use crate::{etcd, forward, unpacked, weed};

const NEEDS: [Need; 7] = [
    Need::Command { name: "age", package: "age" },
    Need::Command { name: "cpio", package: "cpio" },
    Need::Command { name: "nft", package: "nftables" },
    Need::Command { name: "zstd", package: "zstd" },
    Need::Command { name: "openssl", package: "openssl" },
    Need::Command { name: "ip", package: "iproute2" },
    Need::Command { name: "ps", package: "procps" },
];

/// Property tests begin with this: what passes here passes again. New cases are tried by `cargo xtask model`.
const SEED: &str = "PROPTEST_RNG_SEED";
/// Packages whose tests start no cluster.
const WITHOUT_CLUSTERS: [&str; 3] = ["quorate-core", "quorate-pki", "xtask"];
/// If more fail, it is not the machine.
const MOST_AGAIN: usize = 6;

pub fn run(lab: &Lab, filter: Option<&str>, arguments: &[String]) -> Result<()> {
    host::install_missing(&NEEDS)?;
    etcd::run(lab, false)?;
    weed::run(lab)?;
    unpacked::ensure(lab)?;
    forward::ensure(lab)?;

    let mut cargo = cargo_test(lab)?;
    cargo.args(["--workspace", "--no-fail-fast"]).args(filter);
    if !arguments.is_empty() {
        cargo.arg("--").args(arguments);
    }
    let first = attempt(&mut cargo)?;
    let passed_alone = if first.deserves_another() { again(lab, &first)? } else { Vec::new() };

    let versions: Vec<String> = lab.installed().keys().map(ToString::to_string).collect();
    println!("\nwith etcd {}", versions.join(", "));
    for name in &passed_alone {
        println!("failed beside others, passed alone: {name}");
    }
    let passed = first.passed + passed_alone.len();
    println!("{passed} passed, {} failed", first.failed.len() - passed_alone.len());
    if !first.succeeded && passed_alone.len() < first.failed.len().max(1) {
        bail!("`cargo test` failed");
    }
    Ok(())
}

fn cargo_test(lab: &Lab) -> Result<Command> {
    let mut cargo = host::cargo()?;
    cargo.args(["test", "--locked"]).env("QUORATE_LAB", lab.root());
    if std::env::var_os(SEED).is_none() {
        cargo.env(SEED, "1");
    }
    Ok(cargo)
}

/// Runs each test that failed once more, with nothing beside it. Those that pass then, if every target has such: one that has none
/// did not fail by a test.
fn again(lab: &Lab, first: &Outcome) -> Result<Vec<String>> {
    let mut passed = Vec::new();
    for target in &first.targets {
        println!("\nonce more, alone: what failed of `{target}`");
        let before = passed.len();
        for name in first.failed_once() {
            let alone = attempt(cargo_test(lab)?.args(in_workspace(target)).args(["--", "--exact", name]))?;
            if alone.succeeded && alone.passed > 0 {
                passed.push(format!("{name} ({target})"));
            }
        }
        if passed.len() == before {
            return Ok(Vec::new());
        }
    }
    Ok(passed)
}

/// The same target in other words: alone, a package would be built anew, with fewer features.
fn in_workspace(target: &str) -> Vec<&str> {
    let words: Vec<&str> = target.split(' ').collect();
    let kind = if words.first() == Some(&"-p") { &words[2..] } else { &words[..] };
    ["--workspace"].iter().chain(kind).copied().collect()
}

/// What a run of `cargo test` showed.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    /// As cargo sees it: it also knows of test binaries that crash or do not compile.
    succeeded: bool,
    passed: usize,
    /// The names of tests.
    failed: Vec<String>,
    /// Of what something failed, in the words by which cargo is asked for it: `-p quorate --test changes`.
    targets: Vec<String>,
}

impl Outcome {
    fn deserves_another(&self) -> bool {
        let clusters = |target: &String| !WITHOUT_CLUSTERS.iter().any(|package| names_package(target, package));
        !self.succeeded
            && (1..=MOST_AGAIN).contains(&self.failed.len())
            && self.failed.len() >= self.targets.len()
            && self.targets.iter().all(clusters)
    }

    /// Each name once.
    fn failed_once(&self) -> Vec<&String> {
        let mut names: Vec<&String> = self.failed.iter().collect();
        names.sort();
        names.dedup();
        names
    }
}

fn names_package(target: &str, package: &str) -> bool {
    let words: Vec<&str> = target.split(' ').collect();
    words.windows(2).any(|pair| pair == ["-p", package])
}

/// Runs tests and passes on what they and cargo print, as it comes.
fn attempt(cargo: &mut Command) -> Result<Outcome> {
    let mut running =
        cargo.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("cannot start `cargo test`")?;
    let complaints = running.stderr.take().context("`cargo test` has no stderr")?;
    let output = running.stdout.take().context("`cargo test` has no stdout")?;
    let complaints = thread::spawn(move || pass_on(complaints, std::io::stderr()));
    let mut outcome = pass_on(output, std::io::stdout())?;
    outcome.targets = complaints.join().expect("passing on does not panic")?.targets;
    outcome.succeeded = running.wait()?.success();
    Ok(outcome)
}

/// Copies what comes line by line, and notes what it says of tests.
fn pass_on(from: impl Read, mut to: impl Write) -> Result<Outcome> {
    let mut from = BufReader::new(from);
    let mut outcome = Outcome::default();
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
        to.flush()?;
        outcome.note(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
    Ok(outcome)
}

impl Outcome {
    fn note(&mut self, line: &str) {
        if let Some(passed) = parse_result(line) {
            self.passed += passed;
        } else if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failed.push(name.to_owned());
        } else if let Some(target) = line.strip_prefix("error: test failed, to rerun pass `") {
            self.targets.push(target.trim_end_matches('`').to_owned());
        }
    }
}

/// Reads a line such as `test result: ok. 3 passed; 1 failed; 0 ignored; …`, coloured or not.
fn parse_result(line: &str) -> Option<usize> {
    let words: Vec<&str> = line.strip_prefix("test result: ")?.split_whitespace().collect();
    words.windows(2).find(|pair| pair[1] == "passed;")?[0].parse().ok()
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
test deep::b - should panic ... FAILED
test result: \u{1b}[31mFAILED\u{1b}[m. 3 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.20s
error: test failed, to rerun pass `-p quorate --test changes`
no line break at the end";
        let mut copy = Vec::new();
        let outcome = pass_on(output.as_bytes(), &mut copy).unwrap();
        assert_eq!(outcome.passed, 5);
        assert_eq!(outcome.failed, ["deep::b - should panic"]);
        assert_eq!(outcome.targets, ["-p quorate --test changes"]);
        assert_eq!(String::from_utf8(copy).unwrap(), output);
    }

    #[test]
    fn a_target_is_run_again_as_it_was_built() {
        assert_eq!(in_workspace("-p quorate --test changes"), ["--workspace", "--test", "changes"]);
        assert_eq!(in_workspace("-p quorate-agent --lib"), ["--workspace", "--lib"]);
    }

    fn failing(tests: usize, targets: &[&str]) -> Outcome {
        Outcome {
            succeeded: false,
            passed: 100,
            failed: (0..tests).map(|n| n.to_string()).collect(),
            targets: targets.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn a_second_chance_is_for_few_tests_on_clusters() {
        assert!(failing(1, &["-p quorate --test changes"]).deserves_another());
        assert!(failing(6, &["-p quorate --test changes", "-p quorate-agent --lib"]).deserves_another());
        assert!(!failing(7, &["-p quorate --test changes"]).deserves_another(), "too many");
        assert!(!failing(1, &["-p quorate-core --test stories"]).deserves_another(), "a rule");
        assert!(!failing(2, &["-p quorate --test auth", "-p xtask --bin xtask"]).deserves_another(), "no cluster");
        assert!(!failing(0, &["-p quorate --test auth"]).deserves_another(), "it crashed");
        assert!(
            !failing(1, &["-p quorate --test auth", "-p quorate --test binaries"]).deserves_another(),
            "one crashed"
        );
        assert!(!Outcome { succeeded: true, ..failing(0, &[]) }.deserves_another());
    }
}
