//! The real program and a scripted cloud, which has the paths of OpenStack: runs that are killed, and two regions.
//!
//! Nothing runs in the servers of that cloud, so no agent ever answers. `apply` comes as far as machines go: what killed runs have left
//! is swept up, security group, server group, volumes, ports and servers are made and marked, and then it waits. So it is killed until
//! all machines are there, and never while etcd starts; `destroy` is killed on its whole way.

use std::collections::BTreeSet;
use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use quorate_scripted_cloud::{FLAVOR, Halt, IMAGE, NETWORK, REGION, Server};
use serde_json::{Value, json};

use crate::common::instants::{Round, instant, rounds, seed};
use crate::common::{OLDEST, Run, Sandbox, lab};

const NAME: &str = "demo";
const MEMBERS: [&str; 3] = ["etcd-1", "etcd-2", "etcd-3"];
const SPEC: &str = "cluster.yaml";
const APPLY: [&str; 3] = ["apply", "--yes", SPEC];
const DESTROY: [&str; 4] = ["destroy", "--yes", "--without-backup", NAME];
/// Of a cluster whose machines are all there, by kind.
const ALL: [(&str, usize); 5] =
    [("servers", 3), ("ports", 3), ("volumes", 6), ("security-groups", 1), ("os-server-groups", 1)];
/// No run takes nearly as long to create or to delete everything.
const LONGEST_RUN: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(2);
/// What a plan says of a machine that is there and does not answer.
const FOUND: &str = "waiting for the agent of ";

/// A sandbox whose `clouds.yaml` names a cloud.
struct Ground {
    sandbox: Sandbox,
}

impl Ground {
    /// `clusters`: name, region, and members.
    fn new(cloud: &Server, clusters: &[(&str, &str, &[&str])]) -> Self {
        let sandbox = Sandbox::new(OLDEST);
        let auth = json!({
            "auth_url": format!("{}/identity/v3", cloud.url), "username": "u", "password": "p",
            "project_name": "bench", "user_domain_name": "Default", "project_domain_name": "Default",
        });
        sandbox.file("clouds.yaml", &json!({ "clouds": { "lab": { "auth": auth } } }).to_string());
        let etcd = lab(OLDEST).join("etcd").display().to_string();
        let mut spec = String::from("quorate: 1\nclusters:\n");
        for (name, region, members) in clusters {
            let members: Vec<String> = members.iter().map(|member| format!("{{name: {member}}}")).collect();
            spec.push_str(&format!(
                "  - name: {name}\n    provider:\n      openstack: {{cloud: lab, region: {region}, image: {IMAGE}, \
                 flavor: {FLAVOR}, network: {NETWORK}, root_size: 1GiB, data_size: 1GiB}}\n    members: [{}]\n    \
                 etcd: {{version: {OLDEST}, binary: {{path: {etcd:?}}}}}\n",
                members.join(", "),
            ));
        }
        sandbox.file(SPEC, &spec);
        Ground { sandbox }
    }

    /// Which knows no other cloud.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.command(arguments);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("OS_")) {
            command.env_remove(name);
        }
        command.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1");
        command
    }

    fn quorate(&self, arguments: &[&str]) -> Run {
        self.command(arguments).output().expect("quorate runs").into()
    }

    /// What it says goes into a file.
    fn spawn(&self, arguments: &[&str]) -> Child {
        let said = File::create(self.sandbox.path().join("said")).expect("a file in the sandbox");
        let mut command = self.command(arguments);
        command.stdout(said.try_clone().expect("a second handle")).stderr(said).stdin(Stdio::null());
        command.spawn().expect("quorate starts")
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.sandbox.path().join("said")).unwrap_or_default()
    }
}

/// As `kill -9` does.
fn kill(mut child: Child) {
    child.kill().and_then(|()| child.wait()).expect("it is a child of this process");
}

/// How a run ended that was to be killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// At the request that was chosen.
    Killed,
    /// It had done all that it can here, before that request.
    Done,
}

/// A cluster in a cloud of its own.
struct Cluster {
    ground: Ground,
    cloud: Server,
}

impl Cluster {
    fn new() -> Self {
        let cloud = Server::start().expect("a free port");
        Cluster { ground: Ground::new(&cloud, &[(NAME, REGION, &MEMBERS[..])]), cloud }
    }

    /// All machines are there, and nothing else is.
    fn is_made(&self) -> bool {
        let cloud = self.cloud.cloud();
        ALL.iter().all(|(kind, count)| cloud.all(kind).len() == *count)
            && cloud.servers_with(&[("quorate.state", "whole")]) == MEMBERS.len()
    }

    /// Runs until everything is done that can be, or until the request that stands still, and kills it there after a pause. Returns
    /// how many requests it made, too.
    fn run(&self, arguments: &[&str], pause: Duration) -> (End, usize) {
        let (begun, before) = (Instant::now(), self.cloud.requests());
        let mut child = self.ground.spawn(arguments);
        let end = loop {
            if self.cloud.is_halted() {
                sleep(pause);
                kill(child);
                break End::Killed;
            }
            if arguments == APPLY && self.is_made() {
                kill(child);
                break End::Done;
            }
            if let Some(status) = child.try_wait().expect("its status") {
                let said = self.ground.said();
                // The killed run before it may have removed everything.
                let is_done = status.success() || said.contains("no cluster");
                let created = self.cloud.cloud().created();
                assert!(arguments != APPLY && is_done, "{arguments:?} ended ({status}): {said}\n{created:#?}");
                break End::Done;
            }
            if begun.elapsed() > LONGEST_RUN {
                kill(child);
                let (said, created) = (self.ground.said(), self.cloud.cloud().created());
                panic!("{arguments:?} did not come to an end: {said}\n{created:#?}");
            }
            sleep(LOOK);
        };
        self.cloud.resume();
        (end, self.cloud.requests() - before)
    }

    /// Nothing disturbs it.
    fn finish(&self, arguments: &[&str]) -> usize {
        let (end, requests) = self.run(arguments, Duration::ZERO);
        assert_eq!(end, End::Done, "nothing was to stand still");
        requests
    }

    fn cluster_id(&self) -> String {
        self.ground.sandbox.ledger(NAME)["cluster_id"].as_str().expect("an id").to_owned()
    }

    /// Whenever a run is killed: whatever there is has a mark of this cluster, and no machine is there twice.
    #[track_caller]
    fn assert_marked(&self) {
        let created = self.cloud.cloud().created();
        if created.is_empty() {
            return;
        }
        let id = self.cluster_id();
        for (kind, all) in &created {
            for one in all {
                assert_eq!(cluster_of(kind, one), Some(id.as_str()), "the mark of one of {kind}: {one:#}");
            }
        }
        let mut machines = BTreeSet::new();
        for server in created.get("servers").into_iter().flatten() {
            let mark = &server["metadata"];
            if mark["quorate.state"] == "whole" {
                let machine = format!("{}.{}", mark["quorate.member"], mark["quorate.incarnation"]);
                assert!(machines.insert(machine), "two servers for a machine: {created:#?}");
            }
        }
    }

    /// When a run has not been disturbed: each member has a server, with a port and two volumes, and there is nothing else.
    #[track_caller]
    fn assert_made(&self) {
        self.assert_marked();
        let created = self.cloud.cloud().created();
        let count: Vec<(&str, usize)> = ALL.iter().map(|(kind, _)| (*kind, created[kind].len())).collect();
        assert_eq!(count, ALL, "{created:#?}");
        for member in MEMBERS {
            let of_member = |kind: &str| {
                let is_its = |one: &&Value| member_of(one) == Some(member);
                created[kind].iter().filter(is_its).collect::<Vec<_>>()
            };
            let [server] = of_member("servers")[..] else { panic!("no server of {member}, or two: {created:#?}") };
            let [port] = of_member("ports")[..] else { panic!("no port of {member}, or two: {created:#?}") };
            let mark = &server["metadata"];
            assert_eq!((&port["device_id"], &mark["quorate.port"]), (&server["id"], &port["id"]), "{server:#}");
            for (role, goes) in [("boot", true), ("data", false)] {
                let mut volumes = of_member("volumes");
                volumes.retain(|volume| volume["metadata"]["quorate.role"] == role);
                let [volume] = volumes[..] else { panic!("no {role} volume of {member}, or two: {created:#?}") };
                assert_eq!(volume["metadata"]["quorate.state"], "whole", "{volume:#}");
                assert_eq!(volume["attachments"], json!([{ "server_id": server["id"], "goes": goes }]));
                assert!(role == "boot" || mark["quorate.data"] == volume["id"], "{server:#}");
            }
        }
    }

    #[track_caller]
    fn assert_gone(&self) {
        let created = self.cloud.cloud().created();
        assert!(created.is_empty(), "left after destroy: {created:#?}");
        assert!(!self.ground.sandbox.home().join("clusters").join(NAME).exists(), "the ledger is still there");
    }
}

/// The cluster in the mark of something.
fn cluster_of<'a>(kind: &str, one: &'a Value) -> Option<&'a str> {
    match kind {
        "servers" | "volumes" => one["metadata"]["quorate.cluster_id"].as_str(),
        "ports" | "security-groups" => one["description"].as_str()?.strip_prefix("quorate ")?.split(' ').next(),
        "os-server-groups" => one["name"].as_str()?.strip_prefix("quorate-"),
        _ => None,
    }
}

/// The member in the mark of a server, a volume or a port.
fn member_of(one: &Value) -> Option<&str> {
    let words = || one["description"].as_str()?.split(' ').nth(3);
    one["metadata"]["quorate.member"].as_str().or_else(words)
}

/// Where a run is killed, out of so many requests.
struct Instants {
    seed: u64,
    next: u64,
}

impl Instants {
    fn draw(&mut self) -> f64 {
        self.next += 1;
        instant(self.seed, self.next)
    }

    /// The request, what becomes of it, and for how long others go on. A third of all runs go on for a while.
    fn choose(&mut self, requests: usize) -> (usize, Halt, Duration) {
        let left = (self.draw() * requests as f64) as usize;
        let how = if self.draw() < 0.5 { Halt::Before } else { Halt::After };
        let pause = if self.draw() < 0.67 { Duration::ZERO } else { Duration::from_millis(40).mul_f64(self.draw()) };
        (left, how, pause)
    }
}

/// Creates and destroys a cluster again and again, until so many runs were killed.
fn kill_runs(mut instants: Instants, kills: usize) {
    let cluster = Cluster::new();
    let creation = cluster.finish(&APPLY);
    cluster.assert_made();
    let deletion = cluster.finish(&DESTROY);
    cluster.assert_gone();
    let mut killed = 0;
    while killed < kills {
        for (arguments, requests, most) in [(&APPLY[..], creation, 9), (&DESTROY[..], deletion, 4)] {
            for _ in 0..most.min(kills - killed) {
                let (left, how, pause) = instants.choose(requests);
                let _round = Round(format!(
                    "{} was killed {how:?} request {left} of {requests} and {pause:?}, in round {} (seed {})",
                    arguments[0], instants.next, instants.seed
                ));
                cluster.cloud.halt_after(left, how);
                let (end, _) = cluster.run(arguments, pause);
                cluster.assert_marked();
                if end == End::Done {
                    break;
                }
                killed += 1;
            }
            let _round = Round(format!("nothing disturbed {} (seed {})", arguments[0], instants.seed));
            if arguments == APPLY {
                cluster.finish(arguments);
                cluster.assert_made();
            } else {
                let again = cluster.ground.quorate(arguments);
                // A run that had removed everything may have been killed in its last words, or have ended.
                assert!(again.code == Some(0) || again.text().contains("no cluster"), "{again:?}");
                cluster.assert_gone();
            }
        }
    }
}

#[test]
fn nothing_is_doubled_and_nothing_is_left_by_runs_that_are_killed_at_random_instants() {
    let (kills, seed) = (rounds(50), seed());
    std::thread::scope(|scope| {
        for half in 0..2 {
            let instants = Instants { seed, next: half * 1_000_000 };
            scope.spawn(move || kill_runs(instants, kills / 2));
        }
    });
}

#[test]
fn two_clusters_of_one_spec_are_each_in_their_region() {
    let [north, south] = ["north", "south"].map(|region| Server::start_in(region).expect("a free port"));
    north.cloud().add_neighbour("south", &south.url);
    let clusters = [("first", "north", &MEMBERS[..1]), ("second", "south", &MEMBERS[..1])];
    let ground = Ground::new(&north, &clusters);
    // No agent answers, so `apply` would not come to the second.
    for (name, cloud) in [("first", &north), ("second", &south)] {
        let begun = Instant::now();
        let child = ground.spawn(&["apply", "--yes", SPEC, "--cluster", name]);
        let whole = [("quorate.cluster", name), ("quorate.state", "whole")];
        while cloud.cloud().servers_with(&whole) == 0 && begun.elapsed() < LONGEST_RUN {
            sleep(LOOK);
        }
        kill(child);
        assert_eq!(cloud.cloud().servers_with(&whole), 1, "{}", ground.said());
    }
    let made = || [&north, &south].map(|cloud| cloud.cloud().all("servers").len());
    assert_eq!(made(), [1, 1], "nothing of one is in the region of the other");
    for cloud in [&north, &south] {
        cloud.cloud().take_calls();
    }
    let plan = ground.quorate(&["plan", SPEC]).ok();
    assert_eq!(plan.stdout.matches(FOUND).count(), 2, "{}", plan.text());
    for (cloud, logins) in [(&north, 2), (&south, 0)] {
        let calls = cloud.cloud().take_calls();
        // Regions share the identity service, and each has a session.
        assert_eq!((calls.logins(), calls.all() > logins, calls.changes()), (logins, true, 0), "{calls}");
    }
    ground.quorate(&["destroy", "--yes", "--without-backup", SPEC]).ok();
    for cloud in [&north, &south] {
        assert!(cloud.cloud().created().is_empty(), "{:#?}", cloud.cloud().created());
    }
}
