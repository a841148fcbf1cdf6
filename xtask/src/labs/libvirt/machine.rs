//! What real machines are made of: an image of `quorate image build`, and quorate as a static program, which each machine takes
//! from its seed disk. So the image is as old as what reads that disk, and is not built anew for every change of the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::host::{self, Need};
use crate::lab::{self, Lab};
use crate::static_build;

const NEEDS: [Need; 4] = [
    Need::Command { name: "mmdebstrap", package: "mmdebstrap" },
    Need::Command { name: "mke2fs", package: "e2fsprogs" },
    Need::Command { name: "extlinux", package: "extlinux" },
    Need::Command { name: "qemu-img", package: "qemu-utils" },
];

/// What an image is made by, and what of the program in it runs before the seed disk's takes its place.
const SOURCES: [&str; 5] = [
    "crates/control/src/image",
    "crates/agent/src/boot.rs",
    "crates/agent/src/boot",
    "crates/agent/src/api.rs",
    "crates/agent/src/api/boot.rs",
];
const IMAGE: &str = "machine.qcow2";
/// Other checkouts have images of their own in the lab.
const KEPT: usize = 4;
/// quorate itself puts this program on seed disks.
const PROGRAM_VARIABLE: &str = "QUORATE_AGENT_PROGRAM";
/// Tells what runs inside where the image lies.
pub(super) const IMAGE_VARIABLE: &str = "QUORATE_LAB_MACHINE_IMAGE";

pub struct Machine {
    /// quorate as a static program.
    pub program: PathBuf,
    pub image: PathBuf,
}

impl Machine {
    /// Builds what is not there yet. It needs the network, so it is done outside of the lab's namespaces.
    pub fn prepare(lab: &Lab) -> Result<Self> {
        let program = static_build::build(false)?;
        let image = image(lab, &program)?;
        Ok(Self { program, image })
    }

    /// The same as it is told to what runs inside.
    pub fn tell(&self, command: &mut Command) {
        command.env(PROGRAM_VARIABLE, &self.program).env(IMAGE_VARIABLE, &self.image);
    }
}

fn image(lab: &Lab, program: &Path) -> Result<PathBuf> {
    let all = lab.root().join("images");
    let place = all.join(key()?);
    let image = place.join(IMAGE);
    if image.is_file() {
        return Ok(image);
    }
    let _filling = lab.lock()?;
    if !image.is_file() {
        host::install_missing(&NEEDS)?;
        eprintln!("building a machine image");
        fs::create_dir_all(&place).with_context(|| format!("cannot create {}", place.display()))?;
        host::run(Command::new(program).args(["image", "build"]).arg(&image))?;
        keep_newest(&all)?;
    }
    Ok(image)
}

fn keep_newest(all: &Path) -> Result<()> {
    let mut places: Vec<_> = fs::read_dir(all)?.flatten().map(|entry| entry.path()).collect();
    places.sort_by_key(|place| fs::metadata(place.join(IMAGE)).and_then(|found| found.modified()).ok());
    for old in places.iter().rev().skip(KEPT) {
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
