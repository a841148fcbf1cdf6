//! Verifies a backup: restores it into a temporary PostgreSQL and checks all tables, indexes and checksums.

use std::path::Path;
use std::time::Duration;

use quorate_core::kinds::postgres::RestoreTarget;
use quorate_core::kinds::postgres::backup::{BackupChecked, Mark};

use super::backup::LONGEST;
use super::temporary::{self, Temporary, Trouble};
use super::tools;
use crate::agent::Agent;
use crate::api::Refusal;
use crate::{blocking, files};

const ASKING: Duration = Duration::from_secs(600);
const TABLES: &str = "SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'm', 'p');";
const DATABASES: &str = "SELECT datname FROM pg_database WHERE datallowconn ORDER BY datname;";

impl Agent {
    /// What was found, or what is wrong with the backup. A refusal says nothing about it.
    pub(super) async fn verify_backup(
        &self,
        target: &RestoreTarget,
        mark: Mark,
    ) -> Result<Result<BackupChecked, String>, Refusal> {
        let data = self.layout.postgres_verified();
        let tablespaces = files::beside(&data, "tablespaces");
        let checked = self.look_at_backup(target, mark, &data, &tablespaces).await;
        blocking(move || temporary::remove(&data, &tablespaces)).await?;
        match checked {
            Ok(checked) => Ok(Ok(checked)),
            Err(Trouble::Backup(why)) => Ok(Err(why)),
            Err(Trouble::Other(refusal)) => Err(refusal),
        }
    }

    async fn look_at_backup(
        &self,
        target: &RestoreTarget,
        mark: Mark,
        data: &Path,
        tablespaces: &Path,
    ) -> Result<BackupChecked, Trouble> {
        let (jobs, label) = (&self.postgres.jobs, &target.label);
        jobs.doing(format!("restoring backup {label}"));
        self.restore_files(target, data, tablespaces).await?;
        jobs.doing(format!("recovering backup {label} in a temporary PostgreSQL"));
        let temporary = self.recover(data, target).await?;
        jobs.doing(format!("checking the tables and indexes of backup {label}"));
        let checked = check(&temporary, mark).await;
        temporary.stop().await?;
        let checked = checked?;
        jobs.doing(format!("comparing the checksums of backup {label}"));
        Ok(BackupChecked { blocks: self.check_blocks(data).await?, ..checked })
    }

    async fn check_blocks(&self, data: &Path) -> Result<u64, Trouble> {
        let programs = self.postgres_directory(&self.state.get())?;
        let mut check = self.run_as().await?.command(&programs.join("pg_checksums"));
        check.arg("--check").arg("--pgdata").arg(data);
        let said = tools::run(check, "", LONGEST).await.map_err(|error| Trouble::Backup(error.in_full()))?;
        let blocks = said.lines().find_map(|line| line.strip_prefix("Blocks scanned:"));
        Ok(blocks.and_then(|number| number.trim().parse().ok()).unwrap_or(0))
    }
}

async fn check(temporary: &Temporary, mark: Mark) -> Result<BackupChecked, Trouble> {
    let rows = rows_up_to(temporary, mark).await?;
    if rows != mark.rows {
        let all = mark.rows;
        return Err(Trouble::Backup(format!("it has {rows} of the {all} rows that were marked before it was taken")));
    }
    let (databases, tables) = count(temporary).await?;
    let amcheck = check_tables(temporary).await?;
    let version = temporary.sql("postgres", "SHOW server_version;", ASKING).await?;
    let postgres_version = version.split_whitespace().next().unwrap_or_default().to_owned();
    Ok(BackupChecked { rows, databases, tables, amcheck, blocks: 0, postgres_version })
}

async fn rows_up_to(temporary: &Temporary, mark: Mark) -> Result<i64, Trouble> {
    let asked = format!("SELECT count(*) FROM quorate.backup_marks WHERE id <= {};", mark.id);
    let said = temporary.sql("postgres", &asked, ASKING).await.map_err(|error| Trouble::Backup(error.in_full()))?;
    Ok(said.trim().parse().unwrap_or(0))
}

async fn count(temporary: &Temporary) -> Result<(u64, u64), Trouble> {
    let (mut databases, mut tables) = (0, 0);
    for database in temporary.sql("postgres", DATABASES, ASKING).await?.lines() {
        databases += 1;
        // A name with `=` in it would be read as a connection string.
        let named = format!("dbname='{}'", database.replace('\\', "\\\\").replace('\'', "\\'"));
        tables += temporary.sql(&named, TABLES, ASKING).await?.trim().parse::<u64>().unwrap_or(0);
    }
    Ok((databases, tables))
}

/// Says whether there is a program for it. What it needs in each database is created: nobody else sees this copy.
async fn check_tables(temporary: &Temporary) -> Result<bool, Trouble> {
    if !temporary.has("pg_amcheck") {
        return Ok(false);
    }
    let mut check = temporary.tool("pg_amcheck");
    check.args(["--all", "--install-missing", "--heapallindexed", "--no-password"]);
    tools::run(check, "", LONGEST).await.map(|_| true).map_err(|error| Trouble::Backup(error.in_full()))
}
