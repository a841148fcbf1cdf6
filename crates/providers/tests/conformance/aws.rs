//! The ground of the provider `aws`: moto's server, which a lab runs, behind a proxy that is as strict as AWS. An environment variable has
//! its address. Its instances are records: no guest runs in them.

mod balancing;
mod cloud;
mod faults;
mod fixtures;
mod groups;
mod made;
mod names;
mod strict;
mod vpc;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use libtest_mimic::Trial;
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::etcd::versions;
use quorate_core::model::{FixtureId, FixtureRecord, Ledger, MachineId, MemberName};
use quorate_core::providers::aws::AwsSettings;
use quorate_core::spec::{self, ClusterSpec, Provider as Kind};
use quorate_providers::{Aws, Data, NewMachine, Provider};
use serde_json::json;

use crate::suite::Ground;
use cloud::{Api, REGION, tag};
use strict::Proxy;

/// Where moto's server is; without it there is no such ground.
const SERVER: &str = "QUORATE_LAB_AWS";
/// One of those that moto knows.
const IMAGE: &str = "ami-03cf127a";
const TYPES: [&str; 2] = ["m5.large", "m6i.large"];
/// How soon and how often a failed request is repeated.
const PAUSE: Duration = Duration::from_millis(20);
const ATTEMPTS: u32 = 5;

pub fn trials() -> Vec<Trial> {
    let first = faults::trials().into_iter().chain(groups::trials()).chain(made::trials());
    first.chain(vpc::trials()).chain(fixtures::trials()).collect()
}

pub fn is_there() -> bool {
    std::env::var_os(SERVER).is_some()
}

/// The address of a proxy that spoils nothing.
pub fn proxy() -> String {
    Proxy::new(|_| None).serve()
}

pub struct Place {
    cluster: String,
    cluster_id: String,
    strange_id: String,
    vpc: String,
    subnets: [String; 2],
    /// The proxy that usual calls go through.
    url: String,
}

impl Place {
    pub fn new() -> Self {
        let network = std::thread::spawn(|| crate::suite::runtime().block_on(async { Api::new().network().await }));
        let (vpc, subnets) = network.join().expect("a VPC");
        Place {
            cluster: format!("ground-{}", quorate_pki::random_hex(4)),
            cluster_id: quorate_pki::random_hex(8),
            strange_id: quorate_pki::random_hex(8),
            vpc,
            subnets,
            url: proxy(),
        }
    }

    fn settings(&self) -> AwsSettings {
        let settings = json!({
            "region": REGION, "endpoint": self.url, "subnets": self.subnets, "instance_types": TYPES,
            "image": { "id": IMAGE }, "data_size": "1GiB", "boot_patience": "20s",
        });
        serde_json::from_value(settings).expect("settings")
    }

    fn spec(&self, settings: &AwsSettings) -> ClusterSpec {
        let spec = spec::generated(&self.cluster, 3, versions::DEFAULT, ClientAuth::Certificate).expect("a spec");
        let mut spec = spec.clusters.into_iter().next().expect("a cluster");
        spec.provider = Kind::Aws(Box::new(settings.clone()));
        spec
    }

    fn aws(&self, cluster_id: &str, settings: &AwsSettings) -> Aws {
        self.aws_of(cluster_id, settings, self.spec(settings))
    }

    fn aws_of(&self, cluster_id: &str, settings: &AwsSettings, spec: ClusterSpec) -> Aws {
        Self::aws_with(Ledger::new(cluster_id.to_owned(), spec), settings)
    }

    /// One whose ledger has these fixtures.
    fn aws_knowing(&self, settings: &AwsSettings, fixtures: impl IntoIterator<Item = FixtureId>) -> Aws {
        let mut ledger = Ledger::new(self.cluster_id.clone(), self.spec(settings));
        ledger.fixtures.0.extend(fixtures.into_iter().map(|fixture| (fixture, FixtureRecord::default())));
        Self::aws_with(ledger, settings)
    }

    fn aws_with(ledger: Ledger, settings: &AwsSettings) -> Aws {
        let variables = [("AWS_ACCESS_KEY_ID", "AKLAB"), ("AWS_SECRET_ACCESS_KEY", "secret of the lab")];
        Aws::new(&ledger, settings).impatient(&variables, ATTEMPTS, PAUSE).expect("a session")
    }

    /// What the instance of this machine is called.
    fn instance(&self, machine: &str) -> String {
        format!("{}-{machine}", self.cluster)
    }

    fn through(&self, proxy: Proxy) -> Aws {
        let settings = AwsSettings { endpoint: Some(proxy.serve()), ..self.settings() };
        self.aws(&self.cluster_id, &settings)
    }

    /// The data volume of a machine, by id.
    async fn data_volume(&self, machine: &str) -> Option<String> {
        let instance = Api::new().instance(&self.instance(machine)).await?;
        tag(&instance, "quorate.data").filter(|id| !id.is_empty())
    }
}

#[async_trait(?Send)]
impl Ground for Place {
    fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    fn provider(&self) -> Rc<dyn Provider> {
        Rc::new(self.aws(&self.cluster_id, &self.settings()))
    }

    fn stranger(&self) -> (Rc<dyn Provider>, String) {
        (Rc::new(self.aws(&self.strange_id, &self.settings())), self.strange_id.clone())
    }

    fn pinned(&self, member: &str) -> Option<IpAddr> {
        let number: u8 = member.rsplit('-').next()?.parse().ok()?;
        Some(Ipv4Addr::new(10, 80, 1, 10 + number).into())
    }

    async fn inventory(&self) -> BTreeSet<String> {
        Api::new().inventory(&[&self.cluster, &self.cluster_id, &self.strange_id]).await
    }

    async fn interrupt_create(&self, new: &NewMachine<'_>, after: usize) -> bool {
        let (proxy, left) = Proxy::mortal(after);
        let _ = self.through(proxy).create(new).await;
        left.load(Ordering::SeqCst) < 0
    }

    async fn interrupt_destroy(&self, _: &str, member: &MemberName, incarnation: u64, after: usize) -> bool {
        let (proxy, left) = Proxy::mortal(after);
        let _ = self.through(proxy).destroy(&MachineId::new(member, incarnation), Data::Goes).await;
        left.load(Ordering::SeqCst) < 0
    }

    /// A name is nobody's in AWS; an address is.
    async fn plant(&self, machine: &str) {
        let address = self.pinned(machine).expect("an address");
        Api::new().plant(&format!("{}-planted", self.cluster), &self.subnets[0], address).await;
    }

    /// No guest runs, so what is written is a tag of exactly the volume that the instance has.
    async fn write_data(&self, machine: &str, text: &str) {
        let volume = self.data_volume(machine).await.expect("a volume");
        let pairs = [("ResourceId.1", volume.as_str()), ("Tag.1.Key", "precious"), ("Tag.1.Value", text)];
        Api::new().call("CreateTags", pairs).await;
    }

    async fn read_data(&self, machine: &str) -> Option<String> {
        let volume = self.data_volume(machine).await?;
        tag(&Api::new().call("DescribeVolumes", [("VolumeId.1", &volume)]).await, "precious")
    }

    /// Quotas of AWS are not in its API of EC2.
    fn greedy(&self) -> Option<Rc<dyn Provider>> {
        None
    }
}
