//! Debian's `chronyd` in the lab, to check what the agent writes for it. Only its files are taken: to install the package would
//! give this machine another clock.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::host;
use crate::lab::Lab;

const PACKAGE: &str = "chrony";

/// Puts it there if it is missing.
pub fn ensure(lab: &Lab) -> Result<()> {
    let place = lab.root().join(PACKAGE);
    if place.is_dir() {
        return Ok(());
    }
    let filling = lab.lock()?;
    eprintln!("getting Debian's {PACKAGE}");
    let scratch = filling.scratch(PACKAGE)?;
    let download = || host::read(Command::new("apt-get").args(["download", PACKAGE]).current_dir(&scratch));
    // On a new machine the lists of packages may be older than the packages, or not there.
    if download().is_err() {
        host::update_packages()?;
        download()?;
    }
    let archive = fs::read_dir(&scratch)?.next().context("nothing was downloaded")??.path();
    let tree = scratch.join("tree");
    host::read(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&tree))?;
    host::read(Command::new(tree.join("usr/sbin/chronyd")).arg("--version"))?;
    fs::rename(&tree, &place).or_else(|error| if place.is_dir() { Ok(()) } else { Err(error) })?;
    Ok(())
}
