//! A sandbox for tests of the real program: a separate home, a real etcd (and Patroni) on its PATH, and nothing left behind, however
//! the test ends.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

pub mod backups;
pub mod instants;
pub mod intruder;
pub mod kubelet;
pub mod releases;
pub mod store;
pub mod trio;
pub mod wire;

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The oldest version that is supported, as Debian has it.
pub const OLDEST: &str = "3.4.23";

pub struct Sandbox {
    directory: tempfile::TempDir,
    /// Where the etcd of this test is stored.
    etcd: PathBuf,
    /// Comes before the PATH of the test.
    programs: Option<PathBuf>,
}

/// How a command ended.
#[derive(Debug)]
pub struct Run {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// Fails the test, with all that was said, unless the command ended with this exit code.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "\n--- stdout\n{}\n--- stderr\n{}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    pub fn ok(self) -> Self {
        self.expect(0)
    }

    /// Fails the test if the command did not fail. Other programs have other exit codes.
    #[track_caller]
    pub fn fails(self) -> Self {
        assert_ne!(self.code, Some(0), "\n--- stdout\n{}\n--- stderr\n{}", self.stdout, self.stderr);
        self
    }

    /// Both streams, for tests that look for words.
    pub fn text(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e} in {}", self.stdout))
    }
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Sandbox {
    /// A sandbox with this version of etcd on its PATH.
    pub fn new(version: &str) -> Self {
        Sandbox { directory: tempfile::tempdir().expect("a temporary directory"), etcd: lab(version), programs: None }
    }

    /// The same with another directory in front of its PATH.
    pub fn with_programs(mut self, programs: PathBuf) -> Self {
        self.programs = Some(programs);
        self
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn home(&self) -> PathBuf {
        self.path().join("home")
    }

    /// Writes a file into the sandbox and names it.
    pub fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, content).expect("a file in the sandbox");
        path
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut path = std::env::var("PATH").unwrap_or_default();
        if let Some(programs) = &self.programs {
            path = format!("{}:{path}", programs.display());
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        command
            .args(arguments)
            .env("QUORATE_HOME", self.home())
            .env("PATH", format!("{}:{}:{path}", self.etcd.display(), patroni().display()))
            .env("RUST_BACKTRACE", "0")
            .current_dir(self.path())
            .stdin(Stdio::null());
        command
    }

    pub fn quorate(&self, arguments: &[&str]) -> Run {
        self.command(arguments).output().expect("quorate runs").into()
    }

    pub fn spawn(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("quorate starts")
    }

    /// etcdctl of some version, with the environment that `quorate env` prints, and no other.
    pub fn etcdctl(&self, version: &str, cluster: &str, arguments: &[&str]) -> Run {
        self.etcdctl_with(version, &self.environment(cluster), arguments)
    }

    pub fn etcdctl_with(&self, version: &str, environment: &BTreeMap<String, String>, arguments: &[&str]) -> Run {
        let mut command = Command::new(lab(version).join("etcdctl"));
        command.env_clear().envs(environment).args(["--command-timeout=10s", "--dial-timeout=3s"]).args(arguments);
        command.output().expect("etcdctl runs").into()
    }

    /// What `eval "$(quorate env NAME)"` would set.
    pub fn environment(&self, cluster: &str) -> BTreeMap<String, String> {
        Self::exported(&self.quorate(&["env", cluster]).ok().stdout)
    }

    /// What these lines of a shell set for etcdctl.
    pub fn exported(lines: &str) -> BTreeMap<String, String> {
        let script = format!("{lines}\nenv -0");
        let output = Command::new("sh").arg("-c").arg(script).env_clear().env("PATH", "/usr/bin:/bin").output();
        let shown = String::from_utf8(output.expect("a shell").stdout).expect("text");
        let pairs = shown.split('\0').filter_map(|line| line.split_once('='));
        pairs.filter(|(name, _)| name.starts_with("ETCDCTL_")).map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
    }

    /// Every process that was started in this sandbox: id and command line.
    pub fn processes(&self) -> Vec<(u32, String)> {
        let mark = format!("QUORATE_HOME={}", self.home().display());
        let entries = fs::read_dir("/proc").expect("/proc").flatten();
        let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|b| *b == 0).any(|entry| entry == mark.as_bytes())
        })
        .filter_map(|pid| Some((pid, command_line(pid)?)))
        .collect()
    }

    pub fn agents(&self) -> Vec<u32> {
        self.processes().into_iter().filter(|(_, line)| line.contains(" agent --root ")).map(|(pid, _)| pid).collect()
    }

    pub fn etcds(&self) -> Vec<u32> {
        self.processes().into_iter().filter(|(_, line)| line.contains("/etcd --")).map(|(pid, _)| pid).collect()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        // Agents restart what is killed, so it may take a second round.
        while Instant::now() < deadline {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            for (pid, _) in left {
                signal(pid, "KILL");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Sandbox {
    /// What `quorate status` says to scripts, whatever its verdict.
    #[track_caller]
    pub fn status(&self, cluster: &str) -> Value {
        self.quorate(&["status", cluster, "--output", "json"]).json()
    }

    /// The plan for this spec is empty.
    #[track_caller]
    pub fn assert_nothing_to_do(&self, spec: &str) {
        let plan = self.quorate(&["plan", spec, "--output", "json"]).ok().json();
        assert_eq!(plan["summary"]["steps"], 0, "{plan:#}");
    }

    /// The process of a member's etcd, if it runs.
    pub fn etcd_of(&self, member: &str) -> Option<u32> {
        let name = format!(" --name={member} ");
        self.processes().into_iter().find(|(_, line)| line.contains("/etcd --") && line.contains(&name)).map(|p| p.0)
    }

    /// The newest version of a cluster's ledger, its secrets opened.
    pub fn ledger(&self, cluster: &str) -> Value {
        let ledger =
            quorate_control::Home::new(self.home()).store(cluster).read().expect("readable").expect("a ledger");
        serde_json::to_value(ledger).expect("JSON")
    }

    /// Whether a machine was made, even in part.
    pub fn has_machines(&self) -> bool {
        fs::read_dir(self.home().join("machines")).is_ok_and(|mut entries| entries.next().is_some())
    }

    /// Runs openssl in the sandbox, and fails the test when that fails.
    #[track_caller]
    pub fn openssl(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("openssl");
        let run = Run::from(command.args(arguments).current_dir(self.path()).output().expect("openssl runs"));
        run.ok().stdout
    }
}

/// Certificates as another tool would make them. Files are `NAME.crt` and `NAME.key` in the sandbox.
impl Sandbox {
    /// A CA that signed itself, with a key such as `ec` or `rsa:2048`.
    pub fn make_ca(&self, name: &str, key: &str) {
        self.request(name, key, name);
        self.file("ca.ext", "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\n");
        let [csr, key, crt] = ["csr", "key", "crt"].map(|kind| format!("{name}.{kind}"));
        self.openssl(&[
            "x509", "-req", "-in", &csr, "-signkey", &key, "-extfile", "ca.ext", "-days", "30", "-out", &crt,
        ]);
    }

    /// A certificate that `authority` signed, with these extensions.
    pub fn make_certificate(&self, name: &str, common_name: &str, authority: &str, extensions: &str) {
        self.request(name, "ec", common_name);
        self.file("leaf.ext", extensions);
        let [csr, crt] = ["csr", "crt"].map(|kind| format!("{name}.{kind}"));
        let [ca, ca_key] = ["crt", "key"].map(|kind| format!("{authority}.{kind}"));
        let mut arguments = vec!["x509", "-req", "-in", &csr, "-CA", &ca, "-CAkey", &ca_key, "-CAcreateserial"];
        arguments.extend(["-extfile", "leaf.ext", "-days", "20", "-out", &crt]);
        self.openssl(&arguments);
    }

    /// A key and a signing request, `NAME.csr`.
    pub fn request(&self, name: &str, key: &str, common_name: &str) {
        self.file("openssl.cnf", "[req]\ndistinguished_name=dn\n[dn]\n");
        let [key_file, csr] = ["key", "csr"].map(|kind| format!("{name}.{kind}"));
        let subject = format!("/CN={common_name}");
        let mut arguments = vec!["req", "-new", "-config", "openssl.cnf", "-nodes", "-newkey", key];
        if key == "ec" {
            arguments.extend(["-pkeyopt", "ec_paramgen_curve:P-256"]);
        }
        arguments.extend(["-subj", &subject, "-keyout", &key_file, "-out", &csr]);
        self.openssl(&arguments);
    }
}

/// A spec with one cluster named `c` of so many members; `etcd` goes into its etcd settings, `rest` are further fields.
pub fn spec(members: usize, version: &str, etcd: &str, rest: &str) -> String {
    let members: Vec<String> = (1..=members).map(|n| format!("{{name: etcd-{n}}}")).collect();
    let members = members.join(", ");
    let rest = rest.trim().lines().map(|line| format!("    {line}\n")).collect::<String>();
    let etcd = if etcd.is_empty() { String::new() } else { format!(", {etcd}") };
    format!(
        "quorate: 1\nclusters:\n  - name: c\n    members: [{members}]\n    etcd: {{version: {version}{etcd}}}\n{rest}"
    )
}

/// An address to pin, of this test alone: a test that chooses different numbers gets different addresses, and no other test, in this
/// process or another, gets one of them. The block is claimed by a socket, which nothing else on this machine can bind meanwhile.
pub fn address(number: u8) -> String {
    thread_local! {
        static BLOCK: (UdpSocket, [u8; 2]) = claim_block();
    }
    // Each test runs on a separate thread.
    BLOCK.with(|(_, [high, low])| format!("127.{high}.{low}.{number}"))
}

fn claim_block() -> (UdpSocket, [u8; 2]) {
    let first = std::process::id() as usize;
    let blocks = (first..first + 32 * 250).map(|n| [32 + (n % 32) as u8, 1 + (n / 32 % 250) as u8]);
    let claim =
        |[high, low]: [u8; 2]| Some((UdpSocket::bind((Ipv4Addr::new(127, high, low, 255), 64_999)).ok()?, [high, low]));
    blocks.into_iter().find_map(claim).expect("8000 blocks of addresses, and one of them free")
}

/// The arguments of a process.
pub fn arguments(pid: u32) -> Vec<String> {
    command_line(pid).unwrap_or_default().split(' ').map(str::to_owned).collect()
}

/// Sends a signal with the `kill` program; a process that is gone already is fine.
pub fn signal(pid: u32, name: &str) {
    let _ = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).stderr(Stdio::null()).status();
}

/// Waits until something holds, and fails the test with `what` when it does not within `seconds`.
#[track_caller]
pub fn eventually(what: &str, seconds: u64, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(seconds), "not within {seconds} s: {what}");
        // Most ask by a process of quorate, and that asks every member: asked too often, it takes the time of what is waited for.
        std::thread::sleep((begun.elapsed() / 10).clamp(Duration::from_millis(50), Duration::from_millis(500)));
    }
}

/// Debian's `psql` is a Perl script that looks for this one, and costs more than most queries.
pub const PSQL: &str = "/usr/lib/postgresql/15/bin/psql";

/// Where `cargo xtask postgres` puts Patroni.
pub fn patroni() -> PathBuf {
    lab_directory().join("patroni/4.1.5-bin")
}

/// Where `cargo xtask postgres` puts the older Patroni of Debian 12.
pub fn older_patroni() -> PathBuf {
    let programs = lab_directory().join("patroni/3.0.2/scripts");
    assert!(programs.join("patroni").exists(), "Patroni 3.0.2 is missing here: run `cargo xtask postgres`");
    programs
}

/// Where `cargo xtask postgres` puts PostgreSQL 17, with a pgBackRest that knows it.
pub fn newer_postgres() -> PathBuf {
    let programs = lab_directory().join("postgres/17/usr/lib/postgresql/17/bin");
    assert!(programs.join("pg_upgrade").exists(), "PostgreSQL 17 is missing here: run `cargo xtask postgres`");
    programs
}

/// Where `cargo xtask postgres` puts the minor release before the installed one.
pub fn older_postgres() -> PathBuf {
    let programs = lab_directory().join("postgres/15-older");
    assert!(programs.join("postgres").exists(), "an older PostgreSQL 15 is missing here: run `cargo xtask postgres`");
    programs
}

/// The directory of an etcd version that `cargo xtask etcd` made available.
pub fn lab(version: &str) -> PathBuf {
    let directory = lab_root().join(version);
    assert!(directory.join("etcd").exists(), "etcd {version} is missing here: run `cargo xtask etcd`");
    directory
}

/// Every version at hand, oldest first.
pub fn lab_versions() -> Vec<String> {
    let entries = fs::read_dir(lab_root()).unwrap_or_else(|_| panic!("no etcd here: run `cargo xtask etcd`"));
    let names = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
    let parts = |name: &str| name.split('.').map(str::parse).collect::<Result<Vec<u32>, _>>().ok();
    let mut versions: Vec<(Vec<u32>, String)> = names.filter_map(|n| Some((parts(&n)?, n))).collect();
    versions.sort();
    versions.into_iter().map(|(_, name)| name).collect()
}

/// The newest version at hand.
pub fn newest() -> String {
    lab_versions().pop().expect("an etcd: run `cargo xtask etcd`")
}

/// The newest version of a minor line such as `3.6`, where one is at hand.
pub fn newest_of(minor: &str) -> Option<String> {
    lab_versions().into_iter().rev().find(|v| v.starts_with(&format!("{minor}.")))
}

fn lab_root() -> PathBuf {
    lab_directory().join("etcd")
}

/// What `cargo xtask` brings for tests is kept here.
pub fn lab_directory() -> PathBuf {
    let var = |name| std::env::var_os(name).map(PathBuf::from);
    var("QUORATE_LAB").unwrap_or_else(|| {
        var("XDG_CACHE_HOME").unwrap_or_else(|| var("HOME").expect("a home").join(".cache")).join("quorate-lab")
    })
}

/// The arguments of every process of this machine.
pub fn command_lines() -> Vec<String> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    entries.filter_map(|entry| command_line(entry.file_name().to_str()?.parse().ok()?)).collect()
}

fn command_line(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let zombie = stat.rsplit_once(')')?.1.trim_start().starts_with('Z');
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let line = String::from_utf8_lossy(&bytes).replace('\0', " ");
    (!zombie && !line.is_empty()).then_some(line)
}
