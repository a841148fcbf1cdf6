//! Objects from someone who can write to the store and has no key: they are ignored, replace nothing, and fill neither memory nor disk.

use jiff::{SignedDuration, Timestamp};
use quorate_backup::catalog::{self, Catalog};
use quorate_backup::choose::{Wish, choose};
use quorate_backup::manifest::{Beside, Hash, Manifest, Outcome, Proven, Taken, Verification};
use quorate_backup::segment::{self, Revision, Segment};
use quorate_backup::settings::{Location, Patience};
use quorate_backup::{BackupId, Damage, Error, Names, Store, Trust, full, mirror, prune};
use quorate_core::spec::Keep;
use quorate_pki::SigningKey;

use crate::common::{CLUSTER, CLUSTER_ID, signing, trust};

struct Shelf {
    directory: tempfile::TempDir,
    store: Store,
}

impl Shelf {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&Location::Directory(directory.path().join("one")), None, Patience::default()).unwrap();
        Shelf { directory, store }
    }

    fn second(&self) -> Store {
        Store::open(&Location::Directory(self.directory.path().join("two")), None, Patience::default()).unwrap()
    }

    async fn catalog(&self, trust: &Trust) -> Catalog {
        Catalog::load(&self.store, CLUSTER, Some(CLUSTER_ID), trust).await.unwrap()
    }

    /// A backup of this content that was verified; signed by this key, if by any.
    async fn put(&self, begun: Timestamp, content: &[u8], db_bytes: u64, key: Option<&SigningKey>) -> Manifest {
        let (id, names) = (BackupId::new(begun, &quorate_pki::random_hex(4)), Names::new(CLUSTER));
        let hash = Hash { hash: 0, revision: 10, compact_revision: 0 };
        let proven =
            Proven { revision: 10, keys: 1, hash, up_to: 10, compared_with_living: true, compared_with: Vec::new() };
        let manifest = Manifest {
            format: 1,
            id: id.clone(),
            cluster: String::from(CLUSTER),
            cluster_id: String::from(CLUSTER_ID),
            etcd_version: String::from("3.5.30"),
            taken: Taken { began: begun, opened: begun, ended: begun },
            from_member: String::from("etcd-1"),
            members: Vec::new(),
            revision: 10,
            revision_at_most: 10,
            hash,
            keys: 1,
            db_bytes,
            snapshot_sha256: String::new(),
            stored_bytes: content.len() as u64,
            stored_sha256: sha256(content),
            recipient: None,
            beside: Beside::default(),
            sealed_for: Vec::new(),
            verified: vec![Verification { at: begun, etcd_version: String::new(), outcome: Outcome::Ok(proven) }],
            signature: None,
        };
        let manifest = match key {
            Some(key) => manifest.signed(key),
            None => manifest,
        };
        self.store.put_new(&names.snapshot(&id), content.to_vec().into()).await.unwrap();
        self.store.put_new(&names.manifest(&id), manifest.to_json().into()).await.unwrap();
        manifest
    }

    async fn segment(&self, full: &BackupId, revisions: std::ops::RangeInclusive<i64>, key: &SigningKey) {
        let of = |revision| Revision { revision, ..Revision::default() };
        let segment = Segment {
            cluster: String::from(CLUSTER),
            cluster_id: String::from(CLUSTER_ID),
            full: full.clone(),
            recipient: None,
            previous: full.as_str().to_owned(),
            revisions: revisions.map(of).collect(),
        };
        segment::write(&self.store, &segment, 3, key).await.unwrap();
    }
}

fn sha256(bytes: &[u8]) -> String {
    quorate_core::text::hex(&quorate_pki::Sha256::digest(bytes))
}

fn ago(days: i64) -> Timestamp {
    Timestamp::now() - SignedDuration::from_hours(24 * days)
}

#[tokio::test]
async fn forged_backups_are_never_newest_verified_or_kept() {
    let (shelf, other) = (Shelf::new(), SigningKey::generate());
    let genuine = shelf.put(ago(9), b"x", 1, Some(&signing())).await;
    // As many as `keep` keeps, of the future, of yesterday, by another key, by none.
    for days in [-30_000, -30_001, 1, 2] {
        shelf.put(ago(days), b"x", 1, Some(&other)).await;
        shelf.put(ago(days), b"x", 1, None).await;
    }
    let since = Some(ago(10));
    let catalog = shelf.catalog(&Trust { since, ..trust() }).await;
    let known: Vec<&BackupId> = catalog.fulls.iter().map(|full| full.id()).collect();
    assert_eq!((known, catalog.unsigned.len()), (vec![&genuine.id], 0));
    assert_eq!(catalog.damage.iter().filter(|damage| damage.is_forgery()).count(), 8, "{:?}", catalog.damage);
    let plan = prune::plan(&catalog, &Keep { last: 1, ..Keep::NONE }, Timestamp::now());
    assert!(plan.is_empty() && plan.keep.contains_key(&genuine.id), "{plan:?}");
    // Of before there were signatures, they may be genuine; they count for nothing all the same.
    let catalog = shelf.catalog(&trust()).await;
    assert_eq!((catalog.fulls.len(), catalog.unsigned.len()), (1, 2));
    assert!(prune::plan(&catalog, &Keep { last: 1, ..Keep::NONE }, Timestamp::now()).is_empty());
    // One of our own key that is of the future counts for nothing either.
    shelf.put(ago(-1), b"x", 1, Some(&signing())).await;
    assert_eq!(shelf.catalog(&trust()).await.fulls.len(), 1);
}

#[tokio::test]
async fn nothing_whole_in_the_second_destination_is_replaced_because_of_the_first() {
    let shelf = Shelf::new();
    let genuine = shelf.put(ago(1), b"content", 1, Some(&signing())).await;
    let (second, names) = (shelf.second(), Names::new(CLUSTER));
    assert_eq!(mirror::copy(&shelf.store, &second, CLUSTER, &trust(), &signing()).await.unwrap(), 2);
    let paths = [names.snapshot(&genuine.id), names.manifest(&genuine.id)];
    let before = [second.get(&paths[0]).await.unwrap().bytes, second.get(&paths[1]).await.unwrap().bytes];
    // Another content, and a manifest that fits it.
    let one = shelf.directory.path().join("one");
    std::fs::write(one.join(&paths[0]), b"another").unwrap();
    for (bytes, content) in [(7, "another"), (4, "junk")] {
        std::fs::write(one.join(&paths[0]), content).unwrap();
        let forged = Manifest { stored_bytes: bytes, stored_sha256: sha256(content.as_bytes()), ..genuine.clone() };
        for forged in [forged.clone(), Manifest { signature: None, ..forged }] {
            std::fs::write(one.join(&paths[1]), forged.to_json()).unwrap();
            let told = mirror::copy(&shelf.store, &second, CLUSTER, &trust(), &signing()).await;
            assert!(forged.signature.is_none() || matches!(told, Err(Error::NotCopied { .. })), "{told:?}");
            for (path, before) in paths.iter().zip(&before) {
                assert_eq!(second.get(path).await.unwrap().bytes, before, "{path}");
            }
        }
    }
}

#[tokio::test]
async fn segments_that_others_append_lead_nowhere() {
    let (shelf, other) = (Shelf::new(), SigningKey::generate());
    let genuine = shelf.put(ago(1), b"x", 1, Some(&signing())).await;
    shelf.segment(&genuine.id, 11..=20, &signing()).await;
    shelf.segment(&genuine.id, 21..=400, &other).await;
    let names = Names::new(CLUSTER);
    let absurd = format!("{}/00000000000000000005-09223372036854775807.json", names.changes_directory(&genuine.id));
    shelf.store.put_new(&absurd, "{}".into()).await.unwrap();
    let catalog = shelf.catalog(&trust()).await;
    assert_eq!(catalog.highest_revision(), 20, "what a restore goes on above comes from nobody else");
    assert_eq!(catalog.fulls[0].up_to(), 20);
    assert_eq!(catalog.damage.iter().filter(|damage| damage.is_forgery()).count(), 2, "{:?}", catalog.damage);
    let told = choose(&shelf.store, &catalog, &Wish::Newest).await.unwrap_err().to_string();
    assert!(told.contains("NOT of this cluster") && told.contains("(revisions 10 to 20)"), "{told}");
    let choice = choose(&shelf.store, &catalog, &Wish::Revision(20)).await.unwrap();
    assert_eq!(choice.segments.len(), 1);
    // One that is put between the others breaks no chain.
    shelf.segment(&genuine.id, 15..=16, &other).await;
    let catalog = shelf.catalog(&trust()).await;
    assert_eq!(catalog::chain(&shelf.store, &catalog.fulls[0]).await.unwrap().segments.len(), 1);
}

/// A segment that follows the one with this digest, or the full backup.
async fn follow(shelf: &Shelf, full: &BackupId, revisions: std::ops::RangeInclusive<i64>, previous: &str) -> String {
    let of = |revision| Revision { revision, received_ms: 1000 * revision, ..Revision::default() };
    let segment = Segment {
        cluster: String::from(CLUSTER),
        cluster_id: String::from(CLUSTER_ID),
        full: full.clone(),
        recipient: None,
        previous: previous.to_owned(),
        revisions: revisions.map(of).collect(),
    };
    segment::write(&shelf.store, &segment, 3, &signing()).await.unwrap().stored_sha256
}

#[tokio::test]
async fn junk_and_renamed_segments_between_genuine_ones_hide_none_of_them() {
    let (shelf, names) = (Shelf::new(), Names::new(CLUSTER));
    let id = &shelf.put(ago(1), b"x", 1, Some(&signing())).await.id;
    let first = follow(&shelf, id, 11..=11, id.as_str()).await;
    let second = follow(&shelf, id, 12..=13, &first).await;
    follow(&shelf, id, 14..=15, &second).await;
    let changes = shelf.directory.path().join("one").join(names.changes_directory(id));
    let path = |from: i64, to: i64| changes.join(format!("{from:020}-{to:020}"));
    let genuine = std::fs::read(path(14, 15).with_extension("json")).unwrap();
    let put = |from, to, content: &[u8], about: &[u8]| {
        std::fs::write(path(from, to), content).unwrap();
        std::fs::write(path(from, to).with_extension("json"), about).unwrap();
    };
    let reaches_the_end = async |what: &str| {
        let catalog = shelf.catalog(&trust()).await;
        assert_eq!(catalog.fulls[0].up_to(), 15, "{what}: {:?}", catalog.damage);
        assert!(!catalog.fulls[0].strays.is_empty(), "{what} is not reported: {:?}", catalog.damage);
        let choice = choose(&shelf.store, &catalog, &Wish::Revision(15)).await;
        assert_eq!(choice.unwrap_or_else(|error| panic!("{what}: {error}")).segments.len(), 3, "{what}");
        for wish in [Wish::Newest, Wish::At(Timestamp::now())] {
            let choice = choose(&shelf.store, &catalog, &wish).await;
            assert_eq!(choice.unwrap_or_else(|error| panic!("{what}: {error}")).segments.len(), 3, "{what}");
        }
    };
    put(12, 12, b"junk", b"junk");
    reaches_the_end("junk").await;
    std::fs::remove_file(path(12, 12)).unwrap();
    reaches_the_end("a manifest of nothing").await;
    put(12, 12, b"junk", &genuine);
    reaches_the_end("a renamed manifest").await;
    put(12, 12, b"junk", b"{}");
    reaches_the_end("an empty manifest").await;
}

#[tokio::test]
async fn one_large_object_stops_nothing_else() {
    let (shelf, names) = (Shelf::new(), Names::new(CLUSTER));
    let genuine = shelf.put(ago(1), b"x", 1, Some(&signing())).await;
    let first = follow(&shelf, &genuine.id, 11..=12, genuine.id.as_str()).await;
    let root = shelf.directory.path().join("one");
    let large = |path: &str| {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::File::create(path).unwrap().set_len(40 << 20).unwrap();
    };
    let other: BackupId = "20200101T000000Z-00000000".parse().unwrap();
    large(&names.manifest(&other));
    large(&names.segment_manifest(&genuine.id, quorate_backup::Span { from: 13, to: 13 }));
    // Where the next segment is to be.
    large(&names.segment(&genuine.id, quorate_backup::Span { from: 13, to: 14 }));
    let catalog = shelf.catalog(&trust()).await;
    assert_eq!((catalog.fulls.len(), catalog.fulls[0].up_to()), (1, 12));
    let told: Vec<String> = catalog.damage.iter().filter(|damage| damage.is_forgery()).map(Damage::to_string).collect();
    assert_eq!(told.iter().filter(|told| told.contains("it has 41943040 bytes")).count(), 2, "{told:?}");
    choose(&shelf.store, &catalog, &Wish::Backup(genuine.id.clone())).await.unwrap();
    follow(&shelf, &genuine.id, 13..=14, &first).await;
    // What can be copied is; a large one in the second's way goes.
    let second = shelf.second();
    let path = shelf.directory.path().join("two").join(names.manifest(&genuine.id));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::File::create(path).unwrap().set_len(40 << 20).unwrap();
    let told = mirror::copy(&shelf.store, &second, CLUSTER, &trust(), &signing()).await.unwrap_err().to_string();
    assert!(told.contains("2 objects") && told.contains(other.as_str()), "{told}");
    let copied = Catalog::load(&second, CLUSTER, Some(CLUSTER_ID), &trust()).await.unwrap();
    assert_eq!((copied.fulls.len(), copied.fulls[0].up_to(), copied.damage.len()), (1, 14, 0), "{:?}", copied.damage);
}

#[tokio::test]
async fn verifications_of_one_backup_are_not_signed_into_another() {
    let (shelf, names) = (Shelf::new(), Names::new(CLUSTER));
    let verified = shelf.put(ago(2), b"good", 1, Some(&signing())).await;
    let other = shelf.put(ago(1), b"bad", 1, Some(&signing())).await;
    let path = shelf.directory.path().join("one").join(names.manifest(&verified.id));
    let note = |manifest: &mut Manifest| manifest.verified.extend(verified.verified.clone());
    // Exchanged between the catalog and the update: genuine, signed, and of another backup; and one of the same id with another content.
    let with_other_content = Manifest { stored_sha256: other.stored_sha256.clone(), ..verified.clone() };
    let of_another_cluster = Manifest { cluster_id: String::from("0123456789abcdef"), ..verified.clone() };
    for exchanged in [other, with_other_content.signed(&signing()), of_another_cluster.signed(&signing())] {
        std::fs::write(&path, exchanged.to_json()).unwrap();
        let error = full::update_manifest(&shelf.store, &verified, Some(&signing()), note).await.unwrap_err();
        assert!(matches!(&error, Error::Damaged(damage) if matches!(**damage, Damage::Replaced { .. })), "{error:?}");
        assert_eq!(std::fs::read(&path).unwrap(), exchanged.to_json(), "it was written to");
    }
    std::fs::write(&path, verified.to_json()).unwrap();
    let updated = full::update_manifest(&shelf.store, &verified, Some(&signing()), note).await.unwrap();
    assert_eq!(updated.verified.len(), 2);
}

#[tokio::test]
async fn a_few_bytes_that_hold_many_fill_neither_disk_nor_memory() {
    const HUGE: usize = 1 << 30;
    let shelf = Shelf::new();
    let mut bomb = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    (0..HUGE >> 20).for_each(|_| std::io::Write::write_all(&mut bomb, &[0; 1 << 20]).unwrap());
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() < HUGE / 1000, "{}", bomb.len());
    // With consent to what nobody signed, its own manifest is all that bounds it.
    let manifest = shelf.put(ago(1), &bomb, 4096, None).await;
    let path = shelf.directory.path().join("out.db");
    let file = std::fs::File::create_new(&path).unwrap();
    let error = full::fetch(&shelf.store, &manifest, None, file, &path).await.unwrap_err();
    assert!(error.to_string().contains("more than the 4128 bytes"), "{error}");
    assert!(std::fs::metadata(&path).unwrap().len() <= 4128);

    let names = Names::new(CLUSTER);
    shelf.segment(&manifest.id, 11..=12, &signing()).await;
    let catalog = shelf.catalog(&Trust::anything(Timestamp::now())).await;
    let mut segment = catalog::chain(&shelf.store, &catalog.fulls[0]).await.unwrap().segments.remove(0);
    let at = shelf.directory.path().join("one").join(names.segment(&manifest.id, segment.span));
    std::fs::write(at, &bomb).unwrap();
    (segment.stored_bytes, segment.stored_sha256) = (bomb.len() as u64, sha256(&bomb));
    for plain_bytes in [None, Some(100), Some(u64::MAX)] {
        segment.plain_bytes = plain_bytes;
        let error = segment::read(&shelf.store, &segment, None).await.err().unwrap();
        assert!(matches!(&error, Error::Damaged(damage) if matches!(**damage, Damage::Unreadable { .. })), "{error:?}");
    }
}
