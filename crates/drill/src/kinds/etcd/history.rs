//! The recorded history of a drill: every operation of every client with its times and its answer, the events of the watches, the
//! final reads, and the faults and steps in between. Plain data, written as JSON lines, so the verdict can be reached again from the
//! file alone.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::mark::{Mark, Moment, seconds};
use crate::measure::{Answer, Came, OperationKind};
use crate::scenario::Downtime;

/// One run of the workload.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct History {
    pub head: Head,
    pub operations: Vec<Operation>,
    pub watches: Vec<WatchRecord>,
    /// The prefix as it was read through every endpoint when all was over.
    pub finals: Vec<FinalRead>,
    pub marks: Vec<Mark>,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Head {
    pub cluster: String,
    /// As the spec had it when the run began.
    pub etcd_version: String,
    pub scenario: String,
    /// The disturbance that clients may notice.
    pub downtime: Downtime,
    pub began: Timestamp,
    pub clients: u32,
    pub watchers: u32,
    /// The seed of the clients' choices.
    pub seed: u64,
    /// When the last operation had ended.
    pub ended: Moment,
    /// The writes that a restore reverted, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_back: Option<TakenBack>,
}

/// A restore begins again from what there was at an earlier revision, and counts on from a far higher one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TakenBack {
    /// The last revision that is in the backup.
    pub after: i64,
    /// No revision from before the restore is higher, and none from after it is as low.
    pub until: i64,
}

impl TakenBack {
    /// Whether a change at this revision was taken back at all.
    pub fn takes(self, changed: i64) -> bool {
        self.after < changed && changed <= self.until
    }

    /// Whether a change at one revision does not show at another any more.
    pub fn hides(self, changed: i64, seen: i64) -> bool {
        seen > self.until && self.takes(changed)
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Operation {
    pub id: u64,
    pub client: u32,
    pub endpoint: String,
    pub call: Call,
    pub called: Moment,
    /// When the answer came, or was no longer waited for.
    pub ended: Moment,
    pub outcome: Outcome,
}

/// What was asked for. Values are unique, so that each write can be distinguished from all others; conditions are on the revision of the last
/// change, zero for a key that is not there.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    Put {
        key: String,
        value: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<i64>,
    },
    Get {
        key: String,
    },
    Swap {
        key: String,
        expected: i64,
        value: String,
    },
    Delete {
        key: String,
        expected: i64,
    },
    Renew {
        lease: i64,
    },
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The write was done, at this revision.
    Written { revision: i64 },
    /// What a get found, or a swap or delete whose condition did not hold.
    Read { revision: i64, found: Option<Found> },
    /// The lease lives for at least so many milliseconds from the moment of the call.
    Renewed { ttl: u64 },
    /// No answer, or one that leaves open whether it was done.
    Unknown { why: String },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Found {
    pub value: String,
    pub mod_revision: i64,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WatchRecord {
    pub watcher: u32,
    pub at: Moment,
    pub what: Watched,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Watched {
    /// etcd took the watch: every change from this revision on is to come.
    Began { endpoint: String, from: i64 },
    /// Without a value, the key was deleted.
    Saw { revision: i64, key: String, value: Option<String> },
    /// It is taken up again at the revision after the last.
    Broke { why: String },
    /// Changes up to this revision were compacted before the watch could be taken up again.
    Skipped { through: i64 },
    /// The watcher has seen the last write of the run, at this revision, and went home.
    Ended { through: i64 },
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FinalRead {
    pub endpoint: String,
    pub revision: i64,
    /// Or why it could not be read.
    pub pairs: Result<BTreeMap<String, Found>, String>,
}

/// Operations as they are counted.
pub const PUT: OperationKind = OperationKind { order: 0, key: "put", name: "put" };
pub const GET: OperationKind = OperationKind { order: 1, key: "get", name: "get" };
pub const SWAP: OperationKind = OperationKind { order: 2, key: "swap", name: "compare-and-swap" };
pub const DELETE: OperationKind = OperationKind { order: 3, key: "delete", name: "delete" };
pub const LEASE: OperationKind = OperationKind { order: 4, key: "lease", name: "lease" };

impl Call {
    pub fn kind(&self) -> OperationKind {
        match self {
            Call::Put { lease: None, .. } => PUT,
            Call::Put { lease: Some(_), .. } | Call::Renew { .. } => LEASE,
            Call::Get { .. } => GET,
            Call::Swap { .. } => SWAP,
            Call::Delete { .. } => DELETE,
        }
    }

    pub fn key(&self) -> Option<&str> {
        match self {
            Call::Put { key, .. } | Call::Get { key } | Call::Swap { key, .. } | Call::Delete { key, .. } => Some(key),
            Call::Renew { .. } => None,
        }
    }

    /// The value that it writes.
    pub fn value(&self) -> Option<&str> {
        match self {
            Call::Put { value, .. } | Call::Swap { value, .. } => Some(value),
            Call::Get { .. } | Call::Delete { .. } | Call::Renew { .. } => None,
        }
    }

    pub fn is_write(&self) -> bool {
        matches!(self, Call::Put { .. } | Call::Swap { .. } | Call::Delete { .. })
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Put { key, value, lease: None } => write!(f, "put {key} = {value}"),
            Call::Put { key, value, lease: Some(lease) } => write!(f, "put {key} = {value} under lease {lease:x}"),
            Call::Get { key } => write!(f, "get {key}"),
            Call::Swap { key, expected: 0, value } => write!(f, "swap {key}, if absent, to {value}"),
            Call::Swap { key, expected, value } => write!(f, "swap {key}, if last changed at {expected}, to {value}"),
            Call::Delete { key, expected } => write!(f, "delete {key}, if last changed at {expected}"),
            Call::Renew { lease } => write!(f, "renew lease {lease:x}"),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation { id, client, endpoint: _, call, called, ended, outcome } = self;
        write!(f, "operation {id} (client {client}, {}–{} s: {call}; ", seconds(*called), seconds(*ended))?;
        match outcome {
            Outcome::Written { revision } => write!(f, "acknowledged at revision {revision})"),
            Outcome::Read { revision, found } => write!(f, "found {} at revision {revision})", Version(found.as_ref())),
            Outcome::Renewed { .. } => write!(f, "renewed)"),
            Outcome::Unknown { why } => write!(f, "unanswered: {why})"),
        }
    }
}

/// The value of a key, for people.
pub struct Version<'a>(pub Option<&'a Found>);

impl fmt::Display for Version<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(Found { value, mod_revision }) => write!(f, "{value} of revision {mod_revision}"),
            None => f.write_str("nothing"),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Run(Head),
    Operation(Operation),
    Watch(WatchRecord),
    Final(FinalRead),
    Mark(Mark),
}

impl History {
    /// The operations of the run. The client after the last only marks the end.
    pub fn answers(&self) -> Vec<Answer> {
        let traffic = self.operations.iter().filter(|o| o.client <= self.head.clients);
        let answer = |o: &Operation| {
            let came = match o.outcome {
                Outcome::Unknown { .. } => Came::Nothing,
                Outcome::Written { .. } => Came::Write,
                Outcome::Read { .. } | Outcome::Renewed { .. } => Came::Other,
            };
            Answer { kind: o.call.kind(), ended: o.ended, came }
        };
        traffic.map(answer).collect()
    }

    /// For each acknowledged write that a watch showed: when, and how long after its answer.
    pub fn watch_delays(&self) -> Vec<(Moment, Moment)> {
        let written = |o: &Operation| match o.outcome {
            Outcome::Written { revision } => Some((revision, o.ended)),
            _ => None,
        };
        let answers: BTreeMap<i64, Moment> = self.operations.iter().filter_map(written).collect();
        let delay = |w: &WatchRecord| match w.what {
            Watched::Saw { revision, .. } => {
                answers.get(&revision).map(|answered| (w.at, w.at.saturating_sub(*answered)))
            }
            _ => None,
        };
        self.watches.iter().filter_map(delay).collect()
    }

    /// Writes one JSON object per line; the first is the head.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let History { head, operations, watches, finals, marks } = self;
        let head = std::iter::once(Line::Run(head.clone()));
        let marks = marks.iter().cloned().map(Line::Mark);
        let operations = operations.iter().cloned().map(Line::Operation);
        let watches = watches.iter().cloned().map(Line::Watch);
        let finals = finals.iter().cloned().map(Line::Final);
        for line in head.chain(marks).chain(operations).chain(watches).chain(finals) {
            serde_json::to_writer(&mut *to, &line)?;
            to.write_all(b"\n")?;
        }
        to.flush()
    }

    /// Reads one run, whose head is its first line. Each line comes with its number in the file.
    pub fn read(lines: &[(usize, String)]) -> io::Result<History> {
        let mut run = History::default();
        for (number, line) in lines {
            let bad = |why: String| io::Error::new(io::ErrorKind::InvalidData, format!("line {number}: {why}"));
            match serde_json::from_str(line).map_err(|e| bad(e.to_string()))? {
                Line::Run(head) => run.head = head,
                Line::Operation(operation) => run.operations.push(operation),
                Line::Watch(record) => run.watches.push(record),
                Line::Final(read) => run.finals.push(read),
                Line::Mark(mark) => run.marks.push(mark),
            }
        }
        Ok(run)
    }
}
