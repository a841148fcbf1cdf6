//! SQL on the local PostgreSQL, as its superuser. It needs a member's certificate and the password, like any login as the superuser.

use std::path::Path;
use std::time::Duration;

use quorate_core::Secret;
use quorate_core::kinds::postgres::{CLIENT_PORT, SUPERUSER};
use tokio::process::Command;

use super::tools;
use super::user::RunAs;
use crate::agent::Agent;
use crate::api::Refusal;
use crate::files;

/// With these no statement gets into the server's log, nor into the statistics of statements: some hold passwords, or what they are checked
/// with. Whatever a cluster's own parameters log, these come after them. A server without the extension takes its settings as well.
pub(super) const UNLOGGED: [(&str, &str); 10] = [
    ("log_statement", "none"),
    ("log_min_error_statement", "panic"),
    ("log_min_duration_statement", "-1"),
    ("log_min_duration_sample", "-1"),
    ("log_transaction_sample_rate", "0"),
    ("debug_print_parse", "off"),
    ("debug_print_rewritten", "off"),
    ("debug_print_plan", "off"),
    ("pg_stat_statements.track", "none"),
    ("pg_stat_statements.track_utility", "off"),
];

/// The same for a session, one statement to a line.
pub(super) fn unlogged() -> String {
    UNLOGGED.iter().map(|(name, value)| format!("SET {name} = '{value}';\n")).collect()
}

/// Errors without the statement.
const TERSELY: &str = "\\set VERBOSITY terse\n";

impl Agent {
    /// The output of this script, without headers.
    pub(super) async fn run_sql(&self, script: &str, time: Duration) -> Result<String, Refusal> {
        let psql = self.postgres_directory(&self.state.get())?.join("psql");
        let mut command = RunAs::Agent.command(&psql);
        command.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--no-password", "--file=-"]);
        command.args(["--set=ON_ERROR_STOP=1", "--dbname=postgres"]);
        self.log_in(&mut command, &self.put_password_file()?);
        Ok(tools::run(command, &format!("{TERSELY}{}{script}", unlogged()), time).await?)
    }

    /// The login settings for programs that use libpq.
    pub(super) fn log_in(&self, command: &mut Command, password_file: &Path) {
        let (address, pki) = (self.state.get().address, self.layout.patroni_certificates());
        command.env("PGHOST", address.to_string()).env("PGPORT", CLIENT_PORT.to_string());
        command.env("PGUSER", SUPERUSER).env("PGPASSFILE", password_file).env("PGCONNECT_TIMEOUT", "3");
        command.env("PGSSLMODE", "verify-ca").env("PGSSLROOTCERT", pki.join("ca.crt"));
        command.env("PGSSLCERT", pki.join("peer.crt")).env("PGSSLKEY", pki.join("peer.key"));
        command.env("PGAPPNAME", "quorate").env("PGCLIENTENCODING", "UTF8");
    }

    pub(super) fn put_password_file(&self) -> Result<std::path::PathBuf, Refusal> {
        let password = self.patroni_settings()?.logins().superuser.password.clone();
        let path = self.layout.password_file();
        files::ensure(&path, password_line(&password).as_bytes(), files::PRIVATE, None)?;
        Ok(path)
    }
}

/// A line of libpq's password file.
pub(super) fn password_line(password: &Secret) -> String {
    format!("*:*:*:{SUPERUSER}:{}\n", escaped(password.expose()))
}

fn escaped(password: &str) -> String {
    password.replace('\\', "\\\\").replace(':', "\\:")
}
