//! Faults between quorate and AWS: whatever is answered or lost on the way, nothing is created twice and nothing is left.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Mutex;

use libtest_mimic::Trial;
use quorate_core::model::{MachineId, PowerState};
use quorate_providers::{Data, Provider};

use super::cloud::get;
use super::strict::{Fault, Proxy};
use super::{Api, Place};
use crate::suite::{Enrolment, Ground, runtime};

/// Faults that pass: the run succeeds.
pub const PASSING: [(&str, Fault); 6] = [
    ("throttling", Fault::Error(503, "RequestLimitExceeded")),
    ("an_internal_error", Fault::Error(500, "InternalError")),
    ("unavailability", Fault::Error(503, "Unavailable")),
    ("expired_credentials", Fault::Error(400, "RequestExpired")),
    ("a_connection_cut_after_it_was_carried_out", Fault::Cut),
    ("a_failure_after_it_was_carried_out", Fault::DoneBut(500, "InternalError")),
];

pub fn trials() -> Vec<Trial> {
    let passing = PASSING.map(|(name, fault)| {
        Trial::test(format!("aws::every_call_fails_once_with_{name}_and_nothing_is_doubled"), move || {
            runtime().block_on(every_call_fails_once(fault));
            Ok(())
        })
    });
    let refused = Trial::test("aws::a_refusal_leaves_nothing", || {
        runtime().block_on(a_refusal_leaves_nothing());
        Ok(())
    });
    let counted = Trial::test("aws::a_look_is_one_call", || {
        runtime().block_on(a_look_is_one_call());
        Ok(())
    });
    let late = Trial::test("aws::an_instance_that_is_listed_late_is_not_made_again", || {
        runtime().block_on(listed_late());
        Ok(())
    });
    passing.into_iter().chain([refused, counted, late]).collect()
}

async fn every_call_fails_once(fault: Fault) {
    let place = Rc::new(Place::new());
    let before = place.inventory().await;
    let spoiled: Mutex<BTreeSet<String>> = Mutex::default();
    let proxy = Proxy::new(move |fields| {
        let action = get(fields, "Action").unwrap_or_default().to_owned();
        spoiled.lock().expect("a set").insert(action).then_some(fault)
    });
    let calls = proxy.seen.clone();
    let provider = place.through(proxy);
    let (enrolment, id) = (Enrolment::new(), MachineId::new(&"etcd-1".into(), 1));
    let new = enrolment.machine("etcd-1", id.clone(), place.pinned("etcd-1"), Data::Goes, 1);
    provider.admit(1).await.expect("admitted");
    provider.create(&new).await.expect("a machine");
    let there = place.inventory().await;
    let count = |kind: &str| there.iter().filter(|item| item.starts_with(kind)).count();
    // Two volumes: that of the data, and the root's.
    let counts = ["instanceId ", "networkInterfaceId ", "volumeId ", "groupId "].map(count);
    assert_eq!(counts, [1, 1, 2, 1], "{there:?}");
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

/// AWS refuses each of the calls that create something, in turn.
async fn a_refusal_leaves_nothing() {
    let place = Rc::new(Place::new());
    let before = place.inventory().await;
    let refused = [
        "CreateSecurityGroup",
        "AuthorizeSecurityGroupIngress",
        "CreateNetworkInterface",
        "CreateVolume",
        "RunInstances",
        "AttachVolume",
    ];
    for (fence, refused) in refused.into_iter().enumerate() {
        let fence = fence as u64 + 1;
        let proxy = Proxy::new(move |fields| {
            (get(fields, "Action") == Some(refused)).then_some(Fault::Error(403, "UnauthorizedOperation"))
        });
        let provider = place.through(proxy);
        let (enrolment, id) = (Enrolment::new(), MachineId::new(&"etcd-1".into(), 1));
        let new = enrolment.machine("etcd-1", id, place.pinned("etcd-1"), Data::Goes, fence);
        provider.admit(fence).await.expect("admitted");
        let said = provider.create(&new).await.expect_err("it was refused").to_string();
        assert!(said.contains("refused to ") && said.contains("spoiled by the lab"), "{said}");
        provider.dismiss(fence).await.expect("dismissed");
        assert_eq!(place.inventory().await, before, "{refused}");
    }
}

/// A look at the machines of a cluster costs one call for each page, however many there are.
async fn a_look_is_one_call() {
    let place = Rc::new(Place::new());
    let proxy = Proxy::new(|_| None);
    let calls = proxy.seen.clone();
    let provider = place.through(proxy);
    provider.admit(1).await.expect("admitted");
    let enrolment = Enrolment::new();
    let mut made = Vec::new();
    // The proxy's pages have five items.
    for incarnation in 1..=2 {
        for member in ["etcd-1", "etcd-2", "etcd-3"] {
            let id = MachineId::new(&member.into(), incarnation);
            let name = format!("{member}.{incarnation}");
            let new = enrolment.machine(&name, id.clone(), None, Data::Goes, 1);
            let before = calls.lock().expect("a list").len();
            provider.create(&new).await.expect("a machine");
            let after = calls.lock().expect("a list");
            let actions: Vec<String> = after[before..].iter().map(super::strict::Sent::action).collect();
            println!("{name}: {} calls: {}", actions.len(), actions.join(" "));
            made.push(id);
        }
    }
    let look = async || {
        let before = calls.lock().expect("a list").len();
        let found = provider.machines().await.expect("a look").found.len();
        (found, calls.lock().expect("a list").len() - before)
    };
    assert_eq!(look().await, (6, 2), "two pages");
    for id in &made[3..] {
        provider.destroy(id, Data::Goes).await.expect("destroyed");
    }
    assert_eq!(look().await, (3, 1));
    for id in &made[..3] {
        provider.destroy(id, Data::Goes).await.expect("destroyed");
    }
    provider.dismiss(1).await.expect("dismissed");
    provider.forget().await.expect("forgotten");
    let left = Api::new().inventory(&[&place.cluster, place.cluster_id()]).await;
    assert_eq!(left, BTreeSet::new());
}

/// AWS does not know of a new instance for a while, and forgets one that it has shown for a moment.
async fn listed_late() {
    let place = Rc::new(Place::new());
    let mut proxy = Proxy::new(|_| None);
    proxy.lag = 12;
    let calls = proxy.seen.clone();
    let provider = place.through(proxy);
    let (enrolment, id) = (Enrolment::new(), MachineId::new(&"etcd-1".into(), 1));
    let new = enrolment.machine("etcd-1", id.clone(), None, Data::Goes, 1);
    provider.admit(1).await.expect("admitted");
    provider.create(&new).await.expect("a machine");
    provider.create(&new).await.expect("it is there");
    let launched = calls.lock().expect("a list").iter().filter(|sent| sent.action() == "RunInstances").count();
    assert_eq!(launched, 1);
    assert_eq!(Api::new().inventory(&[&place.cluster]).await.len(), 5);

    // Lists by tag leave it out, and by its id it is there.
    let forgetful = Proxy::new(|_| None);
    let settings = quorate_core::providers::aws::AwsSettings { endpoint: Some(forgetful.serve()), ..place.settings() };
    let next = place.aws(&place.cluster_id, &settings);
    assert_eq!(next.machines().await.expect("a look").found.len(), 1);
    let instance = Api::new().instance(&place.instance("etcd-1")).await.expect("an instance");
    let name = super::cloud::one(&instance, "instanceId");
    let cluster = place.cluster.clone();
    let retag = async |value: &str| {
        let pairs = [("ResourceId.1", name.as_str()), ("Tag.1.Key", "quorate.cluster"), ("Tag.1.Value", value)];
        Api::new().call("CreateTags", pairs).await;
    };
    retag("lost").await;
    assert_eq!(next.machines().await.expect("a look").found.len(), 0, "it has no mark of this cluster any more");
    retag(&cluster).await;
    assert_eq!(next.machines().await.expect("a look").found.len(), 1);
    provider.destroy(&id, Data::Goes).await.expect("destroyed");
    assert_eq!(next.machines().await.expect("a look").found.len(), 0, "asked for by its id, it is gone");
    provider.dismiss(1).await.expect("dismissed");
    provider.forget().await.expect("forgotten");
}
