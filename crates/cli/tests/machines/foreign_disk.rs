//! A user-provided data disk with other content than etcd's: the machine reports it and changes nothing on it.

use std::fs;
use std::process::Command;

use crate::common::{eventually, signal};
use crate::ground::{Machines, NETWORK, POOL, Wanted, chapter, virsh};

const VOLUME: &str = "somebody-elses.img";
const WANTED: Wanted = Wanted {
    name: "foreign",
    members: 1,
    member: |_| {
        format!(
            "libvirt: {{interfaces: [{{network: {NETWORK}, address: 10.77.202.11, prefix: 16}}], data_volume: {VOLUME}}}"
        )
    },
    libvirt: "",
    etcd: "",
};

/// Removed at the end, since nobody else may.
struct Brought;

impl Drop for Brought {
    fn drop(&mut self) {
        virsh(&["vol-delete", "--pool", POOL, VOLUME]);
    }
}

#[test]
#[ignore = "boots machines: `cargo xtask lab libvirt` runs it"]
fn a_data_disk_with_something_else_on_it_is_refused_and_untouched() {
    let machines = Machines::new(&WANTED);
    let content = machines.sandbox.path().join("content.img");
    let made = Command::new("mkfs.vfat").args(["-C", "-n", "photos"]).arg(&content).arg("65536").output();
    assert!(made.expect("mkfs.vfat runs").status.success());
    virsh(&["vol-create-as", POOL, VOLUME, "64MiB", "--format", "raw"]).ok();
    let _brought = Brought;
    virsh(&["vol-upload", "--pool", POOL, VOLUME, &content.display().to_string()]).ok();
    let before = downloaded(&machines);
    chapter("the machine tells on its console what it found, and does not go on", || {
        let mut applying = machines.sandbox.spawn(&["apply", "--yes", "cluster.yaml"]);
        let told = || machines.console("etcd-1").contains("something of the kind vfat");
        eventually("the console tells of the foreign disk", 120, told);
        // It would wait for an agent that does not come.
        signal(applying.id(), "TERM");
        let _ = applying.wait();
    });
    chapter("everything is destroyed but the disk that was brought, which is as it was", || {
        machines.destroy();
        assert!(downloaded(&machines) == before, "the brought disk has changed");
    });
}

fn downloaded(machines: &Machines) -> Vec<u8> {
    let file = machines.sandbox.path().join("downloaded.img");
    virsh(&["vol-download", "--pool", POOL, VOLUME, &file.display().to_string()]).ok();
    fs::read(file).expect("what was downloaded")
}
