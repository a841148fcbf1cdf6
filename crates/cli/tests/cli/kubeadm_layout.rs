//! Certificates under kubeadm's file names: a running cluster moves to that layout and back, certificates are renewed there, and
//! other programs' files are kept.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::common::trio::{Login, MEMBERS, Trio, VERSION};
use crate::common::{eventually, signal};

const NAMES: [&str; 8] = [
    "ca.crt",
    "healthcheck-client.crt",
    "healthcheck-client.key",
    "peer-ca.crt",
    "peer.crt",
    "peer.key",
    "server.crt",
    "server.key",
];

fn with_tls(trio: &Trio, tls: &str) {
    let text = fs::read_to_string(trio.sandbox.path().join("trio.yaml")).unwrap();
    let kept: String = text.lines().filter(|line| !line.contains("tls:")).map(|line| format!("{line}\n")).collect();
    trio.sandbox.file("trio.yaml", &format!("{kept}    tls: {tls}\n"));
}

fn directory(trio: &Trio, member: &str) -> PathBuf {
    trio.root(member).join("etc/kubernetes/pki/etcd")
}

/// What is there to see; sets are hidden.
fn listed(directory: &PathBuf) -> BTreeSet<String> {
    let names = fs::read_dir(directory).into_iter().flatten().flatten().map(|e| e.file_name().into_string().unwrap());
    names.filter(|name| !name.starts_with('.')).collect()
}

fn arguments(trio: &Trio, member: &str) -> String {
    let pid = trio.etcd_of(member).expect("etcd runs");
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap()).replace('\0', " ")
}

fn assert_at_kubeadms_place(trio: &Trio) {
    for member in MEMBERS {
        let directory = directory(trio, member);
        assert_eq!(listed(&directory), NAMES.map(String::from).into(), "{member}");
        for name in NAMES {
            let mode = if name.ends_with(".key") { 0o600 } else { 0o644 };
            assert_eq!(fs::metadata(directory.join(name)).unwrap().mode() & 0o7777, mode, "{name}");
        }
        let arguments = arguments(trio, member);
        let at = directory.display();
        for flag in [
            format!("--cert-file={at}/server.crt"),
            format!("--key-file={at}/server.key"),
            format!("--trusted-ca-file={at}/ca.crt"),
            format!("--peer-cert-file={at}/peer.crt"),
            format!("--peer-key-file={at}/peer.key"),
            format!("--peer-trusted-ca-file={at}/peer-ca.crt"),
        ] {
            assert!(arguments.contains(&flag), "{flag} in {arguments}");
        }
        let own = trio.root(member).join("etc/etcd/pki");
        assert_eq!(listed(&own), ["ca.crt", "root.crt", "root.key"].map(String::from).into(), "keys are in one place");
        let sets = fs::read_dir(&directory).unwrap().flatten().filter(|e| e.file_type().unwrap().is_dir());
        assert_eq!(sets.count(), 1, "no set of before");
    }
}

#[test]
fn a_living_cluster_moves_to_kubeadms_file_names_and_back() {
    let trio = Trio::up(Login::Certificate);
    trio.etcdctl(&["put", "foo", "bar"]).ok();
    with_tls(&trio, "{layout: kubeadm}");
    let plan = trio.sandbox.quorate(&["plan", "trio.yaml"]).ok().stdout;
    assert!(plan.contains("tls.layout standard → kubeadm"), "{plan}");
    // Cut off after its first restart, one machine has moved and the others have both.
    let mut run = trio.spawn_apply();
    run.until("restart etcd on");
    run.kill();
    still_served_as_before(&trio);
    trio.apply().ok();
    assert_at_kubeadms_place(&trio);
    trio.etcdctl(&["get", "foo"]).ok();
    health_check(&trio);

    // Renewed in place, while etcd runs.
    let before = fs::read_to_string(directory(&trio, "etcd-1").join("server.crt")).unwrap();
    let etcd = trio.etcd_of("etcd-1");
    with_tls(&trio, "{layout: kubeadm, organization: ACME}");
    trio.apply().ok();
    assert_at_kubeadms_place(&trio);
    assert_ne!(fs::read_to_string(directory(&trio, "etcd-1").join("server.crt")).unwrap(), before);
    assert_eq!(trio.etcd_of("etcd-1"), etcd, "etcd was not restarted for it");

    // Something else next to them stays, and so does its directory.
    let theirs = directory(&trio, "etcd-3").join("notes.txt");
    fs::write(&theirs, "mine").unwrap();
    with_tls(&trio, "{organization: ACME}");
    trio.apply().ok();
    trio.etcdctl(&["get", "foo"]).ok();
    for member in MEMBERS {
        assert!(!arguments(&trio, member).contains("etc/kubernetes"));
        let has_directory = trio.root(member).join("etc/kubernetes").exists();
        assert_eq!(has_directory, member == "etcd-3", "{member}");
    }
    assert_eq!(listed(&directory(&trio, "etcd-3")), BTreeSet::from([String::from("notes.txt")]));
    fs::remove_dir_all(trio.root("etcd-3").join("etc/kubernetes")).unwrap();
    trio.assert_settled();
}

/// An etcd that was not restarted yet finds its certificates where it was told, also when it is started again by itself.
fn still_served_as_before(trio: &Trio) {
    let has_moved =
        |member: &&str| trio.etcd_of(member).is_none_or(|_| arguments(trio, member).contains("etc/kubernetes"));
    let not_yet = MEMBERS.into_iter().rev().find(|member| !has_moved(member)).expect("one that was not restarted");
    let etcd = trio.etcd_of(not_yet).expect("it runs");
    signal(etcd, "KILL");
    eventually("etcd runs again", 20, || trio.etcd_of(not_yet).is_some_and(|now| now != etcd));
    assert!(!arguments(trio, not_yet).contains("etc/kubernetes"), "it runs as before");
    let healthy = || trio.etcdctl(&["endpoint", "health"]).text().matches("is healthy").count();
    eventually("all serve new connections", 30, || healthy() == MEMBERS.len());
}

/// It shows that etcd serves, and reads nothing.
fn health_check(trio: &Trio) {
    let mut environment = trio.sandbox.environment("trio");
    let directory = directory(trio, "etcd-2");
    for (variable, file) in
        [("CERT", "healthcheck-client.crt"), ("KEY", "healthcheck-client.key"), ("CACERT", "ca.crt")]
    {
        environment.insert(format!("ETCDCTL_{variable}"), directory.join(file).display().to_string());
    }
    let with = |arguments: &[&str]| trio.sandbox.etcdctl_with(VERSION, &environment, arguments);
    let told = with(&["endpoint", "health"]).ok().text();
    assert_eq!(told.matches("is healthy").count(), 3, "{told}");
    let refused = with(&["get", "foo"]).expect(1).text();
    assert!(refused.contains("permission denied"), "{refused}");
}

#[test]
fn files_that_others_put_there_are_never_overwritten() {
    let trio = Trio::up(Login::Certificate);
    let theirs = directory(&trio, "etcd-2").join("server.crt");
    fs::create_dir_all(theirs.parent().unwrap()).unwrap();
    fs::write(&theirs, "kubeadm's").unwrap();
    with_tls(&trio, "{layout: kubeadm}");
    let etcd = trio.etcd_of("etcd-2");
    let told = trio.apply().expect(3).text();
    assert!(told.contains("etcd-2 is not ready for its configuration"), "{told}");
    assert!(told.contains("server.crt exists and was not written by quorate"), "{told}");
    assert!(told.contains("move it out of"), "{told}");
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "kubeadm's");
    assert_eq!(listed(&directory(&trio, "etcd-2")), BTreeSet::from([String::from("server.crt")]));
    assert_eq!(trio.etcd_of("etcd-2"), etcd, "it runs as before");
    fs::remove_file(&theirs).unwrap();
    trio.apply().ok();
    assert_at_kubeadms_place(&trio);
    // One that comes later is not overwritten either, when certificates are renewed.
    fs::remove_file(&theirs).unwrap();
    fs::write(&theirs, "kubeadm's").unwrap();
    with_tls(&trio, "{layout: kubeadm, organization: ACME}");
    let told = trio.apply().expect(1).text();
    assert!(told.contains("server.crt was not written by quorate"), "{told}");
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "kubeadm's");
}
