//! Settings that other tests do not use: a project with its own images and profiles, an image of a remote, processors, the size of the
//! root disk, and fixed addresses of both families.

use std::process::Command;

use serde_json::Value;

use super::{Containers, IMAGE, NETWORK, POOL, incus};
use crate::common::{OLDEST, Run, eventually};
use crate::ground::{MEMBERS, chapter};

const NAME: &str = "lab-far6";
const PROJECT: &str = "lab-project";
const PROFILE: &str = "lab-profile";
/// Of the profile; the agent does not see it.
const SETTING: &str = "user.lab";
/// A server of images, which is this one.
const STORE: &str = "store";
const ADDRESS: &str = "10.78.0.1:8443";

fn address(number: usize) -> String {
    format!("fd42:78::6:{number}")
}

fn second_address(number: usize) -> String {
    format!("10.78.60.{number}")
}

fn spec(cpus: usize, image: &str) -> String {
    let member = |number: usize| {
        let (address, second) = (address(number), second_address(number));
        format!("      - {{name: etcd-{number}, address: \"{address}\", incus: {{more_addresses: [{second}]}}}}\n")
    };
    let members: String = (1..=MEMBERS.len()).map(member).collect();
    format!(
        "quorate: 1
clusters:
  - name: {NAME}
    provider:
      incus: {{image: \"{image}\", project: {PROJECT}, profiles: [{PROFILE}], network: {NETWORK}, pool: {POOL}, cpus: {cpus},
              root_size: 2GiB}}
    members:
{members}    etcd: {{version: {OLDEST}}}
"
    )
}

/// The project and the profile, and a directory of the `incus` command that knows the server of images. All of it is deleted in the end.
struct Ground<'a> {
    containers: &'a Containers,
}

impl<'a> Ground<'a> {
    fn new(containers: &'a Containers) -> Self {
        incus(&["config", "set", "core.https_address", ADDRESS]).ok();
        incus(&["project", "create", PROJECT]).ok();
        let ground = Ground { containers };
        in_project(&["profile", "create", PROFILE]).ok();
        in_project(&["profile", "set", PROFILE, SETTING, "yes"]).ok();
        let add = ["remote", "add", STORE, &format!("https://{ADDRESS}"), "--accept-certificate", "--public"];
        ground.with_config(Command::new("incus").args(add)).ok();
        ground
    }

    fn with_config(&self, command: &mut Command) -> Run {
        command.env("INCUS_CONF", self.containers.sandbox.path().join("incus")).output().expect("it runs").into()
    }

    fn quorate(&self, words: &[&str]) -> Run {
        self.with_config(&mut self.containers.sandbox.command(words))
    }

    fn apply(&self) -> Run {
        self.quorate(&["apply", "--yes", "cluster.yaml"])
    }

    fn etcdctl(&self, words: &[&str]) -> Run {
        self.containers.etcdctl(words)
    }
}

impl Drop for Ground<'_> {
    fn drop(&mut self) {
        for instance in listed(&["list", "--format=csv", "--columns=n"]) {
            in_project(&["delete", "--force", &instance]);
        }
        for image in listed(&["image", "list", "--format=csv", "--columns=f"]) {
            in_project(&["image", "delete", &image]);
        }
        in_project(&["profile", "delete", PROFILE]);
        incus(&["project", "delete", PROJECT]);
        incus(&["network", "unset", NETWORK, "ipv6.dhcp.stateful"]);
        incus(&["config", "unset", "core.https_address"]);
    }
}

fn in_project(words: &[&str]) -> Run {
    incus(&[&["--project", PROJECT], words].concat())
}

fn listed(words: &[&str]) -> Vec<String> {
    in_project(words).stdout.lines().map(str::to_owned).collect()
}

/// An instance with what its profiles add.
fn shown(instance: &str) -> Value {
    incus(&["query", &format!("/1.0/instances/{instance}?project={PROJECT}")]).ok().json()
}

fn make_public(image: &str) {
    let target = incus(&["query", &format!("/1.0/images/aliases/{image}")]).ok().json()["target"].clone();
    let path = format!("/1.0/images/{}", target.as_str().expect("a fingerprint"));
    incus(&["query", "--request", "PATCH", "--data", "{\"public\": true}", &path]).ok();
}

/// Every address of a machine, as it has them itself.
fn addresses(instance: &str) -> String {
    in_project(&["exec", instance, "--", "ip", "-brief", "address", "show", "dev", "eth0"]).ok().stdout
}

#[test]
#[ignore = "needs Incus: `cargo xtask lab incus` runs it"]
fn a_cluster_in_a_project_with_an_image_of_a_remote_and_addresses_of_both_families() {
    let containers = Containers::new(NAME, OLDEST);
    let ground = Ground::new(&containers);
    let image = format!("{STORE}:{IMAGE}");
    containers.sandbox.file("cluster.yaml", &spec(1, &image));
    chapter("an image that the remote does not give away", || {
        let refused = ground.apply().fails().text();
        assert!(refused.contains("Incus refused to create"), "{refused}");
        assert_eq!(listed(&["list", "--format=csv", "--columns=n"]), [""; 0], "left behind");
    });
    make_public(IMAGE);
    chapter("three containers from an image that the server fetches, reached by IPv6", || ground.apply().ok());
    let healthy = || {
        eventually("a healthy cluster", 60, || containers.sandbox.status(NAME)["verdict"] == "healthy");
        containers.sandbox.assert_nothing_to_do("cluster.yaml");
    };
    healthy();
    ground.etcdctl(&["put", "kept", "as it was"]).ok();
    assert!(containers.sandbox.environment(NAME)["ETCDCTL_ENDPOINTS"].contains(&format!("[{}]", address(1))));
    chapter("each instance is what the spec says", || {
        for number in 1..=MEMBERS.len() {
            let instance = format!("{NAME}-etcd-{number}");
            let shown = shown(&instance);
            let text = |path: &str| shown.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
            assert_eq!(text("/expanded_config/limits.cpu"), "1");
            assert_eq!(text(&format!("/expanded_config/{SETTING}")), "yes", "the profile applies");
            assert_eq!(text("/devices/root/size"), (2_u64 << 30).to_string());
            assert_eq!(text("/devices/eth0/ipv4.address"), second_address(number));
            // This network leases no IPv6 addresses, so Incus cannot reserve one.
            assert_eq!(text("/devices/eth0/ipv6.address"), "");
            let has = addresses(&instance);
            for address in [format!("{}/64", address(number)), format!("{}/16", second_address(number))] {
                assert!(has.contains(&address), "{has}");
            }
        }
    });
    chapter("other limits, one member after the other, at the same addresses; now Incus reserves both", || {
        incus(&["network", "set", NETWORK, "ipv6.dhcp.stateful", "true"]).ok();
        containers.sandbox.file("cluster.yaml", &spec(2, &image));
        ground.apply().ok();
        healthy();
        for instance in listed(&["list", "--format=csv", "--columns=n"]) {
            let shown = shown(&instance);
            assert_eq!(shown["config"]["limits.cpu"], "2", "{instance}");
            let reserved = shown["devices"]["eth0"]["ipv6.address"].as_str().unwrap_or_default();
            assert!(reserved.starts_with("fd42:78::6:"), "{shown:#}");
        }
        assert_eq!(ground.etcdctl(&["get", "kept", "--print-value-only"]).ok().stdout.trim_end(), "as it was");
    });
    chapter("everything is destroyed, and nothing is left", || {
        ground.quorate(&["destroy", "--yes", "--without-backup", NAME]).ok();
        assert_eq!(listed(&["list", "--format=csv", "--columns=n"]), [""; 0], "left behind");
    });
}
