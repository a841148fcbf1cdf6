//! The task of one process, and its result.

use std::process::Command;
use std::time::Duration;

use super::build::Binary;

/// One test of a binary, or all that were selected.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    One(String),
    All(usize),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub binary: Binary,
    pub part: Part,
    /// For the binary, after the choice of tests.
    pub words: Vec<String>,
}

impl Job {
    pub fn name(&self) -> String {
        match &self.part {
            Part::One(test) => format!("{} {test}", self.binary.label()),
            Part::All(1) => format!("{} (1 test)", self.binary.label()),
            Part::All(tests) => format!("{} ({tests} tests)", self.binary.label()),
        }
    }

    pub fn command(&self) -> Command {
        let mut command = self.binary.command();
        if let Part::One(test) = &self.part {
            command.args(["--exact", test, "--test-threads=1"]);
        }
        command.args(&self.words);
        command
    }

    /// The same binary, with this test alone.
    pub fn alone(&self, test: &str) -> Job {
        // A filter among the words would select more than this one.
        let words = self.words.iter().filter(|word| word.starts_with('-')).cloned().collect();
        Job { binary: self.binary.clone(), part: Part::One(test.to_owned()), words }
    }
}

#[derive(Debug)]
pub struct Done {
    pub job: Job,
    pub took: Duration,
    pub passed: usize,
    /// Names of tests. A process that failed without naming one counts as a test without a name.
    pub failed: Vec<String>,
    /// What the process printed.
    pub output: String,
}

impl Done {
    /// Reads how a process went from what it printed and whether it succeeded.
    pub fn read(job: Job, took: Duration, succeeded: bool, output: String) -> Self {
        let passed = output.lines().filter_map(passed_in).sum();
        let named = output.lines().filter_map(failed_in).map(str::to_owned);
        let mut failed: Vec<String> = match &job.part {
            Part::One(test) => (!succeeded || passed != 1).then(|| test.clone()).into_iter().collect(),
            Part::All(_) => named.collect(),
        };
        if !succeeded && failed.is_empty() {
            failed.push(String::new());
        }
        let passed = if matches!(job.part, Part::One(_)) { 1 - failed.len() } else { passed };
        Done { job, took, passed, failed, output }
    }

    /// The process ended without naming the test that failed: it crashed, or ran out of time.
    pub fn crashed(&self) -> bool {
        self.failed.iter().any(String::is_empty)
    }
}

/// In a line such as `test result: ok. 3 passed; 1 failed; 0 ignored; …`, coloured or not.
fn passed_in(line: &str) -> Option<usize> {
    let words: Vec<&str> = line.strip_prefix("test result: ")?.split_whitespace().collect();
    words.windows(2).find(|pair| pair[1] == "passed;")?[0].parse().ok()
}

/// In a line such as `test auth::users ... FAILED`.
fn failed_in(line: &str) -> Option<&str> {
    let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.trim_start();
    Some(name.strip_suffix(" - should panic").unwrap_or(name))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn job(package: &str, part: Part) -> Job {
        let binary = Binary {
            package: package.to_owned(),
            target: String::from("cli"),
            integration: true,
            program: "/bin/true".into(),
            directory: "/".into(),
        };
        Job { binary, part, words: Vec::new() }
    }

    fn one(succeeded: bool, output: &str) -> Done {
        let job = job("quorate", Part::One(String::from("a::b")));
        Done::read(job, Duration::ZERO, succeeded, output.to_owned())
    }

    #[test]
    fn a_test_passed_only_if_it_ran() {
        let ran = one(true, "test a::b ... ok\ntest result: ok. 1 passed; 0 failed; 0 ignored;\n");
        assert_eq!((ran.passed, ran.failed.len()), (1, 0));
        let renamed = one(true, "test result: ok. 0 passed; 0 failed; 0 ignored;\n");
        assert_eq!((renamed.passed, renamed.failed), (0, vec![String::from("a::b")]));
        let crashed = one(false, "test result: ok. 1 passed; 0 failed;\n");
        assert_eq!((crashed.passed, crashed.failed.len()), (0, 1));
    }

    #[test]
    fn results_of_a_whole_binary_are_read() {
        let output = "\
test a ... ok
a test may print: test result: ok. 9 passed; 9 failed;
test deep::b - should panic ... FAILED
test result: \u{1b}[31mFAILED\u{1b}[m. 3 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.20s
";
        let read = |succeeded, output: &str| {
            Done::read(job("quorate-core", Part::All(4)), Duration::ZERO, succeeded, output.to_owned())
        };
        let done = read(false, output);
        assert_eq!((done.passed, done.crashed()), (3, false));
        assert_eq!(done.failed, ["deep::b"]);
        assert!(read(false, "test a ... ok\n").crashed());
    }
}
