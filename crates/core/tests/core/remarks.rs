//! Notes above the steps of a plan: which clients the firewall would block, and how machines will run.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use quorate_core::model::{AgentSeen, MemberName, Observation, Seen};
use quorate_core::planner::{RemarkKind, Step, Surroundings, remarks};
use quorate_core::spec::{ClusterSpec, Document, HostFacts};

use crate::scene::Scene;

fn spec(firewall: &str, to: &str) -> ClusterSpec {
    let member =
        |n: u8| format!("{{name: m{n}, libvirt: {{interfaces: [{{{to}, address: 10.0.0.{n}, prefix: 24}}]}}}}");
    let text = format!(
        "quorate: 1\nclusters:\n  - name: c\n    provider: {{libvirt: {{pool: p, image: {{volume: i}}}}}}\n    \
         members: [{}, {}, {}]\n    host: {{firewall: {firewall}}}\n",
        member(1),
        member(2),
        member(3)
    );
    let checked = Document::parse("a.yaml", &text).expect("it is YAML").spec(&HostFacts::default());
    checked.spec.unwrap_or_else(|| panic!("{:?}", checked.problems)).clusters.remove(0)
}

/// This host comes to all members from the same address.
fn around(address: &str) -> Surroundings {
    let address: IpAddr = address.parse().unwrap();
    let comes_from = ["m1", "m2", "m3"].map(|member| (MemberName::from(member), address));
    Surroundings {
        comes_from: BTreeMap::from(comes_from),
        machines: Some(String::from("machines are emulated")),
        ..Surroundings::default()
    }
}

fn told(spec: &ClusterSpec, steps: &[Step], seen: &Observation, around: &Surroundings) -> Vec<String> {
    remarks(spec, steps, seen, around).into_iter().map(|remark| remark.text).collect()
}

#[test]
fn hosts_that_a_firewall_would_lock_out_are_named_before_the_machines_are_created() {
    let spec = spec("{controller_from: [10.1.0.0/16], clients_from: [10.0.0.0/24]}", "network: n");
    let scene = Scene::nothing(spec.clone());
    let steps = scene.run().steps;
    let all = told(&spec, &steps, &scene.seen, &around("10.2.0.9"));
    let expected = [
        "machines are emulated",
        "this host (10.2.0.9) is in none of `host.firewall.controller_from`: quorate could no longer reach the agents of m1, m2, m3 \
         (port 2390) from here",
        "this host (10.2.0.9) is in none of `host.firewall.clients_from`: etcdctl here is refused by m1, m2, m3 (port 2379)",
    ];
    assert_eq!(all, expected);
    assert_eq!(remarks(&spec, &steps, &scene.seen, &around("10.2.0.9"))[0].kind, RemarkKind::Machines);
    let inside = told(&spec, &steps, &scene.seen, &around("10.1.0.9"));
    assert_eq!(inside.len(), 2, "the controller is let in, as a client it is not: {inside:?}");
    assert_eq!(told(&spec, &[], &scene.seen, &around("10.2.0.9")), [""; 0], "nothing is about to change");
}

#[test]
fn members_on_a_serial_port_need_no_way_for_the_controller() {
    let spec = spec("{controller_from: []}", "macvtap: eth0");
    let scene = Scene::nothing(spec.clone());
    assert_eq!(told(&spec, &scene.run().steps, &scene.seen, &around("10.2.0.9")), ["machines are emulated"]);
}

#[test]
fn absent_ranges_allow_everyone() {
    for firewall in ["{}", "{enabled: false, clients_from: [10.1.0.0/16]}"] {
        let spec = spec(firewall, "network: n");
        let scene = Scene::nothing(spec.clone());
        assert_eq!(told(&spec, &scene.run().steps, &scene.seen, &around("10.2.0.9")), ["machines are emulated"]);
    }
}

#[test]
fn connected_clients_are_listed_by_address() {
    let before = spec("{}", "network: n");
    let world = Scene::nothing(before).run().world;
    let mut seen = world.observe();
    for (member, client) in [("m1", "10.9.0.1"), ("m2", "10.9.0.1"), ("m2", "10.0.0.77")] {
        let agent = seen.agents.get_mut(&MemberName::from(member)).unwrap();
        let Seen::At(_, AgentSeen::Enrolled(facts)) = agent else { panic!("{agent:?}") };
        facts.host.clients.extend(BTreeSet::from([client.parse::<IpAddr>().unwrap()]));
    }
    let after = spec("{clients_from: [10.0.0.0/24]}", "network: n");
    let mut scene = Scene::nothing(after.clone());
    (scene.ledger, scene.seen) = (world.ledger.clone(), seen.clone());
    scene.ledger.spec = after.clone();
    let steps = scene.run().steps;
    assert!(!steps.is_empty(), "the new rules go to the machines");
    let expected = "the client 10.9.0.1 is connected to m1, m2 now and is in none of `host.firewall.clients_from`: its next connection \
                    is refused";
    assert_eq!(told(&after, &steps, &seen, &around("10.0.0.254")), [expected]);
}

#[test]
fn a_machine_with_another_version_than_the_others_is_reported() {
    let mut scene = Scene::nothing(spec("{enabled: false}", "network: n"));
    scene.settle();
    let mut newer = scene.ledger.spec.clone();
    newer.etcd.version = "3.7.3".parse().unwrap();
    let steps = scene.run().steps;
    assert_eq!(told(&newer, &steps, &scene.seen, &Surroundings::default()), [""; 0], "no machine is made");
    let made = Scene::nothing(newer.clone()).run().steps;
    let made: Vec<Step> = made.into_iter().filter(|s| s.action.member() == Some(&"m2".into())).collect();
    let told = told(&newer, &made, &scene.seen, &Surroundings::default());
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("m2 starts with etcd 3.7.3, and these stay as they are: m1, m3 on 3.6."), "{told:?}");
}
