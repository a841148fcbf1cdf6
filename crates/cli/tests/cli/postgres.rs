//! Clusters of PostgreSQL under Patroni, on an etcd cluster of ours: created, changed under a writer, damaged, destroyed. No commit that was
//! confirmed is lost.

mod backups;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde_json::Value;

use crate::common::{Run, Sandbox, eventually, signal};

const VERSION: &str = "3.6.16";

/// Patroni looks every second, so nothing waits for it longer than it must.
fn spec(parameters: &str, members: &[&str]) -> String {
    let members: Vec<String> = members.iter().map(|name| format!("{{name: {name}}}")).collect();
    format!(
        "quorate: 1
clusters:
  - name: shop
    members: [{}]
    postgres:
      version: 15
      dcs: {{cluster: orders}}
      parameters: {{{parameters}}}
      users: [{{name: shop}}]
      databases: [{{name: shop, owner: shop, extensions: [pg_trgm]}}]
      patroni: {{ttl: 20s, loop_wait: 1s, retry_timeout: 5s}}
  - name: orders
    members: [{{name: e-1}}]
    etcd: {{version: {VERSION}, client_auth: password, grpc_gateway: true}}
",
        members.join(", ")
    )
}

struct Shop {
    sandbox: Sandbox,
}

const THREE: [&str; 3] = ["pg-1", "pg-2", "pg-3"];

impl Shop {
    fn up() -> Self {
        let sandbox = Sandbox::new(VERSION);
        sandbox.file("shop.yaml", &spec("max_connections: 50", &THREE));
        let shop = Shop { sandbox };
        shop.apply().ok();
        shop
    }

    fn apply(&self) -> Run {
        self.sandbox.quorate(&["apply", "--yes", "shop.yaml"])
    }

    fn env(&self, user: &[&str]) -> BTreeMap<String, String> {
        let arguments: Vec<&str> =
            ["env", "shop", "--output", "json"].into_iter().chain(user.iter().copied()).collect();
        let shown = self.sandbox.quorate(&arguments).json();
        shown.as_object().unwrap().iter().map(|(k, v)| (k.clone(), v.as_str().unwrap().to_owned())).collect()
    }

    fn status(&self) -> Value {
        self.sandbox.status("shop")
    }

    fn primary(&self) -> String {
        self.status()["postgres"]["primary"].as_str().unwrap_or_default().to_owned()
    }

    /// The process of a member whose command line has this in it.
    fn process(&self, member: &str, word: &str) -> Option<u32> {
        let root = format!("/machines/shop/{member}/");
        let found = self.sandbox.processes().into_iter();
        found.filter(|(_, line)| line.contains(&root) && line.contains(word)).map(|(pid, _)| pid).min()
    }
}

fn psql(env: &BTreeMap<String, String>, sql: &str) -> Run {
    let mut command = Command::new("psql");
    command.env_clear().env("PATH", "/usr/bin:/bin").env("PGCONNECT_TIMEOUT", "3").envs(env);
    command.args(["--no-psqlrc", "-At", "-v", "ON_ERROR_STOP=1", "-c", sql]).output().expect("psql runs").into()
}

/// Inserts numbers, and remembers which were confirmed.
struct Writer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<BTreeSet<u64>>,
}

impl Writer {
    fn start(env: BTreeMap<String, String>) -> Self {
        psql(&env, "create table if not exists written (n bigint primary key)").ok();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut confirmed = BTreeSet::new();
            for n in 1_u64.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                if psql(&env, &format!("insert into written values ({n})")).code == Some(0) {
                    confirmed.insert(n);
                }
            }
            confirmed
        });
        Writer { stop, thread }
    }

    fn stop(self) -> BTreeSet<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the writer ends")
    }
}

fn assert_nothing_lost(env: &BTreeMap<String, String>, confirmed: &BTreeSet<u64>) {
    assert!(!confirmed.is_empty(), "nothing was written");
    let there = psql(env, "select n from written").ok().stdout;
    let there: BTreeSet<u64> = there.lines().map(|line| line.parse().unwrap()).collect();
    let lost: Vec<&u64> = confirmed.difference(&there).collect();
    assert!(lost.is_empty(), "confirmed and lost: {lost:?}");
}

#[test]
fn a_cluster_is_created_changed_repaired_and_destroyed_and_no_commit_is_lost() {
    let shop = Shop::up();
    let status = shop.status();
    assert_eq!(status["verdict"], "healthy", "{status}");
    assert_eq!(status["members"].as_array().unwrap().len(), 3);
    assert!(shop.sandbox.quorate(&["plan", "shop.yaml"]).ok().stdout.contains("cluster shop: nothing to do"));

    // A user comes in with TLS and a password. The superuser also needs a certificate of the members' CA.
    let user = shop.env(&["--user", "shop"]);
    assert_eq!(psql(&user, "select current_user, pg_is_in_recovery()").ok().stdout, "shop|f\n");
    let plain = BTreeMap::from_iter([("PGSSLMODE".to_owned(), "disable".to_owned())]);
    let without_tls: BTreeMap<_, _> = user.clone().into_iter().chain(plain).collect();
    assert!(psql(&without_tls, "select 1").fails().stderr.contains("pg_hba.conf rejects connection"));
    let superuser = shop.env(&[]);
    assert_eq!(psql(&superuser, "select count(*) from pg_stat_replication").ok().stdout, "2\n");
    let mut by_password = superuser.clone();
    by_password.retain(|name, _| name != "PGSSLCERT" && name != "PGSSLKEY");
    assert!(psql(&by_password, "select 1").fails().stderr.contains("valid client certificate"));
    let other = shop.sandbox.quorate(&["env", "shop", "--user", "nobody"]).fails().stderr;
    assert!(other.contains("user nobody is not declared"), "{other}");

    let writer = Writer::start(user.clone());
    // A parameter that needs a restart: replicas first, then the primary hands over.
    let before = shop.primary();
    shop.sandbox.file("shop.yaml", &spec("max_connections: 60, work_mem: 8MB", &THREE));
    let done = shop.apply().ok().text();
    assert!(done.contains(&format!("switch the primary from {before} to ")), "{done}");
    assert_ne!(shop.primary(), before);
    assert_eq!(psql(&superuser, "show max_connections").ok().stdout, "60\n");
    assert_eq!(psql(&superuser, "show work_mem").ok().stdout, "8MB\n");

    // Patroni killed: PostgreSQL continues, the next Patroni takes it over.
    let primary = shop.primary();
    let postmaster = shop.process(&primary, "/bin/postgres -D").expect("PostgreSQL runs");
    signal(shop.process(&primary, "patroni.yml").expect("Patroni runs"), "KILL");
    eventually("Patroni is back", 30, || shop.status()["verdict"] == "healthy");
    assert_eq!((shop.primary(), shop.process(&primary, "/bin/postgres -D")), (primary, Some(postmaster)));

    let confirmed = writer.stop();
    assert_nothing_lost(&user, &confirmed);

    // The etcd cluster is not destroyed under it; afterwards nothing is left.
    let refused = shop.sandbox.quorate(&["destroy", "orders", "--yes", "--without-backup"]).fails().stderr;
    assert!(refused.contains("shop keeps Patroni's state in orders"), "{refused}");
    assert!(shop.sandbox.quorate(&["destroy", "shop", "--yes"]).fails().text().contains("no verified backup"));
    shop.sandbox.quorate(&["destroy", "shop", "--yes", "--without-backup"]).ok();
    assert!(shop.sandbox.processes().iter().all(|(_, line)| !line.contains("/machines/shop/")), "something still runs");
    let keys = shop.sandbox.etcdctl(VERSION, "orders", &["get", "--prefix", "--keys-only", ""]).ok().stdout;
    assert!(!keys.contains("/patroni/"), "{keys}");
    let users = shop.sandbox.etcdctl(VERSION, "orders", &["user", "list"]).ok().stdout;
    assert!(!users.contains("patroni-shop"), "{users}");
    shop.sandbox.quorate(&["destroy", "orders", "--yes", "--without-backup"]).ok();
    assert_eq!(shop.sandbox.processes(), Vec::new());
}

#[test]
fn members_come_and_go_lose_their_data_and_the_primary_dies() {
    let shop = Shop::up();
    let user = shop.env(&["--user", "shop"]);
    let writer = Writer::start(user.clone());
    // The machine of the primary dies: Patroni fails over, `apply` brings it back as a replica.
    let primary = shop.primary();
    let root = format!("/machines/shop/{primary}/");
    for (pid, _) in shop.sandbox.processes().into_iter().filter(|(_, line)| line.contains(&root)) {
        signal(pid, "KILL");
    }
    eventually("another is primary", 60, || {
        let now = shop.primary();
        !now.is_empty() && now != primary
    });
    shop.apply().ok();
    assert_eq!(shop.status()["verdict"], "healthy");
    // A replica whose disk was wiped is cloned again.
    let status = shop.status();
    let replica = status["members"].as_array().unwrap().iter().find(|member| member["role"] == "replica").unwrap();
    let replica = replica["member"].as_str().unwrap().to_owned();
    signal(shop.process(&replica, "patroni.yml").expect("Patroni runs"), "KILL");
    let data = shop.sandbox.home().join(format!("machines/shop/{replica}/root/var/lib/postgresql/data"));
    if let Some(postmaster) = shop.process(&replica, "/bin/postgres -D") {
        signal(postmaster, "KILL");
    }
    std::fs::remove_dir_all(&data).unwrap();
    let done = shop.apply().ok().text();
    assert!(done.contains(&format!("clone the data to {replica}")), "{done}");
    // One more, and the primary of then leaves.
    let leaving = shop.primary();
    let stay: Vec<&str> = THREE.into_iter().chain(["pg-4"]).filter(|name| *name != leaving).collect();
    shop.sandbox.file("shop.yaml", &spec("max_connections: 50", &stay));
    let done = shop.apply().ok().text();
    assert!(done.contains(&format!("switch the primary from {leaving} to ")), "{done}");
    let status = shop.status();
    assert_eq!(status["verdict"], "healthy", "{status}");
    let left: Vec<&str> = status["members"].as_array().unwrap().iter().filter_map(|m| m["member"].as_str()).collect();
    assert_eq!(left, stay);
    let env = shop.env(&["--user", "shop"]);
    let confirmed = writer.stop();
    assert_nothing_lost(&env, &confirmed);
}
