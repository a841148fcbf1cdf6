//! A member whose data outlives its machine gets a new machine, and keeps its data and its membership: on real etcd, undisturbed and
//! interrupted at every step.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::common::instants::{is_tried, seed};
use crate::common::trio::Watched;
use crate::common::{Run, Sandbox, eventually, signal, spec};

const VERSION: &str = "3.5.30";
const KEYS: usize = 20;
/// More lines than any replacement prints.
const MOST_LINES: usize = 60;

/// A cluster named `c` whose members keep their data, with something in it.
struct Kept(Sandbox);

impl Kept {
    fn up(members: usize) -> Self {
        let sandbox = Sandbox::new(VERSION);
        sandbox.file("c.yaml", &spec(members, VERSION, "", "provider: {local: {keep_data: true}}"));
        sandbox.quorate(&["apply", "c.yaml", "--yes"]).ok();
        let kept = Kept(sandbox);
        for n in 1..=KEYS {
            kept.etcdctl(&["put", &format!("key-{n}"), &format!("value-{n}")]).ok();
        }
        kept
    }

    fn etcdctl(&self, arguments: &[&str]) -> Run {
        self.0.etcdctl(VERSION, "c", arguments)
    }

    /// etcd's own number of each member: another one is another member.
    fn seats(&self) -> BTreeMap<String, String> {
        let listed = self.etcdctl(&["member", "list"]).ok().stdout;
        let rows = listed.lines().map(|line| line.split(", ").map(str::to_owned).collect::<Vec<_>>());
        rows.map(|row| (row[2].clone(), row[0].clone())).collect()
    }

    fn machine(&self, name: &str) -> PathBuf {
        self.0.home().join("machines/c").join(name)
    }

    fn address(&self, machine: &str) -> Value {
        let mark = fs::read(self.machine(machine).join("machine.json")).expect("a mark");
        serde_json::from_slice::<Value>(&mark).expect("JSON")["address"].clone()
    }

    #[track_caller]
    fn assert_settled(&self, members: usize) {
        let status = self.0.status("c");
        assert_eq!(status["verdict"], "healthy", "{status:#}");
        assert_eq!((self.0.etcds().len(), self.0.agents().len()), (members, members));
        let values = self.etcdctl(&["get", "key-", "--prefix", "--print-value-only"]).ok().stdout;
        assert_eq!(values.lines().filter(|line| line.starts_with("value-")).count(), KEYS, "{values}");
        self.0.assert_nothing_to_do("c.yaml");
        let hidden = fs::read_dir(self.0.home().join("machines/c")).expect("machines").flatten();
        let hidden: Vec<_> = hidden.filter(|e| e.file_name().to_string_lossy().starts_with('.')).collect();
        assert!(hidden.is_empty(), "left behind: {hidden:?}");
    }
}

#[test]
fn a_member_keeps_its_data_and_its_seat() {
    let kept = Kept::up(3);
    let (seats, address) = (kept.seats(), kept.address("etcd-2"));
    let told = kept.0.quorate(&["replace", "c", "etcd-2", "--yes"]).ok().text();
    assert!(told.contains("destroy the machine of etcd-2.1 and keep its data"), "the plan: {told}");
    assert!(told.contains("start etcd on etcd-2.2\n"), "{told}");
    assert!(!told.contains("as a learner"), "{told}");
    assert_eq!((kept.seats(), kept.address("etcd-2.2")), (seats.clone(), address));
    assert!(!kept.machine("etcd-2").exists());
    kept.assert_settled(3);
    assert_eq!(kept.0.ledger("c")["members"]["etcd-2"]["renewing"], Value::Null);

    let told = kept.0.quorate(&["replace", "c", "etcd-2", "--new-data", "--yes"]).ok().text();
    assert!(told.contains("add etcd-2 to the cluster as a learner"), "{told}");
    let (mut before, mut after) = (seats, kept.seats());
    assert_ne!(before.remove("etcd-2"), after.remove("etcd-2"));
    assert_eq!(before, after);
    kept.assert_settled(3);
}

#[test]
fn a_renewal_may_be_killed_at_every_step_boundary() {
    let kept = Kept::up(3);
    let seats = kept.seats();
    let seed = seed();
    for boundary in (1..MOST_LINES).filter(|boundary| is_tried(*boundary, seed)) {
        let member = format!("etcd-{}", 1 + (boundary + boundary / 3) % 3);
        let mut run = Watched::new(kept.0.spawn(&["replace", "c", &member, "--yes"]));
        let Some(line) = (0..boundary).map_while(|_| run.next_step()).nth(boundary - 1) else {
            run.end().ok();
            assert!(boundary > 8, "only {boundary} lines were told");
            kept.assert_settled(3);
            return assert_eq!(kept.seats(), seats);
        };
        run.kill();
        let told = kept.0.quorate(&["apply", "c.yaml", "--yes"]).ok().text();
        assert!(!told.contains("as a learner"), "killed at `{line}`: {told}");
        assert_eq!(kept.seats(), seats, "killed at `{line}`");
    }
    panic!("a replacement without an end");
}

#[test]
fn where_the_data_went_with_the_machine_the_member_is_replaced() {
    let kept = Kept::up(3);
    let seats = kept.seats();
    let root = kept.machine("etcd-3").display().to_string();
    let its = || kept.0.processes().into_iter().filter(|(_, line)| line.contains(&root)).map(|(pid, _)| pid);
    its().for_each(|pid| signal(pid, "KILL"));
    eventually("its processes are gone", 5, || its().next().is_none());
    fs::remove_dir_all(kept.machine("etcd-3")).expect("its directory");
    let told = kept.0.quorate(&["apply", "c.yaml", "--now", "--yes"]).ok().text();
    assert!(told.contains("replace the machine of etcd-3 with etcd-3.2, keeping its data"), "{told}");
    assert!(told.contains("replace the machine of etcd-3 with etcd-3.3 …"), "{told}");
    let (mut before, mut after) = (seats, kept.seats());
    assert_ne!(before.remove("etcd-3"), after.remove("etcd-3"));
    assert_eq!(before, after);
    kept.assert_settled(3);
}

/// A volume may be set back to an earlier state of it while no machine has it: who started on that could vote twice.
#[test]
fn outdated_kept_data_is_not_started() {
    let kept = Kept::up(3);
    let (seats, data) = (kept.seats(), PathBuf::from("root/var/lib/etcd"));
    let copy = |from: PathBuf, to: PathBuf| {
        let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp runs");
        assert!(copied.success());
    };
    let etcd = kept.0.etcd_of("etcd-2").expect("its etcd");
    signal(etcd, "STOP");
    copy(kept.machine("etcd-2").join(&data), kept.0.path().join("older"));
    signal(etcd, "CONT");
    for n in 1..=100 {
        kept.etcdctl(&["put", "later", &n.to_string()]).ok();
    }
    let mut run = Watched::new(kept.0.spawn(&["replace", "c", "etcd-2", "--yes"]));
    run.until("and keep its data … done");
    run.kill();
    let place = kept.machine(".etcd-2.1.kept").join(&data);
    fs::remove_dir_all(&place).expect("what was kept");
    copy(kept.0.path().join("older"), place);
    let told = kept.0.quorate(&["apply", "c.yaml", "--yes"]).text();
    assert!(told.contains("older than it was"), "{told}");
    kept.0.quorate(&["apply", "c.yaml", "--yes"]).ok();
    let (mut before, mut after) = (seats, kept.seats());
    assert_ne!(before.remove("etcd-2"), after.remove("etcd-2"));
    assert_eq!(before, after);
    kept.assert_settled(3);
}

#[test]
fn the_only_member_is_renewed_when_the_service_may_be_interrupted() {
    let kept = Kept::up(1);
    let seats = kept.seats();
    let refused = kept.0.quorate(&["replace", "c", "etcd-1", "--yes"]).fails().text();
    assert!(refused.contains("is the only voter") && refused.contains("--allow-downtime"), "{refused}");
    assert!(kept.machine("etcd-1").exists());
    kept.0.quorate(&["replace", "c", "etcd-1", "--allow-downtime", "--yes"]).ok();
    assert_eq!(kept.seats(), seats);
    kept.assert_settled(1);
}
