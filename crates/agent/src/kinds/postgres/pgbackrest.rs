//! pgBackRest on this machine: its configuration, and how it is run. It connects to PostgreSQL like any client that logs in as the
//! superuser.

use std::path::{Path, PathBuf};

use quorate_core::Secret;
use tokio::process::Command;

use super::psql::password_line;
use crate::agent::Agent;
use crate::api::Refusal;
use crate::files;
use crate::{AgentError, blocking};

/// What a run of pgBackRest needs.
pub(super) struct Pgbackrest {
    pub(super) program: PathBuf,
    pub(super) config: PathBuf,
    /// Its name for the cluster.
    pub(super) stanza: String,
}

impl Pgbackrest {
    /// A command line, for a PostgreSQL on this data to run while it recovers. To PostgreSQL a command that fails means that there is no more
    /// log, and it would end too early when the store is only away for a moment: codes above 125 stop it.
    pub(super) fn restore_command(&self, data: &Path, repository: u8) -> String {
        let Pgbackrest { program, config, stanza } = self;
        let (program, config, data) = (program.display(), config.display(), data.display());
        format!(
            "'{program}' '--config={config}' --stanza={stanza} '--pg1-path={data}' --repo={repository} archive-get %f \"%p\"; \
             code=$?; test $code -le 1 || exit 126; exit $code"
        )
    }
}

/// The section that is not for all.
fn stanza_in(config: &str) -> Option<&str> {
    let sections = config.lines().filter_map(|line| line.strip_prefix('[')?.strip_suffix(']'));
    sections.into_iter().find(|section| *section != "global")
}

fn forget(config: &Path, work: &Path) -> Result<(), AgentError> {
    files::remove(config)?;
    files::remove_dir(work)
}

impl Agent {
    pub(super) fn pgbackrest(&self) -> Result<Pgbackrest, Refusal> {
        let state = self.state.get();
        let config = self.backup_config().ok_or_else(|| Refusal::failed("the configuration has no backups"))?;
        let stanza = stanza_in(config.expose()).unwrap_or_default().to_owned();
        let program = state.postgres.programs.pgbackrest.clone();
        let program = program.ok_or_else(|| Refusal::failed("pgBackRest was not found on this machine"))?;
        Ok(Pgbackrest { program, config: self.layout.pgbackrest_config(), stanza })
    }

    fn backup_config(&self) -> Option<Secret> {
        self.state.get().node_config.as_ref()?.config.patroni()?.backup.clone()
    }

    /// Writes its configuration, unless it is in place; removes it, with the keys in it, where there are no backups any more.
    pub(super) async fn put_pgbackrest_config(&self) -> Result<(), AgentError> {
        let (path, work) = (self.layout.pgbackrest_config(), self.layout.pgbackrest_work());
        let Some(config) = self.backup_config() else { return blocking(move || forget(&path, &work)).await };
        let text = self.layout.fill_in_postgres(config.expose(), self.state.get().address);
        let owner = self.patroni().await?.owner()?;
        blocking(move || {
            files::make_dir(&work, 0o700)?;
            files::give_to(&work, owner)?;
            files::ensure(&path, text.as_bytes(), files::PRIVATE, owner)
        })
        .await
    }

    /// One of its commands for this cluster.
    pub(super) async fn pgbackrest_command(&self, command: &str) -> Result<Command, Refusal> {
        let tool = self.pgbackrest()?;
        let mut run = self.run_pgbackrest(&tool).await?;
        run.arg(format!("--config={}", tool.config.display())).arg(format!("--stanza={}", tool.stanza)).arg(command);
        Ok(run)
    }

    /// Without arguments, but with all that it needs to log in to PostgreSQL.
    pub(super) async fn run_pgbackrest(&self, tool: &Pgbackrest) -> Result<Command, Refusal> {
        self.put_pgbackrest_config().await?;
        let (run_as, owner) = (self.run_as().await?, self.patroni().await?.owner()?);
        let password = self.patroni_settings()?.logins().superuser.password.clone();
        let pgpass = self.layout.pgbackrest_work().join("pgpass");
        files::ensure(&pgpass, password_line(&password).as_bytes(), files::PRIVATE, owner)?;
        let mut run = run_as.command(&tool.program);
        self.log_in(&mut run, &pgpass);
        Ok(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_is_named_by_its_section() {
        assert_eq!(stanza_in("[global]\nrepo1-path=/[x]\n[shop]\npg1-path=/d\n"), Some("shop"));
        assert_eq!(stanza_in("[global]\n"), None);
    }
}
