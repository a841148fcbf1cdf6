//! The seed disk: found by its label, mounted read-only for a moment, and read. Once a machine has been told what it is, it
//! boots without the disk too.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Boot, PLACED_SEED, PROGRAM, check};
use crate::api::Seed;
use crate::api::boot::{MACHINE_FILE, Machine, PROGRAM_FILE, SEED_FILE, SEED_LABEL};
use crate::{AgentError, files};

/// Where the disk is mounted for a moment.
const MOUNT: &str = "run/quorate/seed-disk";
/// What this machine was told at its last boot.
const KNOWN: &str = "var/lib/quorate/machine.json";
const FIRST_WAIT: Duration = Duration::from_secs(60);
/// A machine that knows what it is does not need the disk.
const LATER_WAIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);
const SECTOR: usize = 512;

/// What is kept of the seed disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Known {
    machine: Machine,
    /// Whose seed it was: cluster id, member and incarnation.
    whose: (String, String, u64),
}

impl Boot<'_> {
    /// What the machine is to be. Where it has the disk, the seed is put where the agent looks for it.
    pub(super) fn read_seed(&self, from: Option<&Path>) -> Result<Machine, AgentError> {
        let known = self.known()?;
        let placed = Some(self.path(PLACED_SEED)).filter(|placed| placed.join(SEED_FILE).exists());
        if let Some(directory) = from.map(Path::to_owned).or(placed) {
            return self.take(&directory, known.as_ref());
        }
        let wait = if known.is_some() { LATER_WAIT } else { FIRST_WAIT };
        match (find_disk(wait), known) {
            (Some(disk), known) => {
                let mounted = Mounted::new(self, &disk)?;
                self.take(&mounted.at, known.as_ref())
            }
            (None, Some(known)) => {
                tracing::info!("there is no seed disk; this machine stays what it was");
                Ok(known.machine)
            }
            (None, None) => Err(AgentError::NoSeedDisk { label: SEED_LABEL, seconds: FIRST_WAIT.as_secs() }),
        }
    }

    fn known(&self) -> Result<Option<Known>, AgentError> {
        let path = self.path(KNOWN);
        match fs::read(&path) {
            Ok(text) => {
                serde_json::from_slice(&text).map(Some).map_err(|source| AgentError::Unreadable { path, source })
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(AgentError::file("read", path)(error)),
        }
    }

    fn take(&self, directory: &Path, known: Option<&Known>) -> Result<Machine, AgentError> {
        let (seed_path, machine_path) = (directory.join(SEED_FILE), directory.join(MACHINE_FILE));
        let seed_text = fs::read(&seed_path).map_err(AgentError::file("read", &seed_path))?;
        let seed: Seed = parse(&seed_path, &seed_text)?;
        let text = fs::read(&machine_path).map_err(AgentError::file("read", &machine_path))?;
        let machine: Machine = parse(&machine_path, &text)?;
        check::check(&machine, &machine_path)?;
        let whose = (seed.cluster_id.clone(), seed.member.to_string(), seed.incarnation);
        let is_new = known.is_none_or(|known| known.whose != whose);
        self.install_program(&directory.join(PROGRAM_FILE), is_new)?;
        files::ensure(&self.path("run/quorate/seed.json"), &seed_text, files::PRIVATE, None)?;
        let known = Known { machine, whose };
        files::make_dir(&self.layout.state_dir(), 0o700)?;
        let text = serde_json::to_vec(&known).expect("plain data serializes");
        files::ensure(&self.path(KNOWN), &text, files::PRIVATE, None)?;
        Ok(known.machine)
    }

    /// The program that came with the seed, taken once: later ones come over the agent's own port. Where none came and none is
    /// in place, it is the one that runs now.
    fn install_program(&self, brought: &Path, is_new: bool) -> Result<(), AgentError> {
        let place = self.path(PROGRAM);
        let source = if is_new && brought.is_file() {
            brought.to_owned()
        } else if place.exists() {
            return Ok(());
        } else {
            PathBuf::from("/proc/self/exe")
        };
        let program = fs::read(&source).map_err(AgentError::file("read", &source))?;
        files::ensure(&place, &program, 0o755, None)
    }
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T, AgentError> {
    serde_json::from_slice(text).map_err(|source| AgentError::Unreadable { path: path.to_owned(), source })
}

/// udev finds every kind of disk by its label, but comes to it late in a boot; one of ours is known by its first sector.
fn find_disk(wait: Duration) -> Option<PathBuf> {
    let by_label = Path::new("/dev/disk/by-label");
    let named = [by_label.join(SEED_LABEL), by_label.join(SEED_LABEL.to_uppercase())];
    let begun = Instant::now();
    loop {
        match named.iter().find(|path| path.exists()).cloned().or_else(find_by_sector) {
            Some(found) => return Some(found),
            None if begun.elapsed() > wait => return None,
            None => sleep(PAUSE),
        }
    }
}

fn find_by_sector() -> Option<PathBuf> {
    let devices = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let mut paths = devices.map(|device| Path::new("/dev").join(device.file_name()));
    paths.find(|path| first_sector(path).is_ok_and(|sector| is_seed(&sector)))
}

fn first_sector(disk: &Path) -> io::Result<[u8; SECTOR]> {
    let mut sector = [0; SECTOR];
    File::open(disk)?.read_exact(&mut sector)?;
    Ok(sector)
}

/// Where FAT has its label: in file systems of 12 and 16 bits, or of 32.
fn is_seed(sector: &[u8; SECTOR]) -> bool {
    let is_ours = |kind: &[u8], label: &[u8]| {
        kind.starts_with(b"FAT") && label.trim_ascii_end().eq_ignore_ascii_case(SEED_LABEL.as_bytes())
    };
    sector.ends_with(&[0x55, 0xaa])
        && (is_ours(&sector[54..62], &sector[43..54]) || is_ours(&sector[82..90], &sector[71..82]))
}

struct Mounted<'a> {
    boot: &'a Boot<'a>,
    at: PathBuf,
}

impl<'a> Mounted<'a> {
    fn new(boot: &'a Boot<'a>, disk: &Path) -> Result<Self, AgentError> {
        let at = boot.path(MOUNT);
        files::make_dir(&at, 0o700)?;
        let (from, to) = (disk.to_string_lossy(), at.to_string_lossy());
        boot.tools.run("mount", &["-o", "ro,nosuid,nodev,noexec", &from, &to], None)?;
        Ok(Mounted { boot, at })
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let at = self.at.to_string_lossy();
        if let Err(error) = self.boot.tools.run("umount", &[&at], None) {
            tracing::warn!(error = error.in_full(), "the seed disk stays mounted");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector(label_at: usize, label: &[u8; 11], kind: &[u8; 8]) -> [u8; SECTOR] {
        let mut sector = [0; SECTOR];
        sector[label_at..label_at + 11].copy_from_slice(label);
        sector[label_at + 11..label_at + 19].copy_from_slice(kind);
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        sector
    }

    #[test]
    fn a_seed_disk_is_known_by_its_first_sector() {
        assert!(is_seed(&sector(43, b"cidata     ", b"FAT16   ")));
        assert!(is_seed(&sector(43, b"CIDATA     ", b"FAT12   ")));
        assert!(is_seed(&sector(71, b"CIDATA     ", b"FAT32   ")));
        assert!(!is_seed(&sector(43, b"cidata2    ", b"FAT16   ")));
        assert!(!is_seed(&sector(43, b"cidata     ", b"ext4    ")));
        assert!(!is_seed(&[0; SECTOR]));
    }

    #[test]
    fn a_disk_without_a_sector_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("disk");
        fs::write(&disk, [0; 100]).unwrap();
        assert!(first_sector(&disk).is_err());
        fs::write(&disk, sector(43, b"cidata     ", b"FAT16   ")).unwrap();
        assert!(is_seed(&first_sector(&disk).unwrap()));
    }
}
