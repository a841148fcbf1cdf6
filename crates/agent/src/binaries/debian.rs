//! etcd from Debian's package `etcd-server`: downloaded and unpacked beside the agent, never installed, so that Debian's
//! own service does not come with it.

use std::fs;
use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::{BinaryError, once, run};

const PACKAGE: &str = "etcd-server";

pub(super) async fn fetch(version: &str, cache: &Path) -> Result<PathBuf, BinaryError> {
    let name = format!("{version}-debian");
    let directory = once(cache, &name, async |directory| {
        let listing = run(Command::new("apt-cache").args(["madison", PACKAGE])).await?;
        let offered = offered(&listing);
        let full = offered.iter().find(|full| upstream(full) == version).ok_or_else(|| BinaryError::NotOffered {
            wanted: version.to_owned(),
            offered: if offered.is_empty() { String::from("nothing") } else { offered.join(", ") },
        })?;
        let package = format!("{PACKAGE}={full}");
        run(Command::new("apt-get").args(["download", &package]).current_dir(directory)).await?;
        unpack(directory).await
    });
    Ok(directory.await?.join("etcd"))
}

async fn unpack(directory: &Path) -> Result<(), BinaryError> {
    let listing = fs::read_dir(directory).map_err(BinaryError::file("list", directory))?;
    let is_package = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb");
    let package = listing.flatten().map(|entry| entry.path()).find(is_package);
    let package = package.ok_or_else(|| BinaryError::Missing { path: directory.join("*.deb") })?;
    let tree = directory.join("tree");
    run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&tree)).await?;
    let program = directory.join("etcd");
    fs::rename(tree.join("usr/bin/etcd"), &program).map_err(BinaryError::file("take out", &program))?;
    fs::remove_dir_all(&tree).map_err(BinaryError::file("remove", &tree))?;
    fs::remove_file(&package).map_err(BinaryError::file("remove", &package))
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
