//! An attacker who can write to the backup store and has no key: his objects are neither trusted nor copied, and never lead to data
//! that he could read. Each of these attacks worked once.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::backups::{BackedUp, NAME, VERSION};
use crate::common::eventually;

const SECRET: &str = "hunter2-very-secret";
const FUTURE: &str = "20991231T000000Z-deadbeef";

fn create(cluster: &BackedUp) -> String {
    let created = cluster.backup("create", &["--output", "json"]).ok().json();
    created["id"].as_str().expect("an id").to_owned()
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("a manifest")).expect("JSON")
}

fn files(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root).map(|entries| entries.flatten().map(|entry| entry.path()).collect::<Vec<_>>());
    let deeper = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
    entries.unwrap_or_default().into_iter().flat_map(deeper).collect()
}

fn holds(path: &Path, text: &str) -> bool {
    fs::read(path).is_ok_and(|bytes| bytes.windows(text.len()).any(|window| window == text.as_bytes()))
}

/// A manifest that says what the genuine one says, but for the id, and for that nothing is encrypted.
fn forge(store: &Path, genuine: &str, id: &str) {
    let mut manifest = read_json(&store.join(format!("full/{genuine}/manifest.json")));
    manifest["id"] = json!(id);
    manifest["recipient"] = Value::Null;
    manifest["stored_bytes"] = json!(4);
    if let Some(fields) = manifest.as_object_mut() {
        fields.remove("sealed_for");
    }
    let directory = store.join(format!("full/{id}"));
    fs::create_dir_all(&directory).expect("a directory");
    fs::write(directory.join("snapshot"), "junk").expect("a snapshot");
    fs::write(directory.join("manifest.json"), manifest.to_string()).expect("a manifest");
}

#[test]
fn neither_reads_nor_destroys_nor_leads_astray() {
    let cluster = BackedUp::up(1, "also_to: {directory: second}");
    let put = |key: &str, value: &str| cluster.sandbox.etcdctl(VERSION, NAME, &["put", key, value]).ok();
    let (store, second) = (cluster.store(), cluster.sandbox.path().join("second").join(NAME));
    put("early", "x");
    let id = create(&cluster);
    a_recorder_goes_on_top_of_nothing_forged(&cluster, &store, &id, put);
    assert!(!second.join(format!("full/{FUTURE}")).exists(), "a forgery was passed on to the second destination");
    fs::remove_dir_all(store.join(format!("full/{FUTURE}"))).expect("the forgery");

    // What was exchanged in the first destination, its digests with it, replaces nothing in the second.
    let before: Vec<_> =
        files(&second.join(format!("full/{id}"))).into_iter().map(|f| (fs::read(&f).unwrap(), f)).collect();
    assert_eq!(before.len(), 4, "{before:?}");
    let full = store.join(format!("full/{id}"));
    for (name, digest) in [("snapshot", "/stored_sha256"), ("key", "/beside/key"), ("ledger", "/beside/ledger")] {
        fs::write(full.join(name), format!("not the {name}")).expect("damage");
        let mut manifest = read_json(&full.join("manifest.json"));
        *manifest.pointer_mut(digest).expect("a digest") = json!("0".repeat(64));
        fs::write(full.join("manifest.json"), manifest.to_string()).expect("damage");
    }
    let told = cluster.backup("create", &[]).expect(9).stderr;
    assert!(told.contains("NOT of this cluster"), "{told}");
    for (content, path) in &before {
        assert_eq!(fs::read(path).ok().as_ref(), Some(content), "{} was replaced", path.display());
    }

    // One object's name once led a restore to revisions that etcd cannot count.
    let absurd = second.join(format!("changes/{id}/00000000000000000005-09223372036854775807.json"));
    fs::create_dir_all(absurd.parent().expect("a directory")).expect("a directory");
    fs::write(&absurd, "{}").expect("an object");
    put("late", "y");
    cluster.restore(&["--second", "--backup", &id]).ok();
    assert_eq!(cluster.sandbox.status(NAME)["verdict"], "healthy");
    let told = cluster.sandbox.etcdctl(VERSION, NAME, &["get", "early", "--write-out=json"]).ok().json();
    let revision = told["header"]["revision"].as_i64().expect("a revision");
    assert!((1_000_000_000..2_000_000_000).contains(&revision), "{revision}");
    let highest = cluster.sandbox.ledger(NAME)["etcd"]["highest_revision"].as_u64().expect("a revision");
    assert!(highest < 2_000_000_000, "{highest}");
}

fn a_recorder_goes_on_top_of_nothing_forged<T>(
    cluster: &BackedUp,
    store: &Path,
    id: &str,
    put: impl Fn(&str, &str) -> T,
) {
    forge(store, id, FUTURE);
    let watcher = cluster.watch();
    eventually("the forgery is reported", 60, || cluster.watched().contains("another writer writes to"));
    assert!(cluster.watched().contains("2099"), "{}", cluster.watched());
    put("/registry/secrets/prod/db", SECRET);
    eventually("changes are recorded", 60, || !files(&store.join(format!("changes/{id}"))).is_empty());
    watcher.stop();
    assert!(!store.join(format!("changes/{FUTURE}")).exists(), "{}", cluster.watched());
    let readable: Vec<_> = files(store).into_iter().filter(|path| holds(path, SECRET)).collect();
    assert!(readable.is_empty(), "a live secret lies open in {readable:?}");

    let listed = cluster.backup("list", &["--output", "json"]).ok().json();
    let ids: Vec<_> = listed["backups"].as_array().expect("backups").iter().map(|one| &one["id"]).collect();
    assert!(ids.iter().all(|listed| **listed == json!(id)), "{listed:#}");
    assert!(listed["damage"].to_string().contains(FUTURE), "{listed:#}");
    let problems = cluster.sandbox.status(NAME)["backup"]["problems"].to_string();
    assert!(problems.contains("another writer writes to the backup store"), "{problems}");

    a_segment_that_was_appended_is_refused(cluster, store, id);
}

/// Its manifest follows the last genuine one, and says all that a genuine one would.
fn a_segment_that_was_appended_is_refused(cluster: &BackedUp, store: &Path, id: &str) {
    let changes = store.join(format!("changes/{id}"));
    let mut manifests: Vec<_> = files(&changes).into_iter().filter(|f| f.extension().is_some()).collect();
    manifests.sort();
    let last = manifests.last().expect("a segment");
    let mut manifest = read_json(last);
    let next = manifest["to"].as_i64().expect("a revision") + 1;
    manifest["previous"] = manifest["stored_sha256"].take();
    manifest["from"] = json!(next);
    manifest["to"] = json!(next);
    let forged = changes.join(format!("{next:020}-{next:020}"));
    fs::copy(last.with_extension(""), &forged).expect("a segment");
    fs::write(forged.with_extension("json"), manifest.to_string()).expect("a manifest");
    let told = cluster.restore(&["--dry-run"]).expect(1).stderr;
    assert!(told.contains("NOT of this cluster") && told.contains("still good"), "{told}");
    // Up to where the genuine ones lead, it can be had.
    cluster.restore(&["--dry-run", "--revision", &(next - 1).to_string()]).ok();
    for path in [forged.with_extension("json"), forged] {
        fs::remove_file(path).expect("the forgery");
    }
}

#[test]
fn puts_no_ledger_and_no_backup_under_ours() {
    let cluster = BackedUp::up(1, "");
    cluster.sandbox.etcdctl(VERSION, NAME, &["put", "early", "x"]).ok();
    // However long its history is, the ledger comes back.
    let known = cluster.sandbox.home().join("clusters").join(NAME);
    let history = fs::read_to_string(known.join("history.jsonl")).expect("a history");
    fs::write(known.join("history.jsonl"), history.repeat((40 << 20) / history.len())).expect("a long history");
    let id = create(&cluster);
    fs::write(known.join("history.jsonl"), &history).expect("the history");
    let signer = cluster.signer();
    assert_eq!(cluster.backup("list", &["--output", "json"]).ok().json()["signed_by"], json!(signer));
    let full = cluster.store().join(format!("full/{id}"));
    let (manifest, ledger) = (full.join("manifest.json"), full.join("ledger"));
    let (good_manifest, good_ledger) = (fs::read(&manifest).unwrap(), fs::read(&ledger).unwrap());
    let recipient = cluster.recipient();
    cluster.sandbox.quorate(&["ledger", "export", NAME, "--recipient", &recipient, "--out", "other"]).ok();
    let other = fs::read(cluster.sandbox.path().join("other")).unwrap();
    let aside = cluster.sandbox.path().join("aside");
    fs::rename(&known, &aside).expect("the controller's memory");

    // Nothing is taken on the store's own word.
    let import = ["ledger", "import", "--from-backup", "c.yaml", "--identity", "operator.key"];
    let told = cluster.sandbox.quorate(&import).expect(1).stderr;
    assert!(told.contains("--signed-by") && told.contains("--unsigned"), "{told}");
    let told = cluster.restore(&["--dry-run"]).expect(1).stderr;
    assert!(told.contains("--signed-by") && told.contains("--unsigned"), "{told}");
    // Encrypted to the right recipient, and yet not the one that was stored.
    fs::write(&ledger, &other).unwrap();
    let signed = [&import[..], &["--signed-by", &signer]].concat();
    let told = cluster.sandbox.quorate(&signed).expect(1).stderr;
    assert!(told.contains("ledger is not what was stored"), "{told}");
    let told = cluster.restore(&["--dry-run", "--signed-by", &signer]).expect(1).stderr;
    assert!(told.contains("ledger is not what was stored"), "{told}");
    assert!(!known.join("ledger").exists(), "something was taken over");
    fs::write(&ledger, &good_ledger).unwrap();
    let told = cluster.restore(&["--dry-run", "--signed-by", &signer]).ok().text();
    for word in ["signed by", "control CA  SHA-256", "etcd CA     SHA-256", "cluster id"] {
        assert!(told.contains(word), "{word} in {told}");
    }
    let told = cluster.sandbox.quorate(&signed).ok().stderr;
    assert!(told.contains("control CA  SHA-256") && told.contains("checked: it is signed by"), "{told}");
    let newest = fs::read_to_string(known.join("history.jsonl")).expect("the newest part of the history");
    assert!(newest.len() < 2 << 20 && newest.lines().last() == history.lines().last(), "{} bytes", newest.len());
    fs::remove_dir_all(&known).expect("what was taken over");
    fs::rename(&aside, &known).expect("the controller's memory");

    // One that nobody signed, as an older quorate made them, is restored by consent alone.
    let mut unsigned = read_json(&manifest);
    unsigned.as_object_mut().unwrap().remove("signature");
    fs::write(&manifest, unsigned.to_string()).unwrap();
    let listed = cluster.backup("list", &["--output", "json"]).ok().json();
    assert_eq!(listed["backups"][0]["signed"], json!(false), "{listed:#}");
    let told = cluster.restore(&["--dry-run"]).expect(1).stderr;
    assert!(told.contains("is signed") && told.contains("--unsigned"), "{told}");
    let told = cluster.restore(&["--dry-run", "--unsigned"]).ok().text();
    assert!(told.contains("NOT SIGNED"), "{told}");
    fs::write(&manifest, &good_manifest).unwrap();
    // Nor does a zip bomb fill the disk: what is opened is bounded by what the cluster signed for.
    cluster.verify(&id);
    data_is_deleted_only_where_the_store_has_it(&cluster, &id);
}

/// The ledger remembers a backup that was there once.
fn data_is_deleted_only_where_the_store_has_it(cluster: &BackedUp, id: &str) {
    let (store, aside) = (cluster.sandbox.path().join("store"), cluster.sandbox.path().join("aside"));
    let refuses = |words: &[&str]| {
        let told = cluster.sandbox.quorate(&["destroy", NAME, "--yes"]).expect(3).text();
        assert!(words.iter().all(|word| told.contains(word)), "{words:?} in {told}");
        assert_eq!(cluster.sandbox.etcds().len(), 1);
    };
    fs::rename(&store, &aside).expect("the store");
    refuses(&["is not in", id, "no verified backup"]);
    // It is made where it is missing.
    fs::remove_dir_all(&store).expect("an empty store");
    fs::write(&store, "no directory").expect("a file");
    refuses(&["is unknown", id, "no verified backup"]);
    fs::remove_file(&store).expect("a file");
    // Once somebody looks, the ledger knows it too.
    cluster.backup("verify", &[]).expect(1);
    let problems = cluster.sandbox.status(NAME)["backup"]["problems"].to_string();
    assert!(problems.contains("there is no backup yet"), "{problems}");
    refuses(&["no verified backup"]);
    let _ = fs::remove_dir_all(&store);
    fs::rename(&aside, &store).expect("the store");
    cluster.verify(id);
    let snapshot = cluster.store().join(format!("full/{id}/snapshot"));
    let whole = fs::read(&snapshot).expect("a snapshot");
    fs::write(&snapshot, &whole[1..]).expect("damage");
    refuses(&["is damaged since", "it was cut or replaced"]);
    fs::write(&snapshot, whole).expect("a snapshot");
    let told = cluster.sandbox.quorate(&["destroy", NAME, "--yes"]).ok().stderr;
    assert!(told.contains("hint: keep this key: a restore needs it as `--signed-by "), "{told}");
    assert_eq!(cluster.sandbox.processes(), []);
}
