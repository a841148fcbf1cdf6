//! The life of a real etcd under its agent.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use quorate_agent::api::{EtcdOrder, FactsRequest, LogOf, LogRequest, Order, Refusal};
use quorate_agent::client::{AgentClient, Look};
use quorate_core::Secret;
use quorate_core::kinds::etcd::AuthLook;
use quorate_core::kinds::etcd::desire::ROOT_PASSWORD_FILE;
use quorate_core::kinds::etcd::{Access, AuthOp, AuthSeen, Permission};
use quorate_core::model::{DataSeen, HEALTH_PORT, ServiceState};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::{Machine, config, facts, order, stamp, until};

async fn auth(client: &AgentClient, op: AuthOp, password: Option<&str>) {
    let password = password.map(Secret::new);
    // Everything twice: an answer may have been lost.
    for _ in 0..2 {
        order(client, 1, Order::Etcd(EtcdOrder::Auth { op: op.clone(), password: password.clone() })).await.unwrap();
    }
}

async fn auth_seen(client: &AgentClient) -> AuthSeen {
    let look = client.look(&FactsRequest { fence: None, auth: true, reach: Default::default() }).await.unwrap();
    let Look::Facts(facts) = look else { panic!("not enrolled") };
    match facts.etcd.status.unwrap().auth {
        AuthLook::Seen(seen) => seen,
        other => panic!("{other:?}"),
    }
}

async fn set_up_auth(client: &AgentClient, root_password: Option<&str>) {
    let (root, app) = (|| String::from("root"), || String::from("app"));
    let permission = Permission::on_prefix("/app/", Access::ReadWrite);
    auth(client, AuthOp::AddUser { user: root() }, root_password).await;
    auth(client, AuthOp::AddRole { role: root() }, None).await;
    auth(client, AuthOp::GrantRole { user: root(), role: root() }, None).await;
    auth(client, AuthOp::Enable, None).await;
    auth(client, AuthOp::AddUser { user: app() }, Some("pass")).await;
    auth(client, AuthOp::AddRole { role: app() }, None).await;
    auth(client, AuthOp::GrantPermission { role: app(), permission: permission.clone() }, None).await;
    auth(client, AuthOp::GrantRole { user: app(), role: app() }, None).await;
    auth(client, AuthOp::SetPassword { user: app() }, Some("other")).await;
    let seen = auth_seen(client).await;
    assert!(seen.enabled);
    assert_eq!(seen.users["app"], BTreeSet::from([app()]));
    assert_eq!(seen.roles["app"], BTreeSet::from([permission.clone()]));
    auth(client, AuthOp::RevokePermission { role: app(), permission }, None).await;
    auth(client, AuthOp::RevokeRole { user: app(), role: app() }, None).await;
    auth(client, AuthOp::DeleteRole { role: app() }, None).await;
    auth(client, AuthOp::DeleteUser { user: app() }, None).await;
    let seen = auth_seen(client).await;
    assert_eq!(seen.users.keys().collect::<Vec<_>>(), ["root"]);
}

#[tokio::test]
async fn etcd_starts_is_healthy_takes_users_and_outlives_its_agent() {
    let (mut machine, client) = Machine::ready().await;
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.start_etcd(&client, "t-1").await.unwrap();
    let first = machine.healthy(&client).await;
    let status = first.etcd.status.unwrap();
    assert_eq!(status.leader, status.member_id);
    assert_eq!(status.members.len(), 1);
    assert!(status.alarms.is_empty() && first.etcd.peer_serving);
    assert_eq!(first.etcd.data, DataSeen::Stamped(stamp("t-1")));
    assert_eq!(first.etcd.last_started, Some(stamp("t-1")));
    let ServiceState::Running { digest, restarts: 0, .. } = first.etcd.service else {
        panic!("{:?}", first.etcd.service)
    };
    assert_eq!(digest, config().service_digests()["etcd"]);
    assert_eq!(health(&machine).await, (200, String::from(r#"{"health":"true"}"#)));
    set_up_auth(&client, None).await;

    let before = machine.etcds();
    assert_eq!(before.len(), 1);
    machine.stop_agent();
    machine.start_agent().await;
    let found = machine.healthy(&client).await;
    assert_eq!(machine.etcds(), before, "the same process");
    assert!(matches!(found.etcd.service, ServiceState::Running { restarts: 0, .. }));
    assert!(auth_seen(&client).await.enabled);

    let wipe = order(&client, 1, Order::Etcd(EtcdOrder::WipeData { stamp: stamp("t-1") })).await;
    assert!(matches!(wipe, Err(Refusal::NotAsExpected { .. })), "{wipe:?}");

    // Found processes and own children alike are brought back.
    for restarts in 1..=2 {
        machine.signal_etcd(Signal::KILL);
        let reported = until("the end is reported", async || match facts(&client).await.etcd.service {
            ServiceState::BackingOff { restarts, last_exit } => Some((restarts, last_exit)),
            _ => None,
        });
        assert_eq!(reported.await.0, restarts);
        let back = machine.healthy(&client).await;
        assert!(matches!(back.etcd.service, ServiceState::Running { restarts: now, .. } if now == restarts));
    }
    let log =
        client.logs(&LogRequest { of: LogOf::Service(String::from("etcd")), from: None, lines: 5 }).await.unwrap();
    assert_eq!(log.text.lines().count(), 5);
}

#[tokio::test]
async fn etcd_is_brought_back_with_its_agent_when_both_were_killed() {
    let (mut machine, client) = Machine::ready().await;
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;
    machine.stop_agent();
    machine.signal_etcd(Signal::KILL);
    machine.start_agent().await;
    machine.healthy(&client).await;

    order(&client, 1, Order::Etcd(EtcdOrder::Stop)).await.unwrap();
    assert!(machine.etcds().is_empty());
    machine.stop_agent();
    machine.start_agent().await;
    assert_eq!(facts(&client).await.etcd.service, ServiceState::Stopped, "what was stopped stays so");
    let expects = DataSeen::Stamped(stamp("t-1"));
    order(&client, 1, Order::Etcd(EtcdOrder::Start { expects, bootstrap: None, peers: BTreeSet::new() }))
        .await
        .unwrap();
    machine.healthy(&client).await;
    order(&client, 1, Order::Etcd(EtcdOrder::Restart)).await.unwrap();
    machine.healthy(&client).await;
    assert_eq!(machine.etcds().len(), 1);
}

#[tokio::test]
async fn an_etcd_that_a_killed_agent_did_not_record_is_found_even_if_another_is_wanted_now() {
    let (mut machine, client) = Machine::ready().await;
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;
    let before = machine.etcds();
    let mut other = config();
    other.etcd_mut().unwrap().version = String::from("3.6.0");
    order(&client, 1, Order::converge(2, other, None)).await.unwrap();
    machine.stop_agent();
    let note = machine.root().join("var/lib/quorate/etcd.process.json");
    let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&note).unwrap()).unwrap();
    record["process"] = serde_json::Value::Null;
    fs::write(&note, record.to_string()).unwrap();
    machine.start_agent().await;
    machine.healthy(&client).await;
    assert_eq!(machine.etcds(), before);
    machine.signal_etcd(Signal::KILL);
    until("it comes back as it was started", async || (machine.etcds() != before).then_some(())).await;
    machine.healthy(&client).await;
}

#[tokio::test]
async fn lost_data_is_never_taken_for_a_fresh_disk() {
    let (mut machine, client) = Machine::ready().await;
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;
    order(&client, 1, Order::Etcd(EtcdOrder::Stop)).await.unwrap();
    let data = machine.root().join("var/lib/etcd");
    fs::remove_dir_all(&data).unwrap();
    assert_eq!(facts(&client).await.etcd.data, DataSeen::Empty);
    let again = machine.start_etcd(&client, "t-1").await.unwrap_err().to_string();
    assert!(again.contains("its data is lost"), "{again}");
    let expects = DataSeen::Stamped(stamp("t-1"));
    let expected =
        order(&client, 1, Order::Etcd(EtcdOrder::Start { expects, bootstrap: None, peers: BTreeSet::new() })).await;
    assert!(matches!(expected, Err(Refusal::NotAsExpected { .. })), "{expected:?}");

    // Nor by the order of another formation, which may be a late one. Once wiped it may begin; and when that data is lost
    // while it should run, nothing is started.
    let other = machine.start_etcd(&client, "t-2").await.unwrap_err().to_string();
    assert!(other.contains("its data is lost"), "{other}");
    order(&client, 1, Order::Etcd(EtcdOrder::WipeData { stamp: stamp("t-1") })).await.unwrap();
    machine.start_etcd(&client, "t-2").await.unwrap();
    machine.healthy(&client).await;
    machine.stop_agent();
    machine.signal_etcd(Signal::KILL);
    fs::remove_dir_all(&data).unwrap();
    machine.start_agent().await;
    let ServiceState::BackingOff { last_exit, .. } = facts(&client).await.etcd.service else { panic!("it runs") };
    assert!(last_exit.how.starts_with("not started: expected the data of etcd-1"), "{}", last_exit.how);
    assert!(machine.etcds().is_empty());
    assert_eq!(facts(&client).await.etcd.last_started, Some(stamp("t-2")));
}

#[tokio::test]
async fn an_etcd_that_lost_its_data_while_running_does_not_start_a_second_cluster() {
    let (machine, client) = Machine::ready().await;
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;
    fs::remove_dir_all(machine.root().join("var/lib/etcd/member")).unwrap();
    machine.signal_etcd(Signal::KILL);
    until("it fails to start", async || match facts(&client).await.etcd.service {
        ServiceState::BackingOff { restarts: 2.., .. } => Some(()),
        _ => None,
    })
    .await;
    assert_eq!(facts(&client).await.etcd.data, DataSeen::Empty);
}

#[tokio::test]
async fn data_is_deleted_only_by_its_own_name() {
    let (machine, client) = Machine::ready().await;
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;
    order(&client, 1, Order::Etcd(EtcdOrder::Stop)).await.unwrap();
    let wipe = |token: &str| order(&client, 1, Order::Etcd(EtcdOrder::WipeData { stamp: stamp(token) }));
    assert!(matches!(wipe("t-2").await, Err(Refusal::NotAsExpected { .. })));
    let new = machine.start_etcd(&client, "t-2").await;
    assert!(matches!(new, Err(Refusal::NotAsExpected { .. })), "{new:?}");
    let expects = DataSeen::Stamped(stamp("t-1"));
    let bootstrap = Some(machine.bootstrap("t-2"));
    let new = order(&client, 1, Order::Etcd(EtcdOrder::Start { expects, bootstrap, peers: BTreeSet::new() })).await;
    assert!(matches!(new, Err(Refusal::Failed { .. })), "{new:?}");
    wipe("t-1").await.unwrap();
    wipe("t-1").await.unwrap();
    let facts = facts(&client).await.etcd;
    assert_eq!((facts.data, facts.last_started), (DataSeen::Empty, None));
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;
}

#[tokio::test]
async fn a_frozen_etcd_delays_facts_by_little_and_shows_no_status() {
    let (machine, client) = Machine::ready().await;
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;
    machine.signal_etcd(Signal::STOP);
    let begun = Instant::now();
    let frozen = facts(&client).await;
    let took = begun.elapsed();
    assert_eq!(health(&machine).await.0, 503);
    machine.signal_etcd(Signal::CONT);
    assert!(took < Duration::from_millis(1400), "{took:?}");
    assert_eq!(frozen.etcd.status, None);
    assert!(!frozen.etcd.peer_serving);
    machine.healthy(&client).await;
}

#[tokio::test]
async fn passwords_instead_of_certificates() {
    let (machine, client) = Machine::ready().await;
    let mut by_password = config();
    by_password.etcd_mut().unwrap().flags.remove("client-cert-auth");
    // With a CA for clients, etcd wants a certificate of each, whatever it was told.
    by_password.etcd_mut().unwrap().flags.remove("trusted-ca-file");
    by_password.files.push(crate::common::file(ROOT_PASSWORD_FILE, "root's own"));
    order(&client, 1, Order::converge(2, by_password, None)).await.unwrap();
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;
    set_up_auth(&client, Some("root's own")).await;
    order(&client, 1, Order::Etcd(EtcdOrder::Restart)).await.unwrap();
    machine.healthy(&client).await;
    assert!(auth_seen(&client).await.enabled, "the login is repeated after a restart");
}

/// Status and body of the health page.
async fn health(machine: &Machine) -> (u16, String) {
    let mut stream = tokio::net::TcpStream::connect((machine.address, HEALTH_PORT)).await.unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), body.to_owned())
}
