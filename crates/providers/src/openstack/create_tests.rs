//! What a cloud is asked for when a server is created, and what its mark says afterwards.

use std::rc::Rc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quorate_core::Secret;
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::etcd::versions;
use quorate_core::model::Ledger;
use quorate_core::spec;

use super::super::script::{Shared, Then, script, serve};
use super::*;
use crate::Provider;

fn openstack(settings: &Value) -> Openstack {
    let spec = spec::generated("demo", 1, versions::DEFAULT, ClientAuth::Certificate).unwrap();
    let ledger = Ledger::new(String::from("c1"), spec.clusters.into_iter().next().unwrap());
    let mut all = json!({ "image": "m", "flavor": "f", "network": "n" });
    all.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    Openstack::new(&ledger, &serde_json::from_value(all).unwrap())
}

#[test]
fn a_key_pair_keeps_the_user_that_it_lets_in() {
    let user_data = |key_pair: Option<&str>| openstack(&json!({ "key_pair": key_pair })).user_data(None);
    let users = |text: String| {
        let config: Value = serde_json::from_str(text.strip_prefix("#cloud-config\n").unwrap()).unwrap();
        config["users"].clone()
    };
    assert_eq!(users(user_data(Some("ada"))), json!(["default"]));
    assert_eq!(users(user_data(None)), json!([]), "nobody can log in as that user");
}

/// An empty cloud that creates what it is asked for.
struct Stage {
    script: Shared,
    settings: Value,
}

impl Stage {
    fn new(settings: &Value) -> Self {
        let mut all = json!({ "security_groups": [], "spread": "none" });
        all.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        let stage = Stage { script: script([]), settings: all };
        let lists = [
            ("/v2.1/servers/detail", "servers", json!([])),
            ("/v2.0/ports", "ports", json!([])),
            ("/v3/p/volumes/detail", "volumes", json!([])),
            ("/v2.1/flavors/detail", "flavors", json!([{ "id": "f1", "name": "f", "vcpus": 1, "ram": 512 }])),
            ("/v2/images", "images", json!([{ "id": "m1", "name": "m", "status": "active" }])),
            ("/v2.0/networks", "networks", json!([{ "id": "n1", "name": "n" }])),
            ("/v2.0/subnets", "subnets", json!([{ "id": "sn1", "name": "sn", "cidr": "10.0.0.0/24" }])),
        ];
        for (path, field, items) in lists {
            stage.always(&format!("GET {path}"), json!({ field: items }));
        }
        let port =
            json!({ "id": "p1", "mac_address": "fa:16:3e:00:00:01", "fixed_ips": [{ "ip_address": "10.0.0.1" }] });
        stage.always("POST /v2.0/ports", json!({ "port": port }));
        stage.always("GET /v2.1/", json!({ "version": { "version": "2.90", "min_version": "2.1" } }));
        stage.always("POST /v3/p/volumes", json!({ "volume": { "id": "v1" } }));
        let volume = json!({ "id": "v1", "status": "available", "availability_zone": "zone-a" });
        stage.always("GET /v3/p/volumes/v1", json!({ "volume": volume }));
        stage.always("POST /v2.1/servers", json!({ "server": { "id": "s1" } }));
        stage.always("GET /v2.1/servers/s1", json!({ "server": { "id": "s1", "status": "ACTIVE" } }));
        stage
    }

    fn always(&self, call: &str, answer: Value) {
        self.script.lock().unwrap().always.insert(call.to_owned(), Then::Answer(200, answer));
    }

    /// A data volume that the member's last machine left.
    fn leave_volume(&self, more: &Value) {
        let mut volume = json!({ "id": "v9", "name": "demo-data", "status": "available", "size": 1, "metadata": {
            "quorate.cluster_id": "c1", "quorate.member": "etcd-1", "quorate.incarnation": "1", "quorate.fence": "1",
            "quorate.role": "data", "quorate.state": "whole",
        } });
        for (field, value) in more.as_object().unwrap() {
            match value {
                Value::Object(parts) => volume[field].as_object_mut().unwrap().extend(parts.clone()),
                value => volume[field] = value.clone(),
            }
        }
        self.always("GET /v3/p/volumes/detail", json!({ "volumes": [volume] }));
    }

    async fn try_create(&self, data: Data) -> Result<(), ProviderError> {
        let mut openstack = openstack(&self.settings);
        openstack.session = Rc::new(serve(self.script.clone()).await).into();
        openstack.polling = Duration::from_millis(1);
        let new = NewMachine {
            name: "etcd-1.2",
            id: MachineId::new(&"etcd-1".into(), 2),
            address: None,
            data,
            fence: 7,
            control_ca: "",
            token: &Secret::new("t"),
            token_expires: Timestamp::now() + SignedDuration::from_hours(1),
        };
        openstack.create(&new).await
    }

    async fn create(&self, data: Data) {
        self.try_create(data).await.unwrap();
    }

    /// What was sent with the calls of this kind.
    fn sent(&self, call: &str) -> Vec<Value> {
        let script = self.script.lock().unwrap();
        script.sent.iter().filter(|(sent, _)| sent == call).map(|(_, body)| body.clone()).collect()
    }

    /// The mark of the machine.
    fn mark(&self) -> Value {
        self.sent("POST /v2.1/servers/s1/metadata").pop().unwrap()["metadata"].clone()
    }
}

const VOLUMES: &str = "POST /v3/p/volumes";

#[tokio::test]
async fn volumes_are_in_the_zone_that_the_spec_names_for_them() {
    let zones = |stage: &Stage| -> Vec<Value> {
        stage.sent(VOLUMES).iter().map(|sent| sent["volume"]["availability_zone"].clone()).collect()
    };
    let sizes = json!({ "root_size": "10GiB", "data_size": "1GiB", "availability_zone": "compute-a" });
    let stage = Stage::new(&sizes);
    stage.create(Data::Goes).await;
    assert_eq!(zones(&stage), [Value::Null, Value::Null], "Cinder chooses: its zones may have other names");
    let mut named = sizes.clone();
    named["volume_zone"] = json!("zone-a");
    let stage = Stage::new(&named);
    stage.create(Data::Goes).await;
    assert_eq!(zones(&stage), ["zone-a", "zone-a"]);
    assert_eq!(stage.sent("POST /v2.1/servers")[0]["server"]["availability_zone"], "compute-a");
    assert_eq!(stage.mark()["quorate.build.volume zone"], "zone-a");
    // A cloud that falls back to another zone.
    named["volume_zone"] = json!("zone-b");
    let said = Stage::new(&named).try_create(Data::Goes).await.unwrap_err().to_string();
    assert!(said.contains("in the zone zone-a and not in zone-b"), "{said}");
}

#[tokio::test]
async fn the_mark_says_what_a_kept_volume_is_and_not_what_the_spec_wants() {
    let settings = json!({ "data_size": "2GiB", "volume_type": "ssd", "volume_zone": "zone-b" });
    let recorded = json!({ "volume_type": "HDD", "metadata": { "quorate.volume_type": "hdd" } });
    // The second was made before volumes recorded it.
    for mut kept in [recorded, json!({ "volume_type": "hdd" })] {
        let stage = Stage::new(&settings);
        kept["availability_zone"] = json!("zone-a");
        stage.leave_volume(&kept);
        stage.create(Data::Stays).await;
        assert_eq!(stage.sent(VOLUMES), Vec::<Value>::new(), "the member keeps its data");
        let mark = stage.mark();
        let part = |name: &str| mark[format!("quorate.build.{name}")].as_str().map(str::to_owned).unwrap();
        assert_eq!(
            (part("volume type"), part("volume zone"), part("data volume")),
            (String::from("hdd"), String::from("zone-a"), String::from("1GiB"),)
        );
    }
}

#[tokio::test]
async fn a_port_has_its_identity_in_its_mark() {
    let stage = Stage::new(&json!({ "more_ports": [{ "network": "n" }] }));
    stage.create(Data::Goes).await;
    let ports = stage.sent("POST /v2.0/ports");
    let marks: Vec<&Value> = ports.iter().map(|port| &port["port"]["description"]).collect();
    assert_eq!(marks, ["quorate c1 port etcd-1 2 7 0", "quorate c1 port etcd-1 2 7 1"]);
}

#[tokio::test]
async fn a_boot_volume_is_whole_once_its_server_runs() {
    let stage = Stage::new(&json!({ "root_size": "10GiB" }));
    stage.create(Data::Goes).await;
    let marked = stage.sent("POST /v3/p/volumes/v1/metadata");
    assert_eq!(marked, [json!({ "metadata": { "quorate.state": "whole" } })]);
}

#[tokio::test]
async fn only_a_compute_service_with_the_needed_versions_is_used() {
    let cases = [
        ("2.90", "2.1", None),
        ("2.64", "2.56", None),
        ("2.63", "2.1", Some("up to 2.63")),
        ("", "", Some("Rocky or later")),
        ("2.120", "2.57", Some("from 2.57")),
        ("3.1", "3.0", Some("from 3.0")),
    ];
    for (newest, oldest, refusal) in cases {
        let stage = Stage::new(&json!({}));
        stage.always("GET /v2.1/", json!({ "version": { "version": newest, "min_version": oldest } }));
        let said = stage.try_create(Data::Goes).await.err().map(|error| error.to_string());
        match (&said, refusal) {
            (None, None) => {}
            (Some(said), Some(refusal)) => assert!(said.contains(refusal), "{said}"),
            _ => panic!("{newest} {oldest}: {said:?}"),
        }
    }
}

#[tokio::test]
async fn what_the_quota_has_no_room_for_is_refused_before_anything_is_created() {
    let limits = |limits: Value| json!({ "limits": { "absolute": limits } });
    let network =
        |what: &str, left: i64| json!({ "quota": { what: { "limit": 10, "used": 10 - left, "reserved": 0 } } });
    let compute = "GET /v2.1/limits";
    let neutron = "GET /v2.0/quotas/p/details";
    let cases = [
        (compute, limits(json!({ "maxPersonality": 1 })), "injected files"),
        (compute, limits(json!({ "maxPersonalitySize": 100 })), "bytes of an injected file"),
        (compute, limits(json!({ "maxServerGroups": 3, "totalServerGroupsUsed": 3 })), "server groups"),
        (neutron, network("port", 1), "ports"),
        (neutron, network("floatingip", 0), "floating IPs"),
        (neutron, network("security_group", 0), "security groups"),
    ];
    for (call, answer, refusal) in cases {
        let mut stage = Stage::new(&json!({ "more_ports": [{ "network": "n" }], "floating_network": "public" }));
        for field in ["spread", "security_groups"] {
            stage.settings.as_object_mut().unwrap().remove(field);
        }
        stage.always("GET /v2.1/os-server-groups", json!({ "server_groups": [] }));
        stage.always("GET /v2.0/security-groups", json!({ "security_groups": [] }));
        stage.always("GET /v2.0/floatingips", json!({ "floatingips": [] }));
        stage.always(call, answer);
        let said = stage.try_create(Data::Goes).await.unwrap_err().to_string();
        assert!(said.contains(&format!("the quota of {refusal} has ")), "{said}");
        assert!(stage.script.lock().unwrap().sent.is_empty(), "{refusal}");
    }
}
