//! What happened in a drill, as it was recorded: every operation of every client with its moments and its answer, what the watches
//! showed, what was read at the end, and the faults and steps in between. It is plain data, written as JSON lines, so that a verdict
//! can be reached again from the file alone.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, Write};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::scenario::Downtime;

/// Microseconds since the run began, by a clock that never goes back.
pub type Moment = u64;

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
    /// What clients were allowed to notice.
    pub downtime: Downtime,
    pub began: Timestamp,
    pub clients: u32,
    pub watchers: u32,
    /// What the clients' choices followed from.
    pub seed: u64,
    /// When the last operation had ended.
    pub ended: Moment,
    /// What a restore took back, if there was one.
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

/// Something that happened to the cluster while the clients were at work.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mark {
    pub kind: MarkKind,
    pub text: String,
    pub from: Moment,
    pub to: Moment,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
    Fault,
    /// A command of ours, from its start to its end.
    Command,
    /// A step that such a command did.
    Step,
}

/// Operations as they are counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Put,
    Get,
    Swap,
    Delete,
    Lease,
}

impl Kind {
    pub const ALL: [Kind; 5] = [Kind::Put, Kind::Get, Kind::Swap, Kind::Delete, Kind::Lease];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Put => "put",
            Kind::Get => "get",
            Kind::Swap => "compare-and-swap",
            Kind::Delete => "delete",
            Kind::Lease => "lease",
        }
    }
}

impl Call {
    pub fn kind(&self) -> Kind {
        match self {
            Call::Put { lease: None, .. } => Kind::Put,
            Call::Put { lease: Some(_), .. } | Call::Renew { .. } => Kind::Lease,
            Call::Get { .. } => Kind::Get,
            Call::Swap { .. } => Kind::Swap,
            Call::Delete { .. } => Kind::Delete,
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

/// What a key holds, for people.
pub struct Version<'a>(pub Option<&'a Found>);

impl fmt::Display for Version<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(Found { value, mod_revision }) => write!(f, "{value} of revision {mod_revision}"),
            None => f.write_str("nothing"),
        }
    }
}

/// A moment in seconds, with milliseconds.
pub fn seconds(moment: Moment) -> String {
    format!("{:.3}", moment as f64 / 1e6)
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

    /// Reads every run of a file.
    pub fn read(from: impl BufRead) -> io::Result<Vec<History>> {
        let mut runs: Vec<History> = Vec::new();
        for (number, line) in from.lines().enumerate() {
            let bad = |why: String| io::Error::new(io::ErrorKind::InvalidData, format!("line {}: {why}", number + 1));
            let line: Line = serde_json::from_str(&line?).map_err(|e| bad(e.to_string()))?;
            if let Line::Run(head) = line {
                runs.push(History { head, ..History::default() });
                continue;
            }
            let run = runs.last_mut().ok_or_else(|| bad(String::from("it comes before the head of a run")))?;
            match line {
                Line::Run(_) => {}
                Line::Operation(operation) => run.operations.push(operation),
                Line::Watch(record) => run.watches.push(record),
                Line::Final(read) => run.finals.push(read),
                Line::Mark(mark) => run.marks.push(mark),
            }
        }
        Ok(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let history = History {
            head: Head { cluster: String::from("demo"), clients: 2, ..Head::default() },
            operations: vec![Operation {
                id: 1,
                client: 0,
                endpoint: String::from("https://127.0.0.1:2379"),
                call: Call::Put { key: String::from("k"), value: String::from("0-1"), lease: None },
                called: 5,
                ended: 9,
                outcome: Outcome::Unknown { why: String::from("etcd did not answer in time") },
            }],
            watches: vec![WatchRecord { watcher: 0, at: 3, what: Watched::Ended { through: 7 } }],
            finals: vec![FinalRead { endpoint: String::from("e"), revision: 7, pairs: Err(String::from("gone")) }],
            marks: vec![Mark { kind: MarkKind::Fault, text: String::from("kill"), from: 1, to: 2 }],
        };
        let mut text = Vec::new();
        history.write(&mut text).unwrap();
        history.write(&mut text).unwrap();
        assert_eq!(History::read(text.as_slice()).unwrap(), [history.clone(), history]);
    }

    #[test]
    fn a_file_that_is_none_is_told_with_its_line() {
        let error = History::read("{\"mark\":{}}\n".as_bytes()).unwrap_err();
        assert!(error.to_string().starts_with("line 1: "), "{error}");
    }
}
