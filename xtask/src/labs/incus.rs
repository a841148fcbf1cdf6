//! incusd without systemd, in separate namespaces for processes, mounts and network: its directories are in memory, its bridge is
//! on no other network, and when the first process of the namespace ends, all the others do and nothing is left.

mod hosts;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Options, image, static_pod};
use crate::etcd;
use crate::host::{self, Need};
use crate::lab::Lab;
use crate::postgres;
use crate::static_build::lab_program;
use crate::test::build;

const NEEDS: [Need; 6] = [
    Need::Command { name: "dnsmasq", package: "dnsmasq-base" },
    Need::Command { name: "busybox", package: "busybox-static" },
    Need::Command { name: "iptables", package: "iptables" },
    Need::Command { name: "mmdebstrap", package: "mmdebstrap" },
    Need::Command { name: "ip", package: "iproute2" },
    Need::Command { name: "tar", package: "tar" },
];
/// Not in every release of Debian, so perhaps from its backports.
const PACKAGES: [&str; 2] = ["incus-base", "incus-client"];
const DAEMON: &str = "/usr/libexec/incus/incusd";

/// Where the suites look for it, and the names that they expect there.
const SOCKET_VARIABLE: &str = "QUORATE_LAB_INCUS_SOCKET";
const SOCKET: &str = "/var/lib/incus/unix.socket";
/// How the names of clusters begin that the suites make.
const CLUSTERS: [&str; 3] = ["ground", "lab-", BENCH];
/// How the names of instances begin that a bench makes.
pub const BENCH: &str = "bench-";
/// The story of several hosts.
const HOSTS: &str = "incus::hosts::members_are_on_hosts_of_an_incus_cluster_and_one_of_these_is_cut_off";
/// The story of machines with a kubelet.
const PODS: &str = "incus::static_pods::machines_whose_etcd_is_a_static_pod_reboot_one_after_another";
/// The story of PostgreSQL.
const POSTGRES: &str =
    "incus::postgres::three_members_on_containers_change_and_fail_under_a_writer_and_no_commit_is_lost";
/// Of the pool, the network and the image that boots nothing.
pub const NAME: &str = "quorate-lab";
/// The image of real machines.
const MACHINE: &str = "quorate-machine";
/// The same with PostgreSQL.
const POSTGRES_MACHINE: &str = "quorate-postgres";
const POSTGRES_FILE: &str = "postgres.tar.gz";
const POSTGRES_VARIABLE: &str = "QUORATE_LAB_POSTGRES_IMAGE";
const IMAGE_FILE: &str = "container.tar.gz";
const CLOUD_INIT_FILE: &str = "cloud-init.tar.gz";
/// What members on an image with cloud-init need of packages: they have nowhere to fetch them from.
const CLOUD_INIT_PACKAGES: [&str; 4] = ["etcd-server", "etcd-client", "prometheus-node-exporter", "nftables"];
pub const IMAGE_VARIABLE: &str = "QUORATE_LAB_CONTAINER_IMAGE";
/// quorate itself copies this program to machines whose image has none.
const PROGRAM_VARIABLE: &str = "QUORATE_AGENT_PROGRAM";
const DIRECTORIES: [&str; 3] = ["/var/lib/incus", "/run/incus", "/var/log/incus"];
/// Where the control groups of this machine are seen, also by those that have another /sys.
const CGROUPS: &str = "/run/incus/cgroup";
const PATIENCE: Duration = Duration::from_secs(60);
/// The init of machines in the conformance suite: it writes to the console and waits for a signal.
const INIT: &str = "#!/bin/busybox sh\n\
    echo 'quorate lab' > /dev/console\n\
    trap 'exit 0' PWR TERM\n\
    while :; do /bin/busybox sleep 1; done\n";

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    let mut prepared = prepare(lab)?;
    prepared.pods = options.has(PODS).then(|| static_pod::programs(lab)).transpose()?;
    prepared.postgres = options.has(POSTGRES).then(|| postgres_image(lab, &prepared)).transpose()?;
    suites(options)?;
    let words: Vec<&str> = ["lab", "incus", "--inside"].into_iter().chain(options.words()).collect();
    enter(&prepared, &words)
}

/// Runs this program again with these arguments, where [`start`] may be called.
pub fn enter(prepared: &Prepared, words: &[&str]) -> Result<()> {
    let outcome = super::enter(words, |lab| {
        lab.env(PROGRAM_VARIABLE, &prepared.program).env(IMAGE_VARIABLE, &prepared.image);
        lab.envs(prepared.pods.iter().map(|place| (static_pod::VARIABLE, place)));
        lab.envs(prepared.postgres.iter().map(|image| (POSTGRES_VARIABLE, image)));
    });
    super::remove_groups(is_ours);
    outcome
}

fn is_ours(group: &str) -> bool {
    let instance = ["lxc.payload.", "lxc.monitor."].iter().find_map(|prefix| group.strip_prefix(prefix));
    instance.is_some_and(|instance| CLUSTERS.iter().any(|cluster| instance.starts_with(cluster)))
}

/// quorate as a static program, and the image of machines.
pub struct Prepared {
    pub program: PathBuf,
    pub image: PathBuf,
    /// The kubelet and images of static pods.
    pods: Option<PathBuf>,
    /// The image of machines with PostgreSQL.
    postgres: Option<PathBuf>,
}

/// Packages, programs and images that the lab needs: inside there is no network.
pub fn prepare(lab: &Lab) -> Result<Prepared> {
    if fs::metadata("/proc/self").context("cannot tell which user this is")?.uid() != 0 {
        bail!("the lab of Incus needs root: its namespaces are made with `unshare` and `mount`");
    }
    install()?;
    etcd::run(lab, false)?;
    let program = lab_program::build()?;
    let image = image::build(lab, &program, IMAGE_FILE, &["--format", "incus"])?;
    Ok(Prepared { program, image, pods: None, postgres: None })
}

/// An image with PostgreSQL, and its client on this host.
fn postgres_image(lab: &Lab, prepared: &Prepared) -> Result<PathBuf> {
    host::install_missing(&[postgres::SERVER])?;
    image::build(lab, &prepared.program, POSTGRES_FILE, &["--format", "incus", "--postgres", "15"])
}

/// An image as clouds have it, with all that a member needs.
pub fn cloud_init_image(lab: &Lab, prepared: &Prepared) -> Result<PathBuf> {
    let packages = CLOUD_INIT_PACKAGES.iter().flat_map(|name| ["--package", name]);
    let options: Vec<&str> = ["--format", "incus", "--cloud-init"].into_iter().chain(packages).collect();
    image::build(lab, &prepared.program, CLOUD_INIT_FILE, &options)
}

pub fn install() -> Result<()> {
    host::install_missing(&NEEDS)?;
    if Path::new(DAEMON).exists() && host::find("incus").is_some() {
        return Ok(());
    }
    etcd::debian::install_with_backports(&PACKAGES)
}

/// The provider's conformance suite, and stories of clusters on containers. With each, the arguments for its tests.
fn suites(options: &Options) -> Result<[(Vec<String>, Command); 2]> {
    let test = |label: &str| Ok::<Command, anyhow::Error>(build::find(label)?.command());
    let conformance = options.filter.clone().unwrap_or_else(|| String::from("incus::"));
    let stories = ["--ignored", "--nocapture", "--test-threads=1"].map(String::from);
    Ok([
        (vec![conformance, String::from("--test-threads=3")], test("quorate-providers::conformance")?),
        (
            stories.into_iter().chain([options.stories("incus::core::", "incus::")]).collect(),
            test("quorate::machines")?,
        ),
    ])
}

pub fn inside(options: &Options) -> Result<()> {
    start()?;
    let hosts = if options.has(HOSTS) { Some(hosts::start()?) } else { None };
    for (arguments, suite) in suites(options)? {
        let mut suite = suite;
        suite.env(SOCKET_VARIABLE, SOCKET).envs(hosts.map(|directory| (hosts::VARIABLE, directory)));
        host::run(suite.args(arguments))?;
        nothing_is_left()?;
        hosts.map_or(Ok(()), |_| hosts::nothing_is_left())?;
    }
    Ok(())
}

/// Incus with a pool, a network and images, in the namespaces that this process is in.
pub fn start() -> Result<()> {
    prepare_directories()?;
    host::run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    let mut daemon = Command::new(DAEMON);
    daemon.args(["--group", "root", "--logfile", "/var/log/incus/incusd.log"]);
    daemon.env("PATH", daemon_path());
    daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("cannot start incusd")?;
    let ask = || {
        let mut ask = Command::new("incus");
        ask.args(["query", "/1.0"]);
        ask
    };
    until_it_answers(ask, Path::new("/var/log/incus/incusd.log"))?;
    let incus = |words: &[&str]| host::read(Command::new("incus").args(words)).map(drop);
    incus(&["storage", "create", NAME, "dir"])?;
    incus(&["network", "create", NAME, "ipv4.address=10.78.0.1/16", "ipv4.nat=false", "ipv6.address=fd42:78::1/64"])?;
    incus(&["image", "import", &tiny_image()?.to_string_lossy(), "--alias", NAME])?;
    let machine = std::env::var(IMAGE_VARIABLE).context("the image of machines is not named")?;
    incus(&["image", "import", &machine, "--alias", MACHINE])?;
    match std::env::var(POSTGRES_VARIABLE) {
        Ok(postgres) => incus(&["image", "import", &postgres, "--alias", POSTGRES_MACHINE]),
        Err(_) => Ok(()),
    }
}

fn daemon_path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("/usr/libexec/incus:/usr/sbin:/sbin:{path}")
}

fn until_it_answers(ask: impl Fn() -> Command, log: &Path) -> Result<()> {
    let begun = Instant::now();
    while let Err(error) = host::read(&mut ask()) {
        if begun.elapsed() > PATIENCE {
            let log = fs::read_to_string(log).unwrap_or_default();
            return Err(error.context(format!("incusd does not answer; its log:\n{log}")));
        }
        sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn prepare_directories() -> Result<()> {
    let mount = |words: &[&str]| host::run(Command::new("mount").args(words));
    mount(&["--make-rprivate", "/"])?;
    for directory in DIRECTORIES {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {directory}"))?;
        mount(&["-t", "tmpfs", "-o", "mode=0711", "tmpfs", directory])?;
    }
    // The /sys that is there shows the network interfaces outside. The control groups below it are everybody's.
    fs::create_dir_all(CGROUPS).with_context(|| format!("cannot create {CGROUPS}"))?;
    mount(&["--rbind", "/sys/fs/cgroup", CGROUPS])?;
    mount(&["-t", "sysfs", "sysfs", "/sys"])?;
    mount(&["--rbind", CGROUPS, "/sys/fs/cgroup"])
}

/// A container of one program.
fn tiny_image() -> Result<PathBuf> {
    let place = Path::new("/var/lib/incus/lab-image");
    let root = place.join("rootfs");
    for directory in ["bin", "sbin", "dev", "proc", "sys", "etc/systemd/system", "usr/lib", "var/lib"] {
        fs::create_dir_all(root.join(directory)).with_context(|| format!("cannot create {directory}"))?;
    }
    let busybox = host::find("busybox").context("there is no busybox")?;
    fs::copy(&busybox, root.join("bin/busybox")).context("cannot copy busybox")?;
    fs::write(root.join("sbin/init"), INIT).context("cannot write the init")?;
    host::run(Command::new("chmod").arg("0755").arg(root.join("sbin/init")))?;
    let metadata = format!("{{architecture: {}, creation_date: 1}}\n", std::env::consts::ARCH);
    fs::write(place.join("metadata.yaml"), metadata).context("cannot write metadata.yaml")?;
    let image = place.join("image.tar.gz");
    host::run(Command::new("tar").arg("-czf").arg(&image).arg("-C").arg(place).args(["metadata.yaml", "rootfs"]))?;
    Ok(image)
}

/// Fails if the suites left anything behind.
fn nothing_is_left() -> Result<()> {
    let instances = host::read(Command::new("incus").args(["list", "--format=csv", "--columns=n"]))?;
    let volumes = ["storage", "volume", "list", NAME, "type=custom", "--format=csv", "--columns=n"];
    let volumes = host::read(Command::new("incus").args(volumes))?;
    let left: Vec<&str> = instances.split_whitespace().chain(volumes.split_whitespace()).collect();
    if !left.is_empty() {
        bail!("the suite has left {}", left.join(", "));
    }
    eprintln!("nothing was left behind");
    Ok(())
}
