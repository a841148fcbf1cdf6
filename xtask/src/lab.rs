//! The lab's directory, where downloads and builds are kept, and the etcd versions in it. Everything arrives by a
//! rename, so it is complete.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};

/// A released version of etcd. Release candidates and other previews do not parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl Version {
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for Version {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let numbers: Vec<u32> = text
            .split('.')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map_err(|_| anyhow!("`{text}` is not a release's version"))?;
        match numbers[..] {
            [major, minor, patch] => Ok(Self::new(major, minor, patch)),
            _ => bail!("`{text}` is not a version of three numbers"),
        }
    }
}

/// The lab's directory, shared by all checkouts of one user.
pub struct Lab {
    root: PathBuf,
}

impl Lab {
    pub fn from_environment() -> Result<Self> {
        let root = root_from(|name| std::env::var_os(name))?;
        // Tests run in the directory of their crate, so a relative path would mean a different place to each.
        let root = std::path::absolute(&root).with_context(|| format!("no absolute path for {}", root.display()))?;
        Ok(Self { root })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    fn etcd_versions(&self) -> PathBuf {
        self.root.join("etcd")
    }

    /// The directory that holds `etcd`, `etcdctl` and, from 3.5 on, `etcdutl` of this version.
    pub fn etcd(&self, version: Version) -> PathBuf {
        self.etcd_versions().join(version.to_string())
    }

    /// Patroni's environment, and links to its programs.
    pub fn patroni(&self) -> PathBuf {
        self.root.join("patroni")
    }

    /// A PostgreSQL of another major version than the machine's.
    pub fn postgres(&self, version: u16) -> PathBuf {
        self.root.join("postgres").join(version.to_string())
    }

    /// The minor release before the machine's.
    pub fn older_postgres(&self) -> PathBuf {
        self.root.join("postgres/15-older")
    }

    /// SeaweedFS's one program.
    pub fn weed(&self) -> PathBuf {
        self.root.join("seaweedfs/weed")
    }

    pub fn installed(&self) -> BTreeMap<Version, PathBuf> {
        let Ok(entries) = fs::read_dir(self.etcd_versions()) else { return BTreeMap::new() };
        entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let version = entry.file_name().to_str()?.parse().ok()?;
                Some((version, entry.path()))
            })
            .filter(|(_, directory)| ["etcd", "etcdctl"].iter().all(|name| directory.join(name).is_file()))
            .collect()
    }

    /// Waits until no other run fills the lab; the lock lasts as long as the value.
    pub fn lock(&self) -> Result<Filling<'_>> {
        let directory = self.etcd_versions();
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let path = directory.join(".lock");
        let lock = File::create(&path).with_context(|| format!("cannot open {}", path.display()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                eprintln!("waiting for another run that fills {}", directory.display());
                lock.lock().with_context(|| format!("cannot lock {}", path.display()))?;
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
        let filling = Filling { lab: self, scratch: directory.join(".scratch"), _lock: lock };
        filling.clear_scratch()?;
        Ok(filling)
    }
}

/// The right to add versions to the lab, with a scratch directory that nobody else uses meanwhile.
pub struct Filling<'lab> {
    lab: &'lab Lab,
    scratch: PathBuf,
    _lock: File,
}

impl Filling<'_> {
    /// A new, empty directory on the lab's own file system, so that a rename can move it into place.
    pub fn scratch(&self, name: &str) -> Result<PathBuf> {
        let path = self.scratch.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(path)
    }

    /// Moves a finished directory to where the version belongs.
    pub fn install(&self, version: Version, finished: &Path) -> Result<()> {
        let target = self.lab.etcd(version);
        if target.exists() {
            fs::remove_dir_all(&target).with_context(|| format!("cannot remove incomplete {}", target.display()))?;
        }
        fs::rename(finished, &target).with_context(|| format!("cannot move into place {}", target.display()))
    }

    /// Removes what this run, or one that was killed before it, left behind.
    fn clear_scratch(&self) -> Result<()> {
        match fs::remove_dir_all(&self.scratch) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.scratch.display()))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        // A leftover is harmless and the next run clears it before use.
        let _ = self.clear_scratch();
    }
}

/// The root of the workspace that this run is about.
pub fn workspace() -> Result<PathBuf> {
    // Asked at run time: a path baked in at build time would be wrong once the checkout moves.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").context("start this as `cargo xtask`")?;
    let root = Path::new(&manifest).parent().context("xtask has no directory above it")?;
    Ok(root.to_owned())
}

fn root_from(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(lab) = path("QUORATE_LAB") {
        return Ok(lab);
    }
    let cache = path("XDG_CACHE_HOME")
        .or_else(|| path("HOME").map(|home| home.join(".cache")))
        .context("no place for the lab: set QUORATE_LAB, XDG_CACHE_HOME or HOME")?;
    Ok(cache.join("quorate-lab"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root_with(variables: &[(&str, &str)]) -> Option<PathBuf> {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        root_from(find).ok()
    }

    #[test]
    fn the_most_specific_variable_names_the_root() {
        let all = [("QUORATE_LAB", "/lab"), ("XDG_CACHE_HOME", "/cache"), ("HOME", "/home/ada")];
        assert_eq!(root_with(&all), Some("/lab".into()));
        assert_eq!(root_with(&all[1..]), Some("/cache/quorate-lab".into()));
        assert_eq!(root_with(&all[2..]), Some("/home/ada/.cache/quorate-lab".into()));
        assert_eq!(root_with(&[]), None);
    }

    #[test]
    fn an_empty_variable_counts_as_unset() {
        assert_eq!(root_with(&[("QUORATE_LAB", ""), ("HOME", "/root")]), Some("/root/.cache/quorate-lab".into()));
    }

    #[test]
    fn versions_order_by_number_and_previews_are_refused() {
        let version = |text: &str| text.parse::<Version>();
        assert!(version("3.6.9").unwrap() < version("3.6.14").unwrap());
        assert_eq!(version("3.5.30").unwrap().to_string(), "3.5.30");
        for wrong in ["3.7.0-rc.0", "3.7", "v3.7.1", "3.7.1.2", ""] {
            assert!(version(wrong).is_err(), "{wrong}");
        }
    }
}
