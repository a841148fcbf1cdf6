//! What clients notice when the leader changes. A follower forwards writes to the leader, and a leader that hands over drops what
//! arrives meanwhile. The follower is not notified, and answers its client only after its own timeout.

use std::time::Duration;

use serde_json::Value;

use super::load::Load;
use super::server::ApiServer;
use super::{Ground, NAME, REGISTRY, Settings, V36};

const MOVES: usize = 12;
/// etcd's own: 5 s and two election timeouts. A further second for the next attempt.
const LONGEST_GAP: f64 = 8.0;

#[test]
#[ignore = "needs a kube-apiserver: `cargo xtask lab kubernetes` runs it"]
fn a_move_of_the_leader_delays_no_write_for_longer_than_etcd_waits() {
    let ground = Ground::up(Settings { version: V36, tls: "", permissions: REGISTRY });
    let server = ApiServer::start(&ground);
    let mut load = Load::start(&ground, &server);
    load.during("nothing happens", |_| std::thread::sleep(Duration::from_secs(3)));
    for number in 1..=MOVES {
        load.during(&format!("move {number} of the leader"), |_| {
            std::thread::sleep(Duration::from_millis(500));
            move_leader(&ground);
            std::thread::sleep(Duration::from_millis(500));
        });
    }
    println!("{}", load.report());
    let gaps = load.gaps();
    assert!(gaps.iter().all(|gap| *gap < LONGEST_GAP), "{gaps:?}");
}

/// To any other member.
fn move_leader(ground: &Ground) {
    let etcdctl = |words: &[&str]| ground.sandbox.etcdctl(V36, NAME, words).ok().stdout;
    let status: Value = serde_json::from_str(&etcdctl(&["endpoint", "status", "-w", "json"])).expect("JSON");
    let members = status.as_array().expect("endpoints").iter().map(|one| &one["Status"]);
    let id = |status: &Value| status["header"]["member_id"].as_u64().expect("a number");
    let follower = members.into_iter().find(|status| status["leader"].as_u64() != Some(id(status)));
    etcdctl(&["move-leader", &format!("{:x}", id(follower.expect("a follower")))]);
}
