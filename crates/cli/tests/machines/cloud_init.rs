//! A stock image: cloud-init sets the machine up and takes the agent from the seed disk, and etcd is fetched as a release.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::lab;
use crate::common::releases::{self, Server};
use crate::ground::{Machines, NETWORK, POOL, Wanted, chapter, virsh};

const VERSION: &str = "3.5.30";
/// The name that the lab gives to this image in its pool.
const IMAGE: &str = "cloud-init.qcow2";
/// The lab's host on its network.
const HOST: &str = "10.77.0.1";
const ADDRESS: &str = "10.77.201.1";
const PATIENCE: Duration = Duration::from_secs(300);

const WANTED: Wanted = Wanted { name: "stock", members: 1, member: |_| String::new(), libvirt: "", etcd: "" };

fn spec(machines: &Machines, archive: &str, sha256: &str) -> String {
    format!(
        "quorate: 1
clusters:
  - name: {}
    provider:
      libvirt:
        pool: {POOL}
        image: {{volume: {IMAGE}}}
        vcpus: 1
        memory: 768MiB
        acceleration: emulation
        admin: {{ssh_keys: [\"{}\"]}}
    members:
      - name: etcd-1
        libvirt:
          interfaces: [{{network: {NETWORK}, address: {ADDRESS}, prefix: 16, gateway: {HOST}, dns: [{HOST}]}}]
    etcd: {{version: {VERSION}, binary: {{archive: \"{archive}\", sha256: {sha256}}}, heartbeat: 500ms, election: 5s}}
    host: {{install_dependencies: false}}
",
        machines.name,
        machines.admin_key(),
    )
}

#[test]
#[ignore = "boots machines: `cargo xtask lab libvirt` runs it"]
fn a_machine_of_a_stock_image_becomes_a_member_by_way_of_cloud_init() {
    let machines = Machines::new(&WANTED);
    let (archive, sum) = releases::archive(&machines.sandbox, VERSION, &lab(VERSION).join("etcd"));
    let server = Server::at(HOST, BTreeMap::from([(String::from("/etcd.tar.gz"), archive)]));
    let url = format!("{}/etcd.tar.gz", server.base);
    let apply = |sum: &str| {
        machines.sandbox.file("cluster.yaml", &spec(&machines, &url, sum));
        machines.apply()
    };
    let on = |line: &str| machines.on(ADDRESS, line).ok().stdout.trim().to_owned();
    chapter("an archive that is not the one meant is told, and not started", || {
        let other = "0".repeat(64);
        let told = apply(&other).expect(3).text();
        for word in [&format!("has the SHA-256 {sum}"), &format!("expected is {other}"), "remedy:"] {
            assert!(told.contains(word), "{word} is not in {told}");
        }
    });
    chapter("the same machine, with the right one", || {
        apply(&sum).ok();
        let status = machines.sandbox.quorate(&["status", machines.name, "--output", "json"]).ok().json();
        assert_eq!(status["verdict"], "healthy", "{status:#}");
        machines.sandbox.etcdctl(VERSION, machines.name, &["put", "kept", "as it was"]).ok();
    });
    chapter("cloud-init had no complaint, and the machine is what the spec says", || {
        assert_eq!(on("cloud-init status --wait"), "status: done");
        let checked = on("cloud-init schema --system 2>&1");
        assert!(checked.contains("Valid cloud-config"), "{checked}");
        assert_eq!(on("hostname"), "etcd-1");
        let addresses = on("ip -brief -4 address show dev quorate0");
        assert!(addresses.contains(&format!("{ADDRESS}/16")), "{addresses}");
        assert!(on("ip route").contains(&format!("default via {HOST}")));
        assert_eq!(on("etcdctl version | head -1 >/dev/null; systemctl is-active etcd"), "active");
    });
    chapter("it boots again, and is still the same", || {
        let taken = || on("stat --format %Y:%i /usr/lib/quorate/quorate");
        let (program, boot) = (taken(), on("cat /proc/sys/kernel/random/boot_id"));
        virsh(&["reboot", &machines.domain("etcd-1")]).ok();
        let begun = Instant::now();
        let again = || {
            let said = machines.on(ADDRESS, "cat /proc/sys/kernel/random/boot_id");
            said.code == Some(0) && said.stdout.trim() != boot
        };
        let healthy = || {
            let get = ["get", "kept", "--print-value-only"];
            machines.sandbox.etcdctl(VERSION, machines.name, &get).stdout.trim() == "as it was"
        };
        while !(again() && healthy()) {
            assert!(begun.elapsed() < PATIENCE, "it is not back");
            sleep(Duration::from_secs(1));
        }
        assert_eq!(taken(), program, "the program is taken once");
        assert_eq!(on("pgrep --count --exact quorate"), "1");
        apply(&sum).ok();
    });
    chapter("it is destroyed, and nothing is left", || machines.destroy());
}
