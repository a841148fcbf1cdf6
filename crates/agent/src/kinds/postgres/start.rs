//! Starts and stops Patroni, and with it PostgreSQL. Patroni starts only on the expected data; on an empty disk only to clone a running
//! cluster, on an explicit order.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use quorate_core::kinds::postgres::Role;
use quorate_core::model::{BinarySeen, CertificateUse, DataSeen, Exit, ServiceState, Stamp};

use super::{SERVICE, data, processes, tablespaces};
use crate::agent::Agent;
use crate::api::Refusal;
use crate::services::{Gate, Launch};
use crate::stamp::{check_own, describe};
use crate::state::State;
use crate::{AgentError, blocking};

/// For Patroni, which waits until PostgreSQL has written all that is in memory.
const STOPPING: Duration = Duration::from_secs(120);
/// For processes of a removed machine.
const REMOVED: Duration = Duration::from_secs(2);
/// The pause between attempts to start what should run.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl Agent {
    pub(super) async fn start_patroni(self: &Arc<Self>, expects: DataSeen, join: Option<Stamp>) -> Result<(), Refusal> {
        self.find_programs_again().await?;
        let state = self.state.get();
        let launch = self.patroni_launch(&state).await?;
        let found = self.look_at_postgres_data().await?;
        if self.patroni_runs_already(&launch, &found).await? {
            return Ok(());
        }
        if found != expects {
            return Err(Refusal::not_as_expected(describe(&expects), describe(&found)));
        }
        let (stamp, cloning) = match (found, join) {
            (DataSeen::Empty, Some(stamp)) => {
                check_own(&state, &stamp)?;
                let (layout, written, cloning) = (self.layout.clone(), stamp.clone(), state.postgres.cloning);
                blocking(move || {
                    processes::end_leftovers(&layout)?;
                    data::prepare_clone(&layout, &written, cloning)
                })
                .await?;
                (stamp, true)
            }
            (DataSeen::Empty, None) => {
                return Err(Refusal::failed("the data directory is empty, and the order does not say to clone"));
            }
            (DataSeen::Stamped(_), Some(_)) => return Err(Refusal::failed("a clone needs an empty data directory")),
            (DataSeen::Stamped(stamp), None) => (stamp, false),
            (DataSeen::Unstamped, _) => return Err(Refusal::failed("nothing says whose data this is")),
        };
        // Before Patroni may write: nobody must take this disk for a fresh one any more.
        let wanted = |state: &mut State| {
            (state.postgres.last_started, state.postgres.wanted_running) = (Some(stamp), true);
            state.postgres.cloning = cloning;
        };
        self.state.update(wanted).await?;
        Ok(self.bring_up_patroni(launch).await?)
    }

    /// An order whose answer was lost may be repeated.
    async fn patroni_runs_already(&self, launch: &Launch, found: &DataSeen) -> Result<bool, Refusal> {
        let patroni = self.patroni().await?;
        match patroni.look().await {
            ServiceState::Stopped => Ok(false),
            ServiceState::Running { digest, .. } if digest == launch.digest => Ok(true),
            ServiceState::Running { .. } => Err(Refusal::failed("Patroni runs already, with other inputs")),
            ServiceState::Unknown { why } => {
                Err(Refusal::failed(format!("cannot tell whether Patroni is running: {why}")))
            }
            // Its data was lost, so it is not started again by itself.
            ServiceState::BackingOff { .. } if *found == DataSeen::Empty => {
                patroni.stop(STOPPING).await?;
                Ok(false)
            }
            // It is being started as it is.
            ServiceState::BackingOff { .. } => Ok(true),
        }
    }

    /// Every start comes through here, except those of systemd or the supervisor.
    async fn bring_up_patroni(self: &Arc<Self>, launch: Launch) -> Result<(), AgentError> {
        self.put_patroni_config().await?;
        self.give_watchdog().await?;
        self.ready_for_patroni().await?;
        self.patroni().await?.start(launch, self.patroni_gate()).await?;
        self.postgres.not_started.lock().expect("no holder panics").take();
        Ok(())
    }

    fn patroni_gate(self: &Arc<Self>) -> Gate {
        let agent = self.clone();
        Arc::new(move |_| {
            let agent = agent.clone();
            Box::pin(async move { agent.ready_for_patroni().await })
        })
    }

    /// The conditions before any start of Patroni.
    async fn ready_for_patroni(&self) -> Result<(), AgentError> {
        let (layout, cloning) = (self.layout.clone(), self.state.get().postgres.cloning);
        blocking(move || {
            processes::end_leftovers(&layout)?;
            match data::look(&layout)? {
                DataSeen::Empty if cloning => {
                    data::clear_remnant(&layout, true)?;
                    tablespaces::clear_unused(&layout)
                }
                DataSeen::Empty => Err(AgentError::PostgresDataGone { path: layout.postgres_data() }),
                DataSeen::Stamped(_) | DataSeen::Unstamped => Ok(()),
            }
        })
        .await
    }

    pub(super) async fn restart_patroni(self: &Arc<Self>) -> Result<(), Refusal> {
        if !self.state.get().postgres.wanted_running {
            return Err(Refusal::failed("Patroni is not meant to run; order a start"));
        }
        self.find_programs_again().await?;
        let state = self.state.get();
        let launch = self.patroni_launch(&state).await?;
        self.check_postgres_data(&state).await.map_err(Refusal::failed)?;
        let patroni = self.patroni().await?;
        match patroni.look().await {
            // The order has come before, or late.
            ServiceState::Running { digest, .. } if digest == launch.digest => return Ok(()),
            ServiceState::Unknown { why } => {
                return Err(Refusal::failed(format!("cannot tell whether Patroni is running: {why}")));
            }
            ServiceState::Running { .. } | ServiceState::Stopped | ServiceState::BackingOff { .. } => {}
        }
        self.check_still_obeyed()?;
        self.end_patroni().await?;
        Ok(self.bring_up_patroni(launch).await?)
    }

    /// A Patroni that does not answer has not just promoted itself.
    pub(super) async fn stop_replica(&self) -> Result<(), Refusal> {
        match self.patroni_status().await {
            Ok(status) if status.role == Role::Primary => {
                Err(Refusal::not_as_expected(String::from("a replica"), String::from("the primary")))
            }
            _ => self.stop_patroni().await,
        }
    }

    pub(super) async fn stop_patroni(&self) -> Result<(), Refusal> {
        self.state.update(|state| state.postgres.wanted_running = false).await?;
        self.postgres.not_started.lock().expect("no holder panics").take();
        Ok(self.end_patroni().await?)
    }

    /// Patroni stops PostgreSQL before it ends. One that was killed has not.
    async fn end_patroni(&self) -> Result<(), AgentError> {
        self.patroni().await?.stop(STOPPING).await?;
        let layout = self.layout.clone();
        blocking(move || {
            processes::end_postmaster(&layout);
            processes::end_leftovers(&layout)
        })
        .await
    }

    /// Of a machine that was removed. Its data is gone, so nothing is waited for.
    pub(crate) async fn end_postgres_processes(&self) {
        let layout = self.layout.clone();
        let ended = tokio::task::spawn_blocking(move || {
            processes::marked(&layout).into_iter().for_each(|process| process.end(REMOVED));
        });
        let _ = ended.await;
    }

    /// Called once, when the agent starts: finds the Patroni of an earlier agent, or brings back what should run. What is in the way may go
    /// away by itself: it is tried again, after pauses that grow.
    pub(crate) async fn resume_postgres(self: &Arc<Self>) {
        if !self.has_patroni() {
            return;
        }
        let Err(why) = self.try_to_resume_patroni().await else { return };
        self.note_patroni_not_started(why);
        let agent = self.clone();
        tokio::spawn(async move {
            let mut pause = FIRST_PAUSE;
            while agent.patroni_is_not_started() {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                let _no_order = agent.orders.lock().await;
                if !agent.patroni_is_not_started() {
                    return;
                }
                match agent.try_to_resume_patroni().await {
                    Ok(()) => *agent.postgres.not_started.lock().expect("no holder panics") = None,
                    Err(why) => agent.note_patroni_not_started(why),
                }
            }
        });
    }

    fn patroni_is_not_started(&self) -> bool {
        self.postgres.not_started.lock().expect("no holder panics").is_some()
    }

    fn note_patroni_not_started(&self, why: String) {
        tracing::error!(why, "Patroni is not started");
        let exit = Exit { at: Timestamp::now(), how: format!("not started: {why}"), last_words: String::new() };
        *self.postgres.not_started.lock().expect("no holder panics") = Some(exit);
    }

    async fn try_to_resume_patroni(self: &Arc<Self>) -> Result<(), String> {
        let in_full = |error: AgentError| error.in_full();
        let patroni = self.patroni().await.map_err(in_full)?;
        if !self.state.get().postgres.wanted_running {
            // The agent may have ended before Patroni did.
            return self.end_patroni().await.map_err(in_full);
        }
        if patroni.adopt(self.patroni_gate()).await {
            return Ok(());
        }
        if let ServiceState::Unknown { why } = patroni.look().await {
            return Err(format!("cannot tell whether it is running: {why}"));
        }
        self.find_programs_again().await.map_err(in_full)?;
        let state = self.state.get();
        let launch = self.patroni_launch(&state).await.map_err(|refusal| refusal.to_string())?;
        self.check_postgres_data(&state).await?;
        self.bring_up_patroni(launch).await.map_err(in_full)
    }

    /// The data's stamp must be the one that Patroni was last started with. If data was lost, a clone must be ordered.
    async fn check_postgres_data(&self, state: &State) -> Result<(), String> {
        let found = self.look_at_postgres_data().await.map_err(|error| error.in_full())?;
        match (&found, &state.postgres.last_started) {
            (DataSeen::Stamped(stamp), Some(last)) if stamp == last => Ok(()),
            (DataSeen::Empty, Some(_)) if state.postgres.cloning => Ok(()),
            (_, Some(last)) => {
                Err(format!("expected {}, found {}", describe(&DataSeen::Stamped(last.clone())), describe(&found)))
            }
            (_, None) => Err(String::from("Patroni was never started here")),
        }
    }

    /// How to start Patroni with everything that is in place now.
    async fn patroni_launch(&self, state: &State) -> Result<Launch, Refusal> {
        let in_place = state.node_config.as_ref().ok_or_else(|| Refusal::failed("there is no configuration yet"))?;
        if in_place.config.patroni().is_none() {
            return Err(Refusal::failed("the configuration has no Patroni"));
        }
        self.postgres_directory(state)?;
        let programs = &state.postgres.programs;
        let program = programs.patroni.as_ref().ok_or_else(|| missing(&programs.patroni_seen, "Patroni"))?;
        let needed = [CertificateUse::Member, CertificateUse::Peer];
        if state.trust.is_none() || !needed.iter().all(|of| state.chains.contains_key(of)) {
            return Err(Refusal::failed("there are no certificates for PostgreSQL yet"));
        }
        let (first, mut args) = self.run_as().await?.in_words(program);
        args.push(self.layout.patroni_config().display().to_string());
        let digest = in_place.service_digest(SERVICE);
        // `pg_isready`, with which Patroni asks, has no other way to show a certificate. Without one PostgreSQL logs two refusals each time.
        let pki = self.layout.patroni_certificates();
        let shown = [("PGSSLCERT", "peer.crt"), ("PGSSLKEY", "peer.key")];
        let env = shown.map(|(name, file)| (name.to_owned(), pki.join(file).display().to_string()));
        Ok(Launch {
            program: first,
            args,
            first_args: Vec::new(),
            env: BTreeMap::from(env),
            digest,
            version: None,
            pod: None,
        })
    }

    /// Where PostgreSQL's programs are.
    pub(super) fn postgres_directory(&self, state: &State) -> Result<PathBuf, Refusal> {
        let programs = &state.postgres.programs;
        programs.postgres.clone().ok_or_else(|| missing(&programs.postgres_seen, "PostgreSQL"))
    }
}

fn missing(seen: &BinarySeen, name: &str) -> Refusal {
    match seen {
        BinarySeen::Missing { why } => Refusal::failed(why),
        BinarySeen::Unasked | BinarySeen::Version(_) => {
            Refusal::failed(format!("the agent has not searched for {name} yet"))
        }
    }
}
