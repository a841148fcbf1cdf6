//! Reviewed plans: the saved steps are those that were shown; they run without asking while they are still right, and are
//! refused, with the differences, when the cluster or the spec has changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::common::{Sandbox, newest, signal, spec};

fn steps(plan: &Value) -> Vec<&Value> {
    plan["steps"].as_array().expect("steps").iter().collect()
}

#[test]
fn a_reviewed_plan_is_done_without_asking_and_only_once() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    sandbox.file("c.yaml", &spec(3, &version, "", ""));
    // It holds the spec, in which there may be the hash of a password.
    let private = |saved: &str| fs::metadata(sandbox.path().join(saved)).unwrap().permissions().mode() & 0o777 == 0o600;
    sandbox.file("older.json", "");
    fs::set_permissions(sandbox.path().join("older.json"), fs::Permissions::from_mode(0o644)).unwrap();
    std::os::unix::fs::symlink("older.json", sandbox.path().join("link.json")).unwrap();
    for target in ["older.json", "link.json", "new.json"] {
        sandbox.quorate(&["plan", "c.yaml", "--save", target]).ok();
        assert!(private(target), "{target}");
    }
    assert!(fs::symlink_metadata(sandbox.path().join("link.json")).unwrap().is_symlink());
    let printed = sandbox.quorate(&["plan", "c.yaml", "--save", "/dev/stdout"]).ok().stdout;
    assert!(printed.contains("\"quorate_plan\": 1"), "{printed}");
    let shown = sandbox.quorate(&["plan", "c.yaml", "--save", "p.json", "--output", "json"]).ok();
    assert!(shown.stderr.contains("quorate apply --plan p.json c.yaml"), "{}", shown.stderr);
    let saved: Value = serde_json::from_slice(&fs::read(sandbox.path().join("p.json")).unwrap()).unwrap();
    assert_eq!((&saved["quorate_plan"], &saved["clusters"][0]["cluster_id"]), (&Value::from(1), &Value::Null));
    let (then, now) = (shown.json()["clusters"][0].clone(), saved["clusters"][0].clone());
    assert_eq!(steps(&then).len(), steps(&now).len());
    for (shown, saved) in steps(&then).into_iter().zip(steps(&now)) {
        for field in ["kind", "member", "action", "because"] {
            assert_eq!(shown[field], saved[field], "{field}");
        }
        assert!(shown.as_object().unwrap().contains_key("strength"));
    }
    let applied = sandbox.quorate(&["apply", "--plan", "p.json", "c.yaml"]).ok();
    assert!(applied.stderr.contains("these are the steps of the plan in p.json"), "{}", applied.stderr);
    // All of it is done, so that it cannot be done again.
    let again = sandbox.quorate(&["apply", "--plan", "p.json", "c.yaml"]).expect(3);
    assert!(again.stderr.contains("it did not exist when the plan was made"), "{}", again.stderr);
    assert!(again.stderr.contains("and 0 are needed now"), "{}", again.stderr);
    // A change of a living cluster, explained.
    sandbox.file("c.yaml", &spec(3, &version, "quota: 3GiB", ""));
    let explained = sandbox.quorate(&["plan", "c.yaml", "--explain", "--save", "p.json"]).ok().stdout;
    assert!(explained.contains("  ~ etcd.quota: 8GiB → 3GiB\n"), "{explained}");
    assert!(explained.contains("because configuration differs: quota 8GiB → 3GiB"), "{explained}");
    // Two followers stand together; the leader comes last, after it has handed over.
    let restarts: Vec<&str> = explained.lines().filter(|line| line.contains("restart etcd on")).collect();
    assert!(restarts.len() == 2 && restarts[0].ends_with("restart etcd on each"), "{explained}");
    assert!(explained.contains(", then "), "{explained}");
    // Said when it changes, and not under each step.
    let during = |what: &str| explained.lines().filter(|line| line.trim() == format!("while it runs: {what}")).count();
    assert_eq!(during("2 of 3 voters are healthy (quorum 2), tolerates no failure"), 2, "{explained}");
    assert_eq!(during("3 of 3 voters are healthy (quorum 2), tolerates 1 failure"), 2, "{explained}");
    sandbox.quorate(&["apply", "--plan", "p.json", "c.yaml"]).ok();
    assert_eq!(sandbox.status("c")["verdict"], "healthy");
    assert!(sandbox.quorate(&["plan", "c.yaml"]).ok().stdout.starts_with("cluster c: nothing to do\n"));
    sandbox.quorate(&["destroy", "c", "--yes", "--without-backup"]).ok();
}

#[test]
fn a_plan_that_does_not_fit_any_more_is_refused_with_what_differs() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    sandbox.file("c.yaml", &spec(1, &version, "", ""));
    sandbox.quorate(&["apply", "--yes", "c.yaml"]).ok();
    sandbox.file("c.yaml", &spec(1, &version, "quota: 3GiB", ""));
    sandbox.quorate(&["plan", "c.yaml", "--save", "without.json"]).expect(3);
    sandbox.quorate(&["plan", "c.yaml", "--allow-downtime", "--save", "p.json"]).ok();
    let etcd = sandbox.etcds();
    let untouched = |plan: &str, code: i32| {
        let run = sandbox.quorate(&["apply", "--allow-downtime", "--plan", plan, "c.yaml"]).expect(code);
        assert_eq!(sandbox.etcds(), etcd, "nothing was done");
        run.stderr
    };
    // The word was not given when it was planned.
    let told = untouched("without.json", 3);
    assert!(told.contains("cluster c: new: restart etcd on etcd-1"), "{told}");
    // Another spec by now.
    sandbox.file("c.yaml", &spec(1, &version, "quota: 4GiB", ""));
    let told = untouched("p.json", 3);
    assert!(told.contains("cluster c: its spec has changed since the plan was made"), "{told}");
    sandbox.file("c.yaml", &spec(1, &version, "quota: 3GiB", ""));
    // A file that is none, or of a later quorate.
    let text = fs::read_to_string(sandbox.path().join("p.json")).unwrap();
    sandbox.file("half.json", &text[..text.len() / 2]);
    assert!(untouched("half.json", 1).contains("or it is damaged"));
    sandbox.file("later.json", &text.replace("\"quorate_plan\": 1", "\"quorate_plan\": 9"));
    assert!(untouched("later.json", 1).contains("has format 9, and this quorate knows up to 1"));
    // The world has moved: its agent is gone.
    sandbox.agents().into_iter().for_each(|pid| signal(pid, "KILL"));
    crate::common::eventually("the agent is gone", 5, || sandbox.agents().is_empty());
    let told = untouched("p.json", 3);
    assert!(told.contains("first difference, at step 1: `update the configuration of etcd-1` was planned"), "{told}");
    assert!(told.contains("cluster c: new: start the machine of etcd-1"), "{told}");
    // What was planned is done when it fits again.
    sandbox.quorate(&["start", "c"]).ok();
    sandbox.quorate(&["apply", "--allow-downtime", "--plan", "p.json", "c.yaml"]).ok();
    // Another cluster of the same name.
    sandbox.quorate(&["destroy", "c", "--yes", "--without-backup"]).ok();
    let told = sandbox.quorate(&["apply", "--plan", "p.json", "c.yaml"]).expect(1).stderr;
    assert!(told.contains("is for another cluster c") && told.contains("no such cluster is known here"), "{told}");
}
