//! etcd's certificates under kubeadm's names, in a directory that other programs may use too.
//!
//! Each name is a link into a set of files next to it, and the link to that set is switched atomically, as a kubelet does for volumes of
//! Secrets. So certificate and key always match, also for a pod that has mounted the directory. A name that is not such a link belongs to
//! another program: it is never replaced or removed.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::{Entry, digest_of};
use crate::AgentError;
use crate::error::Obstacle;
use crate::files::{self, Owner};

/// The link to the set in use; sets have the same name with a digest appended.
const SET: &str = ".quorate";

/// Checks for obstacles to files with these names that this user must read.
pub(crate) fn obstacle<'a>(
    root: &Path,
    directory: &Path,
    names: impl Iterator<Item = &'a str>,
    reader: Option<Owner>,
) -> Option<Obstacle> {
    let foreign: Vec<String> = names
        .map(|name| directory.join(name))
        .filter(|path| path.symlink_metadata().is_ok() && !is_ours(path))
        .map(|path| path.display().to_string())
        .collect();
    if let Some(first) = foreign.first() {
        let (many, them) = if foreign.len() == 1 { ("exists and was", "it") } else { ("exist and were", "them") };
        return Some(Obstacle {
            why: format!("{} {many} not written by quorate", foreign.join(", ")),
            remedy: format!(
                "if nothing needs {them} any more, move {them} out of {}; or set `tls.layout: standard`",
                Path::new(first).parent().unwrap_or(directory).display()
            ),
        });
    }
    let closed = reader.and_then(|(user, _)| closed_to(root, directory, user));
    closed.map(|closed| Obstacle {
        why: format!("etcd runs as another user than root, which cannot enter {}", closed.display()),
        remedy: format!("run `chmod o+x {}` on the machine, or set `tls.layout: standard`", closed.display()),
    })
}

/// A parent directory that this user cannot enter. Missing ones are created accordingly.
fn closed_to(root: &Path, directory: &Path, user: u32) -> Option<PathBuf> {
    let within = directory.ancestors().take_while(|above| *above != root);
    let passable = |found: &fs::Metadata| user == 0 || found.uid() == user || found.permissions().mode() & 0o001 != 0;
    let closed = |path: &&Path| fs::metadata(path).is_ok_and(|found| !passable(&found));
    within.filter(closed).last().map(Path::to_owned)
}

fn is_ours(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    fs::read_link(path).is_ok_and(|target| target == Path::new(SET).join(name))
}

/// Installs this set, and removes files of an earlier one.
pub(super) fn put(directory: &Path, set: &[Entry<'_>]) -> Result<(), AgentError> {
    let names: BTreeSet<&str> = set.iter().map(|entry| entry.name.as_str()).collect();
    for path in names.iter().map(|name| directory.join(name)) {
        if path.symlink_metadata().is_ok() && !is_ours(&path) {
            return Err(AgentError::NotOurs { path });
        }
    }
    let current = format!("{SET}-{}", digest_of(set));
    files::make_dir(&directory.join(&current), 0o755)?;
    for entry in set {
        entry.ensure_in(&directory.join(&current))?;
    }
    files::link(&directory.join(SET), &current)?;
    for name in &names {
        show(&directory.join(name))?;
    }
    remove(directory, |name| !names.contains(name) && name != SET && name != current)
}

/// Unlike a file that is renamed, a new link replaces nothing.
fn show(path: &Path) -> Result<(), AgentError> {
    let name = path.file_name().unwrap_or_default();
    match symlink(Path::new(SET).join(name), path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_ours(path) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(AgentError::NotOurs { path: path.to_owned() })
        }
        made => made.map_err(AgentError::file("link", path)),
    }
}

/// Removes all of quorate's files, and directories that are empty then.
pub(super) fn clear(root: &Path, directory: &Path) -> Result<(), AgentError> {
    if !directory.join(SET).is_symlink() {
        return Ok(());
    }
    remove(directory, |name| name != SET)?;
    files::remove(&directory.join(SET))?;
    for empty in directory.ancestors().take_while(|above| *above != root && !above.ends_with("etc")) {
        if fs::remove_dir(empty).is_err() {
            break;
        }
    }
    Ok(())
}

/// Removes quorate's other links and sets.
fn remove(directory: &Path, goes: impl Fn(&str) -> bool) -> Result<(), AgentError> {
    for entry in fs::read_dir(directory).map_err(AgentError::file("list", directory))?.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if !goes(&name) {
            continue;
        }
        if is_ours(&path) {
            files::remove(&path)?;
        } else if name.starts_with(&format!("{SET}-")) {
            files::remove_dir(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set<'a>(content: &'a str, names: &[&str]) -> Vec<Entry<'a>> {
        let entry = |name: &&str| Entry { name: (*name).to_owned(), content, mode: 0o600, owner: None };
        names.iter().map(entry).collect()
    }

    fn listed(directory: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_set_replaces_the_one_before_and_leaves_nothing_of_it() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("etc/kubernetes/pki/etcd");
        let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
        put(&directory, &set("one", &["server.crt", "server.key", "old.crt"])).unwrap();
        let first = fs::read_link(directory.join(SET)).unwrap();
        put(&directory, &set("two", &["server.crt", "server.key"])).unwrap();
        assert_eq!((read("server.crt"), read("server.key")), (String::from("two"), String::from("two")));
        let second = fs::read_link(directory.join(SET)).unwrap().display().to_string();
        assert_ne!(first, Path::new(&second));
        let expected = [SET, &second, "server.crt", "server.key"].map(String::from);
        assert_eq!(listed(&directory), BTreeSet::from(expected));
        assert_eq!(fs::metadata(directory.join("server.key")).unwrap().mode() & 0o7777, 0o600);
        clear(root.path(), &directory).unwrap();
        assert_eq!(listed(root.path()), BTreeSet::from([String::from("etc")]));
        assert_eq!(listed(&root.path().join("etc")), BTreeSet::new(), "directories that were made for it are gone");
        clear(root.path(), &directory).unwrap();
    }

    #[test]
    fn files_of_other_tools_are_neither_replaced_nor_removed() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("etc/kubernetes/pki/etcd");
        fs::create_dir_all(&directory).unwrap();
        for foreign in ["server.crt", "ca.key"] {
            fs::write(directory.join(foreign), "theirs").unwrap();
        }
        symlink("/somewhere", directory.join("peer.crt")).unwrap();
        let names = ["ca.crt", "server.crt", "peer.crt"];
        let found = obstacle(root.path(), &directory, names.into_iter(), None).unwrap();
        let both = format!("{0}/server.crt, {0}/peer.crt exist and were not written by quorate", directory.display());
        assert_eq!(found.why, both);
        for name in ["server.crt", "peer.crt"] {
            assert!(matches!(put(&directory, &set("ours", &["ca.crt", name])), Err(AgentError::NotOurs { .. })));
        }
        assert!(!directory.join("ca.crt").exists(), "nothing was begun");
        fs::remove_file(directory.join("server.crt")).unwrap();
        fs::remove_file(directory.join("peer.crt")).unwrap();
        assert!(obstacle(root.path(), &directory, names.into_iter(), None).is_none());
        put(&directory, &set("ours", &names)).unwrap();
        assert!(obstacle(root.path(), &directory, names.into_iter(), None).is_none(), "our own is not in the way");
        clear(root.path(), &directory).unwrap();
        assert_eq!(listed(&directory), BTreeSet::from([String::from("ca.key")]));
    }

    #[test]
    fn a_directory_that_etcds_user_cannot_enter_is_found_before_etcd_fails() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("etc/kubernetes/pki/etcd");
        fs::create_dir_all(directory.parent().unwrap()).unwrap();
        let found = |user| obstacle(root.path(), &directory, std::iter::empty(), Some((user, user)));
        let close = root.path().join("etc/kubernetes");
        assert!(found(65534).is_none());
        fs::set_permissions(&close, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(found(65534).unwrap().remedy.contains(&format!("chmod o+x {}", close.display())));
        assert!(found(rustix::process::geteuid().as_raw()).is_none());
    }
}
