use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use super::tools::{Said, Tools};
use super::*;

const SERIAL: &str = "etcd-1-data";

/// Notes what is run, and answers as told; by default everything succeeds and says nothing.
#[derive(Default)]
pub(super) struct Noted {
    calls: RefCell<Vec<String>>,
    answers: BTreeMap<&'static str, (i32, &'static str)>,
}

impl Noted {
    fn answering(answers: &[(&'static str, (i32, &'static str))]) -> Self {
        Noted { answers: answers.iter().copied().collect(), ..Noted::default() }
    }

    fn calls_of(&self, program: &str) -> Vec<String> {
        self.calls.borrow().iter().filter(|call| call.split(' ').next() == Some(program)).cloned().collect()
    }
}

impl Tools for Noted {
    fn ask(&self, program: &str, args: &[&str], input: Option<&str>) -> Result<Said, AgentError> {
        let input = input.map(|input| format!(" < {input}")).unwrap_or_default();
        self.calls.borrow_mut().push(format!("{program} {}{input}", args.join(" ")));
        let (code, out) = self.answers.get(program).copied().unwrap_or((0, ""));
        Ok(Said { code: Some(code), out: out.to_owned(), err: String::new() })
    }
}

pub(super) struct Scene {
    directory: TempDir,
}

impl Scene {
    pub(super) fn new(machine: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let scene = Scene { directory };
        fs::create_dir_all(scene.seed()).unwrap();
        fs::create_dir_all(scene.root().join("etc")).unwrap();
        fs::write(scene.root().join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n").unwrap();
        scene.seed_of(1);
        fs::write(scene.seed().join("machine.json"), machine).unwrap();
        scene
    }

    fn seed_of(&self, incarnation: u64) {
        let seed = format!(
            r#"{{"cluster": "c", "cluster_id": "id", "member": "etcd-1", "incarnation": {incarnation}, "address": "10.0.0.11",
                "control_ca": "pem", "token": "t0ken", "token_expires": "2030-01-01T00:00:00Z"}}"#
        );
        fs::write(self.seed().join("seed.json"), seed).unwrap();
        fs::write(self.seed().join("quorate"), format!("program {incarnation}")).unwrap();
    }

    pub(super) fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    fn seed(&self) -> PathBuf {
        self.directory.path().join("seed")
    }

    fn boot(&self, tools: &Noted, beside_cloud_init: bool) -> Result<(), AgentError> {
        let layout = Layout::new(&self.root()).unwrap();
        let with = if beside_cloud_init { With::CloudInit } else { With::Nothing };
        Boot { layout, tools, with }.run(Some(&self.seed()))
    }

    fn read(&self, below: &str) -> String {
        fs::read_to_string(self.root().join(below)).unwrap_or_else(|error| panic!("{below}: {error}"))
    }

    fn disk(&self, content: &[u8]) {
        let by_id = self.root().join("dev/disk/by-id");
        fs::create_dir_all(&by_id).unwrap();
        fs::write(by_id.join(format!("virtio-{SERIAL}")), content).unwrap();
    }
}

pub(super) const PLAIN: &str = r#"{
    "hostname": "etcd-1",
    "interfaces": [
        {"mac": "52:54:00:00:00:01", "address": "10.0.0.11", "prefix": 24, "gateway": "10.0.0.1", "dns": ["10.0.0.1"]},
        {"mac": "52:54:00:00:00:02", "address": "10.0.1.11", "prefix": 24}
    ],
    "admin": {"user": "ubuntu", "ssh_keys": ["ssh-ed25519 AAAA me"], "console_password_hash": "$6$salt$hash"},
    "channel": true
}"#;
const WITH_DISK: &str = r#"{
    "hostname": "etcd-1",
    "interfaces": [{"mac": "52:54:00:00:00:01", "address": "10.0.0.11", "prefix": 24}],
    "data_disk": {"serial": "etcd-1-data"}
}"#;
/// `mountpoint` says no, `blkid` finds nothing.
const EMPTY: &[(&str, (i32, &str))] = &[("mountpoint", (1, "")), ("blkid", (2, ""))];

#[test]
fn a_machine_becomes_what_its_seed_disk_says() {
    let scene = Scene::new(PLAIN);
    let tools = Noted::default();
    scene.boot(&tools, false).unwrap();
    assert_eq!(scene.read("etc/hostname"), "etcd-1\n");
    assert!(scene.read("etc/systemd/network/05-quorate-00.network").contains("Address=10.0.0.11/24"));
    assert!(scene.read("etc/systemd/network/05-quorate-01.network").contains("MACAddress=52:54:00:00:00:02"));
    assert!(scene.read("etc/resolv.conf").ends_with("nameserver 10.0.0.1\n"));
    assert_eq!(scene.read("etc/ssh/quorate-keys/ubuntu"), "ssh-ed25519 AAAA me\n");
    assert_eq!(scene.read("usr/lib/quorate/quorate"), "program 1");
    assert!(scene.read("run/quorate/agent.env").contains("--channel /dev/virtio-ports/io.quorate.agent"));
    let mode = fs::metadata(scene.root().join("run/quorate/seed.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the token is for the agent alone");
    assert_eq!(tools.calls_of("useradd"), ["useradd --create-home --shell /bin/bash ubuntu"]);
    // The hash is not among the arguments, which everybody can read.
    assert_eq!(tools.calls_of("chpasswd"), ["chpasswd --encrypted < ubuntu:$6$salt$hash\n"]);
    let systemctl = tools.calls_of("systemctl");
    assert_eq!(systemctl, ["systemctl daemon-reload", "systemctl start --no-block quorate-agent.service"]);
}

#[test]
fn the_next_boot_changes_nothing() {
    let scene = Scene::new(PLAIN);
    scene.boot(&Noted::default(), false).unwrap();
    fs::write(scene.root().join("etc/passwd"), "ubuntu:x:1000:1000::/home/ubuntu:/bin/bash\n").unwrap();
    fs::write(scene.root().join("etc/shadow"), "ubuntu:$6$salt$hash:19000:0:99999:7:::\n").unwrap();
    // An agent that was upgraded since is not taken back.
    fs::write(scene.root().join("usr/lib/quorate/quorate"), "program, later").unwrap();
    let tools = Noted::default();
    scene.boot(&tools, false).unwrap();
    let calls = tools.calls.borrow().clone();
    assert_eq!(calls, ["hostname etcd-1", "systemctl start --no-block quorate-agent.service"]);
    assert_eq!(scene.read("usr/lib/quorate/quorate"), "program, later");
    scene.seed_of(2);
    scene.boot(&Noted::default(), false).unwrap();
    assert_eq!(scene.read("usr/lib/quorate/quorate"), "program 2", "a new incarnation comes with its own program");
}

#[test]
fn an_interface_that_is_no_longer_there_is_forgotten() {
    let scene = Scene::new(PLAIN);
    scene.boot(&Noted::default(), false).unwrap();
    fs::write(scene.root().join("etc/systemd/network/80-own.network"), "").unwrap();
    // What only a newer program knows does not keep a machine from booting.
    let one = r#"{"hostname": "a", "newer": {"x": 1}, "interfaces": [{"mac": "52:54:00:00:00:01", "address": "10.0.0.11", "prefix": 24}]}"#;
    fs::write(scene.seed().join("machine.json"), one).unwrap();
    scene.boot(&Noted::default(), false).unwrap();
    let names = fs::read_dir(scene.root().join("etc/systemd/network")).unwrap().flatten();
    let mut names: Vec<_> = names.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["05-quorate-00.network", "80-own.network"]);
}

#[test]
fn beside_cloud_init_names_and_addresses_are_left_to_it() {
    let scene = Scene::new(PLAIN);
    let tools = Noted::default();
    scene.boot(&tools, true).unwrap();
    assert!(!scene.root().join("etc/hostname").exists() && !scene.root().join("etc/systemd/network").exists());
    assert!(scene.read("etc/systemd/system/quorate-boot.service").contains("--beside-cloud-init"));
    assert!(scene.read("etc/ssh/sshd_config.d/10-quorate.conf").contains("PasswordAuthentication no"));
    assert_eq!(tools.calls_of("systemctl")[0], "systemctl try-reload-or-restart ssh.service");
}

#[test]
fn an_empty_disk_gets_a_file_system_and_no_other_ever_does() {
    let scene = Scene::new(WITH_DISK);
    scene.disk(&[0; 4096]);
    let tools = Noted::answering(EMPTY);
    scene.boot(&tools, false).unwrap();
    assert_eq!(tools.calls_of("mkfs.ext4").len(), 1);
    assert_eq!(tools.calls_of("mount").len(), 1);
    assert_eq!(fs::read_link(scene.root().join("var/lib/etcd")).unwrap(), Path::new("etcd.disk/etcd"));

    let formatted = Noted::answering(&[("mountpoint", (1, "")), ("blkid", (0, "USAGE=filesystem\nTYPE=ext4\n"))]);
    scene.boot(&formatted, false).unwrap();
    assert_eq!((formatted.calls_of("mkfs.ext4").len(), formatted.calls_of("mount").len()), (0, 1));

    for (what, blkid) in [
        ("a partition table (gpt)", (0, "PTTYPE=gpt\n")),
        ("something of the kind crypto_LUKS", (0, "USAGE=crypto\nTYPE=crypto_LUKS\n")),
        ("something that blkid cannot identify", (8, "")),
    ] {
        let tools = Noted::answering(&[("mountpoint", (1, "")), ("blkid", blkid)]);
        let error = scene.boot(&tools, false).unwrap_err().in_full();
        assert!(error.contains(what) && tools.calls_of("mkfs.ext4").is_empty(), "{error}");
    }
    scene.disk(b"dear, and unknown to every program");
    let tools = Noted::answering(EMPTY);
    let error = scene.boot(&tools, false).unwrap_err().in_full();
    assert!(error.contains("bytes that no program knows") && tools.calls_of("mkfs.ext4").is_empty(), "{error}");
}

/// As the kernel names volumes of EBS: the id of a volume without its hyphen is the serial number of its disk.
#[test]
fn a_volume_of_ebs_is_found_by_its_id() {
    const VOLUME: &str = "vol0123456789abcdef0";
    let scene = Scene::new(&WITH_DISK.replace(SERIAL, VOLUME));
    let by_id = scene.root().join("dev/disk/by-id");
    fs::create_dir_all(&by_id).unwrap();
    fs::write(by_id.join(format!("nvme-Amazon_Elastic_Block_Store_{VOLUME}")), [0; 4096]).unwrap();
    let tools = Noted::answering(EMPTY);
    scene.boot(&tools, true).unwrap();
    let made = tools.calls_of("mkfs.ext4");
    assert!(made.len() == 1 && made[0].ends_with(VOLUME), "{made:?}");
}

#[test]
fn a_disk_with_the_data_of_another_cluster_is_refused_and_unmounted() {
    let scene = Scene::new(WITH_DISK);
    scene.disk(b"ext4");
    let formatted = &[("mountpoint", (1, "")), ("blkid", (0, "USAGE=filesystem\nTYPE=ext4\n"))];
    let place = scene.root().join("var/lib/etcd.disk");
    fs::create_dir_all(place.join("member/wal")).unwrap();
    let tools = Noted::answering(formatted);
    let error = scene.boot(&tools, false).unwrap_err().in_full();
    assert!(error.contains("holds etcd's data at its top (`member/`)"), "{error}");
    assert_eq!(tools.calls_of("umount"), [format!("umount {}", place.display())]);
    assert!(tools.calls_of("mkfs.ext4").is_empty() && place.join("member/wal").exists());
    assert!(tools.calls_of("systemctl").is_empty(), "no agent begins with nothing beside it");

    fs::remove_dir_all(place.join("member")).unwrap();
    fs::create_dir_all(place.join("etcd/member/wal")).unwrap();
    scene.boot(&Noted::answering(formatted), false).unwrap();
}

#[test]
fn a_disk_whose_file_system_was_half_made_is_made_again() {
    let scene = Scene::new(WITH_DISK);
    scene.disk(&[0; 4096]);
    let cut = Noted::answering(&[("mountpoint", (1, "")), ("blkid", (2, "")), ("mkfs.ext4", (1, ""))]);
    scene.boot(&cut, false).unwrap_err();
    scene.disk(b"half of a file system");
    let tools = Noted::answering(EMPTY);
    scene.boot(&tools, false).unwrap();
    assert_eq!(tools.calls_of("mkfs.ext4").len(), 1);
}

#[test]
fn a_mounted_disk_is_not_examined_again() {
    let scene = Scene::new(WITH_DISK);
    let tools = Noted::default();
    scene.boot(&tools, false).unwrap();
    assert!(tools.calls_of("mount").is_empty() && tools.calls_of("blkid").is_empty());
}

#[test]
fn below_another_root_no_program_is_run() {
    let scene = Scene::new(PLAIN);
    let options = BootOptions { root: scene.root(), seed_from: Some(scene.seed()), with: With::Nothing };
    boot(&options).unwrap();
    assert_eq!(scene.read("etc/hostname"), "etcd-1\n");
}
