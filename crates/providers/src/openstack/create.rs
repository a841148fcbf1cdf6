//! Creates a server: everything is checked first; then its volumes and its port are created, then the server as a draft. When it runs,
//! it becomes a machine. The port stops a controller that was suspended: the next one has deleted it, and without it no server can be
//! created.

use std::borrow::Cow;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use quorate_agent::api::boot;
use quorate_core::model::MachineId;
use quorate_core::providers::Settings;
use quorate_core::providers::openstack::{SeedSource, VOLUME_ZONE};
use quorate_core::spec::{MemberSpec, Size};
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::catalogue::Service::{Compute, Image};
use super::compute::{CREATING, Flavor, gone};
use super::error::OpenstackError;
use super::network::Port;
use super::server::{Server, tag};
use super::session::Call;
use super::volumes::{Role, Volume};
use super::{Openstack, one_of, text};
use crate::marks::{Mark, State};
use crate::seed_disk::cloud_config;
use crate::stock::{seed_files, start_agent, write_files};
use crate::web::escaped;
use crate::{Data, NewMachine, ProviderError};

/// How much of a volume's id its disk has as its serial number.
const SERIAL: usize = 20;
/// What Nova takes as user data, in base64.
const MOST_USER_DATA: usize = 65_535;

/// Everything that must be known before anything is created.
struct Prepared {
    /// By id.
    image: String,
    flavor: Flavor,
    root_size: Option<Size>,
    data: DataDisk,
}

enum DataDisk {
    None,
    New(Size),
    /// The volume of the member's last machine, and the size that the spec wants.
    Kept(Volume, Size),
}

/// Volumes of a server, by id.
struct Disks {
    /// None: a disk of the flavor.
    root: Option<String>,
    data: Option<String>,
}

impl Openstack {
    pub(super) fn member(&self, machine: &MachineId) -> Result<Cow<'_, MemberSpec>, OpenstackError> {
        let found = self.spec.machine(machine.member.seat());
        found.ok_or_else(|| OpenstackError::NotInSpec { member: machine.member.to_string() })
    }

    /// `used`: volumes that servers have.
    async fn prepare(
        &self,
        new: &NewMachine<'_>,
        member: &MemberSpec,
        used: &[String],
    ) -> Result<Prepared, OpenstackError> {
        // Before its address and its disks are known, which are short.
        let unknown = self.machine(new, vec![longest_interface()], Some(&"x".repeat(SERIAL)));
        self.user_data(new, &unknown)?;
        self.checked.get_or_try_init(async || self.check_version().await).await?;
        let size = self.settings.data_size_of(member);
        let kept = match new.data {
            Data::Stays if size.is_some() => self.left_by(&new.id.member, used).await?.pop(),
            _ => None,
        };
        let data = match (kept, size) {
            (Some(volume), Some(size)) => DataDisk::Kept(volume, size),
            (None, Some(size)) => DataDisk::New(size),
            (_, None) => DataDisk::None,
        };
        let root_size = self.settings.root_size_of(member);
        let new_data = if let DataDisk::New(size) = data { Some(size) } else { None };
        let sizes: Vec<Size> = root_size.into_iter().chain(new_data).collect();
        if !sizes.is_empty() {
            self.check_volume_quota(member.name.as_str(), &sizes).await?;
        }
        let flavor = self.flavor(self.settings.flavor_of(member)).await?;
        self.check_seed(new.address).await?;
        self.check_compute_quota(member.name.as_str(), &flavor, self.longest_file(new)).await?;
        self.check_network_quota(new, member).await?;
        if let Some(name) = &self.settings.key_pair {
            self.check_key_pair(name).await?;
        }
        Ok(Prepared { image: self.image().await?, flavor, root_size, data })
    }

    /// The id of the image.
    async fn image(&self) -> Result<String, OpenstackError> {
        let (session, name) = (self.session()?, &self.settings.image);
        let path = format!("/images?name={}", escaped(name));
        let mut found = session.list("find the image", Image, &path, "images", None).await?;
        if found.is_empty() {
            found.extend(session.get("find the image", Image, &format!("/images/{}", escaped(name)), None).await?);
        }
        if found.is_empty() {
            found = session.list("list images", Image, "/images", "images", None).await?;
        }
        let image = one_of("image", name, &found)?;
        let status = text(image, "status").unwrap_or_default();
        if status != "active" {
            return Err(OpenstackError::ImageUnusable { image: name.clone(), status });
        }
        Ok(text(image, "id").unwrap_or_default())
    }

    fn mark(&self, new: &NewMachine<'_>, member: &MemberSpec, flavor: &Flavor, port: &Port) -> Mark {
        Mark {
            cluster: self.spec.name.to_string(),
            cluster_id: self.cluster_id.clone(),
            member: new.id.member.clone(),
            incarnation: new.id.incarnation,
            address: port.interface.address,
            fence: new.fence,
            state: State::Draft,
            port: Some(port.id.clone()).filter(|_| port.is_ours),
            data: None,
            build: self.settings.build(member),
            flavor: Some(flavor.name.clone()),
        }
    }

    /// Creates its volumes, its port and its server, and only then marks it as a machine.
    pub(super) async fn make(
        &self,
        name: &str,
        new: &NewMachine<'_>,
        ours: &[(Server, Mark)],
    ) -> Result<(), ProviderError> {
        let member = &*self.member(&new.id)?;
        let used: Vec<String> = ours.iter().filter_map(|(_, mark)| mark.data.clone()).collect();
        let prepared = self.prepare(new, member, &used).await?;
        let ports = self.ports_for(new, member).await?;
        self.put_floating(new, member, &ports[0]).await?;
        let mut mark = self.mark(new, member, &prepared.flavor, &ports[0]);
        let disks = self.disks(new, member, &prepared, &mut mark).await?;
        let server =
            self.build(name, new, self.description(name, new, member, &prepared, &disks, ports, &mark)?).await?;
        for volume in disks.root.iter().chain(&disks.data) {
            self.mark_volume(volume, State::Whole).await?;
        }
        (mark.state, mark.data) = (State::Whole, disks.data);
        self.set_metadata(&server, &json!(mark.parts())).await?;
        // Leftovers of the member's earlier machines are useless from now on.
        let used: Vec<String> = used.into_iter().chain(mark.data).collect();
        for volume in self.volumes_left(member, &new.id, &used).await? {
            self.delete_volume(&volume).await?;
        }
        Ok(())
    }

    /// Makes the volumes of a machine, and says in its mark what they are.
    async fn disks(
        &self,
        new: &NewMachine<'_>,
        member: &MemberSpec,
        prepared: &Prepared,
        mark: &mut Mark,
    ) -> Result<Disks, ProviderError> {
        let wanted = self.settings.volume_zone_of(member);
        let mut zone = None;
        let data = match &prepared.data {
            DataDisk::None => None,
            DataDisk::Kept(volume, size) => {
                zone.clone_from(&volume.zone);
                mark.build = mark.build.take().map(|build| volume.kept_in(&build, *size));
                Some(volume.id.clone())
            }
            DataDisk::New(size) => {
                let made = self.make_volume(&new.id, new.fence, Role::Data, *size, wanted, None).await?;
                zone = made.zone;
                // A draft takes it along when it is deleted. Data that is to stay is not the draft's to lose.
                mark.data = Some(made.id.clone());
                Some(made.id)
            }
        };
        let mut root = None;
        if let Some(size) = prepared.root_size {
            let image = Some(prepared.image.as_str());
            let made = self.make_volume(&new.id, new.fence, Role::Boot, size, wanted, image).await?;
            zone = zone.or(made.zone);
            root = Some(made.id);
        }
        // Also where the spec does not say it: if it does so later, the volume may be there already.
        if let Some(zone) = zone {
            mark.build = mark.build.take().map(|build| build.with(VOLUME_ZONE, &zone));
        }
        Ok(Disks { root, data })
    }

    async fn volumes_left(
        &self,
        member: &MemberSpec,
        machine: &MachineId,
        used: &[String],
    ) -> Result<Vec<Volume>, OpenstackError> {
        match self.settings.data_size_of(member) {
            Some(_) => self.left_by(&machine.member, used).await,
            None => Ok(Vec::new()),
        }
    }

    /// Creates the server, and returns when it runs. One that cannot be built is deleted, and what OpenStack says of it is the error.
    async fn build(&self, name: &str, new: &NewMachine<'_>, description: Value) -> Result<Server, ProviderError> {
        let mut body = json!({ "server": description });
        if let Some(group) = self.group().await? {
            body["os:scheduler_hints"] = json!({ "group": group });
        }
        let call = Call::new(format!("create {name}"), Compute, Method::POST, "/servers").json(body).at(CREATING);
        let find = async || self.find_draft(&new.id, new.fence).await;
        let made = self.session()?.create(call, find).await?;
        let id = made.get("server").and_then(|server| text(server, "id")).unwrap_or_default();
        let draft = Server::read(&json!({ "id": id, "name": name })).expect("it has an id");
        let is_built = |now: &Server| matches!(now.status.as_str(), "ACTIVE" | "ERROR" | "SHUTOFF") && !now.is_busy();
        let built = self.wait(&draft, self.patience, is_built).await?.ok_or_else(|| gone(&draft))?;
        if built.status == "ERROR" {
            let fault = built.fault();
            // Nova's error is more useful than a failure to remove it; the end of the run tries that again.
            let _ = self.delete_server(&built).await;
            let doing = format!("build {name}");
            return Err(OpenstackError::Refused { doing, code: 500, said: fault }.into());
        }
        Ok(built)
    }

    #[allow(clippy::too_many_arguments)]
    fn description(
        &self,
        name: &str,
        new: &NewMachine<'_>,
        member: &MemberSpec,
        prepared: &Prepared,
        disks: &Disks,
        ports: Vec<Port>,
        mark: &Mark,
    ) -> Result<Value, OpenstackError> {
        let disk = |source: &str, to: &str, id: &str, index: i8, goes: bool| {
            json!({
                "source_type": source, "destination_type": to, "uuid": id, "boot_index": index,
                "delete_on_termination": goes,
            })
        };
        let root = match &disks.root {
            Some(volume) => disk("volume", "volume", volume, 0, true),
            None => disk("image", "local", &prepared.image, 0, true),
        };
        let data = disks.data.as_ref().map(|volume| disk("volume", "volume", volume, -1, false));
        let devices: Vec<Value> = std::iter::once(root).chain(data).collect();
        let networks: Vec<Value> = ports.iter().map(|port| json!({ "port": port.id })).collect();
        let interfaces = ports.into_iter().map(|port| port.interface).collect();
        let machine = self.machine(new, interfaces, disks.data.as_deref());
        let mut server = json!({
            "name": name,
            "flavorRef": prepared.flavor.id,
            "networks": networks,
            "block_device_mapping_v2": devices,
            "config_drive": self.has_config_drive(),
            "metadata": json!(mark.parts()),
            "tags": [tag(self.spec.name.as_str())],
            "user_data": self.user_data(new, &machine)?,
        });
        if self.has_config_drive() {
            server["personality"] = self.files(new, &machine, mark);
        }
        if disks.root.is_none() {
            server["imageRef"] = json!(prepared.image);
        }
        if let Some(zone) = self.settings.zone_of(member) {
            server["availability_zone"] = json!(zone);
        }
        if let Some(key_pair) = &self.settings.key_pair {
            server["key_name"] = json!(key_pair);
        }
        Ok(server)
    }

    fn has_config_drive(&self) -> bool {
        self.settings.seed == SeedSource::ConfigDrive
    }

    /// In base64. With a config drive it is for images with cloud-init, and has no secret: the seed is elsewhere. Without one it has the seed,
    /// whose only secret is the enrolment token, which is bound to the first key and expires.
    fn user_data(&self, new: &NewMachine<'_>, machine: &boot::Machine) -> Result<String, OpenstackError> {
        // An address of a machine is in its settings.
        let seed = || new.seed(self.spec.name.as_str(), &self.cluster_id, machine.interfaces[0].address);
        let text = match self.settings.seed {
            SeedSource::ConfigDrive => self.cloud_config(machine, None),
            SeedSource::CloudInit => self.cloud_config(machine, Some(write_files(&seed(), machine))),
            SeedSource::Quorate => quorate_agent::boot::user_data(&seed(), machine),
        };
        let encoded = STANDARD.encode(text);
        if encoded.len() > MOST_USER_DATA {
            let (member, bytes) = (new.id.member.to_string(), encoded.len());
            return Err(OpenstackError::UserDataTooLong { member, bytes, most: MOST_USER_DATA });
        }
        Ok(encoded)
    }

    /// A key pair is for cloud-init's default user, which it makes only if it is asked to.
    fn cloud_config(&self, machine: &boot::Machine, files: Option<Value>) -> String {
        let mut more = Map::from_iter([(String::from("hostname"), json!(machine.hostname))]);
        more.extend(files.map(|files| (String::from("write_files"), files)));
        let commands = vec![start_agent(self.settings.program.as_ref())];
        cloud_config(machine.admin.as_ref(), self.settings.key_pair.is_some(), commands, more)
    }

    /// The seed has a token, so it is not user data, which every process on the machine can read: these files are on the config drive
    /// alone. cloud-init, or the agent itself, takes them from there before the agent starts.
    fn files(&self, new: &NewMachine<'_>, machine: &boot::Machine, mark: &Mark) -> Value {
        let seed = new.seed(self.spec.name.as_str(), &self.cluster_id, mark.address);
        let file = |(path, content): (String, Vec<u8>)| json!({ "path": path, "contents": STANDARD.encode(content) });
        seed_files(&seed, machine).into_iter().map(file).collect()
    }

    /// How long the longest of its files is, whatever its address is. None: it gets none.
    fn longest_file(&self, new: &NewMachine<'_>) -> Option<u64> {
        let longest = IpAddr::from([0xffff_u16; 8]);
        let seed = new.seed(self.spec.name.as_str(), &self.cluster_id, longest);
        let files = seed_files(&seed, &self.machine(new, Vec::new(), None));
        files.into_iter().map(|(_, content)| content.len() as u64).max().filter(|_| self.has_config_drive())
    }

    /// The `machine.json` of its seed.
    fn machine(&self, new: &NewMachine<'_>, interfaces: Vec<boot::Interface>, data: Option<&str>) -> boot::Machine {
        let admin = self.settings.admin.as_ref().map(|admin| boot::Admin {
            user: admin.user.clone(),
            ssh_keys: admin.ssh_keys.clone(),
            console_password_hash: admin.console_password_hash.clone(),
        });
        let serial = |volume: &str| volume.chars().take(SERIAL).collect();
        boot::Machine {
            // A dot would begin a domain.
            hostname: new.name.replace('.', "-"),
            interfaces,
            admin,
            data_disk: data.map(|volume| boot::DataDisk { serial: serial(volume) }),
            channel: false,
        }
    }
}

/// In the place of one that is not known yet.
fn longest_interface() -> boot::Interface {
    let address = IpAddr::from([0xffff_u16; 8]);
    boot::Interface {
        mac: String::from("fa:16:3e:00:00:00"),
        address,
        prefix: 128,
        gateway: Some(address),
        dns: vec![address; 4],
        more_addresses: Vec::new(),
    }
}

#[cfg(test)]
#[path = "create_tests.rs"]
mod tests;
