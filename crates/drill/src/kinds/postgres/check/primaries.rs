//! One primary at a time. A timeline has one primary. Once a commit was confirmed on a later timeline, nothing is confirmed on an earlier
//! one. No two members are writable at the same instant.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use super::{Rule, Violation, found};
use crate::kinds::postgres::history::{History, Operation, Reign, Timeline};
use crate::mark::seconds;

pub(super) fn check(history: &History, violations: &mut Vec<Violation>) {
    let confirmed: Vec<&Operation> = history.operations.iter().filter(|o| o.is_acknowledged()).collect();
    one_member_per_timeline(&confirmed, violations);
    no_earlier_timeline(&confirmed, violations);
    // A primary that was paused finds out that it is none any more when it is resumed. Commits wait for a standby meanwhile, which is what
    // the rules above are about.
    if !history.head.pauses {
        one_writable(&history.reigns, violations);
    }
}

fn one_member_per_timeline(confirmed: &[&Operation], violations: &mut Vec<Violation>) {
    let mut primaries: BTreeMap<Timeline, &Operation> = BTreeMap::new();
    for operation in confirmed {
        let first = primaries.entry(operation.timeline).or_insert(operation);
        if first.member != operation.member {
            violations.push(found(Rule::SplitBrain, format!("{first}, and {operation}")));
        }
    }
}

fn no_earlier_timeline(confirmed: &[&Operation], violations: &mut Vec<Violation>) {
    let mut first_of: BTreeMap<Timeline, &Operation> = BTreeMap::new();
    for operation in confirmed {
        let first = first_of.entry(operation.timeline).or_insert(operation);
        if operation.ended < first.ended {
            *first = operation;
        }
    }
    for operation in confirmed {
        let later = first_of.range((Excluded(operation.timeline), Unbounded)).map(|(_, first)| *first);
        if let Some(newer) = later.min_by_key(|first| first.ended).filter(|newer| newer.ended < operation.called) {
            violations.push(found(Rule::SplitBrain, format!("{operation}, after {newer}")));
        }
    }
}

fn one_writable(reigns: &[Reign], violations: &mut Vec<Violation>) {
    for (at, one) in reigns.iter().enumerate() {
        for other in &reigns[at + 1..] {
            let (from, to) = (one.from.max(other.from), one.to.min(other.to));
            if one.member != other.member && from < to {
                let text = format!(
                    "{} ({}) and {} ({}), from {} to {} s",
                    one.member,
                    one.timeline,
                    other.member,
                    other.timeline,
                    seconds(from),
                    seconds(to)
                );
                violations.push(found(Rule::TwoPrimaries, text));
            }
        }
    }
}
