//! The store for several services: an etcd cluster. It has the layout that members of etcd 3.6 and later write by themselves, so those may
//! also use the cluster's own endpoints:
//!
//! ```text
//! /_etcd/registry/TOKEN/_config/size    the size
//! /_etcd/registry/TOKEN/members/ID      a registration; its revision of creation is its index
//! /_etcd/discovery/TOKEN                changes with each registration through a service, so two at once cannot both pass the rules
//! ```
//!
//! All keys of a token have one lease: etcd deletes them when its time is up, whatever services or their clocks do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use quorate_core::text::with_causes;
use quorate_etcd::{
    Client, Condition, ConnectOptions, Error, Event, KeyRange, KeyValue, Op, OpResult, RangeQuery, RangeResult, Thing,
    Txn, TxnResult,
};
use tokio::sync::watch;

use crate::files::Limits;
use crate::registry::{MemberId, Registration, Registry, Token, Verdict};
use crate::store::{Registered, Seen, Store, StoreError};
use crate::v2::PREFIX;
use crate::waiters::Waiters;

/// Changes with each registration.
const GUARDS: &str = "/_etcd/discovery";
/// Members wait 5 seconds for an answer, in which a second endpoint should have its chance.
const CALL: Duration = Duration::from_millis(1800);
const CONNECT: Duration = Duration::from_secs(1);
/// Registrations at the same moment, each of which makes the others look again.
const ATTEMPTS: usize = 64;
/// On the average, for each token that is allowed.
const KEYS_PER_TOKEN: usize = 4;
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

struct Inner {
    limits: Limits,
    endpoints: Mutex<Endpoints>,
    /// The endpoint that answered last.
    current: AtomicUsize,
    waiters: Waiters,
}

#[derive(Default)]
struct Endpoints {
    /// What the clients were made from.
    options: Vec<ConnectOptions>,
    clients: Vec<Client>,
}

/// A token's keys.
struct Found {
    registry: Registry,
    revision: i64,
    size: KeyValue,
    guard: i64,
    /// Keys of all tokens.
    keys: i64,
}

impl Cluster {
    /// Connects when it is first used. Must be called within a tokio runtime.
    pub fn new(options: Vec<ConnectOptions>, limits: Limits) -> Result<Self, StoreError> {
        let inner =
            Inner { limits, endpoints: Mutex::default(), current: AtomicUsize::new(0), waiters: Waiters::default() };
        let cluster = Cluster(Arc::new(inner));
        cluster.connect(options)?;
        tokio::spawn(follow(Arc::downgrade(&cluster.0)));
        Ok(cluster)
    }

    /// Uses these from now on, unless they are those in use.
    pub fn connect(&self, options: Vec<ConnectOptions>) -> Result<(), StoreError> {
        let same = |a: &ConnectOptions, b: &ConnectOptions| {
            (&a.endpoint, &a.ca_pem, &a.identity) == (&b.endpoint, &b.ca_pem, &b.identity)
        };
        let mut endpoints = self.0.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        if options.len() == endpoints.options.len() && options.iter().zip(&endpoints.options).all(|(a, b)| same(a, b)) {
            return Ok(());
        }
        let quick = |options: &ConnectOptions| ConnectOptions {
            connect_timeout: CONNECT,
            request_timeout: CALL,
            ..options.clone()
        };
        let clients = options.iter().map(|options| Client::connect(quick(options)));
        let clients: Result<Vec<Client>, Error> = clients.collect();
        let clients = clients.map_err(|error| StoreError::Failed(error.to_string()))?;
        *endpoints = Endpoints { options, clients };
        Ok(())
    }
}

impl Inner {
    fn clients(&self) -> Vec<Client> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner).clients.clone()
    }

    /// The client of the endpoint that answered last, and with `other` that of the next one.
    fn client(&self, other: bool) -> Option<Client> {
        let clients = self.clients();
        let at = self.current.fetch_add(usize::from(other), Ordering::Relaxed) + usize::from(other);
        let count = clients.len();
        clients.into_iter().nth(at % count.max(1))
    }

    /// Asks one endpoint after another. What is asked must be harmless when it is done twice.
    async fn ask<T, F: Future<Output = Result<T, Error>>>(&self, work: impl Fn(Client) -> F) -> Result<T, Error> {
        let mut last = Error::Timeout;
        for attempt in 0..self.clients().len().max(1) {
            let Some(client) = self.client(attempt > 0) else { break };
            match work(client).await {
                Err(error) if another_may_answer(&error) => last = error,
                answer => return answer,
            }
        }
        Err(last)
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResult, Error> {
        let once = |client: Client| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        };
        self.ask(once).await
    }

    async fn range(&self, query: RangeQuery) -> Result<RangeResult, Error> {
        let once = |client: Client| {
            let query = query.clone();
            async move { client.range(query).await }
        };
        self.ask(once).await
    }

    async fn lease(&self, lifetime: Duration) -> Result<i64, Error> {
        let granted = self.ask(|client: Client| async move { client.lease_grant(lifetime).await }).await?;
        Ok(granted.id)
    }

    /// How many tokens there are.
    async fn count(&self) -> Result<i64, Error> {
        let query = RangeQuery { count_only: true, ..RangeQuery::new(KeyRange::prefix(format!("{GUARDS}/"))) };
        Ok(self.range(query).await?.count)
    }

    /// All of a token at one moment.
    async fn find(&self, token: &Token) -> Result<Result<Found, u64>, Error> {
        let all = RangeQuery { count_only: true, ..RangeQuery::new(KeyRange::prefix(format!("{PREFIX}/"))) };
        let txn = Txn {
            then: vec![
                Op::Range(RangeQuery::new(KeyRange::prefix(base(token)))),
                Op::Range(RangeQuery::new(KeyRange::key(guard(token)))),
                Op::Range(all),
            ],
            ..Txn::default()
        };
        let TxnResult { revision, results, .. } = self.txn(txn).await?;
        let mut ranges = results.into_iter().filter_map(|result| match result {
            OpResult::Range(range) => Some(range),
            _ => None,
        });
        let mut next = || ranges.next().unwrap_or(RangeResult { pairs: Vec::new(), count: 0, more: false, revision });
        let (keys, guard, all) = (next(), next(), next());
        let guard = guard.pairs.first().map_or(0, |pair| pair.mod_revision);
        Ok(found(token, keys.pairs, revision, guard, all.count).ok_or(revision.cast_unsigned()))
    }

    async fn create(&self, token: &Token, size: u16) -> Result<(), StoreError> {
        let count = self.count().await.map_err(failed)?;
        if usize::try_from(count).is_ok_and(|count| count >= self.limits.tokens) {
            return Err(StoreError::Full { what: format!("{count} tokens (--max-tokens)") });
        }
        let lifetime = self.limits.lifetime.max(Duration::from_secs(1));
        let lease = self.lease(lifetime).await.map_err(failed)?;
        let put = |key: String, value: String| Op::Put { key: key.into_bytes(), value: value.into_bytes(), lease };
        let txn = Txn {
            conditions: vec![Condition::absent(size_key(token))],
            then: vec![put(size_key(token), size.to_string()), put(guard(token), String::new())],
            otherwise: Vec::new(),
        };
        // Done twice, the second finds the first: nobody else can have the same token.
        self.txn(txn).await.map_err(failed)?;
        Ok(())
    }

    async fn register(&self, token: &Token, id: &MemberId, value: &str) -> Result<Registered, StoreError> {
        for _ in 0..ATTEMPTS {
            let found = self.find(token).await.map_err(failed)?.map_err(|index| StoreError::NoToken { index })?;
            let index = found.revision.cast_unsigned();
            match found.registry.judge(id, value) {
                Err(refusal) => return Err(StoreError::Refused { refusal, index }),
                Ok(Verdict::Known(registration)) => {
                    return Ok(Registered { registration: registration.clone(), index });
                }
                Ok(Verdict::New) => {}
            }
            if usize::try_from(found.keys).is_ok_and(|keys| keys >= self.limits.tokens.saturating_mul(KEYS_PER_TOKEN)) {
                return Err(StoreError::Full { what: format!("{} keys of all tokens", found.keys) });
            }
            let lease = found.size.lease;
            let member = format!("{}members/{}", base(token), id.as_str()).into_bytes();
            let txn = Txn {
                conditions: vec![
                    Condition::unchanged_since(guard(token), found.guard),
                    Condition::unchanged_since(size_key(token), found.size.mod_revision),
                    Condition::absent(member.clone()),
                ],
                then: vec![
                    Op::Put { key: member, value: value.as_bytes().to_vec(), lease },
                    Op::Put { key: guard(token).into_bytes(), value: Vec::new(), lease },
                ],
                otherwise: Vec::new(),
            };
            // If it was done although nobody said so, the next look finds it.
            match self.txn(txn).await {
                Ok(TxnResult { succeeded: true, revision, .. }) => {
                    let index = revision.cast_unsigned();
                    let registration = Registration { id: id.clone(), value: value.to_owned(), index };
                    return Ok(Registered { registration, index });
                }
                // Another registration came first, or the token has just expired.
                Ok(_) | Err(Error::NotFound(Thing::Lease)) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(StoreError::Failed(String::from("too many members register at the same moment")))
    }

    /// Members that use the cluster's own endpoints register without a lease. What they leave goes when their token is gone.
    async fn sweep(&self) -> Result<(), Error> {
        let keys = RangeQuery { keys_only: true, ..RangeQuery::new(KeyRange::prefix(format!("{PREFIX}/"))) };
        let keys = self.range(keys).await?;
        for token in orphans(keys.pairs.iter().map(|pair| pair.key.as_slice())) {
            let txn = Txn {
                conditions: vec![Condition::absent(size_key(&token))],
                then: vec![Op::Delete(KeyRange::prefix(base(&token)))],
                otherwise: Vec::new(),
            };
            self.txn(txn).await?;
            self.waiters.wake(&token);
        }
        Ok(())
    }
}

#[async_trait]
impl Store for Cluster {
    async fn create(&self, token: &Token, size: u16) -> Result<(), StoreError> {
        self.0.create(token, size).await
    }

    async fn read(&self, token: &Token) -> Result<Seen, StoreError> {
        let found = self.0.find(token).await.map_err(failed)?.map_err(|index| StoreError::NoToken { index })?;
        Ok(Seen { registry: found.registry, index: found.revision.cast_unsigned() })
    }

    async fn register(&self, token: &Token, id: &MemberId, value: &str) -> Result<Registered, StoreError> {
        self.0.register(token, id, value).await
    }

    fn changes(&self, token: &Token) -> watch::Receiver<()> {
        self.0.waiters.subscribe(token)
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.0.count().await.map(drop).map_err(failed)
    }

    async fn tend(&self) -> Result<(), StoreError> {
        self.0.waiters.tidy();
        self.0.sweep().await.map_err(failed)
    }
}

/// Wakes those who wait, until the store is dropped. What is missed while it connects again, they find when they look again.
async fn follow(inner: Weak<Inner>) {
    let mut other = false;
    while let Some(store) = inner.upgrade() {
        let client = store.client(other);
        drop(store);
        if let Some(client) = client {
            let _ = follow_one(&inner, &client).await;
        }
        other = true;
        tokio::time::sleep(PAUSE).await;
    }
}

async fn follow_one(inner: &Weak<Inner>, client: &Client) -> Result<(), Error> {
    let mut watch = client.watch(KeyRange::prefix(format!("{PREFIX}/")), 0, true).await?;
    if let Some(store) = inner.upgrade() {
        store.waiters.wake_all();
    }
    loop {
        let update = watch.next().await?;
        let Some(store) = inner.upgrade() else { return Ok(()) };
        let keys = update.events.iter().map(|event| match event {
            Event::Put(pair) => &pair.key,
            Event::Delete { key, .. } => key,
        });
        keys.filter_map(|key| Some(split(key)?.0)).for_each(|token| store.waiters.wake(&token));
    }
}

fn another_may_answer(error: &Error) -> bool {
    matches!(
        error,
        Error::Unreachable { .. } | Error::Timeout | Error::NoLeader | Error::Unavailable { .. } | Error::NotForLearner
    )
}

fn failed(error: Error) -> StoreError {
    tracing::warn!(error = with_causes(&error), "the etcd cluster of this service did not answer as it should");
    let rights = "the user needs readwrite on /_etcd/registry/ and /_etcd/discovery/";
    match error {
        Error::PermissionDenied => StoreError::Failed(format!("etcd refuses this service: {rights}")),
        error => StoreError::Failed(format!("the etcd cluster of this service: {error}")),
    }
}

fn base(token: &Token) -> String {
    format!("{PREFIX}/{}/", token.as_str())
}

fn size_key(token: &Token) -> String {
    format!("{}_config/size", base(token))
}

fn guard(token: &Token) -> String {
    format!("{GUARDS}/{}", token.as_str())
}

/// The token of a key, and what comes behind it.
fn split(key: &[u8]) -> Option<(Token, &str)> {
    let below = std::str::from_utf8(key).ok()?.strip_prefix(PREFIX)?.strip_prefix('/')?;
    let (token, rest) = below.split_once('/')?;
    Some((Token::parse(token)?, rest))
}

fn found(token: &Token, pairs: Vec<KeyValue>, revision: i64, guard: i64, keys: i64) -> Option<Found> {
    let size_key = size_key(token);
    let size = pairs.iter().find(|pair| pair.key == size_key.as_bytes())?.clone();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let number = text(&size.value)?.parse().ok().filter(|size| *size > 0)?;
    let member = |pair: &KeyValue| {
        let id = MemberId::parse(split(&pair.key)?.1.strip_prefix("members/")?)?;
        Some(Registration { id, value: text(&pair.value)?, index: pair.create_revision.cast_unsigned() })
    };
    let mut members: Vec<Registration> = pairs.iter().filter_map(member).collect();
    members.sort_by_key(|member| member.index);
    let registry = Registry { size: number, index: size.create_revision.cast_unsigned(), members };
    Some(Found { registry, revision, size, guard, keys })
}

/// Tokens that have keys and no size.
fn orphans<'a>(keys: impl Iterator<Item = &'a [u8]>) -> BTreeSet<Token> {
    let mut sized: BTreeMap<Token, bool> = BTreeMap::new();
    for (token, rest) in keys.filter_map(split) {
        *sized.entry(token).or_default() |= rest == "_config/size";
    }
    sized.into_iter().filter(|(_, sized)| !sized).map(|(token, _)| token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "9a69d64726338dabf0a279d4fa7e803e";

    fn pair(key: &str, value: &str, create_revision: i64) -> KeyValue {
        let key = format!("{PREFIX}/{TOKEN}/{key}").into_bytes();
        KeyValue {
            key,
            value: value.into(),
            create_revision,
            mod_revision: create_revision + 100,
            version: 2,
            lease: 7,
        }
    }

    #[test]
    fn a_registry_is_what_members_wrote_in_the_order_in_which_they_came() {
        let token = Token::parse(TOKEN).unwrap();
        let pairs = vec![
            pair("_config/size", "3", 5),
            pair("members/a", "m2=http://h:2", 9),
            pair("members/b", "m1=http://h:1", 8),
            pair("members/not-an-id", "x", 6),
            pair("other", "x", 7),
        ];
        let found = found(&token, pairs, 12, 8, 5).unwrap();
        assert_eq!((found.registry.size, found.registry.index, found.size.lease), (3, 5, 7));
        let members: Vec<(&str, u64)> = found.registry.members.iter().map(|m| (m.id.as_str(), m.index)).collect();
        assert_eq!(members, [("b", 8), ("a", 9)]);
    }

    #[test]
    fn without_a_size_there_is_no_token() {
        let token = Token::parse(TOKEN).unwrap();
        assert!(found(&token, vec![pair("members/a", "m=http://h:1", 9)], 12, 0, 1).is_none());
        for bad in ["", "0", "-1", "three", "70000"] {
            assert!(found(&token, vec![pair("_config/size", bad, 9)], 12, 0, 1).is_none(), "{bad}");
        }
    }

    #[test]
    fn only_what_lost_its_size_is_swept() {
        let other = Token::random();
        let keys = [
            format!("{PREFIX}/{TOKEN}/members/a"),
            format!("{PREFIX}/{}/members/a", other.as_str()),
            format!("{PREFIX}/{}/_config/size", other.as_str()),
            format!("{PREFIX}/mine/members/a"),
            format!("{PREFIX}/x"),
        ];
        let orphans = orphans(keys.iter().map(String::as_bytes));
        assert_eq!(orphans, BTreeSet::from([Token::parse(TOKEN).unwrap()]));
    }
}
