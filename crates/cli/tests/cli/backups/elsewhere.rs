//! Restores that do not use the first destination: plain snapshots of other tools, from a file and from a bucket, and the second
//! destination when the first one is gone; and other writers next to a recorder.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::backups::backed::{Backed, OPERATOR, V35, object};
use crate::common::backups::BackedUp;
use crate::common::store::{BUCKET, object_store};
use crate::common::{Sandbox, eventually, signal, spec};

const MARGIN: i64 = 1_000_000_000;

/// As `etcdctl snapshot save` makes it.
fn save_snapshot(sandbox: &Sandbox, name: &str) -> Vec<u8> {
    let path = sandbox.path().join(name);
    sandbox.etcdctl(V35, "c", &["snapshot", "save", &path.display().to_string()]).ok();
    fs::read(path).expect("a snapshot")
}

#[test]
fn a_snapshot_of_any_tool_is_restored_from_a_file_and_from_a_bucket() {
    let backed = Backed::up("plain", 1, V35);
    let bytes = save_snapshot(&backed.sandbox, "old.db");
    let (contents, users) = (backed.contents(), backed.users_and_roles());
    let key = format!("{}/moved/old.db", backed.prefix);
    object_store().put(&key, &bytes);
    let object = format!("s3://{BUCKET}/{key}");
    for (snapshot, shown) in [("old.db", "snapshot old.db"), (object.as_str(), "moved/old.db")] {
        backed.put_numbered(1..=20, "later");
        let highest = backed.revision();
        let told = backed.restore(&["--snapshot", snapshot]).ok().text();
        assert!(told.contains("from snapshot") && told.contains(shown), "{told}");
        assert_eq!(backed.contents(), contents);
        assert_eq!(backed.users_and_roles(), users);
        assert!(backed.revision() >= highest + MARGIN, "{} after {highest}", backed.revision());
        backed.assert_settled();
    }
}

#[test]
fn the_second_destination_stands_in_for_the_first() {
    let backed = Backed::up("second", 1, V35);
    backed.edit(&[&backed.recipient], "  also_to: {directory: second}\n");
    backed.apply().ok();
    let id = backed.create();
    let contents = backed.contents();
    assert_eq!(backed.list()[0]["places"].as_array().map(Vec::len), Some(2));

    damage_stays_where_it_is(&backed, &id);

    // The first cannot even be opened any more.
    let keys = backed.sandbox.path().join("store.keys");
    let mode = |mode| fs::set_permissions(&keys, fs::Permissions::from_mode(mode)).expect("its mode");
    mode(0o644);
    backed.verify(&[&id]).expect(1);
    backed.verify(&[&id, "--second"]).ok();
    backed.backup("export", &[&id, "out.db", "--second", "--identity", OPERATOR]).ok();
    backed.put_numbered(1..=20, "later");
    backed.restore(&[]).expect(1);
    backed.restore(&["--second"]).ok();
    assert_eq!(backed.contents(), contents);
    backed.assert_settled();

    // Nor is there a ledger here, while the cluster lives. The one next to a backup from before the restore would be of another formation.
    mode(0o600);
    backed.create();
    mode(0o644);
    let (pids, cluster_id) = (backed.pids(), backed.sandbox.ledger("c")["cluster_id"].clone());
    let signer = backed.signer();
    let import = ["ledger", "import", "--from-backup", "c.yaml", "--identity", OPERATOR, "--signed-by", &signer];
    forget_the_ledger(&backed);
    let told = backed.quorate(&import).expect(1).stderr;
    assert!(told.contains("store.keys"), "{told}");
    backed.quorate(&[&import[..], &["--second"]].concat()).ok();
    assert_eq!(backed.sandbox.ledger("c")["cluster_id"], cluster_id);
    backed.quorate(&["apply", "c.yaml", "--yes", "--accept-older-ledger"]).ok();
    assert_eq!((backed.pids(), backed.contents()), (pids.clone(), contents.clone()), "somebody was touched");

    // From the first, where that is well again.
    mode(0o600);
    forget_the_ledger(&backed);
    backed.quorate(&import).ok();
    backed.quorate(&["apply", "c.yaml", "--yes", "--accept-older-ledger"]).ok();
    assert_eq!((backed.pids(), backed.contents()), (pids, contents), "somebody was touched");
    let told = backed.quorate(&["ledger", "import", "--second", "--identity", OPERATOR]).fails().stderr;
    assert!(told.contains("--from-backup"), "{told}");
}

/// What is damaged in the first destination is told, and does not take the place of what is good in the second.
fn damage_stays_where_it_is(backed: &Backed, id: &str) {
    let path = object(&backed.prefix, &format!("full/{id}/key"));
    let copy = || fs::read(backed.sandbox.path().join(format!("second/c/full/{id}/key"))).expect("a copy");
    let (good, copied) = (object_store().get(&path), copy());
    object_store().put(&path, &[&good[..good.len() - 1], b"x"].concat());
    let told = backed.backup("create", &[]).expect(9).stderr;
    for word in [&format!("{id}/key is not what was stored"), "not copied over what the second has", "--second"] {
        assert!(told.contains(word), "{word} in {told}");
    }
    assert_eq!(copy(), copied);
    object_store().put(&path, &good);
}

fn forget_the_ledger(backed: &Backed) {
    fs::remove_dir_all(backed.sandbox.home().join("clusters/c")).expect("the controller's memory");
}

/// The ledger next to a full backup knows nothing of what came later; changes that were recorded do, even where they are not restored.
#[test]
fn revisions_continue_above_those_in_backups() {
    let cluster = BackedUp::up(1, "");
    cluster.sandbox.etcdctl(V35, "c", &["put", "early", "x"]).ok();
    let watcher = cluster.watch();
    eventually("a full backup", 60, || cluster.fulls().len() == 1);
    let id = cluster.fulls()[0]["id"].as_str().expect("an id").to_owned();
    let root = cluster.sandbox.environment("c");
    for n in 0..30 {
        cluster.sandbox.etcdctl_with(V35, &root, &["put", &format!("later/{n}"), "x"]).ok();
    }
    let highest = revision(&cluster);
    eventually("they are recorded", 30, || cluster.list().iter().any(|one| one["last_revision"] == highest));
    watcher.stop();
    eventually("all have ended", 10, || {
        cluster.sandbox.processes().into_iter().for_each(|(pid, _)| signal(pid, "KILL"));
        cluster.sandbox.processes().is_empty()
    });
    let signer = cluster.signer();
    fs::remove_dir_all(cluster.sandbox.home()).expect("all that was kept");
    let told = cluster.restore(&["--backup", &id, "--signed-by", &signer]).ok().text();
    assert!(told.contains(&format!("the cluster is at revision {highest}")), "{told}");
    assert!(revision(&cluster) >= highest + MARGIN, "{} after {highest}", revision(&cluster));
}

#[track_caller]
fn revision(cluster: &BackedUp) -> i64 {
    let answer = cluster.sandbox.etcdctl(V35, "c", &["get", "nothing", "--write-out=json"]).ok().json();
    answer["header"]["revision"].as_i64().expect("a revision")
}

/// Somebody takes a full backup manually while `backup watch` records on top of another.
#[test]
fn a_recorder_continues_on_a_manually_taken_backup() {
    let cluster = BackedUp::up(1, "");
    let put = |key: &str| cluster.sandbox.etcdctl(V35, "c", &["put", key, "x"]).ok();
    let recorded = |id: &str, revision: i64| {
        let changes = |one: &serde_json::Value| {
            one["kind"] == "incremental" && one["id"] == id && one["last_revision"].as_i64() >= Some(revision)
        };
        cluster.list().iter().any(changes)
    };
    let revision = || revision(&cluster);
    let id = |n: usize| cluster.fulls()[n]["id"].as_str().expect("an id").to_owned();
    let watcher = cluster.watch();
    eventually("a first full backup", 60, || cluster.fulls().len() == 1);
    let first = id(0);
    put("one");
    let of_one = revision();
    eventually("it is recorded", 30, || recorded(&first, of_one));

    cluster.backup("create", &[]).ok();
    let second = id(1);
    put("two");
    let of_two = revision();
    eventually("it is recorded on top of the one that was taken by hand", 60, || recorded(&second, of_two));
    assert!(cluster.watched().contains(&format!("another run took backup {second}")), "{}", cluster.watched());
    put("three");
    let of_three = revision();
    eventually("and so is what comes later", 30, || recorded(&second, of_three));
    watcher.stop();
    assert_eq!(cluster.fulls().len(), 2, "no other was needed: {}", cluster.watched());
    assert!(!recorded(&first, of_three), "nobody goes on with the first");

    put("lost");
    cluster.restore(&[]).ok();
    let keys = cluster.sandbox.etcdctl(V35, "c", &["get", "", "--prefix", "--keys-only"]).ok().stdout;
    assert_eq!(keys.split_whitespace().collect::<Vec<_>>(), ["one", "three", "two"]);
    cluster.restore(&["--revision", &of_one.to_string()]).ok();
    let keys = cluster.sandbox.etcdctl(V35, "c", &["get", "", "--prefix", "--keys-only"]).ok().stdout;
    assert_eq!(keys.split_whitespace().collect::<Vec<_>>(), ["one"]);
}

/// With password login, root of the snapshot must let the members in. That is found out before anything is given up.
#[test]
fn a_snapshot_whose_root_has_another_password_is_refused_beforehand() {
    let sandbox = Sandbox::new(V35);
    let by_password = |rest: &str| sandbox.file("c.yaml", &spec(1, V35, "client_auth: password", rest));
    let put = |value: &str| sandbox.etcdctl(V35, "c", &["put", "key", value]).ok();
    let get = || sandbox.etcdctl(V35, "c", &["get", "key", "--print-value-only"]).ok().stdout;
    let restore = || sandbox.quorate(&["restore", "c.yaml", "--yes", "--snapshot", "old.db"]);
    by_password("");
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    put("old");
    save_snapshot(&sandbox, "old.db");
    let password = sandbox.ledger("c")["etcd"]["auth"]["root_password"].as_str().expect("a password").to_owned();
    sandbox.quorate(&["destroy", "c", "--yes", "--without-backup"]).ok();

    // Another cluster, with another password.
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    put("new");
    let before = sandbox.processes();
    let told = restore().expect(1).stderr;
    for word in ["root has another password in snapshot old.db", "nothing was changed", "auth.root_password_file"] {
        assert!(told.contains(word), "{word} in {told}");
    }
    assert!(!told.contains(&password), "{told}");
    assert_eq!((sandbox.processes(), get().trim()), (before, "new"), "somebody was touched");
    let left = fs::read_dir(sandbox.home().join("clusters/c/restore")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "the snapshot is not kept");
    sandbox.quorate(&["destroy", "c", "--yes", "--without-backup"]).ok();

    // Where there is no cluster yet, a new password would be made, which is not that of the old root either.
    restore().expect(1);
    assert!(!sandbox.has_machines());
    sandbox.file("root.password", &format!("{password}\n"));
    by_password("auth: {root_password_file: root.password}");
    restore().ok();
    assert_eq!(get().trim(), "old");
    assert_eq!(sandbox.status("c")["verdict"], "healthy");
}
