//! A service as a static pod: its manifest is in a directory that a kubelet reads, and the kubelet keeps it running. The agent finds
//! its process by what the process was given; the kubelet is asked nothing.
//!
//! A manifest that is changed in place takes a kubelet many seconds, so a restart removes it, sees the process end, and writes another
//! one. A service counts as stopped only when its process is gone: without a running kubelet, removing a manifest stops nothing. A
//! manifest that somebody removed is written again. One that somebody changed is reported, and the planner decides when to restart.

pub(crate) mod manifest;

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use quorate_core::model::{self, EDITED, Exit, ServiceState};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use super::{Gate, Launch, Profile, give_away};
use crate::AgentError;
use crate::error::Obstacle;
use crate::files::{self, Owner};
use crate::layout::Layout;
use crate::process::{self, Process, boot_id, environment, start_ticks};
use manifest::{HEADER, Manifest};

/// Between looks at the process.
const LOOK: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(100);
/// A kubelet that misses the event looks by itself every 20 seconds.
const NOTICED: Duration = Duration::from_secs(35);
/// For so long a process must be gone, and its manifest: the kubelet may be about to start it once more.
const GONE: Duration = Duration::from_secs(1);
const REMOVED: Duration = Duration::from_secs(2);
/// In this time a kubelet usually starts a pod whose image it has.
const COMING: SignedDuration = SignedDuration::from_secs(20);
/// The same at a first start, when the image may have to be fetched and nothing distinguishes a slow start from lost data.
const FETCHING: SignedDuration = SignedDuration::from_mins(10);
/// Between attempts to bring back what the kubelet does not.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

pub(crate) struct StaticPod {
    shared: Arc<Shared>,
    keeper: tokio::sync::Mutex<Option<Keeper>>,
    /// For the kubelet, to notice that a manifest is gone.
    notices_within: Duration,
}

struct Shared {
    layout: Layout,
    profile: Profile,
    owner: Mutex<Option<Owner>>,
    record: Mutex<Option<Record>>,
    first_args: Mutex<Vec<String>>,
    /// Why the agent could not bring the pod back.
    trouble: Mutex<Option<Exit>>,
}

struct Keeper {
    task: JoinHandle<()>,
    gate: Gate,
}

/// The pod that this agent, or one before it, has put there. Written before the manifest, so none is ever lost.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Record {
    /// Process ids mean nothing after a reboot, and the gate is closed then.
    boot_id: String,
    start: String,
    manifest: String,
    written: Timestamp,
    launch: Launch,
    /// Whether the kubelet must not start it a second time.
    first: bool,
    restarts: u32,
    process: Option<ProcessId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct ProcessId {
    pid: i32,
    start_ticks: u64,
}

impl ProcessId {
    fn of(pid: i32) -> Option<Self> {
        Some(ProcessId { pid, start_ticks: start_ticks(pid)? })
    }

    fn is_alive(self) -> bool {
        start_ticks(self.pid) == Some(self.start_ticks)
    }
}

impl StaticPod {
    pub(crate) fn new(layout: Layout, profile: Profile) -> Self {
        let shared = Shared {
            layout,
            profile,
            owner: Mutex::default(),
            record: Mutex::default(),
            first_args: Mutex::default(),
            trouble: Mutex::default(),
        };
        let known = fs::read(shared.record_file()).ok().and_then(|text| serde_json::from_slice(&text).ok());
        *shared.record.lock().expect("no holder panics") = known;
        StaticPod { shared: Arc::new(shared), keeper: tokio::sync::Mutex::new(None), notices_within: NOTICED }
    }

    /// Whether a pod of ours was put there and not taken away again.
    pub(crate) fn is_there(&self) -> bool {
        self.shared.record().is_some()
    }

    pub(crate) async fn start(&self, launch: Launch, gate: Gate, owner: Option<Owner>) -> Result<(), AgentError> {
        let mut keeper = self.keeper.lock().await;
        if keeper.is_some() {
            return Err(AgentError::RunsAlready { name: self.shared.profile.name.clone() });
        }
        *self.shared.owner.lock().expect("no holder panics") = owner;
        self.shared.first_args.lock().expect("no holder panics").clone_from(&launch.first_args);
        self.shared.put(launch, 0).await?;
        *keeper = Some(self.shared.clone().keep(gate));
        Ok(())
    }

    pub(crate) async fn adopt(&self, gate: Gate, owner: Option<Owner>) -> bool {
        *self.shared.owner.lock().expect("no holder panics") = owner;
        let Some(record) = self.shared.record() else { return false };
        let is_kept = record.boot_id == boot_id() && self.shared.gate().exists() && self.shared.has_manifest(&record);
        if !is_kept && self.shared.process().is_none() {
            return false;
        }
        self.keeper.lock().await.get_or_insert_with(|| self.shared.clone().keep(gate));
        true
    }

    pub(crate) async fn stop(&self, patience: Duration) -> Result<(), AgentError> {
        let mut keeper = self.keeper.lock().await;
        let Some(record) = self.shared.record() else { return Ok(()) };
        if let Some(process) = self.shared.process()
            && !has_kubelet()
        {
            return Err(AgentError::NoKubelet { pid: process.pid });
        }
        let before = keeper.take();
        if let Some(Keeper { task, .. }) = &before {
            task.abort();
        }
        self.shared.take_away(&record)?;
        let patience = patience + self.notices_within;
        if let Some(pid) = self.shared.outlives(patience).await {
            // As it was: a kubelet that comes back must not end what the order did not end.
            let back = self.shared.put_back(&record);
            *keeper = before.map(|Keeper { gate, .. }| self.shared.clone().keep(gate));
            back?;
            let manifest = self.shared.manifest_file(&record.launch);
            return Err(AgentError::KubeletSilent { manifest, pid, seconds: patience.as_secs() });
        }
        tracing::info!(service = self.shared.profile.name, "the pod is gone");
        self.shared.forget()
    }

    pub(crate) fn look(&self) -> ServiceState {
        self.shared.look(Timestamp::now())
    }

    pub(crate) fn first_start_succeeded(&self) {
        if self.is_there() {
            self.shared.first_start_succeeded();
        }
    }
}

impl Shared {
    fn record(&self) -> Option<Record> {
        self.record.lock().expect("no holder panics").clone()
    }

    fn record_file(&self) -> PathBuf {
        self.layout.state_dir().join(format!("{}.pod.json", self.profile.name))
    }

    fn note(&self, record: Record) -> Result<(), AgentError> {
        let text = serde_json::to_vec(&record).expect("plain data serializes");
        files::write(&self.record_file(), &text, files::PRIVATE, None)?;
        *self.record.lock().expect("no holder panics") = Some(record);
        Ok(())
    }

    fn forget(&self) -> Result<(), AgentError> {
        files::remove(&self.record_file())?;
        *self.record.lock().expect("no holder panics") = None;
        self.trouble.lock().expect("no holder panics").take();
        Ok(())
    }

    fn manifest_file(&self, launch: &Launch) -> PathBuf {
        let directory = launch.pod.as_ref().map(|pod| pod.manifests.clone()).unwrap_or_default();
        manifest_in(&directory, &self.profile.name)
    }

    fn has_manifest(&self, record: &Record) -> bool {
        fs::read(self.manifest_file(&record.launch)).is_ok_and(|found| found == record.manifest.as_bytes())
    }

    /// What a kubelet needs before it starts the pod.
    fn gate(&self) -> PathBuf {
        self.layout.root().join(format!("run/quorate/{}-pod", self.profile.name))
    }

    fn open_gate(&self, first: bool) -> Result<(), AgentError> {
        let gate = self.gate();
        self.close_gate()?;
        match &self.profile.first_start {
            Some(made) if !first => {
                files::make_dir(gate.parent().unwrap_or(&gate), 0o755)?;
                files::link(&gate, &made.leaves.to_string_lossy())
            }
            _ => files::make_dir(&gate, 0o755),
        }
    }

    fn close_gate(&self) -> Result<(), AgentError> {
        let gate = self.gate();
        match fs::symlink_metadata(&gate) {
            Ok(found) if found.is_dir() => files::remove_dir(&gate),
            _ => files::remove(&gate),
        }
    }

    /// The process that does this service's work, if the kubelet has started it.
    fn process(&self) -> Option<ProcessId> {
        let known = self.record.lock().expect("no holder panics").as_ref().and_then(|record| record.process);
        known.filter(|process| process.is_alive()).or_else(|| ProcessId::of((self.profile.find_stray)()?))
    }

    async fn put(&self, launch: Launch, restarts: u32) -> Result<(), AgentError> {
        let Some(pod) = launch.pod.clone() else { return Ok(()) };
        let first = !launch.first_args.is_empty();
        if let (Some(made), false) = (&self.profile.first_start, first) {
            (made.check)()?;
        }
        let path = self.manifest_file(&launch);
        check_place(&path, &pod.manifests)?;
        self.clear_the_place(&path).await?;
        let owner = *self.owner.lock().expect("no holder panics");
        give_away(&self.profile, owner)?;
        self.open_gate(first)?;
        let start = quorate_pki::random_hex(8);
        let ours = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let (profile, gate) = (&self.profile, self.gate());
        let owner = owner.unwrap_or(ours);
        let text = Manifest { pod: &pod, launch: &launch, profile, owner, gate: &gate, start: &start }.text();
        let written = Timestamp::now();
        let manifest = text.clone();
        self.note(Record { boot_id: boot_id(), start, manifest, written, launch, first, restarts, process: None })?;
        files::write_durably(&path, text.as_bytes(), files::PRIVATE)?;
        self.trouble.lock().expect("no holder panics").take();
        tracing::info!(service = self.profile.name, manifest = %path.display(), restarts, "the pod is put there");
        Ok(())
    }

    /// A pod that replaces another in place is started after many seconds. One that comes after a pause is started at once.
    async fn clear_the_place(&self, path: &Path) -> Result<(), AgentError> {
        if path.exists() {
            files::remove(path)?;
            tokio::time::sleep(REMOVED).await;
        }
        Ok(())
    }

    fn take_away(&self, record: &Record) -> Result<(), AgentError> {
        self.close_gate()?;
        files::remove(&self.manifest_file(&record.launch))
    }

    fn put_back(&self, record: &Record) -> Result<(), AgentError> {
        if let Some(pod) = &record.launch.pod {
            check_place(&self.manifest_file(&record.launch), &pod.manifests)?;
        }
        self.open_gate(record.first && !self.has_data())?;
        files::write_durably(&self.manifest_file(&record.launch), record.manifest.as_bytes(), files::PRIVATE)
    }

    fn has_data(&self) -> bool {
        self.profile.first_start.as_ref().is_none_or(|first| (first.check)().is_ok())
    }

    /// The process that is still there after this time.
    async fn outlives(&self, patience: Duration) -> Option<i32> {
        let began = Instant::now();
        let mut gone: Option<Instant> = None;
        loop {
            match (self.profile.find_stray)() {
                Some(pid) if began.elapsed() > patience => return Some(pid),
                Some(_) => gone = None,
                None => {
                    let since = *gone.get_or_insert_with(Instant::now);
                    if since.elapsed() > GONE && began.elapsed() > REMOVED {
                        return None;
                    }
                }
            }
            tokio::time::sleep(SOON).await;
        }
    }

    fn first_start_succeeded(&self) {
        self.first_args.lock().expect("no holder panics").clear();
        if !fs::symlink_metadata(self.gate()).is_ok_and(|found| found.is_dir()) {
            return;
        }
        // From here on the disk must hold data, or no kubelet starts it.
        if let Err(error) = self.open_gate(false) {
            tracing::warn!(error = error.in_full(), "the gate of the first start is still open");
        }
    }

    fn keep(self: Arc<Self>, gate: Gate) -> Keeper {
        let kept = gate.clone();
        let task = tokio::spawn(async move { self.keep_there(kept).await });
        Keeper { task, gate }
    }

    /// Until it is aborted.
    async fn keep_there(&self, gate: Gate) {
        let mut pause = FIRST_PAUSE;
        loop {
            tokio::time::sleep(LOOK).await;
            let Some(record) = self.record() else { return };
            if let Some(process) = self.process() {
                pause = FIRST_PAUSE;
                if let Err(error) = self.follow(record, process) {
                    tracing::warn!(error = error.in_full(), "the pod cannot be kept as it is");
                }
            } else if self.needs_another(&record) {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                self.bring_back(record, &gate).await;
            }
        }
    }

    /// Notes which process it is, and puts back a manifest that somebody removed: before the kubelet has noticed, nothing happens at all.
    fn follow(&self, record: Record, process: ProcessId) -> Result<(), AgentError> {
        if record.first && self.has_data() {
            self.first_start_succeeded();
        }
        let path = self.manifest_file(&record.launch);
        // If the directory is gone too, so is the machine or its kubelet, and nothing is made again.
        if !path.exists() && path.parent().is_some_and(Path::is_dir) {
            tracing::warn!(manifest = %path.display(), "another tool removed the manifest; it is written again");
            self.put_back(&record)?;
        }
        if record.process == Some(process) {
            return Ok(());
        }
        let restarts = record.restarts + u32::from(record.process.is_some());
        tracing::info!(service = self.profile.name, pid = process.pid, restarts, "the kubelet has started it");
        self.note(Record { process: Some(process), restarts, ..record })
    }

    /// Whether the kubelet will not start it again by itself.
    fn needs_another(&self, record: &Record) -> bool {
        let ended = record.process.is_some();
        (record.first && ended) || !self.manifest_file(&record.launch).exists()
    }

    async fn bring_back(&self, record: Record, gate: &Gate) {
        let first_args = self.first_args.lock().expect("no holder panics").clone();
        let launch = Launch { first_args, ..record.launch };
        let back = async {
            gate(launch.clone()).await?;
            self.put(launch.clone(), record.restarts + 1).await
        };
        if let Err(error) = back.await {
            let how = format!("not started: {}", error.in_full());
            tracing::warn!(how, "the pod could not be brought back");
            let exit = Exit { at: Timestamp::now(), how, last_words: String::new() };
            *self.trouble.lock().expect("no holder panics") = Some(exit);
        }
    }

    fn look(&self, now: Timestamp) -> ServiceState {
        let Some(record) = self.record() else { return ServiceState::Stopped };
        let restarts = record.restarts;
        if let Some(process) = self.process() {
            let digest = if self.is_as_written(&record, process) { record.launch.digest } else { EDITED.to_owned() };
            return ServiceState::Running { since: started(process.start_ticks, now), digest, restarts };
        }
        if let Some(last_exit) = self.trouble.lock().expect("no holder panics").clone() {
            return ServiceState::BackingOff { restarts, last_exit };
        }
        let since = record.written;
        let has_data = self.has_data();
        let patience = match (record.first, has_data) {
            (true, false) => FETCHING,
            (_, true) => COMING,
            // The gate is closed.
            (false, false) => SignedDuration::ZERO,
        };
        if record.process.is_none() && now.duration_since(since) < patience {
            return ServiceState::Running { since: now, digest: record.launch.digest, restarts };
        }
        let last_exit = match record.process {
            _ if !record.first && !has_data => {
                let how = format!("its data is missing from {}, so it is not started", self.profile.data.display());
                Exit { at: now, how, last_words: String::new() }
            }
            Some(_) => {
                let how = String::from("it exited, and the kubelet has not started it again yet");
                Exit { at: now, how, last_words: (self.profile.last_words)(&self.profile.log) }
            }
            None => {
                let at = since.strftime("%Y-%m-%d %H:%M:%S UTC");
                let how = format!("the kubelet has not started it since its manifest was written at {at}");
                Exit { at: since, how, last_words: String::from("see `journalctl -u kubelet` on the machine") }
            }
        };
        ServiceState::BackingOff { restarts, last_exit }
    }

    fn is_as_written(&self, record: &Record, process: ProcessId) -> bool {
        environment(process.pid, manifest::START).is_some_and(|start| start == record.start)
            && self.has_manifest(record)
    }
}

/// Ends the pod of a service below a root whose agent has ended, as switching off a machine would. The kubelet, which is outside of it, may
/// start a process once more before it notices that the manifest is gone.
pub(crate) fn end_left(layout: Layout, profile: Profile, patience: Duration) {
    let shared = StaticPod::new(layout, profile).shared;
    let Some(record) = shared.record() else { return };
    if let Err(error) = shared.take_away(&record) {
        tracing::warn!(error = error.in_full(), "the manifest of a pod is still there");
    }
    let began = Instant::now();
    while began.elapsed() < REMOVED {
        match shared.process().and_then(|found| Process::of(found.pid.unsigned_abs())) {
            Some(process) => process.end(patience),
            None => std::thread::sleep(SOON),
        }
    }
}

/// When a process started, from clock ticks since boot, of which Linux shows a hundred to a second on every architecture.
fn started(ticks: u64, now: Timestamp) -> Timestamp {
    let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let uptime: f64 = uptime.split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or_default();
    let age = uptime - ticks as f64 / 100.0;
    SignedDuration::try_from_secs_f64(age.max(0.0)).ok().and_then(|age| now.checked_sub(age).ok()).unwrap_or(now)
}

fn manifest_in(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.yaml"))
}

/// Without its directory there is no kubelet that would read it, and the file of somebody else is not replaced.
fn check_place(path: &Path, directory: &Path) -> Result<(), AgentError> {
    if !directory.is_dir() {
        return Err(AgentError::NoManifests { path: directory.to_owned() });
    }
    if is_foreign(path) { Err(AgentError::ForeignManifest { path: path.to_owned() }) } else { Ok(()) }
}

fn is_foreign(path: &Path) -> bool {
    match fs::read(path) {
        Ok(text) => !text.starts_with(HEADER.as_bytes()),
        Err(_) => path.symlink_metadata().is_ok(),
    }
}

/// Programs that are, or contain, a kubelet.
const KUBELETS: [&str; 5] = ["kubelet", "k3s", "k0s", "kubelite", "rke2"];

fn has_kubelet() -> bool {
    let runs = |pid: u32| {
        let called = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        KUBELETS.iter().any(|kubelet| called.starts_with(kubelet))
    };
    process::pids().any(runs)
}

/// Where a manifest belongs on this machine.
pub(crate) fn place(layout: &Layout, pod: &model::Pod) -> Option<PathBuf> {
    let below = Path::new(&pod.manifests).strip_prefix("/").ok()?;
    let plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    plain.then(|| layout.root().join(below))
}

/// What keeps this machine from running the service as a pod, found before anything that runs is stopped.
pub(crate) fn obstacle(layout: &Layout, pod: &model::Pod, name: &str) -> Option<Obstacle> {
    let or_else = "or set `etcd.run_as: service`";
    let Some(directory) = place(layout, pod) else {
        let why = format!("{:?} is not a path for manifests", pod.manifests);
        return Some(Obstacle { why, remedy: String::from("correct `etcd.static_pod.manifests`") });
    };
    let shown = directory.display();
    if !directory.is_dir() {
        let remedy = format!(
            "set `etcd.static_pod.manifests` to the `staticPodPath` of the machine's kubelet, or create {shown}; {or_else}"
        );
        return Some(Obstacle {
            why: format!("{shown}, from which a kubelet should start etcd, does not exist"),
            remedy,
        });
    }
    let path = manifest_in(&directory, name);
    if is_foreign(&path) {
        let why = format!("{} exists and was not written by quorate", path.display());
        return Some(Obstacle {
            why,
            remedy: format!("if nothing needs that pod any more, move the file away; {or_else}"),
        });
    }
    (!has_kubelet()).then(|| Obstacle {
        why: String::from("no kubelet runs on the machine, so nothing would start etcd"),
        remedy: format!("start the kubelet; {or_else}"),
    })
}

#[cfg(test)]
mod tests;
