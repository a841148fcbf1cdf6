//! Drills: what clients record while members and controllers fail is linearizable, no acknowledged write is lost, nothing is left
//! behind; and a drill that proves nothing, or whose record was altered, says so.

use std::fs;
use std::io::{BufRead, BufReader, Read};

use serde_json::{Value, json};

use crate::common::trio::{Login, MEMBERS, NAME, Trio};
use crate::common::{Run, eventually, signal};

/// A verdict that failed, or that nothing backs.
const NOT_PASSED: i32 = 8;

fn drill(trio: &Trio, arguments: &[&str]) -> Run {
    let before = ["drill", NAME, "--yes", "--output", "json"];
    trio.sandbox.quorate(&[&before, arguments].concat())
}

/// Nothing of the workload is left in etcd, and nothing of the fault on the machines.
#[track_caller]
fn assert_tidy(trio: &Trio) {
    assert_eq!(trio.etcdctl(&["get", "/quorate-drill/", "--prefix", "--keys-only"]).ok().stdout, "");
    trio.assert_settled();
}

#[track_caller]
fn assert_passed(run: &Run, scenarios: &[&str]) {
    let told = run.json();
    assert_eq!(told["passed"], true, "{told:#}");
    let names: Vec<&str> = list(&told["scenarios"]).iter().filter_map(|s| s["scenario"].as_str()).collect();
    assert_eq!(names, scenarios);
    for scenario in list(&told["scenarios"]) {
        assert_eq!(scenario["result"], "passed", "{scenario:#}");
        assert_eq!(scenario["violations"], json!([]));
        for kind in ["put", "get", "swap", "delete", "lease"] {
            assert!(scenario["measures"]["operations"][kind]["answered"].as_u64() > Some(0), "{kind} in {scenario:#}");
        }
        for check in list(&scenario["checks"]) {
            assert_eq!(check["passed"], true, "{check:#}");
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn marks(scenario: &Value, kind: &str) -> Vec<String> {
    let of_kind = list(&scenario["marks"]).iter().filter(|m| m["kind"] == kind);
    of_kind.filter_map(|m| m["text"].as_str()).map(str::to_owned).collect()
}

#[test]
fn a_killed_follower_and_a_killed_leader_cost_no_acknowledged_write() {
    let trio = Trio::up(Login::Certificate);
    let scenarios = ["kill-follower", "kill-leader"];
    let files = ["--report", "drill.html", "--history", "drill.jsonl", "--seconds", "8"];
    let run = drill(&trio, &[&["--scenario", scenarios[0], "--scenario", scenarios[1]], &files[..]].concat()).ok();
    assert_passed(&run, &scenarios);
    assert_tidy(&trio);

    let told = run.json();
    let [follower, leader] = list(&told["scenarios"]) else { panic!("two scenarios in {told:#}") };
    for scenario in [follower, leader] {
        let faults = marks(scenario, "fault");
        assert!(faults.len() == 1 && faults[0].starts_with("etcd killed on etcd-"), "{faults:?}");
        assert!(marks(scenario, "command").contains(&format!("quorate apply {NAME} --yes")));
    }
    let gap = &leader["measures"]["longest_write_gap"];
    let (from, to) = (gap["from"].as_f64().unwrap_or_default(), gap["to"].as_f64().unwrap_or_default());
    assert!(to - from > 0.2, "nobody noticed that the leader was killed: {gap}");

    let page = fs::read_to_string(trio.sandbox.path().join("drill.html")).expect("a report");
    assert_eq!(page.matches("<svg class=\"timeline\"").count(), 2);
    assert!(page.contains("All 2 scenarios passed") && page.contains("etcd killed on etcd-"));

    let again = trio.sandbox.quorate(&["drill", "--check", "drill.jsonl", "--output", "json"]).ok();
    assert_eq!(again.json()["passed"], true);
    tampered_records_are_refused(&trio);
}

/// Changes one line of the record that these words fit, and gives it to the checker again.
fn tampered(trio: &Trio, fits: impl Fn(&Value) -> bool, change: impl Fn(&mut Value) -> bool) -> Run {
    let record = fs::read_to_string(trio.sandbox.path().join("drill.jsonl")).expect("a record");
    let mut lines: Vec<Value> = record.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let at = lines.iter().position(fits).expect("a line to change");
    if !change(&mut lines[at]) {
        lines.remove(at);
    }
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    trio.sandbox.file("tampered.jsonl", &text);
    trio.sandbox.quorate(&["drill", "--check", "tampered.jsonl"]).expect(NOT_PASSED)
}

fn tampered_records_are_refused(trio: &Trio) {
    let stale = |line: &Value| line["operation"]["outcome"]["read"]["found"]["value"].is_string();
    let run = tampered(trio, stale, |line| {
        line["operation"]["outcome"]["read"]["found"] = Value::Null;
        true
    });
    assert!(run.stdout.contains("a read did not show the last write: operation "), "{}", run.stdout);

    let gap = |line: &Value| line["watch"]["what"]["saw"].is_object();
    let run = tampered(trio, gap, |_| false);
    assert!(run.stdout.contains("a watch missed a change: watch "), "{}", run.stdout);

    let lost = |line: &Value| line["operation"]["outcome"]["written"].is_object();
    let run = tampered(trio, lost, |line| {
        line["operation"]["outcome"]["written"]["revision"] = json!(1);
        true
    });
    assert!(run.stdout.contains("failed"), "{}", run.stdout);
}

#[test]
fn a_controller_killed_at_every_step_of_a_change_is_resumed_and_clients_notice_little() {
    let trio = Trio::up(Login::Password);
    let spec = fs::read_to_string(trio.sandbox.path().join("trio.yaml")).expect("a spec");
    trio.sandbox.file("trio.yaml", &spec.replace("client_auth: password", "client_auth: password, quota: 4GiB"));
    let during = ["--during", "apply trio.yaml", "--scenario", "kill-controller"];
    let run = drill(&trio, &during).ok();
    assert_passed(&run, &["kill-controller"]);
    assert_tidy(&trio);
    let told = run.json();
    let faults = marks(&told["scenarios"][0], "fault");
    assert!(faults.iter().all(|fault| fault.starts_with("controller killed ")), "{faults:#?}");
    // The drill learns of a step from what the controller prints: on a busy machine a step can be over by then.
    let struck = |member: &&&str| faults.iter().any(|fault| fault.contains(&format!(": {member}: restart etcd")));
    assert!(MEMBERS.iter().filter(struck).count() > 1, "restarts of two members struck: {faults:#?}");
}

/// Where users log in by password a learner logs nobody in, and it learns for the blink of an eye only: it is struck all the same, and
/// before it votes.
#[test]
fn a_learner_is_struck_before_it_votes() {
    let trio = Trio::up(Login::Password);
    let during = ["--during", "replace trio etcd-2 --yes", "--scenario", "kill-learner"];
    let run = drill(&trio, &during).ok();
    assert_passed(&run, &["kill-learner"]);
    let told = run.json();
    let all = list(&told["scenarios"][0]["marks"]);
    let from = |kind: &str, words: &str| {
        let fits =
            |mark: &&Value| mark["kind"] == kind && mark["text"].as_str().is_some_and(|text| text.contains(words));
        all.iter().find(fits).unwrap_or_else(|| panic!("no {words} in {all:#?}"))["from"].as_u64()
    };
    let struck = from("fault", "etcd killed on etcd-2");
    assert!(from("step", "start etcd on etcd-2 as a learner") < struck, "{all:#?}");
    assert!(struck < from("step", "promote etcd-2"), "{all:#?}");
}

/// Mounting needs root, as the machines of a drill in CI have it.
#[test]
fn a_full_disk_and_one_that_comes_back_old_are_survived_and_nothing_stays_mounted() {
    let trio = Trio::up(Login::Certificate);
    let scenarios = ["full-disk-follower", "old-data-follower"];
    let run = drill(&trio, &["--scenario", scenarios[0], "--scenario", scenarios[1]]).ok();
    assert_passed(&run, &scenarios);
    let mounts = fs::read_to_string("/proc/mounts").expect("mounts");
    assert!(!mounts.contains(&trio.sandbox.home().display().to_string()), "{mounts}");
    // The member whose data was old has another machine now.
    let told = run.json();
    let steps = marks(&told["scenarios"][1], "step");
    assert!(steps.iter().any(|step| step.contains("to the cluster as a learner")), "{steps:#?}");
    assert_eq!(trio.etcdctl(&["get", "/quorate-drill/", "--prefix", "--keys-only"]).ok().stdout, "");
}

#[test]
fn a_drill_with_too_little_traffic_proves_nothing_and_says_so() {
    let trio = Trio::up(Login::Certificate);
    let few = ["--scenario", "calm", "--clients", "2", "--pause", "2000", "--seconds", "1"];
    let told = drill(&trio, &few).expect(NOT_PASSED).json();
    let scenario = &told["scenarios"][0];
    assert_eq!((&told["passed"], &scenario["result"]), (&json!(false), &json!("not-enough-traffic")));
    assert_eq!(scenario["violations"], json!([]));
    let summary = scenario["summary"].as_str().unwrap_or_default();
    assert!(summary.contains("too few put operations were answered:"), "{summary}");
    assert_tidy(&trio);
}

#[test]
fn an_interrupted_drill_undoes_its_fault() {
    let trio = Trio::up(Login::Certificate);
    let mut child = trio.sandbox.spawn(&["drill", NAME, "--yes", "--scenario", "stop-follower"]);
    let mut said = BufReader::new(child.stderr.take().expect("stderr is piped"));
    let mut line = String::new();
    while !line.contains("etcd stopped on") {
        line.clear();
        assert_ne!(said.read_line(&mut line).expect("text"), 0, "it ended early");
    }
    let stopped = || trio.sandbox.etcds().into_iter().filter(|pid| state(*pid) == Some('T')).count();
    eventually("one etcd is stopped", 5, || stopped() == 1);
    signal(child.id(), "INT");
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("text");
    assert_eq!(child.wait().expect("it was started here").code(), Some(1), "{rest}");
    assert!(rest.contains("was interrupted, and its fault was undone"), "{rest}");
    assert_eq!(stopped(), 0);
    eventually("all is well", 20, || trio.status()["verdict"] == "healthy");
    assert_tidy(&trio);
}

fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[test]
fn impossible_drills_are_refused_before_anything_is_disturbed() {
    let trio = Trio::up(Login::Certificate);
    let before = trio.pids();
    let refused = |arguments: &[&str], words: &str| {
        let run = trio.sandbox.quorate(arguments).expect(1);
        assert!(run.stderr.contains(words), "{words:?} in {}", run.stderr);
    };
    refused(&["drill", NAME], "pass --yes");
    refused(&["drill", NAME, "--yes", "--scenario", "earthquake"], "there is no scenario `earthquake`");
    refused(&["drill", NAME, "--yes", "--scenario", "partition-leader"], "needs network: netns");
    refused(&["drill", NAME, "--yes", "--scenario", "kill-learner"], "--during a change that adds a member");
    refused(&["drill", NAME, "--yes", "--during", "apply trio.yaml"], "needs exactly one scenario");
    refused(&["drill", "other", "--yes"], "there is no cluster `other`");
    refused(&["drill", "--scenario", "calm"], "no cluster was named");
    trio.sandbox.quorate(&["drill"]).expect(2);
    let listed = trio.sandbox.quorate(&["drill", "--scenario", "list"]).ok().stdout;
    for words in ["kill-leader", "seconds, while a leader is elected", "wipe-follower", "network: netns"] {
        assert!(listed.contains(words), "{words} in {listed}");
    }
    assert_eq!(trio.pids(), before);
}
