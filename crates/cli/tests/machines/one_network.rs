//! The essential operations of a cluster of machines, on one libvirt network.

use crate::ground::{Machines, NETWORK, Wanted, chapter, incarnation, virsh};

fn address(member: usize) -> String {
    format!("10.77.200.{}", 10 + member)
}

const WANTED: Wanted = Wanted {
    name: "one",
    members: 3,
    member: |member| {
        format!("libvirt: {{interfaces: [{{network: {NETWORK}, address: {}, prefix: 16}}]}}", address(member))
    },
    libvirt: "",
    etcd: "",
};

#[test]
#[ignore = "boots machines: `cargo xtask lab libvirt` runs it"]
fn three_machines_are_created_one_is_killed_one_is_replaced_and_all_are_destroyed() {
    let machines = Machines::new(&WANTED);
    chapter("three machines, from apply to healthy", || machines.apply().ok());
    chapter("etcdctl on the host reads and writes, with a certificate and not without", || {
        machines.assert_healthy();
        machines.etcdctl(&["put", "kept", "as it was"]).ok();
        let mut anonymous = machines.sandbox.environment(machines.name);
        assert!(anonymous["ETCDCTL_ENDPOINTS"].contains(&format!("https://{}:2379", address(1))));
        anonymous.retain(|name, _| !["ETCDCTL_CERT", "ETCDCTL_KEY"].contains(&name.as_str()));
        machines.etcdctl_with(&anonymous, &["get", "kept"]).fails();
        let users = machines.etcdctl(&["user", "list"]).ok().stdout;
        assert_eq!(users.trim(), "root", "authentication is on");
    });
    chapter("a root shell on a machine finds etcdctl ready", || {
        let said = machines.on(&address(1), "etcdctl get kept --print-value-only").ok().stdout;
        assert_eq!(said.trim(), "as it was");
    });
    chapter("a machine is killed and undefined, then apply", || {
        let domain = machines.domain("etcd-2");
        virsh(&["destroy", &domain]).ok();
        virsh(&["undefine", &domain]).ok();
        machines.apply().ok();
        machines.assert_healthy();
        assert_eq!(incarnation(&machines.sandbox.ledger(machines.name), "etcd-2"), 2);
        machines.assert_reads("kept", "as it was");
    });
    chapter("a machine is replaced", || {
        machines.sandbox.quorate(&["replace", "--yes", machines.name, "etcd-3"]).ok();
        machines.assert_healthy();
        let expected = ["etcd-1", "etcd-2.2", "etcd-3.2"].map(|machine| machines.domain(machine));
        let mut found = machines.domains();
        found.sort();
        assert_eq!(found, expected);
        machines.assert_reads("kept", "as it was");
    });
    chapter("everything is destroyed, and nothing is left", || machines.destroy());
}
