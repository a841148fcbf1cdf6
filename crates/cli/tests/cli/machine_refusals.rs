//! Error messages for specs that libvirt cannot fulfil: with the real program and the real libvirt of `cargo xtask lab
//! libvirt`, whose machines boot a sector that prints a word on the console and halts.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use crate::common::{OLDEST, Run, Sandbox};

/// Names that the lab gives to its pool and its network, which are the same, and the image in the pool.
const NAME: &str = "quorate-lab";
const IMAGE: &str = "boot.img";

fn uri() -> String {
    std::env::var("QUORATE_LAB_LIBVIRT_URI").expect("`cargo xtask lab libvirt` says where libvirt is")
}

fn virsh(words: &[&str]) -> String {
    let output = Command::new("virsh").args(["--quiet", "--connect", &uri()]).args(words).output().expect("virsh");
    assert!(output.status.success(), "virsh {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// A spec of one member, and what is wrong with it.
struct Wrong {
    name: String,
    uri: String,
    pool: &'static str,
    image: &'static str,
    interface: String,
    more: &'static str,
    of_member: &'static str,
}

impl Wrong {
    /// Nothing yet.
    fn new() -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Wrong {
            name: format!("refused-{number}"),
            uri: uri(),
            pool: NAME,
            image: IMAGE,
            interface: format!("network: {NAME}, address: 10.77.200.{number}, prefix: 16"),
            more: "",
            of_member: "",
        }
    }

    fn spec(&self) -> String {
        let Wrong { name, uri, pool, image, interface, more, of_member } = self;
        format!(
            "quorate: 1\nclusters:\n  - name: {name}\n    etcd: {{quota: 64MiB}}\n    provider:\n      libvirt: {{uri: \"{uri}\", \
             pool: {pool}, image: {{volume: {image}, has_agent: true}}, memory: 256MiB, vcpus: 1, acceleration: emulation, \
             boot_patience: 3s{more}}}\n    members:\n      - {{name: etcd-1, libvirt: {{interfaces: [{{{interface}}}]{of_member}}}}}\n"
        )
    }

    /// The end of an `apply`, after which nothing of it is left.
    fn refused(&self) -> Run {
        let sandbox = Sandbox::new(OLDEST);
        let file = sandbox.file("c.yaml", &self.spec());
        let file = file.to_str().expect("text");
        let run = sandbox.quorate(&["apply", file, "--yes"]).fails();
        eprintln!("{}", run.stderr);
        if sandbox.home().join("clusters").join(&self.name).exists() {
            let undone = sandbox.quorate(&["destroy", &self.name, "--yes", "--without-backup"]);
            assert!(undone.code == Some(0) || self.uri != uri(), "{}", undone.text());
        }
        self.left_nothing();
        run
    }

    fn left_nothing(&self) {
        let domains = virsh(&["list", "--all", "--name"]);
        assert!(!domains.contains(&self.name), "{domains}");
    }

    #[track_caller]
    fn is_told(&self, expected: &str) {
        let run = self.refused();
        assert!(run.stderr.contains(expected), "expected {expected:?} in\n{}", run.stderr);
    }
}

#[test]
#[ignore = "needs the libvirt of `cargo xtask lab libvirt`"]
fn missing_libvirt_resources_are_named_with_the_available_ones() {
    Wrong { pool: "nowhere", ..Wrong::new() }.is_told("libvirt has no storage pool `nowhere`; it has quorate-lab");
    let interface = |to: &str| format!("{to}, address: 10.77.201.1, prefix: 16");
    Wrong { interface: interface("network: nowhere"), ..Wrong::new() }
        .is_told("libvirt has no network `nowhere`; it has ");
    let id = "00000000-0000-4000-8000-000000000000";
    Wrong { interface: interface(&format!("network_id: {id}")), ..Wrong::new() }
        .is_told(&format!("libvirt has no network `{id}`; it has "));
    Wrong { interface: interface("macvtap: nowhere"), ..Wrong::new() }
        .is_told("this host has no network interface `nowhere` for macvtap");
    Wrong { image: "nothing", ..Wrong::new() }.is_told("libvirt has no volume `quorate-lab/nothing`; it has ");
    Wrong { of_member: ", data_volume: nothing", ..Wrong::new() }
        .is_told("libvirt has no volume `quorate-lab/nothing`; it has ");
    Wrong { of_member: ", root_volume: nothing", ..Wrong::new() }
        .is_told("libvirt has no volume `quorate-lab/nothing`; it has ");
}

#[test]
#[ignore = "needs the libvirt of `cargo xtask lab libvirt`"]
fn a_network_that_is_not_started_is_named_with_how_to_start_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("network.xml");
    fs::write(&file, "<network><name>quorate-asleep</name></network>").expect("written");
    virsh(&["net-define", file.to_str().expect("text")]);
    let interface = String::from("network: quorate-asleep, address: 10.77.202.1, prefix: 16");
    let told = Wrong { interface, ..Wrong::new() }.refused();
    virsh(&["net-undefine", "quorate-asleep"]);
    let expected = "the network `quorate-asleep` of libvirt is not active; `virsh net-start quorate-asleep` starts it";
    assert!(told.stderr.contains(expected), "{}", told.stderr);
}

#[test]
#[ignore = "needs the libvirt of `cargo xtask lab libvirt`"]
fn a_disk_that_does_not_fit_is_reported_with_both_sizes() {
    let run = Wrong { more: ", data_size: 9000GiB", ..Wrong::new() }.refused();
    assert!(run.stderr.contains("the storage pool `quorate-lab` has "), "{}", run.stderr);
    assert!(run.stderr.contains(" left, and the machine of etcd-1 needs 9216001MiB"), "{}", run.stderr);
}

#[test]
#[ignore = "needs the libvirt of `cargo xtask lab libvirt`"]
fn a_mac_that_another_machine_has_is_reported_with_its_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("domain.xml");
    let other = "<domain type='qemu'><name>somebodys</name><memory unit='MiB'>16</memory><os><type>hvm</type></os><devices>\
                 <interface type='network'><source network='quorate-lab'/><mac address='52:54:00:99:99:99'/></interface>\
                 </devices></domain>";
    fs::write(&file, other).expect("written");
    virsh(&["define", file.to_str().expect("text")]);
    let interface = format!("network: {NAME}, address: 10.77.203.1, prefix: 16, mac: \"52:54:00:99:99:99\"");
    let told = Wrong { interface, ..Wrong::new() }.refused();
    virsh(&["undefine", "somebodys"]);
    let expected = "the MAC 52:54:00:99:99:99 of etcd-1 is already used by the machine `somebodys`";
    assert!(told.stderr.contains(expected), "{}", told.stderr);
}

/// What the spec alone shows is told with file, line and field, and libvirt is not even asked.
#[test]
#[ignore = "needs the libvirt of `cargo xtask lab libvirt`"]
fn problems_of_the_spec_alone_are_reported_at_their_place() {
    let uri = || String::from("qemu:///system?socket=/nowhere");
    let interface = |text: &str| text.to_owned();
    let two = "network: quorate-lab, network_id: 00000000-0000-4000-8000-000000000000, address: 10.77.1.1, prefix: 16";
    Wrong { uri: uri(), interface: interface(two), ..Wrong::new() }.is_told("c.yaml:8:");
    let outside = "network: quorate-lab, address: 10.78.1.1, prefix: 16, gateway: 10.77.0.1";
    Wrong { uri: uri(), interface: interface(outside), ..Wrong::new() }
        .is_told("10.78.1.1 is outside the network of its gateway 10.77.0.1, 10.77.0.0/16");
    let twice = "network: quorate-lab, address: 10.77.1.1, prefix: 16, mac: \"52:54:00:00:00:01\"}, \
                 {network: quorate-lab, address: 10.77.1.2, prefix: 16, mac: \"52:54:00:00:00:01\"";
    Wrong { uri: uri(), interface: interface(twice), ..Wrong::new() }
        .is_told("the MAC 52:54:00:00:00:01 is given twice; the first is in line 8");
}

#[test]
#[ignore = "needs the libvirt of `cargo xtask lab libvirt`"]
fn a_missing_libvirt_is_reported_with_its_socket() {
    let uri = String::from("qemu:///system?socket=/nowhere/libvirt-sock");
    Wrong { uri: uri.clone(), ..Wrong::new() }.is_told(&format!(
        "libvirt at {uri} cannot be reached: Failed to connect socket to '/nowhere/libvirt-sock': No such file or directory"
    ));
}

/// As another user than root, who is in no group.
#[test]
#[ignore = "needs the libvirt of `cargo xtask lab libvirt`"]
fn users_without_access_to_libvirt_are_told_which_group_they_need() {
    const NOBODY: u32 = 65534;
    let sandbox = Sandbox::new(OLDEST);
    let file = sandbox.file("c.yaml", &Wrong::new().spec());
    fs::set_permissions(sandbox.path(), fs::Permissions::from_mode(0o755)).expect("open to all");
    fs::create_dir(sandbox.home()).expect("a home");
    chown(sandbox.home(), Some(NOBODY), Some(NOBODY)).expect("given away");
    let apply = sandbox.command(&["apply", file.to_str().expect("text"), "--yes"]);
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"]);
    command.arg(apply.get_program()).args(apply.get_args()).current_dir(sandbox.path());
    command.envs(apply.get_envs().filter_map(|(name, value)| Some((name, value?))));
    // libvirt asks polkit, which is not there; and then its socket is open to root alone.
    let socket = "/run/libvirt/libvirt-sock";
    let before = fs::metadata(socket).expect("libvirt's socket").permissions();
    let asked = Run::from(command.output().expect("setpriv")).fails();
    fs::set_permissions(socket, fs::Permissions::from_mode(0o700)).expect("closed");
    let closed = Run::from(command.output().expect("setpriv")).fails();
    fs::set_permissions(socket, before).expect("open again");
    for run in [&asked, &closed] {
        eprintln!("{}", run.stderr);
        assert!(run.stderr.contains("permission denied by libvirt at "), "{}", run.stderr);
        assert!(run.stderr.contains("be root, or a member of the group `libvirt`"), "{}", run.stderr);
    }
    assert!(closed.stderr.contains("Permission denied"), "{}", closed.stderr);
}

#[test]
#[ignore = "needs the libvirt of `cargo xtask lab libvirt`"]
fn a_machine_without_an_answering_agent_is_given_up_with_its_console_output() {
    let begun = Instant::now();
    let run = Wrong::new().refused();
    assert!(begun.elapsed() < Duration::from_secs(60), "it was to give up after three seconds");
    assert!(run.stderr.contains("no progress for 3 seconds; still waiting for "), "{}", run.stderr);
    assert!(run.stderr.contains("the console of etcd-1 ends with:\n    quorate lab"), "{}", run.stderr);
}
