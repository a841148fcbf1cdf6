//! The etcd permissions that kube-apiserver needs.

use super::server::ApiServer;
use super::{Ground, REGISTRY, Settings, V35, V36};
use crate::common::eventually;

const WITH_COMPACTION: &str = "{prefix: /registry/, access: readwrite}, {key: compact_rev_key, access: readwrite}";

fn ground(version: &'static str, permissions: &'static str) -> Ground {
    Ground::up(Settings { version, tls: "", permissions })
}

#[test]
#[ignore = "needs a kube-apiserver: `cargo xtask lab kubernetes` runs it"]
fn an_api_server_needs_its_prefix_and_no_more() {
    for version in [V35, V36] {
        let ground = ground(version, REGISTRY);
        let server = ApiServer::start(&ground);
        server.kubectl(&["create", "configmap", "some", "--from-literal=a=b"]).ok();
        // Events expire by a lease.
        let event = "apiVersion: v1\nkind: Event\nmetadata: {name: some, namespace: default}\n\
            involvedObject: {kind: ConfigMap, name: some, namespace: default}\nreason: Test\n";
        let file = ground.sandbox.file("event.yaml", event).display().to_string();
        server.kubectl(&["create", "--filename", &file]).ok();
        server.kubectl(&["delete", "configmap", "some"]).ok();
        let health = server.kubectl(&["get", "--raw", "/livez/etcd"]).ok();
        assert_eq!(health.stdout, "ok");
        assert_eq!(server.refused(), Vec::<String>::new(), "etcd {version}");
        assert_eq!(server.asked_for_status_in_vain(), version == V35, "etcd {version}");
    }
}

#[test]
#[ignore = "needs a kube-apiserver: `cargo xtask lab kubernetes` runs it"]
fn an_api_server_that_compacts_is_refused() {
    for (permissions, request) in [(REGISTRY, "compact_rev_key"), (WITH_COMPACTION, "compact failed")] {
        for version in [V35, V36] {
            let ground = ground(version, permissions);
            let server = ApiServer::start_with(&ground, Some("2s"));
            let refused = || server.refused().into_iter().find(|line| line.contains(request));
            eventually(&format!("etcd {version} refuses: {request}"), 30, || refused().is_some());
            println!("etcd {version}, {permissions}: {}", refused().unwrap_or_default());
        }
    }
}
