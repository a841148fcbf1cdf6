//! An Incus cluster of three hosts. Each is a network namespace with its own incusd and a bridge, and all bridges are one network with this
//! one, the backbone. A host is cut off by switching its port of the backbone off.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{CGROUPS, DAEMON, IMAGE_VARIABLE, MACHINE, NAME, daemon_path, until_it_answers};
use crate::{host, labs};

/// Where each host has its directory, by its name. Stories look for their sockets here.
const DIRECTORY: &str = "/run/incus/hosts";
pub const VARIABLE: &str = "QUORATE_LAB_INCUS_HOSTS";
const HOSTS: [&str; 3] = ["h1", "h2", "h3"];
/// The bridge of each host that instances are on.
const LAN: &str = "lan";
const BACKBONE: &str = "backbone";
/// Of the backbone here; that of a host ends with 100 and its number.
const ADDRESS: &str = "10.79.0.1/24";
/// In seconds; Incus allows no less.
const OFFLINE_AFTER: &str = "cluster.offline_threshold=11";

pub fn start() -> Result<&'static str> {
    labs::keep_namespaces_to_itself()?;
    ip(&["link", "add", BACKBONE, "type", "bridge"])?;
    ip(&["address", "add", ADDRESS, "dev", BACKBONE])?;
    ip(&["link", "set", BACKBONE, "up"])?;
    for number in 0..HOSTS.len() {
        let host = Host(number);
        host.connect()?;
        host.start()?;
    }
    let first = Host(0);
    first.incus(&["config", "set", &format!("core.https_address={}", first.address())])?;
    first.incus(&["storage", "create", NAME, "dir"])?;
    first.incus(&["cluster", "enable", HOSTS[0]])?;
    first.incus(&["config", "set", OFFLINE_AFTER])?;
    (1..HOSTS.len()).try_for_each(|number| Host(number).join(&first))?;
    let machine = std::env::var(IMAGE_VARIABLE).context("the image of machines is not named")?;
    first.incus(&["image", "import", &machine, "--alias", MACHINE])?;
    Ok(DIRECTORY)
}

/// A host, by its place in the list.
struct Host(usize);

impl Host {
    fn name(&self) -> &'static str {
        HOSTS[self.0]
    }

    fn address(&self) -> String {
        format!("10.79.0.{}:8443", 101 + self.0)
    }

    fn directory(&self) -> PathBuf {
        Path::new(DIRECTORY).join(self.name())
    }

    /// Its port of the backbone is called `port-NAME` here.
    fn connect(&self) -> Result<()> {
        let (name, port) = (self.name(), format!("port-{}", self.name()));
        ip(&["netns", "add", name])?;
        ip(&["link", "add", &port, "type", "veth", "peer", "name", "uplink", "netns", name])?;
        ip(&["link", "set", &port, "master", BACKBONE, "up"])?;
        ip(&["-n", name, "link", "add", LAN, "type", "bridge"])?;
        ip(&["-n", name, "link", "set", "uplink", "master", LAN, "up"])?;
        ip(&["-n", name, "address", "add", &format!("10.79.0.{}/24", 101 + self.0), "dev", LAN])?;
        ip(&["-n", name, "link", "set", LAN, "up"])?;
        ip(&["-n", name, "link", "set", "lo", "up"])
    }

    fn start(&self) -> Result<()> {
        let directory = self.directory();
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        host::run(Command::new("chmod").arg("0711").arg(&directory))?;
        // `ip netns exec` shows a new /sys, which has no control groups.
        let begin = format!("mount --rbind {CGROUPS} /sys/fs/cgroup && exec {DAEMON} --group root");
        let mut daemon = Command::new("ip");
        daemon.args(["netns", "exec", self.name(), "sh", "-c", &begin]);
        daemon.env("INCUS_DIR", &directory).env("PATH", daemon_path());
        let log = fs::File::create(directory.join("daemon.log")).context("cannot write a log")?;
        daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().context("cannot start incusd")?;
        until_it_answers(|| self.command(&["query", "/1.0"]), &directory.join("daemon.log"))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("incus");
        command.args(words).env("INCUS_DIR", self.directory());
        command
    }

    fn incus(&self, words: &[&str]) -> Result<String> {
        host::read(&mut self.command(words))
    }

    fn join(&self, first: &Host) -> Result<()> {
        let token = first.incus(&["cluster", "add", self.name(), "--quiet"])?;
        let token = token.split_whitespace().last().context("Incus gave no token")?;
        let preseed = format!(
            "cluster:\n  server_name: {}\n  server_address: {}\n  enabled: true\n  cluster_token: {token}\n  \
             member_config: [{{entity: storage-pool, name: {NAME}, key: source, value: \"\"}}]\n",
            self.name(),
            self.address()
        );
        let mut join = self.command(&["admin", "init", "--preseed"]);
        let mut join = join.stdin(Stdio::piped()).spawn().context("cannot start incus")?;
        let mut input = join.stdin.take().context("incus reads nothing")?;
        input.write_all(preseed.as_bytes()).context("incus does not read")?;
        drop(input);
        let joined = join.wait().context("incus did not end")?;
        ensure!(joined.success(), "{} did not join the cluster: {joined}", self.name());
        Ok(())
    }
}

/// Fails if the stories left anything behind.
pub fn nothing_is_left() -> Result<()> {
    let first = Host(0);
    let instances = first.incus(&["list", "--format=csv", "--columns=n"])?;
    let volumes = first.incus(&["storage", "volume", "list", NAME, "type=custom", "--format=csv", "--columns=n"])?;
    let left: Vec<&str> = instances.split_whitespace().chain(volumes.split_whitespace()).collect();
    ensure!(left.is_empty(), "the stories have left {} in the cluster of Incus", left.join(", "));
    Ok(())
}

fn ip(words: &[&str]) -> Result<()> {
    host::read(Command::new("ip").args(words)).map(drop)
}
