//! The clients of the cluster in `cargo xtask bench backup` and `bench restore`. How to reach it is told by etcdctl's variables, as
//! `quorate env` gives them.
//!
//! - `load fill BYTES` puts as many bytes, half of them random and half of them words: the same ones each time.
//! - `load count` prints how many keys there are of that filling.
//! - `load write` writes little things through every member until its input ends, and prints how many, and the milliseconds that half
//!   of them, 99 of 100 and all of them took at most.

use std::error::Error;
use std::io::Read;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quorate_etcd::{Client, ConnectOptions, KeyRange, Op, RangeQuery, Txn};
use tokio::task::JoinSet;
use tokio::time::sleep;

const FILLING: &str = "/fill/";
const VALUE: usize = 4 << 10;
/// As many puts as etcd takes at once by default.
const AT_ONCE: u64 = 128;
/// How many such are under way. More only wait for the disk.
const FILLERS: usize = 6;
const SEED: u64 = 0x0051_0072_0061_7465;
/// A busy disk makes etcd refuse or forget; the same put again does no harm.
const TRIES: u32 = 10;
const NEXT_TRY: Duration = Duration::from_millis(500);
const ANSWER: Duration = Duration::from_secs(60);
/// Between an answer and a writer's next write.
const PAUSE: Duration = Duration::from_millis(5);
const WORDS: &[u8] = b"/registry/pods/default/etcd-1 {\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"phase\":\"Running\"} ";

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments).await {
        Ok(printed) => {
            println!("{printed}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &[String]) -> Result<String> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let members = members()?;
    match words[..] {
        ["fill", bytes] => fill(&members, bytes.parse()?).await,
        ["count"] => Ok(count(members.first().ok_or("no endpoints")?).await?.to_string()),
        ["write"] => write(&members).await,
        _ => Err("usage: load fill BYTES | load count | load write".into()),
    }
}

fn members() -> Result<Vec<Client>> {
    let variable =
        |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set: use the output of `quorate env`"));
    let read = |name: &str| -> Result<String> { Ok(std::fs::read_to_string(variable(name)?)?) };
    let (ca, certificate, key) = (read("ETCDCTL_CACERT")?, read("ETCDCTL_CERT")?, read("ETCDCTL_KEY")?);
    let connect = |endpoint: &str| -> Result<Client> {
        let identity = Some((certificate.clone(), key.clone()));
        let options = ConnectOptions { identity, request_timeout: ANSWER, ..ConnectOptions::new(endpoint, &ca) };
        Ok(Client::connect(options)?)
    };
    variable("ETCDCTL_ENDPOINTS")?.split(',').map(connect).collect()
}

async fn fill(members: &[Client], bytes: u64) -> Result<String> {
    let values = bytes.div_ceil(VALUE as u64);
    let next = Arc::new(AtomicU64::new(0));
    let mut fillers = JoinSet::new();
    for client in members.iter().cycle().take(FILLERS).cloned() {
        fillers.spawn(put_what_is_left(client, next.clone(), values));
    }
    while let Some(filled) = fillers.join_next().await {
        filled??;
    }
    Ok(values.to_string())
}

async fn put_what_is_left(client: Client, next: Arc<AtomicU64>, values: u64) -> Result<()> {
    loop {
        let first = next.fetch_add(AT_ONCE, Ordering::Relaxed);
        if first >= values {
            return Ok(());
        }
        put_all(&client, first..values.min(first + AT_ONCE)).await?;
    }
}

async fn put_all(client: &Client, numbers: std::ops::Range<u64>) -> Result<()> {
    let put = |number| Op::Put { key: key(number), value: value(number), lease: 0 };
    let txn = Txn { then: numbers.map(put).collect(), ..Txn::default() };
    for _ in 1..TRIES {
        if client.txn(txn.clone()).await.is_ok() {
            return Ok(());
        }
        sleep(NEXT_TRY).await;
    }
    client.txn(txn).await?;
    Ok(())
}

fn key(number: u64) -> Vec<u8> {
    format!("{FILLING}{number:010}").into_bytes()
}

/// Depends on nothing but the number.
fn value(number: u64) -> Vec<u8> {
    let mut state = SEED ^ number;
    let random = std::iter::repeat_with(|| random(&mut state).to_le_bytes()).flatten().take(VALUE / 2);
    random.chain(WORDS.iter().copied().cycle().take(VALUE / 2)).collect()
}

/// The generator known as SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

async fn count(client: &Client) -> Result<i64> {
    let query = RangeQuery { count_only: true, ..RangeQuery::new(KeyRange::prefix(FILLING)) };
    Ok(client.range(query).await?.count)
}

async fn write(members: &[Client]) -> Result<String> {
    let ended = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for (number, client) in members.iter().cloned().enumerate() {
        writers.spawn(write_until(client, format!("/write/{number}"), ended.clone()));
    }
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    ended.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    while let Some(taken) = writers.join_next().await {
        times.extend(taken??);
    }
    times.sort();
    // The smallest time that so many of a hundred did not exceed.
    let percentile =
        |hundredths: usize| times[(times.len() * hundredths).div_ceil(100).max(1) - 1].as_secs_f64() * 1000.0;
    if times.is_empty() {
        return Err("nothing was written".into());
    }
    Ok(format!("{} {:.3} {:.3} {:.3}", times.len(), percentile(50), percentile(99), percentile(100)))
}

async fn write_until(client: Client, key: String, ended: Arc<AtomicBool>) -> Result<Vec<Duration>> {
    // The connection is made before the first write counts.
    client.put(key.clone(), "first").await?;
    let mut times = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        let begun = Instant::now();
        client.put(key.clone(), times.len().to_string()).await?;
        times.push(begun.elapsed());
        sleep(PAUSE).await;
    }
    Ok(times)
}
