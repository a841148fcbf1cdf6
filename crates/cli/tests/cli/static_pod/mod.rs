//! etcd as static pods of real kubelets, one with a separate containerd for each member. `cargo xtask lab static-pod` builds the kubelet
//! and runs these tests in separate namespaces.

mod kubelet;
mod story;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use kubelet::Kubelet;

use crate::common::backups::make_key;
use crate::common::kubelet::MANIFESTS;
use crate::common::{Run, Sandbox, arguments, lab, signal, spec};

const V35: &str = "3.5.30";
const V36: &str = "3.6.16";
/// As [`spec`] names it.
const NAME: &str = "c";
const OPERATOR: &str = "operator.key";
const MEMBERS: [&str; 3] = ["etcd-1", "etcd-2", "etcd-3"];

/// What of the spec these tests change.
#[derive(Clone, Copy)]
struct Settings {
    version: &'static str,
    run_as: &'static str,
    quota: &'static str,
    layout: &'static str,
}

struct Ground {
    /// First, because they end before their directories are deleted.
    kubelets: RefCell<BTreeMap<String, Kubelet>>,
    sandbox: Sandbox,
    recipient: String,
}

impl Ground {
    fn new() -> Self {
        let sandbox = Sandbox::new(V35);
        let recipient = make_key(&sandbox, OPERATOR);
        Ground { sandbox, recipient, kubelets: RefCell::default() }
    }

    fn write_spec(&self, Settings { version, run_as, quota, layout }: Settings) {
        let (binary, recipient) = (lab(version).display().to_string(), &self.recipient);
        let image = format!("lab.invalid/etcd:{version}-0");
        let etcd =
            format!("binary: {{path: {binary}}}, quota: {quota}, run_as: {run_as}, static_pod: {{image: \"{image}\"}}");
        let backup = format!("backup: {{to: {{directory: store}}, recipients: [{recipient}]}}");
        let text = spec(MEMBERS.len(), version, &etcd, &format!("tls: {{layout: {layout}}}\n{backup}"));
        self.sandbox.file("c.yaml", &text);
    }

    /// Applies, and says how long that took.
    fn change(&self, what: &str, settings: Settings) -> Run {
        self.write_spec(settings);
        self.timed(what, &["apply", "--yes", "c.yaml"])
    }

    /// A machine that is new gets a kubelet, as its image would have one; the run continues then.
    fn timed(&self, what: &str, command: &[&str]) -> Run {
        let began = Instant::now();
        loop {
            let run = self.sandbox.quorate(command);
            if run.code == Some(3) && self.install_kubelets() > 0 {
                continue;
            }
            println!("{what}: {:.1} s", began.elapsed().as_secs_f64());
            return run;
        }
    }

    /// Says how many machines had none.
    fn install_kubelets(&self) -> usize {
        let mut kubelets = self.kubelets.borrow_mut();
        let without = |machine: &String| !kubelets.contains_key(machine);
        let new: Vec<String> = self.machines().into_iter().filter(without).collect();
        for machine in &new {
            let root = self.machine(machine);
            kubelets.insert(machine.clone(), Kubelet::install(&self.sandbox, machine, &root));
        }
        new.len()
    }

    fn machines(&self) -> Vec<String> {
        let entries = fs::read_dir(self.sandbox.home().join("machines").join(NAME)).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let names: BTreeSet<String> = names.filter(|name| !name.starts_with('.')).collect();
        names.into_iter().collect()
    }

    /// The root of a machine.
    fn machine(&self, machine: &str) -> PathBuf {
        self.sandbox.home().join("machines").join(NAME).join(machine).join("root")
    }

    fn manifest(&self, machine: &str) -> PathBuf {
        self.machine(machine).join(MANIFESTS).join("etcd.yaml")
    }

    /// Ends everything that runs on a machine, and what its memory holds is lost.
    fn cut_power(&self, machine: &str) {
        let root = self.machine(machine);
        let below = format!("{}", root.display());
        let agents = self.sandbox.processes().into_iter().filter(|(_, line)| line.contains(&below));
        agents.for_each(|(pid, _)| signal(pid, "KILL"));
        self.kubelets.borrow_mut().get_mut(machine).expect("a kubelet").cut_power();
        fs::remove_dir_all(root.join("run")).expect("what is in memory");
        assert_eq!(self.etcd(machine), None, "without power nothing runs");
    }

    /// All but the agent comes up. Under the provider `local` agents start with the next command.
    fn boot(&self, machine: &str) {
        self.kubelets.borrow_mut().get_mut(machine).expect("a kubelet").boot(machine);
    }

    /// The process of a machine's etcd, no matter what runs it.
    fn etcd(&self, machine: &str) -> Option<u32> {
        let argument = format!("--data-dir={}", self.machine(machine).join("var/lib/etcd").display());
        pids().find(|pid| {
            let words = arguments(*pid);
            let has = |wanted: &str| words.iter().any(|word| word.starts_with(wanted));
            has(&argument) && has("--listen-peer-urls=") && !is_dead(*pid)
        })
    }

    fn variable(pid: u32, name: &str) -> Option<String> {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let text = String::from_utf8_lossy(&environment).into_owned();
        text.split('\0').find_map(|entry| Some(entry.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
    }

    fn is_pod(pid: u32) -> bool {
        Self::variable(pid, "QUORATE_POD").is_some()
    }

    fn etcdctl(&self, arguments: &[&str]) -> Run {
        self.sandbox.etcdctl(V36, NAME, arguments)
    }

    fn member(&self, member: &str) -> serde_json::Value {
        let status = self.sandbox.status(NAME);
        let members = status["members"].as_array().expect("members");
        members.iter().find(|m| m["member"] == member).unwrap_or_else(|| panic!("no {member} in {status:#}")).clone()
    }

    #[track_caller]
    fn assert_all(&self, pods: bool) {
        for machine in self.machines() {
            let pid = self.etcd(&machine).unwrap_or_else(|| panic!("{machine} runs no etcd"));
            assert_eq!(Self::is_pod(pid), pods, "{machine}");
        }
    }

    #[track_caller]
    fn assert_converged(&self) {
        assert_eq!(self.sandbox.status(NAME)["verdict"], "healthy");
        self.sandbox.assert_nothing_to_do("c.yaml");
    }
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn is_dead(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}
