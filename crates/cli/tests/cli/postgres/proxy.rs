//! HAProxy in front of PostgreSQL: which member each port reaches, and what clients notice when the primary moves, members leave, a port is
//! taken, or an impostor answers for Patroni.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Shop, THREE, Writer, assert_nothing_lost, psql, spec};
use crate::common::{PSQL, Sandbox, eventually, signal};

pub(super) fn with_haproxy(settings: &str, members: &[&str]) -> String {
    let text = spec("max_connections: 50", members);
    text.replace("      users:", &format!("      haproxy: {{{settings}}}\n      users:"))
}

pub(super) const QUICK: &str = "check_every: 400ms, drain: 10s";

/// Somebody who answers for Patroni. It ends with the test, however that ends.
pub(super) struct Forger(Child);

impl Drop for Forger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Answers for Patroni at this address, that this is the primary. Returns when it does.
pub(super) fn forge(address: &str, key: &str, certificate: &str) -> Forger {
    let script = "import http.server, ssl, sys\n\
        class Yes(http.server.BaseHTTPRequestHandler):\n    def do_OPTIONS(self):\n        self.send_response(200); self.end_headers()\n\
        server = http.server.ThreadingHTTPServer((sys.argv[1], 8008), Yes)\n\
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); tls.load_cert_chain(sys.argv[3], sys.argv[2])\n\
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)\n\
        server.serve_forever()\n";
    let mut forger = Command::new("python3");
    let forger = forger.args(["-c", script, address, key, certificate]).stderr(Stdio::null()).spawn();
    let forger = Forger(forger.expect("python3 runs"));
    eventually("it answers", 20, || {
        let mut curl = Command::new("curl");
        let url = format!("https://{address}:8008/primary");
        curl.args(["-sk", "-X", "OPTIONS", "-o", "/dev/null", "-w", "%{http_code}", &url]);
        curl.output().is_ok_and(|answer| answer.stdout == b"200")
    });
    forger
}

impl Shop {
    /// To one member's HAProxy, by one of its ports.
    pub(super) fn through(
        &self,
        env: &BTreeMap<String, String>,
        number: usize,
        port: &str,
    ) -> BTreeMap<String, String> {
        let host = env["PGHOST"].split(',').nth(number).expect("a member").to_owned();
        let other = [("PGHOST", host), ("PGPORT", port.to_owned()), ("PGTARGETSESSIONATTRS", String::from("any"))];
        let other = other.map(|(name, value)| (name.to_owned(), value));
        env.clone().into_iter().chain(other).collect()
    }

    /// Its Patroni is gone and stays so until its agent continues.
    pub(super) fn silence_patroni(&self, member: &str) {
        for (word, how) in [(" agent", "STOP"), ("patroni.yml", "KILL")] {
            if let Some(pid) = self.process(member, word) {
                signal(pid, how);
            }
        }
    }

    fn workers(&self) -> BTreeSet<u32> {
        let found = self.sandbox.processes().into_iter();
        found.filter(|(_, line)| line.contains("haproxy.cfg")).map(|(pid, _)| pid).collect()
    }
}

#[test]
fn clients_reach_the_primary_and_replicas_through_haproxy_while_the_primary_moves_and_a_member_leaves() {
    let sandbox = Sandbox::new(super::VERSION);
    sandbox.file("shop.yaml", &with_haproxy(QUICK, &THREE));
    let shop = Shop { sandbox };
    shop.apply().ok();
    shop.sandbox.assert_nothing_to_do("shop.yaml");
    let user = shop.env(&["--user", "shop"]);
    let recovers = |port: &str, number| psql(&shop.through(&user, number, port), "select pg_is_in_recovery()");
    for number in 0..3 {
        // With `verify-full`: the certificate behind each proxy names the proxy's address.
        eventually("the primary is found", 30, || recovers("5000", number).code == Some(0));
        eventually("a replica is found", 30, || recovers("5001", number).code == Some(0));
        for _ in 0..10 {
            assert_eq!(recovers("5000", number).ok().stdout, "f\n");
            assert_eq!(recovers("5001", number).ok().stdout, "t\n");
        }
    }
    let through = shop.through(&user, 0, "5000");
    let refused = psql(&shop.through(&user, 1, "5001"), "create table t ()").fails().stderr;
    assert!(refused.contains("read-only transaction"), "{refused}");

    // A transaction that is under way when the primary is to move gets time to commit.
    let writer = Writer::start(through.clone());
    psql(&through, "create table slow (n int)").ok();
    let masters = shop.workers();
    let mut transaction = Command::new(PSQL);
    transaction.env_clear().env("PATH", "/usr/bin:/bin").envs(&through).stdout(Stdio::null());
    let script = "begin; insert into slow values (1); select pg_sleep(4); commit;";
    let mut transaction =
        transaction.args(["--no-psqlrc", "-v", "ON_ERROR_STOP=1", "-c", script]).spawn().expect("psql runs");
    eventually("the transaction is under way", 10, || {
        let count = "select count(*) from pg_stat_activity where state = 'active' and query like '%pg_sleep%' \
                     and pid <> pg_backend_pid()";
        psql(&through, count).ok().stdout == "1\n"
    });
    let before = shop.primary();
    let done = AtomicBool::new(false);
    let answers = std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let mut answers = BTreeSet::new();
            while !done.load(Ordering::SeqCst) {
                answers.insert(recovers("5000", 0).stdout);
            }
            answers
        });
        let switched = shop.sandbox.quorate(&["switchover", "shop", "--yes"]);
        done.store(true, Ordering::SeqCst);
        switched.ok();
        asked.join().expect("it asks")
    });
    // Patroni calls it done before the new primary is promoted, and clients must wait for that.
    assert!(answers.contains("f\n") && !answers.contains("t\n"), "{answers:?}");
    assert_ne!(shop.primary(), before);
    assert!(transaction.wait().expect("it ends").success(), "the transaction was cut off");
    assert_eq!(psql(&through, "select count(*) from slow").ok().stdout, "1\n");
    assert_eq!(shop.workers(), masters, "a switchover reloads nothing");

    // The primary leaves. Reloads keep the master, and connections.
    let leaving = shop.primary();
    let stay: Vec<&str> = THREE.into_iter().filter(|name| *name != leaving).collect();
    let number = THREE.iter().position(|name| *name == stay[0]).expect("one that stays");
    let master = shop.process(stay[0], "haproxy.cfg").expect("HAProxy runs");
    shop.sandbox
        .file("shop.yaml", &with_haproxy(QUICK, &stay).replace("dcs:", "synchronous: {strict: false}\n      dcs:"));
    let stays = shop.through(&user, number, "5000");
    let other_writer = Writer::start_in(stays.clone(), "others");
    shop.apply().ok();
    assert_eq!(shop.process(stay[0], "haproxy.cfg"), Some(master), "it was restarted");
    let config = shop.sandbox.home().join(format!("machines/shop/{}/root/etc/haproxy/haproxy.cfg", stay[0]));
    let config = std::fs::read_to_string(config).unwrap();
    assert!(!config.contains(&format!("server {leaving} ")), "{config}");
    eventually("the primary is found", 30, || psql(&stays, "select 1").code == Some(0));
    let direct = shop.env(&["--user", "shop"]);
    assert_nothing_lost(&direct, &writer.stop());
    super::assert_nothing_lost_in(&direct, "others", &other_writer.stop());

    shop.sandbox.quorate(&["destroy", "shop", "--yes", "--without-backup"]).ok();
    assert!(shop.sandbox.processes().iter().all(|(_, line)| !line.contains("/machines/shop/")), "something still runs");
}

#[test]
fn a_port_conflict_is_reported_and_no_other_process_can_answer_for_patroni() {
    let sandbox = Sandbox::new(super::VERSION);
    sandbox.file("shop.yaml", &spec("max_connections: 50", &THREE));
    let shop = Shop { sandbox };
    shop.apply().ok();
    let user = shop.env(&["--user", "shop"]);
    let host = user["PGHOST"].split(',').next().unwrap().to_owned();
    let taken = TcpListener::bind((host.as_str(), 5000)).expect("the port is free");
    shop.sandbox.file("shop.yaml", &with_haproxy(QUICK, &THREE));
    let said = shop.sandbox.quorate(&["apply", "--yes", "shop.yaml"]).fails().text();
    assert!(said.contains("Address already in use") && said.contains(&format!("{host}:5000")), "{said}");
    assert_eq!(shop.status()["verdict"], "healthy", "PostgreSQL is not disturbed");
    drop(taken);
    shop.apply().ok();
    let through = shop.through(&user, 0, "5000");
    eventually("the primary is found", 30, || psql(&through, "select 1").code == Some(0));

    // A standby's Patroni is gone, and somebody says in its place that this is the primary, with a certificate of another CA.
    let replica = shop.member_with("replica");
    let number = THREE.iter().position(|name| *name == replica).unwrap();
    let address = user["PGHOST"].split(',').nth(number).unwrap().to_owned();
    shop.silence_patroni(&replica);
    let directory = shop.sandbox.path().join("forged");
    std::fs::create_dir(&directory).unwrap();
    let file = |name: &str| directory.join(name).display().to_string();
    let request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=pg", "-days", "1"];
    let files = ["-keyout", &file("key"), "-out", &file("crt")];
    shop.sandbox.openssl(&[&request[..], &files[..]].concat());
    let forger = forge(&address, &file("key"), &file("crt"));
    for _ in 0..30 {
        assert_eq!(psql(&through, "select pg_is_in_recovery()").ok().stdout, "f\n");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    drop(forger);
    if let Some(agent) = shop.process(&replica, " agent") {
        signal(agent, "CONT");
    }
    eventually("all is well", 60, || shop.status()["verdict"] == "healthy");
}
