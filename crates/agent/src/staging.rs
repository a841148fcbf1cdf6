//! A snapshot that is brought to this machine for a restore. It counts once all of it is here, durable, and its SHA-256 is the
//! one that was announced; a cut upload leaves nothing. Only one is kept, in a directory that nobody else can enter.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use quorate_core::model::Staged;
use quorate_core::text::hex;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use crate::agent::Agent;
use crate::api::{Refusal, StageRequest};
use crate::files;
use crate::layout::Layout;
use crate::{AgentError, blocking};

/// A controller that sends nothing for so long has gone.
const SILENCE: Duration = Duration::from_secs(30);
/// Beyond the snapshot and the data that is made of it: etcd's log, which takes its room in advance.
const RESERVE: u64 = 128 << 20;
const PIECE: usize = 256 << 10;

#[derive(Default)]
pub(crate) struct Staging {
    /// Held while a snapshot is brought here, or taken away. Taken after that of orders, never before.
    one_at_a_time: tokio::sync::Mutex<()>,
    /// Another snapshot is announced.
    asked: Notify,
}

impl Agent {
    /// Takes in a snapshot. Needs no other order to end first: nothing rests on it until a restore names it.
    pub(crate) async fn stage(&self, request: StageRequest, mut body: Incoming) -> Result<(), Refusal> {
        if !self.state.get().enrolled {
            return Err(Refusal::NotEnrolled);
        }
        self.state.obey_fence(request.fence).await?;
        // While all still runs, and not when the old data is given up already.
        self.check_renewable().await?;
        self.staging.asked.notify_waiters();
        let _one_at_a_time = self.staging.one_at_a_time.lock().await;
        let wanted = Staged { sha256: request.sha256.clone(), bytes: request.bytes };
        let Some(mut upload) = self.begin_upload(wanted).await? else { return Ok(()) };
        tracing::info!(fence = request.fence, bytes = request.bytes, "a snapshot is being brought");
        while let Some(piece) = self.next(&mut body, request.fence).await? {
            upload = blocking(move || upload.take(&piece)).await?;
        }
        blocking(move || upload.finish()).await
    }

    /// The next piece, unless a newer controller has come meanwhile: it is not kept waiting by one that hangs.
    async fn next(&self, body: &mut Incoming, fence: u64) -> Result<Option<Bytes>, Refusal> {
        loop {
            let mut asked = pin!(self.staging.asked.notified());
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
    async fn begin_upload(&self, wanted: Staged) -> Result<Option<Upload>, Refusal> {
        let layout = self.layout.clone();
        blocking(move || {
            if look(&layout)?.as_ref() == Some(&wanted) {
                return Ok(None);
            }
            clear(&layout)?;
            Upload::begin(&layout, wanted).map(Some)
        })
        .await
    }

    pub(crate) async fn drop_staged(&self) -> Result<(), Refusal> {
        let _one_at_a_time = self.staging.one_at_a_time.lock().await;
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

async fn receive(body: &mut Incoming) -> Result<Option<Bytes>, Refusal> {
    let failed = |why: String| Refusal::Failed { why: format!("the upload broke off: {why}") };
    match tokio::time::timeout(SILENCE, body.frame()).await {
        Ok(Some(Ok(frame))) => Ok(Some(frame.into_data().unwrap_or_default())),
        Ok(Some(Err(error))) => Err(failed(error.to_string())),
        Ok(None) => Ok(None),
        Err(_) => Err(failed(format!("nothing came for {} s", SILENCE.as_secs()))),
    }
}

/// A snapshot of which some is here. Dropping it removes what there is.
struct Upload {
    layout: Layout,
    wanted: Staged,
    file: File,
    hash: Sha256,
    came: u64,
    partial: Partial,
}

/// Under a name of its own: whoever is late to remove his must not meet the next one's.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // Once it has been put in place there is none.
        let _ = fs::remove_file(&self.0);
    }
}

impl Upload {
    fn begin(layout: &Layout, wanted: Staged) -> Result<Self, Refusal> {
        let directory = layout.staged();
        files::make_dir(&directory, 0o700)?;
        check_room(&directory, wanted.bytes)?;
        let partial = Partial(directory.join(format!("upload-{}", quorate_pki::random_hex(8))));
        let opened = OpenOptions::new().write(true).create_new(true).mode(files::PRIVATE).open(&partial.0);
        let file = opened.map_err(AgentError::file("make", &partial.0))?;
        Ok(Upload { layout: layout.clone(), wanted, file, hash: Sha256::new(), came: 0, partial })
    }

    fn take(mut self, piece: &[u8]) -> Result<Self, Refusal> {
        self.came += piece.len() as u64;
        if self.came > self.wanted.bytes {
            return Err(wrong(format!("{} bytes", self.wanted.bytes), String::from("more")));
        }
        self.hash.update(piece);
        self.file.write_all(piece).map_err(AgentError::file("write", &self.partial.0))?;
        Ok(self)
    }

    fn finish(self) -> Result<(), Refusal> {
        if self.came != self.wanted.bytes {
            return Err(wrong(format!("{} bytes", self.wanted.bytes), format!("{} bytes", self.came)));
        }
        let found = hex(&self.hash.finalize());
        if found != self.wanted.sha256 {
            return Err(wrong(format!("SHA-256 {}", self.wanted.sha256), format!("SHA-256 {found}")));
        }
        let (partial, file) = (&self.partial.0, file(&self.layout, &found));
        self.file.sync_all().map_err(AgentError::file("make durable", partial))?;
        fs::rename(partial, &file).map_err(AgentError::file("put in place", &file))?;
        Ok(files::make_durable(&self.layout.staged())?)
    }
}

fn wrong(expected: String, found: String) -> Refusal {
    Refusal::NotAsExpected { expected: format!("a snapshot of {expected}"), found }
}

/// The data that a restore makes of it needs as much again, and must find it while the old data is still there.
fn check_room(directory: &Path, bytes: u64) -> Result<(), Refusal> {
    let disk = rustix::fs::statvfs(directory).map_err(|error| AgentError::file("look at", directory)(error.into()))?;
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

/// Where the snapshot with this SHA-256 lies, if it is here.
pub(crate) fn file(layout: &Layout, sha256: &str) -> PathBuf {
    layout.staged().join(format!("{sha256}.db"))
}

/// The snapshot that is here. Its name tells what its bytes were when they came.
pub(crate) fn look(layout: &Layout) -> Result<Option<Staged>, AgentError> {
    let here = entries(layout)?;
    let Some((path, sha256)) = here.iter().find_map(|path| Some((path, staged_in(path)?))) else { return Ok(None) };
    let bytes = fs::metadata(path).map_err(AgentError::file("look at", path))?.len();
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

/// SHA-256 and length.
pub(crate) fn digest(path: &Path) -> io::Result<(String, u64)> {
    let (mut file, mut hash, mut bytes) = (File::open(path)?, Sha256::new(), 0);
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok((hex(&hash.finalize()), bytes)),
            read => {
                hash.update(&piece[..read]);
                bytes += read as u64;
            }
        }
    }
}
