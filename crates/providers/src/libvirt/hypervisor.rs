//! One libvirt, and the machines of a cluster there. A machine is a domain with a root disk, a seed disk and perhaps a data disk.
//!
//! The domain is created first and removed last, and its mark names every volume that was created for it. While disks are created it
//! is a draft and no machine; the next controller that is admitted removes it with everything that belongs to it. Only volumes with the
//! cluster's ID, or that such a mark names, are ever removed; what the operator provided never is.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use quorate_agent::api::Seed;
use quorate_agent::api::boot;
use quorate_agent::private_directory;
use quorate_core::model::{Build, CLIENT_PORT, Ledger, MachineId, MachineSeen, MemberName, PowerState};
use quorate_core::providers::Settings;
use quorate_core::providers::libvirt::{Acceleration, Attachment, InterfaceSpec, LibvirtSettings, is_here, section};
use quorate_core::spec::{ClusterSpec, MemberSpec, Size};
use quorate_pki::Sha256;

use super::domain::{DATA_SERIAL, Disk, Found, MARK_KEY, MARK_URI, Mark, State, Volume, Wanted};
use super::virsh::{LibvirtError, STDIN, Virsh};
use super::volumes;
use crate::fat::Drive;
use crate::seed_disk::{seed_disk, static_program};
use crate::{Data, Directories, NewMachine, ProviderError, last_lines};
use quorate_core::text::with_causes;

/// The prefix of the names of all quorate's domains and volumes.
pub(super) const PREFIX: &str = "quorate-";
pub(super) const ROOT_SUFFIX: &str = "-root.qcow2";
pub(super) const DATA_SUFFIX: &str = "-data.qcow2";
/// How long a machine may take to shut down before it is switched off.
const STOP_PATIENCE: Duration = Duration::from_secs(60);
/// How much of a console is shown when there is nothing else to show.
const LAST_LINES: usize = 20;

pub(super) struct Hypervisor {
    pub(super) virsh: Virsh,
    /// Those of the provider, with the URI of this one.
    pub(super) settings: LibvirtSettings,
    pub(super) spec: ClusterSpec,
    pub(super) cluster_id: String,
    pub(super) cache: PathBuf,
    /// Its URI, where most of the cluster are elsewhere.
    apart: Option<String>,
    /// Where consoles are written that libvirt's own log directory is not for.
    logs: PathBuf,
    pub(super) stop_patience: Duration,
    /// Serial ports of machines that no network leads to, as `machines` last saw them.
    lines: RefCell<BTreeMap<MachineId, PathBuf>>,
}

impl Hypervisor {
    pub(super) fn new(directories: &Directories, ledger: &Ledger, settings: &LibvirtSettings, uri: &str) -> Self {
        Hypervisor {
            virsh: Virsh::new(PathBuf::from("virsh"), uri.to_owned()),
            apart: Some(uri.to_owned()).filter(|uri| *uri != settings.uri),
            settings: LibvirtSettings { uri: uri.to_owned(), ..settings.clone() },
            spec: ledger.spec.clone(),
            cluster_id: ledger.cluster_id.clone(),
            cache: directories.cache.join("libvirt"),
            logs: directories.cache.join("consoles"),
            stop_patience: STOP_PATIENCE,
            lines: RefCell::default(),
        }
    }

    pub(super) fn uri(&self) -> &str {
        &self.settings.uri
    }

    /// Speaks to libvirt through another program than the `virsh` of the PATH.
    pub(super) fn through(self, program: PathBuf) -> Self {
        let uri = self.settings.uri.clone();
        Hypervisor { virsh: Virsh::new(program, uri), ..self }
    }

    /// Switches machines off earlier that do not shut down.
    pub(super) fn stopping_within(self, stop_patience: Duration) -> Self {
        Hypervisor { stop_patience, ..self }
    }

    fn domain_name(&self, machine: &str) -> String {
        format!("{PREFIX}{}-{machine}", self.spec.name)
    }

    /// Every domain with this beginning of its name.
    async fn domains(&self, beginning: &str) -> Result<Vec<Found>, LibvirtError> {
        let names = self.virsh.names(&["list", "--all", "--name"]).await?;
        let looks = names.iter().filter(|name| name.starts_with(beginning)).map(async |name| self.domain(name).await);
        let found: Result<Vec<_>, _> = join_all(looks).await.into_iter().collect();
        Ok(found?.into_iter().flatten().collect())
    }

    /// One that vanishes meanwhile is not there.
    pub(super) async fn domain(&self, name: &str) -> Result<Option<Found>, LibvirtError> {
        match self.virsh.run(&["dumpxml", name]).await {
            Ok(description) => match Found::read(&description) {
                Some(found) => Ok(Some(found)),
                None => Err(LibvirtError::Unreadable { name: name.to_owned() }),
            },
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Those of this cluster's name, with their marks.
    async fn marked(&self) -> Result<Vec<(Found, Mark)>, LibvirtError> {
        let cluster = self.spec.name.as_str();
        let found = self.domains(&format!("{PREFIX}{cluster}-")).await?;
        let marked = found.into_iter().filter_map(|found| Some((found.clone(), found.mark?)));
        Ok(marked.filter(|(_, mark)| mark.cluster == cluster).collect())
    }

    /// Those that this cluster has created or begun.
    pub(super) async fn ours(&self) -> Result<Vec<(Found, Mark)>, LibvirtError> {
        let marked = self.marked().await?;
        Ok(marked.into_iter().filter(|(_, mark)| mark.cluster_id == self.cluster_id).collect())
    }

    async fn find(&self, machine: &MachineId) -> Result<Option<(Found, Mark)>, LibvirtError> {
        let meant = |mark: &Mark| mark.member == machine.member && mark.incarnation == machine.incarnation;
        Ok(self.ours().await?.into_iter().find(|(_, mark)| meant(mark) && mark.state == State::Whole))
    }

    /// Changes the mark of exactly the observed domain: another one may have its name by now.
    async fn set_mark(&self, found: &Found, mark: &Mark) -> Result<(), LibvirtError> {
        let element = mark.element();
        let mut words =
            vec!["metadata", &found.uuid, "--uri", MARK_URI, "--key", MARK_KEY, "--set", &element, "--config"];
        if found.on {
            words.push("--live");
        }
        self.virsh.run(&words).await.map(drop)
    }

    /// Removes a domain with everything that was created for it.
    async fn clear(&self, found: &Found, mark: &Mark, data: Data) -> Result<(), ProviderError> {
        let doomed = mark.data.clone().filter(|_| data == Data::Goes);
        if mark.state == State::Whole {
            // From now on it no longer counts as a machine, wherever this may be interrupted.
            self.set_mark(found, &Mark { state: State::Going, data: doomed.clone(), ..mark.clone() }).await?;
        }
        self.power_off(found).await?;
        for volume in mark.volumes.iter().chain(&doomed) {
            self.virsh.delete_volume(volume).await?;
        }
        self.undefine(found).await?;
        self.remove_console(&mark.console)
    }

    pub(super) fn remove_console(&self, console: &Path) -> Result<(), ProviderError> {
        if !is_here(&self.settings.uri) {
            return Ok(());
        }
        match fs::remove_file(console) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(ProviderError::Io { what: "removed", path: console.to_owned(), source })
            }
            _ => Ok(()),
        }
    }

    /// Removes unfinished and partially removed domains whose mark matches, and disks that belong to no domain any more.
    async fn sweep(&self, doomed: impl Fn(&Mark) -> bool) -> Result<(), ProviderError> {
        // Listed before the domains: a controller defines the domain before it creates a disk.
        let mut roots = self.volumes_of_cluster(ROOT_SUFFIX).await?;
        let mut seeds = self.seeds_by_name().await?;
        for (found, mark) in self.ours().await? {
            if mark.state == State::Going || mark.state == State::Draft && doomed(&mark) {
                // Data to keep is not in such a mark.
                self.clear(&found, &mark, Data::Goes).await?;
            }
            roots.retain(|root| !mark.volumes.contains(root));
            seeds.retain(|(seed, _)| !mark.volumes.contains(seed));
        }
        for root in roots {
            self.virsh.delete_volume(&root).await?;
        }
        for (seed, domain) in seeds {
            self.remove_orphan(&seed, &domain).await?;
        }
        Ok(())
    }

    pub(super) async fn volumes_of_cluster(&self, suffix: &str) -> Result<Vec<Volume>, LibvirtError> {
        let pool = &self.settings.pool;
        let names = match self.virsh.volumes(pool).await {
            // A spec that names a wrong pool is reported when a machine is made.
            Err(error) if error.is_absent() => Vec::new(),
            names => names?,
        };
        let beginning = format!("{PREFIX}{}-", self.cluster_id);
        let ours = names.into_iter().filter(|name| name.starts_with(&beginning) && name.ends_with(suffix));
        Ok(ours.map(|name| Volume { pool: pool.clone(), name }).collect())
    }

    pub(super) fn console_file(&self, domain: &str) -> PathBuf {
        // Confined as it may be, libvirt can always write here.
        let system = Path::new("/var/log/libvirt/qemu");
        let directory = if self.settings.uri.ends_with("/session") { &self.logs } else { system };
        directory.join(format!("{domain}-console.log"))
    }

    fn mac(&self, member: &MemberSpec, number: usize, interface: &InterfaceSpec) -> String {
        interface.mac.as_ref().map_or_else(|| generated_mac(&self.cluster_id, member, number), ToString::to_string)
    }

    /// The address that the spec gives to a new machine, if no other machine has it.
    async fn address(&self, new: &NewMachine<'_>, elsewhere: Option<String>) -> Result<IpAddr, ProviderError> {
        let wanted = new.address.ok_or_else(|| ProviderError::NoAddress { range: String::from("the spec") })?;
        match elsewhere.or(self.holder_of(wanted).await?) {
            Some(by) => Err(ProviderError::AddressTaken { address: wanted, port: CLIENT_PORT, by: Some(by) }),
            None => Ok(wanted),
        }
    }

    /// Which machine here has an address.
    pub(super) async fn holder_of(&self, address: IpAddr) -> Result<Option<String>, LibvirtError> {
        let marks = self.domains(PREFIX).await?.into_iter().filter_map(|found| found.mark);
        let mut marks = marks.filter(|mark| mark.state != State::Draft && mark.address == address);
        Ok(marks.next().map(|mark| format!("{} of cluster {}", mark.member, mark.cluster)))
    }

    /// Obstacles to a new machine, and missing resources, reported before anything is created.
    async fn prepare(&self, domain: &str, member: &MemberSpec, draft: &Mark) -> Result<Prepared, ProviderError> {
        let name = member.name.to_string();
        let pool = self.settings.pool.clone();
        let left = self.virsh.left_in(&pool).await?;
        let image = match (&section(member).root_volume, &self.settings.image) {
            (None, Some(image)) => Some(self.virsh.volume(&self.volume(&image.volume)).await?),
            _ => None,
        };
        let root = image.as_ref().map_or(Ok(0), |image| self.root_size(image))?;
        let needed = root + draft.data.as_ref().and(self.settings.data_size_of(member)).map_or(0, |size| size.0);
        if needed > left {
            return Err(
                LibvirtError::NoSpace { pool, member: name, needed: rounded(needed), left: rounded(left) }.into()
            );
        }
        let mut interfaces = Vec::new();
        for (number, interface) in section(member).interfaces.iter().enumerate() {
            let to = match &interface.to {
                Attachment::Network(name) => Attachment::Network(self.virsh.network(name).await?),
                Attachment::NetworkId(id) => Attachment::Network(self.virsh.network(id.as_str()).await?),
                Attachment::Macvtap(device) => {
                    if is_here(&self.settings.uri) && !Path::new("/sys/class/net").join(device).exists() {
                        return Err(LibvirtError::NoDevice { name: device.clone() }.into());
                    }
                    interface.to.clone()
                }
            };
            interfaces.push((to, self.mac(member, number, interface)));
        }
        for other in self.domains("").await?.into_iter().filter(|other| other.name != domain) {
            if let Some((_, mac)) = interfaces.iter().find(|(_, mac)| other.macs.contains(mac)) {
                return Err(LibvirtError::MacTaken { mac: mac.clone(), member: name, by: other.name }.into());
            }
        }
        let seed = draft.volumes.last().expect("every machine has a seed disk").clone();
        if seed.pool != self.settings.pool {
            self.virsh.left_in(&seed.pool).await?;
        }
        if self.virsh.find_volume(&seed).await?.is_some() {
            return Err(LibvirtError::VolumeTaken { pool: seed.pool, name: seed.name }.into());
        }
        Ok(Prepared { interfaces, seed, image })
    }

    /// As the spec has it, or that of the image.
    fn root_size(&self, image: &volumes::Details) -> Result<u64, LibvirtError> {
        let wanted = self.settings.image.as_ref().and_then(|image| image.root_size);
        match wanted {
            Some(wanted) if wanted.0 < image.capacity => Err(LibvirtError::ImageLarger {
                image: image.path.clone(),
                has: rounded(image.capacity),
                wanted: wanted.to_string(),
            }),
            Some(wanted) => Ok(wanted.0),
            None => Ok(image.capacity),
        }
    }

    fn volume(&self, name: &quorate_core::spec::VolumeName) -> Volume {
        let (pool, name) = name.within(&self.settings.pool);
        Volume { pool: pool.to_owned(), name: name.to_owned() }
    }

    /// The disk of a user-provided volume.
    async fn brought(&self, name: &quorate_core::spec::VolumeName) -> Result<Disk, LibvirtError> {
        let volume = self.volume(name);
        let format = self.virsh.volume(&volume).await?.format;
        Ok(Disk { volume, format })
    }

    fn mark(&self, domain: &str, machine: &str, member: &MemberSpec, seed: &Seed, fence: u64) -> Mark {
        let own = |name: String| Volume { pool: self.settings.pool.clone(), name };
        let named = |what: &str, suffix: &str| own(format!("{PREFIX}{}-{what}{suffix}", self.cluster_id));
        let cloud_init = &self.settings.cloud_init;
        let mut volumes = Vec::new();
        if section(member).root_volume.is_none() {
            volumes.push(named(machine, ROOT_SUFFIX));
        }
        volumes.push(Volume {
            pool: cloud_init.pool.clone().unwrap_or_else(|| self.settings.pool.clone()),
            name: cloud_init.name.replace("<name>", domain),
        });
        let makes_data = section(member).data_volume.is_none() && self.settings.data_size_of(member).is_some();
        Mark {
            cluster: seed.cluster.clone(),
            cluster_id: seed.cluster_id.clone(),
            member: seed.member.clone(),
            incarnation: seed.incarnation,
            address: seed.address,
            fence,
            state: State::Draft,
            volumes,
            data: makes_data.then(|| self.new_data(member.name.as_str(), seed.incarnation, fence)),
            build: self.settings.build(member),
            console: self.console_file(domain),
            line_only: section(member).is_on_macvtap_alone(),
        }
    }

    /// Creates the disks of a draft, and only then marks it as a machine.
    async fn make(
        &self,
        domain: &str,
        machine: &str,
        member: &MemberSpec,
        seed: &Seed,
        data: Data,
        fence: u64,
    ) -> Result<(), ProviderError> {
        let mut mark = self.mark(domain, machine, member, seed, fence);
        let kept = match data {
            Data::Stays if mark.data.is_some() => self.kept_data(member.name.as_str()).await?,
            _ => None,
        };
        // Data to keep does not belong to the draft.
        let draft = Mark { data: mark.data.take().filter(|_| kept.is_none()), ..mark.clone() };
        mark.data = kept.or_else(|| draft.data.clone());
        let prepared = self.prepare(domain, member, &draft).await?;
        let brings_program = self.settings.image.as_ref().is_none_or(|image| !image.has_agent);
        let program = if brings_program { Some(static_program()?) } else { None };
        let root = match &section(member).root_volume {
            Some(name) => self.brought(name).await?,
            None => Disk { volume: mark.volumes[0].clone(), format: String::from("qcow2") },
        };
        let data_disk = match (&section(member).data_volume, &mark.data) {
            (Some(name), _) => Some(self.brought(name).await?),
            (None, Some(volume)) => Some(Disk { volume: volume.clone(), format: String::from("qcow2") }),
            (None, None) => None,
        };
        let described = self.machine(machine, member, data_disk.is_some());
        let uuid = uuid();
        let wanted = Wanted {
            name: domain,
            uuid: &uuid,
            mark: &draft,
            kvm: self.uses_kvm(&self.settings).await?,
            vcpus: self.settings.vcpus_of(member),
            memory: self.settings.memory_of(member).0,
            root,
            data: data_disk,
            seed: prepared.seed.clone(),
            interfaces: prepared.interfaces,
        };
        if let Some(directory) = mark.console.parent().filter(|directory| *directory == self.logs) {
            private_directory(directory).map_err(|source| ProviderError::Io {
                what: "created",
                path: directory.to_owned(),
                source,
            })?;
        }
        self.virsh.tell(&["define", STDIN], &wanted.description()).await?;
        if let Some(image) = &prepared.image {
            // An interrupted attempt may have left one that no mark names any more.
            self.virsh.delete_volume(&mark.volumes[0]).await?;
            self.virsh.make_root(&mark.volumes[0], image, self.root_size(image)?).await?;
        }
        if let (Some(volume), Some(size)) = (&draft.data, self.settings.data_size_of(member)) {
            self.virsh.make_empty(volume, size.0).await?;
        }
        let disk = seed_disk(seed, &described, program.as_deref(), Drive::Disk);
        self.virsh.make_raw(&prepared.seed, &disk).await?;
        let found = Found { uuid, name: domain.to_owned(), on: false, macs: Vec::new(), mark: None, line: None };
        self.set_mark(&found, &Mark { state: State::Whole, ..mark }).await?;
        self.power_on(&found.uuid).await?;
        self.remove_left_data(member.name.as_str()).await
    }

    /// The machine's settings.
    fn machine(&self, machine: &str, member: &MemberSpec, data_disk: bool) -> boot::Machine {
        let admin = &self.settings.admin;
        let interfaces = section(member).interfaces.iter().enumerate().map(|(number, interface)| boot::Interface {
            mac: self.mac(member, number, interface),
            address: interface.address,
            prefix: u8::try_from(interface.prefix).unwrap_or(u8::MAX),
            gateway: interface.gateway,
            dns: interface.dns.clone(),
            more_addresses: Vec::new(),
        });
        boot::Machine {
            // A dot would begin a domain.
            hostname: machine.replace('.', "-"),
            interfaces: interfaces.collect(),
            admin: Some(boot::Admin {
                user: admin.user.clone(),
                ssh_keys: admin.ssh_keys.clone(),
                console_password_hash: admin.console_password_hash.clone(),
            }),
            data_disk: data_disk.then(|| boot::DataDisk { serial: DATA_SERIAL.to_owned() }),
            channel: section(member).is_on_macvtap_alone(),
        }
    }
}

struct Prepared {
    interfaces: Vec<(Attachment, String)>,
    seed: Volume,
    /// The source of the root disk.
    image: Option<volumes::Details>,
}

impl Hypervisor {
    pub(super) async fn how_machines_run(&self) -> String {
        match (self.settings.acceleration, self.uses_kvm(&self.settings).await) {
            (Acceleration::Kvm, _) => String::from("machines run on the processor itself (KVM), as the spec says"),
            (Acceleration::Emulation, _) => String::from("machines are emulated, as the spec says: many times slower"),
            (Acceleration::Probe, Ok(true)) => {
                String::from("machines run on the processor itself (KVM): a trial machine booted so")
            }
            (Acceleration::Probe, Ok(false)) => format!(
                "machines are emulated, many times slower: a trial machine did not boot on the processor itself (KVM), {}",
                self.why_no_kvm()
            ),
            (Acceleration::Probe, Err(error)) => {
                format!("cannot tell whether machines can use hardware virtualization (KVM): {}", with_causes(&error))
            }
        }
    }

    /// Every machine of this cluster's name, with the UUID of its domain.
    pub(super) async fn machines(&self) -> Result<Vec<(String, MemberName, MachineSeen)>, LibvirtError> {
        let whole = self.marked().await?.into_iter().filter(|(_, mark)| mark.state == State::Whole);
        let mut lines = BTreeMap::new();
        let machines = whole.map(|(found, mark)| {
            if let (true, true, Some(line)) = (mark.line_only, mark.cluster_id == self.cluster_id, found.line) {
                lines.insert(MachineId::new(&mark.member, mark.incarnation), line);
            }
            let power = if found.on { PowerState::On } else { PowerState::Off };
            let Mark { cluster_id, member, incarnation, address, build, .. } = mark;
            let build = build.map(|build| build.found_at(self.apart.clone()));
            let data = build.as_ref().and_then(Build::data);
            let (address, place) = (Some(address), Some(self.uri().to_owned()));
            let (headless, outdated) = (false, false);
            let seen = MachineSeen { cluster_id, incarnation, power, headless, outdated, address, build, data, place };
            (found.uuid, member, seen)
        });
        let machines = machines.collect();
        *self.lines.borrow_mut() = lines;
        Ok(machines)
    }

    /// The host's end of a machine's serial line, where no network leads to it.
    pub(super) fn line(&self, id: &MachineId) -> Option<PathBuf> {
        self.lines.borrow().get(id).cloned()
    }

    pub(super) async fn admit(&self, fence: u64) -> Result<(), ProviderError> {
        self.sweep(|mark| mark.fence < fence).await?;
        Ok(self.let_start_with_host().await?)
    }

    pub(super) async fn dismiss(&self, fence: u64) -> Result<(), ProviderError> {
        self.sweep(|mark| mark.fence == fence).await
    }

    /// `elsewhere` is the owner of the address on another host.
    pub(super) async fn create(&self, new: &NewMachine<'_>, elsewhere: Option<String>) -> Result<(), ProviderError> {
        let domain = self.domain_name(new.name);
        if let Some(found) = self.domain(&domain).await? {
            match &found.mark {
                Some(mark) if mark.cluster_id != self.cluster_id => {
                    return Err(ProviderError::NotOurs { path: domain.into(), found: mark.cluster_id.clone() });
                }
                Some(mark) if mark.state == State::Whole => return Ok(self.power_on(&found.uuid).await?),
                Some(mark) => self.clear(&found, mark, Data::Goes).await?,
                None => return Err(LibvirtError::NameTaken { name: domain }.into()),
            }
        }
        let missing = || LibvirtError::NotInSpec { member: new.id.member.to_string() };
        let member = self.spec.machine(new.id.member.seat()).ok_or_else(missing)?;
        let seed = new.seed(self.spec.name.as_str(), &self.cluster_id, self.address(new, elsewhere).await?);
        self.make(&domain, new.name, &member, &seed, new.data, new.fence).await
    }

    pub(super) async fn start(&self, machine: &MachineId) -> Result<(), ProviderError> {
        match self.find(machine).await? {
            Some((found, _)) => Ok(self.power_on(&found.uuid).await?),
            None => {
                Err(ProviderError::NoSuchMachine { cluster: self.spec.name.to_string(), machine: machine.to_string() })
            }
        }
    }

    pub(super) async fn stop(&self, machine: &MachineId) -> Result<(), ProviderError> {
        match self.find(machine).await? {
            Some((found, _)) => Ok(self.keep_off(&found).await?),
            None => Ok(()),
        }
    }

    pub(super) async fn destroy(&self, machine: &MachineId, data: Data) -> Result<(), ProviderError> {
        let Some((mut found, mark)) = self.find(machine).await? else {
            return self.sweep(|_| false).await;
        };
        if data == Data::Stays && found.on {
            self.shut_down(&found).await?;
            found.on = false;
        }
        self.clear(&found, &mark, data).await
    }

    pub(super) async fn forget(&self) -> Result<(), ProviderError> {
        self.sweep(|_| true).await?;
        let still_used: Vec<Volume> = self.ours().await?.into_iter().filter_map(|(_, mark)| mark.data).collect();
        for volume in self.volumes_of_cluster(DATA_SUFFIX).await? {
            if !still_used.contains(&volume) {
                self.virsh.delete_volume(&volume).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn console(&self, machine: &MachineId) -> Result<String, ProviderError> {
        let Some((_, mark)) = self.find(machine).await? else { return Ok(String::new()) };
        if !is_here(&self.settings.uri) {
            return Ok(format!("(its console is in {} on the host of {})", mark.console.display(), self.settings.uri));
        }
        Ok(last_lines(&mark.console, LAST_LINES))
    }
}

/// A MAC in the range that is QEMU's own. It follows from cluster, member and place, so that a member's next machine has it too.
fn generated_mac(cluster_id: &str, member: &MemberSpec, number: usize) -> String {
    let hash = Sha256::digest(format!("{cluster_id}/{}/{number}", member.name));
    format!("52:54:00:{:02x}:{:02x}:{:02x}", hash[0], hash[1], hash[2])
}

pub(super) fn uuid() -> String {
    let hex = quorate_pki::random_hex(16);
    // The bits that say that it is random.
    format!("{}-{}-4{}-a{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
}

/// In whole mebibytes, which read better than bytes.
fn rounded(bytes: u64) -> String {
    Size(((bytes >> 20).max(1)) << 20).to_string()
}
