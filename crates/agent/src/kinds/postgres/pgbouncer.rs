//! PgBouncer on this machine: clients share connections to the primary, through the local HAProxy. HAProxy knows the primary from Patroni,
//! so PgBouncer does not need to. It has no data, so it runs wherever the configuration says, without orders.
//!
//! A reload applies changed users, passwords, sizes and certificates. While the primary moves, PgBouncer is paused: transactions complete,
//! clients wait, and continue on the new primary.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use quorate_core::kinds::postgres::PGBOUNCER;
use quorate_core::kinds::postgres::desire::PKI_DIRECTORY;
use quorate_core::model::{Exit, PgbouncerService, ProgramService, ServiceState};
use quorate_core::text::hex;
use quorate_pki::Sha256;
use rustix::process::Signal;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::haproxy::find;
use crate::agent::Agent;
use crate::api::Refusal;
use crate::files;
use crate::layout::Layout;
use crate::process::{self, Process};
use crate::services::Service;

pub(super) const DIRECTORY: &str = "etc/pgbouncer";
const CONFIG_FILE: &str = "etc/pgbouncer/pgbouncer.ini";
const USERS_FILE: &str = "etc/pgbouncer/userlist.txt";
/// The configuration that the process was started or reloaded with.
const LOADED_FILE: &str = "etc/pgbouncer/loaded";
/// Files that a reload also reads.
const CERTIFICATES: [&str; 3] = ["member.crt", "member.key", "ca.crt"];
/// A client needs a descriptor, and so does a connection to PostgreSQL.
pub(crate) const SETTINGS: &str = "LimitNOFILE=65536\n";
/// From the start of its process to its first answer. A request for facts waits for it.
const STARTING: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(50);

impl Agent {
    /// PgBouncer refuses to be root, as PostgreSQL does.
    pub(crate) async fn pgbouncer_program(
        &self,
        pgbouncer: &PgbouncerService,
        search: Option<&str>,
    ) -> Result<ProgramService, Refusal> {
        let path = match &pgbouncer.program {
            Some(path) => path.clone(),
            None => find(PGBOUNCER, search)
                .ok_or_else(|| Refusal::failed("there is no program `pgbouncer` on the PATH, nor in /usr/sbin"))?,
        };
        let (program, mut args) = self.run_as().await?.in_words(path.as_ref());
        args.push(config_path(&self.layout).display().to_string());
        Ok(ProgramService { path: program.display().to_string(), args, env: BTreeMap::new() })
    }

    /// Runs PgBouncer as the configuration says, or records why it does not run.
    pub(crate) async fn keep_pgbouncer(&self) {
        let state = self.state.get();
        let wanted = state.node_config.as_ref().and_then(|in_place| in_place.config.pgbouncer().cloned());
        let Some(wanted) = wanted else { return };
        let kept = self.put_pgbouncer(&wanted).await;
        if let Err(error) = &kept {
            tracing::error!(%error, "PgBouncer does not run as it should");
        }
        self.services.note_failure(PGBOUNCER, kept.err().map(|error| error.to_string()));
    }

    async fn put_pgbouncer(&self, wanted: &PgbouncerService) -> Result<(), Refusal> {
        let state = self.state.get();
        let Some(in_place) = &state.node_config else { return Ok(()) };
        let Some(service) = in_place.config.service(PGBOUNCER) else { return Ok(()) };
        let kept = self.services.with(self.plain_profile(service)).await?;
        let owner = kept.owner()?;
        let wanted_digest = in_place.service_digest(PGBOUNCER);
        let runs = matches!(kept.look().await, ServiceState::Running { digest, .. } if digest == wanted_digest);
        let root = self.layout.root();
        let (text, users) = (self.layout.fill_in(&config(wanted), state.address), users(wanted));
        files::ensure(&root.join(USERS_FILE), users.as_bytes(), files::PRIVATE, owner)?;
        files::ensure(&root.join(CONFIG_FILE), text.as_bytes(), files::PRIVATE, owner)?;
        let mut read = Sha256::new();
        [text.as_bytes(), users.as_bytes()].into_iter().for_each(|part| read.update(part));
        for name in CERTIFICATES {
            read.update(fs::read(root.join(PKI_DIRECTORY).join(name)).unwrap_or_default());
        }
        let read = hex(&read.finalize());
        let loaded = root.join(LOADED_FILE);
        let is_loaded = fs::read_to_string(&loaded).is_ok_and(|found| found == read);
        if !runs {
            self.state.update(|state| _ = state.services.insert(PGBOUNCER.to_owned())).await?;
            self.restart_service(PGBOUNCER).await?;
        } else if !is_loaded {
            tell(&self.layout, Signal::HUP);
        }
        Ok(files::ensure(&loaded, read.as_bytes(), files::PRIVATE, owner)?)
    }

    /// Its process may run and end a moment later, because its port is taken: it counts once it answers.
    pub(crate) async fn look_at_pgbouncer(&self, kept: &dyn Service) -> ServiceState {
        let state = self.state.get();
        let port = state.node_config.as_ref().and_then(|in_place| Some(in_place.config.pgbouncer()?.port));
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
            let last_exit =
                Exit { at: Timestamp::now(), how: String::from("it does not answer"), last_words: String::new() };
            ServiceState::BackingOff { restarts: 0, last_exit }
        })
    }
}

/// Open transactions end; new ones wait. `resume_haproxy` ends a pause that an agent before began.
pub(super) fn pause(layout: &Layout) {
    tell(layout, Signal::USR1);
}

pub(super) fn resume(layout: &Layout) {
    tell(layout, Signal::USR2);
}

fn tell(layout: &Layout, signal: Signal) {
    let config = config_path(layout);
    let found = process::pids().filter_map(Process::of).find(|process| process.is_called_with_last(&config));
    if let Some(process) = found {
        process.signal(signal);
    }
}

fn config_path(layout: &Layout) -> PathBuf {
    layout.root().join(CONFIG_FILE)
}

/// The configuration, with `{root}` and `{address}` in it. HAProxy is asked for the primary again a second after it had none.
fn config(pgbouncer: &PgbouncerService) -> String {
    let PgbouncerService { port, pool_mode, default_pool_size, max_client_conn, primary_port, .. } = pgbouncer;
    format!(
        "; Written by quorate; changes are lost.\n\
         [databases]\n* = host={{address}} port={primary_port}\n\
         [pgbouncer]\nlisten_addr = {{address}}\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = scram-sha-256\nauth_file = {{root}}/{USERS_FILE}\n\
         client_tls_sslmode = require\nclient_tls_cert_file = {{root}}/{PKI_DIRECTORY}/member.crt\n\
         client_tls_key_file = {{root}}/{PKI_DIRECTORY}/member.key\n\
         server_tls_sslmode = verify-full\nserver_tls_ca_file = {{root}}/{PKI_DIRECTORY}/ca.crt\n\
         pool_mode = {pool_mode}\ndefault_pool_size = {default_pool_size}\nmax_client_conn = {max_client_conn}\n\
         ignore_startup_parameters = extra_float_digits\nserver_login_retry = 1\n\
         log_connections = 0\nlog_disconnections = 0\n"
    )
}

/// Quotes are doubled, as PgBouncer reads them.
fn users(pgbouncer: &PgbouncerService) -> String {
    let quoted = |text: &str| text.replace('"', "\"\"");
    pgbouncer.users.iter().fold(String::new(), |mut text, (user, verifier)| {
        let _ = writeln!(text, "\"{}\" \"{}\"", quoted(user), quoted(verifier.expose()));
        text
    })
}

#[cfg(test)]
mod tests {
    use quorate_core::Secret;

    use super::*;

    #[test]
    fn clients_need_tls_and_postgresql_is_verified_and_passwords_are_in_their_own_file() {
        let users_of = [("shop", "SCRAM-SHA-256$4096:c2FsdA==$a:b"), ("we \"say\"", "x")];
        let pgbouncer = PgbouncerService {
            program: None,
            port: 6432,
            pool_mode: String::from("session"),
            default_pool_size: 7,
            max_client_conn: 70,
            primary_port: 5000,
            users: users_of.map(|(user, verifier)| (user.to_owned(), Secret::new(verifier))).into(),
        };
        let text = config(&pgbouncer);
        for line in ["client_tls_sslmode = require", "server_tls_sslmode = verify-full", "* = host={address} port=5000"]
        {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("SCRAM-SHA-256$"), "{text}");
        assert_eq!(users(&pgbouncer), "\"shop\" \"SCRAM-SHA-256$4096:c2FsdA==$a:b\"\n\"we \"\"say\"\"\" \"x\"\n");
    }
}
