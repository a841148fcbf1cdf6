//! The requests that create a server, and the resulting mark.

use std::rc::Rc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quorate_core::Secret;
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::etcd::versions;
use quorate_core::model::Ledger;
use quorate_core::spec;

use super::super::script::{Shared, Then, script, serve};
use quorate_agent::api::boot::{MACHINE_FILE, SEED_FILE};
use quorate_agent::boot::PLACED_SEED;

use super::*;
use crate::Provider;

fn openstack(settings: &Value) -> Openstack {
    let spec = spec::generated("demo", 1, versions::DEFAULT, ClientAuth::Certificate).unwrap();
    let ledger = Ledger::new(String::from("c1"), spec.clusters.into_iter().next().unwrap());
    let mut all = json!({ "image": "m", "flavor": "f", "network": "n" });
    all.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    Openstack::new(&ledger, &serde_json::from_value(all).unwrap())
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
            token: &Secret::new(TOKEN),
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

    /// What cloud-init is told on the server, as text and as settings.
    fn user_data(&self) -> (String, Value) {
        let sent = self.sent("POST /v2.1/servers").remove(0);
        let text = String::from_utf8(STANDARD.decode(sent["server"]["user_data"].as_str().unwrap()).unwrap()).unwrap();
        let config = serde_json::from_str(text.strip_prefix("#cloud-config\n").unwrap()).unwrap();
        (text, config)
    }

    /// The mark of the machine.
    fn mark(&self) -> Value {
        self.sent("POST /v2.1/servers/s1/metadata").pop().unwrap()["metadata"].clone()
    }
}

const VOLUMES: &str = "POST /v3/p/volumes";
const TOKEN: &str = "the-enrolment-token";
const SUM: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

fn program(sum: &str) -> Value {
    json!({ "url": "https://objects.example.com/v1/AUTH_p/quorate", "sha256": sum })
}

#[tokio::test]
async fn a_key_pair_keeps_the_user_that_it_lets_in() {
    for (key_pair, users) in [(Some("ada"), json!(["default"])), (None, json!([]))] {
        let stage = Stage::new(&json!({ "key_pair": key_pair }));
        stage.create(Data::Goes).await;
        assert_eq!(stage.user_data().1["users"], users, "nobody can log in as a default user without a key");
    }
}

#[tokio::test]
async fn a_stock_image_gets_the_program_by_cloud_init_and_the_token_on_its_config_drive_alone() {
    let hash = "$6$salt$hash";
    let admin = json!({ "user": "ada", "ssh_keys": ["ssh-ed25519 AAAA ada"], "console_password_hash": hash });
    let stage = Stage::new(&json!({ "program": program(SUM), "admin": admin }));
    stage.create(Data::Goes).await;
    let (text, config) = stage.user_data();
    let script = config["runcmd"][0][2].as_str().unwrap();
    for part in [
        "curl -fsSL -o /usr/lib/quorate/quorate.new 'https://objects.example.com/v1/AUTH_p/quorate'",
        &format!("echo '{SUM}  /usr/lib/quorate/quorate.new' | sha256sum -c - &&"),
        "&& /usr/lib/quorate/quorate agent boot --beside-cloud-init",
    ] {
        assert!(script.contains(part), "{part} is not in {script}");
    }
    assert_eq!((&config["hostname"], &config["users"][0]["name"]), (&json!("etcd-1-2"), &json!("ada")));
    assert!(!text.contains(TOKEN) && !text.contains(hash), "every process on the machine can read this: {text}");
    // What the agent needs when it starts is on the disk that the server boots with.
    let server = stage.sent("POST /v2.1/servers").remove(0)["server"].take();
    assert_eq!(server["config_drive"], true);
    let file = |name: &str| {
        let path = format!("/{PLACED_SEED}/{name}");
        let file = server["personality"].as_array().unwrap().iter().find(|file| file["path"] == path.as_str());
        let content = STANDARD.decode(file.unwrap()["contents"].as_str().unwrap()).unwrap();
        serde_json::from_slice::<Value>(&content).unwrap()
    };
    assert_eq!(file(SEED_FILE)["token"], TOKEN);
    assert_eq!(file(MACHINE_FILE)["admin"]["console_password_hash"], hash);
    let mut others = server.clone();
    others.as_object_mut().unwrap().remove("personality");
    assert!(!others.to_string().contains(TOKEN), "what the API shows: {others}");
}

/// Without a config drive: the seed is in user data, and in nothing else that the API has.
#[tokio::test]
async fn servers_without_a_config_drive_get_their_seed_as_user_data() {
    for seed in ["cloud_init", "quorate"] {
        // A quota of injected files is no obstacle.
        let stage = Stage::new(&json!({ "seed": seed }));
        stage.always("GET /v2.1/limits", json!({ "limits": { "absolute": { "maxPersonality": 0 } } }));
        stage.create(Data::Goes).await;
        let server = stage.sent("POST /v2.1/servers").remove(0)["server"].take();
        assert_eq!((&server["config_drive"], server.get("personality")), (&json!(false), None));
        let text = String::from_utf8(STANDARD.decode(server["user_data"].as_str().unwrap()).unwrap()).unwrap();
        let found: Value = if seed == "cloud_init" {
            let config = stage.user_data().1;
            let file = &config["write_files"][0];
            assert_eq!(
                (&file["path"], &file["permissions"]),
                (&json!("/var/lib/quorate/seed/seed.json"), &json!("0600"))
            );
            serde_json::from_slice(&STANDARD.decode(file["content"].as_str().unwrap()).unwrap()).unwrap()
        } else {
            let all: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(all["quorate"]["machine"]["interfaces"][0]["mac"], "fa:16:3e:00:00:01");
            all["quorate"]["seed"].clone()
        };
        assert_eq!((&found["token"], &found["address"]), (&json!(TOKEN), &json!("10.0.0.1")));
        let mut others = server.clone();
        others.as_object_mut().unwrap().remove("user_data");
        assert!(!others.to_string().contains(TOKEN), "{others}");
        assert!(stage.mark()["quorate.build.seed"].as_str().unwrap().starts_with("user data for "));
    }
}

#[tokio::test]
async fn a_subnet_without_dhcp_is_refused_where_there_is_no_config_drive() {
    let subnet = json!({ "id": "sn1", "name": "sn", "cidr": "10.0.0.0/24", "enable_dhcp": false });
    for (seed, is_refused) in [("config_drive", false), ("cloud_init", true), ("quorate", true)] {
        let stage = Stage::new(&json!({ "seed": seed }));
        stage.always("GET /v2.0/subnets", json!({ "subnets": [subnet] }));
        let said = stage.try_create(Data::Goes).await.err().map(|error| error.to_string());
        assert_eq!(said.is_some(), is_refused, "{seed}: {said:?}");
        if let Some(said) = said {
            assert!(said.contains("the subnet sn has no DHCP"), "{said}");
            assert!(stage.script.lock().unwrap().sent.is_empty(), "nothing was created");
        }
    }
}

#[tokio::test]
async fn an_image_with_the_agent_downloads_nothing() {
    let stage = Stage::new(&json!({}));
    stage.create(Data::Goes).await;
    let commands = stage.user_data().1["runcmd"].clone();
    assert_eq!(commands, json!([["sh", "-c", "/usr/lib/quorate/quorate agent boot --beside-cloud-init"]]));
}

/// A newer program comes to machines that exist by `quorate apply` itself.
#[tokio::test]
async fn another_source_of_the_program_replaces_no_machine() {
    let mut marks = Vec::new();
    for program in [Value::Null, program(SUM), program(&SUM.replace('9', "8"))] {
        let stage = Stage::new(&json!({ "program": program }));
        stage.create(Data::Goes).await;
        marks.push(stage.mark());
    }
    assert_eq!(marks[0]["quorate.build.image"], "m");
    assert!(marks.iter().all(|mark| *mark == marks[0]), "{marks:#?}");
}

#[tokio::test]
async fn user_data_that_nova_does_not_take_is_refused_before_anything_is_created() {
    let settings = |keys: usize| {
        let key = |n: usize| format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{n:0>60} ada");
        let keys: Vec<String> = (0..keys).map(key).collect();
        json!({ "program": program(SUM), "admin": { "user": "ada", "ssh_keys": keys } })
    };
    let stage = Stage::new(&settings(400));
    stage.create(Data::Goes).await;
    let longest = stage.sent("POST /v2.1/servers").remove(0)["server"]["user_data"].as_str().unwrap().len();
    assert!(longest <= 65_535, "{longest}");
    let stage = Stage::new(&settings(600));
    let said = stage.try_create(Data::Goes).await.unwrap_err().to_string();
    assert!(said.contains("the user data of etcd-1 has ") && said.contains("and Nova takes 65535: shorten"), "{said}");
    assert!(stage.script.lock().unwrap().sent.is_empty());
}

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
async fn exceeded_quotas_are_refused_before_anything_is_created() {
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
