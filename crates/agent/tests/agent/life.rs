//! etcd under its agent when its program is replaced or missing, when its data is replaced, and when the agent does not know it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use quorate_agent::api::{EtcdOrder, FactsRequest, Order};
use quorate_agent::client::{AgentClient, Look};
use quorate_core::kinds::etcd::desire::ROOT_PASSWORD_FILE;
use quorate_core::model::{BinarySeen, BinarySource, ConfigAttempt, DataSeen, Facts, NodeConfig, ServiceState};
use quorate_etcd::{Client, ConnectOptions, Login};
use rustix::process::Signal;

use crate::common::{Machine, VERSION, VERSIONS, config, facts, file, order, programs, turn_auth_on, until};

/// A place where a program can be exchanged, as an upgrade of packages does.
struct Shelf(tempfile::TempDir);

impl Shelf {
    fn with(version: &str) -> Self {
        let shelf = Shelf(tempfile::tempdir().unwrap());
        shelf.put(version);
        shelf
    }

    fn program(&self) -> PathBuf {
        self.0.path().join("etcd")
    }

    fn put(&self, version: &str) {
        let draft = self.0.path().join("draft");
        std::os::unix::fs::symlink(programs(version).join("etcd"), &draft).unwrap();
        fs::rename(draft, self.program()).unwrap();
    }
}

fn config_at(path: &Path) -> NodeConfig {
    let mut config = config();
    config.etcd_mut().unwrap().binary = BinarySource::Path(path.display().to_string());
    config
}

async fn facts_for(client: &AgentClient, fence: u64) -> Facts {
    let request = FactsRequest { fence: Some(fence), auth: false, reach: BTreeSet::new() };
    match client.look(&request).await.unwrap() {
        Look::Facts(facts) => *facts,
        look => panic!("{look:?}"),
    }
}

async fn not_started_since(client: &AgentClient, reason: &str) {
    until(reason, async || match facts(client).await.etcd.service {
        ServiceState::BackingOff { last_exit, .. } => last_exit.how.contains(reason).then_some(()),
        _ => None,
    })
    .await;
}

#[tokio::test]
async fn a_program_that_was_exchanged_is_not_started_and_one_that_is_put_back_is() {
    let shelf = Shelf::with(VERSION);
    let (mut machine, client) = Machine::ready_with(&config_at(&shelf.program())).await;
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;

    let newer = VERSIONS[2];
    shelf.put(newer);
    assert_eq!(facts(&client).await.etcd.binary, BinarySeen::Version(newer.to_owned()), "the facts are of now");
    let wanted = format!("is etcd {newer}, expected {VERSION}");
    machine.signal_etcd(Signal::KILL);
    not_started_since(&client, &wanted).await;
    assert!(machine.etcds().is_empty());

    machine.stop_agent();
    machine.start_agent().await;
    not_started_since(&client, &format!("not started: expected etcd {VERSION}, found etcd {newer}")).await;
    assert!(machine.etcds().is_empty());

    shelf.put(VERSION);
    let back = machine.healthy(&client).await;
    assert_eq!(back.etcd.status.unwrap().version, VERSION, "nobody had to order it");
}

#[tokio::test]
async fn a_config_without_its_etcd_is_refused_and_a_boot_starts_what_ran_before() {
    let (mut machine, client) = Machine::ready().await;
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;

    // The right version is asked for at the wrong place.
    let mut newer = config();
    newer.etcd_mut().unwrap().version = VERSIONS[2].to_owned();
    newer.files = vec![file("etc/quorate/note", "two")];
    order(&client, 1, Order::converge(2, newer.clone(), None)).await.unwrap();
    let refused = facts_for(&client, 1).await;
    assert_eq!(refused.node_config.map(|(generation, _)| generation), Some(1));
    let seen = BinarySeen::Version(VERSION.to_owned());
    assert_eq!(refused.etcd.attempt, ConfigAttempt::WithoutProgram { digest: newer.digest(), seen });
    assert_eq!(fs::read_to_string(machine.root().join("etc/quorate/note")).unwrap(), "one", "nothing of it is taken");

    machine.stop_agent();
    machine.signal_etcd(Signal::KILL);
    machine.start_agent().await;
    assert_eq!(machine.healthy(&client).await.etcd.status.unwrap().version, VERSION);

    order(&client, 1, Order::converge(2, newer.clone(), None)).await.unwrap();
    assert!(matches!(facts_for(&client, 1).await.etcd.attempt, ConfigAttempt::WithoutProgram { .. }));
    assert_eq!(facts_for(&client, 2).await.etcd.attempt, ConfigAttempt::Taken, "a later controller tries again");
    newer.etcd_mut().unwrap().binary = BinarySource::Path(programs(VERSIONS[2]).display().to_string());
    order(&client, 2, Order::converge(3, newer, None)).await.unwrap();
    let taken = facts_for(&client, 2).await;
    assert_eq!(taken.node_config.map(|(generation, _)| generation), Some(3));
    assert_eq!(taken.etcd.attempt, ConfigAttempt::Taken);
}

#[tokio::test]
async fn a_member_that_could_not_be_started_is_started_by_the_config_that_is_right() {
    let shelf = Shelf::with(VERSION);
    let (mut machine, client) = Machine::ready_with(&config_at(&shelf.program())).await;
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;
    machine.stop_agent();
    machine.signal_etcd(Signal::KILL);
    fs::remove_file(shelf.program()).unwrap();
    machine.start_agent().await;
    not_started_since(&client, "not started").await;
    order(&client, 1, Order::converge(2, config(), None)).await.unwrap();
    // By the order, or by an attempt of the agent's own that was under way when it came.
    until("etcd is started", async || (machine.etcds().len() == 1).then_some(())).await;
    machine.healthy(&client).await;
}

#[tokio::test]
async fn an_etcd_of_which_nothing_is_noted_does_not_hold_the_data_for_ever() {
    let (mut machine, client) = Machine::ready().await;
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;
    let unknown = machine.etcds();
    machine.stop_agent();
    fs::remove_file(machine.root().join("var/lib/quorate/etcd.process.json")).unwrap();
    machine.start_agent().await;
    until("another etcd runs", async || (machine.etcds().len() == 1 && machine.etcds() != unknown).then_some(())).await;
    let found = machine.healthy(&client).await;
    assert!(matches!(found.etcd.service, ServiceState::Running { restarts: 0, .. }), "{:?}", found.etcd.service);
    order(&client, 1, Order::Etcd(EtcdOrder::Stop)).await.unwrap();
    assert!(machine.etcds().is_empty());
}

/// As root, by password.
fn by_password(machine: &Machine, password: &str) -> Client {
    let url = format!("https://{}:2379", machine.address);
    let mut options = ConnectOptions::new(url, machine.etcd.certificate_pem().to_owned());
    options.login = Some(Login { user: String::from("root"), password: password.to_owned() });
    options.request_timeout = std::time::Duration::from_secs(1);
    Client::connect(options).unwrap()
}

/// A simple token names an index of etcd's log. An etcd on new data has not come that far, and does not refuse the token: it waits.
#[tokio::test]
async fn a_client_with_a_simple_token_comes_back_after_the_data_was_replaced() {
    let mut config = config();
    config.etcd_mut().unwrap().flags.remove("client-cert-auth");
    config.etcd_mut().unwrap().flags.remove("trusted-ca-file");
    config.etcd_mut().unwrap().flags.insert(String::from("auth-token"), String::from("simple"));
    config.etcd_mut().unwrap().flags.insert(String::from("bcrypt-cost"), String::from("4"));
    config.files.push(file(ROOT_PASSWORD_FILE, "root's own"));
    let (machine, client) = Machine::ready_with(&config).await;
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;
    turn_auth_on(&client, Some("root's own")).await;
    let user = by_password(&machine, "root's own");
    for number in 0..60 {
        user.put(format!("key-{number:03}"), "value").await.unwrap();
    }
    machine.healthy(&client).await;

    order(&client, 1, Order::Etcd(EtcdOrder::Stop)).await.unwrap();
    let (was, stamp) = (machine.stamp("t-1"), machine.stamp("t-2"));
    let peer_url = machine.peer_url();
    order(&client, 1, Order::Etcd(EtcdOrder::Rebuild { was, stamp: stamp.clone(), peer_url, bump_revision: 1000 }))
        .await
        .unwrap();
    let expects = DataSeen::Stamped(stamp);
    order(&client, 1, Order::Etcd(EtcdOrder::Start { expects, bootstrap: None, peers: BTreeSet::new() }))
        .await
        .unwrap();
    let after = machine.healthy(&client).await.etcd.status.unwrap();
    assert!(after.raft_index < 60, "or the old token would be good by chance: {}", after.raft_index);
    until("a client that gives up waiting logs in again", async || user.put("key", "value").await.ok()).await;
}
