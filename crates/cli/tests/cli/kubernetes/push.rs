//! Delivery to control plane hosts: a real ssh to a real sshd, and a real sudo.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use serde_json::Value;

use super::sshd::{GUEST, OPERATOR, Sshd};
use super::{AUTH, PERIODIC, apply, tree};
use crate::common::{Run, Sandbox, newest, spec};

/// A host's directory, and how files are pushed there.
struct Hosts {
    sandbox: Sandbox,
    version: String,
    sshd: Sshd,
}

impl Hosts {
    fn up() -> Self {
        let version = newest();
        let sandbox = Sandbox::new(&version);
        let sshd = Sshd::start(&sandbox);
        let hosts = Hosts { sandbox, version, sshd };
        hosts.want("leaf_validity: 2h, renew_before: 1h");
        hosts
    }

    fn want(&self, tls: &str) {
        apply(&self.sandbox, &spec(1, &self.version, PERIODIC, &format!("tls: {{{tls}}}\n{AUTH}")));
    }

    /// Where every host has its files: all of them are this machine.
    fn directory(&self) -> std::path::PathBuf {
        self.sandbox.path().join("etc/kubernetes")
    }

    fn push(&self, to: &str, more: &[&str]) -> Run {
        let ssh = format!("ssh -F {}", self.sshd.config.display());
        let directory = self.directory().display().to_string();
        let mut arguments =
            vec!["kubernetes", "push", "c", "--out", "out", "--dir", &directory, "--ssh", &ssh, "--to", to];
        arguments.extend(more);
        self.sandbox.quorate(&arguments)
    }

    /// The host has what was written here, and nothing else.
    #[track_caller]
    fn assert_delivered(&self) {
        let (ours, theirs) = (tree(&self.sandbox.path().join("out")), tree(&self.directory()));
        assert_eq!(theirs.len(), 5, "{:?}", theirs.keys());
        assert!(theirs.iter().all(|(name, file)| ours[name] == *file), "{:?}", theirs.keys());
    }
}

#[test]
fn certificates_are_pushed_over_ssh() {
    let hosts = Hosts::up();
    let push = |to: &str, more: &[&str]| hosts.push(to, more);
    let told = push("-oProxyCommand=x", &[]).expect(2).text() + &push("a b", &[]).expect(1).text();
    assert!(told.contains("`a b` is not the name of a host"), "{told}");
    let told = push("cp-1", &[]).ok();
    assert!(told.stdout.contains("cp-1: updated pki/etcd/ca.crt, "), "{}", told.text());
    hosts.assert_delivered();

    // One of three is down: the others are done all the same.
    fs::remove_file(hosts.directory().join("pki/etcd/ca.crt")).unwrap();
    let told = push("cp-1,cp-2,cp-3", &["--output", "json"]).expect(1);
    assert!(told.stderr.contains("1 of 3 hosts failed"), "{}", told.stderr);
    let told = told.json()["hosts"].clone();
    let results: Vec<&str> = (0..3).map(|at| told[at]["result"].as_str().unwrap()).collect();
    assert_eq!(results, ["updated", "failed", "unchanged"], "{told:#}");
    assert!(told[1]["error"].as_str().unwrap().contains("Connection refused"), "{told:#}");

    // Renewal sends the certificates, and nothing else.
    hosts.want("leaf_validity: 4h, renew_before: 3h");
    let renewed = push("cp-1", &["--output", "json"]).ok().json();
    let sent = serde_json::json!(["pki/etcd/healthcheck-client.crt", "pki/apiserver-etcd-client.crt"]);
    assert_eq!((&renewed["hosts"][0]["files"], &renewed["changed"]), (&sent, &Value::Bool(true)), "{renewed:#}");
    assert_eq!(push("cp-1", &["--output", "json"]).ok().json()["changed"], false);
    hosts.assert_delivered();
}

/// The user who owns a file.
fn owner(file: &Path) -> u32 {
    fs::metadata(file).expect("a file").uid()
}

#[test]
fn sudo_becomes_root_on_hosts_without_root_logins() {
    let hosts = Hosts::up();
    let (operator, guest) = (format!("{}@cp-1", OPERATOR.name), format!("{}@cp-1", GUEST.name));
    let told = hosts.push(&operator, &[]).expect(1);
    assert!(told.stdout.contains("cp-1: failed: ") && told.stdout.contains("Permission denied"), "{}", told.text());
    let told = hosts.push(&guest, &["--sudo"]).expect(1);
    assert!(told.stdout.contains("cp-1: failed: sudo: a password is required"), "{}", told.text());
    assert!(!hosts.directory().exists(), "nothing is left of what failed");

    let told = hosts.push(&operator, &["--sudo"]).ok();
    assert!(told.stdout.contains("cp-1: updated pki/etcd/ca.crt, "), "{}", told.text());
    hosts.assert_delivered();
    let (key, health) = ("pki/apiserver-etcd-client.key", "pki/etcd/healthcheck-client.crt");
    assert_eq!(owner(&hosts.directory().join(key)), 0);

    // A probe may own its certificate, and still does when that is renewed.
    chown(hosts.directory().join(health), Some(GUEST.id), None).expect("root may do that");
    hosts.want("leaf_validity: 4h, renew_before: 3h");
    let renewed = hosts.push(&operator, &["--sudo", "--output", "json"]).ok().json();
    assert_eq!(renewed["hosts"][0]["files"], serde_json::json!([health, "pki/apiserver-etcd-client.crt"]));
    assert_eq!(owner(&hosts.directory().join(health)), GUEST.id);
    hosts.assert_delivered();
    assert!(hosts.push(&operator, &["--sudo"]).ok().stdout.contains("cp-1: unchanged"));
}
