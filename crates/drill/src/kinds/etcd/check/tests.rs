//! Good histories, and the same with one error, which the checker must find and report with its operations.

use std::collections::BTreeMap;

use super::*;
use crate::kinds::etcd::history::{FinalRead, Head, TakenBack, WatchRecord, Watched};

/// A history in the making. Moments are in milliseconds; every change that it is given is shown by both watches.
struct Story {
    history: History,
    changes: Vec<(i64, &'static str, Option<&'static str>)>,
}

const LAST: i64 = 100;

fn version(value: &str, mod_revision: i64) -> Option<Found> {
    Some(Found { value: value.to_owned(), mod_revision })
}

fn put(key: &str, value: &str) -> Call {
    Call::Put { key: key.to_owned(), value: value.to_owned(), lease: None }
}

fn get(key: &str) -> Call {
    Call::Get { key: key.to_owned() }
}

fn swap(key: &str, expected: i64, value: &str) -> Call {
    Call::Swap { key: key.to_owned(), expected, value: value.to_owned() }
}

fn delete(key: &str, expected: i64) -> Call {
    Call::Delete { key: key.to_owned(), expected }
}

fn written(revision: i64) -> Outcome {
    Outcome::Written { revision }
}

fn read(revision: i64, found: Option<Found>) -> Outcome {
    Outcome::Read { revision, found }
}

fn unknown() -> Outcome {
    Outcome::Unknown { why: String::from("etcd did not answer in time") }
}

impl Story {
    fn new() -> Self {
        let head = Head { clients: 2, watchers: 2, ..Head::default() };
        Story { history: History { head, ..History::default() }, changes: Vec::new() }
    }

    fn did(mut self, client: u32, from: u64, to: u64, call: Call, outcome: Outcome) -> Self {
        let id = self.history.operations.len() as u64 + 1;
        let endpoint = String::from("https://127.0.0.1:2379");
        let (called, ended) = (from * 1000, to * 1000);
        self.history.operations.push(Operation { id, client, endpoint, call, called, ended, outcome });
        self
    }

    fn changed(mut self, revision: i64, key: &'static str, value: Option<&'static str>) -> Self {
        self.changes.push((revision, key, value));
        self
    }

    /// Both watches show all changes, and the end holds what was written last.
    fn told(mut self) -> History {
        for watcher in 0..2 {
            let record = |at, what| WatchRecord { watcher, at, what };
            let endpoint = String::from("https://127.0.0.1:2379");
            self.history.watches.push(record(0, Watched::Began { endpoint, from: 11 }));
            for (revision, key, value) in &self.changes {
                let (key, value) = ((*key).to_owned(), value.map(str::to_owned));
                self.history.watches.push(record(90_000, Watched::Saw { revision: *revision, key, value }));
            }
            self.history.watches.push(record(99_000, Watched::Ended { through: LAST }));
        }
        let mut pairs = BTreeMap::new();
        for (revision, key, value) in &self.changes {
            match value {
                Some(value) => pairs.insert((*key).to_owned(), version(value, *revision).unwrap()),
                None => pairs.remove(*key),
            };
        }
        for endpoint in ["e1", "e2"] {
            let read = FinalRead { endpoint: endpoint.to_owned(), revision: LAST, pairs: Ok(pairs.clone()) };
            self.history.finals.push(read);
        }
        self.history
    }
}

fn nothing_is_too_little() -> Least {
    Least { of_kind: BTreeMap::new(), of_client: 0, of_watcher: 0 }
}

fn violations(history: &History) -> Vec<Violation> {
    check(history, &nothing_is_too_little()).violations
}

/// The history is refused for this one reason, in words that name all these.
#[track_caller]
fn assert_refused(history: &History, rule: Rule, names: &[&str]) {
    let found = violations(history);
    let fits = |v: &Violation| v.rule == rule && names.iter().all(|name| v.text.contains(name));
    assert!(found.iter().any(fits), "{rule:?} naming {names:?} in {found:#?}");
}

#[track_caller]
fn assert_good(history: &History) {
    assert_eq!(violations(history), []);
}

/// Two puts, a swap, reads of both clients.
fn good() -> Story {
    Story::new()
        .did(0, 10, 12, put("a", "0-1"), written(11))
        .did(1, 11, 13, put("b", "1-1"), written(12))
        .did(1, 14, 15, get("a"), read(12, version("0-1", 11)))
        .did(0, 14, 16, swap("a", 11, "0-2"), written(13))
        .did(1, 17, 18, get("a"), read(13, version("0-2", 13)))
        .changed(11, "a", Some("0-1"))
        .changed(12, "b", Some("1-1"))
        .changed(13, "a", Some("0-2"))
}

#[test]
fn a_good_history_is_accepted() {
    assert_good(&good().told());
    let refused_swap = good().did(1, 20, 21, swap("a", 11, "1-2"), read(13, version("0-2", 13)));
    assert_good(&refused_swap.told());
    let deleted = good().did(1, 20, 21, delete("a", 13), written(14)).did(0, 22, 23, get("a"), read(14, None));
    assert_good(&deleted.changed(14, "a", None).told());
    let overlapping = good().did(0, 20, 30, get("a"), read(13, version("0-2", 13)));
    let overlapping = overlapping.did(1, 20, 25, put("a", "1-2"), written(14)).changed(14, "a", Some("1-2"));
    assert_good(&overlapping.told());
}

#[test]
fn a_write_without_an_answer_may_have_happened_or_not() {
    let happened = good().did(1, 20, 21, put("a", "1-2"), unknown()).changed(14, "a", Some("1-2"));
    let happened = happened.did(0, 30, 31, get("a"), read(14, version("1-2", 14))).told();
    assert_good(&happened);
    assert_eq!(check(&happened, &nothing_is_too_little()).settled, Settled { happened: 1, did_not_happen: 0 });

    let not = good().did(1, 20, 21, put("a", "1-2"), unknown()).did(0, 30, 31, get("a"), read(13, version("0-2", 13)));
    let not = not.told();
    assert_good(&not);
    assert_eq!(check(&not, &nothing_is_too_little()).settled, Settled { happened: 0, did_not_happen: 1 });

    let deleted = good().did(1, 20, 21, delete("a", 13), unknown()).changed(14, "a", None);
    assert_good(&deleted.did(0, 30, 31, get("a"), read(14, None)).told());
}

#[test]
fn a_write_that_happened_late_is_not_read_before() {
    let early = good().did(0, 20, 21, get("a"), read(14, version("1-2", 14)));
    let early = early.did(1, 30, 31, put("a", "1-2"), unknown()).changed(14, "a", Some("1-2"));
    assert_refused(&early.told(), Rule::RealTime, &["operation 7", "operation 6", "revision 14"]);
}

#[test]
fn a_stale_read_is_refused() {
    let old_value = good().did(1, 20, 21, get("a"), read(13, version("0-1", 11)));
    assert_refused(&old_value.told(), Rule::StaleRead, &["operation 6", "0-1 of revision 11", "operation 4"]);
    let old_revision = good().did(1, 20, 21, get("a"), read(12, version("0-1", 11)));
    assert_refused(&old_revision.told(), Rule::StaleRead, &["operation 6", "operation 4"]);
    let missing = good().did(1, 20, 21, get("a"), read(13, None));
    assert_refused(&missing.told(), Rule::StaleRead, &["operation 6", "found nothing", "operation 4"]);
}

#[test]
fn a_lost_acknowledgement_is_refused() {
    let lost = good().did(1, 20, 21, put("a", "1-2"), written(14));
    assert_refused(&lost.told(), Rule::Lost, &["operation 6", "put a = 1-2", "passed that revision"]);

    let mut gone_in_the_end = good().told();
    let pairs = gone_in_the_end.finals[1].pairs.as_mut().unwrap();
    pairs.insert(String::from("a"), version("0-1", 11).unwrap());
    assert_refused(&gone_in_the_end, Rule::Lost, &["e2 holds 0-1", "operation 4"]);

    let mut unread = good().told();
    unread.finals[0].pairs = Err(String::from("no leader"));
    assert_refused(&unread, Rule::Unread, &["e1", "no leader"]);
    unread.finals.clear();
    assert_refused(&unread, Rule::Unread, &["not read through any"]);
}

#[test]
fn a_double_swap_is_refused() {
    let double = good().did(1, 20, 21, swap("a", 11, "1-2"), written(14)).changed(14, "a", Some("1-2"));
    assert_refused(&double.told(), Rule::Swap, &["operation 6", "operation 4"]);
    let same_revision = good().did(1, 14, 16, swap("a", 11, "1-2"), written(13));
    assert_refused(&same_revision.told(), Rule::Lost, &["operation 6", "operation 4"]);
    let refused_yet_done = good().did(1, 20, 21, swap("a", 13, "1-2"), read(13, version("0-2", 13)));
    let refused_yet_done = refused_yet_done.changed(14, "a", Some("1-2")).told();
    assert_refused(&refused_yet_done, Rule::Swap, &["operation 6", "did not happen"]);
    assert_refused(&refused_yet_done, Rule::Swap, &["operation 6", "refused though it held"]);
    let deleted_another = good().did(1, 20, 21, delete("a", 11), written(14)).changed(14, "a", None);
    assert_refused(&deleted_another.told(), Rule::Swap, &["operation 6", "operation 4"]);
}

#[test]
fn a_gap_in_a_watch_is_refused() {
    let mut gap = good().told();
    let at = gap.watches.iter().position(|w| w.watcher == 1 && matches!(w.what, Watched::Saw { revision: 12, .. }));
    gap.watches.remove(at.unwrap());
    assert_refused(&gap, Rule::WatchGap, &["watch 1", "revision 12", "operation 2"]);

    let mut early_end = good().told();
    early_end.watches.pop();
    assert_refused(&early_end, Rule::WatchGap, &["watch 1", "never showed the last write"]);

    let mut resumed_late = good().told();
    let endpoint = String::from("e");
    let began = WatchRecord { watcher: 1, at: 91_000, what: Watched::Began { endpoint, from: 20 } };
    resumed_late.watches.insert(resumed_late.watches.len() - 1, began);
    assert_refused(&resumed_late, Rule::WatchGap, &["watch 1", "at revision 20 instead of 14"]);
}

#[test]
fn a_watch_that_repeats_or_goes_back_is_refused() {
    let mut twice = good().told();
    let again = twice.watches[2].clone();
    twice.watches.insert(4, again);
    assert_refused(&twice, Rule::WatchDuplicate, &["watch 0", "revision 12 again"]);
    let mut back = good().told();
    back.watches.swap(1, 2);
    assert_refused(&back, Rule::WatchOrder, &["watch 0", "revision 11", "after 12"]);
}

#[test]
fn watches_that_differ_are_refused() {
    let mut differ = good().told();
    for record in differ.watches.iter_mut().filter(|w| w.watcher == 1) {
        if let Watched::Saw { revision: 12, value, .. } = &mut record.what {
            *value = Some(String::from("0-1"));
        }
    }
    assert_refused(&differ, Rule::WatchDiffers, &["revision 12", "watch 0", "watch 1"]);
}

#[test]
fn a_watch_may_break_and_be_taken_up_after_the_last_revision() {
    let mut resumed = good().told();
    let record = |what| WatchRecord { watcher: 0, at: 90_500, what };
    resumed.watches.insert(2, record(Watched::Broke { why: String::from("the watch was closed") }));
    resumed.watches.insert(3, record(Watched::Began { endpoint: String::from("e"), from: 12 }));
    assert_good(&resumed);
}

#[test]
fn a_compaction_is_survived_by_the_watch_that_missed_it() {
    let mut skipped = good().told();
    let record = |what| WatchRecord { watcher: 0, at: 90_500, what };
    // Watch 0 shows 11, breaks, and may only continue at 13.
    skipped.watches.remove(2);
    skipped.watches.insert(2, record(Watched::Skipped { through: 13 }));
    skipped.watches.insert(3, record(Watched::Began { endpoint: String::from("e"), from: 13 }));
    assert_good(&skipped);
    // When none has seen what was compacted, the answers show what it was.
    assert_good(&compacted(good(), 13));
}

/// Both watches show 11 and nothing more up to this revision, as after a recovery.
fn compacted(story: Story, through: i64) -> History {
    let mut history = story.told();
    let hidden = |what: &Watched| matches!(what, Watched::Saw { revision, .. } if (12..=through).contains(revision));
    history.watches.retain(|record| !hidden(&record.what));
    for watcher in 0..2 {
        let record = |what| WatchRecord { watcher, at: 90_500, what };
        let saw_first = |r: &WatchRecord| r.watcher == watcher && matches!(r.what, Watched::Saw { revision: 11, .. });
        let at = history.watches.iter().position(saw_first).unwrap() + 1;
        history.watches.insert(at, record(Watched::Skipped { through }));
        let began = Watched::Began { endpoint: String::from("e"), from: through + 1 };
        history.watches.insert(at + 1, record(began));
    }
    history
}

#[test]
fn an_unanswered_write_that_no_watch_shows_is_resolved_by_reads() {
    let story = || good().did(0, 20, 30, put("a", "0-3"), unknown());
    let happened = story().did(1, 40, 41, get("a"), read(50, version("0-3", 14))).changed(14, "a", Some("0-3"));
    let happened = compacted(happened, 50);
    assert_good(&happened);
    assert_eq!(check(&happened, &nothing_is_too_little()).settled, Settled { happened: 1, did_not_happen: 0 });
    let did_not = compacted(story().did(1, 40, 41, get("a"), read(50, version("0-2", 13))), 50);
    assert_good(&did_not);
    assert_eq!(check(&did_not, &nothing_is_too_little()).settled, Settled { happened: 0, did_not_happen: 1 });
    let both = story()
        .did(1, 40, 41, get("a"), read(50, version("0-3", 14)))
        .did(1, 42, 43, get("a"), read(51, version("0-2", 13)))
        .changed(14, "a", Some("0-3"));
    assert_refused(&compacted(both, 50), Rule::StaleRead, &["operation 8", "0-3"]);

    let deleted = || good().did(0, 20, 30, delete("a", 13), unknown()).changed(14, "a", None);
    assert_good(&compacted(deleted().did(1, 40, 41, get("a"), read(50, None)), 50));
    let came_back = deleted().did(1, 40, 41, get("a"), read(50, None));
    let came_back = came_back.did(1, 42, 43, get("a"), read(51, version("0-2", 13)));
    assert_refused(&compacted(came_back, 50), Rule::StaleRead, &["operation 8"]);
}

#[test]
fn an_acknowledged_write_is_missed_though_no_watch_could_show_it() {
    let mut lost = compacted(good(), 50);
    for read in &mut lost.finals {
        read.pairs.as_mut().unwrap().insert(String::from("a"), version("0-1", 11).unwrap());
    }
    assert_refused(&lost, Rule::Lost, &["e1 holds 0-1", "operation 4"]);
    let mut gone = compacted(good(), 50);
    for read in &mut gone.finals {
        read.pairs.as_mut().unwrap().remove("b");
    }
    assert_refused(&gone, Rule::Lost, &["for b in the end", "operation 2"]);
    let phantom = good().did(1, 40, 41, get("a"), read(50, version("9-9", 14)));
    assert_refused(&compacted(phantom, 50), Rule::StaleRead, &["operation 6", "9-9"]);
}

/// A restore goes back to revision 12, so that operation 4 is taken back; revisions continue at 51. The reads come after it.
fn restored(reads: &[(&'static str, Option<Found>)]) -> History {
    let mut story = good();
    for (number, (key, found)) in reads.iter().enumerate() {
        let from = 40 + 2 * number as u64;
        story = story.did(1, from, from + 1, get(key), read(60, found.clone()));
    }
    let mut history = compacted(story, 50);
    history.head.taken_back = Some(TakenBack { after: 12, until: 30 });
    for read in &mut history.finals {
        read.pairs.as_mut().unwrap().insert(String::from("a"), version("0-1", 11).unwrap());
    }
    history
}

#[test]
fn a_restore_reverts_exactly_the_writes_after_the_backup() {
    assert_good(&restored(&[("a", version("0-1", 11)), ("b", version("1-1", 12))]));
    let came_back = restored(&[("a", version("0-2", 13))]);
    assert_refused(&came_back, Rule::StaleRead, &["operation 6", "0-2"]);
    assert_refused(&restored(&[("b", None)]), Rule::StaleRead, &["operation 6", "operation 2"]);
    let mut lost = restored(&[]);
    for read in &mut lost.finals {
        read.pairs.as_mut().unwrap().remove("b");
    }
    assert_refused(&lost, Rule::Lost, &["for b in the end", "operation 2"]);
    let mut kept = restored(&[]);
    for read in &mut kept.finals {
        read.pairs.as_mut().unwrap().insert(String::from("a"), version("0-2", 13).unwrap());
    }
    assert_refused(&kept, Rule::Lost, &["e1 holds 0-2"]);
    let mut unasked = restored(&[]);
    unasked.head.taken_back = None;
    assert_refused(&unasked, Rule::Lost, &["operation 4"]);
}

#[test]
fn a_decreasing_revision_is_refused() {
    let backwards = good().did(1, 1, 2, put("c", "1-2"), written(20)).changed(20, "c", Some("1-2"));
    assert_refused(&backwards.told(), Rule::RealTime, &["operation 1", "operation 6"]);
    let reused = good().did(0, 5, 6, get("a"), read(11, version("0-1", 11)));
    assert_refused(&reused.told(), Rule::RealTime, &["operation 1", "operation 6"]);
}

#[test]
fn a_phantom_is_refused() {
    let unwritten = good().did(1, 20, 21, get("a"), read(14, version("9-9", 14))).changed(14, "a", Some("9-9"));
    assert_refused(&unwritten.told(), Rule::Phantom, &["a = 9-9", "no client wrote"]);
    let read_only = good().did(1, 20, 21, get("a"), read(14, version("9-9", 14)));
    assert_refused(&read_only.told(), Rule::StaleRead, &["operation 6", "9-9"]);
    let elsewhere = good().did(1, 20, 21, put("c", "1-2"), unknown()).changed(14, "a", Some("1-2"));
    assert_refused(&elsewhere.told(), Rule::Phantom, &["another key", "operation 6"]);
    let done_twice = good().changed(14, "a", Some("0-1"));
    assert_refused(&done_twice.told(), Rule::Phantom, &["done twice", "operation 1"]);
    let vanished = good().changed(14, "a", None);
    assert_refused(&vanished.told(), Rule::Phantom, &["a is deleted", "no client deleted it"]);
    let prophecy = good().did(1, 95, 96, put("a", "1-2"), written(14)).changed(14, "a", Some("1-2"));
    assert_refused(&prophecy.told(), Rule::RealTime, &["before it was written", "operation 6"]);
}

#[test]
fn a_leased_key_is_deleted_when_its_lease_expires() {
    let leased = |renewed_at: u64| {
        let call = Call::Put { key: String::from("l"), value: String::from("0-3"), lease: Some(7) };
        good()
            .did(0, 20, 21, call, written(14))
            .did(0, renewed_at, renewed_at + 1, Call::Renew { lease: 7 }, Outcome::Renewed { ttl: 10_000 })
            .changed(14, "l", Some("0-3"))
            .changed(15, "l", None)
    };
    // The watches show everything at 90 s in the first case: long after the last renewal.
    let mut history = leased(22).told();
    for record in &mut history.watches {
        record.at *= 1000;
    }
    assert_good(&history);
    assert_refused(&leased(80).told(), Rule::Lease, &["l is deleted", "operation 7"]);
}

#[test]
fn too_little_traffic_is_reported() {
    let findings = check(&good().told(), &Least::default());
    assert_eq!(findings.violations, []);
    let told = findings.too_little.join("; ");
    for words in ["too few put operations were answered: 2 of", "client 0 got too few answers: 2 of", "changes: 3 of"] {
        assert!(told.contains(words), "{words} in {told}");
    }
    assert_eq!(check(&good().told(), &nothing_is_too_little()).too_little, Vec::<String>::new());
}
