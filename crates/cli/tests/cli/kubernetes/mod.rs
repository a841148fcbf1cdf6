//! The output of `quorate kubernetes`, on real clusters: certificates that can do what they should and nothing else, delivered
//! by a real ssh to a real sshd.

mod keys;
mod push;
mod sshd;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use crate::common::{OLDEST, Run, Sandbox, newest, spec};

const PERIODIC: &str = "auto_compaction: {mode: periodic, retention: 5m}";
const AUTH: &str = "\
auth:
  roles:
    - {name: kubernetes, permissions: [{prefix: /registry/, access: readwrite}]}
  users:
    - {name: kubernetes, roles: [kubernetes]}
    - {name: kubernetes-health}
";
const FILES: [(&str, u32); 8] = [
    ("kube-apiserver.flags", 0o644),
    ("kubeadm-v1beta3.yaml", 0o644),
    ("kubeadm-v1beta4.yaml", 0o644),
    ("pki/apiserver-etcd-client.crt", 0o644),
    ("pki/apiserver-etcd-client.key", 0o600),
    ("pki/etcd/ca.crt", 0o644),
    ("pki/etcd/healthcheck-client.crt", 0o644),
    ("pki/etcd/healthcheck-client.key", 0o600),
];

fn apply(sandbox: &Sandbox, text: &str) {
    sandbox.file("c.yaml", text);
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
}

/// What is in a directory: every file with its mode and content.
fn tree(directory: &Path) -> BTreeMap<String, (u32, String)> {
    let mut found = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).unwrap().map(Result::unwrap) {
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() {
                assert_eq!(metadata.permissions().mode() & 0o777, 0o700, "{:?}", entry.path());
                open.push(entry.path());
                continue;
            }
            let name = entry.path().strip_prefix(directory).unwrap().display().to_string();
            let content = fs::read_to_string(entry.path()).unwrap();
            found.insert(name, (metadata.permissions().mode() & 0o777, content));
        }
    }
    found
}

/// etcdctl with a certificate from the directory.
fn etcdctl(sandbox: &Sandbox, version: &str, cluster: &str, pair: &str, arguments: &[&str]) -> Run {
    let mut environment = sandbox.environment(cluster);
    let file = |kind: &str| sandbox.path().join(format!("out/pki/{pair}.{kind}")).display().to_string();
    environment.insert("ETCDCTL_CACERT".into(), sandbox.path().join("out/pki/etcd/ca.crt").display().to_string());
    environment.insert("ETCDCTL_CERT".into(), file("crt"));
    environment.insert("ETCDCTL_KEY".into(), file("key"));
    sandbox.etcdctl_with(version, &environment, arguments)
}

fn out(sandbox: &Sandbox, more: &[&str]) -> Value {
    let mut arguments = vec!["kubernetes", "c", "--out", "out", "--output", "json"];
    arguments.extend(more);
    sandbox.quorate(&arguments).ok().json()
}

/// The files that a run changed.
fn changed(written: &Value) -> Vec<&str> {
    let files = written["files"].as_array().unwrap().iter().filter(|file| file["change"] != "unchanged");
    let mut names: Vec<_> = files.map(|file| file["path"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(written["changed"], !names.is_empty());
    names
}

#[test]
fn users_files_rights_and_renewal() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    let told = sandbox.quorate(&["kubernetes", "c", "--out", "out"]).expect(1).stderr;
    assert!(told.contains("there is no cluster `c`"), "{told}");

    // The lines that the refusal prints are what the spec needs.
    let short = "tls: {leaf_validity: 2h, renew_before: 1h}";
    apply(&sandbox, &spec(1, &version, PERIODIC, short));
    let told = sandbox.quorate(&["kubernetes", "c", "--out", "out"]).expect(1).stderr;
    assert!(told.contains("users kubernetes and kubernetes-health are not declared"), "{told}");
    assert!(
        told.contains("c.yaml`") && told.contains("then run `quorate apply ") && !sandbox.path().join("out").exists(),
        "{told}"
    );
    let lines: String = told.lines().filter(|line| line.starts_with("    ")).map(|line| format!("{line}\n")).collect();
    let whole = format!("{}{lines}", spec(1, &version, PERIODIC, short));
    apply(&sandbox, &whole);

    sandbox.file("a-file", "");
    let told = sandbox.quorate(&["kubernetes", "c", "--out", "a-file"]).expect(1).stderr;
    assert!(told.contains("a-file is not a directory"), "{told}");
    sandbox.quorate(&["kubernetes", "c", "--out", "/proc/no"]).expect(1);
    assert_eq!(sandbox.ledger("c")["issued"]["users"], Value::Null, "nothing was signed for nothing");

    let told = sandbox.quorate(&["kubernetes", "c", "--out", "out"]).ok();
    assert!(
        told.stdout.contains("out/pki/apiserver-etcd-client.key") && !told.stderr.contains("note:"),
        "{}",
        told.text()
    );
    let directory = sandbox.path().join("out");
    let first = tree(&directory);
    let modes: Vec<(&str, u32)> = first.iter().map(|(name, (mode, _))| (name.as_str(), *mode)).collect();
    assert_eq!(modes, FILES);
    let endpoint = sandbox.environment("c")["ETCDCTL_ENDPOINTS"].clone();
    assert!(first["kube-apiserver.flags"].1.starts_with(&format!("--etcd-servers={endpoint}\n")), "{first:?}");
    let recorded = sandbox.ledger("c")["issued"]["users"].clone();
    let users: Vec<&str> = recorded.as_array().unwrap().iter().map(|known| known["user"].as_str().unwrap()).collect();
    assert_eq!(users, ["kubernetes", "kubernetes-health"]);

    rights(&sandbox);
    assert!(changed(&out(&sandbox, &[])).is_empty());
    assert_eq!(tree(&directory), first);

    // Renewal is due: the certificates are other ones, the keys stay.
    apply(&sandbox, &whole.replace("leaf_validity: 2h, renew_before: 1h", "leaf_validity: 4h, renew_before: 3h"));
    assert_eq!(changed(&out(&sandbox, &[])), ["pki/apiserver-etcd-client.crt", "pki/etcd/healthcheck-client.crt"]);
    assert_eq!(sandbox.ledger("c")["issued"]["users"].as_array().unwrap().len(), 4);
    rights(&sandbox);
    // A key that others could read is not, from now on; new keys are made where that is asked for.
    let key = directory.join("pki/apiserver-etcd-client.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(changed(&out(&sandbox, &[])), ["pki/apiserver-etcd-client.key"]);
    let pairs: Vec<&str> = FILES[3..].iter().map(|(name, _)| *name).filter(|name| *name != "pki/etcd/ca.crt").collect();
    assert_eq!(changed(&out(&sandbox, &["--new-keys"])), pairs);
    rights(&sandbox);

    // A key for Secrets is made once.
    let written = out(&sandbox, &["--encrypt-secrets"]);
    assert!(changed(&written).contains(&"encryption/config.yaml"), "{written}");
    let (mode, content) = tree(&directory)["encryption/config.yaml"].clone();
    assert!(mode == 0o600 && content.contains("kind: EncryptionConfiguration"), "{mode:o}");
    assert!(changed(&out(&sandbox, &["--encrypt-secrets"])).is_empty());
}

/// What the certificates can do, with clients of the oldest and the newest version.
#[track_caller]
fn rights(sandbox: &Sandbox) {
    for client in [OLDEST, &newest()] {
        let api = |arguments: &[&str]| etcdctl(sandbox, client, "c", "apiserver-etcd-client", arguments);
        let health = |arguments: &[&str]| etcdctl(sandbox, client, "c", "etcd/healthcheck-client", arguments);
        api(&["put", "/registry/a", "b"]).ok();
        assert!(api(&["get", "/registry/", "--prefix"]).ok().stdout.contains("/registry/a"));
        api(&["get", "/registry/health"]).ok();
        api(&["endpoint", "status"]).ok();
        let told = health(&["endpoint", "health"]).ok().text();
        assert!(told.contains("is healthy"), "{told}");
        for refused in [
            api(&["put", "/other", "x"]),
            api(&["put", "compact_rev_key", "x"]),
            api(&["get", "/registry0"]),
            api(&["get", "", "--prefix"]),
            // Why kube-apiserver is configured not to try.
            api(&["compaction", "2"]),
            api(&["user", "list"]),
            health(&["get", "/registry/a"]),
            health(&["put", "/registry/a", "x"]),
        ] {
            let told = refused.fails().stderr;
            assert!(told.contains("permission denied"), "{told}");
        }
    }
}

#[test]
fn events_in_a_cluster_with_the_same_ca() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    sandbox.make_ca("corp", "ec");
    let one = spec(1, &version, PERIODIC, &format!("tls: {{ca: {{certificate: corp.crt, key: corp.key}}}}\n{AUTH}"));
    let (head, cluster) = one.split_once("  - name: c").unwrap();
    let both = format!("{head}  - name: c{cluster}  - name: events{cluster}");
    apply(&sandbox, &both);
    let told = sandbox.quorate(&["kubernetes", "c", "--out", "out", "--events", "c"]).expect(1).stderr;
    assert!(told.contains("the same cluster c"), "{told}");
    let written = out(&sandbox, &["--events", "events"]);
    let endpoint = sandbox.environment("events")["ETCDCTL_ENDPOINTS"].clone();
    assert_eq!(written["events_endpoints"], serde_json::json!([endpoint]));
    let flags = fs::read_to_string(sandbox.path().join("out/kube-apiserver.flags")).unwrap();
    assert!(flags.contains(&format!("--etcd-servers-overrides=/events#{endpoint}\n")), "{flags}");
    for cluster in ["c", "events"] {
        etcdctl(&sandbox, &version, cluster, "apiserver-etcd-client", &["put", "/registry/events/a", "b"]).ok();
    }
    let serials = |cluster: &str| -> Vec<String> {
        let users = sandbox.ledger(cluster)["issued"]["users"].clone();
        users.as_array().unwrap().iter().map(|known| known["serial"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(serials("c"), serials("events"), "either cluster can revoke them");
    assert!(changed(&out(&sandbox, &["--events", "events"])).is_empty());

    // Who lost the user is refused, and stays so when the name returns: only a new certificate helps.
    let without = both.replace("- {name: kubernetes, roles: [kubernetes]}", "");
    let (main, _) = without.split_once("  - name: events").unwrap();
    let (_, events) = both.split_once("  - name: events").unwrap();
    apply(&sandbox, &format!("{main}  - name: events{events}"));
    etcdctl(&sandbox, &version, "c", "apiserver-etcd-client", &["get", "/registry/a"]).fails();
    apply(&sandbox, &both);
    let pair = ["pki/apiserver-etcd-client.crt", "pki/apiserver-etcd-client.key"];
    assert_eq!(changed(&out(&sandbox, &["--events", "events"])), pair);
    etcdctl(&sandbox, &version, "c", "apiserver-etcd-client", &["get", "/registry/a"]).ok();
}
