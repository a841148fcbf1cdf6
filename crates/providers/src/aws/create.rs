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
        let mut kept_interfaces = self.interfaces().await?;
        kept_interfaces.retain(|interface| is_kept_for(interface, &new.id));
        self.check_types(self.settings.types_of(member), data_size.is_some()).await?;
        if let Some(name) = &self.settings.key_name {
            self.check_key_pair(name).await?;
        }
        Ok(Prepared { image: self.image().await?, kept, kept_interfaces, subnets, data_size })
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
            let made = match self.session()?.call(&call.once()).await {
                Err(error) if error.is_capacity() && at + 1 < types.len() => continue,
                made => made?,
            };
            let id = made.items("instancesSet").find_map(|instance| instance.text("instanceId"));
            let unreadable =
                || AwsError::Unreadable { doing: format!("create {name}"), why: String::from("no instance") };
            let id = id.ok_or_else(unreadable)?;
            let running = |now: &Instance| matches!(now.power(), PowerState::On | PowerState::Off);
            let built = self.wait(&id, self.patience, true, running).await?;
            return Ok((built.ok_or_else(|| gone(&id))?, mark));
        }
        unreachable!("a spec names at least one type")
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
            if left.id != parts.interface.id {
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

/// Whether it is left by an earlier machine of the same member.
fn is_kept_for(interface: &Interface, machine: &MachineId) -> bool {
    let is_kept = interface.state == State::Whole && !interface.is_used;
    is_kept && interface.machine.member.seat() == machine.member.seat()
}

#[cfg(test)]
mod tests {
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
                "<instanceTypeSet><item><instanceType>m7i.large</instanceType></item></instanceTypeSet>"
            }
            "DescribeImages" => {
                "<imagesSet><item><imageId>ami-1</imageId><imageState>available</imageState></item></imagesSet>"
            }
            _ if action.starts_with("Describe") => "",
            _ => return None,
        })
    }

    /// In which subnets an interface was tried, and what is said in the end, if AWS answers this for each of them.
    async fn tried(code: fn(&str) -> &'static str) -> (Vec<String>, String) {
        let (url, seen) = serve(move |asked: &Asked| {
            if let Some(found) = found(asked) {
                return Some((200, format!("<R>{found}</R>")));
            }
            let code = code(subnet_of(asked).unwrap_or_default());
            let error = format!("<Error><Code>{code}</Code><Message>said of it</Message></Error>");
            Some((400, format!("<R><Errors>{error}</Errors></R>")))
        })
        .await;
        let aws = aws(json!({ "endpoint": url, "vpc": "v", "security_groups": ["sg-1"] }));
        let (token, token_expires) = (Secret::new("token"), Timestamp::now());
        let id = MachineId::new(&"etcd-1".into(), 1);
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
        let said = aws.create(&new).await.unwrap_err().to_string();
        let seen = seen.lock().unwrap();
        (seen.iter().filter_map(subnet_of).map(str::to_owned).collect(), said)
    }

    fn subnet_of(asked: &Asked) -> Option<&str> {
        let is_it = asked.body.starts_with("Action=CreateNetworkInterface&");
        asked.body.split('&').find_map(|pair| pair.strip_prefix("SubnetId=")).filter(|_| is_it)
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
