//! Attackers: what they can read in stored files, and what they can do at an agent's ports. They learn nothing, change
//! nothing, and the agent keeps obeying its own controller.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use quorate_agent::api::{EnrolCertificate, EnrolRequest, Envelope, EtcdOrder, FactsRequest, Order, path};
use quorate_core::model::{AGENT_PORT, HEALTH_PORT, NodeConfig};
use quorate_pki::KeyAlgorithm;
use serde_json::Value;

use crate::common::intruder::{Intruder, post};
use crate::common::trio::{APP_PASSWORD, Login, MEMBERS, NAME, Trio, files_below, read_json};
use crate::common::{Run, eventually, signal};

/// A part of a private key in PEM that no line break goes through, and that differs from key to key.
fn core_of_key(pem: &str) -> String {
    let body = pem.lines().find(|line| !line.starts_with("-----")).expect("a key");
    body[body.len() - 16..].to_owned()
}

/// Everything in the ledger and on the machines that nobody else may know.
fn secrets(trio: &Trio) -> Vec<(String, String)> {
    let ledger = trio.ledger();
    let mut secrets = vec![
        (String::from("a private key"), String::from("PRIVATE KEY")),
        (String::from("a token of a login"), String::from("eyJhbGciOi")),
        (String::from("the password of app"), APP_PASSWORD.to_owned()),
    ];
    let text = |value: &Value| value.as_str().map(str::to_owned);
    for ca in ["client", "control"] {
        let key = text(&ledger["authorities"][ca]["key"]).expect("a CA's key");
        secrets.push((format!("the key of the {ca} CA"), core_of_key(&key)));
    }
    if let Some(password) = text(&ledger["etcd"]["auth"]["root_password"]) {
        secrets.push((String::from("root's password"), password));
    }
    if let Some(key) = text(&ledger["etcd"]["auth"]["jwt"]["private"]) {
        secrets.push((String::from("the key of tokens"), core_of_key(&key)));
    }
    for member in MEMBERS {
        let token = text(&ledger["members"][member]["enrolment"]["token"]).expect("a token");
        secrets.push((format!("the enrolment token of {member}"), token));
        let state = read_json(&trio.root(member).join("var/lib/quorate/state.json"));
        for (of, key) in state["keys"].as_object().expect("keys") {
            secrets.push((format!("{member}'s key for {of}"), core_of_key(&text(&key["pem"]).expect("a key"))));
        }
    }
    for path in files_below(&trio.sandbox.home()).iter().filter(|p| p.extension().is_some_and(|x| x == "key")) {
        let pem = fs::read_to_string(path).expect("a key");
        secrets.push((path.display().to_string(), core_of_key(&pem)));
    }
    secrets
}

#[track_caller]
fn assert_clean(place: &str, content: &[u8], secrets: &[(String, String)]) {
    for (name, secret) in secrets {
        let found = content.windows(secret.len()).any(|part| part == secret.as_bytes());
        assert!(!found, "{place} shows {name}");
    }
}

/// What an operator does in a day, and all that is printed meanwhile.
fn a_day(trio: &Trio, login: Login) -> Vec<(String, Run)> {
    let mut said = Vec::new();
    let mut day: Vec<&[&str]> = vec![
        &["apply", "-v", "--yes", "trio.yaml"],
        &["validate", "trio.yaml"],
        &["plan", "-v", "trio.yaml"],
        &["plan", "trio.yaml", "--output", "json"],
        &["status", "-v"],
        &["status", NAME, "--output", "json"],
        &["logs", NAME, "etcd-1", "--lines", "1000"],
        &["logs", NAME, "etcd-2", "--agent", "--lines", "1000"],
        &["down", "-v", NAME],
        &["start", "-v", NAME],
        &["destroy", "--yes", NAME],
    ];
    if login == Login::Certificate {
        day.push(&["env", NAME]);
        day.push(&["cert", "issue", "-v", NAME, "--user", "root"]);
    }
    for arguments in day {
        said.push((arguments.join(" "), trio.sandbox.quorate(arguments)));
    }
    said
}

#[test]
fn no_secret_is_in_a_log_an_argument_a_variable_a_printed_line_or_a_file_that_others_can_read() {
    for login in [Login::Certificate, Login::Password] {
        let trio = Trio::new(login);
        let said = a_day(&trio, login);
        trio.sandbox.environment(NAME);
        let secrets = secrets(&trio);
        assert!(secrets.len() > 20, "{} secrets", secrets.len());
        for (arguments, run) in &said {
            let expected = if arguments.starts_with("destroy") { 3 } else { 0 };
            assert_eq!(run.code, Some(expected), "{arguments}: {}", run.text());
            assert_clean(arguments, run.text().as_bytes(), &secrets);
        }
        let processes = trio.sandbox.processes();
        assert_eq!(processes.len(), 6);
        for (pid, line) in processes {
            for part in ["cmdline", "environ"] {
                let content = fs::read(format!("/proc/{pid}/{part}")).expect("it runs");
                assert_clean(&format!("{part} of {line}"), &content, &secrets);
            }
        }
        let (mut logs, mut private) = (0, 0);
        for path in files_below(&trio.sandbox.home()).iter().filter(|p| p.is_file() && !p.is_symlink()) {
            let mode = fs::metadata(path).expect("a file").permissions().mode() & 0o777;
            let content = fs::read(path).expect("a file");
            let log = path.extension().is_some_and(|x| x == "log");
            logs += usize::from(log);
            private += usize::from(mode == 0o600);
            if log || mode & 0o077 != 0 {
                assert_clean(&format!("{} ({mode:o})", path.display()), &content, &secrets);
            }
        }
        assert!(logs >= 6, "{logs} logs were looked at");
        assert!(private > 30, "{private} files are private");
        for path in ["", "clusters", "machines", "clusters/trio/ledger", "clients/trio", "machines/trio"] {
            let mode = fs::metadata(trio.sandbox.home().join(path)).expect(path).permissions().mode() & 0o777;
            assert_eq!(mode, 0o700, "home/{path}");
        }
    }
}

/// The agent is the one it was, and its controller finds nothing to complain of.
#[track_caller]
fn assert_unimpressed(trio: &Trio, agent: u32) {
    assert_eq!(trio.agent_of("etcd-1"), Some(agent), "the agent died");
    let plan = trio.sandbox.quorate(&["plan", "trio.yaml", "--detailed-exitcode", "--output", "json"]).ok();
    assert_eq!(plan.json()["summary"]["waiting"], 0, "{}", plan.stdout);
}

#[test]
fn anyone_but_the_controller_is_refused_at_the_agents_port() {
    let trio = Trio::up(Login::Certificate);
    let (address, agent) = (trio.address("etcd-1"), trio.agent_of("etcd-1").expect("it runs"));
    let ledger = trio.ledger();
    let environment = trio.sandbox.environment(NAME);
    let strangers = [
        ("nobody", Intruder::without_certificate()),
        ("etcd's root", Intruder::from_files(&environment["ETCDCTL_CERT"], &environment["ETCDCTL_KEY"])),
        ("a self-signed controller", Intruder::self_signed("controller")),
        ("a controller of another CA", Intruder::of_another_authority("controller")),
        ("a controller of the etcd CA", Intruder::signed_by(&ledger["authorities"]["client"], "controller")),
        ("a sibling with its own certificate", Intruder::agent(&trio.root("etcd-2"))),
        ("a sibling with a client's certificate", {
            let name = format!("agent:{}:etcd-2:1", ledger["cluster_id"].as_str().expect("an id"));
            Intruder::signed_by(&ledger["authorities"]["control"], &name)
        }),
        ("root of the control CA", Intruder::signed_by(&ledger["authorities"]["control"], "root")),
    ];
    let facts = FactsRequest { fence: Some(u64::MAX), auth: true, reach: Default::default() };
    let stop = Envelope { fence: u64::MAX, order: Order::Etcd(EtcdOrder::Stop) };
    for (who, intruder) in &strangers {
        let asked = intruder.ask(address, path::FACTS, &facts);
        assert!(asked.is_err(), "{who} was answered: {asked:?}");
        let ordered = intruder.ask(address, path::ORDERS, &stop);
        assert!(ordered.is_err(), "{who} was answered: {ordered:?}");
    }
    assert_unimpressed(&trio, agent);
    let controller = Intruder::controller(&ledger);
    let (status, answer) = controller
        .ask(address, path::FACTS, &FactsRequest { fence: None, auth: false, reach: Default::default() })
        .unwrap();
    assert_eq!((status, &answer["fence"]), (200, &ledger["fence"]), "the controller itself is answered");
    trio.assert_settled();
}

#[test]
fn noise_stalls_and_crowds_at_the_agents_port_do_not_keep_the_controller_out() {
    let trio = Trio::up(Login::Certificate);
    let (address, agent) = (trio.address("etcd-1"), trio.agent_of("etcd-1").expect("it runs"));
    let hello_begins: &[u8] = &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00];
    let noise: [&[u8]; 5] = [b"", b"\0\0\0\0", &[0xff; 100_000], b"GET /v1/facts HTTP/1.1\r\n\r\n", hello_begins];
    for bytes in noise {
        let mut stream = connect(address, AGENT_PORT);
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP"), "plain text was answered");
    }
    assert_unimpressed(&trio, agent);

    // Connections that begin a handshake and never end it.
    let begun = Instant::now();
    let mut crowd: Vec<TcpStream> = (0..100).map(|_| connect(address, AGENT_PORT)).collect();
    crowd.iter_mut().for_each(|stream| stream.write_all(hello_begins).expect("it is sent"));
    assert_unimpressed(&trio, agent);
    assert!(begun.elapsed() < Duration::from_secs(5), "the controller had to wait: {:?}", begun.elapsed());
    let open = fs::read_dir(format!("/proc/{agent}/fd")).expect("it runs").count();
    assert!(open < 160, "the agent keeps {open} files open");
    for mut stream in crowd {
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time limit");
        let ended = stream.read_to_end(&mut Vec::new());
        assert!(!ended.is_err_and(|e| e.kind() == ErrorKind::WouldBlock), "a stalled handshake is kept forever");
    }
    assert_unimpressed(&trio, agent);
    let resident = fs::read_to_string(format!("/proc/{agent}/status")).expect("it runs");
    let resident = resident.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("its memory").trim();
    let kibibytes: u64 = resident.trim_end_matches(" kB").parse().expect("a number");
    assert!(kibibytes < 64 << 10, "the agent has grown to {resident}");
}

#[test]
fn the_controllers_certificate_does_not_open_a_permanently_closed_agent() {
    let trio = Trio::up(Login::Certificate);
    let (address, agent) = (trio.address("etcd-1"), trio.agent_of("etcd-1").expect("it runs"));
    let ledger = trio.ledger();
    let controller = Intruder::controller(&ledger);
    let state_file = trio.root("etcd-1").join("var/lib/quorate/state.json");
    let state = read_json(&state_file);
    let refused = |answer: io::Result<(u16, Value)>, why: &str| {
        let (status, body) = answer.expect("an answer");
        assert_eq!(status, 409, "{body}");
        assert!(body.to_string().contains(why), "{body}");
    };

    // An enrolment again, by someone who kept everything that was ever sent.
    let again = EnrolRequest { nonce: String::from("0123"), key_algorithm: KeyAlgorithm::P256 };
    refused(controller.ask(address, path::ENROL, &again), "already_enrolled");
    let chain = state["chains"]["agent"].as_str().expect("its certificate").to_owned();
    refused(controller.ask(address, path::ENROL_CERTIFICATE, &EnrolCertificate { chain }), "already_enrolled");

    // Orders of yesterday.
    let fence = ledger["fence"].as_u64().expect("a number");
    let older = Envelope { fence: fence - 1, order: Order::Etcd(EtcdOrder::Stop) };
    refused(controller.ask(address, path::ORDERS, &older), "stale_fence");
    let generation = state["node_config"]["generation"].as_u64().expect("a number");
    let config: NodeConfig = serde_json::from_value(state["node_config"]["config"].clone()).expect("a node config");
    let mut other = config.clone();
    other.etcd_mut().unwrap().flags.insert(String::from("log-level"), String::from("debug"));
    let converge = |generation, config| Envelope { fence, order: Order::converge(generation, config, None) };
    refused(controller.ask(address, path::ORDERS, &converge(generation - 1, config.clone())), "stale_generation");
    refused(controller.ask(address, path::ORDERS, &converge(generation, other)), "changed_content");

    // Too much at once.
    let huge = post(path::ORDERS, "Content-Length: 1073741824\r\n");
    assert_eq!(controller.send(address, &[huge.as_bytes()]).expect("an answer").0, 413);
    let (head, chunk) =
        (post(path::ORDERS, "Transfer-Encoding: chunked\r\n"), [b"10000\r\n", &[b' '; 0x10000][..], b"\r\n"].concat());
    let endless: Vec<&[u8]> = [head.as_bytes()].into_iter().chain((0..320).map(|_| &chunk[..])).collect();
    assert!(controller.send(address, &endless).map_or(true, |(status, _)| status == 400), "20 MiB were taken");
    let nonsense = controller.send(address, &[post(path::ORDERS, "Content-Length: 2\r\n").as_bytes(), b"[]"]);
    assert_eq!(nonsense.expect("an answer").0, 400);

    assert_eq!(read_json(&state_file), state, "the agent remembers something else now");
    assert_unimpressed(&trio, agent);
    trio.assert_settled();
}

#[test]
fn the_seed_of_an_enrolled_machine_is_worth_nothing_to_another() {
    let trio = Trio::up(Login::Certificate);
    let own = trio.agent_of("etcd-2").expect("it runs");
    signal(own, "KILL");
    eventually("the agent ends", 5, || trio.agent_of("etcd-2").is_none());
    // To the provider, the machine seems to run.
    let lock = fs::File::open(trio.root("etcd-2").join(quorate_agent::LOCK_FILE)).expect("its lock");
    lock.lock().expect("nobody holds it");

    let seed = trio.sandbox.path().join("stolen-seed.json");
    fs::copy(trio.machine("etcd-2").join("seed.json"), &seed).expect("a copy");
    let root = trio.sandbox.path().join("impostor");
    let (root_text, seed_text) = (root.display().to_string(), seed.display().to_string());
    let mut impostor = trio.sandbox.command(&["agent", "--root", &root_text, "--seed", &seed_text]);
    let mut impostor = impostor.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("an impostor");
    let address = trio.address("etcd-2");
    eventually("the impostor answers", 5, || TcpStream::connect((address, AGENT_PORT)).is_ok());

    let plan = trio.sandbox.quorate(&["plan", NAME, "--output", "json"]).expect(3).json();
    assert_eq!(plan["clusters"][0]["blocked"][0]["kind"], "second-key", "{plan:#}");
    let before = trio.ledger()["members"]["etcd-2"]["enrolment"]["bound_key"].clone();
    let refused = trio.apply().expect(3).text();
    assert!(refused.contains("an enrolment token is valid for one key"), "{refused}");
    assert!(refused.contains("find out who answers at the address of etcd-2"), "{refused}");
    assert_eq!(trio.ledger()["members"]["etcd-2"]["enrolment"]["bound_key"], before);
    assert_eq!(read_json(&root.join("var/lib/quorate/state.json"))["enrolled"], false);
    assert!(!root.join("etc").exists(), "the impostor was given something");

    let _ = impostor.kill();
    let _ = impostor.wait();
    drop(lock);
    trio.apply().ok();
    trio.assert_settled();
}

fn connect(address: IpAddr, port: u16) -> TcpStream {
    let stream = TcpStream::connect((address, port)).expect("somebody listens");
    stream.set_read_timeout(Some(Duration::from_secs(8))).expect("a time limit");
    stream
}

/// What the health page answers to these bytes: status and body.
fn health(address: IpAddr, request: &[u8]) -> (u16, String) {
    let mut stream = connect(address, HEALTH_PORT);
    stream.write_all(request).expect("it is sent");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

#[test]
fn the_health_page_shows_only_health() {
    const GET: &[u8] = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
    let trio = Trio::up(Login::Certificate);
    let (address, agent) = (trio.address("etcd-1"), trio.agent_of("etcd-1").expect("it runs"));
    let well = (200, String::from(r#"{"health":"true"}"#));
    assert_eq!(health(address, GET), well);
    let etcd = trio.etcd_of("etcd-1").expect("it runs");
    signal(etcd, "STOP");
    eventually("the page tells that etcd hangs", 8, || health(address, GET).0 == 503);
    let (_, body) = health(address, GET);
    let told: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(told["health"], "false");
    assert!(body.len() < 100 && !body.contains("127."), "too much is told: {body}");
    signal(etcd, "CONT");
    eventually("the page tells that etcd is well", 15, || health(address, GET) == well);

    assert_eq!(health(address, b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n"), (200, String::new()));
    assert_eq!(health(address, b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").0, 405);
    for other in ["/", "/v1/facts", "/metrics", "/health/../etc/passwd"] {
        let (status, body) = health(address, format!("GET {other} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        assert_eq!((status, body.as_str()), (404, ""), "{other}");
    }
    for garbage in [&b"\x16\x03\x01\x02\x00"[..], b"\r\n\r\n\r\n", &[b'A'; 60_000]] {
        let (status, body) = health(address, &[garbage, b"\r\n\r\n"].concat());
        assert!(matches!(status, 0 | 400 | 414 | 431) && body.is_empty(), "{status} {body}");
    }
    // A crowd that says nothing is in nobody's way.
    let begun = Instant::now();
    let crowd: Vec<TcpStream> = (0..150).map(|_| connect(address, HEALTH_PORT)).collect();
    assert_eq!(health(address, GET), well);
    assert!(begun.elapsed() < Duration::from_millis(1500), "the page came after {:?}", begun.elapsed());
    drop(crowd);
    assert_unimpressed(&trio, agent);
}

/// No part of the home, as far as others can look, is theirs to change.
#[test]
fn nothing_of_the_home_can_be_written_by_others() {
    let trio = Trio::up(Login::Password);
    let writable = |path: &Path| {
        let found = fs::symlink_metadata(path).expect("a file");
        !found.is_symlink() && found.permissions().mode() & 0o022 != 0
    };
    let found: Vec<_> = files_below(&trio.sandbox.home()).into_iter().filter(|p| writable(p)).collect();
    assert_eq!(found, Vec::<std::path::PathBuf>::new());
}
