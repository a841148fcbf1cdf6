//! `quorate front` in front of real clusters of three: gRPC and REST through one address, by certificate and by password, while
//! members behind it are killed, restarted and upgraded; and attacks.

mod drill;
mod machines;
mod page;
mod slow;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::intruder::Intruder;
use crate::common::{Run, Sandbox, address, eventually, lab, newest, newest_of, signal, spec};

const PORT: u16 = 2379;
const AUTH: &str = "auth:
  roles: [{name: r, permissions: [{prefix: /a/, access: readwrite}]}]
  users: [{name: app, roles: [r]}, {name: other, roles: []}]";
const PASSWORDS: &str = "auth:
  token: jwt
  roles: [{name: r, permissions: [{prefix: /a/, access: readwrite}]}]
  users: [{name: app, roles: [r], password_file: app.pw}, {name: other, password_file: other.pw}]";

/// A front in a sandbox. Everything that runs there ends with it.
struct Front {
    /// An address belongs to the thread of its test; clients may run on others.
    at: String,
    sandbox: Sandbox,
    child: Child,
}

impl Front {
    /// Before a cluster `c` of three.
    fn up(version: &str, etcd: &str, rest: &str, flags: &[&str]) -> Self {
        let sandbox = Sandbox::new(version);
        sandbox.file("app.pw", "correct horse\n");
        sandbox.file("other.pw", "battery staple\n");
        let at = format!("{}:{PORT}", address(1));
        let front = Front { at, child: Command::new("true").spawn().expect("a child"), sandbox };
        front.apply(version, etcd, rest);
        front.again(flags)
    }

    fn apply(&self, version: &str, etcd: &str, rest: &str) {
        self.write(version, etcd, rest);
        self.sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    }

    fn write(&self, version: &str, etcd: &str, rest: &str) {
        let names = format!("tls: {{extra_sans: [{}]}}\n{rest}", address(1));
        self.sandbox.file("c.yaml", &spec(3, version, etcd, &names));
    }

    fn again(mut self, flags: &[&str]) -> Self {
        self.kill();
        self.child = spawn(&self.sandbox, 1, flags);
        self
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn log(&self) -> String {
        fs::read_to_string(self.sandbox.path().join("front.log")).unwrap_or_default()
    }

    fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.at)
    }

    /// A certificate of a user, for etcdctl through the front.
    fn user(&self, user: &str) -> BTreeMap<String, String> {
        self.sandbox.quorate(&["cert", "issue", "c", "--user", user, "--out", "issued"]).ok();
        let file = |kind: &str| self.sandbox.path().join(format!("issued/{user}.{kind}")).display().to_string();
        let mut environment = self.sandbox.environment("c");
        environment.insert("ETCDCTL_ENDPOINTS".into(), self.url(""));
        environment.insert("ETCDCTL_CERT".into(), file("crt"));
        environment.insert("ETCDCTL_KEY".into(), file("key"));
        environment
    }

    fn ca(&self) -> String {
        self.sandbox.environment("c")["ETCDCTL_CACERT"].clone()
    }

    /// Status and body.
    fn curl(&self, flags: &[&str], path: &str, body: Option<&Value>) -> (u16, Value) {
        curl(&self.ca(), flags, &self.url(path), body)
    }

    fn as_user(&self, user: &BTreeMap<String, String>, path: &str, body: &Value) -> (u16, Value) {
        self.curl(&["--cert", &user["ETCDCTL_CERT"], "--key", &user["ETCDCTL_KEY"]], path, Some(body))
    }
}

/// The next test may get the same address, and must not find this one there.
impl Drop for Front {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(sandbox: &Sandbox, number: u8, flags: &[&str]) -> Child {
    let listen = format!("{}:{PORT}", address(number));
    let log = File::options().create(true).append(true).open(sandbox.path().join("front.log")).expect("a log");
    let mut command = sandbox.command(&["front", "c", "--listen", &listen]);
    let mut child = command.args(flags).stdout(Stdio::null()).stderr(log).spawn().expect("quorate starts");
    eventually("the front listens", 30, || {
        assert!(child.try_wait().expect("a child").is_none(), "the front has ended");
        TcpStream::connect(&listen).is_ok()
    });
    child
}

fn curl(ca: &str, flags: &[&str], url: &str, body: Option<&Value>) -> (u16, Value) {
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "15", "--cacert", ca, "-w", "\n%{http_code}"]).args(flags);
    if let Some(body) = body {
        command.args(["-d", &body.to_string()]);
    }
    let run: Run = command.arg(url).output().expect("curl runs").into();
    let (text, status) = run.stdout.rsplit_once('\n').unwrap_or(("", "0"));
    (status.parse().unwrap_or(0), serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned())))
}

fn base64(text: &str) -> String {
    let output = Command::new("sh").args(["-c", &format!("printf %s '{text}' | base64 -w0")]).output();
    String::from_utf8(output.expect("base64").stdout).expect("text")
}

fn put(key: &str, value: &str) -> Value {
    json!({"key": base64(key), "value": base64(value)})
}

#[test]
fn one_address_serves_grpc_and_rest_by_certificate_and_refuses_strangers() {
    let version = newest();
    let front = Front::up(&version, "", AUTH, &[]);
    let app = front.user("app");
    front.sandbox.etcdctl_with(&version, &app, &["put", "/a/1", "one"]).ok();
    let oldest = crate::common::OLDEST;
    let got = front.sandbox.etcdctl_with(oldest, &app, &["get", "/a/1", "--print-value-only"]).ok();
    assert_eq!(got.stdout.trim(), "one", "etcdctl {oldest}");
    front.sandbox.etcdctl_with(&version, &app, &["put", "/b/1", "x"]).fails();

    let (status, health) = front.curl(&[], "/health", None);
    assert_eq!((status, &health["health"]), (200, &json!("true")), "{health}");
    let (status, shown) = front.curl(&[], "/version", None);
    assert_eq!((status, shown["etcdserver"].as_str()), (200, Some(version.as_str())), "{shown}");

    // The user of the certificate, with that user's rights, and nobody without one.
    assert_eq!(front.as_user(&app, "/v3/kv/put", &put("/a/2", "two")).0, 200);
    let (status, answer) = front.as_user(&app, "/v3/kv/range", &json!({"key": base64("/a/2")}));
    assert_eq!((status, &answer["kvs"][0]["value"]), (200, &json!(base64("two"))), "{answer}");
    assert_eq!(front.as_user(&app, "/v3/kv/put", &put("/b/2", "two")).0, 403);
    let other = front.user("other");
    assert_eq!(front.as_user(&other, "/v3/kv/put", &put("/a/2", "mine")).0, 403);
    assert_eq!(front.curl(&[], "/v3/kv/range", Some(&json!({"key": base64("/a/2")}))).0, 401);
    let mut root = front.sandbox.environment("c");
    assert_eq!(front.as_user(&root, "/v3/kv/range", &json!({"key": base64("/a/2")})).0, 403, "as root");
    root.insert("ETCDCTL_ENDPOINTS".into(), front.url(""));
    front.sandbox.etcdctl_with(&version, &root, &["get", "/a/2"]).ok();

    // What no user has: a name in a header, a token of nobody, a certificate of another CA.
    let range = json!({"key": base64("/a/2")});
    for flags in [
        ["-H", "Grpc-Metadata-Token: x"],
        ["-H", "Authorization: deadbeef.17"],
        ["-u", "app:"],
        ["-u", "root:root"],
        ["-H", "X-Forwarded-User: app"],
    ] {
        let (status, answer) = front.curl(&flags, "/v3/kv/range", Some(&range));
        assert!(matches!(status, 400 | 401), "{flags:?}: {status} {answer}");
    }
    let both = ["-H", "Authorization: a", "-H", "Authorization: b"];
    assert_eq!(front.curl(&both, "/v3/kv/range", Some(&range)).0, 400);
    assert_eq!(front.curl(&["-H", "Origin: https://evil.example"], "/v3/kv/range", Some(&range)).0, 403);
    let bomb = format!("X-Bomb: {}", "a".repeat(60_000));
    assert!(matches!(front.curl(&["-H", &bomb], "/health", None).0, 0 | 431));
    assert_eq!(front.curl(&["-X", "GET"], "/v3/kv/range", None).0, 405);
    assert_eq!(front.curl(&[], "/v3/auth/user/add", Some(&json!({}))).0, 404);
    let (status, answer) = front.as_user(&app, "/v3/kv/range", &json!({"kee": ""}));
    assert!(status == 400 && answer["message"].as_str().is_some_and(|why| why.contains("unknown field")), "{answer}");
    let large = front.sandbox.file("large", &"x".repeat(5 << 20));
    assert_eq!(front.as_user_with_file(&app, "/v3/kv/put", &large.display().to_string()), 413);
    let stranger = Intruder::of_another_authority("app");
    let health = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let at = std::net::SocketAddr::new(address(1).parse().expect("an address"), PORT);
    stranger.exchange(at, &[health]).expect_err("a certificate of another CA");
    assert_eq!(Intruder::without_certificate().exchange(at, &[health]).expect("an answer").status, 200);
    // Two lengths: one of them would be another request to somebody behind the front.
    let smuggled = b"POST /v3/kv/range HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v";
    let answer = Intruder::without_certificate().exchange(at, &[smuggled]).expect("an answer");
    assert!(matches!(answer.status, 400 | 401), "{}", answer.status);

    // Removing the user revokes the certificate, on both ways.
    front.apply(&version, "", "auth: {roles: [{name: r, permissions: [{prefix: /a/, access: readwrite}]}]}");
    eventually("the certificate is refused", 20, || {
        front.as_user(&app, "/v3/kv/range", &json!({"key": base64("/a/2")})).0 != 200
    });
    front.sandbox.etcdctl_with(&version, &app, &["get", "/a/2"]).fails();
    assert_eq!(front.curl(&[], "/health", None).0, 200);
}

/// A connection of gRPC to which a member has answered; `None` if the front closed it.
fn grpc(user: &BTreeMap<String, String>, at: &str) -> Option<TcpStream> {
    use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&user["ETCDCTL_CACERT"]).expect("a CA")).expect("a CA");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.expect("TLS").with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from(address(1)).expect("a name");
    let mut hello = rustls::ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut stream = TcpStream::connect(at).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time");
    hello.write_tls(&mut stream).expect("a hello");
    matches!(stream.read(&mut [0; 16]), Ok(1..)).then_some(stream)
}

impl Front {
    fn as_user_with_file(&self, user: &BTreeMap<String, String>, path: &str, file: &str) -> u16 {
        let body = format!("@{file}");
        let flags = ["--cert", &user["ETCDCTL_CERT"], "--key", &user["ETCDCTL_KEY"], "--data-binary", &body];
        self.curl(&flags, path, None).0
    }
}

#[test]
fn silent_or_invalid_clients_delay_no_others() {
    let version = newest();
    let mut front = Front::up(&version, "", AUTH, &["--max-per-address", "40"]);
    let at = format!("{}:{PORT}", address(1));
    // Plain HTTP is told what is wrong.
    let mut plain = TcpStream::connect(&at).expect("a connection");
    plain.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").expect("a request");
    let mut said = String::new();
    plain.read_to_string(&mut said).expect("an answer");
    assert!(said.starts_with("HTTP/1.1 400") && said.contains("https://"), "{said}");
    // Garbage, a hello that never ends, one byte at a time, and nothing at all.
    for bytes in [&[0xff; 100][..], b"\x16\x03\x01\xff\xff", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16"] {
        let mut stream = TcpStream::connect(&at).expect("a connection");
        let _ = stream.write_all(bytes);
    }
    let slow: Vec<TcpStream> = (0..1500)
        .filter_map(|_| {
            let mut stream = TcpStream::connect(&at).ok()?;
            stream.write_all(b"\x16\x03\x01\x02").ok()?;
            Some(stream)
        })
        .collect();
    assert!(slow.len() > 500, "only {} connections", slow.len());
    // One of them may be displaced by the others, and then tries again.
    eventually("somebody with a word to say is served", 30, || front.curl(&[], "/health", None).0 == 200);
    // Each is closed in time.
    let mut last = slow.last().expect("one").try_clone().expect("a handle");
    last.set_read_timeout(Some(Duration::from_secs(8))).expect("a time");
    assert!(matches!(last.read(&mut [0; 8]), Ok(0) | Err(_)), "it was answered");
    drop(slow);
    // One address has its share, and no more.
    let app = front.user("app");
    let grpc: Vec<TcpStream> = (0..60).filter_map(|_| grpc(&app, &at)).collect();
    let open = grpc.len();
    assert!((30..=40).contains(&open), "{open} connections");
    drop(grpc);
    eventually("the places are free again", 10, || front.curl(&[], "/health", None).0 == 200);
    // SIGTERM ends it, and frees the address.
    signal(front.child.id(), "TERM");
    let started = Instant::now();
    assert!(front.child.wait().expect("a child").success());
    assert!(started.elapsed() < Duration::from_secs(7), "{:?}", started.elapsed());
    assert!(TcpStream::connect(&at).is_err());
}

#[test]
fn passwords_tokens_and_the_json_of_etcds_own_gateway() {
    for version in [newest(), newest_of("3.5").expect("etcd 3.5")] {
        let front = Front::up(&version, "client_auth: password, grpc_gateway: true", PASSWORDS, &[]);
        let direct = front.sandbox.environment("c")["ETCDCTL_ENDPOINTS"].split(',').next().expect("one").to_owned();
        let ca = front.ca();
        let as_app = ["-u", "app:correct horse"];
        assert_eq!(front.curl(&as_app, "/v3/kv/put", Some(&put("/a/1", "one"))).0, 200);
        assert_eq!(front.curl(&as_app, "/v3/kv/put", Some(&put("/b/1", "one"))).0, 403);
        assert!(matches!(front.curl(&["-u", "app:wrong"], "/v3/kv/range", Some(&put("/a/1", ""))).0, 400 | 401));
        assert_eq!(front.curl(&[], "/v3/kv/put", Some(&put("/a/1", "x"))).0, 401);
        let login = |name: &str, password: &str| {
            let (status, answer) =
                front.curl(&[], "/v3/auth/authenticate", Some(&json!({"name": name, "password": password})));
            assert_eq!(status, 200, "{answer}");
            format!("Authorization: {}", answer["token"].as_str().expect("a token"))
        };
        let (app, other) = (login("app", "correct horse"), login("other", "battery staple"));
        assert_eq!(front.curl(&["-H", &other], "/v3/kv/range", Some(&json!({"key": base64("/a/1")}))).0, 403);
        // The same requests to a member and to the front have the same answers, but for revisions and ids.
        let lease = json!({"TTL": "60"});
        let requests = [
            ("/v3/kv/put", json!({"key": base64("/a/k"), "value": base64("v\u{7f}\u{e4}"), "prev_kv": true})),
            ("/v3/kv/range", json!({"key": base64("/a/"), "range_end": base64("/a0"), "limit": "1"})),
            (
                "/v3/kv/range",
                json!({"key": base64("/a/"), "rangeEnd": base64("/a0"), "sortOrder": "DESCEND", "count_only": true}),
            ),
            ("/v3/kv/range", json!({"key": base64("/a/none")})),
            (
                "/v3/kv/txn",
                json!({
                    "compare": [{"key": base64("/a/k"), "target": "VERSION", "result": "GREATER", "version": "0"}],
                    "success": [{"request_put": {"key": base64("/a/t"), "value": base64("1")}}, {"request_range": {"key": base64("/a/k")}}],
                    "failure": [{"request_delete_range": {"key": base64("/a/k")}}],
                }),
            ),
            ("/v3/kv/deleterange", json!({"key": base64("/a/t"), "prev_kv": true})),
            ("/v3/lease/grant", lease),
            ("/v3/lease/timetolive", json!({"ID": "1", "keys": true})),
            ("/v3/lease/revoke", json!({"ID": "1"})),
            ("/v3/lease/keepalive", json!({"ID": "1"})),
            ("/v3/cluster/member/list", json!({})),
            ("/v3/maintenance/status", json!({})),
            ("/v3/kv/compaction", json!({"revision": "999999"})),
            ("/v3/kv/put", json!({"key": base64("/b/x")})),
            ("/v3/kv/range", json!({"key": "%%"})),
        ];
        for (path, body) in requests {
            let prepare = || {
                for key in ["/a/k", "/a/t"] {
                    assert_eq!(front.curl(&["-H", &app], "/v3/kv/put", Some(&put(key, "before"))).0, 200);
                }
            };
            prepare();
            let (status, mut ours) = front.curl(&["-H", &app], path, Some(&body));
            prepare();
            let (expected, mut theirs) = curl(&ca, &["-H", &app], &format!("{direct}{path}"), Some(&body));
            assert_eq!(status, expected, "{version} {path} {body}: {ours} / {theirs}");
            if status == 200 {
                blur(&mut ours);
                blur(&mut theirs);
                assert_eq!(ours, theirs, "{version} {path} {body}");
            } else {
                assert_eq!(ours["code"], theirs["code"], "{version} {path} {body}: {ours} / {theirs}");
            }
        }
        watches(&front, &app);
    }
}

/// Figures that differ from one answer to the next, or from one member to another.
fn blur(value: &mut Value) {
    const CHANGING: [&str; 18] = [
        "revision",
        "member_id",
        "raft_term",
        "raftIndex",
        "raftAppliedIndex",
        "mod_revision",
        "create_revision",
        "version",
        "ID",
        "TTL",
        "grantedTTL",
        "dbSize",
        "dbSizeInUse",
        "leader",
        "members",
        "raftTerm",
        "errors",
        "count",
    ];
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match CHANGING.contains(&name.as_str()) {
                    true => *value = Value::String(kind(value)),
                    false => blur(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(blur),
        _ => {}
    }
}

fn kind(value: &Value) -> String {
    match value {
        Value::String(_) => String::from("text"),
        Value::Array(values) => format!("{} times {}", values.len(), values.first().map(kind).unwrap_or_default()),
        Value::Object(fields) => fields.keys().cloned().collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// Each change is a line, as soon as it happens.
fn watches(front: &Front, login: &str) {
    let request = json!({"create_request": {"key": base64("/a/w")}}).to_string();
    let mut watching = Command::new("curl")
        .args([
            "-sSN",
            "--max-time",
            "20",
            "--cacert",
            &front.ca(),
            "-H",
            login,
            "-d",
            &request,
            &front.url("/v3/watch"),
        ])
        .stdout(Stdio::piped())
        .spawn()
        .expect("curl");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(watching.stdout.take().expect("a pipe")));
    let mut next = || serde_json::from_str::<Value>(&lines.next().expect("a line").expect("text")).expect("JSON");
    let created = next();
    assert_eq!(created["result"]["created"], true, "{created}");
    assert_eq!(front.curl(&["-H", login], "/v3/kv/put", Some(&put("/a/w", "seen"))).0, 200);
    let event = next();
    assert_eq!(event["result"]["events"][0]["kv"]["value"], base64("seen"), "{event}");
    let _ = watching.kill();
    let _ = watching.wait();
}

#[test]
fn clients_continue_while_members_are_killed_hung_restarted_and_upgraded() {
    let (version, older) = (newest(), newest_of("3.6").expect("etcd 3.6"));
    let front = Arc::new(Front::up(&older, "", AUTH, &["--prefer", "leader"]));
    let app = front.user("app");
    let over = Arc::new(AtomicBool::new(false));
    let writer = {
        let (front, app, over) = (front.clone(), app.clone(), over.clone());
        std::thread::spawn(move || {
            let (mut done, mut failed, mut number) = (Vec::new(), 0, 0);
            while !over.load(Ordering::Relaxed) {
                number += 1;
                match front.as_user(&app, "/v3/kv/put", &put("/a/n", &number.to_string())).0 {
                    200 => done.push((Instant::now(), number)),
                    _ => failed += 1,
                }
            }
            (done, failed)
        })
    };
    let etcd_of = |member: &str| {
        let mark = format!("/machines/c/{member}/root/");
        let all = front.sandbox.processes();
        all.into_iter().find(|(_, line)| line.contains("/etcd --") && line.contains(&mark)).map(|(pid, _)| pid)
    };
    // A member that hangs takes part in nothing, but accepts connections.
    let hung = etcd_of("etcd-2").expect("an etcd");
    signal(hung, "STOP");
    let writes = || front.sandbox.etcdctl_with(&older, &app, &["put", "/a/h", "x"]).code == Some(0);
    eventually("another member leads, and the front knows who hangs", 30, || writes() && writes());
    for _ in 0..6 {
        front.sandbox.etcdctl_with(&older, &app, &["put", "/a/h", "x"]).ok();
    }
    signal(hung, "CONT");
    signal(etcd_of("etcd-3").expect("an etcd"), "KILL");
    eventually("another member leads", 30, || writes() && writes());
    for _ in 0..6 {
        front.sandbox.etcdctl_with(&older, &app, &["put", "/a/k", "x"]).ok();
    }
    eventually("etcd-3 serves again", 30, || front.log().matches("serves member=\"etcd-3\"").count() >= 1);
    front.apply(&older, "quota: 3GiB", AUTH);
    front.apply(&version, &format!("quota: 3GiB, binary: {{path: {:?}}}", lab(&version)), AUTH);
    let log = front.log();
    assert!(log.contains("is about to be stopped"), "{log}");
    front.sandbox.quorate(&["replace", "c", "etcd-1", "--yes"]).ok();
    eventually("the new machine is behind the front", 20, || front.log().contains("is no longer behind this front"));
    over.store(true, Ordering::Relaxed);
    let (done, failed) = writer.join().expect("a writer");
    let gap = done.windows(2).map(|pair| pair[1].0 - pair[0].0).max().expect("writes");
    println!("{} writes, {failed} failed, longest gap {gap:?}", done.len());
    assert!(gap < Duration::from_secs(8), "no write for {gap:?}");
    assert!(failed * 10 <= done.len(), "{failed} failed, {} did not", done.len());
    let last = done.last().expect("a write").1.to_string();
    let got = front.sandbox.etcdctl_with(&version, &app, &["get", "/a/n", "--print-value-only"]).ok();
    assert!(got.stdout.trim().parse::<u64>().expect("a number") >= last.parse::<u64>().expect("a number"));

    // A ledger that cannot be read changes nothing for those who are served.
    let (ca, url) = (front.ca(), front.url("/v3/kv/put"));
    let ledger = front.sandbox.home().join("clusters/c/ledger");
    let hidden = front.sandbox.path().join("hidden");
    fs::rename(&ledger, &hidden).expect("hidden");
    fs::write(&ledger, "not a directory").expect("a file");
    eventually("the front says so", 10, || front.log().contains("the ledger cannot be read"));
    let flags = ["--cert", &app["ETCDCTL_CERT"], "--key", &app["ETCDCTL_KEY"]];
    assert_eq!(curl(&ca, &flags, &url, Some(&put("/a/n", "z"))).0, 200);
    fs::remove_file(&ledger).expect("removed");
    fs::rename(&hidden, &ledger).expect("back");
}

/// A v2 request with curl's flags, as a user with a password.
fn v2(front: &Front, path: &str, flags: &[&str]) -> (u16, Value) {
    front.curl(&[&["-u", "app:correct horse"], flags].concat(), path, None)
}

#[test]
fn curl_lines_written_for_v2_work_on_an_etcd_without_it() {
    let front = Front::up(&newest(), "client_auth: password", &PASSWORDS.replace("/a/", "/v2/"), &[]);
    let put = |path: &str, value: &str| v2(&front, path, &["-XPUT", "-d", &format!("value={value}")]);
    let (status, set) = put("/v2/keys/planets", "earth jupiter mars");
    assert_eq!((status, &set["action"], &set["node"]["key"]), (201, &json!("set"), &json!("/planets")), "{set}");
    assert_eq!(put("/v2/keys/galaxies", "milky way / Orion").0, 201);
    let (_, read) = v2(&front, "/v2/keys/galaxies", &[]);
    assert_eq!((&read["action"], &read["node"]["value"]), (&json!("get"), &json!("milky way / Orion")), "{read}");
    assert_eq!(read["node"]["modifiedIndex"], read["node"]["createdIndex"], "{read}");
    let (status, changed) = put("/v2/keys/planets", "mercury/venus/saturn/jupiter/earth");
    assert_eq!((status, &changed["prevNode"]["value"]), (200, &json!("earth jupiter mars")), "{changed}");
    let stale = format!("/v2/keys/planets?prevIndex={}", set["node"]["modifiedIndex"]);
    assert_eq!(put(&stale, "pluto").1["errorCode"], 101);
    let (_, gone) = v2(&front, "/v2/keys/planets", &["-XDELETE"]);
    assert_eq!((&gone["action"], &gone["node"]["key"]), (&json!("delete"), &json!("/planets")), "{gone}");
    assert_eq!(v2(&front, "/v2/keys/planets", &[]).1["errorCode"], 100);

    // A wait through the front ends with the event.
    let at = gone["node"]["modifiedIndex"].as_u64().expect("an index") + 1;
    let url = front.url(&format!("/v2/keys/comets?wait=true&waitIndex={at}"));
    let flags = ["-sS", "--max-time", "20", "--cacert", &front.ca(), "-u", "app:correct horse", &url];
    let waiting = Command::new("curl").args(flags).stdout(Stdio::piped()).spawn().expect("curl");
    assert_eq!(put("/v2/keys/comets", "halley").0, 201);
    let event: Value = serde_json::from_slice(&waiting.wait_with_output().expect("curl").stdout).expect("JSON");
    assert_eq!(event["node"]["value"], "halley", "{event}");

    let (_, leader) = v2(&front, "/v2/stats/leader", &[]);
    assert_eq!(leader["followers"].as_object().map(|followers| followers.len()), Some(2), "{leader}");
    let (_, machines) = v2(&front, "/v2/machines", &[]);
    assert_eq!(machines, json!(front.url("")), "v2 clients come back to the front");

    // Nobody gets more than etcd gives them, and members are not changed this way.
    let other = front.curl(&["-u", "other:battery staple"], "/v2/keys/galaxies", None);
    assert_eq!((other.0, &other.1["errorCode"]), (401, &json!(110)), "{}", other.1);
    assert_eq!(front.curl(&["-u", "app:wrong"], "/v2/keys/galaxies", None).0, 401);
    assert_eq!(front.curl(&[], "/v2/keys/galaxies", None).0, 401);
    assert!(v2(&front, "/v2/members", &["-XPOST", "-d", "{}"]).0 >= 400);
    // Guesses are slowed down, also where somebody repeats one, and do not hold up who knows the password.
    for guess in ["app:wrong", "nobody:x"] {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--cacert", &front.ca(), "-u", guess, "-w", "\n%{http_code}\n"]);
        let guesses: Run = curl.args(vec![front.url("/v2/keys/galaxies"); 100]).output().expect("curl runs").into();
        let said = |status: &str| guesses.stdout.lines().filter(|line| *line == status).count();
        assert_eq!(said("401") + said("429"), 100, "{guess}: {}", guesses.stdout);
        assert!(said("429") > 0, "{guess}: {}", guesses.stdout);
        assert_eq!(v2(&front, "/v2/keys/galaxies", &[]).0, 200);
    }
    // The same nodes, to etcdctl.
    let listed = front.sandbox.etcdctl(&newest(), "c", &["get", "--prefix", "/v2/", "--keys-only"]).ok().stdout;
    assert!(listed.contains("/v2//galaxies"), "{listed}");
}

#[test]
fn misconfigured_fronts_are_reported_at_startup() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    let run = sandbox.quorate(&["front", "nobody", "--listen", &format!("{}:{PORT}", address(1))]).fails();
    assert!(run.stderr.contains("nobody"), "{}", run.stderr);
    sandbox.file("c.yaml", &spec(1, &version, "", AUTH));
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    let any = sandbox.quorate(&["front", "c", "--listen", "0.0.0.0:2379"]).fails();
    assert!(any.stderr.contains("--host"), "{}", any.stderr);
    let flags = ["--host", "etcd.example.org", "--insecure-http"];
    let mut child = spawn(&sandbox, 1, &flags);
    let log = || fs::read_to_string(sandbox.path().join("front.log")).unwrap_or_default();
    eventually("the warning", 30, || log().contains("tls: {extra_sans: [etcd.example.org]}"));
    let url = |host: &str| format!("http://{host}:{PORT}/health");
    let ca = sandbox.environment("c")["ETCDCTL_CACERT"].clone();
    assert_eq!(curl(&ca, &[], &url(&address(1)), None).0, 200);
    let rebound = ["-H", "Host: rebound.example"];
    assert_eq!(curl(&ca, &rebound, &url(&address(1)), None).0, 403);
    // A second front for the same cluster, and none for an address that is taken.
    let mut second = spawn(&sandbox, 2, &[]);
    assert_eq!(curl(&ca, &[], &format!("https://{}:{PORT}/health", address(2)), None).0, 200);
    let taken = sandbox.quorate(&["front", "c", "--listen", &format!("{}:{PORT}", address(2))]).fails();
    assert!(taken.stderr.contains("cannot listen"), "{}", taken.stderr);
    for front in [&mut child, &mut second] {
        let _ = front.kill();
        let _ = front.wait();
    }
}
