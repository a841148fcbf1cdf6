//! Damage in the store. `verify` and `restore` must report what is damaged and what can still be restored, without touching a
//! member.

use std::collections::BTreeMap;

use crate::backups::backed::{Backed, OPERATOR, V35, make_identity, object};
use crate::common::store::object_store;
use crate::common::trio::Watched;
use crate::common::{eventually, signal};

/// Two full backups and three segments on top of the newer one.
struct Story {
    backed: Backed,
    older: String,
    newer: String,
    /// The revisions of each segment.
    spans: Vec<String>,
}

impl Story {
    fn new() -> Self {
        let backed = Backed::up("damage", 1, V35);
        let older = backed.create();
        backed.put_numbered(11..=15, "between");
        let newer = backed.create();
        for number in 1..=3 {
            record(&backed, &newer, number);
        }
        let spans = segments(&backed, &newer);
        Story { backed, older, newer, spans }
    }

    fn full(&self, name: &str) -> String {
        object(&self.backed.prefix, &format!("full/{}/{name}", self.newer))
    }

    /// The path of a segment, or of its manifest.
    fn segment(&self, number: usize, ending: &str) -> String {
        object(&self.backed.prefix, &format!("changes/{}/{}{ending}", self.newer, self.spans[number]))
    }

    /// Damages these objects, looks what is said, and puts them back.
    #[track_caller]
    fn damaged(&self, paths: &[String], damage: impl FnOnce(&[String]), words: &[&str], still: &[&str]) {
        let whole: Vec<Vec<u8>> = paths.iter().map(|path| object_store().get(path)).collect();
        damage(paths);
        self.told(OPERATOR, words, still);
        for (path, bytes) in paths.iter().zip(whole) {
            object_store().put(path, &bytes);
        }
    }

    /// Both commands refuse with these words, and the cluster serves as before.
    #[track_caller]
    fn told(&self, identity: &str, words: &[&str], still: &[&str]) {
        let before = (self.backed.pids(), self.backed.contents());
        let verified = self.backed.backup("verify", &[&self.newer, "--identity", identity]).fails();
        let arguments = ["restore", "c.yaml", "--yes", "--identity", identity];
        let restored = self.backed.quorate(&arguments).expect(1);
        for (verb, told) in [("verify", verified.text()), ("restore", restored.text())] {
            let missing: Vec<_> = words.iter().chain(still).filter(|word| !told.contains(**word)).collect();
            assert!(missing.is_empty(), "{verb} does not say {missing:?}:\n{told}");
        }
        assert_eq!((self.backed.pids(), self.backed.contents()), before, "somebody was touched");
    }

    /// The last revision of a segment, counted from 0.
    fn end_of(&self, number: usize) -> i64 {
        let (_, to) = self.spans[number].split_once('-').expect("a span");
        to.parse().expect("a revision")
    }
}

/// Lets `backup watch` record some changes, until they are stored.
fn record(backed: &Backed, full: &str, number: usize) {
    let watch = Watched::new(backed.sandbox.spawn(&["backup", "watch", "c"]));
    let pid = watch.child.id();
    backed.etcdctl(&["put", &format!("/a/recorded-{number}"), "x"]).ok();
    backed.etcdctl(&["put", "/a/01", &format!("recorded {number}")]).ok();
    eventually("the changes are stored", 30, || segments(backed, full).len() == number);
    signal(pid, "INT");
    watch.end().ok();
    assert_eq!(segments(backed, full).len(), number, "one segment for each run");
}

/// The segments that have a manifest, in order.
fn segments(backed: &Backed, full: &str) -> Vec<String> {
    let names = object_store().names(&object(&backed.prefix, &format!("changes/{full}")));
    names.iter().filter_map(|name| name.strip_suffix(".json")).map(str::to_owned).collect()
}

fn flip(path: &str) {
    let mut bytes = object_store().get(path);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    object_store().put(path, &bytes);
}

fn cut(path: &str) {
    let bytes = object_store().get(path);
    object_store().put(path, &bytes[..bytes.len() - 3]);
}

fn exchange(one: &str, other: &str) {
    let (first, second) = (object_store().get(one), object_store().get(other));
    object_store().put(one, &second);
    object_store().put(other, &first);
}

#[test]
fn every_damage_is_reported_before_any_data_is_replaced() {
    let story = Story::new();
    let (older, newer) = (story.older.as_str(), story.newer.as_str());
    story.backed.verify(&[newer]).ok();

    let snapshot = [story.full("snapshot")];
    let path = snapshot[0].split_once('/').expect("below the prefix").1;
    story.damaged(&snapshot, |p| flip(&p[0]), &[path, "is not what was stored"], &["still good", older]);
    story.damaged(&snapshot, |p| cut(&p[0]), &[path, "it was cut or replaced"], &["still good", older]);

    let middle = [story.segment(1, "")];
    let reached = format!("to {}", story.end_of(0));
    let span = story.spans[1].as_str();
    story.damaged(&middle, |p| flip(&p[0]), &[span, "is not what was stored"], &[newer, &reached]);
    story.damaged(&middle, |p| cut(&p[0]), &[span, "it was cut or replaced"], &[newer, &reached]);
    story.damaged(&middle, |p| object_store().remove(&p[0]), &[span, "is missing"], &[newer, &reached]);

    let exchanged = [0, 1].map(|number| story.segment(number, ""));
    story.damaged(&exchanged, |p| exchange(&p[0], &p[1]), &[&story.spans[0]], &["still good", older]);
    let with_manifests = [(0, ""), (1, ""), (0, ".json"), (1, ".json")].map(|(n, ending)| story.segment(n, ending));
    let both = |p: &[String]| {
        exchange(&p[0], &p[1]);
        exchange(&p[2], &p[3]);
    };
    story.damaged(&with_manifests, both, &[&story.spans[0], "it was exchanged for another"], &["still good", older]);

    let manifest = [story.full("manifest.json")];
    let of_another_cluster = |p: &[String]| {
        let id = story.backed.sandbox.ledger("c")["cluster_id"].as_str().expect("an id").to_owned();
        let text = String::from_utf8(object_store().get(&p[0])).expect("text");
        assert!(text.contains(&id), "{text}");
        object_store().put(&p[0], text.replace(&id, "0123456789abcdef").as_bytes());
    };
    let words = ["manifest.json belongs to another cluster", "0123456789abcdef"];
    story.damaged(&manifest, of_another_cluster, &words, &["still good", older]);

    make_identity(&story.backed.sandbox, "stranger.key");
    story.told("stranger.key", &["/key", "encrypted to other recipients"], &[]);

    remaining_backups_can_be_restored(&story);
}

/// The word of what can still be had is true: up to the end of the last whole segment, and the older backup.
fn remaining_backups_can_be_restored(story: &Story) {
    let backed = &story.backed;
    object_store().remove(&story.segment(1, ""));
    let now: BTreeMap<String, String> = backed.contents();
    backed.restore(&["--revision", &story.end_of(0).to_string()]).ok();
    let then = backed.contents();
    assert_eq!(then["/a/01"], "recorded 1");
    assert!(then.contains_key("/a/recorded-1") && !then.contains_key("/a/recorded-2"), "{then:?}");
    assert!(now.contains_key("/a/recorded-3"));
    backed.restore(&["--backup", &story.older]).ok();
    assert!(backed.contents().values().all(|value| value == "first"), "{:?}", backed.contents());
    backed.assert_settled();
    life_goes_on(story);
}

/// Earlier backups stay good, and recording starts again: what would come next in their chain does not exist any more.
fn life_goes_on(story: &Story) {
    let backed = &story.backed;
    backed.verify(&[&story.older]).ok();
    let watch = Watched::new(backed.sandbox.spawn(&["backup", "watch", "c"]));
    let newest = || backed.list().last().and_then(|newest| newest["id"].as_str().map(str::to_owned));
    eventually("a full backup is taken", 30, || newest().is_some_and(|id| id != story.newer));
    backed.etcdctl(&["put", "/a/after", "x"]).ok();
    let id = newest().expect("a backup");
    eventually("the change is stored", 30, || !segments(backed, &id).is_empty());
    signal(watch.child.id(), "INT");
    watch.end().ok();
    backed.verify(&[&id]).ok();
}
