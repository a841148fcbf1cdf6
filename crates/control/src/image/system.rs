//! The system in the image: Debian's packages, and a few files of quorate.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use quorate_agent::boot::With;

use super::tools::run;
use super::{Format, ImageError, Manifest, Options, Package, lean, manifest, postgres};

/// What every machine needs.
const BASE: &[&str] =
    &["systemd-sysv", "udev", "dbus", "iproute2", "netbase", "hostname", "openssh-server", "sudo", "ca-certificates"];
/// And one that is not a container.
const HARDWARE: &[&str] = &["linux-image-cloud-amd64", "kmod", "e2fsprogs", "busybox-static", "qemu-guest-agent"];
/// Everything that a member needs, so nothing is downloaded when a machine boots.
const MEMBER: &[&str] = &["etcd-server", "etcd-client", "prometheus-node-exporter", "nftables"];
/// A container has the clock of its host.
const CLOCK: &[&str] = &["chrony"];
/// For machines that another tool sets up.
const CLOUD_INIT: &[&str] = &["cloud-init"];

/// The agent starts these when a cluster wants them, or they are useless on a machine that is replaced rather than maintained.
const NOT_AT_BOOT: &[&str] = &[
    "etcd.service",
    "prometheus-node-exporter.service",
    "nftables.service",
    "postgresql.service",
    "haproxy.service",
    "pgbouncer.service",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "prometheus-node-exporter-apt.timer",
    "prometheus-node-exporter-ipmitool-sensor.timer",
    "prometheus-node-exporter-mellanox-hca-temp.timer",
    "prometheus-node-exporter-nvme.timer",
    "prometheus-node-exporter-smartmon.timer",
];

const SSH_KEYS_UNIT: &str = "\
[Unit]
Description=Makes this machine's own ssh key
ConditionPathExists=!/etc/ssh/ssh_host_ed25519_key
Before=ssh.service

[Service]
Type=oneshot
ExecStart=/usr/bin/ssh-keygen -q -t ed25519 -N \"\" -f /etc/ssh/ssh_host_ed25519_key

[Install]
WantedBy=multi-user.target
";

/// Installs the packages below `root`, and says which they are.
pub(super) fn install(options: &Options, root: &Path, scratch: &Path) -> Result<Vec<Package>, ImageError> {
    let listing = scratch.join("packages");
    let is_disk = options.format == Format::Disk;
    let own = if options.program.is_some() { MEMBER } else { CLOUD_INIT };
    let clock = if options.program.is_some() && is_disk { CLOCK } else { &[] };
    let further = options.packages.iter().map(String::as_str);
    let hardware = if is_disk { HARDWARE } else { &[] };
    let packages = BASE.iter().chain(hardware).chain(own).chain(clock).copied().chain(further);
    let of_postgres = options.postgres.map(postgres::packages).unwrap_or_default();
    let packages: Vec<&str> = packages.chain(of_postgres.iter().map(String::as_str)).collect();
    let list = "dpkg-query -W -f '${Package}=${Version}\\n' | xargs apt-cache show --no-all-versions";
    let mut command = Command::new("mmdebstrap");
    command.args(["--mode=root", "--variant=minbase", "--quiet"]);
    command.arg(format!("--include={}", packages.join(",")));
    for place in ["man", "locale", "doc", "info", "lintian"] {
        command.arg(format!("--dpkgopt=path-exclude=/usr/share/{place}/*"));
    }
    command.arg("--aptopt=Apt::Install-Recommends \"0\"");
    if options.postgres.is_some() {
        command.arg(format!("--essential-hook={}", postgres::NO_FIRST_CLUSTER));
    }
    // While apt still knows their sources.
    command.arg(format!("--customize-hook=chroot \"$1\" sh -c \"$QUORATE_LIST\" > '{}'", listing.display()));
    command.env("QUORATE_LIST", list);
    command.arg(&options.suite).arg(root);
    command.args(options.sources.as_deref());
    run(&mut command)?;
    let text = fs::read_to_string(&listing).map_err(ImageError::file("read", &listing))?;
    let found = manifest::packages_in(&text);
    if found.is_empty() {
        return Err(ImageError::Incomplete { what: "packages", why: String::from("apt lists none of them") });
    }
    Ok(found)
}

pub(super) fn furnish(root: &Path, options: &Options, manifest: &Manifest) -> Result<(), ImageError> {
    let put = |below: &str, content: &[u8], mode: u32| put(root, below, content, mode);
    match &options.program {
        Some(program) => put_agent(root, program, options.with)?,
        // There are no other languages in the image.
        None => put("etc/cloud/cloud.cfg.d/10-locale.cfg", b"locale: C.UTF-8\n", 0o644)?,
    }
    if options.format == Format::Disk {
        let fstab = format!("LABEL={} / ext4 noatime,x-systemd.growfs 0 1\n", super::disk::LABEL);
        put("etc/fstab", fstab.as_bytes(), 0o644)?;
    }
    put("etc/quorate-image", format!("{}\n", manifest.version).as_bytes(), 0o644)?;
    put("etc/hostname", b"machine\n", 0o644)?;
    // Created by each machine.
    put("etc/machine-id", b"", 0o444)?;
    put("etc/resolv.conf", b"", 0o644)?;
    remove_matching(&root.join("etc/ssh"), |name| name.starts_with("ssh_host_"))?;
    remove_matching(&root.join("boot"), |name| name.starts_with("initrd."))?;
    let mut systemctl = Command::new("chroot");
    systemctl.arg(root).args(["systemctl", "--quiet", "enable", "systemd-networkd.service"]);
    run(&mut systemctl)?;
    disable(root)?;
    // An image with cloud-init is a standard cloud image.
    if options.program.is_some() { lean::make(root) } else { Ok(()) }
}

/// With it the machine sets itself up, including its ssh key, which cloud-init does elsewhere.
fn put_agent(root: &Path, program: &Path, with: With) -> Result<(), ImageError> {
    let program = fs::read(program).map_err(ImageError::file("read", program))?;
    put(root, quorate_agent::boot::PROGRAM, &program, 0o755)?;
    if let Some((below, text)) = quorate_agent::boot::dhcp_network(with) {
        put(root, below, text.as_bytes(), 0o644)?;
    }
    let mut units = quorate_agent::boot::image_units(with);
    units.push((String::from("etc/systemd/system/quorate-ssh-keys.service"), SSH_KEYS_UNIT.to_owned()));
    for (below, text) in units {
        put(root, &below, text.as_bytes(), 0o644)?;
        enable(root, &below)?;
    }
    Ok(())
}

fn disable(root: &Path) -> Result<(), ImageError> {
    let is_there = |unit: &str| {
        ["etc/systemd/system", "lib/systemd/system", "usr/lib/systemd/system"]
            .iter()
            .any(|directory| root.join(directory).join(unit).exists())
    };
    let units: Vec<&str> = NOT_AT_BOOT.iter().copied().filter(|unit| is_there(unit)).collect();
    let mut command = Command::new("chroot");
    run(command.arg(root).args(["systemctl", "--quiet", "disable"]).args(units)).map(drop)
}

fn enable(root: &Path, unit: &str) -> Result<(), ImageError> {
    let name = Path::new(unit).file_name().unwrap_or_default();
    let wants = root.join("etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants).map_err(ImageError::file("make", &wants))?;
    let link = wants.join(name);
    let _ = fs::remove_file(&link);
    symlink(Path::new("..").join(name), &link).map_err(ImageError::file("link", &link))
}

pub(super) fn put(root: &Path, below: &str, content: &[u8], mode: u32) -> Result<(), ImageError> {
    let path = root.join(below);
    let parent = path.parent().unwrap_or(root);
    fs::create_dir_all(parent).map_err(ImageError::file("make", parent))?;
    // A link there may point outside of the image.
    let _ = fs::remove_file(&path);
    let written = fs::write(&path, content).and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)));
    written.map_err(ImageError::file("write", &path))
}

fn remove_matching(directory: &Path, is_one: impl Fn(&str) -> bool) -> Result<(), ImageError> {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(&is_one) {
            fs::remove_file(entry.path()).map_err(ImageError::file("remove", entry.path()))?;
        }
    }
    Ok(())
}
