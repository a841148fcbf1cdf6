//! A snapshot that is uploaded for a restore. It counts when it is complete and ends with the announced checksum; an interrupted upload
//! leaves nothing. The restore compares everything else with that checksum, so the snapshot itself is not synced to disk: only the restored
//! data must be durable. Only one snapshot is kept, in a private directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;

use hyper::body::{Bytes, Incoming};
use quorate_core::kinds::etcd::Staged;

use crate::agent::Agent;
use crate::api::{Refusal, UploadRequest};
use crate::files;
use crate::layout::Layout;
use crate::upload::{Gathered, Upload, receive};
use crate::{AgentError, blocking};

/// Beyond the snapshot and the data that is made of it: etcd's log, which takes its room in advance.
const RESERVE: u64 = 128 << 20;

impl Agent {
    /// Takes in a snapshot. Needs no other order to end first: nothing rests on it until a restore names it.
    pub(crate) async fn stage(&self, request: UploadRequest, mut body: Incoming) -> Result<(), Refusal> {
        if !self.state.get().enrolled {
            return Err(Refusal::NotEnrolled);
        }
        self.confirm_trial().await?;
        self.state.obey_fence(request.fence).await?;
        // While all still runs, and not when the old data is given up already.
        self.check_recreatable().await?;
        self.etcd.staging.asked.notify_waiters();
        let _one_at_a_time = self.etcd.staging.one_at_a_time.lock().await;
        let Some(mut upload) = self.begin_upload(request.clone()).await? else { return Ok(()) };
        tracing::info!(fence = request.fence, bytes = request.bytes, "receiving a snapshot");
        let mut gathered = Gathered::default();
        while let Some(piece) = self.next(&mut body, request.fence).await? {
            if let Some(pieces) = gathered.add(piece) {
                upload = blocking(move || upload.take_all(&pieces)).await?;
            }
        }
        let rest = gathered.rest();
        upload = blocking(move || upload.take_all(&rest)).await?;
        let place = file(&self.layout, &request.sha256);
        blocking(move || upload.finish_unsynced(&place)).await
    }

    /// The next piece, unless a newer controller has come meanwhile: it is not kept waiting by one that hangs.
    async fn next(&self, body: &mut Incoming, fence: u64) -> Result<Option<Bytes>, Refusal> {
        loop {
            let mut asked = pin!(self.etcd.staging.asked.notified());
            asked.as_mut().enable();
            let obeyed = self.state.get().fence;
            if obeyed > fence {
                return Err(Refusal::StaleFence { obeyed, carried: fence });
            }
            tokio::select! {
                piece = receive(body) => return piece,
                () = asked => {}
            }
        }
    }

    /// `None`: it is here already.
    async fn begin_upload(&self, announced: UploadRequest) -> Result<Option<Upload>, Refusal> {
        let layout = self.layout.clone();
        blocking(move || {
            let wanted = Staged { sha256: announced.sha256.clone(), bytes: announced.bytes };
            if look(&layout)? == Some(wanted) {
                return Ok(None);
            }
            clear(&layout)?;
            let directory = layout.staged();
            files::make_dir(&directory, 0o700)?;
            check_room(&directory, announced.bytes)?;
            Upload::of_snapshot(&directory, &announced).map(Some)
        })
        .await
    }

    pub(crate) async fn drop_staged(&self) -> Result<(), Refusal> {
        let _one_at_a_time = self.etcd.staging.one_at_a_time.lock().await;
        let layout = self.layout.clone();
        Ok(blocking(move || clear(&layout)).await?)
    }

    pub(crate) async fn look_at_staged(&self) -> Result<Option<Staged>, AgentError> {
        let layout = self.layout.clone();
        blocking(move || look(&layout)).await
    }

    /// An agent that was killed could not.
    pub(crate) async fn clear_uploads(&self) -> Result<(), AgentError> {
        let layout = self.layout.clone();
        blocking(move || {
            let here = entries(&layout)?;
            here.iter().filter(|path| staged_in(path).is_none()).try_for_each(|path| files::remove(path))
        })
        .await
    }
}

/// The data that a restore makes of it needs as much again, and must find it while the old data is still there.
fn check_room(directory: &Path, bytes: u64) -> Result<(), Refusal> {
    let disk = rustix::fs::statvfs(directory).map_err(|error| AgentError::file("read", directory)(error.into()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let needed = bytes.saturating_mul(2).saturating_add(RESERVE);
    if free >= needed {
        return Ok(());
    }
    let expected = format!(
        "{} MiB free in {} for a snapshot of {} MiB, the data to be made of it, and etcd's log",
        mebibytes(needed),
        directory.display(),
        mebibytes(bytes),
    );
    Err(Refusal::NotAsExpected { expected, found: format!("{} MiB free", free >> 20) })
}

fn mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// Where the snapshot that ends with this SHA-256 is, if it is here.
pub(crate) fn file(layout: &Layout, sha256: &str) -> PathBuf {
    layout.staged().join(format!("{sha256}.db"))
}

/// The snapshot that is here. Its name is the checksum that it ended with when it came.
pub(crate) fn look(layout: &Layout) -> Result<Option<Staged>, AgentError> {
    let here = entries(layout)?;
    let Some((path, sha256)) = here.iter().find_map(|path| Some((path, staged_in(path)?))) else { return Ok(None) };
    let bytes = fs::metadata(path).map_err(AgentError::file("read", path))?.len();
    Ok(Some(Staged { sha256: sha256.to_owned(), bytes }))
}

fn staged_in(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()?.strip_suffix(".db")
}

fn entries(layout: &Layout) -> Result<Vec<PathBuf>, AgentError> {
    let directory = layout.staged();
    match fs::read_dir(&directory) {
        Ok(entries) => Ok(entries.flatten().map(|entry| entry.path()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(AgentError::file("list", directory)(error)),
    }
}

pub(crate) fn clear(layout: &Layout) -> Result<(), AgentError> {
    files::remove_dir(&layout.staged())
}
