//! All machines, their disks and the ledger are gone. Only the spec, the store and the operator's key are left.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::backups::backed::{Backed, V35};
use crate::common::{eventually, lab, signal};

#[test]
fn one_command_brings_everything_back() {
    let backed = Backed::up("lost", 3, V35);
    backed.create();
    let (contents, users, highest) = (backed.contents(), backed.users_and_roles(), backed.revision());
    let old_client = saved_client(&backed);
    let cluster_id = backed.sandbox.ledger("c")["cluster_id"].clone();
    let signer = backed.signer();

    lose_everything(&backed);
    // Without the operator's key there is no way back, and nothing is made.
    let told = backed.quorate(&["restore", "c.yaml", "--yes", "--signed-by", &signer]).expect(1).stderr;
    assert!(told.contains("no identity was given") && told.contains("--identity"), "{told}");
    assert!(!backed.sandbox.has_machines());

    // The spec may name the key as well.
    backed.edit(&[&backed.recipient], &format!("  signed_by: {signer}\n"));
    backed.restore(&[]).ok();
    assert_eq!(backed.sandbox.ledger("c")["cluster_id"], cluster_id);
    assert_eq!(backed.contents(), contents);
    assert_eq!(backed.users_and_roles(), users);
    assert!(backed.revision() >= highest + 1_000_000_000);
    backed.assert_settled();
    is_known_and_knows(&backed, &old_client);
    // It continues as any cluster: another backup on top of those of its former life.
    backed.create();
    assert_eq!(backed.list().len(), 2);
}

/// Where nobody wants the old CAs back, or nobody has the key to them: the data comes back alone.
#[test]
fn the_data_comes_back_without_the_ledger() {
    let backed = Backed::up("without-ledger", 1, V35);
    backed.create();
    let (contents, users, highest) = (backed.contents(), backed.users_and_roles(), backed.revision());
    let old_client = saved_client(&backed);
    let cluster_id = backed.sandbox.ledger("c")["cluster_id"].clone();
    let signer = backed.signer();
    lose_everything(&backed);
    let told = backed.restore(&["--without-ledger", "--signed-by", &signer]).ok().text();
    assert!(told.contains("no ledger to restore: it gets new CAs and keys"), "{told}");
    assert_ne!(backed.sandbox.ledger("c")["cluster_id"], cluster_id);
    assert_eq!((backed.contents(), backed.users_and_roles()), (contents, users));
    assert!(backed.revision() >= highest + 1_000_000_000);
    backed.assert_settled();
    let mut client = old_client;
    client.insert("ETCDCTL_ENDPOINTS".into(), backed.sandbox.environment("c")["ETCDCTL_ENDPOINTS"].clone());
    backed.sandbox.etcdctl_with(V35, &client, &["get", "/a/01"]).fails();

    // Variables without an endpoint would lead etcdctl to whatever listens on this host.
    kill_everything(&backed);
    fs::remove_dir_all(backed.sandbox.home().join("machines")).expect("the machines");
    let told = backed.quorate(&["env", "c"]).expect(1);
    assert!(told.stdout.is_empty() && told.stderr.contains("no machine of cluster c can be found"), "{}", told.text());
}

/// Machines and a ledger exist by the time that the members fail to restore. Clients must not find an empty cluster where theirs was.
#[test]
fn a_failed_restore_is_not_followed_by_an_empty_cluster() {
    let backed = Backed::up("not-empty", 1, V35);
    backed.create();
    let (contents, signer) = (backed.contents(), backed.signer());
    lose_everything(&backed);
    backed.edit(&[&backed.recipient], &format!("  signed_by: {signer}\n"));
    let working = with_programs_that_fail_to_restore(&backed, "--data-dir");

    let told = backed.restore(&["--without-ledger"]).fails().stderr;
    assert!(told.contains("no restore today"), "{told}");
    assert!(backed.sandbox.has_machines());
    let told = backed.apply().fails().stderr;
    assert!(told.contains("no restore today"), "{told}");
    assert!(backed.sandbox.etcds().is_empty(), "{:#?}", backed.sandbox.processes());

    backed.sandbox.file("c.yaml", &working);
    backed.apply().ok();
    assert_eq!(backed.contents(), contents);
    backed.assert_settled();
}

/// The members' own restore would succeed here, but that is not known before the old data is given up.
#[test]
fn a_living_cluster_runs_on_if_the_snapshot_cannot_be_verified() {
    let backed = Backed::up("not-verified", 1, V35);
    backed.create();
    let contents = backed.contents();
    let working = with_programs_that_fail_to_restore(&backed, "--name=throwaway");

    let told = backed.restore(&[]).fails().stderr;
    assert!(told.contains("existing data was not touched") && told.contains("no restore today"), "{told}");
    assert_eq!((backed.contents(), backed.sandbox.etcds().len()), (contents, 1));
    backed.sandbox.file("c.yaml", &working);
    backed.apply().ok();
    backed.assert_settled();
}

/// Puts etcd's own programs into the spec, of which the one that restores snapshots fails if a word of its command line contains
/// `where_told`. Returns the spec as it was.
fn with_programs_that_fail_to_restore(backed: &Backed, where_told: &str) -> String {
    let directory = backed.sandbox.path().join("programs");
    fs::create_dir(&directory).expect("a directory");
    fs::copy(lab(V35).join("etcd"), directory.join("etcd")).expect("a copy");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *{where_told}*) echo 'no restore today' >&2; exit 1;; esac\nexec {} \"$@\"\n",
        lab(V35).join("etcdutl").display()
    );
    let path = backed.sandbox.file("programs/etcdutl", &script);
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its mode");
    let working = fs::read_to_string(backed.sandbox.path().join("c.yaml")).expect("the spec");
    let replaced = working.replace(&lab(V35).display().to_string(), &directory.display().to_string());
    backed.sandbox.file("c.yaml", &replaced);
    working
}

/// What root was given to talk to the old cluster, kept where it is not lost.
fn saved_client(backed: &Backed) -> BTreeMap<String, String> {
    let mut environment = backed.sandbox.environment("c");
    for name in ["ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY"] {
        let copy = backed.sandbox.path().join(format!("saved.{name}"));
        fs::copy(&environment[name], &copy).expect("a file of root's");
        environment.insert(name.to_owned(), copy.display().to_string());
    }
    environment
}

fn lose_everything(backed: &Backed) {
    kill_everything(backed);
    fs::remove_dir_all(backed.sandbox.home()).expect("all that was kept");
}

fn kill_everything(backed: &Backed) {
    eventually("all have ended", 10, || {
        backed.pids().into_iter().for_each(|pid| signal(pid, "KILL"));
        backed.pids().is_empty()
    });
}

/// Old certificates are good at the new machines, and those show certificates that old clients trust.
fn is_known_and_knows(backed: &Backed, old_client: &BTreeMap<String, String>) {
    let mut client = old_client.clone();
    client.insert("ETCDCTL_ENDPOINTS".into(), backed.sandbox.environment("c")["ETCDCTL_ENDPOINTS"].clone());
    let told = backed.sandbox.etcdctl_with(V35, &client, &["get", "/a/01"]).ok().stdout;
    assert!(told.contains("first"), "{told}");
}
