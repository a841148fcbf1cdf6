//! quorate's side, with any provider: a spec, `apply`, and `destroy` after the measurement.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::bench::CLUSTER;
use crate::host;

pub struct Applied {
    program: PathBuf,
    ground: PathBuf,
    /// What the last `apply` said.
    said: RefCell<String>,
}

impl Applied {
    pub fn prepare(ground: &Path, program: &Path, spec: &str) -> Result<Self> {
        let own = Self { program: program.to_owned(), ground: ground.to_owned(), said: RefCell::default() };
        fs::write(own.spec(), spec).with_context(|| format!("cannot write {}", own.spec().display()))?;
        Ok(own)
    }

    fn spec(&self) -> PathBuf {
        self.ground.join("bench.yaml")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("QUORATE_HOME", self.ground.join("home"));
        command
    }

    pub fn sample(&self) -> Result<Duration> {
        let begun = Instant::now();
        let applied =
            self.command().arg("apply").arg(self.spec()).arg("--yes").output().context("quorate cannot run")?;
        let time = begun.elapsed();
        let said = String::from_utf8_lossy(&applied.stderr).into_owned();
        ensure!(applied.status.success(), "`quorate apply` failed:\n{said}");
        host::read(self.command().args(["destroy", CLUSTER, "--yes", "--without-backup"]))?;
        self.said.replace(said);
        Ok(time)
    }

    /// When each step of the last run began.
    pub fn print_phases(&self) {
        let said = self.said.borrow();
        for line in said.lines().filter(|line| line.starts_with('[')) {
            eprintln!("  {line}");
        }
    }
}
