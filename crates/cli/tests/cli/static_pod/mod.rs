//! etcd as static pods of real kubelets, one with its own containerd for each member. `cargo xtask lab static-pod` builds the kubelet and
//! runs these tests in namespaces of their own.

mod kubelet;
mod story;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use kubelet::{Kubelet, MANIFESTS};

use crate::common::backups::make_key;
use crate::common::{Run, Sandbox, lab};

const V35: &str = "3.5.30";
const V36: &str = "3.6.16";
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
    sandbox: Sandbox,
    recipient: String,
    kubelets: RefCell<BTreeMap<String, Kubelet>>,
}

impl Ground {
    fn new() -> Self {
        let sandbox = Sandbox::new(V35);
        let recipient = make_key(&sandbox, OPERATOR);
        Ground { sandbox, recipient, kubelets: RefCell::default() }
    }

    fn write_spec(&self, Settings { version, run_as, quota, layout }: Settings) {
        let members = MEMBERS.map(|name| format!("{{name: {name}}}")).join(", ");
        let (binary, recipient) = (lab(version).display().to_string(), &self.recipient);
        self.sandbox.file(
            "c.yaml",
            &format!(
                "quorate: 1
clusters:
  - name: {NAME}
    members: [{members}]
    etcd:
      version: {version}
      binary: {{path: {binary}}}
      quota: {quota}
      run_as: {run_as}
      static_pod: {{image: \"lab.invalid/etcd:{version}-0\"}}
    tls: {{layout: {layout}}}
    backup:
      to: {{directory: store}}
      recipients: [{recipient}]
"
            ),
        );
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
        names.filter(|name| !name.starts_with('.')).collect()
    }

    /// The root of a machine.
    fn machine(&self, machine: &str) -> PathBuf {
        self.sandbox.home().join("machines").join(NAME).join(machine).join("root")
    }

    fn manifest(&self, machine: &str) -> PathBuf {
        self.machine(machine).join(MANIFESTS).join("etcd.yaml")
    }

    /// The process of a machine's etcd, no matter what runs it.
    fn etcd(&self, machine: &str) -> Option<u32> {
        let argument = format!("--data-dir={}", self.machine(machine).join("var/lib/etcd").display());
        let pids = fs::read_dir("/proc").expect("/proc").flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
        let mut pids = pids.filter(|pid: &u32| {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let has = |wanted: &str| arguments.split(|b| *b == 0).any(|one| one.starts_with(wanted.as_bytes()));
            has(&argument) && has("--listen-peer-urls=") && !is_dead(*pid)
        });
        pids.next()
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
        let plan = self.sandbox.quorate(&["plan", "c.yaml", "--output", "json"]).ok().json();
        assert_eq!(plan["summary"]["steps"], 0, "{plan:#}");
    }
}

fn is_dead(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}
