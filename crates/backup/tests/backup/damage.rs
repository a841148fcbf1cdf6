//! Damage of every kind: verification and the preparation of a restore both find it, and report what is damaged and what is left.

use std::fs;
use std::path::Path;
use std::time::Duration;

use quorate_backup::catalog::{self, Full};
use quorate_backup::choose::{Wish, choose};
use quorate_backup::full;
use quorate_backup::manifest::Outcome;
use quorate_backup::prepare::prepare;
use quorate_backup::recorder::{Command, Ended, Recorder, Recording};
use quorate_backup::verify::verify;
use quorate_backup::{Damage, Error, Names};
use tokio::sync::mpsc;

use crate::common::{CLUSTER, Living, Operator, Room, VERSION, signing};

/// One good backup, and one with three segments on top of it.
struct Story {
    room: Room,
    operator: Operator,
    older: Full,
    newest: Full,
}

impl Story {
    async fn new() -> Self {
        let (room, operator, living) = (Room::new(VERSION), Operator::new(), Living::start(VERSION).await);
        living.fill(10).await;
        room.create(&living, &operator.settings()).await;
        tokio::time::sleep(Duration::from_millis(1100)).await;
        living.fill(10).await;
        room.create(&living, &operator.settings()).await;
        for _ in 0..3 {
            let full = room.newest().await;
            let chain = catalog::chain(&room.store, &full).await.unwrap();
            let mut recording = Recording::new(room.store.clone(), 3, Recorder::resume(&full, &chain), signing());
            let (tell, mut commands) = mpsc::channel(1);
            let story = async {
                living.fill(3).await;
                tokio::time::sleep(Duration::from_millis(300)).await;
                tell.send(Command::Stop).await.unwrap();
            };
            let (ended, ()) = tokio::join!(recording.run(&living, &mut commands, &|_| {}), story);
            assert!(matches!(ended, Ended::Stopped), "{ended:?}");
        }
        let mut fulls = room.catalog().await.fulls;
        let (newest, older) = (fulls.pop().unwrap(), fulls.pop().unwrap());
        assert_eq!((newest.spans.len(), newest.manifest.revision, newest.up_to()), (3, 21, 30));
        Story { room, operator, older, newest }
    }

    fn snapshot(&self) -> std::path::PathBuf {
        self.room.file(&Names::new(CLUSTER).snapshot(self.newest.id()))
    }

    fn segment(&self, n: usize) -> std::path::PathBuf {
        self.room.file(&Names::new(CLUSTER).segment(self.newest.id(), self.newest.spans[n]))
    }

    /// What verify and restore say; both must refuse.
    async fn refusals(&self) -> (String, String) {
        let catalog = self.room.catalog().await;
        let verified = match catalog.find(self.newest.id()) {
            None => catalog.damage.iter().map(Damage::to_string).collect(),
            Some(full) => match full::key_of(&self.room.store, &full.manifest, Some(&self.operator.identities)).await {
                Err(error) => chain_of(&error),
                Ok(key) => {
                    match verify(&self.room.store, full, key, &self.room.workshop(), &[], Some(&signing())).await {
                        Err(error) => chain_of(&error),
                        Ok(verification) => match verification.outcome {
                            Outcome::Failed { why, .. } => why,
                            Outcome::Ok(proven) => panic!("it was taken for good: {proven:?}"),
                        },
                    }
                }
            },
        };
        (verified, self.restore().await.expect_err("it was restored"))
    }

    async fn restore(&self) -> Result<i64, String> {
        let catalog = self.room.catalog().await;
        let choice = choose(&self.room.store, &catalog, &Wish::Newest).await.map_err(|error| chain_of(&error))?;
        let key = full::key_of(&self.room.store, &choice.full, Some(&self.operator.identities)).await;
        let key = key.map_err(|error| chain_of(&error))?;
        let (workshop, directory) = (self.room.workshop(), self.room.prepared());
        let prepared = prepare(&self.room.store, &catalog, &choice, key, &workshop, &directory, &|_| {}).await;
        prepared.map(|prepared| prepared.revision).map_err(|error| chain_of(&error))
    }

    async fn can_restore(&self, wish: Wish) -> i64 {
        let catalog = self.room.catalog().await;
        let choice = choose(&self.room.store, &catalog, &wish).await.unwrap();
        let key = full::key_of(&self.room.store, &choice.full, Some(&self.operator.identities)).await.unwrap();
        let (workshop, directory) = (self.room.workshop(), self.room.prepared());
        let prepared = prepare(&self.room.store, &catalog, &choice, key, &workshop, &directory, &|_| {}).await;
        prepared.unwrap().revision
    }
}

fn chain_of(error: &Error) -> String {
    let source = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
    format!("{error}{source}")
}

fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn cut(path: &Path) {
    let bytes = fs::read(path).unwrap();
    fs::write(path, &bytes[..bytes.len() - 3]).unwrap();
}

fn assert_both(refusals: &(String, String), words: &[&str]) {
    for word in words {
        assert!(refusals.0.contains(word), "verify does not say `{word}`: {}", refusals.0);
        assert!(refusals.1.contains(word), "restore does not say `{word}`: {}", refusals.1);
    }
}

#[tokio::test]
async fn an_undamaged_backup_is_restored() {
    let story = Story::new().await;
    assert_eq!(story.restore().await, Ok(30));
}

#[tokio::test]
async fn a_flipped_byte_in_the_snapshot() {
    let story = Story::new().await;
    flip(&story.snapshot());
    let refusals = story.refusals().await;
    assert_both(&refusals, &["/snapshot is not what was stored", story.newest.id().as_str()]);
    assert!(
        refusals.1.contains(&format!("still good, as far as checked: {} (revision 11)", story.older.id())),
        "{}",
        refusals.1
    );
    assert_eq!(story.can_restore(Wish::Backup(story.older.id().clone())).await, 11);
}

#[tokio::test]
async fn a_truncated_snapshot() {
    let story = Story::new().await;
    cut(&story.snapshot());
    let refusals = story.refusals().await;
    assert_both(&refusals, &["/snapshot has", "it was cut or replaced"]);
    assert!(refusals.1.contains(story.older.id().as_str()), "{}", refusals.1);
}

#[tokio::test]
async fn a_flipped_byte_and_a_cut_in_a_segment() {
    let story = Story::new().await;
    flip(&story.segment(1));
    let refusals = story.refusals().await;
    assert_both(&refusals, &["00000000000000000025-00000000000000000027 is not what was stored"]);
    assert!(refusals.1.contains("(revisions 21 to 24)"), "{}", refusals.1);
    assert_eq!(story.can_restore(Wish::Revision(24)).await, 24);
    cut(&story.segment(1));
    assert_both(&story.refusals().await, &["00000000000000000025-00000000000000000027 has"]);
}

#[tokio::test]
async fn a_missing_segment() {
    let story = Story::new().await;
    fs::remove_file(story.segment(1)).unwrap();
    assert_both(&story.refusals().await, &["00000000000000000025-00000000000000000027 is missing"]);
    fs::remove_file(story.segment(1).with_extension("json")).unwrap();
    assert_both(&story.refusals().await, &["changes are missing between revision 24 and 28"]);
    assert_eq!(story.can_restore(Wish::Revision(23)).await, 23);
    let refused = choose(&story.room.store, &story.room.catalog().await, &Wish::Revision(29)).await.unwrap_err();
    assert!(refused.to_string().contains("good up to revision 24"), "{refused}");
}

#[tokio::test]
async fn exchanged_segments() {
    let story = Story::new().await;
    let exchange = |one: &Path, other: &Path| {
        let (first, second) = (fs::read(one).unwrap(), fs::read(other).unwrap());
        fs::write(one, second).unwrap();
        fs::write(other, first).unwrap();
    };
    exchange(&story.segment(0), &story.segment(1));
    let refusals = story.refusals().await;
    assert_both(&refusals, &["00000000000000000022-00000000000000000024"]);
    // Their manifests too: now each is what its manifest says.
    exchange(&story.segment(0).with_extension("json"), &story.segment(1).with_extension("json"));
    assert_both(&story.refusals().await, &["it was exchanged for another"]);
}

#[tokio::test]
async fn a_segment_whose_manifest_was_made_to_fit() {
    let story = Story::new().await;
    let path = story.segment(2).with_extension("json");
    let mut manifest: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    manifest["previous"] = "0".repeat(64).into();
    fs::write(&path, manifest.to_string()).unwrap();
    assert_both(
        &story.refusals().await,
        &["00000000000000000028-00000000000000000030.json is NOT of this cluster", "its signature does not fit"],
    );
}

#[tokio::test]
async fn a_wrong_key_and_a_missing_key() {
    let mut story = Story::new().await;
    story.operator = Operator::new();
    assert_both(&story.refusals().await, &["/key", "encrypted to other recipients"]);
    fs::remove_file(story.room.file(&Names::new(CLUSTER).key(story.newest.id()))).unwrap();
    assert_both(&story.refusals().await, &["/key is missing"]);
}

#[tokio::test]
async fn a_manifest_of_another_cluster_and_one_that_is_none() {
    let story = Story::new().await;
    let path = story.room.file(&Names::new(CLUSTER).manifest(story.newest.id()));
    let good = fs::read_to_string(&path).unwrap();
    fs::write(&path, good.replace(crate::common::CLUSTER_ID, "0123456789abcdef")).unwrap();
    let refusals = story.refusals().await;
    assert_both(&refusals, &["manifest.json belongs to another cluster", "0123456789abcdef"]);
    assert!(refusals.1.contains(&format!("still good, as far as checked: {}", story.older.id())), "{}", refusals.1);
    fs::write(&path, "{").unwrap();
    assert_both(&story.refusals().await, &["manifest.json cannot be read"]);
    fs::write(&path, good.replacen("\"format\": 1", "\"format\": 2", 1)).unwrap();
    assert_both(&story.refusals().await, &["use a newer one"]);
}
