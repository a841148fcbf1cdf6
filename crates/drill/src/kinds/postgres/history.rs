//! The recorded history of a PostgreSQL drill: every transaction of every client with its times and its answer, reads of sessions on
//! replicas, which members were writable when, the final reads, and the faults and steps in between.

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
    pub replica_reads: Vec<ReplicaRead>,
    pub reigns: Vec<Reign>,
    /// The final data, as read from every member.
    pub finals: Vec<FinalRead>,
    pub marks: Vec<Mark>,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Head {
    pub cluster: String,
    /// The major version.
    pub version: String,
    pub scenario: String,
    /// The disturbance that clients may notice.
    pub downtime: Downtime,
    pub began: Timestamp,
    pub clients: u32,
    pub readers: u32,
    /// The seed of the clients' choices.
    pub seed: u64,
    pub accounts: u32,
    /// Of each account at the beginning.
    pub balance: i64,
    /// A primary was paused: it may believe that it is one for an instant after it is resumed. It must not confirm anything then.
    pub pauses: bool,
}

impl Head {
    /// The sum of all balances, always.
    pub fn total(&self) -> i64 {
        i64::from(self.accounts) * self.balance
    }
}

/// Each promotion begins another, and so does an upgrade to another major version, which counts from 1 again. Later ones are greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Timeline {
    /// The major version.
    pub version: u32,
    pub number: u32,
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "timeline {} of PostgreSQL {}", self.number, self.version)
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Operation {
    pub client: u32,
    pub member: String,
    /// Of the primary that the session is connected to.
    pub timeline: Timeline,
    pub call: Call,
    pub called: Moment,
    /// When the answer came, or was no longer waited for.
    pub ended: Moment,
    pub outcome: Outcome,
}

/// One transaction. Values are unique, so that each can be told from all others.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// A row more, at READ COMMITTED.
    Append { value: String },
    /// A row more, whose position is how many its list has, at SERIALIZABLE.
    Number { list: i32, value: String },
    /// From one account to another, with a row that says so. At SERIALIZABLE the new balances are computed by the client.
    Transfer { from: i32, to: i32, amount: i64, value: String, serializable: bool },
    /// The view of a client of the primary.
    Read,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Committed,
    /// A row of a list was committed at this position.
    Placed {
        position: i64,
    },
    Saw(Seen),
    /// It did not happen: it was aborted, or never came to its commit.
    Aborted {
        why: String,
        /// By another transaction. PostgreSQL answered, and the client may try again.
        conflict: bool,
    },
    /// No answer, or one that leaves open whether it was committed.
    Unknown {
        why: String,
    },
}

/// What one statement saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Seen {
    /// How many transactions that write have left their row.
    pub commits: u64,
    /// Of all balances.
    pub sum: i64,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ReplicaRead {
    pub reader: u32,
    /// Counted over all readers.
    pub session: u64,
    pub member: String,
    pub called: Moment,
    pub ended: Moment,
    /// How far the log was replayed.
    pub lsn: u64,
    pub seen: Seen,
}

/// A time in which one session found a member writable: from the first answer to the last question. In one session a member does not stop
/// being the primary and become it again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reign {
    pub member: String,
    pub timeline: Timeline,
    pub from: Moment,
    pub to: Moment,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FinalRead {
    pub member: String,
    /// Or why it could not be read.
    pub content: Result<Content, String>,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Content {
    pub entries: Vec<Entry>,
    pub transfers: Vec<TransferRow>,
    pub balances: BTreeMap<i32, i64>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Entry {
    pub value: String,
    /// List and position, if it is of one.
    pub place: Option<(i32, i64)>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TransferRow {
    pub value: String,
    pub from: i32,
    pub to: i32,
    pub amount: i64,
}

/// Transactions as they are counted.
pub const APPEND: OperationKind = OperationKind { order: 0, key: "append", name: "append" };
pub const NUMBER: OperationKind = OperationKind { order: 1, key: "number", name: "append (serializable)" };
pub const TRANSFER: OperationKind = OperationKind { order: 2, key: "transfer", name: "transfer" };
pub const SERIALIZABLE_TRANSFER: OperationKind =
    OperationKind { order: 3, key: "serializable_transfer", name: "transfer (serializable)" };
pub const READ: OperationKind = OperationKind { order: 4, key: "read", name: "read" };
pub const REPLICA_READ: OperationKind = OperationKind { order: 5, key: "replica_read", name: "read of a replica" };

impl Call {
    pub fn kind(&self) -> OperationKind {
        match self {
            Call::Append { .. } => APPEND,
            Call::Number { .. } => NUMBER,
            Call::Transfer { serializable: false, .. } => TRANSFER,
            Call::Transfer { serializable: true, .. } => SERIALIZABLE_TRANSFER,
            Call::Read => READ,
        }
    }

    /// What tells the row that it leaves from all others.
    pub fn value(&self) -> Option<&str> {
        match self {
            Call::Append { value } | Call::Number { value, .. } | Call::Transfer { value, .. } => Some(value),
            Call::Read => None,
        }
    }
}

impl Operation {
    /// Whether it was acknowledged that it has written.
    pub fn is_acknowledged(&self) -> bool {
        matches!(self.outcome, Outcome::Committed | Outcome::Placed { .. })
    }

    /// Whether it may have written.
    pub fn may_have_written(&self) -> bool {
        self.call.value().is_some() && !matches!(self.outcome, Outcome::Aborted { .. })
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Append { value } => write!(f, "append {value}"),
            Call::Number { list, value } => write!(f, "append {value} to list {list}"),
            Call::Transfer { from, to, amount, value, .. } => {
                write!(f, "transfer {value}: {amount} from {from} to {to}")
            }
            Call::Read => write!(f, "read"),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation { client, member, timeline, call, called, ended, outcome } = self;
        write!(f, "{call} (client {client}, {member} on {timeline}, ")?;
        write!(f, "{}–{} s; ", seconds(*called), seconds(*ended))?;
        match outcome {
            Outcome::Committed => write!(f, "acknowledged)"),
            Outcome::Placed { position } => write!(f, "acknowledged at position {position})"),
            Outcome::Saw(Seen { commits, sum }) => write!(f, "saw {commits} commits and a sum of {sum})"),
            Outcome::Aborted { why, .. } => write!(f, "aborted: {why})"),
            Outcome::Unknown { why } => write!(f, "unanswered: {why})"),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    RunPostgres(Head),
    Operation(Operation),
    ReplicaRead(ReplicaRead),
    Reign(Reign),
    Final(FinalRead),
    Mark(Mark),
}

impl History {
    /// The operations of the run. The client after the last only marks the end.
    pub fn answers(&self) -> Vec<Answer> {
        let traffic = self.operations.iter().filter(|o| o.client < self.head.clients);
        let answer = |o: &Operation| {
            let came = match o.outcome {
                Outcome::Committed | Outcome::Placed { .. } => Came::Write,
                Outcome::Saw(_) | Outcome::Aborted { conflict: true, .. } => Came::Other,
                Outcome::Aborted { conflict: false, .. } | Outcome::Unknown { .. } => Came::Nothing,
            };
            Answer { kind: o.call.kind(), ended: o.ended, came }
        };
        let of_replicas = self.replica_reads.iter();
        let of_replicas = of_replicas.map(|read| Answer { kind: REPLICA_READ, ended: read.ended, came: Came::Other });
        traffic.map(answer).chain(of_replicas).collect()
    }

    /// Writes one JSON object per line; the first is the head.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let History { head, operations, replica_reads, reigns, finals, marks } = self;
        let head = std::iter::once(Line::RunPostgres(head.clone()));
        let marks = marks.iter().cloned().map(Line::Mark);
        let operations = operations.iter().cloned().map(Line::Operation);
        let reads = replica_reads.iter().cloned().map(Line::ReplicaRead);
        let reigns = reigns.iter().cloned().map(Line::Reign);
        let finals = finals.iter().cloned().map(Line::Final);
        for line in head.chain(marks).chain(operations).chain(reads).chain(reigns).chain(finals) {
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
                Line::RunPostgres(head) => run.head = head,
                Line::Operation(operation) => run.operations.push(operation),
                Line::ReplicaRead(read) => run.replica_reads.push(read),
                Line::Reign(reign) => run.reigns.push(reign),
                Line::Final(read) => run.finals.push(read),
                Line::Mark(mark) => run.marks.push(mark),
            }
        }
        Ok(run)
    }
}
