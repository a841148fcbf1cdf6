//! Members that join and leave while real etcd processes run.

use std::time::Duration;

use quorate_agent::api::{EtcdOrder, Order, Refusal};
use quorate_agent::client::AgentClient;
use quorate_core::Secret;
use quorate_core::kinds::etcd::AuthOp;
use quorate_core::kinds::etcd::desire::ROOT_PASSWORD_FILE;
use quorate_core::kinds::etcd::{EtcdStatus, Membership};
use quorate_core::model::{DataSeen, Facts, NodeConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::{Machine, VERSIONS, config, config_of, facts, file, membership, order, until};

/// Every order twice: an answer may have been lost.
async fn twice(client: &AgentClient, what: Order) {
    for _ in 0..2 {
        order(client, 1, what.clone()).await.unwrap();
    }
}

async fn learner(client: &AgentClient) -> Facts {
    until("etcd is a learner that follows", async || {
        let facts = facts(client).await;
        let follows = |status: &EtcdStatus| status.is_learner && status.leader != 0 && status.raft_applied_index > 0;
        facts.etcd.status.as_ref().is_some_and(follows).then_some(facts)
    })
    .await
}

async fn promote(client: &AgentClient, id: u64) {
    let expects = membership(&facts(client).await);
    until("the learner is promoted", async || {
        match order(client, 1, Order::Etcd(EtcdOrder::Promote { expects: expects.clone(), id })).await {
            Ok(()) => Some(()),
            Err(Refusal::Failed { why }) => {
                assert_eq!(why, "the learner is not in sync with the leader yet");
                None
            }
            Err(other) => panic!("{other}"),
        }
    })
    .await;
    twice(client, Order::Etcd(EtcdOrder::Promote { expects, id })).await;
}

async fn join(first: &AgentClient, at: &Machine, client: &AgentClient, others: &[&Machine]) -> u64 {
    let expects = membership(&facts(first).await);
    twice(first, Order::Etcd(EtcdOrder::AddLearner { expects: expects.clone(), peer_url: at.peer_url() })).await;
    let now = membership(&facts(first).await);
    let added: Vec<u64> = now.keys().filter(|id| !expects.contains_key(id)).copied().collect();
    let [id] = added[..] else { panic!("{expects:?} became {now:?}") };
    at.join(client, "t-1", others).await.unwrap();
    at.join(client, "t-1", others).await.unwrap();
    let seen = learner(client).await;
    assert_eq!(seen.etcd.data, DataSeen::Stamped(at.stamp("t-1")));
    assert_eq!(membership(&seen), now, "a learner lists the members too");
    id
}

async fn grow_and_shrink(config: NodeConfig) {
    let (one, first) = Machine::ready_with(&config).await;
    one.start_etcd(&first, "t-1").await.unwrap();
    let alone = one.healthy(&first).await;
    let (two, second) = one.beside("etcd-2", &config).await;
    let (three, third) = one.beside("etcd-3", &config).await;

    let wrong = Membership::from([(1, false)]);
    let add = Order::Etcd(EtcdOrder::AddLearner { expects: wrong.clone(), peer_url: two.peer_url() });
    let refused = order(&first, 1, add).await;
    assert!(matches!(refused, Err(Refusal::NotAsExpected { .. })), "{refused:?}");
    assert_eq!(membership(&facts(&first).await), membership(&alone));

    let id_two = join(&first, &two, &second, &[&one]).await;
    promote(&first, id_two).await;
    two.healthy(&second).await;
    let id_three = join(&first, &three, &third, &[&one, &two]).await;
    for what in [
        Order::Etcd(EtcdOrder::Promote { expects: wrong.clone(), id: id_three }),
        Order::Etcd(EtcdOrder::RemoveMember { expects: wrong, id: id_three }),
    ] {
        let refused = order(&first, 1, what).await;
        assert!(matches!(refused, Err(Refusal::NotAsExpected { .. })), "{refused:?}");
    }
    promote(&first, id_three).await;
    three.healthy(&third).await;
    // As one that is no longer new.
    order(&third, 1, Order::Etcd(EtcdOrder::Restart)).await.unwrap();
    let whole = three.healthy(&third).await;
    assert_eq!(whole.etcd.status.as_ref().unwrap().members.len(), 3);
    let minor = config.etcd().unwrap().version.rsplit_once('.').unwrap().0;
    until("the members agree on a version", async || {
        let version = facts(&first).await.etcd.status.unwrap().cluster_version?;
        (version == format!("{minor}.0")).then_some(())
    })
    .await;

    for id in [id_three, id_two] {
        until("etcd lets it go", async || {
            let expects = membership(&facts(&first).await);
            order(&first, 1, Order::Etcd(EtcdOrder::RemoveMember { expects: expects.clone(), id })).await.ok()?;
            order(&first, 1, Order::Etcd(EtcdOrder::RemoveMember { expects, id })).await.ok()
        })
        .await;
    }
    assert_eq!(membership(&one.healthy(&first).await), membership(&alone));
}

#[tokio::test]
async fn one_becomes_three_and_one_again() {
    for version in VERSIONS {
        eprintln!("etcd {version}");
        grow_and_shrink(config_of(version)).await;
    }
}

#[tokio::test]
async fn a_learner_reports_its_status_with_password_logins() {
    for version in VERSIONS {
        eprintln!("etcd {version}");
        let mut config = config_of(version);
        config.etcd_mut().unwrap().flags.remove("client-cert-auth");
        config.etcd_mut().unwrap().flags.remove("trusted-ca-file");
        config.files.push(file(ROOT_PASSWORD_FILE, "root's own"));
        let (one, first) = Machine::ready_with(&config).await;
        one.start_etcd(&first, "t-1").await.unwrap();
        one.healthy(&first).await;
        let root = || String::from("root");
        let auth =
            |op| order(&first, 1, Order::Etcd(EtcdOrder::Auth { op, password: Some(Secret::new("root's own")) }));
        auth(AuthOp::AddUser { user: root() }).await.unwrap();
        auth(AuthOp::AddRole { role: root() }).await.unwrap();
        auth(AuthOp::GrantRole { user: root(), role: root() }).await.unwrap();
        auth(AuthOp::Enable).await.unwrap();
        let leader = one.healthy(&first).await.etcd.status.unwrap();

        let (two, second) = one.beside("etcd-2", &config).await;
        let id = join(&first, &two, &second, &[&one]).await;
        let status = until("the learner has all", async || {
            let status = facts(&second).await.etcd.status?;
            (status.revision == leader.revision).then_some(status)
        })
        .await;
        assert_eq!((status.member_id, status.cluster_id, status.leader), (id, leader.cluster_id, leader.member_id));
        assert_eq!((status.version.as_str(), status.healthy), (version, false));
        assert!(status.raft_index >= leader.raft_index && status.raft_term == leader.raft_term && status.db_size > 0);
        assert_eq!(status.cluster_version, facts(&first).await.etcd.status.unwrap().cluster_version);

        order(&second, 1, Order::Etcd(EtcdOrder::Restart)).await.unwrap();
        assert_eq!(learner(&second).await.etcd.status.unwrap().member_id, id);
        promote(&first, id).await;
        two.healthy(&second).await;
    }
}

#[tokio::test]
async fn a_learner_is_not_asked_again_and_again() {
    let mut config = config();
    config.etcd_mut().unwrap().flags.insert(String::from("listen-metrics-urls"), String::from("http://{address}:2381"));
    let (one, first) = Machine::ready_with(&config).await;
    one.start_etcd(&first, "t-1").await.unwrap();
    one.healthy(&first).await;
    let (two, second) = one.beside("etcd-2", &config).await;
    join(&first, &two, &second, &[&one]).await;
    let before = times_asked(&two).await;
    assert!(before > 0);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(times_asked(&two).await, before, "nobody asked the agent for facts");
}

/// How often etcd was asked for its status since its start.
async fn times_asked(machine: &Machine) -> u64 {
    let mut stream = tokio::net::TcpStream::connect((machine.address, 2381)).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    let of_status = |line: &&str| line.starts_with("grpc_server_handled_total") && line.contains("\"Status\"");
    page.lines().filter(of_status).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}
