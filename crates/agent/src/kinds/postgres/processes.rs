//! The processes of Patroni and PostgreSQL on this machine. PostgreSQL survives when Patroni is killed, and the next Patroni adopts it. So
//! only an order stops it.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::SERVICE;
use crate::AgentError;
use crate::layout::Layout;
use crate::process::{self, Process};
use crate::services::child;

/// For a fast shutdown, which writes all that is in memory; then for one that does not.
const FAST: Duration = Duration::from_secs(60);
const IMMEDIATE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// Patroni itself, no matter who started it. `patronictl` takes the same file, but not as its first argument.
pub(super) fn find_patroni(layout: &Layout) -> Option<i32> {
    let config = layout.patroni_config();
    let is_patroni = |pid: &u32| {
        let words = words_of(*pid);
        let named = |word: &String| Path::new(word).file_name().is_some_and(|name| name == "patroni");
        words.last().is_some_and(|word| Path::new(word) == config) && words.iter().any(named)
    };
    let found = process::pids().filter(is_patroni).find(|pid| process::start_ticks(pid).is_some());
    found.and_then(|pid| i32::try_from(pid).ok())
}

fn words_of(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// The process that all others of PostgreSQL come from, as it notes itself in its data directory.
pub(super) fn find_postmaster(layout: &Layout) -> Option<Process> {
    let data = layout.postgres_data();
    let noted = fs::read_to_string(data.join("postmaster.pid")).ok()?;
    let process = Process::of(noted.lines().next()?.trim().parse().ok()?)?;
    let words = words_of(process.pid);
    words.iter().any(|word| Path::new(word) == data).then_some(process)
}

/// Ends PostgreSQL, in the same way as `pg_ctl stop --mode=fast`. Waits, so it must not run where others wait for it.
pub(super) fn end_postmaster(layout: &Layout) {
    let Some(postmaster) = find_postmaster(layout) else { return };
    tracing::warn!(pid = postmaster.pid, "PostgreSQL runs without Patroni; it is stopped");
    for (signal, patience) in [(Signal::INT, FAST), (Signal::QUIT, IMMEDIATE), (Signal::KILL, IMMEDIATE)] {
        postmaster.signal(signal);
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if !postmaster.is_alive() {
                return;
            }
            std::thread::sleep(POLL);
        }
    }
}

/// Everything that was started as Patroni below this root, or by it.
pub(super) fn marked(layout: &Layout) -> Vec<Process> {
    child::find_all_by_mark(layout, SERVICE)
}

/// Says in the environment of a process which restored data it works on, so what a killed agent left at work is found.
pub(super) const WORKS_ON: &str = "QUORATE_WORKS_ON";

/// Ends processes on restored data that is no longer needed.
pub(super) fn end_work_on(data: &Path) {
    for process in process::with_environment(WORKS_ON, &data.display().to_string()) {
        process.end(IMMEDIATE);
    }
}

/// Whether data is being cloned to this machine right now.
pub(super) fn is_cloning(layout: &Layout) -> bool {
    marked(layout).iter().any(|process| program_of(process.pid).as_deref() == Some("pg_basebackup"))
}

fn program_of(pid: u32) -> Option<String> {
    let words = words_of(pid);
    Some(Path::new(words.first()?).file_name()?.to_str()?.to_owned())
}

/// What a Patroni that was killed has left at work on the data. A clone is ended, because the next Patroni begins it again. One that rewinds
/// the data is waited for: half of that is of no use to anybody.
pub(super) fn end_leftovers(layout: &Layout) -> Result<(), AgentError> {
    for process in marked(layout) {
        match program_of(process.pid).as_deref() {
            Some("pg_basebackup") => process.end(IMMEDIATE),
            Some(name @ "pg_rewind") => {
                let pid = i32::try_from(process.pid).unwrap_or_default();
                return Err(AgentError::StillAtWork { program: name.to_owned(), pid });
            }
            _ => {}
        }
    }
    Ok(())
}
