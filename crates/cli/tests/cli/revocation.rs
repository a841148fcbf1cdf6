//! What becomes of a user's certificate when the user goes: it is refused at the door, and stays so when the name returns.

use std::collections::BTreeMap;
use std::fs;

use crate::common::intruder::Intruder;
use crate::common::trio::read_json;
use crate::common::{OLDEST, Sandbox, eventually, newest, newest_of, spec};

const APP: &str =
    "auth: {roles: [{name: r, permissions: [{prefix: /a/, access: readwrite}]}], users: [{name: app, roles: [r]}]}";
const NOBODY: &str = "auth: {roles: [{name: r, permissions: [{prefix: /a/, access: readwrite}]}]}";

fn apply(sandbox: &Sandbox, version: &str, auth: &str) {
    sandbox.file("c.yaml", &spec(1, version, "", auth));
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
}

/// Issues a certificate into a directory of its own, and tells how etcdctl is that user.
fn issue(sandbox: &Sandbox, directory: &str) -> BTreeMap<String, String> {
    sandbox.quorate(&["cert", "issue", "c", "--user", "app", "--out", directory]).ok();
    let mut environment = sandbox.environment("c");
    let file = |kind: &str| sandbox.path().join(directory).join(format!("app.{kind}")).display().to_string();
    environment.insert("ETCDCTL_CERT".into(), file("crt"));
    environment.insert("ETCDCTL_KEY".into(), file("key"));
    environment
}

#[test]
fn the_certificate_of_a_user_who_is_gone_is_refused_and_stays_so() {
    let minors = [Some(OLDEST.to_owned()), newest_of("3.5"), newest_of("3.6"), Some(newest())];
    let mut versions: Vec<String> = minors.into_iter().flatten().collect();
    versions.dedup();
    for version in versions {
        let sandbox = Sandbox::new(&version);
        apply(&sandbox, &version, APP);
        let old = issue(&sandbox, "old");
        let put = |user: &BTreeMap<String, String>| sandbox.etcdctl_with(&version, user, &["put", "/a/1", "x"]);
        put(&old).ok();
        let mark = read_json(&sandbox.home().join("machines/c/etcd-1/machine.json"));
        let client = format!("{}:2379", mark["address"].as_str().expect("an address")).parse().expect("an address");
        let metrics = |user: &BTreeMap<String, String>| {
            let request = "GET /metrics HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n";
            Intruder::from_files(&user["ETCDCTL_CERT"], &user["ETCDCTL_KEY"]).exchange(client, &[request.as_bytes()])
        };
        assert_eq!(metrics(&old).expect("a user reads the metrics").status, 200);
        let etcd = sandbox.etcd_of("etcd-1");

        // No restart is needed: etcd reads the list at each connection.
        apply(&sandbox, &version, NOBODY);
        metrics(&old).expect_err("the door is shut");
        sandbox.etcdctl_with(&version, &old, &["member", "list"]).fails();
        sandbox.etcdctl_with(&version, &old, &["lease", "grant", "10"]).fails();
        assert_eq!(sandbox.etcd_of("etcd-1"), etcd);
        sandbox.quorate(&["plan", "c.yaml", "--detailed-exitcode"]).ok();

        apply(&sandbox, &version, APP);
        let new = issue(&sandbox, "new");
        eventually("the new certificate is good", 10, || put(&new).code == Some(0));
        put(&old).fails();
        metrics(&old).expect_err("the name is back, the old certificate is not");
        fs::metadata(sandbox.home().join("machines/c/etcd-1/root/etc/etcd/client.crl")).expect("the list");
    }
}
