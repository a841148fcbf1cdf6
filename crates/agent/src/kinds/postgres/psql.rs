//! SQL to the PostgreSQL of this machine, as its superuser. It needs the certificate of a member and the password, as everybody who logs in as
//! the superuser does.

use std::time::Duration;

use quorate_core::kinds::postgres::{CLIENT_PORT, SUPERUSER};

use super::tools;
use super::user::RunAs;
use crate::agent::Agent;
use crate::api::Refusal;
use crate::files;

/// Errors without the statement, and no statement in the server's log: some hold what passwords are checked with.
const QUIETLY: &str = "\\set VERBOSITY terse\n\
    SET log_statement = 'none';\nSET log_min_error_statement = 'panic';\nSET log_min_duration_statement = -1;\n";

impl Agent {
    /// What this script prints, without headers.
    pub(super) async fn run_sql(&self, script: &str, time: Duration) -> Result<String, Refusal> {
        let state = self.state.get();
        let psql = self.postgres_directory(&state)?.join("psql");
        let pki = self.layout.patroni_certificates();
        let mut command = RunAs::Agent.command(&psql);
        command.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--no-password", "--file=-"]);
        command.args(["--set=ON_ERROR_STOP=1", "--dbname=postgres"]);
        command.env("PGHOST", state.address.to_string()).env("PGPORT", CLIENT_PORT.to_string());
        command.env("PGUSER", SUPERUSER).env("PGPASSFILE", self.put_password_file()?).env("PGCONNECT_TIMEOUT", "3");
        command.env("PGSSLMODE", "verify-ca").env("PGSSLROOTCERT", pki.join("ca.crt"));
        command.env("PGSSLCERT", pki.join("peer.crt")).env("PGSSLKEY", pki.join("peer.key"));
        command.env("PGAPPNAME", "quorate").env("PGCLIENTENCODING", "UTF8");
        Ok(tools::run(command, &format!("{QUIETLY}{script}"), time).await?)
    }

    fn put_password_file(&self) -> Result<std::path::PathBuf, Refusal> {
        let password = self.patroni_settings()?.logins().superuser.password.clone();
        let path = self.layout.password_file();
        let line = format!("*:*:*:{SUPERUSER}:{}\n", escaped(password.expose()));
        files::ensure(&path, line.as_bytes(), files::PRIVATE, None)?;
        Ok(path)
    }
}

fn escaped(password: &str) -> String {
    password.replace('\\', "\\\\").replace(':', "\\:")
}
