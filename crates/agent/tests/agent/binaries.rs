//! Sources of etcd: the PATH, a path, and an archive from a server of the test.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use flate2::Compression;
use flate2::write::GzEncoder;
use quorate_agent::kinds::etcd::binaries::{BinaryError, etcdutl, locate};
use quorate_core::model::{Archive, BinarySource};
use quorate_pki::Sha256;

const VERSION: &str = "3.9.1";

/// A program that says it is etcd of this version.
fn program(version: &str) -> Vec<u8> {
    format!("#!/bin/sh\necho 'etcd Version: {version}'\n").into_bytes()
}

fn write_program(path: &Path, version: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, program(version)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn archive(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (name, content) in entries {
        let mut header = tar::Header::new_gnu();
        // As an attacker would: the builder itself refuses such names.
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append(&header, &content[..]).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

fn good_archive() -> Vec<u8> {
    archive(&[
        ("etcd-v3/README.md", b"words".to_vec()),
        ("etcd-v3/etcd", program(VERSION)),
        ("etcd-v3/etcdctl", program(VERSION)),
    ])
}

fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Serves these bytes to everybody, announcing `length`, and counts the visits.
struct Server {
    address: SocketAddr,
    visits: Arc<AtomicUsize>,
}

impl Server {
    fn new(content: Vec<u8>, length: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let visits = Arc::new(AtomicUsize::new(0));
        let counted = visits.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                let _ = stream.read(&mut [0; 4096]);
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&content));
            }
        });
        Server { address, visits }
    }

    fn source(&self, sha256: &str) -> BinarySource {
        let url = format!("http://{}/etcd.tar.gz", self.address);
        BinarySource::Archive(Archive { url, sha256: sha256.to_owned() })
    }
}

/// All files in the cache, locks and notes aside.
fn cached(cache: &Path) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if name != "versions" && !name.ends_with(".lock") {
            names.push(name);
        }
    }
    names
}

#[tokio::test]
async fn an_archive_is_fetched_once_for_all_agents_that_share_the_cache() {
    let cache = tempfile::tempdir().unwrap();
    let bytes = good_archive();
    let server = Server::new(bytes.clone(), bytes.len());
    let source = server.source(&sum(&bytes));
    let fetch = || locate(&source, VERSION, cache.path(), None);
    let (one, two, three) = tokio::join!(fetch(), fetch(), fetch());
    let binary = one.unwrap();
    assert_eq!((two.unwrap(), three.unwrap()), (binary.clone(), binary.clone()));
    assert_eq!(binary.version, VERSION);
    assert!(binary.etcd.with_file_name("etcdctl").exists());
    assert!(!binary.etcd.with_file_name("README.md").exists());
    assert_eq!(server.visits.load(Ordering::SeqCst), 1);
    assert_eq!(cached(cache.path()).len(), 1);
}

#[tokio::test]
async fn an_archive_with_another_checksum_leaves_nothing_behind() {
    let cache = tempfile::tempdir().unwrap();
    let bytes = good_archive();
    let server = Server::new(bytes.clone(), bytes.len());
    let expected = sum(b"something else");
    let error = locate(&server.source(&expected), VERSION, cache.path(), None).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&expected) && text.contains(&sum(&bytes)), "{text}");
    assert_eq!(cached(cache.path()), Vec::<String>::new());
}

#[tokio::test]
async fn an_archive_that_ends_too_early_is_not_unpacked() {
    let cache = tempfile::tempdir().unwrap();
    let bytes = good_archive();
    let server = Server::new(bytes[..bytes.len() / 2].to_vec(), bytes.len());
    let error = locate(&server.source(&sum(&bytes)), VERSION, cache.path(), None).await.unwrap_err();
    assert!(matches!(error, BinaryError::Fetch { .. }), "{error}");
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gone = Archive { url: format!("http://{nobody}/etcd.tar.gz"), sha256: sum(&bytes) };
    let error = locate(&BinarySource::Archive(gone), VERSION, cache.path(), None).await.unwrap_err();
    assert!(matches!(error, BinaryError::Fetch { .. }), "{error}");
    assert_eq!(cached(cache.path()), Vec::<String>::new());
}

#[tokio::test]
async fn names_in_an_archive_lead_nowhere_else() {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("a/cache");
    let bytes = archive(&[
        ("../../etcdctl", program("evil")),
        ("/tmp/../etcdutl", program("evil")),
        ("../../passwd", b"evil".to_vec()),
        ("x/etcd", program(VERSION)),
    ]);
    let path = directory.path().join("archive.tar.gz");
    fs::write(&path, &bytes).unwrap();
    let source = BinarySource::Archive(Archive { url: format!("file://{}", path.display()), sha256: sum(&bytes) });
    let binary = locate(&source, VERSION, &cache, None).await.unwrap();
    assert!(binary.etcd.starts_with(&cache));
    assert!(binary.etcd.with_file_name("etcdctl").exists(), "by its base name, beside the others");
    for name in ["passwd", "etcdctl", "a/passwd", "a/etcdctl"] {
        assert!(!directory.path().join(name).exists(), "{name}");
    }
    let empty = archive(&[("README.md", b"words".to_vec())]);
    fs::write(&path, &empty).unwrap();
    let source = BinarySource::Archive(Archive { url: format!("file://{}", path.display()), sha256: sum(&empty) });
    let error = locate(&source, VERSION, &cache, None).await.unwrap_err();
    assert!(error.to_string().contains("there is no program etcd in it"), "{error}");
}

#[tokio::test]
async fn a_path_is_a_program_or_its_directory_and_its_version_is_checked() {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("cache");
    let program = directory.path().join("bin/etcd");
    write_program(&program, VERSION);
    for path in [&program, program.parent().unwrap()] {
        let source = BinarySource::Path(path.display().to_string());
        assert_eq!(locate(&source, VERSION, &cache, None).await.unwrap().etcd, program);
        let error = locate(&source, "3.9.2", &cache, None).await.unwrap_err();
        assert!(matches!(error, BinaryError::WrongVersion { ref found, .. } if found == VERSION), "{error}");
    }
    write_program(&program, "3.9.22");
    let source = BinarySource::Path(program.display().to_string());
    locate(&source, "3.9.22", &cache, None).await.expect("another file is asked again");
    let source = BinarySource::Path(String::from("/nowhere"));
    let error = locate(&source, VERSION, &cache, None).await.unwrap_err();
    assert!(matches!(error, BinaryError::Missing { .. }), "{error}");
    fs::write(&program, "#!/bin/sh\necho hello\n").unwrap();
    let source = BinarySource::Path(program.display().to_string());
    let error = locate(&source, VERSION, &cache, None).await.unwrap_err();
    assert!(matches!(error, BinaryError::NoVersion { .. }), "{error}");
}

#[tokio::test]
async fn the_path_is_searched_before_an_archive_is_fetched() {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("cache");
    let bytes = good_archive();
    let server = Server::new(bytes.clone(), bytes.len());
    let BinarySource::Archive(archive) = server.source(&sum(&bytes)) else { unreachable!() };
    let alone = BinarySource::Search { otherwise: None };
    let or_archive = BinarySource::Search { otherwise: Some(archive) };
    let search = std::env::join_paths([directory.path().join("empty"), directory.path().join("bin")]).unwrap();

    let error = locate(&alone, VERSION, &cache, Some(&search)).await.unwrap_err();
    assert!(matches!(error, BinaryError::NotOnPath), "{error}");
    write_program(&directory.path().join("bin/etcd"), VERSION);
    for source in [&alone, &or_archive] {
        let found = locate(source, VERSION, &cache, Some(&search)).await.unwrap();
        assert_eq!(found.etcd, directory.path().join("bin/etcd"));
    }
    assert_eq!(server.visits.load(Ordering::SeqCst), 0);
    write_program(&directory.path().join("bin/etcd"), "3.0.0");
    let found = locate(&or_archive, VERSION, &cache, Some(&search)).await.unwrap();
    assert!(found.etcd.starts_with(&cache));
}

#[tokio::test]
async fn an_etcdutl_is_of_the_same_minor_and_new_enough() {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("cache");
    let program = |place: &Path, name: &str, version: &str| {
        fs::create_dir_all(place).unwrap();
        let path = place.join(name);
        fs::write(&path, format!("#!/bin/sh\necho 'etcdutl version: {version}'\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    let beside = directory.path().join("bin");
    let etcd = program(&beside, "etcd", "");
    let found = async |version: &str| etcdutl(&etcd, version, &cache, None).await.map_err(|error| error.to_string());
    program(&beside, "etcdutl", "3.5.9");
    let refused = found("3.4.23").await.unwrap_err();
    assert!(refused.starts_with("there is no etcdutl 3.5 (at least 3.5.10) next to "), "{refused}");
    let newer = program(&cache.join("a"), "etcdutl", "3.6.1");
    assert!(found("3.5.30").await.is_err());
    assert_eq!(found("3.6.16").await, Ok(newer));
    let same = program(&cache.join("b"), "etcdutl", "3.5.30");
    assert_eq!(found("3.5.9").await, Ok(same.clone()));
    assert_eq!(found("3.4.23").await, Ok(same));
}
