//! The workload of PostgreSQL: clients that append rows and transfer balances, through a connection string with all hosts or, if there is
//! HAProxy, every second one through that; readers with sessions on replicas; and an observer of each member that checks whether it is
//! writable.
//!
//! Everything is in one schema and is removed at the end. It records and does not judge.

mod client;
mod observer;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_postgres::SimpleQueryRow;

use super::history::{Content, Entry, FinalRead, Head, History, TransferRow};
use super::lookup::Lookup;
use super::session::{Access, Host, Session, why};
use crate::mark::Clock;
use crate::traffic::{Begun, Load, Order, Workload, WorkloadError};
use client::Worker;

/// What the schemas of all drills are called, but for the end.
const SCHEMAS: &str = "quorate_drill_";
const ACCOUNTS: u32 = 8;
const BALANCE: i64 = 100;
const READERS: u32 = 2;
/// How often the hosts are looked up, because members change.
const LOOK_UP: Duration = Duration::from_millis(300);
/// How long the tables may take to be there, and the end to be written and read.
const PATIENCE: Duration = Duration::from_secs(30);
const AFTER_FAILURE: Duration = Duration::from_millis(50);

/// Begins at once. The head says what it is for; the rest of it is filled in.
pub(super) fn start(
    mut head: Head,
    access: Access,
    load: Load,
    lookup: Lookup,
) -> Result<Workload<History>, WorkloadError> {
    let clock = Clock::begin();
    head.began = Timestamp::now();
    (head.clients, head.readers, head.seed) = (load.clients, READERS, load.seed);
    (head.accounts, head.balance) = (ACCOUNTS, BALANCE);
    let shared = Shared {
        access: Arc::new(Mutex::new(Arc::new(access))),
        schema: format!("{SCHEMAS}{}", quorate_pki::random_hex(6)),
        hosts: Arc::new(Mutex::new(lookup.hosts())),
        proxies: Arc::new(Mutex::new(lookup.proxies())),
        clock,
        history: Arc::new(Mutex::new(History { head, ..History::default() })),
    };
    Workload::start(clock, move |orders, begun| shared.run(load, lookup, orders, begun))
}

/// State shared by all tasks of a workload.
#[derive(Clone)]
struct Shared {
    access: Arc<Mutex<Arc<Access>>>,
    schema: String,
    hosts: Arc<Mutex<Vec<Host>>>,
    proxies: Arc<Mutex<Vec<SocketAddr>>>,
    clock: Clock,
    history: Arc<Mutex<History>>,
}

impl Shared {
    async fn run(
        self,
        load: Load,
        lookup: Lookup,
        mut orders: watch::Receiver<Order>,
        begun: Begun,
    ) -> Result<History, WorkloadError> {
        self.create_tables().await.map_err(|why| WorkloadError::NotServing { why })?;
        begun.note();
        let looking = tokio::spawn(self.clone().look(lookup, orders.clone()));
        let mut tasks = JoinSet::new();
        for number in 0..load.clients {
            tasks.spawn(Worker::new(&self, number).choose(load, orders.clone()));
        }
        for number in 0..READERS {
            tasks.spawn(self.clone().read_replicas(number, orders.clone()));
        }
        let _ = orders.wait_for(|order| *order != Order::GoOn).await;
        while let Some(ended) = tasks.join_next().await {
            ended.expect("a client does not panic");
        }
        // With it end the observers, which note what they saw.
        let lookup = looking.await.expect("looking does not panic");
        if *orders.borrow() != Order::GiveUp {
            self.end(load, &lookup.wished()).await;
        }
        self.tidy_up().await;
        Ok(std::mem::take(&mut *self.history()))
    }

    /// Follows members, proxies and passwords until the clients stop, and observes every member.
    async fn look(self, lookup: Lookup, orders: watch::Receiver<Order>) -> Lookup {
        let (mut observed, mut observers) = (BTreeSet::new(), JoinSet::new());
        while *orders.borrow() == Order::GoOn {
            let found = lookup.hosts();
            for host in found.iter().filter(|host| !observed.contains(*host)).cloned().collect::<Vec<_>>() {
                observed.insert(host.clone());
                observers.spawn(self.clone().observe(host));
            }
            if !found.is_empty() {
                *self.hosts.lock().expect("no holder panics") = found;
            }
            *self.proxies.lock().expect("no holder panics") = lookup.proxies();
            if let Some(password) = lookup.password() {
                let access = Access { password, ..(*self.access()).clone() };
                *self.access.lock().expect("no holder panics") = Arc::new(access);
            }
            sleep(LOOK_UP).await;
        }
        observers.shutdown().await;
        lookup
    }

    async fn create_tables(&self) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        let schema = &self.schema;
        let sql = format!(
            "begin; create schema {schema};
             create table {schema}.entries (list int, position bigint, value text not null, padding text);
             create table {schema}.transfers (value text not null, sender int, receiver int, amount bigint);
             create table {schema}.accounts (id int primary key, balance bigint not null);
             insert into {schema}.accounts select id, {BALANCE} from generate_series(0, {ACCOUNTS} - 1) id; commit"
        );
        loop {
            let made = match Session::open_writable(&self.access(), &self.hosts()).await {
                Ok(session) => {
                    self.drop_schemas(&session).await;
                    session.rows(&sql).await.map(drop).map_err(|e| why(&e))
                }
                Err(why) => Err(why),
            };
            match made {
                Err(why) if Instant::now() > deadline => return Err(why),
                Err(_) => sleep(AFTER_FAILURE).await,
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Of this drill, and what drills left that were killed.
    async fn drop_schemas(&self, session: &Session) {
        let known = format!("select nspname from pg_namespace where nspname like '{SCHEMAS}%'");
        for row in session.rows(&known).await.unwrap_or_default() {
            let Some(name) = row.get(0) else { continue };
            // Where this fails the next drill tries again.
            let _ = session.rows(&format!("drop schema if exists {name} cascade")).await;
        }
    }

    async fn tidy_up(&self) {
        if let Ok(session) = Session::open_writable(&self.access(), &self.hosts()).await {
            self.drop_schemas(&session).await;
        }
    }

    /// Writes once more, and reads what is there from every member once it has that.
    async fn end(&self, load: Load, wished: &[Host]) {
        *self.hosts.lock().expect("no holder panics") = wished.to_vec();
        let mut worker = Worker::new(self, load.clients);
        let deadline = Instant::now() + PATIENCE;
        while !worker.append().await && Instant::now() < deadline {
            sleep(AFTER_FAILURE).await;
        }
        let lsn = loop {
            match self.end_of_log().await {
                Some(lsn) => break lsn,
                None if Instant::now() > deadline => break String::from("0/0"),
                None => sleep(AFTER_FAILURE).await,
            }
        };
        for host in wished {
            let content = self.read_all(host, &lsn).await;
            self.history().finals.push(FinalRead { member: host.name.clone(), content });
        }
    }

    async fn end_of_log(&self) -> Option<String> {
        let session = Session::open_writable(&self.access(), &self.hosts()).await.ok()?;
        let rows = session.rows("select pg_current_wal_lsn()").await.ok()?;
        rows.first()?.get(0).map(str::to_owned)
    }

    async fn read_all(&self, host: &Host, lsn: &str) -> Result<Content, String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let read = match Session::open(&self.access(), host).await {
                Ok(session) => self.read_content(&session, lsn).await,
                Err(why) => Err(why),
            };
            match read {
                Err(why) if Instant::now() > deadline => return Err(why),
                Err(_) => sleep(AFTER_FAILURE).await,
                read => return read,
            }
        }
    }

    async fn read_content(&self, session: &Session, lsn: &str) -> Result<Content, String> {
        let rows = async |sql: String| session.rows(&sql).await.map_err(|e| why(&e));
        let caught_up = format!("select not pg_is_in_recovery() or pg_last_wal_replay_lsn() >= '{lsn}'");
        if rows(caught_up).await?.first().and_then(|row| row.get(0)) != Some("t") {
            return Err(format!("it has not replayed the log up to {lsn}"));
        }
        let schema = &self.schema;
        let entry = |row: &SimpleQueryRow| {
            let place = row.get(1).zip(row.get(2)).and_then(|(l, p)| l.parse().ok().zip(p.parse().ok()));
            Entry { value: row.get(0).unwrap_or_default().to_owned(), place }
        };
        let number =
            |row: &SimpleQueryRow, at: usize| row.get(at).and_then(|text| text.parse::<i64>().ok()).unwrap_or(0);
        let account = |row: &SimpleQueryRow, at: usize| i32::try_from(number(row, at)).unwrap_or(-1);
        let transfer = |row: &SimpleQueryRow| TransferRow {
            value: row.get(0).unwrap_or_default().to_owned(),
            from: account(row, 1),
            to: account(row, 2),
            amount: number(row, 3),
        };
        let balance = |row: &SimpleQueryRow| (account(row, 0), number(row, 1));
        // One snapshot for all three.
        rows(String::from("begin isolation level repeatable read read only")).await?;
        let entries = rows(format!("select value, list, position from {schema}.entries")).await?;
        let transfers = rows(format!("select value, sender, receiver, amount from {schema}.transfers")).await?;
        let balances = rows(format!("select id, balance from {schema}.accounts")).await?;
        rows(String::from("commit")).await?;
        Ok(Content {
            entries: entries.iter().map(entry).collect(),
            transfers: transfers.iter().map(transfer).collect(),
            balances: balances.iter().map(balance).collect::<BTreeMap<i32, i64>>(),
        })
    }

    /// What a statement that counts must say.
    fn counting(&self) -> String {
        let schema = &self.schema;
        format!(
            "select (select count(*) from {schema}.entries) + (select count(*) from {schema}.transfers),
             (select sum(balance) from {schema}.accounts)"
        )
    }

    fn access(&self) -> Arc<Access> {
        self.access.lock().expect("no holder panics").clone()
    }

    fn proxies(&self) -> Vec<SocketAddr> {
        self.proxies.lock().expect("no holder panics").clone()
    }

    fn hosts(&self) -> Vec<Host> {
        self.hosts.lock().expect("no holder panics").clone()
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("no holder panics")
    }
}
