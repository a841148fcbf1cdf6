//! Objects as files. A file is written next to its place under a name that begins with a dot, synced, and then linked or renamed into
//! place; names with a dot are never objects. Existing files are changed one at a time, under a lock of the whole store.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use jiff::Timestamp;
use rustix::fs::FlockOperation;

use super::{Listed, Object, PART, Tag, Trouble, sha256_hex};

#[derive(Clone)]
pub(super) struct Directory {
    root: Arc<PathBuf>,
}

impl Directory {
    pub(super) fn open(root: &Path) -> Result<Self, Trouble> {
        if !root.is_absolute() {
            return Err(Trouble::Settings(format!("`{}` is not an absolute path", root.display())));
        }
        make_dir(root).map_err(|error| Trouble::of_io(&error))?;
        Ok(Directory { root: Arc::new(root.to_owned()) })
    }

    pub(super) async fn put_new(&self, path: &str, bytes: Bytes) -> Result<Tag, Trouble> {
        self.blocking(path, move |target| {
            let draft = Draft::write(&target, &bytes)?;
            draft.link_to(&target)?;
            Ok(tag_of(&bytes))
        })
        .await
    }

    pub(super) async fn replace(&self, path: &str, bytes: Bytes, read: &Tag) -> Result<Tag, Trouble> {
        let (root, read) = (self.root.clone(), read.clone());
        let done = self.blocking(path, move |target| {
            let lock = OpenOptions::new().create(true).append(true).mode(0o600).open(root.join(".lock"))?;
            rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
            if tag_of(&fs::read(&target)?) != read {
                return Ok(None);
            }
            Draft::write(&target, &bytes)?.rename_to(&target)?;
            Ok(Some(tag_of(&bytes)))
        });
        done.await?.ok_or(Trouble::Changed)
    }

    pub(super) async fn get(&self, path: &str, limit: u64) -> Result<Object, Trouble> {
        let read = move |target: PathBuf| {
            let file = File::open(target)?;
            let (found, mut bytes) = (file.metadata()?.len(), Vec::new());
            file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
            Ok((found.max(bytes.len() as u64), bytes))
        };
        match self.blocking(path, read).await? {
            (found, _) if found > limit => Err(Trouble::TooLarge { limit, found }),
            (_, bytes) => Ok(Object { tag: tag_of(&bytes), bytes: bytes.into() }),
        }
    }

    pub(super) async fn read(&self, path: &str) -> Result<(u64, BoxStream<'static, Result<Bytes, Trouble>>), Trouble> {
        let open = |target: PathBuf| {
            let file = File::open(target)?;
            let bytes = file.metadata()?.len();
            Ok((file, bytes))
        };
        let (file, bytes) = self.blocking(path, open).await?;
        let pieces = stream::try_unfold(file, |file| async {
            let read = tokio::task::spawn_blocking(move || read_piece(file)).await;
            read.map_err(|_| interrupted())?.map_err(|error| Trouble::of_io(&error))
        });
        Ok((bytes, Box::pin(pieces)))
    }

    pub(super) async fn upload(&self, path: &str) -> Result<DirectoryUpload, Trouble> {
        let begin = |target: PathBuf| Ok(DirectoryUpload { draft: Draft::begin(&target)?, target });
        self.blocking(path, begin).await
    }

    pub(super) async fn list(&self, under: &str) -> Result<Vec<Listed>, Trouble> {
        let mut listed = self.list_all(under).await?;
        listed.retain(|file| !is_draft(&file.path));
        Ok(listed)
    }

    pub(super) async fn unfinished(&self, under: &str) -> Result<Vec<String>, Trouble> {
        Ok(self.list_all(under).await?.iter().filter_map(|file| target_of(&file.path)).collect())
    }

    async fn list_all(&self, under: &str) -> Result<Vec<Listed>, Trouble> {
        let root = self.root.clone();
        self.blocking(under, move |from| {
            let mut found = Vec::new();
            walk(&from, &mut |path| {
                let about = fs::metadata(path)?;
                let modified = Timestamp::try_from(about.modified()?).unwrap_or(Timestamp::UNIX_EPOCH);
                let path = path.strip_prefix(root.as_path()).unwrap_or(path).display().to_string();
                found.push(Listed { path, bytes: about.len(), modified });
                Ok(())
            })?;
            Ok(found)
        })
        .await
    }

    pub(super) async fn delete(&self, path: &str) -> Result<(), Trouble> {
        let root = self.root.clone();
        self.blocking(path, move |target| {
            fs::remove_file(&target)?;
            let parent = target.parent().unwrap_or(&root);
            sync_dir(parent)?;
            // Directories are no objects; one that is not empty stays.
            for above in target.ancestors().skip(1).take_while(|above| *above != root.as_path()) {
                if fs::remove_dir(above).is_err() {
                    break;
                }
            }
            Ok(())
        })
        .await
    }

    pub(super) async fn clear_abandoned(&self, under: &str) -> Result<(), Trouble> {
        let all = self.list_all(under).await?;
        for draft in all.iter().filter(|file| is_draft(&file.path)) {
            match self.delete(&draft.path).await {
                Ok(()) | Err(Trouble::NotFound) => {}
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(())
    }

    async fn blocking<T: Send + 'static>(
        &self,
        path: &str,
        work: impl FnOnce(PathBuf) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Trouble> {
        let target = self.root.join(path);
        let done = tokio::task::spawn_blocking(move || work(target)).await;
        done.map_err(|_| interrupted())?.map_err(|error| Trouble::of_io(&error))
    }
}

fn interrupted() -> Trouble {
    Trouble::Other(String::from("the work was interrupted"))
}

fn tag_of(bytes: &[u8]) -> Tag {
    Tag(sha256_hex(bytes))
}

fn read_piece(mut file: File) -> io::Result<Option<(Bytes, File)>> {
    let mut piece = Vec::with_capacity(1 << 20);
    let read = (&mut file).take(PART as u64 / 8).read_to_end(&mut piece)?;
    Ok((read > 0).then(|| (Bytes::from(piece), file)))
}

/// Files that vanish meanwhile are passed over.
fn walk(from: &Path, visit: &mut impl FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    let entries = match fs::read_dir(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        let visited = match entry.file_type()?.is_dir() {
            true => walk(&path, visit),
            false => visit(&path),
        };
        match visited {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            visited => visited?,
        }
    }
    Ok(())
}

fn make_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn sync_dir(path: &Path) -> io::Result<()> {
    match File::open(path) {
        // Someone cleared it meanwhile: then there is nothing to keep.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        opened => opened?.sync_all(),
    }
}

fn is_draft(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| name.starts_with('.'))
}

/// Where a draft was to go.
fn target_of(draft: &str) -> Option<String> {
    let (parent, name) = draft.rsplit_once('/')?;
    let (name, _random) = name.strip_prefix('.')?.rsplit_once('-')?;
    Some(format!("{parent}/{name}"))
}

/// A file on its way to its place, `.NAME-RANDOM` next to that. Dropped before, it goes.
struct Draft {
    file: Option<File>,
    path: PathBuf,
}

impl Draft {
    fn begin(target: &Path) -> io::Result<Self> {
        let parent = target.parent().unwrap_or(Path::new("/"));
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let path = parent.join(format!(".{name}-{}", quorate_pki::random_hex(8)));
        // Anyone who deletes the last object of a directory removes it too, perhaps between these two lines.
        for _ in 0..10 {
            make_dir(parent)?;
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => return Ok(Draft { file: Some(opened?), path }),
            }
        }
        Err(io::Error::from(io::ErrorKind::NotFound))
    }

    fn write(target: &Path, bytes: &[u8]) -> io::Result<Self> {
        let draft = Draft::begin(target)?;
        draft.file().write_all(bytes)?;
        Ok(draft)
    }

    fn file(&self) -> &File {
        self.file.as_ref().expect("taken only by the end of the draft")
    }

    fn link_to(self, target: &Path) -> io::Result<()> {
        self.file().sync_all()?;
        fs::hard_link(&self.path, target)?;
        fs::remove_file(&self.path)?;
        sync_dir(target.parent().unwrap_or(Path::new("/")))
    }

    fn rename_to(self, target: &Path) -> io::Result<()> {
        self.file().sync_all()?;
        fs::rename(&self.path, target)?;
        sync_dir(target.parent().unwrap_or(Path::new("/")))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

pub(super) struct DirectoryUpload {
    draft: Draft,
    target: PathBuf,
}

impl DirectoryUpload {
    pub(super) async fn write(&mut self, piece: Bytes) -> Result<(), Trouble> {
        let mut file = self.draft.file.take().ok_or_else(interrupted)?;
        let written = tokio::task::spawn_blocking(move || file.write_all(&piece).map(|()| file)).await;
        let file = written.map_err(|_| interrupted())?.map_err(|error| Trouble::of_io(&error))?;
        self.draft.file = Some(file);
        Ok(())
    }

    pub(super) async fn finish(self) -> Result<(), Trouble> {
        let DirectoryUpload { draft, target } = self;
        let linked = tokio::task::spawn_blocking(move || draft.link_to(&target)).await;
        linked.map_err(|_| interrupted())?.map_err(|error| Trouble::of_io(&error))
    }

    pub(super) async fn abort(self) {
        drop(self.draft);
    }
}
