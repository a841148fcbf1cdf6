//! The ground of the provider `libvirt`: a libvirt that a lab runs, named by environment variables. Machines boot a sector
//! that prints a word on the console and keeps running.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use libtest_mimic::Trial;
use quorate_agent::api::{Seed, boot};
use quorate_core::kinds::etcd::spec::ClientAuth;
use quorate_core::kinds::etcd::versions;
use quorate_core::model::{Ledger, MachineId, MemberName};
use quorate_core::providers::libvirt::{Acceleration, Attachment, InterfaceSpec, LibvirtSettings, MachineSettings};
use quorate_core::spec::{self, Mac, Provider as Kind, Size};
use quorate_providers::{Data, Dial, Libvirt, NewMachine, Provider, ProviderError};

use crate::suite::{self, Enrolment, Ground};

/// How libvirt is reached; without it there is no such ground.
const URI: &str = "QUORATE_LAB_LIBVIRT_URI";
/// How a second libvirt is reached, which has a separate socket.
const SECOND_URI: &str = "QUORATE_LAB_LIBVIRT_SECOND_URI";
/// Names that the lab gives to its pool, its network and the image in the pool.
const POOL: &str = "quorate-lab";
const NETWORK: &str = "quorate-lab";
const IMAGE: &str = "boot.img";
/// A network interface of the lab's host.
const MACVTAP: &str = "quorate-lab0";
const DATA_SIZE: Size = Size(1 << 20);

static GROUNDS: AtomicU8 = AtomicU8::new(1);

pub fn is_there() -> bool {
    std::env::var_os(URI).is_some()
}

pub struct Place {
    directory: tempfile::TempDir,
    cluster: String,
    cluster_id: String,
    /// The third number of this ground's addresses.
    range: u8,
}

impl Place {
    pub fn new() -> Self {
        let range = GROUNDS.fetch_add(1, Ordering::Relaxed);
        Place {
            directory: tempfile::tempdir().expect("a directory"),
            cluster: format!("ground{range}"),
            cluster_id: quorate_pki::random_hex(8),
            range,
        }
    }

    fn settings(&self) -> LibvirtSettings {
        let uri = std::env::var(URI).expect("the lab says where libvirt is");
        let settings = serde_json::json!({
            "uri": uri, "pool": POOL, "image": { "volume": IMAGE, "has_agent": true },
            "memory": "64MiB", "vcpus": 1, "data_size": DATA_SIZE, "acceleration": "emulation",
        });
        serde_json::from_value(settings).expect("settings")
    }

    fn libvirt(&self, cluster_id: &str, settings: LibvirtSettings) -> Libvirt {
        self.attached(cluster_id, settings, Attachment::Network(NETWORK.to_owned()), None)
    }

    fn attached(&self, cluster_id: &str, settings: LibvirtSettings, to: Attachment, mac: Option<Mac>) -> Libvirt {
        self.provider_of(&self.ledger(cluster_id, &settings, to, mac), &settings)
    }

    /// Of a cluster whose members are on these hosts, and that has been on others.
    fn spread(&self, uris: &[(&str, &str)], places: &[&str]) -> Libvirt {
        let settings = self.settings();
        let mut ledger = self.ledger(&self.cluster_id, &settings, Attachment::Network(NETWORK.to_owned()), None);
        for (member, uri) in uris {
            let spec = ledger.spec.members.iter_mut().find(|spec| spec.name.as_str() == *member);
            spec.and_then(|spec| spec.libvirt.as_mut()).expect("a section").uri = Some((*uri).to_owned());
        }
        ledger.places = places.iter().map(|place| (*place).to_owned()).collect();
        self.provider_of(&ledger, &settings)
    }

    fn provider_of(&self, ledger: &Ledger, settings: &LibvirtSettings) -> Libvirt {
        Libvirt::new(&suite::directories(self.directory.path()), ledger, settings)
            .stopping_within(Duration::from_secs(1))
    }

    fn ledger(&self, cluster_id: &str, settings: &LibvirtSettings, to: Attachment, mac: Option<Mac>) -> Ledger {
        let spec = spec::generated(&self.cluster, 3, versions::DEFAULT, ClientAuth::Certificate).expect("a spec");
        let mut spec = spec.clusters.into_iter().next().expect("a cluster");
        for member in &mut spec.members {
            let address = self.pinned(member.name.as_str()).expect("an address");
            let (to, mac) = (to.clone(), mac.clone());
            let interface = InterfaceSpec { to, address, prefix: 16, gateway: None, dns: Vec::new(), mac };
            member.libvirt = Some(MachineSettings { interfaces: vec![interface], ..MachineSettings::default() });
        }
        spec.provider = Kind::Libvirt(Box::new(settings.clone()));
        Ledger::new(cluster_id.to_owned(), spec)
    }

    /// A provider whose calls that change anything fail once there were so many of them, as if it had been killed.
    fn mortal(&self, calls: usize) -> (Libvirt, PathBuf) {
        let counter = self.directory.path().join("calls-left");
        let program = self.directory.path().join("virsh");
        let script = format!(
            "#!/bin/sh\ncase \"$4\" in\n\
             define|undefine|start|autostart|destroy|metadata|vol-create|vol-upload|vol-delete)\n\
             left=$(cat '{0}')\n[ \"$left\" -gt 0 ] || {{ echo 'error: killed by the lab' >&2; echo -1 > '{0}'; exit 1; }}\n\
             echo $((left - 1)) > '{0}';;\nesac\nexec virsh \"$@\"\n",
            counter.display()
        );
        fs::write(&counter, calls.to_string()).expect("written");
        fs::write(&program, script).expect("written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("made executable");
        (self.libvirt(&self.cluster_id, self.settings()).through(program), counter)
    }

    fn was_killed(counter: &PathBuf) -> bool {
        fs::read_to_string(counter).expect("a counter").trim() == "-1"
    }

    /// The file of a member's data volume; the lab's pool is a directory of this host.
    fn data(&self) -> PathBuf {
        let beginning = format!("quorate-{}-etcd-1.", self.cluster_id);
        let volumes = virsh(&["vol-list", "--pool", POOL]);
        let names = volumes.lines().filter_map(|line| line.split_whitespace().next());
        let names = names.filter(|name| name.starts_with(&beginning) && name.ends_with("-data.qcow2"));
        let name = names.max().expect("a data volume");
        PathBuf::from(virsh(&["vol-path", "--pool", POOL, name]).trim())
    }
}

fn first() -> MachineId {
    MachineId::new(&"etcd-1".into(), 1)
}

fn virsh(words: &[&str]) -> String {
    let uri = std::env::var(URI).expect("the lab says where libvirt is");
    let output = Command::new("virsh").args(["--quiet", "--connect", &uri]).args(words).output().expect("virsh");
    assert!(output.status.success(), "virsh {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn said(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().expect(program);
    assert!(output.status.success(), "{program} {words:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

fn qemu_io(command: &str, file: &PathBuf) -> bool {
    Command::new("qemu-io").args(["-f", "qcow2", "-c", command]).arg(file).output().is_ok_and(|o| {
        // It says so, and ends well all the same.
        o.status.success() && !String::from_utf8_lossy(&o.stdout).contains("verification failed")
    })
}

#[async_trait(?Send)]
impl Ground for Place {
    fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    fn provider(&self) -> Rc<dyn Provider> {
        Rc::new(self.libvirt(&self.cluster_id, self.settings()))
    }

    fn stranger(&self) -> (Rc<dyn Provider>, String) {
        let id = format!("strange{}", self.range);
        (Rc::new(self.libvirt(&id, self.settings())), id)
    }

    fn pinned(&self, member: &str) -> Option<IpAddr> {
        let number = member.rsplit('-').next()?.parse().ok()?;
        Some(Ipv4Addr::new(10, 77, self.range, number).into())
    }

    async fn inventory(&self) -> BTreeSet<String> {
        let domains = virsh(&["list", "--all", "--name"]);
        let volumes = virsh(&["vol-list", POOL]);
        let volumes = volumes.lines().filter_map(|line| line.split_whitespace().next()).map(|v| format!("volume {v}"));
        let found = domains.lines().map(|domain| format!("domain {domain}")).chain(volumes);
        let words = [&format!("-{}-", self.cluster), &self.cluster_id, &format!("strange{}-", self.range)];
        let logs = fs::read_dir("/var/log/libvirt/qemu").into_iter().flatten().flatten();
        let logs =
            logs.map(|log| log.file_name().to_string_lossy().into_owned()).filter(|log| log.ends_with("console.log"));
        found.chain(logs).filter(|name| words.iter().any(|word| name.contains(*word))).collect()
    }

    async fn interrupt_create(&self, new: &NewMachine<'_>, after: usize) -> bool {
        let (provider, counter) = self.mortal(after);
        let _ = provider.create(new).await;
        Self::was_killed(&counter)
    }

    async fn interrupt_destroy(&self, _: &str, member: &MemberName, incarnation: u64, after: usize) -> bool {
        let (provider, counter) = self.mortal(after);
        let _ = provider.destroy(&MachineId::new(member, incarnation), Data::Goes).await;
        Self::was_killed(&counter)
    }

    async fn plant(&self, machine: &str) {
        let name = format!("quorate-{}-{machine}", self.cluster);
        let description = format!(
            "<domain type='qemu'><name>{name}</name><memory unit='MiB'>64</memory>\
             <os><type arch='x86_64'>hvm</type></os></domain>"
        );
        self.define(&description);
        virsh(&["vol-create-as", POOL, &format!("{name}-cloud-init.iso"), "4096"]);
    }

    async fn write_data(&self, _: &str, text: &str) {
        assert_eq!(text, "precious");
        assert!(qemu_io("write -P 0x70 0 512", &self.data()), "the data volume was written");
    }

    async fn read_data(&self, machine: &str) -> Option<String> {
        let domain = format!("quorate-{}-{machine}", self.cluster);
        assert!(virsh(&["dumpxml", &domain]).contains("<serial>quorate-data</serial>"), "{machine} has a data disk");
        // The file is locked while its machine is on.
        virsh(&["destroy", &domain]);
        qemu_io("read -P 0x70 0 512", &self.data()).then(|| String::from("precious"))
    }

    fn greedy(&self) -> Option<Rc<dyn Provider>> {
        let settings = LibvirtSettings { data_size: Some(Size::gibibytes(1 << 20)), ..self.settings() };
        Some(Rc::new(self.libvirt(&self.cluster_id, settings)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What a test that failed has left, and what was planted.
        let run = |words: &[&str]| {
            let uri = std::env::var(URI).unwrap_or_default();
            let output = Command::new("virsh").args(["--quiet", "--connect", &uri]).args(words).output();
            output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default()
        };
        for domain in run(&["list", "--all", "--name"]).lines().filter(|d| d.contains(&format!("-{}-", self.cluster))) {
            run(&["destroy", domain]);
            run(&["undefine", domain]);
        }
        for line in run(&["vol-list", POOL]).lines() {
            let name = line.split_whitespace().next().unwrap_or_default();
            if [&format!("-{}-", self.cluster), &self.cluster_id, &format!("strange{}-", self.range)]
                .iter()
                .any(|w| name.contains(*w))
            {
                run(&["vol-delete", "--pool", POOL, name]);
            }
        }
    }
}

type Case = (&'static str, fn(&Place));

/// What only libvirt can get wrong.
pub fn trials() -> Vec<Trial> {
    let cases: [Case; 16] = [
        ("a_host_that_is_out_of_reach_hides_its_machines_and_no_others", |place| {
            let second = SecondHost::new();
            suite::runtime().block_on(second.is_lost_and_found(place));
        }),
        ("a_host_that_two_uris_lead_to_has_each_machine_once", |place| {
            let socket = "qemu+unix:///system?socket=/run/libvirt/libvirt-sock";
            suite::runtime().block_on(async {
                let provider = place.spread(&[("etcd-1", socket)], &[]);
                place.create(&provider, Data::Goes).await.expect("a machine");
                let uri = std::env::var(URI).expect("the lab says where libvirt is");
                let moved = place.spread(&[], &[socket]).machines().await.expect("a look").found;
                assert_eq!(moved.len(), 1, "{moved:?}");
                assert_eq!(moved[0].1.place, Some(uri), "it is where the spec says");
            });
            place.removed();
        }),
        ("an_unknown_pool_is_told_with_those_that_are_there", |place| {
            let settings = LibvirtSettings { pool: String::from("nowhere"), ..place.settings() };
            place.refuses(settings, "libvirt has no storage pool `nowhere`; it has quorate-lab");
        }),
        ("an_unknown_image_is_told", |place| {
            let mut settings = place.settings();
            settings.image.as_mut().expect("an image").volume = "nothing".parse().expect("a name");
            place.refuses(settings, "libvirt has no volume `quorate-lab/nothing`; it has ");
        }),
        ("a_root_disk_smaller_than_its_image_is_refused", |place| {
            let mut settings = place.settings();
            settings.image.as_mut().expect("an image").root_size = Some(Size(512));
            place.refuses(settings, "more than the `root_size` of 512B");
        }),
        ("a_program_that_is_not_static_is_refused", |place| {
            let mut settings = place.settings();
            settings.image.as_mut().expect("an image").has_agent = false;
            place.refuses(settings, "is not statically linked");
        }),
        ("libvirt_that_is_not_there_is_told", |place| {
            let uri = String::from("qemu+unix:///system?socket=/nowhere");
            place.refuses(LibvirtSettings { uri, ..place.settings() }, "cannot be reached: ");
        }),
        ("an_unknown_network_is_told_with_those_that_are_there", |place| {
            let to = Attachment::Network(String::from("nowhere"));
            place.refuses_with(place.settings(), to, None, "libvirt has no network `nowhere`; it has ");
        }),
        ("a_network_that_is_not_started_is_told", |place| {
            let name = format!("{}-idle", place.cluster);
            let network = format!("<network><name>{name}</name></network>");
            place.written(&network, |file| drop(virsh(&["net-define", file])));
            let expected = format!("the network `{name}` of libvirt is not active; `virsh net-start {name}` starts it");
            place.refuses_with(place.settings(), Attachment::Network(name.clone()), None, &expected);
            virsh(&["net-undefine", &name]);
        }),
        ("a_seed_disk_of_somebody_else_is_not_overwritten", |place| {
            let volume = format!("quorate-{}-etcd-1-cloud-init.iso", place.cluster);
            virsh(&["vol-create-as", POOL, &volume, "4096"]);
            place.refuses(place.settings(), "and nothing says that it is this machine's");
        }),
        ("a_mac_that_another_machine_has_is_refused", |place| {
            place.plant_mac("52:54:00:77:77:77");
            let to = Attachment::Network(NETWORK.to_owned());
            let mac = Some("52:54:00:77:77:77");
            place.refuses_with(place.settings(), to, mac, "is already used by the machine `quorate-");
        }),
        ("the_seed_disk_is_read_by_other_programs_and_holds_what_the_machine_is_told", |place| {
            place.made(Attachment::Network(NETWORK.to_owned()));
            let file = place.directory.path().join("seed.img");
            let volume = format!("quorate-{}-etcd-1-cloud-init.iso", place.cluster);
            virsh(&["vol-download", "--pool", POOL, &volume, &file.to_string_lossy()]);
            let file = file.to_string_lossy();
            said("fsck.vfat", &["-n", &file]);
            assert_eq!(said("blkid", &["-o", "value", "-s", "LABEL", &file]).trim(), "cidata");
            let told: boot::Machine = serde_json::from_str(&said("mtype", &["-i", &file, "::machine.json"])).unwrap();
            assert_eq!((told.hostname.as_str(), Some(told.interfaces[0].address)), ("etcd-1", place.pinned("etcd-1")));
            assert_eq!(told.data_disk.map(|disk| disk.serial).as_deref(), Some("quorate-data"));
            let seed: Seed = serde_json::from_str(&said("mtype", &["-i", &file, "::seed.json"])).unwrap();
            assert_eq!(seed.cluster_id, place.cluster_id);
            assert!(said("mtype", &["-i", &file, "::user-data"]).starts_with("#cloud-config\n"));
            let config = said("mtype", &["-i", &file, "::network-config"]);
            assert!(config.contains(&told.interfaces[0].mac), "{config}");
            place.removed();
        }),
        ("an_agent_behind_macvtap_is_reached_over_its_line", |place| {
            place.made(Attachment::Macvtap(MACVTAP.to_owned()));
            suite::runtime().block_on(async {
                let provider = place.provider();
                let seen = provider.machines().await.expect("a look").found;
                let dial = provider.dial(&first(), &seen[0].1);
                assert!(matches!(&dial, Dial::Line(path) if path.exists()), "{dial:?}");
            });
            place.removed();
        }),
        ("a_machine_comes_up_with_its_host_unless_it_was_switched_off", |place| {
            place.made(Attachment::Network(NETWORK.to_owned()));
            let domain = format!("quorate-{}-etcd-1", place.cluster);
            let starts = || virsh(&["list", "--all", "--autostart", "--name"]).lines().any(|name| name == domain);
            assert!(starts(), "it is on");
            let provider = place.provider();
            suite::runtime().block_on(provider.stop(&first())).expect("stopped");
            assert!(!starts(), "it was switched off");
            suite::runtime().block_on(provider.start(&first())).expect("started");
            virsh(&["autostart", &domain, "--disable"]);
            suite::runtime().block_on(provider.admit(2)).expect("admitted");
            assert!(starts(), "one that an earlier version made");
            place.removed();
        }),
        ("data_with_the_name_of_earlier_versions_is_kept", |place| {
            let volume = format!("quorate-{}-etcd-1-data.qcow2", place.cluster_id);
            virsh(&["vol-create-as", POOL, &volume, "1M", "--format", "qcow2"]);
            let provider = place.provider();
            suite::runtime().block_on(place.create(&*provider, Data::Stays)).expect("a machine");
            let described = virsh(&["dumpxml", &format!("quorate-{}-etcd-1", place.cluster)]);
            assert!(described.contains(&volume), "{described}");
            place.removed();
            assert!(!virsh(&["vol-list", "--pool", POOL]).contains(&volume), "it goes with the member's machine");
        }),
        ("the_trial_of_kvm_leaves_nothing", |place| {
            let settings = LibvirtSettings { acceleration: Acceleration::Probe, ..place.settings() };
            suite::runtime().block_on(async {
                let before = place.inventory().await;
                let provider = place.libvirt(&place.cluster_id, settings);
                place.create(&provider, Data::Goes).await.expect("a machine");
                provider.destroy(&first(), Data::Goes).await.expect("destroyed");
                assert_eq!(place.inventory().await, before);
            });
            let memory = fs::read_dir(place.directory.path().join("cache/libvirt")).expect("a memory of it");
            assert_eq!(memory.count(), 1);
        }),
    ];
    let trial = |(name, case): Case| {
        Trial::test(format!("libvirt::{name}"), move || {
            case(&Place::new());
            Ok(())
        })
    };
    cases.into_iter().map(trial).collect()
}

/// The libvirt of another host, as far as anybody can tell: it has its own socket, domains, pool and network.
struct SecondHost {
    uri: String,
    socket: PathBuf,
}

impl SecondHost {
    fn new() -> Self {
        let uri = std::env::var(SECOND_URI).expect("the lab says where the second libvirt is");
        let socket = PathBuf::from(uri.split_once("socket=").expect("a socket").1);
        SecondHost { uri, socket }
    }

    fn away(&self) -> PathBuf {
        self.socket.with_extension("away")
    }

    fn goes_away(&self) {
        fs::rename(&self.socket, self.away()).expect("a socket");
    }

    fn comes_back(&self) {
        fs::rename(self.away(), &self.socket).expect("a socket");
    }

    fn domains(&self, place: &Place) -> usize {
        let words = ["--quiet", "--connect", &self.uri, "list", "--all", "--name"];
        said("virsh", &words).lines().filter(|name| name.contains(&format!("-{}-", place.cluster))).count()
    }

    async fn is_lost_and_found(&self, place: &Place) {
        let before = place.inventory().await;
        let enrolment = Enrolment::new();
        let id = |member: &str| MachineId::new(&member.into(), 1);
        let new = |member: &'static str, fence| {
            enrolment.machine(member, id(member), place.pinned(member), Data::Goes, fence)
        };
        let spread = || place.spread(&[("etcd-2", &self.uri)], &[]);
        let provider = spread();
        provider.admit(1).await.expect("admitted");
        for member in ["etcd-1", "etcd-2"] {
            provider.create(&new(member, 1)).await.expect("a machine");
        }
        assert_eq!(self.domains(place), 1);
        let twice = Some(place.pinned("etcd-2").expect("an address"));
        let refused = provider.create(&enrolment.machine("etcd-3", id("etcd-3"), twice, Data::Goes, 1)).await;
        assert!(matches!(refused, Err(ProviderError::AddressTaken { .. })), "hosts share a network: {refused:?}");
        let machines = provider.machines().await.expect("a look");
        assert!(machines.found.len() == 2 && machines.away.is_empty(), "{machines:?}");
        let second = machines.found.iter().find(|(member, _)| member.as_str() == "etcd-2").expect("it is shown");
        assert_eq!(second.1.place.as_ref(), Some(&self.uri));
        let told = second.1.data.as_deref().expect("a data volume");
        assert!(told.contains(&self.uri), "its data is nowhere else: {told}");

        self.goes_away();
        let provider = spread();
        provider.admit(2).await.expect("the other host admits it");
        let machines = provider.machines().await.expect("a look");
        assert_eq!(machines.found.iter().map(|(member, _)| member.as_str()).collect::<Vec<_>>(), ["etcd-1"]);
        assert!(machines.away[&self.uri].contains("cannot be reached"), "{machines:?}");
        for done in [
            provider.start(&id("etcd-2")).await,
            provider.stop(&id("etcd-2")).await,
            provider.destroy(&id("etcd-2"), Data::Goes).await,
            provider.create(&new("etcd-2", 2)).await,
            provider.forget().await,
        ] {
            assert!(done.expect_err("nothing can be done there").to_string().contains("cannot be reached"));
        }
        provider.create(&new("etcd-3", 2)).await.expect("the other host makes machines");
        provider.stop(&id("etcd-1")).await.expect("and stops them");
        provider.dismiss(2).await.expect("dismissed");

        self.comes_back();
        // The spec has no member there any more, and the ledger remembers that there was one.
        let provider = place.spread(&[], &[&self.uri]);
        let machines = provider.machines().await.expect("a look");
        assert!(machines.found.len() == 3 && machines.away.is_empty(), "{machines:?}");
        for member in ["etcd-1", "etcd-2", "etcd-3"] {
            provider.destroy(&id(member), Data::Goes).await.expect("destroyed");
        }
        provider.forget().await.expect("forgotten");
        assert_eq!((self.domains(place), place.inventory().await), (0, before));
    }
}

impl Drop for SecondHost {
    fn drop(&mut self) {
        if self.away().exists() {
            self.comes_back();
        }
    }
}

impl Place {
    async fn create(&self, provider: &dyn Provider, data: Data) -> Result<(), ProviderError> {
        let enrolment = Enrolment::new();
        provider.create(&enrolment.machine("etcd-1", first(), self.pinned("etcd-1"), data, 1)).await
    }

    fn made(&self, to: Attachment) {
        let provider = self.attached(&self.cluster_id, self.settings(), to, None);
        suite::runtime().block_on(self.create(&provider, Data::Goes)).expect("a machine");
    }

    fn removed(&self) {
        let destroyed = async { self.provider().destroy(&first(), Data::Goes).await };
        suite::runtime().block_on(destroyed).expect("destroyed");
    }

    /// A machine with such settings cannot be made; it is told why, and nothing is left.
    fn refuses(&self, settings: LibvirtSettings, expected: &str) {
        self.refuses_with(settings, Attachment::Network(NETWORK.to_owned()), None, expected);
    }

    fn refuses_with(&self, settings: LibvirtSettings, to: Attachment, mac: Option<&str>, expected: &str) {
        suite::runtime().block_on(async {
            let before = self.inventory().await;
            let mac = mac.map(|mac| mac.parse().expect("a MAC"));
            let provider = self.attached(&self.cluster_id, settings, to, mac);
            let refused = self.create(&provider, Data::Goes).await.expect_err("it is refused");
            assert!(refused.to_string().contains(expected), "{refused}");
            assert_eq!(self.inventory().await, before);
        });
    }

    fn plant_mac(&self, mac: &str) {
        let description = format!(
            "<domain type='qemu'><name>quorate-{}-other</name><memory unit='MiB'>64</memory>\
             <os><type arch='x86_64'>hvm</type></os><devices><interface type='network'><mac address='{mac}'/>\
             <source network='{NETWORK}'/></interface></devices></domain>",
            self.cluster
        );
        self.define(&description);
    }

    fn define(&self, description: &str) {
        self.written(description, |file| drop(virsh(&["define", file])));
    }

    fn written(&self, content: &str, use_it: impl FnOnce(&str)) {
        let file = self.directory.path().join("planted.xml");
        fs::write(&file, content).expect("written");
        use_it(&file.to_string_lossy());
    }
}
