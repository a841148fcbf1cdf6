//! Clients that write all the time, like those of a careful user: each one stays connected to one member, and moves to the next when a
//! write fails or takes too long. Some begin at each member, so every stopped member affects a writer. With a single writer, the result
//! would depend on whether it has a write in flight at the moment the leader hands over.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quorate_etcd::{Client, ConnectOptions};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Result;

/// How long a write may take before it is tried elsewhere.
const ANSWER: Duration = Duration::from_millis(300);
/// Between an answer and the next write.
const PAUSE: Duration = Duration::from_millis(2);
/// How many begin at each member.
const AT_EACH: usize = 3;
/// Fewer writes than this by one writer mean that nothing was measured.
const FEWEST: usize = 100;

pub struct Writers {
    tasks: JoinSet<Record>,
    stop: Arc<AtomicBool>,
}

/// What one writer saw.
struct Record {
    acknowledged: Vec<Acknowledged>,
    failed: Vec<Failed>,
    /// When it stopped: what is not acknowledged by then is a gap too.
    ended: Instant,
}

#[derive(Clone, Copy)]
struct Acknowledged {
    at: Instant,
    member: usize,
}

struct Failed {
    at: Instant,
    member: usize,
    why: String,
}

/// A time without an acknowledged write of one writer, and what happened in it.
pub struct Gap {
    pub length: Duration,
    /// Since the change began.
    ends: Duration,
    failures: Vec<String>,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { length, ends, failures } = self;
        let failures = if failures.is_empty() { String::from("no failure in it") } else { failures.join("; ") };
        write!(f, "{length:.1?}, until {ends:.1?} after the beginning: {failures}")
    }
}

impl Writers {
    /// Returns when every writer has written through every member.
    pub async fn begin(members: &[ConnectOptions]) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for number in 0..members.len() * AT_EACH {
            let connect = |options: &ConnectOptions| {
                Client::connect(ConnectOptions { connect_timeout: ANSWER, request_timeout: ANSWER, ..options.clone() })
            };
            let clients: Vec<Client> = members.iter().map(connect).collect::<std::result::Result<_, _>>()?;
            for client in &clients {
                client.put(key(number), "first").await?;
            }
            tasks.spawn(write(clients, number, stop.clone()));
        }
        Ok(Self { tasks, stop })
    }

    /// Ends them, and returns the longest gap that any of them saw since then.
    pub async fn end(mut self, since: Instant) -> Result<Gap> {
        self.stop.store(true, Ordering::Relaxed);
        let mut longest: Option<Gap> = None;
        while let Some(record) = self.tasks.join_next().await {
            let record = record?;
            if record.acknowledged.len() < FEWEST {
                return Err(format!("a writer wrote {} times only", record.acknowledged.len()).into());
            }
            let gap = record.longest_gap(since);
            if longest.as_ref().is_none_or(|longest| gap.length > longest.length) {
                longest = Some(gap);
            }
        }
        longest.ok_or_else(|| "there was no writer".into())
    }
}

fn key(writer: usize) -> String {
    format!("/rolling/{writer}")
}

async fn write(clients: Vec<Client>, number: usize, stop: Arc<AtomicBool>) -> Record {
    let (mut acknowledged, mut failed) = (Vec::new(), Vec::new());
    let mut member = number % clients.len();
    while !stop.load(Ordering::Relaxed) {
        match clients[member].put(key(number), acknowledged.len().to_string()).await {
            Ok(_) => acknowledged.push(Acknowledged { at: Instant::now(), member }),
            Err(error) => {
                failed.push(Failed { at: Instant::now(), member, why: error.to_string() });
                member = (member + 1) % clients.len();
            }
        }
        sleep(PAUSE).await;
    }
    Record { acknowledged, failed, ended: Instant::now() }
}

impl Record {
    fn longest_gap(&self, since: Instant) -> Gap {
        let begins = self.acknowledged.iter().map(|a| a.at);
        let ends = self.acknowledged.iter().skip(1).map(|a| a.at).chain([self.ended]);
        let gaps = begins.zip(ends).filter(|(_, end)| *end >= since);
        let (begin, end) = gaps.max_by_key(|(begin, end)| *end - *begin).unwrap_or((since, self.ended));
        let within = self.failed.iter().filter(|f| (begin..=end).contains(&f.at));
        let told = |f: &Failed| format!("{:?} in, at member {}: {}", f.at - begin, f.member + 1, f.why);
        let back = self.acknowledged.iter().find(|a| a.at == end).map(|a| format!("then member {}", a.member + 1));
        let failures = within.map(told).chain(back).collect();
        Gap { length: end - begin, ends: end.saturating_duration_since(since), failures }
    }
}
