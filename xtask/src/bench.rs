//! `cargo xtask bench`: measures the project's performance figures, and fails if one is not met. Tables for docs/benchmarks.md go
//! to stdout, messages to stderr. Only one bench runs at a time, in a separate directory of the lab, and the next one removes
//! what a killed one left.

mod agent;
mod aws;
mod backup;
mod bringup;
mod figures;
mod filled;
mod front;
mod machines;
mod openstack;
mod plan;
mod postgres;
mod process;
mod restore;
mod rolling;
mod store;
mod terraform;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Subcommand;

use crate::host;
use crate::lab::{Lab, Version};
use crate::static_build;
use crate::test::build;

/// Of the benches that CI runs.
pub const NEEDS: [host::Need; 3] = filled::NEEDS;

/// The name of every cluster that a bench makes.
const CLUSTER: &str = "bench";

#[derive(Subcommand)]
pub enum Bench {
    /// Compare the time of `quorate up` from nothing with etcd started by a bare loop
    Bringup(bringup::Options),
    /// Measure time and memory of plans for up to 10,000 clusters
    Plan(Measured),
    /// Compare the longest write gap of changes with the same done manually
    Rolling(rolling::Options),
    /// Measure the memory of idle agents
    Agent(Measured),
    /// Compare time and memory of a backup to an S3 store with a manual one, while clients write
    Backup(backup::Arguments),
    /// Compare the restore of a cluster of which nothing is left with a manual one
    Restore(filled::Options),
    /// Compare a cluster on new, emulated machines with the same started by a bare script and by cloud-init
    Machines(machines::Options),
    /// Compare a cluster on new system containers of Incus with the same made by a bare script and by cloud-init
    Incus(machines::incus::Options),
    /// Measure how long five members in AWS take from nothing, next to what is not quorate's, and count the calls
    Aws(aws::Options),
    /// Count the calls of `plan` and `status` to a region of OpenStack for up to 100 clusters, next to Terraform's
    Openstack(openstack::Options),
    /// Compare clients through `quorate front` with clients through HAProxy and with direct ones
    Front(front::Options),
    /// Compare a PostgreSQL cluster with plain Patroni that is started and changed manually
    Postgres(postgres::Options),
}

pub fn run(lab: &Lab, bench: &Bench) -> Result<()> {
    match bench {
        Bench::Bringup(options) => bringup::run(lab, options),
        Bench::Plan(measured) => plan::run(lab, measured.programs()),
        Bench::Rolling(options) => rolling::run(lab, options),
        Bench::Agent(measured) => agent::run(lab, measured.programs()),
        Bench::Backup(arguments) => backup::run(lab, arguments),
        Bench::Restore(options) => restore::run(lab, options),
        Bench::Machines(options) => machines::run(lab, options),
        Bench::Incus(options) => machines::incus::run(lab, options),
        Bench::Aws(options) => aws::run(lab, options),
        Bench::Openstack(options) => openstack::run(lab, options),
        Bench::Front(options) => front::run(lab, options),
        Bench::Postgres(options) => postgres::run(lab, options),
    }
}

#[derive(clap::Args)]
pub struct Measured {
    /// Measure the static program that people install, instead of a release build for this machine
    #[arg(long = "static", conflicts_with = "unoptimized")]
    static_program: bool,
    /// Measure the program of the tests, which is not optimized: it takes longer, and more memory
    #[arg(long)]
    unoptimized: bool,
}

impl Measured {
    fn programs(&self) -> Programs {
        match self {
            Measured { unoptimized: true, .. } => Programs::Unoptimized,
            Measured { static_program: true, .. } => Programs::Static,
            _ => Programs::Release,
        }
    }
}

/// Which programs are measured.
#[derive(Clone, Copy)]
enum Programs {
    /// As users build them.
    Release,
    /// The static program, with examples from the build of the tests.
    Static,
    /// From the build of the tests, which a run of CI has already.
    Unoptimized,
}

/// The programs that are measured, and the place where they run. Clusters and files there end with it.
struct Ground {
    /// quorate itself.
    program: PathBuf,
    examples: PathBuf,
    directory: PathBuf,
    _lock: File,
}

impl Programs {
    /// Where quorate and the examples are, after they were built.
    fn build(self) -> Result<(PathBuf, PathBuf)> {
        match self {
            Programs::Release => {
                let release = ["build", "--release", "--locked"];
                host::run(host::cargo()?.args(release).args(["--package", "quorate"]))?;
                for (package, example) in [("quorate-agent", "bare_loop"), ("quorate-backup", "load")] {
                    host::run(host::cargo()?.args(release).args(["--package", package, "--example", example]))?;
                }
                let programs = host::release_directory()?;
                Ok((programs.join("quorate"), programs.join("examples")))
            }
            Programs::Static => Ok((static_build::build()?, build::programs()?.join("examples"))),
            Programs::Unoptimized => {
                let programs = build::programs()?;
                Ok((programs.join("quorate"), programs.join("examples")))
            }
        }
    }
}

/// The words with which a bench starts itself again in a lab's namespaces, to measure this quorate there.
fn words_inside(
    bench: &str,
    (rounds, members): (u32, u8),
    program: &Path,
    further: Option<&str>,
) -> Result<Vec<String>> {
    let program = program.to_str().context("the path of quorate is not text")?;
    let (rounds, members) = (rounds.to_string(), members.to_string());
    let words = ["bench", bench, "--rounds", &rounds, "--members", &members, "--inside", program];
    Ok(words.into_iter().chain(further).map(str::to_owned).collect())
}

/// A cluster of three local members, whose section stands last.
fn spec_of_three(version: Version, etcd: &Path, quota: &str) -> String {
    format!(
        "quorate: 1\n\
         clusters:\n\
         \x20 - name: {CLUSTER}\n\
         \x20   members: [{{name: etcd-1}}, {{name: etcd-2}}, {{name: etcd-3}}]\n\
         \x20   etcd:\n\
         \x20     version: {version}\n\
         \x20     quota: {quota}\n\
         \x20     binary: {{path: {:?}}}\n",
        etcd.display().to_string()
    )
}

impl Ground {
    fn prepare(lab: &Lab) -> Result<Self> {
        Self::prepare_with(lab, Programs::Release)
    }

    fn prepare_with(lab: &Lab, programs: Programs) -> Result<Self> {
        eprintln!("building quorate");
        let (program, examples) = programs.build()?;
        Self::prepare_for(lab, program, examples)
    }

    /// With a quorate and with examples that are there already.
    fn prepare_for(lab: &Lab, program: PathBuf, examples: PathBuf) -> Result<Self> {
        let directory = lab.root().join("bench");
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let path = directory.join(".lock");
        let lock = File::create(&path).with_context(|| format!("cannot open {}", path.display()))?;
        if lock.try_lock().is_err() {
            eprintln!("waiting for another bench to end");
            lock.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        }
        let ground = Self { program, examples, directory, _lock: lock };
        ground.clear()?;
        Ok(ground)
    }

    /// A fresh, empty directory that lasts as long as the ground.
    fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.directory.join(name);
        remove(&path)?;
        fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(path)
    }

    /// Where quorate keeps its state here.
    fn home(&self) -> PathBuf {
        self.directory.join("home")
    }

    /// quorate on this ground, with an etcd directory as its whole PATH.
    fn quorate(&self, path: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.env("QUORATE_HOME", self.home()).env("PATH", path);
        command
    }

    fn up(&self, lab: &Lab, version: Version, members: usize) -> Result<()> {
        let mut up = self.quorate(&lab.etcd(version));
        up.args(["up", CLUSTER, "--members", &members.to_string(), "--etcd-version", &version.to_string()]);
        host::read(&mut up).map(drop)
    }

    /// Takes the cluster down and leaves nothing of it.
    fn destroy(&self) -> Result<()> {
        host::read(self.quorate(Path::new("")).args(["destroy", CLUSTER, "--yes", "--without-backup"]))?;
        remove(&self.home())
    }

    /// etcd started by a bare loop on this ground.
    fn bare_loop(&self, etcd: &Path, members: usize) -> Result<Command> {
        let mut command = Command::new(self.examples.join("bare_loop"));
        command.arg(etcd).arg(members.to_string()).env("TMPDIR", self.directory("floor")?);
        Ok(command)
    }

    /// The machines of the cluster: a directory each.
    fn machines(&self) -> PathBuf {
        self.home().join("machines").join(CLUSTER)
    }

    fn clear(&self) -> Result<()> {
        // One of PostgreSQL comes before the etcd cluster that it uses.
        let clusters: BTreeSet<OsString> =
            fs::read_dir(self.home().join("machines")).into_iter().flatten().flatten().map(|e| e.file_name()).collect();
        for cluster in clusters {
            let destroy = ["--yes", "--without-backup"];
            host::read(self.quorate(Path::new("")).arg("destroy").arg(cluster).args(destroy))?;
        }
        let entries =
            fs::read_dir(&self.directory).with_context(|| format!("cannot read {}", self.directory.display()))?;
        entries.flatten().filter(|entry| entry.file_name() != ".lock").try_for_each(|entry| remove(&entry.path()))
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("warning: something is left in {}: {error:#}", self.directory.display());
        }
    }
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
