//! Starts etcd processes for the tests: each on a separate loopback address, with a temporary directory and TLS, stopped in `Drop`.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use quorate_etcd::{Client, ConnectOptions, Error, Login};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use tempfile::TempDir;

const REQUIRED: [&str; 2] = ["3.4.23", "3.5.30"];
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct Version {
    name: String,
    directory: PathBuf,
}

impl Version {
    /// One of the versions that must be there.
    pub fn named(name: &str) -> Self {
        let found = versions().into_iter().find(|version| version.name == name);
        found.unwrap_or_else(|| panic!("etcd {name} is missing: run `cargo xtask etcd`"))
    }

    /// The newest that is there.
    pub fn newest() -> Self {
        versions().pop().expect("a version")
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn at_least(&self, minor: u32) -> bool {
        let mut parts = self.name.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (3, minor)
    }
}

/// Runs the test on each version, and says which one it failed on.
pub fn on_every_version(test: impl AsyncFn(&Version)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for version in versions() {
        eprintln!("etcd {}", version.name);
        runtime.block_on(test(&version));
    }
}

fn versions() -> Vec<Version> {
    let cache =
        || std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(std::env::home_dir()?.join(".cache")));
    let lab = std::env::var_os("QUORATE_LAB").map(PathBuf::from).or_else(|| Some(cache()?.join("quorate-lab")));
    let directory = lab.expect("a home directory").join("etcd");
    for version in REQUIRED {
        let binary = directory.join(version).join("etcd");
        assert!(binary.exists(), "{} is missing: run `cargo xtask etcd`", binary.display());
    }
    let entries = fs::read_dir(&directory).expect("the lab can be read").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<_> = entries
        .filter(|path| path.join("etcd").exists())
        .filter_map(|directory| Some(Version { name: directory.file_name()?.to_str()?.to_owned(), directory }))
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// An address in 127.200.0.0/16 on which nothing listens at etcd's ports.
pub fn free_address() -> Ipv4Addr {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    for _ in 0..200 {
        let number = std::process::id().wrapping_mul(97).wrapping_add(COUNTER.fetch_add(1, Ordering::Relaxed));
        // No two numbers that follow each other are the same address: it is free until somebody listens there.
        let (net, host) = (number / 254 % 256, number % 254 + 1);
        let address = Ipv4Addr::new(127, 200, net as u8, host as u8);
        if [2379, 2380, 2381].iter().all(|port| TcpListener::bind((address, *port)).is_ok()) {
            return address;
        }
    }
    panic!("no free address in 127.200.0.0/16");
}

/// A certificate authority that lives as long as the test.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, "test CA");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a CA");
        Self { issuer }
    }

    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A client's certificate and key.
    pub fn client(&self, user: &str) -> (String, String) {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, user);
        self.sign(params, vec![ExtendedKeyUsagePurpose::ClientAuth])
    }

    fn server(&self, address: Ipv4Addr) -> (String, String) {
        let mut params = CertificateParams::new([address.to_string()]).expect("a SAN");
        params.distinguished_name = rcgen::DistinguishedName::new();
        self.sign(params, vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth])
    }

    fn sign(&self, mut params: CertificateParams, usages: Vec<ExtendedKeyUsagePurpose>) -> (String, String) {
        params.extended_key_usages = usages;
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }
}

/// What differs between the etcds of the tests.
pub struct Setup {
    pub client_cert_auth: bool,
    pub flags: Vec<String>,
}

impl Setup {
    /// Clients need a certificate.
    pub fn certificate() -> Self {
        Self { client_cert_auth: true, flags: Vec::new() }
    }

    /// Clients need none, and log in by password once authentication is on.
    pub fn password() -> Self {
        Self { client_cert_auth: false, flags: Vec::new() }
    }

    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }
}

/// One etcd process and its directory.
pub struct Etcd {
    pub address: Ipv4Addr,
    /// An address that the process serves too, and that its certificate does not name.
    pub unnamed_address: Ipv4Addr,
    pub name: String,
    pub ca_pem: String,
    command: Vec<String>,
    directory: TempDir,
    process: Option<Child>,
}

impl Etcd {
    /// A cluster of one.
    pub fn start(version: &Version, authority: &Authority, setup: Setup) -> Self {
        let mut etcd = Self::prepare(version, authority, "m1", &setup);
        let peer = etcd.peer_url();
        etcd.spawn(&[format!("--initial-cluster=m1={peer}")]);
        etcd
    }

    pub fn prepare(version: &Version, authority: &Authority, name: &str, setup: &Setup) -> Self {
        let directory = TempDir::new().expect("a directory");
        let (address, unnamed_address) = (free_address(), free_address());
        let (certificate, key) = authority.server(address);
        let file = |name: &str, content: &str| write(directory.path(), name, content);
        let mut command = vec![
            version.directory.join("etcd").display().to_string(),
            format!("--name={name}"),
            format!("--data-dir={}", directory.path().join("data").display()),
            format!("--listen-client-urls=https://{address}:2379,https://{unnamed_address}:2379"),
            format!("--advertise-client-urls=https://{address}:2379"),
            format!("--listen-peer-urls=http://{address}:2380"),
            format!("--initial-advertise-peer-urls=http://{address}:2380"),
            format!("--listen-metrics-urls=http://{address}:2381"),
            format!("--cert-file={}", file("server.pem", &certificate)),
            format!("--key-file={}", file("server.key", &key)),
            "--logger=zap".to_owned(),
        ];
        if setup.client_cert_auth {
            // A CA alone already makes etcd demand certificates; that their name is a login, only the other flag says.
            command.push(format!("--trusted-ca-file={}", file("ca.pem", &authority.pem())));
            command.push("--client-cert-auth".to_owned());
        }
        command.extend(setup.flags.iter().cloned());
        let name = name.to_owned();
        Self { address, unnamed_address, name, ca_pem: authority.pem(), command, directory, process: None }
    }

    pub fn peer_url(&self) -> String {
        format!("http://{}:2380", self.address)
    }

    /// The flags given stay for later starts.
    pub fn spawn(&mut self, flags: &[String]) {
        self.command.extend(flags.iter().cloned());
        let log = File::options().append(true).create(true).open(self.directory.path().join("log")).expect("a log");
        let child = Command::new(&self.command[0])
            .args(&self.command[1..])
            .env_clear()
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("etcd starts");
        self.process = Some(child);
    }

    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    pub fn restart(&mut self) {
        self.kill();
        self.spawn(&[]);
    }

    pub fn options(&self) -> ConnectOptions {
        ConnectOptions::new(format!("https://{}:2379", self.address), self.ca_pem.clone())
    }

    /// A client with a certificate.
    pub fn client_as(&self, identity: (String, String)) -> Client {
        Client::connect(ConnectOptions { identity: Some(identity), ..self.options() }).expect("good options")
    }

    /// A client with a password.
    pub fn client_with(&self, user: &str, password: &str) -> Client {
        let login = Login { user: user.to_owned(), password: password.to_owned() };
        Client::connect(ConnectOptions { login: Some(login), ..self.options() }).expect("good options")
    }

    /// Returns when a quorum answers the client.
    pub async fn ready(&self, client: &Client) {
        self.eventually(async || client.linearizable_read_ok().await).await;
    }

    /// Repeats the attempt until it succeeds.
    pub async fn eventually<R>(&self, attempt: impl AsyncFn() -> Result<R, Error>) -> R {
        let start = Instant::now();
        loop {
            match attempt().await {
                Ok(answer) => return answer,
                Err(error) if start.elapsed() > PATIENCE => panic!("{error:?}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// How many calls of this gRPC method the process has answered since its start, whatever the answer.
    pub fn calls_answered(&self, method: &str) -> u64 {
        let mut stream = TcpStream::connect((self.address, 2381)).expect("etcd serves metrics");
        write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").expect("a request");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let ours = |line: &&str| {
            line.starts_with("grpc_server_handled_total") && line.contains(&format!("grpc_method=\"{method}\""))
        };
        text.lines().filter(ours).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the end of the log of {}:\n{}", self.name, last_lines(&self.log(), 15));
        }
        self.kill();
    }
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

fn write(directory: &Path, name: &str, content: &str) -> String {
    let path = directory.join(name);
    fs::write(&path, content).expect("a file");
    path.display().to_string()
}

/// User root with role root, then authentication on.
pub async fn enable_auth(root: &Client, password: Option<&str>) {
    root.user_add("root", password).await.expect("user root");
    root.role_add("root").await.expect("role root");
    root.user_grant_role("root", "root").await.expect("root is root");
    root.auth_enable().await.expect("authentication on");
}
