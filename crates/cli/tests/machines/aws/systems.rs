//! Instances that are whole systems, configured from their user data by real tools: cloud-init as on Debian, Ignition's own binary as on
//! Flatcar with its read-only `/usr`, and quorate's agent alone. Each reads the metadata service.

use std::process::Command;

use serde_json::{Value, json};

use super::cloud::{SERVER, ec2, text, variable};
use crate::common::{OLDEST, Sandbox, eventually};
use crate::ground::chapter;

/// Where instances get the agent's program.
const PROGRAM: &str = "https://10.80.0.1/quorate";

/// An image that the lab has a system for.
fn image(seed: &str) -> String {
    let image = json!({ "Name": format!("lab-{seed}"), "Architecture": "x86_64", "RootDeviceName": "/dev/sda1" });
    text(&ec2("register_image", image)["ImageId"])
}

/// The instances of a cluster that are not terminated.
fn instances(cluster: &str) -> Vec<Value> {
    let filter = json!({ "Filters": [{ "Name": "tag:quorate.cluster", "Values": [cluster] }] });
    let found = ec2("describe_instances", filter);
    let all = found["Reservations"].as_array().expect("a list").iter().flat_map(|one| one["Instances"].as_array());
    all.flatten().filter(|one| one["State"]["Name"] != "terminated").cloned().collect()
}

/// The id of the cluster's one instance.
fn instance(cluster: &str) -> String {
    text(&instances(cluster)[0]["InstanceId"])
}

/// The id of a new VPC with a subnet of this range.
fn vpc(subnet: &str) -> String {
    let vpc = text(&ec2("create_vpc", json!({ "CidrBlock": "10.80.0.0/16" }))["Vpc"]["VpcId"]);
    ec2("create_subnet", json!({ "VpcId": vpc, "CidrBlock": subnet, "AvailabilityZone": "eu-west-2a" }));
    vpc
}

fn program() -> String {
    let found = Command::new("sha256sum").arg(env!("CARGO_BIN_EXE_quorate")).output().expect("sha256sum runs");
    let sum = String::from_utf8(found.stdout).expect("text").split(' ').next().unwrap_or_default().to_owned();
    format!("        program: {{url: \"{PROGRAM}\", sha256: {sum}}}\n")
}

fn spec(name: &str, seed: &str, vpc: &str, program: &str) -> String {
    let (server, image) = (variable(SERVER), image(&seed.replace('_', "-")));
    format!(
        "quorate: 1
clusters:
  - name: {name}
    provider:
      aws:
        region: eu-west-2
        endpoint: {server}
        vpc: {vpc}
        instance_types: [m5.large]
        image: {{id: {image}}}
        seed: {seed}
        root_size: 8GiB
{program}        boot_patience: 4m
        admin: {{user: ada, ssh_keys: [\"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ ada\"]}}
    members: [{{name: etcd-1}}]
    etcd: {{version: {OLDEST}}}
"
    )
}

/// From nothing to a member that serves, which comes back after AWS has stopped its instance, and leaves nothing.
fn story(seed: &str, subnet: &str, program: &str) {
    let name = format!("lab-{}", seed.replace('_', "-"));
    let sandbox = Sandbox::new(OLDEST);
    sandbox.file("cluster.yaml", &spec(&name, seed, &vpc(subnet), program));
    let healthy = || eventually("the member is healthy", 120, || sandbox.status(&name)["verdict"] == "healthy");
    chapter(&format!("{seed}: one instance, from apply to healthy"), || {
        sandbox.quorate(&["apply", "--yes", "cluster.yaml"]).ok();
        healthy();
        sandbox.etcdctl(OLDEST, &name, &["put", "kept", "as it was"]).ok();
    });
    sandbox.assert_nothing_to_do("cluster.yaml");
    chapter(&format!("{seed}: AWS stops the instance, and apply starts it"), || {
        let id = instance(&name);
        ec2("stop_instances", json!({ "InstanceIds": [id] }));
        eventually("it is down", 60, || sandbox.status(&name)["verdict"] != "healthy");
        // A run is blocked after 10 s without an agent, and cloud-init can take longer. The next run continues.
        sandbox.quorate(&["apply", "--yes", "cluster.yaml"]);
        healthy();
        sandbox.quorate(&["apply", "--yes", "cluster.yaml"]).ok();
        assert_eq!(instance(&name), id, "the same instance");
        let read = sandbox.etcdctl(OLDEST, &name, &["get", "kept", "--print-value-only"]).ok().stdout;
        assert_eq!(read.trim_end(), "as it was");
    });
    sandbox.quorate(&["destroy", "--yes", "--without-backup", &name]).ok();
    assert_eq!(instances(&name), Vec::<Value>::new(), "left behind");
}

#[test]
#[ignore = "needs moto's server: `cargo xtask lab aws` runs it"]
fn cloud_init_makes_a_member_of_its_user_data() {
    story("cloud_init", "10.80.2.0/24", &program());
}

#[test]
#[ignore = "needs moto's server: `cargo xtask lab aws` runs it"]
fn ignition_makes_a_member_of_its_user_data() {
    story("ignition", "10.80.3.0/24", &program());
}

#[test]
#[ignore = "needs moto's server: `cargo xtask lab aws` runs it"]
fn the_agent_alone_makes_a_member_of_its_user_data() {
    story("quorate", "10.80.4.0/24", "");
}
