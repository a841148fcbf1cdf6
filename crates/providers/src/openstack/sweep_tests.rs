//! What is deleted and what is not, whatever a cloud answers.

use std::rc::Rc;
use std::time::Duration;

use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::etcd::versions;
use quorate_core::model::Ledger;
use quorate_core::providers::openstack::OpenstackSettings;
use quorate_core::spec;
use serde_json::{Value, json};

use super::super::script::{Shared, Then, script, serve, status};
use super::super::volumes::Volume;
use super::*;
use crate::Provider;

fn mark(state: State) -> Mark {
    Mark {
        cluster: String::from("demo"),
        cluster_id: String::from("c1"),
        member: "etcd-1".into(),
        incarnation: 1,
        address: "10.0.0.1".parse().unwrap(),
        fence: 1,
        state,
        port: Some(String::from("p1")),
        data: None,
        build: None,
        flavor: None,
    }
}

fn server(state: State, task: Value) -> Value {
    json!({
        "id": "s1", "name": "demo-etcd-1", "status": "ACTIVE", "OS-EXT-STS:power_state": 1, "OS-EXT-STS:task_state": task,
        "metadata": mark(state).parts(),
    })
}

fn answer(body: Value) -> Then {
    Then::Answer(200, body)
}

/// A cluster with one port, which the server `s1` has, and with nothing else; and what the cloud answers.
struct Stage {
    cluster: Openstack,
    script: Shared,
}

impl Stage {
    async fn new(port_status: &str) -> Self {
        let script = script([]);
        let stage = Stage { cluster: cluster(&script, "soft_anti_affinity").await, script };
        stage.always("GET /v2.1/servers/detail", answer(json!({ "servers": [] })));
        stage.always("GET /v2.1/os-server-groups", answer(json!({ "server_groups": [] })));
        stage.always("GET /v2.0/security-groups", answer(json!({ "security_groups": [] })));
        stage.always("GET /v2.0/floatingips", status(404));
        stage.always("GET /v3/p/volumes/detail", answer(json!({ "volumes": [] })));
        let port = json!({
            "id": "p1", "name": "demo-etcd-1.1.1", "description": "quorate c1", "device_id": "s1", "status": port_status,
        });
        stage.always("GET /v2.0/ports", answer(json!({ "ports": [port] })));
        stage
    }

    fn always(&self, call: &str, then: Then) {
        self.script.lock().unwrap().always.insert(call.to_owned(), then);
    }

    /// Calls that changed anything so far, without tokens.
    fn changes(&self) -> Vec<String> {
        let script = self.script.lock().unwrap();
        let changes = script.seen.iter().filter(|call| !call.starts_with("GET "));
        changes.map(|call| call.rsplit_once(' ').unwrap().0.to_owned()).collect()
    }
}

async fn cluster(script: &Shared, spread: &str) -> Openstack {
    let spec = spec::generated("demo", 1, versions::DEFAULT, ClientAuth::Certificate).unwrap().clusters.remove(0);
    let settings = json!({ "image": "m", "flavor": "f", "network": "n", "security_groups": [], "spread": spread });
    let settings: OpenstackSettings = serde_json::from_value(settings).unwrap();
    let mut cluster = Openstack::new(&Ledger::new(String::from("c1"), spec), &settings);
    cluster.session = Rc::new(serve(script.clone()).await).into();
    (cluster.polling, cluster.deleting) = (Duration::from_millis(1), Duration::ZERO);
    cluster
}

#[tokio::test]
async fn nothing_is_deleted_while_the_compute_service_cannot_say_which_servers_there_are() {
    let stage = Stage::new("DOWN").await;
    stage.always("GET /v2.1/servers/detail", status(404));
    stage.always("GET /v2.1/servers/s1", status(404));
    stage.cluster.admit(7).await.unwrap_err();
    stage.cluster.dismiss(7).await.unwrap_err();
    assert_eq!(stage.changes(), Vec::<String>::new());
}

#[tokio::test]
async fn a_server_without_its_tag_keeps_its_port_and_gets_the_tag_back() {
    let stage = Stage::new("DOWN").await;
    stage.always("GET /v2.1/servers/s1", answer(json!({ "server": server(State::Whole, Value::Null) })));
    stage.cluster.admit(7).await.unwrap();
    let changes = stage.changes();
    assert_eq!(changes, ["PUT /v2.1/servers/s1/tags/quorate.demo"]);
}

#[tokio::test]
async fn a_port_stays_while_nobody_knows_the_server_that_has_it() {
    let mut strange = server(State::Whole, Value::Null);
    strange["metadata"] = json!({});
    let answers = [
        // A cell is away.
        ("DOWN", status(500), "500"),
        ("DOWN", answer(json!({ "server": strange })), "openstack server delete s1"),
        // The compute service of another region.
        ("ACTIVE", status(404), "compute_endpoint_override"),
    ];
    for (port, then, expected) in answers {
        let stage = Stage::new(port).await;
        stage.always("GET /v2.1/servers/s1", then);
        let said = stage.cluster.admit(7).await.unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
        assert_eq!(stage.changes(), Vec::<String>::new(), "{expected}");
    }
}

#[tokio::test]
async fn leftovers_of_a_dead_run_are_deleted() {
    let stage = Stage::new("DOWN").await;
    stage.always("GET /v2.1/servers/s1", status(404));
    stage.cluster.admit(7).await.unwrap();
    assert_eq!(stage.changes(), ["DELETE /v2.0/ports/p1"]);
    // A draft that was created after servers were listed.
    let stage = Stage::new("DOWN").await;
    let draft = answer(json!({ "server": server(State::Draft, Value::Null) }));
    stage.script.lock().unwrap().always.insert(String::from("GET /v2.1/servers/s1"), draft);
    let _ = stage.cluster.admit(7).await;
    assert_eq!(stage.changes(), ["DELETE /v2.1/servers/s1"], "first the server, and then its port");
}

#[tokio::test]
async fn undeletable_resources_block_nothing_and_are_reported_at_the_end() {
    let stage = Stage::new("DOWN").await;
    let stuck = server(State::Going, json!("deleting"));
    stage.always("GET /v2.1/servers/detail", answer(json!({ "servers": [stuck] })));
    stage.always("GET /v2.1/servers/s1", answer(json!({ "server": stuck })));
    let metadata = json!({
        "quorate.cluster_id": "c1", "quorate.member": "etcd-2", "quorate.incarnation": "1", "quorate.fence": "1",
        "quorate.role": "data", "quorate.state": "going",
    });
    let volume = json!({ "id": "v1", "name": "demo-etcd-2", "status": "reserved", "metadata": metadata });
    stage.always("GET /v3/p/volumes/detail", answer(json!({ "volumes": [volume] })));
    stage.always("GET /v3/p/volumes/v1", answer(json!({ "volume": volume })));
    stage.cluster.admit(7).await.unwrap();
    assert_eq!(stage.changes(), ["DELETE /v2.1/servers/s1"], "its port stays too");
    let said = stage.cluster.dismiss(7).await.unwrap_err().to_string();
    assert!(said.contains("demo-etcd-1 was still ACTIVE (deleting)"), "{said}");
    assert!(said.contains("demo-etcd-2 was still reserved"), "{said}");
    stage.cluster.forget().await.unwrap_err();
}

#[tokio::test]
async fn a_locked_server_is_reported_with_the_command_that_unlocks_it() {
    let stage = Stage::new("DOWN").await;
    let locked = Then::Answer(409, json!({ "conflictingRequest": { "message": "Instance s1 is locked" } }));
    let there = server(State::Whole, Value::Null);
    stage.always("GET /v2.1/servers/detail", answer(json!({ "servers": [there] })));
    stage.always("GET /v2.1/servers/s1", answer(json!({ "server": there })));
    for call in ["POST /v2.1/servers/s1/metadata", "POST /v2.1/servers/s1/action", "DELETE /v2.1/servers/s1"] {
        stage.always(call, locked.clone());
    }
    let machine = MachineId::new(&"etcd-1".into(), 1);
    let (removed, stopped) = (stage.cluster.destroy(&machine, Data::Goes).await, stage.cluster.stop(&machine).await);
    for said in [removed, stopped].map(|refused| refused.unwrap_err().to_string()) {
        assert!(said.contains("openstack server unlock s1"), "{said}");
    }
}

#[tokio::test]
async fn the_server_group_of_an_earlier_spec_is_deleted_with_the_cluster() {
    let stage = Stage::new("DOWN").await;
    let cluster = cluster(&stage.script, "none").await;
    stage.always("GET /v2.0/ports", answer(json!({ "ports": [] })));
    let groups = json!([{ "id": "g1", "name": "quorate-c1" }, { "id": "g2", "name": "quorate-c2" }]);
    stage.always("GET /v2.1/os-server-groups", answer(json!({ "server_groups": groups })));
    cluster.forget().await.unwrap();
    assert_eq!(stage.changes(), ["DELETE /v2.1/os-server-groups/g1"]);
    // A cloud may not offer them.
    stage.always("GET /v2.1/os-server-groups", status(403));
    cluster.forget().await.unwrap();
}

#[tokio::test]
async fn a_volume_whose_deletion_was_asked_for_twice_is_deleted() {
    let mut stage = Stage::new("DOWN").await;
    stage.cluster.deleting = Duration::from_secs(5);
    let volume = |status: &str| answer(json!({ "volume": { "id": "v1", "status": status } }));
    let metadata = json!({
        "quorate.cluster_id": "c1", "quorate.member": "etcd-1", "quorate.incarnation": "1", "quorate.fence": "1",
        "quorate.role": "data", "quorate.state": "going",
    });
    let found = Volume::read(&json!({ "id": "v1", "name": "demo-data", "metadata": metadata })).unwrap();
    // The answer is lost; the volume is being deleted, and Cinder refuses to do that again.
    let deletion = [volume("available"), status(504), status(400), volume("deleting"), status(404)];
    stage.script.lock().unwrap().then.extend(deletion);
    stage.cluster.delete_volume(&found).await.unwrap();
    // Any other refusal is one.
    stage.script.lock().unwrap().then.extend([volume("available"), status(400), volume("available")]);
    stage.cluster.delete_volume(&found).await.unwrap_err();
}

/// A volume of the machine etcd-1.1.
fn volume(role: &str, state: &str) -> Value {
    let metadata = json!({
        "quorate.cluster_id": "c1", "quorate.member": "etcd-1", "quorate.incarnation": "1", "quorate.fence": "1",
        "quorate.role": role, "quorate.state": state,
    });
    json!({ "id": "v1", "name": "demo-volume", "status": "available", "attachments": [], "metadata": metadata })
}

const DELETE_VOLUME: &str = "DELETE /v3/p/volumes/v1";

impl Stage {
    /// Without ports, and with this server and this volume.
    async fn with(servers: Value, volume: &Value) -> Self {
        let stage = Stage::new("DOWN").await;
        stage.always("GET /v2.0/ports", answer(json!({ "ports": [] })));
        stage.always("GET /v2.1/servers/detail", answer(json!({ "servers": servers })));
        stage.always("GET /v3/p/volumes/detail", answer(json!({ "volumes": [volume] })));
        stage.always("GET /v3/p/volumes/v1", answer(json!({ "volume": volume })));
        stage
    }
}

#[tokio::test]
async fn the_boot_volume_of_a_server_stays_whatever_cinder_says_of_it() {
    let mut shelved = server(State::Whole, Value::Null);
    shelved["status"] = json!("SHELVED_OFFLOADED");
    let stage = Stage::with(json!([shelved]), &volume("boot", "draft")).await;
    stage.cluster.admit(7).await.unwrap();
    stage.cluster.dismiss(7).await.unwrap();
    let changes = stage.changes();
    assert!(
        !changes.is_empty() && changes.iter().all(|change| change == "POST /v3/p/volumes/v1/metadata"),
        "{changes:?}"
    );
}

#[tokio::test]
async fn a_boot_volume_is_deleted_with_its_incarnation() {
    let whole = volume("boot", "whole");
    // Its server is not listed: whether somebody deleted it, or took its tag off, is not known.
    let stage = Stage::with(json!([]), &whole).await;
    stage.cluster.admit(7).await.unwrap();
    stage.cluster.dismiss(7).await.unwrap();
    assert_eq!(stage.changes(), Vec::<String>::new());
    // Its member has another machine.
    let mut next = server(State::Whole, Value::Null);
    next["metadata"]["quorate.incarnation"] = json!("2");
    let stage = Stage::with(json!([next]), &whole).await;
    let _ = stage.cluster.admit(7).await;
    assert_eq!(stage.changes(), [DELETE_VOLUME]);
    // The machine, or the cluster, is removed.
    let stage = Stage::with(json!([]), &whole).await;
    let _ = stage.cluster.destroy(&MachineId::new(&"etcd-1".into(), 1), Data::Stays).await;
    assert_eq!(stage.changes(), [DELETE_VOLUME]);
    let stage = Stage::with(json!([]), &whole).await;
    let _ = stage.cluster.forget().await;
    assert_eq!(stage.changes(), [DELETE_VOLUME]);
    // What a dead run left.
    let stage = Stage::with(json!([]), &volume("boot", "draft")).await;
    let _ = stage.cluster.admit(7).await;
    assert_eq!(stage.changes(), [DELETE_VOLUME]);
}

#[tokio::test]
async fn a_boot_volume_that_was_made_twice_is_deleted_once() {
    let mut spare = volume("boot", "draft");
    (spare["id"], spare["name"]) = (json!("v2"), json!("demo-spare"));
    let stage = Stage::with(json!([server(State::Whole, Value::Null)]), &volume("boot", "whole")).await;
    stage.always("GET /v3/p/volumes/detail", answer(json!({ "volumes": [volume("boot", "whole"), spare] })));
    stage.always("GET /v3/p/volumes/v2", answer(json!({ "volume": spare })));
    let _ = stage.cluster.admit(7).await;
    assert_eq!(stage.changes(), ["DELETE /v3/p/volumes/v2"]);
}

#[tokio::test]
async fn resources_of_a_machine_are_marked_before_its_server_is_deleted() {
    let mut off = server(State::Whole, Value::Null);
    off["status"] = json!("SHUTOFF");
    let stage = Stage::with(json!([off]), &volume("boot", "whole")).await;
    stage.always("GET /v2.1/servers/s1", answer(json!({ "server": off })));
    let _ = stage.cluster.destroy(&MachineId::new(&"etcd-1".into(), 1), Data::Stays).await;
    let changes = stage.changes();
    let at = |change: &str| changes.iter().position(|made| made == change);
    let marked = at("POST /v3/p/volumes/v1/metadata");
    assert!(marked.is_some() && marked < at("DELETE /v2.1/servers/s1"), "{changes:?}");
}

#[tokio::test]
async fn a_renamed_port_is_found_by_its_mark() {
    let port = |description: &str| {
        let port = json!({ "id": "p2", "name": "uplink", "description": description, "status": "DOWN" });
        answer(json!({ "ports": [port] }))
    };
    // The second is how ports were marked before.
    for mark in ["quorate c1 port etcd-1 1 1 0", "quorate c1"] {
        let stage = Stage::new("DOWN").await;
        stage.always("GET /v2.0/ports", port(mark));
        let _ = stage.cluster.forget().await;
        assert!(stage.changes().contains(&String::from("DELETE /v2.0/ports/p2")), "{mark}: {:?}", stage.changes());
    }
    for mark in ["quorate c10 port etcd-1 1 1 0", "quorate c1 member", "quorate c2", "uplink"] {
        let stage = Stage::new("DOWN").await;
        stage.always("GET /v2.0/ports", port(mark));
        stage.cluster.forget().await.unwrap();
        assert_eq!(stage.changes(), Vec::<String>::new(), "{mark}");
    }
}

#[tokio::test]
async fn every_port_of_a_server_is_deleted_with_it_whatever_its_name() {
    let stage = Stage::new("DOWN").await;
    let port = |id: &str, mark: &str| json!({ "id": id, "name": id, "description": mark, "device_id": "s1" });
    let ports = json!([port("p1", "quorate c1 port etcd-1 1 1 0"), port("p2", "quorate c1 port etcd-1 1 1 1")]);
    stage.always("GET /v2.0/ports", answer(json!({ "ports": ports })));
    let there = answer(json!({ "servers": [server(State::Whole, Value::Null)] }));
    stage.always("GET /v2.1/servers/detail?tags=quorate.demo", there);
    stage.always("GET /v2.1/servers/s1", status(404));
    let _ = stage.cluster.destroy(&MachineId::new(&"etcd-1".into(), 1), Data::Goes).await;
    let changes = stage.changes();
    for port in ["DELETE /v2.0/ports/p1", "DELETE /v2.0/ports/p2"] {
        assert!(changes.contains(&String::from(port)), "{changes:?}");
    }
}

#[tokio::test]
async fn a_server_counts_as_gone_when_a_list_lacks_it_and_not_when_a_gateway_says_so() {
    let machine = MachineId::new(&"etcd-1".into(), 1);
    let mut with_data = server(State::Whole, Value::Null);
    with_data["metadata"]["quorate.data"] = json!("v1");
    let there = answer(json!({ "servers": [with_data] }));
    // A list that shows it, and none at all.
    for listed in [there.clone(), status(404)] {
        let stage = Stage::new("DOWN").await;
        stage.always("GET /v3/p/volumes/detail", answer(json!({ "volumes": [volume("data", "whole")] })));
        stage.always("GET /v2.1/servers/detail", listed);
        stage.always("GET /v2.1/servers/detail?tags=quorate.demo", there.clone());
        for call in ["GET /v2.1/servers/s1", "DELETE /v2.1/servers/s1", "POST /v2.1/servers/s1/metadata"] {
            stage.always(call, status(404));
        }
        stage.cluster.destroy(&machine, Data::Goes).await.unwrap_err();
        let gives_up = |change: &String| change.contains("/ports/") || change.contains("/volumes/");
        assert!(!stage.changes().iter().any(gives_up), "{:?}", stage.changes());
    }
    // It lost its tag, and its port is suspected to be left over.
    let stage = Stage::new("DOWN").await;
    stage.always("GET /v2.1/servers/detail", there);
    stage.always("GET /v2.1/servers/detail?tags=quorate.demo", answer(json!({ "servers": [] })));
    stage.always("GET /v2.1/servers/s1", status(404));
    stage.cluster.admit(7).await.unwrap();
    assert_eq!(stage.changes(), ["PUT /v2.1/servers/s1/tags/quorate.demo"]);
}

#[tokio::test]
async fn a_cluster_keeps_its_ledger_while_lists_show_its_resources() {
    let gone = || status(404);
    let stage = Stage::with(json!([]), &volume("data", "whole")).await;
    stage.always("GET /v3/p/volumes/v1", gone());
    stage.always(DELETE_VOLUME, gone());
    let said = stage.cluster.forget().await.unwrap_err().to_string();
    assert!(said.contains("demo-volume"), "{said}");
    let stage = Stage::new("DOWN").await;
    for call in ["GET /v2.1/servers/s1", "DELETE /v2.0/ports/p1"] {
        stage.always(call, gone());
    }
    let said = stage.cluster.forget().await.unwrap_err().to_string();
    assert!(said.contains("demo-etcd-1.1.1"), "{said}");
}
