//! A client that commits continuously, and the time of each confirmation.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::until;
use crate::host;

pub struct Writer {
    process: Child,
    commits: Arc<Mutex<Vec<Instant>>>,
}

impl Writer {
    pub fn start(program: &Path, variables: Vec<(String, String)>) -> Result<Self> {
        let mut command = host::tethered(program);
        command.envs(variables).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().context("cannot start the client")?;
        let output = BufReader::new(process.stdout.take().context("the client has no output")?);
        let commits = Arc::new(Mutex::new(Vec::new()));
        let noted = commits.clone();
        thread::spawn(move || {
            for _ in output.lines().map_while(Result::ok) {
                noted.lock().expect("no holder panics").push(Instant::now());
            }
        });
        Ok(Self { process, commits })
    }

    /// For one that begins from now on.
    pub fn wait_for_commit(&self) -> Result<()> {
        // The first may have been on its way.
        let enough = self.count() + 2;
        until("a commit", || Ok(self.count() >= enough))
    }

    pub fn longest_gap_since(&self, begun: Instant) -> Duration {
        longest_gap(&self.commits.lock().expect("no holder panics"), begun)
    }

    fn count(&self) -> usize {
        self.commits.lock().expect("no holder panics").len()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Between two commits of which the second came after this moment.
fn longest_gap(commits: &[Instant], begun: Instant) -> Duration {
    let pairs = commits.windows(2).filter(|pair| pair[1] > begun);
    pairs.map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_counts_if_it_ends_after_the_beginning() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let commits = [at(0), at(900), at(1000), at(1300), at(1400)];
        assert_eq!(longest_gap(&commits, at(950)), Duration::from_millis(300));
        assert_eq!(longest_gap(&commits, at(100)), Duration::from_millis(900));
        assert_eq!(longest_gap(&commits, at(1400)), Duration::ZERO);
    }
}
