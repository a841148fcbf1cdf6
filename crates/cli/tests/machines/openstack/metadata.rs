//! A server without a config drive: nova's own metadata service hands out the seed, to the agent's boot as an image without a config drive
//! runs it.

use serde_json::Value;

use super::bodies::{Bodies, address, provider};
use super::{Servers, names, openstack};
use crate::common::{OLDEST, eventually};
use crate::ground::chapter;

const NAME: &str = "lab-metadata";

fn spec() -> String {
    format!(
        "quorate: 1
clusters:
  - name: {NAME}
{}    members: [{{name: etcd-1, address: {}}}]
    etcd: {{version: {OLDEST}}}
",
        provider("record"),
        address(1)
    )
}

#[test]
#[ignore = "needs OpenStack: `cargo xtask lab openstack` runs it"]
fn a_server_without_a_config_drive_gets_its_seed_from_novas_metadata_service() {
    let bodies = Bodies::new(1, OLDEST);
    let servers = Servers::new(NAME, &spec());
    chapter("one server, whose agent asks the metadata service, from apply to healthy", || {
        servers.apply().ok();
        eventually("a healthy member", 60, || servers.sandbox.status(NAME)["verdict"] == "healthy");
    });
    servers.etcdctl(&["put", "kept", "as it was"]).ok();
    let server = names("server").into_iter().next().expect("a server");
    let shown: Value = openstack(&["server", "show", "--format=json", &server]).ok().json();
    assert_ne!(shown["config_drive"], "True", "{shown:#}");
    assert!(!shown.to_string().contains("token"), "{shown:#}");
    chapter("it boots again, and knows what it is without the service", || {
        let body = bodies.at(1);
        std::fs::remove_file(body.seed()).expect("the seed was there");
        body.disconnect();
        assert!(body.boot() && !body.seed().exists(), "{}", body.console());
        body.connect();
        servers.assert_healthy();
    });
    chapter("everything is destroyed", || servers.destroy());
}
