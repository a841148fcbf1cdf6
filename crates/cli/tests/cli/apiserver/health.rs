//! The commands of the table "Health" in docs/kubernetes.md, on a healthy cluster under an API server: they show what the table says.

use std::collections::BTreeSet;

use serde_json::Value;

use super::server::ApiServer;
use super::{Ground, NAME, REGISTRY, Settings, V36};

#[test]
#[ignore = "needs a kube-apiserver: `cargo xtask lab kubernetes` runs it"]
fn health_commands_show_what_the_page_says() {
    let ground = Ground::up(Settings { version: V36, tls: "", permissions: REGISTRY });
    let server = ApiServer::start(&ground);
    let sandbox = &ground.sandbox;
    let etcdctl = |words: &[&str]| sandbox.etcdctl(V36, NAME, words).ok().text();

    let status = sandbox.quorate(&["status", NAME]).ok().stdout;
    assert!(status.contains("healthy: 3 of 3 voters; tolerates 1 failure"), "{status}");
    for column in ["ROLE", "VERSION", "LAG", "CERTIFICATE"] {
        assert!(status.contains(column), "{column} in {status}");
    }
    let members = etcdctl(&["member", "list", "-w", "table"]);
    assert_eq!((members.matches("| started |").count(), members.matches("| true |").count()), (3, 0), "{members}");
    etcdctl(&["endpoint", "status", "--cluster", "-w", "table"]);
    let endpoints: Value =
        serde_json::from_str(&etcdctl(&["endpoint", "status", "--cluster", "-w", "json"])).expect("JSON");
    let endpoints = endpoints.as_array().expect("endpoints");
    let each = |field: &str| endpoints.iter().map(|one| one["Status"][field].to_string()).collect::<BTreeSet<_>>();
    assert_eq!((endpoints.len(), each("leader").len(), each("raftTerm").len()), (3, 1, 1), "{endpoints:?}");
    let health = etcdctl(&["endpoint", "health", "--cluster"]);
    assert_eq!(health.matches("is healthy").count(), 3, "{health}");

    let mut probe = sandbox.environment(NAME);
    for (name, file) in [("CACERT", "ca.crt"), ("CERT", "healthcheck-client.crt"), ("KEY", "healthcheck-client.key")] {
        let file = ground.files().join("pki/etcd").join(file).display().to_string();
        probe.insert(format!("ETCDCTL_{name}"), file);
    }
    let health = sandbox.etcdctl_with(V36, &probe, &["endpoint", "health"]).ok().text();
    assert_eq!(health.matches("is healthy").count(), 3, "{health}");
    let denied = sandbox.etcdctl_with(V36, &probe, &["get", "/registry/health"]).fails().text();
    assert!(denied.contains("permission denied"), "{denied}");

    let ready = server.kubectl(&["get", "--raw", "/readyz?verbose"]).ok().stdout;
    assert!(ready.contains("[+]etcd ok") && ready.contains("[+]etcd-readiness ok"), "{ready}");
    let files = ground.files().display().to_string();
    let words = ["kubernetes", NAME, "--out", &files, "--dir", &files, "--output", "json"];
    let written = sandbox.quorate(&words).ok().json();
    let certificates = written["certificates"].as_array().expect("certificates");
    assert!(certificates.len() == 2 && certificates.iter().all(|one| one["renew_after"].is_string()), "{written:#}");
}
