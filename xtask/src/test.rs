//! `cargo xtask test`: prepares the machine (packages, etcd versions, an S3 store, Patroni) while the tests compile, then runs the tests of
//! all binaries in parallel. Tests on real clusters get a process each; those that only compute run per binary, with the remaining CPU
//! time. The last line has the totals.
//!
//! Tests on real clusters share this machine, and some machines are slow now and then. So if a few of them fail, each is run once more,
//! alone. One that passes then is named at the end: it has a cause, and someone has to find it. Tests that need no cluster get no second
//! try.

pub mod build;
mod job;
mod pace;
mod pool;
mod report;

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::host::{self, Need};
use crate::lab::Lab;
use crate::{etcd, forward, postgres, unpacked, weed};
use build::Binary;
use job::{Done, Job, Part};
use pace::Pace;
use pool::Surroundings;
use report::{Durations, Steps};

/// sshd is run from its unpacked package, and links to this.
const LIBWRAP: &str = if cfg!(target_arch = "aarch64") {
    "/usr/lib/aarch64-linux-gnu/libwrap.so.0"
} else {
    "/usr/lib/x86_64-linux-gnu/libwrap.so.0"
};

pub const NEEDS: [Need; 15] = [
    Need::Command { name: "age", package: "age" },
    Need::Command { name: "cpio", package: "cpio" },
    Need::Command { name: "faketime", package: "faketime" },
    Need::Command { name: "nft", package: "nftables" },
    Need::Command { name: "zstd", package: "zstd" },
    Need::Command { name: "openssl", package: "openssl" },
    Need::Command { name: "ip", package: "iproute2" },
    Need::Command { name: "ps", package: "procps" },
    Need::Command { name: "ssh", package: "openssh-client" },
    Need::File { path: LIBWRAP, package: "libwrap0" },
    // For hosts that let nobody in as root.
    Need::Command { name: "sudo", package: "sudo" },
    postgres::SERVER,
    postgres::PGBACKREST,
    postgres::HAPROXY,
    postgres::PGBOUNCER,
];

/// Property tests begin with this: what passes here passes again. New cases are tried by `cargo xtask model` and `fuzz`.
const SEED: &str = "PROPTEST_RNG_SEED";
/// Tells tests to make fewer rounds. CI runs often, and those that are random differ each time.
const QUICK: &str = "QUORATE_TEST_QUICK";
/// If more fail, it is not the machine. One stall of it can fail every test that runs at that moment, and a run has had several stalls.
/// A second try hides nothing that fails alone, and names whatever passes.
const MOST_AGAIN: usize = 20;
/// How long tests took on the machine of CI, for a machine that has not run them yet.
const KNOWN: &str = include_str!("test/durations.txt");

/// A part of the tests. CI runs the two next to each other: what only computes then fills the time in which others wait.
#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
pub enum Only {
    Clusters,
    Rules,
}

impl Only {
    fn takes(self, binary: &Binary) -> bool {
        (self == Only::Rules) == binary.is_pure()
    }

    /// Its files. Two parts may run at the same time.
    fn directory(self) -> &'static str {
        match self {
            Only::Clusters => "clusters",
            Only::Rules => "rules",
        }
    }
}

/// Compiles, and runs nothing.
pub fn compile() -> Result<()> {
    let binaries = build::build()?;
    println!("{} test binaries", binaries.len());
    Ok(())
}

pub fn run(lab: &Lab, only: Option<Only>, quick: bool, filter: Option<&str>, arguments: &[String]) -> Result<()> {
    let mut steps = Steps::default();
    let mut binaries = prepare_and_build(lab, &mut steps)?;
    binaries.retain(|binary| only.is_none_or(|only| only.takes(binary)));
    let place = host::target_directory()?.join("tests").join(only.map_or("", Only::directory));
    fs::create_dir_all(&place).with_context(|| format!("cannot create {}", place.display()))?;
    let around = Surroundings { variables: variables(lab, quick), scratch: place.clone() };
    let file = place.join("durations.txt");
    let mut durations = Durations::parse(&fs::read_to_string(&file).unwrap_or_else(|_| KNOWN.to_owned()));

    let words: Vec<String> = filter.map(str::to_owned).into_iter().chain(arguments.iter().cloned()).collect();
    let jobs = longest_first(jobs(&binaries, &words)?, &durations);
    let shown = |done: &Done| println!("{}", report::line(done));
    let first = steps.time("tests", || pool::run(jobs, Pace::shared(), &around, shown))?;
    let failed: usize = first.iter().map(|done| done.failed.len()).sum();
    let passed_alone = if deserve_another(&first) {
        println!("\nonce more, alone: the {failed} that failed");
        let again = first.iter().flat_map(|done| done.failed.iter().map(|test| done.job.alone(test))).collect();
        steps.time("second try", || pool::run(again, Pace::alone(), &around, shown))?
    } else {
        Vec::new()
    };
    durations.learn(&first);
    fs::write(&file, durations.text()).with_context(|| format!("cannot write {}", file.display()))?;

    println!("\n{}\n\n{}", report::slowest(&first), steps.text());
    let versions: Vec<String> = lab.installed().keys().map(ToString::to_string).collect();
    println!("\nwith etcd {}", versions.join(", "));
    conclude(&first, &passed_alone)
}

/// The last lines, and whether the run failed.
fn conclude(first: &[Done], again: &[Done]) -> Result<()> {
    let count = |all: &[Done]| all.iter().map(|done| done.passed).sum::<usize>();
    print!("{}", report::why_failed(first, again));
    let failed: Vec<String> = first.iter().flat_map(names_of_failed).collect();
    let saved: Vec<String> = again.iter().filter(|done| done.passed == 1).map(|done| done.job.name()).collect();
    for name in &failed {
        let fate = if saved.contains(name) { "FLAKY: failed next to others, passed alone" } else { "FAILED" };
        println!("{fate}: {name}");
    }
    println!("{} passed, {} failed", count(first) + saved.len(), failed.len() - saved.len());
    if saved.len() < failed.len() {
        bail!("{} tests failed", failed.len() - saved.len());
    }
    Ok(())
}

fn names_of_failed(done: &Done) -> Vec<String> {
    let name = |test: &String| if test.is_empty() { done.job.name() } else { done.job.alone(test).name() };
    done.failed.iter().map(name).collect()
}

/// Packages, etcd versions and the rest come over the network for the most part, so they arrive while the tests compile.
fn prepare_and_build(lab: &Lab, steps: &mut Steps) -> Result<Vec<Binary>> {
    std::thread::scope(|scope| {
        let began = Instant::now();
        let prepared = scope.spawn(move || prepare(lab).map(|()| began.elapsed()));
        let built = steps.time("build", build::build);
        let prepared = prepared.join().expect("the preparation does not panic")?;
        steps.add("preparation, during the build", prepared);
        built
    })
}

/// What the tests need on this machine.
pub fn prepare(lab: &Lab) -> Result<()> {
    host::install_missing(&NEEDS)?;
    etcd::run(lab, false)?;
    weed::run(lab)?;
    postgres::run(lab)?;
    unpacked::ensure(lab)?;
    forward::ensure(lab)
}

fn variables(lab: &Lab, quick: bool) -> Vec<(&'static str, String)> {
    let mut variables = vec![("QUORATE_LAB", lab.root().display().to_string())];
    if std::env::var_os(SEED).is_none() {
        variables.push((SEED, String::from("1")));
    }
    if quick {
        variables.push((QUICK, String::from("1")));
    }
    variables
}

/// A process for each test on clusters, and one per binary for the rest.
fn jobs(binaries: &[Binary], words: &[String]) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for binary in binaries {
        let tests = binary.list(words)?;
        let job = |part, words| Job { binary: binary.clone(), part, words };
        if binary.integration && !binary.is_pure() {
            let options: Vec<String> = words.iter().filter(|word| word.starts_with('-')).cloned().collect();
            jobs.extend(tests.into_iter().map(|test| job(Part::One(test), options.clone())));
        } else if !tests.is_empty() {
            jobs.push(job(Part::All(tests.len()), words.to_vec()));
        }
    }
    Ok(jobs)
}

fn longest_first(mut jobs: Vec<Job>, durations: &Durations) -> Vec<Job> {
    let known = |job: &Job| match job.part {
        Part::One(_) => durations.of(&job.name()),
        Part::All(_) => durations.of(&job.binary.label()),
    };
    jobs.sort_by(|one, other| known(other).total_cmp(&known(one)));
    jobs
}

/// Whether what failed is run again: a few tests on clusters, each known by name.
fn deserve_another(first: &[Done]) -> bool {
    let failed: Vec<&Done> = first.iter().filter(|done| !done.failed.is_empty()).collect();
    let count: usize = failed.iter().map(|done| done.failed.len()).sum();
    (1..=MOST_AGAIN).contains(&count) && failed.iter().all(|done| !done.job.binary.is_pure() && !done.crashed())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::job::tests::job;
    use super::*;

    fn failing(package: &str, tests: usize) -> Done {
        let failed = (0..tests).map(|n| n.to_string()).collect();
        Done { job: job(package, Part::All(9)), took: Duration::ZERO, passed: 0, failed, output: String::new() }
    }

    #[test]
    fn the_two_parts_are_the_whole() {
        for package in ["quorate", "quorate-core"] {
            let binary = job(package, Part::All(1)).binary;
            assert!(Only::Clusters.takes(&binary) != Only::Rules.takes(&binary), "{package}");
        }
        assert!(Only::Rules.takes(&job("quorate-core", Part::All(1)).binary));
    }

    #[test]
    fn a_second_try_is_for_few_tests_on_clusters() {
        assert!(deserve_another(&[failing("quorate", 1), failing("quorate-core", 0)]));
        assert!(deserve_another(&[failing("quorate", 3), failing("quorate-agent", 3)]));
        assert!(deserve_another(&[failing("quorate", MOST_AGAIN)]));
        assert!(!deserve_another(&[failing("quorate", MOST_AGAIN + 1)]), "too many");
        assert!(!deserve_another(&[failing("quorate-core", 1)]), "a rule");
        assert!(!deserve_another(&[failing("quorate", 1), failing("xtask", 1)]), "no cluster");
        assert!(!deserve_another(&[failing("quorate", 0)]));
        let mut crashed = failing("quorate", 0);
        crashed.failed.push(String::new());
        assert!(!deserve_another(&[crashed]), "nobody knows which test it was");
    }

    #[test]
    fn tests_that_pass_alone_count_as_passed_and_repeated_failures_do_not() {
        let again = |succeeded: bool| {
            let output = String::from("test result: ok. 1 passed; 0 failed;");
            vec![Done::read(failing("quorate", 1).job.alone("0"), Duration::ZERO, succeeded, output)]
        };
        assert!(conclude(&[failing("quorate", 1)], &again(true)).is_ok());
        assert!(conclude(&[failing("quorate", 1)], &again(false)).is_err());
        assert!(conclude(&[failing("quorate", 1)], &[]).is_err());
        assert!(conclude(&[], &[]).is_ok());
    }

    #[test]
    fn the_longest_job_starts_first() {
        let jobs = ["a", "b", "c"].map(|test| job("quorate", Part::One(test.to_owned()))).to_vec();
        let known = Durations::parse("1.0 quorate::cli a\n9.0 quorate::cli b\n");
        let order: Vec<String> = longest_first(jobs, &known).iter().map(Job::name).collect();
        assert_eq!(order, ["quorate::cli c", "quorate::cli b", "quorate::cli a"]);
    }
}
