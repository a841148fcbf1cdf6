//! Patroni's configuration on this machine: completes it, writes it where Patroni reads it, and reads what the agent itself needs from it.

use quorate_core::Secret;
use quorate_core::kinds::postgres::desire::PROGRAMS;
use quorate_core::model::{ConfigFile, PatroniService};
use serde::Deserialize;

use super::programs;
use super::watchdog::Watchdog;
use crate::agent::Agent;
use crate::api::Refusal;
use crate::files;
use crate::state::State;
use crate::{AgentError, blocking};

/// The part of Patroni's configuration that the agent needs too.
#[derive(Deserialize)]
pub(super) struct PatroniConfig {
    scope: String,
    namespace: String,
    /// What Patroni calls this member.
    pub(super) name: String,
    pub(super) etcd3: Etcd,
    postgresql: Postgresql,
    #[serde(default)]
    pub(super) watchdog: Option<Watchdog>,
}

#[derive(Deserialize)]
pub(super) struct Etcd {
    pub(super) hosts: Vec<String>,
    pub(super) username: Option<String>,
    pub(super) password: Option<Secret>,
}

#[derive(Deserialize)]
struct Postgresql {
    authentication: Authentication,
}

#[derive(Deserialize)]
pub(super) struct Authentication {
    pub(super) superuser: Login,
    pub(super) replication: Login,
    pub(super) rewind: Login,
}

#[derive(Deserialize)]
pub(super) struct Login {
    pub(super) username: String,
    pub(super) password: Secret,
}

impl PatroniConfig {
    pub(super) fn read(service: &PatroniService) -> Result<Self, AgentError> {
        // The reader's own words may quote a password.
        let unread = |error: serde_json::Error| AgentError::PatroniConfig { column: error.column() };
        serde_json::from_str(service.config.expose()).map_err(unread)
    }

    /// The key below which Patroni keeps all of the cluster's state.
    pub(super) fn key(&self) -> String {
        format!("/{}/{}/", self.namespace.trim_matches('/'), self.scope)
    }

    pub(super) fn logins(&self) -> &Authentication {
        &self.postgresql.authentication
    }
}

/// The files of the configuration that is in place.
pub(super) fn configured_files(state: &State) -> &[ConfigFile] {
    state.node_config.as_ref().map_or(&[], |in_place| &in_place.config.files)
}

impl Agent {
    pub(crate) fn has_patroni(&self) -> bool {
        self.state.get().node_config.as_ref().is_some_and(|in_place| in_place.config.patroni().is_some())
    }

    pub(super) fn patroni_settings(&self) -> Result<PatroniConfig, Refusal> {
        let state = self.state.get();
        let service = state.node_config.as_ref().and_then(|in_place| in_place.config.patroni());
        let service = service.ok_or_else(|| Refusal::failed("the configuration has no Patroni"))?;
        Ok(PatroniConfig::read(service)?)
    }

    /// Writes Patroni's configuration, unless it is in place.
    pub(crate) async fn put_patroni_config(&self) -> Result<(), AgentError> {
        let state = self.state.get();
        let Some(service) = state.node_config.as_ref().and_then(|in_place| in_place.config.patroni()) else {
            return Ok(());
        };
        let known = state.postgres.programs.postgres.clone();
        let programs = known.unwrap_or_else(|| programs::usual_directory(service.version, service.programs.as_ref()));
        let filled = self.layout.fill_in_postgres(service.config.expose(), state.address);
        let text = filled.replace(PROGRAMS, &programs.to_string_lossy());
        let (path, owner) = (self.layout.patroni_config(), self.patroni().await?.owner()?);
        blocking(move || files::ensure(&path, text.as_bytes(), files::PRIVATE, owner)).await?;
        self.put_pgbackrest_config().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_that_is_not_understood_is_not_quoted() {
        let text = r#"{"scope": "shop", "namespace": "/patroni/", "name": "pg-1", "etcd3": {"hosts": "s3cret"}}"#;
        let service = PatroniService {
            version: 15,
            programs: None,
            patroni: None,
            locale: String::from("C"),
            config: Secret::new(text),
            backup: None,
            next: None,
        };
        let Err(refused) = PatroniConfig::read(&service) else { panic!("it has no hosts") };
        let refused = refused.in_full();
        assert!(refused.starts_with("cannot parse Patroni's configuration, at column "), "{refused}");
    }
}
