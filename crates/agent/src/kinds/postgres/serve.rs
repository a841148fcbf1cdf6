//! A backup taken by a replica. pgBackRest fetches what the replica lacks from the primary, where its server runs only during that backup.
//! The certificates of both ends come from a CA that is created for this one backup, so no other certificate is accepted.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use quorate_core::kinds::postgres::BACKUP_PORT;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use super::jobs::{Pass, PrimaryFiles, ServedPaths, ServerPass};
use super::private::Private;
use crate::agent::Agent;
use crate::api::Refusal;
use crate::files::{self, Owner};
use crate::layout::Layout;
use crate::{AgentError, logs};

/// A controller that takes a backup looks every few seconds. One that was lost takes none.
const LEASE: Duration = Duration::from_secs(120);
const STARTING: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(200);
const LAST_BYTES: u64 = 4 << 10;

/// A pass on disk, in a private directory that is removed with it.
pub(super) struct PassFiles {
    directory: Private,
    ca: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl PassFiles {
    fn write(layout: &Layout, pass: &Pass, owner: Option<Owner>) -> Result<Self, AgentError> {
        let directory = Private::make(layout, owner)?;
        let at = |name: &str| directory.path().join(name);
        let files = PassFiles { ca: at("ca.crt"), certificate: at("pass.crt"), key: at("pass.key"), directory };
        files::write(&files.ca, pass.ca.as_bytes(), files::PRIVATE, owner)?;
        files::write(&files.certificate, pass.certificate.as_bytes(), files::PRIVATE, owner)?;
        files::write(&files.key, pass.key.expose().as_bytes(), files::PRIVATE, owner)?;
        Ok(files)
    }
}

impl Agent {
    /// Has a backup taken from this replica, with the primary's help. What is returned must outlive the command.
    pub(super) async fn reach_primary(
        &self,
        backup: &mut Command,
        PrimaryFiles { address, pass, paths }: &PrimaryFiles,
    ) -> Result<PassFiles, Refusal> {
        let files = PassFiles::write(&self.layout, pass, self.patroni().await?.owner()?)?;
        let set = |name: &str, value: &dyn std::fmt::Display| format!("--pg2-{name}={value}");
        backup.arg("--backup-standby").arg(set("host", address)).arg(set("host-type", &"tls"));
        backup.arg(set("host-port", &BACKUP_PORT)).arg(set("host-ca-file", &files.ca.display()));
        backup.arg(set("host-cert-file", &files.certificate.display()));
        backup.arg(set("host-key-file", &files.key.display())).arg(set("host-config", &paths.config.display()));
        backup.arg(set("path", &paths.data.display())).arg(set("user", &quorate_core::kinds::postgres::SUPERUSER));
        Ok(files)
    }

    /// Runs pgBackRest's server until the job is ended.
    pub(super) async fn serve_files(&self, ServerPass { pass, client }: &ServerPass) -> Result<(), Refusal> {
        let (tool, owner) = (self.pgbackrest()?, self.patroni().await?.owner()?);
        let files = PassFiles::write(&self.layout, pass, owner)?;
        let address = self.state.get().address;
        // If the port is free now, pgBackRest is what answers there later.
        let taken = |error| Refusal::failed(format!("port {BACKUP_PORT} cannot be used: {error}"));
        drop(TcpListener::bind((address, BACKUP_PORT)).await.map_err(taken)?);
        let mut command = self.run_pgbackrest(&tool).await?;
        let set = |name: &str, value: &dyn std::fmt::Display| format!("--tls-server-{name}={value}");
        command.args(["server", "--no-config", "--log-level-file=off", "--log-level-console=off"]);
        command.arg(set("address", &address)).arg(set("port", &BACKUP_PORT)).arg(set("ca-file", &files.ca.display()));
        command.arg(set("cert-file", &files.certificate.display())).arg(set("key-file", &files.key.display()));
        command.arg(set("auth", &format!("{client}={}", tool.stanza)));
        let log = files.directory.path().join("log");
        let mut server = spawn(command, &log)?;
        let until = Instant::now() + STARTING;
        while TcpStream::connect((address, BACKUP_PORT)).await.is_err() {
            check_runs(&mut server, &log)?;
            if Instant::now() > until {
                return Err(Refusal::failed("pgBackRest's server does not answer"));
            }
            sleep(PAUSE).await;
        }
        check_runs(&mut server, &log)?;
        self.postgres.jobs.serves(ServedPaths { data: self.layout.postgres_data(), config: tool.config });
        while !self.postgres.jobs.is_over(LEASE) {
            check_runs(&mut server, &log)?;
            sleep(PAUSE).await;
        }
        Ok(())
    }
}

fn spawn(mut command: Command, log: &Path) -> Result<Child, AgentError> {
    let output = files::open_log(log)?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output).kill_on_drop(true);
    command.spawn().map_err(|source| AgentError::Spawn { program: String::from("pgbackrest"), source })
}

fn check_runs(server: &mut Child, log: &Path) -> Result<(), Refusal> {
    match server.try_wait() {
        Ok(None) => Ok(()),
        _ => {
            let said = logs::last_bytes(log, LAST_BYTES);
            let said = said.lines().find(|line| line.contains("ERROR:")).unwrap_or("no reason is known").trim();
            Err(Refusal::failed(format!("pgBackRest's server has ended: {said}")))
        }
    }
}
