//! Real time: an operation that ended before another began has the lower revision, or the same where the later one only read.

use super::changes::Changes;
use super::{Rule, Violation, found};
use crate::kinds::etcd::history::{History, Operation, Outcome};
use crate::mark::Moment;

pub(super) fn check(history: &History, changes: &Changes<'_>, violations: &mut Vec<Violation>) {
    let placed: Vec<(&Operation, i64)> =
        history.operations.iter().filter_map(|o| Some((o, changes.revision_of(o)?))).collect();
    let mut begins: Vec<(&Operation, i64)> = placed.clone();
    begins.sort_by_key(|(o, _)| o.called);
    let mut ends: Vec<(&Operation, i64)> = placed.into_iter().filter(|(o, _)| end(o).is_some()).collect();
    ends.sort_by_key(|(o, _)| o.ended);
    let mut ends = ends.into_iter().peekable();
    let mut highest: Option<(&Operation, i64)> = None;
    for (operation, revision) in begins {
        while let Some(ended) = ends.next_if(|(o, _)| o.ended < operation.called) {
            highest = highest.filter(|(_, revision)| *revision >= ended.1).or(Some(ended));
        }
        let Some((earlier, reached)) = highest else { continue };
        let wrote = changes_something(operation);
        if revision < reached || (wrote && revision == reached) {
            let rule = if wrote { Rule::RealTime } else { Rule::StaleRead };
            let told = match operation.outcome {
                Outcome::Unknown { .. } => format!("{operation} happened at revision {revision}"),
                _ => operation.to_string(),
            };
            violations.push(found(rule, format!("{told} began after {earlier} had ended")));
        }
    }
}

/// When it had surely taken place; never, for a write that was not answered.
fn end(operation: &Operation) -> Option<Moment> {
    (!matches!(operation.outcome, Outcome::Unknown { .. })).then_some(operation.ended)
}

fn changes_something(operation: &Operation) -> bool {
    !matches!(operation.outcome, Outcome::Read { .. })
}
