//! `quorate discovery serve` with real etcd members of every version, started without quorate.

mod in_cluster;
mod requests;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::{OLDEST, Run, Sandbox, address, eventually, lab, newest_of};

const PORT: u16 = 8087;

/// A service in a sandbox. Everything that runs there ends with it.
pub struct Service {
    sandbox: Sandbox,
    child: Child,
    /// The last number of its address.
    number: u8,
    flags: Vec<String>,
}

impl Service {
    /// With TLS.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Without TLS, for tests that send their own bytes.
    fn plain(flags: &[&str]) -> Self {
        Self::with(&[&["--insecure-http"], flags].concat())
    }

    fn with(flags: &[&str]) -> Self {
        let (sandbox, flags) = (Sandbox::new(OLDEST), flags.iter().map(|flag| flag.to_string()).collect::<Vec<_>>());
        let child = spawn(&sandbox, 1, &flags);
        Service { sandbox, child, number: 1, flags }
    }

    fn address(&self) -> String {
        format!("{}:{PORT}", address(self.number))
    }

    fn url(&self) -> String {
        let scheme = if self.flags.iter().any(|flag| flag == "--insecure-http") { "http" } else { "https" };
        format!("{scheme}://{}", self.address())
    }

    fn ca(&self) -> PathBuf {
        self.sandbox.home().join("discovery/tls/ca.crt")
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn restart(&mut self) {
        self.kill();
        self.child = spawn(&self.sandbox, self.number, &self.flags);
    }

    fn curl(&self, url: &str) -> Run {
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "20", "--cacert"]).arg(self.ca()).arg(url);
        command.output().expect("curl runs").into()
    }

    /// A discovery URL for a cluster of this size.
    pub fn token(&self, size: usize) -> String {
        let url = self.curl(&format!("{}/new?size={size}", self.url())).ok().stdout;
        assert!(url.starts_with(&format!("{}/", self.url())) && url.len() == self.url().len() + 33, "{url}");
        url
    }

    pub fn registry(&self, url: &str) -> Value {
        self.curl(url).ok().json()
    }

    fn registered(&self, url: &str) -> usize {
        self.registry(url)["node"]["nodes"].as_array().map_or(0, Vec::len)
    }

    /// Starts a member that finds the others by these flags.
    fn member(&self, version: &str, number: u8, flags: &[&str]) -> Member {
        let (name, at) = (format!("m{number}"), address(100 + number));
        let [client, peer] = [2379, 2380].map(|port| format!("http://{at}:{port}"));
        let log = self.sandbox.path().join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log).expect("a log");
        let mut command = Command::new(lab(version).join("etcd"));
        command
            .args(["--name", &name, "--data-dir", &name])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(flags)
            .env("QUORATE_HOME", self.sandbox.home())
            .env("SSL_CERT_FILE", self.ca())
            .current_dir(self.sandbox.path())
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a handle"))
            .stderr(output);
        Member { child: command.spawn().expect("etcd starts"), client, log }
    }

    /// With `--discovery`.
    pub fn member_v2(&self, version: &str, number: u8, url: &str) -> Member {
        self.member(version, number, &["--discovery", url, "--discovery-fallback", "exit"])
    }

    /// With `--discovery-token`, which may be a whole URL.
    fn member_v3(&self, version: &str, number: u8, token: &str) -> Member {
        let (endpoint, ca) = (self.address(), self.ca());
        let ca = ca.to_str().expect("text");
        let flags = ["--discovery-token", token, "--discovery-endpoints", &endpoint, "--discovery-cacert", ca];
        self.member(version, number, &flags)
    }
}

/// The next test may get the same address, and must not find this one there.
impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(sandbox: &Sandbox, number: u8, flags: &[String]) -> Child {
    let listen = format!("{}:{PORT}", address(number));
    let log = File::options().create(true).append(true).open(sandbox.path().join("serve.log")).expect("a log");
    let mut command = sandbox.command(&["discovery", "serve", "--listen", &listen]);
    let mut child = command.args(flags).stdout(Stdio::null()).stderr(log).spawn().expect("quorate starts");
    eventually("the service listens", 30, || {
        assert!(child.try_wait().expect("a child").is_none(), "the service has ended");
        TcpStream::connect(&listen).is_ok()
    });
    child
}

pub struct Member {
    child: Child,
    client: String,
    log: PathBuf,
}

impl Member {
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn is_healthy(&self) -> bool {
        let url = format!("{}/health", self.client);
        let answer = Command::new("curl").args(["-s", "--max-time", "5", &url]).output().expect("curl runs");
        String::from_utf8_lossy(&answer.stdout).contains(r#""health":"true""#)
    }

    /// Waits until it has ended, and returns its log.
    #[track_caller]
    fn ended(&mut self) -> String {
        eventually("the member ends", 60, || self.child.try_wait().expect("a child").is_some());
        assert!(!self.child.wait().expect("a child").success(), "{}", self.log());
        self.log()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

#[track_caller]
pub fn all_healthy(members: &[Member]) {
    for member in members {
        let name = member.log.display();
        eventually(&format!("{name}: healthy"), 60, || member.is_healthy());
    }
}

pub fn version(minor: &str) -> String {
    newest_of(minor).unwrap_or_else(|| panic!("etcd {minor} is missing here: run `cargo xtask etcd`"))
}

/// The token at the end of a discovery URL.
pub fn token(url: &str) -> &str {
    url.rsplit('/').next().expect("it has one")
}

/// Sends bytes and reads until the service closes the connection.
fn raw(to: &str, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
    // Who is refused early may find the connection closed.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn send(service: &Service, method: &str, path: &str, body: &str) -> (u16, String) {
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    let answer = raw(&service.address(), format!("{head}{body}").as_bytes());
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status.unwrap_or_else(|| panic!("{method} {path}: {answer}")), body.to_owned())
}

/// The path of a new token.
fn new_path(service: &Service, size: usize) -> String {
    let (status, url) = send(service, "GET", &format!("/new?size={size}"), "");
    assert_eq!(status, 200, "{url}");
    url.strip_prefix(&service.url()).expect("its own URL").to_owned()
}

fn register(service: &Service, path: &str, number: usize) -> (u16, String) {
    let value = format!("value=m{number}%3Dhttp%3A%2F%2F10.0.0.1%3A{}", 1000 + number);
    send(service, "PUT", &format!("{path}/{number:x}?prevExist=false"), &value)
}

#[test]
fn members_of_each_version_form_clusters_by_version_2_and_a_surplus_member_is_told() {
    let service = Service::start();
    for (at, version) in [OLDEST.to_owned(), version("3.5"), version("3.6")].iter().enumerate() {
        let (url, first) = (service.token(2), 10 * at as u8);
        let members = [1, 2].map(|number| service.member_v2(version, first + number, &url));
        all_healthy(&members);
        let log = service.member_v2(version, first + 3, &url).ended();
        assert!(log.contains("cluster is full"), "{version}: {log}");
        assert_eq!(service.registered(&url), 2);
    }
}

#[test]
fn members_of_each_version_form_clusters_by_version_3_and_a_surplus_member_is_told() {
    let service = Service::start();
    for (at, version) in [version("3.6"), version("3.7")].iter().enumerate() {
        let (url, first) = (service.token(2), 10 * at as u8);
        let members = [1, 2].map(|number| service.member_v3(version, first + number, token(&url)));
        all_healthy(&members);
        let log = service.member_v3(version, first + 3, token(&url)).ended();
        assert!(log.contains("cluster is full"), "{version}: {log}");
        assert_eq!(service.registered(&url), 2);
    }
}

#[test]
fn members_of_both_protocols_form_one_cluster_if_the_token_is_the_whole_url() {
    let service = Service::start();
    let url = service.token(3);
    let members = [
        service.member_v2(&version("3.6"), 1, &url),
        service.member_v3(&version("3.6"), 2, &url),
        service.member_v3(&version("3.7"), 3, &url),
    ];
    all_healthy(&members);
    let log = service.member_v2(&version("3.6"), 4, &url).ended();
    assert!(log.contains("cluster is full"), "{log}");
}

#[test]
fn a_service_that_is_killed_in_the_middle_continues_with_those_who_registered_before() {
    let mut service = Service::start();
    let (old, new) = (service.token(2), service.token(2));
    let (v2, v3) = (version("3.5"), version("3.7"));
    let waiting = [service.member_v2(&v2, 1, &old), service.member_v3(&v3, 11, token(&new))];
    eventually("both have registered", 60, || service.registered(&old) + service.registered(&new) == 2);
    service.restart();
    assert_eq!(service.registered(&old) + service.registered(&new), 2);
    let later = [service.member_v2(&v2, 2, &old), service.member_v3(&v3, 12, token(&new))];
    all_healthy(&waiting);
    all_healthy(&later);
}

#[test]
fn a_wiped_member_registers_again_and_one_with_another_name_is_refused() {
    let service = Service::start();
    let (old, new) = (service.token(2), service.token(2));
    let (v2, v3) = (version("3.5"), version("3.7"));
    for _ in 0..2 {
        let mut members = [service.member_v2(&v2, 1, &old), service.member_v3(&v3, 11, token(&new))];
        eventually("both have registered", 60, || {
            members.iter_mut().all(|member| member.child.try_wait().expect("a child").is_none())
                && service.registered(&old) + service.registered(&new) == 2
        });
        members.iter_mut().for_each(Member::kill);
        for name in ["m1", "m11"] {
            let _ = fs::remove_dir_all(service.sandbox.path().join(name));
        }
    }
    let log = service.member(&v2, 1, &["--discovery", &old, "--discovery-fallback", "exit", "--name", "other"]).ended();
    assert!(log.contains("duplicate id"), "{log}");
    let members = [
        service.member_v2(&v2, 1, &old),
        service.member_v2(&v2, 2, &old),
        service.member_v3(&v3, 11, token(&new)),
        service.member_v3(&v3, 12, token(&new)),
    ];
    all_healthy(&members);
}

#[test]
fn an_expired_token_is_unknown_and_members_say_so() {
    let service = Service::with(&["--token-lifetime", "2s"]);
    let url = service.token(3);
    assert_eq!(service.registered(&url), 0);
    eventually("the token has expired", 30, || service.curl(&url).stdout.contains(r#""errorCode":100"#));
    assert!(service.curl(&url).stdout.contains("/new?size=N"), "what to do");
    let log = service.member_v2(&version("3.5"), 1, &url).ended();
    assert!(log.contains("Key not found"), "{log}");
    let log = service.member_v3(&version("3.7"), 2, token(&url)).ended();
    assert!(log.contains("size key not found"), "{log}");
}

// What follows speaks HTTP by itself.
