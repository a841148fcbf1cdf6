//! Passwords change while clients and replication run, with a controller that is killed meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Shop, THREE, psql};
use crate::common::{PSQL, eventually, signal};

/// A client that stays connected, and writes a row every tenth of a second until it is told to stop. Says whether its connection lasted.
fn stays_connected(env: &BTreeMap<String, String>, seconds: u32) -> std::process::Child {
    let mut client = Command::new(PSQL);
    client.env_clear().env("PATH", "/usr/bin:/bin").envs(env).stdin(Stdio::null()).stdout(Stdio::null());
    let script = format!(
        "do $$ begin for n in 1..{} loop insert into stays values (n); perform pg_sleep(0.1); commit; end loop; end $$",
        seconds * 10
    );
    client.args(["--no-psqlrc", "-v", "ON_ERROR_STOP=1", "-c", &script]).spawn().expect("psql runs")
}

impl Shop {
    /// The standbys that stream, and since when their connections last.
    fn replication(&self, superuser: &BTreeMap<String, String>) -> BTreeSet<String> {
        let sql = "select application_name || state from pg_stat_replication where state = 'streaming'";
        psql(superuser, sql).ok().stdout.lines().map(str::to_owned).collect()
    }

    fn rules(&self, member: &str) -> String {
        let root = self.sandbox.home().join(format!("machines/shop/{member}/root"));
        std::fs::read_to_string(root.join("var/lib/postgresql/data/pg_hba.conf")).unwrap()
    }
}

#[test]
fn passwords_change_while_clients_write_and_a_killed_controller_is_no_matter() {
    let shop = Shop::up();
    let (user, superuser) = (shop.env(&["--user", "shop"]), shop.env(&[]));
    let postmasters = shop.postmasters();
    let primary = shop.primary();
    psql(&user, "create table stays (n int)").ok();
    let unknown = shop.sandbox.quorate(&["passwords", "rotate", "shop", "--yes", "--user", "nobody"]).fails().stderr;
    assert!(unknown.contains("has no user `nobody`"), "{unknown}");
    let etcd = shop.sandbox.quorate(&["passwords", "rotate", "orders", "--yes"]).fails().stderr;
    assert!(etcd.contains("is an etcd cluster"), "{etcd}");
    assert_eq!(shop.replication(&superuser).len(), 2);

    // Somebody looks at replication all the time; members' own passwords change, and the controller is killed again and again.
    let mut connected = stays_connected(&user, 20);
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, watching) = (stop.clone(), user.clone());
    let writer = std::thread::spawn(move || {
        let mut failures = Vec::new();
        while !stopped.load(Ordering::Relaxed) {
            let run = psql(&watching, "insert into stays values (0)");
            if run.code != Some(0) {
                failures.push(run.stderr);
            }
        }
        failures
    });
    let own = ["--user", "postgres", "--user", "replicator", "--user", "rewinder"];
    let rotate: Vec<&str> = ["passwords", "rotate", "shop", "--yes"].into_iter().chain(own).collect();
    let requests = || shop.sandbox.quorate(&["requests", "shop", "--output", "json"]).json();
    let mut killed = 0;
    let mut arguments = rotate.clone();
    for pause in [500, 700, 1200, 2000, 900] {
        let mut run = shop.sandbox.spawn(&arguments);
        if arguments == rotate {
            eventually("the request is in the ledger", 30, || requests() != serde_json::json!([]));
        }
        std::thread::sleep(Duration::from_millis(pause));
        if run.try_wait().expect("it was started").is_none() {
            signal(run.id(), "KILL");
            killed += 1;
        }
        run.wait().unwrap();
        arguments = vec!["apply", "--yes", "shop.yaml"];
    }
    assert!(killed > 0, "the controller was never killed");
    shop.apply().ok();
    assert_eq!(requests(), serde_json::json!([]));
    stop.store(true, Ordering::Relaxed);
    let failures = writer.join().unwrap();
    assert!(failures.is_empty(), "clients were refused: {failures:?}");
    assert!(connected.wait().unwrap().success(), "a connection was cut off");
    assert_eq!((shop.primary(), shop.postmasters()), (primary, postmasters), "something restarted");

    // The old password is refused, the new one is asked for, also where standbys log in.
    let next = shop.env(&[]);
    assert_ne!(next["PGPASSWORD"], superuser["PGPASSWORD"]);
    assert!(psql(&superuser, "select 1").fails().stderr.contains("password authentication failed"));
    assert_eq!(shop.replication(&next).len(), 2);
    for member in THREE {
        eventually("passwords are asked for", 30, || !shop.rules(member).contains("trust"));
    }
    psql(&next, "select pg_terminate_backend(pid) from pg_stat_replication").ok();
    eventually("standbys log in with the new password", 30, || shop.replication(&next).len() == 2);
    assert_eq!(shop.status()["verdict"], "healthy");
    shop.sandbox.assert_nothing_to_do("shop.yaml");

    // The one for etcd: through a second user, because etcd ends the sessions of one whose password changes.
    let users = || shop.sandbox.etcdctl(super::VERSION, "orders", &["user", "list"]).ok().stdout;
    assert!(users().lines().any(|user| user == "patroni-shop"), "{}", users());
    let (leader, before) = (shop.primary(), shop.postmasters());
    let mut connected = stays_connected(&user, 10);
    shop.sandbox.quorate(&["passwords", "rotate", "shop", "--dcs", "--yes"]).ok();
    assert!(users().lines().any(|user| user == "patroni-shop-2"), "{}", users());
    assert!(!users().lines().any(|user| user == "patroni-shop"), "{}", users());
    assert!(connected.wait().unwrap().success(), "the primary was demoted");
    eventually("all is well", 30, || shop.status()["verdict"] == "healthy");
    assert_eq!((shop.primary(), shop.postmasters()), (leader, before), "the primary was demoted");
    shop.sandbox.assert_nothing_to_do("shop.yaml");

    // A user's: connections stay, new ones need the new password.
    let mut connected = stays_connected(&user, 5);
    let rotate_user = || shop.sandbox.quorate(&["passwords", "rotate", "shop", "--yes", "--user", "shop"]);
    rotate_user().ok();
    assert!(connected.wait().unwrap().success(), "a connection was cut off");
    assert!(psql(&user, "select 1").fails().stderr.contains("password authentication failed"));
    assert_eq!(psql(&shop.env(&["--user", "shop"]), "select 1").ok().stdout, "1\n");

    // From a file: `plan` says that it differs, and the command takes it up.
    let text = super::spec("max_connections: 50", &THREE);
    let named = text.replace("users: [{name: shop}]", "users: [{name: shop, password_file: shop.pw}]");
    shop.sandbox.file("shop.yaml", &named);
    shop.sandbox.file("shop.pw", "correct horse\n");
    let bad = shop.sandbox.quorate(&["plan", "shop.yaml"]).fails().stderr;
    assert!(bad.contains("shop.pw holds a password with characters") && bad.contains("no spaces"), "{bad}");
    shop.sandbox.file("shop.pw", "correct-horse\n");
    let planned = shop.sandbox.quorate(&["plan", "shop.yaml"]).ok().text();
    assert!(planned.contains("`quorate passwords rotate shop --user shop` takes it up"), "{planned}");
    shop.apply().ok();
    assert_ne!(shop.env(&["--user", "shop"])["PGPASSWORD"], "correct-horse");
    rotate_user().ok();
    let user = shop.env(&["--user", "shop"]);
    assert_eq!(user["PGPASSWORD"], "correct-horse");
    assert_eq!(psql(&user, "select 1").ok().stdout, "1\n");
    let again = rotate_user().fails().stderr;
    assert!(again.contains("the file of shop holds the password that is in force"), "{again}");
    shop.sandbox.assert_nothing_to_do("shop.yaml");

    // While a member does not answer, nothing changes; without the member's confirmation nobody could be sure.
    let replica = shop.member_with("replica");
    let patroni = shop.process(&replica, "patroni.yml").expect("Patroni runs");
    signal(patroni, "STOP");
    let said = shop.sandbox.quorate(&rotate).fails().text();
    assert!(said.contains(&replica), "{said}");
    assert_eq!(psql(&next, "select 1").ok().stdout, "1\n", "no password has changed");
    signal(patroni, "CONT");
    shop.sandbox.quorate(&["requests", "shop", "--withdraw", "passwords"]).ok();
    eventually("all is well", 60, || shop.status()["verdict"] == "healthy");
    shop.apply().ok();
    assert_eq!(psql(&next, "select 1").ok().stdout, "1\n");
    assert!(THREE.iter().all(|member| !shop.rules(member).contains("trust")));
}
