//! Real clusters of every supported etcd, size and login: they come up, serve only the clients that they should, do not
//! change without a request, and leave nothing behind.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{OLDEST, Run, Sandbox, address, arguments, newest, newest_of, signal, spec};

#[test]
fn etcd_3_4_by_certificate() {
    lives("3.4.23", 3, "certificate");
}

#[test]
fn etcd_3_4_by_password() {
    lives("3.4.23", 3, "password");
}

#[test]
fn etcd_3_5_by_certificate() {
    lives("3.5.30", 3, "certificate");
}

#[test]
fn etcd_3_5_by_password() {
    lives("3.5.30", 3, "password");
}

#[test]
fn etcd_3_6_by_both() {
    for_newest_of("3.6", |version| {
        lives(version, 3, "certificate");
        lives(version, 3, "password");
    });
}

#[test]
fn etcd_3_7_by_both() {
    for_newest_of("3.7", |version| {
        lives(version, 3, "certificate");
        lives(version, 3, "password");
    });
}

#[test]
fn one_member() {
    lives(OLDEST, 1, "certificate");
    lives(&newest(), 1, "password");
}

#[test]
fn five_members() {
    lives(&newest(), 5, "certificate");
}

#[test]
fn seven_members() {
    lives("3.5.30", 7, "password");
}

/// Versions that are built with a Go toolchain are not at hand everywhere; `cargo xtask test` says so too.
fn for_newest_of(minor: &str, test: impl FnOnce(&str)) {
    match newest_of(minor) {
        Some(version) => test(&version),
        None => eprintln!("no etcd {minor} is at hand: not covered"),
    }
}

/// The whole life of a cluster made by `quorate up`.
fn lives(version: &str, members: usize, login: &str) {
    let sandbox = Sandbox::new(version);
    let count = members.to_string();
    let up = sandbox.quorate(&["up", "c", "--members", &count, "--etcd-version", version, "--client-auth", login]);
    assert!(up.ok().stdout.contains("cluster c is healthy"));
    serves(&sandbox, members);
    refuses_strangers(&sandbox, login);
    is_healthy(&sandbox, version, members);
    stays_as_it_is(&sandbox, "c");
    is_switched_off_and_on(&sandbox, version, members);
    goes(&sandbox);
}

/// The oldest and the newest etcdctl work with nothing but the printed environment.
fn serves(sandbox: &Sandbox, members: usize) {
    for client in [OLDEST, &newest()] {
        let etcdctl = |arguments: &[&str]| sandbox.etcdctl(client, "c", arguments).ok();
        let list = etcdctl(&["member", "list"]).stdout;
        assert_eq!(list.lines().filter(|l| l.contains("started")).count(), members, "{list}");
        etcdctl(&["put", "/kept", client]);
        assert_eq!(etcdctl(&["get", "/kept", "--print-value-only"]).stdout.trim(), client);
        let health = etcdctl(&["endpoint", "health"]).text();
        assert_eq!(health.matches("is healthy").count(), members, "{health}");
    }
}

fn refuses_strangers(sandbox: &Sandbox, login: &str) {
    let known = sandbox.environment("c");
    // etcd answers a wrong password, after it has computed a hash; without a certificate there is no answer to wait for.
    let patience = if login == "password" { "30s" } else { "1s" };
    let get = |environment: &BTreeMap<_, _>| {
        let patience = format!("--command-timeout={patience}");
        sandbox.etcdctl_with(&newest(), environment, &["get", "/kept", &patience, "--dial-timeout=1s"])
    };
    let mut stranger = known.clone();
    if login == "password" {
        assert!(!known.contains_key("ETCDCTL_CERT"), "a password needs no certificate: {known:?}");
        stranger.remove("ETCDCTL_USER").expect("a login in the environment");
        assert!(get(&stranger).fails().stderr.contains("user name is empty"));
        stranger.insert("ETCDCTL_USER".into(), "root:wrong".into());
        assert!(get(&stranger).fails().stderr.contains("authentication failed"));
        return;
    }
    assert!(!known.contains_key("ETCDCTL_USER"), "a certificate needs no password: {known:?}");
    stranger.remove("ETCDCTL_CERT").and(stranger.remove("ETCDCTL_KEY")).expect("a certificate in the environment");
    get(&stranger).fails();
    // The same name, and signed by somebody: but not by the cluster's CA.
    sandbox.openssl(&[
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=root", "-keyout", "s.key", "-out", "s.crt",
    ]);
    // The reason is the certificate and nothing else.
    let (certificate, key) = (known["ETCDCTL_CERT"].as_str(), known["ETCDCTL_KEY"].as_str());
    let health = |identity: &[&str]| https(sandbox, "GET", "/health", "", "", identity).text();
    assert!(health(&["-cert", certificate, "-key", key]).contains("200 OK"));
    assert!(health(&[]).contains("alert"), "{}", health(&[]));
    assert!(health(&["-cert", "s.crt", "-key", "s.key"]).contains("alert"));
}

fn is_healthy(sandbox: &Sandbox, version: &str, members: usize) {
    let status = sandbox.status("c");
    assert_eq!(status["verdict"], "healthy", "{status:#}");
    let of = |field: &str| -> Vec<String> {
        let members = status["members"].as_array().expect("members").iter();
        members.map(|m| m[field].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(of("role").iter().filter(|role| *role == "leader").count(), 1, "{status:#}");
    assert_eq!(of("role").iter().filter(|role| *role == "voter").count(), members - 1, "{status:#}");
    assert_eq!(of("version"), vec![version; members]);
    assert_eq!(of("health"), vec!["healthy"; members]);
    assert_eq!(status["failures_survived"], (members - 1) / 2);
    assert_eq!(of("address").into_iter().collect::<BTreeSet<_>>().len(), members, "addresses of their own");
}

/// A plan finds nothing, and neither processes nor the ledger change when it is applied, twice.
fn stays_as_it_is(sandbox: &Sandbox, target: &str) {
    let plan = sandbox.quorate(&["plan", target, "--detailed-exitcode"]).ok();
    assert!(plan.stdout.contains("nothing to do"), "{}", plan.stdout);
    let remembered = || {
        let mut ledger = sandbox.ledger("c");
        for moving in ["version", "fence"] {
            ledger[moving] = json!(null);
        }
        ledger["etcd"]["highest_revision"] = json!(null);
        ledger
    };
    let before = (sandbox.processes(), remembered(), generations(&sandbox.status("c")));
    for _ in 0..2 {
        sandbox.quorate(&["apply", target, "--yes"]).ok();
        assert_eq!(before, (sandbox.processes(), remembered(), generations(&sandbox.status("c"))));
    }
}

fn generations(status: &Value) -> Vec<Value> {
    status["members"].as_array().expect("members").iter().map(|m| m["generation"].clone()).collect()
}

fn is_switched_off_and_on(sandbox: &Sandbox, version: &str, members: usize) {
    let down = sandbox.quorate(&["down", "c"]).ok();
    assert!(down.stdout.contains("cluster c is off"), "{}", down.stdout);
    assert_eq!(sandbox.processes(), []);
    let off = sandbox.quorate(&["status", "c", "--output", "json"]).ok().json();
    assert_eq!(off["verdict"], "off");
    assert!(off["members"].as_array().expect("members").iter().all(|m| m["health"] == "off"), "{off:#}");
    sandbox.quorate(&["down", "c"]).ok();
    sandbox.quorate(&["start", "c"]).ok();
    is_healthy(sandbox, version, members);
    let kept = sandbox.etcdctl(&newest(), "c", &["get", "/kept", "--print-value-only"]).ok();
    assert_eq!(kept.stdout.trim(), newest());
}

/// Destruction needs a word about the backup, and leaves neither process nor file.
fn goes(sandbox: &Sandbox) {
    let refused = sandbox.quorate(&["destroy", "c", "--yes"]).expect(3);
    assert!(refused.stderr.contains("--without-backup"), "{}", refused.stderr);
    assert!(refused.stderr.contains("data is deleted only with consent"), "{}", refused.stderr);
    sandbox.quorate(&["apply", "c", "--yes"]).ok();
    sandbox.quorate(&["destroy", "c", "--yes", "--without-backup"]).ok();
    assert_eq!(sandbox.processes(), []);
    assert!(!sandbox.has_machines());
    assert!(!sandbox.home().join("clusters/c").exists());
    let unknown = sandbox.quorate(&["status", "c"]).expect(1);
    assert!(unknown.stderr.contains("there is no cluster `c`"), "{}", unknown.stderr);
}

/// One HTTPS request to the first member, by openssl's own client.
fn https(sandbox: &Sandbox, method: &str, path: &str, header: &str, body: &str, identity: &[&str]) -> Run {
    let environment = sandbox.environment("c");
    let endpoint = environment["ETCDCTL_ENDPOINTS"].split(',').next().expect("an endpoint");
    let address = endpoint.strip_prefix("https://").expect("https");
    let mut client = Command::new("openssl")
        .args([
            "s_client",
            "-quiet",
            "-verify_return_error",
            "-connect",
            address,
            "-CAfile",
            &environment["ETCDCTL_CACERT"],
        ])
        .args(identity)
        .current_dir(sandbox.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("openssl runs");
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n{header}\r\n{body}"
    );
    // A refused client finds its connection closed.
    let mut stdin = client.stdin.take().expect("a pipe");
    let _ = stdin.write_all(request.as_bytes());
    client.wait_with_output().expect("openssl ends").into()
}

/// Logs in through the JSON gateway and gives the token.
fn log_in(sandbox: &Sandbox) -> String {
    let user = sandbox.environment("c")["ETCDCTL_USER"].clone();
    let (name, password) = user.split_once(':').expect("name and password");
    let body = json!({"name": name, "password": password}).to_string();
    let answer = https(sandbox, "POST", "/v3/auth/authenticate", "", &body, &[]).stdout;
    let token = body_of(&answer)["token"].as_str().map(str::to_owned);
    token.unwrap_or_else(|| panic!("no token in {answer}"))
}

fn body_of(answer: &str) -> Value {
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    let (from, to) = (body.find('{').unwrap_or(0), body.rfind('}').map_or(0, |at| at + 1));
    serde_json::from_str(&body[from..to]).unwrap_or_else(|e| panic!("{e} in {answer}"))
}

#[test]
fn the_gateway_serves_json_after_a_login_and_jwt_survives_restarts() {
    for version in [OLDEST, &newest()] {
        let sandbox = Sandbox::new(version);
        let settings = "grpc_gateway: true, client_auth: password";
        let file = sandbox.file("c.yaml", &spec(1, version, settings, "auth: {token: jwt}"));
        sandbox.quorate(&["apply", file.to_str().unwrap(), "--yes"]).ok();
        stays_as_it_is(&sandbox, file.to_str().unwrap());
        sandbox.etcdctl(OLDEST, "c", &["put", "foo", "bar"]).ok();
        sandbox.etcdctl(&newest(), "c", &["put", "foo", "bar"]).ok();
        let token = log_in(&sandbox);
        assert_eq!(token.split('.').count(), 3, "a signed token has three parts: {token}");
        let range = |token: &str| {
            let header = if token.is_empty() { String::new() } else { format!("Authorization: {token}\r\n") };
            https(&sandbox, "POST", "/v3/kv/range", &header, r#"{"key":"Zm9v"}"#, &[]).stdout
        };
        assert_eq!(body_of(&range(&token))["kvs"][0]["value"], "YmFy");
        assert!(range("").contains("user name is empty"), "{}", range(""));
        sandbox.quorate(&["down", "c"]).ok();
        sandbox.quorate(&["start", "c"]).ok();
        assert_eq!(body_of(&range(&token))["kvs"][0]["value"], "YmFy", "the keys of tokens are kept");
    }
}

#[test]
fn signed_tokens_and_no_gateway_unless_asked_for() {
    let sandbox = Sandbox::new(&newest());
    let file = sandbox.file("c.yaml", &spec(1, &newest(), "client_auth: password", ""));
    sandbox.quorate(&["apply", file.to_str().unwrap(), "--yes"]).ok();
    let answer = https(&sandbox, "POST", "/v3/kv/range", "", r#"{"key":"Zm9v"}"#, &[]).stdout;
    assert!(answer.contains("404"), "{answer}");
    let settings = "client_auth: password, grpc_gateway: true";
    fs::write(&file, spec(1, &newest(), settings, "")).unwrap();
    sandbox.quorate(&["apply", file.to_str().unwrap(), "--yes", "--allow-downtime"]).ok();
    assert_eq!(log_in(&sandbox).split('.').count(), 3, "a signed token has three parts");
    fs::write(&file, spec(1, &newest(), settings, "auth: {token: simple}")).unwrap();
    sandbox.quorate(&["apply", file.to_str().unwrap(), "--yes", "--allow-downtime"]).ok();
    assert_eq!(log_in(&sandbox).split('.').count(), 2, "a simple token is a word and an index");
}

#[test]
fn every_setting_reaches_etcd_and_its_certificate() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    let (first, second) = (address(1), address(2));
    let text = format!(
        "quorate: 1
clusters:
  - name: c
    namespace: dev
    initial_token: our-token
    members:
      - {{name: etcd-1, address: {first}}}
      - {{name: etcd-2, address: {second}}}
      - {{name: etcd-3}}
    etcd:
      version: {version}
      auto_compaction: {{mode: periodic, retention: 30m}}
      quota: 512MiB
      heartbeat: 50ms
      election: 700ms
      flags: {{max-txn-ops: 256, snapshot-count: 5000}}
    tls:
      organization: ACME
      extra_sans: [etcd.example.org, 192.0.2.7]
      leaf_validity: 90d
"
    );
    let file = sandbox.file("c.yaml", &text);
    let mut apply = sandbox.command(&["apply", file.to_str().unwrap(), "--yes"]);
    // What the operator's shell has for other etcds must not reach this one.
    let apply: Run = apply.env("ETCD_LOG_LEVEL", "debug").env("ETCD_NAME", "other").output().expect("it runs").into();
    apply.ok();
    let etcd = sandbox.etcd_of("etcd-1").expect("etcd-1 runs");
    let given = arguments(etcd);
    for expected in [
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=30m",
        "--quota-backend-bytes=536870912",
        "--heartbeat-interval=50",
        "--election-timeout=700",
        "--max-txn-ops=256",
        "--snapshot-count=5000",
        &format!("--listen-client-urls=https://{first}:2379"),
    ] {
        assert!(given.iter().any(|a| a == expected), "{expected} in {given:#?}");
    }
    let token = given.iter().find_map(|a| a.strip_prefix("--initial-cluster-token=")).expect("a token");
    assert!(token.starts_with("our-token-") && token.len() > "our-token-".len() + 8, "{token}");
    let environment = fs::read(format!("/proc/{etcd}/environ")).unwrap();
    assert!(!String::from_utf8_lossy(&environment).contains("ETCD_"));

    let machines: Vec<Value> = sandbox.status("c")["members"].as_array().unwrap().clone();
    let names: Vec<&str> = machines.iter().filter_map(|m| m["machine"].as_str()).collect();
    assert_eq!(names, ["etcd-1-dev", "etcd-2-dev", "etcd-3-dev"]);
    assert_eq!(machines[1]["address"], second.as_str());
    assert!(sandbox.home().join("machines/c/etcd-1-dev").is_dir());
    assert!(sandbox.etcdctl(&version, "c", &["member", "list"]).ok().stdout.contains("etcd-1"));

    let certificate = served_certificate(&sandbox, &first);
    for expected in [
        "O = ACME",
        "CN = etcd-1",
        "DNS:etcd.example.org",
        "DNS:etcd-1-dev",
        "IP Address:192.0.2.7",
        &format!("IP Address:{first}"),
        "IP Address:127.0.0.1",
        "TLS Web Server Authentication",
        "TLS Web Client Authentication",
        "id-ecPublicKey",
    ] {
        assert!(certificate.contains(expected), "{expected} in {certificate}");
    }
    let days = sandbox.status("c")["members"][0]["certificate_days_left"].as_i64().unwrap();
    assert!((88..=90).contains(&days), "{days} days");
    stays_as_it_is(&sandbox, file.to_str().unwrap());
}

#[test]
fn keys_of_other_algorithms() {
    for (version, algorithm, shown) in [(OLDEST, "rsa", "rsaEncryption"), (newest().as_str(), "ed25519", "ED25519")] {
        let sandbox = Sandbox::new(version);
        let tls = format!("tls: {{key_algorithm: {algorithm}}}");
        let file = sandbox.file("c.yaml", &spec(1, version, "", &tls));
        sandbox.quorate(&["apply", file.to_str().unwrap(), "--yes"]).ok();
        let status = sandbox.status("c");
        let certificate = served_certificate(&sandbox, status["members"][0]["address"].as_str().unwrap());
        assert!(certificate.to_lowercase().contains(&shown.to_lowercase()), "{certificate}");
        for client in [OLDEST, &newest()] {
            sandbox.etcdctl(client, "c", &["put", "foo", "bar"]).ok();
        }
        stays_as_it_is(&sandbox, file.to_str().unwrap());
    }
}

/// The certificate that etcd shows at this address, as openssl reads it.
fn served_certificate(sandbox: &Sandbox, address: &str) -> String {
    let script = format!("openssl s_client -connect {address}:2379 </dev/null 2>/dev/null | openssl x509 -noout -text");
    let run: Run = Command::new("sh").args(["-c", &script]).current_dir(sandbox.path()).output().expect("sh").into();
    run.ok().stdout
}

#[test]
fn a_change_of_settings_rolls_through_and_writers_hardly_notice() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    let file = sandbox.file("c.yaml", &spec(3, &version, "quota: 1GiB", ""));
    let file = file.to_str().unwrap();
    sandbox.quorate(&["apply", file, "--yes"]).ok();
    let status = sandbox.status("c");
    let leader = status["members"].as_array().unwrap().iter().find(|m| m["role"] == "leader").unwrap();
    let leader = leader["member"].as_str().unwrap().to_owned();
    let before = sandbox.etcds();
    fs::write(file, spec(3, &version, "quota: 2GiB", "")).unwrap();
    sandbox.quorate(&["plan", file, "--detailed-exitcode"]).expect(4);

    let (over, written) = (AtomicBool::new(false), AtomicUsize::new(0));
    let environment = sandbox.environment("c");
    let apply = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                let value = written.load(Ordering::SeqCst).to_string();
                let put = || sandbox.etcdctl_with(&version, &environment, &["put", "counter", &value]).code == Some(0);
                assert!(put() || put() || put(), "write {value} failed three times");
                written.fetch_add(1, Ordering::SeqCst);
            }
        });
        crate::common::eventually("a first write", 10, || written.load(Ordering::SeqCst) > 0);
        let apply = sandbox.quorate(&["apply", file, "--yes"]);
        over.store(true, Ordering::SeqCst);
        apply
    });
    let apply = apply.ok();
    assert!(written.load(Ordering::SeqCst) >= 5, "{written:?} writes");

    let lines: Vec<&str> = apply.stderr.lines().collect();
    let begun =
        |what: &str| lines.iter().filter(|l| l.contains(what) && !l.contains("… done")).copied().collect::<Vec<_>>();
    let restarts = begun("restart etcd on");
    assert_eq!(restarts.len(), 3, "{}", apply.stderr);
    assert!(restarts[2].contains(&format!("restart etcd on {leader}")), "the leader is the last: {restarts:?}");
    assert_eq!(begun(&format!("move the leader from {leader}")).len(), 1, "{}", apply.stderr);
    let after = sandbox.etcds();
    assert_eq!(after.len(), 3);
    assert!(after.iter().all(|pid| !before.contains(pid)), "every etcd was restarted");
    for pid in after {
        assert!(arguments(pid).iter().any(|a| a == "--quota-backend-bytes=2147483648"));
    }
    let last = (written.load(Ordering::SeqCst) - 1).to_string();
    let kept = sandbox.etcdctl(&version, "c", &["get", "counter", "--print-value-only"]).ok();
    assert_eq!(kept.stdout.trim(), last, "the last acknowledged write is there");
    stays_as_it_is(&sandbox, file);
}

#[test]
fn a_single_member_is_restarted_only_by_consent() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    let file = sandbox.file("c.yaml", &spec(1, &version, "quota: 1GiB", ""));
    let file = file.to_str().unwrap();
    sandbox.quorate(&["apply", file, "--yes"]).ok();
    let before = sandbox.etcds();
    fs::write(file, spec(1, &version, "quota: 2GiB", "")).unwrap();
    sandbox.quorate(&["plan", file]).expect(3);
    let refused = sandbox.quorate(&["apply", file, "--yes"]).expect(3).text();
    assert!(refused.contains("is the only voter") && refused.contains("--allow-downtime"), "{refused}");
    assert_eq!(sandbox.etcds(), before);
    sandbox.quorate(&["apply", file, "--yes", "--allow-downtime"]).ok();
    let after = sandbox.etcds();
    assert_ne!(after, before);
    assert!(arguments(after[0]).iter().any(|a| a == "--quota-backend-bytes=2147483648"));
    stays_as_it_is(&sandbox, file);
    // The word was for that once.
    fs::write(file, spec(1, &version, "quota: 3GiB", "")).unwrap();
    sandbox.quorate(&["apply", file, "--yes"]).expect(3);
    assert_eq!(sandbox.etcds(), after);
}

#[test]
fn several_clusters_of_one_file_live_beside_each_other() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    let one = spec(1, &version, "", "");
    let other = one.split_once("clusters:\n").unwrap().1.replace("name: c\n", "name: d\n");
    let file = sandbox.file("two.yaml", &format!("{one}{other}"));
    let file = file.to_str().unwrap();
    sandbox.quorate(&["apply", file, "--yes", "--cluster", "d"]).ok();
    assert_eq!(sandbox.etcds().len(), 1);
    sandbox.quorate(&["apply", file, "--yes"]).ok();
    assert_eq!(sandbox.etcds().len(), 2);
    sandbox.etcdctl(&version, "c", &["put", "name", "c"]).ok();
    assert_eq!(sandbox.etcdctl(&version, "d", &["get", "name"]).ok().stdout, "");
    let all = sandbox.quorate(&["status", "--output", "json"]).ok().json();
    assert_eq!(all.as_array().map(Vec::len), Some(2));
    sandbox.quorate(&["destroy", file, "--yes", "--without-backup"]).ok();
    assert_eq!(sandbox.processes(), []);
}

#[test]
fn a_killed_etcd_comes_back_by_itself() {
    let sandbox = Sandbox::new(&newest());
    sandbox.quorate(&["up", "c", "--members", "1"]).ok();
    let before = sandbox.etcds();
    signal(before[0], "KILL");
    crate::common::eventually("another etcd", 10, || sandbox.etcds().first().is_some_and(|pid| *pid != before[0]));
    crate::common::eventually("health", 10, || sandbox.status("c")["verdict"] == "healthy");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(sandbox.status("c")["members"][0]["restarts"], 1);
}
