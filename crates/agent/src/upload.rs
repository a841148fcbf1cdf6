//! A file that is uploaded over the agent's port. It counts when it is complete and as announced; an interrupted upload leaves nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use quorate_core::text::hex;
use quorate_pki::Sha256;

use crate::api::{Refusal, UploadRequest};
use crate::{AgentError, files};

/// A controller that sends nothing for so long is gone.
const SILENCE: Duration = Duration::from_secs(30);
const PIECE: usize = 256 << 10;
const WRITTEN_AT_ONCE: usize = 1 << 20;
/// etcd's, at the end of a snapshot.
const CHECKSUM: u64 = 32;
/// How the names of unfinished uploads begin.
const UNFINISHED: &str = "upload-";

/// A file of which a part is here. Dropping it removes that part.
pub(crate) struct Upload {
    /// For messages.
    what: &'static str,
    sha256: String,
    bytes: u64,
    file: File,
    /// None where it ends with the SHA-256 that was announced.
    hash: Option<Sha256>,
    came: u64,
    partial: Partial,
}

/// Has a random name, so that removing it late never removes the next upload.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // Once it has been put in place there is none.
        let _ = fs::remove_file(&self.0);
    }
}

impl Upload {
    /// A program, whose SHA-256 was announced.
    pub(crate) fn of_program(directory: &Path, announced: &UploadRequest) -> Result<Self, Refusal> {
        Self::begin("a program", directory, 0o700, announced, Some(Sha256::new()))
    }

    /// A snapshot, which ends with the SHA-256 that was announced. That of all before it is left to etcd's tool, which computes it when it
    /// restores the snapshot: twice would take as long as sending it.
    pub(crate) fn of_snapshot(directory: &Path, announced: &UploadRequest) -> Result<Self, Refusal> {
        Self::begin("a snapshot", directory, files::PRIVATE, announced, None)
    }

    fn begin(
        what: &'static str,
        directory: &Path,
        mode: u32,
        announced: &UploadRequest,
        hash: Option<Sha256>,
    ) -> Result<Self, Refusal> {
        let partial = Partial(directory.join(format!("{UNFINISHED}{}", quorate_pki::random_hex(8))));
        let opened = OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(&partial.0);
        let file = opened.map_err(AgentError::file("make", &partial.0))?;
        let (sha256, bytes) = (announced.sha256.clone(), announced.bytes);
        Ok(Upload { what, sha256, bytes, file, hash, came: 0, partial })
    }

    pub(crate) fn take_all(self, pieces: &[Bytes]) -> Result<Self, Refusal> {
        pieces.iter().try_fold(self, |upload, piece| upload.take(piece))
    }

    pub(crate) fn take(mut self, piece: &[u8]) -> Result<Self, Refusal> {
        self.came += piece.len() as u64;
        if self.came > self.bytes {
            return Err(self.wrong(format!("{} bytes", self.bytes), String::from("more")));
        }
        if let Some(hash) = &mut self.hash {
            hash.update(piece);
        }
        self.file.write_all(piece).map_err(AgentError::file("write", &self.partial.0))?;
        Ok(self)
    }

    /// Makes it durable and puts it in place, in the directory that it was begun in.
    pub(crate) fn finish(self, place: &Path) -> Result<(), Refusal> {
        self.file.sync_all().map_err(AgentError::file("make durable", &self.partial.0))?;
        self.finish_unsynced(place)
    }

    /// The same without waiting for the disk, for content that is compared with its checksum when it is used.
    pub(crate) fn finish_unsynced(self, place: &Path) -> Result<(), Refusal> {
        if self.came != self.bytes {
            return Err(self.wrong(format!("{} bytes", self.bytes), format!("{} bytes", self.came)));
        }
        let (which, found) = match &self.hash {
            Some(hash) => ("SHA-256", hex(&hash.clone().finalize())),
            None => ("checksum", last_checksum(&self.file).map_err(AgentError::file("read", &self.partial.0))?),
        };
        if found != self.sha256 {
            return Err(self.wrong(format!("{which} {}", self.sha256), format!("{which} {found}")));
        }
        fs::rename(&self.partial.0, place).map_err(AgentError::file("put in place", place))?;
        Ok(files::make_durable(place.parent().unwrap_or(place))?)
    }

    fn wrong(&self, expected: String, found: String) -> Refusal {
        Refusal::NotAsExpected { expected: format!("{} of {expected}", self.what), found }
    }
}

/// Pieces come as they are encrypted, 16 KiB at a time. Each hop to the thread that writes costs more than such a piece does, so they are
/// gathered.
#[derive(Default)]
pub(crate) struct Gathered {
    pieces: Vec<Bytes>,
    bytes: usize,
}

impl Gathered {
    /// What is to be written, once there is enough of it.
    pub(crate) fn add(&mut self, piece: Bytes) -> Option<Vec<Bytes>> {
        self.bytes += piece.len();
        self.pieces.push(piece);
        (self.bytes >= WRITTEN_AT_ONCE).then(|| std::mem::take(self).pieces)
    }

    pub(crate) fn rest(self) -> Vec<Bytes> {
        self.pieces
    }
}

/// The next piece of an upload; none at its end.
pub(crate) async fn receive(body: &mut Incoming) -> Result<Option<Bytes>, Refusal> {
    let failed = |why: String| Refusal::Failed { why: format!("the upload broke off: {why}") };
    match tokio::time::timeout(SILENCE, body.frame()).await {
        Ok(Some(Ok(frame))) => Ok(Some(frame.into_data().unwrap_or_default())),
        Ok(Some(Err(error))) => Err(failed(error.to_string())),
        Ok(None) => Ok(None),
        Err(_) => Err(failed(format!("nothing was received for {} s", SILENCE.as_secs()))),
    }
}

pub(crate) fn is_unfinished(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(UNFINISHED.as_bytes()))
}

/// The last bytes of a file, in hexadecimal. A shorter file has none that could be a checksum.
fn last_checksum(file: &File) -> io::Result<String> {
    let Some(place) = file.metadata()?.len().checked_sub(CHECKSUM) else { return Ok(String::new()) };
    let mut checksum = [0; CHECKSUM as usize];
    file.read_exact_at(&mut checksum, place)?;
    Ok(hex(&checksum))
}

/// Whether a file ends with this SHA-256, and it is that of all that comes before.
pub(crate) fn ends_with_own_checksum(path: &Path, sha256: &str) -> io::Result<bool> {
    let file = File::open(path)?;
    if last_checksum(&file)? != sha256 {
        return Ok(false);
    }
    let database = file.metadata()?.len().saturating_sub(CHECKSUM);
    Ok(digest(file.take(database))?.0 == sha256)
}

/// SHA-256 and length of a file.
pub fn file_digest(path: &Path) -> io::Result<(String, u64)> {
    digest(File::open(path)?)
}

fn digest(mut content: impl Read) -> io::Result<(String, u64)> {
    let (mut hash, mut bytes, mut piece) = (Sha256::new(), 0, vec![0; PIECE]);
    loop {
        match content.read(&mut piece)? {
            0 => return Ok((hex(&hash.finalize()), bytes)),
            read => {
                hash.update(&piece[..read]);
                bytes += read as u64;
            }
        }
    }
}
