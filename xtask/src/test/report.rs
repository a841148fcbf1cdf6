//! The report of a run: a line per job, the output of each failed test, the slowest tests, and the time of each step.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::job::{Done, Part};

/// How many of the slowest tests are named.
const SLOWEST: usize = 10;
/// Of how many failed tests the reason is repeated at the end, in how many lines, and how wide ones.
const WHYS: usize = 5;
const WHY: usize = 10;
const WIDEST: usize = 600;

/// A line for a job that ended; with it, if it failed, all that it printed.
pub fn line(done: &Done) -> String {
    let word = if done.failed.is_empty() { "ok    " } else { "FAILED" };
    let line = format!("{word} {:6.1} s  {}", done.took.as_secs_f64(), done.job.name());
    if done.failed.is_empty() {
        return line;
    }
    format!(
        "{line}\n--- output of {name}\n{}\n--- end of the output of {name}",
        done.output.trim_end(),
        name = done.job.name()
    )
}

/// Near the end, where people look first: why tests failed, in short. Of a second try, if there was one.
pub fn why_failed(first: &[Done], again: &[Done]) -> String {
    let last = if again.is_empty() { first } else { again };
    let failed = last.iter().filter(|done| !done.failed.is_empty()).take(WHYS);
    let why = |done: &Done| format!("\n--- why {} failed\n{}\n", done.job.name(), why(&done.output));
    failed.map(why).collect()
}

/// From the panic on, as far as it is short.
fn why(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    let from = lines.iter().position(|line| line.contains(" panicked at ")).unwrap_or(lines.len().saturating_sub(WHY));
    lines[from..]
        .iter()
        .take(WHY)
        .map(|line| line.chars().take(WIDEST).collect::<String>())
        .collect::<Vec<_>>()
        .join("\n")
}

/// The slowest jobs, one per line.
pub fn slowest(all: &[Done]) -> String {
    let mut times: Vec<&Done> = all.iter().collect();
    times.sort_by_key(|done| std::cmp::Reverse(done.took));
    let lines =
        times.iter().take(SLOWEST).map(|done| format!("\n  {:6.1} s  {}", done.took.as_secs_f64(), done.job.name()));
    format!("the slowest tests:{}", lines.collect::<String>())
}

/// Wall time of the steps of a run, in the order in which they ended.
#[derive(Default)]
pub struct Steps(Vec<(&'static str, Duration)>);

impl Steps {
    pub fn time<T>(&mut self, name: &'static str, step: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = step();
        self.add(name, began.elapsed());
        done
    }

    pub fn add(&mut self, name: &'static str, took: Duration) {
        self.0.push((name, took));
    }

    pub fn text(&self) -> String {
        let width = self.0.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        let lines = self.0.iter().map(|(name, took)| format!("\n  {name:width$}  {:6.1} s", took.as_secs_f64()));
        format!("the steps:{}", lines.collect::<String>())
    }
}

/// How long tests took in an earlier run, by name, so that the longest can start first.
pub struct Durations(BTreeMap<String, f64>);

impl Durations {
    /// From lines such as `12.3 quorate::cli crashes::agents_die`.
    pub fn parse(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once(' '));
        Self(pairs.filter_map(|(seconds, name)| Some((name.to_owned(), seconds.parse().ok()?))).collect())
    }

    /// What ran just now replaces what is known.
    pub fn learn(&mut self, all: &[Done]) {
        self.0.extend(all.iter().map(|done| (key(done), done.took.as_secs_f64())));
    }

    /// A test that is not known may be a long one.
    pub fn of(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(15.0)
    }

    pub fn text(&self) -> String {
        let mut lines: Vec<(&String, &f64)> = self.0.iter().collect();
        lines.sort_by(|one, other| other.1.total_cmp(one.1));
        lines.into_iter().map(|(name, seconds)| format!("{seconds:.1} {name}\n")).collect()
    }
}

/// The name without the number of tests, which changes.
fn key(done: &Done) -> String {
    match done.job.part {
        Part::One(_) => done.job.name(),
        Part::All(_) => done.job.binary.label(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::tests::job;
    use super::*;

    fn done(test: &str, seconds: u64, succeeded: bool) -> Done {
        let output = String::from("test result: ok. 1 passed; 0 failed;\nall it said");
        Done::read(job("quorate", Part::One(test.to_owned())), Duration::from_secs(seconds), succeeded, output)
    }

    #[test]
    fn a_failed_test_is_shown_with_what_it_printed() {
        assert_eq!(line(&done("a", 2, true)), "ok        2.0 s  quorate::cli a");
        let failed = line(&done("a", 2, false));
        assert!(
            failed.starts_with("FAILED    2.0 s  quorate::cli a\n") && failed.contains("\nall it said\n"),
            "{failed}"
        );
    }

    #[test]
    fn the_summary_repeats_why_a_test_failed() {
        let said = format!("a\nthread 'x' panicked at y.rs:1\n{}\n", "w".repeat(2 * WIDEST));
        let failed = Done { output: said, ..done("a", 2, false) };
        let told = why_failed(&[done("b", 1, true), failed], &[]);
        assert!(told.contains("why quorate::cli a failed\nthread 'x' panicked") && !told.contains("cli b"), "{told}");
        assert!(told.len() < 2 * WIDEST, "{told}");
        assert!(why_failed(&[done("a", 2, false)], &[]).contains("all it said"), "no panic: what it said last");
        assert_eq!(why_failed(&[done("a", 2, false)], &[done("a", 2, true)]), "", "it passed alone");
    }

    #[test]
    fn the_longest_are_named_first() {
        let all: Vec<Done> = (0..12).map(|n| done(&format!("t{n}"), n, true)).collect();
        let told = slowest(&all);
        assert_eq!(told.lines().count(), 1 + SLOWEST);
        assert!(told.lines().nth(1).unwrap().ends_with("11.0 s  quorate::cli t11"), "{told}");
    }

    #[test]
    fn durations_are_learned_and_kept() {
        let mut known = Durations::parse("3.5 quorate::cli a\nnonsense\n");
        assert_eq!((known.of("quorate::cli a"), known.of("quorate::cli new")), (3.5, 15.0));
        known.learn(&[done("a", 7, true), done("b", 9, true)]);
        assert_eq!(known.text(), "9.0 quorate::cli b\n7.0 quorate::cli a\n");
    }
}
