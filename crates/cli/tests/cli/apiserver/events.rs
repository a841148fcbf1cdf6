//! Events in a separate cluster, and encrypted Secrets: kube-apiserver accepts what `quorate kubernetes` writes for both.

use std::fs;

use super::server::ApiServer;
use super::{Ground, NAME, OPERATOR, REGISTRY, Settings, V36};
use crate::common::backups::make_key;
use crate::common::{Sandbox, address, eventually};

const EVENTS: &str = "events";
const TLS: &str = "ca: {certificate: corp.crt, key: corp.key}";
const EVENT: &str = "apiVersion: v1
kind: Event
metadata: {name: lab, namespace: default}
involvedObject: {kind: Pod, name: lab, namespace: default}
reason: Lab
message: from the lab
type: Normal
";

/// The cluster of the other tests, and another one like it.
fn two_clusters() -> Ground {
    let sandbox = Sandbox::new(V36);
    sandbox.make_ca("corp", "ec");
    let recipient = make_key(&sandbox, OPERATOR);
    let ground = Ground { sandbox, recipient, options: &["--events", EVENTS, "--encrypt-secrets"] };
    ground.write_spec(Settings { version: V36, tls: TLS, permissions: REGISTRY });
    let one = fs::read_to_string(ground.sandbox.path().join("c.yaml")).expect("a spec");
    let (_, cluster) = one.split_once("clusters:\n").expect("clusters");
    let mut other = cluster.replace(&format!("name: {NAME}\n"), &format!("name: {EVENTS}\n")).replace("store", "other");
    for n in 1..=3 {
        other = other.replace(&format!("{}}}", address(n)), &format!("{}}}", address(n + 3)));
    }
    ground.sandbox.file("c.yaml", &format!("{one}{other}"));
    ground
}

#[test]
#[ignore = "needs a kube-apiserver: `cargo xtask lab kubernetes` runs it"]
fn events_are_in_a_separate_cluster_and_secrets_are_encrypted() {
    let ground = two_clusters();
    ground.apply(&[]).ok();
    let server = ApiServer::start(&ground);
    let keys = |cluster: &str, prefix: &str| {
        ground.sandbox.etcdctl(V36, cluster, &["get", prefix, "--prefix", "--keys-only"]).ok().stdout
    };
    let file = ground.sandbox.file("event.yaml", EVENT).display().to_string();
    eventually("there is a namespace", 60, || server.kubectl(&["create", "--filename", &file]).code == Some(0));
    assert!(keys(EVENTS, "/registry/events/").contains("/registry/events/default/lab"));
    assert_eq!(keys(NAME, "/registry/events/").trim(), "");
    assert_eq!(keys(EVENTS, "/registry/namespaces/").trim(), "");
    server.kubectl(&["create", "secret", "generic", "lab", "--from-literal=word=nobody-reads-this"]).ok();
    let stored = ground.sandbox.etcdctl(V36, NAME, &["get", "/registry/secrets/default/lab", "--print-value-only"]);
    let stored = stored.ok().stdout;
    assert!(stored.starts_with("k8s:enc:") && !stored.contains("nobody-reads-this"), "{stored}");
    let read = server.kubectl(&["get", "secret", "lab", "--output=jsonpath={.data.word}"]).ok().stdout;
    assert_eq!(read, "bm9ib2R5LXJlYWRzLXRoaXM=");
    assert_eq!(server.refused(), [""; 0]);
}
