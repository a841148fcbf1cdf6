//! The local provider: a machine is a directory, an agent, and a separate address: in 127.0.0.0/8, or, under
//! `network: netns`, in a network namespace that is made when the machine is switched on and goes when it is off.
//!
//! ```text
//! machines/CLUSTER/MACHINE/
//!   machine.json     the mark: whose machine this is, and its address
//!   seed.json        what a cloud would hand over as user data
//!   agent.log
//!   root/            the machine's own files; the agent writes nowhere else
//! machines/CLUSTER/.MEMBER.INCARNATION.kept/
//!                    what is left of a machine that went: its data, for the member's next one
//! ```
//! A machine runs while its agent holds its lock. To switch it off is to end every process that
//! was started in it, as pulling a plug would, only more gently.

mod address;
mod line;
pub mod mark;
pub mod netns;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use quorate_agent::api::LogOf;
use quorate_agent::upgrade::kept_program;
use quorate_core::model::{
    CLIENT_PORT, FIRST_UPGRADABLE, Ledger, MachineId, MachineSeen, MemberName, PROTOCOL, PowerState,
};
use quorate_core::providers::local::{KEPT_DATA, LocalSettings, Network};
use serde::Serialize;

use crate::{Data, Dial, Directories, Machines, NewMachine, Provider, ProviderError, last_lines};
use mark::{DATA, DATA_DIRECTORY, MARK_FILE, MARK_VARIABLE, Mark, marked, processes, read_mark};
use quorate_agent::{one_private_directory, private_directory};
use quorate_core::kinds::postgres::desire::CONFIG_FILE as PATRONI_CONFIG;

/// Set for every agent: the protocol of the program that started it. One without it is older than this.
const LEVEL_VARIABLE: &str = "QUORATE_AGENT_LEVEL";
/// The prefixes of variables that give access to a backup store or a ledger.
const CONTROLLERS: [&str; 2] = ["AWS_", "QUORATE_KEY"];
/// How long a new agent may take to start.
const AGENT_PATIENCE: Duration = Duration::from_secs(10);
/// How long etcd may take to end when its machine is switched off. A leader tries to hand over, which takes seconds and
/// leads nowhere when all are stopped; what etcd has acknowledged is on disk in any case.
const STOP_PATIENCE: Duration = Duration::from_secs(3);
/// How long Patroni may take: PostgreSQL writes all that is in memory before it ends.
const PATRONI_PATIENCE: Duration = Duration::from_secs(60);

/// How the names of hidden directories end: of machines that are being made, and of those that are being removed.
const DRAFTS: &str = ".new";
const GONE: &str = ".gone";
/// And of data that outlives its machine.
const KEPT: &str = ".kept";

/// How much of a log is shown when there is nothing else to show.
const LAST_LINES: usize = 20;

#[derive(Debug)]
pub struct Local {
    machines: PathBuf,
    programs: PathBuf,
    cluster: String,
    cluster_id: String,
    /// The directory of new machines. Existing ones are where their mark says.
    network: Network,
    range: netns::Range,
    /// The cluster whose network the machines of this one must reach.
    dcs: Option<String>,
}

impl Local {
    pub fn new(directories: &Directories, ledger: &Ledger, settings: &LocalSettings) -> Self {
        Local {
            machines: directories.machines.clone(),
            programs: directories.programs.clone(),
            cluster: ledger.spec.name.to_string(),
            cluster_id: ledger.cluster_id.clone(),
            network: settings.network,
            range: netns::Range::new(&ledger.spec, &ledger.cluster_id),
            dcs: ledger.spec.postgres.as_ref().and_then(|postgres| Some(postgres.dcs.cluster.as_ref()?.to_string())),
        }
    }

    /// The id of the cluster whose network the machines of this one are in: where they are, or else where they must be.
    fn network_id(&self) -> Result<String, ProviderError> {
        let ours = self.marked()?.into_iter().map(|(_, mark)| mark).find(|mark| mark.cluster_id == self.cluster_id);
        if let Some(mark) = ours {
            return Ok(mark.network_id().to_owned());
        }
        let neighbours = match &self.dcs {
            Some(dcs) => marked(&self.machines, dcs)?,
            None => Vec::new(),
        };
        let isolated = neighbours.iter().find(|(_, mark)| mark.network() == Network::Netns);
        Ok(isolated.map_or_else(|| self.cluster_id.clone(), |(_, mark)| mark.network_id().to_owned()))
    }

    /// Every machine of this cluster's name, with its mark.
    fn marked(&self) -> Result<Vec<(PathBuf, Mark)>, ProviderError> {
        marked(&self.machines, &self.cluster)
    }

    fn find(&self, machine: &MachineId) -> Result<Option<(PathBuf, Mark)>, ProviderError> {
        // One of another cluster's may have the same name.
        let ours = |mark: &Mark| mark.cluster_id == self.cluster_id;
        let meant =
            |mark: &Mark| ours(mark) && mark.member == machine.member && mark.incarnation == machine.incarnation;
        Ok(self.marked()?.into_iter().find(|(_, mark)| meant(mark)))
    }

    /// Where one controller drafts machines. The next controller removes the place, and with it the chance that a
    /// controller which was stopped half-way finishes a machine when it wakes.
    fn drafts(&self, fence: u64) -> PathBuf {
        self.machines.join(&self.cluster).join(format!(".{fence}{DRAFTS}"))
    }

    /// The machine's directory, complete with mark and seed, appears all at once.
    fn lay_out(&self, new: &NewMachine<'_>) -> Result<PathBuf, ProviderError> {
        let directory = self.machines.join(&self.cluster).join(new.name);
        match read_mark(&directory)? {
            Some(mark) if mark.cluster_id == self.cluster_id => return Ok(directory),
            Some(mark) => return Err(ProviderError::NotOurs { path: directory, found: mark.cluster_id }),
            None if directory.exists() => {
                return Err(ProviderError::NotOurs { path: directory, found: String::from("nobody") });
            }
            None => {}
        }
        // Nothing else of this process chooses one before the machine is there.
        let network = self.network_id()?;
        let address = self.address(new, &network)?;
        let MachineId { member, incarnation } = &new.id;
        let draft = self.drafts(new.fence).join(new.name);
        remove(&draft)?;
        for path in [&draft, &draft.join("root")] {
            one_private_directory(path).map_err(failed("created", path))?;
        }
        let mark = Mark {
            cluster: self.cluster.clone(),
            cluster_id: self.cluster_id.clone(),
            member: member.clone(),
            incarnation: *incarnation,
            address,
            joins: Some(network).filter(|network| *network != self.cluster_id && self.network == Network::Netns),
        };
        write_private(&draft.join(MARK_FILE), &mark)?;
        write_private(&draft.join("seed.json"), &new.seed(&self.cluster, &self.cluster_id, address))?;
        // Of the machine before it, or of itself, should it have been made once already. What is older would take its member back in time.
        let incarnations = [*incarnation, incarnation.saturating_sub(1)];
        let mut kept = incarnations.map(|n| self.kept(member, n)).into_iter().filter(|k| k.exists());
        let kept = kept.next().filter(|_| new.data == Data::Stays);
        if let Some(kept) = &kept {
            link_data(&kept.join(DATA_DIRECTORY), &draft.join(DATA_DIRECTORY))?;
        }
        fs::rename(&draft, &directory).map_err(failed("created", &directory))?;
        // It is the machine's own from here on.
        kept.map_or(Ok(()), |kept| remove(&kept))?;
        Ok(directory)
    }

    /// The address of a new machine: the pinned one when it is free, else any that is.
    fn address(&self, new: &NewMachine<'_>, network: &str) -> Result<IpAddr, ProviderError> {
        let salt = format!("{}/{}/{}", self.cluster_id, new.id.member, new.id.incarnation);
        let mut known = Vec::new();
        for cluster in fs::read_dir(&self.machines).into_iter().flatten().flatten() {
            let marked = marked(&self.machines, &cluster.file_name().to_string_lossy())?;
            known.extend(marked.into_iter().map(|(_, mark)| mark));
        }
        let mut ours = known.iter().filter(|mark| mark.cluster_id == self.cluster_id);
        if ours.any(|mark| mark.network() != self.network) {
            return Err(ProviderError::OtherNetwork);
        }
        if self.network == Network::Netns {
            let there: Vec<Mark> = known.into_iter().filter(|mark| mark.network_id() == network).collect();
            let range = there.iter().find_map(|mark| netns::Range::of(mark.address)).unwrap_or(self.range);
            return range.choose(new.address, &salt, &there);
        }
        let Some(pinned) = new.address else {
            return address::choose(&salt, &known.into_iter().map(|mark| mark.address).collect::<Vec<_>>());
        };
        // A machine that is switched off keeps its address.
        if let Some(Mark { cluster, member, .. }) = known.into_iter().find(|mark| mark.address == pinned) {
            let by = Some(format!("{member} of cluster {cluster}"));
            return Err(ProviderError::AddressTaken { address: pinned, port: CLIENT_PORT, by });
        }
        address::check(pinned).map(|()| pinned)
    }

    fn kept(&self, member: &MemberName, incarnation: u64) -> PathBuf {
        self.machines.join(&self.cluster).join(format!(".{member}.{incarnation}{KEPT}"))
    }

    /// Data of machines before this one, which has it all, or was made to begin without it.
    fn remove_kept_before(&self, member: &MemberName, incarnation: u64) -> Result<(), ProviderError> {
        let beginning = format!("{member}.");
        let number = |name: &str| name.strip_prefix(&beginning)?.strip_suffix(KEPT)?.parse::<u64>().ok();
        self.sweep(|name| number(name).is_some_and(|n| n < incarnation))
    }

    /// Removes the hidden directories that these words fit, and that of the cluster if it is empty then.
    fn sweep(&self, doomed: impl Fn(&str) -> bool) -> Result<(), ProviderError> {
        let parent = self.machines.join(&self.cluster);
        for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.strip_prefix('.').is_some_and(&doomed) {
                bury(&entry.path())?;
            }
        }
        // Only an empty directory goes.
        let _ = fs::remove_dir(&parent);
        Ok(())
    }

    /// Data whose machine was made, by somebody who did not come to the end.
    fn remove_second_copies(&self) -> Result<(), ProviderError> {
        let all = self.marked()?.into_iter().map(|(_, mark)| mark);
        let mut ours = all.filter(|mark| mark.cluster_id == self.cluster_id);
        ours.try_for_each(|mark| self.remove_kept_before(&mark.member, mark.incarnation + 1))
    }

    /// Networks of machines that are off: switching them on or off was interrupted.
    fn remove_idle_networks(&self) -> Result<(), ProviderError> {
        for (directory, mark) in self.marked()? {
            let Some(place) = netns::Place::of(&mark).filter(netns::Place::exists) else { continue };
            if !is_running(&directory) && processes(&directory.join("root")).is_empty() {
                place.remove()?;
            }
        }
        Ok(())
    }

    async fn switch_on(&self, directory: &Path) -> Result<(), ProviderError> {
        if is_running(directory) {
            if !is_outdated(directory) {
                return Ok(());
            }
            // etcd runs on, and the next agent adopts it.
            let root = directory.join("root");
            let ended = tokio::task::spawn_blocking(move || end_agent(&root, STOP_PATIENCE));
            ended.await.expect("ending an agent does not panic");
        }
        let Some(mark) = read_mark(directory)? else { return Err(gone(directory)) };
        let Some(place) = netns::Place::of(&mark) else {
            return self.start_agent(directory, mark.member, |mut command| command.spawn()).await;
        };
        let started = match place.make() {
            Ok(()) => self.start_agent(directory, mark.member, |command| place.spawn(command)).await,
            Err(error) => Err(error),
        };
        // A controller that wakes up late may have made it again for a machine that is gone.
        if started.is_err() && !directory.exists() {
            place.remove()?;
        }
        started
    }

    async fn start_agent(
        &self,
        directory: &Path,
        member: MemberName,
        spawn: impl FnOnce(Command) -> io::Result<Child>,
    ) -> Result<(), ProviderError> {
        let log_path = directory.join("agent.log");
        let log = OpenOptions::new().create(true).append(true).mode(0o600).open(&log_path);
        let log = log.map_err(failed("opened", &log_path))?;
        let errors = log.try_clone().map_err(failed("opened", &log_path))?;
        let root = directory.join("root");
        // A machine that was upgraded has a program, and its state may be newer than this one.
        let program = match kept_program(&root) {
            Some(program) => program,
            None => std::env::current_exe().map_err(failed("found", Path::new("quorate")))?,
        };
        let mut command = Command::new(&program);
        command
            .arg("agent")
            .arg("--root")
            .arg(&root)
            .arg("--seed")
            .arg(directory.join("seed.json"))
            .arg("--cache")
            .arg(&self.programs)
            .env(MARK_VARIABLE, &root)
            .env(LEVEL_VARIABLE, PROTOCOL.to_string())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::from(log))
            .stderr(Stdio::from(errors));
        // Only the controller gets access to a backup store or a ledger.
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_controllers_alone(name)) {
            command.env_remove(name);
        }
        let mut agent = spawn(command).map_err(failed("started", &program))?;
        let deadline = Instant::now() + AGENT_PATIENCE;
        while !is_running(directory) {
            let ended = agent.try_wait().map_err(failed("watched", &program))?.is_some();
            if ended || Instant::now() >= deadline {
                return Err(ProviderError::AgentDied { member, last_words: last_lines(&log_path, 1) });
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}

#[async_trait(?Send)]
impl Provider for Local {
    async fn machines(&self) -> Result<Machines, ProviderError> {
        let seen = |(directory, mark): (PathBuf, Mark)| {
            let power = if is_running(&directory) { PowerState::On } else { PowerState::Off };
            let headless = power == PowerState::Off && !processes(&directory.join("root")).is_empty();
            let outdated = power == PowerState::On && is_outdated(&directory);
            let Mark { cluster_id, member, incarnation, address, .. } = mark;
            let (address, data) = (Some(address), Some(KEPT_DATA.to_owned()));
            (
                member,
                MachineSeen {
                    cluster_id,
                    incarnation,
                    power,
                    headless,
                    outdated,
                    address,
                    build: None,
                    data,
                    place: None,
                },
            )
        };
        Ok(Machines { found: self.marked()?.into_iter().map(seen).collect(), away: BTreeMap::new() })
    }

    fn log_file(&self, machine: &MachineId, of: &LogOf) -> Option<PathBuf> {
        let (directory, _) = self.find(machine).ok()??;
        Some(match of {
            LogOf::Agent => directory.join("agent.log"),
            LogOf::Service(name) => directory.join(format!("root/var/log/{name}.log")),
        })
    }

    fn dial(&self, _: &MachineId, machine: &MachineSeen) -> Dial {
        match machine.address.and_then(netns::Range::of) {
            // Where the marks cannot be read, nothing is found there either.
            Some(_) => Dial::Namespace(netns::hub(&self.network_id().unwrap_or_else(|_| machine.cluster_id.clone()))),
            None => Dial::Address,
        }
    }

    async fn admit(&self, fence: u64) -> Result<(), ProviderError> {
        if self.network == Network::Netns {
            netns::check()?;
        }
        let drafts = self.drafts(fence);
        private_directory(&drafts).map_err(failed("created", &drafts))?;
        let older =
            |name: &str| name.strip_suffix(DRAFTS).and_then(|n| n.parse::<u64>().ok()).is_some_and(|n| n < fence);
        // A partially removed machine still has its data and its keys.
        self.sweep(|name| name.ends_with(GONE) || older(name))?;
        self.remove_second_copies()?;
        self.remove_idle_networks()
    }

    async fn dismiss(&self, fence: u64) -> Result<(), ProviderError> {
        self.sweep(|name| name.strip_suffix(DRAFTS).is_some_and(|n| n == fence.to_string()))
    }

    async fn create(&self, new: &NewMachine<'_>) -> Result<(), ProviderError> {
        let directory = self.lay_out(new)?;
        self.remove_kept_before(&new.id.member, new.id.incarnation)?;
        self.switch_on(&directory).await
    }

    async fn start(&self, machine: &MachineId) -> Result<(), ProviderError> {
        match self.find(machine)? {
            Some((directory, _)) => self.switch_on(&directory).await,
            None => Err(ProviderError::NoSuchMachine { cluster: self.cluster.clone(), machine: machine.to_string() }),
        }
    }

    async fn stop(&self, machine: &MachineId) -> Result<(), ProviderError> {
        let Some((directory, mark)) = self.find(machine)? else { return Ok(()) };
        end_all(directory.join("root"), STOP_PATIENCE).await;
        netns::Place::of(&mark).map_or(Ok(()), |place| place.remove())
    }

    async fn destroy(&self, machine: &MachineId, data: Data) -> Result<(), ProviderError> {
        if let Some((directory, mark)) = self.find(machine)? {
            let patience = if data == Data::Stays { STOP_PATIENCE } else { Duration::ZERO };
            end_all(directory.join("root"), patience).await;
            let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // From one instant on it is no longer a machine, and the rest is a leftover.
            let left = match data {
                Data::Goes => directory.with_file_name(format!(".{name}{GONE}")),
                Data::Stays => self.kept(&machine.member, machine.incarnation),
            };
            bury(&left)?;
            fs::rename(&directory, &left).map_err(failed("removed", &directory))?;
            // An agent that somebody had just started; one that starts later finds no seed.
            end_all(directory.join("root"), Duration::ZERO).await;
            if data == Data::Stays {
                netns::Place::of(&mark).map_or(Ok(()), |place| place.remove())?;
                strip_to_data(&left)?;
            }
        }
        self.sweep(|name| name.ends_with(GONE))
    }

    async fn forget(&self) -> Result<(), ProviderError> {
        self.sweep(|name| [GONE, DRAFTS, KEPT].iter().any(|end| name.ends_with(end)))
    }

    async fn console(&self, machine: &MachineId) -> Result<String, ProviderError> {
        let Some((directory, _)) = self.find(machine)? else { return Ok(String::new()) };
        Ok(last_lines(&directory.join("agent.log"), LAST_LINES))
    }
}

/// The directory of a cluster's machines, if it has any.
pub(crate) fn machines_of(directories: &Directories, cluster: &str) -> Option<PathBuf> {
    Some(directories.machines.join(cluster)).filter(|directory| directory.exists())
}

/// Whether agents must not inherit this environment variable, because only the controller may have it.
pub fn is_controllers_alone(variable: &OsStr) -> bool {
    CONTROLLERS.iter().any(|beginning| variable.as_encoded_bytes().starts_with(beginning.as_bytes()))
}

async fn end_all(root: PathBuf, patience: Duration) {
    let ended = tokio::task::spawn_blocking(move || switch_off(&root, patience));
    ended.await.expect("switching off does not panic");
}

/// Ends the agent first, so that it does not start services again, then everything else in the machine.
fn switch_off(root: &Path, patience: Duration) {
    end_agent(root, patience);
    end_patroni(root, patience);
    quorate_agent::end_pods(root, patience);
    let rest: Vec<_> = processes(root).into_iter().map(|p| std::thread::spawn(move || p.end(patience))).collect();
    for thread in rest {
        let _ = thread.join();
    }
}

fn end_agent(root: &Path, patience: Duration) {
    for agent in processes(root).into_iter().filter(|p| p.is_called_with("agent")) {
        agent.end(patience);
    }
}

/// Patroni stops PostgreSQL in order, and takes its time. To PostgreSQL itself the same signal means to wait for all clients. Where nothing is
/// waited for, all are killed together.
fn end_patroni(root: &Path, patience: Duration) {
    let config = root.join(PATRONI_CONFIG);
    for patroni in processes(root).into_iter().filter(|p| !patience.is_zero() && p.is_called_with_last(&config)) {
        patroni.end(patience.max(PATRONI_PATIENCE));
    }
}

/// Whether the agent that holds the machine's lock is of a program that takes no other over its own port.
fn is_outdated(directory: &Path) -> bool {
    let holder = fs::read_to_string(directory.join("root").join(quorate_agent::LOCK_FILE)).unwrap_or_default();
    let Ok(environment) = fs::read(format!("/proc/{}/environ", holder.trim())) else { return false };
    let level = |entry: &[u8]| {
        let text = entry.strip_prefix(LEVEL_VARIABLE.as_bytes())?.strip_prefix(b"=")?;
        std::str::from_utf8(text).ok()?.parse::<u32>().ok()
    };
    // One that has just ended has none.
    !environment.is_empty() && environment.split(|b| *b == 0).find_map(level).unwrap_or(0) < FIRST_UPGRADABLE
}

/// Whether an agent holds the machine's lock.
fn is_running(directory: &Path) -> bool {
    use rustix::fs::{FlockOperation, flock};
    let Ok(file) = fs::File::open(directory.join("root").join(quorate_agent::LOCK_FILE)) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared).is_err()
}

fn write_private(path: &Path, value: &impl Serialize) -> Result<(), ProviderError> {
    let bytes = serde_json::to_vec_pretty(value).expect("plain data serializes");
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut f| f.write_all(&bytes)).map_err(failed("written", path))
}

/// Removes what is left of a machine. Its network goes first, as only the mark tells which it is.
fn bury(path: &Path) -> Result<(), ProviderError> {
    if let Some(place) = read_mark(path)?.and_then(|mark| netns::Place::of(&mark)) {
        place.remove()?;
    }
    remove(path)
}

fn remove(path: &Path) -> Result<(), ProviderError> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("removed", path)(e)),
        _ => Ok(()),
    }
}

/// Removes everything of a machine except its data; above all its keys.
fn strip_to_data(machine: &Path) -> Result<(), ProviderError> {
    let mut place = machine.to_owned();
    for part in Path::new(DATA_DIRECTORY).iter().map(|part| part.to_string_lossy().into_owned()) {
        remove_others(&place, &[&part])?;
        place.push(part);
    }
    remove_others(&place, &DATA)
}

fn remove_others(directory: &Path, stay: &[&str]) -> Result<(), ProviderError> {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if stay.iter().any(|name| entry.file_name() == **name) {
            continue;
        }
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_directory { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(failed("removed", &path))?;
    }
    Ok(())
}

/// Has a machine's data in a second place as well. They are links, so either may go at any moment and the other stays whole.
fn link_data(from: &Path, to: &Path) -> Result<(), ProviderError> {
    for name in DATA {
        if from.join(name).exists() {
            private_directory(to).map_err(failed("created", to))?;
            link_all(&from.join(name), &to.join(name)).map_err(failed("kept", &from.join(name)))?;
        }
    }
    Ok(())
}

fn link_all(from: &Path, to: &Path) -> io::Result<()> {
    if !from.is_dir() {
        return fs::hard_link(from, to);
    }
    one_private_directory(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        link_all(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

fn gone(directory: &Path) -> ProviderError {
    failed("found", directory)(io::ErrorKind::NotFound.into())
}

fn failed(what: &'static str, path: &Path) -> impl Fn(io::Error) -> ProviderError {
    let path = path.to_owned();
    move |source| ProviderError::Io { what, path: path.clone(), source }
}
