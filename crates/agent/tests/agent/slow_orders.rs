//! Slow orders, while another controller connects.

use std::fs::OpenOptions;
use std::io::Write;

use quorate_agent::api::{EtcdOrder, FactsRequest, Order, Refusal};
use quorate_core::model::{Busy, DataSeen};

use crate::common::{Machine, config, facts, membership, order, until};

/// A learner cannot join while a voter is away, so that the order is tried again and again.
#[tokio::test]
async fn an_order_that_is_tried_again_gives_way_to_a_later_controller() {
    let [(one, first), (_two, _second), (three, third)] = Machine::three(&config()).await;
    let before = membership(&facts(&first).await);
    order(&third, 1, Order::Etcd(EtcdOrder::Stop)).await.unwrap();
    let (expects, joins) = (before.clone(), one.beside("etcd-4", &config()).await.0);
    let peer_url = joins.peer_url();
    let adding = tokio::spawn({
        let first = one.client();
        async move { order(&first, 1, Order::Etcd(EtcdOrder::AddLearner { expects, peer_url })).await }
    });
    let busy = until("the agent tells what it is at", async || facts(&first).await.busy).await;
    assert_eq!(busy, Busy { order: String::from("add learner"), fence: 1 });
    // Another controller looks, and from then on only its orders count.
    first.look(&FactsRequest { fence: Some(2), auth: false, reach: Default::default() }).await.unwrap();
    let refused = adding.await.unwrap();
    assert_eq!(refused, Err(Refusal::StaleFence { obeyed: 2, carried: 1 }));
    assert_eq!(facts(&first).await.busy, None);

    let expects = DataSeen::Stamped(three.stamp("t-1"));
    order(&third, 1, Order::Etcd(EtcdOrder::Start { expects, bootstrap: None, peers: Default::default() }))
        .await
        .unwrap();
    three.healthy(&third).await;
    assert_eq!(membership(&one.healthy(&first).await), before);
}

#[tokio::test]
async fn a_log_of_etcd_that_has_grown_too_large_is_begun_again() {
    let machine = Machine::new().await;
    let path = machine.root().join("var/log/etcd.log");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    // As etcd holds it.
    let mut log = OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let line = format!("{}\n", "x".repeat(1023));
    for _ in 0..17 * 1024 {
        log.write_all(line.as_bytes()).unwrap();
    }
    let length = |name: &str| std::fs::metadata(path.with_file_name(name)).map_or(0, |found| found.len());
    until("it was emptied", async || (length("etcd.log") == 0).then_some(())).await;
    assert_eq!(length("etcd.log.1"), 16 << 20);
    log.write_all(b"it goes on\n").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "it goes on\n");
}
