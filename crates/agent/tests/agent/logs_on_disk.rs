//! What the agent reads in etcd's log on disk while etcd does not run, and the consequences.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use quorate_agent::api::{EtcdOrder, Order};
use quorate_agent::client::AgentClient;
use quorate_core::kinds::etcd::{EtcdStatus, LogEnd};
use quorate_core::model::{DataSeen, ServiceState};
use rustix::process::Signal;

use crate::common::{Machine, VERSIONS, config, config_of, copy, facts, membership, order, until};

async fn put(machine: &Machine, count: usize) {
    let etcd = machine.root_client();
    for number in 0..count {
        etcd.put(format!("key-{number}"), vec![b'x'; 100 + number % 700]).await.unwrap();
    }
}

async fn log_end(client: &AgentClient) -> LogEnd {
    until("the log is read", async || facts(client).await.etcd.log).await
}

async fn status(client: &AgentClient) -> EtcdStatus {
    until("etcd tells its status", async || facts(client).await.etcd.status).await
}

/// Ends etcd in a way that it cannot prepare for, and keeps it ended.
async fn kill(machine: &mut Machine) {
    machine.stop_agent();
    machine.signal_etcd(Signal::KILL);
    until("etcd has ended", async || machine.etcds().is_empty().then_some(())).await;
}

#[tokio::test]
async fn the_log_on_disk_ends_where_etcd_said() {
    for version in VERSIONS {
        eprintln!("etcd {version}");
        let mut config = config_of(version);
        // Small enough that the log is cut, and that a new member is sent a snapshot.
        config.etcd_mut().unwrap().flags.insert(String::from("snapshot-count"), String::from("50"));
        let (mut one, first) = Machine::ready_with(&config).await;
        one.start_etcd(&first, "t-1").await.unwrap();
        one.healthy(&first).await;
        assert_eq!(facts(&first).await.etcd.log, None, "etcd runs");
        put(&one, 300).await;
        order(&first, 1, Order::Etcd(EtcdOrder::Stop)).await.unwrap();
        let stopped = log_end(&first).await;
        let start = Order::Etcd(EtcdOrder::Start {
            expects: DataSeen::Stamped(one.stamp("t-1")),
            bootstrap: None,
            peers: BTreeSet::new(),
        });
        order(&first, 1, start.clone()).await.unwrap();
        one.healthy(&first).await;
        put(&one, 20).await;
        let said = status(&first).await;
        assert!(said.raft_index > stopped.index && stopped.index > 300, "{said:?} after {stopped:?}");
        // The agent is told that etcd is to stay ended, and finds it killed.
        order(&first, 1, Order::Etcd(EtcdOrder::Stop)).await.unwrap();
        order(&first, 1, start.clone()).await.unwrap();
        one.healthy(&first).await;
        put(&one, 7).await;
        let said = status(&first).await;
        let state = one.root().join("var/lib/quorate/state.json");
        kill(&mut one).await;
        let text = fs::read_to_string(&state).unwrap();
        assert!(text.contains(r#""wanted_running":true"#));
        fs::write(&state, text.replace(r#""wanted_running":true"#, r#""wanted_running":false"#)).unwrap();
        one.start_agent().await;
        let killed = log_end(&first).await;
        assert_eq!((killed.term, killed.index), (said.raft_term, said.raft_index));
        assert!(killed.commit <= killed.index && killed.commit + 3 >= killed.index, "{killed:?}");

        order(&first, 1, start).await.unwrap();
        let alone = one.healthy(&first).await;
        let (two, second) = one.beside("etcd-2", &config).await;
        let add = Order::Etcd(EtcdOrder::AddLearner { expects: membership(&alone), peer_url: two.peer_url() });
        order(&first, 1, add).await.unwrap();
        two.join(&second, "t-1", &[&one]).await.unwrap();
        let leader = status(&first).await;
        until("the learner has all", async || (status(&second).await.raft_index >= leader.raft_index).then_some(()))
            .await;
        order(&second, 1, Order::Etcd(EtcdOrder::Stop)).await.unwrap();
        let joined = log_end(&second).await;
        assert_eq!((joined.term, joined.index), (leader.raft_term, status(&first).await.raft_index));
    }
}

#[tokio::test]
async fn older_data_is_not_started_on_and_the_true_data_is() {
    for version in VERSIONS {
        eprintln!("etcd {version}");
        let all = Machine::three(&config_of(version)).await;
        let leader = status(&all[0].1).await.leader;
        let mut all = Vec::from(all);
        let mut at = None;
        for (number, (_, client)) in all.iter().enumerate() {
            if status(client).await.member_id != leader {
                at = Some(number);
            }
        }
        let (mut machine, client) = all.remove(at.unwrap());
        put(&all[0].0, 10).await;
        until("the peers are remembered", async || {
            facts(&client).await;
            let state = fs::read_to_string(machine.root().join("var/lib/quorate/state.json")).unwrap();
            all.iter().all(|(other, _)| state.contains(&format!("https://{}:2379", other.address))).then_some(())
        })
        .await;

        let (copied, true_data) = (machine.directory.path().join("copied"), machine.directory.path().join("true"));
        kill(&mut machine).await;
        copy(&machine.data(), &copied);
        machine.start_agent().await;
        machine.healthy(&client).await;
        put(&all[0].0, 100).await;
        let acknowledged = status(&all[0].1).await.raft_index;
        until("it has followed", async || (status(&client).await.raft_index >= acknowledged).then_some(())).await;
        kill(&mut machine).await;
        fs::rename(machine.data(), &true_data).unwrap();
        copy(&copied, &machine.data());

        machine.start_agent().await;
        let refused = facts(&client).await.etcd;
        let ServiceState::BackingOff { last_exit, .. } = &refused.service else { panic!("{:?}", refused.service) };
        assert!(last_exit.how.contains("not started: etcd's data is older than it was"), "{}", last_exit.how);
        let older = refused.older.unwrap();
        assert!(older.holds + 100 <= older.acknowledged && older.acknowledged >= acknowledged, "{older:?}");
        assert!(all.iter().any(|(other, _)| older.told_by == format!("https://{}:2379", other.address)), "{older:?}");
        assert_eq!(refused.log.unwrap().index, older.holds);
        let start = Order::Etcd(EtcdOrder::Start {
            expects: DataSeen::Stamped(machine.stamp("t-1")),
            bootstrap: None,
            peers: BTreeSet::new(),
        });
        let by_order = order(&client, 1, start.clone()).await.unwrap_err().to_string();
        assert!(by_order.contains("older than it was"), "{by_order}");
        assert!(machine.etcds().is_empty());

        // Also when the one that remembered is gone.
        for (other, _) in &mut all {
            kill(other).await;
        }
        machine.stop_agent();
        machine.start_agent().await;
        assert_eq!(facts(&client).await.etcd.older, Some(older));
        assert!(machine.etcds().is_empty());
        for (other, _) in &mut all {
            other.start_agent().await;
        }

        fs::remove_dir_all(machine.data()).unwrap();
        fs::rename(&true_data, machine.data()).unwrap();
        order(&client, 1, start).await.unwrap();
        assert_eq!(machine.healthy(&client).await.etcd.older, None);
    }
}

#[tokio::test]
async fn older_data_is_found_also_after_a_crash_and_a_whole_cluster_comes_up_at_once() {
    let mut all = Machine::three(&config()).await;
    for (machine, client) in &all {
        facts(client).await;
        put(machine, 5).await;
    }
    for (machine, _) in &mut all {
        kill(machine).await;
    }
    let begun = Instant::now();
    for (machine, _) in &mut all {
        machine.start_agent().await;
    }
    for (machine, client) in &all {
        machine.healthy(client).await;
    }
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());

    let leader = status(&all[0].1).await.leader;
    let mut followers = Vec::new();
    for (machine, client) in &all {
        if status(client).await.member_id != leader {
            followers.push((machine, client));
        }
    }
    let (machine, client) = followers[0];
    let copied = machine.directory.path().join("copied");
    order(client, 1, Order::Etcd(EtcdOrder::Stop)).await.unwrap();
    copy(&machine.data(), &copied);
    let start = Order::Etcd(EtcdOrder::Start {
        expects: DataSeen::Stamped(machine.stamp("t-1")),
        bootstrap: None,
        peers: BTreeSet::new(),
    });
    order(client, 1, start).await.unwrap();
    machine.healthy(client).await;
    put(machine, 50).await;
    // Swapped while it runs, as far as etcd tolerates it, and killed.
    machine.signal_etcd(Signal::STOP);
    fs::rename(machine.data(), machine.directory.path().join("true")).unwrap();
    copy(&copied, &machine.data());
    machine.signal_etcd(Signal::KILL);
    let older = until("it is found out", async || facts(client).await.etcd.older).await;
    assert!(older.holds < older.acknowledged);
    assert!(machine.etcds().is_empty());
}
