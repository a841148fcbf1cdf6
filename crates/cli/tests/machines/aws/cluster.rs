//! A cluster whose machines are instances.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use super::cloud::{Place, STRICT, targets, variable};
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
    /// For how long a machine may be missing.
    replace_after: &'static str,
    /// Within so many seconds members are healthy after a run.
    patience: u64,
}

impl Cluster {
    pub fn new(name: &str, vpc: String, settings: String, replace_after: &'static str, patience: u64) -> Self {
        Cluster { sandbox: Sandbox::new(OLDEST), place: Place::new(name), vpc, settings, replace_after, patience }
    }

    /// Writes the spec.
    pub fn want(&self, members: usize, way: Way) {
        let balancer = if way == Way::LoadBalancer { "        load_balancer: {}\n" } else { "" };
        let Place { name, zone } = &self.place;
        let Cluster { vpc, settings, replace_after, .. } = self;
        let endpoint = variable(STRICT);
        let members: String = (1..=members).map(|n| format!("      - {{name: etcd-{n}}}\n")).collect();
        let spec = format!(
            "quorate: 1
clusters:
  - name: {name}
    replace_after: {replace_after}
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

    pub fn apply(&self, options: &[&str]) -> Run {
        self.sandbox.quorate(&[&["apply", "--yes", "cluster.yaml"], options].concat())
    }

    pub fn verdict(&self) -> Value {
        self.sandbox.status(&self.place.name)["verdict"].clone()
    }

    pub fn put(&self) {
        self.sandbox.etcdctl(OLDEST, &self.place.name, &["put", "kept", "as it was"]).ok();
    }

    #[track_caller]
    pub fn assert_healthy(&self) {
        let name = &self.place.name;
        eventually("all members are healthy", self.patience, || self.verdict() == "healthy");
        let read = self.sandbox.etcdctl(OLDEST, name, &["get", "kept", "--print-value-only"]).ok().stdout;
        assert_eq!(read.trim_end(), "as it was");
        self.sandbox.assert_nothing_to_do("cluster.yaml");
    }

    /// Clients are led to so many members, and nowhere else.
    #[track_caller]
    pub fn assert_leads_to(&self, way: Way, members: usize) {
        let Place { name, .. } = &self.place;
        assert_eq!(self.place.instances().len(), members, "of {name}");
        match way {
            Way::LoadBalancer => assert_eq!(targets(), self.place.addresses()),
            Way::Names => {
                let of_members = |record: &&String| record.starts_with("A etcd-");
                let found: BTreeSet<String> = self.place.records().iter().filter(of_members).cloned().collect();
                let wanted = (1..=members).map(|n| self.place.record_of(&format!("etcd-{n}"))).collect();
                assert_eq!(found, wanted);
            }
        }
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
