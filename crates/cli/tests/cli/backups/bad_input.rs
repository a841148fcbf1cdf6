//! Mistakes of users and stores, and their error messages. None of them may touch the cluster, and no message may contain a secret.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::backups::backed::{Backed, OPERATOR, V35, object};
use crate::common::store::{BUCKET, SECRET_KEY, object_store};
use crate::common::{OLDEST, Run, spec};

const WRONG_SECRET: &str = "not-the-secret-of-anybody";

/// Fails with all of these words, and shows no secret.
#[track_caller]
fn refused(run: Run, words: &[&str]) {
    let told = run.fails().text();
    let missing: Vec<_> = words.iter().filter(|word| !told.contains(**word)).collect();
    assert!(missing.is_empty(), "{missing:?} in:\n{told}");
    for secret in [SECRET_KEY, WRONG_SECRET] {
        assert!(!told.contains(secret), "a secret in:\n{told}");
    }
}

#[test]
fn each_mistake_has_its_own_message() {
    let backed = Backed::up("bad-input", 1, V35);
    let (pids, contents) = (backed.pids(), backed.contents());
    the_store_is_wrong(&backed);
    there_is_no_backup_yet(&backed);
    let id = backed.create();
    a_wish_cannot_be_granted(&backed, &id);
    a_snapshot_is_none(&backed);
    nobody_is_to_read_it(&backed);
    assert_eq!((backed.pids(), backed.contents()), (pids, contents), "somebody was touched");
}

fn the_store_is_wrong(backed: &Backed) {
    backed.write_keys("store.keys", WRONG_SECRET);
    let words = ["the store does not accept the credentials", "check the access key and its secret"];
    for verb in ["create", "list", "prune", "watch"] {
        refused(backed.backup(verb, &[]), &words);
    }
    refused(backed.verify(&[]), &words);
    refused(backed.restore(&[]), &words);
    backed.write_keys("store.keys", SECRET_KEY);

    let keys = backed.sandbox.path().join("store.keys");
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o644)).expect("its mode");
    refused(backed.backup("create", &[]), &["store.keys", "other users have access to it", "chmod 600"]);
    fs::remove_file(&keys).expect("the file");
    refused(backed.backup("create", &[]), &["store.keys", "No such file"]);
    backed.write_keys("store.keys", SECRET_KEY);

    let recipient = backed.recipient.as_str();
    backed.edit_with(&backed.s3("no-such-bucket", "{file: store.keys}"), &[recipient], "");
    backed.apply().ok();
    refused(backed.backup("create", &[]), &["there is no such bucket", "no-such-bucket"]);
    backed.edit_with(&backed.s3(BUCKET, "environment"), &[recipient], "");
    backed.apply().ok();
    let mut without = backed.command(&["backup", "create", "c"]);
    without.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    let run = Run::from(without.output().expect("quorate runs"));
    refused(run, &["no credentials were found", "AWS_ACCESS_KEY_ID"]);
    backed.edit(&[recipient], "");
    backed.apply().ok();
}

fn there_is_no_backup_yet(backed: &Backed) {
    refused(backed.verify(&[]), &["there is no backup"]);
    refused(backed.restore(&[]), &["there is no backup"]);
}

fn a_wish_cannot_be_granted(backed: &Backed, id: &str) {
    for arguments in [&["verify", "c"][..], &["export", "c", id, "out.db"]] {
        refused(backed.quorate(&[&["backup"], arguments].concat()), &["no identity was given", "--identity"]);
    }
    refused(backed.quorate(&["restore", "c.yaml", "--yes"]), &["no identity was given", "--identity"]);
    backed.sandbox.file("empty.key", "# nothing\n");
    let run = backed.backup("verify", &["--identity", "empty.key"]);
    refused(run, &["empty.key", "expected a line that begins with AGE-SECRET-KEY"]);
    refused(backed.backup("verify", &["--identity", "gone.key"]), &["gone.key", "No such file"]);

    let unknown = "20010203T040506Z-0123abcd";
    let named = ["there is no backup 20010203T040506Z-0123abcd", id];
    refused(backed.verify(&[unknown]), &named);
    refused(backed.restore(&["--backup", unknown]), &named);
    refused(backed.backup("export", &[unknown, "out.db", "--identity", OPERATOR]), &named);
    let nowhere = backed.backup("export", &[id, "no/such/place/out.db", "--identity", OPERATOR]).expect(1);
    refused(nowhere, &["the snapshot cannot be written to no/such/place/out.db", "No such file"]);
    refused(backed.restore(&["--backup", "yesterday"]), &["`yesterday` is not the id of a backup", "they look like"]);

    refused(backed.restore(&["--at", "2001-02-03T04:05:06Z"]), &["is before the oldest backup", id]);
    refused(backed.restore(&["--at", "tomorrow"]), &["tomorrow", "--at"]);
    let beyond = backed.revision() + 1000;
    refused(
        backed.restore(&["--revision", &beyond.to_string()]),
        &[&format!("revision {beyond} was not recorded"), "the changes end at revision", id],
    );
    refused(backed.restore(&["--revision", "1"]), &["revision 1 is older than the oldest backup", id]);
    refused(backed.restore(&["--revision", "5", "--backup", id]), &["cannot be used with"]);
    refused(backed.quorate(&["backup", "create", "nobody"]), &["nobody"]);
    backed.sandbox.file("without.yaml", &spec(1, V35, "", ""));
    refused(backed.quorate(&["backup", "list", "without.yaml"]), &["no `backup` section in its spec"]);
    refused(backed.quorate(&["restore", "without.yaml", "--yes"]), &["no `backup` section in its spec"]);
}

fn a_snapshot_is_none(backed: &Backed) {
    backed.sandbox.file("garbage.db", &"no database ".repeat(100));
    refused(backed.restore(&["--snapshot", "garbage.db"]), &["garbage.db"]);
    refused(backed.restore(&["--snapshot", "gone.db"]), &["gone.db", "No such file"]);
    let object = format!("s3://{BUCKET}/no/such/object.db");
    refused(backed.restore(&["--snapshot", &object]), &["no/such/object.db", "there is no such object"]);
}

/// Then anybody can, which is said loudly; and the ledger with its keys does not lie open next to it.
fn nobody_is_to_read_it(backed: &Backed) {
    backed.edit(&[], "");
    backed.apply().ok();
    let told = backed.backup("create", &[]).ok().stderr;
    assert!(told.contains("NOT ENCRYPTED") && told.contains("backup.recipients"), "{told}");
    let newest = backed.list().pop().expect("a backup");
    assert_eq!(newest["encrypted"], false, "{newest:#}");
    let directory = object(&backed.prefix, &format!("full/{}", newest["id"].as_str().expect("an id")));
    assert_eq!(object_store().names(&directory), ["manifest.json", "snapshot"]);
    let shown = backed.quorate(&["restore", "c.yaml", "--dry-run"]).ok().text();
    assert!(
        shown.contains("what is lost") && shown.contains("verified in a temporary etcd; nothing was changed"),
        "{shown}"
    );
    assert!(!shown.contains("is not encrypted, though"), "{shown}");
    // Where the spec wants the others not to read it, an open one is not taken silently.
    backed.edit(&[&backed.recipient], "");
    let shown = backed.quorate(&["restore", "c.yaml", "--dry-run"]).ok().text();
    assert!(shown.contains("this backup is not encrypted, though the spec names recipients"), "{shown}");
}

/// 3.4 has no tool that bumps revisions. Where that of 3.5 is not at hand, nothing may be stopped.
#[test]
fn without_a_tool_that_bumps_revisions_nothing_is_restored() {
    let backed = Backed::without_other_programs("no-tool", OLDEST);
    let (pids, contents) = (backed.pids(), backed.contents());
    backed.create();
    refused(backed.restore(&[]), &["etcdutl", "3.5"]);
    assert_eq!((backed.pids(), backed.contents()), (pids, contents), "somebody was touched");
}
