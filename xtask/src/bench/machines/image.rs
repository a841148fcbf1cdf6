//! Images that differ from one of `quorate image build` by a few files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::host;
use crate::labs::libvirt;

/// Puts a volume of that name into the lab's pool: the image, changed by what `change` does to its root.
pub fn vary(name: &str, image: &str, change: impl FnOnce(&Root) -> Result<()>) -> Result<()> {
    let raw = libvirt::volume_path(name).with_extension("raw");
    let root = Root(raw.with_extension("root"));
    host::run(Command::new("qemu-img").args(["convert", "-O", "raw"]).arg(libvirt::volume_path(image)).arg(&raw))?;
    fs::create_dir_all(&root.0).with_context(|| format!("cannot create {}", root.0.display()))?;
    host::run(Command::new("mount").args(["-o", "loop"]).arg(&raw).arg(&root.0))?;
    let changed = change(&root);
    host::run(Command::new("umount").arg(&root.0))?;
    changed?;
    host::run(Command::new("qemu-img").args(["convert", "-O", "qcow2"]).arg(&raw).arg(libvirt::volume_path(name)))?;
    fs::remove_dir(&root.0).with_context(|| format!("cannot remove {}", root.0.display()))?;
    fs::remove_file(&raw).with_context(|| format!("cannot remove {}", raw.display()))?;
    host::read(libvirt::virsh().args(["pool-refresh", libvirt::NAME])).map(drop)
}

/// The root of an image, for as long as it is changed.
pub struct Root(PathBuf);

impl Root {
    pub fn at(root: PathBuf) -> Self {
        Root(root)
    }

    pub fn put(&self, below: &str, text: &str) -> Result<()> {
        let path = self.0.join(below);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    pub fn copy(&self, from: &Path, below: &str) -> Result<()> {
        let path = self.0.join(below);
        // Its mode stays.
        fs::copy(from, &path).with_context(|| format!("cannot write {}", path.display())).map(drop)
    }

    pub fn enable(&self, unit: &str) -> Result<()> {
        self.systemctl("enable", unit)
    }

    pub fn disable(&self, unit: &str) -> Result<()> {
        self.systemctl("disable", unit)
    }

    /// The number of a user.
    pub fn user(&self, name: &str) -> Result<Option<u32>> {
        let users = fs::read_to_string(self.0.join("etc/passwd")).context("the image has no users")?;
        let mut fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        Ok(fields.find(|fields| fields[0] == name).and_then(|fields| fields.get(2)?.parse().ok()))
    }

    fn systemctl(&self, verb: &str, unit: &str) -> Result<()> {
        host::read(Command::new("chroot").arg(&self.0).args(["systemctl", "--quiet", verb, unit])).map(drop)
    }
}
