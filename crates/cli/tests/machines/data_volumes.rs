//! Machines with data volumes: settings change under writers, machines reboot, agents restart, and seed disks contain nothing
//! useful to an attacker.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::common::eventually;
use crate::ground::{MEMBERS, Machines, NETWORK, Wanted, chapter, incarnation, virsh, volumes};
use crate::seed_disk;
use crate::writer::while_writing;

pub fn address(member: usize) -> String {
    format!("10.77.201.{}", 10 + member)
}

const WANTED: Wanted = Wanted {
    name: "two",
    members: 3,
    member: |member| {
        format!("libvirt: {{interfaces: [{{network: {NETWORK}, address: {}, prefix: 16}}]}}", address(member))
    },
    libvirt: "        data_size: 1GiB",
    etcd: "",
};
/// The same with another setting of etcd, and with somebody who may ask the node exporter.
const CHANGED: Wanted = Wanted {
    libvirt: "        data_size: 1GiB\n    host: {node_exporter: {scrape_from: [10.77.0.1]}}",
    etcd: ", flags: {snapshot-count: 5000}",
    ..WANTED
};

#[test]
#[ignore = "boots machines: `cargo xtask lab libvirt` runs it"]
fn settings_change_under_writers_machines_reboot_and_seed_disks_are_worth_nothing() {
    let machines = Machines::new(&WANTED);
    chapter("three machines with data volumes, from apply to healthy", || machines.apply().ok());
    machines.assert_healthy();
    machines.etcdctl(&["put", "kept", "as it was"]).ok();
    chapter("an empty volume was formatted, and is where etcd's data is", || data_is_on_the_volume(&machines));
    chapter("etcd runs as a separate user that can change nothing but its data", || units(&machines));
    chapter("a setting is rolled through the machines while a writer writes", || rolled_change(&machines));
    chapter("an agent that restarts leaves etcd alone", || restarted_agent(&machines));
    chapter("each machine reboots", || each_reboots(&machines));
    chapter("all machines lose their power at once, and come back by themselves", || all_reboot(&machines));
    chapter("nobody enrols with the seed disk of a machine", || seed_disk::is_worth_nothing(&machines, &address(2)));
    chapter("a machine is replaced, and the member keeps its data and its seat", || replaced(&machines));
    chapter("everything is destroyed, and nothing is left", || machines.destroy());
}

fn data_is_on_the_volume(machines: &Machines) {
    let said =
        machines.on(&address(1), "findmnt --noheadings --output FSTYPE,SOURCE --target /var/lib/etcd/member").ok();
    assert!(said.stdout.starts_with("ext4 ") && said.stdout.contains("/dev/vd"), "{}", said.stdout);
    let root = machines.on(&address(1), "findmnt --noheadings --output SOURCE --target /").ok();
    assert!(!said.stdout.contains(root.stdout.trim()), "it is on the root disk: {}", said.stdout);
}

fn units(machines: &Machines) {
    let show = "systemctl show etcd --property User,ProtectSystem,LimitNOFILE,OOMScoreAdjust,Restart,NRestarts";
    let shown = machines.on(&address(1), show).ok().stdout;
    for line in ["User=etcd", "ProtectSystem=strict", "LimitNOFILE=65536", "OOMScoreAdjust=-900", "Restart=always"] {
        assert!(shown.lines().any(|found| found == line), "{line} is not in\n{shown}");
    }
    assert!(shown.contains("NRestarts=0\n"), "etcd did not come up at once: {shown}");
}

/// What the node exporter says to anyone who asks from here.
fn scraped(member: usize) -> std::io::Result<String> {
    let to = format!("{}:9100", address(member)).parse().expect("an address");
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(10))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn rolled_change(machines: &Machines) {
    let closed = scraped(1).expect_err("nobody was let in").kind();
    assert_eq!(closed, std::io::ErrorKind::ConnectionRefused, "refused, not dropped");
    machines.want(&CHANGED);
    let environment = machines.sandbox.environment(machines.name);
    let etcdctl = |arguments: &[&str]| machines.etcdctl_with(&environment, arguments);
    let (applied, written) = while_writing(etcdctl, || machines.apply());
    applied.ok();
    machines.assert_healthy();
    written.assert_kept(etcdctl);
    for member in 1..=MEMBERS.len() {
        let line = machines.on(&address(member), "ps -ww -o args= -C etcd").ok().stdout;
        assert!(line.contains("--snapshot-count=5000"), "etcd-{member} runs as {line}");
        let metrics = scraped(member).expect("the node exporter answers");
        assert!(metrics.contains("\nnode_"), "{metrics}");
    }
}

fn restarted_agent(machines: &Machines) {
    let pids = || machines.on(&address(1), "pidof etcd; systemctl show --value -p MainPID quorate-agent").ok().stdout;
    let before = pids();
    machines.on(&address(1), "systemctl restart quorate-agent").ok();
    let after = pids();
    let (etcd, agent) = (before.lines().next(), before.lines().nth(1));
    assert_eq!(etcd, after.lines().next(), "etcd was restarted");
    assert_ne!(agent, after.lines().nth(1), "the agent was not");
    eventually("the agent answers again", 60, || healthy(machines));
}

fn healthy(machines: &Machines) -> bool {
    machines.sandbox.status(machines.name)["verdict"] == "healthy"
}

fn each_reboots(machines: &Machines) {
    for (at, name) in MEMBERS.iter().enumerate() {
        let before = machines.boot_id(&address(at + 1)).expect("it runs");
        // By the guest itself, as after an upgrade of its kernel.
        machines.on(&address(at + 1), "systemctl reboot");
        eventually(&format!("{name} has rebooted"), 180, || {
            machines.boot_id(&address(at + 1)).is_some_and(|now| now != before)
        });
        eventually(&format!("all are well after {name} rebooted"), 120, || healthy(machines));
    }
    machines.assert_healthy();
    machines.assert_reads("kept", "as it was");
}

fn all_reboot(machines: &Machines) {
    let domains = MEMBERS.map(|member| machines.domain(member));
    domains.iter().for_each(|domain| drop(virsh(&["destroy", domain]).ok()));
    domains.iter().for_each(|domain| drop(virsh(&["start", domain]).ok()));
    eventually("all are well after all have lost their power", 240, || healthy(machines));
    machines.assert_healthy();
    machines.assert_reads("kept", "as it was");
}

fn replaced(machines: &Machines) {
    let seats = || {
        let listed = machines.etcdctl(&["member", "list"]).ok().stdout;
        listed.lines().map(|line| line.split(", ").next().unwrap_or_default().to_owned()).collect::<BTreeSet<_>>()
    };
    let (seats_before, volumes_before) = (seats(), data_volumes());
    machines.sandbox.quorate(&["replace", "--yes", machines.name, "etcd-3"]).ok();
    machines.assert_healthy();
    assert_eq!(incarnation(&machines.sandbox.ledger(machines.name), "etcd-3"), 2);
    assert_eq!((seats(), data_volumes()), (seats_before, volumes_before), "it kept its seat and its data");
    machines.assert_reads("kept", "as it was");
}

fn data_volumes() -> BTreeSet<String> {
    volumes().into_iter().filter(|name| name.ends_with("-data.qcow2")).collect()
}
