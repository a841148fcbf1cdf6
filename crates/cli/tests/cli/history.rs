//! Commands on a running cluster, and the history that records them: every step, by whom, why, and how it ended, whatever was killed
//! meanwhile.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::common::trio::{Login, NAME, Trio, VERSION, Watched, contents, member, members};
use crate::common::{Sandbox, spec};

fn history(sandbox: &Sandbox, cluster: &str) -> Vec<Value> {
    let told = sandbox.quorate(&["history", cluster, "--output", "json"]).ok().json();
    assert_eq!(told["cluster"], cluster);
    told["steps"].as_array().expect("steps").clone()
}

fn of_verb<'a>(steps: &'a [Value], verb: &str) -> Vec<(&'a str, &'a str)> {
    let steps = steps.iter().filter(|s| s["verb"] == verb);
    steps.map(|s| (s["kind"].as_str().unwrap(), s["result"].as_str().unwrap())).collect()
}

/// A member that does not lead.
fn follower(trio: &Trio) -> String {
    let status = trio.status();
    let follower = members(&status).find(|m| m["role"] == "voter").expect("a follower");
    follower["member"].as_str().unwrap().to_owned()
}

fn watch(sandbox: &Sandbox, arguments: &[&str]) -> Watched {
    Watched::new(sandbox.spawn(arguments))
}

/// Healthy, with nothing left to do and nothing left behind.
#[track_caller]
fn assert_well(trio: &Trio) {
    let status = trio.status();
    assert_eq!((&status["verdict"], members(&status).count()), (&Value::from("healthy"), 3), "{status:#}");
    trio.sandbox.assert_nothing_to_do("trio.yaml");
    assert_eq!(trio.etcdctl(&["member", "list"]).ok().stdout.lines().count(), 3);
    assert_eq!((trio.sandbox.agents().len(), trio.sandbox.etcds().len()), (3, 3));
}

#[test]
fn the_history_has_every_step_of_a_killed_and_resumed_apply() {
    let trio = Trio::new(Login::Password);
    let interrupted = |steps: &[Value]| steps.iter().filter(|s| s["result"] == "interrupted").count();
    let mut kills = 0;
    for words in ["create the machine", "enrol the agent", "update the configuration", "for the first time", "add user"]
    {
        let mut run = trio.spawn_apply();
        run.until(words);
        run.kill();
        kills += 1;
    }
    let before = history(&trio.sandbox, NAME);
    assert!(interrupted(&before) > 0, "{before:#?}");
    trio.apply().ok();
    trio.assert_settled();
    let steps = history(&trio.sandbox, NAME);
    assert_eq!(interrupted(&steps), interrupted(&before), "what was cut off stays so");
    let runs: std::collections::BTreeSet<&str> = steps.iter().filter_map(|s| s["run"].as_str()).collect();
    assert_eq!(runs.len(), kills + 1);
    for step in &steps {
        assert_eq!((&step["verb"], step["by"].as_str().is_some()), (&Value::from("apply"), true));
        assert!(!step["host"].as_str().unwrap().is_empty() && !step["because"].as_str().unwrap().is_empty());
        assert_eq!(step["ended"].is_null(), step["result"] == "interrupted", "{step:#}");
    }
    let kinds: Vec<&str> = steps.iter().filter_map(|s| s["kind"].as_str()).collect();
    for kind in ["make-secrets", "create-machine", "record-forming", "start-etcd", "record-formed", "auth"] {
        assert!(kinds.contains(&kind), "{kind} in {kinds:?}");
    }
    let text = trio.sandbox.quorate(&["history", NAME, "--last", "2"]).ok().stdout;
    assert!(text.starts_with("quorate apply, by ") && text.matches("because").count() == 2, "{text}");
    assert_no_secret(&trio);
    it_travels(&trio, &steps);
    // A line that was cut short by a crash spoils nothing.
    let path = trio.sandbox.home().join("clusters").join(NAME).join("history.jsonl");
    let whole = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{whole}{{\"at\":\"2026-")).unwrap();
    assert_eq!(history(&trio.sandbox, NAME).len(), steps.len());
    trio.sandbox.quorate(&["down", NAME]).ok();
    let steps = history(&trio.sandbox, NAME);
    assert_eq!(
        of_verb(&steps, "down"),
        [("power", "done"), ("stop-machine", "done"), ("stop-machine", "done"), ("stop-machine", "done")]
    );
    trio.destroy().ok();
    trio.assert_gone();
}

#[track_caller]
fn assert_no_secret(trio: &Trio) {
    let path = trio.sandbox.home().join("clusters").join(NAME).join("history.jsonl");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let (text, ledger) = (fs::read_to_string(&path).unwrap(), trio.ledger());
    let mut secrets = vec![crate::common::trio::APP_PASSWORD.to_owned()];
    secrets.push(ledger["etcd"]["auth"]["root_password"].as_str().expect("a password").to_owned());
    let tokens = ledger["members"].as_object().unwrap().values();
    secrets.extend(tokens.filter_map(|m| m["enrolment"]["token"].as_str().map(str::to_owned)));
    assert!(secrets.len() > 2);
    for secret in secrets {
        assert!(!text.contains(&secret));
    }
    assert!(!text.contains("PRIVATE KEY"));
}

#[track_caller]
fn it_travels(trio: &Trio, steps: &[Value]) {
    trio.sandbox.file("words", "battery staple\n");
    trio.sandbox.quorate(&["ledger", "export", NAME, "--passphrase-file", "words", "--out", "trio.age"]).ok();
    let elsewhere = trio.sandbox.path().join("elsewhere");
    let there = |arguments: &[&str]| {
        let mut command = trio.sandbox.command(arguments);
        crate::common::Run::from(command.env("QUORATE_HOME", &elsewhere).output().expect("quorate runs")).ok()
    };
    for _ in 0..2 {
        there(&["ledger", "import", "trio.age", "--passphrase-file", "words", "--replace"]);
        let told = there(&["history", NAME, "--output", "json"]).json();
        assert_eq!(told["steps"].as_array().unwrap(), steps);
    }
}

#[test]
fn a_follower_is_replaced_and_again_after_a_kill() {
    let trio = Trio::up(Login::Certificate);
    trio.etcdctl(&["put", "a", "1"]).ok();
    let (name, kept) = (follower(&trio), contents(&trio));
    trio.sandbox.quorate(&["replace", NAME, "etcd-9", "--yes"]).expect(1);
    trio.sandbox.quorate(&["replace", "nobody", "etcd-1", "--yes"]).expect(1);
    let asked = trio.sandbox.quorate(&["replace", NAME, &name]).expect(1);
    assert!(asked.stdout.contains(&format!("create machine {name}.2")), "{}", asked.stdout);
    assert!(asked.stderr.contains("--yes"), "{}", asked.stderr);

    trio.sandbox.quorate(&["replace", NAME, &name, "--yes"]).ok();
    assert_well(&trio);
    assert_eq!(trio.ledger()["members"][name.as_str()]["incarnation"], 2);
    assert_eq!(contents(&trio), kept);
    assert!(!trio.machine(&name).exists() && trio.machine(&format!("{name}.2")).exists());
    let steps = history(&trio.sandbox, NAME);
    let told = of_verb(&steps, "replace");
    assert!(told.iter().all(|(_, result)| *result == "done"), "{told:?}");
    let kinds: Vec<&str> = told.iter().map(|(kind, _)| *kind).collect();
    let order =
        ["replace", "create-machine", "add-learner", "join-etcd", "promote", "remove-member", "destroy-machine"];
    assert_eq!(kinds.iter().filter(|kind| order.contains(kind)).collect::<Vec<_>>(), order.iter().collect::<Vec<_>>());

    let mut run = watch(&trio.sandbox, &["replace", NAME, &name, "--yes"]);
    run.until("to the cluster as a learner … done");
    run.kill();
    let (status, former) = (trio.status(), format!("{name}.2"));
    assert_eq!(
        (&member(&status, &former)["leaving"], &member(&status, &name)["leaving"]),
        (&true.into(), &false.into())
    );
    assert_eq!(member(&status, &former)["machine"], format!("{name}.2"));
    assert_eq!((&status["voters"], &status["verdict"]), (&3.into(), &"healthy".into()), "a learner has no vote");
    let resumed = trio.sandbox.quorate(&["replace", NAME, &name, "--yes"]).ok();
    assert!(resumed.stderr.contains(&format!("{name} is being replaced already")), "{}", resumed.stderr);
    assert_well(&trio);
    assert_eq!(trio.ledger()["members"][name.as_str()]["incarnation"], 3, "it was raised once");
    assert_eq!(contents(&trio), kept);
    trio.destroy().ok();
    trio.assert_gone();
}

#[test]
fn clients_are_led_to_the_former_machine_while_no_other_serves() {
    let sandbox = Sandbox::new(VERSION);
    sandbox.file("c.yaml", &spec(1, VERSION, "", ""));
    sandbox.quorate(&["apply", "--yes", "c.yaml"]).ok();
    let before = sandbox.environment("c")["ETCDCTL_ENDPOINTS"].clone();
    let mut run = watch(&sandbox, &["replace", "c", "etcd-1", "--yes"]);
    run.until("enrol the agent of etcd-1 … done");
    run.kill();
    assert_eq!(sandbox.environment("c")["ETCDCTL_ENDPOINTS"], before);
    sandbox.etcdctl(VERSION, "c", &["put", "a", "1"]).ok();
    sandbox.quorate(&["apply", "--yes", "c.yaml"]).ok();
    assert_ne!(sandbox.environment("c")["ETCDCTL_ENDPOINTS"], before);
    assert_eq!(sandbox.etcdctl(VERSION, "c", &["get", "a", "--print-value-only"]).ok().stdout, "1\n");
    sandbox.quorate(&["destroy", "c", "--yes", "--without-backup"]).ok();
}

#[test]
fn a_cluster_is_recovered_only_when_its_majority_is_lost_and_the_recovery_survives_a_kill() {
    let trio = Trio::up(Login::Certificate);
    trio.etcdctl(&["put", "a", "1"]).ok();
    let refused = trio.sandbox.quorate(&["recover", NAME, "--yes"]).expect(3);
    assert!(
        refused.stderr.contains("the quorum is not lost: 3 of 3 voters have their data or may have it"),
        "{}",
        refused.stderr
    );
    assert_eq!(of_verb(&history(&trio.sandbox, NAME), "recover"), [], "nothing was recorded");
    assert_eq!(trio.ledger()["etcd"]["recovery"], Value::Null);

    for lost in ["etcd-1", "etcd-2"] {
        for pid in [trio.agent_of(lost), trio.etcd_of(lost)].into_iter().flatten() {
            crate::common::signal(pid, "KILL");
        }
        crate::common::eventually("it is gone", 5, || trio.agent_of(lost).is_none() && trio.etcd_of(lost).is_none());
        fs::remove_dir_all(trio.machine(lost)).unwrap();
    }
    let asked = trio.sandbox.quorate(&["recover", NAME]).expect(1);
    for words in [
        "lost: acknowledged writes",
        "etcd-3  unhealthy  complete",
        "etcd-1  absent",
        "no terminal to ask whether to recover",
    ] {
        assert!(asked.stderr.contains(words), "{words} in {}", asked.stderr);
    }
    let mut run = watch(&trio.sandbox, &["recover", NAME, "--yes"]);
    run.until("begin the recovery from etcd-3 … done");
    run.kill();
    let status = trio.sandbox.quorate(&["status", NAME, "--output", "json"]).expect(6).json();
    assert_eq!((&status["formation"], &status["verdict"]), (&"recovering".into(), &"down".into()));
    assert!(status["summary"].as_str().unwrap().contains("being recovered from etcd-3"), "{status:#}");
    let mut run = watch(&trio.sandbox, &["recover", NAME, "--yes"]);
    run.until("record that the cluster is bootstrapped … done");
    run.kill();
    // One survivor serves: the cluster has its majority, and the recovery continues nevertheless.
    let told = trio.sandbox.quorate(&["recover", NAME, "--yes"]).ok().text();
    assert!(told.contains("the other members come back now") || told.contains("3 of 3 voters"), "{told}");
    assert_well(&trio);
    assert_eq!(contents(&trio), [("a".to_owned(), "1".to_owned())].into());
    let steps = history(&trio.sandbox, NAME);
    let told = of_verb(&steps, "recover");
    assert_eq!(told[0], ("recover", "done"));
    let word = steps.iter().find(|s| s["kind"] == "recover").unwrap();
    assert!(word["because"].as_str().unwrap().contains("lost: acknowledged writes"), "{word:#}");
    assert_eq!(told.iter().filter(|(kind, _)| *kind == "recover").count(), 1, "the word is given once");
    assert!(told.iter().any(|(kind, _)| *kind == "rebuild"));
    trio.destroy().ok();
    trio.assert_gone();
}
