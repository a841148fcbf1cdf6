//! Further ports, floating IPs and IPv6: a member keeps its own, they are found by their mark, and are deleted with it. Those of the
//! operator are kept.

use std::collections::BTreeSet;
use std::net::IpAddr;

use hyper::Method;
use libtest_mimic::Trial;
use quorate_core::model::MachineId;
use quorate_core::providers::openstack::{OpenstackSettings, ServerSettings};
use quorate_providers::{Data, Openstack, Provider};
use serde_json::{Value, json};

use super::cloud::{Api, Proxy};
use super::{NETWORK, Place, clouds};
use crate::suite::{Enrolment, Ground, runtime};

const PUBLIC: &str = "public";

pub fn trials() -> Vec<Trial> {
    let trial = |name: &str, run: fn()| {
        Trial::test(format!("openstack::{name}"), move || {
            run();
            Ok(())
        })
    };
    vec![
        trial("a_floating_ip_stays_with_its_member", || runtime().block_on(it_stays())),
        trial("a_floating_ip_moves_when_the_old_server_is_gone", || runtime().block_on(it_moves())),
        trial("a_floating_ip_of_the_operator_is_led_and_never_deleted", || runtime().block_on(of_the_operator())),
        trial("a_crash_while_a_floating_ip_is_made_leaves_nothing", || runtime().block_on(crashes())),
        trial("further_ports_are_made_and_those_of_the_operator_stay", || runtime().block_on(further_ports())),
        trial("addresses_of_ipv6", || runtime().block_on(ipv6())),
    ]
}

fn with_floating(place: &Place) -> OpenstackSettings {
    OpenstackSettings { floating_network: Some(PUBLIC.to_owned()), ..place.settings() }
}

fn provider(place: &Place, settings: &OpenstackSettings) -> Openstack {
    place.openstack(&place.cluster_id, settings, &clouds())
}

/// With this section for the first member.
fn provider_with(place: &Place, section: &Value) -> Openstack {
    let section: ServerSettings = serde_json::from_value(section.clone()).expect("a section");
    place.openstack_of(&place.settings(), |spec| spec.members[0].openstack = Some(section))
}

async fn create(
    provider: &Openstack,
    incarnation: u64,
    address: Option<IpAddr>,
    fence: u64,
) -> Result<MachineId, String> {
    let (enrolment, machine) = (Enrolment::new(), MachineId::new(&"etcd-1".into(), incarnation));
    let name = if incarnation == 1 { String::from("etcd-1") } else { format!("etcd-1.{incarnation}") };
    let new = enrolment.machine(&name, machine.clone(), address, Data::Goes, fence);
    provider.create(&new).await.map_err(|error| error.to_string())?;
    Ok(machine)
}

async fn floating(api: &Api, place: &Place) -> Vec<Value> {
    let all = api.items("network", "/floatingips", "floatingips").await;
    all.into_iter().filter(|one| one.to_string().contains(&place.cluster_id)).collect()
}

fn id(value: &Value) -> &str {
    value["id"].as_str().unwrap_or_else(|| panic!("no id: {value}"))
}

async fn port(api: &Api, place: &Place, machine: &str) -> Value {
    let path = format!("/ports?name={}-{machine}", place.cluster);
    let mut found = api.items("network", &path, "ports").await;
    assert_eq!(found.len(), 1, "{machine}: {found:#?}");
    found.remove(0)
}

async fn end(place: &Place, provider: &Openstack, machines: &[&MachineId], before: &BTreeSet<String>) {
    for machine in machines {
        provider.destroy(machine, Data::Goes).await.expect("destroyed");
    }
    provider.dismiss(9).await.expect("dismissed");
    provider.forget().await.expect("forgotten");
    assert_eq!(place.inventory().await, *before);
}

/// A machine at a fixed address: the old one goes before the new one comes.
async fn it_stays() {
    let (place, api) = (Place::new(), Api::new().await);
    let before = place.inventory().await;
    let settings = with_floating(&place);
    let here = provider(&place, &settings);
    here.admit(1).await.expect("admitted");
    let machine = create(&here, 1, place.pinned("etcd-1"), 1).await.expect("a machine");
    here.dismiss(1).await.expect("dismissed");
    let first = floating(&api, &place).await;
    assert_eq!(first.len(), 1, "{first:#?}");
    assert_eq!(first[0]["port_id"], port(&api, &place, "etcd-1.1.1").await["id"]);
    assert_eq!(first[0]["fixed_ip_address"], json!(place.pinned("etcd-1")));

    // The next controller finds the member without a server, as after a kill in the middle of its replacement.
    here.destroy(&machine, Data::Goes).await.expect("destroyed");
    here.dismiss(1).await.expect("dismissed");
    let here = provider(&place, &settings);
    here.admit(2).await.expect("admitted");
    let machine = create(&here, 2, place.pinned("etcd-1"), 2).await.expect("a machine");
    let second = floating(&api, &place).await;
    assert_eq!((second.len(), id(&second[0])), (1, id(&first[0])), "the same one");
    assert_eq!(second[0]["port_id"], port(&api, &place, "etcd-1.2.2").await["id"]);

    // Somebody takes it off, deletes it, and makes a second one with its mark.
    let path = format!("/floatingips/{}", id(&first[0]));
    api.call(Method::PUT, "network", &path, Some(json!({ "floatingip": { "port_id": null } }))).await;
    here.admit(3).await.expect("admitted");
    assert_eq!(floating(&api, &place).await[0]["port_id"], second[0]["port_id"]);
    let double =
        json!({ "floating_network_id": first[0]["floating_network_id"], "description": second[0]["description"] });
    api.post("network", "/floatingips", json!({ "floatingip": double })).await;
    here.admit(4).await.expect("admitted");
    let left = floating(&api, &place).await;
    assert_eq!((left.len(), id(&left[0])), (1, id(&first[0])), "the one in use stays");
    api.call(Method::DELETE, "network", &path, None).await;
    here.admit(5).await.expect("admitted");
    let again = floating(&api, &place).await;
    assert_eq!((again.len(), &again[0]["port_id"]), (1, &second[0]["port_id"]));

    // No longer wanted, while the machine stays.
    let here = provider(&place, &place.settings());
    here.admit(6).await.expect("admitted");
    assert_eq!(floating(&api, &place).await, Vec::<Value>::new());
    provider(&place, &settings).admit(7).await.expect("admitted");
    assert_eq!(floating(&api, &place).await.len(), 1, "wanted again");
    end(&place, &here, &[&machine], &before).await;
}

/// Without a fixed address the new machine comes first. Clients of the floating IP stay with the old one until it goes.
async fn it_moves() {
    let (place, api) = (Place::new(), Api::new().await);
    let before = place.inventory().await;
    let here = provider(&place, &with_floating(&place));
    here.admit(1).await.expect("admitted");
    let old = create(&here, 1, None, 1).await.expect("a machine");
    let new = create(&here, 2, None, 1).await.expect("a machine");
    let there = floating(&api, &place).await;
    assert_eq!((there.len(), &there[0]["port_id"]), (1, &port(&api, &place, "etcd-1.1.1").await["id"]));
    here.destroy(&old, Data::Goes).await.expect("destroyed");
    let moved = floating(&api, &place).await;
    assert_eq!((moved.len(), id(&moved[0])), (1, id(&there[0])));
    assert_eq!(moved[0]["port_id"], port(&api, &place, "etcd-1.2.1").await["id"]);
    end(&place, &here, &[&new], &before).await;
}

async fn of_the_operator() {
    let (place, api) = (Place::new(), Api::new().await);
    let before = place.inventory().await;
    let public = api.items("network", &format!("/networks?name={PUBLIC}"), "networks").await;
    let wish = json!({ "floating_network_id": public[0]["id"], "description": "of the operator" });
    let made = api.post("network", "/floatingips", json!({ "floatingip": wish })).await;
    let given = made["floatingip"].clone();
    let path = format!("/floatingips/{}", id(&given));
    let leads_to = async || api.get("network", &path).await["floatingip"]["port_id"].clone();
    let here = provider_with(&place, &json!({ "floating_ip": given["id"] }));

    // It leads to a machine of somebody else, and stays there.
    let address = place.pinned("etcd-8").expect("an address");
    let planted = api.plant(&format!("{}-planted", place.cluster), NETWORK, address).await;
    api.call(Method::PUT, "network", &path, Some(json!({ "floatingip": { "port_id": planted } }))).await;
    here.admit(1).await.expect("admitted");
    let said = create(&here, 1, place.pinned("etcd-1"), 1).await.expect_err("it is in use");
    assert!(said.contains(id(&given)) && said.contains("floating ip unset"), "{said}");
    here.dismiss(1).await.expect("dismissed");
    assert_eq!(leads_to().await, json!(planted));
    api.call(Method::DELETE, "network", &format!("/ports/{planted}"), None).await;

    here.admit(2).await.expect("admitted");
    let machine = create(&here, 1, place.pinned("etcd-1"), 2).await.expect("a machine");
    assert_eq!(leads_to().await, port(&api, &place, "etcd-1.1.2").await["id"]);
    api.call(Method::PUT, "network", &path, Some(json!({ "floatingip": { "port_id": null } }))).await;
    here.admit(3).await.expect("admitted");
    assert_eq!(leads_to().await, port(&api, &place, "etcd-1.1.2").await["id"]);
    end(&place, &here, &[&machine], &before).await;
    assert_eq!(leads_to().await, Value::Null, "it is there, and leads nowhere");
    api.call(Method::DELETE, "network", &path, None).await;
}

/// Killed after each of the calls that change anything: the next controller leaves nothing of a member that never had a server.
async fn crashes() {
    let place = Place::new();
    let before = place.inventory().await;
    let wanted = json!({ "floating_network": PUBLIC, "more_ports": [{ "network": "second" }] });
    let section: ServerSettings = serde_json::from_value(wanted).expect("a section");
    for after in 0.. {
        assert!(after < 100, "it ends");
        let (proxy, left) = Proxy::mortal(after);
        let path = place.directory.path().join(format!("mortal-{after}.yaml"));
        proxy.serve(&path).await;
        let change = |spec: &mut quorate_core::spec::ClusterSpec| spec.members[0].openstack = Some(section.clone());
        let dying = place.openstack_with(&place.cluster_id, &place.settings(), &path, change);
        let fence = u64::try_from(after).expect("small") + 1;
        let made = create(&dying, 1, place.pinned("etcd-1"), fence).await;
        let was_cut = left.load(std::sync::atomic::Ordering::SeqCst) < 0;
        let next = place.openstack_of(&place.settings(), change);
        next.admit(fence + 1).await.expect("admitted");
        if made.is_ok() || !next.machines().await.expect("a look").found.is_empty() {
            next.destroy(&MachineId::new(&"etcd-1".into(), 1), Data::Goes).await.expect("destroyed");
            next.dismiss(fence + 1).await.expect("dismissed");
            next.forget().await.expect("forgotten");
        }
        assert_eq!(place.inventory().await, before, "killed after {after} changes");
        if !was_cut {
            assert!(after > 5, "there was something to kill");
            return;
        }
    }
}

async fn further_ports() {
    let (place, api) = (Place::new(), Api::new().await);
    let before = place.inventory().await;
    let address: IpAddr = format!("10.81.{}.77", place.range).parse().expect("an address");
    let own: IpAddr = format!("10.81.{}.78", place.range).parse().expect("an address");
    let given = api.plant(&format!("{}-planted", place.cluster), "second", own).await;
    let section = json!({ "more_ports": [
        { "network": "second", "subnet": "second", "address": address },
        { "network": "second", "subnet": "second-6" },
        { "port": given },
    ] });
    let here = provider_with(&place, &section);
    here.admit(1).await.expect("admitted");
    let machine = create(&here, 1, place.pinned("etcd-1"), 1).await.expect("a machine");
    let seen = here.machines().await.expect("a look").found;
    assert_eq!(seen[0].1.address, place.pinned("etcd-1"), "the first port has the machine's address");
    let server = &api.items("compute", "/servers/detail", "servers").await;
    let server = server.iter().find(|server| server["name"] == place.server("etcd-1")).expect("a server");
    let ports = api.items("network", &format!("/ports?device_id={}", id(server)), "ports").await;
    let addresses: BTreeSet<&str> =
        ports.iter().filter_map(|port| port["fixed_ips"][0]["ip_address"].as_str()).collect();
    assert_eq!(ports.len(), 4, "{ports:#?}");
    assert!(addresses.iter().any(|address| address.starts_with("fd42:81:")), "{addresses:?}");
    for wanted in [address, own] {
        assert!(addresses.contains(wanted.to_string().as_str()), "{addresses:?}");
    }
    let groups = &port(&api, &place, "etcd-1.1.1").await["security_groups"];
    assert_eq!(
        port(&api, &place, "etcd-1.1.1-1").await["security_groups"],
        *groups,
        "they are guarded as the first is"
    );
    here.admit(2).await.expect("admitted");
    assert_eq!(place.inventory().await.iter().filter(|item| item.starts_with("ports ")).count(), 4, "all are in use");

    // Taken, by a port of a machine that lives.
    let other = MachineId::new(&"etcd-1".into(), 2);
    let enrolment = Enrolment::new();
    let new = enrolment.machine("etcd-1.2", other, place.pinned("etcd-2"), Data::Goes, 2);
    let said = here.create(&new).await.expect_err("it is taken").to_string();
    assert!(said.contains(&address.to_string()), "{said}");
    here.dismiss(2).await.expect("dismissed");
    here.destroy(&machine, Data::Goes).await.expect("destroyed");
    let left = api.get("network", &format!("/ports/{given}")).await;
    assert_eq!(
        (&left["port"]["id"], left["port"]["device_id"].as_str()),
        (&json!(given), Some("")),
        "it is the operator's"
    );
    api.call(Method::DELETE, "network", &format!("/ports/{given}"), None).await;
    end(&place, &here, &[], &before).await;
}

async fn ipv6() {
    let (place, api) = (Place::new(), Api::new().await);
    let before = place.inventory().await;
    let settings = OpenstackSettings { network: String::from("second"), ..place.settings() };
    let here = provider(&place, &settings);
    let address: IpAddr = format!("fd42:81::{}:11", place.range).parse().expect("an address");
    here.admit(1).await.expect("admitted");
    let machine = create(&here, 1, Some(address), 1).await.expect("a machine");
    assert_eq!(here.machines().await.expect("a look").found[0].1.address, Some(address));
    let found = port(&api, &place, "etcd-1.1.1").await["fixed_ips"][0]["ip_address"].clone();
    assert_eq!(found.as_str().and_then(|found| found.parse().ok()), Some(address));
    // Without one, the only subnet of IPv4 is meant.
    let second = create(&here, 2, None, 1).await.expect("a machine");
    let said = create(&here, 3, Some(address), 1).await.expect_err("it is taken");
    assert!(said.contains(&address.to_string()), "{said}");
    end(&place, &here, &[&machine, &second], &before).await;
}
