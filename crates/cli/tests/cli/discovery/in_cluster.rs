//! Tokens that are kept in an etcd cluster.

use serde_json::Value;

use super::{PORT, Service, all_healthy, new_path, register, send, spawn, token, version};
use crate::common::{Sandbox, address, eventually, newest, signal, spec};

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
