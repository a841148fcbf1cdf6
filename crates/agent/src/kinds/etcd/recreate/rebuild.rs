//! Rebuilds a survivor's data for a new bootstrap: a copy in which the whole log counts as committed and is applied to the
//! database.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use quorate_core::model::EtcdService;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::{Database, WorkDirectory, become_owner};
use crate::files::Owner;
use crate::kinds::etcd::complaint::last_complaint;
use crate::kinds::etcd::pages::Metrics;
use crate::kinds::etcd::{service, wal};
use crate::layout::Layout;
use crate::{AgentError, blocking, files};

/// For etcd to take in what its log holds beyond its database.
const TAKING_IN: Duration = Duration::from_secs(300);
const ENDING: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);
/// Of the etcd that works on the copy, below the directory that it runs in: a socket has no port that others could reach.
const SOCKET: &str = "client:0";
/// A page of metrics has some hundred KiB.
const LONGEST_PAGE: u64 = 16 << 20;

pub(super) async fn database(
    layout: &Layout,
    place: &WorkDirectory,
    etcd: &EtcdService,
    program: &Path,
    owner: Option<Owner>,
) -> Result<Database, AgentError> {
    wal::check_proven(&etcd.version)?;
    let (source, copy) = (layout.data(), place.copy());
    let last = blocking(move || copy_and_agree(&source, &copy)).await?;
    place.give_to(owner).await?;
    let quota = etcd.flags.get("quota-backend-bytes").map(|bytes| format!("--quota-backend-bytes={bytes}"));
    let revision = take_in(program, place, quota, last, owner).await?;
    Ok(Database { path: place.copy().join("member/snap/db"), has_checksum: false, revision })
}

/// Returns the last index of the log, all of which counts as agreed in the copy.
fn copy_and_agree(source: &Path, copy: &Path) -> Result<u64, AgentError> {
    copy_directory(source, copy).map_err(AgentError::file("copy", source))?;
    let unknown = wal::agree_to_all(copy)?;
    let last = wal::LogReader::default().read(copy)?.map(|log| log.end.index).unwrap_or_default();
    tracing::info!(last, unknown, "copied; this member did not know whether the last entries were agreed");
    Ok(last)
}

/// The agent may be root, and the data is etcd's: a link there could lead to any file, and anything but a file could make it wait for ever.
fn copy_directory(from: &Path, to: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_directory(&entry.path(), &target)?;
        } else {
            let mut copy = OpenOptions::new().write(true).create_new(true).mode(files::PRIVATE).open(target)?;
            io::copy(&mut files::open_plain(&entry.path())?, &mut copy)?;
        }
    }
    Ok(())
}

/// Runs etcd alone on the copy until its database holds all that the log does, and ends it. Returns the revision that it came to.
async fn take_in(
    program: &Path,
    place: &WorkDirectory,
    quota: Option<String>,
    last: u64,
    owner: Option<Owner>,
) -> Result<Option<u64>, AgentError> {
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
    become_owner(&mut command, owner);
    command.current_dir(place.work()).stdin(Stdio::null()).kill_on_drop(true);
    let spawn = log.try_clone().and_then(|out| service::without_variables(command.stdout(out).stderr(log)).spawn());
    let mut etcd = spawn.map_err(|source| AgentError::Spawn { program: program.display().to_string(), source })?;
    let failed = |how: String| {
        let said = last_complaint(&place.log());
        AgentError::Recreation { why: format!("etcd on the copy {how}: {said}") }
    };
    let revision = tokio::select! {
        ended = etcd.wait() => return Err(failed(format!("ended ({})", ended.map_or_else(|e| e.to_string(), |s| s.to_string())))),
        taken = timeout(TAKING_IN, until_applied(place, last)) => taken.map_err(|_| failed(String::from("took too long")))?,
    };
    end(&mut etcd).await.map_err(|_| failed(String::from("did not end")))?;
    Ok(revision)
}

async fn end(etcd: &mut Child) -> Result<(), ()> {
    let pid = etcd.id().and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?)).ok_or(())?;
    rustix::process::kill_process(pid, Signal::TERM).map_err(|_| ())?;
    timeout(ENDING, etcd.wait()).await.map(drop).map_err(|_| ())
}

/// The first entry of its own that etcd has agreed to comes after all that the log held.
async fn until_applied(place: &WorkDirectory, last: u64) -> Option<u64> {
    loop {
        if let Some(page) = metrics(place).await
            && Metrics(&page).number("etcd_server_proposals_applied_total").is_some_and(|applied| applied > last)
        {
            return Metrics(&page).number("etcd_debugging_mvcc_current_revision").filter(|revision| *revision > 0);
        }
        sleep(PAUSE).await;
    }
}

async fn metrics(place: &WorkDirectory) -> Option<String> {
    // The path of a socket is bounded to about a hundred characters; this way it is short wherever the root is.
    let directory = File::open(place.work()).ok()?;
    let mut stream = UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd())).await.ok()?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.ok()?;
    let mut page = String::new();
    stream.take(LONGEST_PAGE).read_to_string(&mut page).await.ok()?;
    Some(page)
}
