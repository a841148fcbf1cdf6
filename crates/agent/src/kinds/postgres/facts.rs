//! What the agent reports about its PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use quorate_core::kinds::postgres::{Catalog, PatroniStatus, PostgresFacts, Role};
use quorate_core::model::{BinarySeen, DataSeen, ServiceState};
use tokio::time::timeout;

use super::{data, programs};
use crate::agent::Agent;
use crate::{AgentError, blocking};

/// A request for facts waits no longer for users and databases.
const LISTING: Duration = Duration::from_millis(1500);

impl Agent {
    pub(super) async fn look_at_postgres_data(&self) -> Result<DataSeen, AgentError> {
        let layout = self.layout.clone();
        blocking(move || data::look(&layout)).await
    }

    /// Only of a machine whose configuration has Patroni.
    pub(crate) async fn postgres_facts(self: &Arc<Self>, auth: bool) -> Result<Option<Box<PostgresFacts>>, AgentError> {
        if !self.has_patroni() {
            return Ok(None);
        }
        let layout = self.layout.clone();
        let look = move || {
            Ok::<_, AgentError>((
                data::look(&layout)?,
                data::system_id(&layout),
                data::applied(&layout),
                data::archive(&layout),
                data::control(&layout.postgres_data()),
                data::replaced(&layout)?,
            ))
        };
        let (found, system_id, applied, archive, control, replaced) = blocking(look).await?;
        if matches!(found, DataSeen::Stamped(_)) {
            self.state.update(|state| state.postgres.cloning = false).await?;
        }
        let service = self.patroni_state(&found).await?;
        let status = match service {
            ServiceState::Running { .. } | ServiceState::Unknown { .. } => self.status_or_none().await,
            ServiceState::Stopped | ServiceState::BackingOff { .. } => None,
        };
        let role = status.as_ref().map(|status| status.role);
        let leads = status.as_ref().is_some_and(|status| status.role == Role::Primary && status.state == "running");
        let (catalog, transaction) = if auth && leads { self.catalog_or_none().await } else { None }.unzip();
        self.look_for_missing_programs().await?;
        let state = self.state.get();
        let known = &state.postgres.programs;
        Ok(Some(Box::new(PostgresFacts {
            postgres: self.postgres_now(known).await,
            patroni: self.patroni_now(known).await,
            pgbackrest: programs::still(known.pgbackrest.clone(), &known.pgbackrest_seen),
            repository: state.postgres.repository.clone(),
            archive: archive.filter(|_| known.pgbackrest_seen != BinarySeen::Unasked),
            restored: self.restore_seen().await?,
            service,
            data: found,
            last_started: state.postgres.last_started.clone(),
            system_id,
            status,
            applied,
            rotation: self.rotation_seen(role),
            catalog,
            transaction,
            next: programs::still(known.next.as_ref().map(|home| home.join("postgres")), &known.next_seen),
            control,
            replaced,
            task: self.postgres.task.lock().expect("no holder panics").clone(),
        })))
    }

    /// Where data was lost, Patroni is not started again by itself: that it does not run is all that matters then.
    async fn patroni_state(&self, found: &DataSeen) -> Result<ServiceState, AgentError> {
        let is_lost = *found == DataSeen::Empty && !self.state.get().postgres.cloning;
        Ok(match self.patroni().await?.look().await {
            ServiceState::BackingOff { .. } if is_lost => ServiceState::Stopped,
            ServiceState::Stopped => match self.postgres.not_started.lock().expect("no holder panics").clone() {
                Some(last_exit) if !is_lost => ServiceState::BackingOff { restarts: 0, last_exit },
                _ => ServiceState::Stopped,
            },
            state => state,
        })
    }

    /// What the rules of access say of a rotation, which Patroni has written. The password of a standby it writes later, when it looks at that
    /// standby next.
    fn rotation_seen(&self, role: Option<Role>) -> Option<String> {
        let mark = data::rotation(&self.layout)?;
        let password = self.patroni_settings().ok()?.logins().replication.password.clone();
        let is_current = role == Some(Role::Primary) || data::logs_in_with(&self.layout, password.expose());
        Some(if is_current { mark } else { format!("{mark}, not logged in") })
    }

    async fn status_or_none(&self) -> Option<PatroniStatus> {
        self.patroni_status().await.inspect_err(|error| tracing::debug!(why = error.in_full(), "no status")).ok()
    }

    async fn catalog_or_none(&self) -> Option<(Catalog, u64)> {
        match timeout(LISTING, self.read_catalog()).await {
            Ok(Ok(listed)) => Some(listed),
            Ok(Err(error)) => {
                tracing::warn!(%error, "users and databases cannot be listed");
                None
            }
            Err(_) => None,
        }
    }
}
