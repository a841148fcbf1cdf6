//! Images of `quorate image build`, kept in the lab until their inputs change.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::host::{self, Need};
use crate::lab::{self, Lab};

pub const NEEDS: [Need; 4] = [
    Need::Command { name: "mmdebstrap", package: "mmdebstrap" },
    Need::Command { name: "mke2fs", package: "e2fsprogs" },
    Need::Command { name: "extlinux", package: "extlinux" },
    Need::Command { name: "qemu-img", package: "qemu-utils" },
];

/// What an image is made by, and what of the program in it runs before the seed disk's takes its place.
const SOURCES: [&str; 7] = [
    "crates/control/src/image",
    "crates/agent/src/boot.rs",
    "crates/agent/src/boot",
    "crates/agent/src/api.rs",
    "crates/agent/src/api/boot.rs",
    // For the packages.
    "xtask/src/labs/libvirt/machine.rs",
    "xtask/src/labs/image.rs",
];
/// Other checkouts have images of their own in the lab.
const KEPT: usize = 4;

/// An image of this name, built by the program with these options.
pub fn build(lab: &Lab, program: &Path, name: &str, options: &[&str]) -> Result<PathBuf> {
    let all = lab.root().join("images");
    let place = all.join(key()?);
    let image = place.join(name);
    if image.is_file() {
        return Ok(image);
    }
    let _filling = lab.lock()?;
    if !image.is_file() {
        host::install_missing(&NEEDS)?;
        eprintln!("building the image {name}");
        fs::create_dir_all(&place).with_context(|| format!("cannot create {}", place.display()))?;
        host::run(Command::new(program).args(["image", "build"]).arg(&image).args(options))?;
        keep_newest(&all, KEPT)?;
    }
    Ok(image)
}

/// Removes the oldest of these directories.
pub(super) fn keep_newest(all: &Path, kept: usize) -> Result<()> {
    let mut places: Vec<_> = fs::read_dir(all)?.flatten().map(|entry| entry.path()).collect();
    places.sort_by_key(|place| fs::metadata(place).and_then(|found| found.modified()).ok());
    for old in places.iter().rev().skip(kept) {
        fs::remove_dir_all(old).with_context(|| format!("cannot remove {}", old.display()))?;
    }
    Ok(())
}

/// The same for the same sources.
fn key() -> Result<String> {
    let mut find = Command::new("sh");
    find.current_dir(lab::workspace()?);
    find.args(["-c", "find \"$@\" -type f | LC_ALL=C sort | xargs sha256sum | sha256sum", "sh"]).args(SOURCES);
    Ok(host::read(&mut find)?.chars().take(16).collect())
}
