//! Shared by tests of backups: a cluster with backups in a directory, encrypted to an operator's key, a client of it, and repeatable random
//! choices.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use age::secrecy::ExposeSecret;
use age::x25519::Identity;
use quorate_etcd::{Client, ConnectOptions, KeyRange, KeyValue, RangeQuery};
use serde_json::Value;

use super::{Run, Sandbox, eventually, signal, spec};

pub const VERSION: &str = "3.5.30";
/// As [`spec`] names it.
pub const NAME: &str = "c";
const KEY: &str = "operator.key";

/// A cluster with backups.
pub struct BackedUp {
    pub sandbox: Sandbox,
    members: usize,
    settings: String,
    /// The public half of the operator's key.
    operator: String,
}

impl BackedUp {
    /// One that is up. `settings` are further lines of its `backup` section.
    pub fn up(members: usize, settings: &str) -> Self {
        let sandbox = Sandbox::new(VERSION);
        let operator = make_key(&sandbox, KEY);
        let backed_up = BackedUp { sandbox, members, settings: settings.to_owned(), operator };
        backed_up.write_spec(&[]);
        backed_up.apply().ok();
        backed_up
    }

    /// Another key, that of a colleague; returns its public half.
    pub fn make_key(&self, file: &str) -> String {
        make_key(&self.sandbox, file)
    }

    /// Lets the operator, and these, read backups from the next `apply` on.
    pub fn write_spec(&self, others: &[&str]) {
        let recipients = [&[self.operator.as_str()], others].concat().join(", ");
        let lines = self.settings.trim().lines().map(|line| format!("  {line}\n")).collect::<String>();
        let backup = format!("backup:\n  to: {{directory: store}}\n  recipients: [{recipients}]\n{lines}");
        self.sandbox.file("c.yaml", &spec(self.members, VERSION, "", &backup));
    }

    pub fn apply(&self) -> Run {
        self.sandbox.quorate(&["apply", "--yes", "c.yaml"])
    }

    pub fn backup(&self, verb: &str, arguments: &[&str]) -> Run {
        self.sandbox.quorate(&[&["backup", verb, NAME], arguments].concat())
    }

    /// With the operator's key and word.
    pub fn restore_arguments<'a>(&self, wanted: &[&'a str]) -> Vec<&'a str> {
        [&["restore", "c.yaml", "--yes", "--identity", KEY], wanted].concat()
    }

    pub fn restore(&self, wanted: &[&str]) -> Run {
        self.sandbox.quorate(&self.restore_arguments(wanted))
    }

    /// What `backup list` has, oldest first: full backups, and the changes on top of each.
    #[track_caller]
    pub fn list(&self) -> Vec<Value> {
        let listed = self.backup("list", &["--output", "json"]).ok().json();
        assert_eq!(listed["damage"], Value::Array(Vec::new()), "{listed:#}");
        let backups = listed["backups"].as_array().unwrap_or_else(|| panic!("{listed:#}")).clone();
        assert!(backups.iter().all(|one| one["damage"] == Value::Array(Vec::new())), "{listed:#}");
        backups
    }

    #[track_caller]
    pub fn fulls(&self) -> Vec<Value> {
        self.list().into_iter().filter(|one| one["kind"] == "full").collect()
    }

    #[track_caller]
    pub fn verify(&self, id: &str) {
        self.backup("verify", &[id, "--identity", KEY]).ok();
    }

    /// The public half of the operator's key.
    pub fn recipient(&self) -> String {
        self.operator.clone()
    }

    /// The key that signs its backups, as the ledger has it.
    pub fn signer(&self) -> String {
        self.sandbox.ledger(NAME)["backup_signing"]["public"].as_str().expect("a key").to_owned()
    }

    /// Where the backups lie.
    pub fn store(&self) -> PathBuf {
        self.sandbox.path().join("store").join(NAME)
    }

    /// Starts `backup watch`; what it says is added to a file.
    pub fn watch(&self) -> Watcher {
        let log = OpenOptions::new().create(true).append(true).open(self.watch_log()).expect("a log");
        let mut command = self.sandbox.command(&["backup", "watch", NAME]);
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        Watcher(command.spawn().expect("quorate starts"))
    }

    pub fn watched(&self) -> String {
        fs::read_to_string(self.watch_log()).unwrap_or_default()
    }

    fn watch_log(&self) -> PathBuf {
        self.sandbox.path().join("watch.log")
    }

    /// A client of every member, as the operator. Must be called within a tokio runtime.
    pub fn clients(&self) -> Vec<Client> {
        let environment = self.sandbox.environment(NAME);
        let read = |name: &str| fs::read_to_string(&environment[name]).expect(name);
        let connect = |endpoint: &str| {
            let mut options = ConnectOptions::new(endpoint, read("ETCDCTL_CACERT"));
            options.identity = Some((read("ETCDCTL_CERT"), read("ETCDCTL_KEY")));
            options.request_timeout = Duration::from_secs(10);
            Client::connect(options).expect("a client")
        };
        environment["ETCDCTL_ENDPOINTS"].split(',').map(connect).collect()
    }

    pub fn client(&self) -> Client {
        self.clients().swap_remove(0)
    }
}

/// A new age identity in a file of the sandbox; its public half.
pub fn make_key(sandbox: &Sandbox, file: &str) -> String {
    let identity = Identity::generate();
    let path = sandbox.file(file, identity.to_string().expose_secret());
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("its mode");
    identity.to_public().to_string()
}

/// A running `backup watch`.
pub struct Watcher(Child);

impl Watcher {
    /// Asks it to end, and waits for that.
    #[track_caller]
    pub fn stop(mut self) {
        signal(self.0.id(), "TERM");
        let mut ended = None;
        eventually("the recorder ends when it is asked to", 30, || {
            ended = self.0.try_wait().expect("it was started here");
            ended.is_some()
        });
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    }

    pub fn kill(mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it was started here");
    }
}

/// A runtime for a client in a test that waits for processes otherwise.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Every key at a revision, or the newest with zero; with the newest revision.
pub async fn contents(client: &Client, revision: i64) -> Result<(i64, Vec<KeyValue>), quorate_etcd::Error> {
    let query = RangeQuery { revision, ..RangeQuery::new(KeyRange::prefix("")) };
    client.range(query).await.map(|found| (found.revision, found.pairs))
}

/// Chance that a seed repeats (splitmix64).
pub struct Chance(u64);

impl Chance {
    /// Prints its seed; `QUORATE_TEST_SEED` repeats one.
    pub fn new() -> Self {
        let given = std::env::var("QUORATE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let seed = given.unwrap_or(now.as_millis() as u64 % 1_000_000);
        eprintln!("QUORATE_TEST_SEED={seed}");
        Chance(seed)
    }

    /// One that continues by itself, for another thread.
    pub fn split(&mut self) -> Self {
        Chance(self.draw())
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.draw() % limit as u64) as usize
    }

    /// From zero to one.
    pub fn part(&mut self) -> f64 {
        self.draw() as f64 / u64::MAX as f64
    }
}
