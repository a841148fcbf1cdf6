//! A machine of the local provider on disk and among processes: its mark, its files, its variable. The provider creates
//! machines from it; a drill, which damages machines from outside, finds them by it.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use quorate_agent::process::{self, Process};
use quorate_core::model::MemberName;
use quorate_core::providers::local::Network;
use serde::{Deserialize, Serialize};

use super::{ProviderError, failed, netns};

/// The file that says whose machine a directory is.
pub(super) const MARK_FILE: &str = "machine.json";
/// The directory of a machine that its agent takes for `/`.
const ROOT: &str = "root";
/// Set in every process of a machine, so that all of them can be found.
pub(super) const MARK_VARIABLE: &str = "QUORATE_MACHINE";
/// Where the agent stores data below a machine's directory, and what belongs to it: etcd's, or PostgreSQL's with its stamp.
pub(super) const DATA_DIRECTORY: &str = "root/var/lib";
pub(super) const DATA: [&str; 3] = ["etcd", "etcd.stamp", "postgresql"];

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mark {
    pub cluster: String,
    pub cluster_id: String,
    pub member: MemberName,
    pub incarnation: u64,
    pub address: IpAddr,
    /// The id of the cluster whose network it is in, if that is not its own cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joins: Option<String>,
}

impl Mark {
    /// The id of the cluster whose network it is in.
    pub(super) fn network_id(&self) -> &str {
        self.joins.as_ref().unwrap_or(&self.cluster_id)
    }

    pub(super) fn network(&self) -> Network {
        if netns::Place::of(self).is_some() { Network::Netns } else { Network::Loopback }
    }
}

/// Every machine of a cluster's name, with its mark; not those that are being created or removed.
pub fn marked(machines: &Path, cluster: &str) -> Result<Vec<(PathBuf, Mark)>, ProviderError> {
    let entries = match fs::read_dir(machines.join(cluster)) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed("read", machines)(e)),
    };
    let hidden = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
    let mut found = Vec::new();
    for directory in entries.flatten().map(|e| e.path()).filter(|p| !hidden(p)) {
        if let Some(mark) = read_mark(&directory)? {
            found.push((directory, mark));
        }
    }
    Ok(found)
}

/// Where a machine's data would have a separate disk.
pub fn data_directory(machine: &Path) -> PathBuf {
    machine.join(DATA_DIRECTORY)
}

/// Every process of the machine in a directory.
pub fn processes_of(machine: &Path) -> Vec<Process> {
    processes(&machine.join(ROOT))
}

/// Every process of the machine with this root.
pub(super) fn processes(root: &Path) -> Vec<Process> {
    process::with_environment(MARK_VARIABLE, &root.to_string_lossy())
}

pub(super) fn read_mark(directory: &Path) -> Result<Option<Mark>, ProviderError> {
    let path = directory.join(MARK_FILE);
    match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| failed("read", &path)(e.into())),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(failed("read", &path)(e)),
    }
}
