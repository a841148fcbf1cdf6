//! A front on this machine: one address in front of the cluster. It is the same program in a separate process. It reads its settings from
//! files, and again when they change; a change of members interrupts no connection. It has no data, so it runs wherever the configuration
//! says, without orders.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quorate_core::kinds::etcd::front::{DIRECTORY, DRAINED_FILE, FRONT, PKI_DIRECTORY};
use quorate_core::model::{ADDRESS, Exit, FrontService, MemberName, ProgramService, ROOT, ServiceState};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::agent::Agent;
use crate::api::Refusal;
use crate::files::{self, Owner};
use crate::layout::Layout;
use crate::services::Service;
use crate::{AgentError, upgrade};

/// A client needs a descriptor, and so does its connection to a member.
pub(crate) const SETTINGS: &str = "LimitNOFILE=262144\n";
/// From the start of its process to its first answer. A request for facts waits for it.
const STARTING: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(20);
/// No member is drained for longer, whatever a controller says.
const LONGEST_DRAIN: u64 = 120_000;

impl Layout {
    /// A link to the set of certificates of a front.
    pub(crate) fn front_certificates(&self) -> PathBuf {
        self.root().join(PKI_DIRECTORY)
    }
}

impl Agent {
    /// What is started, with `{root}` and `{address}` in it.
    pub(crate) fn front_program(&self, front: &FrontService) -> Result<ProgramService, Refusal> {
        let path = match upgrade::kept_program(self.layout.root()) {
            Some(program) => program,
            None => {
                std::env::current_exe().map_err(|error| Refusal::failed(format!("which program this is: {error}")))?
            }
        };
        let FrontService { port, prefer, max_connections, max_per_address, drain_ms } = front;
        let mut args = vec![
            String::from("agent"),
            String::from("front"),
            String::from("--directory"),
            format!("{ROOT}/{DIRECTORY}"),
            String::from("--listen"),
            format!("{ADDRESS}:{port}"),
            String::from("--prefer"),
            prefer.clone(),
            String::from("--max-connections"),
            max_connections.to_string(),
            String::from("--drain-time"),
            format!("{drain_ms}ms"),
        ];
        if let Some(most) = max_per_address {
            args.extend([String::from("--max-per-address"), most.to_string()]);
        }
        Ok(ProgramService { path: path.display().to_string(), args, env: BTreeMap::new() })
    }

    pub(crate) fn has_front(&self) -> bool {
        self.state.get().node_config.as_ref().is_some_and(|in_place| in_place.config.front().is_some())
    }

    /// Who it runs as.
    pub(crate) async fn front_owner(&self) -> Result<Option<Owner>, AgentError> {
        let state = self.state.get();
        let service = state.node_config.as_ref().and_then(|in_place| in_place.config.service(FRONT));
        match service {
            Some(service) => self.services.with(self.plain_profile(service)).await?.owner(),
            None => Ok(None),
        }
    }

    /// Runs the front as the configuration says, or records why it does not run.
    pub(crate) async fn keep_front(&self) {
        if !self.has_front() {
            return;
        }
        let kept = self.put_front().await;
        if let Err(error) = &kept {
            tracing::error!(%error, "the front does not run as it should");
        }
        self.services.note_failure(FRONT, kept.err().map(|error| error.to_string()));
    }

    async fn put_front(&self) -> Result<(), Refusal> {
        let state = self.state.get();
        let Some(in_place) = &state.node_config else { return Ok(()) };
        let Some(service) = in_place.config.service(FRONT) else { return Ok(()) };
        let kept = self.services.with(self.plain_profile(service)).await?;
        let wanted = in_place.service_digest(FRONT);
        if matches!(kept.look().await, ServiceState::Running { digest, .. } if digest == wanted) {
            return Ok(());
        }
        self.state.update(|state| _ = state.services.insert(FRONT.to_owned())).await?;
        self.restart_service(FRONT).await
    }

    /// Its process may run and end a moment later, because its port is taken: it counts once it answers.
    pub(crate) async fn look_at_front(&self, kept: &dyn Service) -> ServiceState {
        let state = self.state.get();
        let port = state.node_config.as_ref().and_then(|in_place| Some(in_place.config.front()?.port));
        let address = SocketAddr::new(state.address, port.unwrap_or_default());
        let answered = async {
            loop {
                let seen = kept.look().await;
                if !matches!(seen, ServiceState::Running { .. }) || TcpStream::connect(address).await.is_ok() {
                    return seen;
                }
                tokio::time::sleep(POLL).await;
            }
        };
        timeout(STARTING, answered).await.unwrap_or_else(|_| {
            let how = String::from("it does not answer");
            let last_exit = Exit { at: Timestamp::now(), how, last_words: String::new() };
            ServiceState::BackingOff { restarts: 0, last_exit }
        })
    }

    /// Stops the front from opening connections to this member while there is another, until the time is up. None: no longer.
    pub(crate) async fn drain(&self, member: &MemberName, for_ms: u64) -> Result<(), Refusal> {
        if !self.has_front() {
            return Err(Refusal::failed("this machine has no front"));
        }
        let path = self.layout.root().join(DRAINED_FILE);
        let known = fs::read_to_string(&path).unwrap_or_default();
        let mut drained: BTreeMap<MemberName, Timestamp> = serde_json::from_str(&known).unwrap_or_default();
        let now = Timestamp::now();
        drained.retain(|_, until| *until > now);
        drained.remove(member);
        let time = SignedDuration::from_millis(for_ms.min(LONGEST_DRAIN).cast_signed());
        if let Ok(until) = now.checked_add(time)
            && until > now
        {
            drained.insert(member.clone(), until);
        }
        let text = serde_json::to_string(&drained).map_err(|error| Refusal::failed(error.to_string()))?;
        Ok(files::ensure(&path, text.as_bytes(), files::PRIVATE, self.front_owner().await?)?)
    }
}
