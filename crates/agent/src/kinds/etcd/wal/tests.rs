use super::*;

/// A file as etcd writes it, with zeros at its end.
fn file(before: u32, records: &[(i64, Vec<u8>)]) -> Vec<u8> {
    let mut crc = before;
    let mut bytes = Vec::new();
    let first = [(CRC, Vec::new())];
    for (kind, data) in first.iter().chain(records) {
        crc = crc32c(crc, data);
        let mut record = Record { kind: *kind, crc, data: Some(data.clone()) }.encode_to_vec();
        let padding = (8 - record.len() % 8) % 8;
        let flag = if padding > 0 { (0x80 | padding as u64) << 56 } else { 0 };
        bytes.extend((record.len() as u64 | flag).to_le_bytes());
        record.resize(record.len() + padding, 0);
        bytes.extend(record);
    }
    bytes.resize(bytes.len() + 4096, 0);
    bytes
}

fn metadata() -> (i64, Vec<u8>) {
    (METADATA, Metadata { member_id: 7, cluster_id: 8 }.encode_to_vec())
}

fn entry(term: u64, index: u64) -> (i64, Vec<u8>) {
    // With data, as a real one has.
    // The second byte is the number of a request, as every one of v3 has.
    (ENTRY, Entry { kind: 0, term, index, data: vec![0x08, 7] }.encode_to_vec())
}

/// As 3.5 writes it when a member starts.
fn entry_of_v2(index: u64) -> (i64, Vec<u8>) {
    let data = [&[0x08, 7, 0x12, 3], b"PUT".as_slice(), &[0x1a, 2], b"/0".as_slice()].concat();
    (ENTRY, Entry { kind: 0, term: 2, index, data }.encode_to_vec())
}

fn state(term: u64, commit: u64) -> (i64, Vec<u8>) {
    (STATE, HardState { term, vote: 7, commit }.encode_to_vec())
}

fn snapshot(term: u64, index: u64) -> (i64, Vec<u8>) {
    (SNAPSHOT, Snapshot { index, term }.encode_to_vec())
}

fn log(files: &[Vec<u8>]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let wal = directory.path().join("member/wal");
    fs::create_dir_all(&wal).unwrap();
    for (number, bytes) in files.iter().enumerate() {
        fs::write(wal.join(format!("{number:016x}-{number:016x}.wal")), bytes).unwrap();
    }
    fs::write(wal.join("0.tmp"), [0; 100]).unwrap();
    directory
}

fn end(files: &[Vec<u8>]) -> Result<(u64, u64, u64), String> {
    let read = read(log(files).path()).map_err(|error| error.to_string())?;
    let LogEnd { term, index, commit } = read.expect("there is a log").end;
    Ok((term, index, commit))
}

#[test]
fn the_checksum_is_castagnolis() {
    assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
    assert_eq!(crc32c(crc32c(0, b"1234"), b"56789"), 0xe306_9283);
}

#[test]
fn the_last_entry_counts_also_when_it_takes_the_place_of_others() {
    let mut records = vec![metadata(), snapshot(0, 0), entry(2, 1), entry(2, 2), entry(2, 3), state(2, 1)];
    assert_eq!(end(&[file(0, &records)]), Ok((2, 3, 1)));
    records.extend([entry(3, 2), state(3, 2)]);
    assert_eq!(end(&[file(0, &records)]), Ok((3, 2, 2)));
}

#[test]
fn a_file_without_entries_leads_back_to_the_one_before() {
    let before = file(0, &[metadata(), entry(2, 4), state(2, 4)]);
    assert_eq!(end(&[before.clone(), file(99, &[metadata(), state(2, 4)])]), Ok((2, 4, 4)));
    let received = file(99, &[metadata(), state(2, 4), snapshot(5, 90)]);
    assert_eq!(end(&[before.clone(), received]), Ok((5, 90, 90)), "a snapshot of the leader");
    assert_eq!(end(&[before, file(99, &[metadata(), snapshot(2, 3)])]), Ok((2, 4, 4)), "one of its own");
    assert_eq!(read(Path::new("/nowhere")).unwrap(), None);
}

#[test]
fn entries_that_releases_before_3_6_wrote_are_found_after_a_snapshot() {
    let member = Entry { kind: 1, term: 2, index: 1, data: vec![0x08, 7, 0x10, 1] }.encode_to_vec();
    let directory = log(&[file(0, &[metadata(), (ENTRY, member.clone()), entry_of_v2(2), entry(2, 3)])]);
    let reader = LogReader::default();
    let last = || reader.last_old_entry(directory.path()).unwrap().unwrap();
    assert_eq!(last(), Some(2));
    assert_eq!(old_entry_after(directory.path(), 1).unwrap(), Some(2));
    assert_eq!(old_entry_after(directory.path(), 2).unwrap(), None);
    assert_eq!(newest_snapshot(directory.path()).unwrap(), 0);
    let snapshots = directory.path().join("member/snap");
    fs::create_dir_all(&snapshots).unwrap();
    for name in ["0000000000000002-0000000000000003.snap", "0000000000000002-000000000000001f.snap.broken", "db"] {
        fs::write(snapshots.join(name), "").unwrap();
    }
    assert_eq!(newest_snapshot(directory.path()).unwrap(), 3);
    // The files of a log are read once.
    fs::write(&files(directory.path()).unwrap()[0], file(0, &[metadata(), entry_of_v2(9)])).unwrap();
    assert_eq!(last(), Some(2));
    reader.forget_old_entries();
    assert_eq!(last(), Some(9));
    let clean = log(&[file(0, &[metadata(), (ENTRY, member), entry(2, 2)])]);
    assert_eq!(reader.last_old_entry(clean.path()).unwrap().unwrap(), None);
}

#[test]
fn a_torn_end_is_no_garbage() {
    let whole = file(0, &[metadata(), entry(2, 1), state(2, 1)]);
    let long = vec![b'x'; 2000];
    let data = Entry { kind: 0, term: 2, index: 2, data: long }.encode_to_vec();
    let torn = file(0, &[metadata(), entry(2, 1), state(2, 1), (ENTRY, data)]);
    assert_eq!(end(std::slice::from_ref(&torn)), Ok((2, 2, 1)));
    let written = whole.len() - 4096;
    let cut = torn[..written + 700].to_vec();
    assert_eq!(end(std::slice::from_ref(&cut)), Ok((2, 1, 1)), "the file ends too early");
    let mut unwritten = torn.clone();
    unwritten[1024..1536].fill(0);
    assert_eq!(end(&[unwritten.clone()]), Ok((2, 1, 1)), "a sector was not written");
    let mut flipped = torn.clone();
    flipped[written + 100] ^= 1;
    assert!(end(&[flipped.clone()]).is_err());
    assert!(end(&[cut, file(1, &[metadata()])]).is_err(), "the end of an older file");
    assert!(end(&[vec![b'x'; 5000]]).is_err());
}

#[test]
fn a_log_that_is_no_file_or_has_no_end_is_refused() {
    let whole = file(0, &[metadata(), entry(2, 1), state(2, 1)]);
    let directory = log(std::slice::from_ref(&whole));
    let path = files(directory.path()).unwrap().remove(0);
    let written = whole.len() - 4096;
    let sparse = OpenOptions::new().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &(1u64 << 40).to_le_bytes(), written as u64).unwrap();
    sparse.set_len(2 << 40).unwrap();
    assert!(read(directory.path()).unwrap_err().to_string().contains("1099511627776 bytes"));
    fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(read(directory.path()).is_err(), "a pipe");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    assert!(read(directory.path()).is_err(), "a link");
}

#[test]
fn only_logs_of_lines_that_were_tried_are_completed() {
    assert!(check_proven("3.4.0").is_ok() && check_proven("3.7.99").is_ok());
    for other in ["3.3.27", "3.8.0", "4.4.0", "nonsense"] {
        let refused = check_proven(other).unwrap_err().to_string();
        assert!(refused.contains(other) && refused.contains("quorate restore"), "{refused}");
    }
}

#[test]
fn uncommitted_entries_can_be_marked_committed() {
    let whole = file(0, &[metadata(), entry(2, 1), state(2, 1), entry(2, 2), entry(2, 3)]);
    let written = whole.len() - 4096;
    let mut torn = whole.clone();
    torn[written..written + 8].copy_from_slice(&9000u64.to_le_bytes());
    for bytes in [whole[..written].to_vec(), whole, torn] {
        let directory = log(std::slice::from_ref(&bytes));
        assert_eq!(agree_to_all(directory.path()).unwrap(), 2);
        let LogEnd { term, index, commit } = read(directory.path()).unwrap().unwrap().end;
        assert_eq!((term, index, commit), (2, 3, 3));
        assert_eq!(agree_to_all(directory.path()).unwrap(), 0);
        let length = fs::metadata(&files(directory.path()).unwrap()[0]).unwrap().len();
        assert!(length >= bytes.len() as u64);
    }
}

mod fuzz {
    use super::*;

    /// A log is read, or refused. Where all of it was made to count as agreed, it does, and it can be read again.
    fn attempt(files: &[Vec<u8>]) {
        let directory = log(files);
        if let Ok(Some(before)) = read(directory.path())
            && agree_to_all(directory.path()).is_ok()
        {
            let after = read(directory.path()).unwrap().unwrap();
            assert_eq!(after.end.commit, before.end.index, "{before:?}");
        }
    }

    #[test]
    fn files() {
        let good = file(0, &[metadata(), snapshot(1, 2), entry(1, 3), state(1, 3), entry(2, 4), state(2, 3)]);
        let empty = file(0, &[metadata(), state(2, 3)]);
        quorate_fuzz::short_campaign(&[good.clone(), empty], |input| attempt(&[good.clone(), input.to_vec()]));
    }

    /// With a checksum that is right, so that what is in the record is read too.
    #[test]
    fn records() {
        let samples = [metadata(), snapshot(1, 2), entry(1, 3), state(1, u64::MAX), entry(u64::MAX, u64::MAX)];
        let samples = samples.map(|(kind, data)| [vec![kind as u8], data].concat());
        quorate_fuzz::short_campaign(&samples, |input| {
            let Some((kind, data)) = input.split_first() else { return };
            attempt(&[file(0, &[metadata(), entry(1, 3), (i64::from(*kind), data.to_vec()), state(2, 3)])]);
        });
    }
}
