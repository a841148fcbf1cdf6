//! Debian's programs in the lab, for tests that need them. Their packages are unpacked, not installed, because installing would give this
//! machine another clock, and services on its network.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::host;
use crate::lab::{Filling, Lab};

/// Packages, and a program of each that must run, with the option that shows its version.
const PACKAGES: [(&str, &str, &str); 4] = [
    ("chrony", "usr/sbin/chronyd", "--version"),
    ("openssh-server", "usr/sbin/sshd", "-V"),
    ("prometheus", "usr/bin/prometheus", "--version"),
    ("prometheus-node-exporter", "usr/bin/prometheus-node-exporter", "--version"),
];

/// Puts there what is missing.
pub fn ensure(lab: &Lab) -> Result<()> {
    let missing: Vec<_> = PACKAGES.into_iter().filter(|(package, ..)| !lab.root().join(package).is_dir()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let filling = lab.lock()?;
    missing.into_iter().try_for_each(|(package, program, version)| unpack(lab, &filling, package, [program, version]))
}

fn unpack(lab: &Lab, filling: &Filling<'_>, package: &str, [program, version]: [&str; 2]) -> Result<()> {
    eprintln!("getting Debian's {package}");
    let place = lab.root().join(package);
    let scratch = filling.scratch(package)?;
    let download = || host::read(Command::new("apt-get").args(["download", package]).current_dir(&scratch));
    // On a new machine the lists of packages may be older than the packages, or not there.
    if download().is_err() {
        host::update_packages()?;
        download()?;
    }
    let archive = fs::read_dir(&scratch)?.next().context("nothing was downloaded")??.path();
    let tree = scratch.join("tree");
    host::read(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&tree))?;
    host::read(Command::new(tree.join(program)).arg(version))?;
    fs::rename(&tree, &place).or_else(|error| if place.is_dir() { Ok(()) } else { Err(error) })?;
    Ok(())
}
