//! A place for objects: an S3 bucket or a directory, with the same promises. A new object appears complete or not at all and never
//! replaces another; a change applies only to the version that was read; confirmed writes survive a power failure (directory) or are the
//! server's responsibility (S3). Paths are relative to the place and made of plain characters. Temporary problems are retried here, so
//! an error that is returned is permanent.

mod directory;
mod error;
mod s3;
mod throttle;

use quorate_core::text::hex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use jiff::Timestamp;
use quorate_pki::Sha256;

use directory::{Directory, DirectoryUpload};
pub use error::{StoreError, Trouble};
use s3::{S3, S3Upload};
use throttle::Throttle;

use crate::settings::{Location, Patience};

/// The size in which large objects travel. S3 wants at least 5 MiB, and takes ten thousand of them.
pub const PART: usize = 8 << 20;
/// More would be faster over a long line, and a third of the memory that a backup may take.
const PARTS_IN_FLIGHT: usize = 3;

/// Manifests have some KiB, a ledger with its history some MiB at most.
pub(crate) const SMALL: u64 = 32 << 20;

/// Which version of an object was read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tag(String);

#[derive(Clone, Debug)]
pub struct Object {
    pub bytes: Bytes,
    pub tag: Tag,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    pub path: String,
    pub bytes: u64,
    pub modified: Timestamp,
}

/// The content of a large object, in order.
pub type Content = BoxStream<'static, Result<Bytes, StoreError>>;

/// Clones share the connection and the bandwidth.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    kind: Kind,
    /// As shown to people.
    place: String,
    throttle: Option<Throttle>,
    patience: Patience,
}

enum Kind {
    S3(S3),
    Directory(Directory),
}

impl Store {
    pub fn open(place: &Location, bandwidth: Option<u64>, patience: Patience) -> Result<Self, StoreError> {
        let shown = show(place);
        let kind = match place {
            Location::S3(settings) => S3::open(settings, patience).map(Kind::S3),
            Location::Directory(root) => Directory::open(root).map(Kind::Directory),
        };
        let kind = kind.map_err(|trouble| StoreError {
            place: shown.clone(),
            doing: String::from("use it for backups"),
            trouble,
        })?;
        Ok(Store { inner: Arc::new(Inner { kind, place: shown, throttle: bandwidth.map(Throttle::new), patience }) })
    }

    /// The store as shown to people.
    pub fn place(&self) -> &str {
        &self.inner.place
    }

    /// Proves that the store can be read and written under `prefix`, and keeps conditions: everything else rests on these.
    pub async fn check(&self, prefix: &str) -> Result<(), StoreError> {
        let path = format!("{prefix}/check-{}", quorate_pki::random_hex(8));
        let failed = |error: StoreError| StoreError { doing: String::from("use it for backups"), ..error };
        let checked = self.check_conditions(&path).await;
        // A probe left behind harms nobody, and the first error says more.
        let cleared = self.delete(&path).await;
        checked.and(cleared).map_err(failed)
    }

    async fn check_conditions(&self, path: &str) -> Result<(), StoreError> {
        let ignored = || self.error("use it for backups", Trouble::NoConditionalPut);
        let tag = self.put_new(path, Bytes::from_static(b"one")).await?;
        match self.put_new(path, Bytes::from_static(b"two")).await {
            Err(error) if error.trouble == Trouble::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(_) => return Err(ignored()),
        }
        self.replace(path, Bytes::from_static(b"three"), &tag).await?;
        match self.replace(path, Bytes::from_static(b"four"), &tag).await {
            Err(error) if error.trouble == Trouble::Changed => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(ignored()),
        }
    }

    /// Makes an object that must not exist yet. One with the very same content counts as made: an answer may have got lost.
    pub async fn put_new(&self, path: &str, bytes: Bytes) -> Result<Tag, StoreError> {
        self.throttled(bytes.len()).await;
        let attempt = || async {
            match &self.inner.kind {
                Kind::S3(s3) => s3.put_new(path, bytes.clone()).await,
                Kind::Directory(directory) => directory.put_new(path, bytes.clone()).await,
            }
        };
        let made = self.patiently(attempt).await;
        self.or_the_same(path, &bytes, made, Trouble::AlreadyExists, "make").await
    }

    /// Changes an object, if it still is the one that was read.
    pub async fn replace(&self, path: &str, bytes: Bytes, read: &Tag) -> Result<Tag, StoreError> {
        self.throttled(bytes.len()).await;
        let attempt = || async {
            match &self.inner.kind {
                Kind::S3(s3) => s3.replace(path, bytes.clone(), read).await,
                Kind::Directory(directory) => directory.replace(path, bytes.clone(), read).await,
            }
        };
        let changed = self.patiently(attempt).await;
        self.or_the_same(path, &bytes, changed, Trouble::Changed, "change").await
    }

    /// A refusal may be the echo of our own attempt, whose answer was lost.
    async fn or_the_same(
        &self,
        path: &str,
        bytes: &Bytes,
        done: Result<Tag, Trouble>,
        refusal: Trouble,
        verb: &str,
    ) -> Result<Tag, StoreError> {
        let failed = |trouble| self.error(format!("{verb} {path}"), trouble);
        match done {
            Err(trouble) if trouble == refusal => match self.get(path).await {
                Ok(found) if found.bytes == *bytes => Ok(found.tag),
                Ok(_) => Err(failed(trouble)),
                Err(error) if error.is_not_found() || error.is_too_large() => Err(failed(trouble)),
                Err(error) => Err(error),
            },
            done => done.map_err(failed),
        }
    }

    /// A small object, whole.
    pub async fn get(&self, path: &str) -> Result<Object, StoreError> {
        self.get_up_to(path, SMALL).await
    }

    /// The same for one that may have so many bytes: it is held in memory, and anyone who writes to the store can make it any size.
    pub async fn get_up_to(&self, path: &str, limit: u64) -> Result<Object, StoreError> {
        let attempt = || async {
            match &self.inner.kind {
                Kind::S3(s3) => s3.get(path, limit).await,
                Kind::Directory(directory) => directory.get(path, limit).await,
            }
        };
        self.patiently(attempt).await.map_err(|trouble| self.error(format!("read {path}"), trouble))
    }

    /// A large object: how many bytes it has, and they in pieces.
    pub async fn read(&self, path: &str) -> Result<(u64, Content), StoreError> {
        let opened = match &self.inner.kind {
            Kind::S3(s3) => s3.read(path).await,
            Kind::Directory(directory) => directory.read(path).await,
        };
        let (bytes, pieces) = opened.map_err(|trouble| self.error(format!("read {path}"), trouble))?;
        let (store, path) = (self.clone(), path.to_owned());
        let told =
            move |piece: Result<Bytes, Trouble>| piece.map_err(|trouble| store.error(format!("read {path}"), trouble));
        Ok((bytes, Box::pin(futures_util::StreamExt::map(pieces, told))))
    }

    /// Begins a large object. It appears when the upload is finished.
    pub async fn upload(&self, path: &str) -> Result<Upload, StoreError> {
        let kind = match &self.inner.kind {
            Kind::S3(s3) => Ok(UploadKind::S3(s3.upload(path))),
            Kind::Directory(directory) => directory.upload(path).await.map(UploadKind::Directory),
        };
        let kind = kind.map_err(|trouble| self.error(format!("write {path}"), trouble))?;
        Ok(Upload { store: self.clone(), path: path.to_owned(), kind })
    }

    /// What is under a path, in the order of the paths.
    pub async fn list(&self, under: &str) -> Result<Vec<Listed>, StoreError> {
        let attempt = || async {
            match &self.inner.kind {
                Kind::S3(s3) => s3.list(under).await,
                Kind::Directory(directory) => directory.list(under).await,
            }
        };
        let listed = self.patiently(attempt).await;
        let mut listed = listed.map_err(|trouble| self.error(format!("list {under}"), trouble))?;
        listed.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(listed)
    }

    /// Objects under a path whose upload was begun and is not finished: it is under way, or was abandoned.
    pub async fn unfinished(&self, under: &str) -> Result<Vec<String>, StoreError> {
        let attempt = || async {
            match &self.inner.kind {
                Kind::S3(s3) => s3.unfinished(under).await,
                Kind::Directory(directory) => directory.unfinished(under).await,
            }
        };
        self.patiently(attempt).await.map_err(|trouble| self.error(format!("list {under}"), trouble))
    }

    /// One that is gone already is no error.
    pub async fn delete(&self, path: &str) -> Result<(), StoreError> {
        let attempt = || async {
            match &self.inner.kind {
                Kind::S3(s3) => s3.delete(path).await,
                Kind::Directory(directory) => directory.delete(path).await,
            }
        };
        match self.patiently(attempt).await {
            Ok(()) | Err(Trouble::NotFound) => Ok(()),
            Err(trouble) => Err(self.error(format!("delete {path}"), trouble)),
        }
    }

    /// Clears what uploads under a path left behind that were never finished. Call it only where none is under way.
    pub async fn clear_abandoned(&self, under: &str) -> Result<(), StoreError> {
        let cleared = match &self.inner.kind {
            Kind::S3(s3) => s3.clear_abandoned(under).await,
            Kind::Directory(directory) => directory.clear_abandoned(under).await,
        };
        cleared.map_err(|trouble| self.error(format!("clear {under}"), trouble))
    }

    pub(crate) fn exists_already(&self, path: &str) -> StoreError {
        self.error(format!("make {path}"), Trouble::AlreadyExists)
    }

    async fn throttled(&self, bytes: usize) {
        if let Some(throttle) = &self.inner.throttle {
            throttle.take(bytes).await;
        }
    }

    /// Tries again, with growing pauses, while the trouble may pass. The S3 client does so itself where a request may be sent
    /// twice without a second thought; this is for the others, where the answer to the second is looked at.
    async fn patiently<T, F: Future<Output = Result<T, Trouble>>>(
        &self,
        attempt: impl Fn() -> F,
    ) -> Result<T, Trouble> {
        let mut pause = Duration::from_millis(200);
        for _ in 0..self.inner.patience.retries.min(3) {
            match attempt().await {
                Err(Trouble::Cut(_) | Trouble::Timeout(_)) => tokio::time::sleep(pause).await,
                done => return done,
            }
            pause *= 3;
        }
        attempt().await
    }

    fn error(&self, doing: impl Into<String>, trouble: Trouble) -> StoreError {
        StoreError { place: self.inner.place.clone(), doing: doing.into(), trouble }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", self.inner.place)
    }
}

/// A large object on its way. One that is dropped leaves parts behind, which [`Store::clear_abandoned`] clears.
pub struct Upload {
    store: Store,
    path: String,
    kind: UploadKind,
}

enum UploadKind {
    S3(S3Upload),
    Directory(DirectoryUpload),
}

impl Upload {
    /// Every piece but the last must have exactly [`PART`] bytes. Returns as soon as there is room for the next.
    pub async fn write(&mut self, piece: Bytes) -> Result<(), StoreError> {
        self.store.throttled(piece.len()).await;
        let written = match &mut self.kind {
            UploadKind::S3(upload) => upload.write(piece).await,
            UploadKind::Directory(upload) => upload.write(piece).await,
        };
        written.map_err(|trouble| self.store.error(format!("write {}", self.path), trouble))
    }

    pub async fn finish(self) -> Result<(), StoreError> {
        let Upload { store, path, kind } = self;
        let finished = match kind {
            UploadKind::S3(upload) => upload.finish().await,
            UploadKind::Directory(upload) => upload.finish().await,
        };
        finished.map_err(|trouble| store.error(format!("write {path}"), trouble))
    }

    /// Leaves nothing behind, as far as the store still answers.
    pub async fn abort(self) {
        match self.kind {
            UploadKind::S3(upload) => upload.abort().await,
            UploadKind::Directory(upload) => upload.abort().await,
        }
    }
}

pub(crate) fn show(place: &Location) -> String {
    match place {
        Location::S3(s3) => {
            let at = s3.endpoint.as_ref().map(|endpoint| format!(" at {endpoint}")).unwrap_or_default();
            format!("s3://{}/{}{at}", s3.bucket, s3.prefix)
        }
        Location::Directory(root) => root.display().to_string(),
    }
}

pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}
