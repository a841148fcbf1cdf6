//! Clusters on system containers of the lab's Incus. Each test deletes its machines, also when it fails.

mod assets;
mod changes;
mod core;
mod hosts;
mod postgres;
mod reboots;
mod refusals;
mod remote;
mod settings;
mod static_pods;
mod upgrades;

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::common::{OLDEST, Run, Sandbox, eventually, lab};

/// Names that the lab gives to its pool, its network and the image of machines.
const POOL: &str = "quorate-lab";
const NETWORK: &str = "quorate-lab";
const IMAGE: &str = "quorate-machine";
/// The lab's host on its network.
const HOST: &str = "10.78.0.1";
const SOCKET: &str = "QUORATE_LAB_INCUS_SOCKET";

pub struct Containers {
    pub sandbox: Sandbox,
    pub name: &'static str,
    /// Of the `etcdctl` that is used.
    version: &'static str,
}

/// What differs between the specs of these tests.
#[derive(Clone, Default)]
pub struct Wanted {
    pub members: usize,
    /// How their addresses begin; a member's number follows. Without it they get free ones.
    pub addresses: Option<&'static str>,
    pub profiles: Vec<&'static str>,
    /// Further settings of Incus and of etcd, in YAML.
    pub incus: String,
    pub etcd: String,
    /// Further sections of the cluster, each a line in YAML.
    pub more: Vec<String>,
}

impl Containers {
    pub fn new(name: &'static str, version: &'static str) -> Self {
        assert!(std::env::var_os(SOCKET).is_some(), "there is no Incus here: run `cargo xtask lab incus`");
        Containers { sandbox: Sandbox::new(OLDEST), name, version }
    }

    /// With this version of etcd on this machine too, which restores backups.
    pub fn with(name: &'static str, version: &'static str) -> Self {
        let mut containers = Containers::new(name, version);
        containers.sandbox = Sandbox::new(version);
        containers
    }

    /// Writes the spec.
    pub fn want(&self, wanted: &Wanted) {
        self.want_of(IMAGE, wanted);
    }

    pub fn want_of(&self, image: &str, wanted: &Wanted) {
        let address = |n: usize| wanted.addresses.map(|prefix| format!(", address: {prefix}{n}")).unwrap_or_default();
        let member = |n: usize| format!("      - {{name: etcd-{n}{}}}\n", address(n));
        let members: String = (1..=wanted.members).map(member).collect();
        let more: String = wanted.more.iter().map(|line| format!("    {line}\n")).collect();
        let spec = format!(
            "quorate: 1
clusters:
  - name: {}
    replace_after: 10s
    provider:
      incus: {{image: {image}, network: {NETWORK}, pool: {POOL}, profiles: [{}]{}}}
    members:
{members}    etcd: {{{}}}
{more}",
            self.name,
            wanted.profiles.join(", "),
            wanted.incus,
            wanted.etcd
        );
        self.sandbox.file("cluster.yaml", &spec);
    }

    pub fn apply(&self) -> Run {
        self.sandbox.quorate(&["apply", "--yes", "cluster.yaml"])
    }

    pub fn etcdctl(&self, arguments: &[&str]) -> Run {
        let mut command = Command::new(lab(self.version).join("etcdctl"));
        command.env_clear().envs(self.sandbox.environment(self.name)).args(arguments);
        command.output().expect("etcdctl runs").into()
    }

    /// The instance of a machine.
    pub fn instance(&self, machine: &str) -> String {
        format!("{}-{}", self.name, machine.replace('.', "-i"))
    }

    /// As the host knows it.
    pub fn first_process(&self, machine: &str) -> u32 {
        let state = incus(&["query", &format!("/1.0/instances/{}/state", self.instance(machine))]).ok().json();
        let pid = state["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        pid.unwrap_or_else(|| panic!("no pid in {state:#}"))
    }

    pub fn instances(&self) -> BTreeSet<String> {
        let prefix = format!("{}-", self.name);
        let names = incus(&["list", "--format=csv", "--columns=n"]).ok().stdout;
        names.lines().filter(|name| name.starts_with(&prefix)).map(str::to_owned).collect()
    }

    /// The cluster is healthy, and the plan is empty.
    #[track_caller]
    pub fn assert_healthy(&self, members: usize) {
        eventually("a healthy cluster", 60, || self.sandbox.status(self.name)["verdict"] == "healthy");
        let listed = self.etcdctl(&["member", "list"]).ok().stdout;
        assert_eq!(listed.lines().count(), members, "{listed}");
        self.sandbox.assert_nothing_to_do("cluster.yaml");
    }

    #[track_caller]
    pub fn assert_reads(&self, key: &str, value: &str) {
        let read = self.etcdctl(&["get", key, "--print-value-only"]).ok().stdout;
        assert_eq!(read.trim_end(), value, "of {key}");
    }

    pub fn incarnation(&self, member: &str) -> u64 {
        let ledger: Value = self.sandbox.ledger(self.name);
        ledger["members"][member]["incarnation"].as_u64().unwrap_or_else(|| panic!("{member} in {ledger:#}"))
    }

    /// Destroys the cluster, and fails if anything of it is left.
    #[track_caller]
    pub fn destroy(&self) {
        self.sandbox.quorate(&["destroy", "--yes", "--without-backup", self.name]).ok();
        assert_eq!((self.instances(), volumes()), (BTreeSet::new(), BTreeSet::new()), "left behind");
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        for instance in self.instances() {
            if std::thread::panicking() {
                let journal = incus(&["exec", &instance, "--", "journalctl", "--no-pager", "--lines=25"]);
                eprintln!("--- {instance}\n{}", journal.stdout);
            }
            incus(&["delete", "--force", &instance]);
        }
        for volume in volumes() {
            incus(&["storage", "volume", "delete", POOL, &volume]);
        }
    }
}

pub fn incus(arguments: &[&str]) -> Run {
    Command::new("incus").args(arguments).output().expect("incus runs").into()
}

/// Runs a command of the shell on a machine.
pub fn exec(containers: &Containers, machine: &str, command: &str) -> Run {
    incus(&["exec", &containers.instance(machine), "--", "sh", "-c", command])
}

/// Data volumes in the pool. These tests run one at a time.
pub fn volumes() -> BTreeSet<String> {
    let listed = incus(&["storage", "volume", "list", POOL, "type=custom", "--format=csv", "--columns=n"]).ok().stdout;
    listed.lines().map(str::to_owned).collect()
}
