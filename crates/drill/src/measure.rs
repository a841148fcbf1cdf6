//! What a history says in numbers: how much was done, second by second, and when writes stood still the longest. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use super::history::{History, Kind, Moment, Operation, Outcome, WatchRecord, Watched};

const SECOND: Moment = 1_000_000;

#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Measures {
    pub seconds: f64,
    pub operations: BTreeMap<Kind, Count>,
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

/// The operations of the run. The client after the last only marks the end.
fn traffic_of(history: &History) -> impl Iterator<Item = &Operation> {
    history.operations.iter().filter(|o| o.client <= history.head.clients)
}

/// The run in slices of so many microseconds.
pub fn slices(history: &History, width: Moment) -> Vec<Slice> {
    let slot = |moment: Moment| usize::try_from(moment / width).unwrap_or(0);
    let end = traffic_of(history).map(|o| o.ended).max().unwrap_or(0);
    let mut slices = vec![Slice::default(); slot(end) + 1];
    for operation in traffic_of(history) {
        let slice = &mut slices[slot(operation.ended)];
        match operation.outcome {
            Outcome::Unknown { .. } => slice.unanswered += 1,
            Outcome::Written { .. } => slice.writes += 1,
            Outcome::Read { .. } | Outcome::Renewed { .. } => slice.others += 1,
        }
    }
    slices
}

pub fn measure(history: &History) -> Measures {
    let traffic = || traffic_of(history);
    let end = traffic().map(|o| o.ended).max().unwrap_or(0);
    let seconds = end as f64 / SECOND as f64;
    let mut operations: BTreeMap<Kind, Count> = BTreeMap::new();
    for operation in traffic() {
        let count = operations.entry(operation.call.kind()).or_default();
        match operation.outcome {
            Outcome::Unknown { .. } => count.unanswered += 1,
            _ => count.answered += 1,
        }
    }
    let answered: usize = operations.values().map(|c| c.answered).sum();
    Measures {
        seconds,
        operations,
        throughput: if end == 0 { 0.0 } else { answered as f64 / seconds },
        per_second: slices(history, SECOND),
        longest_write_gap: longest_gap(traffic(), end),
        watch_delay: watch_delay(history),
    }
}

/// The longest time between two acknowledged writes, or from the last to the end.
fn longest_gap<'a>(traffic: impl Iterator<Item = &'a Operation>, end: Moment) -> Option<Gap> {
    let written = |o: &Operation| matches!(o.outcome, Outcome::Written { .. }).then_some(o.ended);
    let mut moments: Vec<Moment> = traffic.filter_map(written).chain([end]).collect();
    moments.sort_unstable();
    let longest = moments.windows(2).max_by_key(|pair| pair[1] - pair[0])?;
    let seconds = |moment: Moment| moment as f64 / SECOND as f64;
    Some(Gap { from: seconds(longest[0]), to: seconds(longest[1]) })
}

/// For each acknowledged write that a watch showed: when, and how long after its answer.
pub fn watch_delays(history: &History) -> Vec<(Moment, Moment)> {
    let written = |o: &Operation| match o.outcome {
        Outcome::Written { revision } => Some((revision, o.ended)),
        _ => None,
    };
    let answers: BTreeMap<i64, Moment> = history.operations.iter().filter_map(written).collect();
    let delay = |w: &WatchRecord| match w.what {
        Watched::Saw { revision, .. } => answers.get(&revision).map(|answered| (w.at, w.at.saturating_sub(*answered))),
        _ => None,
    };
    history.watches.iter().filter_map(delay).collect()
}

fn watch_delay(history: &History) -> WatchDelay {
    let mut delays: Vec<Moment> = watch_delays(history).into_iter().map(|(_, delay)| delay).collect();
    delays.sort_unstable();
    let seconds = |at: usize| delays.get(at).map_or(0.0, |d| *d as f64 / SECOND as f64);
    WatchDelay { median: seconds(delays.len() / 2), longest: seconds(delays.len().saturating_sub(1)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Call, Head};

    fn put(client: u32, ended: Moment, outcome: Outcome) -> Operation {
        let call = Call::Put { key: String::from("k"), value: ended.to_string(), lease: None };
        Operation { id: ended, client, endpoint: String::new(), call, called: 0, ended, outcome }
    }

    #[test]
    fn the_longest_gap_and_the_seconds_are_found() {
        let written = |ended| put(0, ended, Outcome::Written { revision: 1 });
        let lost = put(0, 2_100_000, Outcome::Unknown { why: String::new() });
        // The mark of the end is not traffic.
        let mark = put(2, 9_000_000, Outcome::Written { revision: 9 });
        let operations = vec![written(100_000), written(1_900_000), lost, written(2_000_000), mark];
        let history = History { head: Head { clients: 1, ..Head::default() }, operations, ..History::default() };
        let measures = measure(&history);
        assert_eq!(measures.longest_write_gap, Some(Gap { from: 0.1, to: 1.9 }));
        assert_eq!(measures.per_second.iter().map(|s| s.writes).collect::<Vec<_>>(), [1, 1, 1]);
        assert_eq!(measures.per_second[2].unanswered, 1);
        assert_eq!(measures.operations[&Kind::Put], Count { answered: 3, unanswered: 1 });
    }

    #[test]
    fn writes_that_never_come_back_are_a_gap_to_the_end() {
        let read = Outcome::Read { revision: 1, found: None };
        let operations = vec![put(0, 1_000_000, Outcome::Written { revision: 1 }), put(0, 8_000_000, read)];
        let history = History { operations, ..History::default() };
        assert_eq!(measure(&history).longest_write_gap, Some(Gap { from: 1.0, to: 8.0 }));
        assert_eq!(measure(&History::default()).longest_write_gap, None);
    }
}
