//! The checker: decides from a recorded history alone whether etcd kept its promises. Pure and strict: anything it cannot explain is
//! a violation, and it names the operations.
//!
//! etcd gives every write a separate revision, and every answer the revision at which it was true. So the order is known, and no
//! search is needed: the history is linearizable if that order agrees with real time and with every read. The watches decide about a
//! write without an answer: it happened at the revision where they show its value, or not at all.

mod changes;
mod order;
mod unseen;
mod watches;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::history::{Call, DELETE, Found, GET, History, LEASE, Operation, Outcome, PUT, SWAP, Version};
use crate::Settled;
use crate::mark::seconds;
use crate::measure::OperationKind;
use changes::Changes;
use watches::Watches;

/// A promise of etcd that a history can break.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// No acknowledged write is lost.
    Lost,
    /// A read shows the last write at or below its revision.
    StaleRead,
    /// A condition held exactly where it was said to hold.
    Swap,
    /// An operation that ended before another began does not have the higher revision.
    RealTime,
    /// All data was written by a client, and only once.
    Phantom,
    WatchOrder,
    WatchDuplicate,
    /// A watch shows every change between its start and its end.
    WatchGap,
    /// All watches report the same.
    WatchDiffers,
    /// A key whose lease is kept alive stays.
    Lease,
    /// Every endpoint reports the end.
    Unread,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rule::Lost => "an acknowledged write was lost",
            Rule::StaleRead => "a read did not show the last write",
            Rule::Swap => "a condition was answered wrongly",
            Rule::RealTime => "revisions do not agree with real time",
            Rule::Phantom => "there is data that no client wrote",
            Rule::WatchOrder => "a watch was out of order",
            Rule::WatchDuplicate => "a watch showed a change twice",
            Rule::WatchGap => "a watch missed a change",
            Rule::WatchDiffers => "two watches differ",
            Rule::Lease => "a lease that was kept alive ran out",
            Rule::Unread => "the final state cannot be read",
        })
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Violation {
    pub rule: Rule,
    /// Names the operations, their moments and revisions.
    pub text: String,
}

impl Violation {
    pub(super) fn told(&self) -> crate::Violation {
        crate::Violation::new(&self.rule, &self.text)
    }
}

/// The checker's findings.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    pub violations: Vec<Violation>,
    /// Why the history, though nothing in it is wrong, proves too little.
    pub too_little: Vec<String>,
    /// Writes without an answer that happened, and that did not.
    pub settled: Settled,
}

/// The traffic without which a verdict means nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Least {
    pub of_kind: BTreeMap<OperationKind, usize>,
    /// Successful operations of each client.
    pub of_client: usize,
    /// Changes that each watch showed.
    pub of_watcher: usize,
}

impl Default for Least {
    fn default() -> Self {
        let of_kind = [(PUT, 50), (GET, 50), (SWAP, 20), (DELETE, 3), (LEASE, 3)];
        Least { of_kind: of_kind.into(), of_client: 10, of_watcher: 50 }
    }
}

pub fn check(history: &History, least: &Least) -> Findings {
    let mut violations = Vec::new();
    let watches = Watches::gather(history, &mut violations);
    let changes = Changes::gather(history, &watches, &mut violations);
    watches.check(&changes, &mut violations);
    order::check(history, &changes, &mut violations);
    for operation in &history.operations {
        check_answer(operation, &changes, &mut violations);
    }
    check_finals(history, &changes, &mut violations);
    let settled = changes.settled(history);
    let too_little = too_little(history, least);
    violations.sort_by_key(|v: &Violation| v.rule);
    Findings { violations, too_little, settled }
}

fn found(rule: Rule, text: String) -> Violation {
    Violation { rule, text }
}

/// Whether what an operation was told is what was so at its revision.
fn check_answer(operation: &Operation, changes: &Changes<'_>, violations: &mut Vec<Violation>) {
    let Some(key) = operation.call.key() else { return };
    match (&operation.call, &operation.outcome) {
        (call, Outcome::Read { revision, found: said }) => {
            let true_version = changes.at(key, *revision);
            if true_version.as_ref() != said.as_ref() {
                let should = changes.describe(key, true_version.as_ref());
                violations.push(found(Rule::StaleRead, format!("{operation}, where {should}")));
            }
            let held = condition(call).is_some_and(|expected| expected == mod_revision(said.as_ref()));
            if held {
                let text = format!("{operation}, and its condition was refused though it held");
                violations.push(found(Rule::Swap, text));
            }
        }
        (call, Outcome::Written { revision }) => {
            let Some(expected) = condition(call) else { return };
            let before = changes.at(key, revision - 1);
            if mod_revision(before.as_ref()) != expected {
                let was = changes.describe(key, before.as_ref());
                let text = format!("{operation}, though its condition did not hold: just before it {was}");
                violations.push(found(Rule::Swap, text));
            }
        }
        _ => {}
    }
}

/// The revision that a swap or a delete wants to find.
fn condition(call: &Call) -> Option<i64> {
    match call {
        Call::Swap { expected, .. } | Call::Delete { expected, .. } => Some(*expected),
        Call::Put { .. } | Call::Get { .. } | Call::Renew { .. } => None,
    }
}

fn mod_revision(version: Option<&Found>) -> i64 {
    version.map_or(0, |f| f.mod_revision)
}

/// The final data, through every endpoint, is what was written last.
fn check_finals(history: &History, changes: &Changes<'_>, violations: &mut Vec<Violation>) {
    if history.finals.is_empty() {
        violations.push(found(Rule::Unread, String::from("it was not read through any endpoint")));
    }
    for read in &history.finals {
        let pairs = match &read.pairs {
            Ok(pairs) => pairs,
            Err(why) => {
                violations.push(found(Rule::Unread, format!("through {}: {why}", read.endpoint)));
                continue;
            }
        };
        let keys: BTreeSet<&str> = changes.keys().chain(pairs.keys().map(String::as_str)).collect();
        for key in keys {
            let (should, is) = (changes.at(key, read.revision), pairs.get(key));
            if should.as_ref() != is {
                let text = format!(
                    "{} holds {} for {key} in the end, where {}",
                    read.endpoint,
                    Version(is),
                    changes.describe(key, should.as_ref())
                );
                violations.push(found(Rule::Lost, text));
            }
        }
    }
}

fn too_little(history: &History, least: &Least) -> Vec<String> {
    let done: Vec<&Operation> =
        history.operations.iter().filter(|o| !matches!(o.outcome, Outcome::Unknown { .. })).collect();
    let mut told = Vec::new();
    for (kind, least) in &least.of_kind {
        let count = done.iter().filter(|o| o.call.kind() == *kind).count();
        if count < *least {
            told.push(format!("too few {} operations were answered: {count} of at least {least}", kind.name));
        }
    }
    for client in 0..history.head.clients {
        let count = done.iter().filter(|o| o.client == client).count();
        if count < least.of_client {
            told.push(format!("client {client} got too few answers: {count} of at least {}", least.of_client));
        }
    }
    let seen = |watcher: u32| history.watches.iter().filter(move |w| w.watcher == watcher && w.is_change()).count();
    for watcher in 0..history.head.watchers {
        if seen(watcher) < least.of_watcher {
            let count = seen(watcher);
            told.push(format!("watch {watcher} showed too few changes: {count} of at least {}", least.of_watcher));
        }
    }
    told
}

/// An operation that is known by its revision, in short.
fn named(operation: Option<&Operation>) -> String {
    operation.map_or_else(|| String::from("no operation that was recorded"), ToString::to_string)
}

fn at(moment: u64) -> String {
    format!("at {} s", seconds(moment))
}
