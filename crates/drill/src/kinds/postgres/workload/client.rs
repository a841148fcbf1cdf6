//! One client: chooses a transaction, does it once, and records the answer. It never retries a failed transaction; it connects again, to
//! the first writable host, or through the first proxy that leads to one.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_postgres::SimpleQueryRow;
use tokio_postgres::error::SqlState;

use super::{ACCOUNTS, AFTER_FAILURE, Shared};
use crate::kinds::postgres::history::{Call, Operation, Outcome, Seen};
use crate::kinds::postgres::session::{Session, why};
use crate::traffic::{Chance, Load, Order};

/// Bounds a transaction: a member that is stopped must not hold a client up for long.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Few, so that clients meet.
const LISTS: u64 = 4;

pub(super) struct Worker {
    shared: Shared,
    number: u32,
    session: Option<Session>,
    /// How many values it has made.
    values: u64,
    chance: Chance,
    /// How long a row is at least.
    size: usize,
}

/// Why a transaction was not acknowledged.
enum Failed {
    /// It did not come to its commit, or the commit was refused.
    Aborted {
        why: String,
        conflict: bool,
    },
    Unknown(String),
}

impl Worker {
    pub(super) fn new(shared: &Shared, number: u32) -> Self {
        Worker { shared: shared.clone(), number, session: None, values: 0, chance: Chance(u64::from(number)), size: 0 }
    }

    /// Works until it is told to stop.
    pub(super) async fn choose(mut self, load: Load, orders: watch::Receiver<Order>) {
        self.chance = Chance(load.seed.wrapping_mul(1000).wrapping_add(u64::from(self.number)));
        self.size = load.value_size;
        while *orders.borrow() == Order::GoOn {
            let call = self.next_call();
            let done = self.perform(call).await;
            let pause = load.pause.mul_f64(0.5 + self.chance.part());
            sleep(if done { pause } else { AFTER_FAILURE }).await;
        }
    }

    /// Whether it was acknowledged.
    pub(super) async fn append(&mut self) -> bool {
        let value = self.value();
        self.perform(Call::Append { value }).await
    }

    fn value(&mut self) -> String {
        self.values += 1;
        format!("{}-{}", self.number, self.values)
    }

    fn next_call(&mut self) -> Call {
        let what = self.chance.below(100);
        match what {
            0..30 => Call::Append { value: self.value() },
            30..45 => {
                let list = i32::try_from(self.chance.below(LISTS)).unwrap_or(0);
                Call::Number { list, value: self.value() }
            }
            45..75 => {
                let from = self.chance.below(u64::from(ACCOUNTS));
                let to = (from + 1 + self.chance.below(u64::from(ACCOUNTS) - 1)) % u64::from(ACCOUNTS);
                let amount = i64::try_from(1 + self.chance.below(9)).unwrap_or(1);
                let [from, to] = [from, to].map(|account| i32::try_from(account).unwrap_or(0));
                Call::Transfer { from, to, amount, value: self.value(), serializable: what >= 60 }
            }
            _ => Call::Read,
        }
    }

    /// Does it once and records what came of it. Nothing is recorded while there is nobody to ask.
    async fn perform(&mut self, call: Call) -> bool {
        let Some(session) = self.session().await else { return false };
        let (member, timeline) = (session.member.clone(), session.timeline.unwrap_or_default());
        let called = self.shared.clock.now();
        let outcome = match timeout(TIMEOUT, self.send(&session, &call)).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(Failed::Aborted { why, conflict })) => Outcome::Aborted { why, conflict },
            Ok(Err(Failed::Unknown(why))) => Outcome::Unknown { why },
            Err(_) => Outcome::Unknown { why: String::from("PostgreSQL did not answer in time") },
        };
        let answered = matches!(outcome, Outcome::Committed | Outcome::Placed { .. } | Outcome::Saw(_));
        let can_go_on = match outcome {
            Outcome::Aborted { conflict: true, .. } => session.rows("rollback").await.is_ok(),
            _ => answered,
        };
        if can_go_on {
            self.session = Some(session);
        }
        let ended = self.shared.clock.now();
        let operation = Operation { client: self.number, member, timeline, call, called, ended, outcome };
        self.shared.history().operations.push(operation);
        answered
    }

    async fn session(&mut self) -> Option<Session> {
        match self.session.take() {
            Some(session) => Some(session),
            None => self.connect().await.ok(),
        }
    }

    /// Every second client goes through a proxy, where there are any.
    async fn connect(&self) -> Result<Session, String> {
        let (access, hosts, proxies) = (self.shared.access(), self.shared.hosts(), self.shared.proxies());
        if proxies.is_empty() || self.number.is_multiple_of(2) {
            return Session::open_writable(&access, &hosts).await;
        }
        Session::open_through(&access, &proxies, &hosts).await
    }

    async fn send(&mut self, session: &Session, call: &Call) -> Result<Outcome, Failed> {
        let schema = self.shared.schema.clone();
        match call {
            Call::Append { value } => {
                let padding = self.padding();
                let insert = format!("insert into {schema}.entries (value, padding) values ('{value}', '{padding}')");
                session.rows(&insert).await.map_err(|error| of_commit(&error))?;
                Ok(Outcome::Committed)
            }
            Call::Number { list, value } => {
                let insert = format!(
                    "begin isolation level serializable;
                     insert into {schema}.entries (list, position, value)
                     select {list}, count(*), '{value}' from {schema}.entries where list = {list} returning position"
                );
                let rows = session.rows(&insert).await.map_err(|error| before_commit(&error))?;
                commit(session).await?;
                let position = number(&rows, 0, 0).ok_or_else(|| Failed::Unknown(String::from("no position")))?;
                Ok(Outcome::Placed { position })
            }
            Call::Transfer { from, to, amount, value, serializable } => {
                let row = format!("insert into {schema}.transfers values ('{value}', {from}, {to}, {amount})");
                let changes = if *serializable {
                    self.computed(session, (*from, *to), *amount).await?
                } else {
                    // In the order of the accounts, so that no two wait for each other.
                    let mut changes = [(*from, -amount), (*to, *amount)];
                    changes.sort_unstable();
                    let update = changes.map(|(account, by)| {
                        format!("update {schema}.accounts set balance = balance + {by} where id = {account};")
                    });
                    format!("begin; {}", update.concat())
                };
                session.rows(&format!("{changes} {row}")).await.map_err(|error| before_commit(&error))?;
                commit(session).await?;
                Ok(Outcome::Committed)
            }
            Call::Read => {
                let rows = session.rows(&self.shared.counting()).await.map_err(|error| before_commit(&error))?;
                seen(&rows).map(Outcome::Saw).ok_or_else(|| Failed::Unknown(String::from("no row")))
            }
        }
    }

    /// Reads both balances and says what they are to be: without isolation, what another wrote meanwhile would be lost.
    async fn computed(&self, session: &Session, (from, to): (i32, i32), amount: i64) -> Result<String, Failed> {
        let schema = &self.shared.schema;
        let read = format!(
            "begin isolation level serializable;
             select (select balance from {schema}.accounts where id = {from}), (select balance from {schema}.accounts where id = {to})"
        );
        let rows = session.rows(&read).await.map_err(|error| before_commit(&error))?;
        let none = || Failed::Aborted { why: String::from("no account"), conflict: false };
        let (sender, receiver) = number(&rows, 0, 0).zip(number(&rows, 0, 1)).ok_or_else(none)?;
        let (sender, receiver) = (sender - amount, receiver + amount);
        Ok(format!(
            "update {schema}.accounts set balance = {sender} where id = {from};
             update {schema}.accounts set balance = {receiver} where id = {to};"
        ))
    }

    /// Text that cannot be made much shorter.
    fn padding(&mut self) -> String {
        let mut padding = String::new();
        while padding.len() < self.size {
            padding.push_str(&format!("{:016x}", self.chance.next()));
        }
        padding
    }
}

async fn commit(session: &Session) -> Result<(), Failed> {
    session.rows("commit").await.map(drop).map_err(|error| of_commit(&error))
}

fn is_conflict(error: &tokio_postgres::Error) -> bool {
    let code = error.code();
    code == Some(&SqlState::T_R_SERIALIZATION_FAILURE) || code == Some(&SqlState::T_R_DEADLOCK_DETECTED)
}

/// Nothing was committed, whatever the reason.
fn before_commit(error: &tokio_postgres::Error) -> Failed {
    Failed::Aborted { why: why(error), conflict: is_conflict(error) }
}

/// PostgreSQL says so if it refused to commit; every other error leaves it open.
fn of_commit(error: &tokio_postgres::Error) -> Failed {
    let is_refused = is_conflict(error) || error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION);
    if is_refused { before_commit(error) } else { Failed::Unknown(why(error)) }
}

fn number(rows: &[SimpleQueryRow], row: usize, column: usize) -> Option<i64> {
    rows.get(row)?.get(column)?.parse().ok()
}

pub(super) fn seen(rows: &[SimpleQueryRow]) -> Option<Seen> {
    let commits = u64::try_from(number(rows, 0, 0)?).ok()?;
    Some(Seen { commits, sum: number(rows, 0, 1)? })
}
