//! A number that one machine reports must not influence the others: a fencing number that no cluster reaches, from a damaged file or
//! a compromised machine.

use std::fs;

use serde_json::Value;

use crate::common::{Sandbox, eventually, newest, signal, spec};

fn generations(sandbox: &Sandbox) -> [u64; 3] {
    let ledger = sandbox.ledger("c");
    ["etcd-1", "etcd-2", "etcd-3"].map(|m| ledger["members"][m]["generation"].as_u64().expect("a number"))
}

/// The member's agent is killed, and remembers this number when it comes back.
fn remembers(sandbox: &Sandbox, machine: &str, fence: u64) {
    let root = sandbox.home().join("machines/c").join(machine).join("root");
    let of_it = |line: &str| line.contains(&format!(" agent --root {} ", root.display()));
    let agent = || sandbox.processes().into_iter().find(|(_, line)| of_it(line)).map(|(pid, _)| pid);
    signal(agent().expect("an agent"), "KILL");
    eventually("the agent is gone", 10, || agent().is_none());
    let file = root.join("var/lib/quorate/state.json");
    let mut state: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    state["fence"] = fence.into();
    fs::write(&file, serde_json::to_vec(&state).unwrap()).unwrap();
}

#[test]
fn an_agent_that_reports_the_last_fencing_number_blocks_nothing_and_nothing_wraps() {
    let version = newest();
    let sandbox = Sandbox::new(&version);
    sandbox.file("c.yaml", &spec(3, &version, "", ""));
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    remembers(&sandbox, "etcd-2", u64::MAX);

    let told = "reports fencing number 18446744073709551615";
    let blocked = sandbox.quorate(&["apply", "c.yaml", "--yes"]).expect(3).text();
    assert!(blocked.contains(told) && blocked.contains("quorate replace c etcd-2"), "{blocked}");
    let status = sandbox.status("c");
    let health: Vec<&str> = status["members"].as_array().unwrap().iter().filter_map(|m| m["health"].as_str()).collect();
    assert_eq!(health, ["healthy", "untrusted", "healthy"], "{status:#}");

    // The others are operated as before, and the consent for older ledgers does not take the number over.
    let before = generations(&sandbox);
    sandbox.file("c.yaml", &spec(3, &version, "quota: 1GiB", ""));
    sandbox.quorate(&["apply", "c.yaml", "--yes", "--accept-older-ledger"]).expect(3);
    let after = generations(&sandbox);
    assert_eq!(after, [before[0] + 1, before[1], before[2] + 1]);
    let fence = sandbox.ledger("c")["fence"].as_u64().expect("a number");
    assert!((2..100).contains(&fence), "{fence}");

    sandbox.quorate(&["replace", "c", "etcd-2", "--yes"]).ok();
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    assert_eq!(sandbox.status("c")["verdict"], "healthy");
    assert_eq!(sandbox.ledger("c")["members"]["etcd-2"]["incarnation"], 2);

    // A number that could be true says that this ledger is an old copy, so nothing is done; but the machine that says so can be replaced.
    remembers(&sandbox, "etcd-3", sandbox.ledger("c")["fence"].as_u64().expect("a number") + 1000);
    let blocked = sandbox.quorate(&["apply", "c.yaml", "--yes"]).expect(3).text();
    assert!(blocked.contains("this ledger is older") && blocked.contains("quorate replace c etcd-3"), "{blocked}");
    sandbox.quorate(&["replace", "c", "etcd-3", "--yes"]).ok();
    sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
    assert_eq!(sandbox.status("c")["verdict"], "healthy");
}
