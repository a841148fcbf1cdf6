//! `cargo xtask bench front`: what the front costs clients of gRPC, compared with HAProxy that passes TCP through and with direct connections
//! to the members; and what idle connections cost the front. The three take turns on one cluster, so that whatever else the machine does
//! meets all of them, and each round is compared by itself.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::figures::{Samples, ratio, table, verdict};
use super::process::memory;
use super::{CLUSTER, Ground, Measured, Programs};
use crate::lab::Lab;
use crate::test::build;
use crate::{etcd, host, postgres};

const MEMBERS: usize = 3;
/// Of HAProxy's throughput.
const LEAST_THROUGHPUT: f64 = 0.9;
const MOST_MEMORY: u64 = 100 << 20;
const FRONT: &str = "127.0.0.1:23790";
const HAPROXY: &str = "127.0.0.1:23791";
/// So many files may be open, where that is allowed.
const WANTED_FILES: u32 = 65_536;
/// Files of the front besides connections.
const OTHER_FILES: u32 = 200;
const PATIENCE: Duration = Duration::from_secs(30);
/// For buffers of handshakes to be given back.
const SETTLE: Duration = Duration::from_secs(5);

#[derive(clap::Args)]
pub struct Options {
    /// How often each of the three is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// For how many seconds each time
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// How many clients ask at the same time
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    clients: u32,
    /// How many connections stay idle
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=25_000))]
    idle: u32,
    /// Measure this quorate instead of building one
    #[arg(long, value_name = "PATH", conflicts_with_all = ["static_program", "unoptimized"])]
    program: Option<PathBuf>,
    #[command(flatten)]
    measured: Measured,
}

/// What clients saw on one way to the cluster in one round.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// Requests per second.
    rate: f64,
    /// The time that half of them, and 99 of 100, took at most.
    half: Duration,
    most: Duration,
}

/// The ways to the cluster, in the order of a round.
const WAYS: [&str; 3] = ["directly", "HAProxy", "quorate front"];
const HAPROXY_WAY: usize = 1;
const FRONT_WAY: usize = 2;

type Round = [Seen; 3];

/// How many files a process may open here.
struct Files {
    most: u32,
    is_raised: bool,
}

impl Files {
    fn find() -> Result<Self> {
        let is_raised = Command::new("prlimit").args([&Self::raised(), "true"]).stderr(Stdio::null()).status();
        if is_raised.is_ok_and(|status| status.success()) {
            return Ok(Files { most: WANTED_FILES, is_raised: true });
        }
        let limits = fs::read_to_string("/proc/self/limits").context("cannot read the limits of this process")?;
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        let most = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        Ok(Files { most: most.context("no limit of open files")?, is_raised: false })
    }

    fn raised() -> String {
        format!("--nofile={WANTED_FILES}:{WANTED_FILES}")
    }

    fn command(&self, program: &Path) -> Command {
        if !self.is_raised {
            return Command::new(program);
        }
        let mut command = Command::new("/usr/bin/prlimit");
        command.arg(Self::raised()).arg(program);
        command
    }

    /// One connection through the front is two files there.
    fn connections(&self) -> u32 {
        self.most.saturating_sub(OTHER_FILES) / 2
    }

    fn quorate(&self, ground: &Ground, path: &Path) -> Command {
        let mut command = self.command(&ground.program);
        command.env("QUORATE_HOME", ground.home()).env("PATH", path);
        command
    }
}

/// A process that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    host::install_missing(&[postgres::HAPROXY])?;
    let version = etcd::ensure_any(lab)?;
    let (ground, load) = prepare(lab, options)?;
    let files = Files::find()?;
    let count = options.idle.min(files.connections());
    if count < options.idle {
        eprintln!("warning: {} files may be open here, so {count} connections are measured", files.most);
    }
    let mut up = files.quorate(&ground, &lab.etcd(version));
    up.args(["up", CLUSTER, "--members", &MEMBERS.to_string(), "--etcd-version", &version.to_string()]);
    host::read(&mut up)?;
    let variables = variables(&ground)?;
    let members: Vec<String> = variables["ETCDCTL_ENDPOINTS"].split(',').map(str::to_owned).collect();
    let logs = ground.directory("logs")?;
    let front = start_front(&ground, &files, &logs)?;
    let _haproxy = start_haproxy(&members, &files, &logs)?;

    let ways = [members, vec![url(HAPROXY)], vec![url(FRONT)]];
    let mut rounds: Vec<Round> = Vec::new();
    for number in 1..=options.rounds {
        // Each is the first one in turn.
        let mut round = [Seen::default(); WAYS.len()];
        for at in 0..WAYS.len() {
            let way = (at + number as usize) % WAYS.len();
            round[way] = ask(&load, &variables, options, &ways[way])?;
        }
        let rates: Vec<String> =
            WAYS.iter().zip(&round).map(|(way, seen)| format!("{way} {:.0} requests/s", seen.rate)).collect();
        eprintln!("{number}/{}: {}", options.rounds, rates.join(", "));
        rounds.push(round);
    }
    let (before, after) = idle(files.command(&load), &variables, count, &front)?;
    drop(front);
    ground.destroy()?;
    print(options, count, &version.to_string(), &rounds, (before, after))
}

/// Builds what is missing.
fn prepare(lab: &Lab, options: &Options) -> Result<(Ground, PathBuf)> {
    let programs = options.measured.programs();
    match &options.program {
        Some(program) => {
            let program = fs::canonicalize(program).with_context(|| format!("cannot find {}", program.display()))?;
            let examples = build::programs()?.join("examples");
            let load = examples.join("front_load");
            Ok((Ground::prepare_for(lab, program, examples)?, load))
        }
        None => Ok((Ground::prepare_with(lab, programs)?, build_load(programs)?)),
    }
}

fn url(address: &str) -> String {
    format!("https://{address}")
}

/// The program that plays the clients.
fn build_load(programs: Programs) -> Result<PathBuf> {
    match programs {
        Programs::Release => {
            let words = ["build", "--release", "--locked", "--package", "quorate-front", "--example", "front_load"];
            host::run(host::cargo()?.args(words))?;
            Ok(host::release_directory()?.join("examples/front_load"))
        }
        Programs::Static | Programs::Unoptimized => Ok(build::programs()?.join("examples/front_load")),
    }
}

/// What etcdctl must be told to be root.
fn variables(ground: &Ground) -> Result<BTreeMap<String, String>> {
    let told = host::read(ground.quorate(Path::new("")).args(["env", CLUSTER, "--output", "json"]))?;
    serde_json::from_str(&told).context("`quorate env` printed no variables")
}

fn start_front(ground: &Ground, files: &Files, logs: &Path) -> Result<Running> {
    let mut command = files.quorate(ground, Path::new(""));
    let most = (files.connections() + OTHER_FILES / 4).to_string();
    command.args(["front", CLUSTER, "--listen", FRONT, "--max-connections", &most, "--max-per-address", &most]);
    start(command, logs, "front", FRONT)
}

fn start_haproxy(members: &[String], files: &Files, logs: &Path) -> Result<Running> {
    let servers = members.iter().enumerate();
    let servers: String = servers
        .map(|(at, member)| format!("  server m{at} {} check\n", member.trim_start_matches("https://")))
        .collect();
    let config = format!(
        "global\n  maxconn 2000\ndefaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n\
         listen etcd\n  bind {HAPROXY}\n  balance roundrobin\n{servers}"
    );
    let file = logs.join("haproxy.cfg");
    fs::write(&file, config).with_context(|| format!("cannot write {}", file.display()))?;
    let mut command = files.command(Path::new("/usr/sbin/haproxy"));
    command.args(["-db", "-f"]).arg(&file);
    start(command, logs, "haproxy", HAPROXY)
}

fn start(mut command: Command, logs: &Path, name: &str, address: &str) -> Result<Running> {
    let path = logs.join(name);
    let log = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
    let mut running = Running(child.with_context(|| format!("cannot start {name}"))?);
    let address: SocketAddr = address.parse()?;
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(address).is_err() {
        let said = || fs::read_to_string(&path).unwrap_or_default();
        ensure!(running.0.try_wait()?.is_none(), "{name} ended\n{}", said());
        ensure!(Instant::now() < deadline, "{name} does not listen at {address}\n{}", said());
        sleep(Duration::from_millis(20));
    }
    Ok(running)
}

fn ask(load: &Path, variables: &BTreeMap<String, String>, options: &Options, endpoints: &[String]) -> Result<Seen> {
    let mut command = Command::new(load);
    command.envs(variables).args(["ask", &options.clients.to_string(), &options.seconds.to_string()]).args(endpoints);
    let told = host::read(&mut command)?;
    let numbers: Vec<f64> = told.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let [rate, half, most] = numbers[..].try_into().with_context(|| format!("the clients printed {told:?}"))?;
    let [half, most] = [half, most].map(|microseconds| Duration::from_secs_f64(microseconds / 1e6));
    Ok(Seen { rate, half, most })
}

/// The memory of the front before, and with so many idle connections.
fn idle(mut load: Command, variables: &BTreeMap<String, String>, count: u32, front: &Running) -> Result<(u64, u64)> {
    let resident = || memory(front.0.id(), "VmRSS").context("the front has ended");
    let before = resident()?;
    eprintln!("opening {count} connections");
    load.envs(variables).args(["idle", &count.to_string(), FRONT]);
    let mut clients = Running(load.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
    let mut opened = String::new();
    let output = clients.0.stdout.take().context("no output")?;
    BufReader::new(output).read_line(&mut opened)?;
    ensure!(opened.trim() == count.to_string(), "the clients opened {opened:?} of {count} connections");
    sleep(SETTLE);
    Ok((before, resident()?))
}

fn print(options: &Options, idle: u32, version: &str, rounds: &[Round], (before, after): (u64, u64)) -> Result<()> {
    let rows: Vec<[String; 5]> = WAYS.iter().enumerate().map(|(way, name)| row(rounds, way, name)).collect();
    let Options { clients, seconds, .. } = options;
    println!(
        "{clients} clients put and read small values for {seconds} s, etcd {version}; the median of {} rounds, and from the least to the \
         most. Requests are compared within each round.\n",
        rounds.len()
    );
    let head = ["way", "requests/s", "compared with HAProxy", "half within", "99 of 100 within"];
    print!("{}", table(head, &rows));
    let share = middle(&shares(rounds, FRONT_WAY));
    let later = middle(&delays(rounds));
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "\nthroughput of the front compared with HAProxy: {share:.2}, at least {LEAST_THROUGHPUT}: {}\ntime within which half of the requests \
         end, compared with HAProxy: {later:.2}\n{idle} idle connections: {:.1} MiB resident, {:.1} MiB before, at most {} MiB: {}",
        verdict(share >= LEAST_THROUGHPUT),
        mebibytes(after),
        mebibytes(before),
        MOST_MEMORY >> 20,
        verdict(after <= MOST_MEMORY)
    );
    ensure!(share >= LEAST_THROUGHPUT && after <= MOST_MEMORY, "the front costs more than it may");
    Ok(())
}

fn row(rounds: &[Round], way: usize, name: &str) -> [String; 5] {
    let rates: Vec<f64> = rounds.iter().map(|round| round[way].rate).collect();
    let shares = shares(rounds, way);
    let (least, most) =
        (shares.iter().copied().fold(f64::INFINITY, f64::min), shares.iter().copied().fold(0.0, f64::max));
    let times = |of: fn(&Seen) -> Duration| rounds.iter().map(|round| of(&round[way])).collect::<Samples>().to_string();
    [
        name.to_owned(),
        format!("{:.0}", middle(&rates)),
        format!("{:.2} ({least:.2}–{most:.2})", middle(&shares)),
        times(|seen| seen.half),
        times(|seen| seen.most),
    ]
}

/// The throughput of this way compared with HAProxy's, of each round.
fn shares(rounds: &[Round], way: usize) -> Vec<f64> {
    rounds.iter().map(|round| round[way].rate / round[HAPROXY_WAY].rate).collect()
}

/// How much longer half of the requests take through the front, of each round.
fn delays(rounds: &[Round]) -> Vec<f64> {
    rounds.iter().map(|round| ratio(round[FRONT_WAY].half, round[HAPROXY_WAY].half)).collect()
}

/// The median.
fn middle(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    match count {
        0 => 0.0,
        _ if count % 2 == 1 => sorted[count / 2],
        _ => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_compared_with_itself() {
        let seen = |rate: f64| Seen { rate, half: Duration::from_secs_f64(1.0 / rate), most: Duration::ZERO };
        // The second and the third one met a busy machine.
        let rounds = [[900.0, 1000.0, 950.0], [90.0, 100.0, 90.0], [90.0, 100.0, 80.0]].map(|rates| rates.map(seen));
        assert_eq!(middle(&shares(&rounds, FRONT_WAY)), 0.9);
        assert!((middle(&delays(&rounds)) - 1.0 / 0.9).abs() < 1e-6);
        assert_eq!((middle(&[]), middle(&[3.0, 1.0]), middle(&[5.0, 1.0, 2.0])), (0.0, 2.0, 2.0));
    }
}
