//! A small disk for a machine's data, which can be filled without filling anything else. The machine is switched off when the disk
//! is inserted and when it is removed, and must be started again.
//!
//! At every instant one of these holds all data: the directory under the mount, until the copy to the disk is complete; the small
//! disk itself; its copy, once it is unmounted. So a killed drill loses nothing, and the next one restores the machine.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::faults::FaultError;
use super::machine::{Machine, copy_tree};

/// Beyond what is on the disk already: a segment of etcd's log is 64 MB, and there may be two new ones.
const ROOM: u64 = 192 << 20;

#[must_use]
#[derive(Debug)]
pub struct SmallDisk {
    machine: Machine,
}

impl SmallDisk {
    /// Switches the machine off, and lets its data lie on a disk with little room.
    pub fn put_in(machine: &Machine) -> Result<Self, FaultError> {
        let small = SmallDisk { machine: machine.clone() };
        let what = "its data cannot be put on a small disk (which only root can mount)";
        small.fit().map_err(|source| FaultError::Io { member: machine.member.clone(), what, source })?;
        Ok(small)
    }

    fn fit(&self) -> io::Result<()> {
        self.machine.cut_power()?;
        let (disk, coming) = (self.machine.disk(), coming(&self.machine));
        let options = CString::new(format!("size={},mode=0700", size(&disk)? + ROOM))?;
        copy_tree(&disk, &coming)?;
        mount("tmpfs", &disk, "tmpfs", MountFlags::empty(), options.as_c_str())?;
        copy_tree(&coming, &disk)?;
        fs::remove_dir_all(&coming)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Where this fails, the next drill tries again.
        let _ = take_out(&self.machine);
    }
}

/// On its way into the small disk; what it was copied from is still complete.
fn coming(machine: &Machine) -> PathBuf {
    machine.directory().join("drill.in")
}

/// On its way out of the small disk; complete once that is unmounted.
fn going(machine: &Machine) -> PathBuf {
    machine.directory().join("drill.out")
}

/// Puts the data back where it was, however far it had come. Does nothing where there is no small disk.
pub fn take_out(machine: &Machine) -> io::Result<()> {
    let (disk, coming, going) = (machine.disk(), coming(machine), going(machine));
    let mounted = is_mounted(&disk)?;
    if !mounted && !coming.exists() && !going.exists() {
        return Ok(());
    }
    machine.cut_power()?;
    if mounted && coming.exists() {
        unmount(&disk, UnmountFlags::DETACH)?;
    } else if mounted {
        remove(&going)?;
        copy_tree(&disk, &going)?;
        unmount(&disk, UnmountFlags::DETACH)?;
    }
    remove(&coming)?;
    if going.exists() {
        remove(&disk)?;
        fs::rename(&going, &disk)?;
    }
    Ok(())
}

fn is_mounted(disk: &Path) -> io::Result<bool> {
    let above = disk.parent().unwrap_or(disk);
    match fs::metadata(disk) {
        Ok(found) => Ok(found.dev() != fs::metadata(above)?.dev()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// What the files of a directory take, the holes in them not counted.
fn size(directory: &Path) -> io::Result<u64> {
    let mut total = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        total += if kind.is_dir() { size(&entry.path())? } else { entry.metadata()?.blocks() * 512 };
    }
    Ok(total)
}
