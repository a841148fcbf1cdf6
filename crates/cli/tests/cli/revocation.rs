//! Certificates of a removed user or machine: they are refused on connect, even if the name is declared again. And how etcd
//! reads its revocation list.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quorate_etcd::{Client, ConnectOptions, Error, Event, KeyRange, KeyValue};
use quorate_pki::{Authority, AuthoritySubject, KeyAlgorithm};

use crate::common::backups::runtime;
use crate::common::intruder::Intruder;
use crate::common::trio::read_json;
use crate::common::{OLDEST, Sandbox, eventually, newest, newest_of, spec};
use crate::peer_port::{intruder, members};

const APP: &str =
    "auth: {roles: [{name: r, permissions: [{prefix: /a/, access: readwrite}]}], users: [{name: app, roles: [r]}]}";
const NOBODY: &str = "auth: {roles: [{name: r, permissions: [{prefix: /a/, access: readwrite}]}]}";

fn apply(sandbox: &Sandbox, version: &str, auth: &str) {
    sandbox.file("c.yaml", &spec(1, version, "", auth));
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
}

/// Issues a certificate into a separate directory, and returns what etcdctl needs to be that user.
fn issue(sandbox: &Sandbox, directory: &str) -> BTreeMap<String, String> {
    sandbox.quorate(&["cert", "issue", "c", "--user", "app", "--out", directory]).ok();
    let mut environment = sandbox.environment("c");
    let file = |kind: &str| sandbox.path().join(directory).join(format!("app.{kind}")).display().to_string();
    environment.insert("ETCDCTL_CERT".into(), file("crt"));
    environment.insert("ETCDCTL_KEY".into(), file("key"));
    environment
}

/// A client of etcd that fails at once where it is not let in; etcdctl would try for five seconds.
fn client(user: &BTreeMap<String, String>) -> Client {
    let read = |name: &str| fs::read_to_string(&user[name]).expect(name);
    let mut options = ConnectOptions::new(user["ETCDCTL_ENDPOINTS"].clone(), read("ETCDCTL_CACERT"));
    options.identity = Some((read("ETCDCTL_CERT"), read("ETCDCTL_KEY")));
    Client::connect(options).expect("a client")
}

fn put(user: &BTreeMap<String, String>) -> Result<i64, Error> {
    runtime().block_on(async { client(user).put("/a/1", "x").await })
}

/// One connection per call.
#[track_caller]
fn assert_refused(user: &BTreeMap<String, String>) {
    put(user).expect_err("a put");
    runtime().block_on(async { client(user).members(false).await }).expect_err("a list of members");
    runtime().block_on(async { client(user).lease_grant(Duration::from_secs(10)).await }).expect_err("a lease");
}

/// Keys whose changes this user is told, on one connection that stays open.
fn watch(user: BTreeMap<String, String>) -> mpsc::Receiver<Vec<u8>> {
    let (tell, told) = mpsc::channel();
    let (open, opened) = mpsc::channel();
    std::thread::spawn(move || {
        runtime().block_on(async {
            let mut watch = client(&user).watch(KeyRange::prefix("/a/"), 0, false).await.expect("a watch");
            open.send(()).expect("somebody waits for it");
            while let Ok(update) = watch.next().await {
                for event in update.events {
                    let (Event::Put(KeyValue { key, .. }) | Event::Delete { key, .. }) = event;
                    let _ = tell.send(key);
                }
            }
        });
    });
    opened.recv().expect("it is open");
    told
}

/// The list of a CA that etcd does not know, out of date for a year, with this certificate on it.
fn list_of_a_stranger(certificate: &str) -> Vec<u8> {
    let day = SignedDuration::from_hours(24);
    let then = Timestamp::now() - day * 365;
    let subject = AuthoritySubject { common_name: String::from("a stranger"), organization: None };
    let stranger = Authority::generate(&subject, KeyAlgorithm::P256, day, then).expect("a CA");
    let serial =
        quorate_pki::inspect(&fs::read_to_string(certificate).expect("a certificate")).expect("readable").serial;
    let digits = |at: usize| u8::from_str_radix(&serial[at..at + 2], 16).expect("hexadecimal");
    stranger.revoke(&[(0..serial.len()).step_by(2).map(digits).collect()], then).expect("a list")
}

/// A release of each minor.
fn versions() -> Vec<String> {
    let minors = [Some(OLDEST.to_owned()), newest_of("3.5"), newest_of("3.6"), Some(newest())];
    let mut versions: Vec<String> = minors.into_iter().flatten().collect();
    versions.dedup();
    versions
}

#[test]
fn the_certificate_of_a_user_who_is_gone_is_refused_and_stays_so() {
    for version in versions() {
        let sandbox = Sandbox::new(&version);
        apply(&sandbox, &version, APP);
        let (old, root) = (issue(&sandbox, "old"), sandbox.environment("c"));
        put(&old).expect("the user writes");
        let told = watch(old.clone());
        let mark = read_json(&sandbox.home().join("machines/c/etcd-1/machine.json"));
        let address = format!("{}:2379", mark["address"].as_str().expect("an address")).parse().expect("an address");
        let metrics = |user: &BTreeMap<String, String>| {
            let request = "GET /metrics HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n";
            Intruder::from_files(&user["ETCDCTL_CERT"], &user["ETCDCTL_KEY"]).exchange(address, &[request.as_bytes()])
        };
        assert_eq!(metrics(&old).expect("a user reads the metrics").status, 200);
        let etcd = sandbox.etcd_of("etcd-1");

        // No restart is needed: etcd reads the list at each connection.
        apply(&sandbox, &version, NOBODY);
        metrics(&old).expect_err("the door is shut");
        assert_refused(&old);
        assert_eq!(sandbox.etcd_of("etcd-1"), etcd);
        sandbox.quorate(&["plan", "c.yaml", "--detailed-exitcode"]).ok();
        // What was open before stays open.
        put(&root).expect("root writes");
        assert_eq!(told.recv_timeout(Duration::from_secs(20)).expect("the watch goes on"), b"/a/1");

        apply(&sandbox, &version, APP);
        let new = issue(&sandbox, "new");
        eventually("the new certificate is good", 10, || put(&new).is_ok());
        put(&old).expect_err("the name is back, the old certificate is not");
        metrics(&old).expect_err("the name is back, the old certificate is not");

        // etcd asks neither who signed the list nor how old it is. Without any it lets nobody in.
        let list = sandbox.home().join("machines/c/etcd-1/root/etc/etcd/client.crl");
        let ours = fs::read(&list).expect("the list");
        fs::write(&list, list_of_a_stranger(&new["ETCDCTL_CERT"])).expect("another list");
        metrics(&new).expect_err("it is on the list");
        assert_eq!(metrics(&root).expect("root is not on it").status, 200);
        fs::remove_file(&list).expect("it was there");
        metrics(&new).expect_err("there is no list");
        metrics(&root).expect_err("there is no list, for root neither");
        fs::write(&list, ours).expect("the list");
        put(&new).expect("all is as it was");
    }
}

#[test]
fn stolen_etcd_certificates_are_refused_after_the_machine_is_replaced() {
    for version in versions() {
        let sandbox = Sandbox::new(&version);
        apply(&sandbox, &version, NOBODY);
        let machine = |name: &str| sandbox.home().join("machines/c").join(name);
        let stolen = |of: &str, name: &str| intruder(&machine(of).join("root/etc/etcd/pki"), name);
        let at = |of: &str, port: u16| -> SocketAddr {
            let mark = read_json(&machine(of).join("machine.json"));
            format!("{}:{port}", mark["address"].as_str().expect("an address")).parse().expect("an address")
        };
        let metrics = |client: &Intruder, to: SocketAddr| {
            let request = "GET /metrics HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n";
            client.exchange(to, &[request.as_bytes()]).map(|answer| answer.status)
        };
        let [root, member, peer] = ["root", "member", "peer"].map(|name| stolen("etcd-1", name));
        for client in [&root, &member] {
            assert_eq!(metrics(client, at("etcd-1", 2379)).expect("a certificate of a member is good"), 200);
        }
        members(&peer, at("etcd-1", 2380)).expect("a peer is let in");

        sandbox.quorate(&["replace", "c", "etcd-1", "--yes"]).ok();
        for client in [&root, &member] {
            metrics(client, at("etcd-1.2", 2379)).expect_err("the machine is gone, and so are its certificates");
        }
        assert!(members(&peer, at("etcd-1.2", 2380)).is_err(), "etcd {version} lets a former peer in");
        // The machine that took its place is none of those.
        members(&stolen("etcd-1.2", "peer"), at("etcd-1.2", 2380)).expect("a peer is let in");
        assert_eq!(metrics(&stolen("etcd-1.2", "root"), at("etcd-1.2", 2379)).expect("root is let in"), 200);
        sandbox.etcdctl(&version, "c", &["put", "/a/1", "x"]).ok();
        sandbox.quorate(&["plan", "c.yaml", "--detailed-exitcode"]).ok();
    }
}
