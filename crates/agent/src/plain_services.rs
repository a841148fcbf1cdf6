//! Services that only need to be kept running. They have no data to check before they start, and start with the agent if they should run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use quorate_core::model::{Exit, ProgramService, Runs, ServiceConfig, ServiceState};

use crate::agent::Agent;
use crate::api::{Refusal, ServiceCommand};
use crate::kinds::{etcd, postgres};
use crate::layout::Layout;
use crate::services::{Gate, Launch, PATIENT, Profile, child};
use crate::{AgentError, logs};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Enough for the last line of a log.
const LAST_BYTES: u64 = 4 << 10;

impl Agent {
    pub(crate) async fn act_on_service(self: &Arc<Self>, name: &str, command: ServiceCommand) -> Result<(), Refusal> {
        match command {
            ServiceCommand::Start => self.start_service(name).await,
            ServiceCommand::Restart => self.restart_service(name).await,
            ServiceCommand::Stop => self.stop_service(name).await,
        }
    }

    pub(crate) async fn start_service(&self, name: &str) -> Result<(), Refusal> {
        let (service, launch) = self.plain_service(name).await?;
        self.state.update(|state| _ = state.services.insert(name.to_owned())).await?;
        match self.services.with(self.plain_profile(&service)).await?.look().await {
            ServiceState::Running { digest, .. } if digest == launch.digest => Ok(()),
            ServiceState::Running { .. } => Err(refuse(format!("{name} runs already, with other inputs"))),
            ServiceState::Unknown { why } => Err(refuse(format!("cannot tell whether {name} is running: {why}"))),
            ServiceState::Stopped | ServiceState::BackingOff { .. } => self.launch_again(&service, launch).await,
        }
    }

    pub(crate) async fn restart_service(&self, name: &str) -> Result<(), Refusal> {
        let (service, launch) = self.plain_service(name).await?;
        if !self.state.get().services.contains(name) {
            return Err(refuse(format!("{name} is not meant to run; order a start")));
        }
        match self.services.with(self.plain_profile(&service)).await?.look().await {
            // The order has come before, or late.
            ServiceState::Running { digest, .. } if digest == launch.digest => Ok(()),
            ServiceState::Unknown { why } => Err(refuse(format!("cannot tell whether {name} is running: {why}"))),
            _ => self.launch_again(&service, launch).await,
        }
    }

    /// Its user may be another now, so nothing is kept of how it ran before.
    async fn launch_again(&self, service: &ServiceConfig, launch: Launch) -> Result<(), Refusal> {
        self.end_service(&service.name).await?;
        let profile = self.plain_profile(service);
        Ok(self.services.with(profile).await?.start(launch, no_gate()).await?)
    }

    async fn stop_service(&self, name: &str) -> Result<(), Refusal> {
        let (service, _) = self.plain_service(name).await?;
        self.state.update(|state| _ = state.services.remove(name)).await?;
        self.services.with(self.plain_profile(&service)).await?;
        Ok(self.end_service(name).await?)
    }

    async fn end_service(&self, name: &str) -> Result<(), AgentError> {
        if let Some(service) = self.services.named(name) {
            service.stop(PATIENT).await?;
        }
        self.services.forget(name);
        Ok(())
    }

    /// Stops what the config in place no longer has.
    pub(crate) async fn stop_unlisted(&self) -> Result<(), AgentError> {
        let state = self.state.get();
        let listed = |name: &str| {
            let service = state.node_config.as_ref().and_then(|in_place| in_place.config.service(name));
            service.is_some_and(|service| is_plain(&service.runs))
        };
        for name in state.services.iter().filter(|name| !listed(name)) {
            // Who it ran as is not known any more, and does not matter to its end.
            self.services.with(profile(&self.layout, name, "root")).await?;
            self.end_service(name).await?;
            self.state.update(|state| _ = state.services.remove(name)).await?;
        }
        Ok(())
    }

    /// Called once, when the agent starts: takes over what runs, and starts what should.
    pub(crate) async fn resume_services(self: &Arc<Self>) {
        if let Err(error) = self.stop_unlisted().await {
            tracing::error!(error = error.in_full(), "a service that is not wanted any more was not stopped");
        }
        for name in self.state.get().services.clone() {
            if self.try_to_resume_service(&name).await.is_err() {
                let agent = self.clone();
                tokio::spawn(async move { agent.resume_service(&name).await });
            }
        }
    }

    /// What is in the way may go away by itself.
    async fn resume_service(&self, name: &str) {
        let mut pause = FIRST_PAUSE;
        loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            let _no_order = self.orders.lock().await;
            if !self.state.get().services.contains(name) || self.try_to_resume_service(name).await.is_ok() {
                return;
            }
        }
    }

    async fn try_to_resume_service(&self, name: &str) -> Result<(), ()> {
        let resumed = async {
            let (service, launch) = self.plain_service(name).await.map_err(|refusal| refusal.to_string())?;
            let kept = self.services.with(self.plain_profile(&service)).await.map_err(|error| error.in_full())?;
            let is_up = matches!(kept.look().await, ServiceState::Running { .. } | ServiceState::BackingOff { .. });
            if is_up || kept.adopt(no_gate()).await {
                return Ok(());
            }
            kept.start(launch, no_gate()).await.map_err(|error| error.in_full())
        };
        let failed = resumed.await.err();
        if let Some(why) = &failed {
            tracing::error!(service = name, why, "the service is not started");
        }
        let is_up = failed.is_none();
        self.services.note_failure(name, failed);
        if is_up { Ok(()) } else { Err(()) }
    }

    /// By name, those of the config in place.
    pub(crate) async fn service_facts(&self) -> BTreeMap<String, ServiceState> {
        let state = self.state.get();
        let mut facts = BTreeMap::new();
        for service in state.node_config.iter().flat_map(|in_place| &in_place.config.services) {
            if !is_plain(&service.runs) {
                continue;
            }
            let seen = match (self.services.failure(&service.name), self.services.named(&service.name)) {
                (Some(how), _) => {
                    let last_exit = Exit { at: Timestamp::now(), how, last_words: String::new() };
                    ServiceState::BackingOff { restarts: 0, last_exit }
                }
                (None, Some(kept)) if matches!(service.runs, Runs::Haproxy(_)) => self.look_at_haproxy(&*kept).await,
                (None, Some(kept)) if matches!(service.runs, Runs::Pgbouncer(_)) => {
                    self.look_at_pgbouncer(&*kept).await
                }
                (None, Some(kept)) if matches!(service.runs, Runs::Front(_)) => self.look_at_front(&*kept).await,
                (None, Some(kept)) => kept.look().await,
                (None, None) => ServiceState::Stopped,
            };
            facts.insert(service.name.clone(), seen);
        }
        facts
    }

    /// The logs of all services that this machine has.
    pub(crate) fn service_logs(&self) -> Vec<PathBuf> {
        let state = self.state.get();
        let others = state.node_config.iter().flat_map(|in_place| &in_place.config.services);
        let others = others.map(|service| service.name.as_str()).filter(|name| *name != etcd::SERVICE);
        [etcd::SERVICE].into_iter().chain(others).map(|name| self.layout.service_log(name)).collect()
    }

    pub(crate) fn service_log(&self, name: &str) -> Result<PathBuf, Refusal> {
        let path = self.layout.service_log(name);
        let unknown = || refuse(format!("this machine has no service {name:?}"));
        self.service_logs().contains(&path).then_some(path).ok_or_else(unknown)
    }

    /// A service of the config in place, and how it is to be started.
    async fn plain_service(&self, name: &str) -> Result<(ServiceConfig, Launch), Refusal> {
        let state = self.state.get();
        let in_place =
            state.node_config.as_ref().ok_or_else(|| refuse(String::from("there is no configuration yet")))?;
        let service = in_place.config.service(name);
        let service = service.ok_or_else(|| refuse(format!("the configuration has no service {name:?}")))?;
        let ProgramService { path, args, env } = match &service.runs {
            Runs::Program(program) => program,
            Runs::Haproxy(haproxy) => &self.haproxy_program(haproxy, state.search.as_deref())?,
            Runs::Pgbouncer(pgbouncer) => &self.pgbouncer_program(pgbouncer, state.search.as_deref()).await?,
            Runs::Front(front) => &self.front_program(front)?,
            Runs::Etcd(_) | Runs::Patroni(_) => {
                return Err(refuse(format!("{name} has its own orders for starting and stopping")));
            }
        };
        let fill_in = |text: &String| self.layout.fill_in(text, state.address);
        let launch = Launch {
            program: fill_in(path).into(),
            args: args.iter().map(fill_in).collect(),
            first_args: Vec::new(),
            env: env.iter().map(|(name, value)| (name.clone(), fill_in(value))).collect(),
            digest: in_place.service_digest(name),
            version: None,
            pod: None,
        };
        Ok((service.clone(), launch))
    }

    pub(crate) fn plain_profile(&self, service: &ServiceConfig) -> Profile {
        profile(&self.layout, &service.name, &service.user)
    }
}

fn profile(layout: &Layout, name: &str, user: &str) -> Profile {
    let (here, own) = (layout.clone(), name.to_owned());
    Profile {
        name: name.to_owned(),
        // Units of the system have names without this.
        unit: format!("quorate-{name}.service"),
        user: user.to_owned(),
        data: layout.service_data(name),
        log: layout.service_log(name),
        first_start: None,
        variables: &[],
        may_be_pod: false,
        settings: match name {
            postgres::PGBOUNCER => postgres::PGBOUNCER_SETTINGS,
            etcd::FRONT => etcd::FRONT_SETTINGS,
            _ => "",
        },
        find_stray: Arc::new(move || child::find_by_mark(&here, &own)),
        last_words: if name == postgres::HAPROXY { postgres::haproxy_complaint } else { last_line },
    }
}

/// Whether it has no orders of a kind.
fn is_plain(runs: &Runs) -> bool {
    matches!(runs, Runs::Program(_) | Runs::Haproxy(_) | Runs::Pgbouncer(_) | Runs::Front(_))
}

fn no_gate() -> Gate {
    Arc::new(|_| Box::pin(async { Ok(()) }))
}

fn last_line(log: &Path) -> String {
    logs::last_bytes(log, LAST_BYTES).lines().next_back().unwrap_or_default().to_owned()
}

fn refuse(why: String) -> Refusal {
    Refusal::Failed { why }
}
