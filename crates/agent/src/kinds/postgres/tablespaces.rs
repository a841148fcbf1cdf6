//! Tablespaces: directories outside of the data directory. PostgreSQL finds each through an entry of `pg_tblspc`: a link, or, where
//! `allow_in_place_tablespaces` was on, a directory. A restored backup has separate ones, in a directory named after the bootstrap, because
//! the existing data may use those of an earlier restore.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::layout::RESTORED_TABLESPACES;
use crate::api::Refusal;
use crate::layout::Layout;
use crate::{AgentError, files};

/// Where the tablespaces of restored data are put. Data that is in use is never there already.
pub(super) fn of_restored(layout: &Layout, token: &str) -> Result<PathBuf, Refusal> {
    let directory = layout.postgres_tablespaces(token);
    if users(layout)?.iter().any(|used| is_below(used, &directory)) {
        return Err(Refusal::failed("the data in place is the one that was restored for this bootstrap"));
    }
    Ok(directory)
}

/// Removes what restores have left and no data here uses.
pub(super) fn clear_unused(layout: &Layout) -> Result<(), AgentError> {
    let used = users(layout)?;
    let is_used = |directory: &PathBuf| used.iter().any(|path| is_below(path, directory));
    all_restored(layout)?.iter().filter(|place| !is_used(place)).try_for_each(|place| files::remove_dir(place))
}

/// Together with all data.
pub(super) fn wipe(layout: &Layout) -> Result<(), AgentError> {
    all_restored(layout)?.iter().try_for_each(|place| files::remove_dir(place))
}

/// Older agents had one place for all restores.
fn all_restored(layout: &Layout) -> Result<Vec<PathBuf>, AgentError> {
    let is_one =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(RESTORED_TABLESPACES));
    let older = of_older_agents(layout);
    Ok(entries(&layout.postgres_home())?.into_iter().filter(is_one).chain([older]).collect())
}

/// Other members could not be cloned afterwards: the directories would still hold the data of before, and a clone wants them empty.
pub(super) fn refuse_to_upgrade(data: &Path) -> Result<(), Refusal> {
    let found: Vec<String> = of(data)?.iter().map(|path| path.display().to_string()).collect();
    if found.is_empty() {
        return Ok(());
    }
    let why = format!(
        "the data has tablespaces ({}), which an upgrade does not take over: move what is in them with `ALTER TABLE ALL IN TABLESPACE … SET \
         TABLESPACE pg_default`, the same of indexes and `ALTER DATABASE … SET TABLESPACE pg_default`, drop them, and re-run",
        found.join(", ")
    );
    Err(Refusal::Failed { why })
}

fn of_older_agents(layout: &Layout) -> PathBuf {
    files::beside(&layout.postgres_restored(), "tablespaces")
}

/// All that some data here uses, be it put aside or not in place yet.
fn users(layout: &Layout) -> Result<Vec<PathBuf>, AgentError> {
    let aside = [layout.postgres_replaced(), layout.postgres_remnant(), layout.postgres_restored()];
    let all = [layout.postgres_data()].into_iter().chain(aside).collect::<Vec<_>>();
    Ok(all.iter().map(|data| of(data)).collect::<Result<Vec<_>, _>>()?.concat())
}

fn of(data: &Path) -> Result<Vec<PathBuf>, AgentError> {
    let target = |entry: PathBuf| match fs::read_link(&entry) {
        Ok(target) => Ok(target),
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(entry),
        Err(error) => Err(AgentError::file("look at", &entry)(error)),
    };
    entries(&data.join("pg_tblspc"))?.into_iter().map(target).collect()
}

/// None of a directory that is not there.
fn entries(directory: &Path) -> Result<Vec<PathBuf>, AgentError> {
    let failed = AgentError::file("list", directory);
    match fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>().map_err(failed),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed(error)),
    }
}

/// Links may lead through others.
fn is_below(path: &Path, directory: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    path.starts_with(directory) || real(path).starts_with(real(directory))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn layout() -> (tempfile::TempDir, Layout) {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path()).unwrap();
        (dir, layout)
    }

    fn uses(data: &Path, directory: &Path) {
        fs::create_dir_all(data.join("pg_tblspc")).unwrap();
        fs::create_dir_all(directory).unwrap();
        symlink(directory, data.join("pg_tblspc").join("16400")).unwrap();
    }

    #[test]
    fn tablespaces_in_use_survive_another_restore() {
        let (_dir, layout) = layout();
        let [one, two, ready, left] = ["one", "two", "ready", "left"].map(|token| layout.postgres_tablespaces(token));
        uses(&layout.postgres_data(), &two.join("fast"));
        uses(&layout.postgres_replaced(), &one.join("fast"));
        uses(&layout.postgres_restored(), &ready.join("fast"));
        fs::create_dir_all(left.join("fast")).unwrap();
        clear_unused(&layout).unwrap();
        assert!(one.join("fast").exists() && two.join("fast").exists() && !left.exists());
        assert!(ready.join("fast").exists(), "it will be put in place");
        assert!(of_restored(&layout, "two").is_err(), "it is in use");
        assert_eq!(of_restored(&layout, "three").unwrap(), layout.postgres_tablespaces("three"));
    }

    #[test]
    fn those_that_an_older_agent_restored_outlive_another_restore_too() {
        let (dir, layout) = layout();
        let older = of_older_agents(&layout);
        // A link that leads through another.
        let home = dir.path().join("home");
        fs::create_dir_all(layout.postgres_home()).unwrap();
        symlink(layout.postgres_home(), &home).unwrap();
        fs::create_dir_all(older.join("fast")).unwrap();
        uses(&layout.postgres_data(), &home.join(older.file_name().unwrap()).join("fast"));
        clear_unused(&layout).unwrap();
        assert!(older.join("fast").exists());
        fs::remove_file(layout.postgres_data().join("pg_tblspc/16400")).unwrap();
        clear_unused(&layout).unwrap();
        assert!(!older.exists());
    }

    #[test]
    fn data_with_tablespaces_is_not_upgraded() {
        let (_dir, layout) = layout();
        let data = layout.postgres_data();
        refuse_to_upgrade(&data).unwrap();
        uses(&data, &layout.root().join("mnt/fast"));
        fs::create_dir(data.join("pg_tblspc/16401")).unwrap();
        let Err(Refusal::Failed { why }) = refuse_to_upgrade(&data) else { panic!("it was not refused") };
        assert!(why.contains("/mnt/fast") && why.contains("/pg_tblspc/16401"), "{why}");
    }
}
