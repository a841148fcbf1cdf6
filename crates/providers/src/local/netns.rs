//! Network namespaces for local machines: one for each machine, connected to one bridge per cluster, which is in a namespace too, the
//! cluster's hub. A PostgreSQL cluster uses the hub of its etcd cluster. Nothing is added to the host's own network, so no traffic can
//! leave.
//!
//! All names follow from a machine's mark, so the next call finds, uses or removes whatever an interrupted one left. From the hub the
//! controller and clients reach every member, and a member can be cut off or slowed down.

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use quorate_agent::dial::{NAMESPACES, within};
use quorate_core::model::{CLIENT_PORT, MemberName};
use quorate_core::spec::ClusterSpec;
use quorate_pki::Sha256;

use super::{Mark, failed, line};
use crate::ProviderError;

/// The file system that namespaces are on. A name that is not on it was left by a boot before this one.
const NAMESPACE_FILES: i64 = 0x6e73_6673;
const BRIDGE: &str = "bridge";
/// What a machine calls its end of the link.
const INSIDE: &str = "eth0";
/// What the kernel calls the states of a bridge's port.
const FORWARDING: &str = "3";
const DISABLED: &str = "0";

/// The name of the namespace from which a cluster's members are reached.
pub fn hub(cluster_id: &str) -> String {
    format!("quorate-{cluster_id}")
}

/// Cuts a member off: no packet leaves or reaches it, and it does not notice. A machine that is switched off and on is connected
/// again.
pub fn partition(machines: &Path, cluster: &str, member: &MemberName) -> Result<(), ProviderError> {
    Place::find(machines, cluster, member)?.set_port(DISABLED)
}

/// Delays every packet to and from a member by this many milliseconds. If the kernel cannot, this process does it while it
/// runs; afterwards the member is cut off until it is healed.
pub fn delay(machines: &Path, cluster: &str, member: &MemberName, milliseconds: u32) -> Result<(), ProviderError> {
    let place = Place::find(machines, cluster, member)?;
    place.remove_line()?;
    let time = format!("{milliseconds}ms");
    for (namespace, device) in place.ends() {
        let queue = ["qdisc", "replace", "dev", device, "root", "netem", "limit", "100000", "delay", &time];
        match run("tc", &[&["-n", namespace], &queue[..]].concat(), "") {
            Err(ProviderError::Command { said, .. }) if said.contains("qdisc kind is unknown") => {
                return place.lay_line(Duration::from_millis(milliseconds.into()));
            }
            done => done?,
        };
    }
    Ok(())
}

/// Ends what `partition` and `delay` began.
pub fn heal(machines: &Path, cluster: &str, member: &MemberName) -> Result<(), ProviderError> {
    let place = Place::find(machines, cluster, member)?;
    place.remove_line()?;
    for (namespace, device) in place.ends() {
        let shown = run("tc", &["-n", namespace, "qdisc", "show", "dev", device], "")?;
        if shown.contains("netem") {
            run("tc", &["-n", namespace, "qdisc", "delete", "dev", device, "root"], "")?;
        }
    }
    place.set_port(FORWARDING)
}

/// The network of one cluster: all but the last number of its addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Range {
    V4([u8; 3]),
    V6([u16; 7]),
}

impl Range {
    /// Where the spec pins addresses, that range; else one that follows from the cluster's id. Clusters cannot meet, so it
    /// does not matter when two have the same.
    pub(super) fn new(spec: &ClusterSpec, cluster_id: &str) -> Self {
        let pinned = spec.machines().filter_map(|machine| machine.address).find_map(Range::of);
        pinned.unwrap_or_else(|| {
            let hash = Sha256::digest(cluster_id);
            Range::V4([10, hash[0], hash[1]])
        })
    }

    pub(super) fn of(address: IpAddr) -> Option<Self> {
        match address {
            _ if address.is_loopback() => None,
            IpAddr::V4(v4) => {
                let [a, b, c, _] = v4.octets();
                Some(Range::V4([a, b, c]))
            }
            IpAddr::V6(v6) => {
                let [a, b, c, d, e, f, g, _] = v6.segments();
                Some(Range::V6([a, b, c, d, e, f, g]))
            }
        }
    }

    fn host(self, number: u8) -> IpAddr {
        match self {
            Range::V4([a, b, c]) => Ipv4Addr::new(a, b, c, number).into(),
            Range::V6([a, b, c, d, e, f, g]) => Ipv6Addr::new(a, b, c, d, e, f, g, number.into()).into(),
        }
    }

    /// An address of this range as `ip` takes it. Nobody else can have it, so that nobody needs to be asked first.
    fn assigned(self, address: IpAddr) -> String {
        match self {
            Range::V4(_) => format!("{address}/24"),
            Range::V6(_) => format!("{address}/112 nodad"),
        }
    }

    fn name(self) -> String {
        let prefix = if matches!(self, Range::V4(_)) { 24 } else { 112 };
        format!("{}/{prefix}", self.host(0))
    }

    fn hub(self) -> IpAddr {
        self.host(1)
    }

    /// The pinned address, or one that no machine of the cluster has. Where to begin depends on the salt alone.
    pub(super) fn choose(self, wanted: Option<IpAddr>, salt: &str, taken: &[Mark]) -> Result<IpAddr, ProviderError> {
        let name = self.name();
        let Some(pinned) = wanted else {
            let begin = Sha256::digest(salt)[0];
            let numbers = (0..=255).map(|step: u8| begin.wrapping_add(step)).filter(|number| (2..255).contains(number));
            let mut free = numbers.map(|number| self.host(number));
            let free = free.find(|address| taken.iter().all(|mark| mark.address != *address));
            return free.ok_or(ProviderError::NoAddress { range: name });
        };
        if Range::of(pinned) != Some(self) {
            let why = format!("this cluster's network is {name}");
            return Err(ProviderError::AddressUnusable { address: pinned, why });
        }
        match taken.iter().find(|mark| mark.address == pinned) {
            Some(mark) => {
                let by = Some(mark.member.to_string());
                Err(ProviderError::AddressTaken { address: pinned, port: CLIENT_PORT, by })
            }
            None => Ok(pinned),
        }
    }
}

/// Where one machine is: its own namespace, and its port on the bridge of its cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Place {
    hub: String,
    own: String,
    port: String,
    address: IpAddr,
    range: Range,
}

impl Place {
    /// None: the machine is on the host's loopback.
    pub(super) fn of(mark: &Mark) -> Option<Self> {
        let (address, range) = (mark.address, Range::of(mark.address)?);
        let port = match address {
            IpAddr::V4(v4) => format!("port-{}", v4.octets()[3]),
            IpAddr::V6(v6) => format!("port-{:x}", v6.segments()[7]),
        };
        let hub = hub(mark.network_id());
        let own = match &mark.joins {
            None => format!("{hub}-{}.{}", mark.member, mark.incarnation),
            // Members of two clusters can have the same name.
            Some(_) => format!("{hub}-{}-{}.{}", mark.cluster_id, mark.member, mark.incarnation),
        };
        Some(Place { own, port, hub, address, range })
    }

    /// Of the member's newest machine, or of the former one that is named.
    fn find(machines: &Path, cluster: &str, member: &MemberName) -> Result<Self, ProviderError> {
        let marks = super::marked(machines, cluster)?.into_iter().map(|(_, mark)| mark);
        let meant = |mark: &Mark| mark.member == *member || mark.member.former(mark.incarnation) == *member;
        let newest = marks.filter(meant).max_by_key(|mark| mark.incarnation);
        let missing = || ProviderError::NoSuchMachine { cluster: cluster.to_owned(), machine: member.to_string() };
        let place = Place::of(&newest.ok_or_else(missing)?);
        place.ok_or_else(|| ProviderError::OnLoopback { member: member.clone() })
    }

    /// Whether anything of it may be there.
    pub(super) fn exists(&self) -> bool {
        path(&self.own).exists() || path(&self.hub).exists()
    }

    /// Both ends of the machine's link.
    fn ends(&self) -> [(&str, &str); 2] {
        [(&self.hub, &self.port), (&self.own, INSIDE)]
    }

    /// Creates what is missing and does not touch the rest: an etcd whose agent has died may be running in it.
    pub(super) fn make(&self) -> Result<(), ProviderError> {
        let Place { hub, own, port, address, range } = self;
        add(hub)?;
        let mut lines = String::new();
        if !has(hub, BRIDGE) {
            lines += &format!("link add {BRIDGE} type bridge\n");
        }
        let at_hub = range.assigned(range.hub());
        lines += &format!("link set lo up\naddress replace {at_hub} dev {BRIDGE}\nlink set {BRIDGE} up\n");
        batch(hub, &lines)?;
        add(own)?;
        let mut lines = String::new();
        let [outer, inner] = self.ends().map(|(namespace, device)| has(namespace, device));
        if !(outer && inner) {
            // An end whose other end is elsewhere: its namespace lives on without a name while a process is in it.
            if outer {
                lines += &format!("link delete {port}\n");
            }
            if inner {
                batch(own, &format!("link delete {INSIDE}\n"))?;
            }
            lines += &format!("link add {port} type veth peer name {INSIDE} netns {own}\n");
        }
        lines += &format!("link set {port} master {BRIDGE} up\n");
        batch(hub, &lines)?;
        let here = range.assigned(*address);
        batch(own, &format!("link set lo up\naddress replace {here} dev {INSIDE}\nlink set {INSIDE} up\n"))
    }

    /// The hub is removed with its last machine.
    pub(super) fn remove(&self) -> Result<(), ProviderError> {
        for name in [&self.own].into_iter().chain(&self.line()) {
            delete(name)?;
        }
        let of_this_hub = format!("{}-", self.hub);
        let mut names = fs::read_dir(NAMESPACES).into_iter().flatten().flatten().map(|entry| entry.file_name());
        if names.any(|name| name.to_string_lossy().starts_with(&of_this_hub)) {
            return Ok(());
        }
        delete(&self.hub)
    }

    /// The namespaces at the ends of a slow line, that of the machine first.
    fn line(&self) -> [String; 2] {
        ["inner", "outer"].map(|end| format!("{}.{end}", self.own))
    }

    /// Puts a slow line between the machine's link and the bridge. Frames on it must be whole: neither larger than the link
    /// takes, nor to be cut later.
    fn lay_line(&self, time: Duration) -> Result<(), ProviderError> {
        let (Place { hub, own, port, .. }, [inner, outer]) = (self, &self.line());
        add(inner)?;
        add(outer)?;
        batch(own, &format!("link set {INSIDE} gso_max_segs 1\n"))?;
        let link = format!("link add {port} gso_max_segs 1 type veth peer name {INSIDE} netns {outer}");
        batch(hub, &format!("link set {port} netns {inner}\n{link}\nlink set {port} master {BRIDGE} up\n"))?;
        batch(outer, &format!("link set {INSIDE} up\n"))?;
        batch(inner, &format!("link set {port} up\n"))?;
        line::lay([inner, outer], time).map_err(failed("entered", &path(inner)))
    }

    /// Connects the machine to the bridge again, whatever is left of a line.
    fn remove_line(&self) -> Result<(), ProviderError> {
        let (Place { hub, own, port, .. }, [inner, outer]) = (self, &self.line());
        if is_namespace(inner) && has(inner, port) {
            if has(hub, port) {
                batch(hub, &format!("link delete {port}\n"))?;
            }
            batch(inner, &format!("link set {port} netns {hub}\n"))?;
        }
        if path(inner).exists() || path(outer).exists() {
            batch(hub, &format!("link set {port} master {BRIDGE} up\n"))?;
            batch(own, &format!("link set {INSIDE} gso_max_segs 65535\n"))?;
        }
        delete(inner)?;
        delete(outer)
    }

    /// Starts a program in the machine: a child is where the thread is that starts it.
    pub(super) fn spawn(&self, mut command: Command) -> io::Result<Child> {
        within(&self.own, move || command.spawn())
    }

    fn set_port(&self, state: &str) -> Result<(), ProviderError> {
        run("bridge", &["-n", &self.hub, "link", "set", "dev", &self.port, "state", state], "").map(drop)
    }
}

/// Whether this host and this user can have network namespaces.
pub(super) fn check() -> Result<(), ProviderError> {
    if !rustix::process::geteuid().is_root() {
        return Err(needs("root"));
    }
    run("ip", &["-Version"], "").map(drop)
}

fn needs(what: &str) -> ProviderError {
    ProviderError::NetnsNeeds { what: what.to_owned() }
}

fn path(name: &str) -> PathBuf {
    Path::new(NAMESPACES).join(name)
}

pub(super) fn is_namespace(name: &str) -> bool {
    rustix::fs::statfs(path(name)).is_ok_and(|found| found.f_type == NAMESPACE_FILES)
}

fn add(name: &str) -> Result<(), ProviderError> {
    if is_namespace(name) {
        return Ok(());
    }
    delete(name)?;
    run("ip", &["netns", "add", name], "").map(drop)
}

/// Removes a namespace, or a name that is none any more.
fn delete(name: &str) -> Result<(), ProviderError> {
    if !path(name).exists() {
        return Ok(());
    }
    run("ip", &["netns", "delete", name], "").map(drop)
}

fn has(namespace: &str, device: &str) -> bool {
    run("ip", &["-n", namespace, "link", "show", "dev", device], "").is_ok()
}

/// Runs commands of `ip`, one a line, in a namespace.
fn batch(namespace: &str, lines: &str) -> Result<(), ProviderError> {
    run("ip", &["-n", namespace, "-batch", "-"], lines).map(drop)
}

fn run(program: &str, arguments: &[&str], input: &str) -> Result<String, ProviderError> {
    let command = || {
        let words = format!("{program} {}", arguments.join(" "));
        if input.is_empty() { words } else { format!("{words}: {}", input.trim_end().replace('\n', ", ")) }
    };
    let unable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => needs(&format!("the command `{program}`, which is in the package iproute2")),
        _ => ProviderError::Command { command: command(), said: error.to_string() },
    };
    let piped = Stdio::piped;
    let started = Command::new(program).args(arguments).stdin(piped()).stdout(piped()).stderr(piped()).spawn();
    let mut child = started.map_err(unable)?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that has ended before it read all says why by itself.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(unable)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().lines().collect::<Vec<_>>().join("; ");
    Err(ProviderError::Command { command: command(), said })
}
