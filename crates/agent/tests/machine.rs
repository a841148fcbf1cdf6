//! The agent on a real machine: an image of `quorate image build` under QEMU, from its seed disk to a serving member, reached over
//! its virtio-serial line alone. Runs where `QUORATE_MACHINE_IMAGE` names an image, and qemu, mkfs.vfat and mcopy are there; it is
//! minutes of work under software emulation.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Machine, config_of, facts, order};
use jiff::{SignedDuration, Timestamp};
use quorate_agent::api::Order;
use quorate_agent::client::AgentClient;
use quorate_core::model::{BinarySource, FirewallConfig, HostConfig, NodeConfig, ServiceState};
use quorate_core::spec::{Chrony, Firewall, TimeSource};

/// Debian's, which is in the image.
const ETCD: &str = "3.4.23";
/// As QEMU's own network has it: the machine, and who comes from outside of it.
const INSIDE: [u8; 4] = [10, 0, 2, 15];
const OUTSIDE: &str = "10.0.2.2";
const PATIENCE: Duration = Duration::from_secs(240);

struct Booted {
    machine: Machine,
    qemu: Child,
    /// Where the machine's ports are found on this side.
    outside: IpAddr,
}

impl Booted {
    fn new(image: &Path) -> Self {
        let mut machine = Machine::off();
        let outside = std::mem::replace(&mut machine.address, IpAddr::from(INSIDE));
        machine.seed(machine.token.clone(), Timestamp::now() + SignedDuration::from_hours(1));
        let place = machine.directory.path().to_owned();
        let description = r#"{"hostname": "etcd-1", "channel": true, "data_disk": {"serial": "data"},
            "interfaces": [{"mac": "52:54:00:00:00:01", "address": "10.0.2.15", "prefix": 24, "gateway": "10.0.2.2"}]}"#;
        fs::write(place.join("machine.json"), description).unwrap();
        run("mkfs.vfat", &["-C", "-n", "cidata", "seed.img", "131072"], &place);
        run("mcopy", &["-i", "seed.img", "seed.json", "machine.json", "::"], &place);
        // A newer agent than the image's, brought by the seed disk.
        if let Some(program) = std::env::var_os("QUORATE_MACHINE_PROGRAM") {
            run("mcopy", &["-i", "seed.img", &program.to_string_lossy(), "::quorate"], &place);
        }
        let backing = format!("backing_file={},backing_fmt=qcow2", image.display());
        run("qemu-img", &["create", "-q", "-f", "qcow2", "-o", &backing, "root.qcow2", "4G"], &place);
        run("qemu-img", &["create", "-q", "-f", "qcow2", "data.qcow2", "1G"], &place);
        let qemu = start(&place, outside);
        Booted { machine, qemu, outside }
    }

    fn client(&self) -> AgentClient {
        self.machine.client().over_line(self.machine.directory.path().join("line"))
    }

    /// As if its power had failed for an instant.
    fn reset(&self) {
        let mut monitor = UnixStream::connect(self.machine.directory.path().join("monitor")).unwrap();
        monitor.write_all(b"system_reset\n").unwrap();
        // It reads what was written while somebody is there.
        std::thread::sleep(Duration::from_secs(1));
    }

    /// What the node exporter tells whoever asks from outside.
    fn scrape(&self) -> String {
        let mut answer = String::new();
        let asked = TcpStream::connect_timeout(&SocketAddr::new(self.outside, 9100), Duration::from_secs(5));
        if let Ok(mut stream) = asked {
            let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
            let _ = stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n");
            let _ = stream.read_to_string(&mut answer);
        }
        answer
    }

    fn console(&self) -> String {
        fs::read_to_string(self.machine.directory.path().join("console")).unwrap_or_default()
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

fn run(program: &str, args: &[&str], place: &Path) {
    let output =
        Command::new(program).args(args).current_dir(place).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

fn start(place: &Path, outside: IpAddr) -> Child {
    let disk = |id: &str, file: &str, format: &str, more: &str| {
        let file = place.join(file);
        let drive = format!("if=none,id={id},format={format},file={}", file.display());
        [String::from("-drive"), drive, String::from("-device"), format!("virtio-blk-pci,drive={id}{more}")]
    };
    let forward = |port: u16| format!(",hostfwd=tcp:{outside}:{port}-10.0.2.15:{port}");
    let network = format!("user,id=n,restrict=on{}{}", forward(9100), forward(2379));
    let socket = |name: &str| format!("path={},server=on,wait=off", place.join(name).display());
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-accel", "tcg", "-cpu", "qemu64", "-m", "512", "-display", "none"]);
    command.args(disk("root", "root.qcow2", "qcow2", ",bootindex=0"));
    command.args(disk("seed", "seed.img", "raw", ""));
    command.args(disk("data", "data.qcow2", "qcow2", ",serial=data"));
    command.args(["-netdev", &network, "-device", "virtio-net-pci,netdev=n,mac=52:54:00:00:00:01"]);
    command.args(["-device", "virtio-serial-pci", "-chardev", &format!("socket,id=c,{}", socket("line"))]);
    command.args(["-device", "virtserialport,chardev=c,name=io.quorate.agent"]);
    command.args(["-monitor", &format!("unix:{}", socket("monitor").trim_start_matches("path="))]);
    command.args(["-serial", &format!("file:{}", place.join("console").display())]);
    command.stdin(Stdio::null()).spawn().expect("qemu-system-x86_64 can be started")
}

fn config(scrape_from: &str) -> NodeConfig {
    let mut config = config_of(ETCD);
    config.etcd.binary = BinarySource::Search { otherwise: None };
    config.etcd.flags.extend([
        (String::from("heartbeat-interval"), String::from("500")),
        (String::from("election-timeout"), String::from("5000")),
    ]);
    let source = TimeSource { address: OUTSIDE.to_owned(), options: vec![String::from("iburst")] };
    config.host = Some(Box::new(HostConfig {
        chrony: Some(Chrony { servers: vec![source], ..Chrony::default() }),
        node_exporter: true,
        firewall: Some(FirewallConfig { rules: Firewall::default(), scrape_from: vec![scrape_from.parse().unwrap()] }),
        install_dependencies: false,
        log_forwarding: None,
    }));
    config
}

async fn patiently<T>(booted: &Booted, what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            eprintln!("{what}: after {:.1} s", begun.elapsed().as_secs_f64());
            return answer;
        }
        assert!(begun.elapsed() < PATIENCE, "in vain: {what}\n{}", booted.console());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn healthy(booted: &Booted, client: &AgentClient, what: &str) {
    patiently(booted, what, async || {
        let request = quorate_agent::api::FactsRequest { fence: None, auth: false, reach: Default::default() };
        let Ok(quorate_agent::client::Look::Facts(facts)) = client.look(&request).await else { return None };
        facts.etcd.status.as_ref().is_some_and(|status| status.healthy).then_some(())
    })
    .await;
}

#[tokio::test]
#[ignore = "needs an image of a machine, and the patience to emulate it"]
async fn a_machine_comes_from_its_seed_disk_to_a_serving_member_and_survives_a_reset() {
    let image =
        std::env::var_os("QUORATE_MACHINE_IMAGE").map(PathBuf::from).expect("QUORATE_MACHINE_IMAGE names an image");
    let booted = Booted::new(&image);
    let client = booted.client();
    let request = quorate_agent::api::FactsRequest { fence: None, auth: false, reach: Default::default() };
    patiently(&booted, "the agent answers on the line", async || client.look(&request).await.ok()).await;
    booted.machine.enrol(&client).await;
    booted.machine.install_certificates(&client).await;

    order(&client, 1, Order::Converge { generation: 1, config: config("192.0.2.0/24") }).await.unwrap();
    let measured = facts(&client).await.host.fsync_micros;
    assert!(measured.is_some_and(|micros| micros > 0), "the disk was not measured: {measured:?}");
    booted.machine.start_etcd(&client, "t-1").await.unwrap();
    healthy(&booted, &client, "etcd is healthy").await;

    assert_eq!(booted.scrape(), "", "the firewall lets nobody ask but those who are named");
    order(&client, 1, Order::Converge { generation: 2, config: config(OUTSIDE) }).await.unwrap();
    patiently(&booted, "the node exporter answers", async || booted.scrape().contains("\nnode_").then_some(())).await;

    booted.reset();
    healthy(&booted, &client, "after a reset, etcd is healthy").await;
    let seen = facts(&client).await.etcd;
    assert_eq!(seen.last_started, Some(booted.machine.stamp("t-1")), "on the data that it had");
    assert!(matches!(seen.service, ServiceState::Running { .. }));
    patiently(&booted, "the node exporter answers again", async || booted.scrape().contains("\nnode_").then_some(()))
        .await;
}
