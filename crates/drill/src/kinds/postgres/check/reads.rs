//! What reads showed during the workload: on the primary everything acknowledged before, nowhere more than was requested, always the same
//! sum; and on a replica never less than earlier in the same session.

use std::collections::BTreeMap;

use super::{Rule, Violation, found};
use crate::kinds::postgres::history::{History, Operation, Outcome, ReplicaRead, Seen};
use crate::mark::{Moment, seconds};

pub(super) fn check(history: &History, violations: &mut Vec<Violation>) {
    let bounds = Bounds::of(history);
    for operation in &history.operations {
        let Outcome::Saw(seen) = operation.outcome else { continue };
        let read = Read { told: operation.to_string(), ended: operation.ended, seen };
        read.check(history.head.total(), &bounds, violations);
        let least = bounds.acknowledged_before(operation.called);
        if seen.commits < least && !history.head.pauses {
            let text = format!("{operation}, where {least} had been acknowledged");
            violations.push(found(Rule::StaleRead, text));
        }
    }
    let mut last: BTreeMap<u64, &ReplicaRead> = BTreeMap::new();
    for replica_read in &history.replica_reads {
        let told = describe(replica_read);
        let read = Read { told: told.clone(), ended: replica_read.ended, seen: replica_read.seen };
        read.check(history.head.total(), &bounds, violations);
        if let Some(before) = last.insert(replica_read.session, replica_read)
            && (before.seen.commits > replica_read.seen.commits || before.lsn > replica_read.lsn)
        {
            violations.push(found(Rule::BackInTime, format!("{told}, after {}", describe(before))));
        }
    }
}

struct Read {
    told: String,
    ended: Moment,
    seen: Seen,
}

impl Read {
    fn check(&self, total: i64, bounds: &Bounds, violations: &mut Vec<Violation>) {
        if self.seen.sum != total {
            violations.push(found(Rule::Sum, format!("{}, not {total}", self.told)));
        }
        let most = bounds.asked_before(self.ended);
        if self.seen.commits > most {
            violations.push(found(Rule::Phantom, format!("{}, where only {most} had been asked for", self.told)));
        }
    }
}

fn describe(read: &ReplicaRead) -> String {
    let ReplicaRead { reader, session, member, called, ended, lsn, seen } = read;
    let when = format!("{}–{} s", seconds(*called), seconds(*ended));
    let Seen { commits, sum } = seen;
    format!(
        "read of {member} (reader {reader}, session {session}, {when}): {commits} commits, a sum of {sum}, log at {lsn:X}"
    )
}

/// How many commits a read can show.
struct Bounds {
    /// When each acknowledged one ended.
    acknowledged: Vec<Moment>,
    /// When each that may have happened was asked for.
    asked: Vec<Moment>,
}

impl Bounds {
    fn of(history: &History) -> Self {
        let operations = &history.operations;
        let mut acknowledged: Vec<Moment> =
            operations.iter().filter(|o| o.is_acknowledged()).map(|o: &Operation| o.ended).collect();
        let mut asked: Vec<Moment> = operations.iter().filter(|o| o.may_have_written()).map(|o| o.called).collect();
        acknowledged.sort_unstable();
        asked.sort_unstable();
        Bounds { acknowledged, asked }
    }

    fn acknowledged_before(&self, moment: Moment) -> u64 {
        self.acknowledged.partition_point(|ended| *ended < moment) as u64
    }

    fn asked_before(&self, moment: Moment) -> u64 {
        self.asked.partition_point(|called| *called < moment) as u64
    }
}
