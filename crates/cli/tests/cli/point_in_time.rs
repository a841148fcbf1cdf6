//! Point in time, at the command line: while a writer writes, `backup watch` records, is stopped, killed, overtaken by compactions, and takes
//! full backups by schedule; then the cluster is restored to random revisions and random moments, and every key is compared with what
//! etcd itself had answered at that revision when it was the newest.
//!
//! What comes back, and is compared, is the whole key: its value, the id of its lease, its version, and the revisions at which it was created
//! and last put. What does not come back is the history before that revision, which is compacted, and the count of revisions, which continues
//! far beyond the highest ever seen. How long leases still live is not compared: their time starts again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quorate_etcd::{Client, KeyRange, KeyValue, Op, RangeQuery, Txn};
use serde_json::Value;

use crate::common::backups::{BackedUp, Chance, Watcher, contents, runtime};
use crate::common::eventually;
use crate::common::instants::rounds;

/// How long a change may be under way to the recorder, on a busy machine.
const DELAY: SignedDuration = SignedDuration::from_secs(3);
/// What a recorder that is killed has received, but not stored, is younger than this; it comes again later.
const UNSTORED: SignedDuration = SignedDuration::from_secs(8);
const RESTORES: usize = 10;

/// What etcd held at a revision.
struct At {
    /// It was written between these.
    after: Timestamp,
    before: Timestamp,
    pairs: Vec<KeyValue>,
}

/// Puts, overwrites and deletes numbered keys, one by one, by ranges, by transactions and by leases, and notes what etcd held after each.
struct Writer {
    orders: Arc<Orders>,
    thread: JoinHandle<BTreeMap<i64, At>>,
}

#[derive(Default)]
struct Orders {
    stop: AtomicBool,
    /// Set to ask for a compaction of all up to the newest revision, cleared when it was done.
    compact: AtomicBool,
    /// The newest revision that was noted.
    written: AtomicI64,
}

impl Writer {
    fn spawn(cluster: &BackedUp, chance: Chance) -> Self {
        let orders = Arc::new(Orders::default());
        let told = orders.clone();
        let runtime = runtime();
        let client = runtime.block_on(async { cluster.client() });
        let thread = std::thread::spawn(move || runtime.block_on(write(client, chance, &told)));
        Writer { orders, thread }
    }

    fn written(&self) -> i64 {
        self.orders.written.load(Ordering::SeqCst)
    }

    /// Forgets all before the newest revision; returns that.
    fn compact(&self) -> i64 {
        self.orders.compact.store(true, Ordering::SeqCst);
        eventually("the writer compacts", 20, || !self.orders.compact.load(Ordering::SeqCst));
        self.written()
    }

    fn stop(self) -> BTreeMap<i64, At> {
        self.orders.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("the writer writes")
    }
}

async fn write(client: Client, mut chance: Chance, orders: &Orders) -> BTreeMap<i64, At> {
    let mut lease = client.lease_grant(Duration::from_secs(600)).await.expect("a lease").id;
    let (mut noted, mut after) = (BTreeMap::new(), Timestamp::now());
    let mut last = newest(&client).await;
    for n in 0.. {
        change(&client, &mut chance, n, &mut lease).await.expect("etcd takes it");
        let newest = newest(&client).await;
        let before = Timestamp::now();
        // A lease that ran out makes another revision.
        for revision in last + 1..=newest {
            let (_, pairs) = contents(&client, revision).await.expect("it is not compacted yet");
            noted.insert(revision, At { after, before, pairs });
        }
        (last, after) = (newest, before);
        orders.written.store(last, Ordering::SeqCst);
        if orders.compact.load(Ordering::SeqCst) {
            client.compact(last, false).await.expect("etcd forgets");
            orders.compact.store(false, Ordering::SeqCst);
        }
        if orders.stop.load(Ordering::SeqCst) {
            break;
        }
        let pause = if chance.below(12) == 0 { 600 } else { 10 + chance.below(80) as u64 };
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    noted
}

async fn newest(client: &Client) -> i64 {
    let count = RangeQuery { count_only: true, ..RangeQuery::new(KeyRange::prefix("")) };
    client.range(count).await.expect("etcd answers").revision
}

/// Some change, or none where a key that is to go is not there.
async fn change(client: &Client, chance: &mut Chance, n: u32, lease: &mut i64) -> Result<(), quorate_etcd::Error> {
    let number = chance.below(40);
    let key = |number: usize| format!("numbered/{number:03}");
    let put = |number: usize| Op::Put { key: key(number).into(), value: format!("of many {n}").into(), lease: 0 };
    match chance.below(12) {
        0 => client.delete(KeyRange::key(key(number))).await.map(drop),
        1 => {
            let range = KeyRange { key: key(number).into(), range_end: key(number + 6).into() };
            client.delete(range).await.map(drop)
        }
        2 => {
            let then = vec![put(number), put(number + 1), Op::Delete(KeyRange::key(key(number + 2)))];
            client.txn(Txn { then, ..Txn::default() }).await.map(drop)
        }
        3 | 4 => client.put_with_lease(key(number), format!("leased {n}"), *lease).await.map(drop),
        5 if n.is_multiple_of(4) => {
            client.lease_revoke(*lease).await?;
            *lease = client.lease_grant(Duration::from_secs(600)).await?.id;
            Ok(())
        }
        6 if n.is_multiple_of(4) => {
            // Nobody renews it, so it runs out while others are written.
            let brief = client.lease_grant(Duration::from_secs(15)).await?;
            client.put_with_lease(format!("brief/{number:03}"), format!("brief {n}"), brief.id).await.map(drop)
        }
        _ => client.put(key(number), format!("value {n}")).await.map(drop),
    }
}

/// The recorder, and when it was known to receive what is written as it is written.
struct Recorder<'a> {
    cluster: &'a BackedUp,
    writer: &'a Writer,
    on: Vec<(Timestamp, Timestamp)>,
}

impl Recorder<'_> {
    /// Starts it and waits until it has caught up.
    fn start(&self) -> (Watcher, Timestamp) {
        let watcher = self.cluster.watch();
        let written = self.writer.written();
        eventually("what is written is recorded", 60, || self.up_to() > written);
        (watcher, Timestamp::now())
    }

    fn stop(&mut self, (watcher, since): (Watcher, Timestamp)) {
        self.on.push((since, Timestamp::now()));
        watcher.stop();
    }

    fn kill(&mut self, (watcher, since): (Watcher, Timestamp)) {
        self.on.push((since, Timestamp::now() - UNSTORED));
        watcher.kill();
    }

    /// The newest revision that a restore can reach.
    fn up_to(&self) -> i64 {
        self.cluster.list().iter().map(|one| number(one, "last_revision")).max().unwrap_or(0)
    }
}

fn number(listed: &Value, field: &str) -> i64 {
    listed[field].as_i64().unwrap_or_else(|| panic!("{field} in {listed:#}"))
}

/// What was written, and how much of it was recorded.
struct Written {
    noted: BTreeMap<i64, At>,
    /// All of these can be restored.
    recorded: Vec<RangeInclusive<i64>>,
    /// None of these can: they were compacted before anyone recorded them.
    lost: RangeInclusive<i64>,
    /// When the recorder was on, and when any of it was.
    on: Vec<(Timestamp, Timestamp)>,
    begun: Timestamp,
    ended: Timestamp,
}

fn seconds(seconds: u64) {
    std::thread::sleep(Duration::from_secs(seconds));
}

/// Everything that may happen to a recorder.
fn write_and_record(cluster: &BackedUp, chance: Chance) -> Written {
    let writer = Writer::spawn(cluster, chance);
    let mut recorder = Recorder { cluster, writer: &writer, on: Vec::new() };
    let running = recorder.start();
    let begun = Timestamp::now();
    let first = number(&cluster.fulls()[0], "last_revision");

    // Compactions that hunt a recorder that is awake take nothing from it.
    for _ in 0..10 {
        seconds(1);
        writer.compact();
    }
    recorder.stop(running);
    seconds(2);
    let running = recorder.start();
    seconds(12);
    recorder.kill(running);
    let running = recorder.start();
    assert_eq!(cluster.fulls().len(), 1, "another was not needed: {}", cluster.watched());
    eventually("a full backup is taken by schedule", 90, || cluster.fulls().len() == 2);
    seconds(10);

    // What is compacted while nobody records is lost, and a full backup leads on.
    recorder.kill(running);
    let (killed, killed_at) = (writer.written(), Timestamp::now());
    seconds(3);
    writer.compact();
    let running = recorder.start();
    seconds(10);
    recorder.stop(running);
    let fulls = cluster.fulls();
    assert_eq!(fulls.len(), 3, "{}", cluster.watched());
    // Its revision is known exactly when it is verified.
    assert!(fulls[2]["verified_at"].is_string(), "{}", cluster.watched());
    let resumed = number(&fulls[2], "last_revision");
    let (ended, up_to, on) = (Timestamp::now(), recorder.up_to(), recorder.on);
    let noted = writer.stop();
    let stored = noted.iter().filter(|(_, at)| at.before < killed_at - UNSTORED).map(|(revision, _)| *revision).max();
    let recorded = vec![first..=stored.expect("long before"), resumed..=up_to];
    // One may have been under way when the recorder was killed.
    Written { noted, recorded, lost: killed + 2..=resumed - 1, on, begun, ended }
}

impl Written {
    fn random_revision(&self, chance: &mut Chance) -> i64 {
        let recorded: Vec<i64> = self.recorded.iter().cloned().flatten().collect();
        recorded[chance.below(recorded.len())]
    }

    fn random_moment(&self, chance: &mut Chance) -> Timestamp {
        let whole = self.ended.duration_since(self.begun);
        self.begun + SignedDuration::from_secs_f64(whole.as_secs_f64() * chance.part())
    }

    /// Why this is not what was there at a moment.
    fn objection(&self, moment: Timestamp, found: &[KeyValue]) -> Option<String> {
        let same: Vec<i64> = self.noted.iter().filter(|(_, at)| at.pairs == found).map(|(r, _)| *r).collect();
        let fits = |revision: &i64| {
            let next = self.noted.get(&(revision + 1));
            // What comes to a recorder after a break was written before, never after.
            let behind = next.is_some_and(|next| next.before + DELAY < moment);
            let on = self.on.iter().any(|(from, to)| *from <= moment && moment <= *to);
            self.noted[revision].after <= moment && !(on && behind)
        };
        if same.is_empty() {
            return Some(String::from("it is what no revision held"));
        }
        let told: Vec<_> = same.iter().map(|r| format!("{r} ({})", self.noted[r].before)).collect();
        (!same.iter().any(fits)).then(|| format!("it is revision {}", told.join(" or ")))
    }
}

/// What differs between two states, key by key.
fn differences(expected: &[KeyValue], found: &[KeyValue]) -> Vec<String> {
    let by_key = |pairs: &[KeyValue]| pairs.iter().map(|p| (p.key.clone(), p.clone())).collect::<BTreeMap<_, _>>();
    let (expected, found) = (by_key(expected), by_key(found));
    let keys: BTreeSet<&Vec<u8>> = expected.keys().chain(found.keys()).collect();
    let differing = keys.into_iter().filter(|key| expected.get(*key) != found.get(*key));
    differing
        .map(|key| format!("{}: {:?}, not {:?}", String::from_utf8_lossy(key), found.get(key), expected.get(key)))
        .collect()
}

/// A cluster that is restored again and again, and the newest revision that it showed.
struct Restored<'a> {
    cluster: &'a BackedUp,
    runtime: tokio::runtime::Runtime,
    client: Client,
    newest: i64,
}

impl<'a> Restored<'a> {
    fn new(cluster: &'a BackedUp) -> Self {
        let runtime = runtime();
        let client = runtime.block_on(async { cluster.client() });
        let (newest, _) = runtime.block_on(contents(&client, 0)).expect("etcd answers");
        Restored { cluster, runtime, client, newest }
    }

    /// They go by themselves, and each makes a revision.
    fn holds_brief_keys(&mut self) -> bool {
        let (newest, pairs) = self.runtime.block_on(contents(&self.client, 0)).expect("etcd answers");
        self.newest = newest;
        pairs.iter().any(|pair| pair.key.starts_with(b"brief/"))
    }

    /// Restores, and reads what is there then.
    #[track_caller]
    fn to(&mut self, wanted: &[&str]) -> Vec<KeyValue> {
        self.cluster.restore(wanted).ok();
        let mut found = None;
        eventually("etcd answers", 20, || {
            found = self.runtime.block_on(contents(&self.client, 0)).ok();
            found.is_some()
        });
        let (newest, pairs) = found.expect("it answered");
        assert!(newest > self.newest + 900_000_000, "from revision {} to {newest}", self.newest);
        self.newest = newest;
        pairs
    }
}

#[test]
fn random_revisions_and_random_moments_come_back_key_by_key() {
    let mut chance = Chance::new();
    let cluster = BackedUp::up(1, "schedule: 1m");
    let written = write_and_record(&cluster, chance.split());
    let mut restored = Restored::new(&cluster);
    eventually("no lease is about to run out", 30, || !restored.holds_brief_keys());
    let before = restored.newest;

    let Written { noted, recorded, lost, .. } = &written;
    eprintln!("revisions {:?} are recorded, {lost:?} are lost", recorded);
    assert!(lost.clone().count() > 5, "{lost:?}");
    for revision in [*lost.start(), *lost.end(), recorded[1].end() + 1] {
        let told = cluster.restore(&["--revision", &revision.to_string()]).expect(1).stderr;
        assert!(told.contains("was not recorded"), "{revision}: {told}");
    }
    let revision = written.random_revision(&mut chance).to_string();
    cluster.restore(&["--dry-run", "--revision", &revision]).ok();
    assert_eq!(Restored::new(&cluster).newest, before, "what is refused or tried out changes nothing");

    for _ in 0..rounds(RESTORES) {
        let revision = written.random_revision(&mut chance);
        let found = restored.to(&["--revision", &revision.to_string()]);
        assert_eq!(differences(&noted[&revision].pairs, &found), Vec::<String>::new(), "revision {revision}");
    }
    for _ in 0..rounds(RESTORES) {
        let moment = written.random_moment(&mut chance);
        let found = restored.to(&["--at", &moment.to_string()]);
        assert_eq!(written.objection(moment, &found), None, "{moment}");
    }
}
