//! Clusters on machines that nova boots: emulated ones, on ports of neutron, with volumes of cinder and the seed on a config drive.
//! However a test ends, its servers are removed.

mod bodies;
mod changes;
mod metadata;
mod moved;
mod postgres;
mod quota;

use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::process::Command;

use serde_json::Value;

use crate::common::{OLDEST, Run, Sandbox, eventually, lab};
use crate::ground::{chapter, incarnation};
use bodies::ip;

/// The `clouds.yaml` of the lab, and a client for what quorate is not asked to do.
const CLOUDS: &str = "QUORATE_LAB_OPENSTACK_CLOUDS";
const CLIENT: &str = "QUORATE_LAB_OPENSTACK_CLIENT";
const NAME: &str = "lab-nova";
/// A network that only machines are on, with a subnet of IPv4 and one of IPv6; and addresses there that nobody has.
const SECOND: &str = "second";
const LISTENERS: [&str; 2] = ["10.81.255.1/16", "fd42:81::ffff:1/64"];

struct Servers {
    sandbox: Sandbox,
    name: &'static str,
    /// Of etcd, and so of its clients.
    version: &'static str,
}

impl Servers {
    fn new(name: &'static str, spec: &str) -> Self {
        Self::of_version(name, spec, OLDEST)
    }

    fn of_version(name: &'static str, spec: &str, version: &'static str) -> Self {
        let clouds = std::env::var_os(CLOUDS).expect("there is no OpenStack here: run `cargo xtask lab openstack`");
        let servers = Servers { sandbox: Sandbox::new(version), name, version };
        std::fs::copy(clouds, servers.sandbox.path().join("clouds.yaml")).expect("a place for clouds.yaml");
        servers.want(spec);
        servers
    }

    fn want(&self, spec: &str) {
        self.sandbox.file("cluster.yaml", spec);
    }

    fn apply(&self) -> Run {
        self.sandbox.quorate(&["apply", "--yes", "cluster.yaml"])
    }

    fn etcdctl(&self, arguments: &[&str]) -> Run {
        self.etcdctl_with(&self.sandbox.environment(self.name), arguments)
    }

    fn etcdctl_with(&self, environment: &BTreeMap<String, String>, arguments: &[&str]) -> Run {
        let mut command = Command::new(lab(self.version).join("etcdctl"));
        // Machines that are emulated are slow.
        let slow = ["--command-timeout=30s", "--dial-timeout=10s"];
        command.env_clear().envs(environment).args(slow).args(arguments);
        command.output().expect("etcdctl runs").into()
    }

    #[track_caller]
    fn assert_healthy(&self) {
        eventually("healthy members", 120, || self.sandbox.status(self.name)["verdict"] == "healthy");
        let read = self.etcdctl(&["get", "kept", "--print-value-only"]).ok().stdout;
        assert_eq!(read.trim_end(), "as it was");
        self.sandbox.assert_nothing_to_do("cluster.yaml");
    }

    /// Nothing of the cluster is left in the cloud.
    #[track_caller]
    fn destroy(&self) {
        self.sandbox.quorate(&["destroy", "--yes", "--without-backup", self.name]).ok();
        assert_eq!((names("server"), names("volume")), (BTreeSet::new(), BTreeSet::new()), "left behind");
        assert!(!names("security group").iter().any(|name| name.contains(self.name)), "left behind");
    }

    fn incarnations(&self) -> [u64; 3] {
        let ledger = self.sandbox.ledger(self.name);
        ["etcd-1", "etcd-2", "etcd-3"].map(|member| incarnation(&ledger, member))
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for server in names("server") {
            if std::thread::panicking() {
                eprintln!("--- {server}\n{}", openstack(&["console", "log", "show", "--lines=25", &server]).stdout);
            }
            openstack(&["server", "delete", "--wait", &server]);
        }
    }
}

/// The same as the cloud's operator.
fn operator(arguments: &[&str]) -> Run {
    openstack(&[&["--os-cloud=admin", "--os-compute-api-version=2.72"][..], arguments].concat())
}

/// The flavors of all servers.
fn flavors() -> Vec<String> {
    let listed = openstack(&["server", "list", "--format=value", "--column=Flavor"]).ok().stdout;
    listed.lines().map(str::to_owned).collect()
}

/// A client of the lab, as the user that quorate is.
fn openstack(arguments: &[&str]) -> Run {
    let client = std::env::var_os(CLIENT).expect("the lab says where its client is");
    Command::new(client).args(arguments).output().expect("the client runs").into()
}

/// Names of all objects of a kind.
fn names(kind: &str) -> BTreeSet<String> {
    let listed = openstack(&[kind, "list", "--format=value", "--column=Name"]).ok().stdout;
    listed.lines().map(str::to_owned).collect()
}

fn spec() -> String {
    let members: String = (1..=3).map(|n| format!("      - {{name: etcd-{n}, address: 10.80.1.{n}}}\n")).collect();
    format!(
        "quorate: 1
clusters:
  - name: {NAME}
    replace_after: 10s
    provider:
      openstack:
        cloud: quorate
        image: machine
        flavor: machine
        network: lab
        availability_zone: real
        data_size: 1GiB
        more_ports: [{{network: {SECOND}, subnet: second}}, {{network: {SECOND}, subnet: second-6}}]
    members:
{members}    etcd: {{version: {OLDEST}, heartbeat: 500ms, election: 5s}}
"
    )
}

/// Each guest answers at the addresses of its further ports, on the bridge that neutron has for their network.
fn assert_further_interfaces() {
    let id = openstack(&["network", "show", SECOND, "--format=value", "--column=id"]).ok().stdout;
    let bridge = format!("brq{}", &id[..11]);
    for address in LISTENERS {
        ip(&["address", "add", address, "dev", &bridge, "nodad"]);
    }
    let ports: Value = openstack(&["port", "list", "--network", SECOND, "--format=json"]).ok().json();
    let fixed = |port: &Value| port["Fixed IP Addresses"][0]["ip_address"].as_str().expect("an address").to_owned();
    let addresses: BTreeSet<String> = ports.as_array().expect("ports").iter().map(fixed).collect();
    assert_eq!(addresses.iter().filter(|address| address.contains(':')).count(), 3, "{addresses:?}");
    assert_eq!(addresses.len(), 6, "{addresses:?}");
    for address in addresses {
        eventually(&format!("who has {address}"), 60, || {
            let local = if address.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
            let socket = UdpSocket::bind(local).expect("a socket");
            let _ = socket.send_to(b"who has it", (address.as_str(), 9));
            let found: Run = Command::new("ip").args(["neighbour", "show", &address]).output().expect("ip runs").into();
            found.stdout.contains("lladdr")
        });
    }
    for address in LISTENERS {
        ip(&["address", "delete", address, "dev", &bridge]);
    }
}

#[test]
#[ignore = "needs OpenStack: `cargo xtask lab openstack` runs it"]
fn nova_boots_three_machines_one_is_deleted_one_is_replaced_and_all_are_destroyed() {
    let servers = Servers::new(NAME, &spec());
    chapter("three servers, from apply to healthy", || servers.apply().ok());
    servers.etcdctl(&["put", "kept", "as it was"]).ok();
    servers.assert_healthy();
    let server = names("server").into_iter().find(|name| name.contains("etcd-2")).expect("a server of etcd-2");
    chapter("no secret is in what every user of the project can read", || {
        let shown = openstack(&["--os-compute-api-version=2.72", "server", "show", "--format=json", &server]).ok();
        let shown: Value = shown.json();
        assert_eq!(shown["config_drive"], "True", "{shown:#}");
        let text = shown.to_string();
        for word in ["token", "PRIVATE KEY"] {
            assert!(!text.contains(word), "{word} in {shown:#}");
        }
    });
    chapter("each has an interface of IPv4 and one of IPv6 on another network", assert_further_interfaces);
    let volumes = names("volume");
    chapter("a server is deleted behind our back, then apply", || {
        openstack(&["server", "delete", "--wait", &server]).ok();
        servers.apply().ok();
        servers.assert_healthy();
        assert_eq!(servers.incarnations(), [1, 2, 1]);
    });
    chapter("a server is replaced", || {
        servers.sandbox.quorate(&["replace", "--yes", NAME, "etcd-3"]).ok();
        servers.assert_healthy();
        assert_eq!(servers.incarnations(), [1, 2, 2]);
    });
    assert_eq!(names("volume").len(), volumes.len(), "the data stays with its member");
    chapter("everything is destroyed", || servers.destroy());
}
