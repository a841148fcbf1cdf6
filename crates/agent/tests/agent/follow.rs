//! fluent-bit's configuration, followed in a real etcd over TLS, by certificate and by password. Substitutes stand in for fluent-bit and
//! systemd: they record their calls, and refuse what fluent-bit would refuse.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_agent::api::{EtcdOrder, Order};
use quorate_agent::client::AgentClient;
use quorate_core::Secret;
use quorate_core::kinds::etcd::desire::ROOT_PASSWORD_FILE;
use quorate_core::kinds::etcd::{Access, AuthOp, Permission};
use quorate_core::model::{LogSourceConfig, NodeConfig, SourceLogin};
use quorate_etcd::{Client, ConnectOptions, KeyRange, Login};
use rustix::process::Signal;
use tokio::task::JoinHandle;

use crate::common::{Machine, config, file, order, turn_auth_on, until};

/// The machine that follows.
struct Follower {
    root: tempfile::TempDir,
    task: Option<JoinHandle<()>>,
}

impl Follower {
    fn new(source: &LogSourceConfig) -> Self {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        fs::create_dir_all(at("var/lib/quorate")).unwrap();
        fs::write(at("var/lib/quorate/log-source.json"), serde_json::to_vec(source).unwrap()).unwrap();
        let calls = at("calls").display().to_string();
        // It is asked about one file, and reads those next to it too.
        program(
            &at("usr/local/bin/fluent-bit"),
            "[ \"$1 $2\" = '--dry-run -c' ] && [ -f \"$3\" ] || exit 9\n\
             if grep -rq NONSENSE \"$(dirname \"$3\")\"; then echo 'section NONSENSE is not known' >&2; exit 1; fi\n\
             grep -q etc/fluent-bit-customization/dynamic-config/ \"$3\" && exit 8; exit 0",
        );
        program(&at("usr/bin/systemctl"), &format!("echo \"$*\" >> {calls}"));
        let mut follower = Follower { root, task: None };
        follower.start();
        follower
    }

    fn start(&mut self) {
        let root = self.root.path().to_owned();
        self.task = Some(tokio::spawn(async move { panic!("{:?}", quorate_agent::follow::follow(&root).await) }));
    }

    fn stop(&mut self) {
        self.task.take().unwrap().abort();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join("etc/fluent-bit-customization/dynamic-config").join(name)
    }

    fn content(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)).ok()
    }

    async fn has(&self, name: &str, content: Option<&str>) {
        until(&format!("{name} is {content:?}"), async || (self.content(name).as_deref() == content).then_some(()))
            .await;
    }

    fn starts(&self) -> usize {
        let calls = fs::read_to_string(self.root.path().join("calls")).unwrap_or_default();
        calls.lines().filter(|line| *line == "restart --no-block fluent-bit.service").count()
    }

    async fn started(&self, times: usize) {
        until(&format!("fluent-bit was started {times} times"), async || (self.starts() == times).then_some(())).await;
    }

    async fn says(&self, expected: &str) {
        let path = self.root.path().join("run/quorate/log-source-trouble");
        let said = async || fs::read_to_string(&path).ok().filter(|said| said.contains(expected));
        until(&format!("it says {expected:?}"), said).await;
    }

    async fn is_content(&self) {
        let path = self.root.path().join("run/quorate/log-source-trouble");
        until("nothing is said", async || (!path.exists()).then_some(())).await;
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.iter().for_each(JoinHandle::abort);
    }
}

fn program(path: &Path, script: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn source(machine: &Machine, login: SourceLogin) -> LogSourceConfig {
    LogSourceConfig {
        prefix: String::from("/logs/"),
        // Nobody is at the first.
        endpoints: vec![format!("{}:1", machine.address), format!("{}:2379", machine.address)],
        ca: machine.etcd.certificate_pem().to_owned(),
        login,
    }
}

async fn auth(client: &AgentClient, op: AuthOp, password: Option<&str>) {
    order(client, 1, Order::Etcd(EtcdOrder::Auth { op, password: password.map(Secret::new) })).await.unwrap();
}

/// A user who may read below the prefix, and nothing else.
async fn add_reader(client: &AgentClient, password: Option<&str>) {
    let reader = || String::from("reader");
    auth(client, AuthOp::AddUser { user: reader() }, password).await;
    auth(client, AuthOp::AddRole { role: reader() }, None).await;
    let permission = Permission::on_prefix("/logs/", Access::Read);
    auth(client, AuthOp::GrantPermission { role: reader(), permission }, None).await;
    auth(client, AuthOp::GrantRole { user: reader(), role: reader() }, None).await;
}

fn by_password() -> NodeConfig {
    let mut config = config();
    config.etcd_mut().unwrap().flags.remove("trusted-ca-file");
    config.etcd_mut().unwrap().flags.insert(String::from("client-cert-auth"), String::from("false"));
    config.files.push(file(ROOT_PASSWORD_FILE, "root's"));
    config
}

fn root_by_password(machine: &Machine) -> Client {
    let mut options = ConnectOptions::new(format!("https://{}:2379", machine.address), machine.etcd.certificate_pem());
    options.login = Some(Login { user: String::from("root"), password: String::from("root's") });
    Client::connect(options).unwrap()
}

#[tokio::test]
async fn keys_become_files_as_they_change_and_nothing_bad_is_taken() {
    let (machine, client) = Machine::ready().await;
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;
    turn_auth_on(&client, None).await;
    add_reader(&client, None).await;
    let root = machine.root_client();
    let (chain, key) = machine.leaf(&machine.etcd, "reader", false, true);
    let mut follower = Follower::new(&source(&machine, SourceLogin::Certificate { chain, key }));

    follower.says("there is no key /logs/index.conf").await;
    assert_eq!(follower.starts(), 0, "fluent-bit has nothing to read yet");
    root.put("/logs/in/etcd.conf", "[INPUT]\n").await.unwrap();
    let index = "@INCLUDE /etc/fluent-bit-customization/dynamic-config/in/etcd.conf\n";
    root.put("/logs/index.conf", index).await.unwrap();
    follower.has("index.conf", Some(index)).await;
    follower.has("in/etcd.conf", Some("[INPUT]\n")).await;
    follower.started(1).await;
    follower.is_content().await;
    let mode = |name: &str| fs::metadata(follower.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(""), mode("index.conf")), (0o700, 0o600), "there may be secrets in it");

    root.put("/logs/in/etcd.conf", "[INPUT]\n    Name tail\n").await.unwrap();
    follower.has("in/etcd.conf", Some("[INPUT]\n    Name tail\n")).await;
    follower.started(2).await;
    root.put("/logs/more.conf", "#\n").await.unwrap();
    follower.has("more.conf", Some("#\n")).await;
    root.delete(KeyRange::key("/logs/more.conf")).await.unwrap();
    follower.has("more.conf", None).await;
    follower.started(4).await;

    for (key, value, expected) in [
        ("/logs/bad.conf", "[INPUT]\n    Name tail\n    Tag NONSENSE\n", "section NONSENSE is not known"),
        ("/logs/bad.conf", "[INPUT]\n    Name exec\n", "exec"),
        ("/logs/bad.conf", "[INPUT]\n    [PARSER] x\n    Name exec\n", "bad.conf: line 2: a section must begin"),
        ("/logs/../../../passwd", "x", "cannot be a file"),
        ("/logs//etc/passwd", "x", "cannot be a file"),
    ] {
        root.put(key, value).await.unwrap();
        follower.says(expected).await;
        assert_eq!(follower.content("index.conf").as_deref(), Some(index), "the last good one stays");
        root.delete(KeyRange::key(key)).await.unwrap();
        follower.is_content().await;
    }
    assert_eq!(follower.content("bad.conf"), None);
    assert!(!follower.root.path().join("etc/passwd").exists());
    let beside = fs::read_dir(follower.root.path().join("etc/fluent-bit-customization")).unwrap().count();
    assert_eq!(beside, 2, "the link and the set in use");

    follower.stop();
    follower.start();
    root.put("/elsewhere", "x").await.unwrap();
    root.put("/logs/in/etcd.conf", "[INPUT]\n    Name tail\n").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(follower.starts(), 4, "nothing has changed");
}

#[tokio::test]
async fn a_source_that_is_away_or_refuses_leaves_the_last_configuration_in_place() {
    let (machine, client) = Machine::ready_with(&by_password()).await;
    machine.start_etcd(&client, "t-1").await.unwrap();
    machine.healthy(&client).await;
    turn_auth_on(&client, Some("root's")).await;
    add_reader(&client, Some("wrong")).await;
    let root = root_by_password(&machine);
    root.put("/logs/index.conf", "# one\n").await.unwrap();
    let login = SourceLogin::Password { user: String::from("reader"), password: Secret::new("right") };
    let follower = Follower::new(&source(&machine, login));

    follower.says("does not know the user reader: wrong user or password").await;
    auth(&client, AuthOp::SetPassword { user: String::from("reader") }, Some("right")).await;
    follower.has("index.conf", Some("# one\n")).await;
    follower.is_content().await;

    machine.signal_etcd(Signal::KILL);
    machine.healthy(&client).await;
    root.put("/logs/index.conf", "# two\n").await.unwrap();
    follower.has("index.conf", Some("# two\n")).await;

    order(&client, 1, Order::Etcd(EtcdOrder::Stop)).await.unwrap();
    follower.says("cannot reach etcd").await;
    assert_eq!(follower.content("index.conf").as_deref(), Some("# two\n"));
    let expects = crate::common::facts(&client).await.etcd.data;
    order(&client, 1, Order::Etcd(EtcdOrder::Start { expects, bootstrap: None, peers: BTreeSet::new() }))
        .await
        .unwrap();
    machine.healthy(&client).await;
    follower.is_content().await;

    auth(&client, AuthOp::RevokeRole { user: String::from("reader"), role: String::from("reader") }, None).await;
    machine.signal_etcd(Signal::KILL);
    follower.says("does not let the user reader read below /logs/").await;
    assert_eq!(follower.content("index.conf").as_deref(), Some("# two\n"));
    let told = fs::read_to_string(follower.root.path().join("run/quorate/log-source-trouble")).unwrap();
    assert!(!told.contains("right"), "no secret is said: {told}");
}
