//! libvirtd without systemd, in separate namespaces for processes, mounts and network: its directories are in memory, its
//! bridges are on no other network, and when the first process of the namespace ends, all the others do and nothing is left.

pub mod machine;

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Options;
use crate::etcd;
use crate::host::{self, Need};
use crate::lab::Lab;
use crate::test::build;
use machine::{Machine, Wanted};

pub const NEEDS: [Need; 14] = [
    Need::Command { name: "libvirtd", package: "libvirt-daemon" },
    Need::File {
        path: "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so",
        package: "libvirt-daemon-driver-qemu",
    },
    Need::File {
        path: "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_network.so",
        package: "libvirt-daemon",
    },
    Need::Command { name: "virsh", package: "libvirt-clients" },
    Need::Command { name: "qemu-system-x86_64", package: "qemu-system-x86" },
    Need::Command { name: "qemu-io", package: "qemu-utils" },
    Need::File { path: "/usr/share/seabios/bios-256k.bin", package: "seabios" },
    Need::File { path: "/usr/lib/ipxe/qemu/efi-virtio.rom", package: "ipxe-qemu" },
    Need::Command { name: "dnsmasq", package: "dnsmasq-base" },
    Need::Command { name: "iptables", package: "iptables" },
    Need::Command { name: "fsck.vfat", package: "dosfstools" },
    Need::Command { name: "mtype", package: "mtools" },
    Need::Command { name: "ssh", package: "openssh-client" },
    Need::Command { name: "ip", package: "iproute2" },
];

const URI: &str = "qemu:///system";
/// Where the suite looks for it, and the names that it expects there.
const URI_VARIABLE: &str = "QUORATE_LAB_LIBVIRT_URI";
/// The same for a second one.
const SECOND_URI_VARIABLE: &str = "QUORATE_LAB_LIBVIRT_SECOND_URI";
const SECOND_URI: &str = "qemu+unix:///system?socket=/var/cache/libvirt/second/libvirt-sock";
/// Of the pool and of the network.
pub const NAME: &str = "quorate-lab";
const IMAGE: &str = "boot.img";
/// The images of real machines, as volumes.
pub const MACHINE_IMAGE: &str = "machine.qcow2";
pub const CLOUD_INIT_IMAGE: &str = "cloud-init.qcow2";
const POSTGRES_IMAGE: &str = "postgres.qcow2";
/// The story of PostgreSQL.
const POSTGRES: &str = "postgres::a_watchdog_resets_the_machine_of_a_primary_whose_patroni_hangs";
const MACVTAP: &str = "quorate-lab0";
const DIRECTORIES: [&str; 5] =
    ["/etc/libvirt", "/run/libvirt", "/var/cache/libvirt", "/var/lib/libvirt", "/var/log/libvirt"];
const POOL: &str = "/var/lib/libvirt/images";
/// Without it `virsh define` takes minutes where KVM opens and does not work.
const QEMU_CONF: &str =
    "user = \"root\"\ngroup = \"root\"\nsecurity_driver = \"none\"\nremember_owner = 0\ncgroup_controllers = []\n";
/// libvirt asks for it before it reads that machines are to run as somebody else. libvirt's package would create it permanently.
const USER: &str = "libvirt-qemu:x:64055:64055::/nonexistent:/usr/sbin/nologin";
const USER_GROUP: &str = "libvirt-qemu:x:64055:";
const PATIENCE: Duration = Duration::from_secs(30);
/// What machines of the suite say on their console before they rest.
const GREETING: &str = "quorate lab\r\n";

pub fn run(lab: &Lab, options: &Options) -> Result<()> {
    let machine = prepare(lab, wanted(options))?;
    suites(options)?;
    let words: Vec<&str> = ["lab", "libvirt", "--inside"].into_iter().chain(options.words()).collect();
    enter(&machine, &words)
}

/// What the machines are made of.
pub fn wanted(options: &Options) -> Wanted {
    Wanted { cloud_init: !options.core, postgres: options.has(POSTGRES) }
}

/// Everything that the lab needs of packages, programs and images: inside there is no network.
pub fn prepare(lab: &Lab, wanted: Wanted) -> Result<Machine> {
    if fs::metadata("/proc/self").context("cannot tell which user this is")?.uid() != 0 {
        bail!("libvirt's lab needs root: its namespaces are made with `unshare` and `mount`");
    }
    host::install_missing(&NEEDS)?;
    etcd::run(lab, false)?;
    Machine::prepare(lab, wanted)
}

/// Runs this program once more, with these words, in the lab's namespaces. It has to call [`start`] there.
pub fn enter(machine: &Machine, words: &[impl AsRef<OsStr>]) -> Result<()> {
    super::enter(words, |lab| machine.tell(lab))
}

/// The provider's conformance suite, what the command line says where libvirt cannot do as a spec asks, and stories of clusters on
/// real machines, one after another: emulation has use for every core. With each, the arguments for its tests.
fn suites(options: &Options) -> Result<[(Vec<String>, Command); 3]> {
    let test = |label: &str| Ok::<Command, anyhow::Error>(build::find(label)?.command());
    let conformance = options.filter.clone().unwrap_or_else(|| String::from("libvirt::"));
    // Its machines boot no agent, and it tries what is said of a program that is not static.
    let mut without_program = test("quorate-providers::conformance")?;
    without_program.env_remove(machine::PROGRAM_VARIABLE);
    let refusals = options.filter.clone().unwrap_or_else(|| String::from("machine_refusals::"));
    let elsewhere = ["--skip=incus::", "--skip=openstack::"];
    let stories = ["--ignored", "--nocapture", "--test-threads=1"].into_iter().chain(elsewhere).map(String::from);
    Ok([
        (vec![conformance], without_program),
        (vec![String::from("--ignored"), refusals], test("quorate::cli")?),
        (stories.chain([options.stories("one_network::", "")]).collect(), test("quorate::machines")?),
    ])
}

pub fn inside(options: &Options) -> Result<()> {
    start()?;
    start_second()?;
    for (arguments, suite) in suites(options)? {
        host::run({ suite }.env(URI_VARIABLE, URI).env(SECOND_URI_VARIABLE, SECOND_URI).args(arguments))?;
        nothing_is_left()?;
    }
    Ok(())
}

/// libvirt, with a pool, a network and an interface for macvtap, in the namespaces that this process is in.
pub fn start() -> Result<()> {
    prepare_directories()?;
    host::run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    for daemon in ["virtlogd", "libvirtd"] {
        // Not in the place of another lab.
        host::run(Command::new(daemon).args(["--daemon", "--pid-file", &format!("/run/libvirt/{daemon}.pid")]))?;
    }
    wait_for(virsh)?;
    make_pool()?;
    make_network()
}

/// A second libvirt, with its own domains, pool and network, for clusters on several hosts. All of it that others must see is in a
/// directory that both share.
fn start_second() -> Result<()> {
    const SHARED: &str = "/var/cache/libvirt/second";
    let images = format!("{SHARED}/images");
    fs::create_dir_all(&images).with_context(|| format!("cannot create {images}"))?;
    fs::write(Path::new(&images).join(IMAGE), image()).context("cannot write the image")?;
    let settings = format!("unix_sock_dir = \"{SHARED}\"\nauth_unix_rw = \"none\"\n");
    fs::write(format!("{SHARED}/libvirtd.conf"), settings).context("cannot write libvirtd.conf")?;
    // Its machines write their consoles themselves: virtlogd is the first one's.
    fs::write(format!("{SHARED}/qemu.conf"), format!("{QEMU_CONF}stdio_handler = \"file\"\n"))
        .context("cannot write qemu.conf")?;
    let begin = format!(
        "for d in /etc/libvirt /run/libvirt /var/lib/libvirt; do mount -t tmpfs tmpfs $d || exit 1; done; \
         mkdir -p /var/lib/libvirt/qemu && cp {SHARED}/qemu.conf /etc/libvirt/ && \
         exec libvirtd --daemon --config {SHARED}/libvirtd.conf --pid-file /run/libvirt/libvirtd.pid"
    );
    host::run(Command::new("unshare").args(["--mount", "sh", "-c", &begin]))?;
    let virsh = || {
        let mut virsh = Command::new("virsh");
        virsh.args(["--quiet", "--connect", SECOND_URI]);
        virsh
    };
    wait_for(virsh)?;
    host::read(virsh().args(["pool-define-as", NAME, "dir", "--target", &images]))?;
    host::read(virsh().args(["pool-start", NAME]))?;
    let network = format!("<network><name>{NAME}</name><bridge name='quorate-lab2' stp='off' delay='0'/></network>");
    let file = format!("{SHARED}/network.xml");
    fs::write(&file, network).context("cannot write the network")?;
    host::read(virsh().args(["net-define", &file]))?;
    host::read(virsh().args(["net-start", NAME])).map(drop)
}

fn prepare_directories() -> Result<()> {
    host::run(Command::new("mount").args(["--make-rprivate", "/"]))?;
    // The one that is there shows the network interfaces outside.
    host::run(Command::new("mount").args(["-t", "sysfs", "sysfs", "/sys"]))?;
    for directory in DIRECTORIES {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {directory}"))?;
        host::run(Command::new("mount").args(["-t", "tmpfs", "tmpfs", directory]))?;
    }
    for directory in [POOL, "/var/lib/libvirt/qemu", "/var/log/libvirt/qemu"] {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {directory}"))?;
    }
    fs::write("/etc/libvirt/qemu.conf", QEMU_CONF).context("cannot write qemu.conf")?;
    know("/etc/passwd", USER)?;
    know("/etc/group", USER_GROUP)
}

/// Shows a list of users or groups with one more in it, to those who are in this namespace.
fn know(list: &str, line: &str) -> Result<()> {
    let known = fs::read_to_string(list).with_context(|| format!("cannot read {list}"))?;
    let copy = Path::new("/etc/libvirt").join(Path::new(list).file_name().unwrap_or_default());
    fs::write(&copy, format!("{}\n{line}\n", known.trim_end())).with_context(|| format!("cannot copy {list}"))?;
    host::run(Command::new("mount").arg("--bind").arg(copy).arg(list))
}

pub fn virsh() -> Command {
    let mut virsh = Command::new("virsh");
    virsh.args(["--quiet", "--connect", URI]);
    virsh
}

fn wait_for(virsh: impl Fn() -> Command) -> Result<()> {
    let begun = Instant::now();
    loop {
        match host::read(virsh().arg("list")) {
            Ok(_) => return Ok(()),
            Err(error) if begun.elapsed() > PATIENCE => return Err(error.context("libvirtd does not answer")),
            Err(_) => sleep(Duration::from_millis(100)),
        }
    }
}

fn make_pool() -> Result<()> {
    fs::write(Path::new(POOL).join(IMAGE), image()).context("cannot write the image")?;
    show_images()?;
    host::read(virsh().args(["pool-define-as", NAME, "dir", "--target", POOL]))?;
    host::read(virsh().args(["pool-start", NAME])).map(drop)
}

/// The images themselves, for reading: copies would take memory and time.
fn show_images() -> Result<()> {
    for (variable, name) in [
        (machine::IMAGE_VARIABLE, MACHINE_IMAGE),
        (machine::CLOUD_INIT_VARIABLE, CLOUD_INIT_IMAGE),
        (machine::POSTGRES_VARIABLE, POSTGRES_IMAGE),
    ] {
        let Some(image) = std::env::var_os(variable) else { continue };
        let volume = volume_path(name);
        fs::write(&volume, "").with_context(|| format!("cannot make a place for {name}"))?;
        host::run(Command::new("mount").args(["--bind", "-o", "ro"]).arg(image).arg(volume))?;
    }
    Ok(())
}

/// Where a volume of the lab's pool is.
pub fn volume_path(name: &str) -> PathBuf {
    Path::new(POOL).join(name)
}

/// Has libvirt read a description.
pub fn define(verb: &str, description: &str) -> Result<()> {
    let mut virsh = virsh().args([verb, "/dev/stdin"]).stdin(Stdio::piped()).spawn().context("no virsh")?;
    virsh.stdin.take().context("virsh reads nothing")?.write_all(description.as_bytes())?;
    let status = virsh.wait()?;
    if !status.success() {
        bail!("`virsh {verb}` failed: {status}\n{description}");
    }
    Ok(())
}

fn make_network() -> Result<()> {
    let network = format!(
        "<network><name>{NAME}</name><bridge name='quorate-lab' stp='off' delay='0'/>\
         <ip address='10.77.0.1' netmask='255.255.0.0'/></network>"
    );
    define("net-define", &network)?;
    host::read(virsh().args(["net-start", NAME]))?;
    // For macvtap: an interface of the host that leads nowhere.
    let link = ["link", "add", MACVTAP, "type", "veth", "peer", "name", "quorate-lab1"];
    host::run(Command::new("ip").args(link))?;
    host::run(Command::new("ip").args(["link", "set", MACVTAP, "up"]))
}

/// A boot sector that writes its greeting to the first serial port, a letter at a time, and halts.
fn image() -> Vec<u8> {
    const SIZE: usize = 1 << 20;
    // cli; mov dx, 0x3f8
    let mut image = vec![0xfa, 0xba, 0xf8, 0x03];
    // mov al, letter; out dx, al
    image.extend(GREETING.bytes().flat_map(|letter| [0xb0, letter, 0xee]));
    // hlt; jmp to it
    image.extend([0xf4, 0xeb, 0xfd]);
    image.resize(510, 0);
    image.extend([0x55, 0xaa]);
    image.resize(SIZE, 0);
    image
}

/// The suite itself looks after each of its cases; this looks at all of them together.
fn nothing_is_left() -> Result<()> {
    let domains = host::read(virsh().args(["list", "--all", "--name"]))?;
    let volumes = host::read(virsh().args(["vol-list", NAME]))?;
    let volumes = volumes.lines().filter_map(|line| line.split_whitespace().next());
    let left: Vec<&str> = domains
        .split_whitespace()
        .chain(volumes.filter(|volume| ![IMAGE, MACHINE_IMAGE, CLOUD_INIT_IMAGE, POSTGRES_IMAGE].contains(volume)))
        .collect();
    if !left.is_empty() {
        bail!("the suite has left {}", left.join(", "));
    }
    eprintln!("nothing was left behind");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_is_a_boot_sector() {
        let image = image();
        assert_eq!((&image[510..512], image.len()), (&[0x55, 0xaa][..], 1 << 20));
    }
}
