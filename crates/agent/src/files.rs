//! Writes files atomically: a reader sees the old or the new one, never a part. A file is never readable by more users
//! than it should be, not even for an instant.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::AgentError;

pub(crate) const PRIVATE: u32 = 0o600;

/// User and group of files for etcd, if they are not the agent's own.
pub(crate) type Owner = (u32, u32);

/// Replaces the file and returns when it would survive a power cut.
pub fn write_durably(path: &Path, content: &[u8], mode: u32) -> Result<(), AgentError> {
    replace(path, content, mode, None, true)?;
    make_durable(parent(path))
}

/// Returns when the names in the directory, or the content of the file, would survive a power cut.
pub(crate) fn make_durable(path: &Path) -> Result<(), AgentError> {
    let sync = File::open(path).and_then(|file| file.sync_all());
    sync.map_err(AgentError::file("make durable", path))
}

/// Returns when a directory with all that is below it would survive a power cut. Each file is a flush of the disk, and files that are
/// flushed at the same time share one.
pub(crate) fn make_all_durable(directory: &Path) -> Result<(), AgentError> {
    const AT_A_TIME: usize = 16;
    let mut all = Vec::new();
    list_below(directory, &mut all)?;
    let next = AtomicUsize::new(0);
    let make_some = || {
        while let Some(path) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            make_durable(path)?;
        }
        Ok::<_, AgentError>(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(make_some)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })
}

/// Files and directories, and this directory itself. Links lead to what is elsewhere.
fn list_below(directory: &Path, all: &mut Vec<PathBuf>) -> Result<(), AgentError> {
    let unlisted = || AgentError::file("list", directory);
    for entry in fs::read_dir(directory).map_err(unlisted())? {
        let entry = entry.map_err(unlisted())?;
        let kind = entry.file_type().map_err(unlisted())?;
        if kind.is_dir() {
            list_below(&entry.path(), all)?;
        } else if kind.is_file() {
            all.push(entry.path());
        }
    }
    all.push(directory.to_owned());
    Ok(())
}

/// Replaces the file. After a power cut it may be the old one: for what the agent writes again when it starts.
pub(crate) fn write(path: &Path, content: &[u8], mode: u32, owner: Option<Owner>) -> Result<(), AgentError> {
    replace(path, content, mode, owner, false)
}

/// Writes only where content, mode or owner differ.
pub(crate) fn ensure(path: &Path, content: &[u8], mode: u32, owner: Option<Owner>) -> Result<(), AgentError> {
    let user = owner.map_or_else(|| rustix::process::geteuid().as_raw(), |(user, _)| user);
    let is_right = |m: fs::Metadata| m.is_file() && m.permissions().mode() & 0o7777 == mode && m.uid() == user;
    if fs::symlink_metadata(path).is_ok_and(is_right) && fs::read(path).is_ok_and(|found| found == content) {
        return Ok(());
    }
    write(path, content, mode, owner)
}

fn replace(path: &Path, content: &[u8], mode: u32, owner: Option<Owner>, sync: bool) -> Result<(), AgentError> {
    make_dir(parent(path), 0o755)?;
    let temporary = beside(path, "new");
    let put = || -> io::Result<()> {
        // One left by a crash could have another mode.
        remove_if_there(&temporary)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(&temporary)?;
        file.write_all(content)?;
        if let Some((user, group)) = owner {
            chown(&temporary, Some(user), Some(group))?;
        }
        if mode != PRIVATE {
            file.set_permissions(fs::Permissions::from_mode(mode))?;
        }
        if sync {
            file.sync_all()?;
        }
        fs::rename(&temporary, path)
    };
    put().map_err(AgentError::file("write", path))
}

pub(crate) fn remove(path: &Path) -> Result<(), AgentError> {
    remove_if_there(path).map_err(AgentError::file("remove", path))
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

pub(crate) fn remove_dir(path: &Path) -> Result<(), AgentError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(AgentError::file("remove", path)(error)),
        _ => Ok(()),
    }
}

/// The mode is for directories that are made; one that exists keeps its own.
pub(crate) fn make_dir(path: &Path, mode: u32) -> Result<(), AgentError> {
    try_make_dir(path, mode).map_err(AgentError::file("make the directory", path))
}

pub(crate) fn try_make_dir(path: &Path, mode: u32) -> io::Result<()> {
    let missing = path.ancestors().take_while(|above| !above.as_os_str().is_empty() && !above.exists());
    let missing: Vec<&Path> = missing.collect();
    fs::DirBuilder::new().recursive(true).mode(mode).create(path)?;
    // The umask of the agent's unit is narrow, and etcd, another user, must come through some of them.
    missing.into_iter().try_for_each(|made| fs::set_permissions(made, fs::Permissions::from_mode(mode)))
}

/// Creates a directory, and its parents, that only its owner can read.
pub fn private_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Makes a directory that only its owner can read, in one that must exist.
pub fn one_private_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)
}

/// Makes a user the owner; none leaves it the agent's.
pub(crate) fn give_to(path: &Path, owner: Option<Owner>) -> Result<(), AgentError> {
    let Some((user, group)) = owner else { return Ok(()) };
    std::os::unix::fs::chown(path, Some(user), Some(group)).map_err(AgentError::file("give away", path))
}

/// Makes `link` point to its neighbour `target`, atomically.
pub(crate) fn link(link: &Path, target: &str) -> Result<(), AgentError> {
    if fs::read_link(link).is_ok_and(|found| found == Path::new(target)) {
        return Ok(());
    }
    let temporary = beside(link, "new");
    let put = || -> io::Result<()> {
        remove_if_there(&temporary)?;
        std::os::unix::fs::symlink(target, &temporary)?;
        fs::rename(&temporary, link)
    };
    put().map_err(AgentError::file("link", link))
}

/// Opens another user's file for reading: links are not followed, and only regular files are opened.
pub(crate) fn open_plain(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is neither a file nor a directory, and etcd never creates anything else"))
    }
}

/// Opens a log for appending.
pub(crate) fn open_log(path: &Path) -> Result<File, AgentError> {
    make_dir(parent(path), 0o755)?;
    let opened = OpenOptions::new().append(true).create(true).mode(PRIVATE).open(path);
    opened.map_err(AgentError::file("open", path))
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_right_already_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etc/thing");
        ensure(&path, b"one", 0o640, None).unwrap();
        let first = fs::metadata(&path).unwrap();
        assert_eq!(first.mode() & 0o7777, 0o640);
        ensure(&path, b"one", 0o640, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().ino(), first.ino());
        ensure(&path, b"two", 0o640, None).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        ensure(&path, b"two", 0o640, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
    }

    #[test]
    fn all_files_and_directories_are_made_durable_and_what_links_lead_to_is_not() {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = dir.path();
        fs::create_dir_all(root.join("base/1")).unwrap();
        for file in ["PG_VERSION", "base/1/112"] {
            fs::write(root.join(file), "x").unwrap();
        }
        std::os::unix::fs::symlink(elsewhere.path(), root.join("link")).unwrap();
        let mut all = Vec::new();
        list_below(root, &mut all).unwrap();
        all.sort();
        let wanted = ["", "PG_VERSION", "base", "base/1", "base/1/112"].map(|below| match below {
            "" => root.to_owned(),
            below => root.join(below),
        });
        assert_eq!(all, wanted);
        make_all_durable(root).unwrap();
        assert!(make_all_durable(&root.join("gone")).is_err());
    }

    #[test]
    fn a_leftover_of_a_crash_is_in_nobodys_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        fs::write(beside(&path, "new"), "half").unwrap();
        write_durably(&path, b"whole", PRIVATE).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn neither_links_nor_pipes_are_opened_where_another_user_may_have_put_them() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link, pipe) = (dir.path().join("file"), dir.path().join("link"), dir.path().join("pipe"));
        fs::write(&file, "here").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(open_plain(&file).is_ok());
        assert!(open_plain(&link).is_err());
        assert!(open_plain(&pipe).is_err(), "nor is it waited for");
        assert!(open_plain(dir.path()).is_err());
    }

    #[test]
    fn a_link_flips_to_the_next_set() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pki");
        for set in ["pki-1", "pki-2", "pki-2"] {
            link(&path, set).unwrap();
            assert_eq!(fs::read_link(&path).unwrap(), Path::new(set));
        }
    }
}
