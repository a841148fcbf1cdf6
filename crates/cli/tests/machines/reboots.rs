//! `quorate reboot` on machines of libvirt, and what tests of reboots share.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::common::{Sandbox, eventually};
use crate::ground::{MEMBERS, Machines, NETWORK, Wanted, chapter, incarnation};
use crate::writer::while_writing;

fn address(member: usize) -> String {
    format!("10.77.205.{}", 10 + member)
}

/// A machine is replaced when it was not seen for 10 seconds, and boots for longer than that: a reboot must not count as a loss.
const WANTED: Wanted = Wanted {
    name: "boots",
    members: 3,
    member: |member| {
        format!("libvirt: {{interfaces: [{{network: {NETWORK}, address: {}, prefix: 16}}]}}", address(member))
    },
    libvirt: "",
    etcd: "",
};

/// The member whose etcd leads. On a busy host there may be none for a while.
#[track_caller]
pub fn leader(sandbox: &Sandbox, cluster: &str) -> String {
    let mut leader = None;
    eventually("a leader", 60, || {
        let status = sandbox.status(cluster);
        let mut members = status["members"].as_array().into_iter().flatten();
        let leads = members.find(|member| member["role"] == "leader");
        leader = leads.and_then(|member| member["member"].as_str().map(str::to_owned));
        leader.is_some()
    });
    leader.unwrap_or_default()
}

/// In the last run each machine was rebooted once, and the last one after its etcd had handed over.
#[track_caller]
pub fn assert_leader_was_last(sandbox: &Sandbox, cluster: &str) {
    let done = steps_of_last_run(sandbox, cluster);
    let of_kind =
        |kind: &str| done.iter().filter(|step| step.0 == kind).map(|step| step.1.as_str()).collect::<Vec<_>>();
    let (moved, rebooted) = (of_kind("move-leader"), of_kind("reboot-machine"));
    assert_eq!(rebooted.iter().collect::<BTreeSet<_>>().len(), MEMBERS.len(), "{done:?}");
    assert_eq!((rebooted.len(), moved.last()), (MEMBERS.len(), rebooted.last()), "{done:?}");
    let order: Vec<&str> = done.iter().map(|step| step.0.as_str()).collect();
    let place = |kind: &str| order.iter().rposition(|one| *one == kind);
    assert!(place("move-leader") < place("reboot-machine"), "{done:?}");
}

/// Kind and member of each, as the history has them.
fn steps_of_last_run(sandbox: &Sandbox, cluster: &str) -> Vec<(String, String)> {
    let history = sandbox.quorate(&["history", cluster, "--output", "json"]).ok().json();
    let steps = history["steps"].as_array().cloned().unwrap_or_default();
    let last = steps.last().map(|step| step["run"].clone()).unwrap_or_default();
    let text = |step: &Value, field: &str| step[field].as_str().unwrap_or_default().to_owned();
    steps.iter().filter(|step| step["run"] == last).map(|step| (text(step, "kind"), text(step, "member"))).collect()
}

/// No request to reboot is open any more.
#[track_caller]
pub fn assert_no_request(sandbox: &Sandbox, cluster: &str) {
    let open = sandbox.quorate(&["requests", cluster, "--output", "json"]).ok().json();
    assert_eq!(open, Value::Array(Vec::new()));
}

/// Those whose boot is another one.
pub fn rebooted<T: PartialEq>(
    before: &BTreeMap<&'static str, T>,
    after: &BTreeMap<&'static str, T>,
) -> Vec<&'static str> {
    MEMBERS.into_iter().filter(|member| before[member] != after[member]).collect()
}

fn boots(machines: &Machines) -> BTreeMap<&'static str, String> {
    let of = |at: usize| machines.boot_id(&address(at + 1)).expect("it runs");
    MEMBERS.into_iter().enumerate().map(|(at, member)| (member, of(at))).collect()
}

#[test]
#[ignore = "boots machines: `cargo xtask lab libvirt` runs it"]
fn machines_of_libvirt_reboot_one_after_another_under_a_writer() {
    let machines = Machines::new(&WANTED);
    let (sandbox, name) = (&machines.sandbox, machines.name);
    chapter("three machines, from apply to healthy", || machines.apply().ok());
    machines.assert_healthy();
    chapter("all reboot while a client writes, the leader last", || {
        let before = boots(&machines);
        let environment = sandbox.environment(name);
        let etcdctl = |arguments: &[&str]| machines.etcdctl_with(&environment, arguments);
        let (run, written) = while_writing(etcdctl, || sandbox.quorate(&["reboot", "--yes", name]));
        run.ok();
        machines.assert_healthy();
        written.assert_kept(etcdctl);
        assert_eq!(rebooted(&before, &boots(&machines)), MEMBERS);
        assert_leader_was_last(sandbox, name);
        assert_no_request(sandbox, name);
        let ledger = sandbox.ledger(name);
        assert!(MEMBERS.iter().all(|member| incarnation(&ledger, member) == 1), "none was replaced: {ledger:#}");
    });
    chapter("everything is destroyed, and nothing is left", || machines.destroy());
}
