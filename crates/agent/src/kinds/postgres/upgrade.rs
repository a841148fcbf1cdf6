//! A major version upgrade: rehearsed on a copy, then done next to the existing data, which is only read. Also the steps after it, and the
//! way back.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_core::kinds::postgres::{CLIENT_PORT, REPLICATOR, RestoreState, SUPERUSER, TaskSeen};
use quorate_core::model::{DataSeen, Stamp};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use super::backup::LONGEST;
use super::data;
use super::initialize::IN_CONTROL_FILE;
use super::private::Private;
use super::psql::{UNLOGGED, password_line};
use super::restore::passwords;
use super::temporary::make_room;
use super::user::RunAs;
use super::{processes, tablespaces, tools};
use crate::agent::Agent;
use crate::api::Refusal;
use crate::files::{self, Owner};
use crate::stamp::{self, check_own, describe};
use crate::{AgentError, blocking};

/// For `initdb` on a slow disk.
const CREATING: Duration = Duration::from_secs(300);
/// What starts a process for an upgrade is known by this variable, so what a killed agent left at work is found.
pub(super) const MARK: &str = "QUORATE_UPGRADE";
/// Of what `pg_upgrade` says so much is passed on.
const MOST_WORDS: usize = 2000;
/// The first version whose `pg_upgrade` carries statistics over, but for some.
const KEEPS_STATISTICS: u16 = 18;

/// The private directory of one upgrade: its sockets, who is let in, and what `pg_upgrade` writes.
struct Work {
    directory: Private,
    run_as: RunAs,
    owner: Option<Owner>,
    old: PathBuf,
    new: PathBuf,
    root: String,
}

impl Work {
    fn hba(&self) -> PathBuf {
        self.directory.path().join("hba.conf")
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = self.run_as.command(program);
        command.current_dir(self.directory.path()).env(MARK, &self.root);
        command
    }

    /// Settings of a server that only these programs reach, and that stores no log.
    fn settings(&self) -> Vec<String> {
        let hba = format!("hba_file={}", self.hba().display());
        let fixed = ["ssl=off", "archive_mode=off", "synchronous_standby_names=", "primary_conninfo=", "cluster_name="];
        let more = ["logging_collector=off", "log_destination=stderr", "huge_pages=off"];
        let unlogged = UNLOGGED.iter().map(|(name, value)| format!("{name}={value}"));
        [hba].into_iter().chain(fixed.into_iter().chain(more).map(str::to_owned)).chain(unlogged).collect()
    }

    /// Has a server recover this data and shut it down, with SQL in between: one statement to a line.
    async fn recover(&self, programs: &Path, data: &Path, script: &str, more: Vec<String>) -> Result<(), AgentError> {
        let mut single = self.command(&programs.join("postgres"));
        single.arg("--single").arg("-D").arg(data);
        let own = [String::from("exit_on_error=true")];
        for setting in self.settings().into_iter().chain(own).chain(more) {
            single.arg("-c").arg(setting);
        }
        single.arg(SUPERUSER);
        tools::run(single, script, LONGEST).await.map(drop)
    }

    /// New and empty data of the new version, as the old was created.
    async fn create(&self, locale: &str, password: &str, data: &Path) -> Result<(), AgentError> {
        let file = self.directory.path().join("password");
        files::write(&file, password.as_bytes(), files::PRIVATE, self.owner)?;
        let mut initdb = self.command(&self.new.join("initdb"));
        initdb.arg("--pgdata").arg(data).arg("--pwfile").arg(&file).args(["--username", SUPERUSER, "--no-sync"]);
        initdb.args(["--data-checksums", "--auth=scram-sha-256", "--encoding=UTF8", "--locale", locale]);
        let created = tools::run(initdb, "", CREATING).await.map(drop);
        files::remove(&file)?;
        created
    }

    async fn upgrade(&self, old: &Path, new: &Path, mode: &str) -> Result<(), Refusal> {
        let mut upgrade = self.command(&self.new.join("pg_upgrade"));
        upgrade.arg("--old-bindir").arg(&self.old).arg("--new-bindir").arg(&self.new);
        upgrade.arg("--old-datadir").arg(old).arg("--new-datadir").arg(new);
        upgrade.arg("--socketdir").arg(self.directory.path()).args(["--username", SUPERUSER, mode]);
        let libraries = preloaded(old).map(|libraries| format!("shared_preload_libraries='{libraries}'"));
        let options = |settings: Vec<String>| {
            settings.into_iter().chain(libraries.clone()).map(|setting| format!("-c {setting}")).collect::<Vec<_>>()
        };
        upgrade.arg("--old-options").arg(options(self.settings()).join(" "));
        upgrade.arg("--new-options").arg(options(self.settings()).join(" "));
        upgrade.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = timeout(LONGEST, upgrade.output()).await;
        let output = output.map_err(|_| Refusal::failed("pg_upgrade does not end"))?;
        let output = output.map_err(|source| AgentError::Spawn { program: String::from("pg_upgrade"), source })?;
        if output.status.success() {
            return Ok(());
        }
        let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
        Err(Refusal::Failed { why: format!("pg_upgrade failed: {}", complaint(&said)) })
    }
}

impl Agent {
    /// Begins work in the background, and answers at once: facts say how far it has come.
    fn begin_task(
        self: &Arc<Self>,
        id: &str,
        doing: &str,
        work: impl Future<Output = Result<(), Refusal>> + Send + 'static,
    ) -> Result<(), Refusal> {
        let mut task = self.postgres.task.lock().expect("no holder panics");
        match task.as_ref() {
            Some(TaskSeen { id: known, state, .. }) if known == id && !matches!(state, RestoreState::Failed { .. }) => {
                return Ok(());
            }
            Some(TaskSeen { state: RestoreState::Running { doing }, .. }) => {
                return Err(Refusal::failed(format!("this machine is busy: {doing}")));
            }
            _ => {}
        }
        let state = RestoreState::Running { doing: doing.to_owned() };
        *task = Some(TaskSeen { id: id.to_owned(), state, seconds: None });
        drop(task);
        let (agent, id, began) = (self.clone(), id.to_owned(), Instant::now());
        tokio::spawn(async move {
            let state = match work.await {
                Ok(()) => RestoreState::Ready,
                Err(refusal) => RestoreState::Failed { why: refusal.to_string() },
            };
            let seconds = Some(began.elapsed().as_secs().max(1));
            *agent.postgres.task.lock().expect("no holder panics") = Some(TaskSeen { id, state, seconds });
        });
        Ok(())
    }

    fn doing(&self, what: &str) {
        if let Some(task) = self.postgres.task.lock().expect("no holder panics").as_mut() {
            task.state = RestoreState::Running { doing: what.to_owned() };
        }
    }

    pub(super) fn rehearse_upgrade(self: &Arc<Self>, id: &str) -> Result<(), Refusal> {
        let agent = self.clone();
        let work = async move {
            let places = [agent.layout.postgres_rehearsed(), agent.layout.postgres_rehearsed_new()];
            let done = agent.rehearse(&places[0], &places[1]).await;
            agent.end_upgrade_processes().await;
            let removed = blocking(move || places.iter().try_for_each(|place| files::remove_dir(place))).await;
            done.and(removed.map_err(Refusal::from))
        };
        self.begin_task(id, "rehearsing the upgrade: copying the data", work)
    }

    async fn rehearse(&self, copy: &Path, new: &Path) -> Result<(), Refusal> {
        self.end_upgrade_processes().await;
        let work = self.upgrade_work().await?;
        let (home, owner, places) = (self.layout.postgres_home(), work.owner, [copy.to_owned(), new.to_owned()]);
        let data = self.layout.postgres_data();
        blocking(move || {
            tablespaces::refuse_to_upgrade(&data)?;
            files::remove_dir(&places[1])?;
            make_room(&home, &places[..1], owner, size(&data))
        })
        .await?;
        self.copy_data(&work, copy).await?;
        self.doing("rehearsing the upgrade: recovering the copy");
        work.recover(&work.old, copy, "", Vec::new()).await?;
        self.doing("rehearsing the upgrade: pg_upgrade on the copy");
        let (locale, password) = self.of_new_data()?;
        work.create(&locale, &password, new).await?;
        // The copy is deleted anyway.
        work.upgrade(copy, new, "--link").await
    }

    /// As another standby would be cloned, from the server of this machine.
    async fn copy_data(&self, work: &Work, copy: &Path) -> Result<(), Refusal> {
        let password = self.patroni_settings()?.logins().replication.password.clone();
        let pgpass = work.directory.path().join("pgpass");
        let line = password_line(&password).replace(&format!(":{SUPERUSER}:"), &format!(":{REPLICATOR}:"));
        files::write(&pgpass, line.as_bytes(), files::PRIVATE, work.owner)?;
        let mut backup = work.command(&work.old.join("pg_basebackup"));
        self.log_in(&mut backup, &pgpass);
        backup.env("PGUSER", REPLICATOR).env("PGPORT", CLIENT_PORT.to_string());
        backup.arg("--pgdata").arg(copy).args([
            "--checkpoint=fast",
            "--wal-method=stream",
            "--no-sync",
            "--no-password",
        ]);
        tools::run(backup, "", LONGEST).await?;
        // The copy of a standby would be one too.
        files::remove(&copy.join("standby.signal"))?;
        Ok(files::remove(&pgpass)?)
    }

    async fn upgrade_work(&self) -> Result<Work, Refusal> {
        let state = self.state.get();
        let (run_as, owner) = (self.run_as().await?, self.patroni().await?.owner()?);
        let old = self.postgres_directory(&state)?;
        let missing = || Refusal::failed("the programs of the other version were not found on this machine");
        let new = state.postgres.programs.next.clone().ok_or_else(missing)?;
        let directory = Private::make(&self.layout, owner)?;
        let root = self.layout.root().display().to_string();
        let work = Work { directory, run_as, owner, old, new, root };
        files::write(&work.hba(), b"local all all trust\n", files::PRIVATE, owner)?;
        Ok(work)
    }

    /// The locale, and the superuser's password, which the upgrade replaces by what is in the old data.
    fn of_new_data(&self) -> Result<(String, String), Refusal> {
        let state = self.state.get();
        let service = state.node_config.as_ref().and_then(|in_place| in_place.config.patroni());
        let locale = service.map(|service| service.locale.clone()).unwrap_or_default();
        Ok((locale, self.patroni_settings()?.logins().superuser.password.expose().to_owned()))
    }

    /// Begins to make data of the new version out of what is there, and answers at once: facts say how far it has come.
    pub(super) async fn begin_upgrade(self: &Arc<Self>, expects: DataSeen, stamp: Stamp) -> Result<(), Refusal> {
        check_own(&self.state.get(), &stamp)?;
        if let Some(seen) = self.restore_seen().await?.filter(|seen| seen.token == stamp.token)
            && !matches!(seen.state, RestoreState::Failed { .. })
        {
            return Ok(());
        }
        self.end_upgrade_processes().await;
        let layout = self.layout.clone();
        blocking(move || {
            processes::end_postmaster(&layout);
            Ok::<_, AgentError>(())
        })
        .await?;
        self.check_postgres_stopped().await?;
        let found = self.look_at_postgres_data().await?;
        if found != expects {
            return Err(Refusal::not_as_expected(describe(&expects), describe(&found)));
        }
        self.note_restore(&stamp, RestoreState::Running { doing: String::from("upgrading the data with pg_upgrade") });
        let agent = self.clone();
        tokio::spawn(async move {
            let state = match agent.upgrade_beside(&stamp).await {
                Ok(()) => RestoreState::Ready,
                Err(refusal) => RestoreState::Failed { why: refusal.to_string() },
            };
            agent.note_restore(&stamp, state);
        });
        Ok(())
    }

    async fn upgrade_beside(&self, stamp: &Stamp) -> Result<(), Refusal> {
        let work = self.upgrade_work().await?;
        let (data, new, mark) =
            (self.layout.postgres_data(), self.layout.postgres_restored(), self.layout.postgres_restored_stamp());
        files::remove(&mark)?;
        let clones = can_clone(&data).await;
        let (home, owner, old, target) = (self.layout.postgres_home(), work.owner, data.clone(), new.clone());
        blocking(move || {
            // One may have been made since the rehearsal.
            tablespaces::refuse_to_upgrade(&old)?;
            let needed = if clones { 0 } else { size(&old) };
            make_room(&home, &[target], owner, needed)
        })
        .await?;
        // An earlier attempt may have been killed while a server had the data open.
        if data::control(&data).is_none_or(|seen| !seen.is_shut_down()) {
            work.recover(&work.old, &data, "", Vec::new()).await?;
        }
        let (locale, password) = self.of_new_data()?;
        work.create(&locale, &password, &new).await?;
        work.upgrade(&data, &new, if clones { "--clone" } else { "--copy" }).await?;
        // Limits that are noted in the data could not be lowered without a restart later.
        work.recover(&work.new, &new, "", noted_in_data(&data)).await?;
        Ok(stamp::write(&mark, stamp)?)
    }

    pub(super) async fn end_upgrade_processes(&self) {
        let root = self.layout.root().display().to_string();
        let ended = tokio::task::spawn_blocking(move || {
            for process in crate::process::with_environment(MARK, &root) {
                process.end(Duration::from_secs(5));
            }
        });
        let _ = ended.await;
    }

    pub(super) fn analyze_postgres(self: &Arc<Self>, id: &str) -> Result<(), Refusal> {
        let agent = self.clone();
        let work = async move {
            let state = agent.state.get();
            let service = state.node_config.as_ref().and_then(|in_place| in_place.config.patroni());
            let version = service.map_or(0, |service| service.version);
            let mut vacuumdb = RunAs::Agent.command(&agent.postgres_directory(&state)?.join("vacuumdb"));
            agent.log_in(&mut vacuumdb, &agent.put_password_file()?);
            vacuumdb.args(["--all", "--analyze-in-stages", "--no-password", "--quiet"]);
            if version >= KEEPS_STATISTICS {
                vacuumdb.arg("--missing-stats-only");
            }
            Ok(tools::run(vacuumdb, "", LONGEST).await.map(drop)?)
        };
        self.begin_task(id, "collecting statistics of all tables", work)
    }

    /// Begins to make the data from before an upgrade ready to be put in place. It gets the current passwords.
    pub(super) async fn take_back(self: &Arc<Self>, was: Stamp, stamp: Stamp) -> Result<(), Refusal> {
        check_own(&self.state.get(), &stamp)?;
        if let Some(seen) = self.restore_seen().await?.filter(|seen| seen.token == stamp.token)
            && !matches!(seen.state, RestoreState::Failed { .. })
        {
            return Ok(());
        }
        let layout = self.layout.clone();
        let found = blocking(move || data::replaced(&layout)).await?.map(|kept| kept.stamp);
        if found.as_ref() != Some(&was) {
            let found = found.map_or_else(|| String::from("none"), |stamp| describe(&DataSeen::Stamped(stamp)));
            return Err(Refusal::not_as_expected(describe(&DataSeen::Stamped(was)), found));
        }
        self.note_restore(&stamp, RestoreState::Running { doing: String::from("setting the current passwords in it") });
        let agent = self.clone();
        tokio::spawn(async move {
            let state = match agent.make_ready_again(&stamp).await {
                Ok(()) => RestoreState::Ready,
                Err(refusal) => RestoreState::Failed { why: refusal.to_string() },
            };
            agent.note_restore(&stamp, state);
        });
        Ok(())
    }

    async fn make_ready_again(&self, stamp: &Stamp) -> Result<(), Refusal> {
        let work = self.upgrade_work().await?;
        let script = passwords(&self.patroni_settings()?);
        work.recover(&work.new, &self.layout.postgres_replaced(), &script, Vec::new()).await?;
        let (layout, stamp) = (self.layout.clone(), stamp.clone());
        Ok(blocking(move || data::bring_back(&layout, &stamp)).await?)
    }
}

/// Whether the file system copies files by reference.
async fn can_clone(data: &Path) -> bool {
    let copy = files::beside(data, "cloned");
    let mut cp = Command::new("cp");
    cp.arg("--reflink=always").arg(data.join("PG_VERSION")).arg(&copy).stderr(Stdio::null());
    let cloned = cp.status().await.is_ok_and(|status| status.success());
    let _ = files::remove(&copy);
    cloned
}

/// The bytes of all files below a directory, as far as they can be read.
fn size(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let bytes = entries.filter_map(|entry| {
        let about = entry.metadata().ok()?;
        Some(if about.is_dir() { size(&entry.path()) } else { about.len() })
    });
    bytes.sum()
}

/// The parameters that all members have, as Patroni has noted them next to the data.
fn parameters(data: &Path) -> Option<serde_json::Map<String, Value>> {
    let bytes = fs::read(data.join("patroni.dynamic.json")).ok()?;
    let config: Value = serde_json::from_slice(&bytes).ok()?;
    config.pointer("/postgresql/parameters")?.as_object().cloned()
}

fn noted_in_data(data: &Path) -> Vec<String> {
    let known = parameters(data).unwrap_or_default();
    let noted = IN_CONTROL_FILE.into_iter().filter_map(|name| Some((name, known.get(name)?)));
    noted
        .map(|(name, value)| format!("{name}={}", value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
        .collect()
}

/// Some extensions cannot be created by a server that has not loaded them.
fn preloaded(data: &Path) -> Option<String> {
    let libraries = parameters(data)?.get("shared_preload_libraries")?.as_str()?.to_owned();
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-,. /$".contains(c);
    (!libraries.is_empty() && libraries.chars().all(plain)).then_some(libraries)
}

/// What `pg_upgrade` found, without what it did before, and with the list that it names.
fn complaint(said: &str) -> String {
    let from = said.lines().position(|line| line.ends_with("fatal") || line.contains("*failure*"));
    let lines = said.lines().skip(from.unwrap_or(0)).map(str::trim).filter(|line| !line.is_empty());
    let mut words: Vec<String> = lines.filter(|line| *line != "Failure, exiting").map(str::to_owned).collect();
    let named = words.iter().flat_map(|line| line.split_whitespace()).map(|word| word.trim_matches('"'));
    let listed = named.filter(|word| word.starts_with('/') && (word.ends_with(".txt") || word.ends_with(".log")));
    let listed: Vec<String> = listed.filter_map(|path| fs::read_to_string(path).ok()).collect();
    for text in listed {
        let last: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        words.extend(last[last.len().saturating_sub(20)..].iter().map(|line| (*line).to_owned()));
    }
    let text = words.join("; ");
    text.chars().take(MOST_WORDS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pg_upgrade_findings_are_reported_with_the_contents_of_the_list_file() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("tables_using_reg.txt");
        fs::write(&list, "In database: shop\n  public.odd.handler\n").unwrap();
        let said = format!(
            "Checking cluster versions                                     ok\n\
             Checking for reg* data types in user tables                   fatal\n\n\
             Your installation contains one of the reg* data types in user tables.\n\
             A list of the problem columns is in the file:\n    {}\n\nFailure, exiting\n",
            list.display()
        );
        let told = complaint(&said);
        assert!(told.starts_with("Checking for reg* data types in user tables"), "{told}");
        assert!(told.contains("In database: shop; public.odd.handler") && !told.contains("exiting"), "{told}");
        assert!(!told.contains("cluster versions"), "{told}");
    }

    #[test]
    fn only_plain_names_of_libraries_reach_a_command_line() {
        let dir = tempfile::tempdir().unwrap();
        let put = |value: &str| {
            let config = serde_json::json!({"postgresql": {"parameters": {"shared_preload_libraries": value}}});
            fs::write(dir.path().join("patroni.dynamic.json"), config.to_string()).unwrap();
            preloaded(dir.path())
        };
        assert_eq!(put("pg_stat_statements, auto_explain").as_deref(), Some("pg_stat_statements, auto_explain"));
        assert_eq!((put("x'; rm -rf /"), put("")), (None, None));
    }
}
