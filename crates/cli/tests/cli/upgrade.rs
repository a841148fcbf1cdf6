//! Upgrades of quorate itself: `apply` gives every machine's agent the controller's program. The other versions here are copies of the
//! program under test with a different version number.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use quorate_core::model::PROTOCOL;
use quorate_core::text::hex;
use quorate_pki::Sha256;
use serde_json::Value;

use crate::common::intruder::Intruder;
use crate::common::trio::{Login, MEMBERS, NAME, Trio};
use crate::common::{Run, eventually, signal};

const VERSION: &str = env!("CARGO_PKG_VERSION");
pub const PROGRAM: &str = "usr/lib/quorate/quorate";
pub const NEXT: &str = "usr/lib/quorate/quorate.next";

/// The program under test with another version or protocol in it, of the same length.
fn program(trio: &Trio, name: &str, changes: &[(&str, &str)]) -> PathBuf {
    let path = trio.sandbox.path().join(name);
    // What debuggers need would only have to be sent to every machine.
    let stripped = Command::new("strip").arg("-o").arg(&path).arg(env!("CARGO_BIN_EXE_quorate")).status();
    assert!(stripped.expect("strip, of binutils").success());
    let mut bytes = fs::read(&path).expect("the program");
    let mark = b"quorate-program protocol=";
    let at = bytes.windows(mark.len()).position(|window| window == mark).expect("its mark");
    let end = at + bytes[at..].iter().position(|byte| *byte == b';').expect("the end of its mark");
    let mut text = String::from_utf8(bytes[at..end].to_vec()).expect("text");
    for (from, to) in changes {
        assert!(text.contains(from), "{text}");
        text = text.replace(from, to);
    }
    bytes[at..end].copy_from_slice(text.as_bytes());
    fs::write(&path, bytes).expect("the changed program");
    path
}

fn older(trio: &Trio) -> PathBuf {
    program(trio, "older", &[(&format!("version={VERSION}"), "version=0.0.9")])
}

pub fn run(trio: &Trio, program: &Path, arguments: &[&str]) -> Run {
    command(trio, program, arguments).output().expect("it runs").into()
}

pub fn command(trio: &Trio, program: &Path, arguments: &[&str]) -> Command {
    let like = trio.sandbox.command(arguments);
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).current_dir(trio.sandbox.path());
    command.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

fn versions(status: &Value) -> Vec<String> {
    let members = status["members"].as_array().expect("members");
    members.iter().map(|m| m["agent"]["version"].as_str().unwrap_or("?").to_owned()).collect()
}

pub fn etcds(trio: &Trio) -> Vec<Option<u32>> {
    MEMBERS.map(|member| trio.etcd_of(member)).to_vec()
}

#[test]
fn agents_of_an_older_quorate_are_upgraded_one_after_another_and_etcd_runs_on() {
    let trio = Trio::new(Login::Certificate);
    let older = older(&trio);
    run(&trio, &older, &["apply", "--yes", "trio.yaml"]).ok();
    let before = etcds(&trio);
    assert_eq!(versions(&trio.status()), ["0.0.9"; 3]);
    trio.etcdctl(&["put", "k", "v"]).ok();

    let plan = trio.sandbox.quorate(&["plan", "trio.yaml", "--output", "json"]).ok().json();
    assert_eq!(plan["summary"]["steps"], 3, "{plan:#}");
    let applied = trio.apply().ok();
    let upgraded = format!("upgrade the agent of etcd-1 from quorate 0.0.9 to {VERSION}");
    assert!(applied.text().contains(&upgraded), "{}", applied.text());

    assert_eq!(versions(&trio.status()), [VERSION; 3]);
    assert_eq!(etcds(&trio), before, "an etcd was restarted");
    assert!(trio.etcdctl(&["get", "k"]).ok().stdout.contains("v"));
    for member in MEMBERS {
        assert!(trio.root(member).join(PROGRAM).is_file() && !trio.root(member).join(NEXT).exists(), "{member}");
    }
    eventually("no guardian is left", 10, || trio.sandbox.agents().len() == 3);
    trio.assert_settled();
    // A machine that is switched off and on keeps its program.
    trio.sandbox.quorate(&["down", NAME]).ok();
    run(&trio, &older, &["up", NAME]).ok();
    assert_eq!(versions(&trio.status()), [VERSION; 3]);
}

#[test]
fn an_older_controller_leaves_newer_agents_alone_and_says_what_to_use() {
    let trio = Trio::up(Login::Certificate);
    let version = format!("version={VERSION}");
    let [protocol, oldest] = ["protocol", "oldest"].map(|number| format!("{number}={PROTOCOL:04}"));
    let changes =
        [(protocol.as_str(), "protocol=0009"), (oldest.as_str(), "oldest=0009"), (version.as_str(), "version=9.9.9")];
    let newer = program(&trio, "newer", &changes);
    // To the newer one the agents are of a protocol that it does not speak. One run upgrades all of them.
    let etcds_before = etcds(&trio);
    run(&trio, &newer, &["apply", "--yes", "trio.yaml"]).ok();
    assert_eq!(versions(&run(&trio, &newer, &["status", NAME, "--output", "json"]).json()), ["9.9.9"; 3]);
    assert_eq!(etcds(&trio), etcds_before, "an etcd was restarted");
    let (before, ledger) = (trio.pids(), trio.ledger());
    let refused = trio.apply().expect(3);
    let text = refused.text();
    assert!(text.contains("the agent of etcd-1 runs quorate 9.9.9 (protocol 9)"), "{text}");
    assert!(text.contains("operate this cluster with quorate 9.9.9 (protocol 9) or newer"), "{text}");
    assert_eq!(trio.pids(), before);
    let status = trio.sandbox.quorate(&["status", NAME, "--output", "json"]).expect(6).json();
    assert_eq!(status["verdict"], "unknown");
    let summary = status["summary"].as_str().expect("a summary");
    assert!(summary.starts_with("unknown: 3 agents run quorate 9.9.9 (protocol 9)"), "{summary}");
    assert!(summary.ends_with("use quorate 9.9.9 (protocol 9) or newer"), "{summary}");
    for member in MEMBERS {
        assert_eq!(trio.ledger()["members"][member], ledger["members"][member]);
    }
    // Started by the older program, the machine still runs the newer one.
    let agent = trio.agent_of("etcd-1").expect("it runs");
    signal(agent, "KILL");
    eventually("it has ended", 5, || trio.agent_of("etcd-1").is_none());
    run(&trio, &newer, &["apply", "--yes", "trio.yaml"]).ok();
    run(&trio, &newer, &["destroy", "--yes", "--without-backup", NAME]).ok();
}

#[test]
fn a_machine_that_cannot_take_the_program_does_not_hold_up_the_others() {
    let trio = Trio::new(Login::Certificate);
    let older = older(&trio);
    run(&trio, &older, &["apply", "--yes", "trio.yaml"]).ok();
    // Where the program belongs there is something else.
    let place = trio.root("etcd-1").join("usr/lib/quorate");
    fs::create_dir_all(place.parent().unwrap()).expect("a directory");
    fs::write(&place, "in the way").expect("a file");
    let spec = fs::read_to_string(trio.sandbox.path().join("trio.yaml")).expect("the spec");
    let changed = spec.replacen("etcd: {", "etcd: {quota: 3GiB, ", 1);
    assert_ne!(changed, spec);
    trio.sandbox.file("trio.yaml", &changed);
    let refused = trio.apply().expect(3);
    let text = refused.text();
    assert!(text.contains("the agent of etcd-1 still runs quorate 0.0.9"), "{text}");
    assert!(text.contains("usr/lib/quorate"), "{text}");
    let status = trio.status();
    assert_eq!(versions(&status), ["0.0.9", VERSION, VERSION]);
    let members = status["members"].as_array().expect("members");
    assert!(members.iter().all(|member| member["db_quota"] == 3_u64 << 30), "{status:#}");
    assert!(members.iter().all(|member| member["generation"] == 2), "{status:#}");
    fs::remove_file(&place).expect("it is removed");
    trio.apply().ok();
    assert_eq!(versions(&trio.status()), [VERSION; 3]);
}

/// Sends a program to an agent as its controller would.
pub fn send(trio: &Trio, member: &str, fence: u64, content: &[u8], sha256: &str) -> (u16, Value) {
    let head = format!(
        "PUT /v1/program HTTP/1.1\r\nHost: agent\r\nConnection: close\r\nContent-Length: {}\r\nquorate-fence: {fence}\r\n\
         quorate-sha256: {sha256}\r\nquorate-bytes: {}\r\n\r\n",
        content.len(),
        content.len(),
    );
    let controller = Intruder::controller(&trio.ledger());
    controller.send(trio.address(member), &[head.as_bytes(), content]).expect("an answer")
}

fn script(on_check: &str, otherwise: &str) -> Vec<u8> {
    format!("#!/bin/sh\nif [ \"$2\" = check ]; then {on_check}; else {otherwise}; fi\n").into_bytes()
}

#[test]
fn a_program_that_does_not_start_is_rolled_back() {
    let trio = Trio::up(Login::Certificate);
    let fence = trio.ledger()["fence"].as_u64().expect("a number");
    let before = etcds(&trio);
    let good_check = format!(r#"echo '{{"protocol":{PROTOCOL},"version":"9.9.9"}}'"#);
    let send = |content: &[u8]| send(&trio, "etcd-1", fence, content, &hex(&Sha256::digest(content)));
    let no_trace = || !trio.root("etcd-1").join(NEXT).exists() && !trio.root("etcd-1").join(PROGRAM).exists();

    // What does not even run here is refused, and the agent stays.
    let agent = trio.agent_of("etcd-1");
    let cut = send(&[0x7f, b'E', b'L', b'F', 0, 0]);
    assert_eq!(cut.0, 409);
    assert!(cut.1.to_string().contains("the new program does not run here"), "{}", cut.1);
    let (status, body) = send(&script("echo 'no such CPU' >&2; exit 4", "exit 0"));
    assert_eq!(status, 409);
    assert!(body.to_string().contains("no such CPU"), "{body}");
    let torn = crate::upgrade::send(&trio, "etcd-1", fence, b"#!/bin/sh\n", &hex(&Sha256::digest(b"other")));
    assert!(torn.0 == 409 && torn.1.to_string().contains("SHA-256"), "{torn:?}");
    let stale = crate::upgrade::send(&trio, "etcd-1", fence - 1, b"x", &hex(&Sha256::digest(b"x")));
    assert!(stale.1.to_string().contains("stale_fence"), "{stale:?}");
    assert_eq!(trio.agent_of("etcd-1"), agent);
    assert!(no_trace());

    // A program that exits when it should be the agent is replaced by the old one.
    assert_eq!(send(&script(&good_check, "exit 7")).0, 200);
    eventually("the old agent serves again", 20, || no_trace() && trio.status()["verdict"] == "healthy");
    assert_eq!(trio.agent_of("etcd-1"), agent, "the guardian is the agent again");
    assert_eq!(etcds(&trio), before);
    trio.assert_settled();
}

#[test]
fn an_upgrade_that_is_killed_anywhere_is_finished_by_the_next_run() {
    let trio = Trio::new(Login::Certificate);
    let older = older(&trio);
    run(&trio, &older, &["apply", "--yes", "trio.yaml"]).ok();
    let before = etcds(&trio);
    let next = trio.root("etcd-1").join(NEXT);
    let uploading = || fs::read_dir(next.parent().unwrap()).is_ok_and(|entries| entries.count() > 0);
    let agents = || -> Vec<u32> {
        let root = format!("--root {} ", trio.root("etcd-1").display());
        trio.sandbox.processes().into_iter().filter(|(_, line)| line.contains(&root)).map(|(pid, _)| pid).collect()
    };
    let on_trial = || agents().len() > 1 && next.exists();
    type When<'a> = &'a dyn Fn() -> bool;
    // The controller while it sends; all of the machine while the new agent is tried; and then its controller alone, which leaves a
    // new agent that the next one finds.
    let kills: [(&str, When<'_>, bool); 3] =
        [("sending", &uploading, false), ("losing power", &on_trial, true), ("trying", &on_trial, false)];
    for (what, when, machine) in kills {
        // Brings back an agent that was killed.
        run(&trio, &older, &["apply", "--yes", "trio.yaml"]).ok();
        let mut apply = command(&trio, Path::new(env!("CARGO_BIN_EXE_quorate")), &["apply", "--yes", "trio.yaml"]);
        let mut apply = apply.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        // It may be over sooner than it is seen, which is fine too.
        eventually(what, 60, || when() || apply.try_wait().expect("it can be asked").is_some());
        let _ = apply.kill();
        let _ = apply.wait();
        if machine {
            agents().into_iter().for_each(|pid| signal(pid, "KILL"));
        }
        assert_eq!(etcds(&trio), before, "an etcd was restarted: {what}");
    }
    trio.apply().ok();
    assert_eq!(versions(&trio.status()), [VERSION; 3]);
    assert_eq!(etcds(&trio), before);
    eventually("no guardian is left", 10, || trio.sandbox.agents().len() == 3);
    assert!(!next.exists());
    let mode = fs::metadata(trio.root("etcd-1").join(PROGRAM)).expect("its program").permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    trio.assert_settled();
}
