//! The programs of PostgreSQL and Patroni on this machine: found for a configuration, and checked again before each start.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quorate_core::model::{BinarySeen, NextVersion, NodeConfig, PatroniService};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::AgentError;
use crate::agent::Agent;
use crate::kinds::etcd::binaries::{self, BinaryError};

/// A request for facts waits no longer for a search.
const SEARCHING: Duration = Duration::from_secs(1);

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Programs {
    /// The directory of PostgreSQL's.
    pub(super) postgres: Option<PathBuf>,
    pub(super) patroni: Option<PathBuf>,
    pub(super) postgres_seen: BinarySeen,
    pub(super) patroni_seen: BinarySeen,
    /// For backups; not searched for without them.
    #[serde(default)]
    pub(super) pgbackrest: Option<PathBuf>,
    #[serde(default)]
    pub(super) pgbackrest_seen: BinarySeen,
    /// The directory of the programs of the wanted version.
    #[serde(default)]
    pub(super) next: Option<PathBuf>,
    #[serde(default)]
    pub(super) next_seen: BinarySeen,
}

impl Programs {
    /// The first one that was not found.
    pub(crate) fn missing(&self) -> Option<&BinarySeen> {
        let seen = [&self.postgres_seen, &self.patroni_seen, &self.pgbackrest_seen, &self.next_seen];
        seen.into_iter().find(|seen| matches!(seen, BinarySeen::Missing { .. }))
    }
}

/// Where Debian's packages put PostgreSQL's programs, or where the config says that they are.
pub(super) fn usual_directory(version: u16, named: Option<&String>) -> PathBuf {
    named.cloned().unwrap_or_else(|| format!("/usr/lib/postgresql/{version}/bin")).into()
}

impl Agent {
    pub(crate) async fn postgres_programs_for(&self, config: &NodeConfig, search: Option<&str>) -> Programs {
        match config.patroni() {
            Some(service) => self.find_programs(service, search).await,
            None => Programs::default(),
        }
    }

    /// Looks for the programs of the config in place once more.
    pub(super) async fn find_programs_again(&self) -> Result<(), AgentError> {
        let state = self.state.get();
        let Some(service) = state.node_config.as_ref().and_then(|in_place| in_place.config.patroni()) else {
            return Ok(());
        };
        let programs = self.find_programs(service, state.search.as_deref()).await;
        if programs != state.postgres.programs {
            self.state.update(|state| state.postgres.programs = programs).await?;
        }
        self.put_patroni_config().await
    }

    /// It may have been installed since. On a slow machine, a program may take long to print its version. The search continues in the
    /// background then: facts that come too late are none, and would hide what is missing.
    pub(super) async fn look_for_missing_programs(self: &Arc<Self>) -> Result<(), AgentError> {
        if self.state.get().postgres.programs.missing().is_none() {
            return Ok(());
        }
        let mut search = self.postgres.search.lock().await;
        let agent = self.clone();
        let task = search.get_or_insert_with(|| tokio::spawn(async move { agent.find_programs_again().await }));
        let Ok(ended) = timeout(SEARCHING, task).await else { return Ok(()) };
        *search = None;
        ended.unwrap_or(Ok(()))
    }

    /// Another version may have been installed in the same place. It takes effect when Patroni restarts.
    pub(super) async fn patroni_now(&self, known: &Programs) -> BinarySeen {
        self.version_now(known.patroni.clone(), &known.patroni_seen).await
    }

    /// The same of PostgreSQL, which Patroni restarts.
    pub(super) async fn postgres_now(&self, known: &Programs) -> BinarySeen {
        let program = known.postgres.as_ref().map(|directory| directory.join("postgres"));
        self.version_now(program, &known.postgres_seen).await
    }

    async fn version_now(&self, program: Option<PathBuf>, known: &BinarySeen) -> BinarySeen {
        let seen = still(program.clone(), known);
        match (&program, &seen) {
            (Some(program), BinarySeen::Version(_)) => {
                version_of(program, &self.cache).await.map_or(seen, BinarySeen::Version)
            }
            _ => seen,
        }
    }

    /// One that is missing does not fail the order: the facts report it, and the planner decides.
    async fn find_programs(&self, service: &PatroniService, search: Option<&str>) -> Programs {
        let own = std::env::var_os("PATH").unwrap_or_default();
        let paths = search.map(OsStr::new).into_iter().chain([own.as_os_str()]).flat_map(std::env::split_paths);
        let paths: Vec<PathBuf> = paths.collect();
        let postgres = find_postgres(service.version, service.programs.as_ref(), &paths, &self.cache).await;
        let patroni = find_patroni(service, &paths, &self.cache).await;
        let (postgres, postgres_seen) = taken_apart(postgres);
        let (patroni, patroni_seen) = taken_apart(patroni);
        let (pgbackrest, pgbackrest_seen) = match &service.backup {
            Some(_) => taken_apart(find_pgbackrest(&paths, &self.cache).await),
            None => Default::default(),
        };
        let (next, next_seen) = match &service.next {
            Some(NextVersion { version, programs }) => {
                taken_apart(find_postgres(*version, programs.as_ref(), &paths, &self.cache).await)
            }
            None => Default::default(),
        };
        Programs { postgres, patroni, postgres_seen, patroni_seen, pgbackrest, pgbackrest_seen, next, next_seen }
    }
}

/// The found program, unless it is gone now.
pub(super) fn still(path: Option<PathBuf>, seen: &BinarySeen) -> BinarySeen {
    match path {
        Some(path) if !path.is_file() => {
            BinarySeen::Missing { why: format!("there is no program {} any more", path.display()) }
        }
        _ => seen.clone(),
    }
}

fn taken_apart(found: Result<(PathBuf, String), String>) -> (Option<PathBuf>, BinarySeen) {
    match found {
        Ok((path, version)) => (Some(path), BinarySeen::Version(version)),
        Err(why) => (None, BinarySeen::Missing { why }),
    }
}

async fn find_postgres(
    wanted: u16,
    named: Option<&String>,
    paths: &[PathBuf],
    cache: &Path,
) -> Result<(PathBuf, String), String> {
    let usual = usual_directory(wanted, named);
    let elsewhere: &[PathBuf] = if named.is_some() { &[] } else { paths };
    let mut others = Vec::new();
    for directory in [&usual].into_iter().chain(elsewhere).filter(|directory| directory.join("postgres").is_file()) {
        match version_of(&directory.join("postgres"), cache).await {
            Ok(version) if major(&version) == Some(wanted) => return Ok((directory.clone(), version)),
            Ok(version) => others.push(format!("{} is PostgreSQL {version}", directory.display())),
            Err(error) => others.push(AgentError::from(error).in_full()),
        }
    }
    let searched = if named.is_some() { "" } else { " nor on the PATH" };
    let others = if others.is_empty() { String::new() } else { format!(" ({})", others.join("; ")) };
    Err(format!("PostgreSQL {wanted} is not in {}{searched}{others}", usual.display()))
}

async fn find_pgbackrest(paths: &[PathBuf], cache: &Path) -> Result<(PathBuf, String), String> {
    let missing = || String::from("there is no program `pgbackrest` on the PATH, and the spec has backups");
    let found = paths.iter().map(|directory| directory.join("pgbackrest")).find(|path| path.is_file());
    let found = found.ok_or_else(missing)?;
    let version = binaries::version_by(&found, cache, "version", version_in)
        .await
        .map_err(|error| AgentError::from(error).in_full())?;
    Ok((found, version))
}

async fn find_patroni(service: &PatroniService, paths: &[PathBuf], cache: &Path) -> Result<(PathBuf, String), String> {
    let on_path = || paths.iter().map(|directory| directory.join("patroni")).find(|path| path.is_file());
    let found = match &service.patroni {
        Some(path) => PathBuf::from(path),
        None => on_path().ok_or_else(|| String::from("there is no program `patroni` on the PATH"))?,
    };
    let version = version_of(&found, cache).await.map_err(|error| AgentError::from(error).in_full())?;
    Ok((found, version))
}

async fn version_of(program: &Path, cache: &Path) -> Result<String, BinaryError> {
    binaries::version_by(program, cache, "--version", version_in).await
}

/// `postgres (PostgreSQL) 15.20 (Debian 15.20-0+deb12u1)`, `patroni 4.1.5`.
fn version_in(answer: &str) -> Option<String> {
    let is_version = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
    answer.split_whitespace().find(is_version).map(str::to_owned)
}

fn major(version: &str) -> Option<u16> {
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_the_programs_print_them() {
        let debian = version_in("postgres (PostgreSQL) 15.20 (Debian 15.20-0+deb12u1)\n").unwrap();
        assert_eq!((debian.as_str(), major(&debian)), ("15.20", Some(15)));
        assert_eq!(version_in("pgBackRest 2.45\n").as_deref(), Some("2.45"));
        assert_eq!(version_in("patroni 4.1.5\n").as_deref(), Some("4.1.5"));
        assert_eq!(version_in("postgres (PostgreSQL) 18beta1").as_deref().and_then(major), Some(18));
        assert_eq!(version_in("usage: patroni [-h]"), None);
    }
}
