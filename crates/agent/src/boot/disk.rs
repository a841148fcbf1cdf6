//! The disk for etcd's data. It outlives the machine, so it gets a file system only when it is completely empty.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Boot;
use crate::{AgentError, files};

const WAIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
/// How much must be zeros before a disk without any signature counts as empty.
const HEAD: u64 = 1 << 20;
/// `blkid`'s exit code for an unknown content.
const NOTHING: Option<i32> = Some(2);

/// The content of a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Found {
    Nothing,
    FileSystem(String),
    Other(String),
}

impl Boot<'_> {
    pub(super) fn mount_data(&self, serial: &str) -> Result<(), AgentError> {
        let place = self.layout.data_disk();
        self.link_data()?;
        files::make_dir(&place, 0o755)?;
        let to = place.to_string_lossy().into_owned();
        if self.tools.ask("mountpoint", &["--quiet", &to], None)?.code == Some(0) {
            return Ok(());
        }
        let device = self.await_device(serial)?;
        let disk = device.to_string_lossy().into_owned();
        self.ensure_file_system(serial, &device)?;
        self.tools.run("mount", &["-o", "noatime,nosuid,nodev", &disk, &to], None)?;
        self.refuse_others_data(&device, &place)
    }

    /// quorate's data is in a subdirectory. Data at the top belongs to a cluster that quorate did not create: it contains its members and
    /// their addresses, so no member here could use it, and next to it a new member would begin empty.
    fn refuse_others_data(&self, device: &Path, place: &Path) -> Result<(), AgentError> {
        if !place.join("member").exists() {
            return Ok(());
        }
        self.tools.run("umount", &[&place.to_string_lossy()], None)?;
        Err(AgentError::OthersData { path: device.to_owned() })
    }

    fn await_device(&self, serial: &str) -> Result<PathBuf, AgentError> {
        let names = [
            format!("virtio-{serial}"),
            format!("scsi-0QEMU_QEMU_HARDDISK_incus_{serial}"),
            format!("nvme-Amazon_Elastic_Block_Store_{serial}"),
        ];
        let devices = names.map(|name| self.path("dev/disk/by-id").join(name));
        let begun = Instant::now();
        while begun.elapsed() <= WAIT {
            if let Some(device) = devices.iter().find(|device| device.exists()) {
                return Ok(device.clone());
            }
            sleep(PAUSE);
        }
        let [usual, ..] = devices;
        Err(AgentError::NoDataDisk { serial: serial.to_owned(), path: usual })
    }

    /// If creating the file system was interrupted, it is created again: nothing else can have been on it since.
    fn ensure_file_system(&self, serial: &str, device: &Path) -> Result<(), AgentError> {
        let disk = device.to_string_lossy().into_owned();
        let begun = self.layout.state_dir().join(format!("formatting-{serial}"));
        if !begun.exists() {
            match self.look_at_disk(device)? {
                Found::FileSystem(_) => return Ok(()),
                Found::Other(found) => return Err(AgentError::ForeignDisk { path: device.to_owned(), found }),
                Found::Nothing => {}
            }
            files::make_dir(&self.layout.state_dir(), 0o700)?;
            files::write_durably(&begun, b"", files::PRIVATE)?;
        }
        tracing::info!(disk, "the data disk is empty and gets a file system");
        self.tools.run("mkfs.ext4", &["-q", "-F", "-m", "0", "-L", "etcd", &disk], None)?;
        files::remove(&begun)?;
        files::make_durable(&self.layout.state_dir())
    }

    pub(super) fn look_at_disk(&self, device: &Path) -> Result<Found, AgentError> {
        let disk = device.to_string_lossy().into_owned();
        let said = self.tools.ask("blkid", &["--probe", "--output", "export", &disk], None)?;
        match said.code {
            Some(0) => Ok(found_in(&said.out)),
            NOTHING if is_zero(device)? => Ok(Found::Nothing),
            NOTHING => Ok(Found::Other(String::from("bytes that no program knows"))),
            _ => Ok(Found::Other(format!("something that blkid cannot identify ({})", said.err.trim()))),
        }
    }

    /// For people: the data is in etcd's usual directory.
    fn link_data(&self) -> Result<(), AgentError> {
        let place = self.path("var/lib/etcd");
        if place.is_dir() && !place.is_symlink() {
            // Fails if something is there, which then stays.
            let _ = fs::remove_dir(&place);
        }
        if place.is_dir() && !place.is_symlink() {
            tracing::warn!("{} is not empty, and is not what etcd uses: that is on the data disk", place.display());
            return Ok(());
        }
        files::make_dir(&self.path("var/lib"), 0o755)?;
        files::link(&place, "etcd.disk/etcd")
    }
}

fn found_in(export: &str) -> Found {
    let get = |name: &str| export.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    match (get("USAGE"), get("TYPE"), get("PTTYPE")) {
        (_, Some(kind @ ("ext4" | "xfs" | "btrfs")), _) => Found::FileSystem(kind.to_owned()),
        (_, Some(kind), _) => Found::Other(format!("something of the kind {kind}")),
        (_, None, Some(table)) => Found::Other(format!("a partition table ({table})")),
        (usage, None, None) => Found::Other(format!("something used for {}", usage.unwrap_or("an unknown purpose"))),
    }
}

fn is_zero(device: &Path) -> Result<bool, AgentError> {
    let mut head = Vec::new();
    let read = File::open(device).and_then(|file| file.take(HEAD).read_to_end(&mut head));
    read.map_err(AgentError::file("read", device))?;
    Ok(head.iter().all(|byte| *byte == 0))
}
