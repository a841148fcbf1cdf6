//! `cargo xtask bench restore`: a cluster of which nothing is left, neither machines nor ledger, brought back by `quorate restore` from
//! the store, compared with a manual restore: a snapshot fetched from there, `etcdutl snapshot restore` for each of three members at once, and
//! etcd started on each. They take turns. By hand there is no TLS, no certificate and no agent: that is the floor, and no promise.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::CLUSTER;
use super::figures::{Samples, ratio, seconds, table};
use super::filled::{Filled, Options, QUORATES};
use super::store::free_ports;
use crate::host;
use crate::lab::Lab;

const MEMBERS: usize = 3;
/// What the other side restores from.
const BY_HAND: &str = "by-hand/snapshot";
/// As quorate does it, so that no client is sent back in time.
const BUMP: [&str; 3] = ["--bump-revision", "1000000000", "--mark-compacted"];
/// Between two questions to a member that is not ready.
const PAUSE: Duration = Duration::from_millis(5);
const ANSWER: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(120);

/// What one manual restore took.
struct ByHand {
    fetch: Duration,
    restore: Duration,
    start: Duration,
}

impl ByHand {
    fn time(&self) -> Duration {
        self.fetch + self.restore + self.start
    }
}

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    let filled = Filled::prepare(lab, options.size, options.measured.programs())?;
    let keys = filled.count()?;
    host::read(filled.quorate().args(["backup", "create", CLUSTER]))?;
    let backup = only_backup(&filled)?;
    filled.save_by_hand(BY_HAND)?;
    let signer = signer(&filled)?;
    filled.ground.destroy()?;
    let (mut quorate, mut by_hand) = (Samples::default(), Samples::default());
    for pair in 1..=options.pairs {
        let hand = sample_by_hand(&filled)?;
        let time = sample_quorate(&filled, &backup, &signer, keys)?;
        let [fetch, restore, start] = [hand.fetch, hand.restore, hand.start].map(seconds);
        let whole = seconds(hand.time());
        let pairs = options.pairs;
        eprintln!(
            "{pair}/{pairs}: quorate {}; manually {whole} (fetch {fetch}, restore {restore}, start {start})",
            seconds(time)
        );
        quorate.add(time);
        by_hand.add(hand.time());
    }
    print(&quorate, &by_hand, options);
    Ok(())
}

/// Backups stand in the store below their names.
fn only_backup(filled: &Filled<'_>) -> Result<String> {
    let mut found = filled.store.directories(&format!("{QUORATES}{CLUSTER}/full/"))?;
    ensure!(found.len() == 1, "expected one backup in the store, found {}", found.len());
    Ok(found.remove(0))
}

/// The key that signs the backups. Only the ledger knows it, which is lost before the restore.
fn signer(filled: &Filled<'_>) -> Result<String> {
    let printed = host::read(filled.quorate().args(["backup", "list", CLUSTER]))?;
    let key = printed.split_whitespace().find(|word| word.starts_with("ed25519:"));
    Ok(key.context("`quorate backup list` names no key that signs backups")?.to_owned())
}

fn sample_quorate(filled: &Filled<'_>, backup: &str, signer: &str, keys: u64) -> Result<Duration> {
    let begun = Instant::now();
    let mut restore = filled.quorate();
    restore.arg("restore").arg(filled.spec()).args(["--backup", backup, "--yes", "--identity"]).arg(filled.identity());
    restore.args(["--signed-by", signer]);
    host::read(&mut restore)?;
    let time = begun.elapsed();
    let found = filled.count()?;
    ensure!(found == keys, "expected {keys} keys after the restore, found {found}");
    filled.ground.destroy()?;
    Ok(time)
}

fn sample_by_hand(filled: &Filled<'_>) -> Result<ByHand> {
    let directory = filled.ground.directory("members")?;
    let snapshot = directory.join("snapshot.db");
    let members = members()?;
    let begun = Instant::now();
    filled.fetch_by_hand(BY_HAND, &snapshot)?;
    let fetched = begun.elapsed();
    let restore = |member: &Member| member.restore(&filled.etcd("etcdutl"), &snapshot, &directory, &members);
    let mut restores = Running::start(&members, restore)?;
    restores.until_all_end_well()?;
    let restored = begun.elapsed();
    let mut etcds = Running::start(&members, |member| member.etcd(&filled.etcd("etcd"), &directory))?;
    etcds.until(|| members.iter().all(Member::is_well))?;
    let well = begun.elapsed();
    drop(etcds);
    fs::remove_dir_all(&directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    Ok(ByHand { fetch: fetched, restore: restored - fetched, start: well - restored })
}

/// A member made manually.
struct Member {
    name: String,
    client: u16,
    peer: u16,
}

fn members() -> Result<Vec<Member>> {
    let ports = free_ports(MEMBERS * 2)?;
    let member =
        |(at, ports): (usize, &[u16])| Member { name: format!("etcd-{}", at + 1), client: ports[0], peer: ports[1] };
    Ok(ports.chunks_exact(2).enumerate().map(member).collect())
}

impl Member {
    fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer)
    }

    fn restore(&self, etcdutl: &Path, snapshot: &Path, directory: &Path, all: &[Self]) -> Command {
        let all: Vec<String> = all.iter().map(|member| format!("{}={}", member.name, member.peer_url())).collect();
        let mut command = host::tethered(etcdutl);
        command.args(["snapshot", "restore"]).arg(snapshot).args(BUMP);
        command.args(["--name", &self.name, "--initial-cluster", &all.join(",")]);
        command.args(["--initial-cluster-token", "by-hand", "--initial-advertise-peer-urls", &self.peer_url()]);
        command.arg("--data-dir").arg(directory.join(&self.name));
        self.log_to(directory, command)
    }

    fn etcd(&self, etcd: &Path, directory: &Path) -> Command {
        let client_url = format!("http://127.0.0.1:{}", self.client);
        let mut command = host::tethered(etcd);
        command.args(["--name", &self.name]).arg("--data-dir").arg(directory.join(&self.name));
        command.args(["--listen-peer-urls", &self.peer_url()]);
        command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
        self.log_to(directory, command)
    }

    fn log_to(&self, directory: &Path, mut command: Command) -> Command {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        match File::create(directory.join(format!("{}.log", self.name))) {
            Ok(log) => command.stderr(log),
            Err(_) => command.stderr(Stdio::null()),
        };
        command
    }

    /// etcd says so only when it can read what a majority agrees on.
    fn is_well(&self) -> bool {
        self.ask_health().is_ok_and(|answer| says_well(&answer))
    }

    fn ask_health(&self) -> std::io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.client))?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(b"GET /health HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

fn says_well(answer: &str) -> bool {
    let ok = answer.lines().next().is_some_and(|status| status.split_whitespace().nth(1) == Some("200"));
    ok && answer.contains("\"health\":\"true\"")
}

/// One process for each member. They end with the value.
struct Running(Vec<(String, Child)>);

impl Running {
    fn start(members: &[Member], command: impl Fn(&Member) -> Command) -> Result<Self> {
        let mut running = Self(Vec::new());
        for member in members {
            let child = command(member).spawn().with_context(|| format!("cannot start what {} needs", member.name))?;
            running.0.push((member.name.clone(), child));
        }
        Ok(running)
    }

    fn until_all_end_well(&mut self) -> Result<()> {
        for (name, child) in &mut self.0 {
            let status = child.wait()?;
            ensure!(status.success(), "`etcdutl snapshot restore` of {name} failed: {status}");
        }
        Ok(())
    }

    fn until(&mut self, done: impl Fn() -> bool) -> Result<()> {
        let begun = Instant::now();
        while !done() {
            for (name, child) in &mut self.0 {
                if let Some(status) = child.try_wait()? {
                    bail!("etcd of {name} ended: {status}");
                }
            }
            ensure!(begun.elapsed() < PATIENCE, "etcd started manually was not well within {PATIENCE:?}");
            sleep(PAUSE);
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for (_, child) in &mut self.0 {
            let _ = child.kill();
        }
        for (_, child) in &mut self.0 {
            let _ = child.wait();
        }
    }
}

fn print(quorate: &Samples, by_hand: &Samples, options: &Options) {
    let Options { size, pairs, .. } = options;
    let rows = [[
        size.to_string(),
        quorate.to_string(),
        by_hand.to_string(),
        format!("{:.2}", ratio(quorate.median(), by_hand.median())),
    ]];
    println!(
        "From nothing but the store to a healthy cluster of three: median of {pairs} runs each, in turns (shortest–longest).\n"
    );
    print!("{}", table(["data", "`quorate restore`", "manually", "ratio"], &rows));
    println!(
        "\nmanually: `rclone cat | age -d | zstd -d`, `etcdutl snapshot restore` on three members at once, and their start, without TLS"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_yes_is_well() {
        assert!(says_well("HTTP/1.0 200 OK\r\nDate: x\r\n\r\n{\"health\":\"true\",\"reason\":\"\"}"));
        assert!(!says_well(
            "HTTP/1.0 503 Service Unavailable\r\n\r\n{\"health\":\"false\",\"reason\":\"RAFT NO LEADER\"}"
        ));
        assert!(!says_well("HTTP/1.0 200 OK\r\n\r\n"));
        assert!(!says_well(""));
    }

    #[test]
    fn members_by_hand_know_each_other() {
        let members = members().unwrap();
        assert_eq!(members.len(), MEMBERS);
        let command = members[1].restore(Path::new("etcdutl"), Path::new("s.db"), Path::new("/nowhere"), &members);
        let words: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let after = |name: &str| words.iter().skip_while(|word| *word != name).nth(1).cloned().unwrap_or_default();
        let expected: Vec<String> =
            members.iter().map(|member| format!("{}={}", member.name, member.peer_url())).collect();
        assert_eq!(after("--initial-cluster"), expected.join(","));
        assert_eq!(after("--initial-advertise-peer-urls"), members[1].peer_url());
        assert_eq!(after("--data-dir"), "/nowhere/etcd-2");
    }
}
