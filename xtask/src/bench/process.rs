//! Time and memory of processes, as the kernel's files below /proc report them.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How often a running process is looked at: what it takes within its last moment goes unseen.
const LOOK: Duration = Duration::from_millis(1);

pub struct Cost {
    pub time: Duration,
    /// Bytes of memory at most.
    pub peak: u64,
}

/// Runs a command to its end, with its output thrown away and its complaints kept in a file.
pub fn measure(command: &mut Command, complaints: &Path, patience: Duration) -> Result<Cost> {
    let program = command.get_program().display().to_string();
    let file = File::create(complaints).with_context(|| format!("cannot write {}", complaints.display()))?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    let begun = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot start {program}"))?;
    let mut peak = 0;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() > patience {
            child.kill()?;
            child.wait()?;
            bail!("{program} did not end within {patience:?}");
        }
        peak = memory(child.id(), "VmHWM").unwrap_or_default().max(peak);
        sleep(LOOK);
    };
    let time = begun.elapsed();
    if !status.success() {
        bail!("{program} failed: {status}\n{}", fs::read_to_string(complaints).unwrap_or_default().trim_end());
    }
    Ok(Cost { time, peak })
}

/// Bytes of memory of a living process: `VmRSS` now, `VmHWM` at most.
pub fn memory(pid: u32, field: &str) -> Option<u64> {
    memory_in(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, field)
}

fn memory_in(status: &str, field: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Clock ticks that a living process has spent on a CPU so far.
pub fn cpu_ticks(pid: u32) -> Option<u64> {
    cpu_ticks_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// `PID (NAME) STATE …`, where the name may hold anything; the 14th and 15th fields are user and system time.
fn cpu_ticks_in(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(11).map(|field| field.parse::<u64>().ok());
    Some(ticks.next()?? + ticks.next()??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_status() {
        let status = "Name:\tetcd\nVmHWM:\t   50000 kB\nVmRSS:\t   40000 kB\nThreads:\t9\n";
        assert_eq!(memory_in(status, "VmRSS"), Some(40_000 * 1024));
        assert_eq!(memory_in("Name:\tetcd\nState:\tZ (zombie)\n", "VmRSS"), None);
        assert!(memory(std::process::id(), "VmRSS").is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn ticks_are_found_behind_any_name() {
        let stat = "42 (a) b) S 1 2 3 4 5 6 7 8 9 10 30 12 0 0 20 0 9 0 4711";
        assert_eq!(cpu_ticks_in(stat), Some(42));
        assert_eq!(cpu_ticks_in("42 (a) S 1 2"), None);
        assert!(cpu_ticks(std::process::id()).is_some());
    }

    #[test]
    fn a_command_that_fails_or_hangs_is_reported() {
        let complaints = std::env::temp_dir().join(format!("xtask-complaints-{}", std::process::id()));
        let run = |script: &str, patience| {
            measure(Command::new("sh").args(["-c", script]), &complaints, patience).map(|cost| cost.time)
        };
        let failed = run("echo no luck >&2; exit 3", Duration::from_secs(10)).unwrap_err().to_string();
        let hung = run("exec sleep 10", Duration::from_millis(20)).unwrap_err().to_string();
        let well = run("sleep 0.05", Duration::from_secs(10));
        fs::remove_file(&complaints).unwrap();
        assert!(failed.contains("exit status: 3") && failed.contains("no luck"), "{failed}");
        assert!(hung.contains("did not end within 20ms"), "{hung}");
        assert!(well.unwrap() >= Duration::from_millis(50));
    }
}
