//! What a boot leaves out. A member needs disks, network and a console. Everything else that a system usually prepares takes longer
//! than that, and under software emulation longer than etcd itself.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::ImageError;
use super::system::put;

/// A user who needs one of these mounts it or loads its module manually.
const UNITS: &[&str] = &[
    "dev-hugepages.mount",
    "dev-mqueue.mount",
    "modprobe@.service",
    "proc-sys-fs-binfmt_misc.automount",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-ask-password-console.path",
    "systemd-ask-password-wall.path",
    "systemd-initctl.socket",
    "systemd-network-generator.service",
    "systemd-pstore.service",
];
/// Generators for disks, passwords and scripts that the image does not have. Those for fstab and consoles stay.
const GENERATORS: &[&str] = &[
    "cryptsetup",
    "debug",
    "gpt-auto",
    "hibernate-resume",
    "integritysetup",
    "rc-local",
    "run",
    "system-update",
    "sysv",
    "veritysetup",
];
/// Drivers that are loaded for the processor.
const MODULES: &[&str] = &["acpi_cpufreq", "kvm_amd", "kvm_intel", "powernow_k8"];
/// The devices that are detected at boot: those for disks, networks and the power button.
const DEVICES: &[&str] = &["acpi", "block", "input", "net", "nvme", "pci", "scsi", "usb", "virtio", "virtio-ports"];
/// And the consoles, without the many unused ones.
const CONSOLES: &[&str] = &["ttyS[0-3]", "ttyAMA*", "hvc*"];

/// Services that a member depends on start before logins, ssh keys and similar ones when the processor is slow.
const FIRST: &[&str] = &["systemd-networkd.service", "systemd-udevd.service"];

pub(super) fn make(root: &Path) -> Result<(), ImageError> {
    for unit in UNITS {
        mask(root, &format!("etc/systemd/system/{unit}"))?;
    }
    for generator in GENERATORS {
        mask(root, &format!("etc/systemd/system-generators/systemd-{generator}-generator"))?;
    }
    let modules: String = MODULES.iter().map(|module| format!("blacklist {module}\n")).collect();
    put(root, "etc/modprobe.d/quorate.conf", modules.as_bytes(), 0o644)?;
    put(root, "etc/systemd/system/systemd-udev-trigger.service.d/quorate.conf", trigger().as_bytes(), 0o644)?;
    for unit in FIRST {
        let below = format!("etc/systemd/system/{unit}.d/quorate.conf");
        put(root, &below, b"[Service]\nCPUWeight=1000\n", 0o644)?;
    }
    // Users, library paths and similar settings are those of the packages.
    for place in ["etc/.updated", "var/.updated"] {
        put(root, place, b"", 0o644)?;
    }
    Ok(())
}

fn mask(root: &Path, below: &str) -> Result<(), ImageError> {
    let path = root.join(below);
    let parent = path.parent().unwrap_or(root);
    fs::create_dir_all(parent).map_err(ImageError::file("make", parent))?;
    let _ = fs::remove_file(&path);
    symlink("/dev/null", &path).map_err(ImageError::file("link", &path))
}

fn trigger() -> String {
    let devices: String = DEVICES.iter().map(|kind| format!(" --subsystem-match={kind}")).collect();
    let consoles: String = CONSOLES.iter().map(|name| format!(" --sysname-match={name}")).collect();
    format!(
        "[Service]\n\
         ExecStart=\n\
         ExecStart=-udevadm trigger --action=add --prioritized-subsystem=net,block{devices}\n\
         ExecStart=-udevadm trigger --action=add --subsystem-match=tty{consoles}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_networks_and_consoles_are_detected() {
        let text = trigger();
        for kind in ["block", "net", "pci", "tty", "virtio-ports"] {
            let words: Vec<&str> = text.split_whitespace().collect();
            assert!(words.contains(&format!("--subsystem-match={kind}").as_str()), "{text}");
        }
        assert!(text.ends_with(
            "--subsystem-match=tty --sysname-match=ttyS[0-3] --sysname-match=ttyAMA* --sysname-match=hvc*\n"
        ));
    }

    #[test]
    fn omitted_units_are_masked_even_if_a_package_enabled_them() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), "etc/systemd/system/systemd-pstore.service", b"[Unit]\n", 0o644).unwrap();
        make(root.path()).unwrap();
        let link = fs::read_link(root.path().join("etc/systemd/system/systemd-pstore.service")).unwrap();
        assert_eq!(link, Path::new("/dev/null"));
        let generators = fs::read_dir(root.path().join("etc/systemd/system-generators")).unwrap();
        assert_eq!(generators.count(), GENERATORS.len());
    }
}
