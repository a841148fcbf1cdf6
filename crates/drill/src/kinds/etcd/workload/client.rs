//! One client: chooses an operation, does it once, and records the answer. It never retries a failed operation; it moves to the
//! next endpoint.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_etcd::{Condition, Error, KeyRange, KeyValue, Op, OpResult, RangeQuery, Thing, Txn, TxnResult};
use tokio::sync::watch;
use tokio::time::sleep;

use super::{AFTER_FAILURE, Connection, Shared, of_pair, why};
use crate::kinds::etcd::history::{Call, Found, Outcome};
use crate::traffic::{Chance, Load, Order};

/// Long enough for any fault that is not meant to be an outage.
const LEASE: Duration = Duration::from_secs(20);
const RENEWAL: Duration = Duration::from_millis(500);

pub(super) struct Worker {
    shared: Shared,
    number: u32,
    seat: Connection,
    /// How many values it has made.
    values: u64,
    /// The revision at which it last knew each key to have changed.
    known: BTreeMap<String, i64>,
}

impl Worker {
    pub(super) fn new(shared: &Shared, number: u32) -> Self {
        let seat = Connection::new(shared, number);
        Worker { shared: shared.clone(), number, seat, values: 0, known: BTreeMap::new() }
    }

    /// Works until it is told to stop.
    pub(super) async fn choose(mut self, load: Load, orders: watch::Receiver<Order>) {
        let mut chance = Chance(load.seed.wrapping_mul(1000).wrapping_add(u64::from(self.number)));
        while *orders.borrow() == Order::GoOn {
            let call = self.next_call(load, &mut chance);
            let outcome = self.perform(call).await;
            let pause = load.pause.mul_f64(0.5 + chance.part());
            sleep(if matches!(outcome, Outcome::Unknown { .. }) { AFTER_FAILURE } else { pause }).await;
        }
    }

    fn next_call(&mut self, load: Load, chance: &mut Chance) -> Call {
        let key = format!("k{}", chance.below(u64::from(load.keys.max(1))));
        let known = self.known.get(&key).copied();
        match (chance.below(100), known) {
            (0..35, _) => Call::Get { key },
            (35..65, _) => Call::Put { key, value: self.value(), lease: None },
            (95.., Some(expected)) if expected > 0 => Call::Delete { key, expected },
            (_, expected) => Call::Swap { key, expected: expected.unwrap_or(0), value: self.value() },
        }
    }

    /// A value that nobody else writes.
    fn value(&mut self) -> String {
        self.values += 1;
        format!("{}-{}", self.number, self.values)
    }

    pub(super) async fn put(&mut self, key: &str) -> Outcome {
        let value = self.value();
        self.perform(Call::Put { key: key.to_owned(), value, lease: None }).await
    }

    /// Keeps one key alive, and starts again when its lease was lost.
    pub(super) async fn keep_lease(mut self, orders: watch::Receiver<Order>) {
        let mut lease = None;
        while *orders.borrow() == Order::GoOn {
            lease = match lease {
                None => self.grant().await,
                Some(lease) => match self.perform(Call::Renew { lease }).await {
                    Outcome::Renewed { .. } => {
                        let value = self.value();
                        let call = Call::Put { key: String::from("leased"), value, lease: Some(lease) };
                        self.perform(call).await;
                        Some(lease)
                    }
                    Outcome::Unknown { why } if why == gone() => None,
                    _ => Some(lease),
                },
            };
            sleep(RENEWAL).await;
        }
        if let (Some(lease), Ok((_, client))) = (lease, self.seat.client()) {
            // Where this fails the lease runs out by itself; the key is removed with all others.
            let _ = client.lease_revoke(lease).await;
        }
    }

    async fn grant(&mut self) -> Option<i64> {
        let (_, client) = self.seat.client().ok()?;
        match client.lease_grant(LEASE).await {
            Ok(lease) => Some(lease.id),
            Err(_) => {
                self.seat.move_on();
                None
            }
        }
    }

    /// Does it once and records what came of it.
    async fn perform(&mut self, call: Call) -> Outcome {
        let called = self.shared.clock.now();
        let (endpoint, outcome) = match self.seat.client() {
            Ok((endpoint, client)) => (endpoint, self.send(&client, &call).await.map_err(|e| why(&e))),
            Err(why) => (String::new(), Err(why)),
        };
        let outcome = outcome.unwrap_or_else(|why| {
            self.seat.move_on();
            Outcome::Unknown { why }
        });
        self.learn(&call, &outcome);
        self.shared.record(self.number, &endpoint, call, called, outcome.clone());
        outcome
    }

    async fn send(&self, client: &quorate_etcd::Client, call: &Call) -> Result<Outcome, Error> {
        let long = |key: &str| self.shared.long(key);
        match call {
            Call::Put { key, value, lease } => {
                let revision = client.put_with_lease(long(key), self.shared.padded(value), lease.unwrap_or(0)).await?;
                Ok(Outcome::Written { revision })
            }
            Call::Get { key } => {
                let read = client.range(RangeQuery::new(KeyRange::key(long(key)))).await?;
                Ok(Outcome::Read { revision: read.revision, found: first(&read.pairs) })
            }
            Call::Swap { key, expected, value } => {
                let put = Op::Put { key: long(key).into(), value: self.shared.padded(value).into(), lease: 0 };
                client.txn(conditional(&long(key), *expected, put)).await.map(answer)
            }
            Call::Delete { key, expected } => {
                let delete = Op::Delete(KeyRange::key(long(key)));
                client.txn(conditional(&long(key), *expected, delete)).await.map(answer)
            }
            Call::Renew { lease } => {
                client.lease_keep_alive(*lease).await?;
                Ok(Outcome::Renewed { ttl: u64::try_from(LEASE.as_millis()).unwrap_or(0) })
            }
        }
    }

    /// What the next swap of this key will expect.
    fn learn(&mut self, call: &Call, outcome: &Outcome) {
        let Some(key) = call.key() else { return };
        let revision = match (call, outcome) {
            (Call::Delete { .. }, Outcome::Written { .. }) => 0,
            (_, Outcome::Written { revision }) => *revision,
            (_, Outcome::Read { found, .. }) => found.as_ref().map_or(0, |f| f.mod_revision),
            _ => return,
        };
        self.known.insert(key.to_owned(), revision);
    }
}

/// What is said of a lease that has run out.
fn gone() -> String {
    why(&Error::NotFound(Thing::Lease))
}

fn conditional(key: &str, expected: i64, then: Op) -> Txn {
    let condition = if expected == 0 { Condition::absent(key) } else { Condition::unchanged_since(key, expected) };
    let otherwise = Op::Range(RangeQuery::new(KeyRange::key(key)));
    Txn { conditions: vec![condition], then: vec![then], otherwise: vec![otherwise] }
}

fn answer(result: TxnResult) -> Outcome {
    let revision = result.revision;
    if result.succeeded {
        return Outcome::Written { revision };
    }
    let found = result.results.iter().find_map(|r| match r {
        OpResult::Range(read) => first(&read.pairs),
        OpResult::Put | OpResult::Delete(_) => None,
    });
    Outcome::Read { revision, found }
}

fn first(pairs: &[KeyValue]) -> Option<Found> {
    pairs.first().map(of_pair)
}
