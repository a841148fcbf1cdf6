//! A cluster of three in a sandbox, and the check that it has converged: one bootstrap everywhere, and exactly the
//! expected processes, files and users.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use super::{Run, Sandbox, eventually, signal};

pub const VERSION: &str = "3.5.30";
pub const NAME: &str = "trio";
pub const MEMBERS: [&str; 3] = ["etcd-1", "etcd-2", "etcd-3"];
pub const APP_PASSWORD: &str = "correct horse battery staple";

/// How clients log in. Under `Password` the spec declares a role and a user too, so that there are more steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Login {
    Certificate,
    Password,
}

pub struct Trio {
    pub sandbox: Sandbox,
    login: Login,
}

impl Trio {
    pub fn new(login: Login) -> Self {
        let sandbox = Sandbox::new(VERSION);
        sandbox.file("app.password", &format!("{APP_PASSWORD}\n"));
        sandbox.file("trio.yaml", &spec(login));
        Trio { sandbox, login }
    }

    /// One that is settled.
    pub fn up(login: Login) -> Self {
        let trio = Self::new(login);
        trio.apply().ok();
        trio
    }

    pub fn apply(&self) -> Run {
        self.sandbox.quorate(&["apply", "--yes", "trio.yaml"])
    }

    pub fn spawn_apply(&self) -> Watched {
        Watched::new(self.sandbox.spawn(&["apply", "--yes", "trio.yaml"]))
    }

    pub fn status(&self) -> Value {
        self.sandbox.quorate(&["status", NAME, "--output", "json"]).json()
    }

    pub fn etcdctl(&self, arguments: &[&str]) -> Run {
        self.sandbox.etcdctl(VERSION, NAME, arguments)
    }

    pub fn destroy(&self) -> Run {
        self.sandbox.quorate(&["destroy", "--yes", "--without-backup", NAME])
    }

    /// As if none had been made yet.
    pub fn destroy_machines_by_hand(&self) {
        self.pids().into_iter().for_each(|pid| signal(pid, "KILL"));
        eventually("all have ended", 5, || self.pids().is_empty());
        let _ = fs::remove_dir_all(self.sandbox.home().join("machines").join(NAME));
    }

    pub fn machine(&self, member: &str) -> PathBuf {
        self.sandbox.home().join("machines").join(NAME).join(member)
    }

    pub fn root(&self, member: &str) -> PathBuf {
        self.machine(member).join("root")
    }

    pub fn data(&self, member: &str) -> PathBuf {
        self.root(member).join("var/lib/etcd")
    }

    pub fn address(&self, member: &str) -> IpAddr {
        let mark = read_json(&self.machine(member).join("machine.json"));
        mark["address"].as_str().and_then(|address| address.parse().ok()).expect("an address")
    }

    pub fn ledger_directory(&self) -> PathBuf {
        self.sandbox.home().join("clusters").join(NAME).join("ledger")
    }

    /// The newest version of the ledger.
    pub fn ledger(&self) -> Value {
        self.sandbox.ledger(NAME)
    }

    pub fn stamp(&self, member: &str) -> Value {
        read_json(&self.root(member).join("var/lib/etcd.stamp"))
    }

    pub fn token(&self) -> String {
        let token = &self.ledger()["etcd"]["formation"]["formed"]["token"];
        token.as_str().unwrap_or_else(|| panic!("formed, not {}", self.ledger()["etcd"]["formation"])).to_owned()
    }

    /// The processes of one machine.
    fn processes_of(&self, member: &str, word: &str) -> Vec<u32> {
        let root = self.root(member).display().to_string();
        let of_it = |line: &str| line.contains(word) && line.contains(&format!("{root}/"));
        let agent = |line: &str| word == AGENT && line.contains(&format!("{AGENT}{root} "));
        let all = self.sandbox.processes().into_iter();
        all.filter(|(_, line)| of_it(line) || agent(line)).map(|(pid, _)| pid).collect()
    }

    /// By etcd's own flag: an agent's command line may name a directory `etcd` before another flag.
    pub fn etcd_of(&self, member: &str) -> Option<u32> {
        self.processes_of(member, &format!(" --name={member} ")).first().copied()
    }

    pub fn agent_of(&self, member: &str) -> Option<u32> {
        self.processes_of(member, AGENT).first().copied()
    }

    /// Every process of the cluster, in order, to see whether one was replaced.
    pub fn pids(&self) -> BTreeSet<u32> {
        self.sandbox.processes().into_iter().map(|(pid, _)| pid).collect()
    }

    /// The cluster is as the spec says, and there is nothing else.
    #[track_caller]
    pub fn assert_settled(&self) {
        self.assert_healthy();
        self.assert_one_formation();
        self.assert_processes();
        self.assert_users();
        assert_eq!(self.leftovers(), Vec::<PathBuf>::new(), "left behind");
        let plan = self.sandbox.quorate(&["plan", "trio.yaml", "--detailed-exitcode", "--output", "json"]).ok();
        assert_eq!(plan.json()["summary"]["steps"], 0, "{}", plan.stdout);
    }

    #[track_caller]
    fn assert_healthy(&self) {
        let status = self.sandbox.quorate(&["status", NAME, "--output", "json"]).ok().json();
        assert_eq!(status["verdict"], "healthy", "{status:#}");
        let names: Vec<&str> = members(&status).filter_map(|m| m["member"].as_str()).collect();
        assert_eq!(names, MEMBERS);
        let listed = self.etcdctl(&["member", "list"]).ok();
        let mut listed: Vec<&str> = listed.stdout.lines().filter_map(|line| line.split(", ").nth(2)).collect();
        listed.sort_unstable();
        assert_eq!(listed, MEMBERS);
    }

    #[track_caller]
    fn assert_one_formation(&self) {
        let (ledger, token) = (self.ledger(), self.token());
        assert_eq!(ledger["lock"], Value::Null);
        for member in MEMBERS {
            let stamp = self.stamp(member);
            assert_eq!(stamp["token"], token.as_str(), "{member}");
            assert_eq!(stamp["cluster_id"], ledger["cluster_id"], "{member}");
            assert_eq!(stamp["member"], member);
        }
    }

    #[track_caller]
    fn assert_processes(&self) {
        let found = self.sandbox.processes();
        assert_eq!(found.len(), 2 * MEMBERS.len(), "{found:#?}");
        for member in MEMBERS {
            assert!(self.agent_of(member).is_some(), "the agent of {member} in {found:#?}");
            assert!(self.etcd_of(member).is_some(), "the etcd of {member} in {found:#?}");
        }
    }

    #[track_caller]
    fn assert_users(&self) {
        let (users, roles): (&[&str], &[&str]) = match self.login {
            Login::Certificate => (&["root"], &["root"]),
            Login::Password => (&["app", "root"], &["reader", "root"]),
        };
        assert_eq!(sorted_lines(&self.etcdctl(&["user", "list"]).ok().stdout), users);
        assert_eq!(sorted_lines(&self.etcdctl(&["role", "list"]).ok().stdout), roles);
        if self.login == Login::Password {
            let mut as_app = self.sandbox.environment(NAME);
            as_app.insert(String::from("ETCDCTL_USER"), format!("app:{APP_PASSWORD}"));
            self.sandbox.etcdctl_with(VERSION, &as_app, &["get", "/a/x"]).ok();
        }
    }

    /// Files that only an interrupted step can have left.
    pub fn leftovers(&self) -> Vec<PathBuf> {
        let home = self.sandbox.home();
        let mut found: Vec<PathBuf> = Vec::new();
        for path in ["clusters", "machines"].into_iter().flat_map(|d| files_below(&home.join(d))) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let etcds_own = path.ancestors().any(|above| above.ends_with("var/lib/etcd"));
            let half = [".new", ".gone", ".tmp", ".old", ".remnant"].iter().any(|end| name.ends_with(end));
            if !etcds_own && (name.starts_with('.') || half) {
                found.push(path);
            }
        }
        for member in MEMBERS {
            let sets = fs::read_dir(self.root(member).join("etc/etcd")).into_iter().flatten().flatten();
            let sets = sets.map(|e| e.path()).filter(|p| p.is_dir() && !p.is_symlink());
            found.extend(sets.skip(1));
        }
        found
    }

    /// Nothing runs, nothing is remembered and nothing is left.
    #[track_caller]
    pub fn assert_gone(&self) {
        assert_eq!(self.sandbox.processes(), []);
        let home = self.sandbox.home();
        let left: Vec<PathBuf> = ["clusters", "machines"].iter().flat_map(|d| files_below(&home.join(d))).collect();
        assert_eq!(left, Vec::<PathBuf>::new());
    }
}

const AGENT: &str = " agent --root ";

fn spec(login: Login) -> String {
    let members: String = MEMBERS.iter().map(|name| format!("      - name: {name}\n")).collect();
    let rest = match login {
        Login::Certificate => format!("    etcd: {{version: {VERSION}}}\n"),
        Login::Password => format!(
            "    etcd: {{version: {VERSION}, client_auth: password}}
    auth:
      token: jwt
      roles:
        - name: reader
          permissions:
            - {{prefix: /a/, access: read}}
      users:
        - {{name: app, roles: [reader], password_file: app.password}}
"
        ),
    };
    format!("quorate: 1\nclusters:\n  - name: {NAME}\n    members:\n{members}{rest}")
}

/// The members in an answer of `quorate status`.
pub fn members(status: &Value) -> impl Iterator<Item = &Value> {
    status["members"].as_array().into_iter().flatten()
}

pub fn member<'a>(status: &'a Value, name: &str) -> &'a Value {
    members(status).find(|m| m["member"] == name).unwrap_or_else(|| panic!("{name} in {status:#}"))
}

fn sorted_lines(text: &str) -> Vec<&str> {
    text.lines().collect::<BTreeSet<_>>().into_iter().collect()
}

pub fn read_json(path: &Path) -> Value {
    let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every file and directory below this one; links are not followed.
pub fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    found
}

/// A run of quorate whose progress is followed line by line, and which can be cut off at any of them.
pub struct Watched {
    pub child: Child,
    stderr: BufReader<std::process::ChildStderr>,
    said: String,
    stdout: JoinHandle<String>,
}

impl Watched {
    pub fn new(mut child: Child) -> Self {
        let stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let mut stdout = child.stdout.take().expect("stdout is piped");
        let stdout = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stdout.read_to_string(&mut text);
            text
        });
        Watched { child, stderr, said: String::new(), stdout }
    }

    /// The next line about a step that begins or is done; none when the run has ended.
    pub fn next_step(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.stderr.read_line(&mut line).expect("text") == 0 {
                return None;
            }
            self.said.push_str(&line);
            if line.starts_with('[') && line.contains('…') {
                return Some(line);
            }
        }
    }

    #[track_caller]
    pub fn until(&mut self, words: &str) {
        while !self.next_step().unwrap_or_else(|| panic!("no {words:?} in {}", self.said)).contains(words) {}
    }

    /// As `kill -9` does.
    pub fn kill(mut self) -> Run {
        let _ = self.child.kill();
        self.end()
    }

    pub fn kill_after(self, time: Duration) -> Run {
        std::thread::sleep(time);
        self.kill()
    }

    /// Waits for its end.
    pub fn end(mut self) -> Run {
        self.stderr.read_to_string(&mut self.said).expect("text");
        let code = self.child.wait().expect("it was started here").code();
        Run { code, stdout: self.stdout.join().expect("a reader"), stderr: self.said }
    }
}

/// What etcd holds, by key.
pub fn contents(trio: &Trio) -> BTreeMap<String, String> {
    let text = trio.etcdctl(&["get", "", "--prefix"]).ok().stdout;
    let lines: Vec<&str> = text.lines().collect();
    lines.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect()
}
