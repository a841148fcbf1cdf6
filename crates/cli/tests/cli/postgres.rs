//! PostgreSQL clusters under Patroni, on an etcd cluster of quorate: created, changed under a writer, damaged, destroyed. No confirmed
//! commit is lost.

mod backups;
mod bootstrap;
mod diverged;
mod minor;
mod older_etcd;
mod older_patroni;
mod other_etcd;
mod passwords;
mod pooler;
mod proxy;
mod proxy_machines;
mod revocation;
mod stores;
mod strict_etcd;
mod up;
mod upgrade;

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use crate::common::{PSQL, Run, Sandbox, eventually, patroni, signal};

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

    /// The first member with this role, as `status` shows it. Patroni chooses a synchronous standby some time after one streams.
    fn member_with(&self, role: &str) -> String {
        let mut found = None;
        eventually(&format!("a {role}"), 60, || {
            let status = self.status();
            let members = status["members"].as_array().unwrap();
            let member = members.iter().find(|member| member["role"] == role);
            found = member.map(|member| member["member"].as_str().unwrap().to_owned());
            found.is_some()
        });
        found.unwrap()
    }

    /// The process of a member whose command line has this in it. A child that has just begun still has the command line of its parent.
    fn process(&self, member: &str, word: &str) -> Option<u32> {
        let root = format!("/machines/shop/{member}/");
        let all = self.sandbox.processes().into_iter();
        let found: BTreeSet<u32> =
            all.filter(|(_, line)| line.contains(&root) && line.contains(word)).map(|(pid, _)| pid).collect();
        found.iter().find(|pid| parent(**pid).is_some_and(|parent| !found.contains(&parent))).copied()
    }
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn psql(env: &BTreeMap<String, String>, sql: &str) -> Run {
    let mut command = Command::new(PSQL);
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
        Self::start_in(env, "written")
    }

    fn start_in(env: BTreeMap<String, String>, table: &'static str) -> Self {
        psql(&env, &format!("create table if not exists {table} (n bigint primary key)")).ok();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut confirmed = BTreeSet::new();
            for n in 1_u64.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                if psql(&env, &format!("insert into {table} values ({n})")).code == Some(0) {
                    confirmed.insert(n);
                }
                // Each is a new process with a new connection; more of them only take time from the cluster. Many commits at once are
                // the drill's business.
                std::thread::sleep(Duration::from_millis(150));
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
    assert_nothing_lost_in(env, "written", confirmed);
}

fn assert_nothing_lost_in(env: &BTreeMap<String, String>, table: &str, confirmed: &BTreeSet<u64>) {
    assert!(!confirmed.is_empty(), "nothing was written");
    let there = psql(env, &format!("select n from {table}")).ok().stdout;
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
    shop.sandbox.assert_nothing_to_do("shop.yaml");

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
    // Clients that only read use a standby while there is one.
    let reader = shop.env(&["--user", "shop", "--session", "prefer-standby"]);
    assert_eq!(psql(&reader, "select current_user, pg_is_in_recovery()").ok().stdout, "shop|t\n");
    assert_eq!(shop.env(&["--user", "shop", "--session", "any"])["PGTARGETSESSIONATTRS"], "any");
    let etcd = shop.sandbox.quorate(&["env", "orders", "--session", "any"]).fails().stderr;
    assert!(etcd.contains("`--session` is for clusters of PostgreSQL"), "{etcd}");
    let other = shop.sandbox.quorate(&["env", "shop", "--user", "nobody"]).fails().stderr;
    assert!(other.contains("user nobody is not declared"), "{other}");

    // The operator's `patronictl` reaches etcd and commands members; that of a user gets nothing.
    assert!(!user.contains_key("PATRONICTL_CONFIG_FILE"));
    let config = std::path::Path::new(&superuser["PATRONICTL_CONFIG_FILE"]);
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(config).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    let patronictl = |words: &[&str]| -> Run {
        let mut command = Command::new(patroni().join("patronictl"));
        command.env("PATRONICTL_CONFIG_FILE", config).args(words).output().expect("patronictl runs").into()
    };
    let listed = patronictl(&["list", "--format", "json"]).ok().json();
    let leader = listed.as_array().unwrap().iter().find(|member| member["Role"] == "Leader").expect("a leader");
    assert_eq!(leader["Member"], shop.primary().as_str(), "{listed}");
    let reloaded = patronictl(&["reload", "shop", "--force"]).ok().text();
    assert!(!reloaded.contains("Failed"), "{reloaded}");

    let writer = Writer::start(user.clone());
    // A parameter that needs a restart: replicas first, then the primary hands over.
    let before = shop.primary();
    shop.sandbox.file("shop.yaml", &spec("max_connections: 60, work_mem: 8MB", &THREE));
    let done = shop.apply().ok().text();
    assert!(done.contains(&format!("switch the primary from {before} to ")), "{done}");
    assert_ne!(shop.primary(), before, "it handed over more than once\n{done}");
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
    assert!(refused.contains("hint: nothing was deleted; destroy shop first"), "{refused}");
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
fn members_join_leave_lose_their_data_and_the_primary_is_killed() {
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
    // Its agent sees nothing of it before the disk is empty: it would start Patroni again, which clones by itself.
    let agent = shop.process(&replica, " agent --root ").expect("the agent runs");
    signal(agent, "STOP");
    signal(shop.process(&replica, "patroni.yml").expect("Patroni runs"), "KILL");
    let data = shop.sandbox.home().join(format!("machines/shop/{replica}/root/var/lib/postgresql/data"));
    if let Some(postmaster) = shop.process(&replica, "/bin/postgres -D") {
        signal(postmaster, "KILL");
    }
    // What PostgreSQL leaves behind for a moment may still write.
    eventually("the disk is empty", 30, || std::fs::remove_dir_all(&data).is_ok() || !data.exists());
    signal(agent, "CONT");
    let done = shop.apply().ok().text();
    assert!(done.contains(&format!("clone the data to {replica}")), "{done}");
    // From the other replica: the primary serves its clients.
    let log = shop.sandbox.home().join(format!("machines/shop/{replica}/root/var/log/patroni.log"));
    let log = std::fs::read_to_string(log).expect("Patroni's log");
    let last = log.lines().rfind(|line| line.contains("bootstrapped from"));
    assert!(last.is_some_and(|line| line.contains("bootstrapped from replica")), "{last:?}");
    // One more, and the primary leaves.
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

#[test]
fn the_primary_moves_on_request_and_only_to_a_standby_with_all_commits() {
    let shop = Shop::up();
    let user = shop.env(&["--user", "shop"]);
    let writer = Writer::start(user.clone());
    let before = shop.primary();
    let (synchronous, other) = (shop.member_with("sync standby"), shop.member_with("replica"));
    let switchover = |to: &[&str]| {
        let arguments: Vec<&str> = ["switchover", "shop", "--yes"].iter().chain(to).copied().collect();
        shop.sandbox.quorate(&arguments)
    };
    // Who may lack a confirmed commit is refused; nothing is left in the ledger.
    let refused = switchover(&["--to", &other]).fails().text();
    assert!(
        refused.contains("commits wait for") && refused.contains(&format!("switch over to {synchronous}")),
        "{refused}"
    );
    assert!(switchover(&["--to", &before]).fails().stderr.contains("is the primary of shop already"));
    assert!(switchover(&["--to", "pg-9"]).fails().stderr.contains("has no member `pg-9`"));
    let etcd = shop.sandbox.quorate(&["switchover", "orders", "--yes"]).fails().stderr;
    assert!(etcd.contains("is an etcd cluster"), "{etcd}");
    assert_eq!(shop.primary(), before);
    // Without a terminal and without consent nothing is done.
    let unasked = shop.sandbox.quorate(&["switchover", "shop"]).fails().text();
    assert!(unasked.contains(&format!("switch the primary from {before} to {synchronous}")), "{unasked}");
    assert_eq!(shop.primary(), before);

    // Nor is a request recorded that cannot begin yet.
    let agents = [&synchronous, &other].map(|member| shop.process(member, " agent --root ").expect("its agent"));
    agents.iter().for_each(|agent| signal(*agent, "STOP"));
    let unasked = shop.sandbox.quorate(&["switchover", "shop"]);
    agents.iter().for_each(|agent| signal(*agent, "CONT"));
    unasked.fails();
    assert_eq!(shop.sandbox.quorate(&["requests", "shop", "--output", "json"]).json(), serde_json::json!([]));
    eventually("all is well", 60, || shop.status()["verdict"] == "healthy");

    switchover(&["--to", &synchronous]).ok();
    assert_eq!(shop.primary(), synchronous);
    let open = shop.sandbox.quorate(&["requests", "shop", "--output", "json"]).json();
    assert_eq!(open, serde_json::json!([]));
    let history = shop.sandbox.quorate(&["history", "shop"]).ok().stdout;
    assert!(history.contains("that another member becomes the primary"), "{history}");
    // `apply` has nothing more to do, so nobody is switched back.
    shop.apply().ok();
    assert_eq!(shop.primary(), synchronous);
    switchover(&[]).ok();
    assert_ne!(shop.primary(), synchronous);
    assert_eq!(shop.status()["verdict"], "healthy");

    // A lowered limit: `plan` shows the restarts, and the primary restarts first, where it is. A slot and tags come with it.
    let (primary, tagged) = (shop.primary(), shop.member_with("replica"));
    let text = spec("max_connections: 40", &THREE).replace(
        &format!("{{name: {tagged}}}"),
        &format!("{{name: {tagged}, tags: {{nofailover: true, clonefrom: true}}}}"),
    );
    shop.sandbox.file("shop.yaml", &text.replace("      users:", "      slots: [{name: warehouse}]\n      users:"));
    let planned = shop.sandbox.quorate(&["plan", "shop.yaml"]).ok().stdout;
    assert!(planned.contains("max_connections changes from 50 to 40 with a restart"), "{planned}");
    assert!(planned.contains("it restarts first") && !planned.contains("switch the primary"), "{planned}");
    let done = shop.apply().ok().text();
    assert!(!done.contains("switch the primary"), "{done}");
    assert_eq!(shop.primary(), primary);
    let superuser = shop.env(&[]);
    for host in superuser["PGHOST"].split(',') {
        let one = [("PGHOST", host), ("PGTARGETSESSIONATTRS", "any")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let one: BTreeMap<_, _> = superuser.clone().into_iter().chain(one).collect();
        assert_eq!(psql(&one, "show max_connections").ok().stdout, "40\n");
    }
    let slots = psql(&superuser, "select count(*) from pg_replication_slots where slot_name = 'warehouse'").ok().stdout;
    assert_eq!(slots, "1\n");
    let refused = switchover(&["--to", &tagged]).fails().text();
    assert!(refused.contains("its tags say that it never becomes the primary"), "{refused}");
    shop.sandbox.assert_nothing_to_do("shop.yaml");
    assert_nothing_lost(&user, &writer.stop());
}

impl Shop {
    /// PostgreSQL's process on each member: the same ones if nothing restarted.
    fn postmasters(&self) -> BTreeMap<&'static str, Option<u32>> {
        THREE.into_iter().map(|member| (member, self.process(member, "/bin/postgres -D"))).collect()
    }

    /// The members of etcd that Patroni of this member was configured with.
    fn dcs_hosts(&self, member: &str) -> BTreeSet<String> {
        let path = self.sandbox.home().join(format!("machines/shop/{member}/root/etc/patroni/patroni.yml"));
        let config: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        config["etcd3"]["hosts"].as_array().unwrap().iter().map(|host| host.as_str().unwrap().to_owned()).collect()
    }

    /// The members of etcd that there are.
    fn etcd_hosts(&self) -> BTreeSet<String> {
        let orders = self.sandbox.status("orders");
        let members = orders["members"].as_array().unwrap().iter();
        let endpoint = |member: &Value| member["endpoint"].as_str().unwrap().trim_start_matches("https://").to_owned();
        members.map(endpoint).collect()
    }

    /// The names in the certificate that a server shows; none while it does not answer, as Patroni does when it reads its files again.
    fn names_shown(&self, address: &str, how: &[&str]) -> String {
        let mut client = Command::new("openssl");
        client.args(["s_client", "-connect", address]).args(how).stdin(Stdio::null());
        let answer = Run::from(client.output().expect("openssl runs"));
        if answer.code != Some(0) {
            return String::new();
        }
        let shown = self.sandbox.path().join("shown.pem");
        std::fs::write(&shown, answer.stdout).unwrap();
        self.sandbox.openssl(&["x509", "-noout", "-ext", "subjectAltName", "-in", shown.to_str().unwrap()])
    }
}

#[test]
fn etcd_gets_another_member_and_is_away_and_certificates_are_renewed_and_postgresql_never_restarts() {
    let sandbox = Sandbox::new(VERSION);
    let three = "[{name: e-1}, {name: e-2}, {name: e-3}]";
    let text = spec("max_connections: 50", &THREE).replace("[{name: e-1}]", three);
    sandbox.file("shop.yaml", &text);
    let shop = Shop { sandbox };
    shop.apply().ok();
    let user = shop.env(&["--user", "shop"]);
    let writer = Writer::start(user.clone());
    let (primary, postmasters) = (shop.primary(), shop.postmasters());
    assert!(postmasters.values().all(Option::is_some), "{postmasters:?}");

    // Another member of etcd: Patroni's hosts follow, and a Patroni that starts finds etcd.
    let replaced = shop.sandbox.quorate(&["replace", "orders", "e-1", "--yes"]).ok();
    let note = "note: Patroni of shop still has the previous addresses, CA or login of orders; ";
    assert!(replaced.stderr.contains(note), "{replaced:?}");
    assert_ne!(shop.dcs_hosts(&primary), shop.etcd_hosts());
    // One run changes etcd again, and applies PostgreSQL after it.
    let text = text.replace(three, "[{name: e-1}, {name: e-2}, {name: e-3}, {name: e-4}]");
    shop.sandbox.file("shop.yaml", &text);
    let applied = shop.apply().ok();
    assert!(!applied.stderr.contains(note), "{applied:?}");
    let hosts = shop.etcd_hosts();
    for member in THREE {
        assert_eq!(shop.dcs_hosts(member), hosts, "{member}");
    }
    let replica = shop.member_with("replica");
    signal(shop.process(&replica, "patroni.yml").expect("Patroni runs"), "KILL");
    eventually("Patroni is back", 60, || shop.status()["verdict"] == "healthy");
    assert_eq!((shop.primary(), shop.postmasters()), (primary.clone(), postmasters.clone()));

    // All of etcd is away for three times `ttl`: with `failsafe_mode` the primary stays, and clients write.
    let etcds = shop.sandbox.etcds();
    assert_eq!(etcds.len(), 4);
    etcds.iter().for_each(|etcd| signal(*etcd, "STOP"));
    let count = || psql(&user, "select count(*) from written").ok().stdout.trim().parse::<u64>().unwrap();
    for _ in 0..6 {
        let before = count();
        std::thread::sleep(std::time::Duration::from_secs(10));
        eventually("clients write", 10, || count() > before);
    }
    etcds.iter().for_each(|etcd| signal(*etcd, "CONT"));
    eventually("etcd is back", 60, || shop.sandbox.status("orders")["verdict"] == "healthy");
    eventually("all is well", 60, || shop.status()["verdict"] == "healthy");
    assert_eq!((shop.primary(), shop.postmasters()), (primary.clone(), postmasters.clone()));

    // New certificates, with another address in them: PostgreSQL and Patroni show them after a reload.
    let named = text.replace("    postgres:\n", "    tls: {extra_sans: [192.0.2.7]}\n    postgres:\n");
    shop.sandbox.file("shop.yaml", &named);
    shop.apply().ok();
    for host in user["PGHOST"].split(',') {
        let shows = |port: u16, how: &[&str]| shop.names_shown(&format!("{host}:{port}"), how).contains("192.0.2.7");
        eventually("PostgreSQL shows it", 30, || shows(5432, &["-starttls", "postgres"]));
        eventually("Patroni shows it too", 30, || shows(8008, &[]));
    }
    assert_eq!((shop.primary(), shop.postmasters()), (primary, postmasters));
    assert_nothing_lost(&user, &writer.stop());
}
