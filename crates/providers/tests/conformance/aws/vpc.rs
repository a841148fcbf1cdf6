//! A VPC that quorate creates: complete and only once, whatever is lost on the way; and deleted with the cluster, unless other resources
//! are in it.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use libtest_mimic::Trial;
use quorate_core::model::MachineId;
use quorate_core::providers::aws::{AwsSettings, Internet};
use quorate_providers::{Aws, Data, Provider};

use super::cloud::{ZONES, get, items, one, tag, texts};
use super::strict::{Fault, Proxy};
use super::{Api, Place};
use crate::suite::{Enrolment, Ground, runtime};

const RANGE: &str = "10.99.0.0/16";
const BOTH: [Internet; 2] = [Internet::Public, Internet::Nat];

pub fn trials() -> Vec<Trial> {
    let trial = |name: &str, run: fn()| {
        Trial::test(format!("aws::{name}"), move || {
            run();
            Ok(())
        })
    };
    vec![
        trial("a_vpc_is_made_put_right_and_deleted", || runtime().block_on(made_and_deleted())),
        trial("a_crash_while_a_vpc_is_made_leaves_nothing", || runtime().block_on(crash_while_made())),
        trial("a_crash_while_a_vpc_is_deleted_leaves_nothing", || runtime().block_on(crash_while_deleted())),
        trial("no_part_of_a_vpc_is_made_twice", || runtime().block_on(made_once())),
        trial("a_vpc_that_others_use_stays", || runtime().block_on(others_use_it())),
        trial("zones_of_a_vpc_come_and_go", || runtime().block_on(zones_change())),
    ]
}

struct Stage {
    place: Place,
    api: Api,
    enrolment: Enrolment,
    internet: Internet,
}

impl Stage {
    fn new(internet: Internet) -> Self {
        Stage { place: Place::new(), api: Api::new(), enrolment: Enrolment::new(), internet }
    }

    fn settings(&self, zones: &[&str]) -> AwsSettings {
        AwsSettings {
            subnets: Vec::new(),
            vpc_cidr: RANGE.parse().ok(),
            internet: self.internet,
            zones: zones.iter().map(ToString::to_string).collect(),
            data_size: None,
            ..self.place.settings()
        }
    }

    fn provider(&self) -> Aws {
        self.place.aws(&self.place.cluster_id, &self.settings(&ZONES))
    }

    fn through(&self, proxy: Proxy) -> Aws {
        let settings = AwsSettings { endpoint: Some(proxy.serve()), ..self.settings(&ZONES) };
        self.place.aws(&self.place.cluster_id, &settings)
    }

    async fn create(&self, provider: &Aws, member: &str, fence: u64) -> Result<(), String> {
        let id = MachineId::new(&member.into(), 1);
        let new = self.enrolment.machine(member, id, None, Data::Goes, fence);
        provider.create(&new).await.map_err(|error| error.to_string())
    }

    /// Everything of the cluster, by kind.
    async fn counts(&self) -> BTreeMap<String, usize> {
        let all = self.api.inventory(&[&self.place.cluster_id]).await;
        all.iter().fold(BTreeMap::new(), |mut counts, item| {
            let (kind, _) = item.split_once(' ').expect("a kind");
            *counts.entry(kind.to_owned()).or_default() += 1;
            counts
        })
    }

    /// What a network with this many machines is made of.
    fn expected(&self, machines: usize) -> BTreeMap<String, usize> {
        let nat = usize::from(self.internet == Internet::Nat);
        let all = [
            ("vpcId", 1),
            ("subnetId", 2 + nat),
            ("internetGatewayId", 1),
            ("natGatewayId", nat),
            ("routeTableId", nat),
            ("allocationId", nat),
            ("groupId", usize::from(machines > 0)),
            ("instanceId", machines),
            ("networkInterfaceId", machines),
            ("volumeId", machines),
        ];
        all.into_iter().filter(|(_, count)| *count > 0).map(|(kind, count)| (kind.to_owned(), count)).collect()
    }

    async fn destroy(&self, provider: &Aws, member: &str) {
        provider.destroy(&MachineId::new(&member.into(), 1), Data::Goes).await.expect("destroyed");
    }

    async fn end(&self, provider: &Aws) {
        provider.dismiss(99).await.expect("dismissed");
        provider.forget().await.expect("forgotten");
        assert_eq!(self.counts().await, BTreeMap::new());
    }

    /// Of the cluster, with its subnets' ranges by zone.
    async fn vpc(&self) -> (String, BTreeMap<String, String>) {
        let own = |item: &String| tag(item, "quorate.cluster_id").as_deref() == Some(&*self.place.cluster_id);
        let vpcs = items(&self.api.call("DescribeVpcs", []).await, "vpcSet");
        let vpc = one(vpcs.iter().find(|vpc| own(vpc)).expect("a VPC"), "vpcId");
        let subnets = items(&self.api.call("DescribeSubnets", []).await, "subnetSet").into_iter();
        let subnets = subnets.filter(|subnet| own(subnet) && tag(subnet, "quorate.role").is_none());
        let subnets = subnets.map(|subnet| (one(&subnet, "availabilityZone"), one(&subnet, "cidrBlock"))).collect();
        (vpc, subnets)
    }

    /// Where the main table of a VPC leads everything else.
    async fn default_route(&self, vpc: &str) -> Option<String> {
        let tables = items(&self.api.call("DescribeRouteTables", []).await, "routeTableSet");
        let is_main = |table: &&String| one(table, "vpcId") == vpc && table.contains("<main>true</main>");
        let main = tables.iter().find(is_main).expect("a main table");
        let routes = items(main, "routeSet");
        let route = routes.iter().find(|route| texts(route, "destinationCidrBlock") == ["0.0.0.0/0"])?;
        texts(route, "natGatewayId").into_iter().chain(texts(route, "gatewayId")).find(|id| !id.is_empty())
    }

    async fn main_table(&self, vpc: &str) -> String {
        let tables = items(&self.api.call("DescribeRouteTables", []).await, "routeTableSet");
        let is_main = |table: &&String| one(table, "vpcId") == vpc && table.contains("<main>true</main>");
        one(tables.iter().find(is_main).expect("a main table"), "routeTableId")
    }
}

async fn made_and_deleted() {
    for internet in BOTH {
        let stage = Stage::new(internet);
        let proxy = Proxy::new(|_| None);
        let calls = proxy.seen.clone();
        let provider = stage.through(proxy);
        provider.admit(1).await.expect("admitted");
        assert_eq!(stage.counts().await, BTreeMap::new(), "nothing is made before it is needed");
        for member in ["etcd-1", "etcd-2"] {
            stage.create(&provider, member, 1).await.expect("a machine");
        }
        assert_eq!(stage.counts().await, stage.expected(2));
        let (vpc, subnets) = stage.vpc().await;
        let ranges = ["10.99.0.0/19", "10.99.32.0/19"].map(str::to_owned);
        assert_eq!(subnets, ZONES.map(str::to_owned).into_iter().zip(ranges).collect());
        let gateway = stage.default_route(&vpc).await.expect("a route");
        assert!(gateway.starts_with(if internet == Internet::Nat { "nat-" } else { "igw-" }), "{gateway}");
        let asks = |sent: &&super::strict::Sent| get(&sent.fields, "AssociatePublicIpAddress") == Some("true");
        let public = calls.lock().expect("a list").iter().filter(asks).count();
        assert_eq!(public, if internet == Internet::Nat { 0 } else { 2 });

        // A second run changes nothing, and one after somebody's change puts it right.
        let table = stage.main_table(&vpc).await;
        stage.provider().admit(2).await.expect("admitted");
        assert_eq!(stage.counts().await, stage.expected(2));
        let pairs = [("RouteTableId", table.as_str()), ("DestinationCidrBlock", "0.0.0.0/0")];
        stage.api.call("DeleteRoute", pairs).await;
        assert_eq!(stage.default_route(&vpc).await, None);
        stage.provider().admit(3).await.expect("admitted");
        assert_eq!(stage.default_route(&vpc).await.as_ref(), Some(&gateway));
        let elsewhere = one(&stage.api.call("CreateInternetGateway", []).await, "internetGatewayId");
        let pairs = [pairs[0], pairs[1], ("GatewayId", elsewhere.as_str())];
        stage.api.call("ReplaceRoute", pairs).await;
        stage.provider().admit(4).await.expect("admitted");
        assert_eq!(stage.default_route(&vpc).await.as_ref(), Some(&gateway));

        // While a machine is there, the network stays.
        stage.destroy(&provider, "etcd-1").await;
        provider.dismiss(4).await.expect("dismissed");
        assert_eq!(stage.counts().await, stage.expected(1));
        stage.destroy(&provider, "etcd-2").await;
        stage.end(&provider).await;
        stage.end(&provider).await;
    }
}

/// At each call, until the first machine's own begin. A network with NAT has every part that one without has.
async fn crash_while_made() {
    let stage = Stage::new(Internet::Nat);
    for after in 0.. {
        let fence = 2 * after as u64 + 1;
        let (proxy, left) = Proxy::mortal(after);
        let _ = stage.create(&stage.through(proxy), "etcd-1", fence).await;
        assert!(left.load(Ordering::SeqCst) < 0, "it was not interrupted");
        let is_whole = stage.counts().await.contains_key("networkInterfaceId");
        let next = stage.provider();
        next.admit(fence + 1).await.expect("admitted");
        if after % 2 == 0 && !is_whole {
            // It is not needed any more.
            next.dismiss(fence + 1).await.expect("dismissed");
            assert_eq!(stage.counts().await, BTreeMap::new(), "after {after}");
            continue;
        }
        stage.create(&next, "etcd-1", fence + 1).await.expect("a machine");
        assert_eq!(stage.counts().await, stage.expected(1), "after {after}");
        stage.destroy(&next, "etcd-1").await;
        stage.end(&next).await;
        if is_whole {
            assert!(after > 8, "after {after} calls");
            break;
        }
    }
}

async fn crash_while_deleted() {
    let stage = Stage::new(Internet::Nat);
    for after in 0.. {
        let provider = stage.provider();
        stage.create(&provider, "etcd-1", 1).await.expect("a machine");
        stage.destroy(&provider, "etcd-1").await;
        let (proxy, left) = Proxy::mortal(after);
        let _ = stage.through(proxy).forget().await;
        stage.end(&stage.provider()).await;
        if left.load(Ordering::SeqCst) >= 0 {
            assert!(after > 4, "nothing was ever interrupted");
            break;
        }
    }
}

/// Every call fails once after it was carried out, and is repeated.
async fn made_once() {
    for fault in [Fault::Cut, Fault::DoneBut(500, "InternalError"), Fault::Error(503, "RequestLimitExceeded")] {
        let stage = Stage::new(Internet::Nat);
        let spoiled: Mutex<BTreeSet<String>> = Mutex::default();
        let provider = stage.through(Proxy::new(move |fields| {
            let action = get(fields, "Action").unwrap_or_default().to_owned();
            spoiled.lock().expect("a set").insert(action).then_some(fault)
        }));
        provider.admit(1).await.expect("admitted");
        stage.create(&provider, "etcd-1", 1).await.expect("a machine");
        stage.provider().admit(1).await.expect("admitted");
        assert_eq!(stage.counts().await, stage.expected(1), "{fault:?}");
        stage.destroy(&provider, "etcd-1").await;
        stage.end(&provider).await;
    }
}

async fn others_use_it() {
    let stage = Stage::new(Internet::Nat);
    let provider = stage.provider();
    provider.admit(1).await.expect("admitted");
    stage.create(&provider, "etcd-1", 1).await.expect("a machine");
    let (vpc, _) = stage.vpc().await;
    // Another cluster of the same name has another VPC.
    let strange = stage.place.aws(&stage.place.strange_id, &stage.settings(&ZONES));
    let strangers = Rc::new(strange);
    stage.create(&strangers, "etcd-1", 1).await.expect("a machine");
    let theirs = stage.api.inventory(&[&stage.place.strange_id]).await;

    let subnets = items(&stage.api.call("DescribeSubnets", []).await, "subnetSet");
    let subnet = subnets.iter().find(|subnet| one(subnet, "vpcId") == vpc).expect("a subnet");
    let address = stage.place.pinned("etcd-9").expect("an address").to_string().replace("10.80.1.", "10.99.0.");
    let planted = stage.api.plant("theirs", &one(subnet, "subnetId"), address.parse().expect("an address")).await;
    stage.destroy(&provider, "etcd-1").await;
    provider.dismiss(1).await.expect("dismissed");
    assert_eq!(stage.counts().await, stage.expected(0), "it stays as a whole");
    let said = provider.forget().await.expect_err("others use it").to_string();
    assert!(said.contains(&vpc) && said.contains(&planted), "{said}");
    assert_eq!(stage.counts().await, stage.expected(0));
    stage.api.call("DeleteNetworkInterface", [("NetworkInterfaceId", &planted)]).await;
    let pairs = [("GroupName", "of-the-operator"), ("GroupDescription", "x"), ("VpcId", vpc.as_str())];
    let group = one(&stage.api.call("CreateSecurityGroup", pairs).await, "groupId");
    let said = provider.forget().await.expect_err("others use it").to_string();
    assert!(said.contains(&vpc) && said.contains("dependent object"), "{said}");
    stage.api.call("DeleteSecurityGroup", [("GroupId", &group)]).await;
    stage.end(&provider).await;
    assert_eq!(stage.api.inventory(&[&stage.place.strange_id]).await, theirs);
    stage.destroy(&strangers, "etcd-1").await;
    strangers.dismiss(1).await.expect("dismissed");
    strangers.forget().await.expect("forgotten");
    assert_eq!(stage.place.inventory().await, BTreeSet::new());
}

/// Without zones in the spec there are three; each member is in another one. One that the spec leaves out is given up when it is empty.
async fn zones_change() {
    let stage = Stage::new(Internet::Public);
    let with = |zones: &[&str]| stage.place.aws(&stage.place.cluster_id, &stage.settings(zones));
    let provider = with(&[]);
    provider.admit(1).await.expect("admitted");
    for member in ["etcd-1", "etcd-2", "etcd-3"] {
        stage.create(&provider, member, 1).await.expect("a machine");
    }
    let zones = || async { stage.vpc().await.1.into_keys().collect::<Vec<_>>() };
    let all = ["eu-west-2a", "eu-west-2b", "eu-west-2c"];
    assert_eq!(zones().await, all);
    let used: BTreeSet<String> = stage
        .api
        .instances()
        .await
        .iter()
        .filter(|one| one.contains(&stage.place.cluster_id))
        .map(|one| self::one(one, "availabilityZone"))
        .collect();
    assert_eq!(used.into_iter().collect::<Vec<_>>(), all);
    // In another order: nothing moves. One with a machine stays.
    let (_, before) = stage.vpc().await;
    with(&["eu-west-2c", "eu-west-2a"]).admit(2).await.expect("admitted");
    assert_eq!(stage.vpc().await.1, before);
    stage.destroy(&provider, "etcd-2").await;
    with(&["eu-west-2c", "eu-west-2a"]).admit(3).await.expect("admitted");
    assert_eq!(zones().await, ["eu-west-2a", "eu-west-2c"]);
    for member in ["etcd-1", "etcd-3"] {
        stage.destroy(&provider, member).await;
    }
    stage.end(&provider).await;
}
