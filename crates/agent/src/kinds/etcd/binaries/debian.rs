//! etcd from Debian's or Ubuntu's packages `etcd-server` and `etcd-client`: downloaded and unpacked next to the agent, never
//! installed, so the package's own service does not start.

use std::fs;
use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::{BinaryError, once, run};

const PACKAGE: &str = "etcd-server";
/// The programs for people and for restores. etcd runs without them.
const CLIENT: &str = "etcd-client";
const PROGRAMS: [&str; 3] = ["etcd", "etcdctl", "etcdutl"];

pub(super) async fn fetch(version: &str, cache: &Path) -> Result<PathBuf, BinaryError> {
    let name = format!("{version}-debian");
    let directory = once(cache, &name, async |directory| {
        let listing = run(Command::new("apt-cache").args(["madison", PACKAGE])).await?;
        let offered = offered(&listing);
        let full = offered.iter().find(|full| upstream(full) == version).ok_or_else(|| BinaryError::NotOffered {
            wanted: version.to_owned(),
            offered: if offered.is_empty() { String::from("nothing") } else { offered.join(", ") },
        })?;
        download(PACKAGE, full, directory).await?;
        if let Err(error) = download(CLIENT, full, directory).await {
            tracing::warn!(%error, "etcdctl and etcdutl do not come with etcd");
        }
        let program = directory.join("etcd");
        if program.exists() { Ok(()) } else { Err(BinaryError::Missing { path: program }) }
    });
    Ok(directory.await?.join("etcd"))
}

async fn download(package: &str, version: &str, directory: &Path) -> Result<(), BinaryError> {
    let full = format!("{package}={version}");
    run(Command::new("apt-get").args(["download", &full]).current_dir(directory)).await?;
    let listing = fs::read_dir(directory).map_err(BinaryError::file("list", directory))?;
    let is_package = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb");
    let archive = listing.flatten().map(|entry| entry.path()).find(is_package);
    let archive = archive.ok_or_else(|| BinaryError::Missing { path: directory.join("*.deb") })?;
    let tree = directory.join("tree");
    run(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&tree)).await?;
    for name in PROGRAMS {
        let (from, to) = (tree.join("usr/bin").join(name), directory.join(name));
        if from.exists() {
            fs::rename(&from, &to).map_err(BinaryError::file("take out", &to))?;
        }
    }
    fs::remove_dir_all(&tree).map_err(BinaryError::file("remove", &tree))?;
    fs::remove_file(&archive).map_err(BinaryError::file("remove", &archive))
}

/// The versions in `apt-cache madison`: lines of `package | version | source`.
fn offered(listing: &str) -> Vec<&str> {
    let mut versions: Vec<&str> = Vec::new();
    for version in listing.lines().filter_map(|line| line.split('|').nth(1)).map(str::trim) {
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    versions
}

/// Of `1:3.5.16+dfsg-4`, what etcd calls itself: `3.5.16`.
fn upstream(version: &str) -> &str {
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    version.split(['+', '-', '~']).next().unwrap_or(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versions_that_debian_offers() {
        let listing = "etcd-server | 3.5.16-4+b14 | http://mirror/debian trixie/main amd64 Packages\n\
                       etcd-server | 3.4.23-4 | http://mirror/debian bookworm/main amd64 Packages\n\
                       etcd-server | 3.4.23-4 | http://mirror/debian bookworm/main Sources\n";
        assert_eq!(offered(listing), ["3.5.16-4+b14", "3.4.23-4"]);
        assert_eq!(offered(""), Vec::<&str>::new());
    }

    #[test]
    fn a_debian_version_holds_etcds_own() {
        for version in ["3.4.23-4", "3.4.23+dfsg-4", "1:3.4.23~rc-1", "3.4.23"] {
            assert_eq!(upstream(version), "3.4.23");
        }
    }
}
