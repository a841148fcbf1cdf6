//! `quorate discovery serve` with real etcd members of every version, started as somebody without quorate would start them.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::{OLDEST, Run, Sandbox, address, eventually, lab, newest, newest_of, signal, spec};

const PORT: u16 = 8087;

/// A service in a sandbox. Everything that runs there ends with it.
struct Service {
    sandbox: Sandbox,
    child: Child,
    /// The last number of its address.
    number: u8,
    flags: Vec<String>,
}

impl Service {
    /// With TLS.
    fn start() -> Self {
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
    fn token(&self, size: usize) -> String {
        let url = self.curl(&format!("{}/new?size={size}", self.url())).ok().stdout;
        assert!(url.starts_with(&format!("{}/", self.url())) && url.len() == self.url().len() + 33, "{url}");
        url
    }

    fn registry(&self, url: &str) -> Value {
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
    fn member_v2(&self, version: &str, number: u8, url: &str) -> Member {
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

struct Member {
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
fn all_healthy(members: &[Member]) {
    for member in members {
        let name = member.log.display();
        eventually(&format!("{name}: healthy"), 60, || member.is_healthy());
    }
}

fn version(minor: &str) -> String {
    newest_of(minor).unwrap_or_else(|| panic!("etcd {minor} is missing here: run `cargo xtask etcd`"))
}

/// The token at the end of a discovery URL.
fn token(url: &str) -> &str {
    url.rsplit('/').next().expect("it has one")
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
fn the_registry_answers_as_discovery_etcd_io_does() {
    let service = Service::plain(&[]);
    let path = new_path(&service, 3);
    let (status, text) = register(&service, &path, 1);
    let first: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(status, 201);
    assert_eq!(first["action"], "create");
    let key = format!("/_etcd/registry{path}/1");
    assert_eq!((&first["node"]["key"], &first["node"]["value"]), (&key.into(), &"m1=http://10.0.0.1:1001".into()));
    assert_eq!(register(&service, &path, 1), (201, text), "the same again");
    let (status, other) = send(&service, "PUT", &format!("{path}/1"), "value=m1%3Dhttp%3A%2F%2F10.0.0.2%3A1");
    assert_eq!(status, 412, "{other}");
    let other: Value = serde_json::from_str(&other).expect("JSON");
    assert_eq!((&other["errorCode"], &other["index"]), (&105.into(), &first["node"]["createdIndex"]));
    assert!(other["cause"].as_str().is_some_and(|cause| cause.contains("another value")), "{other}");
    let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let whole = raw(&service.address(), head.as_bytes());
    let index = format!("x-etcd-index: {}\r\n", first["node"]["createdIndex"]);
    assert!(whole.to_lowercase().contains(&index), "{whole}");
    let (_, size) = send(&service, "GET", &format!("{path}/_config/size"), "");
    assert!(size.contains(r#""value":"3""#), "{size}");
    // A wait for what is there answers at once.
    let (_, waited) = send(&service, "GET", &format!("{path}?wait=true&recursive=true&waitIndex=1"), "");
    assert!(waited.contains(r#""action":"create""#), "{waited}");
}

#[test]
fn what_is_too_large_or_not_understood_is_refused_and_changes_nothing() {
    let service = Service::plain(&[]);
    let path = new_path(&service, 1);
    let put = |body: &str| send(&service, "PUT", &format!("{path}/a"), body).0;
    assert_eq!(put(&format!("value={}", "x".repeat(100_000))), 413);
    assert_eq!(put(&format!("value=m%3Dhttp://{}:1", "h".repeat(2000))), 400);
    assert_eq!(put("value=no-url"), 400);
    assert_eq!(put(""), 400);
    let chunked = format!("PUT {path}/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n");
    let endless = [chunked.as_bytes(), &vec![b'v'; 100_000]].concat();
    assert!(raw(&service.address(), &endless).starts_with("HTTP/1.1 413"));
    let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(100_000));
    let answer = raw(&service.address(), long.as_bytes());
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    for size in ["0", "32", "-1", "18446744073709551617", "x"] {
        assert_eq!(send(&service, "GET", &format!("/new?size={size}"), "").0, 400, "{size}");
    }
    for odd in ["/../../etc/passwd", "/%2e%2e/x", "//", &format!("{path}/../x"), &format!("{path}/%2e%2e")] {
        assert_eq!(send(&service, "GET", odd, "").0, 404, "{odd}");
        assert!(matches!(send(&service, "PUT", odd, "value=m%3Dhttp%3A%2F%2Fh%3A1").0, 404 | 405), "{odd}");
    }
    assert_eq!(send(&service, "DELETE", &format!("{path}/a"), "").0, 405);
    // One place and eight to spare; the rest is told that the cluster is full.
    let statuses: Vec<u16> = (1..=12).map(|number| register(&service, &path, number).0).collect();
    assert_eq!(statuses, [vec![201; 9], vec![403; 3]].concat());
    let tokens = service.sandbox.home().join("discovery/tokens");
    assert_eq!(fs::read_dir(&tokens).expect("tokens").count(), 1);
    // Nor does a token get into the log, whatever fails.
    fs::rename(&tokens, tokens.with_extension("aside")).expect("a directory");
    fs::write(&tokens, "").expect("no directory");
    let (status, answer) = send(&service, "GET", "/new", "");
    assert_eq!(status, 500, "{answer}");
    let log = fs::read_to_string(service.sandbox.path().join("serve.log")).expect("a log");
    assert!(log.contains("could not be written") && log.contains("the cluster is full"), "{log}");
    let is_token = |word: &str| word.len() == 32;
    let words: Vec<&str> = log.split(|c: char| !c.is_ascii_hexdigit()).filter(|word| is_token(word)).collect();
    assert!(words.is_empty(), "{log}");
}

#[test]
fn many_clients_wait_and_all_hear_of_a_registration() {
    const MANY: usize = 1000;
    let service = Service::plain(&["--requests-per-second", "10000"]);
    let path = new_path(&service, 3);
    let wait =
        format!("GET {path}?recursive=true&wait=true&waitIndex=2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let mut waiting: Vec<TcpStream> = (0..MANY)
        .map(|_| {
            let mut stream = TcpStream::connect(service.address()).expect("a connection");
            stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
            stream.write_all(wait.as_bytes()).expect("a request");
            stream
        })
        .collect();
    assert_eq!(register(&service, &path, 1).0, 201);
    for stream in &mut waiting {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("m1=http://10.0.0.1:1001"), "{answer}");
    }
    let status = fs::read_to_string(format!("/proc/{}/status", service.child.id())).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(peak < 150 << 10, "{peak} KiB for {MANY} clients");
}

#[test]
fn connections_that_say_nothing_keep_nobody_out() {
    let service = Service::plain(&["--max-connections", "16"]);
    let path = new_path(&service, 3);
    let _silent: Vec<TcpStream> = (0..200)
        .map(|number| {
            let mut stream = TcpStream::connect(service.address()).expect("a connection");
            // Some begin a request and never end it.
            if number % 2 == 0 {
                let _ = stream.write_all(b"PUT / HTTP/1.1\r\nHost:");
            }
            stream
        })
        .collect();
    // From an address of its own, as members have; the flood loses its places to it.
    let answer = Command::new("curl")
        .args(["-sS", "--max-time", "20", "--interface", &address(50)])
        .arg(format!("{}{path}", service.url()))
        .output();
    let answer = Run::from(answer.expect("curl runs")).ok();
    assert!(answer.stdout.contains(r#""action":"get""#), "{}", answer.stdout);
}

#[test]
fn one_address_gets_so_many_tokens_and_so_many_requests() {
    let service = Service::plain(&["--new-per-minute", "2", "--requests-per-second", "2", "--max-tokens", "3"]);
    let statuses: Vec<u16> = (0..3).map(|_| send(&service, "GET", "/new", "").0).collect();
    assert_eq!(statuses, [200, 200, 429]);
    let statuses: Vec<u16> = (0..60).map(|_| send(&service, "GET", "/health", "").0).collect();
    assert!(statuses.starts_with(&[200; 5]) && statuses.contains(&503), "{statuses:?}");
    let from = |number: u8, path: &str| {
        let mut command = Command::new("curl");
        command.args(["-sS", "-w", " %{http_code}", "--interface", &address(number)]);
        Run::from(command.arg(format!("{}{path}", service.url())).output().expect("curl runs")).stdout
    };
    assert!(from(51, "/new").ends_with(" 200"), "another address has an allowance of its own");
    let full = from(51, "/new");
    assert!(full.contains("3 tokens (--max-tokens)") && full.ends_with(" 503"), "{full}");
}

#[test]
fn what_was_answered_before_a_kill_is_there_afterwards() {
    let mut service = Service::plain(&["--requests-per-second", "10000"]);
    let path = new_path(&service, 31);
    let mut answered = Vec::new();
    for round in 0..3 {
        let to = service.address();
        let numbers = round * 12 + 1..round * 12 + 12;
        let sender = std::thread::spawn({
            let path = path.clone();
            move || {
                let put = |number: usize| {
                    let body = format!("value=m{number}%3Dhttp%3A%2F%2F10.0.0.1%3A{}", 1000 + number);
                    let length = body.len();
                    let head = format!(
                        "PUT {path}/{number:x} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}"
                    );
                    let Ok(mut stream) = TcpStream::connect(&to) else { return false };
                    let _ = stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes());
                    let mut answer = String::new();
                    let _ = stream.read_to_string(&mut answer);
                    answer.starts_with("HTTP/1.1 201")
                };
                numbers.filter(|number| put(*number)).collect::<Vec<_>>()
            }
        });
        eventually("some have registered", 60, || {
            send(&service, "GET", &path, "").1.matches("createdIndex").count() > round * 6 + 3
        });
        service.kill();
        answered.extend(sender.join().expect("a sender"));
        service.child = spawn(&service.sandbox, service.number, &service.flags);
    }
    assert!(!answered.is_empty());
    let (_, registry) = send(&service, "GET", &path, "");
    let registry: Value = serde_json::from_str(&registry).expect("JSON");
    let nodes = registry["node"]["nodes"].as_array().expect("members");
    for number in answered {
        let value = format!("m{number}=http://10.0.0.1:{}", 1000 + number);
        assert!(nodes.iter().any(|node| node["value"] == value.as_str()), "{value} is lost: {registry:#}");
        assert_eq!(register(&service, &path, number).0, 201, "the same again");
    }
    let mut indexes: Vec<u64> = nodes.iter().filter_map(|node| node["createdIndex"].as_u64()).collect();
    assert!(indexes.is_sorted(), "{indexes:?}");
    indexes.dedup();
    assert_eq!(indexes.len(), nodes.len());
}

#[test]
fn settings_that_cannot_work_are_refused_with_a_way_on() {
    let service = Service::start();
    let sandbox = &service.sandbox;
    let serve = |flags: &[&str]| sandbox.quorate(&[&["discovery", "serve"], flags].concat());
    let other = format!("{}:{PORT}", address(2));
    let run = serve(&["--listen", &other]).expect(1);
    assert!(run.stderr.contains("another discovery service keeps its tokens in"), "{}", run.stderr);
    let apart = ["--dir", "apart", "--listen"];
    let run = serve(&[&apart[..], &[&service.address()]].concat()).expect(1);
    assert!(run.stderr.contains("cannot listen at"), "{}", run.stderr);
    let run = serve(&[&apart[..], &["0.0.0.0:0"]].concat()).expect(1);
    assert!(run.stderr.contains("--url"), "{}", run.stderr);
    let run = serve(&[&apart[..], &[&other, "--url", "http://d.example.com"]].concat()).expect(1);
    assert!(run.stderr.contains("--insecure-http"), "{}", run.stderr);
    let run = serve(&[&apart[..], &[&other, "--tls-cert", "none.crt", "--tls-key", "none.key"]].concat()).expect(1);
    assert!(run.stderr.contains("none.crt"), "{}", run.stderr);
    serve(&["--insecure-http", "--tls-cert", "x", "--tls-key", "y"]).expect(2);
    // The service speaks no plain HTTP.
    let answer = raw(&service.address(), b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(!answer.contains("200"), "{answer}");
}

#[test]
fn user_provided_certificates_are_shown() {
    let sandbox = Sandbox::new(OLDEST);
    sandbox.make_ca("ca", "ec");
    let extensions = format!("subjectAltName=IP:{}\nextendedKeyUsage=serverAuth\n", address(1));
    sandbox.make_certificate("server", "discovery", "ca", &extensions);
    let listen = format!("{}:{PORT}", address(1));
    let flags = ["--tls-cert", "server.crt", "--tls-key", "server.key"].map(String::from);
    let child = spawn(&sandbox, 1, &flags);
    let service = Service { sandbox, child, number: 1, flags: flags.to_vec() };
    let health = || {
        let mut command = Command::new("curl");
        command.args(["-sS", "--cacert"]).arg(service.sandbox.path().join("ca.crt"));
        Run::from(command.arg(format!("https://{listen}/health")).output().expect("curl runs"))
    };
    assert_eq!(health().ok().stdout, "OK");
}

const USERS: &str = "
auth:
  roles:
    - name: discovery
      permissions:
        - {prefix: /_etcd/registry/, access: readwrite}
        - {prefix: /_etcd/discovery/, access: readwrite}
    - {name: member, permissions: [{prefix: /_etcd/registry/, access: readwrite}]}
  users:
    - {name: discovery, roles: [discovery]}
    - {name: member, roles: [member]}
";

#[test]
fn services_on_one_etcd_cluster_share_their_tokens_and_survive_each_other() {
    let sandbox = Sandbox::new(&newest());
    sandbox.file("c.yaml", &spec(3, &newest(), "", ""));
    sandbox.quorate(&["apply", "--yes", "c.yaml"]).ok();
    let listen = ["--listen", &format!("{}:{PORT}", address(1))].map(str::to_owned);
    let refused = sandbox.quorate(&["discovery", "serve", &listen[0], &listen[1], "--cluster", "c"]).expect(1);
    assert!(refused.stderr.contains("has no user discovery"), "{}", refused.stderr);
    // What the refusal says is enough.
    let (_, lines) = refused.stderr.split_once("apply it:\n").expect("lines to add");
    sandbox.file("c.yaml", &format!("{}{lines}", spec(3, &newest(), "", "")));
    sandbox.quorate(&["validate", "c.yaml"]).ok();
    sandbox.file("c.yaml", &spec(3, &newest(), "", USERS));
    sandbox.quorate(&["apply", "--yes", "c.yaml"]).ok();

    let flags = ["--insecure-http", "--cluster", "c"].map(str::to_owned).to_vec();
    let mut second = spawn(&sandbox, 2, &flags);
    let child = spawn(&sandbox, 1, &flags);
    let mut service = Service { sandbox, child, number: 1, flags };
    let (one, two) = (service.address(), format!("{}:{PORT}", address(2)));
    let path = new_path(&service, 2);
    let token = token(&path);
    // A member at each service, and one at the etcd cluster itself, see the same registry.
    let version = version("3.7");
    let at = |number: u8, endpoints: &str, more: &[&str]| {
        let flags = ["--discovery-token", token, "--discovery-endpoints", endpoints];
        service.member(&version, number, &[&flags, more].concat())
    };
    let first = at(1, &one, &[]);
    eventually("it has registered", 60, || send(&service, "GET", &path, "").1.contains("m1="));
    let surplus = at(2, &two, &[]);
    all_healthy(&[first, surplus]);
    let issued = service.sandbox.quorate(&["cert", "issue", "c", "--user", "member", "--out", "member"]).ok();
    assert!(issued.stdout.contains("member.crt"), "{}", issued.stdout);
    let endpoints = service.sandbox.environment("c")["ETCDCTL_ENDPOINTS"].clone();
    let files = [
        "--discovery-cacert",
        "member/ca.crt",
        "--discovery-cert",
        "member/member.crt",
        "--discovery-key",
        "member/member.key",
    ];
    let log = at(3, &endpoints, &files).ended();
    assert!(log.contains("cluster is full"), "{log}");
    // Every key of the token ends with it.
    let keys = service.sandbox.etcdctl(&newest(), "c", &["get", "--prefix", "/_etcd/", "-w", "json"]).ok().json();
    let leases: Vec<&Value> = keys["kvs"].as_array().expect("keys").iter().map(|pair| &pair["lease"]).collect();
    assert_eq!(leases.len(), 4, "{keys}");
    assert!(leases.iter().all(|lease| lease.is_number() && *lease == leases[0]), "{keys}");

    // A service and a member of its etcd cluster die while somebody waits.
    let path = new_path(&service, 2);
    let both = format!("{one},{two}");
    let flags = ["--discovery-token", self::token(&path), "--discovery-endpoints", &both];
    let waiting = service.member(&version, 4, &flags);
    eventually("it has registered", 60, || send(&service, "GET", &path, "").1.contains("m4="));
    let _ = second.kill();
    let _ = second.wait();
    signal(service.sandbox.etcd_of("etcd-1").expect("it runs"), "KILL");
    let last = service.member(&version, 5, &flags);
    all_healthy(&[waiting, last]);
    // Nothing of it was in this process.
    service.restart();
    assert_eq!(send(&service, "GET", &path, "").1.matches("createdIndex").count(), 3);
}

#[test]
fn a_token_in_an_etcd_cluster_expires_with_its_lease() {
    let sandbox = Sandbox::new(&newest());
    sandbox.file("c.yaml", &spec(1, &newest(), "", USERS));
    sandbox.quorate(&["apply", "--yes", "c.yaml"]).ok();
    let flags = ["--insecure-http", "--cluster", "c", "--token-lifetime", "5s"].map(str::to_owned).to_vec();
    let child = spawn(&sandbox, 1, &flags);
    let service = Service { sandbox, child, number: 1, flags };
    let path = new_path(&service, 3);
    assert_eq!(register(&service, &path, 1).0, 201);
    assert_eq!(register(&service, &path, 1).0, 201, "the same again");
    let taken = send(&service, "PUT", &format!("{path}/2"), "value=m1%3Dhttp%3A%2F%2F10.0.0.9%3A1");
    assert_eq!(taken.0, 400, "{}", taken.1);
    // It waits for a second member that never comes, and hears that the token has expired.
    let (status, answer) = send(&service, "GET", &format!("{path}?wait=true&recursive=true&waitIndex=1000000"), "");
    assert_eq!(status, 404, "{answer}");
    assert!(answer.contains(r#""errorCode":100"#), "{answer}");
    let left = service.sandbox.etcdctl(&newest(), "c", &["get", "--prefix", "/_etcd/", "--keys-only"]).ok();
    assert_eq!(left.stdout.trim(), "");
}
