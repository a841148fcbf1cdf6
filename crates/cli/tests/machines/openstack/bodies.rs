//! Bodies for servers that are records: a network namespace for each address, in which an agent and its programs run as they would on a guest.
//! What a body is, nova's own metadata service says to it: it begins when a server has its address, from that server's user data and from
//! nothing else, and ends with the server. Its root is a directory, and so is its data volume, which stays.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use serde_json::Value;

use super::openstack;
use crate::common::{lab, patroni};

/// The network that the servers are on. Machines get their addresses by DHCP there, and bodies have theirs from the beginning.
const NETWORK: &str = "with-dhcp";
const RANGE: &str = "10.82.0.0/16";
/// A router that is not there.
const ROUTER: &str = "10.82.255.254";
/// The lab's gateway, which is where machines find their metadata too.
const GATEWAY: &str = "10.80.0.1";
const METADATA: &str = "http://169.254.169.254/openstack/latest";
const PAUSE: Duration = Duration::from_secs(1);

/// The address of the body at this place, from 1 on.
pub fn address(place: usize) -> String {
    format!("10.82.0.{place}")
}

/// The settings of a cluster whose servers of this flavor have bodies.
pub fn provider(flavor: &str) -> String {
    format!(
        "    provider:
      openstack:
        cloud: quorate
        image: record
        flavor: {flavor}
        network: {NETWORK}
        availability_zone: fake
        seed: quorate
"
    )
}

pub struct Bodies {
    all: Vec<Arc<Body>>,
    over: Arc<AtomicBool>,
    keepers: Vec<JoinHandle<()>>,
    /// What bodies have on their disks.
    _directory: tempfile::TempDir,
}

pub struct Body {
    name: String,
    link: String,
    root: PathBuf,
    /// For all volumes.
    volumes: PathBuf,
    /// For the programs.
    path: String,
    agent: Mutex<Option<Child>>,
}

pub fn ip(arguments: &[&str]) {
    let done = Command::new("ip").args(arguments).status().expect("ip runs");
    assert!(done.success(), "ip {arguments:?}");
}

impl Bodies {
    /// So many, each of which waits for a server, with a network for them, where no other address is free. They have this version of etcd.
    pub fn new(count: usize, version: &str) -> Self {
        openstack(&["network", "create", NETWORK]).ok();
        let pool = format!("start={},end={}", address(1), address(count));
        let subnet = ["subnet", "create", NETWORK, "--network", NETWORK, "--subnet-range", RANGE, "--dhcp"];
        openstack(&[&subnet[..], &["--gateway", ROUTER, "--allocation-pool", &pool]].concat()).ok();
        // This is the router between them, in the lab's own namespace.
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("forwarding");
        let directory = tempfile::tempdir().expect("a directory");
        let all: Vec<Arc<Body>> =
            (1..=count).map(|place| Arc::new(Body::new(directory.path(), place, version))).collect();
        let over = Arc::new(AtomicBool::new(false));
        let keep = |body: &Arc<Body>| {
            let (body, over) = (body.clone(), over.clone());
            spawn(move || body.live(&over))
        };
        let keepers = all.iter().map(keep).collect();
        Bodies { all, over, keepers, _directory: directory }
    }

    /// The one at this place, from 1 on.
    pub fn at(&self, place: usize) -> &Body {
        &self.all[place - 1]
    }
}

impl Drop for Bodies {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for keeper in self.keepers.drain(..) {
            let _ = keeper.join();
        }
        for body in &self.all {
            if std::thread::panicking() {
                eprintln!("--- {}\n{}", body.name, body.console());
            }
            let _ = Command::new("ip").args(["link", "delete", &body.link]).status();
            let _ = Command::new("ip").args(["netns", "delete", &body.name]).status();
        }
        openstack(&["network", "delete", NETWORK]);
    }
}

impl Body {
    /// With an address and a route, as DHCP would give them, and nothing else.
    fn new(directory: &Path, place: usize, version: &str) -> Self {
        let (name, link) = (format!("body-{place}"), format!("body-link-{place}"));
        let address = format!("{}/32", address(place));
        ip(&["netns", "add", &name]);
        ip(&["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &name]);
        ip(&["link", "set", &link, "up"]);
        for interface in ["lo", "eth0"] {
            ip(&["-n", &name, "link", "set", interface, "up"]);
        }
        ip(&["-n", &name, "address", "add", &address, "dev", "eth0"]);
        ip(&["route", "add", &address, "dev", &link]);
        let (root, volumes) = (directory.join(&name), directory.join("volumes"));
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{}:{path}", lab(version).display(), patroni().display());
        let body = Body { name, link, root, volumes, path, agent: Mutex::default() };
        body.connect();
        body
    }

    pub fn connect(&self) {
        ip(&["-n", &self.name, "route", "add", "default", "via", GATEWAY, "dev", "eth0", "onlink"]);
    }

    pub fn disconnect(&self) {
        ip(&["-n", &self.name, "route", "delete", "default"]);
    }

    /// The seed, as the agent gets it.
    pub fn seed(&self) -> PathBuf {
        self.root.join("run/quorate/seed.json")
    }

    fn inside(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]).stdin(Stdio::null());
        command
    }

    fn quorate(&self, arguments: &[&str]) -> Command {
        fs::create_dir_all(&self.root).expect("a root");
        let log = File::options().create(true).append(true).open(self.log()).expect("a log");
        let mut command = self.inside(env!("CARGO_BIN_EXE_quorate"));
        command.args(arguments).arg("--root").arg(&self.root).env("PATH", &self.path);
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        command
    }

    /// What the unit of the image runs.
    pub fn boot(&self) -> bool {
        self.quorate(&["agent", "boot", "--openstack"]).status().expect("quorate runs").success()
    }

    fn log(&self) -> PathBuf {
        self.root.with_extension("log")
    }

    pub fn console(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// What the metadata service has for the server that has this address, if there is one. No answer says nothing.
    fn metadata(&self, file: &str) -> Result<Option<Value>, ()> {
        let (what, file) = (["-s", "--max-time", "10", "-w", "\n%{http_code}"], format!("{METADATA}/{file}"));
        let asked = self.inside("curl").args(what).arg(file).output();
        let answer = String::from_utf8(asked.map_err(drop)?.stdout).map_err(drop)?;
        match answer.rsplit_once('\n') {
            Some((_, "404")) => Ok(None),
            Some((text, "200")) => serde_json::from_str(text).map(Some).map_err(drop),
            _ => Err(()),
        }
    }

    /// Its id.
    fn server(&self) -> Result<Option<String>, ()> {
        Ok(self.metadata("meta_data.json")?.and_then(|found| found["uuid"].as_str().map(str::to_owned)))
    }

    /// Where its data volume is mounted.
    pub fn disk(&self) -> PathBuf {
        self.root.join("var/lib/etcd.disk")
    }

    /// The volume that its server has, which the kernel would name after the serial number in the seed.
    fn attach(&self) {
        let Ok(Some(found)) = self.metadata("user_data") else { return };
        let Some(serial) = found.pointer("/quorate/machine/data_disk/serial").and_then(Value::as_str) else { return };
        let (volume, disk) = (self.volumes.join(serial), self.disk());
        fs::create_dir_all(&volume).expect("a volume");
        fs::create_dir_all(disk.parent().expect("a directory")).expect("a place for it");
        std::os::unix::fs::symlink(volume, disk).expect("a link to it");
    }

    /// As where a hypervisor creates the server's own disk once more, from its image.
    pub fn reinstall(&self) {
        self.end();
        assert!(self.begin(), "{}", self.console());
    }

    fn live(&self, over: &AtomicBool) {
        let mut is = None;
        while !over.load(Ordering::Relaxed) {
            if let Ok(now) = self.server()
                && now != is
            {
                self.end();
                is = now.filter(|_| self.begin());
            }
            sleep(PAUSE);
        }
        self.end();
    }

    fn begin(&self) -> bool {
        self.attach();
        if !self.boot() {
            return false;
        }
        let agent = self.quorate(&["agent", "--seed", &self.seed().display().to_string()]).spawn();
        *self.agent.lock().unwrap() = Some(agent.expect("the agent starts"));
        true
    }

    /// Everything in its namespace, and its disk.
    pub fn end(&self) {
        let listed = Command::new("ip").args(["netns", "pids", &self.name]).output().expect("ip runs").stdout;
        for pid in String::from_utf8_lossy(&listed).split_whitespace() {
            let _ = Command::new("kill").args(["-KILL", pid]).status();
        }
        if let Some(mut agent) = self.agent.lock().unwrap().take() {
            let _ = agent.wait();
        }
        let _ = fs::remove_dir_all(&self.root);
    }
}
