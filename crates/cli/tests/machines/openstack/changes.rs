//! The story of the Terraform module that quorate replaces, whose two limitations were these: a changed configuration of a running cluster
//! is one edit and one `apply`, with clients at work; and a new cluster begins with the data of an object in S3.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::bodies::{Bodies, address, provider};
use super::{Servers, flavors};
use crate::common::store::{ACCESS_KEY, BUCKET, REGION, SECRET_KEY, object_store};
use crate::ground::chapter;

const NAME: &str = "lab-changes";
/// Its etcdutl restores snapshots so that revisions continue.
const VERSION: &str = "3.5.30";
const OBJECT: &str = "moved/cluster.db";

/// Members at these addresses, on servers of this flavor.
fn spec(places: &[usize], flavor: &str) -> String {
    let member = |place: &usize| format!("      - {{name: etcd-{place}, address: {}}}\n", address(*place));
    let members: String = places.iter().map(member).collect();
    let (provider, endpoint) = (provider(flavor), object_store().endpoint());
    format!(
        "quorate: 1
clusters:
  - name: {NAME}
{provider}    members:
{members}    etcd: {{version: {VERSION}}}
    backup:
      to:
        s3: {{endpoint: \"{endpoint}\", region: {REGION}, bucket: {BUCKET}, path_style: true, credentials: {{file: store.keys}}}}
"
    )
}

fn servers(places: &[usize], flavor: &str) -> Servers {
    let servers = Servers::of_version(NAME, &spec(places, flavor), VERSION);
    let keys = format!("access_key_id={ACCESS_KEY}\nsecret_access_key={SECRET_KEY}\n");
    let keys = servers.sandbox.file("store.keys", &keys);
    fs::set_permissions(keys, fs::Permissions::from_mode(0o600)).expect("a file of its owner alone");
    servers
}

/// No acknowledged write is lost while a command of quorate runs.
fn rehearse(servers: &Servers, scenario: &str, during: &str) {
    let words = ["drill", NAME, "--yes", "--scenario", scenario, "--during", during];
    let told = servers.sandbox.quorate(&words).ok().stdout;
    eprintln!("{told}");
    assert!(told.contains("no acknowledged write was lost"), "{told}");
}

/// As `etcdctl snapshot save` makes it, of one member.
fn snapshot(servers: &Servers) -> Vec<u8> {
    let mut environment = servers.sandbox.environment(NAME);
    environment.insert(String::from("ETCDCTL_ENDPOINTS"), format!("https://{}:2379", address(1)));
    let file = servers.sandbox.path().join("cluster.db");
    servers.etcdctl_with(&environment, &["snapshot", "save", &file.display().to_string()]).ok();
    fs::read(file).expect("a snapshot")
}

#[test]
#[ignore = "needs OpenStack: `cargo xtask lab openstack` runs it"]
fn an_edit_and_apply_change_a_cluster_under_traffic_and_a_new_one_begins_with_an_object_in_s3() {
    let _bodies = Bodies::new(4, VERSION);
    let before = servers(&[1, 2, 3], "record");
    chapter("three servers, from apply to healthy", || before.apply().ok());
    before.etcdctl(&["put", "kept", "as it was"]).ok();
    before.assert_healthy();
    let refused = before.sandbox.quorate(&["drill", NAME, "--yes", "--scenario", "kill-leader"]).expect(1).stderr;
    assert!(refused.contains("needs machines that are processes of this host"), "{refused}");
    before.want(&spec(&[1, 2, 4], "record-2"));
    chapter("another flavor for all, and another member in place of one: an edit, and apply under traffic", || {
        rehearse(&before, "calm", "apply cluster.yaml");
        before.assert_healthy();
        assert_eq!(flavors(), ["record-2"; 3]);
    });
    chapter("a server is replaced, and quorate is killed before and after each step", || {
        rehearse(&before, "kill-controller", &format!("replace {NAME} etcd-2 --yes"));
        before.assert_healthy();
    });
    object_store().put(OBJECT, &snapshot(&before));
    chapter("everything is destroyed", || before.destroy());

    let after = servers(&[1, 2, 3], "record");
    chapter("a new cluster, whose data is an object in S3", || {
        let object = format!("s3://{BUCKET}/{OBJECT}");
        after.sandbox.quorate(&["restore", "cluster.yaml", "--yes", "--snapshot", &object]).ok();
        after.assert_healthy();
    });
    chapter("everything is destroyed", || after.destroy());
}
