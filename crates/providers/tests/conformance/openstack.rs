//! The ground of the provider `openstack`: a cloud that a lab runs. An environment variable names its `clouds.yaml`. Its servers are
//! records: no guest runs in them.

mod addresses;
mod cloud;
mod faults;
mod groups;
mod images;
mod states;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use libtest_mimic::Trial;
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::etcd::versions;
use quorate_core::model::{Ledger, MachineId, MemberName};
use quorate_core::providers::openstack::OpenstackSettings;
use quorate_core::spec::{self, ClusterSpec, Provider as Kind, Size};
use quorate_providers::{Data, NewMachine, Openstack, Provider};
use serde_json::json;

use crate::suite::Ground;
use cloud::{Api, Proxy};

/// The `clouds.yaml` of the lab; without it there is no such ground.
const CLOUDS: &str = "QUORATE_LAB_OPENSTACK_CLOUDS";
/// Names that the lab gives. The project owns the network.
const CLOUD: &str = "quorate";
const ZONE: &str = "fake";
const RECORD: &str = "record";
const NETWORK: &str = "lab";
/// How soon and how often a failed request is repeated.
const PAUSE: Duration = Duration::from_millis(200);
const ATTEMPTS: u32 = 5;

static GROUNDS: AtomicU8 = AtomicU8::new(1);

pub fn trials() -> Vec<Trial> {
    let all = [faults::trials(), groups::trials(), states::trials(), addresses::trials(), images::trials()];
    all.into_iter().flatten().collect()
}

pub fn is_there() -> bool {
    std::env::var_os(CLOUDS).is_some()
}

fn clouds() -> PathBuf {
    PathBuf::from(std::env::var_os(CLOUDS).expect("the lab says where its clouds.yaml is"))
}

pub struct Place {
    directory: tempfile::TempDir,
    cluster: String,
    cluster_id: String,
    strange_id: String,
    /// The third number of this ground's addresses.
    range: u8,
}

impl Place {
    pub fn new() -> Self {
        let range = GROUNDS.fetch_add(1, Ordering::Relaxed);
        Place {
            directory: tempfile::tempdir().expect("a directory"),
            cluster: format!("ground{range}-{}", quorate_pki::random_hex(3)),
            cluster_id: quorate_pki::random_hex(8),
            strange_id: quorate_pki::random_hex(8),
            range,
        }
    }

    fn settings(&self) -> OpenstackSettings {
        let settings = json!({
            "cloud": CLOUD, "image": RECORD, "flavor": RECORD, "network": NETWORK, "availability_zone": ZONE,
            "data_size": "1GiB", "boot_patience": "10m", "more_ports": [{ "network": "second", "subnet": "second" }],
        });
        serde_json::from_value(settings).expect("settings")
    }

    fn openstack(&self, cluster_id: &str, settings: &OpenstackSettings, clouds: &Path) -> Openstack {
        self.openstack_with(cluster_id, settings, clouds, |_| {})
    }

    /// Of this cluster, with a spec that was changed.
    fn openstack_of(&self, settings: &OpenstackSettings, change: impl FnOnce(&mut ClusterSpec)) -> Openstack {
        self.openstack_with(&self.cluster_id, settings, &clouds(), change)
    }

    fn openstack_with(
        &self,
        cluster_id: &str,
        settings: &OpenstackSettings,
        clouds: &Path,
        change: impl FnOnce(&mut ClusterSpec),
    ) -> Openstack {
        let spec = spec::generated(&self.cluster, 3, versions::DEFAULT, ClientAuth::Certificate).expect("a spec");
        let mut spec = spec.clusters.into_iter().next().expect("a cluster");
        spec.provider = Kind::Openstack(Box::new(settings.clone()));
        change(&mut spec);
        let ledger = Ledger::new(cluster_id.to_owned(), spec);
        Openstack::new(&ledger, settings).impatient(clouds, ATTEMPTS, PAUSE).expect("credentials")
    }

    /// What the server of this machine is called.
    fn server(&self, machine: &str) -> String {
        format!("{}-{}", self.cluster, machine.replace('.', "-i"))
    }

    /// A provider whose calls go through a proxy.
    async fn through(&self, proxy: Proxy) -> Openstack {
        let path = self.directory.path().join(format!("clouds-{}.yaml", quorate_pki::random_hex(4)));
        proxy.serve(&path).await;
        self.openstack(&self.cluster_id, &self.settings(), &path)
    }
}

/// What was planted belongs to nobody who would remove it. A test that failed leaves more.
impl Drop for Place {
    fn drop(&mut self) {
        let cluster = self.cluster.clone();
        let clear = async move { Api::new().await.clear(&cluster).await };
        let cleared = std::thread::spawn(move || crate::suite::runtime().block_on(clear));
        let _ = cleared.join();
    }
}

#[async_trait(?Send)]
impl Ground for Place {
    fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    fn provider(&self) -> Rc<dyn Provider> {
        Rc::new(self.openstack(&self.cluster_id, &self.settings(), &clouds()))
    }

    fn stranger(&self) -> (Rc<dyn Provider>, String) {
        (Rc::new(self.openstack(&self.strange_id, &self.settings(), &clouds())), self.strange_id.clone())
    }

    fn pinned(&self, member: &str) -> Option<IpAddr> {
        let number = member.rsplit('-').next()?.parse().ok()?;
        Some(Ipv4Addr::new(10, 80, self.range, number).into())
    }

    async fn inventory(&self) -> BTreeSet<String> {
        let ids = [self.cluster_id.as_str(), &self.strange_id];
        Api::new().await.inventory(&self.cluster, &ids).await
    }

    async fn interrupt_create(&self, new: &NewMachine<'_>, after: usize) -> bool {
        let (proxy, left) = Proxy::mortal(after);
        let _ = self.through(proxy).await.create(new).await;
        left.load(Ordering::SeqCst) < 0
    }

    async fn interrupt_destroy(&self, _: &str, member: &MemberName, incarnation: u64, after: usize) -> bool {
        let (proxy, left) = Proxy::mortal(after);
        let _ = self.through(proxy).await.destroy(&MachineId::new(member, incarnation), Data::Goes).await;
        left.load(Ordering::SeqCst) < 0
    }

    /// A name is nobody's in OpenStack; an address is.
    async fn plant(&self, machine: &str) {
        let address = self.pinned(machine).expect("an address");
        Api::new().await.plant(&format!("{}-planted", self.cluster), NETWORK, address).await;
    }

    /// No guest runs, so what is written is metadata of exactly the volume that the server has.
    async fn write_data(&self, machine: &str, text: &str) {
        let api = Api::new().await;
        let volume = api.data_volume(&self.server(machine)).await.expect("a volume");
        api.post("volume", &format!("/volumes/{volume}/metadata"), json!({ "metadata": { "precious": text } })).await;
    }

    async fn read_data(&self, machine: &str) -> Option<String> {
        let api = Api::new().await;
        let volume = api.data_volume(&self.server(machine)).await?;
        let volume = api.get("volume", &format!("/volumes/{volume}")).await;
        volume["volume"]["metadata"]["precious"].as_str().map(str::to_owned)
    }

    fn greedy(&self) -> Option<Rc<dyn Provider>> {
        let settings = OpenstackSettings { data_size: Some(Size(1 << 50)), ..self.settings() };
        Some(Rc::new(self.openstack(&self.cluster_id, &settings, &clouds())))
    }
}
