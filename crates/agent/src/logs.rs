//! The logs of services and of the agent, in pieces that fit into an answer.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use crate::AgentError;
use crate::agent::Agent;
use crate::api::{LogAnswer, LogOf, LogRequest, Refusal};
use crate::rotate;

const MOST_BYTES: u64 = 1 << 20;

impl Agent {
    pub(crate) async fn logs(&self, request: LogRequest) -> Result<LogAnswer, Refusal> {
        if !self.state.get().enrolled {
            return Err(Refusal::NotEnrolled);
        }
        let path = match request.of.clone() {
            LogOf::Service(name) => self.service_log(&name)?,
            LogOf::Agent => self.layout.agent_log(),
        };
        let read = crate::blocking(move || {
            let answer = match request.from {
                Some(from) => read_on(&path, from),
                None => tail(&path, request.lines, MOST_BYTES),
            };
            answer.map_err(AgentError::file("read", path))
        });
        Ok(read.await?)
    }
}

/// The end of a log, from the beginning of a line on. Nothing where there is none.
pub(crate) fn last_bytes(path: &Path, most: u64) -> String {
    tail(path, usize::MAX, most).map(|answer| answer.text).unwrap_or_default()
}

fn tail(path: &Path, lines: usize, most: u64) -> io::Result<LogAnswer> {
    let (mut text, next) = end(path, most)?;
    // It may have been emptied a moment ago.
    if text.lines().count() < lines && (text.len() as u64) < most {
        text.insert_str(0, &end(&rotate::older(path), most - text.len() as u64)?.0);
    }
    let skip = text.lines().count().saturating_sub(lines);
    let text = text.split_inclusive('\n').skip(skip).collect();
    Ok(LogAnswer { text, next })
}

/// The last lines that fit into so many bytes, and the length of the file.
fn end(path: &Path, most: u64) -> io::Result<(String, u64)> {
    let Some((mut file, length)) = open(path)? else { return Ok((String::new(), 0)) };
    let from = length.saturating_sub(most);
    let text = read(&mut file, from, length)?;
    // A cut first line is dropped.
    let text = if from > 0 { text.split_once('\n').map_or("", |(_, rest)| rest) } else { &text };
    Ok((text.to_owned(), length))
}

/// A log that became shorter was begun again.
fn read_on(path: &Path, from: u64) -> io::Result<LogAnswer> {
    let Some((mut file, length)) = open(path)? else { return Ok(LogAnswer { text: String::new(), next: 0 }) };
    let from = if from > length { 0 } else { from };
    let until = length.min(from + MOST_BYTES);
    Ok(LogAnswer { text: read(&mut file, from, until)?, next: until })
}

fn open(path: &Path) -> io::Result<Option<(File, u64)>> {
    match File::open(path) {
        Ok(file) => {
            let length = file.metadata()?.len();
            Ok(Some((file, length)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn read(file: &mut File, from: u64, until: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(from))?;
    file.take(until - from).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_from_its_end_and_then_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        assert_eq!(tail(&path, 2, 100).unwrap(), LogAnswer { text: String::new(), next: 0 });
        std::fs::write(&path, "one\ntwo\nthree\n").unwrap();
        let end = tail(&path, 2, 100).unwrap();
        assert_eq!(end, LogAnswer { text: String::from("two\nthree\n"), next: 14 });
        assert_eq!(tail(&path, 9, 9).unwrap().text, "three\n");
        std::fs::write(&path, "one\ntwo\nthree\nfour\n").unwrap();
        assert_eq!(read_on(&path, end.next).unwrap(), LogAnswer { text: String::from("four\n"), next: 19 });
        std::fs::write(&path, "new\n").unwrap();
        assert_eq!(read_on(&path, 19).unwrap(), LogAnswer { text: String::from("new\n"), next: 4 });
        std::fs::write(rotate::older(&path), "old\nolder\n").unwrap();
        assert_eq!(tail(&path, 2, 100).unwrap(), LogAnswer { text: String::from("older\nnew\n"), next: 4 });
    }
}
