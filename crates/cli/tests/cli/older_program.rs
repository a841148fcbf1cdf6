//! A cluster of a real older quorate is taken over by the one under test. `cargo xtask lab upgrade` provides the older program, whose
//! agents use protocol 2 and whose ledger has format 2.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use quorate_agent::dial::Dial;
use quorate_core::model::PROTOCOL;
use quorate_core::text::hex;
use quorate_drill::Ending;
use quorate_drill::kinds::etcd::check::Least;
use quorate_drill::kinds::etcd::history::{Head, History};
use quorate_drill::kinds::etcd::judge;
use quorate_drill::kinds::etcd::workload::{Access, Endpoints, start};
use quorate_drill::traffic::{Load, Workload};
use quorate_pki::Sha256;
use serde_json::Value;

use crate::common::trio::{Login, MEMBERS, NAME, Trio, read_json};
use crate::common::{Run, eventually, signal};
use crate::upgrade::{NEXT, PROGRAM, command, etcds, run, send};

const APPLY: [&str; 3] = ["apply", "--yes", "trio.yaml"];
const OLD_PROTOCOL: u32 = 2;

fn old() -> PathBuf {
    std::env::var_os("QUORATE_LAB_OLD_PROGRAM").expect("`cargo xtask lab upgrade` names the older program").into()
}

fn up(old: &Path) -> Trio {
    let trio = Trio::new(Login::Certificate);
    run(&trio, old, &APPLY).ok();
    trio
}

/// Of the program that wrote the state of each machine.
fn protocols(trio: &Trio) -> Vec<Value> {
    MEMBERS.map(|member| read_json(&state(trio, member))["protocol"].clone()).to_vec()
}

fn state(trio: &Trio, member: &str) -> PathBuf {
    trio.root(member).join("var/lib/quorate/state.json")
}

/// The drill's clients at work on all members.
fn workload(trio: &Trio) -> Workload<History> {
    let environment = trio.sandbox.environment(NAME);
    let file = |name: &str| fs::read_to_string(&environment[name]).expect("a file of `quorate env`");
    let access = Access {
        ca: file("ETCDCTL_CACERT"),
        identity: Some((file("ETCDCTL_CERT"), file("ETCDCTL_KEY"))),
        login: None,
        dial: Dial::Address,
    };
    let endpoints: Vec<String> =
        MEMBERS.iter().map(|member| format!("https://{}:2379", trio.address(member))).collect();
    let (all, wished) = (endpoints.clone(), endpoints);
    let endpoints = Endpoints { all: Box::new(move || all.clone()), wished: Box::new(move || wished.clone()) };
    start(Head::default(), access, Load::default(), endpoints).expect("a workload")
}

/// The agents of one machine: more than one while a program is on trial.
fn agents(trio: &Trio, member: &str) -> Vec<u32> {
    let root = format!("--root {} ", trio.root(member).display());
    trio.sandbox.processes().into_iter().filter(|(_, line)| line.contains(&root)).map(|(pid, _)| pid).collect()
}

/// How a machine starts its agent.
struct Boot {
    words: Vec<std::ffi::OsString>,
    variables: BTreeMap<std::ffi::OsString, std::ffi::OsString>,
}

impl Boot {
    fn of(trio: &Trio, member: &str) -> Self {
        let pid = trio.agent_of(member).expect("it runs");
        let read = |name: &str| {
            let bytes = fs::read(format!("/proc/{pid}/{name}")).expect("a process of ours");
            let parts = bytes.split(|byte| *byte == 0).filter(|part| !part.is_empty());
            parts.map(|part| part.to_vec()).collect::<Vec<_>>()
        };
        let variables = read("environ").into_iter().filter_map(|pair| {
            let at = pair.iter().position(|byte| *byte == b'=')?;
            Some((OsStringExt::from_vec(pair[..at].to_vec()), OsStringExt::from_vec(pair[at + 1..].to_vec())))
        });
        Boot { words: read("cmdline").into_iter().map(OsStringExt::from_vec).collect(), variables: variables.collect() }
    }

    /// Cuts the power of everything but etcd, and starts the agent as the machine does.
    fn again(&self, trio: &Trio, member: &str) {
        agents(trio, member).into_iter().for_each(|pid| signal(pid, "KILL"));
        eventually("its agents have ended", 10, || agents(trio, member).is_empty());
        // The shell leaves it to nobody.
        let mut agent = Command::new("/bin/sh");
        agent.args(["-c", r#""$0" "$@" &"#]).args(&self.words).env_clear().envs(&self.variables);
        let started = agent.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(started.expect("a shell").success());
    }
}

/// Runs `apply` of the program under test until something is so, and kills it then.
fn interrupt(trio: &Trio, what: &str, when: impl Fn() -> bool) {
    let mut apply = command(trio, Path::new(env!("CARGO_BIN_EXE_quorate")), &APPLY);
    let mut apply = apply.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    eventually(what, 120, || when() || apply.try_wait().expect("it can be asked").is_some());
    let _ = apply.kill();
    let _ = apply.wait();
}

#[test]
#[ignore = "needs an older program: `cargo xtask lab upgrade` runs it"]
fn a_cluster_of_an_older_program_is_upgraded_under_load_whatever_is_killed_meanwhile() {
    let old = old();
    let trio = up(&old);
    let (before, boot) = (etcds(&trio), Boot::of(&trio, "etcd-1"));
    let kept = trio.sandbox.path().join("ledger-before");
    copy(&trio.ledger_directory(), &kept);
    let load = workload(&trio);
    let next = |member: &str| trio.root(member).join(NEXT);
    let in_place = |member: &str| trio.root(member).join(PROGRAM).exists();
    let sends = || next("etcd-1").parent().is_some_and(|place| fs::read_dir(place).is_ok_and(|all| all.count() > 0));
    let tries = |member: &str| agents(&trio, member).len() > 1 && next(member).exists();

    interrupt(&trio, "the program is being sent", sends);
    interrupt(&trio, "the program is on trial", || tries("etcd-1"));
    if !in_place("etcd-1") {
        // All of the machine but etcd ends during the trial. The older program starts, and reads what it wrote.
        boot.again(&trio, "etcd-1");
        eventually("the older agent is back", 20, || trio.agent_of("etcd-1").is_some() && !next("etcd-1").exists());
        assert_eq!(protocols(&trio), [OLD_PROTOCOL; 3]);
    }
    assert_eq!(etcds(&trio), before);
    interrupt(&trio, "the first agent is upgraded", || in_place("etcd-1"));
    assert_eq!(etcds(&trio), before);
    // A new agent ends right after its upgrade; the next run switches it on.
    agents(&trio, "etcd-1").into_iter().for_each(|pid| signal(pid, "KILL"));
    interrupt(&trio, "the second agent is on trial", || tries("etcd-2"));
    trio.apply().ok();

    assert_eq!(etcds(&trio), before, "an etcd was restarted");
    assert_eq!(protocols(&trio), [PROTOCOL; 3]);
    eventually("no guardian is left", 10, || trio.sandbox.agents().len() == 3);
    let verdict = judge(&load.finish().expect("a history").0, Vec::new(), &Least::default());
    assert_eq!(verdict.result, Ending::Passed, "{}", verdict.summary);
    println!("{}", verdict.summary);
    trio.assert_settled();
    the_older_controller_is_refused(&trio, &old, &kept);
}

fn the_older_controller_is_refused(trio: &Trio, old: &Path, kept: &Path) {
    let (pids, states) = (trio.pids(), protocols(trio));
    let unchanged = || assert_eq!((trio.pids(), protocols(trio)), (pids.clone(), states.clone()));
    let by_ledger = run(trio, old, &APPLY).fails().text();
    assert!(by_ledger.contains("newer quorate"), "{by_ledger}");
    unchanged();
    // Even with a ledger that it can read: the agents are newer.
    let now = trio.sandbox.path().join("ledger-now");
    fs::rename(trio.ledger_directory(), &now).expect("the ledger is put aside");
    copy(kept, &trio.ledger_directory());
    let by_agents = run(trio, old, &APPLY).fails().text();
    println!("{by_agents}");
    assert!(by_agents.contains(&format!("protocol {PROTOCOL}")), "{by_agents}");
    unchanged();
    fs::remove_dir_all(trio.ledger_directory()).expect("the older ledger is removed");
    fs::rename(&now, trio.ledger_directory()).expect("the ledger is put back");
    // And the older program does not run as an agent where a newer one did.
    let root = trio.root("etcd-1");
    let check = Run::from(Command::new(old).args(["agent", "check", "--root"]).arg(root).output().expect("it runs"));
    let refused = check.fails().text();
    assert!(refused.contains(&format!("written by a newer quorate (protocol {PROTOCOL})")), "{refused}");
    trio.apply().ok();
    trio.assert_settled();
}

#[test]
#[ignore = "needs an older program: `cargo xtask lab upgrade` runs it"]
fn an_older_agent_continues_when_no_controller_reaches_the_new_program() {
    let old = old();
    let trio = up(&old);
    let before = (etcds(&trio), trio.agent_of("etcd-1"));
    let written = fs::read(state(&trio, "etcd-1")).expect("its state");
    let fence = trio.ledger()["fence"].as_u64().expect("a number");
    let program = fs::read(env!("CARGO_BIN_EXE_quorate")).expect("the program under test");
    let (code, body) = send(&trio, "etcd-1", fence, &program, &hex(&Sha256::digest(&program)));
    assert_eq!(code, 200, "{body}");
    eventually("it is on trial", 20, || agents(&trio, "etcd-1").len() > 1);
    std::thread::sleep(Duration::from_secs(110));
    eventually("the older agent is alone again", 40, || agents(&trio, "etcd-1").len() == 1);
    assert_eq!((etcds(&trio), trio.agent_of("etcd-1")), before);
    let [was, is] = [written, fs::read(state(&trio, "etcd-1")).expect("its state")]
        .map(|text| serde_json::from_slice::<Value>(&text).expect("JSON"));
    assert_eq!(is, was);
    assert!(!trio.root("etcd-1").join(NEXT).exists() && !trio.root("etcd-1").join(PROGRAM).exists());
    run(&trio, &old, &APPLY).ok();
    trio.apply().ok();
    assert_eq!((etcds(&trio), protocols(&trio)), (before.0, [PROTOCOL; 3].map(Value::from).to_vec()));
    trio.assert_settled();
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.expect("cp runs").success());
}
