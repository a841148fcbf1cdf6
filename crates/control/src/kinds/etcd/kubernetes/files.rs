//! Writes a set of files as a unit: every file is complete on disk before the first one is renamed into place, and unchanged
//! files are not touched.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use quorate_agent::private_directory;
use serde::Serialize;

use super::{KubernetesError, WrittenFile, failed, refused};

pub(super) const SECRET: u32 = 0o600;
pub(super) const PUBLIC: u32 = 0o644;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    Created,
    Updated,
    Unchanged,
}

impl Change {
    pub fn name(self) -> &'static str {
        match self {
            Change::Created => "created",
            Change::Updated => "updated",
            Change::Unchanged => "unchanged",
        }
    }
}

struct Wanted {
    path: &'static str,
    content: String,
    mode: u32,
}

pub(super) struct Files {
    directory: PathBuf,
    /// In the order in which they are put in place: a key is there before its certificate.
    wanted: Vec<Wanted>,
}

impl Files {
    pub(super) fn new(directory: &Path) -> Self {
        Files { directory: directory.to_owned(), wanted: Vec::new() }
    }

    pub(super) fn secret(&mut self, path: &'static str, content: &str) {
        self.wanted.push(Wanted { path, content: content.to_owned(), mode: SECRET });
    }

    /// A secret that is created once: an existing one is kept, even if it cannot be read.
    pub(super) fn secret_once(
        &mut self,
        path: &'static str,
        make: impl FnOnce() -> String,
    ) -> Result<(), KubernetesError> {
        let full = self.directory.join(path);
        let content = match fs::read_to_string(&full) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(),
            Err(error) => return Err(failed("read", &full)(error)),
        };
        self.wanted.push(Wanted { path, content, mode: SECRET });
        Ok(())
    }

    pub(super) fn public(&mut self, path: &'static str, content: &str) {
        self.wanted.push(Wanted { path, content: content.to_owned(), mode: PUBLIC });
    }

    pub(super) fn write(self) -> Result<Vec<WrittenFile>, KubernetesError> {
        let changes: Vec<Change> = self.wanted.iter().map(|file| file.change(&self.directory)).collect();
        let differing = || self.wanted.iter().zip(&changes).filter(|(_, change)| **change != Change::Unchanged);
        let mut staged = Staged::default();
        for (file, _) in differing() {
            staged.add(&self.directory.join(file.path), &file.content, file.mode)?;
        }
        staged.put_in_place()?;
        let files = self.wanted.iter().zip(changes);
        Ok(files.map(|(file, change)| WrittenFile { path: file.path, change }).collect())
    }
}

impl Wanted {
    fn change(&self, directory: &Path) -> Change {
        let path = directory.join(self.path);
        let mode = fs::symlink_metadata(&path).map(|found| found.permissions().mode() & 0o777);
        match (mode, fs::read(&path)) {
            (Err(_), _) => Change::Created,
            (Ok(mode), Ok(found)) if mode == self.mode && found == self.content.as_bytes() => Change::Unchanged,
            _ => Change::Updated,
        }
    }
}

/// Files under temporary names. They are removed unless they are put in place.
#[derive(Default)]
struct Staged(Vec<(PathBuf, PathBuf)>);

impl Staged {
    fn add(&mut self, path: &Path, content: &str, mode: u32) -> Result<(), KubernetesError> {
        make_parent(path)?;
        let temporary = temporary(path);
        self.0.push((temporary.clone(), path.to_owned()));
        let write = || -> io::Result<()> {
            let mut file = create(&temporary)?;
            file.write_all(content.as_bytes())?;
            file.set_permissions(Permissions::from_mode(mode))?;
            file.sync_all()
        };
        write().map_err(failed("written", path))
    }

    fn put_in_place(mut self) -> Result<(), KubernetesError> {
        while !self.0.is_empty() {
            let (temporary, path) = &self.0[0];
            fs::rename(temporary, path).map_err(failed("replaced", path))?;
            let parent = path.parent().unwrap_or(Path::new("."));
            File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed("written", parent))?;
            self.0.remove(0);
        }
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        for (temporary, _) in &self.0 {
            // Nothing can be done about it, and it does no harm.
            let _ = fs::remove_file(temporary);
        }
    }
}

fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.new-{}", std::process::id()))
}

/// Created from scratch, so no existing file is followed or kept open by others.
fn create(temporary: &Path) -> io::Result<File> {
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(SECRET).open(temporary)
}

fn make_parent(path: &Path) -> Result<(), KubernetesError> {
    let parent = path.parent().unwrap_or(Path::new("."));
    private_directory(parent).map_err(failed("created", parent))
}

pub(super) fn refuse_if_not_a_directory(path: &Path) -> Result<(), KubernetesError> {
    if path.exists() && !path.is_dir() {
        return refused(format!("{} is not a directory", path.display()), "name a directory with --out");
    }
    Ok(())
}

/// Finds out by writing.
pub(super) fn refuse_if_not_writable(path: &Path) -> Result<(), KubernetesError> {
    make_parent(path)?;
    let temporary = temporary(path);
    create(&temporary).and_then(|_| fs::remove_file(&temporary)).map_err(failed("written", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(directory: &Path, content: &str) -> Vec<Change> {
        let mut files = Files::new(directory);
        files.secret("pki/a.key", "key");
        files.public("pki/a.crt", content);
        files.secret_once("once", || content.to_owned()).unwrap();
        files.write().unwrap().into_iter().map(|file| file.change).collect()
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn only_what_differs_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        assert_eq!(written(&out, "1"), [Change::Created; 3]);
        assert_eq!(written(&out, "1"), [Change::Unchanged; 3]);
        assert_eq!(written(&out, "2"), [Change::Unchanged, Change::Updated, Change::Unchanged]);
        fs::set_permissions(out.join("pki/a.key"), Permissions::from_mode(0o644)).unwrap();
        assert_eq!(written(&out, "2"), [Change::Updated, Change::Unchanged, Change::Unchanged]);
        let mode = |name: &str| fs::metadata(out.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(["", "pki", "pki/a.key", "pki/a.crt", "once"].map(mode), [0o700, 0o700, 0o600, 0o644, 0o600]);
        assert_eq!(fs::read_to_string(out.join("once")).unwrap(), "1");
        fs::write(out.join("once"), [0xff]).unwrap();
        assert!(
            Files::new(&out).secret_once("once", || unreachable!()).is_err(),
            "what cannot be read is not replaced"
        );
        assert_eq!(fs::read(out.join("once")).unwrap(), [0xff]);
    }

    #[test]
    fn a_failure_leaves_every_file_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(written(directory.path(), "1"), [Change::Created; 3]);
        let mut files = Files::new(directory.path());
        files.public("pki/a.crt", "2");
        // A file cannot be created below a file.
        files.public("once/below", "3");
        assert!(files.write().is_err());
        assert_eq!(fs::read_to_string(directory.path().join("pki/a.crt")).unwrap(), "1");
        assert_eq!(names(directory.path()), ["once", "pki"]);
        assert_eq!(names(&directory.path().join("pki")), ["a.crt", "a.key"], "and nothing else is left");
    }
}
