//! etcd's release archives, from etcd itself or a mirror. The whole archive is downloaded, and its SHA-256 is compared
//! with the pinned one before anything is unpacked.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::read::GzDecoder;
use quorate_core::model::Archive;
use quorate_pki::Sha256;

use super::{BinaryError, once};
use quorate_core::text::hex;

const PROGRAMS: [&str; 3] = ["etcd", "etcdctl", "etcdutl"];
/// Archives have about 20 MB.
const ARCHIVE_BYTES: u64 = 200 << 20;
/// No single program has more than 40 MB.
const PROGRAM_BYTES: u64 = 400 << 20;
const CONNECTING: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(30);
const WHOLE: Duration = Duration::from_secs(540);

pub(super) async fn fetch(archive: &Archive, version: &str, cache: &Path) -> Result<PathBuf, BinaryError> {
    let Archive { url, sha256 } = archive;
    let sum = sha256.to_ascii_lowercase();
    // The sum is part of the name, so that another archive for the same version is another directory.
    let name = format!("{}-{}", plain(version), plain(&sum).get(..12).unwrap_or("nosum"));
    let directory = once(cache, &name, async |directory| {
        let archive = directory.join("archive");
        let found = download(url, &archive).await?;
        if found != sum {
            return Err(BinaryError::WrongChecksum { url: url.to_owned(), expected: sum.clone(), found });
        }
        let (from, to) = (archive.clone(), directory.to_owned());
        crate::blocking(move || unpack(&from, &to))
            .await
            .map_err(|error| BinaryError::Unpack { url: url.to_owned(), why: error.to_string() })?;
        fs::remove_file(&archive).map_err(BinaryError::file("remove", &archive))
    });
    let directory = directory.await?;
    Ok(directory.join("etcd"))
}

fn plain(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_alphanumeric() || "._".contains(*c)).collect()
}

/// Returns the SHA-256 of what was fetched.
async fn download(url: &str, to: &Path) -> Result<String, BinaryError> {
    let failed = |why: String| BinaryError::Fetch { url: url.to_owned(), why };
    let written = match url.strip_prefix("file://") {
        Some(path) => {
            let (from, to) = (PathBuf::from(path), to.to_owned());
            crate::blocking(move || File::open(from).and_then(|file| copy(file, &to))).await
        }
        None => tokio::time::timeout(WHOLE, stream(url, to))
            .await
            .map_err(|_| failed(format!("not finished within {} s", WHOLE.as_secs())))?,
    };
    written.map_err(|error| failed(error.to_string()))
}

fn copy(file: File, to: &Path) -> io::Result<String> {
    let mut sink = Sink::new(to)?;
    let mut file = file;
    let mut buffer = vec![0; 64 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return sink.finish(),
            read => sink.write(&buffer[..read])?,
        }
    }
}

async fn stream(url: &str, to: &Path) -> io::Result<String> {
    // Fails where a provider is installed already, which does as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().connect_timeout(CONNECTING).read_timeout(SILENCE).build();
    let answer = client.map_err(in_full)?.get(url).send().await.map_err(in_full)?;
    let mut answer = answer.error_for_status().map_err(|error| in_full(error.without_url()))?;
    let mut sink = Sink::new(to)?;
    while let Some(chunk) = answer.chunk().await.map_err(in_full)? {
        sink.write(&chunk)?;
    }
    sink.finish()
}

/// reqwest names the URL and keeps the cause to itself.
fn in_full(error: reqwest::Error) -> io::Error {
    let mut cause: &dyn std::error::Error = &error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    io::Error::other(cause.to_string())
}

struct Sink {
    file: File,
    sum: Sha256,
    bytes: u64,
}

impl Sink {
    fn new(path: &Path) -> io::Result<Self> {
        Ok(Sink { file: File::create(path)?, sum: Sha256::new(), bytes: 0 })
    }

    fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        self.bytes += chunk.len() as u64;
        if self.bytes > ARCHIVE_BYTES {
            return Err(io::Error::other(format!("it has more than {} MB", ARCHIVE_BYTES >> 20)));
        }
        self.sum.update(chunk);
        self.file.write_all(chunk)
    }

    fn finish(self) -> io::Result<String> {
        Ok(hex(&self.sum.finalize()))
    }
}

/// Takes etcd's programs out by their base names alone: whatever paths an archive has, nothing is written elsewhere.
fn unpack(archive: &Path, into: &Path) -> io::Result<()> {
    let mut archive = tar::Archive::new(GzDecoder::new(File::open(archive)?));
    for entry in archive.entries()? {
        let entry = entry?;
        let path = entry.path()?.into_owned();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(program) = PROGRAMS.into_iter().find(|program| name == Some(program)) else { continue };
        if entry.header().entry_type().is_file() {
            write_program(entry, &into.join(program))?;
        }
    }
    if into.join("etcd").is_file() { Ok(()) } else { Err(io::Error::other("there is no program etcd in it")) }
}

fn write_program(entry: impl Read, path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    if io::copy(&mut entry.take(PROGRAM_BYTES), &mut file)? == PROGRAM_BYTES {
        return Err(io::Error::other(format!("a program in it has more than {} MB", PROGRAM_BYTES >> 20)));
    }
    file.set_permissions(fs::Permissions::from_mode(0o755))
}
