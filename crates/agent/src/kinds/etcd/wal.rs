//! Reads etcd's write-ahead log without etcd: how far it goes, and which member it belongs to. It distinguishes a torn end,
//! which a crash leaves and etcd repairs, from garbage. It changes a log only on request, and then only its end.
//!
//! A log is a sequence of files. A file is a sequence of frames: eight bytes of length, a record, and padding to a multiple
//! of eight. Each record carries the CRC-32C over all data so far; each file begins with the value it starts from. Files are
//! longer than what was written to them: the rest is zeros.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use prost::Message;
use quorate_core::kinds::etcd::LogEnd;
use quorate_core::model::Version;

use crate::{AgentError, files};

/// A disk writes sectors whole or not at all: one of zeros inside of a record was never written.
const SECTOR: usize = 512;

/// etcd warns of requests beyond 10 MiB.
const MOST_RECORD: u64 = 256 << 20;

const METADATA: i64 = 1;
const ENTRY: i64 = 2;
const STATE: i64 = 3;
const CRC: i64 = 4;
const SNAPSHOT: i64 = 5;

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(uint32, tag = "2")]
    crc: u32,
    #[prost(bytes = "vec", optional, tag = "3")]
    data: Option<Vec<u8>>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Metadata {
    #[prost(uint64, tag = "1")]
    member_id: u64,
    #[prost(uint64, tag = "2")]
    cluster_id: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    /// 0: a request. The others change the membership.
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(uint64, tag = "2")]
    term: u64,
    #[prost(uint64, tag = "3")]
    index: u64,
    #[prost(bytes = "vec", tag = "4")]
    data: Vec<u8>,
}

impl Entry {
    /// Whether a release before 3.6 wrote it in the format of the v2 API. A request of v3 has no second field.
    fn is_of_v2(&self) -> bool {
        self.kind == 0 && RequestOfV2::decode(&*self.data).map_or(true, |request| request.method.is_some())
    }
}

#[derive(Clone, PartialEq, Message)]
struct RequestOfV2 {
    #[prost(bytes = "vec", optional, tag = "2")]
    method: Option<Vec<u8>>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct HardState {
    #[prost(uint64, tag = "1")]
    term: u64,
    #[prost(uint64, tag = "2")]
    vote: u64,
    #[prost(uint64, tag = "3")]
    commit: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Snapshot {
    #[prost(uint64, tag = "1")]
    index: u64,
    #[prost(uint64, tag = "2")]
    term: u64,
}

/// What the log in a data directory says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Log {
    pub(super) member_id: u64,
    pub(super) end: LogEnd,
}

/// Reads a log once for as long as its files stay as they are.
#[derive(Default)]
pub(crate) struct LogReader {
    last: Mutex<Option<(Vec<FileSeen>, Option<Log>)>>,
    /// Of each file the last entry that a release before 3.6 wrote.
    old: Mutex<BTreeMap<PathBuf, Option<u64>>>,
}

/// With its length, and when it was last changed or put there.
type FileSeen = (PathBuf, u64, (i64, i64));

impl LogReader {
    pub(super) fn read(&self, data: &Path) -> Result<Option<Log>, AgentError> {
        let files = files(data)?;
        let look = |path: &PathBuf| -> io::Result<FileSeen> {
            let file = fs::symlink_metadata(path)?;
            Ok((path.clone(), file.len(), (file.ctime(), file.ctime_nsec())))
        };
        let seen = files.iter().map(look).collect::<io::Result<Vec<_>>>();
        let seen = seen.map_err(AgentError::file("read", data))?;
        let mut last = self.last.lock().expect("no holder panics");
        if let Some((known, log)) = &*last
            && *known == seen
        {
            return Ok(log.clone());
        }
        let log = read_files(&files)?.map(|(log, _)| log);
        *last = Some((seen, log.clone()));
        Ok(log)
    }

    /// The last entry that a release before 3.6 wrote, in all files that are there. Each file is read once, because no such entry can be
    /// added while every member runs a later release. Nothing while somebody else reads.
    pub(super) fn last_old_entry(&self, data: &Path) -> Option<Result<Option<u64>, AgentError>> {
        let mut known = self.old.try_lock().ok()?;
        Some(files(data).and_then(|files| {
            known.retain(|path, _| files.contains(path));
            for (age, path) in files.iter().rev().enumerate() {
                if !known.contains_key(path) {
                    known.insert(path.clone(), read_file(path, age == 0)?.old_entry);
                }
            }
            Ok(known.values().flatten().max().copied())
        }))
    }

    /// Releases before 3.6 may write again.
    pub(super) fn forget_old_entries(&self) {
        if let Ok(mut known) = self.old.try_lock() {
            known.clear();
        }
    }
}

/// The last entry after this one that a release before 3.6 wrote. Reads no file that ends before.
pub(super) fn old_entry_after(data: &Path, snapshot: u64) -> Result<Option<u64>, AgentError> {
    let files = files(data)?;
    for (age, path) in files.iter().rev().enumerate() {
        let last = read_file(path, age == 0)?.old_entry.filter(|index| *index > snapshot);
        if last.is_some() || first_index(path).is_some_and(|first| first <= snapshot) {
            return Ok(last);
        }
    }
    Ok(None)
}

/// Up to where the newest Raft snapshot goes; 0 where there is none.
pub(super) fn newest_snapshot(data: &Path) -> Result<u64, AgentError> {
    let directory = data.join("member/snap");
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(AgentError::file("list", directory)(error)),
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
    let mut paths = paths.map_err(AgentError::file("list", directory))?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "snap"));
    Ok(paths.iter().filter_map(|path| first_index(path)).max().unwrap_or_default())
}

/// What comes second in the name of a file, in hexadecimal: the first entry of a log, the last one of a snapshot.
fn first_index(path: &Path) -> Option<u64> {
    u64::from_str_radix(path.file_stem()?.to_str()?.split_once('-')?.1, 16).ok()
}

/// Nothing where there is no log.
#[cfg(test)]
fn read(data: &Path) -> Result<Option<Log>, AgentError> {
    Ok(read_files(&files(data)?)?.map(|(log, _)| log))
}

/// The lines of etcd whose log was shown to be taken as it is written here. The tests of a rebuild go through every one of them, and what
/// is added to one list must be added to the other.
const PROVEN: [(u32, u32); 4] = [(3, 4), (3, 5), (3, 6), (3, 7)];

/// What is written into a log is believed by etcd without question, so that nothing is written for one that was not tried.
pub(super) fn check_proven(version: &str) -> Result<(), AgentError> {
    let line = version.parse::<Version>().ok().map(|version| (version.major, version.minor));
    if line.is_some_and(|line| PROVEN.contains(&line)) {
        return Ok(());
    }
    let proven: Vec<String> = PROVEN.iter().map(|(major, minor)| format!("{major}.{minor}")).collect();
    Err(AgentError::Recreation {
        why: format!(
            "the log of etcd {version} cannot be completed here: that was tried with {} only. Restore the cluster from a backup \
             with `quorate restore`",
            proven.join(", ")
        ),
    })
}

/// Has every entry of the log count as agreed, and says how many did not: etcd forgets those when it is made to continue alone,
/// although the cluster may have agreed to them without this member being told.
pub(super) fn agree_to_all(data: &Path) -> Result<u64, AgentError> {
    let Some((log, tail)) = read_files(&files(data)?)? else { return Ok(0) };
    let LogEnd { term, index, commit } = log.end;
    if commit < index {
        let HardState { term: in_term, vote, .. } = tail.state.unwrap_or_default();
        let state = HardState { term: in_term.max(term), vote: if in_term < term { 0 } else { vote }, commit: index };
        append(&tail, &state).map_err(AgentError::file("write", &tail.path))?;
    }
    Ok(index.saturating_sub(commit))
}

/// The files of a log in their order, which is that of their names.
fn files(data: &Path) -> Result<Vec<PathBuf>, AgentError> {
    let directory = data.join("member/wal");
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(AgentError::file("list", directory)(error)),
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
    let mut paths = paths.map_err(AgentError::file("list", directory))?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "wal"));
    paths.sort();
    Ok(paths)
}

/// Where the next record would go.
struct Tail {
    path: PathBuf,
    offset: u64,
    crc: u32,
    state: Option<HardState>,
}

/// Goes back from the newest file only as far as needed: each file repeats whose log it is and the state so far, and what was
/// written last holds.
fn read_files(files: &[PathBuf]) -> Result<Option<(Log, Tail)>, AgentError> {
    let mut tail = None;
    let mut member_id = None;
    let mut snapshot = Snapshot::default();
    let mut entry = None;
    for (age, path) in files.iter().rev().enumerate() {
        let file = read_file(path, age == 0)?;
        member_id = member_id.or(file.metadata.map(|metadata| metadata.member_id));
        snapshot = if file.snapshot.index > snapshot.index { file.snapshot } else { snapshot };
        let tail: &mut Tail =
            tail.get_or_insert_with(|| Tail { path: path.clone(), offset: file.offset, crc: file.crc, state: None });
        tail.state = tail.state.or(file.state);
        entry = file.entry;
        if entry.is_some() {
            break;
        }
    }
    let Some(tail) = tail else { return Ok(None) };
    let Some(member_id) = member_id else {
        return Err(AgentError::BadLog { path: tail.path, why: String::from("nothing says whose it is") });
    };
    let Entry { term, index, .. } = entry.unwrap_or_default();
    // Where the leader has sent a snapshot, the log continues from there.
    let (term, index) = if snapshot.index > index { (snapshot.term, snapshot.index) } else { (term, index) };
    let commit = tail.state.unwrap_or_default().commit.max(snapshot.index).min(index);
    Ok(Some((Log { member_id, end: LogEnd { term, index, commit } }, tail)))
}

/// What one file says: of each kind of record the last, of the snapshots the newest.
#[derive(Default)]
struct InFile {
    metadata: Option<Metadata>,
    entry: Option<Entry>,
    state: Option<HardState>,
    snapshot: Snapshot,
    /// The last one that a release before 3.6 wrote.
    old_entry: Option<u64>,
    offset: u64,
    crc: u32,
}

impl InFile {
    fn take(&mut self, record: &Record) -> Result<(), String> {
        let unreadable =
            |error: prost::DecodeError| format!("a record of kind {} at {}: {error}", record.kind, self.offset);
        let data = record.data.as_deref().unwrap_or_default();
        match record.kind {
            METADATA => self.metadata = Some(Metadata::decode(data).map_err(unreadable)?),
            ENTRY => {
                let entry = Entry::decode(data).map_err(unreadable)?;
                self.old_entry = if entry.is_of_v2() { Some(entry.index) } else { self.old_entry };
                self.entry = Some(Entry { data: Vec::new(), ..entry });
            }
            STATE => self.state = Some(HardState::decode(data).map_err(unreadable)?),
            SNAPSHOT => {
                let snapshot = Snapshot::decode(data).map_err(unreadable)?;
                self.snapshot = if snapshot.index > self.snapshot.index { snapshot } else { self.snapshot };
            }
            CRC => {}
            kind => return Err(format!("a record of unknown kind {kind} at {}", self.offset)),
        }
        Ok(())
    }
}

fn read_file(path: &Path, newest: bool) -> Result<InFile, AgentError> {
    let file = files::open_plain(path).map_err(AgentError::file("open", path))?;
    let length = file.metadata().map_err(AgentError::file("read", path))?.len();
    let mut reader = BufReader::with_capacity(64 << 10, file);
    let mut found = InFile::default();
    let bad = |why: String| AgentError::BadLog { path: path.to_owned(), why };
    loop {
        let frame = next_frame(&mut reader, length - found.offset).map_err(AgentError::file("read", path))?;
        let (record, size) = match frame {
            Frame::None => return Ok(found),
            Frame::TooLong if newest => return Ok(found),
            Frame::TooLong => return Err(bad(format!("the record at {} goes beyond the end", found.offset))),
            Frame::Absurd { bytes } => {
                return Err(bad(format!("the record at {} says to have {bytes} bytes", found.offset)));
            }
            Frame::Whole { record, size } => match check(&record, found.crc) {
                Some(record) => (record, size),
                None if newest && is_torn(&record, found.offset) => return Ok(found),
                None => return Err(bad(format!("garbage at {}", found.offset))),
            },
        };
        found.take(&record).map_err(bad)?;
        found.crc = record.crc;
        found.offset += size;
    }
}

enum Frame {
    /// Nothing more was written.
    None,
    /// It says to be longer than what is left of the file.
    TooLong,
    /// It says to be longer than anything that etcd writes, and the file has holes enough for it.
    Absurd { bytes: u64 },
    /// The size is that of all of the frame.
    Whole { record: Vec<u8>, size: u64 },
}

fn next_frame(reader: &mut impl Read, left: u64) -> io::Result<Frame> {
    if left < 8 {
        return Ok(Frame::None);
    }
    let mut field = [0; 8];
    reader.read_exact(&mut field)?;
    let field = u64::from_le_bytes(field);
    if field == 0 {
        return Ok(Frame::None);
    }
    // The highest bit says that there is padding, the lowest three of the same byte how much.
    let padding = if field >> 63 == 1 { field >> 56 & 7 } else { 0 };
    let record = field & ((1 << 56) - 1);
    let size = 8 + record + padding;
    if size > left {
        return Ok(Frame::TooLong);
    }
    if record > MOST_RECORD {
        return Ok(Frame::Absurd { bytes: record });
    }
    let mut bytes = vec![0; (record + padding) as usize];
    reader.read_exact(&mut bytes)?;
    bytes.truncate(record as usize);
    Ok(Frame::Whole { record: bytes, size })
}

/// The record, if it is one and the checksum continues from the one before.
fn check(record: &[u8], before: u32) -> Option<Record> {
    let record = Record::decode(record).ok()?;
    let expected = match (record.kind, before) {
        (CRC, 0) => record.crc,
        _ => crc32c(before, record.data.as_deref().unwrap_or_default()),
    };
    (record.crc == expected).then_some(record)
}

/// Whether a sector of the record was never written.
fn is_torn(record: &[u8], frame: u64) -> bool {
    let begin = frame as usize + 8;
    let first = SECTOR - begin % SECTOR;
    let (head, rest) = record.split_at(first.min(record.len()));
    [head].into_iter().chain(rest.chunks(SECTOR)).any(|part| !part.is_empty() && part.iter().all(|byte| *byte == 0))
}

/// A torn record at the end is overwritten.
fn append(tail: &Tail, state: &HardState) -> io::Result<()> {
    let data = state.encode_to_vec();
    let mut record = Record { kind: STATE, crc: crc32c(tail.crc, &data), data: Some(data) }.encode_to_vec();
    let mut field = record.len() as u64;
    let padding = (8 - record.len() % 8) % 8;
    if padding > 0 {
        field |= (0x80 | padding as u64) << 56;
        record.resize(record.len() + padding, 0);
    }
    let mut file = OpenOptions::new().write(true).open(&tail.path)?;
    let length = file.metadata()?.len();
    file.set_len(tail.offset)?;
    file.seek(SeekFrom::Start(tail.offset))?;
    file.write_all(&field.to_le_bytes())?;
    file.write_all(&record)?;
    file.set_len(length.max(tail.offset + 8 + record.len() as u64))?;
    file.sync_all()
}

/// Castagnoli's, continuing from the value over what came before.
fn crc32c(before: u32, data: &[u8]) -> u32 {
    !data.iter().fold(!before, |crc, byte| CASTAGNOLI[((crc ^ u32::from(*byte)) & 0xff) as usize] ^ (crc >> 8))
}

const CASTAGNOLI: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests;
