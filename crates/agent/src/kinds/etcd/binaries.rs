//! etcd's programs: found on the machine, or downloaded into a cache that many agents may share. Nothing is installed,
//! nothing is unpacked before its checksum is verified, and every program that is found must report its version.

mod archive;
mod debian;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use quorate_core::model::BinarySource;
use quorate_core::model::Version;
use quorate_core::text::hex;
use quorate_pki::Sha256;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use crate::files;

/// No command here takes longer, unless it hangs: the longest downloads a package.
const LONGEST: Duration = Duration::from_secs(300);
/// A program that is asked for its version answers within this, also Patroni on an emulated machine.
const ASKING: Duration = Duration::from_secs(40);
/// No command prints more useful output.
const MOST_OUTPUT: u64 = 1 << 20;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Binary {
    pub etcd: PathBuf,
    pub version: String,
}

#[derive(Debug, thiserror::Error)]
pub enum BinaryError {
    #[error("there is no etcd on the PATH")]
    NotOnPath,
    #[error("there is no program {}", path.display())]
    Missing { path: PathBuf },
    #[error("{} is etcd {found}, expected {wanted}", path.display())]
    WrongVersion { path: PathBuf, found: String, wanted: String },
    #[error("{} does not print a version that is understood", path.display())]
    NoVersion { path: PathBuf },
    #[error("cannot run {}", program.display())]
    Run { program: PathBuf, source: io::Error },
    #[error("{command} failed: {said}")]
    Command { command: String, said: String },
    #[error(
        "there is no etcdutl {line} (at least {least}) next to {}, in {}, or on the PATH: copy it to one of these places", etcd.display(), cache.display()
    )]
    NoEtcdutl { line: String, least: String, etcd: PathBuf, cache: PathBuf },
    #[error("Debian's package etcd-server is not available as {wanted}; available: {offered}")]
    NotOffered { wanted: String, offered: String },
    #[error("cannot fetch {url}: {why}")]
    Fetch { url: String, why: String },
    #[error("{url} has the SHA-256 {found}, expected is {expected}")]
    WrongChecksum { url: String, expected: String, found: String },
    #[error("{url} cannot be unpacked: {why}")]
    Unpack { url: String, why: String },
    #[error("cannot {doing} {}", path.display())]
    File { doing: &'static str, path: PathBuf, source: io::Error },
}

impl BinaryError {
    fn file(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| BinaryError::File { doing, path, source }
    }
}

/// Finds or fetches etcd in this version. `search` is a PATH as the environment has it.
pub async fn locate(
    source: &BinarySource,
    version: &str,
    cache: &Path,
    search: Option<&OsStr>,
) -> Result<Binary, BinaryError> {
    let etcd = match source {
        BinarySource::Search { otherwise } => match (found_on_path(version, cache, search).await, otherwise) {
            (Ok(binary), _) => return Ok(binary),
            (Err(_), Some(archive)) => archive::fetch(archive, version, cache).await?,
            (Err(error), None) => return Err(error),
        },
        BinarySource::Path(path) => at_path(Path::new(path))?,
        BinarySource::DebianPackage => debian::fetch(version, cache).await?,
        BinarySource::Archive(archive) => archive::fetch(archive, version, cache).await?,
    };
    of_version(etcd, version, cache).await
}

/// The first one on the PATH with this version; if there is none, the version of the first of all is reported.
async fn found_on_path(version: &str, cache: &Path, search: Option<&OsStr>) -> Result<Binary, BinaryError> {
    let mut first = None;
    for program in all_on_path(search) {
        match of_version(program, version, cache).await {
            Ok(binary) => return Ok(binary),
            Err(error) => drop(first.get_or_insert(error)),
        }
    }
    Err(first.unwrap_or(BinaryError::NotOnPath))
}

async fn of_version(etcd: PathBuf, wanted: &str, cache: &Path) -> Result<Binary, BinaryError> {
    let version = version_of(&etcd, cache).await?;
    if version == wanted {
        Ok(Binary { etcd, version })
    } else {
        Err(BinaryError::WrongVersion { path: etcd, found: version, wanted: wanted.to_owned() })
    }
}

/// The `etcd` that a PATH leads to.
pub fn on_path(search: Option<&OsStr>) -> Result<PathBuf, BinaryError> {
    all_on_path(search).next().ok_or(BinaryError::NotOnPath)
}

fn all_on_path(search: Option<&OsStr>) -> impl Iterator<Item = PathBuf> {
    let directories = search.into_iter().flat_map(std::env::split_paths);
    directories.map(|directory| directory.join("etcd")).filter(|path| is_program(path))
}

/// An etcdutl that can restore the data of this etcd with a bumped revision: of the same minor, as another would write what
/// etcd does not know; 3.4 has none, and takes what 3.5's writes.
pub async fn etcdutl(etcd: &Path, version: &str, cache: &Path, search: Option<&OsStr>) -> Result<PathBuf, BinaryError> {
    let not_etcd = || BinaryError::NoVersion { path: etcd.to_owned() };
    let wanted: Version = version.parse().map_err(|_| not_etcd())?;
    let minor = wanted.minor.max(5);
    let least = Version { minor, patch: if minor == 5 { 10 } else { 0 }, ..wanted };
    let cached = fs::read_dir(cache).into_iter().flatten().flatten().map(|entry| entry.path());
    let directories = etcd.parent().map(Path::to_owned).into_iter().chain(cached);
    let directories = directories.chain(search.into_iter().flat_map(std::env::split_paths));
    for program in directories.map(|directory| directory.join("etcdutl")).filter(|path| is_program(path)) {
        let answer = run_within(ASKING, Command::new(&program).arg("version")).await.unwrap_or_default();
        let found = answer.lines().find_map(|line| line.strip_prefix("etcdutl version: ")?.trim().parse().ok());
        if found.is_some_and(|found: Version| found.minor == minor && found >= least) {
            return Ok(program);
        }
    }
    let (line, etcd, cache) = (least.line(), etcd.to_owned(), cache.to_owned());
    Err(BinaryError::NoEtcdutl { line, least: least.to_string(), etcd, cache })
}

/// A separate program with the same content: the same file under another name, or a copy. It stays what it is when the other is
/// exchanged. What is in the cache already is nobody else's. Of earlier ones only the one in use stays.
pub(crate) fn keep(etcd: &Path, version: &str, cache: &Path, in_use: Option<&Path>) -> Result<PathBuf, BinaryError> {
    if etcd.starts_with(cache) {
        return Ok(etcd.to_owned());
    }
    let name = note_of(etcd, cache)?.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let all = cache.join("kept");
    let directory = all.join(format!("{version}-{name}"));
    let kept = directory.join("etcd");
    if is_program(&kept) {
        return Ok(kept);
    }
    let earlier = fs::read_dir(&all).into_iter().flatten().flatten().map(|entry| entry.path());
    for unused in earlier.filter(|path| in_use.is_none_or(|in_use| !in_use.starts_with(path))) {
        fs::remove_dir_all(&unused).map_err(BinaryError::file("remove", &unused))?;
    }
    make_dir(&directory)?;
    if fs::hard_link(etcd, &kept).is_err() {
        let draft = directory.join(".etcd");
        fs::copy(etcd, &draft).map_err(BinaryError::file("copy", etcd))?;
        fs::rename(&draft, &kept).map_err(BinaryError::file("put in place", &kept))?;
    }
    Ok(kept)
}

fn at_path(path: &Path) -> Result<PathBuf, BinaryError> {
    let program = if path.is_dir() { path.join("etcd") } else { path.to_owned() };
    if is_program(&program) { Ok(program) } else { Err(BinaryError::Missing { path: program }) }
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0)
}

/// Runs the program once while its file is unchanged: the answer is stored in the cache, for other agents too.
pub async fn version_of(program: &Path, cache: &Path) -> Result<String, BinaryError> {
    version_by(program, cache, "--version", version_in).await
}

/// The version of a program that prints it in another way, when it is called with this argument.
pub(crate) async fn version_by(
    program: &Path,
    cache: &Path,
    asks: &str,
    version_in: fn(&str) -> Option<String>,
) -> Result<String, BinaryError> {
    let note = note_of(program, cache)?;
    if let Ok(version) = fs::read_to_string(&note) {
        return Ok(version);
    }
    // Agents that start together ask once, not each for itself.
    let _lock = lock(cache, "versions").await?;
    if let Ok(version) = fs::read_to_string(&note) {
        return Ok(version);
    }
    let answer = run_within(ASKING, Command::new(program).arg(asks)).await?;
    let version = version_in(&answer).ok_or_else(|| BinaryError::NoVersion { path: program.to_owned() })?;
    // The note saves time and nothing else: without it the program is asked again.
    if let Err(error) = files::write(&note, version.as_bytes(), 0o644, None) {
        tracing::debug!(%error, "the version could not be noted");
    }
    Ok(version)
}

fn note_of(program: &Path, cache: &Path) -> Result<PathBuf, BinaryError> {
    let file = fs::metadata(program).map_err(BinaryError::file("read", program))?;
    let identity =
        format!("{} {} {} {}.{}", program.display(), file.ino(), file.size(), file.mtime(), file.mtime_nsec());
    Ok(cache.join("versions").join(&hex(&Sha256::digest(identity))[..32]))
}

fn version_in(text: &str) -> Option<String> {
    let version = text.lines().find_map(|line| line.strip_prefix("etcd Version: "))?;
    Some(version.trim().to_owned()).filter(|version| !version.is_empty())
}

/// What the command prints, if it succeeds in time.
async fn run(command: &mut Command) -> Result<String, BinaryError> {
    run_within(LONGEST, command).await
}

/// The command is ended where it takes longer, or prints without end.
pub(crate) async fn run_within(time: Duration, command: &mut Command) -> Result<String, BinaryError> {
    let program = PathBuf::from(command.as_std().get_program());
    let failed = |said: String| BinaryError::Command { command: program.display().to_string(), said };
    let not_run = |source| BinaryError::Run { program: program.clone(), source };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(not_run)?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let ended = async { tokio::try_join!(read_some(out), read_some(err), child.wait()) };
    let ended = tokio::time::timeout(time, ended).await;
    let (out, err, status) =
        ended.map_err(|_| failed(format!("not finished within {} s", time.as_secs())))?.map_err(not_run)?;
    if status.success() { Ok(out) } else { Err(failed(err.trim().to_owned())) }
}

/// The whole output, unless that is too much.
async fn read_some(stream: Option<impl AsyncRead + Unpin>) -> io::Result<String> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        stream.take(MOST_OUTPUT + 1).read_to_end(&mut bytes).await?;
    }
    if bytes.len() as u64 > MOST_OUTPUT {
        return Err(io::Error::other(format!("it prints more than {MOST_OUTPUT} bytes")));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Makes `cache/name` complete in one instant, by one process at a time: the others wait for it and find it done.
/// `fill` is given an empty directory to fill.
async fn once(
    cache: &Path,
    name: &str,
    fill: impl AsyncFnOnce(&Path) -> Result<(), BinaryError>,
) -> Result<PathBuf, BinaryError> {
    let target = cache.join(name);
    if target.is_dir() {
        return Ok(target);
    }
    let _lock = lock(cache, name).await?;
    if target.is_dir() {
        return Ok(target);
    }
    let filling = cache.join(format!(".{name}.filling"));
    let clear = || match fs::remove_dir_all(&filling) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(BinaryError::file("remove", &filling)(error)),
        _ => Ok(()),
    };
    clear()?;
    make_dir(&filling)?;
    match fill(&filling).await.and_then(|()| make_durable(&filling)) {
        Ok(()) => {
            fs::rename(&filling, &target).map_err(BinaryError::file("put in place", &target))?;
            sync(cache)?;
        }
        Err(error) => {
            clear()?;
            return Err(error);
        }
    }
    Ok(target)
}

/// Returns when all files in the directory would survive a power cut: what has its name counts as complete ever after.
fn make_durable(directory: &Path) -> Result<(), BinaryError> {
    for entry in fs::read_dir(directory).map_err(BinaryError::file("list", directory))? {
        let entry = entry.map_err(BinaryError::file("list", directory))?;
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => make_durable(&entry.path())?,
            Ok(kind) if kind.is_file() => sync(&entry.path())?,
            _ => {}
        }
    }
    sync(directory)
}

fn sync(path: &Path) -> Result<(), BinaryError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(BinaryError::file("make durable", path))
}

/// etcd's own user must come through to its program.
fn make_dir(path: &Path) -> Result<(), BinaryError> {
    files::try_make_dir(path, 0o755).map_err(BinaryError::file("make the directory", path))
}

async fn lock(cache: &Path, name: &str) -> Result<File, BinaryError> {
    make_dir(cache)?;
    let path = cache.join(format!(".{name}.lock"));
    crate::blocking(move || {
        let file = File::create(&path).map_err(BinaryError::file("open", &path))?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
            .map_err(|error| BinaryError::file("lock", &path)(error.into()))?;
        Ok(file)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_hangs_or_never_stops_printing_is_ended() {
        let script = |text: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", text]);
            command
        };
        let begun = std::time::Instant::now();
        let hangs = run_within(Duration::from_millis(100), &mut script("exec sleep 60")).await.unwrap_err();
        assert!(hangs.to_string().contains("not finished within"), "{hangs}");
        let floods = run(&mut script("exec yes")).await.unwrap_err();
        assert!(
            matches!(&floods, BinaryError::Run { source, .. } if source.to_string().contains("more than")),
            "{floods:?}"
        );
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert_eq!(run(&mut script("echo out; echo err >&2")).await.unwrap(), "out\n");
        let fails = run(&mut script("echo why >&2; exit 3")).await.unwrap_err();
        assert!(fails.to_string().ends_with("failed: why"), "{fails}");
    }

    #[test]
    fn a_copied_program_is_unchanged_when_the_original_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (etcd, cache) = (directory.path().join("etcd"), directory.path().join("cache"));
        let put = |text: &str| {
            let draft = directory.path().join("draft");
            fs::write(&draft, text).unwrap();
            fs::set_permissions(&draft, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
            fs::rename(draft, &etcd).unwrap();
        };
        put("one");
        let one = keep(&etcd, "1", &cache, None).unwrap();
        assert_eq!(keep(&etcd, "1", &cache, None).unwrap(), one);
        put("two, longer");
        assert_eq!(fs::read(&one).unwrap(), b"one");
        let two = keep(&etcd, "2", &cache, Some(&one)).unwrap();
        assert!(one.exists() && fs::read(&two).unwrap() == b"two, longer");
        put("three, longer still");
        keep(&etcd, "3", &cache, Some(&two)).unwrap();
        assert!(!one.exists() && two.exists(), "only what is in use stays");
        assert_eq!(keep(&two, "2", &cache, None).unwrap(), two, "what is ours is not kept twice");
    }

    #[test]
    fn etcd_says_its_version_among_other_things() {
        assert_eq!(version_in("etcd Version: 3.5.30\nGit SHA: abc\n").as_deref(), Some("3.5.30"));
        assert_eq!(version_in("GNU something 1.0\n"), None);
        assert_eq!(version_in("etcd Version: \n"), None);
    }
}
