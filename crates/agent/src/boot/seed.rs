//! The seed disk: found by its label, mounted read-only for a moment, and read. Once a machine has its settings, it also boots without
//! the disk. A config drive of OpenStack is such a disk, on which files have numbers instead of names. On EC2, and in OpenStack without config
//! drives, user data replaces the disk.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Boot, PLACED_SEED, PROGRAM, check, metadata};
use crate::api::Seed;
use crate::api::boot::{MACHINE_FILE, Machine, PROGRAM_FILE, SEED_FILE, SEED_LABEL};
use crate::{AgentError, files};

/// Where the disk is mounted for a moment.
const MOUNT: &str = "run/quorate/seed-disk";
/// The seed of this machine's last boot.
const KNOWN: &str = "var/lib/quorate/machine.json";
const FIRST_WAIT: Duration = Duration::from_secs(60);
/// A machine with a stored seed does not need the disk.
const LATER_WAIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);
const SECTOR: usize = 512;
/// The label of a config drive.
const CONFIG_DRIVE: &str = "config-2";
/// The directory and the index of a config drive's files.
const CONFIG_DIRECTORY: &str = "openstack";
const CONFIG_METADATA: &str = "latest/meta_data.json";
/// The offset of a CD-ROM's descriptor, and of the label in it.
const CD_DESCRIPTION: u64 = 16 * 2048;
const CD_LABEL: std::ops::Range<usize> = 40..72;

/// The files of a seed.
struct SeedFiles {
    seed: PathBuf,
    machine: PathBuf,
    program: PathBuf,
}

impl SeedFiles {
    fn of(directory: &Path) -> Self {
        let [seed, machine, program] = [SEED_FILE, MACHINE_FILE, PROGRAM_FILE].map(|file| directory.join(file));
        SeedFiles { seed, machine, program }
    }

    /// On a disk, which may be a config drive. One without the files is not quorate's.
    fn on_disk(directory: &Path) -> Option<Self> {
        let files = Self::of(directory);
        if files.seed.exists() {
            return Some(files);
        }
        let directory = directory.join(CONFIG_DIRECTORY);
        let metadata: Value = serde_json::from_slice(&fs::read(directory.join(CONFIG_METADATA)).ok()?).ok()?;
        let find = |name: &str| {
            let wanted = format!("/{PLACED_SEED}/{name}");
            let mut listed = metadata.get("files")?.as_array()?.iter();
            let file = listed.find(|file| file.get("path").and_then(Value::as_str) == Some(&wanted))?;
            let number = file.get("content_path")?.as_str()?.strip_prefix("/content/")?;
            let is_plain = number.bytes().all(|byte| byte.is_ascii_alphanumeric());
            is_plain.then(|| directory.join("content").join(number))
        };
        Some(SeedFiles { seed: find(SEED_FILE)?, machine: find(MACHINE_FILE)?, ..files })
    }

    fn read(self) -> Result<Told, AgentError> {
        let seed_text = fs::read(&self.seed).map_err(AgentError::file("read", &self.seed))?;
        let seed = parse(&self.seed, &seed_text)?;
        let text = fs::read(&self.machine).map_err(AgentError::file("read", &self.machine))?;
        let machine = parse(&self.machine, &text)?;
        Ok(Told { seed, seed_text, machine, from: self.machine, program: Some(self.program) })
    }
}

/// The settings of a machine.
pub(super) struct Told {
    pub(super) seed: Seed,
    /// The same as written: a newer agent may understand more of it than this one.
    pub(super) seed_text: Vec<u8>,
    pub(super) machine: Machine,
    /// The source of the settings, for errors.
    pub(super) from: PathBuf,
    /// The program, if one came with it.
    pub(super) program: Option<PathBuf>,
}

/// What is kept of the seed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Known {
    machine: Machine,
    /// The owner of the seed: cluster id, member and incarnation.
    whose: (String, String, u64),
}

impl Boot<'_> {
    /// Reads the machine's settings. With a disk, the seed is copied to where the agent reads it.
    pub(super) fn read_seed(&self, from: Option<&Path>) -> Result<Machine, AgentError> {
        let known = self.known()?;
        let placed = Some(self.path(PLACED_SEED)).filter(|placed| placed.join(SEED_FILE).exists());
        if let Some(directory) = from.map(Path::to_owned).or(placed) {
            return self.take(SeedFiles::of(&directory).read()?, known.as_ref());
        }
        if let Some(service) = metadata::Service::of(self.with) {
            return self.read_user_data(service, metadata::ADDRESS, known);
        }
        let wait = if known.is_some() { LATER_WAIT } else { FIRST_WAIT };
        let mounted = find_disk(wait).map(|disk| Mounted::new(self, &disk)).transpose()?;
        let files = mounted.as_ref().and_then(|mounted| SeedFiles::on_disk(&mounted.at));
        match (files, known) {
            (Some(files), known) => self.take(files.read()?, known.as_ref()),
            (None, Some(known)) => {
                tracing::info!("there is no seed disk; this machine keeps its configuration");
                Ok(known.machine)
            }
            (None, None) => Err(AgentError::NoSeedDisk { label: SEED_LABEL, seconds: FIRST_WAIT.as_secs() }),
        }
    }

    /// A machine with a stored seed does not depend on the service: it boots even if nothing, or nonsense, answers.
    pub(super) fn read_user_data(
        &self,
        service: metadata::Service,
        address: &str,
        known: Option<Known>,
    ) -> Result<Machine, AgentError> {
        let wait = if known.is_some() { LATER_WAIT } else { FIRST_WAIT };
        let told = metadata::read(service, address, wait).and_then(|told| {
            check::check(&told.machine, &told.from)?;
            Ok(told)
        });
        match (told, known) {
            (Ok(told), known) => self.take(told, known.as_ref()),
            (Err(error), Some(known)) => {
                tracing::warn!(error = error.in_full(), "this machine stays what it was");
                Ok(known.machine)
            }
            (Err(error), None) => Err(error),
        }
    }

    pub(super) fn known(&self) -> Result<Option<Known>, AgentError> {
        let path = self.path(KNOWN);
        match fs::read(&path) {
            Ok(text) => {
                serde_json::from_slice(&text).map(Some).map_err(|source| AgentError::Unreadable { path, source })
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(AgentError::file("read", path)(error)),
        }
    }

    fn take(&self, told: Told, known: Option<&Known>) -> Result<Machine, AgentError> {
        let Told { seed, seed_text, machine, from, program } = told;
        check::check(&machine, &from)?;
        let whose = (seed.cluster_id.clone(), seed.member.to_string(), seed.incarnation);
        let is_new = known.is_none_or(|known| known.whose != whose);
        self.install_program(program.as_deref(), is_new)?;
        files::ensure(&self.path("run/quorate/seed.json"), &seed_text, files::PRIVATE, None)?;
        let known = Known { machine, whose };
        files::make_dir(&self.layout.state_dir(), 0o700)?;
        let text = serde_json::to_vec(&known).expect("plain data serializes");
        files::ensure(&self.path(KNOWN), &text, files::PRIVATE, None)?;
        Ok(known.machine)
    }

    /// The program that came with the seed, taken once: later ones come over the agent's own port. Where none came and none is
    /// in place, it is the one that runs now.
    fn install_program(&self, brought: Option<&Path>, is_new: bool) -> Result<(), AgentError> {
        let place = self.path(PROGRAM);
        let brought = brought.filter(|brought| is_new && brought.is_file());
        let source = if let Some(brought) = brought {
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

/// udev finds every disk by its label, but late in a boot; quorate's disks are recognized by their first sector.
fn find_disk(wait: Duration) -> Option<PathBuf> {
    let by_label = Path::new("/dev/disk/by-label");
    let named = [SEED_LABEL, &SEED_LABEL.to_uppercase(), CONFIG_DRIVE].map(|label| by_label.join(label));
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
    paths.find(|path| {
        first_sector(path).is_ok_and(|sector| is_seed(&sector)) || is_config_drive(path).is_ok_and(|is_one| is_one)
    })
}

/// A CD-ROM with that label.
fn is_config_drive(disk: &Path) -> io::Result<bool> {
    let mut disk = File::open(disk)?;
    disk.seek(SeekFrom::Start(CD_DESCRIPTION))?;
    let mut description = [0; SECTOR];
    disk.read_exact(&mut description)?;
    Ok(description[1..].starts_with(b"CD001") && description[CD_LABEL].trim_ascii_end() == CONFIG_DRIVE.as_bytes())
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
    fn a_config_drive_is_known_by_its_label() {
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("disk");
        let mut image = vec![0; 40 * 1024];
        fs::write(&disk, &image).unwrap();
        assert!(!is_config_drive(&disk).unwrap());
        let description = usize::try_from(CD_DESCRIPTION).unwrap();
        image[description + 1..description + 6].copy_from_slice(b"CD001");
        image[description + 40..description + 72].copy_from_slice(b"config-2                        ");
        fs::write(&disk, &image).unwrap();
        assert!(is_config_drive(&disk).unwrap());
        image[description + 48] = b'x';
        fs::write(&disk, &image).unwrap();
        assert!(!is_config_drive(&disk).unwrap());
    }

    #[test]
    fn files_of_a_config_drive_are_found_by_the_paths_that_they_are_for() {
        let directory = tempfile::tempdir().unwrap();
        let content = directory.path().join("openstack/content");
        fs::create_dir_all(&content).unwrap();
        fs::create_dir_all(directory.path().join("openstack/latest")).unwrap();
        let list = |second: &str| {
            let text = format!(
                r#"{{"uuid": "u", "files": [
                    {{"content_path": "/content/0001", "path": "/var/lib/quorate/seed/machine.json"}},
                    {{"content_path": "{second}", "path": "/var/lib/quorate/seed/seed.json"}}]}}"#
            );
            fs::write(directory.path().join("openstack/latest/meta_data.json"), text).unwrap();
            SeedFiles::on_disk(directory.path())
        };
        let found = list("/content/0000").unwrap();
        assert_eq!((found.seed, found.machine), (content.join("0000"), content.join("0001")));
        assert!(list("/content/../../etc/passwd").is_none());
        fs::write(directory.path().join("openstack/latest/meta_data.json"), r#"{"uuid": "u"}"#).unwrap();
        assert!(SeedFiles::on_disk(directory.path()).is_none(), "a server that somebody rebuilt has no such files");
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
