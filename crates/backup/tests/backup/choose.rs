//! The choice of a backup where it is not simply the latest, in a store with manually created manifests and segments.

use jiff::Timestamp;
use quorate_backup::catalog::Catalog;
use quorate_backup::choose::{Choice, Stop, Wish, choose};
use quorate_backup::manifest::{Beside, Hash, Manifest, Taken};
use quorate_backup::retention::Reason;
use quorate_backup::segment::{self, Revision, Segment, SegmentManifest};
use quorate_backup::settings::{Location, Patience};
use quorate_backup::{BackupId, Names, Store, Trust, prune};
use quorate_core::spec::Keep;

use crate::common::signing;

const CLUSTER: &str = "orders";
const CLUSTER_ID: &str = "5f2c9c0de1a74b1c";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + second).unwrap()
}

struct Shelf {
    directory: tempfile::TempDir,
    store: Store,
}

impl Shelf {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&Location::Directory(directory.path().to_owned()), None, Patience::default()).unwrap();
        Shelf { directory, store }
    }

    /// A full backup that was taken at this second and ends with this revision.
    async fn full(&self, second: i64, revision: i64) -> BackupId {
        let (id, names) = (BackupId::new(at(second), "00000000"), Names::new(CLUSTER));
        let manifest = Manifest {
            format: 1,
            id: id.clone(),
            cluster: String::from(CLUSTER),
            cluster_id: String::from(CLUSTER_ID),
            etcd_version: String::from("3.5.30"),
            taken: Taken { began: at(second), opened: at(second), ended: at(second) },
            from_member: String::from("etcd-1"),
            members: Vec::new(),
            revision,
            revision_at_most: revision,
            hash: Hash { hash: 0, revision, compact_revision: 0 },
            keys: 0,
            db_bytes: 1,
            snapshot_sha256: String::new(),
            stored_bytes: 1,
            stored_sha256: String::new(),
            recipient: None,
            beside: Beside::default(),
            sealed_for: Vec::new(),
            verified: Vec::new(),
            signature: None,
        };
        let manifest = manifest.signed(&signing());
        self.store.put_new(&names.snapshot(&id), "x".into()).await.unwrap();
        self.store.put_new(&names.manifest(&id), manifest.to_json().into()).await.unwrap();
        id
    }

    /// Changes on top of it, each segment of these revisions, received from this second to that. Returns the manifests.
    async fn changes(&self, id: &BackupId, segments: &[(i64, i64, i64, i64)]) -> Vec<SegmentManifest> {
        let (mut previous, mut stored) = (id.as_str().to_owned(), Vec::new());
        for (first, last, from, to) in segments.iter().copied() {
            let received = |revision| if revision == first { from } else { to };
            let revision = |revision: i64| Revision {
                revision,
                received_ms: at(received(revision)).as_millisecond(),
                ..Revision::default()
            };
            let segment = Segment {
                cluster: String::from(CLUSTER),
                cluster_id: String::from(CLUSTER_ID),
                full: id.clone(),
                recipient: None,
                previous: previous.clone(),
                revisions: (first..=last).map(revision).collect(),
            };
            let manifest = segment::write(&self.store, &segment, 3, &signing()).await.unwrap();
            previous.clone_from(&manifest.stored_sha256);
            stored.push(manifest);
        }
        stored
    }

    fn spoil(&self, path: &str) {
        std::fs::write(self.directory.path().join(path), "{").unwrap();
    }

    async fn catalog(&self) -> Catalog {
        Catalog::load(&self.store, CLUSTER, Some(CLUSTER_ID), &Trust::only(signing().signer(), at(10_000)))
            .await
            .unwrap()
    }

    async fn choose(&self, wish: Wish) -> Result<Choice, String> {
        choose(&self.store, &self.catalog().await, &wish).await.map_err(|error| error.to_string())
    }
}

#[track_caller]
fn leads(choice: &Choice, full: &BackupId, to: i64) {
    let reached = choice.segments.last().map_or(choice.full.revision, |last| last.span.to);
    assert_eq!((&choice.full.id, reached), (full, to), "{choice:?}");
}

/// A recorder continued with the first backup while somebody took a second manually.
async fn taken_by_hand() -> (Shelf, BackupId, BackupId) {
    let shelf = Shelf::new();
    let first = shelf.full(0, 10).await;
    shelf.changes(&first, &[(11, 20, 1, 5), (21, 30, 101, 105), (31, 40, 120, 125)]).await;
    let second = shelf.full(100, 20).await;
    (shelf, first, second)
}

#[tokio::test]
async fn the_backup_that_reaches_furthest_is_restored_even_if_another_is_later() {
    let (shelf, first, second) = taken_by_hand().await;
    let choice = shelf.choose(Wish::Newest).await.unwrap();
    leads(&choice, &first, 40);
    assert_eq!(choice.stop, Stop::AtTheEnd);
    assert_eq!(choice.notes, [format!("backup {second} is later, but reaches only revision 20")]);
    // As soon as the later one leads as far, it is the shorter way.
    shelf.changes(&second, &[(21, 40, 130, 131)]).await;
    let choice = shelf.choose(Wish::Newest).await.unwrap();
    leads(&choice, &second, 40);
    assert!(choice.notes.is_empty(), "{choice:?}");
}

#[tokio::test]
async fn the_backup_that_reaches_furthest_is_not_pruned_even_if_another_is_later() {
    let (shelf, first, second) = taken_by_hand().await;
    let keep = Keep { last: 1, ..Keep::NONE };
    let plan = prune::plan(&shelf.catalog().await, &keep, at(1000));
    assert_eq!((plan.remove.len(), &plan.keep[&first]), (0, &vec![Reason::Furthest]));
    shelf.changes(&second, &[(21, 40, 130, 131)]).await;
    assert_eq!(prune::plan(&shelf.catalog().await, &keep, at(1000)).remove, [first]);
}

#[tokio::test]
async fn a_revision_is_found_on_whichever_backup_leads_there() {
    let (shelf, first, second) = taken_by_hand().await;
    for revision in [15, 25, 40] {
        let choice = shelf.choose(Wish::Revision(revision)).await.unwrap();
        assert_eq!((&choice.full.id, choice.stop), (&first, Stop::AfterRevision(revision)));
    }
    assert_eq!(shelf.choose(Wish::Revision(20)).await.unwrap().full.id, second);
    let told = shelf.choose(Wish::Revision(41)).await.unwrap_err();
    assert!(told.starts_with("revision 41 was not recorded: the changes end at revision 40"), "{told}");
}

#[tokio::test]
async fn a_moment_is_found_on_whichever_backup_knows_more_of_it() {
    let (shelf, first, second) = taken_by_hand().await;
    // The recorder came to the second one late: what it received before is only known with that time there.
    shelf.changes(&second, &[(21, 40, 130, 130), (41, 50, 140, 145)]).await;
    leads(&shelf.choose(Wish::At(at(100))).await.unwrap(), &second, 20);
    leads(&shelf.choose(Wish::At(at(110))).await.unwrap(), &first, 30);
    leads(&shelf.choose(Wish::At(at(126))).await.unwrap(), &first, 40);
    leads(&shelf.choose(Wish::At(at(142))).await.unwrap(), &second, 50);
    let after_all = shelf.choose(Wish::At(at(200))).await.unwrap();
    leads(&after_all, &second, 50);
    assert!(after_all.notes[0].contains("the last change that was recorded came at"), "{:?}", after_all.notes);
}

#[tokio::test]
async fn a_restore_never_silently_uses_an_older_backup_than_requested() {
    let shelf = Shelf::new();
    let first = shelf.full(0, 10).await;
    shelf.changes(&first, &[(11, 20, 1, 50)]).await;
    let second = shelf.full(100, 20).await;
    let third = shelf.full(200, 30).await;
    shelf.spoil(&Names::new(CLUSTER).manifest(&second));
    // What the second held is not known, and nothing else knows of that moment.
    let told = shelf.choose(Wish::At(at(150))).await.unwrap_err();
    let words = ["cannot be reached", second.as_str(), "cannot be read", "still good", first.as_str()];
    assert!(words.iter().all(|word| told.contains(word)), "{told}");
    // A moment before it was begun, and one after a whole one, do not need it.
    leads(&shelf.choose(Wish::At(at(40))).await.unwrap(), &first, 20);
    leads(&shelf.choose(Wish::At(at(250))).await.unwrap(), &third, 30);
    // Where the changes on top of the first continue beyond that moment, it is only reported.
    let shelf = Shelf::new();
    let first = shelf.full(0, 10).await;
    shelf.changes(&first, &[(11, 20, 1, 50), (21, 30, 140, 160)]).await;
    let second = shelf.full(100, 20).await;
    shelf.spoil(&Names::new(CLUSTER).manifest(&second));
    let choice = shelf.choose(Wish::At(at(150))).await.unwrap();
    leads(&choice, &first, 30);
    assert!(choice.notes[0].starts_with("skipped") && choice.notes[0].contains(second.as_str()), "{choice:?}");
}

#[tokio::test]
async fn damage_is_reported_if_another_backup_reaches_as_far_and_refused_otherwise() {
    let (shelf, first, second) = taken_by_hand().await;
    shelf.changes(&second, &[(21, 40, 130, 131)]).await;
    let names = Names::new(CLUSTER);
    std::fs::remove_file(shelf.directory.path().join(names.snapshot(&second))).unwrap();
    let choice = shelf.choose(Wish::Newest).await.unwrap();
    leads(&choice, &first, 40);
    assert!(choice.notes[0].contains(&format!("{second}/snapshot is missing")), "{choice:?}");
    // A segment without which the first does not lead there any more.
    let last = shelf.catalog().await.fulls[0].spans[2];
    std::fs::remove_file(shelf.directory.path().join(names.segment(&first, last))).unwrap();
    let told = shelf.choose(Wish::Newest).await.unwrap_err();
    assert!(told.contains("is missing") && told.contains(&format!("{first} (revisions 10 to 30)")), "{told}");
    let told = shelf.choose(Wish::Revision(40)).await.unwrap_err();
    assert!(told.contains("the changes are good up to revision 30"), "{told}");
}

#[tokio::test]
async fn the_highest_revision_is_that_of_anything_that_was_ever_stored() {
    let (shelf, first, second) = taken_by_hand().await;
    assert_eq!(shelf.catalog().await.highest_revision(), 40);
    // A hole in the way there, and a manifest that cannot be read: clients have seen those revisions nevertheless.
    let spans = shelf.catalog().await.fulls[0].spans.clone();
    std::fs::remove_file(shelf.directory.path().join(Names::new(CLUSTER).segment(&first, spans[1]))).unwrap();
    assert_eq!(shelf.catalog().await.highest_revision(), 40);
    shelf.spoil(&Names::new(CLUSTER).manifest(&first));
    assert_eq!(shelf.catalog().await.highest_revision(), 40);
    assert_eq!(Catalog::ids_after(&shelf.store, CLUSTER, &first).await.unwrap(), [second.clone()].into());
    assert!(Catalog::ids_after(&shelf.store, CLUSTER, &second).await.unwrap().is_empty());
}
