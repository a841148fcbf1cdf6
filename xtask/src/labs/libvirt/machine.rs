//! What real machines are made of: images of `quorate image build`, and quorate as a static program, which each machine takes
//! from its seed disk. So the image is as old as what reads that disk, and is not built anew for every change of the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::host::{self, Need};
use crate::lab::{self, Lab};
use crate::static_build;

pub const NEEDS: [Need; 4] = [
    Need::Command { name: "mmdebstrap", package: "mmdebstrap" },
    Need::Command { name: "mke2fs", package: "e2fsprogs" },
    Need::Command { name: "extlinux", package: "extlinux" },
    Need::Command { name: "qemu-img", package: "qemu-utils" },
];

/// What an image is made by, and what of the program in it runs before the seed disk's takes its place.
const SOURCES: [&str; 6] = [
    "crates/control/src/image",
    "crates/agent/src/boot.rs",
    "crates/agent/src/boot",
    "crates/agent/src/api.rs",
    "crates/agent/src/api/boot.rs",
    // For the packages.
    "xtask/src/labs/libvirt/machine.rs",
];
const IMAGE: &str = "machine.qcow2";
const CLOUD_INIT_IMAGE: &str = "cloud-init.qcow2";
/// What machines with cloud-init need of packages: they have nowhere to fetch them from.
const CLOUD_INIT_PACKAGES: [&str; 5] = ["etcd-server", "etcd-client", "chrony", "prometheus-node-exporter", "nftables"];
/// Other checkouts have images of their own in the lab.
const KEPT: usize = 4;
/// quorate itself puts this program on seed disks.
pub const PROGRAM_VARIABLE: &str = "QUORATE_AGENT_PROGRAM";
/// Tell what runs inside where the images lie.
pub(super) const IMAGE_VARIABLE: &str = "QUORATE_LAB_MACHINE_IMAGE";
pub(super) const CLOUD_INIT_VARIABLE: &str = "QUORATE_LAB_CLOUD_INIT_IMAGE";

/// What of it is wanted.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub cloud_init: bool,
}

pub struct Machine {
    /// quorate as a static program.
    pub program: PathBuf,
    pub image: PathBuf,
    /// As clouds have it.
    pub cloud_init: Option<PathBuf>,
}

impl Machine {
    /// Builds what is not there yet. It needs the network, so it is done outside of the lab's namespaces.
    pub fn prepare(lab: &Lab, wanted: Wanted) -> Result<Self> {
        let program = static_build::build(true)?;
        let image = image(lab, &program, IMAGE, &[])?;
        let packages: Vec<&str> = CLOUD_INIT_PACKAGES.iter().flat_map(|name| ["--package", name]).collect();
        let options = [&["--cloud-init"], &packages[..]].concat();
        let cloud_init =
            wanted.cloud_init.then(|| self::image(lab, &program, CLOUD_INIT_IMAGE, &options)).transpose()?;
        Ok(Self { program, image, cloud_init })
    }

    /// The same as it is told to what runs inside.
    pub fn tell(&self, command: &mut Command) {
        command.env(PROGRAM_VARIABLE, &self.program).env(IMAGE_VARIABLE, &self.image);
        command.envs(self.cloud_init.iter().map(|image| (CLOUD_INIT_VARIABLE, image)));
    }
}

fn image(lab: &Lab, program: &Path, name: &str, options: &[&str]) -> Result<PathBuf> {
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
