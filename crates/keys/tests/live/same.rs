//! The same requests in the same order to an etcd with v2 and to the library on an etcd without it: the answers are equal, except
//! for the first index and the order of nodes in a directory, which etcd does not define.

use std::net::SocketAddr;

use serde_json::Value;

use crate::http::{Answer, ask};
use crate::sequence::{Dice, Step, step};
use crate::stage::{Ours, Theirs, run};

const SEEDS: u64 = 6;
const STEPS: u64 = 250;
/// A TTL may have been read a moment later by one of the two.
const TTL_DIFFERENCE: i64 = 5;

struct Side {
    at: SocketAddr,
    /// What index the side had at the beginning.
    base: u64,
}

impl Side {
    async fn new(at: SocketAddr) -> Self {
        let base = ask(at, "GET", "/v2/keys/?quorum=true", "").await.index();
        Side { at, base }
    }

    async fn ask(&self, step: &Step) -> Answer {
        let (path, form) = step.at(self.base);
        ask(self.at, step.method, &path, &form).await
    }

    /// With indexes that count from the beginning.
    fn relative(&self, index: u64) -> i64 {
        // Neither zero nor a number that no store reaches is an index.
        if index == 0 || index > u64::MAX / 4 { 0 } else { index.cast_signed() - self.base.cast_signed() }
    }

    /// Everything of an answer that must be the same.
    fn essence(&self, answer: &Answer) -> (u16, Value, String, Vec<i64>) {
        let index = self.relative(answer.header("x-etcd-index").parse().unwrap_or(0));
        let mut ttls = Vec::new();
        let body = match serde_json::from_str(&answer.body) {
            Ok(json) => self.normal(json, &mut ttls),
            Err(_) => Value::String(answer.body.clone()),
        };
        let raft = ["x-raft-index", "x-raft-term", "x-etcd-cluster-id"].map(|name| answer.headers.contains_key(name));
        let plain = ["content-type", "allow", "location"].map(|name| answer.header(name).to_owned());
        let headers = format!("{index} {raft:?} {plain:?}");
        (answer.status, body, headers, ttls)
    }

    fn normal(&self, json: Value, ttls: &mut Vec<i64>) -> Value {
        match json {
            Value::Object(fields) => {
                let field = |(name, value): (String, Value)| {
                    let value = match (name.as_str(), &value) {
                        ("modifiedIndex" | "createdIndex" | "index", Value::Number(index)) => {
                            Value::from(self.relative(index.as_u64().expect("an index")))
                        }
                        ("key", Value::String(key)) => Value::from(self.numbers(key)),
                        ("cause", Value::String(cause)) => Value::from(self.numbers(cause)),
                        ("expiration", Value::String(_)) => Value::from("some time"),
                        ("ttl", Value::Number(ttl)) => {
                            ttls.push(ttl.as_i64().expect("a number"));
                            Value::from("some seconds")
                        }
                        _ => self.normal(value, ttls),
                    };
                    (name, value)
                };
                Value::Object(fields.into_iter().map(field).collect())
            }
            Value::Array(mut nodes) => {
                nodes.sort_by_key(|node| node["key"].to_string());
                Value::Array(nodes.into_iter().map(|node| self.normal(node, ttls)).collect())
            }
            other => other,
        }
    }

    /// Numbers in keys and causes are indexes.
    fn numbers(&self, text: &str) -> String {
        let mut result = String::new();
        let mut digits = String::new();
        for character in text.chars().chain(['\0']) {
            if character.is_ascii_digit() {
                digits.push(character);
                continue;
            }
            if let Ok(index) = digits.parse() {
                result.push_str(&format!("#{}", self.relative(index)));
            }
            digits.clear();
            result.push(character);
        }
        result
    }
}

struct Pair {
    theirs: Side,
    ours: Side,
    history: Vec<String>,
}

impl Pair {
    async fn new(theirs: &Theirs, ours: &Ours) -> Self {
        Pair { theirs: Side::new(theirs.at).await, ours: Side::new(ours.at).await, history: Vec::new() }
    }

    /// Asks both, and returns our answer.
    async fn same(&mut self, step: &Step) -> Answer {
        self.history.push(format!("{} {}?{} {}", step.method, step.path, step.query, step.form));
        let (theirs, ours) = (self.theirs.ask(step).await, self.ours.ask(step).await);
        let ((status, body, headers, ttls), essence) = (self.theirs.essence(&theirs), self.ours.essence(&ours));
        let last = self.history[self.history.len().saturating_sub(12)..].join("\n");
        assert_eq!(
            (status, &body, &headers),
            (essence.0, &essence.1, &essence.2),
            "theirs, ours, after\n{last}\n{theirs:?}\n{ours:?}"
        );
        for (theirs, ours) in ttls.iter().zip(&essence.3) {
            assert!((theirs - ours).abs() <= TTL_DIFFERENCE, "{theirs} and {ours} after\n{last}");
        }
        ours
    }

    async fn line(&mut self, line: &str) -> Answer {
        let mut words = line.split(' ');
        let method = ["GET", "PUT", "POST", "DELETE", "HEAD", "PATCH", "OPTIONS"].into_iter();
        let wanted = words.next().expect("a method");
        let method = method.into_iter().find(|method| *method == wanted).expect("a method");
        let target = words.next().unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let form = words.next().unwrap_or_default().to_owned();
        self.same(&Step { method, path: path.to_owned(), query: query.to_owned(), form }).await
    }
}

async fn random(version: &str) {
    let (theirs, ours) = (Theirs::start(version).await, Ours::start().await);
    for seed in 0..SEEDS {
        let mut pair = Pair::new(&theirs, &ours).await;
        pair.history.push(format!("seed {seed}"));
        let (mut dice, mut written) = (Dice::new(seed + 1), 0);
        for _ in 0..STEPS {
            let mut step = step(&mut dice, written);
            if version.starts_with("3.5") {
                // It cannot update a directory: an error that 3.4 does not have.
                for text in [&mut step.query, &mut step.form] {
                    *text = text.replace("prevExist=", "unknown=");
                }
            }
            let answer = pair.same(&step).await;
            if let Ok(index) = answer.header("x-etcd-index").parse::<u64>() {
                written = written.max(index.saturating_sub(pair.ours.base));
            }
        }
        every_event(&mut pair, written).await;
    }
}

/// What happened is told alike afterwards, too.
async fn every_event(pair: &mut Pair, written: u64) {
    for index in 1..=written {
        let query = format!("wait=true&recursive=true&waitIndex=@{index}");
        // The last writes may all have been refreshes, which nobody waits for.
        if index + 3 > written {
            break;
        }
        let wait = Step { method: "GET", path: String::from("/"), query, form: String::new() };
        let (theirs, ours) = (pair.theirs.ask(&wait).await, pair.ours.ask(&wait).await);
        let (theirs, ours) = (pair.theirs.essence(&theirs), pair.ours.essence(&ours));
        assert_eq!(
            (theirs.0, &theirs.1, &theirs.2),
            (ours.0, &ours.1, &ours.2),
            "theirs, ours, at {index} of {:?}",
            pair.history
        );
    }
}

#[test]
fn random_requests_are_answered_as_etcd_3_4_does() {
    run(random("3.4.23"));
}

#[test]
fn random_requests_are_answered_as_etcd_3_5_does() {
    run(random("3.5.30"));
}

/// What random requests rarely meet.
#[test]
fn chosen_requests_are_answered_as_etcd_does() {
    run(async {
        let (theirs, ours) = (Theirs::start("3.4.23").await, Ours::start().await);
        let mut pair = Pair::new(&theirs, &ours).await;
        for line in include_str!("chosen.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            pair.line(line).await;
        }
    });
}
