//! Through a front, the clients' history is linearizable while members are killed, cut off, restarted and upgraded.

use serde_json::Value;

use super::{AUTH, Front};
use crate::common::{lab, newest, newest_of};

fn passed(front: &Front, arguments: &[&str]) -> Value {
    let url = front.url("");
    let before = ["drill", "c", "--yes", "--output", "json", "--through", &url];
    let told = front.sandbox.quorate(&[&before, arguments].concat()).ok().json();
    assert_eq!(told["passed"], true, "{told:#}");
    told
}

#[test]
fn clients_behind_a_front_lose_nothing_and_see_one_history() {
    let (version, older) = (newest(), newest_of("3.6").expect("etcd 3.6"));
    let front = Front::up(&older, "", AUTH, &[]);
    let told = passed(&front, &["--scenario", "kill-leader", "--scenario", "stop-follower", "--history", "seen.jsonl"]);
    assert_eq!(told["scenarios"].as_array().map(Vec::len), Some(2));
    let seen = std::fs::read_to_string(front.sandbox.path().join("seen.jsonl")).expect("a history");
    let asked: Vec<&str> = seen.lines().filter(|line| line.contains("\"call\"")).collect();
    assert!(asked.len() > 100 && asked.iter().all(|line| line.contains(&front.at)), "of {}", asked.len());

    let binary = format!("binary: {{path: {:?}}}", lab(&version));
    front.write(&version, &binary, AUTH);
    passed(&front, &["--scenario", "calm", "--during", "apply c.yaml"]);

    let refused = front.sandbox.quorate(&["drill", "c", "--yes", "--through", "127.0.0.1:2379"]).fails().stderr;
    assert!(refused.contains("--through 127.0.0.1:2379: not a URL"), "{refused}");
}
