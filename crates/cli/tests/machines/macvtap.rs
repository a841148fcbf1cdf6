//! Machines on the host's network through macvtap: the host cannot reach them by network, another host can.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::eventually;
use crate::ground::{Machines, Wanted, chapter, virsh};

/// The host's interface, and what it is wired to at the other host.
const HERE: &str = "quorate-tap0";
const THERE: &str = "quorate-tap1";

fn address(member: usize) -> String {
    format!("10.78.0.{}", 10 + member)
}

const WANTED: Wanted = Wanted {
    name: "tap",
    members: 3,
    member: |member| {
        format!("libvirt: {{interfaces: [{{macvtap: {HERE}, address: {}, prefix: 24}}]}}", address(member))
    },
    libvirt: "",
    etcd: "",
};

/// Another host at the other end of a wire: a process in a separate network namespace. When it exits, the wire is removed too.
struct OtherHost(Child);

impl OtherHost {
    fn new() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "--kill-child=KILL", "--fork", "sleep", "3600"]).stdin(Stdio::null());
        let host = OtherHost(command.spawn().expect("unshare runs"));
        let process = host.0.id().to_string();
        let own = std::fs::read_link("/proc/self/ns/net").expect("a network");
        eventually("the other host has a network of its own", 5, || {
            std::fs::read_link(format!("/proc/{process}/ns/net")).is_ok_and(|network| network != own)
        });
        ip(&["link", "add", HERE, "type", "veth", "peer", "name", THERE, "netns", &process]);
        ip(&["link", "set", HERE, "up"]);
        let there = |words: &[&str]| {
            let words = [&["--net", "--target", &process, "--", "ip"], words].concat();
            assert!(Command::new("nsenter").args(words).status().expect("nsenter runs").success());
        };
        there(&["link", "set", "lo", "up"]);
        there(&["addr", "add", "10.78.0.1/24", "dev", THERE]);
        there(&["link", "set", THERE, "up"]);
        host
    }
}

impl Drop for OtherHost {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ip(words: &[&str]) {
    assert!(Command::new("ip").args(words).status().expect("ip runs").success(), "ip {words:?}");
}

#[test]
#[ignore = "boots machines: `cargo xtask lab libvirt` runs it"]
fn machines_that_their_host_cannot_reach_are_kept_over_their_serial_lines() {
    let other = OtherHost::new();
    let machines = Machines::new(&WANTED).with_clients(other.0.id());
    chapter("three machines on macvtap, from apply to healthy", || machines.apply().ok());
    chapter("etcdctl on another host reads and writes; this one does not reach them", || {
        machines.assert_healthy();
        machines.etcdctl(&["put", "kept", "as it was"]).ok();
        let reached = std::net::TcpStream::connect_timeout(
            &format!("{}:2379", address(1)).parse().expect("an address"),
            Duration::from_secs(2),
        );
        assert!(reached.is_err(), "this host reached {}", address(1));
    });
    chapter("a machine is killed and undefined, then apply", || {
        let domain = machines.domain("etcd-1");
        virsh(&["destroy", &domain]).ok();
        virsh(&["undefine", &domain]).ok();
        machines.apply().ok();
        machines.assert_healthy();
        machines.assert_reads("kept", "as it was");
    });
    chapter("everything is destroyed, and nothing is left", || machines.destroy());
}
