//! The kernel modules of the initial file system: drivers for the disks and networks of virtual machines and for the root file system, with
//! all modules that they depend on. These dependencies differ between kernel releases, so the order comes from `modules.dep`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use super::ImageError;
use super::tools::run;

/// Those that are built into the kernel are not found and not needed.
const DRIVERS: [&str; 9] = [
    "virtio_pci",
    "virtio_mmio",
    "virtio_blk",
    "sd_mod",
    "virtio_scsi",
    "virtio_net",
    "crc32c_generic",
    "libcrc32c",
    "ext4",
];
/// Disks of EC2. udev finds the drivers of its networks in the root file system.
const OF_EC2: &str = "nvme";

/// A module as it is loaded.
pub(super) struct Module {
    pub(super) name: String,
    pub(super) content: Vec<u8>,
}

/// The modules of the kernel in this directory, in the order in which they are loaded.
pub(super) fn read(directory: &Path, ec2: bool) -> Result<Vec<Module>, ImageError> {
    let path = directory.join("modules.dep");
    let table = fs::read_to_string(&path).map_err(ImageError::file("read", &path))?;
    let load = |path: &str| Ok(Module { name: name_of(path), content: content(&directory.join(path))? });
    let wanted: Vec<&str> = DRIVERS.into_iter().chain(ec2.then_some(OF_EC2)).collect();
    in_order(&table, &wanted).into_iter().map(load).collect()
}

/// The paths of these modules and of all that they need, each after those that it needs.
fn in_order<'a>(table: &'a str, wanted: &[&str]) -> Vec<&'a str> {
    let lines = table.lines().filter_map(|line| line.split_once(':'));
    let needs: BTreeMap<&str, &str> = lines.map(|(module, needed)| (module.trim(), needed)).collect();
    let (mut ordered, mut begun) = (Vec::new(), BTreeSet::new());
    for wanted in wanted {
        if let Some(module) = needs.keys().find(|path| name_of(path) == *wanted) {
            add(module, &needs, &mut begun, &mut ordered);
        }
    }
    ordered
}

fn add<'a>(
    module: &'a str,
    needs: &BTreeMap<&'a str, &'a str>,
    begun: &mut BTreeSet<&'a str>,
    ordered: &mut Vec<&'a str>,
) {
    if !begun.insert(module) {
        return;
    }
    for needed in needs.get(module).into_iter().flat_map(|needed| needed.split_whitespace()) {
        add(needed, needs, begun, ordered);
    }
    ordered.push(module);
}

/// As the kernel calls it.
fn name_of(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

/// busybox loads no compressed module.
fn content(path: &Path) -> Result<Vec<u8>, ImageError> {
    if path.extension().is_none_or(|ending| ending != "xz") {
        return fs::read(path).map_err(ImageError::file("read", path));
    }
    let plain = path.with_extension("");
    run(Command::new("xz").args(["--decompress", "--keep", "--force"]).arg(path))?;
    let content = fs::read(&plain).map_err(ImageError::file("read", &plain))?;
    fs::remove_file(&plain).map_err(ImageError::file("remove", &plain))?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In Linux 6.1.192 `virtio` needs `virtio_ring`, in 6.1.176 it was the other way round.
    #[test]
    fn each_module_follows_those_that_it_needs() {
        let newer = "d/virtio.ko: d/virtio_ring.ko\nd/virtio_ring.ko:\nd/virtio_blk.ko: d/virtio.ko d/virtio_ring.ko\n";
        let older = "d/virtio.ko:\nd/virtio_ring.ko: d/virtio.ko\nd/virtio_blk.ko: d/virtio_ring.ko d/virtio.ko\n";
        assert_eq!(in_order(newer, &["virtio_blk"]), ["d/virtio_ring.ko", "d/virtio.ko", "d/virtio_blk.ko"]);
        assert_eq!(in_order(older, &["virtio_blk"]), ["d/virtio.ko", "d/virtio_ring.ko", "d/virtio_blk.ko"]);
    }

    #[test]
    fn one_that_is_built_in_is_left_out_and_none_comes_twice() {
        let table = "a/one-two.ko.xz: a/base.ko\na/three.ko: a/base.ko\na/base.ko:\n";
        assert_eq!(in_order(table, &["ext4", "one_two", "three"]), ["a/base.ko", "a/one-two.ko.xz", "a/three.ko"]);
    }

    #[test]
    fn a_table_that_leads_in_circles_comes_to_an_end() {
        assert_eq!(in_order("a.ko: b.ko\nb.ko: a.ko\n", &["a"]).len(), 2);
    }

    #[test]
    fn modules_are_read_with_their_names() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("kernel")).unwrap();
        fs::write(directory.path().join("kernel/virtio_blk.ko"), "code").unwrap();
        fs::write(directory.path().join("kernel/nvme.ko"), "other code").unwrap();
        fs::write(directory.path().join("modules.dep"), "kernel/virtio_blk.ko:\nkernel/nvme.ko:\n").unwrap();
        let all = read(directory.path(), false).unwrap();
        assert_eq!((all[0].name.as_str(), all[0].content.as_slice()), ("virtio_blk", b"code".as_slice()));
        let names =
            |ec2| read(directory.path(), ec2).unwrap().into_iter().map(|module| module.name).collect::<Vec<_>>();
        assert_eq!(
            (names(false), names(true)),
            (vec![String::from("virtio_blk")], vec![String::from("virtio_blk"), String::from("nvme")])
        );
    }
}
