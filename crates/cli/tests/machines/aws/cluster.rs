//! A cluster whose machines are instances.

use std::process::Command;

use super::cloud::{Place, STRICT, variable};
use crate::common::{OLDEST, Run, Sandbox, eventually};

/// What leads clients to the members.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    LoadBalancer,
    Names,
}

pub struct Cluster {
    pub sandbox: Sandbox,
    pub place: Place,
    vpc: String,
    /// Further lines of the provider's settings.
    settings: String,
    /// Within so many seconds members are healthy after a run.
    patience: u64,
}

impl Cluster {
    pub fn new(name: &str, vpc: String, settings: String, patience: u64) -> Self {
        Cluster { sandbox: Sandbox::new(OLDEST), place: Place::new(name), vpc, settings, patience }
    }

    /// Writes the spec.
    pub fn want(&self, members: usize, way: Way) {
        let balancer = if way == Way::LoadBalancer { "        load_balancer: {}\n" } else { "" };
        let Place { name, zone } = &self.place;
        let (endpoint, vpc, settings) = (variable(STRICT), &self.vpc, &self.settings);
        let members: String = (1..=members).map(|n| format!("      - {{name: etcd-{n}}}\n")).collect();
        let spec = format!(
            "quorate: 1
clusters:
  - name: {name}
    replace_after: 5s
    provider:
      aws:
        region: eu-west-2
        endpoint: {endpoint}
        vpc: {vpc}
        instance_types: [m5.large]
        root_size: 8GiB
{settings}{balancer}        dns: {{zone: {zone}, name: orders}}
    members:
{members}    etcd: {{version: {OLDEST}}}
"
        );
        self.sandbox.file("cluster.yaml", &spec);
    }

    pub fn apply(&self) -> Run {
        self.sandbox.quorate(&["apply", "--yes", "cluster.yaml"])
    }

    pub fn put(&self) {
        self.sandbox.etcdctl(OLDEST, &self.place.name, &["put", "kept", "as it was"]).ok();
    }

    #[track_caller]
    pub fn assert_healthy(&self) {
        let name = &self.place.name;
        eventually("all members are healthy", self.patience, || self.sandbox.status(name)["verdict"] == "healthy");
        let read = self.sandbox.etcdctl(OLDEST, name, &["get", "kept", "--print-value-only"]).ok().stdout;
        assert_eq!(read.trim_end(), "as it was");
        self.sandbox.assert_nothing_to_do("cluster.yaml");
    }

    pub fn replace(&self, member: &str, options: &[&str]) {
        let words = [&["replace", "--yes"], options, &[&self.place.name, member]].concat();
        self.sandbox.quorate(&words).ok();
    }

    /// Nothing of it is left.
    #[track_caller]
    pub fn destroy(&self) {
        self.sandbox.quorate(&["destroy", "--yes", "--without-backup", &self.place.name]).ok();
        assert!(self.place.inventory().is_empty(), "left behind: {:#?}", self.place.inventory());
    }

    /// Clients that come to any member by this name find it in its certificate.
    pub fn assert_verified(&self, name: &str) {
        let ca = self.sandbox.environment(&self.place.name)["ETCDCTL_CACERT"].clone();
        for address in self.place.addresses() {
            let (url, resolved) = (format!("https://{name}:2379/"), format!("{name}:2379:{address}"));
            let mut curl = Command::new("curl");
            let run = curl.args(["-sS", "--max-time", "10", "--cacert", &ca, "--resolve", &resolved, &url]);
            let run: Run = run.output().expect("curl runs").into();
            // etcd ends the connection later, because no certificate of a client was shown.
            let refused =
                ["SSL certificate problem", "no alternative certificate", "does not match", "Could not resolve"];
            assert!(!refused.iter().any(|words| run.stderr.contains(words)), "{name} at {address}: {}", run.stderr);
        }
    }
}
