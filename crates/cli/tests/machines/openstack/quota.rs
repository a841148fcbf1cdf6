//! A change of all machines in a project whose quota has no room for one more.

use super::bodies::{Bodies, provider};
use super::{Servers, flavors, operator};
use crate::common::OLDEST;
use crate::ground::chapter;

const NAME: &str = "lab-quota";
const PROJECT: &str = "quorate";

fn spec(flavor: &str) -> String {
    format!(
        "quorate: 1
clusters:
  - name: {NAME}
{}    members: [{{name: etcd-1}}, {{name: etcd-2}}, {{name: etcd-3}}]
    etcd: {{version: {OLDEST}}}
",
        provider(flavor)
    )
}

/// The project may have so many servers, for as long as this lives.
struct Quota;

impl Quota {
    fn of(servers: usize) -> Self {
        operator(&["quota", "set", "--instances", &servers.to_string(), PROJECT]).ok();
        Quota
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        operator(&["quota", "set", "--instances", "100", PROJECT]);
    }
}

#[test]
#[ignore = "needs OpenStack: `cargo xtask lab openstack` runs it"]
fn where_the_quota_has_no_room_for_another_server_a_change_removes_the_old_one_first() {
    let _bodies = Bodies::new(4, OLDEST);
    let servers = Servers::new(NAME, &spec("record"));
    chapter("three servers, from apply to healthy", || servers.apply().ok());
    servers.etcdctl(&["put", "kept", "as it was"]).ok();
    servers.assert_healthy();
    let grown = chapter("another flavor for one, with room for a fourth server", || {
        servers.want(&spec("record").replace("{name: etcd-1}", "{name: etcd-1, openstack: {flavor: record-2}}"));
        let told = servers.apply().ok().text();
        servers.assert_healthy();
        told
    });
    assert!(!grown.contains("no room"), "{grown}");
    let quota = Quota::of(3);
    let told =
        chapter("another flavor for all, without: each server is removed before its successor is created", || {
            servers.want(&spec("record-2"));
            let told = servers.apply().ok().text();
            servers.assert_healthy();
            told
        });
    assert_eq!((flavors(), servers.incarnations()), (vec![String::from("record-2"); 3], [2, 2, 2]));
    for words in
        ["the quota of instances has 0 left", "no room for the new machine of etcd-2", "tolerates 0 more failures"]
    {
        assert!(told.contains(words), "{words} is not in {told}");
    }
    drop(quota);
    chapter("everything is destroyed", || servers.destroy());
}
