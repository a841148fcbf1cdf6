//! The initial file system of a boot: busybox, the modules of virtio disks and networks, and a script that finds the root disk by its
//! label. It does nothing else, so it takes a fraction of a second even under software emulation.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::modules::{self, Module};
use super::tools::run;
use super::{ImageError, disk, system};

pub(super) const INITRD: &str = "boot/initrd.img";

/// Puts it into the image and returns the kernel's path below the root.
pub(super) fn put(root: &Path, ec2: bool) -> Result<String, ImageError> {
    let release = only_name(&root.join("lib/modules"), "kernel", |_| true)?;
    let kernel = only_name(&root.join("boot"), "kernel", |name| name.starts_with("vmlinuz-"))?;
    let busybox =
        ["bin/busybox", "usr/bin/busybox"].map(|below| root.join(below)).into_iter().find(|path| path.exists());
    let busybox = busybox.ok_or_else(|| ImageError::Incomplete {
        what: "busybox",
        why: String::from("it is in neither bin nor usr/bin"),
    })?;
    let mut archive = Archive::default();
    for directory in ["bin", "modules", "dev", "proc", "sys", "root"] {
        archive.add(directory, 0o040_755, &[]);
    }
    let program = fs::read(&busybox).map_err(ImageError::file("read", &busybox))?;
    archive.add("bin/busybox", 0o100_755, &program);
    let mut loaded = Vec::new();
    for Module { name, content } in modules::read(&root.join("lib/modules").join(&release), ec2)? {
        archive.add(&format!("modules/{name}.ko"), 0o100_644, &content);
        loaded.push(name);
    }
    archive.add("init", 0o100_755, script(&loaded).as_bytes());
    system::put(root, INITRD, &archive.end(), 0o644)?;
    compress(&root.join(INITRD))?;
    Ok(format!("boot/{kernel}"))
}

/// Also because the boot loader cannot read a file with holes, which is what long zeros become in the image.
fn compress(file: &Path) -> Result<(), ImageError> {
    run(Command::new("gzip").args(["--no-name", "--best", "--force"]).arg(file))?;
    let mut compressed = file.as_os_str().to_owned();
    compressed.push(".gz");
    fs::rename(&compressed, file).map_err(ImageError::file("put in place", file))
}

/// If the root disk does not appear, it says so on the console and reboots.
fn script(modules: &[String]) -> String {
    let label = disk::LABEL;
    format!(
        "#!/bin/busybox sh\n\
         B=/bin/busybox\n\
         $B mount -t devtmpfs dev /dev\n\
         $B mount -t proc proc /proc\n\
         $B mount -t sysfs sys /sys\n\
         for m in {modules}; do $B insmod /modules/$m.ko 2>/dev/null; done\n\
         n=0\n\
         while ! disk=$($B findfs LABEL={label} 2>/dev/null); do\n\
         \x20 n=$((n+1))\n\
         \x20 if [ $n -gt 1500 ]; then echo 'no disk with the label {label}: the machine starts again'; $B reboot -f; fi\n\
         \x20 $B usleep 20000\n\
         done\n\
         $B mount -t ext4 -o rw,noatime $disk /root\n\
         $B umount /sys\n\
         $B umount /proc\n\
         $B mount --move /dev /root/dev\n\
         exec $B switch_root /root /sbin/init\n",
        modules = modules.join(" "),
    )
}

fn only_name(directory: &Path, what: &'static str, is_one: impl Fn(&str) -> bool) -> Result<String, ImageError> {
    let names = fs::read_dir(directory).map_err(ImageError::file("list", directory))?.flatten();
    let mut names: Vec<String> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| is_one(name));
    match &names[..] {
        [name] => Ok(name.clone()),
        _ => Err(ImageError::Incomplete { what, why: format!("{} holds {names:?}", directory.display()) }),
    }
}

/// A cpio archive as the kernel unpacks it ("newc").
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    count: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.count += 1;
        self.entry(name, self.count, mode, content);
    }

    fn entry(&mut self, name: &str, number: u32, mode: u32, content: &[u8]) {
        let (size, name_size) = (content.len() as u32, name.len() as u32 + 1);
        // Number, mode, owner, group, links, time, size, four of devices, length of the name, checksum.
        let fields = [number, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_one_that_cpio_reads() {
        let mut archive = Archive::default();
        archive.add("bin", 0o040_755, &[]);
        archive.add("bin/a", 0o100_755, b"hello");
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.cpio");
        fs::write(&file, archive.end()).unwrap();
        let output = Command::new("sh").arg("-c").arg(format!("cpio -t < {}", file.display())).output().unwrap();
        assert!(output.status.success(), "cpio is needed: `cargo xtask test` brings it; {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "bin\nbin/a\n");
    }

    #[test]
    fn it_is_compressed_in_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("initrd.img");
        fs::write(&file, [0; 100_000]).unwrap();
        compress(&file).unwrap();
        let compressed = fs::read(&file).unwrap();
        assert!(compressed.starts_with(&[0x1f, 0x8b]) && compressed.len() < 4096, "{} bytes", compressed.len());
    }

    #[test]
    fn the_script_is_one_that_a_shell_reads() {
        let text = script(&["virtio", "virtio_blk"].map(String::from));
        assert!(text.contains("for m in virtio virtio_blk; do"));
        assert!(Command::new("sh").args(["-n", "-c", &text]).status().unwrap().success(), "{text}");
    }
}
