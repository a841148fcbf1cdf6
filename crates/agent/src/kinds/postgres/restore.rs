//! Restores the cluster's data: first next to the existing data, recovered and stopped; then renamed into its place. The previous data is
//! kept next to it until the next restore.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use quorate_core::kinds::postgres::{RestoreSeen, RestoreState, RestoreTarget, SUPERUSER};
use quorate_core::model::{DataSeen, Stamp};

use super::config::{PatroniConfig, configured_files};
use super::psql::unlogged;
use super::temporary::Trouble;
use super::tools::{identifier, literal};
use super::{data, dcs, processes, tablespaces};
use crate::agent::Agent;
use crate::api::Refusal;
use crate::files::{self, Owner};
use crate::layout::Layout;
use crate::stamp::{self, check_own, describe};
use crate::state::State;
use crate::{AgentError, blocking};

impl Agent {
    /// Starts it, and answers at once: facts report the progress.
    pub(super) async fn begin_restore(self: &Arc<Self>, stamp: Stamp, target: RestoreTarget) -> Result<(), Refusal> {
        check_own(&self.state.get(), &stamp)?;
        if let Some(seen) = self.restore_seen().await?.filter(|seen| seen.token == stamp.token)
            && !matches!(seen.state, RestoreState::Failed { .. })
        {
            return Ok(());
        }
        self.pgbackrest()?;
        let layout = self.layout.clone();
        // The tablespaces of a clone look unused until its last file has come.
        if blocking(move || Ok::<_, AgentError>(processes::is_cloning(&layout))).await? {
            return Err(Refusal::failed(
                "data is being cloned to this machine; nothing is restored here before that has ended",
            ));
        }
        let mut task = self.postgres.restore_task.lock().await;
        // Of a restore that was withdrawn: two at work on one directory would damage what they restore.
        if let Some(former) = task.take() {
            former.abort();
            let _ = former.await;
        }
        self.note_restore(&stamp, RestoreState::Running { doing: format!("fetching backup {}", target.label) });
        let agent = self.clone();
        *task = Some(tokio::spawn(async move {
            let state = match agent.restore_beside(&stamp, &target).await {
                Ok(()) => RestoreState::Ready,
                Err(Trouble::Backup(why)) => RestoreState::Failed { why },
                Err(Trouble::Other(refusal)) => RestoreState::Failed { why: refusal.to_string() },
            };
            agent.note_restore(&stamp, state);
        }));
        Ok(())
    }

    pub(super) fn note_restore(&self, stamp: &Stamp, state: RestoreState) {
        let seen = RestoreSeen { token: stamp.token.clone(), state };
        *self.postgres.restoring.lock().expect("no holder panics") = Some(seen);
    }

    async fn restore_beside(&self, stamp: &Stamp, target: &RestoreTarget) -> Result<(), Trouble> {
        let data = self.layout.postgres_restored();
        let mark = self.layout.postgres_restored_stamp();
        files::remove(&mark)?;
        let (layout, token) = (self.layout.clone(), stamp.token.clone());
        let tablespaces = blocking(move || {
            let restored = layout.postgres_restored();
            processes::end_work_on(&restored);
            files::remove_dir(&restored)?;
            tablespaces::clear_unused(&layout)?;
            tablespaces::of_restored(&layout, &token)
        })
        .await?;
        self.restore_files(target, &data, &tablespaces).await?;
        let doing = String::from("recovering it in a temporary PostgreSQL");
        self.note_restore(stamp, RestoreState::Running { doing });
        let temporary = self.recover(&data, target).await?;
        // The passwords of that time may differ from the current ones.
        let changed = temporary.sql("postgres", &passwords(&self.patroni_settings()?), super::catalog::CHANGING).await;
        temporary.stop().await?;
        changed?;
        Ok(stamp::write(&mark, stamp)?)
    }

    /// Its state for the facts. Complete restored data outlives the agent.
    pub(super) async fn restore_seen(&self) -> Result<Option<RestoreSeen>, AgentError> {
        if let Some(seen) = self.postgres.restoring.lock().expect("no holder panics").clone() {
            return Ok(Some(seen));
        }
        let layout = self.layout.clone();
        let look = move || match data::system_id_in(&layout.postgres_restored()) {
            Some(_) => stamp::read(&layout.postgres_restored_stamp()),
            None => Ok(None),
        };
        let stamp = blocking(look).await?;
        Ok(stamp.map(|stamp| RestoreSeen { token: stamp.token, state: RestoreState::Ready }))
    }

    /// The DCS comes first: Patroni's keys there belong to the data that is replaced.
    pub(super) async fn put_restored(&self, was: DataSeen, stamp: Stamp) -> Result<(), Refusal> {
        check_own(&self.state.get(), &stamp)?;
        self.check_postgres_stopped().await?;
        let found = self.look_at_postgres_data().await?;
        if found == DataSeen::Stamped(stamp.clone()) {
            // The answer to an earlier order was lost.
            return Ok(());
        }
        if found != was {
            return Err(Refusal::not_as_expected(describe(&was), describe(&found)));
        }
        let ready = self.restore_seen().await?.filter(|seen| seen.token == stamp.token);
        if ready.map(|seen| seen.state) != Some(RestoreState::Ready) {
            return Err(Refusal::failed("there is no restored data for this bootstrap"));
        }
        let restored = self.layout.postgres_restored();
        let system_id = data::system_id_in(&restored).ok_or_else(|| Refusal::failed("the restored data is damaged"))?;
        // An upgrade gives the data another identity.
        let former = data::system_id(&self.layout).or_else(|| data::system_id_in(&self.layout.postgres_replaced()));
        let state = self.state.get();
        let files = configured_files(&state);
        for id in [Some(system_id), former].into_iter().flatten() {
            dcs::forget(&self.patroni_settings()?, files, &id).await?;
        }
        self.check_still_obeyed()?;
        let (layout, owner) = (self.layout.clone(), self.patroni().await?.owner()?);
        blocking(move || exchange(&layout, &stamp, owner)).await?;
        *self.postgres.restoring.lock().expect("no holder panics") = None;
        Ok(self.state.update(other_data).await?)
    }

    /// Puts data aside that a restore has replaced.
    pub(super) async fn set_aside(&self, stamp: Stamp) -> Result<(), Refusal> {
        self.check_postgres_stopped().await?;
        let found = self.look_at_postgres_data().await?;
        let remembered = self.state.get().postgres.last_started.as_ref().is_some_and(|last| *last != stamp);
        match &found {
            DataSeen::Stamped(there) if *there == stamp => {}
            // The answer to an earlier order was lost.
            DataSeen::Empty if !remembered => {}
            _ => return Err(Refusal::not_as_expected(describe(&DataSeen::Stamped(stamp)), describe(&found))),
        }
        self.check_still_obeyed()?;
        let layout = self.layout.clone();
        blocking(move || {
            keep(&layout)?;
            files::remove(&layout.postgres_stamp())
        })
        .await?;
        Ok(self.state.update(other_data).await?)
    }

    /// Deletes data that was replaced.
    pub(super) async fn discard_replaced(&self, stamp: Stamp) -> Result<(), Refusal> {
        let layout = self.layout.clone();
        match blocking(move || data::replaced(&layout)).await? {
            // The answer to an earlier order was lost.
            None => return Ok(()),
            Some(kept) if kept.stamp == stamp => {}
            Some(kept) => {
                let found = describe(&DataSeen::Stamped(kept.stamp));
                return Err(Refusal::not_as_expected(describe(&DataSeen::Stamped(stamp)), found));
            }
        }
        self.check_still_obeyed()?;
        let layout = self.layout.clone();
        let deleted = move || {
            files::remove_dir(&layout.postgres_replaced())?;
            files::remove(&layout.postgres_replaced_stamp())?;
            tablespaces::clear_unused(&layout)
        };
        Ok(blocking(deleted).await?)
    }
}

/// What was noted of the data before. The store of backups may need preparation for other data.
fn other_data(state: &mut State) {
    (state.postgres.last_started, state.postgres.cloning, state.postgres.repository) = (None, false, None);
}

/// A crash in between leaves no data, and the order can be repeated.
fn exchange(layout: &Layout, stamp: &Stamp, owner: Option<Owner>) -> Result<(), AgentError> {
    let restored = layout.postgres_restored();
    let_be_archived(&restored.join("pg_wal"), owner)?;
    keep(layout)?;
    stamp::write(&layout.postgres_stamp(), stamp)?;
    fs::rename(&restored, layout.postgres_data()).map_err(AgentError::file("put in place", &restored))?;
    files::remove(&layout.postgres_restored_stamp())?;
    files::make_durable(&layout.postgres_home())
}

/// Moves the current data aside. Data that was put aside earlier is removed.
fn keep(layout: &Layout) -> Result<(), AgentError> {
    if data::is_bare(layout)? {
        return files::remove_dir(&layout.postgres_data());
    }
    let (there, kept) = (layout.postgres_data(), layout.postgres_replaced());
    files::remove_dir(&kept)?;
    match stamp::read(&layout.postgres_stamp())? {
        Some(stamp) => stamp::write(&layout.postgres_replaced_stamp(), &stamp)?,
        None => files::remove(&layout.postgres_replaced_stamp())?,
    }
    fs::rename(&there, &kept).map_err(AgentError::file("put aside", &there))
}

/// The temporary PostgreSQL stored nothing of the timeline that it began. Its history, and what it has finished, must not be missing from
/// the repository: without the history nobody finds the way from the backup to what is written from now on.
fn let_be_archived(wal: &Path, owner: Option<Owner>) -> Result<(), AgentError> {
    let entries = fs::read_dir(wal).map_err(AgentError::file("list", wal))?;
    let names: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    for name in to_archive(&names) {
        let done = wal.join("archive_status").join(format!("{name}.done"));
        let ready = wal.join("archive_status").join(format!("{name}.ready"));
        if !done.exists() && !ready.exists() {
            files::write(&ready, b"", files::PRIVATE, owner)?;
        }
    }
    Ok(())
}

/// The history of the newest timeline, and its pieces but the last, which is still written to.
fn to_archive(names: &[String]) -> Vec<&String> {
    let is_piece = |name: &&String| name.len() == 24 && name.bytes().all(|digit| digit.is_ascii_hexdigit());
    let Some(newest) = names.iter().filter(is_piece).map(|name| &name[..8]).max() else { return Vec::new() };
    let mut pieces: Vec<&String> = names.iter().filter(is_piece).filter(|name| name.starts_with(newest)).collect();
    pieces.sort();
    pieces.pop();
    let history = format!("{newest}.history");
    pieces.into_iter().chain(names.iter().filter(|name| **name == history)).collect()
}

pub(super) fn passwords(settings: &PatroniConfig) -> String {
    let logins = settings.logins();
    let roles = [&logins.superuser, &logins.replication, &logins.rewind];
    let change =
        |user: &str, password: &str| format!("ALTER ROLE {} LOGIN PASSWORD {};\n", identifier(user), literal(password));
    debug_assert_eq!(logins.superuser.username, SUPERUSER);
    unlogged() + &roles.map(|login| change(&login.username, login.password.expose())).concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_set_after_all_that_would_log_them_is_off() {
        let login = |user: &str| serde_json::json!({"username": user, "password": format!("secret of {user}")});
        let authentication =
            serde_json::json!({"superuser": login("postgres"), "replication": login("r"), "rewind": login("w")});
        let config = serde_json::json!({
            "scope": "shop", "name": "pg-1", "namespace": "/patroni/",
            "etcd3": {"hosts": []}, "postgresql": {"authentication": authentication},
        });
        let sql = passwords(&serde_json::from_value(config).unwrap());
        let (quiet, secret) = sql.split_at(sql.find("secret").unwrap());
        for name in
            ["log_statement", "log_min_duration_statement", "log_transaction_sample_rate", "pg_stat_statements.track"]
        {
            assert!(quiet.contains(&format!("SET {name} = ")), "{name}: {sql}");
        }
        assert!(!secret.contains("SET "), "{sql}");
    }

    #[test]
    fn finished_wal_of_the_newest_timeline_is_selected_for_archiving() {
        let names: Vec<String> = [
            "000000010000000000000007",
            "000000020000000000000007",
            "000000020000000000000008",
            "00000002.history",
            "00000001.history",
            "archive_status",
        ]
        .map(str::to_owned)
        .to_vec();
        let told: Vec<&str> = to_archive(&names).into_iter().map(String::as_str).collect();
        assert_eq!(told, ["000000020000000000000007", "00000002.history"]);
        assert!(to_archive(&[]).is_empty());
    }

    #[test]
    fn replaced_data_is_kept_and_a_crash_during_the_exchange_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path()).unwrap();
        let stamp =
            Stamp { cluster_id: String::from("c"), token: String::from("two"), member: "pg-1".into(), incarnation: 1 };
        let fill = |directory: &Path, word: &str| {
            fs::create_dir_all(directory.join("global")).unwrap();
            fs::create_dir_all(directory.join("pg_wal/archive_status")).unwrap();
            fs::write(directory.join("global/pg_control"), word.repeat(8)).unwrap();
        };
        fill(&layout.postgres_data(), "o");
        fill(&layout.postgres_restored(), "n");
        // A crash after the first rename.
        keep(&layout).unwrap();
        assert!(data::is_bare(&layout).unwrap());
        exchange(&layout, &stamp, None).unwrap();
        let read = |directory: &Path| fs::read_to_string(directory.join("global/pg_control")).unwrap();
        assert_eq!(read(&layout.postgres_data()), "nnnnnnnn");
        assert_eq!(read(&layout.postgres_replaced()), "oooooooo", "an empty directory does not replace what was kept");
        assert_eq!(data::look(&layout).unwrap(), DataSeen::Stamped(stamp));
    }
}
