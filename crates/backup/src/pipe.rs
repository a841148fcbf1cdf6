//! The data path: compress, then encrypt, in pieces of the store's size; and back. It runs on a separate thread, parallel to the network,
//! and keeps a few pieces in memory, whatever the total size. Also etcd's checksum at the end of a snapshot.

use quorate_core::text::hex;
use std::io::{self, Read, Write};

use bytes::{Buf, Bytes, BytesMut};
use quorate_pki::Sha256;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::keys::{BackupKey, KeyError, encrypt_to};
use crate::store::PART;

/// Pieces as etcd sends them, of some tens of KiB each.
const WAITING_IN: usize = 32;
/// A thread reads on by as much as it is fed.
const COPY_BUFFER: usize = 256 << 10;

/// What was stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sealed {
    pub bytes: u64,
    pub sha256: String,
}

pub(crate) struct Sealing {
    /// Closed at the end.
    pub input: mpsc::Sender<Bytes>,
    /// All of [`PART`] bytes, but for the last.
    pub output: mpsc::Receiver<Bytes>,
    pub done: JoinHandle<Result<Sealed, KeyError>>,
}

/// `recipient` is the public half of the backup's key; without one, nothing is encrypted.
pub(crate) fn seal(level: i32, recipient: Option<String>) -> Sealing {
    let (input, mut plain) = mpsc::channel(WAITING_IN);
    let (parts, output) = mpsc::channel(1);
    let done = tokio::task::spawn_blocking(move || {
        let pieces = std::iter::from_fn(move || plain.blocking_recv());
        let mut sink = Parts { parts, filling: BytesMut::new(), bytes: 0, sha256: Sha256::new() };
        sink = seal_into(pieces, level, recipient.as_deref(), sink)?;
        sink.send().map_err(|error| KeyError::Damaged(error.to_string()))?;
        Ok(Sealed { bytes: sink.bytes, sha256: hex(&sink.sha256.finalize()) })
    });
    Sealing { input, output, done }
}

/// Something that fits into memory.
pub(crate) fn seal_small(plain: Bytes, level: i32, recipient: Option<&str>) -> Result<Vec<u8>, KeyError> {
    seal_into(std::iter::once(plain), level, recipient, Vec::new())
}

fn seal_into<W: Write>(
    pieces: impl Iterator<Item = Bytes>,
    level: i32,
    recipient: Option<&str>,
    sink: W,
) -> Result<W, KeyError> {
    let failed = |error: io::Error| KeyError::Damaged(error.to_string());
    match recipient {
        Some(recipient) => {
            let sealed = compress(pieces, level, encrypt_to(recipient, sink)?).map_err(failed)?;
            sealed.finish().map_err(failed)
        }
        None => compress(pieces, level, sink).map_err(failed),
    }
}

fn compress<W: Write>(pieces: impl Iterator<Item = Bytes>, level: i32, sink: W) -> io::Result<W> {
    let mut encoder = zstd::stream::write::Encoder::new(sink, level)?;
    for piece in pieces {
        encoder.write_all(&piece)?;
    }
    encoder.finish()
}

struct Parts {
    parts: mpsc::Sender<Bytes>,
    filling: BytesMut,
    bytes: u64,
    sha256: Sha256,
}

impl Parts {
    fn send(&mut self) -> io::Result<()> {
        let part = self.filling.split().freeze();
        if part.is_empty() {
            return Ok(());
        }
        self.sha256.update(&part);
        self.bytes += part.len() as u64;
        // A receiver that is gone has given up, and knows why.
        self.parts.blocking_send(part).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }
}

impl Write for Parts {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.filling.is_empty() {
            self.filling = BytesMut::with_capacity(PART);
        }
        let taken = bytes.len().min(PART - self.filling.len());
        self.filling.extend_from_slice(&bytes[..taken]);
        if self.filling.len() == PART {
            self.send()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) struct Unsealing<W> {
    /// Closed at the end.
    pub input: mpsc::Sender<Bytes>,
    pub done: JoinHandle<Result<W, KeyError>>,
}

/// Writes to `output` what `input` holds, opened with `key` where it is encrypted. A few bytes can hold any number of them: what holds more
/// than `limit` is damaged.
pub(crate) fn unseal<W: Write + Send + 'static>(key: Option<BackupKey>, output: W, limit: u64) -> Unsealing<W> {
    let (input, sealed) = mpsc::channel(2);
    let sealed = Pieces { sealed, piece: Bytes::new() };
    let done = tokio::task::spawn_blocking(move || unseal_into(key.as_ref(), sealed, output, limit));
    Unsealing { input, done }
}

/// Something that fits into memory.
pub(crate) fn unseal_small(key: Option<&BackupKey>, sealed: &[u8], limit: u64) -> Result<Vec<u8>, KeyError> {
    unseal_into(key, sealed, Vec::new(), limit)
}

fn unseal_into<W: Write>(key: Option<&BackupKey>, sealed: impl Read, mut output: W, limit: u64) -> Result<W, KeyError> {
    match key {
        Some(key) => expand(key.decrypt(sealed)?, &mut output, limit)?,
        None => expand(sealed, &mut output, limit)?,
    }
    Ok(output)
}

/// What cannot be read is damaged; what cannot be written is this machine's trouble.
fn expand(compressed: impl Read, output: &mut impl Write, limit: u64) -> Result<(), KeyError> {
    let damaged = |error: io::Error| KeyError::Damaged(error.to_string());
    let mut decoder = zstd::stream::read::Decoder::new(compressed).map_err(damaged)?;
    let (mut buffer, mut left) = (vec![0; COPY_BUFFER], limit);
    loop {
        let read = decoder.read(&mut buffer).map_err(damaged)?;
        left = left.checked_sub(read as u64).ok_or(KeyError::TooLarge { limit })?;
        match read {
            0 => return output.flush().map_err(KeyError::Output),
            read => output.write_all(&buffer[..read]).map_err(KeyError::Output)?,
        }
    }
}

struct Pieces {
    sealed: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.sealed.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let taken = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..taken]);
        Ok(taken)
    }
}

/// etcd's checksum at the end of a snapshot.
pub(crate) const SUM: usize = 32;

/// What a stream ends with, which may be etcd's checksum, and its length.
#[derive(Clone, Default)]
struct Tail {
    held: Vec<u8>,
    bytes: u64,
}

impl Tail {
    /// Gives `before` all that is certainly not the end.
    fn update(&mut self, bytes: &[u8], mut before: impl FnMut(&[u8])) {
        self.bytes += bytes.len() as u64;
        let (sure, last) = bytes.split_at(bytes.len().saturating_sub(SUM));
        if sure.is_empty() {
            self.held.extend_from_slice(last);
            let surplus = self.held.len().saturating_sub(SUM);
            before(&self.held[..surplus]);
            self.held.drain(..surplus);
        } else {
            before(&self.held);
            before(sure);
            self.held.clear();
            self.held.extend_from_slice(last);
        }
    }

    fn snapshot(&self) -> SnapshotFile {
        SnapshotFile { bytes: self.bytes, sha256: hex(&self.held) }
    }
}

/// Compares a snapshot with the SHA-256 at its own end, in one pass.
#[derive(Clone)]
pub(crate) struct SnapshotCheck {
    sha256: Sha256,
    tail: Tail,
}

impl SnapshotCheck {
    pub(crate) fn new() -> Self {
        SnapshotCheck { sha256: Sha256::new(), tail: Tail::default() }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.tail.update(bytes, |before| self.sha256.update(before));
    }

    /// `None` where the bytes and the checksum at their end disagree.
    pub(crate) fn finish(self) -> Option<SnapshotFile> {
        let fits = self.tail.bytes > SUM as u64 && self.tail.held.as_slice() == self.sha256.finalize().as_slice();
        fits.then(|| self.tail.snapshot())
    }
}

/// Checks a snapshot on its way through.
pub(crate) struct Checking<W> {
    pub output: W,
    pub check: SnapshotCheck,
}

impl<W: Write> Write for Checking<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.output.write(bytes)?;
        self.check.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// Looks only at how a snapshot ends, where its bytes are known to be those that were checked before.
pub(crate) struct Ending<W> {
    output: W,
    tail: Tail,
}

impl<W> Ending<W> {
    pub(crate) fn new(output: W) -> Self {
        Ending { output, tail: Tail::default() }
    }

    pub(crate) fn snapshot(&self) -> SnapshotFile {
        self.tail.snapshot()
    }
}

impl<W: Write> Write for Ending<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.output.write(bytes)?;
        self.tail.update(&bytes[..written], |_| ());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// A snapshot on this machine's disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotFile {
    /// Of the whole file.
    pub bytes: u64,
    /// With which it ends: etcd's checksum of all that comes before.
    pub sha256: String,
}

impl SnapshotFile {
    /// Of the database alone.
    pub fn db_bytes(&self) -> u64 {
        self.bytes.saturating_sub(SUM as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(db: &[u8]) -> Vec<u8> {
        [db, Sha256::digest(db).as_slice()].concat()
    }

    #[test]
    fn a_snapshot_is_checked_however_it_is_cut() {
        let db: Vec<u8> = (0..1000_u32).flat_map(u32::to_be_bytes).collect();
        let whole = snapshot(&db);
        for size in [1, 7, 31, 32, 33, 64, 1000, 5000] {
            let mut check = SnapshotCheck::new();
            whole.chunks(size).for_each(|chunk| check.update(chunk));
            let file = SnapshotFile { bytes: 4032, sha256: hex(&Sha256::digest(&db)) };
            assert_eq!((check.finish().as_ref(), file.db_bytes()), (Some(&file), 4000), "{size}");
            let mut ending = Ending::new(Vec::new());
            whole.chunks(size).for_each(|chunk| ending.write_all(chunk).unwrap());
            assert_eq!((ending.snapshot(), &ending.output), (file, &whole), "{size}");
        }
    }

    #[test]
    fn a_flipped_byte_and_a_missing_end_are_found() {
        let whole = snapshot(&[7; 4096]);
        let of = |bytes: &[u8]| {
            let mut check = SnapshotCheck::new();
            check.update(bytes);
            check.finish()
        };
        assert!(of(&whole).is_some());
        for place in [0, 4095, 4096, whole.len() - 1] {
            let mut flipped = whole.clone();
            flipped[place] ^= 1;
            assert_eq!(of(&flipped), None, "{place}");
        }
        assert_eq!(of(&whole[..whole.len() - 1]), None);
        assert_eq!(of(&whole[..32]), None);
        assert_eq!(of(&[]), None);
    }

    #[tokio::test]
    async fn data_is_restored_from_parts_of_the_stores_size() {
        let plain: Vec<u8> = (0..3_000_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
        for key in [None, Some(BackupKey::generate())] {
            let Sealing { input, mut output, done } = seal(1, key.as_ref().map(BackupKey::recipient));
            let pieces: Vec<Bytes> = plain.chunks(50_000).map(Bytes::copy_from_slice).collect();
            let feed = async {
                for piece in pieces {
                    input.send(piece).await.unwrap();
                }
                drop(input);
            };
            let drain = async {
                let mut parts = Vec::new();
                while let Some(part) = output.recv().await {
                    parts.push(part);
                }
                parts
            };
            let ((), parts) = tokio::join!(feed, drain);
            let sealed = done.await.unwrap().unwrap();
            assert!(parts.len() > 1 && parts.iter().rev().skip(1).all(|part| part.len() == PART));
            let stored = parts.concat();
            assert_eq!(sealed, Sealed { bytes: stored.len() as u64, sha256: crate::store::sha256_hex(&stored) });
            let whole = plain.len() as u64;
            assert!(unseal_small(key.as_ref(), &stored, whole).unwrap() == plain);
            assert!(unseal_small(key.as_ref(), &stored[..stored.len() - 1], whole).is_err());
            let cut = unseal_small(key.as_ref(), &stored, whole - 1);
            assert!(matches!(cut, Err(KeyError::TooLarge { limit }) if limit == whole - 1));
        }
    }

    #[test]
    fn another_key_opens_nothing() {
        let sealed = seal_small(Bytes::from_static(b"x"), 3, Some(&BackupKey::generate().recipient())).unwrap();
        assert!(matches!(unseal_small(Some(&BackupKey::generate()), &sealed, 1), Err(KeyError::WrongIdentity)));
    }
}
