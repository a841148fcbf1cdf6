//! Load balancers and records of Route53: they point to the right targets wherever calls are interrupted, and those of other owners are
//! unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libtest_mimic::Trial;
use quorate_core::model::{FixtureId, FixtureKind, FixtureSeen, MemberName};
use quorate_core::providers::aws::{AwsSettings, Dns, LoadBalancer, Scheme};
use quorate_providers::{Aws, Provider};

use super::cloud::{BALANCING, get, items, one, texts};
use super::faults::PASSING;
use super::strict::{Fault, Proxy};
use super::{Api, Place};
use crate::suite::runtime;

pub fn trials() -> Vec<Trial> {
    let trial = |name: &str, run: fn()| {
        Trial::test(format!("aws::{name}"), move || {
            run();
            Ok(())
        })
    };
    let passing = PASSING.map(|(name, fault)| {
        Trial::test(format!("aws::every_call_of_a_fixture_fails_once_with_{name}_and_nothing_is_doubled"), move || {
            runtime().block_on(every_call_fails_once(fault));
            Ok(())
        })
    });
    let others = [
        trial("a_load_balancer_leads_to_its_members_and_nobody_else", || runtime().block_on(follows())),
        trial("names_lead_to_members_or_to_the_load_balancer", || runtime().block_on(names_lead())),
        trial("a_crash_while_a_fixture_is_made_or_removed_leaves_nothing_unfound", || runtime().block_on(crashes())),
        trial("load_balancers_of_others_are_not_touched", || runtime().block_on(balancers_of_others())),
        trial("records_of_others_are_not_touched", || runtime().block_on(records_of_others())),
        trial("a_record_that_comes_between_a_look_and_a_change_stays", || runtime().block_on(in_between())),
        trial("changed_fixtures_are_repaired", || runtime().block_on(put_right())),
        trial("a_zone_that_is_not_there_or_not_the_only_one_is_an_obstacle", || runtime().block_on(zones())),
        trial("records_stay_when_their_zone_gets_an_id_and_move_when_it_gets_another", || {
            runtime().block_on(zone_ids())
        }),
    ];
    passing.into_iter().chain(others).collect()
}

struct Stage {
    place: Place,
    settings: AwsSettings,
    zone: String,
    id: String,
    api: Api,
}

impl Stage {
    async fn new() -> Self {
        let (place, api) = (Place::new(), Api::new());
        let zone = format!("z{}.example.com", quorate_pki::random_hex(4));
        let id = api.zone(&zone).await;
        let dns = Dns { zone: zone.clone(), zone_id: None, name: Some(String::from("orders")), ttl: 60 };
        let settings = AwsSettings { load_balancer: Some(LoadBalancer::default()), dns: Some(dns), ..place.settings() };
        Stage { place, settings, zone, id, api }
    }

    /// Without a load balancer, names lead to members.
    fn without_balancer(&self) -> AwsSettings {
        AwsSettings { load_balancer: None, ..self.settings.clone() }
    }

    fn provider(&self, settings: &AwsSettings) -> Aws {
        self.place.aws(&self.place.cluster_id, settings)
    }

    fn through(&self, settings: &AwsSettings, proxy: Proxy) -> Aws {
        self.provider(&AwsSettings { endpoint: Some(proxy.serve()), ..settings.clone() })
    }

    fn records(&self) -> FixtureId {
        FixtureId { kind: FixtureKind::Records, place: format!("{}/orders.{}", self.zone, self.zone) }
    }

    fn name(&self, below: &str) -> String {
        format!("{below}orders.{}", self.zone)
    }

    async fn balancers(&self) -> Vec<String> {
        let all = items(&self.api.call("DescribeLoadBalancers", [BALANCING]).await, "LoadBalancers");
        all.into_iter().filter(|one| one.contains(&self.place.cluster_id)).collect()
    }

    /// Nothing of the cluster is left.
    async fn end(&self) {
        let provider = self.provider(&self.settings);
        provider.drop_fixture(&self.records()).await.expect("dropped");
        provider.drop_fixture(&AwsSettings::balancer()).await.expect("dropped");
        provider.dismiss(9).await.expect("dismissed");
        provider.forget().await.expect("forgotten");
        assert_eq!(self.api.inventory(&[&self.place.cluster_id]).await, BTreeSet::new());
        assert_eq!(self.api.records(&self.id).await, BTreeSet::new());
    }
}

fn members(last: &[(&str, u8)]) -> BTreeMap<MemberName, IpAddr> {
    last.iter().map(|(member, last)| ((*member).into(), IpAddr::from([10, 80, 1, *last]))).collect()
}

fn three() -> BTreeMap<MemberName, IpAddr> {
    members(&[("etcd-1", 11), ("etcd-2", 12), ("etcd-3", 13)])
}

async fn seen(provider: &Aws, kind: FixtureKind) -> Option<FixtureSeen> {
    // A look is good for a while.
    tokio::time::sleep(Duration::from_millis(150)).await;
    let found = provider.fixtures().await.expect("a look");
    found.into_iter().find(|fixture| fixture.id.kind == kind)
}

fn addresses(fixture: &FixtureSeen) -> BTreeSet<IpAddr> {
    fixture.leads_to.keys().copied().collect()
}

async fn follows() {
    let stage = Stage::new().await;
    let provider = stage.provider(&stage.settings);
    let balancer = AwsSettings::balancer();
    assert_eq!(seen(&provider, FixtureKind::LoadBalancer).await, None);
    // Before there are members, it has a name already.
    provider.put_fixture(&balancer, &BTreeMap::new()).await.expect("made");
    let made = seen(&provider, FixtureKind::LoadBalancer).await.expect("it is there");
    assert!(made.is_ours && made.leads_to.is_empty() && made.names.len() == 1, "{made:?}");
    for wanted in [three(), members(&[("etcd-1", 11), ("etcd-3", 23)]), three()] {
        provider.put_fixture(&balancer, &wanted).await.expect("put");
        provider.put_fixture(&balancer, &wanted).await.expect("put again");
        // Another run sees the same.
        let next = stage.provider(&stage.settings);
        let found = seen(&next, FixtureKind::LoadBalancer).await.expect("it is there");
        assert_eq!(addresses(&found), wanted.values().copied().collect());
        assert_eq!((&found.fault, &found.obstacle, &found.names), (&None, &None, &made.names));
    }
    let mut pending = Vec::new();
    for _ in 0..10 {
        pending.push(seen(&provider, FixtureKind::LoadBalancer).await.expect("it is there").pending);
    }
    assert!(pending.contains(&None), "it serves in the end: {pending:?}");
    let found = stage.balancers().await;
    assert_eq!(
        (found.len(), one(&found[0], "Scheme").as_str(), one(&found[0], "Type").as_str()),
        (1, "internal", "network")
    );
    assert_eq!(
        texts(&found[0], "SubnetId").into_iter().collect::<BTreeSet<_>>(),
        stage.place.subnets.iter().cloned().collect()
    );
    assert_eq!(items(&found[0], "SecurityGroups").len(), 1, "it lets in whom the members let in");
    // Its group cannot go before it.
    provider.dismiss(1).await.expect("dismissed");
    for _ in 0..2 {
        provider.drop_fixture(&balancer).await.expect("dropped");
    }
    assert_eq!(seen(&provider, FixtureKind::LoadBalancer).await, None);
    stage.end().await;
}

async fn names_lead() {
    let stage = Stage::new().await;
    let to_members = stage.provider(&stage.without_balancer());
    let records = stage.records();
    assert_eq!(seen(&to_members, FixtureKind::Records).await, None);
    to_members.put_fixture(&records, &three()).await.expect("put");
    let found = seen(&to_members, FixtureKind::Records).await.expect("they are there");
    let expected = three().into_iter().map(|(member, address)| (address, Some(member))).collect();
    assert_eq!((found.leads_to, found.fault, found.is_ours), (expected, None, true));
    let all = stage.api.records(&stage.id).await;
    let has = |record: String| assert!(all.contains(&record), "{record}: {all:#?}");
    has(format!("A {}. 10.80.1.12", stage.name("etcd-2.")));
    has(format!("A {}. 10.80.1.11,10.80.1.12,10.80.1.13", stage.name("")));
    assert_eq!(all.iter().filter(|record| record.starts_with("SRV ")).count(), 2, "{all:#?}");
    // One is replaced, and one leaves.
    let fewer = members(&[("etcd-1", 11), ("etcd-2", 22)]);
    to_members.put_fixture(&records, &fewer).await.expect("put");
    let found = seen(&to_members, FixtureKind::Records).await.expect("they are there");
    assert_eq!((addresses(&found), found.fault), (fewer.values().copied().collect(), None));
    assert!(!stage.api.records(&stage.id).await.iter().any(|record| record.contains("etcd-3")));
    // From now on there is a load balancer.
    let to_balancer = stage.provider(&stage.settings);
    assert!(!seen(&to_balancer, FixtureKind::Records).await.expect("they are there").to_balancer);
    to_balancer.put_fixture(&AwsSettings::balancer(), &fewer).await.expect("put");
    to_balancer.put_fixture(&records, &BTreeMap::new()).await.expect("put");
    let found = seen(&to_balancer, FixtureKind::Records).await.expect("they are there");
    assert!(found.to_balancer && found.fault.is_none() && found.leads_to.is_empty(), "{found:?}");
    let name =
        seen(&to_balancer, FixtureKind::LoadBalancer).await.expect("it is there").names.pop_first().expect("a name");
    let all = stage.api.records(&stage.id).await;
    assert!(all.iter().any(|record| record.starts_with("A ") && record.contains(&name)), "{all:#?}");
    assert_eq!(all.len(), 2, "the alias and the text next to it: {all:#?}");
    // And back.
    to_members.put_fixture(&records, &three()).await.expect("put");
    assert_eq!(
        addresses(&seen(&to_members, FixtureKind::Records).await.expect("they are there")),
        three().values().copied().collect()
    );
    stage.end().await;
}

/// Each call that changes something is the last of a run. The next run finds what is there, and makes or removes the rest.
async fn crashes() {
    let stage = Stage::new().await;
    let (balancer, records) = (AwsSettings::balancer(), stage.records());
    let settings = stage.settings.clone();
    let make = async |provider: &Aws| {
        let first = provider.put_fixture(&balancer, &three()).await;
        first.is_ok() && provider.put_fixture(&records, &BTreeMap::new()).await.is_ok()
    };
    let remove = async |provider: &Aws| {
        let first = provider.drop_fixture(&records).await;
        first.is_ok() && provider.drop_fixture(&balancer).await.is_ok()
    };
    for after in 0.. {
        let (proxy, left) = Proxy::mortal(after);
        let made = make(&stage.through(&settings, proxy)).await;
        let next = stage.provider(&settings);
        let found = next.fixtures().await.expect("a look");
        assert!(found.iter().all(|fixture| fixture.is_ours && fixture.obstacle.is_none()), "after {after}: {found:?}");
        // What is half made is seen to be so.
        let whole = found.iter().filter(|fixture| fixture.fault.is_none()).count();
        assert!(
            made || whole < 2 || addresses(&found[0]) != three().values().copied().collect(),
            "after {after}: {found:?}"
        );
        assert!(make(&next).await, "after {after}");
        let found = stage.provider(&settings).fixtures().await.expect("a look");
        assert!(found.len() == 2 && found.iter().all(|fixture| fixture.fault.is_none()), "after {after}: {found:?}");
        assert!(remove(&next).await, "after {after}");
        if left.load(Ordering::SeqCst) >= 0 {
            assert!(after > 6, "nothing was ever interrupted");
            break;
        }
    }
    for after in 0.. {
        assert!(make(&stage.provider(&settings)).await);
        let (proxy, left) = Proxy::mortal(after);
        let removed = remove(&stage.through(&settings, proxy)).await;
        let next = stage.provider(&settings);
        let found = next.fixtures().await.expect("a look");
        assert!(removed || !found.is_empty(), "after {after}: what is left is not seen");
        assert!(remove(&next).await, "after {after}");
        assert_eq!(stage.provider(&settings).fixtures().await.expect("a look"), []);
        if left.load(Ordering::SeqCst) >= 0 {
            assert!(after > 2, "nothing was ever interrupted");
            break;
        }
    }
    stage.end().await;
}

async fn every_call_fails_once(fault: Fault) {
    let stage = Stage::new().await;
    let spoiled: Mutex<BTreeSet<String>> = Mutex::default();
    let proxy = Proxy::new(move |fields| {
        let action = get(fields, "Action").unwrap_or_default().to_owned();
        spoiled.lock().expect("a set").insert(action).then_some(fault)
    });
    let calls = proxy.seen.clone();
    let provider = stage.through(&stage.settings, proxy);
    provider.put_fixture(&AwsSettings::balancer(), &three()).await.expect("made");
    provider.put_fixture(&stage.records(), &BTreeMap::new()).await.expect("made");
    let found = provider.fixtures().await.expect("a look");
    assert!(found.len() == 2 && found.iter().all(|one| one.fault.is_none() && one.obstacle.is_none()), "{found:?}");
    assert_eq!(stage.balancers().await.len(), 1);
    assert_eq!(stage.api.records(&stage.id).await.len(), 2);
    provider.drop_fixture(&stage.records()).await.expect("dropped");
    provider.drop_fixture(&AwsSettings::balancer()).await.expect("dropped");
    assert!(calls.lock().expect("a list").len() > 20, "the calls went through the proxy");
    stage.end().await;
}

/// What has the name and no mark may be another cluster's, or a person's.
async fn balancers_of_others() {
    let stage = Stage::new().await;
    let provider = stage.provider(&stage.settings);
    let balancer = AwsSettings::balancer();
    provider.put_fixture(&balancer, &three()).await.expect("made");
    let arn = one(&stage.balancers().await[0], "LoadBalancerArn");
    let tag = [("ResourceArns.member.1", arn.as_str()), ("TagKeys.member.1", "quorate.cluster_id"), BALANCING];
    stage.api.call("RemoveTags", tag).await;
    let found = seen(&provider, FixtureKind::LoadBalancer).await.expect("it is there");
    let obstacle = found.obstacle.expect("it is not ours");
    assert!(obstacle.what.contains("without the mark of this cluster"), "{obstacle:?}");
    let said = provider.put_fixture(&balancer, &members(&[("etcd-9", 99)])).await.expect_err("not ours").to_string();
    assert!(said.contains("has no mark of this cluster"), "{said}");
    // Its target group is ours, and cannot go before it.
    let said = provider.drop_fixture(&balancer).await.expect_err("not ours").to_string();
    assert!(said.contains("has no mark of this cluster"), "{said}");
    assert_eq!(stage.balancers().await.len(), 1, "it is there as before");
    stage.api.call("DeleteLoadBalancer", [("LoadBalancerArn", arn.as_str()), BALANCING]).await;
    stage.end().await;
}

async fn records_of_others() {
    let stage = Stage::new().await;
    let (records, settings) = (stage.records(), stage.without_balancer());
    let provider = stage.provider(&settings);
    let foreign = [("A", stage.name(""), "192.0.2.1"), ("CNAME", stage.name("etcd-2."), "elsewhere.example.net.")];
    for (kind, name, value) in &foreign {
        stage.api.change_record(&stage.id, "CREATE", kind, name, value).await;
        let before = stage.api.records(&stage.id).await;
        let found = seen(&provider, FixtureKind::Records).await.expect("an obstacle");
        let obstacle = found.obstacle.expect("an obstacle");
        assert!(!found.is_ours && obstacle.what.contains(name) && obstacle.what.contains(kind), "{obstacle:?}");
        provider.put_fixture(&records, &three()).await.expect_err("it is somebody else's");
        provider.drop_fixture(&records).await.expect("nothing of ours");
        assert_eq!(stage.api.records(&stage.id).await, before);
        stage.api.change_record(&stage.id, "DELETE", kind, name, value).await;
    }
    // Next to it is no place for another name of ours.
    let near = format!("orders-2.{}", stage.zone);
    stage.api.change_record(&stage.id, "CREATE", "A", &near, "192.0.2.1").await;
    provider.put_fixture(&records, &three()).await.expect("put");
    // One that comes later, where a further member would be named.
    stage.api.change_record(&stage.id, "CREATE", "TXT", &stage.name("note."), "\"of the operator\"").await;
    let others = stage.place.aws(&stage.place.strange_id, &settings);
    let found = seen(&others, FixtureKind::Records).await.expect("an obstacle");
    assert!(found.obstacle.expect("an obstacle").what.contains(&stage.place.cluster_id));
    others.put_fixture(&records, &three()).await.expect_err("it is another cluster's");
    others.drop_fixture(&records).await.expect("nothing of its own");
    assert_eq!(seen(&provider, FixtureKind::Records).await.expect("they are there").fault, None);
    provider.drop_fixture(&records).await.expect("dropped");
    let left = stage.api.records(&stage.id).await;
    assert_eq!(left.len(), 2, "those of the operator: {left:#?}");
    stage.api.change_record(&stage.id, "DELETE", "A", &near, "192.0.2.1").await;
    stage.api.change_record(&stage.id, "DELETE", "TXT", &stage.name("note."), "\"of the operator\"").await;
    stage.end().await;
}

/// Somebody makes a record when quorate has looked and found none.
async fn in_between() {
    let stage = Stage::new().await;
    let (name, id) = (stage.name("etcd-3."), stage.id.clone());
    let (planted, theirs) = (AtomicBool::new(false), (name.clone(), id.clone()));
    let proxy = Proxy::new(move |fields| {
        let (name, id) = theirs.clone();
        if get(fields, "Action") == Some("ChangeResourceRecordSets") && !planted.swap(true, Ordering::SeqCst) {
            let plant = move || {
                runtime()
                    .block_on(async move { Api::new().change_record(&id, "CREATE", "A", &name, "192.0.2.7").await });
            };
            std::thread::spawn(plant).join().expect("a record");
        }
        None
    });
    let provider = stage.through(&stage.without_balancer(), proxy);
    let said = provider.put_fixture(&stage.records(), &three()).await.expect_err("it is taken").to_string();
    assert!(said.contains("already exists") && said.contains(&name), "{said}");
    let all = stage.api.records(&stage.id).await;
    assert_eq!(all, BTreeSet::from([format!("A {name}. 192.0.2.7")]), "nothing else was changed");
    stage.api.change_record(&id, "DELETE", "A", &name, "192.0.2.7").await;
    stage.end().await;
}

async fn put_right() {
    let stage = Stage::new().await;
    let settings = stage.without_balancer();
    let (provider, records) = (stage.provider(&settings), stage.records());
    provider.put_fixture(&records, &three()).await.expect("put");
    let before = stage.api.records(&stage.id).await;
    let changes = [
        ("UPSERT", "A", stage.name(""), "10.80.1.11"),
        ("DELETE", "A", stage.name("etcd-2."), "10.80.1.12"),
        ("UPSERT", "SRV", stage.name("_etcd-client-ssl._tcp."), "0 0 2379 elsewhere.example.net."),
    ];
    for (action, kind, name, value) in &changes {
        stage.api.change_record(&stage.id, action, kind, name, value).await;
        let found = seen(&provider, FixtureKind::Records).await.expect("they are there");
        let differs = found.fault.is_some() || addresses(&found) != three().values().copied().collect();
        assert!(differs || found.leads_to.values().any(Option::is_none), "{action} {kind} {name}: {found:?}");
        provider.put_fixture(&records, &three()).await.expect("put right");
        assert_eq!(stage.api.records(&stage.id).await, before, "{action} {kind} {name}");
    }
    provider.drop_fixture(&records).await.expect("dropped");
    // Of a load balancer, its listener and one of its targets.
    let (provider, balancer) = (stage.provider(&stage.settings), AwsSettings::balancer());
    provider.put_fixture(&balancer, &three()).await.expect("put");
    let arn = one(&stage.balancers().await[0], "LoadBalancerArn");
    let listeners = stage.api.call("DescribeListeners", [("LoadBalancerArn", arn.as_str()), BALANCING]).await;
    stage.api.call("DeleteListener", [("ListenerArn", one(&listeners, "ListenerArn").as_str()), BALANCING]).await;
    let found = seen(&provider, FixtureKind::LoadBalancer).await.expect("it is there");
    assert_eq!(found.fault.as_deref(), Some("it does not listen on port 2379"));
    let group = one(&listeners, "TargetGroupArn");
    let target = [("TargetGroupArn", group.as_str()), ("Targets.member.1.Id", "10.80.1.12"), BALANCING];
    stage.api.call("DeregisterTargets", target).await;
    provider.put_fixture(&balancer, &three()).await.expect("put right");
    let found = seen(&provider, FixtureKind::LoadBalancer).await.expect("it is there");
    assert_eq!((found.fault, found.leads_to.len()), (None, 3));
    // What it was made as stays until it is made again.
    let public = LoadBalancer { scheme: Scheme::InternetFacing, ..LoadBalancer::default() };
    let next = stage.provider(&AwsSettings { load_balancer: Some(public), ..stage.settings.clone() });
    assert_eq!(seen(&next, FixtureKind::LoadBalancer).await.expect("it is there").fixed["scheme"], "internal");
    stage.end().await;
}

async fn zones() {
    let stage = Stage::new().await;
    let with = |zone: &str, id: Option<&str>| {
        let dns = Dns { zone: zone.to_owned(), zone_id: id.map(str::to_owned), name: None, ttl: 60 };
        stage.provider(&AwsSettings { dns: Some(dns), ..stage.without_balancer() })
    };
    let obstacle = async |provider: &Aws| {
        let found = seen(provider, FixtureKind::Records).await;
        found.and_then(|fixture| fixture.obstacle).map(|obstacle| obstacle.what).unwrap_or_default()
    };
    let said = obstacle(&with("nowhere.example.org", None)).await;
    assert!(said.contains("AWS has no hosted zone nowhere.example.org"), "{said}");
    let said = obstacle(&with(&stage.zone, Some("Z0000000000000"))).await;
    assert!(said.contains("AWS has no hosted zone Z0000000000000"), "{said}");
    let second = stage.api.zone(&stage.zone).await;
    let said = obstacle(&with(&stage.zone, None)).await;
    assert!(said.contains(&second) && said.contains(&stage.id) && said.contains("dns.zone_id"), "{said}");
    let said = obstacle(&with("other.example.org", Some(&second))).await;
    assert!(said.contains(&format!("is that of {}", stage.zone)), "{said}");
    assert_eq!(obstacle(&with(&stage.zone, Some(&second))).await, "");
}

async fn zone_ids() {
    let stage = Stage::new().await;
    let with = |id: &str| {
        let dns = stage.settings.dns.clone().map(|dns| Dns { zone_id: Some(id.to_owned()), ..dns });
        AwsSettings { dns, ..stage.without_balancer() }
    };
    stage.provider(&stage.without_balancer()).put_fixture(&stage.records(), &three()).await.expect("put");
    let before = stage.api.records(&stage.id).await;
    // As an older version recorded them.
    let old = |id: &str| FixtureId { kind: FixtureKind::Records, place: format!("{id}/orders.{}", stage.zone) };
    let second = stage.api.zone(&stage.zone).await;
    for known in [vec![], vec![stage.records()], vec![old(&stage.id)], vec![stage.records(), old(&stage.id)]] {
        for settings in [with(&stage.id), stage.without_balancer()] {
            let found = stage.place.aws_knowing(&settings, known.clone()).fixtures().await.expect("a look");
            assert_eq!(found.len(), 1, "{known:?}: {found:?}");
            let found = &found[0];
            assert_eq!((&found.id, found.is_ours, &found.obstacle), (&stage.records(), true, &None), "{known:?}");
            assert_eq!((&found.fault, found.leads_to.len()), (&None, 3), "{known:?}");
        }
    }
    let provider = stage.place.aws_knowing(&with(&second), [stage.records()]);
    let found = seen(&provider, FixtureKind::Records).await.expect("they are there");
    assert_eq!(found.fault, Some(format!("its records are in the hosted zone {}, and belong in {second}", stage.id)));
    provider.put_fixture(&stage.records(), &three()).await.expect("moved");
    assert_eq!((stage.api.records(&stage.id).await, stage.api.records(&second).await), (BTreeSet::new(), before));
    assert_eq!(seen(&provider, FixtureKind::Records).await.expect("they are there").fault, None);
    stage.end().await;
    assert_eq!(stage.api.records(&second).await, BTreeSet::new());
}
