//! A service as a child process in a separate process group, which outlives the agent: a later agent finds it by process id and
//! start time. When it exits by itself, it is restarted after growing pauses.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_core::model::{Exit, ServiceState};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{Doing, Gate, Launch, PATIENT, Profile, Service};
use crate::AgentError;
use crate::files::{self, Owner};
use crate::layout::Layout;
use crate::process::{self, boot_id, start_ticks};

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// One that ran this long has shown that it can: the pauses start again.
const STEADY: Duration = Duration::from_secs(60);

pub(crate) struct Children {
    shared: Arc<Shared>,
    keeper: tokio::sync::Mutex<Option<Keeper>>,
}

struct Shared {
    layout: Layout,
    profile: Profile,
    now: Mutex<ServiceState>,
    first_args: Mutex<Vec<String>>,
}

struct Keeper {
    /// With the time that the service may take.
    stop: oneshot::Sender<Duration>,
    task: JoinHandle<()>,
}

/// Which process the service is. Written without `process` just before it is started, so that none is ever lost.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Record {
    /// Process ids and start times mean nothing after a reboot.
    boot_id: String,
    process: Option<ProcessId>,
    since: Timestamp,
    launch: Launch,
    restarts: u32,
}

/// A process id can be given to another process later; together with the start time, in clock ticks since boot, it cannot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct ProcessId {
    pid: i32,
    start_ticks: u64,
}

impl Children {
    pub(crate) fn new(layout: Layout, profile: Profile) -> Self {
        let now = Mutex::new(ServiceState::Stopped);
        let shared = Arc::new(Shared { layout, profile, now, first_args: Mutex::default() });
        Children { shared, keeper: tokio::sync::Mutex::new(None) }
    }
}

impl Service for Children {
    fn start(&self, launch: Launch, gate: Gate) -> Doing<'_, Result<(), AgentError>> {
        Box::pin(async move {
            let mut keeper = self.keeper.lock().await;
            if keeper.is_some() {
                return Err(AgentError::RunsAlready { name: self.shared.profile.name.clone() });
            }
            self.shared.end_unknown().await;
            *self.shared.first_args.lock().expect("no holder panics") = launch.first_args.clone();
            let process = self.shared.spawn(&launch, 0)?;
            *keeper = Some(self.shared.clone().keep(launch, process, 0, gate));
            Ok(())
        })
    }

    fn adopt(&self, gate: Gate) -> Doing<'_, bool> {
        Box::pin(async move {
            let Some((record, process)) = self.shared.find() else { return false };
            let Record { since, launch, restarts, .. } = record;
            self.shared.set(ServiceState::Running { since, digest: launch.digest.clone(), restarts });
            *self.keeper.lock().await = Some(self.shared.clone().keep(launch, process, restarts, gate));
            true
        })
    }

    fn stop(&self, patience: Duration) -> Doing<'_, Result<(), AgentError>> {
        Box::pin(async move {
            if let Some(Keeper { stop, task }) = self.keeper.lock().await.take() {
                let _ = stop.send(patience);
                let _ = task.await;
            } else if let Some((_, process)) = self.shared.find() {
                end(process, patience).await;
            }
            self.shared.end_unknown().await;
            self.shared.set(ServiceState::Stopped);
            files::remove(&self.shared.process_file())
        })
    }

    fn look(&self) -> Doing<'_, ServiceState> {
        Box::pin(async { self.shared.now.lock().expect("no holder panics").clone() })
    }

    fn first_start_succeeded(&self) {
        self.shared.first_args.lock().expect("no holder panics").clear();
    }

    fn owner(&self) -> Result<Option<Owner>, AgentError> {
        Ok(None)
    }
}

impl Shared {
    fn set(&self, state: ServiceState) {
        *self.now.lock().expect("no holder panics") = state;
    }

    fn spawn(&self, launch: &Launch, restarts: u32) -> Result<Process, AgentError> {
        if let (Some(first), true) = (&self.profile.first_start, launch.first_args.is_empty()) {
            (first.check)()?;
        }
        let since = Timestamp::now();
        let mut record = Record { boot_id: boot_id(), process: None, since, launch: launch.clone(), restarts };
        self.note(&record)?;
        let log = files::open_log(&self.profile.log)?;
        let child = self.command(launch, &log).and_then(|mut command| command.spawn());
        let child =
            child.map_err(|source| AgentError::Spawn { program: launch.program.display().to_string(), source })?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        record.process = pid.and_then(|pid| Some(ProcessId { pid, start_ticks: start_ticks(pid)? }));
        if let Err(error) = self.note(&record) {
            // On a full disk. Nobody would know of it, while it holds the port and the data. It has done nothing yet.
            Process::Own(child).signal(Signal::KILL);
            return Err(error);
        }
        tracing::info!(service = self.profile.name, pid, restarts, "started");
        self.set(ServiceState::Running { since, digest: launch.digest.clone(), restarts });
        Ok(Process::Own(child))
    }

    /// Ends a process that does this service's work and that nobody keeps: it would hold port and data for ever.
    async fn end_unknown(&self) {
        while let Some(pid) = (self.profile.find_stray)() {
            let Some(process) = Process::found(pid) else { return };
            tracing::warn!(service = self.profile.name, pid, "a process that this agent did not know of is ended");
            end(process, PATIENT).await;
        }
    }

    fn process_file(&self) -> PathBuf {
        self.layout.process_file(&self.profile.name)
    }

    fn command(&self, launch: &Launch, log: &fs::File) -> std::io::Result<Command> {
        let mut command = Command::new(&launch.program);
        command.args(self.profile.all_args(launch)).process_group(0).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log.try_clone()?);
        for (name, _) in std::env::vars_os().filter(|(name, _)| self.profile.is_setting(&name.to_string_lossy())) {
            command.env_remove(name);
        }
        command.envs(&launch.env).env(SERVICE_VARIABLE, mark(&self.layout, &self.profile.name));
        Ok(command)
    }

    fn note(&self, record: &Record) -> Result<(), AgentError> {
        let text = serde_json::to_vec(record).expect("plain data serializes");
        files::write(&self.process_file(), &text, files::PRIVATE, None)
    }

    /// The process that an earlier agent started, if it runs.
    fn find(&self) -> Option<(Record, Process)> {
        let text = fs::read(self.process_file()).ok()?;
        let record: Record =
            serde_json::from_slice(&text).ok().filter(|record: &Record| record.boot_id == boot_id())?;
        let pid = match record.process {
            Some(process) => Some(process.pid).filter(|pid| start_ticks(*pid) == Some(process.start_ticks))?,
            // That agent ended between starting the process and noting which it is.
            None => (self.profile.find_stray)()?,
        };
        let handle = Process::found(pid)?;
        Some((record, handle))
    }

    fn keep(self: Arc<Self>, launch: Launch, process: Process, restarts: u32, gate: Gate) -> Keeper {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move { self.keep_running(launch, process, restarts, gate, stopped).await });
        Keeper { stop, task }
    }

    async fn keep_running(
        &self,
        mut launch: Launch,
        mut process: Process,
        mut restarts: u32,
        gate: Gate,
        mut stop: oneshot::Receiver<Duration>,
    ) {
        let mut pause = FIRST_PAUSE;
        let mut started = Instant::now();
        loop {
            let how = tokio::select! {
                patience = &mut stop => return end(process, patience.unwrap_or(PATIENT)).await,
                how = process.wait() => how,
            };
            if started.elapsed() > STEADY {
                pause = FIRST_PAUSE;
            }
            let mut exit = Exit { at: Timestamp::now(), how, last_words: (self.profile.last_words)(&self.profile.log) };
            process = loop {
                restarts += 1;
                self.back_off(restarts, exit, pause);
                tokio::select! {
                    _ = &mut stop => return,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
                launch.first_args = self.first_args.lock().expect("no holder panics").clone();
                let open = tokio::select! {
                    _ = &mut stop => return,
                    open = gate(launch.clone()) => open,
                };
                self.end_unknown().await;
                match open.and_then(|()| self.spawn(&launch, restarts)) {
                    Ok(process) => break process,
                    Err(error) => {
                        exit = Exit { at: Timestamp::now(), how: error.in_full(), last_words: String::new() };
                    }
                }
            };
            started = Instant::now();
        }
    }

    fn back_off(&self, restarts: u32, last_exit: Exit, pause: Duration) {
        let (service, how) = (&self.profile.name, &last_exit.how);
        tracing::warn!(service, how, restarts, ?pause, "the service does not run; it is started again after a pause");
        self.set(ServiceState::BackingOff { restarts, last_exit });
    }
}

/// Tells a process which service it is, and of which agent. By it a process is found that its agent had no time to note.
const SERVICE_VARIABLE: &str = "QUORATE_SERVICE";

fn mark(layout: &Layout, name: &str) -> String {
    format!("{}:{name}", layout.root().display())
}

/// A process that was started as this service below this root.
pub(crate) fn find_by_mark(layout: &Layout, name: &str) -> Option<i32> {
    i32::try_from(find_all_by_mark(layout, name).first()?.pid).ok()
}

/// All that were started as this service below this root, or by it.
pub(crate) fn find_all_by_mark(layout: &Layout, name: &str) -> Vec<process::Process> {
    process::with_environment(SERVICE_VARIABLE, &mark(layout, name))
}

enum Process {
    /// Started by this agent, so it learns of its end.
    Own(Child),
    /// Started by an earlier agent.
    Found { handle: Arc<OwnedFd>, ended: oneshot::Receiver<()> },
}

impl Process {
    fn found(pid: i32) -> Option<Self> {
        let handle = Arc::new(pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?);
        let (tell, ended) = oneshot::channel();
        let watched = handle.clone();
        // tokio watches foreign handles only through unsafe code; a thread that sleeps costs next to nothing.
        let watcher = thread::Builder::new().name(String::from("watcher")).stack_size(64 << 10);
        watcher.spawn(move || watch(&watched, tell)).ok()?;
        Some(Process::Found { handle, ended })
    }

    /// How it ended.
    async fn wait(&mut self) -> String {
        match self {
            Process::Own(child) => match child.wait().await {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            },
            Process::Found { ended, .. } => {
                let _ = ended.await;
                String::from("exited; with which status is unknown, because an earlier agent started it")
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let sent = match self {
            Process::Own(child) => {
                let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
                pid.map(|pid| rustix::process::kill_process(pid, signal))
            }
            Process::Found { handle, .. } => Some(pidfd_send_signal(handle.as_ref(), signal)),
        };
        if let Some(Err(error)) = sent {
            tracing::debug!(%error, ?signal, "no process received the signal");
        }
    }
}

/// Returns when the process has ended.
fn watch(handle: &OwnedFd, tell: oneshot::Sender<()>) {
    while poll(&mut [PollFd::new(handle, PollFlags::IN)], None).is_err_and(|error| error == rustix::io::Errno::INTR) {}
    let _ = tell.send(());
}

async fn end(mut process: Process, patience: Duration) {
    process.signal(Signal::TERM);
    if tokio::time::timeout(patience, process.wait()).await.is_err() {
        tracing::warn!("a service did not end when asked to; it is killed");
        process.signal(Signal::KILL);
        process.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_that_does_not_end_when_asked_to_is_killed_after_the_time_it_has() {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM; echo ready; while :; do sleep 1; done"]).stdout(Stdio::piped());
        let mut child = command.process_group(0).kill_on_drop(true).spawn().unwrap();
        let mut ready = [0; 5];
        tokio::io::AsyncReadExt::read_exact(child.stdout.as_mut().unwrap(), &mut ready).await.unwrap();
        let began = Instant::now();
        end(Process::Own(child), super::super::HURRIED).await;
        assert!(began.elapsed() >= super::super::HURRIED, "{:?}", began.elapsed());
    }
}
