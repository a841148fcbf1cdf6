//! A cluster on several hosts of an Incus cluster: the placement of its members, and what happens while a host does not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use super::{IMAGE, POOL};
use crate::common::{OLDEST, Run, Sandbox, eventually};
use crate::ground::chapter;

const NAME: &str = "lab-hosts";
const DIRECTORY: &str = "QUORATE_LAB_INCUS_HOSTS";
const MEMBERS: [&str; 3] = ["etcd-1", "etcd-2", "etcd-3"];

struct Hosts {
    sandbox: Sandbox,
    directory: String,
}

impl Hosts {
    fn new() -> Self {
        let directory =
            std::env::var(DIRECTORY).expect("there is no cluster of Incus here: run `cargo xtask lab incus`");
        Hosts { sandbox: Sandbox::new(OLDEST), directory }
    }

    /// Writes the spec. `targets` are of members that the spec puts on a host.
    fn want(&self, replace_after: &str, targets: &[(&str, &str)]) {
        let member = |(n, name): (usize, &&str)| {
            let target = targets.iter().find(|(member, _)| member == name);
            let section = target.map_or_else(String::new, |(_, host)| format!(", incus: {{target: {host}}}"));
            format!("      - {{name: {name}, address: 10.79.0.{}{section}}}\n", 11 + n)
        };
        let members: String = MEMBERS.iter().enumerate().map(member).collect();
        let spec = format!(
            "quorate: 1
clusters:
  - name: {NAME}
    replace_after: {replace_after}
    provider:
      incus: {{image: {IMAGE}, network: lan, prefix: 24, pool: {POOL}, profiles: [], data_size: 1GiB, boot_patience: 30s}}
    members:
{members}    etcd: {{version: {OLDEST}}}
"
        );
        self.sandbox.file("cluster.yaml", &spec);
    }

    fn socket(&self) -> String {
        format!("{}/h1/unix.socket", self.directory)
    }

    fn quorate(&self, words: &[&str]) -> Run {
        self.sandbox.command(words).env("INCUS_SOCKET", self.socket()).output().expect("quorate runs").into()
    }

    fn apply(&self, more: &[&str]) -> Run {
        self.quorate(&[&["apply", "--yes", "cluster.yaml"], more].concat())
    }

    fn etcdctl(&self, words: &[&str]) -> Run {
        let environment = Sandbox::exported(&self.quorate(&["env", NAME]).ok().stdout);
        self.sandbox.etcdctl_with(OLDEST, &environment, words)
    }

    fn incus(&self, words: &[&str]) -> Run {
        Command::new("incus").args(words).env("INCUS_SOCKET", self.socket()).output().expect("incus runs").into()
    }

    /// The host of each instance.
    fn places(&self) -> BTreeMap<String, String> {
        let listed = self.incus(&["list", "--format=csv", "--columns=nL"]).ok().stdout;
        let pairs = listed.lines().filter_map(|line| line.split_once(','));
        pairs.map(|(name, host)| (name.to_owned(), host.to_owned())).collect()
    }

    fn volumes(&self) -> BTreeSet<String> {
        let words = ["storage", "volume", "list", POOL, "type=custom", "--format=csv", "--columns=nL"];
        self.incus(&words).ok().stdout.lines().map(str::to_owned).collect()
    }

    #[track_caller]
    fn assert_healthy(&self) {
        let status = || self.quorate(&["status", NAME, "--output", "json"]).json();
        eventually("a healthy cluster", 60, || status()["verdict"] == "healthy");
        let plan = self.quorate(&["plan", "cluster.yaml", "--output", "json"]).ok().json();
        assert_eq!(plan["summary"]["steps"], 0, "{plan:#}");
        let read = self.etcdctl(&["get", "kept", "--print-value-only"]).ok().stdout;
        assert!(read.is_empty() || read.trim_end() == "as it was", "{read}");
    }

    #[track_caller]
    fn assert_spread(&self) {
        let places = self.places();
        let hosts: BTreeSet<&String> = places.values().collect();
        assert_eq!((places.len(), hosts.len()), (3, 3), "{places:?}");
    }

    /// Cuts a host off, or connects it again, and waits until Incus has noticed.
    fn connect(&self, host: &str, how: &str) {
        let port = format!("port-{host}");
        assert!(Command::new("ip").args(["link", "set", &port, how]).status().expect("ip runs").success());
        let wanted = if how == "up" { "ONLINE" } else { "OFFLINE" };
        eventually(&format!("{host} is {wanted}"), 90, || {
            let listed = self.incus(&["cluster", "list", "--format=csv"]).stdout;
            listed.lines().any(|line| line.starts_with(&format!("{host},")) && line.contains(&format!(",{wanted},")))
        });
    }

    /// The instance on a host.
    fn instance_on(&self, host: &str) -> String {
        let places = self.places();
        places.iter().find(|(_, at)| *at == host).unwrap_or_else(|| panic!("{places:?}")).0.clone()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in ["h1", "h2", "h3"] {
            let _ = Command::new("ip").args(["link", "set", &format!("port-{host}"), "up"]).status();
        }
        for instance in self.places().keys() {
            self.incus(&["delete", "--force", instance]);
        }
    }
}

#[test]
#[ignore = "needs a cluster of Incus: `cargo xtask lab incus` runs it"]
fn members_are_on_hosts_of_an_incus_cluster_and_one_of_these_is_cut_off() {
    let hosts = Hosts::new();
    hosts.want("1h", &[]);
    chapter("three members on three hosts", || hosts.apply(&[]).ok());
    hosts.assert_healthy();
    hosts.assert_spread();
    hosts.etcdctl(&["put", "kept", "as it was"]).ok();
    chapter("one is replaced, and stays on its host with its data", || {
        let (place, volumes) = (hosts.places()["lab-hosts-etcd-2"].clone(), hosts.volumes());
        hosts.quorate(&["replace", "--yes", NAME, "etcd-2"]).ok();
        hosts.assert_healthy();
        hosts.assert_spread();
        assert_eq!((&hosts.places()["lab-hosts-etcd-2-i2"], hosts.volumes()), (&place, volumes));
    });
    // Not the one whose server is asked.
    let lost = hosts.instance_on("h3");
    chapter("a host is cut off: its machine is not treated as gone, and nothing is made in its place", || {
        let before = hosts.places();
        hosts.connect("h3", "down");
        let run = hosts.apply(&[]).fails();
        assert!(run.text().contains("is at h3, which cannot be reached"), "{}", run.text());
        assert_eq!(hosts.places(), before, "{}", run.text());
    });
    chapter("it comes back, and everything is as it was", || {
        hosts.connect("h3", "up");
        hosts.apply(&[]).ok();
        hosts.assert_healthy();
        hosts.assert_spread();
        assert_eq!(hosts.instance_on("h3"), lost);
    });
    chapter("it is cut off again, and the operator says that it is dead: another host gets the member", || {
        hosts.connect("h3", "down");
        hosts.apply(&["--now"]).ok();
        let status = hosts.quorate(&["status", NAME, "--output", "json"]).ok().json();
        assert_eq!(status["verdict"], "healthy", "{status:#}");
        assert_eq!(hosts.places().values().filter(|host| *host != "h3").count(), 3, "{:?}", hosts.places());
    });
    chapter("it comes back, and the machine that counted as dead is deleted with its data", || {
        hosts.connect("h3", "up");
        hosts.apply(&[]).ok();
        hosts.assert_healthy();
        assert_eq!((hosts.places().len(), hosts.volumes().len()), (3, 3), "{:?}", hosts.places());
        assert!(!hosts.places().contains_key(&lost), "{:?}", hosts.places());
    });
    chapter("a member is put on the host that the spec names", || {
        let member = hosts.places().into_iter().find(|(_, host)| host != "h3").expect("one elsewhere").0;
        let member = MEMBERS.into_iter().find(|name| member.contains(name)).expect("a member");
        hosts.want("1h", &[(member, "h3")]);
        hosts.apply(&[]).ok();
        hosts.assert_healthy();
        assert!(hosts.instance_on("h3").contains(member), "{:?}", hosts.places());
        hosts.want("1h", &[(member, "h9")]);
        let refused = hosts.apply(&[]).fails().text();
        assert!(refused.contains("Incus has no host in its cluster `h9`; it has h1, h2, h3"), "{refused}");
        hosts.want("1h", &[(member, "h3")]);
        hosts.apply(&[]).ok();
    });
    chapter("everything is destroyed, and nothing is left", || {
        hosts.quorate(&["destroy", "--yes", "--without-backup", NAME]).ok();
        assert_eq!((hosts.places(), hosts.volumes()), (BTreeMap::new(), BTreeSet::new()));
    });
}
