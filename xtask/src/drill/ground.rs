//! Where cells run: a separate directory for each, with a `QUORATE_HOME` in it. Its clusters, processes and files end with the cell,
//! however that ends, and the next run removes what a killed one left. Only one run at a time.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::Rehearsal;
use super::rehearsal::Verdict;
use crate::lab::{self, Lab, Version};
use crate::test::build;

/// The name of every cell's cluster.
pub const CLUSTER: &str = "c";
/// The name of the etcd cluster below one of PostgreSQL.
pub const DCS: &str = "d";
/// How long one command may take. A drill ends by itself long before, unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(480);
/// How long a command that is asked to end may take to undo what it did.
const ENDING: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);

pub struct Ground<'a> {
    lab: &'a Lab,
    program: PathBuf,
    /// Directories of programs that the clusters need besides etcd.
    programs: Vec<PathBuf>,
    directory: PathBuf,
    kept: PathBuf,
    _lock: File,
}

impl<'a> Ground<'a> {
    pub fn prepare(lab: &'a Lab, programs: Vec<PathBuf>) -> Result<Self> {
        eprintln!("building quorate");
        let built = build::programs()?.join("quorate");
        let directory = lab.root().join("drill");
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let path = directory.join(".lock");
        let lock = File::create(&path).with_context(|| format!("cannot open {}", path.display()))?;
        if lock.try_lock().is_err() {
            eprintln!("waiting for another run of the drill to end");
            lock.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        }
        let program = directory.join("quorate");
        let ground =
            Ground { lab, program, programs, directory, kept: lab::workspace()?.join("target/drill"), _lock: lock };
        ground.clear()?;
        // A copy, so that a build that continues meanwhile changes nothing.
        fs::copy(&built, &ground.program).with_context(|| format!("cannot copy {}", built.display()))?;
        Ok(ground)
    }

    /// Where the reports of failed cells are.
    pub fn kept(&self) -> PathBuf {
        self.kept.clone()
    }

    pub fn rehearse(&self, cell: &impl Rehearsal) -> Verdict {
        let place = self.place(&cell.file_name());
        let verdict = cell.rehearse(&place).unwrap_or_else(|error| Verdict::failed(format!("{error:#}")));
        let kept = self.kept.join(cell.file_name());
        let done = match verdict.problem {
            None => remove(&kept),
            Some(_) => place.keep(&kept),
        };
        if let Err(error) = done.and_then(|()| place.clear()) {
            eprintln!("warning: {cell}: {error:#}");
        }
        verdict
    }

    fn place(&self, name: &str) -> Place<'_> {
        let directory = self.directory.join(name);
        Place { lab: self.lab, program: &self.program, programs: &self.programs, directory }
    }

    fn clear(&self) -> Result<()> {
        let entries = fs::read_dir(&self.directory).with_context(|| format!("no {}", self.directory.display()))?;
        for entry in entries.flatten().filter(|entry| entry.path().is_dir()) {
            self.place(&entry.file_name().to_string_lossy()).clear()?;
        }
        Ok(())
    }
}

/// Where one cell runs.
pub struct Place<'a> {
    lab: &'a Lab,
    program: &'a Path,
    programs: &'a [PathBuf],
    directory: PathBuf,
}

impl Place<'_> {
    pub fn write(&self, name: &str, content: &str) -> Result<()> {
        let path = self.path(name);
        fs::create_dir_all(&self.directory)
            .and_then(|()| fs::write(&path, content))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    pub fn read(&self, name: &str) -> Result<String> {
        let path = self.path(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The version that the lab has of a line, and the directory of its programs.
    pub fn etcd(&self, minor: u32) -> Result<(Version, PathBuf)> {
        let of_line = |(version, _): &(Version, PathBuf)| (version.major, version.minor) == (3, minor);
        let found = self.lab.installed().into_iter().rfind(of_line);
        found.ok_or_else(|| anyhow!("etcd 3.{minor} is missing\n\nhint: `cargo xtask etcd` says why"))
    }

    /// Runs quorate to its end, with what it prints and says in `NAME.out` and `NAME.err`.
    pub fn quorate(&self, name: &str, arguments: &[&str]) -> Result<ExitStatus> {
        let file = |kind: &str| {
            let path = self.path(&format!("{name}.{kind}"));
            File::create(&path).with_context(|| format!("cannot write {}", path.display()))
        };
        let mut command = self.command(arguments)?;
        command.stdout(file("out")?).stderr(file("err")?);
        let mut child = command.spawn().context("cannot start quorate")?;
        if let Some(status) = wait(&mut child, PATIENCE)? {
            return Ok(status);
        }
        signal(child.id(), "TERM");
        if wait(&mut child, ENDING)?.is_none() {
            child.kill().and_then(|()| child.wait()).context("cannot end quorate")?;
        }
        bail!("`quorate {}` did not end within {} s", arguments.join(" "), PATIENCE.as_secs())
    }

    /// quorate in this home.
    pub fn command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new(self.program);
        command.args(arguments).env("QUORATE_HOME", self.home()).current_dir(&self.directory).stdin(Stdio::null());
        let usual = std::env::var_os("PATH").unwrap_or_default();
        let path = self.programs.iter().cloned().chain(std::env::split_paths(&usual));
        command.env("PATH", std::env::join_paths(path)?);
        Ok(command)
    }

    /// What a machine takes for `/`.
    pub fn root_of(&self, cluster: &str, member: &str) -> PathBuf {
        self.home().join("machines").join(cluster).join(member).join("root")
    }

    /// Ends everything on a machine at once.
    pub fn cut_power(&self, cluster: &str, member: &str) -> Result<()> {
        let mark = format!("QUORATE_MACHINE={}", self.root_of(cluster, member).display());
        let deadline = Instant::now() + ENDING;
        loop {
            let left = processes_with(&mark);
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("the processes of {member} do not end");
            }
            left.into_iter().for_each(|pid| signal(pid, "KILL"));
            sleep(Duration::from_millis(5));
        }
    }

    /// The programs of the minor release before the installed PostgreSQL.
    pub fn older_postgres(&self) -> PathBuf {
        self.lab.older_postgres()
    }

    /// Where its backups go.
    pub fn backups(&self) -> PathBuf {
        self.path("backups")
    }

    fn home(&self) -> PathBuf {
        self.path("home")
    }

    /// Copies what documents the cell: the spec, what was said, reports, the agents' and etcd's logs.
    fn keep(&self, kept: &Path) -> Result<()> {
        remove(kept)?;
        copy_texts(&self.directory, kept).with_context(|| format!("cannot keep {}", kept.display()))
    }

    /// Takes the cluster down and leaves nothing of it.
    fn clear(&self) -> Result<()> {
        if self.home().exists() && !self.destroyed()? {
            // A ruin that not even `destroy` can deal with: its processes end, and it is tried once more.
            self.end_processes();
            self.unmount();
            if !self.destroyed()? {
                eprintln!("warning: `quorate destroy` failed: {}", self.read("destroy.err")?.trim_end());
            }
        }
        self.end_processes();
        self.unmount();
        remove(&self.directory)
    }

    /// A cluster of PostgreSQL before the etcd cluster below it.
    fn destroyed(&self) -> Result<bool> {
        let mut all = true;
        for cluster in [CLUSTER, DCS] {
            let machines = self.home().join("machines").join(cluster);
            let gone = || fs::read_dir(&machines).map_or(true, |mut entries| entries.next().is_none());
            all &= gone()
                || self.quorate("destroy", &["destroy", cluster, "--yes", "--without-backup"])?.success()
                || gone();
        }
        Ok(all)
    }

    /// Ends every process that was started in this home.
    fn end_processes(&self) {
        let deadline = Instant::now() + ENDING;
        // Agents start again what is killed, so it may take a second round.
        loop {
            let left = processes_with(&format!("QUORATE_HOME={}", self.home().display()));
            if left.is_empty() || Instant::now() > deadline {
                return;
            }
            left.into_iter().for_each(|pid| signal(pid, "KILL"));
            sleep(LOOK);
        }
    }

    /// Takes off the small disks that a killed drill left.
    fn unmount(&self) {
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        for point in points.filter(|point| Path::new(point).starts_with(&self.directory)) {
            // What stays mounted shows when the directory cannot be removed.
            let _ = Command::new("umount").args(["--lazy", point]).status();
        }
    }
}

fn wait(child: &mut Child, patience: Duration) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + patience;
    loop {
        let ended = child.try_wait().context("cannot wait for quorate")?;
        if ended.is_some() || Instant::now() > deadline {
            return Ok(ended);
        }
        sleep(LOOK);
    }
}

/// A process that is gone already is fine.
fn signal(pid: u32, name: &str) {
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status();
}

fn processes_with(entry: &str) -> Vec<u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let has = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|found| found == entry.as_bytes())
    };
    pids.filter(has).collect()
}

fn copy_texts(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        // Of a machine only its logs: data directories are large, and keys are nobody's business.
        let told =
            path.extension().is_some_and(|e| ["yaml", "html", "jsonl", "out", "err", "log"].iter().any(|k| e == *k));
        if kind.is_dir() {
            copy_texts(&path, &target)?;
        } else if kind.is_file() && told {
            fs::create_dir_all(to)?;
            fs::copy(&path, &target)?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
