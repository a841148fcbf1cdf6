//! The lock: it is kept while a run works, however slow that is, and can be broken when its holder is gone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use jiff::Timestamp;
use serde_json::Value;

use crate::common::{Sandbox, eventually, newest, signal, spec};

/// The file of the newest version.
fn newest_version(sandbox: &Sandbox) -> Option<PathBuf> {
    let entries = fs::read_dir(sandbox.home().join("clusters/c/ledger")).ok()?.flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|e| e == "json")).max()
}

fn stored(sandbox: &Sandbox) -> Option<Value> {
    serde_json::from_slice(&fs::read(newest_version(sandbox)?).ok()?).ok()
}

#[test]
fn a_lock_of_a_host_that_is_gone_expires_or_is_broken_by_consent() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    sandbox.file("c.yaml", &spec(1, &version, "", ""));
    let mut first = sandbox.spawn(&["apply", "c.yaml", "--yes"]);
    eventually("a machine", 10, || sandbox.has_machines());
    signal(first.id(), "KILL");
    first.wait().unwrap();
    // As it would look from another host, and with a clock that was ten years ahead.
    let (newest, mut stored) = (newest_version(&sandbox).unwrap(), stored(&sandbox).unwrap());
    assert!(stored["lock"].is_object(), "it was killed in the middle");
    stored["lock"]["host"] = "laptop".into();
    stored["lock"]["expires"] = "2099-01-01T00:00:00Z".into();
    fs::write(&newest, serde_json::to_vec_pretty(&stored).unwrap()).unwrap();

    let refused = sandbox.quorate(&["unlock", "c"]).expect(1).stderr;
    assert!(refused.contains("on laptop") && refused.contains("--yes"), "{refused}");
    sandbox.quorate(&["unlock", "c", "--yes"]).ok();
    assert_eq!(sandbox.ledger("c")["lock"], Value::Null);
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    let told = sandbox.quorate(&["unlock", "c", "--yes"]).ok().stderr;
    assert!(told.contains("is not locked"), "{told}");
}

/// A provider that takes longer to answer than a lease lasts: the run lives, and nobody may take its lock.
#[test]
fn the_lock_is_kept_while_the_provider_takes_its_time() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    let programs = sandbox.path().join("programs");
    fs::create_dir(&programs).unwrap();
    let slow = "#!/bin/sh\n[ -d \"$QUORATE_HOME/clusters/c/ledger\" ] && sleep 30\necho 'error: failed to connect' >&2\nexit 1\n";
    fs::write(programs.join("virsh"), slow).unwrap();
    fs::set_permissions(programs.join("virsh"), fs::Permissions::from_mode(0o755)).unwrap();
    let member = "{name: etcd-1, libvirt: {interfaces: [{network: lab, address: 10.77.200.1, prefix: 16}]}}";
    let libvirt = "{pool: lab, image: {volume: boot.img, has_agent: true}, acceleration: emulation}";
    let text = format!(
        "quorate: 1\nclusters:\n  - name: c\n    etcd: {{version: {version}}}\n    provider: {{libvirt: {libvirt}}}\n    members: [{member}]\n"
    );
    sandbox.file("c.yaml", &text);
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let mut run = sandbox.command(&["apply", "c.yaml", "--yes"]).env("PATH", path).spawn().expect("quorate starts");
    let expires = || stored(&sandbox)?["lock"]["expires"].as_str()?.parse::<Timestamp>().ok();
    eventually("the lock is taken", 10, || expires().is_some());
    let first = expires().expect("a lease");
    eventually("the lease is renewed during the look", 9, || expires().is_some_and(|now| now > first));
    signal(run.id(), "KILL");
    run.wait().unwrap();
}
