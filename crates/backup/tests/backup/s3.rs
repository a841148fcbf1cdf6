//! The same with a real S3 server, SeaweedFS, which the test starts, and with a misbehaving one, which is part of the test.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use jiff::Timestamp;
use quorate_backup::catalog::Catalog;
use quorate_backup::choose::{Wish, choose};
use quorate_backup::full::{self, Draft};
use quorate_backup::keys::Recipients;
use quorate_backup::manifest::Outcome;
use quorate_backup::prepare::prepare;
use quorate_backup::settings::{Credentials, Location, Patience, S3Location};
use quorate_backup::store::{PART, Trouble};
use quorate_backup::verify::verify;
use quorate_backup::{Names, Store, prune};
use quorate_core::Secret;
use quorate_core::spec::Keep;
use tempfile::TempDir;

use crate::common::{CLUSTER, CLUSTER_ID, Living, Operator, Room, VERSION, signing, trust};

/// SeaweedFS wants at least three letters.
const BUCKET: &str = "backups";

struct Weed {
    server: Child,
    filer: u16,
    port: u16,
    ports: Vec<u16>,
    _directory: TempDir,
}

impl Drop for Weed {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        // Whatever it is told, it keeps sockets there, named by its second ports.
        for port in &self.ports {
            for part in ["filer", "master", "volume", "s3"] {
                let _ = fs::remove_file(format!("/tmp/seaweedfs-{part}-grpc-{}.sock", port + 10_000));
            }
        }
    }
}

fn weed() -> PathBuf {
    let given = std::env::var_os("QUORATE_TEST_WEED").map(PathBuf::from);
    let program = given.unwrap_or_else(|| crate::common::lab().join("seaweedfs/weed"));
    assert!(program.exists(), "SeaweedFS is not at {}: run `cargo xtask weed`", program.display());
    program
}

/// With a bucket. It adds ten thousand to its ports for a second use of each, so they must be low.
async fn start() -> Weed {
    let directory = tempfile::tempdir().unwrap();
    let rights = |name: &str, key: &str, actions: &str| {
        format!(r#"{{"name":"{name}","credentials":[{{"accessKey":"{key}","secretKey":"SK"}}],"actions":[{actions}]}}"#)
    };
    let all = rights("all", "AK", r#""Admin","Read","Write","List","Tagging""#);
    let reader = rights("reader", "RK", r#""Read:backups","List:backups""#);
    let config = directory.path().join("s3.json");
    fs::write(&config, format!(r#"{{"identities":[{all},{reader}]}}"#)).unwrap();
    let ports: Vec<u16> = std::iter::repeat_with(low_port).take(4).collect();
    let log = fs::File::create(directory.path().join("log")).unwrap();
    let server = Command::new(weed())
        .args(["server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=100", "-master.volumeSizeLimitMB=64"])
        .args(["-filer", "-s3", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"])
        .arg(format!("-filer.localSocket={}", directory.path().join("filer.sock").display()))
        .arg(format!("-s3.localSocket={}", directory.path().join("s3.sock").display()))
        .arg(format!("-dir={}", directory.path().display()))
        .arg(format!("-s3.config={}", config.display()))
        .args([format!("-master.port={}", ports[0]), format!("-volume.port={}", ports[1])])
        .args([format!("-filer.port={}", ports[2]), format!("-s3.port={}", ports[3])])
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    let weed = Weed { server, filer: ports[2], port: ports[3], ports, _directory: directory };
    let begin = Instant::now();
    while !weed.is_ready().await {
        assert!(begin.elapsed() < Duration::from_secs(60), "SeaweedFS does not answer");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    weed
}

fn low_port() -> u16 {
    loop {
        let port = 10_000 + u16::from_str_radix(&quorate_pki::random_hex(2), 16).unwrap() % 20_000;
        let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if free(port) && free(port + 10_000) {
            return port;
        }
    }
}

impl Weed {
    /// At the filer behind it: a directory of a certain name is a bucket.
    fn make_bucket(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.filer)) else { return false };
        let request = "POST /buckets/backups/ HTTP/1.0\r\nContent-Length: 0\r\n\r\n";
        let mut answer = String::new();
        let answered = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
        answered.is_ok() && [" 201", " 409"].iter().any(|status| answer.contains(status))
    }

    /// Until a write is confirmed: its port is open long before.
    async fn is_ready(&self) -> bool {
        let store = Store::open(&s3(self.port, "AK", "SK", BUCKET), None, hasty()).unwrap();
        self.make_bucket() && store.check("ready").await.is_ok()
    }

    /// The parts of uploads that are not finished, where the server keeps them.
    async fn uploads(&self) -> Vec<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.filer)).unwrap();
        let request = "GET /buckets/backups/.uploads/ HTTP/1.0\r\nAccept: application/json\r\n\r\n";
        let mut answer = String::new();
        stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer)).unwrap();
        answer.split("\"FullPath\":\"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
    }

    fn store(&self) -> Store {
        Store::open(&s3(self.port, "AK", "SK", BUCKET), None, Patience::default()).unwrap()
    }
}

fn s3(port: u16, key: &str, secret: &str, bucket: &str) -> Location {
    Location::S3(S3Location {
        endpoint: Some(format!("http://127.0.0.1:{port}")),
        region: String::from("eu-1"),
        bucket: bucket.to_owned(),
        prefix: String::from("etcd/"),
        path_style: true,
        ca: None,
        credentials: Credentials::Keys {
            access_key_id: key.to_owned(),
            secret_access_key: Secret::new(secret),
            session_token: None,
        },
    })
}

/// Not for a store that has trouble of its own.
fn hasty() -> Patience {
    Patience {
        connect: Duration::from_secs(1),
        request: Duration::from_millis(500),
        retries: 2,
        in_all: Duration::from_secs(5),
    }
}

async fn whole_story(weed: &Weed, version: &str) {
    let (room, operator, other) = (Room::new(version), Operator::new(), Operator::new());
    let (living, store) = (Living::start(version).await, weed.store());
    living.fill(50).await;
    living.enable_auth().await;
    let mut drafts = Vec::new();
    for _ in 0..2 {
        let draft = Draft::new(&operator.settings(), &signing(), Timestamp::now()).unwrap();
        let recipients = Recipients::parse(&operator.settings().recipients).unwrap().unwrap();
        let ledger = Some(Bytes::from(recipients.seal(b"the ledger").unwrap()));
        full::create(&store, &living, &draft, &operator.settings(), ledger, &|_| {}).await.unwrap();
        drafts.push(draft);
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    let catalog = Catalog::load(&store, CLUSTER, Some(CLUSTER_ID), &trust()).await.unwrap();
    assert_eq!((catalog.fulls.len(), &catalog.damage[..]), (2, &[][..]), "{version}");
    let workshop = room.workshop();
    let verified =
        verify(&store, &catalog.fulls[1], drafts[1].key(), &workshop, &[&living], Some(&signing())).await.unwrap();
    assert!(matches!(verified.outcome, Outcome::Ok(_)), "{verified:?}");

    let to = [other.recipient.clone()];
    let manifests: Vec<_> = catalog.fulls.iter().map(|full| full.manifest.clone()).collect();
    assert_eq!(
        full::rekey(&store, &manifests, &operator.identities, &to, Some(&signing())).await.unwrap().changed.len(),
        2
    );

    let ledger = store.get(&Names::new(CLUSTER).ledger(drafts[1].id())).await.unwrap();
    assert_eq!(other.identities.open(&ledger.bytes).unwrap(), b"the ledger");

    let keep = Keep { last: 1, ..Keep::NONE };
    let catalog = Catalog::load(&store, CLUSTER, Some(CLUSTER_ID), &trust()).await.unwrap();
    let plan = prune::plan(&catalog, &keep, Timestamp::now());
    assert_eq!(plan.remove, [drafts[0].id().clone()]);
    prune::carry_out(&store, CLUSTER, &plan).await.unwrap();

    let catalog = Catalog::load(&store, CLUSTER, Some(CLUSTER_ID), &trust()).await.unwrap();
    let choice = choose(&store, &catalog, &Wish::Newest).await.unwrap();
    let key = full::key_of(&store, &choice.full, Some(&other.identities)).await.unwrap();
    let prepared = prepare(&store, &catalog, &choice, key, &workshop, &room.prepared(), &|_| {}).await.unwrap();
    assert_eq!((prepared.revision, prepared.keys), (51, Some(50)));
    for object in store.list(CLUSTER).await.unwrap() {
        store.delete(&object.path).await.unwrap();
    }
}

#[tokio::test]
async fn created_listed_verified_pruned_rekeyed_and_prepared() {
    let weed = start().await;
    for version in ["3.4.23", VERSION, "3.7.3"] {
        whole_story(&weed, version).await;
    }
}

#[tokio::test]
async fn large_objects_go_in_parts_and_come_back_and_abandoned_ones_are_cleared() {
    let weed = start().await;
    let store = weed.store();
    let part = |n: u8| Bytes::from(vec![n; PART]);
    let path = "orders/full/x/snapshot";
    let mut upload = store.upload(path).await.unwrap();
    for n in 0..4 {
        upload.write(part(n)).await.unwrap();
    }
    upload.write(Bytes::from_static(b"end")).await.unwrap();
    assert_eq!(store.list("orders").await.unwrap(), [], "not before it is finished");
    upload.finish().await.unwrap();
    let (bytes, mut content) = store.read(path).await.unwrap();
    assert_eq!(bytes, 4 * PART as u64 + 3);
    let mut whole = Vec::new();
    while let Some(piece) = content.next().await {
        whole.extend_from_slice(&piece.unwrap());
    }
    let expected = [part(0), part(1), part(2), part(3), Bytes::from_static(b"end")].concat();
    assert!(whole == expected, "it came back changed");

    let mut abandoned = store.upload("orders/full/y/snapshot").await.unwrap();
    abandoned.write(part(1)).await.unwrap();
    abandoned.write(part(2)).await.unwrap();
    drop(abandoned);
    assert!(store.get("orders/full/y/snapshot.upload").await.is_ok(), "it left a note");
    assert_eq!(weed.uploads().await.len(), 1);
    assert_eq!(store.unfinished("orders").await.unwrap(), ["orders/full/y/snapshot"]);
    store.clear_abandoned("orders/full/y").await.unwrap();
    assert!(store.unfinished("orders").await.unwrap().is_empty());
    assert!(store.get("orders/full/y/snapshot.upload").await.unwrap_err().is_not_found());
    assert!(weed.uploads().await.is_empty(), "{:?}", weed.uploads().await);
}

#[tokio::test]
async fn errors_of_a_real_server_are_distinguished() {
    let weed = start().await;
    let trouble = async |key: &str, secret: &str, bucket: &str| {
        let store = Store::open(&s3(weed.port, key, secret, bucket), None, hasty()).unwrap();
        store.check(CLUSTER).await.unwrap_err().trouble
    };
    assert!(matches!(trouble("AK", "wrong", BUCKET).await, Trouble::WrongCredentials(_)));
    assert!(matches!(trouble("nobody", "SK", BUCKET).await, Trouble::WrongCredentials(_)));
    // This server makes a bucket for an administrator who writes to it, so it is only read.
    let missing = Store::open(&s3(weed.port, "AK", "SK", "missing"), None, hasty()).unwrap();
    let trouble_of_missing = missing.get("x").await.unwrap_err().trouble;
    assert!(matches!(trouble_of_missing, Trouble::NoBucket(_)), "{trouble_of_missing:?}");
    assert!(matches!(trouble("RK", "SK", BUCKET).await, Trouble::Denied(_)));
    weed.store().check(CLUSTER).await.unwrap();
    assert_eq!(weed.store().list(CLUSTER).await.unwrap(), [], "the check leaves nothing");
}

/// A server that answers every request by the same rule; it is told the request's number and its first line.
fn bad_server(answer: impl Fn(usize, &str) -> Option<String> + Send + Sync + 'static) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (count, answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(answer));
    let counted = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, counted, answer) = (stream.unwrap(), counted.clone(), answer.clone());
            std::thread::spawn(move || {
                let mut request = [0; 16384];
                let read = stream.read(&mut request).unwrap_or_default();
                let text = String::from_utf8_lossy(&request[..read]).into_owned();
                let number = counted.fetch_add(1, Ordering::Relaxed);
                if let Some(answer) = answer(number, text.lines().next().unwrap_or_default()) {
                    let _ = stream.write_all(answer.as_bytes());
                }
            });
        }
    });
    (port, count)
}

fn answer(status: &str, body: &str) -> Option<String> {
    let headers = format!("ETag: \"x\"\r\nConnection: close\r\nContent-Length: {}", body.len());
    Some(format!("HTTP/1.1 {status}\r\n{headers}\r\n\r\n{body}"))
}

fn code(status: &str, code: &str) -> Option<String> {
    answer(status, &format!("<Error><Code>{code}</Code><Message>no</Message></Error>"))
}

async fn trouble_of(rule: impl Fn(usize, &str) -> Option<String> + Send + Sync + 'static) -> (Trouble, usize) {
    let (port, count) = bad_server(rule);
    let store = Store::open(&s3(port, "AK", "SK", BUCKET), None, hasty()).unwrap();
    let error = store.put_new("orders/x", Bytes::from_static(b"x")).await.unwrap_err();
    (error.trouble, count.load(Ordering::Relaxed))
}

#[tokio::test]
async fn every_store_error_is_distinguished() {
    let (trouble, _) = trouble_of(|_, _| code("403 Forbidden", "RequestTimeTooSkewed")).await;
    assert!(matches!(trouble, Trouble::ClockSkew(_)), "{trouble:?}");
    let (trouble, tries) = trouble_of(|_, _| code("503 Service Unavailable", "SlowDown")).await;
    assert!(matches!(trouble, Trouble::Unavailable(_)) && tries == 3, "{trouble:?} after {tries}");
    let (trouble, tries) = trouble_of(|_, _| answer("500 Internal Server Error", "")).await;
    assert!(matches!(trouble, Trouble::Unavailable(_)) && tries == 3, "{trouble:?} after {tries}");
    let (trouble, _) = trouble_of(|_, _| code("507 Insufficient Storage", "XMinioStorageFull")).await;
    assert!(matches!(trouble, Trouble::NoSpace(_)), "{trouble:?}");
    let (trouble, _) = trouble_of(|_, _| answer("301 Moved Permanently", "")).await;
    assert!(matches!(trouble, Trouble::OtherRegion(_)), "{trouble:?}");
    let (trouble, tries) = trouble_of(|_, _| None).await;
    assert!(matches!(trouble, Trouble::Cut(_)) && tries > 1, "{trouble:?} after {tries}");
    let slow = |_: usize, _: &str| {
        std::thread::sleep(Duration::from_secs(2));
        None
    };
    let (trouble, tries) = trouble_of(slow).await;
    assert!(matches!(trouble, Trouble::Timeout(_)) && tries > 1, "{trouble:?} after {tries}");
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let store = Store::open(&s3(nobody, "AK", "SK", BUCKET), None, hasty()).unwrap();
    let trouble = store.list(CLUSTER).await.unwrap_err().trouble;
    assert!(matches!(trouble, Trouble::Unreachable(_)), "{trouble:?}");
}

#[tokio::test]
async fn trouble_that_passes_is_not_seen() {
    let (port, count) = bad_server(|number, _| match number {
        0 => code("503 Service Unavailable", "SlowDown"),
        1 => None,
        _ => answer("200 OK", ""),
    });
    let store = Store::open(&s3(port, "AK", "SK", BUCKET), None, hasty()).unwrap();
    store.put_new("orders/x", Bytes::from_static(b"x")).await.unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_store_that_ignores_conditions_is_refused() {
    let (port, _) = bad_server(|_, _| answer("200 OK", ""));
    let store = Store::open(&s3(port, "AK", "SK", BUCKET), None, hasty()).unwrap();
    let error = store.check(CLUSTER).await.unwrap_err();
    assert_eq!(error.trouble, Trouble::NoConditionalPut);
    assert!(error.to_string().contains("ignores conditional writes"), "{error}");
}

#[tokio::test]
async fn an_answer_that_got_lost_is_no_second_object() {
    // The first put is carried out, and its answer lost; the second is refused, and what is there is what was put.
    let (port, _) = bad_server(|number, line| match (number, line.starts_with("GET")) {
        (0, _) => None,
        (_, false) => code("412 Precondition Failed", "PreconditionFailed"),
        (_, true) => answer("200 OK", "ours"),
    });
    let store = Store::open(&s3(port, "AK", "SK", BUCKET), None, hasty()).unwrap();
    store.put_new("orders/x", Bytes::from_static(b"ours")).await.unwrap();
    let error = store.put_new("orders/x", Bytes::from_static(b"theirs")).await.unwrap_err();
    assert_eq!(error.trouble, Trouble::AlreadyExists);
}
