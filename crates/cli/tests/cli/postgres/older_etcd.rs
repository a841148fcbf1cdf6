//! The etcd below is switched off, and then restored to a state from before the primary changed: Patroni finds another leader and other
//! synchronous standbys there than those of now.

use std::time::Duration;

use super::{Shop, VERSION, Writer, assert_nothing_lost, psql};
use crate::common::eventually;

#[test]
fn etcd_is_off_for_a_while_and_restored_to_an_older_state_and_no_commit_is_lost() {
    let shop = Shop::up();
    let user = shop.env(&["--user", "shop"]);
    let snapshot = shop.sandbox.path().join("older.db").display().to_string();
    let writer = Writer::start(user.clone());
    let first = shop.primary();
    shop.sandbox.etcdctl(VERSION, "orders", &["snapshot", "save", &snapshot]).ok();
    shop.sandbox.quorate(&["switchover", "shop", "--yes"]).ok();
    let second = shop.primary();
    assert_ne!(second, first);

    // Off for longer than `ttl`: clients of the primary notice nothing.
    let said = shop.sandbox.quorate(&["down", "orders", "--yes"]).ok().stderr;
    assert!(said.contains("shop keeps Patroni's state in orders"), "{said}");
    let count = || psql(&user, "select count(*) from written").ok().stdout.trim().parse::<u64>().unwrap();
    for _ in 0..3 {
        let before = count();
        std::thread::sleep(Duration::from_secs(9));
        eventually("clients write", 10, || count() > before);
    }
    shop.sandbox.quorate(&["start", "orders"]).ok();
    eventually("all is well", 60, || shop.status()["verdict"] == "healthy");
    assert_eq!(shop.primary(), second);

    let restore = ["restore", "orders", "--snapshot", &snapshot, "--yes"];
    let said = shop.sandbox.quorate(&restore).ok().stderr;
    assert!(said.contains("PostgreSQL cluster shop keeps Patroni's state here, which becomes older"), "{said}");
    // Whoever leads now: there is one, and all others follow it.
    shop.apply().ok();
    eventually("all is well", 120, || shop.status()["verdict"] == "healthy");
    let before = count();
    eventually("clients write", 60, || count() > before);
    assert_nothing_lost(&user, &writer.stop());
    shop.sandbox.assert_nothing_to_do("shop.yaml");
}
