//! Restores a backup into a directory next to the data and recovers it with a temporary PostgreSQL. Only the agent can connect to it, it
//! archives no log, and it waits for no standby.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use quorate_core::kinds::postgres::SUPERUSER;
use quorate_core::kinds::postgres::{RestoreTarget, Until};
use tokio::process::{Child, Command};

use super::backup::LONGEST;
use super::private::Private;
use super::user::RunAs;
use super::{processes, tools};
use crate::agent::Agent;
use crate::api::Refusal;
use crate::files::{self, Owner};
use crate::{AgentError, blocking, logs};

/// The polling interval during recovery.
const PAUSE: Duration = Duration::from_millis(200);
const ASKING: Duration = Duration::from_secs(60);
/// For one that writes all that is in memory.
const STOPPING: Duration = Duration::from_secs(600);
const LAST_BYTES: u64 = 16 << 10;
/// What it must have free, for each part of the data: some is needed for the log.
const SPARE: u64 = 5;
/// Anyone who can reach its socket is accepted; the socket is in a private directory.
const HBA: &str = "local all all trust\n";

pub(super) struct Temporary {
    data: PathBuf,
    programs: PathBuf,
    run_as: RunAs,
    /// Where its socket is.
    socket: Private,
    server: Child,
}

/// Why a temporary PostgreSQL failed.
pub(super) enum Trouble {
    /// The backup, or the log on top of it, is damaged.
    Backup(String),
    /// It could not be tested.
    Other(Refusal),
}

impl<E: Into<Refusal>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Trouble::Other(error.into())
    }
}

impl Agent {
    /// Restores a backup into directories that are replaced, and starts nothing.
    pub(super) async fn restore_files(
        &self,
        target: &RestoreTarget,
        data: &Path,
        tablespaces: &Path,
    ) -> Result<(), Trouble> {
        let RestoreTarget { label, repository, bytes, .. } = target;
        let owner = self.patroni().await?.owner()?;
        let (home, places, bytes) = (self.layout.postgres_home(), [data, tablespaces].map(Path::to_owned), *bytes);
        let log = log_file(data);
        blocking(move || {
            processes::end_work_on(&places[0]);
            files::remove(&log)?;
            make_room(&home, &places, owner, bytes)
        })
        .await?;
        let mut command = self.pgbackrest_command("restore").await?;
        command.env(processes::WORKS_ON, data);
        command.arg(format!("--set={label}")).arg(format!("--repo={repository}")).arg("--type=none");
        command.arg(format!("--pg1-path={}", data.display()));
        command.arg(format!("--tablespace-map-all={}", tablespaces.display()));
        tools::run(command, "", LONGEST).await.map(drop).map_err(|error| Trouble::Backup(error.in_full()))
    }

    /// Starts PostgreSQL on restored files and waits until it has recovered to the target and takes writes.
    pub(super) async fn recover(&self, data: &Path, target: &RestoreTarget) -> Result<Temporary, Trouble> {
        let state = self.state.get();
        let programs = self.postgres_directory(&state)?;
        let (run_as, owner) = (self.run_as().await?, self.patroni().await?.owner()?);
        let socket = Private::make(&self.layout, owner)?;
        files::write(&data.join("recovery.signal"), b"", files::PRIVATE, owner)?;
        files::remove(&data.join("standby.signal"))?;
        files::write(&hba_file(data), HBA.as_bytes(), files::PRIVATE, owner)?;
        files::write(&config_file(data), config(target).as_bytes(), files::PRIVATE, owner)?;
        let mut command = run_as.command(&programs.join("postgres"));
        command.arg("-D").arg(data).env(processes::WORKS_ON, data);
        for (name, value) in self.settings(data, socket.path(), target)? {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let server = spawn(command, &log_file(data))?;
        let mut temporary = Temporary { data: data.to_owned(), programs, run_as, socket, server };
        temporary.wait_until_recovered().await?;
        Ok(temporary)
    }

    fn settings(
        &self,
        data: &Path,
        socket: &Path,
        target: &RestoreTarget,
    ) -> Result<Vec<(&'static str, String)>, Refusal> {
        let text = |path: PathBuf| path.display().to_string();
        Ok(vec![
            ("listen_addresses", String::new()),
            ("unix_socket_directories", socket.display().to_string()),
            ("port", String::from("5432")),
            ("config_file", text(config_file(data))),
            ("hba_file", text(hba_file(data))),
            ("ssl", String::from("off")),
            ("archive_mode", String::from("off")),
            ("synchronous_standby_names", String::new()),
            ("primary_conninfo", String::new()),
            ("shared_buffers", String::from("128MB")),
            ("huge_pages", String::from("off")),
            ("logging_collector", String::from("off")),
            ("log_destination", String::from("stderr")),
            ("autovacuum", String::from("off")),
            ("cluster_name", String::new()),
            ("restore_command", self.pgbackrest()?.restore_command(data, target.repository)),
            ("recovery_target_action", String::from("promote")),
            ("recovery_target_timeline", target.timeline.map_or(String::from("latest"), |number| number.to_string())),
        ])
    }
}

impl Temporary {
    async fn wait_until_recovered(&mut self) -> Result<(), Trouble> {
        loop {
            if self.server.try_wait().map_err(AgentError::file("look at", &self.data))?.is_some() {
                return Err(Trouble::Backup(last_complaint(&log_file(&self.data))));
            }
            let answer = self.sql("postgres", "SELECT pg_is_in_recovery();", ASKING).await;
            if answer.is_ok_and(|answer| answer.trim() == "f") {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The output of a script, without headers.
    pub(super) async fn sql(&self, database: &str, script: &str, time: Duration) -> Result<String, AgentError> {
        let mut psql = self.tool("psql");
        psql.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--no-password", "--file=-"]);
        psql.args(["--set=ON_ERROR_STOP=1", &format!("--dbname={database}")]);
        tools::run(psql, script, time).await
    }

    /// One of PostgreSQL's programs, which logs in to it.
    pub(super) fn tool(&self, name: &str) -> Command {
        let mut command = self.run_as.command(&self.programs.join(name));
        command.env("PGHOST", self.socket.path()).env("PGPORT", "5432").env("PGUSER", SUPERUSER);
        command
    }

    pub(super) fn has(&self, tool: &str) -> bool {
        self.programs.join(tool).is_file()
    }

    /// Stops it as one that is meant to be started again.
    pub(super) async fn stop(mut self) -> Result<(), AgentError> {
        let mut stop = self.run_as.command(&self.programs.join("pg_ctl"));
        stop.args(["stop", "--mode=fast", "--wait", "--silent"]).arg(format!("--timeout={}", STOPPING.as_secs()));
        stop.arg("--pgdata").arg(&self.data);
        tools::run(stop, "", STOPPING).await?;
        let _ = self.server.wait().await;
        for left in [hba_file(&self.data), config_file(&self.data), log_file(&self.data)] {
            files::remove(&left)?;
        }
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = self.server.start_kill();
    }
}

/// Removes restored files that were never put in place.
pub(super) fn remove(data: &Path, tablespaces: &Path) -> Result<(), AgentError> {
    files::remove(&log_file(data))?;
    files::remove_dir(tablespaces)?;
    files::remove_dir(data)
}

/// Makes empty directories in the place of whatever is there.
pub(super) fn make_room(home: &Path, places: &[PathBuf], owner: Option<Owner>, bytes: u64) -> Result<(), Refusal> {
    files::make_dir(home, 0o700)?;
    files::give_to(home, owner)?;
    places.iter().try_for_each(|place| files::remove_dir(place))?;
    let disk = rustix::fs::statvfs(home).map_err(|error| AgentError::file("look at", home)(error.into()))?;
    let (free, needed) = (disk.f_bavail.saturating_mul(disk.f_frsize), bytes + bytes / SPARE);
    if free < needed {
        let why = format!(
            "a copy of the data needs {} of disk in {}, and {} are free",
            mebibytes(needed),
            home.display(),
            mebibytes(free)
        );
        return Err(Refusal::Failed { why });
    }
    for directory in places {
        files::make_dir(directory, 0o700)?;
        files::give_to(directory, owner)?;
    }
    Ok(())
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

fn spawn(mut command: Command, log: &Path) -> Result<Child, AgentError> {
    let output = files::open_log(log)?;
    let errors = output.try_clone().map_err(AgentError::file("open", log))?;
    command.stdin(Stdio::null()).stdout(output).stderr(errors).kill_on_drop(true);
    command.spawn().map_err(|source| AgentError::Spawn { program: String::from("postgres"), source })
}

/// PostgreSQL's reason for exiting.
fn last_complaint(log: &Path) -> String {
    complaint_in(&logs::last_bytes(log, LAST_BYTES))
}

/// What it tells those who ask too early or too late is no reason.
fn complaint_in(text: &str) -> String {
    let is_reason = |line: &str| !line.contains("FATAL:  the database system is ");
    let fatal = |line: &&str| is_reason(line) && (line.contains("FATAL:") || line.contains("PANIC:"));
    let said = text.lines().rfind(fatal).or_else(|| text.lines().next_back()).unwrap_or_default();
    let said = said.split_once("FATAL:").map_or(said, |(_, said)| said).trim();
    match said.contains("recovery ended before configured recovery target was reached") {
        true => String::from("the archived log ends before the requested point"),
        false => format!("PostgreSQL does not recover it: {said}"),
    }
}

fn log_file(data: &Path) -> PathBuf {
    files::beside(data, "log")
}

/// Patroni's settings clear all targets. PostgreSQL takes that for a second target, unless ours comes after.
fn config(target: &RestoreTarget) -> String {
    let target = match &target.until {
        Until::End => String::new(),
        Until::Backup => String::from("recovery_target = 'immediate'\n"),
        // PostgreSQL counts in millionths of a second.
        Until::Time(time) => format!("recovery_target_time = '{}'\n", time.strftime("%Y-%m-%d %H:%M:%S.%6f+00")),
        Until::Lsn(lsn) => format!("recovery_target_lsn = '{lsn}'\n"),
        Until::Xid(xid) => format!("recovery_target_xid = '{xid}'\n"),
    };
    format!("include 'postgresql.conf'\n{target}")
}

fn config_file(data: &Path) -> PathBuf {
    data.join("quorate_recovery.conf")
}

fn hba_file(data: &Path) -> PathBuf {
    data.join("quorate_hba.conf")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_that_a_recovery_ended_is_not_an_earlier_answer() {
        let too_early = "2026-11-18 05:31:12 UTC [7] FATAL:  the database system is starting up\n";
        let reason =
            "2026-11-18 05:31:13 UTC [8] FATAL:  recovery ended before configured recovery target was reached\n";
        let too_late = "2026-11-18 05:31:13 UTC [9] FATAL:  the database system is in recovery mode\n";
        let complaint = complaint_in(&[too_early, reason, too_late].concat());
        assert_eq!(complaint, "the archived log ends before the requested point");
        let other = "[8] FATAL:  could not access the file\n";
        assert_eq!(
            complaint_in(&[other, too_late].concat()),
            "PostgreSQL does not recover it: could not access the file"
        );
    }
}
