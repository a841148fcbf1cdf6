//! libvirtd without systemd, in namespaces of its own for processes, mounts and network: its directories are in memory, its
//! bridges are on no other network, and when the first process of the namespace ends, all the others do and nothing is left.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::host::{self, Need};

const NEEDS: [Need; 12] = [
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
];

const URI: &str = "qemu:///system";
/// Where the suite looks for it, and the names that it expects there.
const URI_VARIABLE: &str = "QUORATE_LAB_LIBVIRT_URI";
const NAME: &str = "quorate-lab";
const IMAGE: &str = "boot.img";
const MACVTAP: &str = "quorate-lab0";
const DIRECTORIES: [&str; 5] =
    ["/etc/libvirt", "/run/libvirt", "/var/cache/libvirt", "/var/lib/libvirt", "/var/log/libvirt"];
const POOL: &str = "/var/lib/libvirt/images";
/// Without it `virsh define` takes minutes where KVM opens and does not work.
const QEMU_CONF: &str =
    "user = \"root\"\ngroup = \"root\"\nsecurity_driver = \"none\"\nremember_owner = 0\ncgroup_controllers = []\n";
/// The filter that runs only those.
const REFUSALS: &str = "refusals";
const PATIENCE: Duration = Duration::from_secs(30);
/// What machines of the suite say on their console before they rest.
const GREETING: &str = "quorate lab\r\n";

pub fn run(filter: Option<&str>) -> Result<()> {
    if fs::metadata("/proc/self").context("cannot tell which user this is")?.uid() != 0 {
        bail!("libvirt's lab needs root: its namespaces are made with `unshare` and `mount`");
    }
    host::install_missing(&NEEDS)?;
    // Inside there is no network.
    for (mut suite, _) in suites(filter)? {
        host::run(suite.arg("--no-run"))?;
    }
    let this = std::env::current_exe().context("cannot tell where this program lies")?;
    let mut lab = host::tethered("unshare");
    lab.args(["--mount", "--net", "--pid", "--mount-proc", "--fork", "--kill-child=KILL"]);
    // The first process must take leave of others' children, or libvirt waits for machines that have long ended.
    lab.args(["sh", "-c", "\"$@\"; exit $?", "sh"]).arg(this).args(["lab", "libvirt", "--inside"]).args(filter);
    host::run(&mut lab)
}

/// What every provider must do, and what the command line says where libvirt cannot do as the spec asks; with the words that choose
/// the tests in each.
fn suites(filter: Option<&str>) -> Result<Vec<(Command, &str)>> {
    let suite = |package: &str, test: &str| -> Result<Command> {
        let mut cargo = host::cargo()?;
        cargo.args(["test", "--locked", "--offline", "--package", package, "--test", test]);
        Ok(cargo)
    };
    let conformance = (suite("quorate-control", "conformance")?, filter.unwrap_or("libvirt::"));
    let refusals = (suite("quorate", "machine_refusals")?, "--ignored");
    Ok(match filter {
        None => vec![conformance, refusals],
        Some(REFUSALS) => vec![refusals],
        Some(_) => vec![conformance],
    })
}

pub fn inside(filter: Option<&str>) -> Result<()> {
    prepare_directories()?;
    host::run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    for daemon in ["virtlogd", "libvirtd"] {
        host::run(Command::new(daemon).arg("--daemon"))?;
    }
    wait_for_libvirt()?;
    make_pool()?;
    make_network()?;
    for (mut suite, chosen) in suites(filter)? {
        host::run(suite.env(URI_VARIABLE, URI).args(["--", chosen]))?;
    }
    nothing_is_left()
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
    fs::write("/etc/libvirt/qemu.conf", QEMU_CONF).context("cannot write qemu.conf")
}

fn virsh() -> Command {
    let mut virsh = Command::new("virsh");
    virsh.args(["--quiet", "--connect", URI]);
    virsh
}

fn wait_for_libvirt() -> Result<()> {
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
    host::read(virsh().args(["pool-define-as", NAME, "dir", "--target", POOL]))?;
    host::read(virsh().args(["pool-start", NAME])).map(drop)
}

fn make_network() -> Result<()> {
    let network = format!(
        "<network><name>{NAME}</name><bridge name='quorate-lab' stp='off' delay='0'/>\
         <ip address='10.77.0.1' netmask='255.255.0.0'/></network>"
    );
    let mut define = virsh().args(["net-define", "/dev/stdin"]).stdin(Stdio::piped()).spawn().context("no virsh")?;
    define.stdin.take().context("virsh reads nothing")?.write_all(network.as_bytes())?;
    if !define.wait()?.success() {
        bail!("the lab's network cannot be defined");
    }
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
    let left: Vec<&str> = domains.split_whitespace().chain(volumes.filter(|volume| *volume != IMAGE)).collect();
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
