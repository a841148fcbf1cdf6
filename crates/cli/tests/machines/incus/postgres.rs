//! PostgreSQL and the etcd that Patroni keeps its state in, on containers with systemd and data volumes: changed, damaged and rebooted while a
//! client writes. No commit that was confirmed is lost.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Containers, IMAGE, NETWORK, POOL, exec, incus, volumes};
use crate::common::{OLDEST, Run, eventually, signal};
use crate::ground::{self, chapter};
use crate::reboots::assert_no_request;
use crate::writer::while_storing;

const POSTGRES_IMAGE: &str = "quorate-postgres";
const NAME: &str = "lab-pg";
/// Its instances have names that begin like those of the other cluster.
const ETCD: &str = "lab-pg-dcs";
const MEMBERS: [&str; 3] = ["pg-1", "pg-2", "pg-3"];
const DATA: &str = "/var/lib/etcd.disk/postgresql/data";
/// A file that a clone would not have.
const MARK: &str = "/var/lib/etcd.disk/postgresql/data/lab-mark";

struct Shop {
    containers: Containers,
}

impl Shop {
    fn want(&self, members: &[&str], parameters: &str) {
        let members: String = members.iter().map(|name| format!("      - name: {name}\n")).collect();
        let incus = |image: &str| format!("image: {image}, network: {NETWORK}, pool: {POOL}, profiles: []");
        let (plain, with_postgres) = (incus(IMAGE), incus(POSTGRES_IMAGE));
        let spec = format!(
            "quorate: 1
clusters:
  - name: {ETCD}
    provider: {{incus: {{{plain}}}}}
    members: [{{name: e-1}}, {{name: e-2}}, {{name: e-3}}]
    etcd: {{version: {OLDEST}, client_auth: password, grpc_gateway: true}}
  - name: {NAME}
    replace_after: 10s
    provider: {{incus: {{{with_postgres}, data_size: 2GiB}}}}
    members:
{members}    postgres:
      version: 15
      dcs: {{cluster: {ETCD}}}
      parameters: {{{parameters}}}
      users: [{{name: shop}}]
      databases: [{{name: shop, owner: shop}}]
      haproxy: {{}}
      patroni: {{ttl: 20s, loop_wait: 1s, retry_timeout: 5s}}
"
        );
        self.containers.sandbox.file("cluster.yaml", &spec);
    }

    #[track_caller]
    fn apply(&self) {
        self.containers.apply().ok();
        self.assert_healthy();
    }

    #[track_caller]
    fn quorate(&self, arguments: &[&str]) {
        self.containers.sandbox.quorate(arguments).ok();
        self.assert_healthy();
    }

    fn status(&self) -> Value {
        self.containers.sandbox.status(NAME)
    }

    /// All members stream, and nothing is left to do.
    #[track_caller]
    fn assert_healthy(&self) {
        eventually("a healthy cluster", 60, || self.status()["verdict"] == "healthy");
        let plan = self.containers.sandbox.quorate(&["plan", "cluster.yaml"]).ok().stdout;
        assert!(plan.contains(&format!("cluster {NAME}: nothing to do")), "{plan}");
    }

    fn env(&self, user: &[&str]) -> BTreeMap<String, String> {
        let arguments: Vec<&str> = ["env", NAME, "--output", "json"].into_iter().chain(user.iter().copied()).collect();
        let shown = self.containers.sandbox.quorate(&arguments).ok().json();
        shown.as_object().unwrap().iter().map(|(k, v)| (k.clone(), v.as_str().unwrap().to_owned())).collect()
    }

    fn primary(&self) -> String {
        self.status()["postgres"]["primary"].as_str().unwrap_or_default().to_owned()
    }

    fn replica(&self) -> String {
        let primary = self.primary();
        MEMBERS.into_iter().find(|member| *member != primary).expect("a replica").to_owned()
    }

    /// The machine that a member has now.
    fn machine(&self, member: &str) -> String {
        match self.containers.incarnation(member) {
            1 => member.to_owned(),
            later => format!("{member}.{later}"),
        }
    }

    #[track_caller]
    fn exec(&self, member: &str, command: &str) -> String {
        exec(&self.containers, &self.machine(member), command).ok().stdout.trim().to_owned()
    }

    fn boots(&self) -> BTreeMap<&'static str, u32> {
        MEMBERS.map(|member| (member, self.containers.first_process(&self.machine(member)))).into()
    }

    /// The member has another machine now, the same volume, and data that was not cloned.
    #[track_caller]
    fn assert_kept(&self, member: &str, incarnation: u64, before: &BTreeSet<String>) {
        assert_eq!(self.containers.incarnation(member), incarnation);
        assert_eq!(volumes(), *before);
        self.exec(member, &format!("test -e {MARK}"));
        // Patroni may have recorded that only this name can take over.
        let names = psql(&self.env(&[]), "select application_name from pg_stat_replication").ok().stdout;
        assert!(names.lines().all(|name| MEMBERS.contains(&name)), "{names}");
        let ledger = self.containers.sandbox.ledger(NAME);
        assert_eq!(ledger["members"][member]["renewing"], Value::Null, "{ledger:#}");
    }

    fn mark(&self, member: &str) -> BTreeSet<String> {
        self.exec(member, &format!("touch {MARK}"));
        volumes()
    }
}

fn psql(env: &BTreeMap<String, String>, sql: &str) -> Run {
    ground::psql(env, 3, sql)
}

/// What systemd, the disk and the firewall of a machine look like.
fn assert_machine(shop: &Shop, user: &BTreeMap<String, String>) {
    let replica = shop.replica();
    assert_eq!(shop.exec(&replica, "systemctl show -P User patroni.service"), "postgres");
    assert_eq!(shop.exec(&replica, &format!("stat -c %U {DATA} {DATA}/PG_VERSION | sort -u")), "postgres");
    shop.exec(&replica, "mountpoint -q /var/lib/etcd.disk");
    let rules = shop.exec(&replica, "nft list table inet quorate");
    assert!(rules.contains("tcp dport { 5000, 5001, 5432, 8008 } accept"), "{rules}");
    assert!(!rules.contains("2379") && rules.contains("policy drop"), "{rules}");
    let logs = shop.exec(&replica, "grep -c . /var/log/patroni.log");
    assert_ne!(logs, "0");
    // The compiler of queries needs memory that it may run, and parallel workers share memory.
    let compiled = "set jit = on; set jit_above_cost = 0; set max_parallel_workers_per_gather = 2; \
        set parallel_setup_cost = 0; set parallel_tuple_cost = 0; set min_parallel_table_scan_size = 0; \
        select count(*) > 0 from pg_class where length(relname) > 1";
    assert_eq!(psql(user, compiled).ok().stdout, "t\n");
}

/// Patroni is killed: systemd starts it again, and PostgreSQL does not notice.
fn assert_postgres_outlives_patroni(shop: &Shop, user: &BTreeMap<String, String>) {
    let primary = shop.primary();
    let postmaster = |shop: &Shop| shop.exec(&primary, &format!("head -1 {DATA}/postmaster.pid"));
    let memory = |shop: &Shop| shop.exec(&primary, "ls /dev/shm; ipcs -m | grep -c postgres");
    let before = (postmaster(shop), shop.exec(&primary, "systemctl show -P MainPID patroni.service"));
    let shared = memory(shop);
    assert!(shared.contains("PostgreSQL."), "{shared}");
    shop.exec(&primary, "systemctl kill --kill-whom=main --signal=KILL patroni.service");
    eventually("Patroni runs again", 30, || {
        let now = shop.exec(&primary, "systemctl show -P MainPID patroni.service");
        now != "0" && now != before.1
    });
    shop.assert_healthy();
    assert_eq!((postmaster(shop), shop.primary()), (before.0, primary.clone()), "PostgreSQL restarted");
    assert_eq!(memory(shop), shared, "its shared memory is gone");
    assert_machine(shop, user);
}

#[test]
#[ignore = "needs Incus: `cargo xtask lab incus` runs it"]
fn three_members_on_containers_change_and_fail_under_a_writer_and_no_commit_is_lost() {
    let shop = Shop { containers: Containers::new(NAME, OLDEST) };
    shop.want(&MEMBERS, "max_connections: 50");
    chapter("three containers of etcd and three of PostgreSQL, from apply to healthy", || shop.apply());
    let user = shop.env(&["--user", "shop"]);
    chapter("Patroni is a service of postgres, its data is on the volume, and ports are open", || {
        assert_machine(&shop, &user);
    });
    psql(&user, "create table written (key text primary key)").ok();
    let store = |key: &str| psql(&user, &format!("insert into written values ('{key}')")).code == Some(0);
    let ((), written) = while_storing(store, || life(&shop, &user));
    let there = psql(&user, "select key from written").ok().stdout;
    written.assert_all_in(&there.lines().collect());
    chapter("all machines are switched off, and on again", || {
        shop.containers.sandbox.quorate(&["down", "--yes", NAME]).ok();
        shop.quorate(&["start", NAME]);
        assert_eq!(psql(&user, "select key from written").ok().stdout, there);
    });
    chapter("everything is destroyed, and nothing is left", || {
        let destroy = |name: &str| shop.containers.sandbox.quorate(&["destroy", "--yes", "--without-backup", name]);
        destroy(NAME).ok();
        destroy(ETCD).ok();
        assert_eq!((shop.containers.instances(), volumes()), (BTreeSet::new(), BTreeSet::new()), "left behind");
    });
}

fn life(shop: &Shop, user: &BTreeMap<String, String>) {
    chapter("Patroni is killed, and PostgreSQL continues", || assert_postgres_outlives_patroni(shop, user));
    chapter("a parameter that needs a restart changes", || {
        shop.want(&MEMBERS, "max_connections: 60");
        shop.apply();
        assert_eq!(psql(user, "show max_connections").ok().stdout, "60\n");
    });
    chapter("a replica gets another container, and keeps its data", || {
        let replica = shop.replica();
        let before = shop.mark(&replica);
        shop.quorate(&["replace", "--yes", NAME, &replica]);
        shop.assert_kept(&replica, 2, &before);
    });
    chapter("the primary gets another container: it hands over first, and keeps its data", || {
        let primary = shop.primary();
        let (incarnation, before) = (shop.containers.incarnation(&primary), shop.mark(&primary));
        shop.quorate(&["replace", "--yes", NAME, &primary]);
        assert_ne!(shop.primary(), primary);
        shop.assert_kept(&primary, incarnation + 1, &before);
    });
    chapter("the container of the primary is killed: Patroni fails over, and apply switches it on", || {
        let primary = shop.primary();
        let incarnation = shop.containers.incarnation(&primary);
        signal(shop.containers.first_process(&shop.machine(&primary)), "KILL");
        eventually("another primary", 60, || !["", primary.as_str()].contains(&shop.primary().as_str()));
        shop.apply();
        assert_eq!(shop.containers.incarnation(&primary), incarnation, "it was switched on, not replaced");
    });
    chapter("a container is deleted behind our back: the next one gets its data", || {
        let replica = shop.replica();
        let (incarnation, before) = (shop.containers.incarnation(&replica), shop.mark(&replica));
        incus(&["delete", "--force", &shop.containers.instance(&shop.machine(&replica))]).ok();
        shop.apply();
        shop.assert_kept(&replica, incarnation + 1, &before);
    });
    chapter("switchover", || {
        let primary = shop.primary();
        shop.quorate(&["switchover", "--yes", NAME]);
        assert_ne!(shop.primary(), primary);
    });
    chapter("three become two, and two become three", || {
        for members in [&MEMBERS[..2], &MEMBERS] {
            shop.want(members, "max_connections: 60");
            shop.apply();
            assert_eq!(volumes().len(), members.len(), "the data of one that left is gone");
        }
    });
    chapter("all machines reboot, one after another, the primary last", || {
        let before = shop.boots();
        let primary = shop.primary();
        shop.quorate(&["reboot", "--yes", NAME]);
        let after = shop.boots();
        assert!(MEMBERS.iter().all(|member| before[member] != after[member]), "{before:?}, {after:?}");
        assert_ne!(shop.primary(), primary, "it handed over");
        assert_no_request(&shop.containers.sandbox, NAME);
    });
}
