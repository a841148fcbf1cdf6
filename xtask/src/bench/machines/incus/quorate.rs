//! quorate's side: a spec, `apply`, and `destroy` when the time is taken.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::super::members::name;
use super::{POOL, address, bare, vary};
use crate::bench::CLUSTER;
use crate::host;
use crate::labs::incus as lab_of_incus;

const IMAGE: &str = "bench-quorate";

pub struct Quorate {
    program: PathBuf,
    ground: PathBuf,
    /// What the last `apply` said.
    said: RefCell<String>,
}

impl Quorate {
    /// The lab's image may carry an older agent.
    pub fn prepare(ground: &Path, program: &Path) -> Result<Self> {
        vary(IMAGE, &bare::image()?, |_, root| root.copy(program, "usr/lib/quorate/quorate"))?;
        let own = Self { program: program.to_owned(), ground: ground.to_owned(), said: RefCell::default() };
        fs::write(own.spec(), spec()).with_context(|| format!("cannot write {}", own.spec().display()))?;
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

fn spec() -> String {
    let member = |number: usize| format!("\x20     - {{name: {}, address: {}}}\n", name(number), address(number));
    let members: String = (1..=3).map(member).collect();
    format!(
        "quorate: 1\n\
         clusters:\n\
         \x20 - name: {CLUSTER}\n\
         \x20   provider:\n\
         \x20     incus: {{image: {IMAGE}, has_agent: true, network: {}, pool: {POOL}, profiles: []}}\n\
         \x20   members:\n\
         {members}\
         \x20   etcd: {{version: 3.4.23, binary: {{path: /usr/bin/etcd}}}}\n\
         \x20   host: {{install_dependencies: false}}\n",
        lab_of_incus::NAME
    )
}
