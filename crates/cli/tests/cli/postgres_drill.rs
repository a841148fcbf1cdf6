//! A PostgreSQL drill: the clients' record of a killed primary is checked, and an altered record is refused.

use std::fs;

use serde_json::{Value, json};

use crate::common::{PSQL, Run, Sandbox};

const VERSION: &str = "3.6.16";
/// A verdict that failed, or that nothing backs.
const NOT_PASSED: i32 = 8;

const SPEC: &str = "quorate: 1
clusters:
  - name: shop
    members: [{name: pg-1}, {name: pg-2}, {name: pg-3}]
    postgres:
      version: 15
      dcs: {cluster: orders}
      parameters: {max_connections: 50}
      patroni: {ttl: 20s, loop_wait: 1s, retry_timeout: 5s}
  - name: orders
    members: [{name: e-1}]
    etcd: {version: VERSION, client_auth: password, grpc_gateway: true}
";

/// Changes the first line of the record that has this, and has it checked again.
fn tampered(sandbox: &Sandbox, change: impl Fn(&mut Value) -> bool) -> Run {
    let record = fs::read_to_string(sandbox.path().join("drill.jsonl")).expect("a record");
    let mut lines: Vec<Value> = record.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(lines.iter_mut().any(change), "a line to change");
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    sandbox.file("tampered.jsonl", &text);
    sandbox.quorate(&["drill", "--check", "tampered.jsonl"]).expect(NOT_PASSED)
}

#[test]
fn a_killed_primary_costs_no_commit_and_a_tampered_record_is_refused() {
    let sandbox = Sandbox::new(VERSION);
    sandbox.file("shop.yaml", &SPEC.replace("VERSION", VERSION));
    sandbox.quorate(&["apply", "--yes", "shop.yaml"]).ok();
    let files = ["--history", "drill.jsonl", "--report", "drill.html"];
    let drill = ["drill", "shop", "--scenario", "kill-primary", "--yes", "--output", "json"];
    let told = sandbox.quorate(&[&drill[..], &files].concat()).ok().json();
    assert_eq!(told["passed"], true, "{told:#}");
    let scenario = &told["scenarios"][0];
    assert_eq!(scenario["violations"], json!([]));
    for kind in ["append", "number", "transfer", "serializable_transfer", "read", "replica_read"] {
        assert!(scenario["measures"]["operations"][kind]["answered"].as_u64() > Some(0), "{kind} in {scenario:#}");
    }
    let fault = scenario["marks"].as_array().unwrap().iter().find(|mark| mark["kind"] == "fault").unwrap();
    assert!(fault["text"].as_str().unwrap().starts_with("PostgreSQL killed on pg-"), "{fault}");
    assert!(fs::read_to_string(sandbox.path().join("drill.html")).expect("a report").contains("PostgreSQL 15"));
    sandbox.quorate(&["drill", "--check", "drill.jsonl"]).ok();

    let run = tampered(&sandbox, |line| {
        let entries = line.pointer_mut("/final/content/Ok/entries").and_then(Value::as_array_mut);
        entries.is_some_and(|entries| !entries.is_empty() && entries.drain(..).count() > 0)
    });
    assert!(run.stdout.contains("an acknowledged commit was lost"), "{}", run.stdout);
    let run = tampered(&sandbox, |line| match line.pointer_mut("/replica_read/seen/sum") {
        Some(sum) => {
            *sum = json!(1);
            true
        }
        None => false,
    });
    assert!(run.stdout.contains("transfers did not keep the sum"), "{}", run.stdout);

    // Nothing of it is left in the database, and scenarios of etcd are refused.
    let env = sandbox.quorate(&["env", "shop", "--output", "json"]).json();
    let mut psql = std::process::Command::new(PSQL);
    psql.env_clear().env("PATH", "/usr/bin:/bin").args([
        "-At",
        "-c",
        "select count(*) from pg_namespace where nspname like 'quorate%'",
    ]);
    psql.envs(env.as_object().unwrap().iter().map(|(name, value)| (name, value.as_str().unwrap_or_default())));
    assert_eq!(Run::from(psql.output().expect("psql runs")).ok().stdout, "0\n");
    let refused = sandbox.quorate(&["drill", "shop", "--yes", "--scenario", "kill-leader"]).expect(1);
    assert!(refused.stderr.contains("there is no scenario `kill-leader`"), "{}", refused.stderr);
}
