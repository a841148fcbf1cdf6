//! Changes recorded under a writer, and restores to revisions and moments in between, compared key by key.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use quorate_backup::catalog;
use quorate_backup::choose::{Wish, choose};
use quorate_backup::full::{self, Draft};
use quorate_backup::manifest::Outcome;
use quorate_backup::prepare::prepare;
use quorate_backup::recorder::{Command, Ended, Recorder, Recording};
use quorate_backup::throwaway::Throwaway;
use quorate_backup::verify::verify;
use quorate_backup::{BackupId, Error};
use quorate_etcd::{KeyRange, KeyValue, Op, Txn};
use tokio::sync::{mpsc, oneshot};

use crate::common::{CLUSTER, Living, Operator, Room, VERSION, contents, signing};

/// What a writer that puts, overwrites, deletes and leases numbered keys saw after each revision.
async fn write(living: &Living, steps: u64) -> (BTreeMap<i64, Vec<KeyValue>>, Vec<(Timestamp, i64)>) {
    let (mut contents, mut moments) = (BTreeMap::new(), Vec::new());
    let lease = living.client.lease_grant(Duration::from_secs(120)).await.unwrap();
    for n in 0..steps {
        let key = |n: u64| format!("app/{:03}", n % 37);
        let revision = match n % 5 {
            0 => living.client.delete(KeyRange::key(key(n * 7))).await.unwrap().revision,
            1 => living.client.put_with_lease(key(n), format!("leased {n}"), lease.id).await.unwrap(),
            2 => {
                let put = |key: String| Op::Put { key: key.into(), value: format!("pair {n}").into(), lease: 0 };
                let then = vec![put(key(n)), put(key(n + 1)), Op::Delete(KeyRange::key(key(n + 2)))];
                living.client.txn(Txn { then, ..Txn::default() }).await.unwrap().revision
            }
            _ => living.client.put(key(n), format!("value {n}")).await.unwrap(),
        };
        contents.insert(revision, living.contents(revision).await.pairs);
        tokio::time::sleep(Duration::from_millis(15)).await;
        moments.push((Timestamp::now(), revision));
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    (contents, moments)
}

async fn every_revision_and_moment_comes_back(version: &str) {
    let (room, operator, living) = (Room::new(version), Operator::new(), Living::start(version).await);
    living.fill(20).await;
    living.enable_auth().await;
    room.create(&living, &operator.settings()).await;
    let full = room.newest().await;
    let chain = catalog::chain(&room.store, &full).await.unwrap();
    let mut recording = Recording::new(room.store.clone(), 3, Recorder::resume(&full, &chain), signing());
    let (tell, mut commands) = mpsc::channel(1);
    let recorded = recording.run(&living, &mut commands, &|_| {});
    let story = async {
        let (contents, moments) = write(&living, 60).await;
        // A second full backup while changes continue.
        let draft = Draft::new(&operator.settings(), &signing(), Timestamp::now()).unwrap();
        let (begun, wait) = oneshot::channel();
        let begin = Command::Begin { full: draft.id().clone(), recipient: draft.recipient(), begun };
        tell.send(begin).await.unwrap();
        wait.await.unwrap();
        let settings = operator.settings();
        let create = full::create(&room.store, &living, &draft, &settings, None, &|_| {});
        let (created, (more_contents, more_moments)) = tokio::join!(create, write(&living, 60));
        let after = created.unwrap().revision_at_most;
        tell.send(Command::End { full: full.id().clone(), after }).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        tell.send(Command::Stop).await.unwrap();
        let contents: BTreeMap<_, _> = contents.into_iter().chain(more_contents).collect();
        (contents, moments.into_iter().chain(more_moments).collect::<Vec<_>>())
    };
    let (ended, (contents_at, moments)) = tokio::join!(recorded, story);
    assert!(matches!(ended, Ended::Stopped), "{ended:?}");

    let catalog = room.catalog().await;
    assert_eq!((catalog.fulls.len(), &catalog.damage[..]), (2, &[][..]));
    for full in &catalog.fulls {
        let key = full::key_of(&room.store, &full.manifest, Some(&operator.identities)).await.unwrap();
        let verification =
            verify(&room.store, full, key, &room.workshop(), &[&living], Some(&signing())).await.unwrap();
        let Outcome::Ok(proven) = &verification.outcome else { panic!("{verification:?}") };
        assert!(proven.compared_with_living && proven.up_to > proven.revision, "{proven:?}");
    }

    let revisions: Vec<i64> = contents_at.keys().copied().collect();
    // As far as the first one's chain was ended when the second was there, either covers.
    let picked = |n: usize, of: usize| (n * 7919 + 13) % of;
    // `cargo xtask test --quick`
    let restores = if std::env::var_os("QUORATE_TEST_QUICK").is_some() { 4 } else { 10 };
    for n in 0..restores {
        let revision = revisions[picked(n, revisions.len())];
        let found = restored(&room, &operator, &Wish::Revision(revision)).await;
        assert_eq!(found, (revision, contents_at[&revision].clone()), "revision {revision}");
    }
    for n in 0..restores {
        let (at, revision) = moments[picked(n, moments.len())];
        let (found, pairs) = restored(&room, &operator, &Wish::At(at)).await;
        assert_eq!((found, &pairs), (revision, &contents_at[&revision]), "moment {at}");
    }
    let (newest, _) = restored(&room, &operator, &Wish::Newest).await;
    assert_eq!(Some(&newest), revisions.last());

    let beyond = choose(&room.store, &catalog, &Wish::Revision(newest + 1)).await.unwrap_err();
    assert!(beyond.to_string().contains(&format!("end at revision {newest}")), "{beyond}");
    let before = choose(&room.store, &catalog, &Wish::Revision(2)).await.unwrap_err();
    assert!(matches!(before, Error::NothingToRestore(_)), "{before}");
}

async fn restored(room: &Room, operator: &Operator, wish: &Wish) -> (i64, Vec<KeyValue>) {
    let catalog = room.catalog().await;
    let choice = choose(&room.store, &catalog, wish).await.unwrap();
    let key = full::key_of(&room.store, &choice.full, Some(&operator.identities)).await.unwrap();
    let (workshop, directory) = (room.workshop(), room.prepared());
    let prepared = prepare(&room.store, &catalog, &choice, key, &workshop, &directory, &|_| {}).await.unwrap();
    let throwaway = Throwaway::start(&room.programs, &prepared.path, &room.scratch).await.unwrap();
    let pairs = contents(throwaway.client(), 0).await.pairs;
    throwaway.end().await;
    (prepared.revision, pairs)
}

#[tokio::test]
async fn every_revision_and_moment_comes_back_3_4() {
    every_revision_and_moment_comes_back("3.4.23").await;
}

#[tokio::test]
async fn every_revision_and_moment_comes_back_3_5() {
    every_revision_and_moment_comes_back(VERSION).await;
}

#[tokio::test]
async fn every_revision_and_moment_comes_back_3_7() {
    every_revision_and_moment_comes_back("3.7.3").await;
}

#[tokio::test]
async fn keys_of_short_leases_stay_through_replay_and_no_revision_is_added() {
    let (room, living) = (Room::new(VERSION), Living::start(VERSION).await);
    let lease = living.client.lease_grant(Duration::from_secs(2)).await.unwrap();
    let mut keeper = living.client.lease_keep_alive(lease.id).await.unwrap();
    living.client.put_with_lease("app/leased", "x", lease.id).await.unwrap();
    room.create(&living, &Default::default()).await;
    let full = room.newest().await;
    let chain = catalog::chain(&room.store, &full).await.unwrap();
    let mut recording = Recording::new(room.store.clone(), 3, Recorder::resume(&full, &chain), signing());
    let (tell, mut commands) = mpsc::channel(1);
    let story = async {
        let late = living.client.lease_grant(Duration::from_secs(2)).await.unwrap();
        living.client.put_with_lease("app/late", "y", late.id).await.unwrap();
        for n in 0..10 {
            keeper.renew().await.unwrap();
            living.client.put("app/n", n.to_string()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tell.send(Command::Stop).await.unwrap();
        living.contents(0).await
    };
    let (ended, before) = tokio::join!(recording.run(&living, &mut commands, &|_| {}), story);
    assert!(matches!(ended, Ended::Stopped), "{ended:?}");
    let operator = Operator::new();
    let (revision, pairs) = restored(&room, &operator, &Wish::Newest).await;
    assert_eq!((revision, pairs), (before.revision, before.pairs));
}

#[tokio::test]
async fn changes_compacted_before_recording_require_a_full_backup() {
    let (room, living) = (Room::new(VERSION), Living::start(VERSION).await);
    living.fill(5).await;
    room.create(&living, &Default::default()).await;
    living.fill(5).await;
    let newest = living.contents(0).await.revision;
    living.client.compact(newest, true).await.unwrap();
    let full = room.newest().await;
    let chain = catalog::chain(&room.store, &full).await.unwrap();
    let mut recording = Recording::new(room.store.clone(), 3, Recorder::resume(&full, &chain), signing());
    let (_tell, mut commands) = mpsc::channel(1);
    let ended = recording.run(&living, &mut commands, &|_| {}).await;
    assert!(matches!(ended, Ended::Compacted), "{ended:?}");
    let ids: Vec<BackupId> = room.catalog().await.fulls.iter().map(|full| full.id().clone()).collect();
    assert_eq!(ids, [full.id().clone()], "{CLUSTER}");
}
