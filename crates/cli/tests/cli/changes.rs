//! Changes of running clusters at the command line: every row of the table in docs/changes.md, on real etcd. The drill
//! checks what clients see meanwhile (`cargo xtask drill`); these tests check the steps, the refusals and the result.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::common::{Run, Sandbox, address, eventually, lab, newest_of, signal};

const V35: &str = "3.5.30";

/// A cluster named `c` that is changed by editing its file.
struct Living {
    sandbox: Sandbox,
    version: String,
}

impl Living {
    fn new(members: usize, version: &str, etcd: &str, rest: &str) -> Self {
        let living = Living { sandbox: Sandbox::new(V35), version: version.to_owned() };
        living.edit(&members_named(members), version, etcd, rest);
        living.apply(&[]).ok();
        living
    }

    /// Writes the spec again; every version comes from the lab.
    fn edit(&self, members: &str, version: &str, etcd: &str, rest: &str) {
        let binary = lab(version).display().to_string();
        let etcd = if etcd.is_empty() { String::new() } else { format!(", {etcd}") };
        let rest: String = rest.lines().map(|line| format!("    {line}\n")).collect();
        let text = format!(
            "quorate: 1\nclusters:\n  - name: c\n    members: [{members}]\n    etcd: {{version: {version}, binary: {{path: {binary}}}{etcd}}}\n{rest}"
        );
        self.sandbox.file("c.yaml", &text);
    }

    fn apply(&self, more: &[&str]) -> Run {
        self.sandbox.quorate(&[&["apply", "c.yaml", "--yes"], more].concat())
    }

    fn etcdctl(&self, arguments: &[&str]) -> Run {
        self.sandbox.etcdctl(&self.version, "c", arguments)
    }

    fn fill(&self) {
        for n in 1..=20 {
            self.etcdctl(&["put", &format!("key-{n}"), &format!("value-{n}")]).ok();
        }
    }

    /// All is as the spec says, and what was written is there.
    #[track_caller]
    fn assert_settled(&self, members: usize) {
        let status = self.sandbox.status("c");
        assert_eq!(status["verdict"], "healthy", "{status:#}");
        assert_eq!(status["voters"], members, "{status:#}");
        assert_eq!(self.sandbox.etcds().len(), members);
        assert_eq!(self.sandbox.agents().len(), members);
        let listed = self.etcdctl(&["member", "list", "--write-out=json"]).ok().json();
        let listed = listed["members"].as_array().expect("members").clone();
        assert_eq!(listed.len(), members, "{listed:#?}");
        assert!(listed.iter().all(|m| m.get("isLearner").is_none_or(|l| *l == false)), "{listed:#?}");
        let keys = self.etcdctl(&["get", "key-", "--prefix", "--keys-only"]).ok();
        assert_eq!(keys.stdout.lines().filter(|l| l.starts_with("key-")).count(), 20, "{}", keys.stdout);
        self.sandbox.assert_nothing_to_do("c.yaml");
    }

    fn machine(&self, name: &str) -> PathBuf {
        self.sandbox.home().join("machines/c").join(name)
    }

    fn data(&self, machine: &str) -> PathBuf {
        self.machine(machine).join("root/var/lib/etcd")
    }

    fn has_raft_snapshot(&self, machine: &str) -> bool {
        let entries = fs::read_dir(self.data(machine).join("member/snap")).expect("its snapshots").flatten();
        entries.into_iter().any(|entry| entry.path().extension().is_some_and(|kind| kind == "snap"))
    }

    fn processes_of(&self, machine: &str, kind: &str) -> Option<u32> {
        let root = self.machine(machine).join("root").display().to_string();
        let found = self.sandbox.processes();
        found.into_iter().find(|(_, line)| line.contains(&root) && line.contains(kind)).map(|(pid, _)| pid)
    }

    /// As pulling the plug would.
    fn cut_power(&self, machine: &str) {
        for kind in [" agent --root ", "/etcd --"] {
            if let Some(pid) = self.processes_of(machine, kind) {
                signal(pid, "KILL");
            }
        }
        eventually("its processes are gone", 5, || {
            [" agent --root ", "/etcd --"].iter().all(|kind| self.processes_of(machine, kind).is_none())
        });
    }

    fn lose_machine(&self, machine: &str) {
        self.cut_power(machine);
        fs::remove_dir_all(self.machine(machine)).expect("its directory");
    }

    fn follower(&self) -> String {
        let status = self.sandbox.status("c");
        let members = status["members"].as_array().expect("members");
        let follower = members.iter().find(|m| m["role"] == "voter").expect("a follower");
        follower["member"].as_str().expect("a name").to_owned()
    }

    fn running_versions(&self) -> BTreeSet<String> {
        let status = self.sandbox.status("c");
        let of = |m: &Value| m["version"].as_str().unwrap_or_default().to_owned();
        status["members"].as_array().expect("members").iter().map(of).collect()
    }
}

fn members_named(count: usize) -> String {
    (1..=count).map(|n| format!("{{name: etcd-{n}}}")).collect::<Vec<_>>().join(", ")
}

fn copy(from: &Path, to: &Path) {
    let done = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp");
    assert!(done.success());
}

#[test]
fn one_becomes_three_becomes_five_becomes_three_becomes_one() {
    let living = Living::new(1, V35, "", "");
    living.fill();
    for (members, said) in [
        (3, "2 voters (quorum 2) tolerate no failure"),
        (5, "4 voters (quorum 3) tolerate 1 failure"),
        (3, "quorum is then 3, tolerating 1 failure"),
        (1, "1 of 1 voter remains healthy"),
    ] {
        living.edit(&members_named(members), V35, "", "");
        let told = living.apply(&[]).ok().text();
        assert!(told.contains(said), "{told}");
        living.assert_settled(members);
    }
}

#[test]
fn a_cluster_that_logs_in_by_password_grows_and_shrinks() {
    let living = Living::new(1, V35, "client_auth: password", "");
    living.fill();
    for members in [3, 1] {
        living.edit(&members_named(members), V35, "client_auth: password", "");
        living.apply(&[]).ok();
        living.assert_settled(members);
    }
}

#[test]
fn versions_go_up_one_minor_at_a_time_and_down_by_etcds_own_procedure() {
    let flags = "flags: {experimental-initial-corrupt-check: \"true\"}";
    let mut living = Living::new(3, "3.4.23", flags, "");
    living.fill();
    let (Some(v36), Some(v37)) = (newest_of("3.6"), newest_of("3.7")) else {
        panic!("etcd 3.6 and 3.7 are missing here: run `cargo xtask etcd`");
    };
    living.edit(&members_named(3), &v36, flags, "");
    let refused = living.apply(&[]).expect(3).text();
    assert!(refused.contains("one minor at a time") && refused.contains("upgrade to 3.5.x first"), "{refused}");
    assert_eq!(living.running_versions(), BTreeSet::from([String::from("3.4.23")]));
    for version in [V35, &v36, &v37, &v36] {
        living.edit(&members_named(3), version, flags, "");
        let told = living.apply(&[]).ok().text();
        assert!(told.contains(&format!("the spec asks for {version}")), "{told}");
        version.clone_into(&mut living.version);
        assert_eq!(living.running_versions(), BTreeSet::from([version.to_owned()]));
        living.assert_settled(3);
    }
    living.edit(&members_named(3), "3.4.23", flags, "");
    let refused = living.apply(&[]).expect(3).text();
    assert!(refused.contains("3.4"), "{refused}");
    living.edit(&members_named(3), &v36, flags, "");
    living.assert_settled(3);
}

#[test]
fn logs_written_by_etcd_3_5_are_covered_by_a_snapshot_before_3_7_starts() {
    let (Some(v36), Some(v37)) = (newest_of("3.6"), newest_of("3.7")) else {
        panic!("etcd 3.6 and 3.7 are missing here: run `cargo xtask etcd`");
    };
    let mut living = Living::new(3, V35, "", "");
    living.fill();
    living.edit(&members_named(3), &v36, "", "");
    living.apply(&[]).ok();
    // On a slow machine etcd may have taken snapshots by itself.
    let without = ["etcd-1", "etcd-2", "etcd-3"].iter().filter(|member| !living.has_raft_snapshot(member)).count();
    living.edit(&members_named(4), &v37, "", "");
    let told = living.apply(&[]).ok().text();
    let count = |what: &str| told.lines().filter(|line| line.contains(what) && line.contains("done (")).count();
    assert_eq!(count("to make it take a Raft snapshot"), without, "{told}");
    assert!(!told.contains("execute job failed"), "{told}");
    living.version.clone_from(&v37);
    assert_eq!(living.running_versions(), BTreeSet::from([v37]));
    living.assert_settled(4);
}

#[test]
fn a_program_that_is_missing_anywhere_stops_an_upgrade_before_its_first_restart() {
    let living = Living::new(3, V35, "", "");
    living.fill();
    let before = living.sandbox.etcds();
    living.sandbox.file("c.yaml", &crate::common::spec(3, "3.6.14", "binary: {path: /nowhere/etcd}", ""));
    let refused = living.apply(&[]).expect(3).text();
    assert!(refused.contains("/nowhere/etcd"), "{refused}");
    assert_eq!(living.sandbox.etcds(), before, "nobody restarted");
    living.edit(&members_named(3), V35, "", "");
    living.apply(&[]).ok();
    living.assert_settled(3);
}

#[test]
fn a_healthy_member_is_replaced_and_the_leader_too() {
    let living = Living::new(3, V35, "", "");
    living.fill();
    for member in ["etcd-1", "etcd-2", "etcd-3"] {
        let told = living.sandbox.quorate(&["replace", "c", member, "--yes"]).ok().text();
        let (promoted, removed) = (told.find("promote"), told.find(&format!("remove {member}.1")));
        assert!(promoted.is_some() && promoted < removed, "it grows before it shrinks: {told}");
        let named = format!("promote {member}.2 to a voter");
        assert!(told.contains(&named), "the plan names the new machine: {told}");
        living.assert_settled(3);
    }
}

#[test]
fn a_member_with_a_pinned_address_leaves_before_its_successor_joins() {
    let members = format!("{{name: etcd-1}}, {{name: etcd-2, address: {}}}, {{name: etcd-3}}", address(11));
    let living = Living::new(3, V35, "", "");
    living.edit(&members, V35, "", "");
    let told = living.apply(&[]).ok().text();
    assert!(told.contains("the spec gives etcd-2 the address"), "{told}");
    living.fill();
    let told = living.sandbox.quorate(&["replace", "c", "etcd-2", "--yes"]).ok().text();
    assert!(told.contains("pinned") && told.contains("tolerates 0 more failures"), "{told}");
    living.assert_settled(3);

    let alone = Living::new(1, V35, "", "");
    alone.edit(&format!("{{name: etcd-1, address: {}}}", address(12)), V35, "", "");
    alone.apply(&[]).ok();
    let refused = alone.sandbox.quorate(&["replace", "c", "etcd-1", "--yes"]).expect(3).text();
    assert!(refused.contains("only voter"), "{refused}");
}

#[test]
fn a_machine_that_is_gone_is_replaced_after_its_grace_time_which_is_remembered() {
    let living = Living::new(3, V35, "", "replace_after: 20s");
    living.fill();
    let gone = living.follower();
    living.lose_machine(&gone);
    let refused = living.apply(&[]).expect(3).text();
    assert!(refused.contains("counts as dead after 20 s") && refused.contains("--now"), "{refused}");
    assert!(!living.machine(&gone).exists());
    // The next run remembers since when.
    std::thread::sleep(Duration::from_secs(11));
    living.apply(&[]).ok();
    living.assert_settled(3);

    let gone = living.follower();
    let machine = living.sandbox.status("c")["members"]
        .as_array()
        .expect("members")
        .iter()
        .find(|m| m["member"] == gone.as_str())
        .and_then(|m| m["machine"].as_str())
        .expect("a machine")
        .to_owned();
    living.lose_machine(&machine);
    living.apply(&["--now"]).ok();
    living.assert_settled(3);
}

#[test]
fn a_refused_replacement_is_not_carried_out_later() {
    let living = Living::new(3, V35, "", "");
    living.fill();
    let silent = ["etcd-2", "etcd-3"].map(|member| {
        [" agent --root ", "/etcd --"].map(|kind| living.processes_of(member, kind).expect("its process"))
    });
    silent.as_flattened().iter().for_each(|process| signal(*process, "STOP"));
    let refused = living.sandbox.quorate(&["replace", "c", "etcd-1", "--yes"]);
    silent.as_flattened().iter().for_each(|process| signal(*process, "CONT"));
    let refused = refused.expect(3).text();
    assert!(refused.contains("not done: the replacement cannot begin now"), "{refused}");
    eventually("all serve again", 60, || living.sandbox.status("c")["verdict"] == "healthy");
    living.assert_settled(3);
    let history = living.sandbox.quorate(&["history", "c"]).ok().stdout;
    assert!(!history.contains("move etcd-1"), "{history}");
}

#[test]
fn a_machine_that_its_peers_still_reach_is_not_dead() {
    let living = Living::new(3, V35, "", "replace_after: 1s");
    living.fill();
    let member = living.follower();
    let agent = living.processes_of(&member, " agent --root ").expect("its agent");
    signal(agent, "STOP");
    let refused = living.apply(&["--now"]);
    signal(agent, "CONT");
    let refused = refused.expect(3).text();
    assert!(refused.contains("but its peers do"), "{refused}");
    living.apply(&[]).ok();
    living.assert_settled(3);
}

#[test]
fn a_wiped_disk_means_a_replacement() {
    let living = Living::new(3, V35, "", "");
    living.fill();
    let member = living.follower();
    living.cut_power(&member);
    fs::remove_dir_all(living.data(&member)).expect("its data");
    let told = living.apply(&[]).ok().text();
    assert!(told.contains(&format!("replace the machine of {member} with")), "{told}");
    living.assert_settled(3);
}

#[test]
fn outdated_data_is_never_started_and_leads_to_a_replacement() {
    let living = Living::new(3, V35, "", "");
    let member = living.follower();
    let etcd = living.processes_of(&member, "/etcd --").expect("its etcd");
    let old = living.sandbox.path().join("old");
    signal(etcd, "STOP");
    copy(&living.data(&member), &old);
    signal(etcd, "CONT");
    living.fill();
    living.cut_power(&member);
    fs::remove_dir_all(living.data(&member)).expect("its data");
    copy(&old, &living.data(&member));
    let told = living.apply(&[]).ok().text();
    assert!(told.contains(&format!("replace the machine of {member} with")), "{told}");
    living.assert_settled(3);
    let history = living.sandbox.quorate(&["history", "c"]).ok().stdout;
    assert!(history.contains("is older than what the member acknowledged"), "{history}");
}

#[test]
fn a_learner_without_an_answer_is_removed_and_blocks_nothing() {
    let living = Living::new(3, V35, "", "");
    eventually("etcd lets members join", 15, || {
        let peer = format!("--peer-urls=https://{}:2380", address(21));
        living.etcdctl(&["member", "add", "ghost", "--learner", &peer]).code == Some(0)
    });
    living.fill();
    living.edit(&members_named(5), V35, "", "");
    let told = living.apply(&[]).ok().text();
    assert!(told.contains("a learner that the spec does not ask for"), "{told}");
    living.assert_settled(5);
}

#[test]
fn a_lost_majority_is_refused_with_numbers_and_recovered_after_confirmation() {
    let living = Living::new(3, V35, "", "");
    living.fill();
    let refused = living.sandbox.quorate(&["recover", "c", "--yes"]).expect(3).text();
    assert!(refused.contains("the quorum is not lost: 3 of 3"), "{refused}");
    living.assert_settled(3);
    let revision = |living: &Living| {
        let read = living.etcdctl(&["get", "key-1", "--write-out=json"]).ok().json();
        read["header"]["revision"].as_u64().expect("a revision")
    };
    let before = revision(&living);
    living.lose_machine("etcd-1");
    living.lose_machine("etcd-3");
    let refused = living.apply(&["--now"]).expect(3).text();
    assert!(refused.contains("1 of 3 voters are available (quorum 2)"), "{refused}");
    assert!(refused.contains("quorate recover"), "{refused}");
    let told = living.sandbox.quorate(&["recover", "c", "--yes"]).ok().text();
    assert!(told.contains("is lost"), "{told}");
    living.assert_settled(3);
    assert!(revision(&living) >= before + 1_000_000_000, "clients are not sent back in time");
    let users = living.etcdctl(&["user", "list"]).ok().stdout;
    assert!(users.contains("root"), "{users}");
    let kept = fs::read_dir(living.machine("etcd-2").join("root/var/lib")).expect("its files").flatten();
    let kept: Vec<String> = kept.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    assert!(kept.iter().any(|name| name.starts_with("etcd.before-")), "what was there is kept: {kept:?}");
}

#[test]
fn several_changes_in_one_edit_are_one_plan() {
    let Some(v36) = newest_of("3.6") else { panic!("etcd 3.6 is missing here: run `cargo xtask etcd`") };
    let mut living = Living::new(3, V35, "", "");
    living.fill();
    living.cut_power("etcd-3");
    fs::remove_dir_all(living.data("etcd-3")).expect("its data");
    living.edit(
        "{name: etcd-2}, {name: etcd-3}, {name: etcd-4}, {name: etcd-5}, {name: etcd-6}",
        &v36,
        "quota: 4GiB",
        "",
    );
    living.apply(&[]).ok();
    living.version = v36.clone();
    living.assert_settled(5);
    assert_eq!(living.running_versions(), BTreeSet::from([v36]));
}
