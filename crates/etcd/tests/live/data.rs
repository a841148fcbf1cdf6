//! Keys, transactions, watches, leases, history and snapshots.

use std::time::Duration;

use quorate_etcd::{
    AlarmKind, Client, Condition, ConnectOptions, Error, Event, KeyRange, Op, OpResult, RangeQuery, Room, Thing, Txn,
};

use crate::lab::{Authority, Etcd, Setup, Version, on_every_version};

async fn open_etcd(version: &Version, setup: Setup) -> (Etcd, Client) {
    let etcd = Etcd::start(version, &Authority::new(), setup);
    let client = Client::connect(etcd.options()).expect("good options");
    etcd.ready(&client).await;
    (etcd, client)
}

fn keys(pairs: &[quorate_etcd::KeyValue]) -> Vec<&str> {
    pairs.iter().map(|pair| std::str::from_utf8(&pair.key).expect("a text")).collect()
}

#[test]
fn keys_are_put_read_and_deleted() {
    on_every_version(async |version| {
        let (_etcd, client) = open_etcd(version, Setup::password()).await;
        assert_eq!(client.get("a/1").await.expect("an answer"), None);
        let first = client.put("a/1", "old").await.expect("a write");
        for key in ["a/1", "a/2", "a/3", "b"] {
            client.put(key, "new").await.expect("a write");
        }
        let pair = client.get("a/1").await.expect("an answer").expect("the key");
        assert_eq!((pair.value.as_slice(), pair.create_revision, pair.version), (b"new".as_slice(), first, 2));

        let prefix = || RangeQuery::new(KeyRange::prefix("a/"));
        let all = client.range(prefix()).await.expect("a range");
        assert_eq!((keys(&all.pairs), all.count, all.more), (vec!["a/1", "a/2", "a/3"], 3, false));
        assert_eq!(all.revision, first + 4);
        let two = client.range(RangeQuery { limit: 2, keys_only: true, ..prefix() }).await.expect("a range");
        assert_eq!((keys(&two.pairs), two.count, two.more), (vec!["a/1", "a/2"], 3, true));
        assert!(two.pairs.iter().all(|pair| pair.value.is_empty()));
        let counted = client.range(RangeQuery { count_only: true, ..prefix() }).await.expect("a range");
        assert_eq!((counted.pairs.len(), counted.count), (0, 3));
        let past = client.range(RangeQuery { revision: first, serializable: true, ..prefix() }).await.expect("a range");
        assert_eq!(past.pairs[0].value, b"old");

        let deleted = client.delete(KeyRange::prefix("a/")).await.expect("a deletion");
        assert_eq!((deleted.count, deleted.revision), (3, first + 5));
        let rest = client.range(RangeQuery::new(KeyRange::prefix(""))).await.expect("a range");
        assert_eq!(keys(&rest.pairs), ["b"]);
    });
}

#[test]
fn a_range_may_be_larger_than_four_mebibytes() {
    on_every_version(async |version| {
        let (_etcd, client) = open_etcd(version, Setup::password()).await;
        for number in 0..5 {
            client.put(format!("big/{number}"), vec![number; 1 << 20]).await.expect("a write");
        }
        let all = client.range(RangeQuery::new(KeyRange::prefix("big/"))).await.expect("a large range");
        assert_eq!(all.pairs.iter().map(|pair| pair.value.len()).sum::<usize>(), 5 << 20);
    });
}

#[test]
fn a_transaction_takes_one_of_its_branches() {
    on_every_version(async |version| {
        let (_etcd, client) = open_etcd(version, Setup::password()).await;
        let create = || Txn {
            conditions: vec![Condition::absent("lock")],
            then: vec![Op::Put { key: b"lock".to_vec(), value: b"mine".to_vec(), lease: 0 }],
            otherwise: vec![Op::Range(RangeQuery::new(KeyRange::key("lock")))],
        };
        let first = client.txn(create()).await.expect("a transaction");
        assert!(first.succeeded && matches!(first.results[..], [OpResult::Put]));
        let second = client.txn(create()).await.expect("a transaction");
        let [OpResult::Range(range)] = &second.results[..] else { panic!("{second:?}") };
        assert!(!second.succeeded && range.pairs[0].mod_revision == first.revision);

        let remove = Txn {
            conditions: vec![Condition::unchanged_since("lock", first.revision)],
            then: vec![Op::Delete(KeyRange::key("lock"))],
            ..Txn::default()
        };
        let third = client.txn(remove).await.expect("a transaction");
        assert!(third.succeeded && matches!(&third.results[..], [OpResult::Delete(deleted)] if deleted.count == 1));
    });
}

#[test]
fn a_watch_reports_new_and_past_events() {
    on_every_version(async |version| {
        let (_etcd, client) = open_etcd(version, Setup::password()).await;
        let before = client.put("w/1", "before").await.expect("a write");
        let mut now = client.watch(KeyRange::prefix("w/"), 0, true).await.expect("a watch");
        client.put("elsewhere", "value").await.expect("a write");
        let written = client.put("w/1", "after").await.expect("a write");
        let deleted = client.delete(KeyRange::key("w/1")).await.expect("a deletion").revision;

        let update = now.next().await.expect("an update");
        let [Event::Put(pair)] = &update.events[..] else { panic!("{update:?}") };
        assert_eq!((pair.value.as_slice(), pair.mod_revision), (b"after".as_slice(), written));
        let update = now.next().await.expect("an update");
        assert_eq!(update.events, [Event::Delete { key: b"w/1".to_vec(), revision: deleted }]);

        let mut past = client.watch(KeyRange::prefix("w/"), before, false).await.expect("a watch");
        let mut events = Vec::new();
        while events.len() < 3 {
            events.extend(past.next().await.expect("an update").events);
        }
        assert!(matches!(&events[0], Event::Put(pair) if pair.value == b"before"));
    });
}

#[test]
fn compacted_revisions_cannot_be_read_or_watched() {
    on_every_version(async |version| {
        let (_etcd, client) = open_etcd(version, Setup::password()).await;
        let first = client.put("key", "1").await.expect("a write");
        let second = client.put("key", "2").await.expect("a write");
        let last = client.put("key", "3").await.expect("a write");
        client.compact(second, true).await.expect("compacted");
        client.defragment().await.expect("defragmented");
        client.linearizable_read_ok().await.expect("healthy");

        let query = RangeQuery { revision: first, ..RangeQuery::new(KeyRange::key("key")) };
        assert!(matches!(client.range(query).await, Err(Error::Compacted { oldest: None })));
        let ended = match client.watch(KeyRange::key("key"), first, false).await {
            Ok(mut watch) => watch.next().await.expect_err("the watch ends"),
            Err(error) => error,
        };
        assert!(matches!(ended, Error::Compacted { oldest: Some(oldest) } if oldest == second), "{ended:?}");
        assert!(matches!(client.compact(first, false).await, Err(Error::Compacted { .. })));

        let hash = client.hash_kv(0).await.expect("a hash");
        assert_eq!((hash.revision, hash.compact_revision), (last, second));
        assert_eq!(client.hash_kv(last).await.expect("a hash"), hash);
    });
}

#[test]
fn keys_live_as_long_as_their_lease() {
    on_every_version(async |version| {
        let (_etcd, client) = open_etcd(version, Setup::password()).await;
        let lease = client.lease_grant(Duration::from_millis(59_500)).await.expect("a lease");
        assert_eq!(lease.ttl, Duration::from_secs(60));
        client.put_with_lease("leased", "value", lease.id).await.expect("a write");
        assert_eq!(client.get("leased").await.expect("an answer").expect("the key").lease, lease.id);
        let mut keeper = client.lease_keep_alive(lease.id).await.expect("a keeper");
        assert_eq!(keeper.renew().await.expect("a renewal"), lease.ttl);

        client.lease_revoke(lease.id).await.expect("revoked");
        assert_eq!(client.get("leased").await.expect("an answer"), None);
        assert!(matches!(keeper.renew().await, Err(Error::NotFound(Thing::Lease))));
        assert!(matches!(client.lease_revoke(lease.id).await, Err(Error::NotFound(Thing::Lease))));
        assert!(matches!(client.lease_keep_alive(lease.id).await, Err(Error::NotFound(Thing::Lease))));
        let orphan = client.put_with_lease("leased", "value", lease.id).await;
        assert!(matches!(orphan, Err(Error::NotFound(Thing::Lease))), "{orphan:?}");
    });
}

#[test]
fn a_snapshot_is_the_database_and_its_checksum() {
    on_every_version(async |version| {
        let (_etcd, client) = open_etcd(version, Setup::password()).await;
        client.put("key", "the needle").await.expect("a write");
        client.put("big", vec![7; 1 << 20]).await.expect("a write");
        let mut snapshot = client.snapshot().await.expect("a snapshot");
        let (mut bytes, mut chunks, mut remaining) = (Vec::new(), 0, u64::MAX);
        while let Some(chunk) = snapshot.next().await.expect("a chunk") {
            assert!(chunk.remaining <= remaining);
            (chunks, remaining) = (chunks + 1, chunk.remaining);
            bytes.extend(chunk.bytes);
        }
        assert!(chunks > 2 && remaining == 0, "{chunks} chunks, {remaining} left");
        assert_eq!(bytes.len() % 512, 32, "whole pages and a SHA-256");
        assert!(bytes.windows(10).any(|window| window == b"the needle"));
    });
}

#[test]
fn a_full_database_says_so_and_is_freed_again() {
    on_every_version(async |version| {
        let (_etcd, client) = open_etcd(version, Setup::password().flag("--quota-backend-bytes=2097152")).await;
        let status = client.status().await.expect("a status");
        assert_eq!(status.db_quota, version.at_least(6).then_some(2_097_152));
        assert!(client.alarms().await.expect("alarms").is_empty());
        let full = loop {
            if let Err(error) = client.put("big", vec![7; 500_000]).await {
                break error;
            }
        };
        assert!(matches!(full, Error::NoSpace), "{full:?}");
        let alarms = client.alarms().await.expect("alarms");
        assert!(
            matches!(alarms[..], [alarm] if alarm.kind == AlarmKind::NoSpace && alarm.member_id == status.member_id)
        );

        let revision = client.get("big").await.expect("an answer").expect("the key").mod_revision;
        client.compact(revision, true).await.expect("compacted");
        client.defragment().await.expect("defragmented");
        client.disarm_alarm(status.member_id, AlarmKind::NoSpace).await.expect("disarmed");
        assert!(client.alarms().await.expect("alarms").is_empty());
        client.put("small", "value").await.expect("a write");
    });
}

/// More than one connection of HTTP/2 takes, each with more than a window of it that nobody reads.
#[tokio::test]
async fn unread_watches_delay_no_other_call() {
    const WATCHES: usize = 70;
    let etcd = Etcd::start(&Version::newest(), &Authority::new(), Setup::password());
    let client = Client::connect(etcd.options()).expect("good options");
    etcd.ready(&client).await;
    let mut unread = Vec::new();
    for _ in 0..WATCHES {
        unread.push(client.watch(KeyRange::prefix("w/"), 0, false).await.expect("a watch"));
    }
    for number in 0..6 {
        client.put(format!("w/{number}"), vec![b'x'; 1 << 20]).await.expect("a write");
    }
    // What the watches are sent comes meanwhile.
    for number in 0..200 {
        client.get(format!("w/{}", number % 6)).await.expect("others are answered");
        client.status().await.expect("so is a probe");
    }
    for mut watch in [unread.pop().expect("a watch"), unread.swap_remove(0)] {
        let mut seen = 0;
        while seen < 6 {
            seen += watch.next().await.expect("changes").events.len();
        }
    }
}

#[tokio::test]
async fn answers_are_bounded_one_by_one_and_together() {
    let etcd = Etcd::start(&Version::newest(), &Authority::new(), Setup::password());
    let room = Room::new(2 << 20);
    let options = ConnectOptions { longest_answer: 3 << 20, room: Some(room.clone()), ..etcd.options() };
    let client = Client::connect(options).expect("good options");
    etcd.ready(&client).await;
    let start = client.put("l/", "").await.expect("a write");
    for number in 0..5 {
        client.put(format!("l/{number}"), vec![b'x'; 1 << 20]).await.expect("a write");
    }
    let range = |limit| client.range(RangeQuery { limit, ..RangeQuery::new(KeyRange::prefix("l/")) });
    assert_eq!(range(3).await.expect("it fits").pairs.len(), 3);
    let why = range(0).await.expect_err("too long");
    assert!(matches!(&why, Error::TooLong { message } if message.contains("3 MiB")), "{why:?}");
    let raw = client.call_raw("/etcdserverpb.KV/Range", (&b"\x0a\x02l/\x12\x02l0"[..]).into()).await;
    assert_eq!(raw.expect_err("too long").message, why.to_string());
    let others = room.take(1 << 20).expect("room");
    assert!(matches!(range(3).await, Err(Error::NoRoom)));
    assert_eq!(range(1).await.expect("what is small always fits").pairs.len(), 1);
    drop(others);
    assert_eq!(range(3).await.expect("it fits again").pairs.len(), 3);
    assert!(room.is_empty());

    // What has happened comes in parts, however much it is. There is room for a part that is used while the next one comes.
    let room = Room::new(12 << 20);
    let options = ConnectOptions { longest_answer: 3 << 20, room: Some(room.clone()), ..etcd.options() };
    let watching = Client::connect(options).expect("good options");
    let mut watch = watching.watch_changes(KeyRange::prefix("l/"), start).await.expect("a watch");
    let mut seen = Vec::new();
    while seen.len() < 6 {
        seen.extend(
            watch.next_changes().await.expect("a part that fits").into_iter().map(|change| change.event.revision()),
        );
        assert_eq!(room.is_empty(), seen.is_empty(), "the caller still has them");
    }
    assert_eq!(seen, (start..start + 6).collect::<Vec<_>>());
    // A revision is not split, and one that is too long ends the watch.
    client.delete(KeyRange::prefix("l/")).await.expect("a deletion");
    assert!(matches!(watch.next_changes().await, Err(Error::TooLong { .. })));
    drop(watch);
    assert!(room.is_empty());
}
