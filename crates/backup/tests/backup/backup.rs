//! Full backups of a real etcd in a directory: taken, verified, restored, encrypted to other recipients, removed, copied.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use jiff::{SignedDuration, Timestamp};
use quorate_backup::catalog::Catalog;
use quorate_backup::choose::{Wish, choose};
use quorate_backup::full::{self, Draft};
use quorate_backup::keys::KeyError;
use quorate_backup::manifest::Outcome;
use quorate_backup::prepare::{PlainSnapshot, export, prepare, prepare_plain};
use quorate_backup::settings::{Location, Patience, Settings};
use quorate_backup::source::{About, ChangeStream, HashKv, SnapshotStream};
use quorate_backup::throwaway::{Programs, Throwaway};
use quorate_backup::verify::{Workshop, verify};
use quorate_backup::{Error, Names, Source, SourceError, Store, mirror, prune};
use quorate_core::spec::Keep;
use quorate_etcd::{RangeQuery, RangeResult};

use crate::common::{CLUSTER, CLUSTER_ID, Living, Operator, Room, VERSION, contents, signing, trust};

async fn taken_verified_and_brought_back(version: &str) {
    let (room, operator, living) = (Room::new(version), Operator::new(), Living::start(version).await);
    living.fill(200).await;
    living.client.compact(100, true).await.unwrap();
    living.enable_auth().await;
    let (manifest, draft) = room.create(&living, &operator.settings()).await;
    assert_eq!((manifest.revision, manifest.revision_at_most, manifest.keys), (201, 201, 200));
    assert!(manifest.stored_bytes < manifest.db_bytes, "it is compressed");

    let verification =
        verify(&room.store, &room.newest().await, draft.key(), &room.workshop(), &[&living], Some(&signing())).await;
    let Outcome::Ok(proven) = verification.unwrap().outcome else { panic!("{:?}", room.newest().await.manifest) };
    assert_eq!((proven.revision, proven.keys, proven.up_to, proven.compared_with_living), (201, 200, 201, true));
    assert!(room.newest().await.manifest.is_verified());

    let before = living.contents(0).await;
    let catalog = room.catalog().await;
    let choice = choose(&room.store, &catalog, &Wish::Newest).await.unwrap();
    let key = full::key_of(&room.store, &choice.full, Some(&operator.identities)).await.unwrap();
    let (workshop, directory) = (room.workshop(), room.prepared());
    let prepared = prepare(&room.store, &catalog, &choice, key, &workshop, &directory, &|_| {}).await.unwrap();
    assert_eq!((prepared.revision, prepared.keys), (201, Some(200)));
    let restored = Throwaway::start(&room.programs, &prepared.path, &room.scratch).await.unwrap();
    assert_eq!(contents(restored.client(), 0).await.pairs, before.pairs);
    assert!(restored.client().auth_enabled().await.unwrap());
    assert_eq!(restored.client().user_list().await.unwrap(), ["app", "root"]);
    restored.end().await;
    assert_eq!(std::fs::read_dir(&room.scratch).unwrap().count(), 0, "nothing stays");
}

#[tokio::test]
async fn a_backup_is_taken_verified_and_restored_3_4() {
    taken_verified_and_brought_back("3.4.23").await;
}

#[tokio::test]
async fn a_backup_is_taken_verified_and_restored_3_5() {
    taken_verified_and_brought_back(VERSION).await;
}

#[tokio::test]
async fn a_backup_is_taken_verified_and_restored_3_6() {
    taken_verified_and_brought_back("3.6.16").await;
}

#[tokio::test]
async fn a_backup_is_taken_verified_and_restored_3_7() {
    taken_verified_and_brought_back("3.7.3").await;
}

/// An idle cluster is compacted up to its newest revision. etcd answers with the hash that it computed before it dropped anything.
#[tokio::test]
async fn a_backup_of_data_that_was_compacted_up_to_its_end_is_good() {
    for version in ["3.4.23", VERSION, "3.6.16", "3.7.3"] {
        let (room, living) = (Room::new(version), Living::start(version).await);
        living.fill(20).await;
        living.fill(20).await;
        let before = living.contents(0).await;
        living.client.compact(before.revision, true).await.unwrap();
        let (manifest, draft) = room.create(&living, &Settings::default()).await;
        assert_eq!(manifest.revision, before.revision, "etcd {version}");
        let newest = room.newest().await;
        let verification =
            verify(&room.store, &newest, draft.key(), &room.workshop(), &[&living], Some(&signing())).await;
        let outcome = verification.unwrap().outcome;
        assert!(matches!(outcome, Outcome::Ok(_)), "etcd {version}: {outcome:?}");
        // The signature is taken away, so it is restored and compared once more.
        let mut catalog = room.catalog().await;
        catalog.fulls.iter_mut().for_each(|full| full.signed_by = None);
        let choice = choose(&room.store, &catalog, &Wish::Newest).await.unwrap();
        let (workshop, directory) = (room.workshop(), room.prepared());
        let prepared = prepare(&room.store, &catalog, &choice, None, &workshop, &directory, &|_| {}).await.unwrap();
        let restored = Throwaway::start(&room.programs, &prepared.path, &room.scratch).await.unwrap();
        assert_eq!(contents(restored.client(), 0).await.pairs, before.pairs, "etcd {version}");
        restored.end().await;
    }
}

/// Who can write to the store can write a verification too, and only a signature shows whose it is.
#[tokio::test]
async fn a_verified_backup_is_not_verified_again_before_a_restore_unless_it_is_unsigned() {
    let (room, living) = (Room::new(VERSION), Living::start(VERSION).await);
    living.fill(20).await;
    let (_, draft) = room.create(&living, &Settings::default()).await;
    let without_etcd =
        Programs { etcd: "/nowhere/etcd".into(), restorer: "/nowhere/etcdutl".into(), ..room.programs.clone() };
    let without_etcd = Workshop { programs: &without_etcd, scratch: &room.scratch };
    let directory = room.prepared();
    let prepared = async |catalog: &Catalog| {
        let choice = choose(&room.store, catalog, &Wish::Newest).await.unwrap();
        prepare(&room.store, catalog, &choice, None, &without_etcd, &directory, &|_| {}).await
    };
    assert!(prepared(&room.catalog().await).await.is_err(), "nobody has verified it");
    verify(&room.store, &room.newest().await, draft.key(), &room.workshop(), &[], Some(&signing())).await.unwrap();
    let ready = prepared(&room.catalog().await).await.unwrap();
    assert_eq!((ready.revision, ready.keys), (21, Some(20)));
    let mut unsigned = room.catalog().await;
    unsigned.fulls.iter_mut().for_each(|full| full.signed_by = None);
    assert!(prepared(&unsigned).await.is_err(), "nobody signed that it was verified");
}

#[tokio::test]
async fn a_backup_leaves_as_a_plain_snapshot_and_comes_in_as_one() {
    let (room, living) = (Room::new(VERSION), Living::start(VERSION).await);
    living.fill(20).await;
    let (manifest, _) = room.create(&living, &Settings::default()).await;
    assert_eq!(manifest.recipient, None);
    let file = room.directory.path().join("out.db");
    export(&room.store, &manifest, None, &file).await.unwrap();
    let status = Command::new(&room.programs.restorer).args(["snapshot", "status"]).arg(&file).output().unwrap();
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
    assert!(export(&room.store, &manifest, None, &file).await.is_err(), "it overwrites nothing");

    let directory = room.prepared();
    let plain = prepare_plain(PlainSnapshot::File(&file), &room.workshop(), &directory).await.unwrap();
    assert_eq!((plain.revision, plain.keys), (21, Some(20)));
    let cut = std::fs::read(&file).unwrap();
    std::fs::write(&file, &cut[..cut.len() - 5]).unwrap();
    let refused = prepare_plain(PlainSnapshot::File(&file), &room.workshop(), &directory).await.unwrap_err();
    assert!(refused.to_string().contains("not a whole etcd snapshot"), "{refused}");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "only the good one stays");
}

#[tokio::test]
async fn common_tools_open_a_backup_without_us() {
    let (room, operator, living) = (Room::new(VERSION), Operator::new(), Living::start(VERSION).await);
    living.fill(5).await;
    let (manifest, _) = room.create(&living, &operator.settings()).await;
    let names = Names::new(CLUSTER);
    let work = room.prepared();
    std::fs::write(work.join("operator"), operator.file.expose()).unwrap();
    let script = format!(
        "age -d -i operator {} > own && age -d -i own {} | zstd -d > db && {} snapshot status db",
        room.file(&names.key(&manifest.id)).display(),
        room.file(&names.snapshot(&manifest.id)).display(),
        room.programs.restorer.display(),
    );
    let opened = Command::new("bash").args(["-o", "pipefail", "-c", &script]).current_dir(&work).output();
    let opened = opened.expect("bash, age and zstd are needed");
    assert!(opened.status.success(), "{}", String::from_utf8_lossy(&opened.stderr));
}

#[tokio::test]
async fn recipients_change_without_writing_the_data_again() {
    let (room, one, other) = (Room::new(VERSION), Operator::new(), Operator::new());
    let living = Living::start(VERSION).await;
    let (manifest, _) = room.create(&living, &one.settings()).await;
    let snapshot = room.file(&Names::new(CLUSTER).snapshot(&manifest.id));
    let before = std::fs::read(&snapshot).unwrap();
    let to = [other.recipient.clone()];
    let manifests = [manifest.clone()];
    assert_eq!(
        full::rekey(&room.store, &manifests, &one.identities, &to, Some(&signing())).await.unwrap().changed.len(),
        1
    );
    // Given again after a kill, it passes over what it has done.
    let again = full::rekey(&room.store, &manifests, &one.identities, &to, Some(&signing())).await.unwrap();
    assert_eq!((again.changed.len(), again.unopened), (0, vec![manifest.id.clone()]));
    assert!(full::key_of(&room.store, &manifest, Some(&other.identities)).await.unwrap().is_some());
    let refused = full::key_of(&room.store, &manifest, Some(&one.identities)).await;
    assert!(matches!(refused, Err(Error::Key { source: KeyError::WrongIdentity, .. })));
    let refused = full::key_of(&room.store, &manifest, None).await;
    assert!(matches!(refused, Err(Error::Key { source: KeyError::NoIdentity, .. })));
    assert_eq!(std::fs::read(&snapshot).unwrap(), before);
}

#[tokio::test]
async fn backups_not_kept_are_deleted_and_a_killed_prune_is_completed_by_the_next() {
    let (room, living) = (Room::new(VERSION), Living::start(VERSION).await);
    let mut ids = Vec::new();
    for days in [9, 8, 7] {
        let begun = Timestamp::now() - SignedDuration::from_hours(24 * days);
        let draft = Draft::new(&Settings::default(), &signing(), begun).unwrap();
        full::create(&room.store, &living, &draft, &Settings::default(), None, &|_| {}).await.unwrap();
        ids.push(draft.id().clone());
    }
    verify(&room.store, &room.catalog().await.fulls[0], None, &room.workshop(), &[], Some(&signing())).await.unwrap();
    let keep = Keep { last: 1, ..Keep::NONE };
    let plan = prune::plan(&room.catalog().await, &keep, Timestamp::now());
    assert_eq!(plan.remove, [ids[1].clone()], "the oldest is the only verified one");
    // As if it had been killed after its first deletion.
    room.store.delete(&Names::new(CLUSTER).manifest(&ids[1])).await.unwrap();
    let catalog = room.catalog().await;
    assert_eq!(catalog.fulls.len(), 2, "without its manifest it does not exist");
    let plan = prune::plan(&catalog, &keep, Timestamp::now());
    assert_eq!((plan.remove.len(), plan.leftovers.clone()), (0, vec![ids[1].clone()]));
    prune::carry_out(&room.store, CLUSTER, &plan).await.unwrap();
    prune::carry_out(&room.store, CLUSTER, &plan).await.unwrap();
    assert!(prune::plan(&room.catalog().await, &keep, Timestamp::now()).is_empty());
    assert!(!room.file(&Names::new(CLUSTER).full_directory(&ids[1])).exists());
}

#[tokio::test]
async fn the_second_destination_follows_the_first() {
    let (room, living) = (Room::new(VERSION), Living::start(VERSION).await);
    let (manifest, _) = room.create(&living, &Settings::default()).await;
    let place = Location::Directory(room.directory.path().join("second"));
    let second = Store::open(&place, None, Patience::default()).unwrap();
    assert_eq!(mirror::copy(&room.store, &second, CLUSTER, &trust(), &signing()).await.unwrap(), 2);
    assert_eq!(mirror::copy(&room.store, &second, CLUSTER, &trust(), &signing()).await.unwrap(), 0);
    verify(&room.store, &room.newest().await, None, &room.workshop(), &[], Some(&signing())).await.unwrap();
    assert_eq!(mirror::copy(&room.store, &second, CLUSTER, &trust(), &signing()).await.unwrap(), 1);
    let copied = Catalog::load(&second, CLUSTER, None, &trust()).await.unwrap();
    assert!(copied.find(&manifest.id).unwrap().manifest.is_verified() && copied.damage.is_empty());
}

/// A first and a second destination; the second has all that the first has.
async fn mirrored(living: &Living, operator: &Operator) -> (Room, Store, Names, quorate_backup::BackupId) {
    let room = Room::new(VERSION);
    let draft = Draft::new(&operator.settings(), &signing(), Timestamp::now()).unwrap();
    let ledger = Some(Bytes::from_static(b"sealed"));
    let manifest = full::create(&room.store, living, &draft, &operator.settings(), ledger, &|_| {}).await.unwrap();
    let place = Location::Directory(room.directory.path().join("second"));
    let second = Store::open(&place, None, Patience::default()).unwrap();
    assert_eq!(mirror::copy(&room.store, &second, CLUSTER, &trust(), &signing()).await.unwrap(), 4);
    (room, second, Names::new(CLUSTER), manifest.id)
}

#[tokio::test]
async fn damage_in_the_first_destination_never_reaches_the_second() {
    let (living, operator) = (Living::start(VERSION).await, Operator::new());
    living.fill(5).await;
    let (room, second, names, id) = mirrored(&living, &operator).await;
    let objects = [names.snapshot(&id), names.key(&id), names.ledger(&id), names.manifest(&id)];
    for path in &objects {
        let good = std::fs::read(room.file(path)).unwrap();
        let flipped: Vec<u8> = good.iter().enumerate().map(|(n, byte)| if n == 0 { byte ^ 1 } else { *byte }).collect();
        for damaged in [&flipped[..], &good[..good.len() - 3]] {
            std::fs::write(room.file(path), damaged).unwrap();
            let told = mirror::copy(&room.store, &second, CLUSTER, &trust(), &signing()).await;
            assert_eq!(second.get(path).await.unwrap().bytes, good, "{path} was overwritten: {told:?}");
            // A snapshot of which the second has a whole copy is not read again; that is for `verify`.
            assert!(*path == objects[0] || matches!(&told, Err(Error::NotCopied { damage }) if damage.len() == 1));
            // Nor does it come to a second destination that has nothing yet.
            let place = Location::Directory(room.directory.path().join("third"));
            let third = Store::open(&place, None, Patience::default()).unwrap();
            let told = mirror::copy(&room.store, &third, CLUSTER, &trust(), &signing()).await.unwrap_err();
            assert!(matches!(&told, Error::NotCopied { damage } if damage.len() == 1), "{told}");
            assert!(told.to_string().contains(path.as_str()), "{told}");
            assert!(Catalog::load(&third, CLUSTER, None, &trust()).await.unwrap().fulls.is_empty());
            std::fs::remove_dir_all(room.directory.path().join("third")).unwrap();
        }
        std::fs::write(room.file(path), good).unwrap();
    }
    assert_eq!(mirror::copy(&room.store, &second, CLUSTER, &trust(), &signing()).await.unwrap(), 0);
}

#[tokio::test]
async fn a_second_destination_is_healed_and_follows_new_keys() {
    let (living, one, other) = (Living::start(VERSION).await, Operator::new(), Operator::new());
    let (room, second, names, id) = mirrored(&living, &one).await;
    let cut = room.directory.path().join("second").join(names.snapshot(&id));
    let good = std::fs::read(&cut).unwrap();
    std::fs::write(&cut, &good[..good.len() - 1]).unwrap();
    assert_eq!(mirror::copy(&room.store, &second, CLUSTER, &trust(), &signing()).await.unwrap(), 1);
    assert_eq!(std::fs::read(&cut).unwrap(), good);
    let to = [other.recipient.clone()];
    let manifest = room.newest().await.manifest;
    // What is next to it here is no ledger that could be opened.
    room.store.delete(&names.ledger(&id)).await.unwrap();
    second.delete(&names.ledger(&id)).await.unwrap();
    full::rekey(&room.store, std::slice::from_ref(&manifest), &one.identities, &to, Some(&signing())).await.unwrap();
    let told = mirror::copy(&room.store, &second, CLUSTER, &trust(), &signing()).await;
    assert!(matches!(&told, Err(Error::NotCopied { damage }) if damage.len() == 1), "the ledger is missing: {told:?}");
    let refused = full::key_of(&second, &manifest, Some(&other.identities)).await;
    assert!(refused.is_err(), "what is whole in the second is never replaced because of the first");
    full::rekey(&second, std::slice::from_ref(&manifest), &one.identities, &to, Some(&signing())).await.unwrap();
    assert!(full::key_of(&second, &manifest, Some(&other.identities)).await.unwrap().is_some());
    let _ = mirror::copy(&room.store, &second, CLUSTER, &trust(), &signing()).await;
    let catalog = Catalog::load(&second, CLUSTER, Some(CLUSTER_ID), &trust()).await.unwrap();
    assert!(catalog.damage.is_empty() && catalog.fulls[0].manifest.sealed_for == to);
}

#[tokio::test]
async fn a_disk_that_is_full_here_is_no_damage_of_the_backup() {
    let (room, operator, living) = (Room::new(VERSION), Operator::new(), Living::start(VERSION).await);
    living.fill(20).await;
    let (manifest, draft) = room.create(&living, &operator.settings()).await;
    let full_disk = std::path::Path::new("/dev/full");
    let file = std::fs::OpenOptions::new().write(true).open(full_disk).unwrap();
    let error = full::fetch(&room.store, &manifest, draft.key(), file, full_disk).await.unwrap_err();
    assert!(
        matches!(&error, Error::File { path, source, .. }
            if path == full_disk && source.kind() == std::io::ErrorKind::StorageFull),
        "{error:?}"
    );
    let nowhere = room.directory.path().join("no/such/directory/out.db");
    let error = export(&room.store, &manifest, draft.key(), &nowhere).await.unwrap_err();
    assert_eq!(error.to_string(), format!("the snapshot cannot be written to {}", nowhere.display()));
}

#[tokio::test]
async fn a_manifest_contains_no_key_names() {
    let (room, living, mut other) = (Room::new(VERSION), Living::start(VERSION).await, Living::start(VERSION).await);
    other.name = String::from("etcd-2");
    for n in 0..5 {
        living.client.put(format!("secret-plans/{n}"), "x").await.unwrap();
        other.client.put(format!("secret-plans/{n}"), "yy").await.unwrap();
    }
    let (manifest, _) = room.create(&living, &Settings::default()).await;
    let verified =
        verify(&room.store, &room.newest().await, None, &room.workshop(), &[&other], Some(&signing())).await.unwrap();
    let Outcome::Failed { why, .. } = verified.outcome else { panic!("two clusters are the same") };
    assert!(why.contains("key 1 in order") && why.contains("value of 2"), "{why}");
    let text = std::fs::read_to_string(room.file(&Names::new(CLUSTER).manifest(&manifest.id))).unwrap();
    assert!(text.contains("key 1 in order") && !text.contains("secret"), "{text}");
}

/// A backup is read from one member, which may be damaged or lie. Its own word proves nothing.
#[tokio::test]
async fn a_backup_that_other_members_contradict_fails_verification() {
    let (room, honest, mut liar) = (Room::new(VERSION), Living::start(VERSION).await, Living::start(VERSION).await);
    liar.name = String::from("etcd-3");
    honest.fill(5).await;
    for n in 0..5 {
        liar.client.put(format!("app/{n:05}"), "another").await.unwrap();
    }
    let prove = async |living: &[&dyn Source]| {
        let full = room.newest().await;
        let verified = verify(&room.store, &full, None, &room.workshop(), living, Some(&signing())).await;
        let is_verified = room.newest().await.manifest.is_verified();
        match verified.unwrap().outcome {
            Outcome::Failed { why, .. } => {
                assert!(!is_verified);
                why
            }
            Outcome::Ok(proven) => {
                assert!(is_verified);
                format!("compared with {}", proven.compared_with.join(", "))
            }
        }
    };
    room.create(&liar, &Settings::default()).await;
    assert_eq!(prove(&[&liar]).await, "compared with etcd-3");
    let told = prove(&[&liar, &honest]).await;
    for word in ["read from etcd-3", "etcd-1 has another key 1 in order", "the same as the backup: etcd-3"] {
        assert!(told.contains(word), "{word} in {told}");
    }
    // What the cluster has never come to.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    liar.client.put("app/00000", "more").await.unwrap();
    room.create(&liar, &Settings::default()).await;
    let told = prove(&[&honest, &liar]).await;
    assert!(told.contains("etcd-1 is at revision 6"), "{told}");
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    honest.client.put("one/more", "x").await.unwrap();
    room.create(&honest, &Settings::default()).await;
    let told = prove(&[&honest, &liar]).await;
    assert!(told.contains("etcd-3 holds 5 keys where the backup holds 6"), "{told}");
    assert_eq!(prove(&[&honest]).await, "compared with etcd-1");
}

#[tokio::test]
async fn a_large_ledger_is_read_whole_and_one_that_cannot_be_fails_the_proof() {
    let (room, living, names) = (Room::new(VERSION), Living::start(VERSION).await, Names::new(CLUSTER));
    let draft = Draft::new(&Settings::default(), &signing(), Timestamp::now()).unwrap();
    let ledger = Bytes::from(vec![7; 40 << 20]);
    let created = full::create(&room.store, &living, &draft, &Settings::default(), Some(ledger.clone()), &|_| {}).await;
    let path = room.file(&names.ledger(&created.unwrap().id));
    let outcome = async || {
        let full = room.newest().await;
        verify(&room.store, &full, None, &room.workshop(), &[], Some(&signing())).await.unwrap().outcome
    };
    assert!(matches!(outcome().await, Outcome::Ok(_)), "{:?}", outcome().await);
    let second = room.directory.path().join("second");
    let second = Store::open(&Location::Directory(second), None, Patience::default()).unwrap();
    assert_eq!(mirror::copy(&room.store, &second, CLUSTER, &trust(), &signing()).await.unwrap(), 3);
    let copied = Catalog::load(&second, CLUSTER, None, &trust()).await.unwrap().fulls.remove(0).manifest;
    assert_eq!(full::ledger_of(&second, &copied).await.unwrap().unwrap().bytes, ledger);
    for (bytes, word) in [(ledger.len() - 1, "not what was stored"), (ledger.len() + 1, "at most 41943040 are read")] {
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(bytes as u64).unwrap();
        let Outcome::Failed { why, .. } = outcome().await else {
            panic!("a ledger of {bytes} bytes is taken for good")
        };
        assert!(why.contains("/ledger") && why.contains(word), "{why}");
    }
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(outcome().await, Outcome::Failed { why, .. } if why.contains("/ledger is missing")));
}

#[tokio::test]
async fn roots_login_is_checked_before_any_data_is_replaced() {
    let (room, living) = (Room::new(VERSION), Living::start(VERSION).await);
    let secret = quorate_core::Secret::new;
    let mut let_in = Vec::new();
    for (n, step) in ["nobody", "off", "on"].iter().enumerate() {
        match *step {
            "off" => living.client.user_add("root", Some("s3cret")).await.unwrap(),
            "on" => {
                living.client.role_add("root").await.unwrap();
                living.client.user_grant_role("root", "root").await.unwrap();
                living.client.auth_enable().await.unwrap();
            }
            _ => {}
        }
        tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
        let (manifest, _) = room.create(&living, &Settings::default()).await;
        let file = room.directory.path().join(format!("{n}.db"));
        export(&room.store, &manifest, None, &file).await.unwrap();
        for password in ["s3cret", "another"] {
            let throwaway = Throwaway::start(&room.programs, &file, &room.scratch).await.unwrap();
            let_in.push((*step, password, throwaway.root_is_let_in(&secret(password)).await.unwrap()));
            throwaway.end().await;
        }
    }
    let expected = [
        ("nobody", "s3cret", true),
        ("nobody", "another", true),
        ("off", "s3cret", true),
        ("off", "another", false),
        ("on", "s3cret", true),
        ("on", "another", false),
    ];
    assert_eq!(let_in, expected);
}

/// A member that sends its snapshot with a byte flipped, or only the beginning of it.
struct Bad<'a> {
    living: &'a Living,
    breaks: bool,
}

#[async_trait]
impl Source for Bad<'_> {
    async fn about(&self) -> Result<About, SourceError> {
        self.living.about().await
    }

    async fn snapshot(&self) -> Result<SnapshotStream, SourceError> {
        let (count, breaks) = (AtomicUsize::new(0), self.breaks);
        let spoiled = self.living.snapshot().await?.map(move |piece| {
            let mut piece = piece?.to_vec();
            match (count.fetch_add(1, Ordering::Relaxed), breaks) {
                (0, false) => piece[0] ^= 1,
                (1, true) => return Err(SourceError::Unreachable(String::from("gone"))),
                _ => {}
            }
            Ok(Bytes::from(piece))
        });
        Ok(Box::pin(spoiled))
    }

    async fn hash_kv(&self, revision: i64) -> Result<HashKv, SourceError> {
        self.living.hash_kv(revision).await
    }

    async fn changes(&self, from: i64) -> Result<ChangeStream, SourceError> {
        self.living.changes(from).await
    }

    async fn lease_ttl(&self, id: i64) -> Result<Option<i64>, SourceError> {
        self.living.lease_ttl(id).await
    }

    async fn range(&self, query: RangeQuery) -> Result<RangeResult, SourceError> {
        self.living.range(query).await
    }
}

#[tokio::test]
async fn a_snapshot_that_comes_damaged_or_not_whole_becomes_no_backup() {
    let (room, living) = (Room::new(VERSION), Living::start(VERSION).await);
    let draft = Draft::new(&Settings::default(), &signing(), Timestamp::now()).unwrap();
    for breaks in [false, true] {
        let bad = Bad { living: &living, breaks };
        let error = full::create(&room.store, &bad, &draft, &Settings::default(), None, &|_| {}).await.unwrap_err();
        match breaks {
            false => assert!(matches!(error, Error::SnapshotCorrupt { .. }), "{error}"),
            true => assert!(error.is_passing(), "{error}"),
        }
        assert_eq!(room.store.list(CLUSTER).await.unwrap(), []);
    }
}

#[tokio::test]
async fn an_etcd_of_a_process_that_was_killed_is_swept_away() {
    let (room, living) = (Room::new(VERSION), Living::start(VERSION).await);
    let (manifest, _) = room.create(&living, &Settings::default()).await;
    let left = room.scratch.join("throwaway-left");
    std::fs::create_dir_all(&left).unwrap();
    std::fs::write(left.join("lock"), "").unwrap();
    let argument = format!("--data-dir={}", left.join("data").display());
    let mut stray =
        Command::new("sh").args(["-c", "read line", "sh", &argument]).stdin(Stdio::piped()).spawn().unwrap();
    let file = room.directory.path().join("out.db");
    export(&room.store, &manifest, None, &file).await.unwrap();
    Throwaway::start(&room.programs, &file, &room.scratch).await.unwrap().end().await;
    assert!(!left.exists());
    assert!(!stray.wait().unwrap().success(), "it was killed");
}
