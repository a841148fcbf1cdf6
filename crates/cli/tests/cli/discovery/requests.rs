//! HTTP answers of the service: to members, to misbehaving clients, and after it was killed.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::{PORT, Service, new_path, raw, register, send, spawn};
use crate::common::{OLDEST, Run, Sandbox, address, eventually};

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
fn oversized_and_malformed_requests_are_refused_and_change_nothing() {
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
fn silent_connections_block_no_others() {
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
    // From another address, as members have; the flood loses its places to it.
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
    assert!(from(51, "/new").ends_with(" 200"), "another address has another allowance");
    let full = from(51, "/new");
    assert!(full.contains("3 tokens (--max-tokens)") && full.ends_with(" 503"), "{full}");
}

#[test]
fn answered_registrations_survive_a_kill() {
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
