//! Servers that someone paused, shelved, resized, broke or deleted outside of quorate: each recovers, with its data, or is deleted with all
//! that it has.

use std::collections::BTreeSet;
use std::time::Duration;

use hyper::Method;
use libtest_mimic::Trial;
use quorate_core::model::{MachineId, MachineSeen, PowerState};
use quorate_core::providers::Settings;
use quorate_core::providers::openstack::OpenstackSettings;
use quorate_core::spec::MemberSpec;
use quorate_providers::{Data, Openstack, Provider};
use serde_json::{Value, json};

use super::cloud::{Fault, Proxy};
use super::{Api, Place};
use crate::suite::{Enrolment, Ground, runtime};

const LARGER: &str = "record-2";
/// A region whose compute service keeps deleted servers for an hour.
const KEEPING: &str = "Keeping";

pub fn trials() -> Vec<Trial> {
    let set_aside = Trial::test("openstack::a_server_that_was_set_aside_is_brought_back", || {
        runtime().block_on(set_aside());
        Ok(())
    });
    let broken = Trial::test("openstack::a_broken_server_is_rebooted_or_left_to_repair", || {
        runtime().block_on(broken());
        Ok(())
    });
    let resized = Trial::test("openstack::a_resize_is_confirmed_and_seen", || {
        runtime().block_on(resized());
        Ok(())
    });
    let locked = Trial::test("openstack::a_locked_server_is_reported_with_its_remedy", || {
        runtime().block_on(locked());
        Ok(())
    });
    let hidden = Trial::test("openstack::a_server_that_lists_do_not_show_keeps_its_port", || {
        runtime().block_on(hidden());
        Ok(())
    });
    let renamed = Trial::test("openstack::renamed_ports_go_with_their_server", || {
        runtime().block_on(renamed());
        Ok(())
    });
    let moved = Trial::test("openstack::a_server_that_was_migrated_or_rebuilt_is_the_same_machine", || {
        runtime().block_on(moved());
        Ok(())
    });
    let deleted = Trial::test("openstack::a_deleted_server_that_the_cloud_keeps_is_restored", || {
        runtime().block_on(deleted());
        Ok(())
    });
    let keeping = Trial::test("openstack::a_cloud_that_keeps_deleted_servers_keeps_none_of_quorates", || {
        runtime().block_on(keeping());
        Ok(())
    });
    let unmarkable = Trial::test("openstack::a_server_in_any_state_is_deleted_with_its_resources", || {
        runtime().block_on(any_state());
        Ok(())
    });
    vec![set_aside, broken, resized, locked, hidden, renamed, moved, deleted, keeping, unmarkable]
}

struct Stage {
    place: Place,
    provider: Openstack,
    api: Api,
    machine: MachineId,
    server: String,
}

impl Stage {
    async fn new() -> Self {
        Self::with(Proxy::new(|_, _| None)).await
    }

    async fn with(proxy: Proxy) -> Self {
        let place = Place::new();
        let provider = place.through(proxy).await;
        let (enrolment, machine) = (Enrolment::new(), MachineId::new(&"etcd-1".into(), 1));
        provider.admit(1).await.expect("admitted");
        let new = enrolment.machine("etcd-1", machine.clone(), place.pinned("etcd-1"), Data::Goes, 1);
        provider.create(&new).await.expect("a machine");
        place.write_data("etcd-1", "precious").await;
        let api = Api::new().await;
        let servers = api.items("compute", "/servers/detail", "servers").await;
        let name = place.server("etcd-1");
        let server = servers.iter().find(|server| server["name"] == name).expect("a server");
        let server = server["id"].as_str().expect("an id").to_owned();
        Stage { place, provider, api, machine, server }
    }

    async fn action(&self, api: &Api, action: Value) {
        let said = api.post("compute", &format!("/servers/{}/action", self.server), action.clone()).await;
        // A password for the rescue image, which nobody needs here.
        assert!(said.is_null() || said.get("adminPass").is_some(), "{action}: {said}");
    }

    /// Where it runs, which only the operators of the cloud see.
    async fn host(&self, operator: &Api) -> Value {
        let found = operator.get("compute", &format!("/servers/{}", self.server)).await;
        found["server"]["OS-EXT-SRV-ATTR:host"].clone()
    }

    async fn status(&self) -> String {
        let found = self.api.get("compute", &format!("/servers/{}", self.server)).await;
        let busy = &found["server"]["OS-EXT-STS:task_state"];
        let status = found["server"]["status"].as_str().unwrap_or("none");
        if busy.is_null() { status.to_owned() } else { format!("{status} ({busy})") }
    }

    async fn until(&self, status: &str) {
        for _ in 0..600 {
            if self.status().await == status {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        panic!("it is {}, and not {status}", self.status().await);
    }

    async fn until_it_left(&self, operator: &Api, host: &Value) {
        for _ in 0..600 {
            if self.host(operator).await != *host && self.status().await == "ACTIVE" {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        panic!("it is {} on {host}", self.status().await);
    }

    /// Ports of the server.
    async fn ports(&self) -> Vec<String> {
        let ports = self.api.items("network", &format!("/ports?device_id={}", self.server), "ports").await;
        ports.iter().map(|port| port["id"].as_str().expect("an id").to_owned()).collect()
    }

    async fn seen(&self) -> MachineSeen {
        let mut found = self.provider.machines().await.expect("a look").found;
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0).1
    }

    /// As somebody else deletes it, where the cloud keeps it.
    async fn delete_and_keep(&self) {
        let keeping = Api::of_region(super::CLOUD, KEEPING).await;
        keeping.call(Method::DELETE, "compute", &format!("/servers/{}", self.server), None).await;
        self.until("SOFT_DELETED").await;
        let listed = self.api.items("compute", "/servers/detail", "servers").await;
        assert!(!listed.iter().any(|server| server["id"] == *self.server), "no list shows it");
    }

    async fn nothing_is_left(&self) {
        self.provider.dismiss(9).await.expect("dismissed");
        self.provider.forget().await.expect("forgotten");
        assert_eq!(self.place.inventory().await, BTreeSet::new());
        assert_eq!(self.status().await, "none");
    }

    async fn end(&self) {
        assert_eq!(self.place.read_data("etcd-1").await.as_deref(), Some("precious"), "nothing was lost");
        self.provider.destroy(&self.machine, Data::Goes).await.expect("destroyed");
        self.provider.dismiss(9).await.expect("dismissed");
        self.provider.forget().await.expect("forgotten");
    }
}

async fn set_aside() {
    let stage = Stage::new().await;
    let states = [
        ("pause", "PAUSED", true),
        ("suspend", "SUSPENDED", true),
        // The lab's nova frees the host at once.
        ("shelve", "SHELVED_OFFLOADED", false),
    ];
    for (action, status, keeps_memory) in states {
        stage.action(&stage.api, json!({ action: null })).await;
        stage.until(status).await;
        let seen = stage.seen().await;
        assert_eq!((seen.power, seen.headless), (PowerState::Off, keeps_memory), "{status}");
        stage.provider.start(&stage.machine).await.unwrap_or_else(|error| panic!("{status}: {error}"));
        assert_eq!(stage.status().await, "ACTIVE", "after {status}");
        assert_eq!(stage.seen().await.power, PowerState::On);
    }
    // One that is off when it is paused cannot be; one that is paused when it is to stop stops.
    stage.action(&stage.api, json!({ "pause": null })).await;
    stage.until("PAUSED").await;
    stage.provider.stop(&stage.machine).await.expect("stopped");
    assert_eq!(stage.status().await, "SHUTOFF");
    stage.provider.start(&stage.machine).await.expect("started");
    // Somebody works on it.
    stage.action(&stage.api, json!({ "rescue": {} })).await;
    stage.until("RESCUE").await;
    assert_eq!(stage.seen().await.power, PowerState::Unknown);
    let said = stage.provider.start(&stage.machine).await.expect_err("it is left alone").to_string();
    assert!(said.contains("unrescue"), "{said}");
    let console = stage.provider.console(&stage.machine).await.expect("a console");
    assert!(console.contains("unrescue"), "{console}");
    stage.action(&stage.api, json!({ "unrescue": null })).await;
    stage.until("ACTIVE").await;
    stage.end().await;
}

async fn broken() {
    // Reboots fail while this is so.
    let refuses = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let judge = refuses.clone();
    let proxy = Proxy::new(move |method, path| {
        let refused = judge.load(std::sync::atomic::Ordering::SeqCst);
        (refused && *method == Method::POST && path.ends_with("/action")).then_some(Fault::Status(409))
    });
    let stage = Stage::with(proxy).await;
    let admin = Api::of("admin").await;
    let fail = json!({ "os-resetState": { "state": "error" } });
    // What still runs is left alone.
    stage.action(&admin, fail.clone()).await;
    stage.until("ERROR").await;
    stage.provider.admit(2).await.expect("admitted");
    assert_eq!(stage.status().await, "ERROR");
    assert_eq!(stage.seen().await.power, PowerState::On);
    stage.action(&admin, json!({ "os-resetState": { "state": "active" } })).await;
    // What does not is rebooted. Where that fails, it is a machine whose agent does not answer.
    stage.action(&stage.api, json!({ "os-stop": null })).await;
    stage.until("SHUTOFF").await;
    stage.action(&admin, fail).await;
    stage.until("ERROR").await;
    stage.provider.admit(3).await.expect("a server that stays broken stops nobody");
    assert_eq!(stage.seen().await.power, PowerState::On, "so that it is replaced when it does not answer");
    let console = stage.provider.console(&stage.machine).await.expect("a console");
    assert!(console.contains("ERROR"), "{console}");
    refuses.store(false, std::sync::atomic::Ordering::SeqCst);
    stage.provider.admit(4).await.expect("admitted");
    assert_eq!(stage.status().await, "ACTIVE");
    stage.end().await;
}

async fn resized() {
    let stage = Stage::new().await;
    let wanted = stage.place.settings().build(&MemberSpec::named("etcd-1".parse().expect("a name")));
    let wanted = wanted.expect("a build");
    assert_eq!(stage.seen().await.build.expect("a build").difference(&wanted), None);
    let flavors = stage.api.items("compute", "/flavors", "flavors").await;
    let larger = flavors.iter().find(|flavor| flavor["name"] == LARGER).expect("a flavor")["id"].clone();
    stage.action(&stage.api, json!({ "resize": { "flavorRef": larger } })).await;
    stage.until("VERIFY_RESIZE").await;
    assert_eq!(stage.seen().await.power, PowerState::On);
    stage.provider.admit(2).await.expect("admitted");
    assert_eq!(stage.status().await, "ACTIVE", "it was confirmed");
    let difference = stage.seen().await.build.expect("a build").difference(&wanted).expect("another flavor");
    assert!(difference.contains(LARGER), "{difference}");
    stage.end().await;
}

async fn locked() {
    let stage = Stage::new().await;
    stage.action(&stage.api, json!({ "lock": null })).await;
    let (stopped, destroyed) =
        (stage.provider.stop(&stage.machine).await, stage.provider.destroy(&stage.machine, Data::Goes).await);
    for said in [stopped, destroyed].map(|refused| refused.expect_err("it is locked").to_string()) {
        assert!(said.contains(&format!("openstack server unlock {}", stage.server)), "{said}");
    }
    assert_eq!(stage.seen().await.power, PowerState::On);
    stage.action(&stage.api, json!({ "unlock": null })).await;
    stage.end().await;
}

/// Nova keeps the server with its address and its volume. Whether its root disk is a new one, its agent shows: it does not answer.
async fn moved() {
    let stage = Stage::new().await;
    let operator = Api::of("admin").await;
    let before = stage.seen().await;
    let first = stage.host(&operator).await;
    stage.action(&operator, json!({ "os-migrateLive": { "host": null, "block_migration": "auto" } })).await;
    stage.until_it_left(&operator, &first).await;
    assert_eq!(stage.seen().await, before);
    let second = stage.host(&operator).await;
    stage.action(&operator, json!({ "migrate": null })).await;
    stage.until("VERIFY_RESIZE").await;
    stage.provider.admit(2).await.expect("admitted");
    stage.until_it_left(&operator, &second).await;
    assert_eq!(stage.seen().await, before);
    let server = stage.api.get("compute", &format!("/servers/{}", stage.server)).await;
    let rebuild = json!({ "rebuild": { "imageRef": server["server"]["image"]["id"] } });
    let said = stage.api.post("compute", &format!("/servers/{}/action", stage.server), rebuild).await;
    assert_eq!(said["server"]["status"], "REBUILD", "{said}");
    stage.until("ACTIVE").await;
    assert_eq!(stage.seen().await, before);
    stage.end().await;
}

/// A running server that is missing from lists still has its port, and is a machine again when it can be seen.
async fn hidden() {
    // The compute service is away, and something in front of it answers.
    let away = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let judge = away.clone();
    let proxy = Proxy::new(move |_, path| {
        let is_away = judge.load(std::sync::atomic::Ordering::SeqCst);
        (is_away && path.starts_with("/compute/")).then_some(Fault::Status(404))
    });
    let stage = Stage::with(proxy).await;
    let ports = stage.ports().await;
    assert_eq!(ports.len(), 2, "{ports:?}");
    away.store(true, std::sync::atomic::Ordering::SeqCst);
    stage.provider.admit(2).await.expect_err("nobody knows which servers there are");
    stage.provider.dismiss(2).await.expect_err("still nobody knows");
    away.store(false, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(stage.ports().await, ports);

    let path = format!("/servers/{}", stage.server);
    stage.api.call(Method::DELETE, "compute", &format!("{path}/tags"), None).await;
    assert!(stage.provider.machines().await.expect("a look").found.is_empty(), "nobody sees it");
    stage.provider.admit(3).await.expect("admitted");
    assert_eq!(stage.ports().await, ports);
    assert_eq!(stage.seen().await.power, PowerState::On, "it has its tag again");

    let metadata = stage.api.get("compute", &format!("{path}/metadata")).await;
    let put = async |metadata: Value| {
        stage.api.call(Method::PUT, "compute", &format!("{path}/metadata"), Some(metadata)).await
    };
    put(json!({ "metadata": {} })).await;
    let said = stage.provider.admit(4).await.expect_err("it is nobody's").to_string();
    assert!(said.contains(&stage.server) && said.contains("metadata"), "{said}");
    assert_eq!(stage.ports().await, ports);
    put(metadata).await;
    stage.provider.admit(5).await.expect("admitted");
    assert_eq!(stage.ports().await, ports);
    stage.end().await;
}

async fn renamed() {
    let stage = Stage::new().await;
    let name = format!("{}-uplink", stage.place.cluster);
    for port in stage.ports().await {
        let change = json!({ "port": { "name": name } });
        stage.api.call(Method::PUT, "network", &format!("/ports/{port}"), Some(change)).await;
    }
    stage.provider.admit(2).await.expect("admitted");
    assert_eq!(stage.ports().await.len(), 2, "its server has them");
    stage.end().await;
    let left = stage.api.inventory(&stage.place.cluster, &[stage.place.cluster_id()]).await;
    assert_eq!(left, BTreeSet::new());
}

/// Its disks, its ports and its volumes are there, and no list shows it.
async fn deleted() {
    let stage = Stage::new().await;
    let (before, ports) = (stage.seen().await, stage.ports().await);
    stage.delete_and_keep().await;
    let off = MachineSeen { power: PowerState::Off, ..before.clone() };
    assert_eq!(stage.seen().await, off);
    stage.provider.admit(2).await.expect("admitted");
    assert_eq!(stage.ports().await, ports, "its ports are in use");
    stage.provider.start(&stage.machine).await.expect("restored");
    assert_eq!((stage.status().await, stage.seen().await), (String::from("ACTIVE"), before));
    // It is deleted while nobody wants it any more.
    assert_eq!(stage.place.read_data("etcd-1").await.as_deref(), Some("precious"));
    stage.delete_and_keep().await;
    stage.provider.destroy(&stage.machine, Data::Goes).await.expect("destroyed");
    stage.nothing_is_left().await;
}

/// What quorate deletes is gone, also if that was interrupted.
async fn keeping() {
    let stage = Stage::new().await;
    let settings = OpenstackSettings { region: Some(KEEPING.to_owned()), ..stage.place.settings() };
    let provider = stage.place.openstack(stage.place.cluster_id(), &settings, &super::clouds());
    provider.destroy(&stage.machine, Data::Stays).await.expect("destroyed");
    assert_eq!(stage.status().await, "none");
    // Killed after the server was marked and its deletion began.
    let enrolment = Enrolment::new();
    let new = enrolment.machine("etcd-1.2", MachineId::new(&"etcd-1".into(), 2), None, Data::Stays, 2);
    provider.create(&new).await.expect("a machine");
    assert_eq!(stage.place.read_data("etcd-1.2").await.as_deref(), Some("precious"));
    let name = stage.place.server("etcd-1.2");
    let servers = stage.api.items("compute", "/servers/detail", "servers").await;
    let server = servers.iter().find(|server| server["name"] == name).expect("a server")["id"].clone();
    let stage = Stage { server: server.as_str().expect("an id").to_owned(), ..stage };
    let going = json!({ "metadata": { "quorate.state": "going", "quorate.data": "" } });
    stage.api.post("compute", &format!("/servers/{}/metadata", stage.server), going).await;
    stage.delete_and_keep().await;
    provider.admit(3).await.expect("admitted");
    assert_eq!(stage.status().await, "none");
    stage.nothing_is_left().await;
}

/// Nova changes the metadata of servers that run or are off, and of no others.
async fn any_state() {
    let admin = Api::of("admin").await;
    let stage = Stage::new().await;
    stage.action(&stage.api, json!({ "os-stop": null })).await;
    stage.until("SHUTOFF").await;
    stage.action(&admin, json!({ "os-resetState": { "state": "error" } })).await;
    stage.until("ERROR").await;
    stage.provider.destroy(&stage.machine, Data::Stays).await.expect("destroyed");
    assert_eq!(stage.status().await, "none");
    let (enrolment, next) = (Enrolment::new(), MachineId::new(&"etcd-1".into(), 2));
    let new = enrolment.machine("etcd-1.2", next.clone(), stage.place.pinned("etcd-1"), Data::Stays, 2);
    stage.provider.create(&new).await.expect("a machine");
    assert_eq!(stage.place.read_data("etcd-1.2").await.as_deref(), Some("precious"), "its data stayed");
    stage.provider.destroy(&next, Data::Goes).await.expect("destroyed");
    stage.nothing_is_left().await;
    let states = [
        (json!({ "shelve": null }), "SHELVED_OFFLOADED"),
        (json!({ "rescue": {} }), "RESCUE"),
        (json!({ "suspend": null }), "SUSPENDED"),
    ];
    for (action, status) in states {
        let stage = Stage::new().await;
        stage.action(&stage.api, action).await;
        stage.until(status).await;
        stage.provider.destroy(&stage.machine, Data::Goes).await.unwrap_or_else(|error| panic!("{status}: {error}"));
        stage.nothing_is_left().await;
    }
}
