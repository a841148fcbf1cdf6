//! Clusters whose members have separate network namespaces: they come up and are reached like others, can be cut off and
//! reconnected, and leave no namespace behind, whatever is killed meanwhile. They need root, and say so otherwise.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use quorate_control::Home;
use quorate_providers::netns;
use serde_json::Value;

use crate::common::trio::{Watched, files_below, member};
use crate::common::{Run, Sandbox, eventually, lab, signal, spec};

const VERSION: &str = "3.5.30";
const NAMES: &str = "/run/netns";

/// A sandbox whose namespaces go with it, however the test ends.
struct Namespaced {
    sandbox: Sandbox,
    /// Of every cluster that was seen here.
    ids: RefCell<BTreeSet<String>>,
}

impl Namespaced {
    fn new(spec: &str) -> Self {
        let user = Command::new("id").arg("-u").output().expect("id runs").stdout;
        assert_eq!(user, b"0\n", "root is missing: network namespaces need it");
        let sandbox = Sandbox::new(VERSION);
        sandbox.file("cluster.yaml", spec);
        Namespaced { sandbox, ids: RefCell::default() }
    }

    fn trio() -> Self {
        Self::new(&spec(3, VERSION, "", "provider: {local: {network: netns}}"))
    }

    fn quorate(&self, arguments: &[&str]) -> Run {
        let run = self.sandbox.quorate(arguments);
        self.remember();
        run
    }

    fn apply(&self) -> Run {
        self.quorate(&["apply", "--yes", "cluster.yaml"])
    }

    fn destroy(&self) -> Run {
        self.remember();
        self.quorate(&["destroy", "--yes", "--without-backup", "cluster.yaml"])
    }

    /// Notes the ids of all clusters that have machines, or remains of them.
    fn remember(&self) {
        let machines = files_below(&self.sandbox.home().join("machines")).into_iter();
        for mark in machines.filter(|path| path.ends_with("machine.json")).filter_map(|path| fs::read(path).ok()) {
            let mark: Value = serde_json::from_slice(&mark).unwrap_or_default();
            self.ids.borrow_mut().extend(mark["cluster_id"].as_str().map(str::to_owned));
        }
    }

    fn id(&self, cluster: &str) -> String {
        self.sandbox.ledger(cluster)["cluster_id"].as_str().expect("an id").to_owned()
    }

    fn hub(&self) -> String {
        netns::hub(&self.id("c"))
    }

    fn home(&self) -> Home {
        Home::new(self.sandbox.home())
    }

    /// The namespaces of all clusters that were ever here.
    fn namespaces(&self) -> Vec<String> {
        let ids = self.ids.borrow();
        let ours = |name: &String| ids.iter().any(|id| name.starts_with(&netns::hub(id)));
        let names = fs::read_dir(NAMES).into_iter().flatten().flatten();
        let mut names: Vec<String> = names.filter_map(|e| e.file_name().into_string().ok()).filter(ours).collect();
        names.sort();
        names
    }

    fn etcdctl(&self, arguments: &[&str]) -> Run {
        self.etcdctl_with(&self.sandbox.environment("c"), arguments)
    }

    fn etcdctl_with(&self, environment: &BTreeMap<String, String>, arguments: &[&str]) -> Run {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.hub()]).arg(lab(VERSION).join("etcdctl"));
        command.env_clear().envs(environment);
        command.args(["--command-timeout=10s", "--dial-timeout=3s"]).args(arguments);
        command.output().expect("etcdctl runs").into()
    }

    #[track_caller]
    fn assert_gone(&self) {
        assert_eq!(self.sandbox.processes(), []);
        assert_eq!(self.namespaces(), Vec::<String>::new());
        assert!(!self.sandbox.has_machines());
    }

    #[track_caller]
    fn assert_healthy(&self) {
        let status = self.sandbox.status("c");
        assert_eq!(status["verdict"], "healthy", "{status:#}");
        let hub = self.hub();
        let machines = (1..=3).map(|n| format!("{hub}-etcd-{n}.1"));
        assert_eq!(self.namespaces(), [hub.clone()].into_iter().chain(machines).collect::<Vec<_>>());
        assert_eq!(self.sandbox.processes().len(), 6, "{:#?}", self.sandbox.processes());
    }
}

impl Drop for Namespaced {
    fn drop(&mut self) {
        self.remember();
        for name in self.namespaces() {
            ip(&["netns", "delete", &name]);
        }
    }
}

fn ip(arguments: &[&str]) -> Run {
    Command::new("ip").args(arguments).output().expect("ip runs").into()
}

/// A member that does not lead.
fn follower(status: &Value) -> String {
    let members = status["members"].as_array().expect("members");
    let found = members.iter().find(|m| m["role"] == "voter").expect("a follower");
    found["member"].as_str().expect("a name").to_owned()
}

#[test]
fn a_member_that_is_cut_off_is_missed_and_comes_back() {
    let lab = Namespaced::trio();
    let ended = lab.apply().ok();
    assert!(ended.stdout.contains("ip netns exec \"$QUORATE_NETNS\" etcdctl member list"), "{}", ended.stdout);
    lab.assert_healthy();
    lab.etcdctl(&["put", "before", "1"]).ok();
    assert_eq!(lab.etcdctl(&["member", "list"]).ok().stdout.lines().count(), 3);
    let told = lab.quorate(&["env", "c"]).ok().stdout;
    assert!(told.contains(&format!("export QUORATE_NETNS={}\n", lab.hub())), "{told}");
    let log = lab.quorate(&["logs", "c", "etcd-1"]).ok();
    assert!(log.stdout.contains("etcd-1"), "{}", log.stdout);

    let away = follower(&lab.sandbox.status("c"));
    let etcd = lab.sandbox.etcd_of(&away);
    netns::partition(&lab.home().machines(), "c", &away.as_str().into()).expect("it is cut off");
    let run = lab.quorate(&["status", "c", "--output", "json"]).expect(5);
    assert_eq!(run.json()["verdict"], "degraded", "{}", run.stdout);
    assert_eq!(member(&run.json(), &away)["health"], "unreachable", "{}", run.stdout);
    lab.etcdctl(&["put", "during", "2"]).ok();
    eventually("the others notice", 10, || {
        lab.etcdctl(&["endpoint", "health"]).text().matches("is unhealthy").count() == 1
    });

    netns::heal(&lab.home().machines(), "c", &away.as_str().into()).expect("it is healed");
    eventually("it is back", 20, || lab.sandbox.status("c")["verdict"] == "healthy");
    assert_eq!(lab.sandbox.etcd_of(&away), etcd, "nothing was restarted");
    lab.apply().ok();
    lab.assert_healthy();
    assert_eq!(lab.etcdctl(&["get", "--print-value-only", "during"]).ok().stdout, "2\n");
}

#[test]
fn a_leader_that_is_cut_off_is_replaced_by_another() {
    let lab = Namespaced::trio();
    lab.apply().ok();
    let leader = |status: &Value| {
        let members = status["members"].as_array().expect("members").iter();
        members.filter(|m| m["role"] == "leader").filter_map(|m| m["member"].as_str()).next().map(str::to_owned)
    };
    let first = leader(&lab.sandbox.status("c")).expect("a leader");
    netns::partition(&lab.home().machines(), "c", &first.as_str().into()).expect("it is cut off");
    eventually("another leads", 15, || leader(&lab.sandbox.status("c")).is_some_and(|now| now != first));
    lab.etcdctl(&["put", "k", "v"]).ok();
    netns::heal(&lab.home().machines(), "c", &first.as_str().into()).expect("it is healed");
    eventually("the first follows", 20, || lab.sandbox.status("c")["verdict"] == "healthy");
}

#[test]
fn nothing_leaves_the_network_of_a_cluster() {
    let lab = Namespaced::trio();
    lab.apply().ok();
    for namespace in lab.namespaces() {
        let routes = ip(&["-n", &namespace, "route", "show"]).ok().stdout;
        assert_eq!(routes.lines().count(), 1, "{routes}");
        assert!(routes.contains("/24 dev "), "{routes}");
    }
    let here = fs::read_to_string("/proc/net/dev").expect("a list of links");
    assert!(!here.contains("port-") && !here.contains("bridge:"), "{here}");
}

#[test]
fn down_start_and_destroy_leave_no_namespace() {
    let lab = Namespaced::trio();
    lab.apply().ok();
    lab.etcdctl(&["put", "k", "v"]).ok();
    lab.quorate(&["down", "c"]).ok();
    assert_eq!(lab.sandbox.processes(), []);
    assert_eq!(lab.namespaces(), Vec::<String>::new());
    lab.quorate(&["status", "c"]).ok();
    lab.quorate(&["start", "c"]).ok();
    lab.assert_healthy();
    assert_eq!(lab.etcdctl(&["get", "--print-value-only", "k"]).ok().stdout, "v\n");
    lab.destroy().ok();
    lab.assert_gone();
}

#[test]
fn after_a_reboot_of_the_host_machines_get_their_networks_again() {
    let lab = Namespaced::trio();
    lab.apply().ok();
    lab.etcdctl(&["put", "k", "v"]).ok();
    let names = lab.namespaces();
    lab.sandbox.agents().into_iter().for_each(|pid| signal(pid, "KILL"));
    lab.sandbox.etcds().into_iter().for_each(|pid| signal(pid, "KILL"));
    eventually("all have ended", 5, || lab.sandbox.processes().is_empty());
    for (index, name) in names.iter().enumerate() {
        ip(&["netns", "delete", name]).ok();
        // Where the directory is on a disk, the names survive and mean nothing.
        if index % 2 == 0 {
            fs::write(Path::new(NAMES).join(name), "").expect("a name without a namespace");
        }
    }
    lab.quorate(&["status", "c"]).fails();
    lab.apply().ok();
    lab.assert_healthy();
    assert_eq!(lab.etcdctl(&["get", "--print-value-only", "k"]).ok().stdout, "v\n");
}

#[test]
fn an_agent_that_died_comes_back_to_the_network_of_its_etcd() {
    let lab = Namespaced::trio();
    lab.apply().ok();
    let etcds = lab.sandbox.etcds();
    lab.sandbox.agents().into_iter().for_each(|pid| signal(pid, "KILL"));
    lab.apply().ok();
    lab.assert_healthy();
    assert_eq!(lab.sandbox.etcds(), etcds);
}

#[test]
fn clusters_with_the_same_addresses_and_one_on_loopback_live_beside_each_other() {
    let one = |name: &str, rest: &str| {
        format!("  - {{name: {name}, etcd: {{version: {VERSION}}}, members: [{{name: etcd-1{rest}}}]")
    };
    let pinned = ", address: 10.7.7.7";
    let clusters = [
        format!("{}, provider: {{local: {{network: netns}}}}}}", one("a", pinned)),
        format!("{}}}", one("b", "")),
        format!("{}, provider: {{local: {{network: netns}}}}}}", one("c", pinned)),
    ];
    let lab = Namespaced::new(&format!("quorate: 1\nclusters:\n{}\n", clusters.join("\n")));
    lab.apply().ok();
    let all = lab.quorate(&["status", "--output", "json"]).ok().json();
    let found: Vec<&str> = all.as_array().into_iter().flatten().filter_map(|c| c["verdict"].as_str()).collect();
    assert_eq!(found, ["healthy"; 3], "{all:#}");
    let address = |index: usize| all[index]["members"][0]["address"].as_str().expect("an address");
    assert_eq!((address(0), address(2)), ("10.7.7.7", "10.7.7.7"));
    assert!(address(1).starts_with("127."));
    assert_eq!(lab.namespaces().len(), 4);
    let refused = netns::partition(&lab.home().machines(), "b", &"etcd-1".into()).expect_err("there is nothing to cut");
    assert!(refused.to_string().contains("network: netns"), "{refused}");

    lab.quorate(&["destroy", "--yes", "--without-backup", "a"]).ok();
    assert_eq!(lab.namespaces().len(), 2);
    lab.etcdctl(&["put", "k", "v"]).ok();
    lab.destroy().ok();
    lab.assert_gone();
}

#[test]
fn apply_may_be_killed_while_it_makes_networks() {
    let lab = Namespaced::trio();
    let begun = Instant::now();
    lab.apply().ok();
    let half = begun.elapsed() / 2;
    lab.destroy().ok();
    for round in 0..12 {
        // Machines are made in the first tenths of a second.
        let run = Watched::new(lab.sandbox.spawn(&["apply", "--yes", "cluster.yaml"]));
        run.kill_after(half * round / 11);
        lab.remember();
        if round % 2 == 0 {
            lab.apply().ok();
            lab.assert_healthy();
            lab.destroy().ok();
        } else {
            lab.destroy();
        }
        lab.assert_gone();
    }
}

#[test]
fn destroy_and_down_may_be_killed_while_they_remove_networks() {
    let lab = Namespaced::trio();
    let destroy = ["destroy", "--yes", "--without-backup", "c"];
    for round in 0..6 {
        lab.apply().ok();
        lab.assert_healthy();
        let verb: &[&str] = if round % 2 == 0 { &destroy } else { &["down", "c"] };
        Watched::new(lab.sandbox.spawn(verb)).kill_after(Duration::from_millis(40 * round));
        // One that was killed in its last words has left nothing to do.
        let again = lab.quorate(verb);
        assert!(again.code == Some(0) || again.text().contains("no cluster"), "{again:?}");
        assert_eq!(lab.namespaces(), Vec::<String>::new());
        assert_eq!(lab.sandbox.processes(), []);
        if round % 2 == 1 {
            lab.quorate(&["start", "c"]).ok();
        }
    }
    lab.destroy();
    lab.assert_gone();
}

#[test]
fn a_stopped_controller_that_wakes_after_the_cluster_was_destroyed_leaves_no_network() {
    let lab = Namespaced::trio();
    let mut sleeper = Watched::new(lab.sandbox.spawn(&["apply", "--yes", "cluster.yaml"]));
    sleeper.until("create the machine of etcd-2 …");
    signal(sleeper.child.id(), "STOP");
    lab.remember();
    eventually("the cluster can be destroyed", 20, || match lab.destroy().code {
        Some(7) => false,
        code => code == Some(0),
    });
    signal(sleeper.child.id(), "CONT");
    sleeper.end().expect(7);
    lab.assert_gone();
}

#[test]
fn a_member_that_is_slow_is_slow_both_ways_and_whole() {
    let lab = Namespaced::trio();
    lab.apply().ok();
    let slow = follower(&lab.sandbox.status("c"));
    let mut environment = lab.sandbox.environment("c");
    let endpoint = member(&lab.sandbox.status("c"), &slow)["endpoint"].as_str().expect("an endpoint").to_owned();
    environment.insert(String::from("ETCDCTL_ENDPOINTS"), endpoint);
    let took = |arguments: &[&str]| {
        let begun = Instant::now();
        lab.etcdctl_with(&environment, arguments).ok();
        begun.elapsed()
    };
    netns::delay(&lab.home().machines(), "c", &slow.as_str().into(), 100).expect("it is slowed down");
    // Connecting, TLS, and the answer, at the least: each there and back.
    let slowly = took(&["get", "k"]);
    assert!(slowly > Duration::from_millis(600), "{slowly:?}");
    // Much larger than a packet, there and back, and to the other members too.
    let much = "x".repeat(100_000);
    took(&["put", "much", &much]);
    assert_eq!(lab.etcdctl_with(&environment, &["get", "--print-value-only", "much"]).ok().stdout, much + "\n");
    assert_eq!(lab.sandbox.status("c")["verdict"], "healthy");
    netns::delay(&lab.home().machines(), "c", &slow.as_str().into(), 20).expect("it is less slow");
    eventually("it is less slow", 20, || took(&["get", "k"]) < slowly);
    netns::heal(&lab.home().machines(), "c", &slow.as_str().into()).expect("it is healed");
    eventually("it is quick again", 20, || took(&["get", "k"]) < slowly / 2);
    lab.assert_healthy();
    netns::heal(&lab.home().machines(), "c", &slow.as_str().into()).expect("healing what is well is fine");

    netns::delay(&lab.home().machines(), "c", &slow.as_str().into(), 20).expect("it is slow again");
    lab.quorate(&["down", "c"]).ok();
    assert_eq!(lab.namespaces(), Vec::<String>::new());
    lab.quorate(&["start", "c"]).ok();
    lab.assert_healthy();
}

#[test]
fn the_network_of_a_cluster_is_for_life() {
    let lab = Namespaced::new(&spec(1, VERSION, "", "provider: {local: {network: netns}}"));
    lab.apply().ok();
    lab.sandbox.file("cluster.yaml", &spec(1, VERSION, "", ""));
    let refused = lab.apply().expect(3);
    assert!(refused.text().contains("network"), "{}", refused.text());
    assert_eq!(lab.sandbox.status("c")["verdict"], "healthy");
    lab.sandbox.file("cluster.yaml", &spec(1, VERSION, "", "provider: {local: {network: netns}}"));
    lab.apply().ok();
}

#[test]
fn without_iproute2_the_error_names_it() {
    let lab = Namespaced::trio();
    let mut command = lab.sandbox.command(&["apply", "--yes", "cluster.yaml"]);
    let run = Run::from(command.env("PATH", crate::common::lab(VERSION)).output().expect("quorate runs")).fails();
    assert!(run.text().contains("`network: netns` needs the command `ip`"), "{}", run.text());
    assert!(run.text().contains("iproute2"), "{}", run.text());
    assert!(!lab.sandbox.has_machines());
}

#[test]
fn a_cluster_on_ipv6_addresses_lives_as_any_other() {
    let members: Vec<String> = (1..=3).map(|n| format!("{{name: etcd-{n}, address: \"fd00:6:1::1{n}\"}}")).collect();
    let members = members.join(", ");
    let lab = Namespaced::new(&format!(
        "quorate: 1\nclusters:\n  - name: c\n    provider: {{local: {{network: netns}}}}\n    members: [{members}]\n    etcd: {{version: {VERSION}}}\n"
    ));
    lab.apply().ok();
    lab.assert_healthy();
    assert_eq!(member(&lab.sandbox.status("c"), "etcd-2")["endpoint"], "https://[fd00:6:1::12]:2379");
    let environment = lab.sandbox.environment("c");
    assert!(environment["ETCDCTL_ENDPOINTS"].contains("https://[fd00:6:1::11]:2379"), "{environment:?}");
    lab.etcdctl(&["put", "k", "v"]).ok();

    lab.quorate(&["replace", "c", "etcd-2", "--yes"]).ok();
    let status = lab.sandbox.status("c");
    assert_eq!(status["verdict"], "healthy", "{status:#}");
    assert_eq!(status["members"].as_array().map(Vec::len), Some(3), "the former machine has left: {status:#}");
    let listed = lab.etcdctl(&["member", "list"]).ok().stdout;
    assert!(listed.contains("https://[fd00:6:1::12]:2380") && listed.lines().count() == 3, "{listed}");
    assert_eq!(lab.etcdctl(&["get", "k", "--print-value-only"]).ok().stdout, "v\n");
    lab.destroy().ok();
    lab.assert_gone();
}
