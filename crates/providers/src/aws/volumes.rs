//! Data volumes, which can outlive their instance. Their tags are their mark. They never leave their zone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quorate_core::model::{MachineId, MemberName};
use quorate_core::spec::Size;
use tokio::time::sleep;

use super::Aws;
use super::error::AwsError;
use super::session::Call;
use super::xml::Xml;
use crate::marks::{State, key, parts_of};

/// How long a volume may take to be detached and deleted.
const DELETING: Duration = Duration::from_secs(300);
const GIB: u64 = 1 << 30;
/// As instances on Nitro ignore it.
const DEVICE: &str = "/dev/sdf";
/// What a data volume is, among the volumes of an instance.
const DATA: &str = "data";

/// A data volume of this cluster.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    pub(super) id: String,
    pub(super) zone: String,
    pub(super) state: State,
    pub(super) member: MemberName,
    /// For which incarnation, and under which fencing number, it was made.
    made_for: (u64, u64),
    is_attached: bool,
}

impl Volume {
    fn read(value: &Xml) -> Option<Self> {
        let tags = value.tags();
        let part = |name: &str| tags.get(&key(name));
        Some(Volume {
            id: value.text("volumeId")?,
            zone: value.text("availabilityZone")?,
            state: State::read(part("state").filter(|_| part("role").is_some_and(|role| role == DATA))?)?,
            member: part("member")?.as_str().into(),
            made_for: (part("incarnation")?.parse().ok()?, part("fence")?.parse().ok()?),
            is_attached: value.items("attachmentSet").next().is_some(),
        })
    }

    pub(super) fn fence(&self) -> u64 {
        self.made_for.1
    }
}

/// How to release a volume that an instance has. By force only where AWS has begun and does not end: an instance that
/// uses it would lose writes.
fn release(id: &str, volume: &Xml) -> String {
    let attachment = volume.items("attachmentSet").next();
    let part = |field: &str| attachment.and_then(|attachment| attachment.text(field)).unwrap_or_default();
    let (instance, status) = (part("instanceId"), part("status"));
    if status == "attached" {
        return format!(
            "the instance {instance} has it; if it does not use it, `aws ec2 detach-volume --volume-id {id}` releases it"
        );
    }
    format!("it is {status} from {instance}; `aws ec2 detach-volume --force --volume-id {id}` releases it")
}

impl Aws {
    /// Volumes that were made for this cluster, in one list.
    pub(super) async fn volumes(&self) -> Result<Vec<Volume>, AwsError> {
        let call = Call::new("list volumes", "DescribeVolumes");
        let call = call.filter(&format!("tag:{}", key("cluster_id")), [&self.cluster_id]);
        Ok(self.session()?.list(call, "volumeSet").await?.iter().filter_map(Volume::read).collect())
    }

    /// Creates a volume, as a draft, and returns its id when it can be used.
    pub(super) async fn make_volume(
        &self,
        machine: &MachineId,
        fence: u64,
        size: Size,
        zone: &str,
    ) -> Result<String, AwsError> {
        let name = format!("{}-{}.{}.{fence}-{DATA}", self.spec.name, machine.member, machine.incarnation);
        let mut tags = self.tags(&name);
        tags.extend(parts_of(&self.cluster_id, machine, fence));
        tags.insert(key("role"), DATA.to_owned());
        tags.insert(key("state"), State::Draft.name().to_owned());
        let call = Call::new(format!("create the volume {name}"), "CreateVolume")
            .with("AvailabilityZone", zone)
            .with("Size", size.0.div_ceil(GIB))
            .with("VolumeType", self.settings.volume_type.name())
            .with("Encrypted", self.settings.encrypted)
            .maybe("Iops", self.settings.iops)
            .tagged("volume", &tags)
            .once();
        let made = self.session()?.call(&call).await?;
        let unreadable =
            || AwsError::Unreadable { doing: format!("create the volume {name}"), why: String::from("no id") };
        let id = made.text("volumeId").ok_or_else(unreadable)?;
        self.await_volume(&id, self.patience, true, |status| status == "available").await?;
        Ok(id)
    }

    async fn look_at_volume(&self, id: &str) -> Result<Option<Xml>, AwsError> {
        let call = Call::new(format!("read the volume {id}"), "DescribeVolumes").list("VolumeId", [id]);
        let found = self.session()?.unless_absent(&call).await?;
        Ok(found.and_then(|found| found.items("volumeSet").next().cloned()))
    }

    /// Looks until its status is as wanted; one that is gone is `deleted`. One that is `fresh` may not be listed yet.
    async fn await_volume(
        &self,
        id: &str,
        within: Duration,
        fresh: bool,
        is_done: impl Fn(&str) -> bool,
    ) -> Result<(), AwsError> {
        let begun = Instant::now();
        loop {
            let found = self.look_at_volume(id).await?;
            let state = found.as_ref().and_then(|found| found.text("status"));
            let state = state.unwrap_or_else(|| String::from(if fresh { "not listed" } else { "deleted" }));
            if is_done(&state) {
                return Ok(());
            }
            if state.starts_with("error") {
                return Err(AwsError::VolumeBroken { id: id.to_owned(), state });
            }
            if begun.elapsed() > within {
                let (what, seconds) = (format!("the volume {id}"), within.as_secs());
                let remedy = found.as_ref().filter(|_| state == "in-use").map(|found| release(id, found));
                return Err(AwsError::TooSlow { what, state, seconds, remedy });
            }
            sleep(self.polling).await;
        }
    }

    /// Attaches a volume to an instance that runs, and returns when it has it.
    pub(super) async fn attach(&self, volume: &str, instance: &str) -> Result<(), AwsError> {
        // The instance that had it may just have been terminated.
        self.await_volume(volume, DELETING, false, |status| status == "available").await?;
        let call = Call::new(format!("attach the volume {volume}"), "AttachVolume")
            .with("VolumeId", volume)
            .with("InstanceId", instance)
            .with("Device", DEVICE);
        let begun = Instant::now();
        loop {
            match self.session()?.call(&call).await {
                // The answer to an earlier attempt was lost, or the instance does not run yet as far as volumes go.
                Err(error) if error.has_code(&["VolumeInUse", "IncorrectState", "InvalidInstanceID.NotFound"]) => {
                    let found = self.look_at_volume(volume).await?;
                    let attached = found.as_ref().and_then(|found| found.items("attachmentSet").next());
                    if attached.is_some_and(|to| to.text("instanceId").as_deref() == Some(instance)) {
                        break;
                    }
                    if begun.elapsed() > self.patience {
                        return Err(error);
                    }
                    sleep(self.polling).await;
                }
                attached => {
                    attached?;
                    break;
                }
            }
        }
        self.await_volume(volume, DELETING, false, |status| status == "in-use").await
    }

    /// Returns when it is gone. One that does not exist is gone. What an instance still has is detached by its end.
    pub(super) async fn delete_volume(&self, volume: &Volume) -> Result<(), AwsError> {
        let id = &volume.id;
        self.await_volume(id, DELETING, false, |status| matches!(status, "available" | "deleting" | "deleted")).await?;
        let call = Call::new(format!("delete the volume {id}"), "DeleteVolume").with("VolumeId", id);
        self.session()?.unless_absent(&call).await?;
        self.await_volume(id, DELETING, false, |status| status == "deleted").await
    }

    /// Deletes volumes that are going, and drafts that are `doomed`, unless an instance has them.
    pub(super) async fn sweep_volumes(
        &self,
        used: &[String],
        doomed: impl Fn(&Volume) -> bool,
    ) -> Result<(), AwsError> {
        for volume in self.volumes().await?.iter().filter(|volume| !used.contains(&volume.id)) {
            let is_left = !volume.is_attached && doomed(volume);
            if volume.state == State::Going || volume.state == State::Draft && is_left {
                self.delete_volume(volume).await?;
            }
        }
        Ok(())
    }

    /// Data volumes of a member that no instance uses, the newest last.
    pub(super) async fn left_by(&self, member: &MemberName, used: &[String]) -> Result<Vec<Volume>, AwsError> {
        let is_left = |volume: &Volume| {
            volume.state == State::Whole && volume.member.seat() == member.seat() && !used.contains(&volume.id)
        };
        let mut left: Vec<Volume> = self.volumes().await?.into_iter().filter(is_left).collect();
        left.sort_by_key(|volume| volume.made_for);
        Ok(left)
    }

    /// The tags of everything that is made: the operator's, and what people call it.
    pub(super) fn tags(&self, name: &str) -> BTreeMap<String, String> {
        let mut tags = self.settings.tags.clone();
        tags.insert(String::from("Name"), name.to_owned());
        tags.insert(key("cluster"), self.spec.name.to_string());
        tags
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::test_server::{aws, serve};
    use super::*;

    async fn stuck(attachment: &str) -> String {
        let item = format!(
            "<item><volumeId>vol-1</volumeId><status>in-use</status><attachmentSet><item><instanceId>i-1</instanceId>\
             <status>{attachment}</status></item></attachmentSet></item>"
        );
        let (url, _) = serve(move |_| Some((200, format!("<R><volumeSet>{item}</volumeSet></R>")))).await;
        let aws = aws(json!({ "endpoint": url }));
        let waited = aws.await_volume("vol-1", Duration::ZERO, false, |status| status == "available").await;
        waited.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn a_volume_that_stays_attached_says_how_it_is_released() {
        let begin = "the volume vol-1 was still in-use after 0 s: ";
        let force = "it is detaching from i-1; `aws ec2 detach-volume --force --volume-id vol-1` releases it";
        assert_eq!(stuck("detaching").await, format!("{begin}{force}"));
        let said = stuck("attached").await;
        assert!(said.starts_with(&format!("{begin}the instance i-1 has it; ")) && !said.contains("--force"), "{said}");
    }
}
