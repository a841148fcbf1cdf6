//! What was stolen from a machine of PostgreSQL is useless once the machine is replaced.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::proxy::{QUICK, forge, with_haproxy};
use super::{Shop, THREE, Writer, assert_nothing_lost, psql};
use crate::common::{Sandbox, eventually, signal};

/// With this certificate and its key, in place of the operator's.
fn showing(env: &BTreeMap<String, String>, directory: &std::path::Path) -> BTreeMap<String, String> {
    let files = [("PGSSLCERT", "peer.crt"), ("PGSSLKEY", "peer.key")];
    let files = files.map(|(name, file)| (name.to_owned(), directory.join(file).display().to_string()));
    env.clone().into_iter().chain(files).collect()
}

#[test]
fn stolen_postgres_certificates_are_refused_after_the_machine_is_replaced() {
    let sandbox = Sandbox::new(super::VERSION);
    sandbox.file("shop.yaml", &with_haproxy(QUICK, &THREE));
    let shop = Shop { sandbox };
    shop.apply().ok();
    let pki = |machine: &str| -> PathBuf {
        shop.sandbox.home().join(format!("machines/shop/{machine}/root/etc/patroni/pki"))
    };
    let lost = shop.member_with("replica");
    let stolen = shop.sandbox.path().join("stolen");
    std::fs::create_dir(&stolen).unwrap();
    for file in ["peer.crt", "peer.key"] {
        std::fs::copy(pki(&lost).join(file), stolen.join(file)).unwrap();
    }
    // With it and the password, anyone is the superuser.
    let superuser = shop.env(&[]);
    assert_eq!(psql(&showing(&superuser, &stolen), "select current_user").ok().stdout, "postgres\n");
    let user = shop.env(&["--user", "shop"]);
    let writer = Writer::start(user.clone());
    let others: Vec<&str> = THREE.into_iter().filter(|name| *name != lost).collect();
    let running = |member: &&str| shop.process(member, "/bin/postgres -D");
    let before: Vec<Option<u32>> = others.iter().map(running).collect();

    let done = shop.sandbox.quorate(&["replace", "shop", &lost, "--yes"]).ok().text();
    assert!(done.contains(&format!("revoke the certificates of machine {lost}.1")), "{done}");
    let superuser = shop.env(&[]);
    for host in superuser["PGHOST"].split(',') {
        let at = |env: &BTreeMap<String, String>| -> BTreeMap<String, String> {
            let one = [("PGHOST", host), ("PGTARGETSESSIONATTRS", "any")].map(|(k, v)| (k.to_owned(), v.to_owned()));
            env.clone().into_iter().chain(one).collect()
        };
        eventually("the list is read", 30, || psql(&at(&showing(&superuser, &stolen)), "select 1").code != Some(0));
        // With TLS 1.3 a client has sent its first request before it is refused, and may find the connection reset instead.
        eventually("the reason is named", 30, || {
            psql(&at(&showing(&superuser, &stolen)), "select 1").fails().stderr.contains("certificate revoked")
        });
        // The operator, other members and the machine that took its place are none of those.
        psql(&at(&superuser), "select 1").ok();
        psql(&at(&showing(&superuser, &pki(others[0]))), "select 1").ok();
        psql(&at(&showing(&superuser, &pki(&format!("{lost}.2")))), "select 1").ok();
    }
    let after: Vec<Option<u32>> = others.iter().map(running).collect();
    assert_eq!(after, before, "PostgreSQL was restarted");
    let streaming = "select count(*) from pg_stat_replication where state = 'streaming'";
    eventually("standbys stream", 30, || psql(&superuser, streaming).ok().stdout == "2\n");
    shop.sandbox.assert_nothing_to_do("shop.yaml");
    // Standbys come back with the list in force.
    psql(&superuser, "select pg_terminate_backend(pid) from pg_stat_replication").ok();
    eventually("standbys stream again", 30, || psql(&superuser, streaming).ok().stdout == "2\n");

    // HAProxy rejects health checks that are answered with it.
    let user = shop.env(&["--user", "shop"]);
    let (primary, standby) = (shop.primary(), shop.member_with("sync standby"));
    let number = |member: &str| THREE.iter().position(|name| *name == member).unwrap();
    let through = shop.through(&user, number(&primary), "5000");
    eventually("the primary is found", 30, || psql(&through, "select 1").code == Some(0));
    shop.silence_patroni(&standby);
    let file = |name: &str| stolen.join(name).display().to_string();
    let address = user["PGHOST"].split(',').nth(number(&standby)).unwrap();
    let forger = forge(address, &file("peer.key"), &file("peer.crt"));
    for _ in 0..30 {
        assert_eq!(psql(&through, "select pg_is_in_recovery()").ok().stdout, "f\n");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    drop(forger);
    if let Some(agent) = shop.process(&standby, " agent") {
        signal(agent, "CONT");
    }
    eventually("all is well", 60, || shop.status()["verdict"] == "healthy");
    assert_nothing_lost(&user, &writer.stop());
}
