//! A new formation of one member, made of a copy of what a survivor holds. The data at hand is never written to: it is kept
//! beside the new one, and all work is done on a copy, in a directory that nobody else can enter. An interrupted rebuild
//! begins anew, except once its result is complete: then it is put in place, also by the next agent.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use quorate_core::model::{DataSeen, ServiceState, Stamp};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::pages::Metrics;
use super::start::{check_own, describe, not_as_expected};
use super::{data, wal};
use crate::agent::Agent;
use crate::api::Refusal;
use crate::files::{self, Owner};
use crate::layout::Layout;
use crate::services::child;
use crate::{AgentError, binaries, blocking, logs};

/// For etcd to take in what its log holds beyond its database.
const TAKING_IN: Duration = Duration::from_secs(300);
const ENDING: Duration = Duration::from_secs(30);
const RESTORING: Duration = Duration::from_secs(240);
const PAUSE: Duration = Duration::from_millis(50);
/// Of the etcd that works on the copy, below the directory that it runs in: a socket has no port that others could reach.
const SOCKET: &str = "client:0";

impl Agent {
    pub(crate) async fn rebuild(
        &self,
        was: Stamp,
        stamp: Stamp,
        peer_url: String,
        bump_revision: u64,
    ) -> Result<(), Refusal> {
        let stopped = !self.state.get().wanted_running && self.service.look().await == ServiceState::Stopped;
        if stopped {
            self.finish_rebuild().await?;
        }
        match self.look_at_data().await? {
            DataSeen::Stamped(found) if found == stamp => return Ok(()),
            DataSeen::Stamped(found) if found == was => {}
            found => return Err(not_as_expected(describe(&DataSeen::Stamped(was)), describe(&found))),
        }
        if !stopped {
            return Err(not_as_expected(String::from("a stopped etcd"), String::from("one that runs or is meant to")));
        }
        check_own(&self.state.get(), &stamp)?;
        let place = Place::new(&self.layout);
        let made = self.make(&place, &stamp, &peer_url, bump_revision).await;
        if made.is_err() {
            place.clear().await?;
        }
        made?;
        Ok(self.finish_rebuild().await?)
    }

    /// Makes the new data, complete but not yet in place.
    async fn make(&self, place: &Place, stamp: &Stamp, peer_url: &str, bump: u64) -> Result<(), Refusal> {
        let (config, program) = self.etcd_in_place(&self.state.get())?;
        let search = std::env::var_os("PATH");
        let etcdutl = binaries::etcdutl(&program, &config.etcd.version, &self.cache, search.as_deref()).await;
        let etcdutl = etcdutl.map_err(AgentError::Binary)?;
        place.clear().await?;
        let (source, copy) = (self.layout.data(), place.copy());
        files::make_dir(&place.root, 0o700)?;
        let last = blocking(move || copy_and_agree(&source, &copy)).await?;
        let quota = config.etcd.flags.get("quota-backend-bytes").map(|bytes| format!("--quota-backend-bytes={bytes}"));
        take_in(&program, place, quota, last).await?;
        restore(&etcdutl, place, stamp, peer_url, bump).await?;
        let (new, owner) = (place.new_data(), self.service.owner()?);
        blocking(move || give_away(&new, owner)).await?;
        let (ready, text) = (place.ready(), serde_json::to_vec(stamp).expect("plain data serializes"));
        Ok(blocking(move || files::write_durably(&ready, &text, files::PRIVATE)).await?)
    }

    /// Puts a complete result in place, if there is one, from whatever point an earlier attempt came to.
    pub(crate) async fn finish_rebuild(&self) -> Result<(), AgentError> {
        let (place, layout) = (Place::new(&self.layout), self.layout.clone());
        let Some(stamp) = blocking(move || put_in_place(&place, &layout)).await? else { return Ok(()) };
        let token = stamp.token.clone();
        let begin = |state: &mut crate::state::State| {
            state.forget_formation();
            state.last_started = Some(stamp);
        };
        self.state.update(begin).await?;
        tracing::info!(token, "the data of a new formation is in place; what was there is kept beside it");
        Place::new(&self.layout).clear().await
    }
}

/// Where a rebuild works.
struct Place {
    root: PathBuf,
}

impl Place {
    fn new(layout: &Layout) -> Self {
        Place { root: layout.rebuild() }
    }

    fn copy(&self) -> PathBuf {
        self.root.join("copy")
    }

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

    /// Removes everything, an etcd that an earlier agent left behind included.
    async fn clear(&self) -> Result<(), AgentError> {
        if let Some(pid) = child::search(&self.data_argument()).and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        let (ready, root) = (self.ready(), self.root.clone());
        blocking(move || files::remove(&ready).and_then(|()| files::remove_dir(&root))).await
    }
}

/// Returns the last index of the log, all of which counts as agreed in the copy.
fn copy_and_agree(source: &Path, copy: &Path) -> Result<u64, AgentError> {
    copy_directory(source, copy).map_err(AgentError::file("copy", source))?;
    let unknown = wal::agree_to_all(copy)?;
    let last = wal::LogReader::default().read(copy)?.map(|log| log.end.index).unwrap_or_default();
    tracing::info!(last, unknown, "copied; this member did not know whether the last entries were agreed");
    Ok(last)
}

fn copy_directory(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_directory(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Runs etcd alone on the copy until its database holds all that the log does, and ends it.
async fn take_in(program: &Path, place: &Place, quota: Option<String>, last: u64) -> Result<(), AgentError> {
    let log = files::open_log(&place.log())?;
    let mut command = Command::new(program);
    command.arg(place.data_argument()).args([
        "--name=rebuild",
        "--force-new-cluster",
        &format!("--listen-client-urls=unix://{SOCKET}"),
        &format!("--advertise-client-urls=unix://{SOCKET}"),
        "--listen-peer-urls=unix://peer:0",
        "--enable-grpc-gateway=false",
        "--logger=zap",
    ]);
    // Without it, writes that the cluster had room for would be refused here.
    command.args(quota);
    command.current_dir(&place.root).stdin(Stdio::null()).kill_on_drop(true);
    let spawn = log.try_clone().and_then(|out| child::without_etcd_variables(command.stdout(out).stderr(log)).spawn());
    let mut etcd = spawn.map_err(|source| AgentError::Spawn { program: program.display().to_string(), source })?;
    let failed = |how: String| {
        let said = logs::last_words(&place.log());
        AgentError::Rebuild { why: format!("etcd on the copy {how}: {said}") }
    };
    tokio::select! {
        ended = etcd.wait() => return Err(failed(format!("ended ({})", ended.map_or_else(|e| e.to_string(), |s| s.to_string())))),
        taken = timeout(TAKING_IN, until_applied(place, last)) => taken.map_err(|_| failed(String::from("took too long")))?,
    }
    end(&mut etcd).await.map_err(|_| failed(String::from("did not end")))
}

async fn end(etcd: &mut Child) -> Result<(), ()> {
    let pid = etcd.id().and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?)).ok_or(())?;
    rustix::process::kill_process(pid, Signal::TERM).map_err(|_| ())?;
    timeout(ENDING, etcd.wait()).await.map(drop).map_err(|_| ())
}

/// The first entry of its own that etcd has agreed to comes after all that the log held.
async fn until_applied(place: &Place, last: u64) {
    loop {
        if let Some(page) = metrics(place).await
            && Metrics(&page).number("etcd_server_proposals_applied_total").is_some_and(|applied| applied > last)
        {
            return;
        }
        sleep(PAUSE).await;
    }
}

async fn metrics(place: &Place) -> Option<String> {
    // The path of a socket is bounded to about a hundred characters; this way it is short wherever the root lies.
    let directory = File::open(&place.root).ok()?;
    let mut stream = UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd())).await.ok()?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.ok()?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await.ok()?;
    Some(page)
}

async fn restore(etcdutl: &Path, place: &Place, stamp: &Stamp, peer_url: &str, bump: u64) -> Result<(), AgentError> {
    let name = &stamp.member;
    let mut command = Command::new(etcdutl);
    command.args(["snapshot", "restore"]).arg(place.copy().join("member/snap/db")).args([
        String::from("--skip-hash-check"),
        format!("--name={name}"),
        format!("--initial-cluster={name}={peer_url}"),
        format!("--initial-cluster-token={}", stamp.token),
        format!("--initial-advertise-peer-urls={peer_url}"),
        format!("--data-dir={}", place.new_data().display()),
    ]);
    if bump > 0 {
        command.arg(format!("--bump-revision={bump}")).arg("--mark-compacted");
    }
    let done = timeout(RESTORING, child::without_etcd_variables(&mut command).kill_on_drop(true).output()).await;
    let failed = |why: String| AgentError::Rebuild { why: format!("etcdutl {why}") };
    let output = done
        .map_err(|_| failed(String::from("took too long")))?
        .map_err(|source| AgentError::Spawn { program: etcdutl.display().to_string(), source })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(format!("failed: {}", said.trim().lines().last().unwrap_or_default())))
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

/// The old data goes aside before the new stamp is set, and the new data comes last: at no moment does data bear a stamp that
/// is not its own.
fn put_in_place(place: &Place, layout: &Layout) -> Result<Option<Stamp>, AgentError> {
    let Ok(text) = fs::read(place.ready()) else { return Ok(None) };
    let stamp: Stamp =
        serde_json::from_slice(&text).map_err(|source| AgentError::Unreadable { path: place.ready(), source })?;
    let (data, new, before) = (layout.data(), place.new_data(), layout.before(&stamp.token));
    if new.exists() {
        if !before.exists() {
            fs::rename(&data, &before).map_err(AgentError::file("put aside", &data))?;
        }
        data::write_stamp(layout, &stamp)?;
        fs::rename(&new, &data).map_err(AgentError::file("put in place", &data))?;
        files::make_durable(data.parent().unwrap_or(layout.root()))?;
    }
    Ok(Some(stamp))
}
