//! A host of the cloud fails, and its operators evacuate what was on it.

use serde_json::Value;

use super::bodies::{Bodies, address, provider};
use super::{Servers, names, openstack, operator};
use crate::common::{OLDEST, eventually};
use crate::ground::chapter;

const NAME: &str = "lab-moved";

fn spec() -> String {
    let members: String = (1..=3).map(|n| format!("      - {{name: etcd-{n}, address: {}}}\n", address(n))).collect();
    format!(
        "quorate: 1
clusters:
  - name: {NAME}
    replace_after: 10s
{}        data_size: 1GiB
    members:
{members}    etcd: {{version: {OLDEST}}}
",
        provider("record")
    )
}

/// Its host and its status.
fn place(server: &str) -> [String; 2] {
    let shown: Value = operator(&["server", "show", "--format=json", server]).ok().json();
    ["OS-EXT-SRV-ATTR:host", "status"].map(|field| shown[field].as_str().expect("a text").to_owned())
}

/// Its host counts as failed for so long.
fn evacuate(server: &str) {
    let [before, _] = place(server);
    operator(&["compute", "service", "set", "--down", &before, "nova-compute"]).ok();
    // This client of Debian 12 sends the request and then stumbles over the answer.
    let told = operator(&["server", "evacuate", server]);
    eventually(&format!("{server} is on another host: {}", told.text()), 180, || {
        let [host, status] = place(server);
        host != before && status == "ACTIVE"
    });
    operator(&["compute", "service", "set", "--up", &before, "nova-compute"]).ok();
}

#[test]
#[ignore = "needs OpenStack: `cargo xtask lab openstack` runs it"]
fn an_evacuated_server_is_the_same_machine_and_one_that_lost_its_disk_is_replaced_and_keeps_its_data() {
    let bodies = Bodies::new(3, OLDEST);
    let servers = Servers::new(NAME, &spec());
    chapter("three servers, from apply to healthy", || servers.apply().ok());
    servers.etcdctl(&["put", "kept", "as it was"]).ok();
    servers.assert_healthy();
    let server = |member: &str| {
        let id = operator(&["server", "list", "--all-projects", "--format=value", "--column=ID", "--name", member]);
        id.ok().stdout.trim().to_owned()
    };
    let volumes = names("volume");
    chapter("a server is evacuated with its disk, which is on shared storage", || {
        evacuate(&server("etcd-1"));
        servers.assert_healthy();
        assert_eq!(servers.incarnations(), [1, 1, 1]);
    });
    chapter("a server is evacuated without its disk, and the new one has no seed: nothing answers", || {
        evacuate(&server("etcd-3"));
        bodies.at(3).end();
        servers.apply().ok();
        servers.assert_healthy();
        assert_eq!((servers.incarnations(), names("volume")), ([1, 1, 2], volumes.clone()));
    });
    chapter("another one finds its seed, and answers with a key that nobody knows: it is left to people", || {
        evacuate(&server("etcd-2"));
        bodies.at(2).reinstall();
        let refused = servers.apply().text();
        assert!(refused.contains("an agent with another key answers as etcd-2"), "{refused}");
        openstack(&["server", "delete", "--wait", &server("etcd-2")]).ok();
        servers.apply().ok();
        servers.assert_healthy();
        assert_eq!((servers.incarnations(), names("volume")), ([1, 2, 2], volumes.clone()));
    });
    chapter("everything is destroyed", || servers.destroy());
}
