//! The workload: clients that put, get, swap and delete a few shared keys through all endpoints, a lease that is kept alive, and watches
//! of all keys.
//!
//! Everything is below one prefix and is removed at the end. It records and does not judge.

mod client;
mod watcher;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_agent::dial::Dial;
use quorate_etcd::{Client, ConnectOptions, Error, KeyRange, Login, RangeQuery, Sockets};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::history::{Call, FinalRead, Found, Head, History, Operation, Outcome, WatchRecord, Watched};
use crate::mark::{Clock, Moment};
use crate::traffic::{Begun, Load, Order, Workload, WorkloadError};
use client::Worker;

/// Below which the keys of all drills are.
const DRILLS: &str = "/quorate-drill/";
/// Bounds a request: a member that is stopped must not hold a client up for long.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(1500);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the endpoints are looked up, because members change.
const LOOK_UP: Duration = Duration::from_millis(300);
/// How long the watches may take to begin, and to show the last write.
const WATCH_PATIENCE: Duration = Duration::from_secs(20);
/// How long the end may take to be written, and to be read through one endpoint.
const END_PATIENCE: Duration = Duration::from_secs(20);
const AFTER_FAILURE: Duration = Duration::from_millis(50);

/// The login of the clients.
#[derive(Clone)]
pub struct Access {
    pub ca: String,
    /// Certificate and key.
    pub identity: Option<(String, String)>,
    pub login: Option<Login>,
    pub dial: Dial,
}

impl Access {
    /// A client of one member.
    pub fn client(&self, endpoint: &str) -> Result<Client, Error> {
        let dial = self.dial.clone();
        Client::connect(ConnectOptions {
            sockets: Some(Sockets::new(move |to| dial.socket(to))),
            identity: self.identity.clone(),
            login: self.login.clone(),
            connect_timeout: CONNECT_TIMEOUT,
            request_timeout: REQUEST_TIMEOUT,
            ..ConnectOptions::new(endpoint, &self.ca)
        })
    }
}

/// Says where clients can connect now.
pub struct Endpoints {
    /// The addresses of all machines, including those of members that join or leave.
    pub all: Box<dyn Fn() -> Vec<String> + Send>,
    /// Of the members that are wished for.
    pub wished: Box<dyn Fn() -> Vec<String> + Send + Sync>,
}

/// Begins at once. The head says what it is for; the rest of it is filled in.
pub fn start(
    mut head: Head,
    access: Access,
    load: Load,
    endpoints: Endpoints,
) -> Result<Workload<History>, WorkloadError> {
    let clock = Clock::begin();
    head.began = Timestamp::now();
    (head.clients, head.watchers, head.seed) = (load.clients, load.watchers, load.seed);
    let shared = Shared {
        access: Arc::new(access),
        prefix: format!("{DRILLS}{}/", quorate_pki::random_hex(6)),
        endpoints: Arc::new(Mutex::new((endpoints.all)())),
        clock,
        value_size: load.value_size,
        history: Arc::new(Mutex::new(History { head, ..History::default() })),
    };
    Workload::start(clock, move |orders, begun| shared.run(load, endpoints, orders, begun))
}

/// State shared by all tasks of a workload.
#[derive(Clone)]
struct Shared {
    access: Arc<Access>,
    prefix: String,
    endpoints: Arc<Mutex<Vec<String>>>,
    clock: Clock,
    value_size: usize,
    history: Arc<Mutex<History>>,
}

impl Shared {
    async fn run(
        self,
        load: Load,
        find: Endpoints,
        mut orders: watch::Receiver<Order>,
        begun: Begun,
    ) -> Result<History, WorkloadError> {
        let Endpoints { all, wished } = find;
        let endpoints = self.endpoints.clone();
        let looking = tokio::spawn(async move {
            loop {
                sleep(LOOK_UP).await;
                let found = all();
                if !found.is_empty() {
                    *endpoints.lock().expect("no holder panics") = found;
                }
            }
        });
        // What drills left that were killed.
        self.tidy_up(DRILLS).await;
        let (through, reached) = watch::channel(None);
        let (began, mut taken) = watch::channel(0);
        let watchers: Vec<_> = (0..load.watchers)
            .map(|number| tokio::spawn(self.clone().watch(number, began.clone(), reached.clone())))
            .collect();
        let all = timeout(WATCH_PATIENCE, taken.wait_for(|count| *count == load.watchers)).await;
        if all.is_err() {
            watchers.iter().for_each(|w| w.abort());
            return Err(WorkloadError::NotServing { why: String::from("watches could not be begun") });
        }
        begun.note();
        let mut clients: Vec<_> = (0..load.clients)
            .map(|number| tokio::spawn(Worker::new(&self, number).choose(load, orders.clone())))
            .collect();
        clients.push(tokio::spawn(Worker::new(&self, load.clients).keep_lease(orders.clone())));
        let _ = orders.wait_for(|order| *order != Order::GoOn).await;
        for client in clients {
            client.await.expect("a client does not panic");
        }
        let given_up = *orders.borrow() == Order::GiveUp;
        if !given_up {
            self.end(load, &wished, through, watchers).await;
        }
        looking.abort();
        self.tidy_up(&self.prefix).await;
        let mut history = std::mem::take(&mut *self.history.lock().expect("no holder panics"));
        history.head.ended = history.operations.iter().map(|o| o.ended).max().unwrap_or(0);
        Ok(history)
    }

    /// Writes once more, waits until every watch has shown that, and reads what is there through every endpoint. Where that cannot
    /// be written, the history ends without it, which shows that.
    async fn end(
        &self,
        load: Load,
        wished: &(dyn Fn() -> Vec<String> + Sync),
        through: watch::Sender<Option<i64>>,
        watchers: Vec<tokio::task::JoinHandle<()>>,
    ) {
        let mut worker = Worker::new(self, load.clients + 1);
        let deadline = Instant::now() + END_PATIENCE;
        let last = loop {
            match worker.put("end").await {
                Outcome::Written { revision } => break revision,
                _ if Instant::now() > deadline => return watchers.iter().for_each(|watcher| watcher.abort()),
                _ => sleep(AFTER_FAILURE).await,
            }
        };
        let _ = through.send(Some(last));
        let deadline = tokio::time::Instant::now() + WATCH_PATIENCE;
        for mut watcher in watchers {
            // One that does not get there is told by what it recorded.
            if tokio::time::timeout_at(deadline, &mut watcher).await.is_err() {
                watcher.abort();
            }
        }
        for endpoint in wished() {
            let pairs = self.read_all(&endpoint, last).await;
            self.history().finals.push(FinalRead { endpoint, revision: last, pairs });
        }
    }

    /// All that is there, as of one revision, so that a write that comes late is no surprise.
    async fn read_all(&self, endpoint: &str, revision: i64) -> Result<BTreeMap<String, Found>, String> {
        let deadline = Instant::now() + END_PATIENCE;
        let client = self.access.client(endpoint).map_err(|e| e.to_string())?;
        loop {
            let query = RangeQuery { revision, ..RangeQuery::new(KeyRange::prefix(self.prefix.as_str())) };
            match client.range(query).await {
                Ok(found) => {
                    let pair = |p: quorate_etcd::KeyValue| (self.short(&p.key), of_pair(&p));
                    return Ok(found.pairs.into_iter().map(pair).collect());
                }
                Err(error) if Instant::now() > deadline => return Err(error.to_string()),
                Err(_) => sleep(AFTER_FAILURE).await,
            }
        }
    }

    /// Removes every key that begins so, through whichever endpoint does it.
    async fn tidy_up(&self, prefix: &str) {
        for endpoint in self.endpoints() {
            let Ok(client) = self.access.client(&endpoint) else { continue };
            if client.delete(KeyRange::prefix(prefix)).await.is_ok() {
                return;
            }
        }
    }

    fn endpoints(&self) -> Vec<String> {
        self.endpoints.lock().expect("no holder panics").clone()
    }

    fn history(&self) -> std::sync::MutexGuard<'_, History> {
        self.history.lock().expect("no holder panics")
    }

    fn record(&self, client: u32, endpoint: &str, call: Call, called: Moment, outcome: Outcome) {
        let (ended, endpoint) = (self.clock.now(), endpoint.to_owned());
        let mut history = self.history();
        let id = history.operations.len() as u64 + 1;
        history.operations.push(Operation { id, client, endpoint, call, called, ended, outcome });
    }

    fn note(&self, watcher: u32, what: Watched) {
        let at = self.clock.now();
        self.history().watches.push(WatchRecord { watcher, at, what });
    }

    fn padded(&self, value: &str) -> String {
        format!("{value:width$}", width = self.value_size)
    }

    fn long(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// A key without the prefix.
    fn short(&self, key: &[u8]) -> String {
        let key = String::from_utf8_lossy(key);
        key.strip_prefix(&self.prefix).unwrap_or(&key).to_owned()
    }
}

fn of_pair(pair: &quorate_etcd::KeyValue) -> Found {
    Found { value: unpadded(&pair.value), mod_revision: pair.mod_revision }
}

fn unpadded(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end().to_owned()
}

/// A connection to one member, and to the next when that one fails.
struct Connection {
    shared: Shared,
    number: usize,
    open: Option<(String, Client)>,
}

impl Connection {
    fn new(shared: &Shared, number: u32) -> Self {
        Connection { shared: shared.clone(), number: number as usize, open: None }
    }

    fn client(&mut self) -> Result<(String, Client), String> {
        if self.open.is_none() {
            let endpoints = self.shared.endpoints();
            let endpoint = endpoints.get(self.number % endpoints.len().max(1)).ok_or("there is no endpoint")?;
            let client = self.shared.access.client(endpoint).map_err(|e| e.to_string())?;
            self.open = Some((endpoint.clone(), client));
        }
        self.open.clone().ok_or_else(|| String::from("there is no endpoint"))
    }

    fn move_on(&mut self) {
        self.number += 1;
        self.open = None;
    }
}

/// The error and what is behind it, in one line.
fn why(error: &Error) -> String {
    use std::error::Error as _;
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
