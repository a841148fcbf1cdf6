//! Clusters on instances that are whole systems, configured from their user data by real tools: cloud-init as on Debian, Ignition's own
//! binary as on Flatcar with its read-only `/usr`, and quorate's agent alone. Each reads the metadata service. None has a data volume, so a
//! machine that is lost takes its data along.

use std::process::Command;

use serde_json::json;

use super::cloud::{ec2, text, vpc};
use super::cluster::{Cluster, Way};
use crate::common::eventually;
use crate::ground::{chapter, incarnation};

/// Where instances get the agent's program.
const PROGRAM: &str = "https://10.80.0.1/quorate";

/// An image that the lab has a system for.
fn image(seed: &str) -> String {
    let image = json!({ "Name": format!("lab-{seed}"), "Architecture": "x86_64", "RootDeviceName": "/dev/sda1" });
    text(&ec2("register_image", image)["ImageId"])
}

fn program() -> String {
    let found = Command::new("sha256sum").arg(env!("CARGO_BIN_EXE_quorate")).output().expect("sha256sum runs");
    let sum = String::from_utf8(found.stdout).expect("text").split(' ').next().unwrap_or_default().to_owned();
    format!("        program: {{url: \"{PROGRAM}\", sha256: {sum}}}\n")
}

/// A cluster whose instances are configured in this way.
struct Systems {
    seed: &'static str,
    way: Way,
    cluster: Cluster,
}

impl Systems {
    fn new(seed: &'static str, program: &str, way: Way) -> Self {
        let kind = seed.replace('_', "-");
        let settings = format!(
            "        image: {{id: {}}}\n        seed: {seed}\n{program}        admin: {{user: ada, ssh_keys: \
             [\"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ ada\"]}}\n",
            image(&kind)
        );
        // moto chooses addresses at random, also one that is in use. In a small subnet it would often do so.
        let vpc = vpc(&[('a', "10.80.128.0/17")]);
        // Systems are slow to boot on a busy host, and one that boots is not dead.
        Systems { seed, way, cluster: Cluster::new(&format!("lab-{kind}"), vpc, settings, "10m", 240) }
    }

    fn chapter(&self, name: &str, tell: impl FnOnce()) {
        chapter(&format!("{}: {name}", self.seed), tell);
    }

    /// From nothing to a cluster that serves.
    fn begin(&self, members: usize) {
        self.cluster.want(members, self.way);
        self.chapter(&format!("{members} instances, from apply to healthy"), || {
            self.cluster.apply(&[]).ok();
        });
        self.cluster.put();
        self.assert_healthy(members);
    }

    /// All of them are, the value is there, and clients are led to them.
    fn assert_healthy(&self, members: usize) {
        self.cluster.assert_healthy();
        self.cluster.assert_leads_to(self.way, members);
    }

    /// The machine stays: another one would be without the data.
    fn stopped_by_aws(&self, member: &str) {
        self.chapter(&format!("AWS stops the instance of {member}, and apply starts it"), || {
            let (id, _) = self.cluster.place.befall("stop_instances", member);
            eventually("it is down", 60, || self.cluster.verdict() != "healthy");
            // A run is blocked after 10 s without an agent, and cloud-init can take longer. The next run continues.
            self.cluster.apply(&[]);
            eventually("it is back", 240, || self.cluster.verdict() == "healthy");
            self.cluster.apply(&[]).ok();
            self.cluster.assert_healthy();
            assert_eq!(self.cluster.place.of(member).0, id, "the same instance");
        });
    }

    fn terminated(&self, member: &str, members: usize) {
        self.chapter(&format!("the instance of {member} is terminated behind our back, and another one joins"), || {
            self.cluster.place.befall("terminate_instances", member);
            self.cluster.apply(&["--now"]).ok();
            self.assert_healthy(members);
            assert_eq!(incarnation(&self.cluster.sandbox.ledger(&self.cluster.place.name), member), 2);
        });
    }

    fn replaced(&self, member: &str, members: usize) {
        self.chapter(&format!("the machine of {member} is replaced"), || {
            let before = self.cluster.place.of(member).0;
            self.cluster.replace(member, &[]);
            self.assert_healthy(members);
            assert_ne!(self.cluster.place.of(member).0, before);
        });
    }

    fn scaled(&self, members: usize) {
        self.chapter(&format!("{members} members are wanted"), || {
            self.cluster.want(members, self.way);
            self.cluster.apply(&[]).ok();
            self.assert_healthy(members);
        });
    }

    fn destroyed(&self) {
        self.chapter("everything is destroyed", || self.cluster.destroy());
    }
}

#[test]
#[ignore = "needs moto's server: `cargo xtask lab aws` runs it"]
fn cloud_init_makes_members_of_their_user_data() {
    let systems = Systems::new("cloud_init", &program(), Way::LoadBalancer);
    systems.begin(3);
    systems.stopped_by_aws("etcd-1");
    systems.terminated("etcd-2", 3);
    systems.replaced("etcd-3", 3);
    systems.destroyed();
}

#[test]
#[ignore = "needs moto's server: `cargo xtask lab aws` runs it"]
fn ignition_makes_members_of_their_user_data() {
    let systems = Systems::new("ignition", &program(), Way::Names);
    systems.begin(3);
    systems.stopped_by_aws("etcd-1");
    systems.scaled(5);
    systems.replaced("etcd-4", 5);
    systems.scaled(3);
    systems.destroyed();
}

#[test]
#[ignore = "needs moto's server: `cargo xtask lab aws` runs it"]
fn the_agent_alone_makes_members_of_their_user_data() {
    let systems = Systems::new("quorate", "", Way::LoadBalancer);
    systems.begin(5);
    systems.stopped_by_aws("etcd-1");
    systems.terminated("etcd-2", 5);
    systems.replaced("etcd-3", 5);
    systems.destroyed();
}
