//! A newer quorate for this machine, sent by its controller. The new program is tried before it replaces the old one:
//!
//! 1. It is received next to the old one, its SHA-256 is compared, and it is run once to see that it starts here and reads this machine's
//!    state (`quorate agent check`).
//! 2. The agent gives up its ports and its lock and starts the new program on trial. It stays as the guardian of the trial.
//! 3. The new agent takes the old one's place on disk when its controller has spoken to it. Until then the old program is the one
//!    that every start of this machine uses, so a crash or power loss at any time leaves a machine with a program that works.
//! 4. If the new agent exits, or nobody has spoken to it in time, the guardian ends it and is the agent again.
//!
//! etcd is not touched: it is not a part of the agent's process, and the next agent adopts it.
//!
//! `agent check`, the flag `--trial` and the two paths below are what programs of different versions rely on: they never change.

mod take;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quorate_core::model::{FailedUpgrade, Program};
use tokio::sync::Notify;

use crate::layout::Layout;
use crate::{AgentError, Options, files, state, upload};

/// Within which a controller must have spoken to the new agent.
pub(crate) const TRIAL: Duration = Duration::from_secs(120);
/// A trial whose guardian was killed ends by itself, a little later.
const UNGUARDED_TRIAL: Duration = Duration::from_secs(150);
const CHECK: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);
/// For the answer to reach the controller before the port closes.
const ANSWER: Duration = Duration::from_millis(200);
/// Beyond the program itself, for everything else that the machine writes meanwhile.
const RESERVE: u64 = 64 << 20;

/// Where the program is below the root, and where the next one is while it is on trial.
const PROGRAM: &str = "usr/lib/quorate/quorate";
const NEXT: &str = "usr/lib/quorate/quorate.next";

/// What this agent has to do with upgrades.
pub(crate) struct Upgrades {
    /// Whether this agent runs on trial, and nobody has spoken to it yet.
    on_trial: AtomicBool,
    confirmed: Notify,
    /// The program to be tried next, once it is.
    next: std::sync::Mutex<Option<Trial>>,
    leave: Notify,
    /// How the last trial failed, and the fencing number it came with.
    failed: Option<(u64, FailedUpgrade)>,
}

impl Upgrades {
    pub(crate) fn new(on_trial: bool, failed: Option<(u64, FailedUpgrade)>) -> Self {
        Upgrades {
            on_trial: AtomicBool::new(on_trial),
            confirmed: Notify::new(),
            next: std::sync::Mutex::default(),
            leave: Notify::new(),
            failed,
        }
    }

    /// Only the controller that began the upgrade hears of its failure: a later one tries again.
    pub(crate) fn failed(&self, fence: Option<u64>) -> Option<FailedUpgrade> {
        self.failed.as_ref().filter(|(of, _)| Some(*of) == fence).map(|(_, failed)| failed.clone())
    }

    pub(crate) fn is_on_trial(&self) -> bool {
        self.on_trial.load(Ordering::Relaxed)
    }

    /// Returns when there is a program to be tried.
    pub(crate) async fn next_program(&self) -> Trial {
        loop {
            self.leave.notified().await;
            if let Some(trial) = self.next.lock().expect("no holder panics").take() {
                return trial;
            }
        }
    }

    /// Returns when the trial of this agent has failed without a guardian who would end it.
    pub(crate) async fn trial_is_over(&self) {
        if self.on_trial.load(Ordering::Relaxed)
            && tokio::time::timeout(UNGUARDED_TRIAL, self.confirmed.notified()).await.is_err()
        {
            return;
        }
        std::future::pending().await
    }
}

/// A program that is to be tried in place of this one.
#[derive(Debug)]
pub struct Trial {
    program: PathBuf,
    to: Program,
    fence: u64,
}

/// Removes what an upgrade that did not come to its end has left.
pub(crate) fn clear(layout: &Layout) -> Result<(), AgentError> {
    let next = layout.root().join(NEXT);
    let directory = next.parent().unwrap_or(layout.root());
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| *path == next || upload::is_unfinished(path)).try_for_each(|path| files::remove(&path))
}

/// `quorate agent check`: what this program is, if it can continue with this machine's state.
pub fn check(root: &Path) -> Result<Program, AgentError> {
    let layout = Layout::new(root).map_err(AgentError::file("find", root))?;
    state::check(&layout)?;
    Ok(Program::this().clone())
}

/// The program that this machine keeps for its agent, if it has one.
pub fn kept_program(root: &Path) -> Option<PathBuf> {
    Some(root.join(PROGRAM)).filter(|program| program.is_file())
}

impl Trial {
    /// Runs the new program as this machine's agent until it has taken its place. If it does not, says why.
    pub(crate) fn guard(self, options: &Options, within: Duration) -> Result<(), (u64, FailedUpgrade)> {
        let failed = |why: String| {
            tracing::error!(to = %self.to, why, "the upgrade is rolled back");
            let _ = fs::remove_file(&self.program);
            (self.fence, FailedUpgrade { to: self.to.clone(), why })
        };
        let mut agent = self.start(options).map_err(|error| failed(format!("it does not start: {error}")))?;
        let deadline = Instant::now() + within;
        loop {
            if !self.program.exists() {
                return Ok(());
            }
            match agent.try_wait() {
                Ok(None) if Instant::now() < deadline => std::thread::sleep(PAUSE),
                Ok(None) => {
                    let _ = agent.kill();
                    let _ = agent.wait();
                    return Err(failed(format!("no controller reached it within {} s", within.as_secs())));
                }
                Ok(Some(status)) => return Err(failed(format!("it ended ({status})"))),
                Err(error) => return Err(failed(error.to_string())),
            }
        }
    }

    fn start(&self, options: &Options) -> io::Result<Child> {
        Command::new(&self.program).arg("agent").args(arguments(options)).arg("--trial").stdin(Stdio::null()).spawn()
    }
}

/// The command line of an agent with these options.
fn arguments(options: &Options) -> Vec<OsString> {
    let Options { root, seed, cache, supervisor, channel, on_trial: _ } = options;
    let mut arguments = vec!["--root".into(), root.into(), "--seed".into(), seed.into()];
    let mut add = |flag: &str, value: &Option<PathBuf>| {
        if let Some(value) = value {
            arguments.extend([OsString::from(flag), value.into()]);
        }
    };
    add("--cache", cache);
    add("--channel", channel);
    if *supervisor == crate::Supervisor::Systemd {
        arguments.push("--systemd".into());
    }
    arguments
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn try_program(agent: &str, within: Duration) -> (PathBuf, Result<(), (u64, FailedUpgrade)>) {
        let root = tempfile::tempdir().unwrap().keep();
        let program = root.join("next");
        fs::write(&program, format!("#!/bin/sh\necho $$ > {}/pid; {agent}\n", root.display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let options = Options {
            root: root.clone(),
            seed: root.join("seed.json"),
            cache: None,
            supervisor: crate::Supervisor::Child,
            channel: None,
            on_trial: false,
        };
        let to = Program { protocol: 9, version: String::from("9.9.9") };
        let guarded = Trial { program, to, fence: 4 }.guard(&options, within);
        (root, guarded)
    }

    fn why(guarded: Result<(), (u64, FailedUpgrade)>) -> String {
        let (fence, failed) = guarded.unwrap_err();
        assert_eq!((fence, failed.to.protocol), (4, 9));
        failed.why
    }

    #[test]
    fn an_unreachable_program_is_ended_when_its_time_is_up() {
        let (root, guarded) = try_program("exec sleep 60", Duration::from_millis(500));
        assert!(why(guarded).contains("no controller reached it"));
        let pid = fs::read_to_string(root.join("pid")).unwrap();
        assert!(!Path::new("/proc").join(pid.trim()).exists(), "it still runs");
        assert!(!root.join("next").exists());
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_program_that_ends_is_given_up_and_one_that_takes_its_place_is_let_go() {
        let (root, guarded) = try_program("exit 7", Duration::from_secs(60));
        assert!(why(guarded).contains("exit status: 7"));
        fs::remove_dir_all(root).unwrap();
        let (root, guarded) = try_program("mv \"$0\" \"$0.in-place\"; exec sleep 1", Duration::from_secs(60));
        guarded.unwrap();
        fs::remove_dir_all(root).unwrap();
    }
}
