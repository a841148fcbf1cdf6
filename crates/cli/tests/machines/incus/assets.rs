//! An export of the ledger is enough to recreate a cluster: the machines, quorate's home directory, and finally the data volumes are
//! deleted, and clients still have a cluster that they trust and that trusts them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Containers, HOST, Wanted, incus, volumes};
use crate::common::backups::make_key;
use crate::common::releases::{self, Server};
use crate::common::{Run, lab};
use crate::ground::chapter;

const KEY: &str = "operator.key";
/// Restores need an etcdutl on the machines, which older ones do not have.
const VERSION: &str = "3.5.30";
const AUTH: &str = "auth: {roles: [{name: kubernetes, permissions: [{prefix: /registry/, access: readwrite}]}], \
    users: [{name: kubernetes, roles: [kubernetes]}, {name: kubernetes-health}]}";

/// Every file below a directory, with its content.
fn content(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
    let files = entries.flat_map(|path| match path.is_dir() {
        true => content(&path).into_iter().collect::<Vec<_>>(),
        false => vec![(path.display().to_string(), fs::read(&path).expect("a file"))],
    });
    files.collect()
}

struct Assets {
    containers: Containers,
    /// Of the operator, who reads backups and exports.
    recipient: String,
}

impl Assets {
    /// etcdctl as a control plane has it: with the files that it was given once.
    fn as_kubernetes(&self, words: &[&str]) -> Run {
        let pki = self.containers.sandbox.path().join("k8s/pki");
        let endpoints = self.containers.sandbox.environment(self.containers.name)["ETCDCTL_ENDPOINTS"].clone();
        let mut command = Command::new(lab(VERSION).join("etcdctl"));
        command.env_clear().env("ETCDCTL_API", "3").args(["--endpoints", &endpoints]).args(words);
        for (flag, file) in [
            ("--cacert", "etcd/ca.crt"),
            ("--cert", "apiserver-etcd-client.crt"),
            ("--key", "apiserver-etcd-client.key"),
        ] {
            command.arg(flag).arg(pki.join(file));
        }
        command.output().expect("etcdctl runs").into()
    }

    fn quorate(&self, words: &[&str]) -> Run {
        self.containers.sandbox.quorate(words)
    }

    fn export(&self) {
        let name = self.containers.name;
        self.quorate(&["ledger", "export", name, "--recipient", &self.recipient, "--out", "assets.age"]).ok();
    }

    /// Behind our back, and with them everything that quorate has on this machine.
    fn lose_machines_and_home(&self) {
        for instance in self.containers.instances() {
            incus(&["delete", "--force", &instance]).ok();
        }
        fs::remove_dir_all(self.containers.sandbox.home()).expect("the home is deleted");
    }

    fn import(&self) {
        self.quorate(&["ledger", "import", "assets.age", "--identity", KEY]).ok();
    }

    /// The cluster is what it was, to itself and to clients that know nothing of what happened.
    #[track_caller]
    fn assert_is_back(&self, files: &BTreeMap<String, Vec<u8>>) {
        self.containers.assert_healthy(3);
        let read = self.as_kubernetes(&["get", "/registry/pods/a", "--print-value-only"]).ok().stdout;
        assert_eq!(read.trim_end(), "as it was");
        self.as_kubernetes(&["put", "/registry/pods/b", "later"]).ok();
        let refused = self.as_kubernetes(&["put", "elsewhere", "no"]).fails().stderr;
        assert!(refused.contains("permission denied"), "roles are as they were: {refused}");
        let again = self.quorate(&["kubernetes", self.containers.name, "--out", "k8s", "--output", "json"]).ok().json();
        assert_eq!(again["changed"], false, "{again:#}");
        assert_eq!(
            &content(&self.containers.sandbox.path().join("k8s/pki")),
            files,
            "no control plane needs new files"
        );
    }
}

#[test]
#[ignore = "needs Incus: `cargo xtask lab incus` runs it"]
fn a_cluster_is_recreated_from_an_export_of_its_ledger() {
    let containers = Containers::with("lab-assets", VERSION);
    let (archive, sum) = releases::archive(&containers.sandbox, VERSION, &lab(VERSION).join("etcd"));
    let server = Server::at(HOST, BTreeMap::from([(String::from("/etcd.tar.gz"), archive)]));
    let binary = format!("binary: {{archive: \"{}/etcd.tar.gz\", sha256: {sum}}}", server.base);
    let recipient = make_key(&containers.sandbox, KEY);
    containers.want(&Wanted {
        members: 3,
        // Control planes have them in their configuration.
        addresses: Some("10.78.70.1"),
        incus: String::from(", data_size: 1GiB"),
        etcd: format!("version: {VERSION}, {binary}, auto_compaction: {{mode: periodic, retention: 5m}}"),
        more: vec![AUTH.to_owned(), format!("backup: {{to: {{directory: store}}, recipients: [{recipient}]}}")],
        ..Wanted::default()
    });
    let assets = Assets { containers, recipient };
    let Assets { containers, .. } = &assets;
    let files = chapter("a cluster with users, data, a backup and an export of its ledger", || {
        containers.apply().ok();
        containers.assert_healthy(3);
        assets.quorate(&["kubernetes", containers.name, "--out", "k8s"]).ok();
        assets.as_kubernetes(&["put", "/registry/pods/a", "as it was"]).ok();
        assets.quorate(&["backup", "create", containers.name]).ok();
        assets.export();
        content(&containers.sandbox.path().join("k8s/pki"))
    });
    let cluster_id = containers.sandbox.ledger(containers.name)["cluster_id"].clone();
    chapter("all machines and the home are lost, data volumes are left: import and apply --now", || {
        let before = volumes();
        assert_eq!(before.len(), 3, "{before:?}");
        assets.lose_machines_and_home();
        assets.import();
        let refused = containers.apply().expect(3).stderr;
        assert!(refused.contains("if etcd-1 is dead, confirm that by re-running with `--now`"), "{refused}");
        let run = assets.quorate(&["apply", "--yes", "--now", "cluster.yaml"]).ok();
        eprintln!("{}", run.text());
        assets.assert_is_back(&files);
        assert_eq!(volumes(), before, "the members kept their data");
        let read = assets.as_kubernetes(&["get", "/registry/pods/b", "--print-value-only"]).ok().stdout;
        assert_eq!(read.trim_end(), "later");
    });
    chapter("the data volumes are lost too: import and restore", || {
        // The export is older than the cluster by now.
        assets.lose_machines_and_home();
        for volume in volumes() {
            incus(&["storage", "volume", "delete", super::POOL, &volume]).ok();
        }
        assets.import();
        let run = assets.quorate(&["restore", "cluster.yaml", "--yes", "--identity", KEY]).ok();
        eprintln!("{}", run.text());
        assets.assert_is_back(&files);
        assert_eq!(containers.sandbox.ledger(containers.name)["cluster_id"], cluster_id);
    });
    chapter("everything is destroyed, and nothing is left", || containers.destroy());
}
