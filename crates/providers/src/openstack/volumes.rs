//! Volumes: those that servers boot from, which go with them, and data volumes, which can outlive them. Their metadata is their mark.

use std::time::{Duration, Instant};

use quorate_core::model::{MachineId, MemberName};
use quorate_core::spec::Size;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::catalogue::Service::Volume as Storage;
use super::error::OpenstackError;
use super::session::Call;
use super::sweep::stuck_by;
use super::{LINGERING, Openstack, text};
use crate::marks::{State, key, parts_of};
use crate::web::escaped;

const GIB: u64 = 1 << 30;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Boot,
    Data,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Boot => "boot",
            Role::Data => "data",
        }
    }
}

/// A volume of this cluster.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) state: State,
    pub(super) member: MemberName,
    /// For which incarnation, and under which fencing number, it was made.
    made_for: (u64, u64),
    is_attached: bool,
}

impl Volume {
    pub(super) fn read(value: &Value) -> Option<Self> {
        let metadata = value.get("metadata")?;
        let part = |name: &str| text(metadata, &key(name));
        let role = part("role")?;
        Some(Volume {
            id: text(value, "id")?,
            name: text(value, "name").unwrap_or_default(),
            role: [Role::Boot, Role::Data].into_iter().find(|known| known.name() == role)?,
            state: State::read(&part("state")?)?,
            member: part("member")?.as_str().into(),
            made_for: (part("incarnation")?.parse().ok()?, part("fence")?.parse().ok()?),
            is_attached: value.get("attachments").and_then(Value::as_array).is_some_and(|all| !all.is_empty()),
        })
    }

    pub(super) fn fence(&self) -> u64 {
        self.made_for.1
    }
}

impl Openstack {
    fn uses_volumes(&self) -> bool {
        let uses = |member: &quorate_core::spec::MemberSpec| {
            self.settings.data_size_of(member).or(self.settings.root_size_of(member)).is_some()
        };
        self.spec.machines().any(|member| uses(&member))
    }

    /// Volumes that were made for this cluster, in one list.
    pub(super) async fn volumes(&self) -> Result<Vec<Volume>, OpenstackError> {
        let filter = json!({ key("cluster_id"): self.cluster_id }).to_string();
        let path = format!("/volumes/detail?metadata={}", escaped(&filter));
        let all = match self.session()?.list("list volumes", Storage, &path, "volumes", None).await {
            // Not every cloud has volumes.
            Err(OpenstackError::NoService { .. }) if !self.uses_volumes() => return Ok(Vec::new()),
            all => all?,
        };
        let is_ours = |volume: &&Value| {
            let id = volume.get("metadata").and_then(|metadata| text(metadata, &key("cluster_id")));
            id.as_deref() == Some(&self.cluster_id)
        };
        Ok(all.iter().filter(is_ours).filter_map(Volume::read).collect())
    }

    /// Whether the quota has room for volumes of these sizes.
    pub(super) async fn check_volume_quota(&self, member: &str, sizes: &[Size]) -> Result<(), OpenstackError> {
        let limits = self.session()?.get("ask for the quota", Storage, "/limits", None).await?.unwrap_or_default();
        let number = |field: &str| limits.pointer("/limits/absolute").and_then(|all| all.get(field)?.as_i64());
        let gib: u64 = sizes.iter().map(|size| size.0.div_ceil(GIB)).sum();
        let needs: [(&'static str, &str, &str, u64, &str); 2] = [
            ("volumes", "maxTotalVolumes", "totalVolumesUsed", sizes.len() as u64, ""),
            ("storage for volumes", "maxTotalVolumeGigabytes", "totalGigabytesUsed", gib, " GiB"),
        ];
        for (what, most, used, needed, unit) in needs {
            let (Some(most), Some(used)) = (number(most).filter(|most| *most >= 0), number(used)) else { continue };
            let left = u64::try_from(most - used).unwrap_or_default();
            if needed > left {
                let (left, needed) = (format!("{left}{unit}"), format!("{needed}{unit}"));
                return Err(OpenstackError::NoRoom { what, left, member: member.to_owned(), needed });
            }
        }
        Ok(())
    }

    /// Creates a volume, as a draft, and returns its id when it can be used. `image`: what it is a copy of.
    pub(super) async fn make_volume(
        &self,
        machine: &MachineId,
        fence: u64,
        role: Role,
        size: Size,
        image: Option<&str>,
    ) -> Result<String, OpenstackError> {
        let kind = role.name();
        let name = format!("{}-{}.{}.{fence}-{kind}", self.spec.name, machine.member, machine.incarnation);
        let mut metadata = parts_of(&self.cluster_id, machine, fence);
        metadata.insert(key("cluster"), self.spec.name.to_string());
        metadata.insert(key("role"), kind.to_owned());
        metadata.insert(key("state"), State::Draft.name().to_owned());
        let mut volume = json!({ "name": name, "size": size.0.div_ceil(GIB), "metadata": metadata });
        if let Some(kind) = &self.settings.volume_type {
            volume["volume_type"] = json!(kind);
        }
        if let Some(image) = image {
            volume["imageRef"] = json!(image);
        }
        let find = async || {
            let found = self.volumes().await?.into_iter().find(|volume| volume.name == name);
            Ok(found.map(|volume| json!({ "volume": { "id": volume.id } })))
        };
        let call = Call::new(format!("create the volume {name}"), Storage, Method::POST, "/volumes");
        let made = self.session()?.create(call.json(json!({ "volume": volume })), find).await?;
        let id = made.get("volume").and_then(|volume| text(volume, "id")).unwrap_or_default();
        self.await_available(&id, &name, self.patience).await?;
        Ok(id)
    }

    async fn status(&self, id: &str) -> Result<Option<String>, OpenstackError> {
        let found = self.session()?.get("read a volume", Storage, &format!("/volumes/{id}"), None).await?;
        Ok(found.and_then(|found| text(found.get("volume")?, "status")))
    }

    async fn await_available(&self, id: &str, name: &str, within: Duration) -> Result<(), OpenstackError> {
        let begun = Instant::now();
        loop {
            let status = self.status(id).await?.unwrap_or_else(|| String::from("deleted"));
            match status.as_str() {
                "available" => return Ok(()),
                "creating" | "downloading" | "detaching" | "in-use" | "reserved" if begun.elapsed() < within => {}
                "creating" | "downloading" | "detaching" | "in-use" | "reserved" => {
                    let (what, seconds) = (format!("the volume {name}"), within.as_secs());
                    return Err(OpenstackError::TooSlow { what, state: status, seconds });
                }
                _ => {
                    let (name, id) = (name.to_owned(), id.to_owned());
                    return Err(OpenstackError::VolumeBroken { name, id, status });
                }
            }
            sleep(self.polling).await;
        }
    }

    pub(super) async fn mark_volume(&self, id: &str, state: State) -> Result<(), OpenstackError> {
        let path = format!("/volumes/{id}/metadata");
        let call = Call::new("mark a volume", Storage, Method::POST, path).repeatable();
        let body = json!({ "metadata": { key("state"): state.name() } });
        self.session()?.change(call.json(body)).await.map(drop)
    }

    /// Returns when it is gone. One that does not exist is gone.
    pub(super) async fn delete_volume(&self, volume: &Volume) -> Result<(), OpenstackError> {
        let begun = Instant::now();
        let (mut asked, mut within) = (false, self.deleting.min(LINGERING));
        loop {
            let Some(status) = self.status(&volume.id).await? else { return Ok(()) };
            if !asked && (status == "available" || status.starts_with("error")) {
                within = self.deleting;
                let doing = format!("delete the volume {}", volume.name);
                let deleted = self.session()?.delete(&doing, Storage, &format!("/volumes/{}", volume.id)).await;
                // If an answer was lost, the repeated request is refused while the first one is carried out.
                let now = if deleted.is_err() { self.status(&volume.id).await? } else { None };
                if now.as_deref().is_some_and(|now| now != "deleting") {
                    deleted?;
                }
                asked = true;
            } else if status == "error_deleting" {
                let (name, id) = (volume.name.clone(), volume.id.clone());
                return Err(OpenstackError::VolumeBroken { name, id, status });
            }
            if begun.elapsed() > within {
                let (what, seconds) = (format!("the volume {}", volume.name), within.as_secs());
                return Err(OpenstackError::TooSlow { what, state: status, seconds });
            }
            sleep(self.polling).await;
        }
    }

    /// Deletes volumes that are going, and drafts that are `doomed`, unless a server has them. Returns why some are still there.
    pub(super) async fn sweep_volumes(
        &self,
        used: &[String],
        doomed: impl Fn(&Volume) -> bool,
    ) -> Result<Vec<String>, OpenstackError> {
        let mut stuck = Vec::new();
        for volume in self.volumes().await?.iter().filter(|volume| !used.contains(&volume.id)) {
            let is_left = !volume.is_attached && doomed(volume);
            if volume.state == State::Going || volume.state == State::Draft && is_left {
                stuck.extend(stuck_by(self.delete_volume(volume).await)?);
            }
        }
        Ok(stuck)
    }

    /// Data volumes of a member that no server uses, the newest last.
    pub(super) async fn left_by(&self, member: &MemberName, used: &[String]) -> Result<Vec<Volume>, OpenstackError> {
        let is_left = |volume: &Volume| {
            volume.role == Role::Data
                && volume.state == State::Whole
                && volume.member.seat() == member.seat()
                && !used.contains(&volume.id)
        };
        let mut left: Vec<Volume> = self.volumes().await?.into_iter().filter(is_left).collect();
        left.sort_by_key(|volume| volume.made_for);
        Ok(left)
    }
}
