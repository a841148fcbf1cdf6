//! A real kube-apiserver that keeps its objects in a quorate cluster. `cargo xtask lab kubernetes` builds it and runs these tests for
//! every version of Kubernetes.

mod events;
mod health;
mod kubeadm;
mod leader;
mod load;
mod rights;
mod server;
mod story;

use std::fs;
use std::path::PathBuf;

use crate::common::backups::make_key;
use crate::common::{Run, Sandbox, address, eventually, lab, signal};

const V35: &str = "3.5.30";
const V36: &str = "3.6.16";
const NAME: &str = "c";
/// Whom kube-apiserver logs in as.
const USER: &str = "kubernetes";
/// What kube-apiserver needs if etcd compacts its history itself.
const REGISTRY: &str = "{prefix: /registry/, access: readwrite}";
const OPERATOR: &str = "operator.key";
/// The last number of the API server's address, after those of the members.
const SERVER: u8 = 9;

/// The directory with Kubernetes' programs.
fn programs() -> PathBuf {
    std::env::var_os("QUORATE_LAB_KUBERNETES").expect("`cargo xtask lab kubernetes` names the programs").into()
}

/// What of the spec these tests change.
#[derive(Clone, Copy)]
struct Settings {
    version: &'static str,
    tls: &'static str,
    permissions: &'static str,
}

/// A cluster with fixed addresses, because kube-apiserver is given a list of endpoints when it starts.
struct Ground {
    sandbox: Sandbox,
    recipient: String,
    /// Further options of `quorate kubernetes`.
    options: &'static [&'static str],
}

impl Ground {
    fn up(settings: Settings) -> Self {
        let sandbox = Sandbox::new(settings.version);
        let recipient = make_key(&sandbox, OPERATOR);
        let ground = Ground { sandbox, recipient, options: &[] };
        ground.change(settings).ok();
        ground
    }

    fn change(&self, settings: Settings) -> Run {
        self.write_spec(settings);
        self.apply(&[])
    }

    fn write_spec(&self, Settings { version, tls, permissions }: Settings) {
        let members: Vec<String> = (1..=3).map(|n| format!("{{name: etcd-{n}, address: {}}}", address(n))).collect();
        let (members, binary, recipient) = (members.join(", "), lab(version).display().to_string(), &self.recipient);
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
      auto_compaction: {{mode: periodic, retention: 1m}}
    tls: {{{tls}}}
    auth:
      roles:
        - {{name: {USER}, permissions: [{permissions}]}}
      users:
        - {{name: {USER}, roles: [{USER}]}}
        - {{name: {USER}-health}}
    backup:
      to: {{directory: store}}
      recipients: [{recipient}]
"
            ),
        );
    }

    fn apply(&self, more: &[&str]) -> Run {
        self.sandbox.quorate(&[&["apply", "c.yaml", "--yes"], more].concat())
    }

    /// Writes what a control plane needs, and renews certificates where that is due.
    fn write_files(&self) {
        self.write_files_with(&[]);
    }

    fn write_files_with(&self, more: &[&str]) {
        let files = self.files().display().to_string();
        let words = ["kubernetes", NAME, "--out", &files, "--dir", &files];
        self.sandbox.quorate(&[&words, self.options, more].concat()).ok();
    }

    fn files(&self) -> PathBuf {
        self.sandbox.path().join("kubernetes")
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.files().join(file)).expect("a file of `quorate kubernetes`")
    }

    fn endpoints(&self) -> String {
        (1..=3).map(|n| format!("https://{}:2379", address(n))).collect::<Vec<_>>().join(",")
    }

    fn member_with(&self, role: &str) -> (String, String) {
        let status = self.sandbox.status(NAME);
        let members = status["members"].as_array().expect("members");
        let found = members.iter().find(|m| m["role"] == role).unwrap_or_else(|| panic!("no {role} in {status:#}"));
        let text = |field: &str| found[field].as_str().expect("text").to_owned();
        (text("member"), text("machine"))
    }

    /// Kills everything on a machine and deletes it.
    fn lose(&self, machine: &str) {
        let place = self.sandbox.home().join("machines").join(NAME).join(machine);
        let root = format!("{}/", place.display());
        let its = || self.sandbox.processes().into_iter().filter(|(_, line)| line.contains(&root)).map(|(pid, _)| pid);
        its().for_each(|pid| signal(pid, "KILL"));
        eventually("its processes have ended", 5, || {
            its().for_each(|pid| signal(pid, "KILL"));
            its().next().is_none()
        });
        fs::remove_dir_all(place).expect("its directory");
    }

    #[track_caller]
    fn assert_converged(&self) {
        assert_eq!(self.sandbox.status(NAME)["verdict"], "healthy");
        self.sandbox.assert_nothing_to_do("c.yaml");
    }
}
