//! Faults between quorate and the cloud: whatever is answered or lost on the way, nothing is created twice and nothing is left.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Mutex;

use hyper::Method;
use libtest_mimic::Trial;
use quorate_core::model::{MachineId, PowerState};
use quorate_core::providers::openstack::OpenstackSettings;
use quorate_providers::{Data, Provider};

use super::cloud::{Fault, Proxy};
use super::{Api, Place};
use crate::suite::{Enrolment, Ground, runtime};

/// Faults that pass: the run succeeds.
const PASSING: [(&str, Fault); 6] = [
    ("401", Fault::Status(401)),
    ("429", Fault::Status(429)),
    ("500", Fault::Status(500)),
    ("503", Fault::Status(503)),
    ("connection_cut_after_it_was_carried_out", Fault::Cut),
    ("504_after_it_was_carried_out", Fault::DoneBut(504)),
];

pub fn trials() -> Vec<Trial> {
    let passing = PASSING.map(|(name, fault)| {
        Trial::test(format!("openstack::every_call_fails_once_with_{name}_and_nothing_is_doubled"), move || {
            runtime().block_on(every_call_fails_once(fault));
            Ok(())
        })
    });
    let refused = Trial::test("openstack::a_refusal_leaves_nothing", || {
        runtime().block_on(a_refusal_leaves_nothing());
        Ok(())
    });
    let counted = Trial::test("openstack::a_look_is_one_call", || {
        runtime().block_on(a_look_is_one_call());
        Ok(())
    });
    passing.into_iter().chain([refused, counted]).collect()
}

/// What a call is about, without ids.
fn kind(method: &Method, path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    let is_id = |part: &&str| part.len() >= 32 && part.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let parts: Vec<&str> = path.split('/').map(|part| if is_id(&part) { "ID" } else { part }).collect();
    format!("{method} {}", parts.join("/"))
}

async fn every_call_fails_once(fault: Fault) {
    let place = Rc::new(Place::new());
    let before = place.inventory().await;
    let spoiled: Mutex<BTreeSet<String>> = Mutex::default();
    let proxy =
        Proxy::new(move |method, path| spoiled.lock().expect("a set").insert(kind(method, path)).then_some(fault));
    let calls = proxy.seen.clone();
    let path = place.directory.path().join("faults.yaml");
    proxy.serve(&path).await;
    let settings = OpenstackSettings { floating_network: Some(String::from("public")), ..place.settings() };
    let provider = place.openstack(&place.cluster_id, &settings, &path);
    let (enrolment, id) = (Enrolment::new(), MachineId::new(&"etcd-1".into(), 1));
    let new = enrolment.machine("etcd-1", id.clone(), place.pinned("etcd-1"), Data::Goes, 1);
    provider.admit(1).await.expect("admitted");
    provider.create(&new).await.expect("a machine");
    let there = place.inventory().await;
    let count = |kind: &str| there.iter().filter(|item| item.starts_with(kind)).count();
    let kinds = ["servers ", "ports ", "volumes ", "server_groups ", "security_groups ", "floatingips "];
    assert_eq!(kinds.map(count), [1, 2, 1, 1, 1, 1], "{there:?}");
    provider.stop(&id).await.expect("stopped");
    provider.start(&id).await.expect("started");
    let seen = provider.machines().await.expect("a look").found;
    assert!(seen.len() == 1 && seen[0].1.power == PowerState::On, "{seen:?}");
    provider.destroy(&id, Data::Goes).await.expect("destroyed");
    provider.dismiss(1).await.expect("dismissed");
    provider.forget().await.expect("forgotten");
    assert_eq!(place.inventory().await, before);
    assert!(calls.lock().expect("a list").len() > 20, "the calls went through the proxy");
}

/// OpenStack refuses each of the calls that create something, in turn.
async fn a_refusal_leaves_nothing() {
    let place = Rc::new(Place::new());
    let before = place.inventory().await;
    for (fence, refused) in
        ["/security-groups", "/security-group-rules", "/ports", "/volumes", "/os-server-groups", "/servers"]
            .into_iter()
            .enumerate()
    {
        let fence = fence as u64 + 1;
        let proxy = Proxy::new(move |method, path| {
            (*method == Method::POST && path.ends_with(refused)).then_some(Fault::Status(409))
        });
        let provider = place.through(proxy).await;
        let (enrolment, id) = (Enrolment::new(), MachineId::new(&"etcd-1".into(), 1));
        let new = enrolment.machine("etcd-1", id, place.pinned("etcd-1"), Data::Goes, fence);
        provider.admit(fence).await.expect("admitted");
        let said = provider.create(&new).await.expect_err("it was refused").to_string();
        assert!(said.contains("refused to ") && said.contains("spoiled by the lab"), "{said}");
        provider.dismiss(fence).await.expect("dismissed");
        assert_eq!(place.inventory().await, before, "{refused}");
    }
}

/// A look at the machines of a cluster costs one call, however many there are.
async fn a_look_is_one_call() {
    let place = Rc::new(Place::new());
    let proxy = Proxy::new(|_, _| None);
    let calls = proxy.seen.clone();
    let provider = place.through(proxy).await;
    provider.admit(1).await.expect("admitted");
    let enrolment = Enrolment::new();
    let mut made = Vec::new();
    for member in ["etcd-1", "etcd-2", "etcd-3"] {
        let id = MachineId::new(&member.into(), 1);
        let new = enrolment.machine(member, id.clone(), place.pinned(member), Data::Goes, 1);
        let before = calls.lock().expect("a list").len();
        provider.create(&new).await.expect("a machine");
        let after = calls.lock().expect("a list");
        println!("{member}: {} calls\n  {}", after.len() - before, after[before..].join("\n  "));
        made.push(id);
    }
    let before = calls.lock().expect("a list").len();
    assert_eq!(provider.machines().await.expect("a look").found.len(), 3);
    assert_eq!(calls.lock().expect("a list").len() - before, 1);
    for id in &made {
        provider.destroy(id, Data::Goes).await.expect("destroyed");
    }
    provider.dismiss(1).await.expect("dismissed");
    provider.forget().await.expect("forgotten");
    let left = Api::new().await.inventory(&place.cluster, &[place.cluster_id()]).await;
    assert_eq!(left, BTreeSet::new());
}
