//! Volumes: boot volumes, which are deleted with their server, and data volumes, which can outlive it. Their metadata is their mark.

use std::time::{Duration, Instant};

use quorate_core::model::{Build, DATA_VOLUME, MachineId, MemberName};
use quorate_core::providers::openstack::VOLUME_TYPE;
use quorate_core::spec::Size;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::catalogue::Service::Volume as Storage;
use super::error::{OpenstackError, check_room};
use super::session::Call;
use super::sweep::stuck_by;
use super::{LINGERING, Openstack, text};
use crate::marks::{Mark, State, key, parts_of};
use crate::web::escaped;

const GIB: u64 = 1 << 30;
/// The part of a mark that says of which type the spec wanted it.
const KIND: &str = "volume_type";

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
    gib: u64,
    pub(super) zone: Option<String>,
    /// Its type, as cinder calls it.
    kind: Option<String>,
    /// Its type, as the spec called it; empty where the spec had none.
    recorded_kind: Option<String>,
}

/// A volume that was just made.
pub(super) struct New {
    pub(super) id: String,
    pub(super) zone: Option<String>,
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
            gib: value.get("size").and_then(Value::as_u64).unwrap_or_default(),
            zone: text(value, "availability_zone"),
            kind: text(value, "volume_type"),
            recorded_kind: part(KIND),
        })
    }

    fn machine(&self) -> MachineId {
        MachineId::new(&self.member, self.made_for.0)
    }

    /// Whether a server with this mark has it.
    fn is_of(&self, mark: &Mark) -> bool {
        match self.role {
            Role::Boot => mark.is_of(&self.machine()),
            Role::Data => mark.data.as_ref() == Some(&self.id),
        }
    }

    /// What a machine that keeps this volume is made of, where the spec wants `build`. The volume follows no setting.
    pub(super) fn kept_in(&self, build: &Build, wanted: Size) -> Build {
        let kind = match (&self.recorded_kind, build.part(VOLUME_TYPE)) {
            (Some(recorded), _) => Some(recorded.as_str()).filter(|kind| !kind.is_empty()),
            // It was made before volumes recorded that.
            (None, Some(wanted)) => Some(self.kind.as_deref().unwrap_or(wanted)),
            (None, None) => None,
        };
        let build = match kind {
            Some(kind) => build.with(VOLUME_TYPE, kind),
            None => build.without(VOLUME_TYPE),
        };
        // A larger one does as well.
        let is_small = self.gib > 0 && self.gib < wanted.0.div_ceil(GIB);
        if is_small { build.with(DATA_VOLUME, &Size(self.gib * GIB).to_string()) } else { build }
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
            let Some((most, used)) = number(most).zip(number(used)) else { continue };
            check_room(what, (most, used), needed, unit, member)?;
        }
        Ok(())
    }

    /// Creates a volume, as a draft, and returns when it can be used. `image`: what it is a copy of.
    pub(super) async fn make_volume(
        &self,
        machine: &MachineId,
        fence: u64,
        role: Role,
        size: Size,
        zone: Option<&str>,
        image: Option<&str>,
    ) -> Result<New, OpenstackError> {
        let kind = role.name();
        let name = format!("{}-{}.{}.{fence}-{kind}", self.spec.name, machine.member, machine.incarnation);
        let mut metadata = parts_of(&self.cluster_id, machine, fence);
        metadata.insert(key("cluster"), self.spec.name.to_string());
        metadata.insert(key("role"), kind.to_owned());
        metadata.insert(key("state"), State::Draft.name().to_owned());
        metadata.insert(key(KIND), self.settings.volume_type.clone().unwrap_or_default());
        let mut volume = json!({ "name": name, "size": size.0.div_ceil(GIB), "metadata": metadata });
        if let Some(kind) = &self.settings.volume_type {
            volume["volume_type"] = json!(kind);
        }
        if let Some(zone) = zone {
            volume["availability_zone"] = json!(zone);
        }
        if let Some(image) = image {
            volume["imageRef"] = json!(image);
        }
        let find = async || {
            let is_it =
                |volume: &Volume| volume.role == role && volume.machine() == *machine && volume.made_for.1 == fence;
            let found = self.volumes().await?.into_iter().find(is_it);
            Ok(found.map(|volume| json!({ "volume": { "id": volume.id } })))
        };
        let call = Call::new(format!("create the volume {name}"), Storage, Method::POST, "/volumes");
        let made = self.session()?.create(call.json(json!({ "volume": volume })), find).await?;
        let id = made.get("volume").and_then(|volume| text(volume, "id")).unwrap_or_default();
        let found = self.await_available(&id, &name, self.patience).await?;
        match (zone, found) {
            // Cinder may choose another zone in place of one that it does not know.
            (Some(wanted), Some(zone)) if zone != wanted => {
                let wanted = wanted.to_owned();
                Err(OpenstackError::OtherZone { name, zone, wanted })
            }
            (_, zone) => Ok(New { id, zone }),
        }
    }

    async fn look_at_volume(&self, id: &str) -> Result<Option<Value>, OpenstackError> {
        let found = self.session()?.get("read a volume", Storage, &format!("/volumes/{id}"), None).await?;
        Ok(found.and_then(|mut found| found.get_mut("volume").map(Value::take)))
    }

    async fn status(&self, id: &str) -> Result<Option<String>, OpenstackError> {
        Ok(self.look_at_volume(id).await?.and_then(|volume| text(&volume, "status")))
    }

    /// Whether it is gone. A gateway answers 404 for a service that is away, so only a list says.
    async fn lacks_volume(&self, id: &str) -> Result<bool, OpenstackError> {
        Ok(!self.volumes().await?.iter().any(|volume| volume.id == id))
    }

    /// Returns its zone.
    async fn await_available(&self, id: &str, name: &str, within: Duration) -> Result<Option<String>, OpenstackError> {
        let begun = Instant::now();
        loop {
            let volume = self.look_at_volume(id).await?.unwrap_or_default();
            let status = text(&volume, "status").unwrap_or_else(|| String::from("deleted"));
            match status.as_str() {
                "available" => return Ok(text(&volume, "availability_zone")),
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

    /// Marks what goes with a server: its boot volume, and this data volume.
    pub(super) async fn doom_volumes(&self, mark: &Mark, data: Option<&str>) -> Result<(), OpenstackError> {
        let is_same = |other: &Mark| (&other.member, other.incarnation) == (&mark.member, mark.incarnation);
        // A draft that appears after the machine was made once more takes only its own along.
        let has_another = mark.state == State::Draft
            && self.ours().await?.iter().any(|(_, other)| other.state == State::Whole && is_same(other));
        for volume in self.volumes().await?.iter().filter(|volume| volume.state != State::Going) {
            let goes = match volume.role {
                Role::Boot if has_another => volume.state == State::Draft && volume.is_of(mark),
                Role::Boot => volume.is_of(mark),
                Role::Data => data == Some(volume.id.as_str()),
            };
            if !goes {
                continue;
            }
            match self.mark_volume(&volume.id, State::Going).await {
                Err(error) if error.is_absent() && self.lacks_volume(&volume.id).await? => {}
                changed => changed?,
            }
        }
        Ok(())
    }

    /// Returns when it is gone. One that does not exist is gone.
    pub(super) async fn delete_volume(&self, volume: &Volume) -> Result<(), OpenstackError> {
        let begun = Instant::now();
        let (mut asked, mut within) = (false, self.deleting.min(LINGERING));
        loop {
            let status = match self.status(&volume.id).await? {
                Some(status) => status,
                None if self.lacks_volume(&volume.id).await? => return Ok(()),
                None => String::from("listed, but not found"),
            };
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

    /// Deletes volumes that are going, drafts that are `doomed`, and boot volumes whose machine is gone, unless one of
    /// these servers has them. Returns why some are still there. What cinder says of attachments is not enough: a
    /// shelved server may have none.
    pub(super) async fn sweep_volumes(
        &self,
        servers: &[Mark],
        doomed: impl Fn(u64, Option<&MachineId>) -> bool,
    ) -> Result<Vec<String>, OpenstackError> {
        let mut stuck = Vec::new();
        let all = self.volumes().await?;
        for volume in &all {
            let is_of_server = servers.iter().find(|mark| volume.is_of(mark));
            if let Some(mark) = is_of_server.filter(|_| !is_spare(volume, &all)) {
                if volume.role == Role::Boot && volume.state == State::Draft && mark.state == State::Whole {
                    self.mark_volume(&volume.id, State::Whole).await?;
                }
                continue;
            }
            let is_left = !volume.is_attached
                && match (volume.state, volume.role) {
                    (State::Draft, _) => doomed(volume.made_for.1, None),
                    (State::Whole, Role::Boot) => is_outlived(volume, servers, &doomed),
                    (State::Whole, Role::Data) | (State::Going, _) => false,
                };
            if volume.state == State::Going || is_left {
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

/// Whether it was made for a machine that boots from another volume: its creation was asked for twice, or took too long.
fn is_spare(volume: &Volume, all: &[Volume]) -> bool {
    let is_booted_from =
        |other: &Volume| other.role == Role::Boot && other.state == State::Whole && other.machine() == volume.machine();
    volume.role == Role::Boot && volume.state == State::Draft && !volume.is_attached && all.iter().any(is_booted_from)
}

/// Whether the machine that booted from it is gone: it or the cluster is being removed, or its member has a later one.
/// That no list shows its server is not enough.
fn is_outlived(volume: &Volume, servers: &[Mark], doomed: impl Fn(u64, Option<&MachineId>) -> bool) -> bool {
    let machine = volume.machine();
    let is_later = |mark: &Mark| {
        mark.state == State::Whole
            && mark.member.seat() == machine.member.seat()
            && mark.incarnation > machine.incarnation
    };
    // No fencing number dooms what was made under the highest.
    doomed(u64::MAX, Some(&machine)) || servers.iter().any(is_later)
}
