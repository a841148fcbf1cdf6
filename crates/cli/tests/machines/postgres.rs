//! PostgreSQL, and the etcd that Patroni keeps its state in, on virtual machines with systemd, data volumes and a watchdog. When the Patroni of
//! the primary hangs, nobody renews its lease, and nobody stops its PostgreSQL: the watchdog resets the machine before another member can
//! become the primary. No commit that was confirmed is lost.

use std::collections::BTreeMap;

use crate::common::{OLDEST, eventually};
use crate::ground::{Machines, NETWORK, POOL, Wanted, chapter, psql};
use crate::writer::while_storing;

const NAME: &str = "pg";
/// Its machines have names that begin like those of the other cluster.
const ETCD: &str = "pg-dcs";
/// Has etcd too.
const IMAGE: &str = "postgres.qcow2";
const MEMBERS: [&str; 3] = ["pg-1", "pg-2", "pg-3"];
/// An emulated machine takes long to log somebody in, in seconds.
const CONNECTING: u32 = 60;
/// For Patroni to lose its lease, for the machine to reset and boot, in seconds.
const FAILING_OVER: u64 = 600;

/// Written over by another spec: only what is shared by all stories of libvirt is taken from it.
const WANTED: Wanted = Wanted { name: NAME, members: 1, member: |_| String::new(), libvirt: "", etcd: "" };

fn address(member: &str) -> String {
    let number = MEMBERS.iter().position(|name| *name == member).map_or(0, |at| at + 1);
    format!("10.77.207.{}", 10 + number)
}

fn write_spec(machines: &Machines) {
    let member = |name: &str| {
        let to = address(name);
        format!(
            "      - {{name: {name}, libvirt: {{interfaces: [{{network: {NETWORK}, address: {to}, prefix: 16}}]}}}}\n"
        )
    };
    let libvirt = format!(
        "pool: {POOL}, image: {{volume: {IMAGE}, root_size: 3GiB}}, vcpus: 1, memory: 1GiB, acceleration: emulation, \
         admin: {{ssh_keys: [\"{}\"]}}",
        machines.admin_key()
    );
    let members: String = MEMBERS.iter().map(|name| member(name)).collect();
    let spec = format!(
        "quorate: 1
clusters:
  - name: {ETCD}
    provider: {{libvirt: {{{libvirt}}}}}
    members:
{}    etcd: {{version: {OLDEST}, client_auth: password, grpc_gateway: true, heartbeat: 500ms, election: 5s}}
  - name: {NAME}
    provider: {{libvirt: {{{libvirt}, data_size: 2GiB}}}}
    members:
{members}    postgres:
      version: 15
      dcs: {{cluster: {ETCD}}}
      parameters: {{max_connections: 30, shared_buffers: 64MB}}
      users: [{{name: shop}}]
      databases: [{{name: shop, owner: shop}}]
      patroni: {{ttl: 60s, loop_wait: 10s, retry_timeout: 20s, watchdog: {{mode: required}}}}
",
        member("e-1")
    );
    machines.sandbox.file("cluster.yaml", &spec);
}

fn primary(machines: &Machines) -> String {
    machines.sandbox.status(NAME)["postgres"]["primary"].as_str().unwrap_or_default().to_owned()
}

fn env(machines: &Machines) -> BTreeMap<String, String> {
    let shown = machines.sandbox.quorate(&["env", NAME, "--user", "shop", "--output", "json"]).ok().json();
    shown.as_object().unwrap().iter().map(|(k, v)| (k.clone(), v.as_str().unwrap().to_owned())).collect()
}

#[track_caller]
fn assert_healthy(machines: &Machines) {
    eventually("a healthy cluster", 300, || machines.sandbox.status(NAME)["verdict"] == "healthy");
}

/// What the kernel says of the watchdog: it is active while somebody has to reset it.
fn watchdog(machines: &Machines, member: &str) -> String {
    machines.on(&address(member), "cat /sys/class/watchdog/watchdog0/state").ok().stdout.trim().to_owned()
}

/// The primary has a watchdog that counts, the replicas one that does not; Patroni is a service that may use it, and its data is on the volume.
fn assert_machines(machines: &Machines) {
    let leads = primary(machines);
    for member in MEMBERS {
        let wanted = if member == leads { "active" } else { "inactive" };
        assert_eq!(watchdog(machines, member), wanted, "the watchdog of {member}; {leads} is the primary");
        let look = "stat -c %U /dev/watchdog; systemctl show -P User patroni.service; \
            mountpoint -q /var/lib/etcd.disk && stat -c %U /var/lib/etcd.disk/postgresql/data";
        let shown = machines.on(&address(member), look).ok().stdout;
        assert_eq!(shown, "postgres\npostgres\npostgres\n", "on {member}");
    }
}

#[test]
#[ignore = "boots machines: `cargo xtask lab libvirt` runs it"]
fn a_watchdog_resets_the_machine_of_a_primary_whose_patroni_hangs() {
    let machines = Machines::new(&WANTED);
    write_spec(&machines);
    chapter("a machine of etcd and three of PostgreSQL, from apply to healthy", || machines.apply().ok());
    assert_healthy(&machines);
    chapter("the watchdog of the primary counts", || assert_machines(&machines));
    let user = env(&machines);
    psql(&user, CONNECTING, "create table written (key text primary key)").ok();
    let store = |key: &str| psql(&user, CONNECTING, &format!("insert into written values ('{key}')")).code == Some(0);
    let (first, written) = while_storing(store, || {
        chapter("Patroni of the primary hangs: its machine is reset, and another member takes over", || hang(&machines))
    });
    chapter("the former primary follows the new one", || {
        machines.apply().ok();
        assert_healthy(&machines);
        assert_machines(&machines);
        assert_ne!(primary(&machines), first);
    });
    let there = psql(&user, CONNECTING, "select key from written").ok().stdout;
    written.assert_all_in(&there.lines().collect());
    chapter("everything is destroyed, and nothing is left", || {
        machines.sandbox.quorate(&["destroy", "--yes", "--without-backup", NAME]).ok();
        machines.sandbox.quorate(&["destroy", "--yes", "--without-backup", ETCD]).ok();
        assert_eq!(machines.domains(), Vec::<String>::new(), "left behind");
    });
}

/// Returns who was the primary.
fn hang(machines: &Machines) -> String {
    let first = primary(machines);
    let boot = machines.boot_id(&address(&first)).expect("its machine runs");
    machines.on(&address(&first), "systemctl kill --kill-whom=main --signal=STOP patroni.service").ok();
    eventually("another primary", FAILING_OVER, || !["", first.as_str()].contains(&primary(machines).as_str()));
    eventually("another boot of the machine that had the former one", FAILING_OVER, || {
        machines.boot_id(&address(&first)).is_some_and(|now| now != boot)
    });
    first
}
