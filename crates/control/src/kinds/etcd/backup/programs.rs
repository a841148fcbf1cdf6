//! etcd's programs for the temporary clusters that verify backups: found or downloaded like an agent does, into the same cache.

use std::path::Path;

use quorate_agent::kinds::etcd::binaries::{self, Binary, BinaryError};
use quorate_backup::throwaway::Programs;
use quorate_core::kinds::etcd::desire::binary;
use quorate_core::model::Version;
use quorate_core::spec::ClusterSpec;

use crate::backup::BackupError;
use crate::home::Home;
use crate::run::controller::arch;

/// The programs of exactly this version. If the spec's source does not have them, those of the spec's version if it has the same
/// minor; otherwise as for a spec without a source, because data from before an upgrade needs the programs of that version.
pub(super) async fn programs(home: &Home, spec: &ClusterSpec, version: &str) -> Result<Programs, BackupError> {
    let failed = |source: BinaryError| BackupError::Programs { version: version.to_owned(), source: Box::new(source) };
    let wanted: Version = match version.parse() {
        Ok(wanted) => wanted,
        Err(_) => spec.etcd.version,
    };
    let of_spec = spec.etcd.version;
    let found = match located(home, spec, wanted).await {
        Err(_) if wanted != of_spec && wanted.line() == of_spec.line() => located(home, spec, of_spec).await,
        Err(_) if wanted != of_spec && spec.etcd.binary.is_some() => {
            let mut anywhere = spec.clone();
            anywhere.etcd.binary = None;
            located(home, &anywhere, wanted).await
        }
        found => found,
    };
    let Binary { etcd, version: found } = found.map_err(failed)?;
    let restorer = match beside(&etcd, &found) {
        Some(restorer) => restorer,
        None => binaries::etcdutl(&etcd, &found, &home.programs(), search().as_deref()).await.map_err(failed)?,
    };
    Ok(Programs { version: found, etcd, restorer })
}

/// A restore needs one more program, which not every etcd installation has: the one that raises revisions. Agents look for it in the
/// same way, but only when the old data is already given up.
pub(super) async fn raising(home: &Home, spec: &ClusterSpec) -> Result<Programs, BackupError> {
    let wanted = spec.etcd.version;
    let failed = |source: BinaryError| BackupError::Restorer { version: wanted.to_string(), source: Box::new(source) };
    let Binary { etcd, version } = located(home, spec, wanted).await.map_err(failed)?;
    let restorer = binaries::etcdutl(&etcd, &version, &home.programs(), search().as_deref()).await.map_err(failed)?;
    Ok(Programs { version, etcd, restorer })
}

async fn located(home: &Home, spec: &ClusterSpec, version: Version) -> Result<Binary, BinaryError> {
    let mut spec = spec.clone();
    spec.etcd.version = version;
    let source = binary(&spec, arch());
    binaries::locate(&source, &version.to_string(), &home.programs(), search().as_deref()).await
}

/// The program of the same release that restores snapshots.
fn beside(etcd: &Path, version: &str) -> Option<std::path::PathBuf> {
    let name = if version.starts_with("3.4.") { "etcdctl" } else { "etcdutl" };
    Some(etcd.parent()?.join(name)).filter(|path| path.is_file())
}

fn search() -> Option<std::ffi::OsString> {
    std::env::var_os("PATH")
}
