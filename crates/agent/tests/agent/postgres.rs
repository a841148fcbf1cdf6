//! The life of a real PostgreSQL under Patroni and the agent, with its state in a real etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use jiff::Timestamp;
use quorate_agent::api::{Certificate, EtcdOrder, FactsRequest, Order, PostgresOrder, Refusal};
use quorate_agent::client::{AgentClient, Look};
use quorate_agent::process::{self, Process};
use quorate_core::Secret;
use quorate_core::desire::password_fingerprint;
use quorate_core::kinds::etcd::desire::ROOT_PASSWORD_FILE;
use quorate_core::kinds::etcd::{Access, AuthOp, Permission};
use quorate_core::kinds::postgres::desire::{DCS_TRUST_FILE, PEER_TRUST_FILE};
use quorate_core::kinds::postgres::{Catalog, CatalogOp, PatroniStatus, PostgresFacts, Role};
use quorate_core::model::{
    BinarySeen, CertificateUse, ConfigFile, DataSeen, HEALTH_PORT, NodeConfig, PatroniService, Runs, ServiceConfig,
    ServiceState,
};
use quorate_etcd::{KeyRange, Login, RangeQuery};
use quorate_pki::Authority;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Machine, authority, config, facts, lab, order, turn_auth_on, until};

const PREFIX: &str = "/patroni/shop/";
const USER: &str = "patroni";
const PASSWORD: &str = "patroni's own";
/// What PostgreSQL stores of the password `pencil`.
const VERIFIER: &str = "SCRAM-SHA-256$4096:QSXCR+Q6sek8bf92$FO+9jBb3MUukt6jJnzjPZOWc5ow/Pu6JtPyju0aqaE8=:\
    qxJ1SbmSAi5EcS0J5Ck/cKAm/+Ixa+Kwp63f4OHDgzo=";

/// The etcd with Patroni's state: it logs in by password and may use its own keys alone.
struct Dcs {
    machine: Machine,
}

impl Dcs {
    async fn new() -> Self {
        let (machine, client) = Machine::ready().await;
        let mut by_password = config();
        let flags = &mut by_password.etcd_mut().unwrap().flags;
        flags.remove("client-cert-auth");
        flags.remove("trusted-ca-file");
        by_password.files.push(crate::common::file(ROOT_PASSWORD_FILE, "root's own"));
        order(&client, 1, Order::converge(2, by_password, None)).await.unwrap();
        machine.start_etcd(&client, "t-1").await.unwrap();
        machine.healthy(&client).await;
        turn_auth_on(&client, Some("root's own")).await;
        let name = || String::from(USER);
        let permission = Permission::on_prefix(PREFIX, Access::ReadWrite);
        let ops = [
            (AuthOp::AddUser { user: name() }, Some(Secret::new(PASSWORD))),
            (AuthOp::AddRole { role: name() }, None),
            (AuthOp::GrantPermission { role: name(), permission }, None),
            (AuthOp::GrantRole { user: name(), role: name() }, None),
        ];
        for (op, password) in ops {
            order(&client, 1, Order::Etcd(EtcdOrder::Auth { op, password })).await.unwrap();
        }
        Dcs { machine }
    }

    fn client(&self) -> quorate_etcd::Client {
        let url = format!("https://{}:2379", self.machine.address);
        let mut options = quorate_etcd::ConnectOptions::new(url, self.machine.etcd.certificate_pem());
        options.login = Some(Login { user: USER.to_owned(), password: PASSWORD.to_owned() });
        quorate_etcd::Client::connect(options).unwrap()
    }

    async fn keys(&self) -> Vec<String> {
        let found = self.client().range(RangeQuery::new(KeyRange::prefix(PREFIX))).await.unwrap();
        found.pairs.into_iter().map(|kv| String::from_utf8(kv.key).unwrap()).collect()
    }
}

/// A machine with PostgreSQL. All that it started is killed with it.
struct Member {
    machine: Machine,
    client: AgentClient,
    peers: std::sync::Arc<Authority>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.machine.stop_agent();
        for process in self.processes() {
            process.end(Duration::ZERO);
        }
    }
}

/// Where xtask puts Patroni for tests.
fn patroni() -> String {
    let directory = lab().join("patroni/4.1.5-bin");
    assert!(directory.join("patroni").exists(), "Patroni is not at hand: run `cargo xtask postgres`");
    directory.display().to_string()
}

/// PostgreSQL logs every statement that nobody keeps out of its log.
fn dynamic(max_connections: u32) -> Value {
    let parameters = json!({ "max_connections": max_connections.to_string(), "log_transaction_sample_rate": "1" });
    json!({
        "ttl": 20, "loop_wait": 2, "retry_timeout": 3, "synchronous_mode": false,
        "postgresql": { "use_pg_rewind": true, "use_slots": true, "parameters": parameters },
    })
}

fn patroni_config(dcs: &Dcs, name: &str) -> Value {
    let pki = |file: &str| format!("{{root}}/etc/patroni/pki/{file}");
    let peers = format!("{{root}}/{PEER_TRUST_FILE}");
    let login = |user: &str| {
        json!({ "username": user, "password": format!("{user}'s own"), "sslmode": "verify-ca", "sslrootcert": pki("ca.crt"),
            "sslcert": pki("peer.crt"), "sslkey": pki("peer.key") })
    };
    let member = "scram-sha-256 clientcert=verify-ca";
    json!({
        "scope": "shop", "namespace": "/patroni/", "name": name,
        "restapi": { "listen": "{address}:8008", "connect_address": "{address}:8008", "certfile": pki("peer.crt"),
            "keyfile": pki("peer.key"), "cafile": peers, "verify_client": "optional" },
        "ctl": { "certfile": pki("peer.crt"), "keyfile": pki("peer.key"), "cacert": peers },
        "etcd3": { "hosts": [format!("{}:2379", dcs.machine.address)], "protocol": "https",
            "cacert": format!("{{root}}/{DCS_TRUST_FILE}"), "username": USER, "password": PASSWORD },
        "bootstrap": { "method": "never", "never": { "command": "/bin/false" }, "dcs": dynamic(57) },
        "postgresql": {
            "listen": "{address}:5432", "connect_address": "{address}:5432", "use_unix_socket": false,
            "data_dir": "{root}/var/lib/postgresql/data", "bin_dir": "{programs}",
            "pgpass": "{root}/var/lib/postgresql/pgpass",
            "authentication": { "superuser": login("postgres"), "replication": login("replicator"), "rewind": login("rewinder") },
            "parameters": { "ssl": "on", "ssl_cert_file": pki("member.crt"), "ssl_key_file": pki("member.key"),
                "ssl_ca_file": peers, "unix_socket_directories": "", "password_encryption": "scram-sha-256" },
            "pg_hba": [format!("hostssl replication replicator all {member}"), format!("hostssl all postgres all {member}"),
                format!("hostssl all rewinder all {member}"), "hostssl all all all scram-sha-256"],
            "basebackup": [{ "checkpoint": "fast" }],
        },
    })
}

impl Member {
    async fn first(dcs: &Dcs) -> Self {
        Self::new(dcs, "pg-1", None).await
    }

    async fn beside(&self, dcs: &Dcs, name: &str) -> Self {
        Self::new(dcs, name, Some(self)).await
    }

    async fn new(dcs: &Dcs, name: &str, other: Option<&Member>) -> Self {
        let mut machine = Machine::off();
        machine.member = name.into();
        let peers = other.map_or_else(|| std::sync::Arc::new(authority("peers")), |other| other.peers.clone());
        if let Some(other) = other {
            (machine.control, machine.etcd) = (other.machine.control.clone(), other.machine.etcd.clone());
        }
        machine.seed(machine.token.clone(), Timestamp::now() + jiff::SignedDuration::from_hours(1));
        machine.start_agent().await;
        let client = machine.client();
        machine.enrol(&client).await;
        let member = Member { machine, client, peers };
        member.install_certificates().await;
        member.converge(dcs, 1).await;
        member
    }

    async fn install_certificates(&self) {
        let requests = facts(&self.client).await.requests;
        let sign = |of: CertificateUse, authority: &Authority| {
            let chain = self.machine.sign(authority, &requests[&of], self.machine.member.as_str());
            (of, Certificate { chain, key: None })
        };
        let certificates =
            BTreeMap::from([sign(CertificateUse::Member, &self.machine.etcd), sign(CertificateUse::Peer, &self.peers)]);
        let trust = self.machine.etcd.certificate_pem().to_owned();
        order(&self.client, 1, Order::InstallCertificates { trust, certificates }).await.unwrap();
    }

    async fn converge(&self, dcs: &Dcs, generation: u64) {
        self.converge_with(dcs, generation, None).await;
    }

    async fn converge_with(&self, dcs: &Dcs, generation: u64, named: Option<String>) {
        let name = self.machine.member.as_str();
        let text = |path: &str, content: &str| ConfigFile::text(path, 0o644, Secret::new(content));
        let runs = Runs::Patroni(PatroniService {
            version: 15,
            programs: None,
            patroni: named,
            locale: String::from("C.UTF-8"),
            config: Secret::new(patroni_config(dcs, name).to_string()),
            backup: None,
            next: None,
        });
        let config = NodeConfig {
            files: vec![
                text(PEER_TRUST_FILE, self.peers.certificate_pem()),
                text(DCS_TRUST_FILE, dcs.machine.etcd.certificate_pem()),
            ],
            services: vec![ServiceConfig {
                name: String::from("patroni"),
                user: String::from("postgres"),
                runs,
                inputs: BTreeSet::new(),
            }],
            host: None,
        };
        order(&self.client, 1, Order::converge(generation, config, Some(patroni()))).await.unwrap();
    }

    async fn obeys(&self, what: PostgresOrder) -> Result<(), Refusal> {
        order(&self.client, 1, Order::Postgres(what)).await
    }

    /// Everything twice: an answer may have been lost.
    async fn does(&self, what: PostgresOrder) {
        for _ in 0..2 {
            self.obeys(what.clone()).await.unwrap();
        }
    }

    async fn facts(&self) -> PostgresFacts {
        *facts(&self.client).await.postgres.expect("its configuration has Patroni")
    }

    async fn catalog(&self) -> Catalog {
        let request = FactsRequest { fence: None, auth: true, reach: BTreeSet::new() };
        let Look::Facts(facts) = self.client.look(&request).await.unwrap() else { panic!("not enrolled") };
        facts.postgres.unwrap().catalog.expect("the primary lists users and databases")
    }

    /// Waits until Patroni says what is looked for.
    async fn until(&self, what: &str, holds: impl Fn(&PatroniStatus) -> bool) -> PatroniStatus {
        until(what, async || self.facts().await.status.filter(|status| holds(status))).await
    }

    async fn is_primary(&self) -> PatroniStatus {
        self.until("it is the primary", |s| s.role == Role::Primary && s.state == "running" && s.config.is_some()).await
    }

    fn processes(&self) -> Vec<Process> {
        process::with_environment("QUORATE_SERVICE", &format!("{}:patroni", self.machine.root().display()))
    }

    fn postmaster(&self) -> u32 {
        let note = fs::read_to_string(self.machine.root().join("var/lib/postgresql/data/postmaster.pid")).unwrap();
        note.lines().next().unwrap().parse().unwrap()
    }

    fn patroni(&self) -> Process {
        let config = self.machine.root().join("etc/patroni/patroni.yml");
        let all = self.processes();
        *all.iter().find(|process| process.is_called_with_last(&config)).expect("Patroni runs")
    }

    async fn begin(&self, token: &str) {
        let stamp = self.machine.stamp(token);
        let parameters = BTreeMap::from([(String::from("max_connections"), String::from("57"))]);
        self.does(PostgresOrder::Initialize { stamp: stamp.clone(), parameters }).await;
        self.does(PostgresOrder::Start { expects: DataSeen::Stamped(stamp), join: None }).await;
    }
}

/// As Patroni does on an emulated machine.
#[tokio::test]
async fn a_program_that_is_slow_to_print_its_version_delays_no_facts_and_is_found() {
    let dcs = Dcs::new().await;
    let one = Member::first(&dcs).await;
    let (program, go) = (one.machine.root().join("slow-patroni"), one.machine.root().join("go"));
    one.converge_with(&dcs, 2, Some(program.display().to_string())).await;
    assert!(matches!(one.facts().await.patroni, BinarySeen::Missing { .. }));
    let script = format!("#!/bin/sh\nwhile [ ! -e {} ]; do sleep 0.1; done\necho patroni 4.1.5\n", go.display());
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    for _ in 0..3 {
        assert!(matches!(one.facts().await.patroni, BinarySeen::Missing { .. }), "it has not answered yet");
    }
    fs::write(&go, "").unwrap();
    let found = BinarySeen::Version(String::from("4.1.5"));
    until("it is found", async || Some(one.facts().await).filter(|facts| facts.patroni == found)).await;
}

#[tokio::test]
async fn the_first_data_is_created_once_and_kept_under_patroni() {
    let dcs = Dcs::new().await;
    let mut one = Member::first(&dcs).await;
    let stamp = one.machine.stamp("t-1");
    let found = one.facts().await;
    assert!(
        matches!(&found.postgres, BinarySeen::Version(version) if version.starts_with("15.")),
        "{:?}",
        found.postgres
    );
    assert_eq!(found.patroni, BinarySeen::Version(String::from("4.1.5")));
    assert_eq!((found.data, found.service, found.last_started), (DataSeen::Empty, ServiceState::Stopped, None));
    let early = one.obeys(PostgresOrder::Start { expects: DataSeen::Empty, join: None }).await.unwrap_err().to_string();
    assert!(early.contains("does not say to clone"), "{early}");

    one.begin("t-1").await;
    let status = one.is_primary().await;
    let found = one.facts().await;
    assert_eq!((found.data, found.last_started), (DataSeen::Stamped(stamp.clone()), Some(stamp.clone())));
    assert!(found.system_id.is_some() && found.system_id == status.system_id);
    assert!(!status.pending_restart, "the data was created with its parameters");
    assert_eq!(status.config, Some(dynamic(57).to_string()));
    assert!(status.dcs);
    assert_eq!(health(&one.machine).await, 200);
    let keys = dcs.keys().await;
    assert!(keys.contains(&format!("{PREFIX}initialize")) && keys.contains(&format!("{PREFIX}config")), "{keys:?}");

    // A parameter that needs a restart.
    one.does(PostgresOrder::SetConfig { config: dynamic(60).to_string() }).await;
    one.until("a restart is pending", |status| status.pending_restart).await;
    let before = one.postmaster();
    one.does(PostgresOrder::RestartPostgres).await;
    one.until("no restart is pending", |status| !status.pending_restart && status.role == Role::Primary).await;
    assert_ne!(one.postmaster(), before);

    // A Patroni that is killed leaves PostgreSQL alone, and so does the next one.
    let (before, killed) = (one.postmaster(), one.patroni());
    killed.signal(Signal::KILL);
    until("Patroni is back", async || {
        one.processes().iter().any(|p| p.pid != killed.pid && is_patroni(&one, *p)).then_some(())
    })
    .await;
    one.is_primary().await;
    assert_eq!(one.postmaster(), before, "PostgreSQL was not touched");

    // The agent that ends leaves both alone.
    let before = (one.patroni().pid, one.postmaster());
    one.machine.stop_agent();
    one.machine.start_agent().await;
    assert!(matches!(one.facts().await.service, ServiceState::Running { .. }));
    assert_eq!((one.patroni().pid, one.postmaster()), before);

    // New certificates are taken up without a restart.
    one.install_certificates().await;
    one.is_primary().await;
    assert_eq!((one.patroni().pid, one.postmaster()), before);

    let wiped = one.obeys(PostgresOrder::WipeData { stamp: stamp.clone() }).await;
    assert!(matches!(wiped, Err(Refusal::NotAsExpected { .. })), "{wiped:?}");
    one.does(PostgresOrder::Stop).await;
    assert_eq!(one.processes(), []);
    assert_eq!(one.facts().await.service, ServiceState::Stopped);
    let other =
        one.obeys(PostgresOrder::Initialize { stamp: one.machine.stamp("t-2"), parameters: BTreeMap::new() }).await;
    assert!(matches!(other, Err(Refusal::NotAsExpected { .. })), "{other:?}");
    let other = one.obeys(PostgresOrder::WipeData { stamp: one.machine.stamp("t-2") }).await;
    assert!(matches!(other, Err(Refusal::NotAsExpected { .. })), "{other:?}");
    one.does(PostgresOrder::WipeData { stamp }).await;
    assert_eq!(dcs.keys().await, Vec::<String>::new(), "nothing is left of the abandoned cluster");
    let found = one.facts().await;
    assert_eq!((found.data, found.last_started, found.system_id), (DataSeen::Empty, None, None));

    // Another cluster uses this name.
    let key = format!("{PREFIX}initialize");
    dcs.client().put(key.clone(), "123").await.unwrap();
    let taken = one
        .obeys(PostgresOrder::Initialize { stamp: one.machine.stamp("t-2"), parameters: BTreeMap::new() })
        .await
        .unwrap_err()
        .to_string();
    assert!(taken.contains(&key) && taken.contains("123") && taken.contains("postgres.scope"), "{taken}");
    dcs.client().delete(KeyRange::key(key)).await.unwrap();
    one.begin("t-2").await;
    one.is_primary().await;
}

#[tokio::test]
async fn a_standby_is_cloned_and_takes_over() {
    let dcs = Dcs::new().await;
    let one = Member::first(&dcs).await;
    one.begin("t-1").await;
    one.is_primary().await;
    let two = one.beside(&dcs, "pg-2").await;
    let stamp = two.machine.stamp("t-1");
    two.does(PostgresOrder::Start { expects: DataSeen::Empty, join: Some(stamp.clone()) }).await;
    let status = two.until("it streams", |status| status.streaming).await;
    assert_eq!((status.role, two.facts().await.data), (Role::Replica, DataSeen::Stamped(stamp.clone())));
    assert_eq!(status.system_id, one.facts().await.system_id);
    assert_eq!(health(&two.machine).await, 200);
    let leading = one.until("the primary sees it", |status| status.standbys.contains_key("pg-2")).await;
    assert!(!leading.standbys["pg-2"].synchronous);

    let user = || String::from("o'hara \"x\"");
    let database = || String::from("shop");
    let verifier = Some(Secret::new(VERIFIER));
    one.does(PostgresOrder::Catalog { op: CatalogOp::SetUser { user: user() }, verifier }).await;
    for op in [
        CatalogOp::CreateDatabase { database: database(), owner: String::from("postgres") },
        CatalogOp::SetOwner { database: database(), owner: user() },
        CatalogOp::CreateExtension { database: database(), extension: String::from("pg_trgm") },
    ] {
        one.does(PostgresOrder::Catalog { op, verifier: None }).await;
    }
    let catalog = one.catalog().await;
    let fingerprint = password_fingerprint("c0ffee", &Secret::new(VERIFIER));
    assert_eq!(catalog.users[&user()], Some(fingerprint));
    assert_eq!(catalog.databases["shop"], user());
    assert!(catalog.extensions["shop"].contains("pg_trgm"));
    let no_such = CatalogOp::CreateExtension { database: database(), extension: String::from("no such") };
    let refused = one.obeys(PostgresOrder::Catalog { op: no_such, verifier: None }).await.unwrap_err().to_string();
    assert!(refused.contains("no such"), "{refused}");
    let log = fs::read_to_string(one.machine.root().join("var/log/patroni.log")).unwrap();
    assert!(log.contains("statement: "), "statements are logged");
    assert!(!log.contains("SCRAM-SHA-256$"), "what a password is checked with is in the log");

    let refused = one.obeys(PostgresOrder::StopReplica).await.unwrap_err().to_string();
    assert!(refused.contains("a replica") && refused.contains("the primary"), "{refused}");
    one.does(PostgresOrder::Switchover { to: "pg-2".into(), drain_ms: 1000 }).await;
    two.is_primary().await;
    one.until("the former primary follows", |status| status.role == Role::Replica && status.streaming).await;

    // Data that was lost is not cloned by itself, but by an order.
    let mut one = one;
    one.machine.stop_agent();
    for process in one.processes() {
        process.end(Duration::ZERO);
    }
    fs::remove_dir_all(one.machine.root().join("var/lib/postgresql/data")).unwrap();
    one.machine.start_agent().await;
    let found = one.facts().await;
    assert_eq!((found.data, found.service), (DataSeen::Empty, ServiceState::Stopped));
    assert_eq!(one.processes(), []);
    let join = Some(one.machine.stamp("t-1"));
    one.does(PostgresOrder::Start { expects: DataSeen::Empty, join }).await;
    one.until("it streams again", |status| status.streaming).await;
}

fn is_patroni(member: &Member, process: Process) -> bool {
    process.is_called_with_last(&member.machine.root().join("etc/patroni/patroni.yml"))
}

/// The status of the health page.
async fn health(machine: &Machine) -> u16 {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect((machine.address, HEALTH_PORT)).await.unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer[9..12].parse().unwrap()
}
