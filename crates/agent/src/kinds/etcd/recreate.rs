//! Creates the data of a new bootstrap from a survivor's data or from an uploaded snapshot. All work is done in a directory that
//! only etcd's user can enter, as that user. The previous data is never written to, and is kept next to the new data. An
//! interrupted recreation starts again; if its result is already complete, it is put in place, also by a later agent.

mod rebuild;
mod restore;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_core::kinds::etcd::limits::{MARGIN, MAX_REVISION};
use quorate_core::model::{DataSeen, EtcdService, MemberName, Stamp};
use rustix::process::Signal;
use tokio::process::Command;
use tokio::time::timeout;

use super::{data, service};
use crate::agent::Agent;
use crate::api::Refusal;
use crate::files::{self, Owner};
use crate::kinds::etcd::binaries::{self, BinaryError};
use crate::layout::Layout;
use crate::stamp::{check_own, describe};
use crate::state::State;
use crate::{AgentError, blocking};

/// For a database as large as etcd's may be, on a slow disk. The controller that gave the order may have given up by then, and finds it
/// done when he asks again.
const RESTORING: Duration = Duration::from_secs(900);

/// What is to be made, and of what.
pub(crate) struct Recreation {
    /// What must be in the data directory.
    pub(crate) was: DataSeen,
    pub(crate) stamp: Stamp,
    pub(crate) initial_cluster: BTreeMap<MemberName, String>,
    pub(crate) peer_url: String,
    /// By how much the revision goes up; all before is marked as compacted. Of a survivor, where its own revision is known: what it continues
    /// from at least.
    pub(crate) bump_revision: u64,
    pub(crate) origin: Origin,
}

pub(crate) enum Origin {
    /// A copy of the data at hand.
    Survivor,
    /// The snapshot with this SHA-256, brought here before.
    Staged { sha256: String },
}

impl Agent {
    pub(crate) async fn recreate(&self, recreation: Recreation) -> Result<(), Refusal> {
        let stopped = self.check_stopped().await;
        if stopped.is_ok() {
            self.finish_recreation().await?;
        }
        match self.look_at_data().await? {
            DataSeen::Stamped(found) if found == recreation.stamp => return Ok(()),
            found if found == recreation.was => {}
            found => return Err(Refusal::not_as_expected(describe(&recreation.was), describe(&found))),
        }
        stopped?;
        check_own(&self.state.get(), &recreation.stamp)?;
        check_among(&recreation)?;
        let place = WorkDirectory::new(&self.layout);
        let made = self.make(&place, &recreation).await;
        if made.is_err() {
            place.clear().await?;
        }
        made?;
        if let Err(refused) = self.check_still_obeyed() {
            place.clear().await?;
            return Err(refused);
        }
        Ok(self.finish_recreation().await?)
    }

    /// Makes the new data, complete but not yet in place.
    async fn make(&self, place: &WorkDirectory, recreation: &Recreation) -> Result<(), Refusal> {
        self.find_binary_again().await?;
        let state = self.state.get();
        let (etcd, program) = self.etcd_in_place(&state)?;
        let etcdutl = self.etcdutl(etcd, &program).await?;
        place.clear().await?;
        place.create()?;
        let owner = self.etcd.service.owner()?;
        let database = match &recreation.origin {
            Origin::Survivor => rebuild::database(&self.layout, place, etcd, &program, owner).await?,
            Origin::Staged { sha256 } => restore::database(&self.layout, place, sha256, owner).await?,
        };
        let bump_revision = raised(recreation.bump_revision, database.revision)?;
        let (made, path) = (place.made(), database.path.clone());
        let restored = restore_into(&made, &etcdutl, database, recreation, bump_revision, owner);
        match &recreation.origin {
            Origin::Survivor => restored.await?,
            Origin::Staged { sha256 } => {
                if let Err(failed) = restored.await {
                    restore::refuse_damaged(&self.layout, path, sha256).await?;
                    return Err(failed.into());
                }
            }
        }
        place.take_what_was_made()?;
        let (ready, text) = (place.ready(), serde_json::to_vec(&recreation.stamp).expect("plain data serializes"));
        Ok(blocking(move || files::write_durably(&ready, &text, files::PRIVATE)).await?)
    }

    /// Refuses if the program that makes the new data is missing. As long as no etcd is in place, this is not known.
    pub(crate) async fn check_recreatable(&self) -> Result<(), Refusal> {
        let state = self.state.get();
        let Ok((etcd, program)) = self.etcd_in_place(&state) else { return Ok(()) };
        match self.etcdutl(etcd, &program).await {
            Err(AgentError::Binary(missing @ BinaryError::NoEtcdutl { .. })) => Err(Refusal::NotAsExpected {
                expected: String::from("a program that raises revisions, which no snapshot is restored without"),
                found: format!("none: {missing}"),
            }),
            found => Ok(found.map(drop)?),
        }
    }

    async fn etcdutl(&self, etcd: &EtcdService, program: &Path) -> Result<PathBuf, AgentError> {
        let state = self.state.get();
        let beside = state.etcd.binary.home.as_ref().map_or_else(|| program.to_owned(), |home| home.join("etcd"));
        let search = state.search.clone().map(OsString::from).or_else(|| std::env::var_os("PATH"));
        let found = binaries::etcdutl(&beside, &etcd.version, &self.cache, search.as_deref()).await;
        found.map_err(AgentError::Binary)
    }

    /// Puts a complete result in place, if there is one, from whatever point an earlier attempt came to.
    pub(crate) async fn finish_recreation(&self) -> Result<(), AgentError> {
        let (place, layout) = (WorkDirectory::new(&self.layout), self.layout.clone());
        let Some(stamp) = blocking(move || put_in_place(&place, &layout)).await? else { return Ok(()) };
        let token = stamp.token.clone();
        let begin = |state: &mut State| {
            state.etcd.forget_formation();
            state.etcd.last_started = Some(stamp);
        };
        self.state.update(begin).await?;
        tracing::info!(token, "the data of a new bootstrap is in place; the old data is kept next to it");
        WorkDirectory::new(&self.layout).clear().await
    }
}

/// A member that the others do not know by this URL would never find them.
fn check_among(recreation: &Recreation) -> Result<(), Refusal> {
    let Recreation { stamp, initial_cluster, peer_url, .. } = recreation;
    match initial_cluster.get(&stamp.member) {
        Some(url) if url == peer_url => Ok(()),
        found => {
            let found = found.map_or("it is not among them", String::as_str).to_owned();
            Err(Refusal::not_as_expected(format!("{} at {peer_url} among the new members", stamp.member), found))
        }
    }
}

/// Where a recreation works: in a directory of etcd's user, as whom etcd and etcdutl run there. What the agent goes by is next to it, out of
/// their reach.
struct WorkDirectory {
    root: PathBuf,
}

impl WorkDirectory {
    fn new(layout: &Layout) -> Self {
        WorkDirectory { root: layout.renewal() }
    }

    fn work(&self) -> PathBuf {
        self.root.join("work")
    }

    /// Of a survivor's data.
    fn copy(&self) -> PathBuf {
        self.work().join("copy")
    }

    /// That was brought here.
    fn snapshot(&self) -> PathBuf {
        self.work().join("snapshot.db")
    }

    /// The new data as etcdutl leaves it.
    fn made(&self) -> PathBuf {
        self.work().join("new")
    }

    /// The new data once the agent has taken it.
    fn new_data(&self) -> PathBuf {
        self.root.join("new")
    }

    /// Holds the stamp of the new data once that is complete.
    fn ready(&self) -> PathBuf {
        self.root.join("ready.json")
    }

    fn log(&self) -> PathBuf {
        self.root.join("etcd.log")
    }

    fn data_argument(&self) -> String {
        format!("--data-dir={}", self.copy().display())
    }

    fn create(&self) -> Result<(), AgentError> {
        files::make_dir(&self.root, 0o711)?;
        files::make_dir(&self.work(), 0o700)
    }

    /// Hands the work to the user that etcd runs as. Until then nobody else could put a link there.
    async fn give_to(&self, owner: Option<Owner>) -> Result<(), AgentError> {
        let work = self.work();
        blocking(move || give_away(&work, owner)).await
    }

    /// Out of the reach of etcd's user, and then no link: it becomes etcd's data directory.
    fn take_what_was_made(&self) -> Result<(), AgentError> {
        let (made, new) = (self.made(), self.new_data());
        fs::rename(&made, &new).map_err(AgentError::file("take", &made))?;
        match fs::symlink_metadata(&new).map_err(AgentError::file("read", &new))?.is_dir() {
            true => Ok(()),
            false => Err(AgentError::Recreation { why: String::from("what etcdutl created is not a directory") }),
        }
    }

    /// Removes everything, an etcd that an earlier agent left behind included.
    async fn clear(&self) -> Result<(), AgentError> {
        if let Some(pid) = service::search(&self.data_argument()).and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        let (ready, root) = (self.ready(), self.root.clone());
        blocking(move || files::remove(&ready).and_then(|()| files::remove_dir(&root))).await
    }
}

/// A database to restore from.
struct Database {
    path: PathBuf,
    /// Whether etcd's own checksum stands at its end.
    has_checksum: bool,
    /// Where it is known.
    revision: Option<u64>,
}

/// By how much the revision goes up. Of a survivor the controller knows only how far the whole cluster had come, and asks for a revision
/// above that: what the survivor has itself need not be added to it again.
fn raised(bump_revision: u64, own: Option<u64>) -> Result<u64, AgentError> {
    let bump = own.map_or(bump_revision, |own| bump_revision.max(own.saturating_add(MARGIN)) - own);
    match own.unwrap_or(0).checked_add(bump) {
        Some(begins_at) if begins_at <= MAX_REVISION => Ok(bump),
        _ => Err(AgentError::Recreation {
            why: format!("a revision cannot be raised by {bump}: it would exceed etcd's limit"),
        }),
    }
}

async fn restore_into(
    data: &Path,
    etcdutl: &Path,
    database: Database,
    recreation: &Recreation,
    bump_revision: u64,
    owner: Option<Owner>,
) -> Result<(), AgentError> {
    let Recreation { stamp, initial_cluster, peer_url, bump_revision: _, was: _, origin: _ } = recreation;
    let all: Vec<String> = initial_cluster.iter().map(|(member, url)| format!("{member}={url}")).collect();
    let mut command = Command::new(etcdutl);
    command.args(["snapshot", "restore"]).arg(&database.path).args([
        format!("--skip-hash-check={}", !database.has_checksum),
        format!("--name={}", stamp.member),
        format!("--initial-cluster={}", all.join(",")),
        format!("--initial-cluster-token={}", stamp.token),
        format!("--initial-advertise-peer-urls={peer_url}"),
        format!("--data-dir={}", data.display()),
    ]);
    if bump_revision > 0 {
        command.arg(format!("--bump-revision={bump_revision}")).arg("--mark-compacted");
    }
    become_owner(&mut command, owner);
    let done = timeout(RESTORING, service::without_variables(&mut command).kill_on_drop(true).output()).await;
    let failed = |why: String| AgentError::Recreation { why: format!("etcdutl {why}") };
    let output = done
        .map_err(|_| failed(String::from("took too long")))?
        .map_err(|source| AgentError::Spawn { program: etcdutl.display().to_string(), source })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(format!("failed: {}", said.trim().lines().last().unwrap_or_default())))
}

/// What works on etcd's files needs no more rights than etcd: it may have been etcd who made them so.
fn become_owner(command: &mut Command, owner: Option<Owner>) {
    if let Some((user, group)) = owner {
        command.gid(group).uid(user);
    }
}

/// To the user that etcd runs as.
fn give_away(path: &Path, owner: Option<Owner>) -> Result<(), AgentError> {
    let Some((user, group)) = owner else { return Ok(()) };
    chown(path, Some(user), Some(group)).map_err(AgentError::file("give to etcd", path))?;
    if path.is_dir() {
        for entry in fs::read_dir(path).map_err(AgentError::file("list", path))? {
            give_away(&entry.map_err(AgentError::file("list", path))?.path(), owner)?;
        }
    }
    Ok(())
}

/// The old data is moved aside before the new stamp is set, and the new data is moved in last, so data never has a wrong stamp.
fn put_in_place(place: &WorkDirectory, layout: &Layout) -> Result<Option<Stamp>, AgentError> {
    let Ok(text) = fs::read(place.ready()) else { return Ok(None) };
    let stamp: Stamp =
        serde_json::from_slice(&text).map_err(|source| AgentError::Unreadable { path: place.ready(), source })?;
    let (data, new, before) = (layout.data(), place.new_data(), layout.before(&stamp.token));
    if new.exists() {
        if data.exists() && !before.exists() {
            fs::rename(&data, &before).map_err(AgentError::file("put the data aside at", &before))?;
        }
        data::write_stamp(layout, &stamp)?;
        fs::rename(&new, &data).map_err(AgentError::file("put in place", &data))?;
        files::make_durable(data.parent().unwrap_or(layout.root()))?;
    }
    Ok(Some(stamp))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_link_in_place_of_the_new_data_is_not_taken() {
        let directory = tempfile::tempdir().unwrap();
        let place = WorkDirectory { root: directory.path().join("renewal") };
        place.create().unwrap();
        fs::create_dir(place.made()).unwrap();
        place.take_what_was_made().unwrap();
        assert!(place.new_data().is_dir() && !place.made().exists());
        fs::remove_dir(place.new_data()).unwrap();
        std::os::unix::fs::symlink("/etc", place.made()).unwrap();
        assert!(place.take_what_was_made().unwrap_err().to_string().contains("not a directory"));
    }

    /// What etcdutl would be, telling as whom it runs. Only root can become somebody else.
    #[tokio::test]
    async fn etcdutl_runs_with_the_rights_of_the_etcd_user() {
        const NOBODY: Owner = (65534, 65534);
        let directory = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
        let place = WorkDirectory { root: directory.path().join("renewal") };
        place.create().unwrap();
        fs::write(place.snapshot(), "").unwrap();
        place.give_to(Some(NOBODY)).await.expect("this test is run as root");
        let program = directory.path().join("etcdutl");
        let script = "#!/bin/sh\nfor a; do case $a in --data-dir=*) d=${a#*=};; esac; done\n\
                      mkdir $d && cat $3 && { id -u; id -g; id -G; } > $d/who\n";
        files::write_durably(&program, script.as_bytes(), 0o755).unwrap();
        let stamp = Stamp { cluster_id: String::new(), token: String::new(), member: "a".into(), incarnation: 1 };
        let recreation = Recreation {
            was: DataSeen::Empty,
            stamp,
            initial_cluster: BTreeMap::new(),
            peer_url: String::new(),
            bump_revision: 0,
            origin: Origin::Survivor,
        };
        let database = Database { path: place.snapshot(), has_checksum: false, revision: None };
        restore_into(&place.made(), &program, database, &recreation, 0, Some(NOBODY)).await.unwrap();
        place.take_what_was_made().unwrap();
        assert_eq!(fs::read_to_string(place.new_data().join("who")).unwrap(), "65534\n65534\n65534\n");
    }

    #[test]
    fn a_survivor_is_raised_past_the_cluster_and_not_by_it() {
        assert_eq!(raised(MARGIN + 50, Some(40)).unwrap(), MARGIN + 10, "above the 50 that the cluster had come to");
        assert_eq!(raised(MARGIN + 50, Some(60)).unwrap(), MARGIN, "it had come further than was known");
        assert_eq!(raised(MARGIN + 50, None).unwrap(), MARGIN + 50);
        assert!(raised(u64::MAX, None).is_err() && raised(MAX_REVISION, Some(MAX_REVISION)).is_err());
    }
}
