//! Faults of machines, and how to undo them. A lasting fault is undone when its `Harm` is dropped, however the drill ends.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use quorate_core::model::MemberName;
use rustix::process::Signal;

use super::disk;
use super::machine::{Machine, copy_tree};
use quorate_agent::process::Process;
use quorate_control::home::Home;
use quorate_providers::{ProviderError, netns};

/// How long a controller is stopped for.
pub const LASTS: Duration = Duration::from_secs(5);
/// What is slow is paused for so long, and then runs for so long.
const PAUSED: Duration = Duration::from_millis(400);
const RUNS: Duration = Duration::from_millis(100);
/// Between the copy of a data directory and the day it comes back.
const AGES: Duration = Duration::from_secs(3);
/// How long it may take until etcd needs more room than it has set aside: megabytes, and on a busy machine clients write little.
const FILLING: Duration = Duration::from_secs(150);
/// As long as systemd usually waits for a service.
const SHUTTING_DOWN: Duration = Duration::from_secs(90);
/// Each way.
const DELAY: u32 = 100;

/// The fault of a machine or the controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// etcd, or PostgreSQL, gets SIGKILL.
    Kill,
    /// Patroni gets SIGKILL.
    KillPatroni,
    /// etcd gets SIGTERM.
    Terminate,
    /// All but the agent get SIGSTOP, and SIGCONT after a while.
    Stop,
    /// Patroni gets SIGSTOP, and SIGCONT after a while. PostgreSQL continues.
    StopPatroni,
    /// All but the agent are paused and resumed in turn for a while.
    Slow,
    /// Every process ends at once, and the machine is off.
    PowerCut,
    /// The server, or Patroni, gets SIGTERM, as at a reboot. When it has ended, the machine is off.
    Reboot,
    /// The power fails, and the data is lost.
    Wipe,
    /// The power fails, and the data is that of some seconds before when it comes back.
    OldData,
    /// The machine is gone permanently.
    Lose,
    /// A learner is added at an address without a server. No machine is affected.
    Ghost,
    /// Nothing more can be written to the disk for a while.
    FullDisk,
    /// The network of the machine is cut for a while.
    Partition,
    /// Packets to and from it take longer for a while.
    Delay,
}

#[derive(Debug, thiserror::Error)]
pub enum FaultError {
    #[error("{what} does not run on {member}")]
    NotRunning { member: MemberName, what: &'static str },
    #[error("the fault cannot be injected on {member}: {what}")]
    Io { member: MemberName, what: &'static str, source: io::Error },
    #[error("the disk of {member} was full for {} seconds, and nothing was written to it", FILLING.as_secs())]
    NotFelt { member: MemberName },
    #[error(transparent)]
    Provider(#[from] ProviderError),
}

/// Where faults strike.
#[derive(Clone, Copy)]
pub struct Victim<'a> {
    pub home: &'a Home,
    pub cluster: &'a str,
    pub machine: &'a Machine,
}

/// A fault that lasts until this is dropped.
#[must_use]
#[derive(Debug)]
pub struct Harm {
    undo: Vec<Undo>,
}

#[derive(Debug)]
enum Undo {
    Continue(Vec<Process>),
    KeepUp(tokio::task::JoinHandle<()>),
    Remove(PathBuf),
    Reconnect { home: Home, cluster: String, member: MemberName },
}

impl Drop for Harm {
    fn drop(&mut self) {
        for undo in self.undo.drain(..).rev() {
            match undo {
                Undo::Continue(processes) => processes.iter().for_each(|process| process.signal(Signal::CONT)),
                Undo::KeepUp(slowing) => slowing.abort(),
                Undo::Remove(path) if path.is_dir() => drop(fs::remove_dir_all(path)),
                Undo::Remove(path) => drop(fs::remove_file(path)),
                Undo::Reconnect { home, cluster, member } => drop(netns::heal(&home.machines(), &cluster, &member)),
            }
        }
    }
}

impl Fault {
    /// In words, for a mark on the timeline.
    pub fn text(self, on: &str, program: &str) -> String {
        match self {
            Fault::Kill => format!("{program} killed on {on}"),
            Fault::KillPatroni => format!("Patroni killed on {on}"),
            Fault::Terminate => format!("{program} terminated on {on}"),
            Fault::Stop => format!("{program} stopped on {on}"),
            Fault::StopPatroni => format!("Patroni stopped on {on}"),
            Fault::Slow => format!("{program} slowed down on {on}"),
            Fault::PowerCut => format!("power cut on {on}"),
            Fault::Reboot => format!("{on} shut down to reboot"),
            Fault::Wipe => format!("disk wiped on {on}"),
            Fault::OldData => format!("old data put back on {on}"),
            Fault::Lose => format!("{on} lost permanently"),
            Fault::Ghost => format!("a learner added at {on}, where nothing answers"),
            Fault::FullDisk => format!("disk full on {on}"),
            Fault::Partition => format!("{on} cut off"),
            Fault::Delay => format!("{on} delayed by {DELAY} ms each way"),
        }
    }

    /// What must happen before it can strike. The harm is to be kept until it has.
    pub async fn prepare(self, machine: &Machine) -> Result<Option<Harm>, FaultError> {
        if self != Fault::OldData {
            return Ok(None);
        }
        let member = || machine.member.clone();
        let service = machine.service();
        if service.is_empty() {
            return Err(FaultError::NotRunning { member: member(), what: machine.program() });
        }
        let copy = copy_of(machine);
        let harm = Harm { undo: vec![Undo::Remove(copy.clone())] };
        let failed = |source| FaultError::Io { member: member(), what: "its data cannot be copied", source };
        copy_while_stopped(machine, &copy, service).map_err(failed)?;
        tokio::time::sleep(AGES).await;
        Ok(Some(harm))
    }

    /// Strikes. A lasting fault continues until the value is dropped.
    pub async fn strike(self, place: Victim<'_>) -> Result<Harm, FaultError> {
        let Victim { home, cluster, machine } = place;
        let member = &machine.member;
        let failed = |what| move |source| FaultError::Io { member: member.clone(), what, source };
        let not_running = |what| move || FaultError::NotRunning { member: member.clone(), what };
        let server = || machine.server().ok_or_else(not_running(machine.program()));
        let mut harm = Harm { undo: Vec::new() };
        match self {
            Fault::Kill => server()?.signal(Signal::KILL),
            Fault::KillPatroni => machine.patroni().ok_or_else(not_running("Patroni"))?.signal(Signal::KILL),
            Fault::Terminate => server()?.signal(Signal::TERM),
            Fault::Stop => {
                server()?;
                harm.undo.push(Undo::Continue(stop_all(machine)));
            }
            Fault::StopPatroni => {
                let patroni = machine.patroni().ok_or_else(not_running("Patroni"))?;
                harm.undo.push(Undo::Continue(vec![patroni]));
                patroni.signal(Signal::STOP);
            }
            Fault::Slow => {
                server()?;
                // Undone in reverse: first nothing is paused any more, then all is resumed.
                harm.undo.push(Undo::Continue(machine.service()));
                harm.undo.push(Undo::KeepUp(tokio::spawn(slow_down(machine.clone()))));
            }
            Fault::PowerCut => machine.cut_power().map_err(failed("the power cannot be cut"))?,
            Fault::Reboot => {
                server()?;
                shut_down(machine).await.map_err(failed("it cannot be shut down"))?;
            }
            Fault::Wipe => {
                machine.cut_power().map_err(failed("the power cannot be cut"))?;
                machine.wipe().map_err(failed("its data cannot be removed"))?;
            }
            Fault::OldData => {
                let copy = copy_of(machine);
                machine.cut_power().map_err(failed("the power cannot be cut"))?;
                let put_back = || fs::remove_dir_all(machine.data()).and_then(|()| fs::rename(&copy, machine.data()));
                put_back().map_err(failed("its old data cannot be put back"))?;
            }
            Fault::Lose => machine.lose().map_err(failed("it cannot be removed"))?,
            // The stage adds it.
            Fault::Ghost => {}
            Fault::FullDisk => {
                let filler = filler_of(machine);
                harm.undo.push(Undo::Remove(filler.clone()));
                let process = server()?;
                fill(&filler).map_err(failed("its disk cannot be filled"))?;
                felt(process).await.ok_or_else(|| FaultError::NotFelt { member: member.clone() })?;
            }
            Fault::Partition | Fault::Delay => {
                // By the exact name: a successor that comes meanwhile is neither struck nor healed instead.
                let (home, cluster, member) = (home.clone(), cluster.to_owned(), machine.exact_name());
                match self {
                    Fault::Partition => netns::partition(&home.machines(), &cluster, &member)?,
                    _ => netns::delay(&home.machines(), &cluster, &member, DELAY)?,
                }
                harm.undo.push(Undo::Reconnect { home, cluster, member });
            }
        }
        Ok(harm)
    }

    /// Whether it lasts for a while, and can be undone.
    pub fn lasts(self) -> bool {
        matches!(
            self,
            Fault::Stop | Fault::StopPatroni | Fault::Slow | Fault::FullDisk | Fault::Partition | Fault::Delay
        )
    }

    /// Whether it is over at once, and leaves the cluster something to deal with.
    pub fn can_be_first(self) -> bool {
        use Fault::{Ghost, Lose, OldData, PowerCut, Reboot, Wipe};
        matches!(self, PowerCut | Reboot | Wipe | OldData | Lose | Ghost)
    }

    /// Whether the cluster comes back from it only by what is said in a command.
    pub fn must_be_first(self) -> bool {
        matches!(self, Fault::Lose | Fault::Ghost)
    }

    pub fn needs_netns(self) -> bool {
        matches!(self, Fault::Partition | Fault::Delay)
    }
}

/// Undoes what a drill left that was killed.
pub fn undo_leftovers(place: Victim<'_>) -> Result<(), FaultError> {
    let Victim { home, cluster, machine } = place;
    let member = machine.member.clone();
    let mut undo = vec![Undo::Remove(copy_of(machine)), Undo::Remove(filler_of(machine))];
    undo.push(Undo::Continue(machine.service()));
    undo.push(Undo::Reconnect { home: home.clone(), cluster: cluster.to_owned(), member: machine.exact_name() });
    drop(Harm { undo });
    disk::take_out(machine).map_err(|source| FaultError::Io {
        member,
        what: "its small disk cannot be taken out",
        source,
    })
}

fn filler_of(machine: &Machine) -> PathBuf {
    machine.disk().join("drill.filler")
}

fn copy_of(machine: &Machine) -> PathBuf {
    machine.directory().join("drill.old")
}

/// Nothing is written while all is stopped, so the copy is what a power cut would have left.
fn copy_while_stopped(machine: &Machine, copy: &std::path::Path, service: Vec<Process>) -> io::Result<()> {
    service.iter().for_each(|process| process.signal(Signal::STOP));
    let _continues = Harm { undo: vec![Undo::Continue(service)] };
    copy_tree(&machine.data(), copy)
}

/// Stops every process of the service, also those that others of them start meanwhile.
fn stop_all(machine: &Machine) -> Vec<Process> {
    let mut stopped: Vec<Process> = Vec::new();
    loop {
        let running: Vec<Process> = machine.service().into_iter().filter(|found| !stopped.contains(found)).collect();
        if running.is_empty() {
            return stopped;
        }
        running.iter().for_each(|process| process.signal(Signal::STOP));
        stopped.extend(running);
    }
}

/// The agent ends first, because it would start Patroni again. What has not ended in time is killed.
async fn shut_down(machine: &Machine) -> io::Result<()> {
    machine.end_agent();
    if let Some(first) = machine.patroni().or_else(|| machine.server()) {
        first.signal(Signal::TERM);
    }
    let deadline = Instant::now() + SHUTTING_DOWN;
    while (machine.patroni().is_some() || machine.server().is_some()) && Instant::now() < deadline {
        // A controller that is at work may have started it again.
        machine.end_agent();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    machine.cut_power()
}

async fn slow_down(machine: Machine) {
    loop {
        let paused = Harm { undo: vec![Undo::Continue(stop_all(&machine))] };
        tokio::time::sleep(PAUSED).await;
        drop(paused);
        tokio::time::sleep(RUNS).await;
    }
}

/// Waits until the server could not write any more, and has ended.
async fn felt(server: Process) -> Option<()> {
    let deadline = Instant::now() + FILLING;
    while server.is_alive() {
        if Instant::now() > deadline {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Some(())
}

/// Takes what room is left.
fn fill(path: &std::path::Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    let mut block = vec![0; 1 << 20];
    loop {
        match file.write(&block) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::StorageFull && block.len() > 4096 => block.truncate(block.len() / 2),
            Err(e) if e.kind() == io::ErrorKind::StorageFull => return Ok(()),
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_left_by_a_fault_are_removed_when_its_harm_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let (file, tree) = (directory.path().join("filler"), directory.path().join("old"));
        fs::write(&file, "x").unwrap();
        fs::create_dir_all(tree.join("member")).unwrap();
        drop(Harm { undo: vec![Undo::Remove(file.clone()), Undo::Remove(tree.clone())] });
        assert!(!file.exists() && !tree.exists());
    }

    #[test]
    fn a_stopped_process_continues_when_the_harm_is_dropped() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let state = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            stat.rsplit_once(") ").unwrap().1.chars().next()
        };
        let until = |wanted: &str| {
            (0..500).any(|_| {
                std::thread::sleep(Duration::from_millis(5));
                state().is_some_and(|s| wanted.contains(s))
            })
        };
        let process = Process::of(child.id()).unwrap();
        process.signal(Signal::STOP);
        assert!(until("T"));
        drop(Harm { undo: vec![Undo::Continue(vec![process])] });
        assert!(until("SR"));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
