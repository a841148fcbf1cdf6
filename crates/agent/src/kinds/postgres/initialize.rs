//! Creates the first data of a cluster. It is created in a private directory and renamed into place, so there is never a partial data
//! directory. It is never created twice: not if any data exists on this machine, and not if the DCS already names data.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use quorate_core::kinds::postgres::SUPERUSER;
use quorate_core::model::{DataSeen, ServiceState, Stamp};

use super::config::{PatroniConfig, configured_files};
use super::private::Private;
use super::psql::UNLOGGED;
use super::tools::{self, identifier, literal};
use super::{data, dcs};
use crate::agent::Agent;
use crate::api::Refusal;
use crate::files::{self, Owner};
use crate::stamp::{check_own, describe};
use crate::{AgentError, blocking};
use tokio::process::Command;

/// For `initdb` on a slow disk.
const CREATING: Duration = Duration::from_secs(300);
/// PostgreSQL writes these into its control file. Data that is created with others waits for a restart from its first moment on.
pub(super) const IN_CONTROL_FILE: [&str; 7] = [
    "max_connections",
    "max_worker_processes",
    "max_wal_senders",
    "max_prepared_transactions",
    "max_locks_per_transaction",
    "track_commit_timestamp",
    "wal_log_hints",
];
/// What `pg_rewind` calls.
const REWIND_FUNCTIONS: [&str; 4] = [
    "pg_ls_dir(text, boolean, boolean)",
    "pg_stat_file(text, boolean)",
    "pg_read_binary_file(text)",
    "pg_read_binary_file(text, bigint, bigint, boolean)",
];

impl Agent {
    pub(super) async fn initialize_postgres(
        &self,
        stamp: Stamp,
        parameters: &BTreeMap<String, String>,
    ) -> Result<(), Refusal> {
        let state = self.state.get();
        check_own(&state, &stamp)?;
        let found = self.look_at_postgres_data().await?;
        if found == DataSeen::Stamped(stamp.clone()) {
            // The answer to an earlier order was lost.
            return Ok(());
        }
        self.check_bare(&found).await?;
        if let Some(earlier) = &state.postgres.last_started {
            let why = format!("PostgreSQL was started in bootstrap {} before, and its data is lost", earlier.token);
            return Err(Refusal::Failed { why });
        }
        if self.patroni().await?.look().await != ServiceState::Stopped {
            return Err(Refusal::failed("Patroni runs, or is meant to"));
        }
        self.find_programs_again().await?;
        let settings = self.patroni_settings()?;
        self.check_scope(&settings).await?;
        self.check_still_obeyed()?;
        self.create_data(&settings, parameters).await?;
        let layout = self.layout.clone();
        let put = move || {
            files::make_all_durable(&layout.postgres_draft())?;
            data::put_draft(&layout, &stamp)
        };
        Ok(blocking(put).await?)
    }

    async fn check_bare(&self, found: &DataSeen) -> Result<(), Refusal> {
        let layout = self.layout.clone();
        if blocking(move || data::is_bare(&layout)).await? {
            return Ok(());
        }
        let directory = self.layout.postgres_data();
        let found = match found {
            DataSeen::Empty => format!("files that are not PostgreSQL's data, in {}", directory.display()),
            data => describe(data),
        };
        Err(Refusal::not_as_expected(String::from("an empty data directory"), found))
    }

    /// Another cluster may use the same name in this etcd.
    async fn check_scope(&self, settings: &PatroniConfig) -> Result<(), Refusal> {
        let state = self.state.get();
        let files = configured_files(&state);
        let key = format!("{}initialize", settings.key());
        match dcs::get(settings, files, &key).await? {
            None => dcs::check_gateway(settings, files).await,
            Some(there) => Err(Refusal::Failed {
                why: format!(
                    "the DCS has the key {key} already, of a cluster with system identifier {}: set another `postgres.scope`; or, \
                     if nothing of that cluster is left, delete all keys below {}",
                    String::from_utf8_lossy(&there.value),
                    settings.key()
                ),
            }),
        }
    }

    async fn create_data(
        &self,
        settings: &PatroniConfig,
        parameters: &BTreeMap<String, String>,
    ) -> Result<(), Refusal> {
        let state = self.state.get();
        let service = state.node_config.as_ref().and_then(|in_place| in_place.config.patroni());
        let locale = service.map(|service| service.locale.clone()).unwrap_or_default();
        let programs = self.postgres_directory(&state)?;
        let (run_as, owner) = (self.run_as().await?, self.patroni().await?.owner()?);
        let (home, draft) = (self.layout.postgres_home(), self.layout.postgres_draft());
        let removed = draft.clone();
        blocking(move || prepare(&home, &removed, owner)).await?;
        let private = Private::make(&self.layout, owner)?;
        let password = private.path().join("password");
        let logins = settings.logins();
        files::write(&password, logins.superuser.password.expose().as_bytes(), files::PRIVATE, owner)?;
        let mut initdb = run_as.command(&programs.join("initdb"));
        initdb.arg("--pgdata").arg(&draft).arg("--pwfile").arg(&password).args(["--username", SUPERUSER]);
        // All of it is made durable at the end, which takes `initdb` several times as long.
        initdb.arg("--no-sync").args([
            "--data-checksums",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale",
            &locale,
        ]);
        let created = tools::run(initdb, "", CREATING).await;
        drop(private);
        created?;
        let mut single = run_as.command(&programs.join("postgres"));
        single.arg("--single").arg("-D").arg(&draft);
        for (name, value) in parameters.iter().filter(|(name, _)| IN_CONTROL_FILE.contains(&name.as_str())) {
            single.args(["-c", &format!("{name}={value}")]);
        }
        Ok(create_roles(single, settings).await?)
    }
}

/// What an interrupted attempt left is removed: nobody has written to it.
fn prepare(home: &Path, draft: &Path, owner: Option<Owner>) -> Result<(), AgentError> {
    files::make_dir(home, 0o700)?;
    files::remove_dir(draft)?;
    // The superuser's: an earlier agent wrote it here, and may have been killed before it removed it.
    files::remove(&draft.with_extension("password"))?;
    files::give_to(home, owner)
}

/// In single-user mode, before anybody can connect.
async fn create_roles(mut command: Command, settings: &PatroniConfig) -> Result<(), AgentError> {
    command.args(["-c", "exit_on_error=true"]);
    for (name, value) in UNLOGGED {
        command.args(["-c", &format!("{name}={value}")]);
    }
    command.arg(SUPERUSER);
    tools::run(command, &roles(settings), CREATING).await.map(drop)
}

/// One statement to a line.
fn roles(settings: &PatroniConfig) -> String {
    let logins = settings.logins();
    let [replicator, rewinder] = [&logins.replication, &logins.rewind].map(|login| identifier(&login.username));
    let [replicator_password, rewinder_password] =
        [&logins.replication, &logins.rewind].map(|login| literal(login.password.expose()));
    let mut sql = format!(
        "CREATE ROLE {replicator} REPLICATION LOGIN PASSWORD {replicator_password}\n\
         CREATE ROLE {rewinder} LOGIN PASSWORD {rewinder_password}\n"
    );
    for function in REWIND_FUNCTIONS {
        sql.push_str(&format!("GRANT EXECUTE ON FUNCTION pg_catalog.{function} TO {rewinder}\n"));
    }
    sql
}
