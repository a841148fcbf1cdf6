//! Backups with pgBackRest: prepares the repository, takes and removes backups.

use std::time::Duration;

use jiff::Timestamp;
use quorate_core::kinds::postgres::backup::{BackupKind, BackupTaken, Mark};
use serde::Deserialize;
use serde_json::Value;

use super::jobs::PrimaryFiles;
use super::tools;
use crate::agent::Agent;
use crate::api::Refusal;

/// For a store that is far away.
const PREPARING: Duration = Duration::from_secs(180);
const ASKING: Duration = Duration::from_secs(60);
/// A backup of much data over a slow line takes days, and one that hangs should end some time.
pub(super) const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);
/// What is written before each backup.
const MARK: &str = "BEGIN;\n\
    CREATE SCHEMA IF NOT EXISTS quorate;\n\
    CREATE TABLE IF NOT EXISTS quorate.backup_marks \
    (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL DEFAULT now());\n\
    INSERT INTO quorate.backup_marks DEFAULT VALUES RETURNING id;\n\
    SELECT count(*) FROM quorate.backup_marks;\nCOMMIT;\n\
    SELECT pg_snapshot_xmin(pg_current_snapshot());\n\
    SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int;\n";

impl Agent {
    /// Makes the store ready for this cluster and has the primary send a piece of its log there. It can be repeated.
    pub(super) async fn prepare_repository(&self, place: String) -> Result<(), Refusal> {
        let created = tools::run(self.pgbackrest_command("stanza-create").await?, "", PREPARING).await;
        if let Err(error) = created {
            // It has a repository of this cluster, whose data has another version or identity since an upgrade.
            let upgraded = tools::run(self.pgbackrest_command("stanza-upgrade").await?, "", PREPARING).await;
            upgraded.map_err(|_| error)?;
        }
        tools::run(self.pgbackrest_command("check").await?, "", PREPARING).await?;
        Ok(self.state.update(|state| state.postgres.repository = Some(place)).await?)
    }

    /// A commit comes first: recovery to a time ends at the first commit after it.
    pub(super) async fn store_log(&self) -> Result<(), Refusal> {
        self.mark().await?;
        Ok(tools::run(self.pgbackrest_command("check").await?, "", PREPARING).await.map(drop)?)
    }

    pub(super) async fn mark(&self) -> Result<Mark, Refusal> {
        let said = self.run_sql(MARK, ASKING).await?;
        let mut numbers = said.lines().filter_map(|line| line.trim().parse::<i64>().ok());
        let (Some(id), Some(rows)) = (numbers.next(), numbers.next()) else {
            return Err(Refusal::failed("the mark of the backup was not written"));
        };
        let mut unsigned = || numbers.next().and_then(|number| u64::try_from(number).ok());
        Ok(Mark { id, rows, transaction: unsigned(), timeline: unsigned() })
    }

    pub(super) async fn back_up(
        &self,
        kind: BackupKind,
        repository: u8,
        primary: Option<PrimaryFiles>,
    ) -> Result<BackupTaken, Refusal> {
        let mut command = self.pgbackrest_command("backup").await?;
        command.args(["--log-level-console=info", &format!("--type={}", kind.in_pgbackrest())]);
        command.arg(format!("--repo={repository}"));
        let _pass = match &primary {
            Some(primary) => Some(self.reach_primary(&mut command, primary).await?),
            None => None,
        };
        let said = tools::run(command, "", LONGEST).await?;
        let label =
            label_in(&said).ok_or_else(|| Refusal::failed("pgBackRest does not say what it called the backup"))?;
        let mut command = self.pgbackrest_command("info").await?;
        command.args(["--output=json", &format!("--repo={repository}")]);
        let info = tools::run(command, "", ASKING).await?;
        taken_in(&info, label).map_err(|why| Refusal::failed(format!("pgBackRest's list of backups: {why}")))
    }

    pub(super) async fn expire_backup(&self, label: &str, repository: u8) -> Result<(), Refusal> {
        let mut command = self.pgbackrest_command("expire").await?;
        command.arg(format!("--set={label}")).arg(format!("--repo={repository}"));
        Ok(tools::run(command, "", LONGEST).await.map(drop)?)
    }
}

fn label_in(said: &str) -> Option<&str> {
    said.lines().find_map(|line| line.split_once("new backup label = ")).map(|(_, label)| label.trim())
}

#[derive(Deserialize)]
struct Stanza {
    backup: Vec<Listed>,
    db: Vec<Database>,
}

#[derive(Deserialize)]
struct Database {
    id: u64,
    #[serde(rename = "system-id")]
    system_id: u64,
    version: String,
}

#[derive(Deserialize)]
struct Listed {
    label: String,
    #[serde(rename = "type")]
    kind: String,
    prior: Option<String>,
    archive: Ends,
    lsn: Ends,
    timestamp: Times,
    info: Sizes,
    database: InDatabase,
}

#[derive(Deserialize)]
struct Ends {
    start: String,
    stop: String,
}

#[derive(Deserialize)]
struct Times {
    start: i64,
    stop: i64,
}

#[derive(Deserialize)]
struct Sizes {
    size: u64,
    repository: Stored,
}

#[derive(Deserialize)]
struct Stored {
    delta: u64,
}

#[derive(Deserialize)]
struct InDatabase {
    id: u64,
}

fn taken_in(info: &str, label: &str) -> Result<BackupTaken, String> {
    let stanzas: Vec<Value> = serde_json::from_str(info).map_err(|error| error.to_string())?;
    let first = stanzas.into_iter().next().ok_or("it is empty")?;
    let Stanza { backup, db } = serde_json::from_value(first).map_err(|error| error.to_string())?;
    let listed = backup.into_iter().find(|listed| listed.label == label);
    let listed = listed.ok_or_else(|| format!("backup {label} is not in it"))?;
    let of = db.into_iter().find(|db| db.id == listed.database.id).ok_or("it does not say of what the backup is")?;
    let time = |seconds| Timestamp::from_second(seconds).map_err(|error| error.to_string());
    Ok(BackupTaken {
        label: listed.label,
        kind: match listed.kind.as_str() {
            "full" => BackupKind::Full,
            "diff" => BackupKind::Differential,
            "incr" => BackupKind::Incremental,
            other => return Err(format!("unknown kind of backup: {other:?}")),
        },
        prior: listed.prior,
        began: time(listed.timestamp.start)?,
        ended: time(listed.timestamp.stop)?,
        first_lsn: listed.lsn.start,
        last_lsn: listed.lsn.stop,
        first_wal: listed.archive.start,
        last_wal: listed.archive.stop,
        bytes: listed.info.size,
        stored_bytes: listed.info.repository.delta,
        system_id: of.system_id.to_string(),
        postgres_version: of.version,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = r#"[{"archive":[{"id":"15-1","max":"000000010000000000000003"}],
        "backup":[{"archive":{"start":"000000010000000000000002","stop":"000000010000000000000003"},"database":{"id":1,"repo-key":1},
        "error":false,"info":{"delta":23213621,"repository":{"delta":3101232,"size":3101232},"size":23213621},
        "label":"20261117-164444F","lsn":{"start":"0/2000028","stop":"0/3000050"},"prior":null,"reference":null,
        "timestamp":{"start":1794933884,"stop":1794933890},"type":"full"}],"cipher":"aes-256-cbc",
        "db":[{"id":1,"repo-key":1,"system-id":7709182300222157910,"version":"15"}],"name":"shop"}]"#;

    #[test]
    fn a_backup_is_known_as_pgbackrest_lists_it() {
        let said = "2026-11-17 16:44:50.299 P00   INFO: new backup label = 20261117-164444F\n";
        let taken = taken_in(INFO, label_in(said).unwrap()).unwrap();
        assert_eq!((taken.kind, taken.timeline(), taken.bytes), (BackupKind::Full, Some(1), 23_213_621));
        assert_eq!((taken.last_lsn.as_str(), taken.system_id.as_str()), ("0/3000050", "7709182300222157910"));
        assert!(taken_in(INFO, "20261117-164444X").is_err());
    }
}
