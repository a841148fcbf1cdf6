//! A new bootstrap from one survivor's data, and a downgrade.

use std::collections::BTreeSet;
use std::fs;

use quorate_agent::api::{EtcdOrder, Order, Refusal};
use quorate_agent::client::AgentClient;
use quorate_core::kinds::etcd::EtcdStatus;
use quorate_core::model::{DataSeen, Stamp};
use quorate_etcd::Error;
use rustix::process::Signal;

use crate::common::{Machine, VERSIONS, config_of, facts, order, turn_auth_on, until};

const KEYS: usize = 200;
/// Free text: clusters created before it was checked may have any.
const TOKEN: &str = "team/orders-2";
/// Above what the cluster had come to; the survivor's own revision is not added to it.
const BUMP: u64 = 1_000_050_000;

async fn put(machine: &Machine) -> i64 {
    let etcd = machine.root_client();
    let mut revision = 0;
    for number in 0..KEYS {
        revision = etcd.put(format!("key-{number:03}"), format!("value {number}")).await.unwrap();
    }
    revision
}

async fn status(client: &AgentClient) -> EtcdStatus {
    until("etcd tells its status", async || facts(client).await.etcd.status).await
}

/// All etcds are killed right after the last write was acknowledged; of the followers, the one that knows more survives.
async fn survivor(all: Vec<(Machine, AgentClient)>, leader: u64) -> (Machine, AgentClient) {
    let mut ids = Vec::new();
    for (_, client) in &all {
        ids.push(status(client).await.member_id);
    }
    put(&all[0].0).await;
    all.iter().for_each(|(machine, _)| machine.signal_etcd(Signal::KILL));
    let mut best = None;
    for ((machine, client), id) in all.into_iter().zip(ids) {
        order(&client, 1, Order::Etcd(EtcdOrder::Stop)).await.unwrap();
        let log = facts(&client).await.etcd.log.unwrap();
        eprintln!("{} {}: {log:?}", machine.member, if id == leader { "led" } else { "followed" });
        if id != leader && best.as_ref().is_none_or(|(most, _)| log > *most) {
            best = Some((log, (machine, client)));
        }
    }
    best.unwrap().1
}

#[tokio::test]
async fn one_survivor_becomes_a_cluster_with_all_its_data() {
    // Those that `wal::PROVEN` names, and no others: completing a log is allowed where it was tried.
    let lines: Vec<&str> =
        VERSIONS.iter().filter_map(|version| version.rsplit_once('.')).map(|(line, _)| line).collect();
    assert_eq!(lines, ["3.4", "3.5", "3.6", "3.7"]);
    for version in VERSIONS {
        eprintln!("etcd {version}");
        let all = Machine::three(&config_of(version)).await;
        turn_auth_on(&all[0].1, None).await;
        let before = status(&all[0].1).await;
        let (mut machine, client) = survivor(Vec::from(all), before.leader).await;
        machine.lend_etcdutl();

        let (was, stamp) = (machine.stamp("t-1"), machine.stamp(TOKEN));
        let rebuild = |was: &Stamp| {
            Order::Etcd(EtcdOrder::Rebuild {
                was: was.clone(),
                stamp: stamp.clone(),
                peer_url: machine.peer_url(),
                bump_revision: BUMP,
            })
        };
        let other = order(&client, 1, rebuild(&machine.stamp("t-0"))).await;
        assert!(matches!(other, Err(Refusal::NotAsExpected { .. })), "{other:?}");
        order(&client, 1, rebuild(&was)).await.unwrap();
        order(&client, 1, rebuild(&was)).await.unwrap();
        let made = facts(&client).await.etcd;
        assert_eq!((made.data, made.last_started), (DataSeen::Stamped(stamp.clone()), Some(stamp.clone())));
        let kept = machine.root().join("var/lib/etcd.before-8173d43d555a6b54/member/wal");
        assert!(kept.exists() && !machine.root().join("var/lib/etcd.renewal").exists());

        let start = Order::Etcd(EtcdOrder::Start {
            expects: DataSeen::Stamped(stamp.clone()),
            bootstrap: None,
            peers: BTreeSet::new(),
        });
        order(&client, 1, start).await.unwrap();
        let after = machine.healthy(&client).await.etcd.status.unwrap();
        order(&client, 1, rebuild(&was)).await.unwrap();
        assert_eq!((after.members.len(), after.version.as_str()), (1, version));
        assert_eq!(
            (&after.members[0].name, &after.members[0].peer_urls),
            (&String::from(machine.member.as_str()), &vec![machine.peer_url()])
        );
        assert_ne!(after.cluster_id, before.cluster_id);
        assert!((BUMP..BUMP + 1000).contains(&after.revision), "{}", after.revision);
        let etcd = machine.root_client();
        for number in 0..KEYS {
            let pair = etcd.get(format!("key-{number:03}")).await.unwrap();
            let pair = pair.unwrap_or_else(|| panic!("key {number} is lost"));
            assert_eq!(pair.value, format!("value {number}").into_bytes());
        }
        let old = etcd
            .range(quorate_etcd::RangeQuery {
                revision: 5,
                ..quorate_etcd::RangeQuery::new(quorate_etcd::KeyRange::key("key-000"))
            })
            .await;
        assert!(matches!(old, Err(Error::Compacted { .. })), "{old:?}");
        assert_eq!(etcd.user_list().await.unwrap(), ["root"], "and authentication is on:");
        let stranger = machine.leaf(&machine.etcd, "stranger", false, true);
        let mut options = quorate_etcd::ConnectOptions::new(
            format!("https://{}:2379", machine.address),
            machine.etcd.certificate_pem().to_owned(),
        );
        options.identity = Some((stranger.0, stranger.1.expose().to_owned()));
        let stranger = quorate_etcd::Client::connect(options).unwrap();
        assert!(stranger.get("key-000").await.is_err());
        etcd.put("after", "it").await.unwrap();
        machine.stop_agent();
        machine.signal_etcd(Signal::KILL);
        machine.start_agent().await;
        machine.healthy(&client).await;
    }
}

#[tokio::test]
async fn an_interrupted_rebuild_continues_or_starts_again() {
    let (mut machine, client) = Machine::ready_with(&config_of("3.5.30")).await;
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;
    put(&machine).await;
    let rebuild = |machine: &Machine| {
        Order::Etcd(EtcdOrder::Rebuild {
            was: machine.stamp("t-1"),
            stamp: machine.stamp(TOKEN),
            peer_url: machine.peer_url(),
            bump_revision: BUMP,
        })
    };
    let running = order(&client, 1, rebuild(&machine)).await;
    assert!(matches!(running, Err(Refusal::NotAsExpected { .. })), "{running:?}");
    order(&client, 1, Order::Etcd(EtcdOrder::Stop)).await.unwrap();
    let place = machine.root().join("var/lib/etcd.renewal");
    fs::create_dir_all(place.join("copy/member")).unwrap();
    fs::write(place.join("copy/member/half"), "half").unwrap();
    order(&client, 1, rebuild(&machine)).await.unwrap();

    // As if the agent had been killed with the result complete and the old data put aside already.
    machine.stop_agent();
    let (data, stamp) = (machine.data(), machine.root().join("var/lib/etcd.stamp"));
    let new_stamp = fs::read(&stamp).unwrap();
    fs::create_dir_all(&place).unwrap();
    fs::rename(&data, place.join("new")).unwrap();
    fs::write(place.join("ready.json"), &new_stamp).unwrap();
    fs::write(&stamp, serde_json::to_vec(&machine.stamp("t-1")).unwrap()).unwrap();
    machine.start_agent().await;
    let etcd = facts(&client).await.etcd;
    assert_eq!((etcd.data, etcd.last_started), (DataSeen::Stamped(machine.stamp(TOKEN)), Some(machine.stamp(TOKEN))));
    assert!(!place.exists());
    order(&client, 1, rebuild(&machine)).await.unwrap();
    let start = Order::Etcd(EtcdOrder::Start {
        expects: DataSeen::Stamped(machine.stamp(TOKEN)),
        bootstrap: None,
        peers: BTreeSet::new(),
    });
    order(&client, 1, start).await.unwrap();
    machine.healthy(&client).await;
    assert!(machine.root_client().get("key-199").await.unwrap().is_some());
}

#[tokio::test]
async fn a_downgrade_may_be_announced_again() {
    let (machine, client) = Machine::ready_with(&config_of("3.6.16")).await;
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;
    let speaks = async |version: &str| {
        until("the cluster speaks that version", async || {
            (status(&client).await.cluster_version.as_deref() == Some(version)).then_some(())
        })
        .await;
    };
    speaks("3.6.0").await;
    let down = |version: &str| order(&client, 1, Order::Etcd(EtcdOrder::Downgrade { version: version.to_owned() }));
    assert!(down("3.4.0").await.is_err());
    assert!(down("three").await.is_err());
    down("3.5.0").await.unwrap();
    down("3.5.0").await.unwrap();
    speaks("3.5.0").await;
    down("3.5.0").await.unwrap();
}
