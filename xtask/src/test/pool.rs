//! Runs jobs in parallel, each in a process. Those that only compute run at a lower priority than those that wait for clusters.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::job::{Done, Job};
use super::pace::Pace;

const LOOK: Duration = Duration::from_millis(20);
/// A process that takes longer hangs. Those that only compute may get next to no time for as long as others need all of it.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
const PATIENCE_WITH_COMPUTING: Duration = Duration::from_secs(60 * 60);
/// Of those that only compute, so many run at once.
const COMPUTING: usize = 2;

/// Variables for every process, and where what they print is kept meanwhile.
pub struct Surroundings {
    pub variables: Vec<(&'static str, String)>,
    pub scratch: PathBuf,
}

struct Running {
    job: Job,
    process: Child,
    began: Instant,
    output: PathBuf,
}

/// Runs all of them, in this order as far as there is room, and reports each when it ends.
pub fn run(jobs: Vec<Job>, mut pace: Pace, around: &Surroundings, mut report: impl FnMut(&Done)) -> Result<Vec<Done>> {
    let (computing, waiting): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(|job| job.binary.is_pure());
    let (mut computing, mut waiting) = (computing.into_iter().peekable(), waiting.into_iter().peekable());
    let (mut running, mut done) = (Vec::<Running>::new(), Vec::new());
    let mut started = 0;
    loop {
        let pure = running.iter().filter(|running| running.job.binary.is_pure()).count();
        let next = if computing.peek().is_some() && pure < COMPUTING {
            computing.next()
        } else if waiting.peek().is_some() && pace.admits(running.len() - pure) {
            waiting.next()
        } else {
            None
        };
        if let Some(job) = next {
            started += 1;
            running.push(start(job, around, started)?);
            continue;
        }
        for ended in take_ended(&mut running)? {
            report(&ended);
            done.push(ended);
        }
        if running.is_empty() && computing.peek().is_none() && waiting.peek().is_none() {
            return Ok(done);
        }
        sleep(LOOK);
    }
}

fn start(job: Job, around: &Surroundings, number: usize) -> Result<Running> {
    let output = around.scratch.join(format!("{number}.out"));
    let file = File::create(&output).with_context(|| format!("cannot write {}", output.display()))?;
    let mut command = tethered(&job.command(), job.binary.is_pure());
    command.envs(around.variables.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
    let process = command.spawn().with_context(|| format!("cannot start {}", job.binary.program.display()))?;
    Ok(Running { job, process, began: Instant::now(), output })
}

/// The same command, which ends with this program and may run at a lower priority.
fn tethered(command: &Command, gives_way: bool) -> Command {
    let mut tethered = Command::new("setpriv");
    tethered.args(["--pdeathsig", "KILL", "--"]);
    if gives_way {
        tethered.args(["nice", "-n", "15"]);
    }
    tethered.arg(command.get_program()).args(command.get_args());
    tethered.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(directory) = command.get_current_dir() {
        tethered.current_dir(directory);
    }
    tethered
}

fn take_ended(running: &mut Vec<Running>) -> Result<Vec<Done>> {
    let mut ended = Vec::new();
    let mut at = 0;
    while at < running.len() {
        let patience = if running[at].job.binary.is_pure() { PATIENCE_WITH_COMPUTING } else { PATIENCE };
        let overdue = running[at].began.elapsed() > patience;
        if overdue {
            let _ = running[at].process.kill();
        }
        let status = if overdue { Some(running[at].process.wait()?) } else { running[at].process.try_wait()? };
        let Some(status) = status else {
            at += 1;
            continue;
        };
        let Running { job, began, output, .. } = running.swap_remove(at);
        let mut printed = read(&output);
        if overdue {
            printed.push_str(&format!("\nkilled: it did not end within {} s\n", patience.as_secs()));
        } else if status.code().is_none() {
            printed.push_str(&format!("\nit ended by {status}\n"));
        }
        let _ = fs::remove_file(&output);
        ended.push(Done::read(job, began.elapsed(), status.success() && !overdue, printed));
    }
    Ok(ended)
}

fn read(output: &Path) -> String {
    String::from_utf8_lossy(&fs::read(output).unwrap_or_default()).into_owned()
}
