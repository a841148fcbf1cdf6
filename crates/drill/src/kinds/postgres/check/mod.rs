//! The checker: decides from a recorded history alone whether a PostgreSQL cluster kept its promises. Pure: anything it cannot explain is
//! a violation, and it names the transactions.
//!
//! Every transaction that writes also inserts one row with a unique value. So the rows at the end show what happened: one for each
//! acknowledged transaction, none for each aborted one, and one or none if the answer was lost. Each promotion begins another timeline,
//! which distinguishes the primaries.

mod end;
mod primaries;
mod reads;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::history::{APPEND, History, NUMBER, Operation, READ, REPLICA_READ, SERIALIZABLE_TRANSFER, TRANSFER};
use crate::Settled;
use crate::measure::OperationKind;

/// A promise that a history can break.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// No acknowledged commit is lost.
    Lost,
    /// Nothing happens twice.
    Doubled,
    /// All data was written by a client and was not aborted.
    Phantom,
    /// Only one primary confirms commits at any time.
    SplitBrain,
    /// Two members are never writable at the same instant.
    TwoPrimaries,
    /// Transfers keep the sum of all balances.
    Sum,
    /// Each balance is what the transfers say.
    Balance,
    /// Serializable transactions number the rows of a list without gaps, each once, in the order of real time.
    Order,
    /// The primary shows what was acknowledged before it was asked.
    StaleRead,
    /// What one session on a replica has seen, it still sees later.
    BackInTime,
    /// Every member shows the end.
    Unread,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rule::Lost => "an acknowledged commit was lost",
            Rule::Doubled => "a transaction happened twice",
            Rule::Phantom => "there is data that no client wrote",
            Rule::SplitBrain => "two primaries confirmed commits",
            Rule::TwoPrimaries => "two members were writable at the same instant",
            Rule::Sum => "transfers did not keep the sum",
            Rule::Balance => "a balance does not match the transfers",
            Rule::Order => "serializable transactions were not in order",
            Rule::StaleRead => "the primary did not show an acknowledged commit",
            Rule::BackInTime => "a session on a replica went back in time",
            Rule::Unread => "the final state cannot be read",
        })
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Violation {
    pub rule: Rule,
    /// Names the transactions and their moments.
    pub text: String,
}

impl Violation {
    pub(super) fn told(&self) -> crate::Violation {
        crate::Violation::new(&self.rule, &self.text)
    }
}

/// The checker's findings.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    pub violations: Vec<Violation>,
    /// Why the history, though nothing in it is wrong, proves too little.
    pub too_little: Vec<String>,
    pub settled: Settled,
}

/// The traffic without which a verdict means nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Least {
    pub of_kind: BTreeMap<OperationKind, usize>,
    /// Answered transactions of each client.
    pub of_client: usize,
}

impl Default for Least {
    fn default() -> Self {
        let of_kind =
            [(APPEND, 30), (NUMBER, 10), (TRANSFER, 10), (SERIALIZABLE_TRANSFER, 10), (READ, 30), (REPLICA_READ, 20)];
        Least { of_kind: of_kind.into(), of_client: 10 }
    }
}

pub fn check(history: &History, least: &Least) -> Findings {
    let mut violations = Vec::new();
    end::check(history, &mut violations);
    primaries::check(history, &mut violations);
    reads::check(history, &mut violations);
    violations.sort_by_key(|v: &Violation| v.rule);
    Findings { violations, too_little: too_little(history, least), settled: end::settled(history) }
}

fn found(rule: Rule, text: String) -> Violation {
    Violation { rule, text }
}

fn too_little(history: &History, least: &Least) -> Vec<String> {
    use crate::measure::Came;
    let mut told = Vec::new();
    let answers = history.answers();
    for (kind, least) in &least.of_kind {
        let count = answers.iter().filter(|answer| answer.kind == *kind && answer.came != Came::Nothing).count();
        if count < *least {
            told.push(format!("too few {} operations were answered: {count} of at least {least}", kind.name));
        }
    }
    let is_answered = |o: &&Operation| o.is_acknowledged() || o.call.value().is_none();
    for client in 0..history.head.clients {
        let count = history.operations.iter().filter(|o| o.client == client).filter(is_answered).count();
        if count < least.of_client {
            told.push(format!("client {client} got too few answers: {count} of at least {}", least.of_client));
        }
    }
    told
}
