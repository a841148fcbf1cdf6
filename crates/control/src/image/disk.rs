//! The disk: one ext4 file system without partitions, so that it grows with the disk; and extlinux in its first sectors, so that
//! any BIOS boots it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::initrd::INITRD;
use super::tools::run;
use super::{ImageError, system};

/// Of the file system. The first file system of the boot finds its root by it.
pub(super) const LABEL: &str = "quorate-root";
/// The serial console is the one that `virsh console` and quorate show.
const KERNEL_ARGUMENTS: &str = "console=tty0 console=ttyS0 quiet";
const MOUNT: &str = "mounted";

pub(super) fn put_boot_menu(root: &Path, kernel: &str) -> Result<(), ImageError> {
    let text = format!(
        "DEFAULT quorate\n\
         PROMPT 0\n\
         LABEL quorate\n\
         \x20 LINUX /{kernel}\n\
         \x20 INITRD /{INITRD}\n\
         \x20 APPEND {KERNEL_ARGUMENTS}\n"
    );
    system::put(root, "boot/extlinux/extlinux.conf", text.as_bytes(), 0o644)
}

/// extlinux does not support all features of ext4: the two that are left out are newer than it.
pub(super) fn make(root: &Path, bytes: u64, scratch: &Path) -> Result<PathBuf, ImageError> {
    let (raw, image) = (scratch.join("disk.raw"), scratch.join("disk.qcow2"));
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-t", "ext4", "-m", "0", "-L", LABEL, "-O", "^64bit,^metadata_csum,^orphan_file"]);
    command.arg("-d").arg(root).arg(&raw).arg(format!("{}k", bytes / 1024));
    run(&mut command).or_else(|error| {
        // An mke2fs that does not know a feature does not use it either.
        let older = matches!(&error, ImageError::Command { said, .. } if said.contains("orphan_file"));
        if older { run(&mut without_newest(root, bytes, &raw)) } else { Err(error) }
    })?;
    put_loader(&raw, scratch)?;
    run(Command::new("qemu-img").args(["convert", "-O", "qcow2"]).arg(&raw).arg(&image))?;
    fs::remove_file(&raw).map_err(ImageError::file("remove", &raw))?;
    Ok(image)
}

fn without_newest(root: &Path, bytes: u64, raw: &Path) -> Command {
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-F", "-t", "ext4", "-m", "0", "-L", LABEL, "-O", "^64bit,^metadata_csum"]);
    command.arg("-d").arg(root).arg(raw).arg(format!("{}k", bytes / 1024));
    command
}

fn put_loader(raw: &Path, scratch: &Path) -> Result<(), ImageError> {
    let place = scratch.join(MOUNT);
    fs::create_dir_all(&place).map_err(ImageError::file("make", &place))?;
    run(Command::new("mount").args(["-o", "loop"]).arg(raw).arg(&place))?;
    let installed = run(Command::new("extlinux").arg("--install").arg(place.join("boot/extlinux")));
    run(Command::new("umount").arg(&place))?;
    installed.map(drop)
}

/// Whatever a build still holds of its scratch.
pub(super) fn release(scratch: &Path) {
    let place = scratch.join(MOUNT);
    if place.is_dir() {
        let _ = Command::new("umount").arg("--quiet").arg(&place).output();
    }
}
