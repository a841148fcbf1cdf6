//! The programs of PostgreSQL that a side's members run: a directory in which one minor release takes the place of another, as a package does it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::postgres::PROGRAMS_DIRECTORY;

pub struct Release {
    directory: PathBuf,
}

impl Release {
    /// The installed programs. All but the server are links: they are the same in both releases.
    pub fn install(directory: PathBuf) -> Result<Self> {
        let link = || {
            fs::create_dir_all(&directory)?;
            for entry in fs::read_dir(PROGRAMS_DIRECTORY)?.flatten().filter(|entry| entry.file_name() != "postgres") {
                symlink(entry.path(), directory.join(entry.file_name()))?;
            }
            Ok::<_, std::io::Error>(())
        };
        link().with_context(|| format!("cannot put programs in {}", directory.display()))?;
        let release = Release { directory };
        release.put(Path::new(PROGRAMS_DIRECTORY))?;
        Ok(release)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Running servers keep the program that they have.
    pub fn put(&self, programs: &Path) -> Result<()> {
        let draft = self.directory.join("postgres.new");
        let server = programs.join("postgres");
        fs::copy(&server, &draft)
            .and_then(|_| fs::rename(&draft, self.directory.join("postgres")))
            .with_context(|| format!("cannot put {} in {}", server.display(), self.directory.display()))
    }
}
