//! What clients see of a restore: one with a cached revision and a watch is told that what it waits for is compacted, and starts over, instead
//! of silently missing what happened; and no client ever sees a revision below one that it saw before.
//!
//! The first test keeps a cache as controllers of Kubernetes do, by listing and watching. The second leaves the watch to a client that we
//! have not written: etcd's own library for Go, of several versions, as it is linked into etcdctl. It keeps the revision to itself, and
//! comes back by itself when the members do.

use std::collections::BTreeMap;
use std::fs::File;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use quorate_etcd::{Client, Error, Event, KeyRange, RangeQuery};

use crate::common::backups::{BackedUp, NAME, VERSION, contents, runtime};
use crate::common::{OLDEST, Run, eventually, lab, newest};

type Keys = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a client has come to know.
#[derive(Clone, Default)]
struct Known {
    keys: Keys,
    revision: i64,
    /// How often it had to start over.
    compacted: u32,
    /// The revision that etcd forgot everything before, as it was told then.
    oldest: i64,
    /// Revisions that were lower than one before, each with that.
    back_in_time: Vec<(i64, i64)>,
}

impl Known {
    fn see(&mut self, revision: i64) {
        if revision < self.revision {
            self.back_in_time.push((self.revision, revision));
        }
        self.revision = revision;
    }
}

/// Threads that end with the test.
struct Beside {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Beside {
    fn new() -> Self {
        Beside { stop: Arc::default(), threads: Vec::new() }
    }

    /// Runs `work` again and again next to the test; what it knows can be looked at meanwhile.
    fn run<F>(&mut self, clients: impl FnOnce() -> Vec<Client>, work: F) -> Arc<Mutex<Known>>
    where
        F: AsyncFn(&Client, &Mutex<Known>) + Send + 'static,
    {
        let (runtime, known, stop) = (runtime(), Arc::<Mutex<Known>>::default(), self.stop.clone());
        let clients = runtime.block_on(async { clients() });
        let told = known.clone();
        let until_stopped = async move |work: F| {
            for client in clients.iter().cycle().take_while(|_| !stop.load(Ordering::SeqCst)) {
                // A watch that nothing happens to must not keep the test from its end.
                let _ = tokio::time::timeout(Duration::from_secs(3), work(client, &told)).await;
            }
        };
        self.threads.push(std::thread::spawn(move || runtime.block_on(until_stopped(work))));
        known
    }

    fn stop(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
    }
}

/// Lists, unless something is known, and then watches from there until the watch ends.
async fn cache(client: &Client, known: &Mutex<Known>) {
    let since = known.lock().expect("a lock").revision;
    if since == 0 {
        let Ok((revision, pairs)) = contents(client, 0).await else { return pause().await };
        let mut known = known.lock().expect("a lock");
        known.keys = pairs.into_iter().map(|pair| (pair.key, pair.value)).collect();
        known.revision = revision;
        return;
    }
    match follow(client, known, since).await {
        Error::Compacted { oldest } => {
            let (revision, pairs) = loop {
                match contents(client, 0).await {
                    Ok(listed) => break listed,
                    Err(_) => pause().await,
                }
            };
            let mut known = known.lock().expect("a lock");
            known.compacted += 1;
            known.oldest = oldest.unwrap_or(0);
            known.see(revision);
            known.keys = pairs.into_iter().map(|pair| (pair.key, pair.value)).collect();
        }
        _ => pause().await,
    }
}

async fn follow(client: &Client, known: &Mutex<Known>, since: i64) -> Error {
    let mut watch = match client.watch(KeyRange::prefix(""), since + 1, false).await {
        Ok(watch) => watch,
        Err(error) => return error,
    };
    loop {
        match watch.next().await {
            Ok(update) => {
                let mut known = known.lock().expect("a lock");
                known.see(update.revision);
                for event in update.events {
                    match event {
                        Event::Put(pair) => known.keys.insert(pair.key, pair.value),
                        Event::Delete { key, .. } => known.keys.remove(&key),
                    };
                }
            }
            Err(error) => return error,
        }
    }
}

/// Reads, now from one member, now from another.
async fn read(client: &Client, known: &Mutex<Known>) {
    let query = RangeQuery { count_only: true, ..RangeQuery::new(KeyRange::prefix("")) };
    if let Ok(found) = client.range(query).await {
        known.lock().expect("a lock").see(found.revision);
    }
    pause().await;
}

async fn pause() {
    tokio::time::sleep(Duration::from_millis(20)).await;
}

#[test]
fn a_client_with_a_cache_lists_again_and_never_sees_an_older_revision() {
    let cluster = BackedUp::up(3, "");
    let runtime = runtime();
    let client = runtime.block_on(async { cluster.client() });
    let put = |key: &str| runtime.block_on(client.put(key, "x")).expect("etcd takes it");
    for n in 0..20 {
        put(&format!("before/{n}"));
    }
    cluster.backup("create", &[]).ok();
    let mut beside = Beside::new();
    let cached = beside.run(|| cluster.clients(), cache);
    let reader = beside.run(|| cluster.clients(), read);
    let last = (0..20).fold(0, |_, n| put(&format!("after/{n}")));
    let known = |of: &Arc<Mutex<Known>>| of.lock().expect("a lock").clone();
    eventually("the cache has all", 20, || known(&cached).revision >= last);
    assert!(known(&cached).keys.contains_key(&b"after/7"[..]));
    assert_eq!(known(&cached).compacted, 0);

    cluster.restore(&[]).ok();
    eventually("the client is told to start over", 30, || known(&cached).compacted > 0);
    let restored = known(&cached);
    assert!(restored.oldest > last, "all up to {last} is compacted, not {}", restored.oldest);
    assert!(restored.keys.contains_key(&b"before/7"[..]) && !restored.keys.contains_key(&b"after/7"[..]));

    // It follows the cluster again, and once was enough.
    let mut written = None;
    eventually("etcd takes something new", 20, || {
        written = runtime.block_on(client.put("again", "y")).ok();
        written.is_some()
    });
    eventually("the cache has what is new", 20, || known(&cached).keys.contains_key(&b"again"[..]));
    let (cached, reader) = (known(&cached), known(&reader));
    beside.stop();
    assert_eq!(cached.compacted, 1);
    assert!(written > Some(last + 900_000_000), "{written:?} after {last}");
    assert_eq!((cached.back_in_time, reader.back_in_time), (Vec::new(), Vec::new()));
    assert!(reader.revision > last + 900_000_000, "the reader saw the restored cluster, not only {}", reader.revision);
    let (_, pairs) = runtime.block_on(contents(&client, 0)).expect("etcd answers");
    assert_eq!(cached.keys, pairs.into_iter().map(|pair| (pair.key, pair.value)).collect::<Keys>());
}

/// What etcd says to a watch that begins before what it still knows.
const COMPACTED: &str = "required revision has been compacted";
/// How the library says, in its older and newer versions, that a member ended while it was asked for a watch; and how a member that ends
/// after its peers says that it has no leader, without which etcdctl wants no watch.
const CUT_OFF: [&str; 3] = ["missing content-type field", "missing HTTP content-type", "etcdserver: no leader"];

/// `etcdctl watch` of some version, with what it says in a file.
struct StockWatch<'a> {
    cluster: &'a BackedUp,
    version: String,
    log: String,
    child: Child,
}

impl<'a> StockWatch<'a> {
    fn start(cluster: &'a BackedUp, version: &str, from: &[&str]) -> Self {
        let log = format!("watch-{version}-{}.log", from.join(""));
        let file = File::create(cluster.sandbox.path().join(&log)).expect("a log");
        let mut command = Command::new(lab(version).join("etcdctl"));
        command.env_clear().envs(cluster.sandbox.environment(NAME)).args(["watch", "", "--prefix"]).args(from);
        // So that the sandbox ends it, however the test ends.
        command.env("QUORATE_HOME", cluster.sandbox.home());
        command.stdout(file.try_clone().expect("a log")).stderr(file);
        let child = command.spawn().expect("etcdctl runs");
        StockWatch { cluster, version: version.to_owned(), log, child }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.cluster.sandbox.path().join(&self.log)).expect("a log")
    }

    #[track_caller]
    fn until_said(&self, words: &str) {
        let mut said = String::new();
        let what = format!("etcdctl {} watches, and says {words}", self.version);
        eventually(&what, 20, || {
            said = self.said();
            said.contains(words)
        });
    }

    /// How it ends when it can no longer continue.
    #[track_caller]
    fn end(&mut self) -> Run {
        let mut ended = None;
        eventually(&format!("the watch of etcdctl {} ends", self.version), 60, || {
            ended = self.child.try_wait().expect("it was started here");
            ended.is_some()
        });
        Run { code: ended.and_then(|status| status.code()), stdout: String::new(), stderr: self.said() }
    }
}

impl Drop for StockWatch<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn watches_of_etcds_own_library_get_a_compaction_error() {
    let cluster = BackedUp::up(3, "");
    let etcdctl = |version: &str, arguments: &[&str]| cluster.sandbox.etcdctl(version, NAME, arguments).ok();
    let revision = |version: &str| {
        let answer = etcdctl(version, &["get", "nothing", "--write-out=json"]).json();
        answer["header"]["revision"].as_i64().expect("a revision")
    };
    etcdctl(VERSION, &["put", "before", "x"]);
    cluster.backup("create", &[]).ok();
    let known = revision(VERSION);
    let from = format!("--rev={}", known + 1);
    let versions = [OLDEST, VERSION, &newest()];
    // Some with a revision that they cache, and some that only want what comes.
    let mut watches: Vec<StockWatch> = versions
        .iter()
        .flat_map(|version| [&[from.as_str()][..], &[]].map(|from| StockWatch::start(&cluster, version, from)))
        .collect();
    for watch in &watches {
        eventually("the watch is there", 20, || {
            etcdctl(VERSION, &["put", "after", &watch.log]);
            watch.said().contains(&watch.log)
        });
    }
    let last = revision(VERSION);

    cluster.restore(&[]).ok();
    for watch in &mut watches {
        let mut ended = watch.end().fails().stderr;
        // The library gives up a watch that it wants to bring back just when that member stops listening, or that lost its leader.
        // Told so, its user begins another at the revision that is known.
        if CUT_OFF.iter().any(|words| ended.contains(words)) {
            eprintln!("etcdctl {} had to be started again", watch.version);
            let mut again = StockWatch::start(&cluster, &watch.version, &[&format!("--rev={}", last + 1)]);
            ended = again.end().fails().stderr;
        }
        assert!(ended.contains(COMPACTED), "etcdctl {}: {ended}", watch.version);
    }
    for version in versions {
        let listed = revision(version);
        assert!(listed > last, "etcdctl {version} sees revision {listed} after {last}");
        assert_eq!(etcdctl(version, &["get", "after"]).stdout, "", "it is not in the backup");
        let again = StockWatch::start(&cluster, version, &[&format!("--rev={}", listed + 1)]);
        etcdctl(version, &["put", "again", version]);
        again.until_said("again");
    }
}
