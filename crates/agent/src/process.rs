//! Processes of this host, identified by process id and start time, so a reused id is not mistaken for the same process.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    pub pid: u32,
    /// In clock ticks since boot.
    pub started: u64,
}

impl Process {
    pub fn current() -> Self {
        let pid = std::process::id();
        Process { pid, started: start_ticks(pid).unwrap_or_default() }
    }

    /// The process of this id, if one lives.
    pub fn of(pid: u32) -> Option<Self> {
        Some(Process { pid, started: start_ticks(pid)? })
    }

    pub fn is_alive(self) -> bool {
        start_ticks(self.pid) == Some(self.started)
    }

    /// Whether its first argument is this word.
    pub fn is_called_with(self, word: &str) -> bool {
        let command = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        command.split(|b| *b == 0).nth(1) == Some(word.as_bytes())
    }

    /// Whether its last argument is this path.
    pub fn is_called_with_last(self, path: &Path) -> bool {
        let command = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let last = command.split(|b| *b == 0).rfind(|word| !word.is_empty());
        last == Some(path.as_os_str().as_encoded_bytes())
    }

    /// Asks it to end, and after `patience` does not ask any more.
    pub fn end(self, patience: Duration) {
        self.signal(Signal::TERM);
        let deadline = Instant::now() + patience;
        while self.is_alive() {
            if Instant::now() >= deadline {
                self.signal(Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(5));
            if Instant::now() >= deadline + Duration::from_secs(5) {
                return;
            }
        }
    }

    /// Sends a signal, if it still lives.
    pub fn signal(self, signal: Signal) {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        if let (Some(pid), true) = (pid, self.is_alive()) {
            // It may end by itself in the meantime, which is what was wanted.
            let _ = kill_process(pid, signal);
        }
    }
}

/// Every process that carries this variable in its environment.
pub fn with_environment(variable: &str, value: &str) -> Vec<Process> {
    let wanted = format!("{variable}={value}");
    let carries = |pid: u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|b| *b == 0).any(|entry| entry == wanted.as_bytes())
    };
    pids().filter(|pid| carries(*pid)).filter_map(Process::of).collect()
}

/// The value of a variable in the environment that a process was started with.
pub(crate) fn environment(pid: i32, variable: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut entries =
        environment.split(|b| *b == 0).filter_map(|entry| std::str::from_utf8(entry).ok()?.split_once('='));
    entries.find_map(|(name, value)| (name == variable).then(|| value.to_owned()))
}

pub fn pids() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok())
}

pub fn user_name() -> String {
    let named = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    let known = || user_in(&fs::read_to_string("/etc/passwd").unwrap_or_default(), rustix::process::getuid().as_raw());
    named.ok().or_else(known).unwrap_or_else(|| format!("user {}", rustix::process::getuid().as_raw()))
}

/// The first name that a table of users has for a number.
fn user_in(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|s| s.trim().to_owned()).unwrap_or_default()
}

/// Which processes this one can see: the same process id means another process in another namespace.
pub fn pid_namespace() -> String {
    fs::read_link("/proc/self/ns/pid").map(|link| link.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The clock tick at which a process started; none if it has ended, even if it was not waited for yet.
pub(crate) fn start_ticks(pid: impl std::fmt::Display) -> Option<u64> {
    start_ticks_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// `PID (NAME) STATE …`, where the name may hold anything; the number of threads is the 20th field, and the start time the 22nd.
fn start_ticks_in(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let (state, threads, started) = (fields.first()?, fields.get(17)?, fields.get(19)?);
    // Its files and locks are those of all threads, and the first one may end before the others.
    if *state == "X" || (*state == "Z" && matches!(*threads, "0" | "1")) {
        return None;
    }
    started.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_name() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nme:x:1000:1000::/home/me:/bin/sh\nalso:x:1000:1::/:/bin/sh\n";
        assert_eq!(user_in(passwd, 0).as_deref(), Some("root"));
        assert_eq!(user_in(passwd, 1000).as_deref(), Some("me"));
        assert_eq!(user_in(passwd, 7), None);
    }

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let numbers = |threads: u32| format!("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 {threads} 18 4711 20 21");
        assert_eq!(start_ticks_in(&format!("42 (etcd) S {}", numbers(1))), Some(4711));
        assert_eq!(start_ticks_in(&format!("42 (a) Z (b) R {}", numbers(9))), Some(4711));
        assert_eq!(start_ticks_in(&format!("42 (etcd) Z {}", numbers(1))), None);
        assert_eq!(start_ticks_in(&format!("42 (etcd) Z {}", numbers(2))), Some(4711), "threads still end");
        assert_eq!(start_ticks_in("42"), None);
        assert!(Process::current().is_alive());
    }
}
