//! Secrets at rest: a copy of the ledgers opens nothing, keys are moved, missing and rotated, and what an earlier version wrote in
//! clear text is encrypted by the next `apply`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::common::{Run, Sandbox, newest, spec};

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.into_iter().flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// What opens the cluster, as its ledger holds it.
fn secrets(ledger: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().expect("a secret").to_owned();
    let second_line = |value: &Value| text(value).lines().nth(1).expect("a key").to_owned();
    let authorities = &ledger["authorities"];
    vec![
        text(&ledger["etcd"]["auth"]["root_password"]),
        second_line(&authorities["client"]["key"]),
        second_line(&authorities["control"]["key"]),
        text(&ledger["members"]["etcd-1"]["enrolment"]["token"]),
    ]
}

#[track_caller]
fn assert_closed(sandbox: &Sandbox, secrets: &[String]) {
    for file in files_below(&sandbox.home().join("clusters")) {
        let bytes = fs::read(&file).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        for secret in secrets {
            assert!(!text.contains(secret.as_str()), "{} holds a secret in clear", file.display());
        }
    }
}

/// Every version as the first format had it, in clear, and no key.
fn back_in_clear(sandbox: &Sandbox) {
    let mut ledger = sandbox.ledger("c");
    to_first_format(&mut ledger);
    for file in files_below(&sandbox.home().join("clusters/c/ledger")) {
        let stored: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        ledger["version"] = stored["version"].clone();
        fs::write(&file, serde_json::to_vec_pretty(&ledger).unwrap()).unwrap();
    }
    fs::remove_file(sandbox.home().join("key")).unwrap();
}

/// What only etcd has was among the rest, and the certificates that were issued were in `auth`.
fn to_first_format(ledger: &mut Value) {
    let fields = ledger.as_object_mut().expect("a ledger");
    fields.insert(String::from("format"), 1.into());
    let part = |fields: &mut Map<String, Value>, name: &str| match fields.remove(name) {
        Some(Value::Object(part)) => part,
        found => panic!("{name}: {found:?}"),
    };
    let mut etcd = part(fields, "etcd");
    let mut settled = part(&mut etcd, "formed_with");
    let mut auth = part(&mut etcd, "auth");
    rename(&mut settled, "version", "etcd_version");
    let mut issued = part(fields, "issued");
    rename(&mut issued, "users", "certificates");
    rename(&mut issued, "client_crl", "crl");
    auth.extend(issued);
    fields["formed_with"].as_object_mut().expect("it is formed").extend(settled);
    fields.extend(etcd);
    fields.insert(String::from("auth"), auth.into());
    rename(fields["authorities"].as_object_mut().expect("authorities"), "client", "etcd");
}

fn rename(fields: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = fields.remove(from) {
        fields.insert(to.to_owned(), value);
    }
}

#[test]
fn a_copy_of_the_ledgers_opens_nothing_and_the_key_can_be_moved_missed_and_rotated() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    sandbox.file("c.yaml", &spec(1, &version, "client_auth: password", ""));
    let key = sandbox.home().join("key");
    let mut apply = sandbox.command(&["apply", "c.yaml", "--yes"]);
    apply.env("QUORATE_KEY", &key).env("AWS_ACCESS_KEY_ID", "me").env("AWS_SECRET_ACCESS_KEY", "hunter2");
    Run::from(apply.output().expect("quorate runs")).ok();
    // No process that stays has the key in its hands, nor what opens a backup store.
    assert_eq!((sandbox.agents().len(), sandbox.etcds().len()), (1, 1));
    for (pid, line) in sandbox.processes() {
        let environment = fs::read(format!("/proc/{pid}/environ")).expect("it runs");
        let environment = String::from_utf8_lossy(&environment);
        assert!(environment.contains("QUORATE_HOME"), "{line}");
        assert!(!environment.contains("QUORATE_KEY") && !environment.contains("AWS_"), "{line}");
    }
    let known = secrets(&sandbox.ledger("c"));
    assert_closed(&sandbox, &known);

    // As if the version before had made the cluster.
    back_in_clear(&sandbox);
    let shown = sandbox.quorate(&["key", "show"]).ok().stdout;
    assert!(shown.contains("cluster c: not encrypted: the next `quorate apply` encrypts it"), "{shown}");
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    assert_closed(&sandbox, &known);
    assert_eq!(secrets(&sandbox.ledger("c")), known);
    let shown = sandbox.quorate(&["key", "show", "--output", "json"]).ok().json();
    let public = shown["public_key"].as_str().expect("a public key").to_owned();
    assert_eq!(shown["clusters"]["c"], public.as_str());

    // Gone, and then elsewhere.
    let elsewhere = sandbox.path().join("my key");
    fs::rename(&key, &elsewhere).unwrap();
    for arguments in
        [&["status", "c"][..], &["apply", "c.yaml", "--yes"], &["env", "c"], &["up", "other", "--members", "1"]]
    {
        let told = sandbox.quorate(arguments).expect(1).stderr;
        for word in [public.as_str(), "key does not exist", "QUORATE_KEY=FILE"] {
            assert!(told.contains(word), "{arguments:?}: {word} is not in {told}");
        }
    }
    assert!(!key.exists(), "no other is made");
    let with = |name: &str, value: &str| -> Run {
        sandbox.command(&["status", "c"]).env(name, value).output().expect("quorate runs").into()
    };
    with("QUORATE_KEY", &elsewhere.display().to_string()).ok();
    with("QUORATE_KEY_COMMAND", &format!("cat '{}'", elsewhere.display())).ok();
    let told = with("QUORATE_KEY_COMMAND", "echo oops; exit 7").expect(1).stderr;
    assert!(told.contains("QUORATE_KEY_COMMAND failed") && !told.contains("oops"), "{told}");
    fs::rename(&elsewhere, &key).unwrap();

    // On a full disk nothing could be written, and nothing needs to be.
    let inode = || fs::metadata(sandbox.home().join("clients/c/ca.crt")).expect("a CA certificate").ino();
    sandbox.quorate(&["env", "c"]).ok();
    let first = inode();
    sandbox.quorate(&["env", "c"]).ok();
    assert_eq!(inode(), first, "what is as it should be is left alone");

    // Another key, and the old one opens nothing any more.
    let old = fs::read_to_string(&key).unwrap();
    sandbox.quorate(&["key", "rotate"]).ok();
    assert_closed(&sandbox, &known);
    let shown = sandbox.quorate(&["key", "show", "--output", "json"]).ok().json();
    assert!(shown["public_key"] != public.as_str() && shown["clusters"]["c"] == shown["public_key"], "{shown}");
    // What is left of a machine whose removal was cut short holds keys and data too.
    let left = sandbox.home().join("machines/c/.etcd-1.9.gone");
    fs::create_dir_all(left.join("root")).unwrap();
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    assert!(!left.exists(), "{} is swept", left.display());
    assert_eq!(secrets(&sandbox.ledger("c")), known);
    fs::write(&elsewhere, old).unwrap();
    let told = with("QUORATE_KEY", &elsewhere.display().to_string()).expect(1).stderr;
    assert!(told.contains(&public) && told.contains("name the right key"), "{told}");
    a_key_that_two_homes_share_is_dropped_only_on_consent(&sandbox, &key);
}

fn a_key_that_two_homes_share_is_dropped_only_on_consent(sandbox: &Sandbox, key: &Path) {
    let (shared, second) = (sandbox.path().join("shared key"), sandbox.path().join("second home"));
    let ledger = second.join("clusters/c/ledger");
    fs::create_dir_all(&ledger).unwrap();
    for file in files_below(&sandbox.home().join("clusters/c/ledger")) {
        fs::copy(&file, ledger.join(file.file_name().unwrap())).unwrap();
    }
    fs::rename(key, &shared).unwrap();
    let run = |home: &Path, arguments: &[&str]| -> Run {
        let mut command = sandbox.command(arguments);
        command.env("QUORATE_HOME", home).env("QUORATE_KEY", &shared).output().expect("quorate runs").into()
    };
    let identities =
        || fs::read_to_string(&shared).unwrap().lines().filter(|line| line.starts_with("AGE-SECRET-KEY-1")).count();
    let first = sandbox.home();
    let recipient = run(&first, &["key", "show", "--output", "json"]).ok().json()["public_key"].clone();
    let export = ["ledger", "export", "c", "--recipient", recipient.as_str().unwrap(), "--out"];
    let opens = |home: &Path, out: &str| run(home, &[&export[..], &[out]].concat());

    let told = run(&first, &["key", "rotate"]).ok().stderr;
    assert!(told.contains("--drop-old") && identities() == 2, "{told}");
    opens(&second, "second.age").ok();
    let told = run(&second, &["key", "rotate"]).ok().stderr;
    assert!(told.contains("no new key is created") && identities() == 2, "{told}");
    run(&first, &["key", "rotate", "--drop-old"]).ok();
    assert_eq!(identities(), 1);
    for (home, out) in [(&first, "third.age"), (&second, "fourth.age")] {
        opens(home, out).ok();
    }
    fs::rename(&shared, key).unwrap();
}
