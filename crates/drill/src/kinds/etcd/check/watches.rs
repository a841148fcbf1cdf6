//! The watches: each in order, without duplicates, complete between its start and its end, and all of them equal.

use std::collections::{BTreeMap, BTreeSet};

use super::changes::Changes;
use super::{Rule, Violation, at, found};
use crate::kinds::etcd::history::{History, WatchRecord, Watched};
use crate::mark::Moment;

/// A change as the first watch that showed it has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown<'a> {
    pub key: &'a str,
    pub value: Option<&'a str>,
    pub at: Moment,
    pub watcher: u32,
}

#[derive(Debug, Default)]
pub(super) struct Watches<'a> {
    /// By revision: no operation of the workload changes two keys.
    pub shown: BTreeMap<i64, Shown<'a>>,
    watchers: BTreeMap<u32, Watcher>,
}

#[derive(Debug, Default)]
struct Watcher {
    seen: BTreeSet<i64>,
    /// Revisions that it has passed, both ends included.
    passed: Vec<(i64, i64)>,
    ended: bool,
}

impl WatchRecord {
    pub(super) fn is_change(&self) -> bool {
        matches!(self.what, Watched::Saw { .. })
    }
}

impl<'a> Watches<'a> {
    pub(super) fn gather(history: &'a History, violations: &mut Vec<Violation>) -> Self {
        let mut watches = Watches::default();
        for number in 0..history.head.watchers {
            let records = history.watches.iter().filter(|r| r.watcher == number);
            let watcher = watches.follow(number, records, violations);
            if !watcher.ended {
                let text = format!("watch {number} never showed the last write of the run");
                violations.push(found(Rule::WatchGap, text));
            }
            watches.watchers.insert(number, watcher);
        }
        watches
    }

    fn follow(
        &mut self,
        number: u32,
        records: impl Iterator<Item = &'a WatchRecord>,
        violations: &mut Vec<Violation>,
    ) -> Watcher {
        let mut watcher = Watcher::default();
        // The first revision that is still to come, and the last that came.
        let (mut next, mut last): (Option<i64>, Option<i64>) = (None, None);
        for record in records {
            match &record.what {
                Watched::Began { from, .. } => {
                    if let Some(missed) = next.filter(|next| next < from) {
                        let text = format!("watch {number} resumed at revision {from} instead of {missed}");
                        violations.push(found(Rule::WatchGap, text));
                    }
                    (next, last) = (next.or(Some(*from)), last.or(Some(from - 1)));
                }
                Watched::Saw { revision, key, value } => {
                    let shown = Shown { key, value: value.as_deref(), at: record.at, watcher: number };
                    self.compare(*revision, shown, violations);
                    if !watcher.seen.insert(*revision) {
                        let text = format!("watch {number} showed revision {revision} again {}", at(record.at));
                        violations.push(found(Rule::WatchDuplicate, text));
                    } else if let Some(last) = last.filter(|last| last >= revision) {
                        let text = format!("watch {number} showed revision {revision} {}, after {last}", at(record.at));
                        violations.push(found(Rule::WatchOrder, text));
                    }
                    last = last.max(Some(*revision));
                    watcher.pass(&mut next, *revision);
                }
                Watched::Skipped { through } => next = next.max(Some(through + 1)),
                Watched::Ended { through } => {
                    watcher.pass(&mut next, *through);
                    watcher.ended = true;
                }
                Watched::Broke { .. } => {}
            }
        }
        watcher
    }

    fn compare(&mut self, revision: i64, shown: Shown<'a>, violations: &mut Vec<Violation>) {
        let first = *self.shown.entry(revision).or_insert(shown);
        if (first.key, first.value) != (shown.key, shown.value) {
            let tell =
                |s: Shown<'_>| format!("watch {} showed {} = {}", s.watcher, s.key, s.value.unwrap_or("nothing"));
            let text = format!("at revision {revision} {}, and {}", tell(first), tell(shown));
            violations.push(found(Rule::WatchDiffers, text));
        }
    }

    /// Whether some watch has passed this revision, and so would have shown it.
    pub(super) fn passed(&self, revision: i64) -> Option<u32> {
        let covers = |w: &Watcher| w.passed.iter().any(|(from, through)| (*from..=*through).contains(&revision));
        self.watchers.iter().find(|(_, w)| covers(w)).map(|(number, _)| *number)
    }

    /// Every watch has shown every change that happened while it watched.
    pub(super) fn check(&self, changes: &Changes<'_>, violations: &mut Vec<Violation>) {
        for (number, watcher) in &self.watchers {
            for (from, through) in &watcher.passed {
                for (revision, change) in changes.between(*from, *through) {
                    if !watcher.seen.contains(&revision) {
                        let by = super::named(change.by);
                        let text = format!("watch {number} did not show revision {revision}, written by {by}");
                        violations.push(found(Rule::WatchGap, text));
                    }
                }
            }
        }
    }

    /// The revisions between the first start and the last end that no watch has passed.
    pub(super) fn unseen(&self) -> Vec<(i64, i64)> {
        let mut passed: Vec<(i64, i64)> = self.watchers.values().flat_map(|w| w.passed.iter().copied()).collect();
        passed.sort_unstable();
        let mut unseen = Vec::new();
        let mut reached: Option<i64> = None;
        for (from, through) in passed {
            if let Some(reached) = reached.filter(|reached| from > reached + 1) {
                unseen.push((reached + 1, from - 1));
            }
            reached = reached.max(Some(through));
        }
        unseen
    }
}

impl Watcher {
    fn pass(&mut self, next: &mut Option<i64>, through: i64) {
        let Some(from) = next.filter(|from| *from <= through) else { return };
        match self.passed.last_mut() {
            Some(last) if last.1 + 1 == from => last.1 = through,
            _ => self.passed.push((from, through)),
        }
        *next = Some(through + 1);
    }
}
