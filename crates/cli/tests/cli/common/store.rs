//! A real S3 server, SeaweedFS, with separate keys, on free ports. One serves a whole test binary; it ends, and its data is
//! deleted, with the process that started it, even if that is killed. Its filer is a second way to its data, without S3 and its
//! signatures: tests use it to damage backups. It also serves TLS, with a certificate of a private CA.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quorate_pki::{Authority, AuthoritySubject, KeyAlgorithm, KeyPair, LeafWish};
use serde_json::{Value, json};

use super::{eventually, lab_directory};

pub const BUCKET: &str = "backups";
pub const REGION: &str = "eu-1";
pub const ACCESS_KEY: &str = "quorate-test";
pub const SECRET_KEY: &str = "a secret key that no message may show";

/// What listens, each at two ports: one for HTTP and one for gRPC.
const PARTS: [&str; 4] = ["master", "volume", "filer", "s3"];

/// Ends it and removes what it kept when nobody holds the other end of its input any more.
const TETHER: &str = r#"directory=$1; shift; "$@" </dev/null & read -r _; kill -KILL $!; wait; rm -rf "$directory""#;

pub struct ObjectStore {
    filer: u16,
    s3: u16,
    s3_tls: u16,
    ca: String,
    _tether: ChildStdin,
}

/// The one of this test binary, with an empty bucket or what other tests have put there.
pub fn object_store() -> &'static ObjectStore {
    static STORE: OnceLock<ObjectStore> = OnceLock::new();
    STORE.get_or_init(ObjectStore::start)
}

impl ObjectStore {
    fn start() -> Self {
        let weed = lab_directory().join("seaweedfs/weed");
        assert!(weed.exists(), "SeaweedFS is missing here: run `cargo xtask weed`");
        let directory = tempfile::Builder::new().prefix("weed-").tempdir().expect("a temporary directory").keep();
        let ports = free_ports();
        let ca = make_certificate(&directory);
        let tether = spawn(&weed, &directory, &ports);
        let store = ObjectStore { filer: ports[4], s3: ports[6], s3_tls: ports[8], ca, _tether: tether };
        // An open port is not enough: it answers there before it can keep anything. The first object makes the bucket.
        eventually("weed takes something", 60, || {
            store.filer("PUT", "probe", b"x").is_ok_and(|(status, _)| status == 201)
                && ask(store.s3, "GET", &format!("/{BUCKET}/probe"), b"").is_ok_and(|(status, _)| status == 403)
        });
        store.remove("probe");
        store
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.s3)
    }

    /// Where it answers over TLS.
    pub fn tls_port(&self) -> u16 {
        self.s3_tls
    }

    /// By name: pgBackRest looks for no addresses in certificates.
    pub fn tls_endpoint(&self) -> String {
        format!("https://localhost:{}", self.s3_tls)
    }

    /// The CA that signed the certificate of that, in PEM.
    pub fn ca(&self) -> &str {
        &self.ca
    }

    /// The bytes of an object.
    #[track_caller]
    pub fn get(&self, path: &str) -> Vec<u8> {
        let (status, body) = self.filer("GET", path, b"").expect(path);
        assert_eq!(status, 200, "GET {path}");
        body
    }

    #[track_caller]
    pub fn put(&self, path: &str, bytes: &[u8]) {
        let (status, answer) = self.filer("PUT", path, bytes).expect(path);
        assert!(matches!(status, 200 | 201), "PUT {path}: {status} {}", String::from_utf8_lossy(&answer));
    }

    #[track_caller]
    pub fn remove(&self, path: &str) {
        let (status, _) = self.filer("DELETE", path, b"").expect(path);
        assert_eq!(status, 204, "DELETE {path}");
    }

    /// The names right below this one, in order. None where there is no such directory.
    #[track_caller]
    pub fn names(&self, directory: &str) -> Vec<String> {
        let (status, body) = self.filer("GET", &format!("{directory}/?limit=10000"), b"").expect(directory);
        if status == 404 {
            return Vec::new();
        }
        let listed: Value = serde_json::from_slice(&body).expect("a listing");
        let entries = listed["Entries"].as_array().into_iter().flatten();
        let paths = entries.map(|entry| entry["FullPath"].as_str().expect("a path").to_owned());
        paths.map(|path| path.rsplit('/').next().expect("a name").to_owned()).collect()
    }

    fn filer(&self, method: &str, path: &str, body: &[u8]) -> std::io::Result<(u16, Vec<u8>)> {
        ask(self.filer, method, &format!("/buckets/{BUCKET}/{path}"), body)
    }
}

fn spawn(weed: &Path, directory: &Path, ports: &[u16]) -> ChildStdin {
    let identities = directory.join("identities.json");
    fs::write(&identities, identities_json().to_string()).expect("a file for weed");
    let log = fs::File::create(directory.join("weed.log")).expect("a log for weed");
    let at = |name: &str, path: PathBuf| format!("{name}={}", path.display());
    let mut command = Command::new("sh");
    command.args(["-c", TETHER, "sh"]).arg(directory).arg(weed).arg("server");
    let names = PARTS.iter().flat_map(|part| [format!("-{part}.port"), format!("-{part}.port.grpc")]);
    let names = names.chain([String::from("-s3.port.https")]);
    command.args(names.zip(ports).map(|(name, port)| format!("{name}={port}")));
    command.arg(at("-s3.cert.file", directory.join("tls.crt"))).arg(at("-s3.key.file", directory.join("tls.key")));
    command.args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", "-volume.max=0"]);
    command.args(["-master.volumeSizeLimitMB=64", "-master.telemetry=false"]);
    command.args(["-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false"]);
    command.arg(at("-dir", directory.to_owned())).arg(at("-s3.config", identities));
    command.arg(at("-filer.localSocket", directory.join("filer.sock")));
    command.arg(at("-s3.localSocket", directory.join("s3.sock")));
    // It reads settings of its user, if there are any; here it finds none.
    command.env("HOME", directory).current_dir(directory);
    let output = log.try_clone().expect("a log for weed");
    command.stdin(Stdio::piped()).stdout(output).stderr(log);
    command.spawn().expect("a shell").stdin.take().expect("it is piped")
}

/// Writes the certificate and the key of the store, and gives the CA.
fn make_certificate(directory: &Path) -> String {
    let (day, now) = (SignedDuration::from_hours(24), Timestamp::now());
    let subject = AuthoritySubject { common_name: String::from("store"), organization: None };
    let authority = Authority::generate(&subject, KeyAlgorithm::P256, day, now).expect("a CA");
    let key = KeyPair::generate(KeyAlgorithm::P256).expect("a key");
    let wish = LeafWish {
        common_name: String::from("store"),
        organization: None,
        dns: vec![String::from("localhost")],
        addresses: Vec::new(),
        server: true,
        client: false,
        validity: day,
    };
    let certificate = authority.sign(&key.csr("store").expect("a request"), &wish, now).expect("a certificate");
    fs::write(directory.join("tls.crt"), certificate).expect("a file for weed");
    fs::write(directory.join("tls.key"), key.to_pem().expose()).expect("a file for weed");
    authority.certificate_pem().to_owned()
}

fn identities_json() -> Value {
    json!({ "identities": [{
        "name": "tests",
        "credentials": [{ "accessKey": ACCESS_KEY, "secretKey": SECRET_KEY }],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }] })
}

/// Below those that the system gives to connections: between here and weed's start, one of a test next to this one could get such a port.
/// Processes begin to look at different places.
fn free_ports() -> Vec<u16> {
    let first = std::process::id() % 2000 * 10;
    let candidates = (0..20_000).map(|offset| 12_000 + ((first + offset) % 20_000) as u16);
    let free = candidates.filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
    free.take(PARTS.len() * 2 + 1).collect()
}

/// One plain HTTP request: status and body.
fn ask(port: u16, method: &str, path: &str, body: &[u8]) -> std::io::Result<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let headers = format!("Accept: application/json\r\nContent-Length: {}\r\n", body.len());
    stream.write_all(format!("{method} {path} HTTP/1.0\r\n{headers}\r\n").as_bytes())?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or(std::io::ErrorKind::InvalidData)?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or(std::io::ErrorKind::InvalidData)?, answer.split_off(end + 4)))
}
