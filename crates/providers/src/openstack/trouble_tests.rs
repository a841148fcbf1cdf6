//! Runs on a scripted cloud in trouble: servers that are not built, an unavailable API, late and deferred answers. The cloud keeps
//! records, so the tests check its final state.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::PathBuf;

use jiff::{SignedDuration, Timestamp};
use quorate_core::Secret;
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::etcd::versions;
use quorate_core::spec;
use quorate_scripted_cloud::{Building, Conditions, FLAVOR, IMAGE, NETWORK, REGION, Server as ScriptedCloud};
use serde_json::json;

use super::credentials::Cloud;
use super::*;
use crate::web::Retry;

/// What there is of a cluster with one machine.
const ONE_MACHINE: [(&str, usize); 5] =
    [("servers", 1), ("ports", 1), ("volumes", 2), ("security-groups", 1), ("os-server-groups", 1)];
const CLOUD: &str = "lab";
const PAUSE: Duration = Duration::from_millis(1);

/// A cloud, and a cluster whose machines have volumes, ports and groups there.
struct Stage {
    cloud: ScriptedCloud,
    directory: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        Stage { cloud: ScriptedCloud::start().unwrap(), directory: tempfile::tempdir().unwrap() }
    }

    fn clouds(&self, url: &str) -> PathBuf {
        let path = self.directory.path().join("clouds.yaml");
        let auth = json!({
            "auth_url": format!("{url}/identity/v3"), "username": "u", "password": "p", "project_name": "bench",
            "user_domain_name": "Default", "project_domain_name": "Default",
        });
        let clouds = json!({ "clouds": { CLOUD: { "auth": auth, "region_name": REGION } } });
        std::fs::write(&path, clouds.to_string()).unwrap();
        path
    }

    /// What the provider is in one run, which looks for the cloud at this address.
    fn run_at(&self, url: &str) -> Openstack {
        let spec = spec::generated("demo", 1, versions::DEFAULT, ClientAuth::Certificate).unwrap().clusters.remove(0);
        let settings = json!({
            "cloud": CLOUD, "image": IMAGE, "flavor": FLAVOR, "network": NETWORK, "root_size": "1GiB",
            "data_size": "1GiB", "boot_patience": "1s",
        });
        let settings: OpenstackSettings = serde_json::from_value(settings).unwrap();
        let run = Openstack::new(&Ledger::new(String::from("c1"), spec), &settings);
        run.impatient(&self.clouds(url), 2, PAUSE).unwrap()
    }

    fn run(&self) -> Openstack {
        self.run_at(&self.cloud.url)
    }

    /// Whatever made it so.
    fn state(&self) -> BTreeMap<&'static str, Vec<Value>> {
        self.cloud.cloud().created()
    }

    #[track_caller]
    fn assert_one_machine(&self) {
        let cloud = self.cloud.cloud();
        for (kind, expected) in ONE_MACHINE {
            assert_eq!(cloud.all(kind).len(), expected, "{kind}: {:#?}", cloud.all(kind));
        }
        assert_eq!(cloud.servers_with(&[("quorate.state", "whole")]), 1);
        let whole = |volume: &&Value| volume["metadata"]["quorate.state"] == "whole";
        assert_eq!(cloud.all("volumes").iter().filter(whole).count(), 2);
        let rules = cloud.all("security-groups")[0]["security_group_rules"].as_array().unwrap().clone();
        let without_id = |rule: &Value| {
            let mut rule = rule.clone();
            rule.as_object_mut().unwrap().remove("id");
            rule.to_string()
        };
        assert_eq!(rules.iter().map(without_id).collect::<BTreeSet<_>>().len(), rules.len(), "{rules:#?}");
    }

    /// The cluster is removed by a run of this number, and nothing of it is left.
    async fn end(&self, fence: u64, incarnations: &[u64]) {
        let run = self.run();
        run.admit(fence).await.unwrap();
        for incarnation in incarnations {
            run.destroy(&machine(*incarnation), Data::Goes).await.unwrap();
        }
        run.dismiss(fence).await.unwrap();
        run.forget().await.unwrap();
        assert_eq!(self.state(), BTreeMap::new());
    }
}

fn machine(incarnation: u64) -> MachineId {
    MachineId::new(&"etcd-1".into(), incarnation)
}

async fn create(run: &Openstack, incarnation: u64, fence: u64) -> Result<(), ProviderError> {
    let name = if incarnation == 1 { String::from("etcd-1") } else { format!("etcd-1.{incarnation}") };
    let new = NewMachine {
        name: &name,
        id: machine(incarnation),
        address: None,
        data: Data::Goes,
        fence,
        control_ca: "",
        token: &Secret::new("t"),
        token_expires: Timestamp::now() + SignedDuration::from_hours(1),
    };
    run.create(&new).await
}

/// A server that could not be built, and what the run says of it, leave nothing behind.
async fn fails_to_build(building: Building, expected: &[&str], servers_left: usize) {
    let stage = Stage::new();
    stage.cloud.cloud().build(building);
    let run = stage.run();
    run.admit(1).await.unwrap();
    let said = create(&run, 1, 1).await.unwrap_err().to_string();
    for words in expected {
        assert!(said.contains(words), "{words:?} is not in {said}");
    }
    assert_eq!(stage.cloud.cloud().all("servers").len(), servers_left, "before the end of the run");
    assert_eq!(run.machines().await.unwrap().found.len(), 0, "it is no machine");
    run.dismiss(1).await.unwrap();
    assert_eq!(stage.state(), BTreeMap::new(), "its port and its volumes are gone too");
    // When the cloud has room again, the next run has its machine.
    stage.cloud.cloud().build(Building::AtOnce);
    let run = stage.run();
    run.admit(2).await.unwrap();
    create(&run, 1, 2).await.unwrap();
    run.dismiss(2).await.unwrap();
    stage.assert_one_machine();
    stage.end(3, &[1]).await;
}

#[tokio::test]
async fn a_server_that_fails_to_build_is_deleted_with_its_resources() {
    let fault = "No valid host was found. There are not enough hosts available.";
    let said = format!("OpenStack refused to build demo-etcd-1 (500): {fault}");
    fails_to_build(Building::Fails(fault.to_owned()), &[&said], 0).await;
}

#[tokio::test]
async fn a_server_that_is_never_built_ends_the_run_and_is_deleted_at_its_end() {
    let said = "the server demo-etcd-1 was still BUILD (spawning) after 1 s";
    fails_to_build(Building::Never, &[said], 1).await;
}

#[tokio::test]
async fn a_server_that_takes_its_time_is_waited_for() {
    let stage = Stage::new();
    stage.cloud.cloud().build(Building::Seen(3));
    let run = stage.run();
    run.admit(1).await.unwrap();
    create(&run, 1, 1).await.unwrap();
    run.dismiss(1).await.unwrap();
    stage.assert_one_machine();
}

/// Does all that a run could, which fails.
async fn everything_fails(run: &Openstack, expected: &str) {
    let said = [
        run.machines().await.map(drop),
        run.admit(3).await,
        create(run, 2, 3).await,
        create(run, 3, 3).await,
        run.start(&machine(1)).await,
        run.stop(&machine(1)).await,
        run.destroy(&machine(1), Data::Stays).await,
        run.destroy(&machine(1), Data::Goes).await,
        run.dismiss(3).await,
        run.forget().await,
    ];
    for (number, said) in said.into_iter().enumerate() {
        let said = said.unwrap_err().to_string();
        assert!(said.contains(expected), "{number}: {said}");
    }
}

#[tokio::test]
async fn while_the_api_is_unavailable_nothing_is_changed_and_the_next_run_continues() {
    let stage = Stage::new();
    let run = stage.run();
    run.admit(1).await.unwrap();
    create(&run, 1, 1).await.unwrap();
    run.dismiss(1).await.unwrap();
    stage.assert_one_machine();
    // A run that was killed while it made another machine.
    stage.cloud.cloud().build(Building::Never);
    let run = stage.run();
    run.admit(2).await.unwrap();
    create(&run, 2, 2).await.unwrap_err();
    stage.cloud.cloud().build(Building::AtOnce);
    let before = stage.state();
    assert_eq!(["servers", "ports", "volumes"].map(|kind| before[kind].len()), [2, 2, 4]);
    stage.cloud.cloud().take_calls();
    // Every service answers 503, the identity service too.
    stage.cloud.set(Conditions { refuses: Some(503), ..Conditions::default() });
    everything_fails(&stage.run(), "(503): the service is away").await;
    // The same in the middle of a run, which has its token.
    stage.cloud.set(Conditions::default());
    let run = stage.run();
    run.machines().await.unwrap();
    stage.cloud.set(Conditions { refuses: Some(503), ..Conditions::default() });
    everything_fails(&run, "(503): the service is away").await;
    stage.cloud.set(Conditions::default());
    // Nobody listens.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    everything_fails(&stage.run_at(&format!("http://{closed}")), "OpenStack cannot be reached at http://127.").await;
    assert_eq!(stage.cloud.cloud().take_calls().changes(), 0);
    assert_eq!(stage.state(), before);
    // The next run deletes what the killed one left, and makes its machine.
    let run = stage.run();
    run.admit(4).await.unwrap();
    stage.assert_one_machine();
    create(&run, 2, 4).await.unwrap();
    run.dismiss(4).await.unwrap();
    assert_eq!(run.machines().await.unwrap().found.len(), 2);
    let after = stage.state();
    assert_eq!(["servers", "ports", "volumes"].map(|kind| after[kind].len()), [2, 2, 4]);
    stage.end(5, &[1, 2]).await;
}

#[tokio::test]
async fn requests_that_a_cloud_puts_off_are_repeated() {
    let stage = Stage::new();
    stage.cloud.set(Conditions { throttles: true, ..Conditions::default() });
    let run = stage.run();
    run.admit(1).await.unwrap();
    create(&run, 1, 1).await.unwrap();
    run.dismiss(1).await.unwrap();
    stage.assert_one_machine();
    let requests = stage.cloud.requests();
    let carried_out = stage.cloud.cloud().take_calls().all();
    assert_eq!(carried_out, requests / 2, "each was put off once");
    stage.end(2, &[1]).await;
}

/// The client gives up waiting, and the cloud has done it nevertheless.
#[tokio::test]
async fn resources_are_not_created_twice_when_a_call_times_out() {
    for call in [
        "POST /network/v2.0/security-groups",
        "POST /network/v2.0/security-group-rules",
        "POST /network/v2.0/ports",
        "POST /volume/v3/bench/volumes",
        "POST /compute/v2.1/os-server-groups",
        "POST /compute/v2.1/servers",
    ] {
        let stage = Stage::new();
        let cloud = Cloud::of_file(&stage.clouds(&stage.cloud.url), Some(CLOUD)).unwrap();
        let retry = Retry { attempts: 3, first: PAUSE, longest: PAUSE };
        let session = Session::within(cloud, retry, Duration::from_millis(250)).unwrap();
        let run = Openstack { session: OnceCell::from(Rc::new(session)), ..stage.run() };
        stage.cloud.set(Conditions { slow: Some((call, Duration::from_millis(600))), ..Conditions::default() });
        run.admit(1).await.unwrap();
        create(&run, 1, 1).await.unwrap_or_else(|error| panic!("{call}: {error}"));
        run.dismiss(1).await.unwrap();
        stage.assert_one_machine();
        stage.cloud.set(Conditions::default());
        stage.end(2, &[1]).await;
    }
}
