//! A cluster of three on machines of the lab's libvirt. However a test ends, its machines are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use crate::common::{OLDEST, Run, Sandbox, eventually, lab};

pub const MEMBERS: [&str; 3] = ["etcd-1", "etcd-2", "etcd-3"];
/// Names that the lab gives to its pool, its network and the machine image in the pool.
pub const POOL: &str = "quorate-lab";
pub const NETWORK: &str = "quorate-lab";
const IMAGE: &str = "machine.qcow2";
const URI: &str = "QUORATE_LAB_LIBVIRT_URI";
/// Where libvirt keeps what machines say on their consoles.
const CONSOLES: &str = "/var/log/libvirt/qemu";
const ADMIN_KEY: &str = "admin";
/// On a busy host, emulated machines are slow to answer.
const SSH: [&str; 5] = [
    "LogLevel=ERROR",
    "BatchMode=yes",
    "StrictHostKeyChecking=no",
    "UserKnownHostsFile=/dev/null",
    "ConnectTimeout=60",
];

/// What a story's cluster is made of.
pub struct Wanted {
    pub name: &'static str,
    pub members: usize,
    /// What is said of the member at this place, from 1 on, next to its name.
    pub member: fn(usize) -> String,
    /// Further settings of libvirt and of etcd, in YAML.
    pub libvirt: &'static str,
    pub etcd: &'static str,
}

pub struct Machines {
    pub sandbox: Sandbox,
    pub name: &'static str,
    /// The process in whose network clients are; none where they are in this one.
    clients: Option<u32>,
}

impl Machines {
    pub fn new(wanted: &Wanted) -> Self {
        assert!(std::env::var_os(URI).is_some(), "there is no libvirt here: run `cargo xtask lab libvirt`");
        let machines = Machines { sandbox: Sandbox::new(OLDEST), name: wanted.name, clients: None };
        let key = machines.sandbox.path().join(ADMIN_KEY);
        let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).status();
        assert!(made.expect("ssh-keygen runs").success());
        machines.want(wanted);
        machines
    }

    /// With clients that are where this process is.
    pub fn with_clients(self, process: u32) -> Self {
        // What is to be dropped cannot be taken apart.
        let mut machines = self;
        machines.clients = Some(process);
        machines
    }

    /// A program on the host where clients are.
    fn client(&self, program: impl AsRef<OsStr>) -> Command {
        let Some(process) = self.clients else { return Command::new(program) };
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &process.to_string(), "--"]).arg(program);
        command
    }

    /// Writes the spec.
    pub fn want(&self, wanted: &Wanted) {
        let members = MEMBERS.iter().take(wanted.members).enumerate();
        let members = members.map(|(at, name)| format!("      - {{name: {name}, {}}}\n", (wanted.member)(at + 1)));
        let spec = format!(
            "quorate: 1
clusters:
  - name: {}
    replace_after: 10s
    provider:
      libvirt:
        pool: {POOL}
        image: {{volume: {IMAGE}, root_size: 3GiB}}
        vcpus: 1
        memory: 512MiB
        acceleration: emulation
        admin: {{ssh_keys: [\"{}\"]}}
{}
    members:
{}    etcd: {{version: {OLDEST}, heartbeat: 500ms, election: 5s{}}}
",
            wanted.name,
            self.admin_key(),
            wanted.libvirt,
            members.collect::<String>(),
            wanted.etcd
        );
        self.sandbox.file("cluster.yaml", &spec);
    }

    /// The public key with which the admin logs in.
    pub fn admin_key(&self) -> String {
        let key = fs::read_to_string(self.sandbox.path().join(format!("{ADMIN_KEY}.pub"))).expect("a public key");
        key.trim().to_owned()
    }

    pub fn apply(&self) -> Run {
        self.sandbox.quorate(&["apply", "--yes", "cluster.yaml"])
    }

    /// The incarnation's domain.
    pub fn domain(&self, machine: &str) -> String {
        format!("quorate-{}-{machine}", self.name)
    }

    pub fn etcdctl(&self, arguments: &[&str]) -> Run {
        self.etcdctl_with(&self.sandbox.environment(self.name), arguments)
    }

    pub fn etcdctl_with(&self, environment: &BTreeMap<String, String>, arguments: &[&str]) -> Run {
        let mut command = self.client(lab(OLDEST).join("etcdctl"));
        // Machines that are emulated are slow.
        command.env_clear().envs(environment).args(["--command-timeout=30s", "--dial-timeout=10s"]).args(arguments);
        command.output().expect("etcdctl runs").into()
    }

    /// What a root shell on the machine says to this line.
    pub fn on(&self, address: &str, line: &str) -> Run {
        let mut ssh = self.client("ssh");
        for option in SSH {
            ssh.args(["-o", option]);
        }
        ssh.arg("-i").arg(self.sandbox.path().join(ADMIN_KEY));
        ssh.args([&format!("ubuntu@{address}"), "sudo", "-i", line]);
        ssh.output().expect("ssh runs").into()
    }

    /// Another one after each boot. None while the machine does not answer.
    pub fn boot_id(&self, address: &str) -> Option<String> {
        let said = self.on(address, "cat /proc/sys/kernel/random/boot_id");
        (said.code == Some(0)).then_some(said.stdout)
    }

    /// All three are well, and etcd agrees about who they are.
    #[track_caller]
    pub fn assert_healthy(&self) {
        // An emulated machine may be too slow for one look.
        eventually("three healthy members", 60, || self.sandbox.status(self.name)["verdict"] == "healthy");
        let listed = self.etcdctl(&["member", "list"]).ok().stdout;
        let listed: BTreeSet<&str> = listed.lines().filter_map(|line| line.split(", ").nth(2)).collect();
        assert_eq!(listed, BTreeSet::from(MEMBERS));
        self.sandbox.assert_nothing_to_do("cluster.yaml");
    }

    #[track_caller]
    pub fn assert_reads(&self, key: &str, value: &str) {
        let read = self.etcdctl(&["get", key, "--print-value-only"]).ok().stdout;
        assert_eq!(read.trim_end(), value, "of {key}");
    }

    /// Destroys the cluster, and looks for what is left of it: nothing may be.
    #[track_caller]
    pub fn destroy(&self) {
        self.sandbox.quorate(&["destroy", "--yes", "--without-backup", self.name]).ok();
        let (domains, volumes, consoles) = (self.domains(), volumes(), self.consoles());
        assert_eq!((domains, volumes, consoles), (Vec::new(), BTreeSet::new(), Vec::new()), "left behind");
        let ledger = self.sandbox.home().join("clusters").join(self.name);
        assert!(!ledger.exists(), "{} is left behind", ledger.display());
    }

    pub fn domains(&self) -> Vec<String> {
        let prefix = self.domain("");
        let names = virsh(&["list", "--all", "--name"]).ok().stdout;
        names.split_whitespace().filter(|name| name.starts_with(&prefix)).map(str::to_owned).collect()
    }

    fn consoles(&self) -> Vec<PathBuf> {
        let prefix = self.domain("");
        let files = fs::read_dir(CONSOLES).into_iter().flatten().flatten().map(|entry| entry.path());
        let ours = |file: &PathBuf| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&prefix) && name.ends_with("-console.log")
        };
        files.filter(ours).collect()
    }

    /// What a machine said on its console.
    pub fn console(&self, machine: &str) -> String {
        let file = Path::new(CONSOLES).join(format!("{}-console.log", self.domain(machine)));
        String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned()
    }

    /// What an operator would look at next.
    fn tell_consoles(&self) {
        for console in self.consoles() {
            let text = fs::read(&console).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            eprintln!("--- {}\n{}", console.display(), lines[lines.len().saturating_sub(25)..].join("\n"));
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell_consoles();
        }
        for domain in self.domains() {
            virsh(&["destroy", &domain]);
            virsh(&["undefine", &domain]);
        }
        for volume in volumes() {
            virsh(&["vol-delete", "--pool", POOL, &volume]);
        }
        for console in self.consoles() {
            let _ = fs::remove_file(console);
        }
    }
}

/// A client of PostgreSQL that waits so many seconds for each host.
pub fn psql(env: &BTreeMap<String, String>, connecting: u32, sql: &str) -> Run {
    let mut command = Command::new("psql");
    command.env_clear().env("PATH", "/usr/bin:/bin").env("PGCONNECT_TIMEOUT", connecting.to_string()).envs(env);
    command.args(["--no-psqlrc", "-qAt", "-v", "ON_ERROR_STOP=1", "-c", sql]).output().expect("psql runs").into()
}

pub fn virsh(arguments: &[&str]) -> Run {
    let uri = std::env::var(URI).expect("the lab says where libvirt is");
    let mut command = Command::new("virsh");
    command.args(["--quiet", "--connect", &uri]).args(arguments).output().expect("virsh runs").into()
}

/// In the pool, next to the lab's own. A story has the lab for itself.
pub fn volumes() -> BTreeSet<String> {
    let listed = virsh(&["vol-list", POOL]).ok().stdout;
    let names = listed.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| name.starts_with("quorate-")).map(str::to_owned).collect()
}

/// Part of a story: its name goes before what it does, and its time after it.
pub fn chapter<T>(name: &str, tell: impl FnOnce() -> T) -> T {
    eprintln!("  {name} …");
    let begun = Instant::now();
    let outcome = tell();
    eprintln!("  {name}: {:.1} s", begun.elapsed().as_secs_f64());
    outcome
}

/// The incarnation of a member, as the ledger has it.
pub fn incarnation(ledger: &Value, member: &str) -> u64 {
    ledger["members"][member]["incarnation"].as_u64().unwrap_or_else(|| panic!("{member} in {ledger:#}"))
}
