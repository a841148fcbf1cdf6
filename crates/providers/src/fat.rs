//! Writes small FAT16 disks: a label and a few files in the root directory, written once and never changed. Every system
//! reads them, and no tool of the host is needed.

/// The boot sector's own, whatever that of the disk is.
const SECTOR: usize = 512;
const CLUSTER: usize = 2048;
const ENTRY: usize = 32;
/// Entries of the root directory; with long names a file takes three at most.
const ROOT_ENTRIES: usize = 512;
const RESERVED_SECTORS: usize = 1;
/// With fewer or more clusters, readers take the disk for FAT12 or FAT32.
const LEAST_CLUSTERS: usize = 4200;
const MOST_CLUSTERS: usize = 65_500;
/// The most that all files together may have.
pub(crate) const MOST_BYTES: usize = (MOST_CLUSTERS - 64) * CLUSTER;

/// What the disk is inserted as. A reader takes no sectors that are smaller than the drive's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Drive {
    Disk,
    Cdrom,
}

impl Drive {
    fn sector(self) -> usize {
        match self {
            Drive::Disk => 512,
            Drive::Cdrom => 2048,
        }
    }
}

/// The whole disk. Names are ASCII.
pub(crate) fn disk(label: &str, files: &[(&str, &[u8])], drive: Drive) -> Vec<u8> {
    let sector = drive.sector();
    let used: usize = files.iter().map(|(_, content)| content.len().div_ceil(CLUSTER)).sum();
    let clusters = (used + 16).clamp(LEAST_CLUSTERS, MOST_CLUSTERS);
    let fat_sectors = ((clusters + 2) * 2).div_ceil(sector);
    let root_at = (RESERVED_SECTORS + 2 * fat_sectors) * sector;
    let data_at = root_at + ROOT_ENTRIES * ENTRY;
    let bytes = data_at + clusters * CLUSTER;
    let mut disk = vec![0; bytes];
    disk[..SECTOR].copy_from_slice(&boot_sector(label, sector, bytes / sector, fat_sectors));

    let mut fat: Vec<u16> = vec![0xfff8, 0xffff];
    let mut root = volume_entry(label);
    for (number, (name, content)) in files.iter().enumerate() {
        let first = fat.len();
        let count = content.len().div_ceil(CLUSTER);
        fat.extend((1..count).map(|n| u16::try_from(first + n).expect("the disk was made large enough")));
        if count > 0 {
            fat.push(0xffff);
        }
        let at = data_at + (first - 2) * CLUSTER;
        disk[at..at + content.len()].copy_from_slice(content);
        let first = if count > 0 { u16::try_from(first).expect("the disk was made large enough") } else { 0 };
        root.extend(file_entries(name, number, first, content.len()));
    }
    disk[root_at..root_at + root.len()].copy_from_slice(&root);
    let fat: Vec<u8> = fat.into_iter().flat_map(u16::to_le_bytes).collect();
    for copy in 0..2 {
        let at = (RESERVED_SECTORS + copy * fat_sectors) * sector;
        disk[at..at + fat.len()].copy_from_slice(&fat);
    }
    disk
}

fn boot_sector(label: &str, size: usize, sectors: usize, fat_sectors: usize) -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    let mut put = |at: usize, bytes: &[u8]| sector[at..at + bytes.len()].copy_from_slice(bytes);
    let word = |number: usize| u16::try_from(number).unwrap_or_default().to_le_bytes();
    put(0, &[0xeb, 0x3c, 0x90]);
    put(3, b"MSWIN4.1");
    put(11, &word(size));
    put(13, &[u8::try_from(CLUSTER / size).unwrap_or_default()]);
    put(14, &word(RESERVED_SECTORS));
    put(16, &[2]);
    put(17, &word(ROOT_ENTRIES));
    // Zero where it does not fit, and then the wider field counts.
    put(19, &word(sectors));
    put(21, &[0xf8]);
    put(22, &word(fat_sectors));
    put(24, &word(32));
    put(26, &word(64));
    if sectors > usize::from(u16::MAX) {
        put(32, &u32::try_from(sectors).unwrap_or_default().to_le_bytes());
    }
    put(36, &[0x80, 0, 0x29]);
    put(39, b"QRT1");
    put(43, &padded::<11>(label));
    put(54, b"FAT16   ");
    put(510, &[0x55, 0xaa]);
    sector
}

fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [b' '; N];
    bytes.iter_mut().zip(text.bytes()).for_each(|(place, byte)| *place = byte);
    bytes
}

fn volume_entry(label: &str) -> Vec<u8> {
    let mut entry = vec![0; ENTRY];
    entry[..11].copy_from_slice(&padded::<11>(label));
    entry[11] = 0x08;
    entry
}

/// The long name, last piece first, and then the entry itself under a short name that nobody sees.
fn file_entries(name: &str, number: usize, first_cluster: u16, bytes: usize) -> Vec<u8> {
    let short: [u8; 11] = padded(&format!("FILE{number:<4}"));
    let sum = short.iter().fold(0_u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
    let mut letters: Vec<u16> = name.encode_utf16().collect();
    let pieces = letters.len().div_ceil(13);
    if letters.len() < pieces * 13 {
        letters.push(0);
    }
    letters.resize(pieces * 13, 0xffff);
    let mut entries = Vec::new();
    for piece in (0..pieces).rev() {
        let last = if piece + 1 == pieces { 0x40 } else { 0 };
        let letters: Vec<u8> = letters[piece * 13..][..13].iter().flat_map(|letter| letter.to_le_bytes()).collect();
        entries.push(last | u8::try_from(piece + 1).unwrap_or_default());
        entries.extend(&letters[..10]);
        entries.extend([0x0f, 0, sum]);
        entries.extend(&letters[10..22]);
        entries.extend([0, 0]);
        entries.extend(&letters[22..]);
    }
    let mut entry = [0; ENTRY];
    entry[..11].copy_from_slice(&short);
    entry[11] = 0x20;
    // The first day that this format knows, so that the same content is the same disk.
    for at in [16, 18, 24] {
        entry[at..at + 2].copy_from_slice(&0x0021_u16.to_le_bytes());
    }
    entry[26..28].copy_from_slice(&first_cluster.to_le_bytes());
    entry[28..].copy_from_slice(&u32::try_from(bytes).unwrap_or_default().to_le_bytes());
    entries.extend(entry);
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a disk again by the format's own rules: names, contents, label.
    fn read(disk: &[u8]) -> (String, Vec<(String, Vec<u8>)>) {
        let word = |at: usize| usize::from(u16::from_le_bytes([disk[at], disk[at + 1]]));
        let (reserved, fats, entries, fat_sectors) = (word(14), usize::from(disk[16]), word(17), word(22));
        let cluster = word(11) * usize::from(disk[13]);
        let root = (reserved + fats * fat_sectors) * word(11);
        let data = root + entries * ENTRY;
        let next = |n: usize| word(reserved * word(11) + n * 2);
        let (mut label, mut files, mut long) = (String::new(), Vec::new(), Vec::<u16>::new());
        for entry in disk[root..data].chunks(ENTRY).take_while(|entry| entry[0] != 0) {
            match entry[11] {
                0x08 => label = String::from_utf8_lossy(&entry[..11]).trim_end().to_owned(),
                0x0f => {
                    let piece = [&entry[1..11], &entry[14..26], &entry[28..32]].concat();
                    let piece = piece.chunks(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
                    long = piece.chain(long).collect();
                }
                _ => {
                    let name: Vec<u16> =
                        long.drain(..).take_while(|letter| *letter != 0 && *letter != 0xffff).collect();
                    let size = u32::from_le_bytes(entry[28..32].try_into().unwrap()) as usize;
                    let (mut content, mut at) = (Vec::new(), usize::from(u16::from_le_bytes([entry[26], entry[27]])));
                    while content.len() < size {
                        content.extend(&disk[data + (at - 2) * cluster..][..cluster]);
                        at = next(at);
                    }
                    content.truncate(size);
                    files.push((String::from_utf16(&name).unwrap(), content));
                }
            }
        }
        (label, files)
    }

    #[test]
    fn written_files_read_back() {
        let long: Vec<u8> = (0..5_000_000_u32).map(|n| (n * 7 % 251) as u8).collect();
        let files: [(&str, &[u8]); 5] = [
            ("seed.json", b"{}"),
            ("network-config", &long[..CLUSTER]),
            ("thirteen-long", &long[..CLUSTER + 1]),
            ("empty", b""),
            ("quorate", &long),
        ];
        let expected: Vec<_> = files.iter().map(|(name, content)| ((*name).to_owned(), content.to_vec())).collect();
        for drive in [Drive::Disk, Drive::Cdrom] {
            let written = disk("cidata", &files, drive);
            let (label, found) = read(&written);
            assert_eq!(label, "cidata");
            assert!(found == expected, "{:?}", found.iter().map(|(n, c)| (n, c.len())).collect::<Vec<_>>());
            assert!(written == disk("cidata", &files, drive) && written.len().is_multiple_of(drive.sector()));
        }
    }

    #[test]
    fn a_large_file_has_room() {
        let content = vec![7; 100 << 20];
        let (_, found) = read(&disk("cidata", &[("quorate", &content)], Drive::Disk));
        assert!(found[0].1 == content);
    }
}
