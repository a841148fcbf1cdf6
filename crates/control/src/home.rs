//! Where quorate keeps its state: `$QUORATE_HOME`, by default below the XDG data directory.

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use quorate_core::kinds::etcd::RestoreWish;
use quorate_core::model::Ledger;
use quorate_providers::{Directories, Provider};

use crate::key::Keys;
use crate::ledger::{LedgerError, Store};

#[derive(Clone, Debug)]
pub struct Home {
    root: PathBuf,
    keys: Arc<Keys>,
}

impl Home {
    /// A home at this place, with the key in it.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        let keys = Arc::new(Keys::in_home(&root));
        Home { root, keys }
    }

    /// A home at this place, with the key that the environment names.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        let keys = Arc::new(Keys::from_environment(&root));
        Home { root, keys }
    }

    /// `$QUORATE_HOME`, else `$XDG_DATA_HOME/quorate`, else `~/.local/share/quorate`.
    pub fn from_environment() -> Option<Self> {
        let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let root = var("QUORATE_HOME")
            .or_else(|| var("XDG_DATA_HOME").map(|d| d.join("quorate")))
            .or_else(|| var("HOME").map(|h| h.join(".local/share/quorate")))?;
        let root = std::path::absolute(root).ok()?;
        Some(Home::at(root))
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn clusters(&self) -> PathBuf {
        self.root.join("clusters")
    }

    /// The clusters in this home directory.
    pub fn known_clusters(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.clusters()).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|e| e.file_name().into_string().ok())
            .filter(|name| matches!(self.store(name).read(), Ok(Some(_)) | Err(_)))
            .collect();
        names.sort();
        names
    }

    pub fn cluster(&self, name: &str) -> PathBuf {
        self.clusters().join(name)
    }

    pub fn ledger(&self, name: &str) -> PathBuf {
        self.cluster(name).join("ledger")
    }

    /// One cluster's ledger.
    pub fn store(&self, name: &str) -> Store {
        Store::new(self.ledger(name), self.keys.clone())
    }

    /// The keys that decrypt ledgers.
    pub fn keys(&self) -> &Arc<Keys> {
        &self.keys
    }

    /// The history of a cluster.
    pub fn history(&self, name: &str) -> PathBuf {
        self.cluster(name).join("history.jsonl")
    }

    /// The snapshot with this digest, prepared for a restore.
    pub fn snapshot(&self, name: &str, sha256: &str) -> PathBuf {
        self.snapshots(name).join(format!("{sha256}.db"))
    }

    /// Snapshots that were prepared for a restore.
    pub fn snapshots(&self, name: &str) -> PathBuf {
        self.cluster(name).join("restore")
    }

    /// Removes snapshots that no restore waits for.
    pub fn forget_snapshots(&self, name: &str, wish: Option<&RestoreWish>) -> Result<(), LedgerError> {
        let wanted = wish.map(|wish| self.snapshot(name, &wish.sha256));
        let entries = std::fs::read_dir(self.snapshots(name)).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()).filter(|path| wanted.as_ref() != Some(path)) {
            match std::fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(LedgerError::Io { what: "removed", path, source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The directory for verifying backups. Nothing stays there.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.cluster(name).join("scratch")
    }

    /// The operator's client certificates. They are separate from the ledger, because their keys are not encrypted.
    pub fn clients(&self, name: &str) -> PathBuf {
        self.root.join("clients").join(name)
    }

    pub fn machines(&self) -> PathBuf {
        self.root.join("machines")
    }

    /// Where providers keep their files.
    pub fn directories(&self) -> Directories {
        Directories { machines: self.machines(), programs: self.programs(), cache: self.root.join("cache") }
    }

    /// The provider of a cluster's machines.
    pub fn provider(&self, ledger: &Ledger) -> Rc<dyn Provider> {
        quorate_providers::provider(ledger, &self.directories())
    }

    /// The same for a command that shows clusters and changes nothing.
    pub fn observer(&self, ledger: &Ledger) -> Rc<dyn Provider> {
        quorate_providers::observer(ledger, &self.directories())
    }

    /// etcd programs, shared by all machines here.
    pub fn programs(&self) -> PathBuf {
        self.root.join("cache").join("etcd")
    }
}
