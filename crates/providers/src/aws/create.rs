//! Creates an instance: everything is checked first; then its interface and its data volume are created, then the instance as a draft.
//! When it runs and has its volume, it becomes a machine. The interface stops a controller that was suspended: the next one has deleted or
//! used it, and an interface belongs to one instance.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use quorate_agent::api::boot;
use quorate_core::model::{MachineId, PowerState};
use quorate_core::providers::Settings;
use quorate_core::spec::{MemberSpec, Size};

use super::Aws;
use super::compute::gone;
use super::error::AwsError;
use super::image::Found;
use super::instance::Instance;
use super::network::{Interface, Subnet};
use super::seed::user_data;
use super::session::Call;
use super::volumes::Volume;
use crate::marks::{Mark, State, key, parts_of};
use crate::{Data, NewMachine, ProviderError};

const GIB: u64 = 1 << 30;

/// Everything that must be known before anything is created.
struct Prepared {
    image: Found,
    /// Resources of the member's last machine.
    kept: Option<Volume>,
    kept_interfaces: Vec<Interface>,
    subnets: Vec<Subnet>,
    data_size: Option<Size>,
}

/// What an instance needs in one zone.
struct Parts {
    interface: Interface,
    /// The data volume, by id, and whether it was made for this instance.
    data: Option<(String, bool)>,
}

/// The missing capacity of each attempt.
#[derive(Default)]
struct Lacks {
    /// Without capacity for an instance or its volume.
    zones: Vec<String>,
    /// Without a free address.
    subnets: Vec<String>,
    said: String,
}

impl Lacks {
    /// Whether it is a lack, which is noted: something else may be tried.
    fn note(&mut self, error: &AwsError, subnet: &Subnet) -> bool {
        if error.is_capacity() {
            self.zones.push(subnet.zone.clone());
        } else if error.is_full_subnet() {
            self.subnets.push(subnet.id.clone());
        } else {
            return false;
        }
        self.said = error.said();
        true
    }

    fn error(self, member: &MemberSpec, types: &[String]) -> AwsError {
        let Lacks { zones, subnets, said } = self;
        if zones.is_empty() {
            AwsError::NoAddresses { member: member.name.to_string(), subnets, said }
        } else {
            AwsError::NoCapacity { types: types.to_vec(), zones, said }
        }
    }
}

impl Aws {
    pub(super) fn member(&self, machine: &MachineId) -> Result<Cow<'_, MemberSpec>, AwsError> {
        let found = self.spec.machine(machine.member.seat());
        found.ok_or_else(|| AwsError::NotInSpec { member: machine.member.to_string() })
    }

    /// `used`: volumes that instances have.
    async fn prepare(&self, new: &NewMachine<'_>, member: &MemberSpec, used: &[String]) -> Result<Prepared, AwsError> {
        let data_size = self.settings.data_size_of(member);
        let kept = match new.data {
            Data::Stays if data_size.is_some() => self.left_by(&new.id.member, used).await?.pop(),
            _ => None,
        };
        let zone = kept.as_ref().map(|volume| volume.zone.as_str());
        let subnets = match self.subnets_for(member, new.address, zone).await {
            Err(AwsError::NoSubnet { .. }) if kept.is_some() => return Err(self.zone_bound(member, new, kept)),
            subnets => subnets?,
        };
        let wanted = quorate_core::providers::aws::section(member).zone.as_ref();
        if let (Some(volume), Some(wanted)) = (&kept, wanted)
            && volume.zone != *wanted
        {
            return Err(self.zone_bound(member, new, kept));
        }
        let kept_interfaces = self.interfaces_left_to(&new.id).await?;
        self.check_types(self.settings.types_of(member), data_size.is_some()).await?;
        if let Some(name) = &self.settings.key_name {
            self.check_key_pair(name).await?;
        }
        Ok(Prepared { image: self.image().await?, kept, kept_interfaces, subnets, data_size })
    }

    /// Interfaces of the member's earlier machines. Those of an instance that has ended are waited for: without them the member would get
    /// another address.
    async fn interfaces_left_to(&self, machine: &MachineId) -> Result<Vec<Interface>, AwsError> {
        let mut left = self.interfaces().await?;
        left.retain(|interface| is_kept_for(interface, machine));
        for interface in &mut left {
            let Some(user) = interface.used_by.clone() else { continue };
            if self.look_at(&user).await?.is_none_or(|instance| !instance.is_alive()) {
                self.await_release(&interface.id, &user).await?;
                interface.used_by = None;
            }
        }
        left.retain(|interface| interface.used_by.is_none());
        Ok(left)
    }

    fn zone_bound(&self, member: &MemberSpec, new: &NewMachine<'_>, kept: Option<Volume>) -> AwsError {
        let (volume, zone) = kept.map(|volume| (volume.id, volume.zone)).unwrap_or_default();
        let wish = quorate_core::providers::aws::section(member).zone.as_ref();
        let wanted = match (wish, new.address) {
            (Some(wish), _) if *wish != zone => format!("the spec says zone {wish}"),
            (_, Some(address)) => format!("{address} is not in a subnet of that zone"),
            _ => String::from("`provider.aws` has no subnet there"),
        };
        AwsError::ZoneBound { member: member.name.to_string(), volume, zone, wanted }
    }

    fn mark(&self, new: &NewMachine<'_>, member: &MemberSpec, parts: &Parts, kind: &str) -> Mark {
        Mark {
            cluster: self.spec.name.to_string(),
            cluster_id: self.cluster_id.clone(),
            member: new.id.member.clone(),
            incarnation: new.id.incarnation,
            address: parts.interface.address,
            fence: new.fence,
            state: State::Draft,
            // A draft is deleted together with its new resources, but not with kept ones.
            port: Some(parts.interface.id.clone()).filter(|_| parts.interface.state == State::Draft),
            data: parts.data.as_ref().filter(|(_, is_new)| *is_new).map(|(id, _)| id.clone()),
            build: self.settings.build(member),
            flavor: Some(kind.to_owned()),
        }
    }

    /// Creates its interface, its volume and its instance, and only then marks it as a machine. If AWS has no capacity for any of the
    /// types, the next zone is tried; if a subnet has no free address, the next subnet.
    pub(super) async fn make(
        &self,
        name: &str,
        new: &NewMachine<'_>,
        ours: &[(Instance, Mark)],
    ) -> Result<(), ProviderError> {
        let member = &*self.member(&new.id)?;
        let used: Vec<String> = ours.iter().filter_map(|(_, mark)| mark.data.clone()).collect();
        let prepared = self.prepare(new, member, &used).await?;
        let mut lacks = Lacks::default();
        for subnet in &prepared.subnets {
            if lacks.zones.contains(&subnet.zone) {
                continue;
            }
            let parts = match self.parts(new, &prepared, subnet).await {
                Err(ProviderError::Aws(error)) if lacks.note(&error, subnet) => continue,
                parts => parts?,
            };
            match self.launch(name, new, member, &prepared, subnet, &parts).await {
                Err(ProviderError::Aws(error)) if lacks.note(&error, subnet) => self.give_up(&parts).await?,
                Err(error) => return Err(error),
                Ok((instance, mark)) => return self.complete(member, new, &instance, mark, &parts, used).await,
            }
        }
        Err(lacks.error(member, self.settings.types_of(member)).into())
    }

    async fn parts(&self, new: &NewMachine<'_>, prepared: &Prepared, subnet: &Subnet) -> Result<Parts, ProviderError> {
        let interface = self.interface(new, subnet, &prepared.kept_interfaces).await?;
        let data = match (&prepared.kept, prepared.data_size) {
            (Some(volume), _) => Some((volume.id.clone(), false)),
            (None, Some(size)) => match self.make_volume(&new.id, new.fence, size, &subnet.zone).await {
                Ok(volume) => Some((volume, true)),
                Err(error) => {
                    if error.is_capacity() {
                        self.give_up(&Parts { interface, data: None }).await?;
                    }
                    return Err(error.into());
                }
            },
            (None, None) => None,
        };
        Ok(Parts { interface, data })
    }

    /// Deletes what was made in a zone that has no capacity.
    async fn give_up(&self, parts: &Parts) -> Result<(), AwsError> {
        if parts.interface.state == State::Draft {
            self.delete_interface(&parts.interface.id).await?;
        }
        let made = parts.data.as_ref().filter(|(_, is_new)| *is_new);
        for volume in self.volumes().await?.iter().filter(|volume| made.is_some_and(|(id, _)| *id == volume.id)) {
            self.delete_volume(volume).await?;
        }
        Ok(())
    }

    /// Creates the instance with the first type that there is capacity for, and returns when it runs.
    async fn launch(
        &self,
        name: &str,
        new: &NewMachine<'_>,
        member: &MemberSpec,
        prepared: &Prepared,
        subnet: &Subnet,
        parts: &Parts,
    ) -> Result<(Instance, Mark), ProviderError> {
        let machine = self.machine(new, self.told(&parts.interface, subnet), parts.data.as_ref().map(|(id, _)| id));
        let seed = new.seed(self.spec.name.as_str(), &self.cluster_id, parts.interface.address);
        let user_data = user_data(&self.settings, &seed, &machine)?;
        let types = self.settings.types_of(member);
        for (at, kind) in types.iter().enumerate() {
            let mark = self.mark(new, member, parts, kind);
            let call =
                self.description(name, new, member, prepared, parts, &mark, &user_data).with("InstanceType", kind);
            match self.launched(name, call, &parts.interface).await {
                Err(error) if error.is_capacity() && at + 1 < types.len() => {}
                launched => return Ok((launched?, mark)),
            }
        }
        unreachable!("a spec names at least one type")
    }

    /// Returns when it runs. AWS may also end what it has accepted; then its interface can be used again.
    async fn launched(&self, name: &str, call: Call, interface: &Interface) -> Result<Instance, AwsError> {
        let made = self.session()?.call(&call.once()).await?;
        let id = made.items("instancesSet").find_map(|instance| instance.text("instanceId"));
        let doing = format!("create {name}");
        let id = id.ok_or_else(|| AwsError::Unreadable { doing: doing.clone(), why: String::from("no instance") })?;
        let settled = |now: &Instance| matches!(now.power(), PowerState::On | PowerState::Off) || !now.is_alive();
        let built = self.wait(&id, self.patience, true, settled).await?.ok_or_else(|| gone(&id))?;
        if built.is_alive() {
            return Ok(built);
        }
        self.await_release(&interface.id, &id).await?;
        Err(built.ending(&doing))
    }

    #[allow(clippy::too_many_arguments)]
    fn description(
        &self,
        name: &str,
        new: &NewMachine<'_>,
        member: &MemberSpec,
        prepared: &Prepared,
        parts: &Parts,
        mark: &Mark,
        user_data: &str,
    ) -> Call {
        let mut tags = self.tags(name);
        tags.extend(mark.parts());
        let mut root = self.tags(&format!("{name}-root"));
        root.extend(parts_of(&self.cluster_id, &new.id, new.fence));
        root.insert(key("role"), String::from("root"));
        let profile = self.settings.instance_profile.as_ref();
        let disk = "BlockDeviceMapping.1";
        let call = Call::new(format!("create {name}"), "RunInstances")
            .with("ImageId", &prepared.image.id)
            .with("MinCount", 1)
            .with("MaxCount", 1)
            .with("NetworkInterface.1.DeviceIndex", 0)
            .with("NetworkInterface.1.NetworkInterfaceId", &parts.interface.id)
            .with("MetadataOptions.HttpEndpoint", "enabled")
            .with("MetadataOptions.HttpTokens", "required")
            .with("MetadataOptions.HttpPutResponseHopLimit", 1)
            .with("InstanceInitiatedShutdownBehavior", "stop")
            .with("UserData", STANDARD.encode(user_data))
            .with(format!("{disk}.DeviceName"), &prepared.image.root)
            .with(format!("{disk}.Ebs.DeleteOnTermination"), true)
            .with(format!("{disk}.Ebs.Encrypted"), self.settings.encrypted)
            .with(format!("{disk}.Ebs.VolumeType"), root_type(self.settings.volume_type))
            .maybe(
                &format!("{disk}.Ebs.VolumeSize"),
                self.settings.root_size_of(member).map(|size| size.0.div_ceil(GIB)),
            )
            .maybe("KeyName", self.settings.key_name.as_ref())
            .maybe("IamInstanceProfile.Arn", profile.filter(|name| name.starts_with("arn:")))
            .maybe("IamInstanceProfile.Name", profile.filter(|name| !name.starts_with("arn:")));
        call.tagged("instance", &tags).tagged("volume", &root)
    }

    /// Gives it its volume, and makes it a machine.
    async fn complete(
        &self,
        member: &MemberSpec,
        new: &NewMachine<'_>,
        instance: &Instance,
        mut mark: Mark,
        parts: &Parts,
        mut used: Vec<String>,
    ) -> Result<(), ProviderError> {
        let whole = || [(key("state"), State::Whole.name().to_owned())];
        if let Some((volume, _)) = &parts.data {
            self.attach(volume, &instance.id).await?;
            self.tag("mark a volume", &[volume, &parts.interface.id], whole()).await?;
        } else {
            self.tag("mark a network interface", &[&parts.interface.id], whole()).await?;
        }
        mark.state = State::Whole;
        mark.port = Some(parts.interface.id.clone());
        mark.data = parts.data.as_ref().map(|(id, _)| id.clone());
        self.tag(&format!("mark {}", instance.name), &[&instance.id], mark.parts()).await?;
        self.await_listed(&instance.id).await?;
        // Leftovers of the member's earlier machines are useless from now on.
        used.extend(mark.data);
        if self.settings.data_size_of(member).is_some() {
            for volume in self.left_by(&new.id.member, &used).await? {
                self.delete_volume(&volume).await?;
            }
        }
        for left in self.interfaces().await?.iter().filter(|left| is_kept_for(left, &new.id)) {
            if left.id != parts.interface.id && left.used_by.is_none() {
                self.delete_interface(&left.id).await?;
            }
        }
        Ok(())
    }

    /// An existing machine must be in the next list, or it would be created again.
    async fn await_listed(&self, id: &str) -> Result<(), AwsError> {
        let begun = std::time::Instant::now();
        loop {
            let is_there = |(instance, mark): &(Instance, Mark)| instance.id == id && mark.state == State::Whole;
            if self.ours().await?.iter().any(is_there) {
                return Ok(());
            }
            if begun.elapsed() > self.patience {
                let (what, seconds) = (format!("the instance {id}"), self.patience.as_secs());
                return Err(AwsError::TooSlow { what, state: String::from("not listed"), seconds, remedy: None });
            }
            tokio::time::sleep(self.polling).await;
        }
    }

    /// The `machine.json` of its seed.
    fn machine(&self, new: &NewMachine<'_>, interface: boot::Interface, data: Option<&String>) -> boot::Machine {
        let admin = self.settings.admin.as_ref().map(|admin| boot::Admin {
            user: admin.user.clone(),
            ssh_keys: admin.ssh_keys.clone(),
            console_password_hash: None,
        });
        boot::Machine {
            // A dot would begin a domain.
            hostname: new.name.replace('.', "-"),
            interfaces: vec![interface],
            admin,
            // NVMe disks have the volume's id without its hyphen as their serial number.
            data_disk: data.map(|volume| boot::DataDisk { serial: volume.replace('-', "") }),
            channel: false,
        }
    }
}

/// A root volume has no setting for its I/O operations, and the most expensive type needs one.
fn root_type(kind: quorate_core::providers::aws::VolumeType) -> &'static str {
    use quorate_core::providers::aws::VolumeType;
    match kind {
        VolumeType::Io2 => VolumeType::Gp3.name(),
        other => other.name(),
    }
}

/// Whether a machine of the same member has it, or had it.
fn is_kept_for(interface: &Interface, machine: &MachineId) -> bool {
    interface.state == State::Whole && interface.machine.member.seat() == machine.member.seat()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use jiff::Timestamp;
    use quorate_core::Secret;
    use serde_json::json;

    use super::super::test_server::{Asked, aws, serve};
    use super::*;
    use crate::Provider;

    /// What is there: two subnets in one zone and one in another, a type and an image.
    fn found(asked: &Asked) -> Option<&'static str> {
        let action = asked.body.strip_prefix("Action=")?.split('&').next()?;
        Some(match action {
            "DescribeSubnets" => {
                "<subnetSet><item><subnetId>s-a</subnetId><vpcId>v</vpcId><availabilityZone>z-a</availabilityZone>\
                 <cidrBlock>10.0.1.0/24</cidrBlock></item><item><subnetId>s-a2</subnetId><vpcId>v</vpcId>\
                 <availabilityZone>z-a</availabilityZone><cidrBlock>10.0.2.0/24</cidrBlock></item><item>\
                 <subnetId>s-b</subnetId><vpcId>v</vpcId><availabilityZone>z-b</availabilityZone>\
                 <cidrBlock>10.0.3.0/24</cidrBlock></item></subnetSet>"
            }
            "DescribeInstanceTypes" => {
                "<instanceTypeSet><item><instanceType>m7i.large</instanceType></item><item>\
                 <instanceType>m6i.large</instanceType></item></instanceTypeSet>"
            }
            "DescribeImages" => {
                "<imagesSet><item><imageId>ami-1</imageId><imageState>available</imageState></item></imagesSet>"
            }
            _ if action.starts_with("Describe") => "",
            _ => return None,
        })
    }

    /// A provider for these answers: to calls that change something, and to others than those above.
    async fn scripted(
        mut answer: impl FnMut(&Asked) -> Option<(u16, String)> + Send + 'static,
    ) -> (Aws, Arc<Mutex<Vec<Asked>>>) {
        let told =
            move |asked: &Asked| answer(asked).or_else(|| found(asked).map(|found| (200, format!("<R>{found}</R>"))));
        let (url, seen) = serve(told).await;
        let types = ["m7i.large", "m6i.large"];
        (aws(json!({ "endpoint": url, "vpc": "v", "security_groups": ["sg-1"], "instance_types": types })), seen)
    }

    /// What is said when the machine of a member cannot be created.
    async fn refused(aws: &Aws, incarnation: u64) -> String {
        let (token, token_expires) = (Secret::new("token"), Timestamp::now());
        let id = MachineId::new(&"etcd-1".into(), incarnation);
        let new = NewMachine {
            name: "etcd-1",
            id,
            address: None,
            data: Data::Goes,
            fence: 1,
            control_ca: "",
            token: &token,
            token_expires,
        };
        aws.create(&new).await.unwrap_err().to_string()
    }

    fn error(code: &str) -> (u16, String) {
        let error = format!("<Error><Code>{code}</Code><Message>said of it</Message></Error>");
        (400, format!("<R><Errors>{error}</Errors></R>"))
    }

    /// In which subnets an interface was tried, and what is said in the end, if AWS answers this for each of them.
    async fn tried(code: fn(&str) -> &'static str) -> (Vec<String>, String) {
        let (aws, seen) = scripted(move |asked| subnet_of(asked).map(|subnet| error(code(subnet)))).await;
        let said = refused(&aws, 1).await;
        let seen = seen.lock().unwrap();
        (seen.iter().filter_map(subnet_of).map(str::to_owned).collect(), said)
    }

    fn subnet_of(asked: &Asked) -> Option<&str> {
        field(asked, "CreateNetworkInterface", "SubnetId")
    }

    /// A field of a call of this action.
    fn field<'a>(asked: &'a Asked, action: &str, name: &str) -> Option<&'a str> {
        let mut pairs = asked.body.split('&').filter_map(|pair| pair.split_once('='));
        let is_it = pairs.next() == Some(("Action", action));
        pairs.find(|(known, _)| *known == name).map(|(_, value)| value).filter(|_| is_it)
    }

    /// With which types, in which subnets, it is tried, and what is said in the end, if AWS accepts each instance and ends it for this reason.
    async fn ended(code: &'static str) -> (Vec<String>, String) {
        let (aws, seen) = scripted(move |asked| {
            let answer = |text: String| Some((200, format!("<R>{text}</R>")));
            let ends = format!(
                "<reservationSet><item><instancesSet><item><instanceId>i-1</instanceId><instanceState><name>terminated</name>\
                 </instanceState><stateReason><code>{code}</code><message>{code}: said of it</message></stateReason></item>\
                 </instancesSet></item></reservationSet>"
            );
            if let Some(subnet) = subnet_of(asked) {
                return answer(format!(
                    "<networkInterface><networkInterfaceId>eni-{subnet}</networkInterfaceId><macAddress>02:00:00:00:00:01\
                     </macAddress><privateIpAddress>10.0.1.11</privateIpAddress></networkInterface>"
                ));
            }
            let is = |action: &str| asked.body.starts_with(&format!("Action={action}&"));
            if is("RunInstances") {
                return answer(String::from("<instancesSet><item><instanceId>i-1</instanceId></item></instancesSet>"));
            }
            if field(asked, "DescribeInstances", "InstanceId.1").is_some() {
                return answer(ends);
            }
            is("DeleteNetworkInterface").then(|| (200, String::from("<R/>")))
        })
        .await;
        let said = refused(&aws, 1).await;
        let seen = seen.lock().unwrap();
        let launched = seen.iter().filter_map(|asked| {
            let interface = field(asked, "RunInstances", "NetworkInterface.1.NetworkInterfaceId")?;
            Some(format!("{} {interface}", field(asked, "RunInstances", "InstanceType")?))
        });
        (launched.collect(), said)
    }

    #[tokio::test]
    async fn an_instance_that_aws_accepts_and_ends_is_explained() {
        let (launched, said) = ended("Client.InternalError").await;
        assert_eq!(launched, ["m7i.large eni-s-a"]);
        assert!(said.ends_with("the instance i-1 was terminated: Client.InternalError: said of it"), "{said}");
    }

    #[tokio::test]
    async fn capacity_that_is_found_missing_late_leads_to_the_next_type_and_zone() {
        let (launched, said) = ended("Server.InsufficientInstanceCapacity").await;
        assert_eq!(launched, ["m7i.large eni-s-a", "m6i.large eni-s-a", "m7i.large eni-s-b", "m6i.large eni-s-b"]);
        assert!(said.contains("no capacity for m7i.large or m6i.large in z-a, z-b now"), "{said}");
    }

    #[tokio::test]
    async fn an_interface_that_ended_instances_still_show_is_waited_for() {
        let tag = |key: &str, value: &str| format!("<item><key>quorate.{key}</key><value>{value}</value></item>");
        let tags = [("member", "etcd-1"), ("incarnation", "1"), ("fence", "1"), ("state", State::Whole.name())];
        let tags: String = tags.iter().map(|(key, value)| tag(key, value)).collect();
        let interface = move |instance: &str| {
            format!(
                "<R><networkInterfaceSet><item><networkInterfaceId>eni-0</networkInterfaceId><subnetId>s-a</subnetId>\
                 <macAddress>02:00:00:00:00:01</macAddress><privateIpAddress>10.0.1.11</privateIpAddress><attachment>{instance}\
                 </attachment><tagSet>{tags}</tagSet></item></networkInterfaceSet></R>"
            )
        };
        let mut shown = 3;
        let (aws, seen) = scripted(move |asked| match asked.body.strip_prefix("Action=")?.split('&').next()? {
            "DescribeNetworkInterfaces" => {
                shown -= 1;
                let instance = if shown > 0 { "<instanceId>i-0</instanceId>" } else { "" };
                shown = shown.max(1);
                Some((200, interface(instance)))
            }
            "CreateTags" | "ModifyNetworkInterfaceAttribute" => Some((200, String::from("<R/>"))),
            "RunInstances" | "CreateNetworkInterface" => Some(error("UnauthorizedOperation")),
            _ => None,
        })
        .await;
        let said = refused(&aws, 2).await;
        let seen = seen.lock().unwrap();
        let used =
            seen.iter().filter_map(|asked| field(asked, "RunInstances", "NetworkInterface.1.NetworkInterfaceId"));
        assert_eq!(used.collect::<Vec<_>>(), ["eni-0"], "{said}");
        assert_eq!(seen.iter().filter_map(subnet_of).count(), 0, "no other interface");
    }

    #[tokio::test]
    async fn where_a_subnet_has_no_address_the_next_one_is_tried() {
        let (tried, said) = tried(|_| "InsufficientFreeAddressesInSubnet").await;
        assert_eq!(tried, ["s-a", "s-b", "s-a2"]);
        let begin = "no address is free for etcd-1 in s-a, s-b, s-a2: ";
        assert!(said.starts_with(begin) && said.ends_with("(said of it)"), "{said}");
    }

    #[tokio::test]
    async fn another_refusal_ends_it() {
        let (tried, said) = tried(|subnet| match subnet {
            "s-a" => "InsufficientFreeAddressesInSubnet",
            _ => "UnauthorizedOperation",
        })
        .await;
        assert_eq!(tried, ["s-a", "s-b"]);
        assert!(said.contains("UnauthorizedOperation"), "{said}");
    }
}
