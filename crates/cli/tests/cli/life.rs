//! etcd under its agent, at the command line: what a refused change leaves behind, and what keeps running without quorate.

use std::fs;
use std::process::{Command, Stdio};

use crate::common::{Sandbox, eventually, lab, spec};

const OLDER: &str = "3.5.30";
const NEWER: &str = "3.6.16";

#[test]
fn a_refused_version_change_leaves_the_cluster_as_it_is_also_over_a_restart_of_its_machines() {
    let sandbox = Sandbox::new(OLDER);
    let there = format!("binary: {{path: {}}}", lab(OLDER).display());
    sandbox.file("c.yaml", &spec(1, OLDER, &there, ""));
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    sandbox.file("c.yaml", &spec(1, NEWER, &there, ""));
    for _ in 0..2 {
        let told = sandbox.quorate(&["apply", "c.yaml", "--yes", "--allow-downtime"]).expect(3).text();
        assert!(told.contains(&format!("etcd-1 needs etcd {NEWER}, but finds {OLDER}")), "{told}");
    }
    sandbox.quorate(&["down", "c"]).ok();
    // What cannot be done is told again; the machines come back all the same.
    sandbox.quorate(&["start", "c"]).expect(3);
    eventually("a boot starts what ran before", 20, || sandbox.status("c")["members"][0]["version"] == OLDER);

    // The PATH of `apply` counts, not what was there when the agent was started.
    sandbox.file("c.yaml", &spec(1, NEWER, "", ""));
    let path = format!("{}:{}", lab(NEWER).display(), std::env::var("PATH").unwrap_or_default());
    let mut apply = sandbox.command(&["apply", "c.yaml", "--yes", "--allow-downtime"]);
    let applied = apply.env("PATH", path).output().unwrap();
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    assert_eq!(sandbox.status("c")["members"][0]["version"], NEWER);
}

#[test]
fn agents_hold_nothing_open_that_their_maker_had_open_and_end_when_their_directory_is_removed() {
    let sandbox = Sandbox::new(NEWER);
    let lock = sandbox.path().join("lock");
    let up = sandbox.command(&["up", "c", "--members", "1"]);
    let mut locked = Command::new("flock");
    locked.arg("-n").arg(&lock).arg(up.get_program()).args(up.get_args()).stdin(Stdio::null());
    locked.envs(up.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(sandbox.path());
    assert!(locked.output().unwrap().status.success());
    assert_eq!((sandbox.agents().len(), sandbox.etcds().len()), (1, 1));
    let free = Command::new("flock").arg("-n").arg(&lock).arg("true").status().unwrap();
    assert!(free.success(), "somebody still holds the lock");

    fs::remove_dir_all(sandbox.home().join("machines")).unwrap();
    eventually("agent and etcd end", 30, || sandbox.agents().is_empty() && sandbox.etcds().is_empty());
}

#[test]
fn a_cluster_with_passwords_and_simple_tokens_comes_up_after_a_restore() {
    for token in ["simple", "jwt"] {
        let sandbox = Sandbox::new(OLDER);
        let settings = "client_auth: password, flags: {bcrypt-cost: 4}";
        sandbox.file("c.yaml", &spec(1, OLDER, settings, &format!("auth: {{token: {token}}}")));
        sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
        sandbox.etcdctl(OLDER, "c", &["put", "kept", "yes"]).ok();
        let snapshot = sandbox.path().join("snapshot.db");
        sandbox.etcdctl(OLDER, "c", &["snapshot", "save", snapshot.to_str().unwrap()]).ok();
        // The log must go further than that of the restored cluster will for a while.
        for _ in 0..25 {
            sandbox.etcdctl(OLDER, "c", &["put", "lost", "yes"]).ok();
        }
        sandbox.quorate(&["restore", "c.yaml", "--snapshot", snapshot.to_str().unwrap(), "--yes"]).ok();
        let kept = sandbox.etcdctl(OLDER, "c", &["get", "kept", "--print-value-only"]).ok().stdout;
        assert_eq!(kept.trim(), "yes", "{token}");
    }
}
