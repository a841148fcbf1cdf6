//! PostgreSQL, Patroni, pgBackRest, HAProxy and PgBouncer in an image. All except Patroni are Debian's packages. Debian's Patroni is too
//! old for current etcd versions, so Patroni comes from PyPI, verified by its digest, and uses the system's libraries.

use std::path::Path;
use std::process::Command;

use super::manifest::digest;
use super::system::put;
use super::tools::run;
use super::{ImageError, Package};

/// All that Patroni imports when its state is in etcd.
const PACKAGES: [&str; 11] = [
    "pgbackrest",
    "haproxy",
    "pgbouncer",
    "python3-psycopg2",
    "python3-yaml",
    "python3-urllib3",
    "python3-dateutil",
    "python3-click",
    "python3-prettytable",
    "python3-psutil",
    "python3-etcd",
];
/// Read when PostgreSQL's package is installed, which would otherwise create data and start on it.
pub(super) const NO_FIRST_CLUSTER: &str = "mkdir -p \"$1/etc/postgresql-common/createcluster.d\" && \
    echo 'create_main_cluster = false' > \"$1/etc/postgresql-common/createcluster.d/quorate.conf\"";

/// Kernels for clouds have no driver of emulated watchdogs. Patroni uses it where `watchdog.mode` says so; until then it does nothing.
const WATCHDOG: &str = "softdog";

const PATRONI: &str = "4.1.5";
const PATRONI_SHA256: &str = "7aad8c1539e6c51c269a8005169dd54ddc7668437b7900fa6099d7894e224c84";
const LIBRARY: &str = "usr/lib/quorate/patroni";
const LAUNCHER: &str = "\
#!/usr/bin/python3
import sys

sys.path.insert(0, \"/usr/lib/quorate/patroni\")
from patroni.__main__ import main

if __name__ == \"__main__\":
    main()
";

/// Debian's packages for this major version.
pub(super) fn packages(version: u16) -> Vec<String> {
    let server = format!("postgresql-{version}");
    std::iter::once(server).chain(PACKAGES.map(str::to_owned)).collect()
}

/// Loads the watchdog of the kernel at boot.
pub(super) fn put_watchdog(root: &Path) -> Result<(), ImageError> {
    put(root, "etc/modules-load.d/quorate-watchdog.conf", format!("{WATCHDOG}\n").as_bytes(), 0o644)
}

/// Installs Patroni below `root`, and returns its version.
pub(super) fn put_patroni(root: &Path, scratch: &Path) -> Result<Package, ImageError> {
    let pip = || {
        let mut pip = Command::new("pip3");
        pip.env("PIP_DISABLE_PIP_VERSION_CHECK", "1").env("PIP_ROOT_USER_ACTION", "ignore");
        pip
    };
    let downloads = scratch.join("patroni");
    let mut download = pip();
    download.args(["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"]).arg(&downloads);
    run(download.arg(format!("patroni=={PATRONI}")))?;
    let wheel = downloads.join(format!("patroni-{PATRONI}-py3-none-any.whl"));
    let (found, _) = digest(&wheel)?;
    if found != PATRONI_SHA256 {
        let why = format!("what pip downloaded has the SHA-256 {found}, and {PATRONI_SHA256} is expected");
        return Err(ImageError::Incomplete { what: "Patroni", why });
    }
    let mut install = pip();
    install.args(["install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--target"]);
    run(install.arg(root.join(LIBRARY)).arg(&wheel))?;
    put(root, "usr/bin/patroni", LAUNCHER.as_bytes(), 0o755)?;
    let mut version = Command::new("chroot");
    run(version.arg(root).args(["/usr/bin/patroni", "--version"]))?;
    Ok(Package { name: String::from("patroni"), version: PATRONI.to_owned(), sha256: Some(found) })
}
