//! The record of a drill, for a cluster of either kind. Plain data, written as JSON lines, so the verdict can be reached again from the
//! file alone.

use std::io::{self, BufRead, Write};

use jiff::Timestamp;

use super::kinds::{etcd, postgres};
use super::mark::{Mark, Moment};
use super::measure::Answer;
use super::{Check, Verdict};

#[derive(Clone, PartialEq, Debug)]
pub enum Record {
    Etcd(etcd::history::History),
    Postgres(postgres::history::History),
}

/// What a report says of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct About {
    pub cluster: String,
    /// With its version.
    pub program: String,
    pub scenario: String,
    pub began: Timestamp,
    /// Who was at work: "6 clients and 3 watches".
    pub crew: String,
    pub seed: u64,
}

impl Record {
    pub fn about(&self) -> About {
        match self {
            Record::Etcd(history) => {
                let head = &history.head;
                About {
                    cluster: head.cluster.clone(),
                    program: format!("etcd {}", head.etcd_version),
                    scenario: head.scenario.clone(),
                    began: head.began,
                    crew: format!("{} clients and {} watches", head.clients, head.watchers),
                    seed: head.seed,
                }
            }
            Record::Postgres(history) => {
                let head = &history.head;
                About {
                    cluster: head.cluster.clone(),
                    program: format!("PostgreSQL {}", head.version),
                    scenario: head.scenario.clone(),
                    began: head.began,
                    crew: format!("{} clients and {} readers of replicas", head.clients, head.readers),
                    seed: head.seed,
                }
            }
        }
    }

    pub fn marks(&self) -> &[Mark] {
        match self {
            Record::Etcd(history) => &history.marks,
            Record::Postgres(history) => &history.marks,
        }
    }

    pub fn answers(&self) -> Vec<Answer> {
        match self {
            Record::Etcd(history) => history.answers(),
            Record::Postgres(history) => history.answers(),
        }
    }

    /// For each acknowledged write that a watch showed: when, and how long after its answer.
    pub fn watch_delays(&self) -> Option<Vec<(Moment, Moment)>> {
        match self {
            Record::Etcd(history) => Some(history.watch_delays()),
            Record::Postgres(_) => None,
        }
    }

    pub fn judge(&self, checks: Vec<Check>) -> Verdict {
        match self {
            Record::Etcd(history) => etcd::judge(history, checks, &Default::default()),
            Record::Postgres(history) => postgres::judge(history, checks, &Default::default()),
        }
    }

    /// Writes one JSON object per line; the first is the head.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        match self {
            Record::Etcd(history) => history.write(to),
            Record::Postgres(history) => history.write(to),
        }
    }

    /// Reads every run of a file.
    pub fn read(from: impl BufRead) -> io::Result<Vec<Record>> {
        let mut runs: Vec<(Head, Vec<(usize, String)>)> = Vec::new();
        for (at, line) in from.lines().enumerate() {
            let (number, line) = (at + 1, line?);
            if let Some(head) = Head::of(&line) {
                runs.push((head, Vec::new()));
            }
            let before =
                || io::Error::new(io::ErrorKind::InvalidData, format!("line {number}: no head of a run before it"));
            runs.last_mut().ok_or_else(before)?.1.push((number, line));
        }
        let read = |(head, lines): (Head, Vec<(usize, String)>)| match head {
            Head::Etcd => etcd::history::History::read(&lines).map(Record::Etcd),
            Head::Postgres => postgres::history::History::read(&lines).map(Record::Postgres),
        };
        runs.into_iter().map(read).collect()
    }
}

/// The line that a run begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Head {
    Etcd,
    Postgres,
}

impl Head {
    fn of(line: &str) -> Option<Self> {
        match line {
            _ if line.starts_with("{\"run\":") => Some(Head::Etcd),
            _ if line.starts_with("{\"run_postgres\":") => Some(Head::Postgres),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::etcd::history::{Call, FinalRead, Head, History, Operation, Outcome, WatchRecord, Watched};
    use crate::kinds::postgres::history as of_postgres;
    use crate::mark::MarkKind;

    fn put(client: u32, ended: Moment, outcome: Outcome) -> Operation {
        let call = Call::Put { key: String::from("k"), value: String::from("0-1"), lease: None };
        Operation { id: 1, client, endpoint: String::from("https://127.0.0.1:2379"), call, called: 5, ended, outcome }
    }

    fn of_etcd() -> Record {
        Record::Etcd(History {
            head: Head { cluster: String::from("demo"), clients: 2, ..Head::default() },
            operations: vec![put(0, 9, Outcome::Unknown { why: String::from("etcd did not answer in time") })],
            watches: vec![WatchRecord { watcher: 0, at: 3, what: Watched::Ended { through: 7 } }],
            finals: vec![FinalRead { endpoint: String::from("e"), revision: 7, pairs: Err(String::from("gone")) }],
            marks: vec![Mark { kind: MarkKind::Fault, text: String::from("kill"), from: 1, to: 2 }],
        })
    }

    fn of_postgres() -> Record {
        use of_postgres::{Call, FinalRead, History, Operation, Outcome, Reign, ReplicaRead, Seen, Timeline};
        Record::Postgres(History {
            head: of_postgres::Head { cluster: String::from("shop"), clients: 2, ..Default::default() },
            operations: vec![Operation {
                client: 0,
                member: String::from("127.0.0.1"),
                timeline: Timeline::default(),
                call: Call::Append { value: String::from("0-1") },
                called: 1,
                ended: 2,
                outcome: Outcome::Committed,
            }],
            replica_reads: vec![ReplicaRead {
                reader: 0,
                session: 1,
                member: String::from("127.0.0.2"),
                called: 2,
                ended: 3,
                lsn: 9,
                seen: Seen { commits: 1, sum: 800 },
            }],
            reigns: vec![Reign { member: String::from("127.0.0.1"), timeline: Timeline::default(), from: 0, to: 9 }],
            finals: vec![FinalRead { member: String::from("pg-1"), content: Err(String::from("gone")) }],
            marks: vec![Mark { kind: MarkKind::Fault, text: String::from("kill"), from: 1, to: 2 }],
        })
    }

    #[test]
    fn written_records_read_back() {
        let records = [of_etcd(), of_postgres(), of_etcd()];
        let mut text = Vec::new();
        records.iter().for_each(|record| record.write(&mut text).unwrap());
        assert_eq!(Record::read(text.as_slice()).unwrap(), records);
    }

    #[test]
    fn a_malformed_file_is_reported_with_its_line() {
        let error = Record::read("{\"mark\":{}}\n".as_bytes()).unwrap_err();
        assert!(error.to_string().starts_with("line 1: "), "{error}");
    }

    #[test]
    fn the_mark_of_the_end_is_not_traffic() {
        let head = Head { clients: 1, ..Head::default() };
        let written = |client, ended| put(client, ended, Outcome::Written { revision: 1 });
        let history =
            History { head, operations: vec![written(0, 7), written(1, 8), written(2, 9)], ..Default::default() };
        assert_eq!(history.answers().len(), 2);
    }
}
