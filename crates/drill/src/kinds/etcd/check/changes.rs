//! Every change that happened, by revision: according to the watches, and according to the clients' answers. Each change must have an
//! operation, and each operation at most one change.

use std::collections::BTreeMap;

use super::watches::{Shown, Watches};
use super::{Rule, Violation, at, condition, found};
use crate::Settled;
use crate::kinds::etcd::history::{Call, Found, History, Operation, Outcome, TakenBack};

/// How much earlier than promised a lease may be seen to run out. Clocks of two processes tick apart, and a leader that was
/// just deposed may still have answered.
const LEASE_SLACK: u64 = 2_000_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct Change<'a> {
    pub key: &'a str,
    pub value: Option<&'a str>,
    pub by: Option<&'a Operation>,
}

#[derive(Debug)]
pub(super) struct Changes<'a> {
    by_revision: BTreeMap<i64, Change<'a>>,
    by_key: BTreeMap<&'a str, BTreeMap<i64, Option<&'a str>>>,
    /// The revision of each operation that changed something.
    by_operation: BTreeMap<u64, i64>,
    taken_back: Option<TakenBack>,
}

impl<'a> Changes<'a> {
    pub(super) fn gather(history: &'a History, watches: &Watches<'a>, violations: &mut Vec<Violation>) -> Self {
        let mut changes = Changes {
            by_revision: BTreeMap::new(),
            by_key: BTreeMap::new(),
            by_operation: BTreeMap::new(),
            taken_back: history.head.taken_back,
        };
        let writers: BTreeMap<&str, &Operation> =
            history.operations.iter().filter_map(|o| Some((o.call.value()?, o))).collect();
        for (revision, shown) in &watches.shown {
            let by = match shown.value {
                Some(value) => changes.writer(*revision, shown, writers.get(value).copied(), violations),
                None => changes.remover(*revision, shown, history, violations),
            };
            changes.add(*revision, Change { key: shown.key, value: shown.value, by });
        }
        for operation in &history.operations {
            if let Outcome::Written { revision } = operation.outcome {
                changes.acknowledged(operation, revision, watches, violations);
            }
        }
        changes.learn(history, &watches.unseen());
        changes
    }

    pub(super) fn add(&mut self, revision: i64, change: Change<'a>) {
        self.by_key.entry(change.key).or_default().insert(revision, change.value);
        if let Some(by) = change.by {
            self.by_operation.insert(by.id, revision);
        }
        self.by_revision.insert(revision, change);
    }

    /// The operation that wrote a value which a watch showed.
    fn writer(
        &self,
        revision: i64,
        shown: &Shown<'_>,
        by: Option<&'a Operation>,
        violations: &mut Vec<Violation>,
    ) -> Option<&'a Operation> {
        let Shown { key, value, at: moment, watcher } = *shown;
        let what = format!("watch {watcher} showed {key} = {} at revision {revision}", value.unwrap_or_default());
        let mut wrong = |rule, text| violations.push(found(rule, text));
        let Some(by) = by else {
            wrong(Rule::Phantom, format!("{what}, which no client wrote"));
            return None;
        };
        if by.call.key() != Some(key) {
            wrong(Rule::Phantom, format!("{what}, which was written to another key by {by}"));
        }
        if let Some(other) = self.by_operation.get(&by.id) {
            wrong(Rule::Phantom, format!("{what}, which revision {other} shows too: {by} was done twice"));
        }
        match by.outcome {
            Outcome::Written { revision: told } if told != revision => {
                wrong(Rule::Phantom, format!("{what}, and {by} received another revision"));
            }
            Outcome::Read { .. } => {
                wrong(Rule::Swap, format!("{what}, though {by} was answered that it did not happen"))
            }
            _ => {}
        }
        if moment < by.called {
            wrong(Rule::RealTime, format!("{what} {}, before it was written by {by}", at(moment)));
        }
        Some(by)
    }

    /// The cause of a deletion: an operation, or an expired lease.
    fn remover(
        &self,
        revision: i64,
        shown: &Shown<'_>,
        history: &'a History,
        violations: &mut Vec<Violation>,
    ) -> Option<&'a Operation> {
        let before = self.at(shown.key, revision - 1);
        let of_key = |o: &&Operation| matches!(&o.call, Call::Delete { key, .. } if key == shown.key);
        let deletes = || history.operations.iter().filter(of_key);
        let told = deletes().find(|o| matches!(o.outcome, Outcome::Written { revision: told } if told == revision));
        let expected = before.as_ref().map(|f| f.mod_revision);
        let unanswered = || {
            let open = deletes().filter(|o| matches!(o.outcome, Outcome::Unknown { .. }));
            let mut open = open.filter(|o| !self.by_operation.contains_key(&o.id));
            open.find(|o| condition(&o.call) == expected)
        };
        if let Some(by) = told.or_else(unanswered) {
            return Some(by);
        }
        let what = format!("watch {} showed at revision {revision} that {} is deleted", shown.watcher, shown.key);
        match before.as_ref().and_then(|f| self.by_revision.get(&f.mod_revision)?.by).map(|by| (by, &by.call)) {
            Some((by, Call::Put { lease: Some(lease), .. })) => {
                if let Some(renewal) = still_alive(history, *lease, by, shown.at) {
                    let text = format!("{what} {}, though its lease was kept alive by {renewal}", at(shown.at));
                    violations.push(found(Rule::Lease, text));
                }
            }
            _ => violations.push(found(Rule::Phantom, format!("{what}, and no client deleted it"))),
        }
        None
    }

    /// An acknowledged write happened at the revision that was told, and a watch that has passed it has shown it.
    fn acknowledged(
        &mut self,
        operation: &'a Operation,
        revision: i64,
        watches: &Watches<'_>,
        violations: &mut Vec<Violation>,
    ) {
        let (key, value) = (operation.call.key().unwrap_or_default(), operation.call.value());
        let mut wrong = |text| violations.push(found(Rule::Lost, text));
        match self.by_revision.get(&revision) {
            Some(change) if change.by.is_some_and(|by| by.id == operation.id) => {}
            Some(change) => {
                let shown = change.value.unwrap_or("nothing");
                let by = super::named(change.by);
                wrong(format!("{operation}, but that revision is {} = {shown}, written by {by}", change.key));
            }
            None => match watches.passed(revision) {
                Some(watcher) => {
                    wrong(format!("{operation}, but watch {watcher} passed that revision and did not show it"));
                }
                None => self.add(revision, Change { key, value, by: Some(operation) }),
            },
        }
    }

    pub(super) fn is_known(&self, revision: i64) -> bool {
        self.by_revision.contains_key(&revision)
    }

    pub(super) fn has_happened(&self, operation: &Operation) -> bool {
        self.by_operation.contains_key(&operation.id)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.by_key.keys().copied()
    }

    pub(super) fn between(&self, from: i64, through: i64) -> impl Iterator<Item = (i64, &Change<'a>)> {
        self.by_revision.range(from..=through).map(|(revision, change)| (*revision, change))
    }

    /// The value of a key at a revision.
    pub(super) fn at(&self, key: &str, revision: i64) -> Option<Found> {
        let shows = |changed: i64| !self.taken_back.is_some_and(|taken| taken.hides(changed, revision));
        let mut changes = self.by_key.get(key)?.range(..=revision).rev();
        let (mod_revision, value) = changes.find(|(changed, _)| shows(**changed))?;
        value.map(|value| Found { value: value.to_owned(), mod_revision: *mod_revision })
    }

    /// The value of a key, and its writer, for people.
    pub(super) fn describe(&self, key: &str, version: Option<&Found>) -> String {
        let Some(Found { value, mod_revision }) = version else { return format!("{key} was absent") };
        let by = self.by_revision.get(mod_revision).and_then(|change| change.by);
        format!("{key} was {value} of revision {mod_revision}, written by {}", super::named(by))
    }

    /// The revision at which an operation took place: that of its answer, or where a watch showed it.
    pub(super) fn revision_of(&self, operation: &Operation) -> Option<i64> {
        match operation.outcome {
            Outcome::Written { revision } | Outcome::Read { revision, .. } => Some(revision),
            Outcome::Unknown { .. } => self.by_operation.get(&operation.id).copied(),
            Outcome::Renewed { .. } => None,
        }
    }

    pub(super) fn settled(&self, history: &History) -> Settled {
        let open = history.operations.iter();
        let open = open.filter(|o| o.call.is_write() && matches!(o.outcome, Outcome::Unknown { .. }));
        let (happened, not): (Vec<_>, Vec<_>) = open.partition(|o| self.by_operation.contains_key(&o.id));
        Settled { happened: happened.len(), did_not_happen: not.len() }
    }
}

/// The renewal by which a lease should have lived on at this moment.
fn still_alive<'a>(history: &'a History, lease: i64, by: &'a Operation, moment: u64) -> Option<&'a Operation> {
    let renewals = history.operations.iter().filter(|o| matches!(o.call, Call::Renew { lease: of } if of == lease));
    renewals
        .filter(|o| o.ended < moment && o.called >= by.called)
        .find(|o| matches!(o.outcome, Outcome::Renewed { ttl } if moment + LEASE_SLACK < o.called + ttl * 1000))
}
