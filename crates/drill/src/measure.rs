//! Figures from a history: operations per second, and the longest pause of writes. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use super::mark::Moment;

/// A kind of operation, as it is counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OperationKind {
    /// Its place among the kinds.
    pub order: u8,
    /// In JSON.
    pub key: &'static str,
    /// For people.
    pub name: &'static str,
}

impl Serialize for OperationKind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.key)
    }
}

/// An operation that has ended, with an answer or without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    pub kind: OperationKind,
    pub ended: Moment,
    pub came: Came,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    /// A write was acknowledged.
    Write,
    /// What a read found, or that a write was refused.
    Other,
    Nothing,
}

const SECOND: Moment = 1_000_000;

#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Measures {
    pub seconds: f64,
    pub operations: BTreeMap<OperationKind, Count>,
    /// Answered operations per second, over the whole run.
    pub throughput: f64,
    pub per_second: Vec<Slice>,
    pub longest_write_gap: Option<Gap>,
    /// From the answer of a write to its arrival through a watch, in seconds.
    pub watch_delay: WatchDelay,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Count {
    pub answered: usize,
    pub unanswered: usize,
}

/// What ended in one slice of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Slice {
    /// Operations that were answered in it: those that wrote, and the others.
    pub writes: usize,
    pub others: usize,
    pub unanswered: usize,
}

/// A time without any acknowledged write, in seconds of the run.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Gap {
    pub from: f64,
    pub to: f64,
}

impl Gap {
    pub fn seconds(self) -> f64 {
        self.to - self.from
    }
}

#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct WatchDelay {
    pub median: f64,
    pub longest: f64,
}

/// The run in slices of so many microseconds.
pub fn slices(answers: &[Answer], width: Moment) -> Vec<Slice> {
    let slot = |moment: Moment| usize::try_from(moment / width).unwrap_or(0);
    let mut slices = vec![Slice::default(); slot(end_of(answers)) + 1];
    for answer in answers {
        let slice = &mut slices[slot(answer.ended)];
        match answer.came {
            Came::Nothing => slice.unanswered += 1,
            Came::Write => slice.writes += 1,
            Came::Other => slice.others += 1,
        }
    }
    slices
}

fn end_of(answers: &[Answer]) -> Moment {
    answers.iter().map(|answer| answer.ended).max().unwrap_or(0)
}

/// From the answers, and from when each write showed elsewhere and how long that took.
pub fn measure(answers: &[Answer], delays: &[(Moment, Moment)]) -> Measures {
    let end = end_of(answers);
    let seconds = end as f64 / SECOND as f64;
    let mut operations: BTreeMap<OperationKind, Count> = BTreeMap::new();
    for answer in answers {
        let count = operations.entry(answer.kind).or_default();
        match answer.came {
            Came::Nothing => count.unanswered += 1,
            Came::Write | Came::Other => count.answered += 1,
        }
    }
    let answered: usize = operations.values().map(|c| c.answered).sum();
    Measures {
        seconds,
        operations,
        throughput: if end == 0 { 0.0 } else { answered as f64 / seconds },
        per_second: slices(answers, SECOND),
        longest_write_gap: longest_gap(answers, end),
        watch_delay: watch_delay(delays),
    }
}

/// The longest time between two acknowledged writes, or from the last to the end.
fn longest_gap(answers: &[Answer], end: Moment) -> Option<Gap> {
    let written = answers.iter().filter(|answer| answer.came == Came::Write).map(|answer| answer.ended);
    let mut moments: Vec<Moment> = written.chain([end]).collect();
    moments.sort_unstable();
    let longest = moments.windows(2).max_by_key(|pair| pair[1] - pair[0])?;
    let seconds = |moment: Moment| moment as f64 / SECOND as f64;
    Some(Gap { from: seconds(longest[0]), to: seconds(longest[1]) })
}

fn watch_delay(delays: &[(Moment, Moment)]) -> WatchDelay {
    let mut delays: Vec<Moment> = delays.iter().map(|(_, delay)| *delay).collect();
    delays.sort_unstable();
    let seconds = |at: usize| delays.get(at).map_or(0.0, |d| *d as f64 / SECOND as f64);
    WatchDelay { median: seconds(delays.len() / 2), longest: seconds(delays.len().saturating_sub(1)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: OperationKind = OperationKind { order: 0, key: "put", name: "put" };

    fn ended(ended: Moment, came: Came) -> Answer {
        Answer { kind: KIND, ended, came }
    }

    #[test]
    fn the_longest_gap_and_the_seconds_are_found() {
        let written = |moment| ended(moment, Came::Write);
        let lost = ended(2_100_000, Came::Nothing);
        let measures = measure(&[written(100_000), written(1_900_000), lost, written(2_000_000)], &[]);
        assert_eq!(measures.longest_write_gap, Some(Gap { from: 0.1, to: 1.9 }));
        assert_eq!(measures.per_second.iter().map(|s| s.writes).collect::<Vec<_>>(), [1, 1, 1]);
        assert_eq!(measures.per_second[2].unanswered, 1);
        assert_eq!(measures.operations[&KIND], Count { answered: 3, unanswered: 1 });
    }

    #[test]
    fn writes_that_never_come_back_are_a_gap_to_the_end() {
        let measures = measure(&[ended(1_000_000, Came::Write), ended(8_000_000, Came::Other)], &[]);
        assert_eq!(measures.longest_write_gap, Some(Gap { from: 1.0, to: 8.0 }));
        assert_eq!(measure(&[], &[]).longest_write_gap, None);
    }
}
