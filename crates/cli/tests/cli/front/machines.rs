//! `etcd.front` in the spec: fronts on separate machines and on members, while members are killed, restarted and upgraded behind them;
//! fronts that are lost, added and removed; and what an attacker gains from the machine of a front.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use super::{AUTH, PASSWORDS, base64, curl, put};
use crate::common::trio::files_below;
use crate::common::{Run, Sandbox, eventually, lab, newest, newest_of, signal, spec};

const AS_APP: [&str; 2] = ["-u", "app:correct horse"];

struct Fronted(Sandbox);

impl Fronted {
    fn new(version: &str) -> Self {
        let sandbox = Sandbox::new(version);
        sandbox.file("app.pw", "correct horse\n");
        sandbox.file("other.pw", "battery staple\n");
        Fronted(sandbox)
    }

    fn write(&self, version: &str, settings: &str, rest: &str) {
        self.0.file("c.yaml", &spec(3, version, settings, rest));
    }

    fn apply(&self, arguments: &[&str]) -> Run {
        self.0.quorate(&[&["apply", "c.yaml", "--yes"], arguments].concat()).ok()
    }

    fn ca(&self) -> String {
        self.0.environment("c")["ETCDCTL_CACERT"].clone()
    }

    /// The URLs of the fronts, as `output` prints them.
    fn fronts(&self) -> Vec<String> {
        let known = self.0.quorate(&["output", "c"]).ok().json();
        assert_eq!(known["url"], known["fronts"][0], "without a balancer a front is the one address");
        known["fronts"].as_array().expect("fronts").iter().filter_map(|url| url.as_str().map(str::to_owned)).collect()
    }

    fn rest(&self, url: &str, flags: &[&str], path: &str, body: Option<&Value>) -> (u16, Value) {
        curl(&self.ca(), flags, &format!("{url}{path}"), body)
    }

    /// What etcdctl needs to be root through the fronts.
    fn root(&self) -> BTreeMap<String, String> {
        Sandbox::exported(&self.0.quorate(&["env", "c", "--front"]).ok().stdout)
    }

    fn machine(&self, name: &str) -> PathBuf {
        self.0.home().join(format!("machines/c/{name}"))
    }

    fn front_log(&self, name: &str) -> String {
        fs::read_to_string(self.machine(name).join("root/var/log/front.log")).unwrap_or_default()
    }

    fn processes(&self, machine: &str, word: &str) -> Vec<u32> {
        let root = format!("/machines/c/{machine}/root");
        let found = self.0.processes().into_iter();
        found.filter(|(_, line)| line.contains(&root) && line.contains(word)).map(|(pid, _)| pid).collect()
    }

    fn lose(&self, machine: &str) {
        for word in [" agent --root ", " agent front "] {
            for pid in self.processes(machine, word) {
                signal(pid, "KILL");
            }
            eventually("it is gone", 10, || self.processes(machine, word).is_empty());
        }
        fs::remove_dir_all(self.machine(machine)).expect("its directory");
    }
}

/// A client that writes through one URL with a password, one key after the other.
struct Writer {
    stop: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
    writes: JoinHandle<Vec<String>>,
}

impl Writer {
    fn start(ca: String, url: String) -> Self {
        let (stop, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (ending, counted) = (stop.clone(), refused.clone());
        let writes = std::thread::spawn(move || {
            let mut confirmed = Vec::new();
            for number in 0.. {
                if ending.load(Ordering::Relaxed) {
                    break;
                }
                let key = format!("/a/w{number}");
                match curl(&ca, &AS_APP, &format!("{url}/v3/kv/put"), Some(&put(&key, "x"))) {
                    (200, _) => confirmed.push(key),
                    _ => _ = counted.fetch_add(1, Ordering::Relaxed),
                }
            }
            confirmed
        });
        Writer { stop, refused, writes }
    }

    /// What was confirmed, and how many writes were not.
    fn stop(self) -> (Vec<String>, usize) {
        self.stop.store(true, Ordering::Relaxed);
        let confirmed = self.writes.join().expect("the writer ends");
        (confirmed, self.refused.load(Ordering::Relaxed))
    }
}

fn on_machines(names: &[&str]) -> String {
    let machines: Vec<String> = names.iter().map(|name| format!("{{name: {name}}}")).collect();
    format!("client_auth: password, front: {{machines: [{}]}}", machines.join(", "))
}

#[test]
fn fronts_on_machines_serve_drain_are_replaced_and_removed_and_hold_nothing() {
    let (version, older) = (newest(), newest_of("3.6").expect("etcd 3.6"));
    let cluster = Fronted::new(&older);
    cluster.write(&older, &on_machines(&["front-1", "front-2"]), PASSWORDS);
    cluster.apply(&[]);
    cluster.0.assert_nothing_to_do("c.yaml");
    let status = cluster.0.status("c");
    assert_eq!(status["verdict"], "healthy", "{status:#}");
    assert!(status["summary"].as_str().is_some_and(|text| text.contains("2 of 2 proxies serve clients")), "{status:#}");
    let fronts = cluster.fronts();
    assert_eq!(fronts.len(), 2, "{fronts:?}");
    let root = cluster.root();
    assert_eq!(root["ETCDCTL_ENDPOINTS"], fronts.join(","));
    cluster.0.etcdctl_with(&older, &root, &["put", "/a/1", "one"]).ok();
    for url in &fronts {
        eventually("it serves", 10, || cluster.rest(url, &[], "/health", None).0 == 200);
        let (code, shown) = cluster.rest(url, &[], "/version", None);
        assert_eq!((code, shown["etcdserver"].as_str()), (200, Some(older.as_str())), "{shown}");
        let range = json!({"key": base64("/a/1")});
        let (code, answer) = cluster.rest(url, &AS_APP, "/v3/kv/range", Some(&range));
        assert_eq!((code, &answer["kvs"][0]["value"]), (200, &json!(base64("one"))), "{answer}");
        assert_eq!(cluster.rest(url, &[], "/v3/kv/range", Some(&range)).0, 401);
        assert_eq!(cluster.rest(url, &AS_APP, "/v3/kv/put", Some(&put("/b/1", "x"))).0, 403);
    }
    holds_nothing(&cluster, "front-1");

    // etcd is killed, restarted for another setting, and upgraded behind them.
    let writer = Writer::start(cluster.ca(), fronts[0].clone());
    signal(cluster.0.etcd_of("etcd-2").expect("etcd runs"), "KILL");
    eventually("etcd is back", 30, || cluster.0.status("c")["healthy"] == 3);
    cluster.write(&older, &format!("quota: 3GiB, {}", on_machines(&["front-1", "front-2"])), PASSWORDS);
    cluster.apply(&[]);
    for name in ["front-1", "front-2"] {
        let log = cluster.front_log(name);
        for member in ["etcd-1", "etcd-2", "etcd-3"] {
            let told = |line: &str| line.contains("is about to be stopped") && line.contains(member);
            assert!(log.lines().any(told), "{name} was not told of {member}:\n{log}");
        }
    }
    let newer = format!("quota: 3GiB, binary: {{path: {:?}}}, {}", lab(&version), on_machines(&["front-1", "front-2"]));
    cluster.write(&version, &newer, PASSWORDS);
    cluster.apply(&[]);
    let (confirmed, refused) = writer.stop();
    assert!(confirmed.len() > 20 && refused * 20 < confirmed.len(), "{} confirmed, {refused} not", confirmed.len());
    let listed = cluster.0.etcdctl_with(&version, &root, &["get", "/a/w", "--prefix", "--keys-only"]).ok().stdout;
    let there: std::collections::BTreeSet<&str> = listed.lines().collect();
    let lost: Vec<&String> = confirmed.iter().filter(|key| !there.contains(key.as_str())).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
    assert_eq!(cluster.rest(&fronts[1], &[], "/version", None).1["etcdserver"].as_str(), Some(version.as_str()));

    // A front that is killed comes back; one that is lost gets another machine.
    let [pid] = cluster.processes("front-1", " agent front ")[..] else { panic!("one process") };
    signal(pid, "KILL");
    eventually("it is started again", 20, || cluster.rest(&fronts[0], &[], "/health", None).0 == 200);
    cluster.lose("front-1");
    assert_eq!(cluster.0.status("c")["verdict"], "degraded");
    assert_eq!(cluster.rest(&fronts[1], &[], "/health", None).0, 200);
    let said = cluster.apply(&["--now"]).text();
    assert!(said.contains("it is a proxy and has no data"), "{said}");
    let renewed = cluster.fronts();
    eventually("the new one serves", 10, || cluster.rest(&renewed[0], &[], "/health", None).0 == 200);
    cluster.0.etcdctl_with(&version, &cluster.root(), &["get", "/a/1"]).ok();

    // One is removed, and then the section: nothing of them is left.
    let one = newer.replace("{name: front-1}, ", "");
    cluster.write(&version, &one, PASSWORDS);
    cluster.apply(&[]);
    assert_eq!(cluster.fronts(), renewed[1..]);
    cluster.write(&version, newer.split(", front:").next().expect("settings"), PASSWORDS);
    cluster.apply(&[]);
    assert!(cluster.fronts().is_empty());
    let said = cluster.0.quorate(&["env", "c", "--front"]).fails().stderr;
    assert!(said.contains("has no front"), "{said}");
    assert!(cluster.0.processes().iter().all(|(_, line)| !line.contains(" agent front ")), "a front still runs");
    assert!(!cluster.machine("front-2").exists() && !cluster.machine("front-1.2").exists());
    cluster.0.assert_nothing_to_do("c.yaml");
}

/// Neither a key of a CA nor a password, and no certificate with a user's name.
fn holds_nothing(cluster: &Fronted, front: &str) {
    let root = cluster.machine(front).join("root");
    let state = fs::read(root.join("var/lib/quorate/state.json")).expect("its state");
    let state: Value = serde_json::from_slice(&state).expect("JSON");
    let chains = state["chains"].as_object().expect("certificates");
    assert_eq!(chains.keys().collect::<Vec<_>>(), ["agent", "front"]);
    let shown = cluster.0.openssl(&["x509", "-noout", "-subject", "-ext", "extendedKeyUsage", "-in", &pair(&root).0]);
    assert!(shown.contains("front of c") && !shown.contains("CN"), "{shown}");
    // Where clients log in by password alone, it is of no use as a client.
    assert!(!shown.contains("Client Authentication"), "{shown}");
    let ledger = cluster.0.ledger("c");
    let mut secrets = vec![String::from("correct horse"), String::from("battery staple")];
    secrets.extend(ledger["auth"]["root_password"].as_str().map(str::to_owned));
    for authority in ["client", "control"] {
        let key = ledger["authorities"][authority]["key"].as_str().expect("a key");
        secrets.push(key.lines().nth(1).expect("a line of the key").to_owned());
    }
    for file in files_below(&root).into_iter().filter(|file| file.is_file()) {
        let content = String::from_utf8_lossy(&fs::read(&file).unwrap_or_default()).into_owned();
        let found = secrets.iter().any(|secret| content.contains(secret.as_str()));
        assert!(!found, "a secret of the cluster is in {}", file.display());
    }
}

/// The certificate and key of the front on the machine with this root.
fn pair(root: &Path) -> (String, String) {
    let file = |name: &str| root.join("etc/front/pki").join(name).display().to_string();
    (file("front.crt"), file("front.key"))
}

#[test]
fn fronts_on_members_are_added_and_removed_and_their_certificates_grant_nothing() {
    let version = newest();
    let cluster = Fronted::new(&version);
    cluster.write(&version, "", AUTH);
    cluster.apply(&[]);
    let etcds: Vec<_> = ["etcd-1", "etcd-2", "etcd-3"].map(|member| cluster.0.etcd_of(member)).into();
    cluster.write(&version, "front: {prefer: leader}", AUTH);
    cluster.apply(&[]);
    cluster.0.assert_nothing_to_do("c.yaml");
    assert_eq!(etcds, ["etcd-1", "etcd-2", "etcd-3"].map(|member| cluster.0.etcd_of(member)), "etcd was restarted");
    let fronts = cluster.fronts();
    assert_eq!(fronts.len(), 3);
    assert!(fronts.iter().all(|url| url.ends_with(":2378")), "{fronts:?}");
    let root = cluster.root();
    cluster.0.etcdctl_with(&version, &root, &["put", "/a/1", "one"]).ok();
    cluster.0.quorate(&["cert", "issue", "c", "--user", "app", "--out", "issued"]).ok();
    let issued = |kind: &str| cluster.0.path().join(format!("issued/app.{kind}")).display().to_string();
    let (certificate, key) = (issued("crt"), issued("key"));
    for url in &fronts {
        let mut app = root.clone();
        app.insert("ETCDCTL_ENDPOINTS".into(), url.clone());
        app.insert("ETCDCTL_CERT".into(), certificate.clone());
        app.insert("ETCDCTL_KEY".into(), key.clone());
        cluster.0.etcdctl_with(&version, &app, &["get", "/a/1"]).ok();
        cluster.0.etcdctl_with(&version, &app, &["put", "/b/1", "x"]).fails();
        assert_eq!(cluster.rest(url, &[], "/health", None).0, 200);
        // It verifies who that is, and cannot be that user.
        let range = json!({"key": base64("/a/1")});
        let (code, answer) = cluster.rest(url, &["--cert", &certificate, "--key", &key], "/v3/kv/range", Some(&range));
        assert!(code == 403 && answer["message"].as_str().is_some_and(|why| why.contains("gRPC")), "{code} {answer}");
    }

    // A thief of a front's key: no data, no snapshot, no peer, no agent.
    let stolen = pair(&cluster.machine("etcd-1").join("root"));
    let mut thief = cluster.0.environment("c");
    let member = thief["ETCDCTL_ENDPOINTS"].split(',').next().expect("an endpoint").to_owned();
    thief.insert("ETCDCTL_ENDPOINTS".into(), member.clone());
    thief.insert("ETCDCTL_CERT".into(), stolen.0.clone());
    thief.insert("ETCDCTL_KEY".into(), stolen.1.clone());
    for arguments in [
        &["get", "/a/1"][..],
        &["put", "/a/1", "x"],
        &["snapshot", "save", "stolen.db"],
        &["user", "list"],
        &["member", "remove", "1"],
        &["move-leader", "1"],
    ] {
        cluster.0.etcdctl_with(&version, &thief, arguments).fails();
    }
    let refused = |port: &str, path: &str| {
        let url = format!("{}{path}", member.replace(":2379", port));
        let mut command = std::process::Command::new("curl");
        let run = command.args(["-sk", "--max-time", "10", "--cert", &stolen.0, "--key", &stolen.1, &url]).output();
        let run: Run = run.expect("curl runs").into();
        assert!(!run.stdout.contains("etcd-2") && run.code != Some(0), "{port}{path}: {run:?}");
    };
    refused(":2380", "/members");
    refused(":2390", "/v1/facts");

    // A member is restarted with its front: the others serve.
    cluster.write(&version, "front: {prefer: leader}, quota: 3GiB", AUTH);
    cluster.apply(&[]);
    for url in &fronts {
        eventually("it serves", 10, || cluster.rest(url, &[], "/health", None).0 == 200);
    }

    // They go, with their keys.
    cluster.write(&version, "quota: 3GiB", AUTH);
    cluster.apply(&[]);
    assert!(cluster.fronts().is_empty());
    eventually("they end", 10, || cluster.0.processes().iter().all(|(_, line)| !line.contains(" agent front ")));
    assert!(!cluster.machine("etcd-1").join("root/etc/front/pki").exists(), "its key is still there");
    cluster.0.assert_nothing_to_do("c.yaml");
}
