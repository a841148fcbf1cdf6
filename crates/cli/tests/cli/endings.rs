//! How commands end: with the documented exit code, even if their output is not read, and with one message when they are stopped.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use crate::common::{Sandbox, newest, signal, spec};

/// How a command ends whose output nobody reads.
fn unread(sandbox: &Sandbox, arguments: &[&str]) -> Option<i32> {
    let mut command = sandbox.command(arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("quorate starts");
    drop(child.stdout.take());
    child.wait().expect("it ends").code()
}

#[test]
fn the_exit_code_does_not_depend_on_who_reads_the_output() {
    let sandbox = Sandbox::new(&newest());
    sandbox.file("bad.yaml", "quorate: 1\nclusters:\n  - {name: c}\n");
    assert_eq!(unread(&sandbox, &["validate", "bad.yaml"]), Some(1));
    sandbox.file("c.yaml", &spec(1, &newest(), "", ""));
    assert_eq!(unread(&sandbox, &["validate", "c.yaml"]), Some(0));
    assert_eq!(unread(&sandbox, &["plan", "c.yaml", "--detailed-exitcode"]), Some(4));
    assert_eq!(unread(&sandbox, &["plan", "c.yaml", "--detailed-exitcode", "--output", "json"]), Some(4));
}

#[test]
fn a_command_that_is_stopped_says_so_and_is_continued() {
    let sandbox = Sandbox::new(&newest());
    sandbox.file("c.yaml", &spec(3, &newest(), "", ""));
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let mut child = sandbox.spawn(&["apply", "c.yaml", "--yes"]);
        let mut lines = BufReader::new(child.stderr.take().expect("its messages"));
        let mut first = String::new();
        lines.read_line(&mut first).expect("a first step");
        signal(child.id(), name);
        let mut rest = String::new();
        lines.read_to_string(&mut rest).expect("the rest");
        assert_eq!(child.wait().expect("it ends").code(), Some(code), "{first}{rest}");
        let last = rest.lines().last().unwrap_or_default();
        assert!(last.ends_with("nothing is half done: re-run the same command to continue"), "{first}{rest}");
    }
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    assert_eq!(sandbox.status("c")["verdict"], "healthy");
}

#[test]
fn a_full_quota_is_degraded_and_says_what_helps() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    sandbox.file("c.yaml", &spec(1, &version, "quota: 8", ""));
    let told = sandbox.quorate(&["validate", "c.yaml"]).ok().stdout;
    assert!(told.contains("the quota 8B is below 16MiB"), "{told}");
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    let refused = sandbox.etcdctl(&version, "c", &["put", "k", "v"]).fails();
    assert!(refused.stderr.contains("database space exceeded"), "{}", refused.stderr);
    let status = sandbox.quorate(&["status", "c"]).expect(5).stdout;
    assert!(
        status.contains("degraded: etcd refuses all writes, because the database of etcd-1 has reached"),
        "{status}"
    );
    assert!(status.contains("etcdctl alarm disarm"), "{status}");

    // There is room again, and the alarm is still set.
    sandbox.file("c.yaml", &spec(1, &version, "quota: 1GiB", ""));
    sandbox.quorate(&["apply", "c.yaml", "--yes", "--allow-downtime"]).ok();
    sandbox.etcdctl(&version, "c", &["put", "k", "v"]).fails();
    let status = sandbox.quorate(&["status", "c"]).expect(5).stdout;
    assert!(status.contains("remedy: `etcdctl alarm disarm`: there is room again"), "{status}");
    assert!(
        status.contains("until the alarm NOSPACE is disarmed") && !status.contains("raise `etcd.quota`"),
        "{status}"
    );
    assert_eq!(sandbox.status("c")["alarms"][0]["has_room"], true);
    sandbox.etcdctl(&version, "c", &["alarm", "disarm"]).ok();
    sandbox.etcdctl(&version, "c", &["put", "k", "v"]).ok();
    sandbox.quorate(&["status", "c"]).ok();
}

#[test]
fn a_quota_below_the_database_is_refused_and_writes_go_on() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    sandbox.file("c.yaml", &spec(1, &version, "quota: 1GiB", ""));
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    sandbox.file("c.yaml", &spec(1, &version, "quota: 8KiB", ""));
    for arguments in [&["plan", "c.yaml"][..], &["apply", "c.yaml", "--yes", "--allow-downtime"]] {
        let refused = sandbox.quorate(arguments).expect(3).text();
        assert!(refused.contains("the quota would be 8KiB, so etcd would refuse all writes"), "{refused}");
    }
    sandbox.etcdctl(&version, "c", &["put", "k", "v"]).ok();
    sandbox.file("c.yaml", &spec(1, &version, "quota: 2GiB", ""));
    sandbox.quorate(&["apply", "c.yaml", "--yes", "--allow-downtime"]).ok();
    sandbox.etcdctl(&version, "c", &["put", "k", "v"]).ok();
}

#[test]
fn a_home_that_is_a_file_is_refused() {
    let sandbox = Sandbox::new(&newest());
    let file = sandbox.file("file", "");
    let told = sandbox.quorate(&["--home", &file.to_string_lossy(), "status"]).expect(1).stderr;
    assert!(told.contains("is not a directory"), "{told}");
}

#[test]
fn many_members_are_confirmed_and_too_many_refused() {
    let sandbox = Sandbox::new(&newest());
    let told = sandbox.quorate(&["up", "many", "--members", "11"]).expect(1).stderr;
    assert!(told.contains("11 members are 22 processes") && told.contains("--yes"), "{told}");
    let told = sandbox.quorate(&["up", "many", "--members", "16", "--yes"]).expect(1).stderr;
    assert!(told.contains("15 are the most that quorate runs"), "{told}");
    assert!(!sandbox.has_machines());
}

#[test]
fn scenarios_are_listed_for_scripts_too() {
    let sandbox = Sandbox::new(&newest());
    let listed = sandbox.quorate(&["drill", "--scenario", "list", "--output", "json"]).ok().json();
    let names: Vec<&str> = listed.as_array().expect("a list").iter().filter_map(|s| s["name"].as_str()).collect();
    assert!(names.contains(&"kill-leader") && listed[0]["does"].is_string(), "{listed:#}");
}

#[test]
fn a_cluster_that_is_taken_out_of_its_file_is_remembered() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    let one = |name: &str| format!("  - {{name: {name}, members: [{{name: etcd-1}}], etcd: {{version: {version}}}}}\n");
    let both = format!("quorate: 1\nclusters:\n{}{}", one("first"), one("second"));
    sandbox.file("c.yaml", &both);
    let told = sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok().stderr;
    assert!(!told.contains("note:"), "{told}");
    sandbox.file("c.yaml", &both.replace(&one("second"), ""));
    for arguments in [&["plan", "c.yaml"][..], &["apply", "c.yaml", "--yes"]] {
        let told = sandbox.quorate(arguments).ok().stderr;
        let note = "note: cluster second was applied from c.yaml, which no longer declares it";
        assert!(told.contains(note) && told.contains("quorate destroy second"), "{told}");
    }
    assert_eq!(sandbox.status("second")["verdict"], "healthy");
    sandbox.file("other.yaml", &format!("quorate: 1\nclusters:\n{}", one("third")));
    assert!(
        !sandbox.quorate(&["plan", "other.yaml"]).ok().stderr.contains("note:"),
        "another file's clusters are its own"
    );
}
