//! The preparation of a restore: turns backups or a plain snapshot into one plain snapshot file that was restored and checked. Touches no
//! running member. Also exports a backup as a plain snapshot for etcd's own tools.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use futures_util::StreamExt;

use quorate_etcd::{Client, KeyRange, RangeQuery};

use crate::Error;
use crate::catalog::Catalog;
use crate::choose::Choice;
use crate::full;
use crate::keys::BackupKey;
use crate::manifest::{Hash, Manifest, Outcome, Proven};
use crate::names::is_revision;
use crate::pipe::{SnapshotCheck, SnapshotFile};
use crate::replay::replay;
use crate::source::count_at;
use crate::store::Store;
use crate::throwaway::{Throwaway, create_private, hash_as};
use crate::verify::{Workshop, compare_with_manifest, restored};

/// A snapshot that was verified, ready to be given to every member.
#[derive(Clone, PartialEq, Debug)]
pub struct Prepared {
    /// `DIRECTORY/SHA256.db`, for this user alone.
    pub path: PathBuf,
    pub bytes: u64,
    /// With which it ends: etcd's checksum of all that comes before.
    pub sha256: String,
    pub revision: i64,
    /// How many it has; absent where it was verified earlier, and only the number at an older revision is known.
    pub keys: Option<i64>,
    /// Where it comes from, in words.
    pub source: String,
}

/// From backups.
pub async fn prepare(
    store: &Store,
    catalog: &Catalog,
    choice: &Choice,
    key: Option<BackupKey>,
    workshop: &Workshop<'_>,
    directory: &Path,
    progress: &(dyn Fn(i64) + Sync),
) -> Result<Prepared, Error> {
    let made = make(store, choice, key, workshop, directory, progress).await;
    let draft = made.map_err(|error| match error {
        Error::Damaged(damage) => {
            let still = catalog.still(std::slice::from_ref(&*damage));
            Error::NothingToRestore(format!("{damage}; {still}"))
        }
        error => error,
    })?;
    match verified_earlier(catalog, choice) {
        Some(proven) => {
            let keys = (proven.revision == choice.full.revision).then_some(proven.keys);
            put_in_place(draft.path, draft.file, (proven.revision, keys), choice.describe(), directory)
        }
        None => prove(draft, choice.describe(), workshop, directory).await,
    }
}

/// What a verification found in these very bytes: the SHA-256 of a signed manifest has been compared with them. Another one would find
/// the same. Where nobody signed, anyone who can write to the store may have written the verification too.
fn verified_earlier<'a>(catalog: &Catalog, choice: &'a Choice) -> Option<&'a Proven> {
    catalog.find(&choice.full.id)?.signed_by.as_ref()?;
    match &choice.full.verified.last()?.outcome {
        Outcome::Ok(proven) if choice.segments.is_empty() => Some(proven),
        _ => None,
    }
}

/// A snapshot file that is not in its place yet, and what must come out of it.
struct Draft {
    path: tempfile::TempPath,
    file: SnapshotFile,
    /// What is known of it; nothing of one that others made.
    expected: Option<Hash>,
    /// The one that it must end with, where that is known.
    revision: Option<i64>,
}

async fn make(
    store: &Store,
    choice: &Choice,
    key: Option<BackupKey>,
    workshop: &Workshop<'_>,
    directory: &Path,
    progress: &(dyn Fn(i64) + Sync),
) -> Result<Draft, Error> {
    if choice.segments.is_empty() {
        let (path, file) = new_file(directory)?;
        let file = full::fetch(store, &choice.full, key, file, &path).await?;
        return Ok(Draft { path, file, expected: Some(choice.full.hash), revision: None });
    }
    let throwaway = restored(store, &choice.full, key.clone(), workshop).await?;
    compare_with_manifest(&throwaway, &choice.full).await?;
    let reached = replay(&throwaway, store, &choice.segments, key.as_ref(), choice.stop, progress).await?;
    let expected = Hash::from(throwaway.client().hash_kv(reached).await?);
    let (path, file) = snapshot_of(throwaway, directory).await?;
    Ok(Draft { path, file, expected: Some(expected), revision: Some(reached) })
}

/// What a temporary etcd holds, which ends with that.
async fn snapshot_of(throwaway: Throwaway, directory: &Path) -> Result<(tempfile::TempPath, SnapshotFile), Error> {
    let (path, file) = new_file(directory)?;
    drop(file);
    fs::remove_file(&path).map_err(Error::file("make way for", &path))?;
    let file = throwaway.snapshot(&path).await?;
    throwaway.end().await;
    Ok((path, file))
}

/// Restores the file as the members will, and looks at what comes out.
async fn prove(draft: Draft, source: String, workshop: &Workshop<'_>, directory: &Path) -> Result<Prepared, Error> {
    let Draft { path, file, expected, revision: wanted } = draft;
    let throwaway = Throwaway::start(workshop.programs, &path, workshop.scratch).await?;
    let revision = throwaway.snapshot_revision();
    let differs = |what: &str, expected: String, found: String| Error::Differs {
        what: format!("{what} of the prepared snapshot"),
        expected,
        found,
    };
    if let Some(wanted) = wanted.filter(|wanted| *wanted != revision) {
        return Err(differs("the revision", wanted.to_string(), revision.to_string()));
    }
    if let Some(expected) = expected {
        let found = hash_as(throwaway.client(), expected).await?;
        if found.contradicts(&expected) {
            return Err(differs("the hash", format!("{expected:?}"), format!("{found:?}")));
        }
    }
    let keys = throwaway.client().range(count_at(revision)).await?.count;
    throwaway.end().await;
    put_in_place(path, file, (revision, Some(keys)), source, directory)
}

fn put_in_place(
    path: tempfile::TempPath,
    file: SnapshotFile,
    (revision, keys): (i64, Option<i64>),
    source: String,
    directory: &Path,
) -> Result<Prepared, Error> {
    if !is_revision(revision) {
        return Err(Error::NothingToRestore(format!("{source} is at revision {revision}, where no cluster can come")));
    }
    let place = directory.join(format!("{}.db", file.sha256));
    // Not synced to disk: every member restores it with etcd's own tool, which compares it with its checksum.
    path.persist(&place).map_err(|error| Error::file("put in place", &place)(error.error))?;
    Ok(Prepared { path: place, bytes: file.bytes, sha256: file.sha256, revision, keys, source })
}

/// Restores a prepared snapshot with its revision raised, as the members will, and checks revision and number of keys, if that is known.
pub async fn prove_raised(
    snapshot: &Path,
    keys: Option<i64>,
    bump_revision: u64,
    workshop: &Workshop<'_>,
) -> Result<(), Error> {
    let raised = Throwaway::start_raised(workshop.programs, snapshot, workshop.scratch, bump_revision).await?;
    let found = raised.client().range(count_at(0)).await?;
    raised.end().await;
    let differs = |what: &str, expected: String, found: String| Error::Differs {
        what: format!("{what} of the snapshot, raised by {bump_revision},"),
        expected,
        found,
    };
    let at_least = i64::try_from(bump_revision).unwrap_or(i64::MAX);
    if found.revision < at_least || !is_revision(found.revision) {
        return Err(differs("the revision", format!("more than {at_least}"), found.revision.to_string()));
    }
    match keys {
        Some(keys) if keys != found.count => {
            Err(differs("the number of keys", keys.to_string(), found.count.to_string()))
        }
        _ => Ok(()),
    }
}

/// Without the prefix that they share.
pub type Keys = BTreeMap<String, String>;

/// Keys that must not come back as they were. They are read and replaced in a temporary etcd, so no member ever serves them.
pub struct Exchange<'a> {
    /// All of them begin so.
    pub prefix: &'a str,
    /// From what is there to what should be. None: it stays as it is.
    pub keys: &'a (dyn Fn(&Keys) -> Option<Keys> + Sync),
}

/// The same snapshot with other keys in it.
pub async fn exchange(
    prepared: Prepared,
    exchanges: &[Exchange<'_>],
    workshop: &Workshop<'_>,
    directory: &Path,
) -> Result<Prepared, Error> {
    let throwaway = Throwaway::start(workshop.programs, &prepared.path, workshop.scratch).await?;
    let mut revision = throwaway.snapshot_revision();
    for exchange in exchanges {
        revision = exchange_in(throwaway.client(), exchange).await?.unwrap_or(revision);
    }
    if revision == throwaway.snapshot_revision() {
        throwaway.end().await;
        return Ok(prepared);
    }
    let expected = Hash::from(throwaway.client().hash_kv(revision).await?);
    let (path, file) = snapshot_of(throwaway, directory).await?;
    let draft = Draft { path, file, expected: Some(expected), revision: Some(revision) };
    prove(draft, prepared.source, workshop, directory).await
}

/// Returns the revision of the last change, if there was one.
async fn exchange_in(client: &Client, exchange: &Exchange<'_>) -> Result<Option<i64>, Error> {
    let Exchange { prefix, keys } = exchange;
    let there = client.range(RangeQuery::new(KeyRange::prefix(*prefix))).await?.pairs;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let older = there.iter().map(|pair| (text(&pair.key[prefix.len()..]), text(&pair.value))).collect();
    let Some(keys) = keys(&older) else { return Ok(None) };
    let deleted = client.delete(KeyRange::prefix(*prefix)).await?;
    let mut revision = (deleted.count > 0).then_some(deleted.revision);
    for (key, value) in keys {
        revision = Some(client.put(format!("{prefix}{key}"), value).await?);
    }
    Ok(revision)
}

/// A plain snapshot made by any tool.
pub enum PlainSnapshot<'a> {
    File(&'a Path),
    Object { store: &'a Store, path: &'a str },
}

pub async fn prepare_plain(
    plain: PlainSnapshot<'_>,
    workshop: &Workshop<'_>,
    directory: &Path,
) -> Result<Prepared, Error> {
    let (path, mut file) = new_file(directory)?;
    let name = match plain {
        PlainSnapshot::File(from) => {
            let copy = File::open(from).and_then(|mut from| io::copy(&mut from, &mut file));
            copy.map_err(Error::file("copy", from))?;
            from.display().to_string()
        }
        PlainSnapshot::Object { store, path } => {
            let (_, mut content) = store.read(path).await?;
            while let Some(piece) = content.next().await {
                file.write_all(&piece?).map_err(Error::file("copy", Path::new(path)))?;
            }
            format!("{}{path}", store.place())
        }
    };
    drop(file);
    let Some(file) = checked(&path).await? else {
        return Err(Error::NothingToRestore(format!(
            "{name} is not a whole etcd snapshot: the SHA-256 at its end does not fit. It was cut or damaged, or is a copy of a member's \
             database file, which has none: take one with `etcdctl snapshot save`"
        )));
    };
    prove(Draft { path, file, expected: None, revision: None }, format!("snapshot {name}"), workshop, directory).await
}

/// Writes a backup as a plain snapshot, which `etcdutl snapshot restore` takes, into a new file.
pub async fn export(store: &Store, manifest: &Manifest, key: Option<BackupKey>, into: &Path) -> Result<(), Error> {
    let directory = match into.parent() {
        Some(directory) if directory != Path::new("") => directory,
        _ => Path::new("."),
    };
    let cannot = |source| Error::Output { path: into.to_owned(), source };
    let (path, file) = new_file(directory).map_err(|error| match error {
        Error::File { source, .. } => cannot(source),
        error => error,
    })?;
    full::fetch(store, manifest, key, file, &path).await.map_err(|error| match error {
        Error::File { source, .. } => cannot(source),
        error => error,
    })?;
    let synced = tokio::task::spawn_blocking({
        let path = path.to_path_buf();
        move || File::open(path)?.sync_all()
    });
    synced.await?.map_err(cannot)?;
    path.persist_noclobber(into).map_err(|error| cannot(error.error))
}

/// Goes away by itself unless it is put in place.
fn new_file(directory: &Path) -> Result<(tempfile::TempPath, File), Error> {
    let path = directory.join(format!(".preparing-{}", quorate_pki::random_hex(8)));
    let file = create_private(&path).map_err(Error::file("make", &path))?;
    let path = tempfile::TempPath::try_from_path(&path).map_err(Error::file("make", &path))?;
    Ok((path, file))
}

/// `None` where it does not agree with its own checksum.
async fn checked(path: &Path) -> Result<Option<SnapshotFile>, Error> {
    let at = path.to_owned();
    let read = move || {
        let (mut file, mut buffer, mut check) = (File::open(at)?, vec![0; 1 << 20], SnapshotCheck::new());
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(check.finish()),
                read => check.update(&buffer[..read]),
            }
        }
    };
    tokio::task::spawn_blocking(read).await?.map_err(Error::file("read", path))
}
