//! What the agent reports about its etcd.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use quorate_core::kinds::etcd::{EtcdFacts, OlderData};
use quorate_core::model::{ConfigAttempt, DataSeen, ServiceState};

use super::probe::ask_auth;
use super::prober::Look;
use super::trust;
use crate::AgentError;
use crate::agent::Agent;

impl Agent {
    /// Those that the controller with this fencing number gets.
    pub(crate) async fn etcd_facts(self: &Arc<Self>, auth: bool, fence: Option<u64>) -> Result<EtcdFacts, AgentError> {
        let service = match self.etcd.service.look().await {
            ServiceState::Stopped => match self.etcd.not_started.lock().expect("no holder panics").clone() {
                Some(last_exit) => ServiceState::BackingOff { restarts: 0, last_exit },
                None => ServiceState::Stopped,
            },
            state => state,
        };
        let data = self.look_at_data().await?;
        let (mut look, log) = match service {
            // An etcd that may be running is queried: it reports more than its supervisor.
            ServiceState::Running { .. } | ServiceState::Unknown { .. } => (self.look_at_etcd().await, Ok(None)),
            ServiceState::Stopped | ServiceState::BackingOff { .. } => (Look::default(), self.log_end(&data).await),
        };
        let binary = self.binary_now().await.seen;
        if let Some(status) = look.status.as_mut().filter(|_| auth)
            && let Ok(client) = self.etcd.access.client(&self.state.get())
        {
            status.auth = ask_auth(&client).await;
        }
        let state = self.state.get();
        let still_older = |older: &OlderData| {
            data != DataSeen::Empty && !matches!(log, Ok(Some(end)) if end.index >= older.acknowledged)
        };
        let trust = trust::seen(&state, &service);
        let old_entries = self.old_entries(&data, &service, look.status.as_ref()).await;
        Ok(EtcdFacts {
            binary,
            service,
            data: data.clone(),
            last_started: state.etcd.last_started.clone(),
            peer_serving: look.peer_serving,
            status: look.status,
            log: log.clone().unwrap_or_default(),
            log_damage: log.clone().err(),
            old_entries,
            older: state.etcd.older.clone().filter(still_older),
            staged: self.look_at_staged().await?,
            attempt: self.attempt_of(fence),
            trust,
        })
    }

    /// Only the controller that sent the configuration gets this: a later one tries again.
    fn attempt_of(&self, fence: Option<u64>) -> ConfigAttempt {
        match &*self.etcd.attempt.lock().expect("no holder panics") {
            Some((of, attempt)) if Some(*of) == fence => attempt.clone(),
            _ => ConfigAttempt::Taken,
        }
    }

    /// The addresses of etcd's clients. Not known if machines share their connections.
    pub(crate) async fn etcd_clients(&self) -> BTreeSet<IpAddr> {
        if self.keeps_host { self.etcd.clients.connected().await } else { BTreeSet::new() }
    }
}
