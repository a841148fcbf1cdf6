//! The agent: one process on each machine, and the only one that acts there. It applies the configuration, runs services,
//! reports facts, and obeys only its controller, in order of the fencing numbers that orders carry.
//!
//! It needs no signal handler: whenever it is killed, etcd continues in a separate process group, the agent's state on
//! disk is consistent, and the next agent continues from there.

mod agent;
pub mod api;
pub mod boot;
mod certificates;
pub mod channel;
pub mod client;
mod converge;
pub mod dial;
mod enrolment;
mod error;
mod facts;
mod files;
pub mod follow;
mod health;
mod host;
mod http;
pub mod kinds;
mod layout;
mod logs;
mod orders;
mod plain_services;
mod preflight;
pub mod process;
pub mod rates;
mod reach;
mod reboot;
pub mod refused;
mod rotate;
mod server;
mod services;
mod stamp;
mod state;
mod tls;
pub mod unauthenticated;
mod units;
pub mod upgrade;
pub mod upload;
mod x509;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate_core::model::{AGENT_PORT, FailedUpgrade, HEALTH_PORT, NodeConfig};
use rustix::fs::{FlockOperation, flock};

pub use error::AgentError;
pub use files::{one_private_directory, private_directory, write_durably};

use crate::agent::Agent;
use crate::kinds::etcd::{self, Etcd};
use crate::kinds::postgres::Postgres;
use crate::layout::Layout;
use crate::reboot::Reboots;
use crate::services::Services;
use crate::upgrade::{Trial, Upgrades};

/// Locked by the agent for as long as it runs, below its root; holds its process id.
pub const LOCK_FILE: &str = "run/agent.lock";
const LOCK_ATTEMPTS: usize = 100;
/// How long the address of a machine may take to appear.
const ANNOUNCING: Duration = Duration::from_secs(60);
const ROOT_WATCH: Duration = Duration::from_secs(2);
const SHUTDOWN: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct Options {
    /// The directory of all its files: `/`, or a directory under the local provider.
    pub root: PathBuf,
    /// The seed that the provider wrote when it created the machine. Not read once the agent is enrolled.
    pub seed: PathBuf,
    /// The directory of etcd's programs, which agents may share; by default below the root.
    pub cache: Option<PathBuf>,
    pub supervisor: Supervisor,
    /// A virtio-serial port to answer on as well.
    pub channel: Option<PathBuf>,
    /// Whether this program is tried in place of an older one, which stays where it is until a controller has spoken to this one.
    pub on_trial: bool,
}

/// Who keeps services running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Supervisor {
    Child,
    Systemd,
}

/// Runs the agent on this thread, until it fails, is killed, or has been replaced by a newer program.
pub fn run(options: &Options) -> Result<(), AgentError> {
    let mut failed = None;
    loop {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AgentError::Runtime)?;
        let ended = runtime.block_on(serve(options.clone(), failed));
        // The next program needs the ports and the lock of this one.
        runtime.shutdown_timeout(SHUTDOWN);
        let Some(trial) = ended? else { return Ok(()) };
        match trial.guard(options, upgrade::TRIAL) {
            Ok(()) => return Ok(()),
            Err(why) => failed = Some(why),
        }
    }
}

/// Serves until the machine is gone, or there is a newer program to be tried.
pub async fn serve(options: Options, failed: Option<(u64, FailedUpgrade)>) -> Result<Option<Trial>, AgentError> {
    let layout = Layout::new(&options.root).map_err(AgentError::file("find", &options.root))?;
    let (state, seed) = state::open(&layout, &options.seed)?;
    let address = state.get().address;
    let (orders, health) = (SocketAddr::new(address, AGENT_PORT), SocketAddr::new(address, HEALTH_PORT));
    let (orders, health) = match options.supervisor {
        Supervisor::Child => (server::listen(orders).await?, server::listen(health).await?),
        Supervisor::Systemd => {
            tokio::spawn(reach::announce(address, ANNOUNCING));
            (server::listen_early(orders)?, server::listen_early(health)?)
        }
    };
    // Anyone who sees the lock held finds the ports open.
    let _lock = lock(&layout).await?;
    files::make_dir(&layout.state_dir(), 0o700)?;
    if options.on_trial {
        state.hold();
    } else {
        state.save()?;
    }
    let shown = Arc::new(tls::Shown::of(&state.get())?);
    let services = Services::new(layout.clone(), options.supervisor);
    let etcd = Etcd::new(&layout, services.with(etcd::profile(&layout)).await?);
    let agent = Arc::new(Agent {
        cache: options.cache.unwrap_or_else(|| layout.programs()),
        state,
        seed: Mutex::new(seed),
        shown,
        services,
        etcd,
        postgres: Postgres::default(),
        orders: tokio::sync::Mutex::new(()),
        under_way: Mutex::new(None),
        keeps_host: options.supervisor == Supervisor::Systemd,
        upgrades: Upgrades::new(options.on_trial, failed),
        reboots: Reboots::default(),
        layout,
    });
    if !options.on_trial
        && let Err(error) = upgrade::clear(&agent.layout)
    {
        tracing::warn!(error = error.in_full(), "what an interrupted upgrade left could not be removed");
    }
    agent.put_right().await;
    let watched = agent.layout.root().to_owned();
    tokio::select! {
        () = removed(watched, options.supervisor) => {
            tracing::warn!("the directory of this agent was removed; its services are stopped, and the agent ends");
            let stopped = agent.services.stop_all().await;
            agent.end_postgres_processes().await;
            stopped.map(|()| None)
        }
        trial = agent.upgrades.next_program() => Ok(Some(trial)),
        () = agent.upgrades.trial_is_over() => Err(AgentError::NoControllerCame),
        ended = server::serve(agent.clone(), orders) => ended.map(|()| None),
        Err(error) = server::serve_channel(agent.clone(), options.channel) => Err(error),
        () = health::serve(agent.clone(), health) => Ok(None),
        () = agent.keep_logs_small() => Ok(None),
    }
}

impl Agent {
    /// Whatever happened while no agent was here: files are as the state says, and services run if they should.
    async fn put_right(self: &Arc<Self>) {
        let config = self.state.get().node_config.as_ref().map(|in_place| NodeConfig::clone(&in_place.config));
        let files = match config {
            Some(config) => self.put_files(None, config).await,
            None => Ok(()),
        };
        // Whatever is wrong, the controller must be able to ask.
        for error in
            [files, self.make_missing_keys().await, self.put_certificates().await, self.put_patroni_config().await]
                .into_iter()
                .filter_map(Result::err)
        {
            tracing::error!(error = error.in_full(), "files could not be put right");
        }
        // The state must say so too, and a program on trial writes none.
        if !self.upgrades.is_on_trial()
            && let Err(error) = self.finish_recreation().await
        {
            tracing::error!(error = error.in_full(), "the data of a new bootstrap could not be put in place");
        }
        if let Err(error) = self.clear_uploads().await {
            tracing::warn!(error = error.in_full(), "what an upload left could not be removed");
        }
        if self.keeps_host {
            self.allow_services();
        }
        kinds::postgres::remove_remnants(&self.layout);
        self.resume_etcd().await;
        self.resume_postgres().await;
        self.resume_services().await;
        self.resume_haproxy().await;
        self.keep_pgbouncer().await;
        self.keep_front().await;
        // The agent before may have ended between writing a configuration and saying so.
        self.reload_postgres().await;
    }
}

/// Returns when the root is gone. Nobody could find the agent and its etcd again, and what they do is of no use to anybody. A machine has no
/// other root.
async fn removed(root: PathBuf, supervisor: Supervisor) {
    let is_gone = || std::fs::metadata(&root).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    while supervisor == Supervisor::Systemd || !is_gone() {
        tokio::time::sleep(ROOT_WATCH).await;
    }
}

/// Two agents on one root would undo each other's work. Anyone who looks whether the lock is held, holds it for an instant
/// itself, so one refusal is not the end.
async fn lock(layout: &Layout) -> Result<File, AgentError> {
    let path = layout.lock_file();
    files::make_dir(path.parent().unwrap_or(layout.root()), 0o755)?;
    let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(files::PRIVATE).open(&path);
    let mut file = opened.map_err(AgentError::file("open", &path))?;
    for _ in 0..LOCK_ATTEMPTS {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let written = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
                return written.map(|()| file).map_err(AgentError::file("write", path));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => tokio::time::sleep(Duration::from_millis(2)).await,
            Err(error) => return Err(AgentError::file("lock", path)(error.into())),
        }
    }
    Err(AgentError::AlreadyRunning { path: layout.root().to_owned() })
}

/// Ends what a kubelet runs for the machine with this root, whose agent has ended.
pub fn end_pods(root: &Path, patience: Duration) {
    if let Ok(layout) = Layout::new(root) {
        services::static_pod::end_left(layout.clone(), etcd::profile(&layout), patience);
    }
}

/// Frees the process from the terminal and session that it was started from. It must not lead a process group already.
pub fn detach() -> io::Result<()> {
    rustix::process::setsid()?;
    Ok(())
}

/// Runs work that may wait for a disk, without keeping others waiting.
pub(crate) async fn blocking<T: Send + 'static, E: Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
