//! Storage: the free space of a pool, and data volumes, which can outlive their instance. The name of each contains the incarnation of
//! its machine and the fencing number of the controller that created it, so a controller that was suspended deletes only volumes that
//! it knows.

use hyper::Method;
use serde_json::{Value, json};

use super::Incus;
use super::error::IncusError;
use super::server::{Call, Server, escaped, names};
use crate::kept::made_for;

/// The cluster of a volume.
const CLUSTER_ID_KEY: &str = "user.quorate.cluster-id";
/// No member can have this name.
const SEED: &str = "_seed";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Volume {
    pub(super) name: String,
    /// The host that it is on, in an Incus cluster.
    pub(super) location: String,
}

impl Incus {
    fn volumes_path(&self) -> String {
        format!("/1.0/storage-pools/{}/volumes/custom", escaped(&self.settings.pool))
    }

    /// Prefix of the names of all volumes of this cluster.
    fn beginning(&self) -> String {
        format!("quorate-{}-", self.cluster_id)
    }

    /// The volume to be made for a machine.
    pub(super) fn new_data(&self, member: &str, incarnation: u64, fence: u64) -> String {
        format!("{}{member}.{incarnation}.{fence}", self.beginning())
    }

    pub(super) async fn volumes(&self, server: &Server) -> Result<Vec<Volume>, IncusError> {
        let all = server.list("list volumes", &format!("{}?recursion=1", self.volumes_path())).await?;
        let (beginning, id) = (self.beginning(), self.cluster_id.as_str());
        let ours = all.iter().filter_map(|volume| {
            let name = volume.get("name")?.as_str().filter(|name| name.starts_with(&beginning))?;
            // Seeds have no configuration.
            let is_seed = name[beginning.len()..].starts_with(SEED);
            let marked = is_seed || volume.get("config")?.get(CLUSTER_ID_KEY)?.as_str() == Some(id);
            let location = volume.get("location").and_then(Value::as_str).unwrap_or_default();
            marked.then(|| Volume { name: name.to_owned(), location: location.to_owned() })
        });
        Ok(ours.collect())
    }

    pub(super) async fn make_volume(
        &self,
        server: &Server,
        name: &str,
        bytes: u64,
        target: Option<&str>,
    ) -> Result<(), IncusError> {
        let config = json!({ CLUSTER_ID_KEY: self.cluster_id, "size": bytes.to_string() });
        let content = if self.is_vm() { "block" } else { "filesystem" };
        let body = json!({ "name": name, "type": "custom", "content_type": content, "config": config });
        let call = Call::new(format!("create the volume {name}"), Method::POST, self.volumes_path_at(target));
        server.change(call.json(&body)).await
    }

    /// The volume of a virtual machine's seed.
    pub(super) fn new_seed(&self, member: &str, incarnation: u64, fence: u64) -> String {
        format!("{}{SEED}-{member}.{incarnation}.{fence}", self.beginning())
    }

    /// Creates a CD-ROM. Incus accepts no configuration with it, so only its name says which cluster it belongs to.
    pub(super) async fn make_cdrom(
        &self,
        server: &Server,
        name: &str,
        content: Vec<u8>,
        target: Option<&str>,
    ) -> Result<(), IncusError> {
        let path = self.volumes_path_at(target);
        let call = Call::new(format!("create the volume {name}"), Method::POST, path);
        server.change(call.with("X-Incus-name", name).with("X-Incus-type", "iso").bytes(content.into())).await
    }

    fn volumes_path_at(&self, target: Option<&str>) -> String {
        match target {
            Some(target) => format!("{}?target={}", self.volumes_path(), escaped(target)),
            None => self.volumes_path(),
        }
    }

    /// Succeeds if it does not exist.
    pub(super) async fn delete_volume(&self, server: &Server, volume: &Volume) -> Result<(), IncusError> {
        let mut path = format!("{}/{}", self.volumes_path(), escaped(&volume.name));
        if !matches!(volume.location.as_str(), "" | "none") {
            path = format!("{path}?target={}", escaped(&volume.location));
        }
        let deleted =
            server.change(Call::new(format!("delete the volume {}", volume.name), Method::DELETE, path)).await;
        match deleted {
            Err(error) if error.is_absent() => Ok(()),
            deleted => deleted,
        }
    }

    pub(super) fn is_made_for(&self, volume: &Volume, member: &str) -> bool {
        volume.name.strip_prefix(&self.beginning()).is_some_and(|name| made_for(name, member).is_some())
    }

    /// Volumes of a member that no instance uses, the newest last.
    async fn left_by(&self, server: &Server, member: &str) -> Result<Vec<Volume>, IncusError> {
        let beginning = self.beginning();
        let all = self.volumes(server).await?;
        let used: Vec<String> = self.ours(server).await?.into_iter().filter_map(|(_, mark)| mark.data).collect();
        let made = |volume: &Volume| made_for(volume.name.strip_prefix(&beginning)?, member);
        let mut left: Vec<_> =
            all.into_iter().filter(|v| !used.contains(&v.name)).filter_map(|v| Some((made(&v)?, v))).collect();
        left.sort_by_key(|(made, _)| *made);
        Ok(left.into_iter().map(|(_, volume)| volume).collect())
    }

    /// The data volume of the member's last machine.
    pub(super) async fn kept_data(&self, server: &Server, member: &str) -> Result<Option<Volume>, IncusError> {
        Ok(self.left_by(server, member).await?.pop())
    }

    /// Deletes volumes of the member that no instance uses, once its new machine is complete.
    pub(super) async fn remove_left_data(&self, server: &Server, member: &str) -> Result<(), IncusError> {
        let away = self.away(server, &self.listed(server).await?).await?;
        // One on a host that does not answer is deleted with the machine that it was made for.
        let left = self.left_by(server, member).await?.into_iter();
        for volume in left.filter(|volume| !away.contains_key(&volume.location)) {
            self.delete_volume(server, &volume).await?;
        }
        Ok(())
    }

    /// How many bytes the pool has left, on one host of an Incus cluster.
    pub(super) async fn left_in_pool(&self, server: &Server, host: Option<&str>) -> Result<u64, IncusError> {
        let pool = &self.settings.pool;
        let path = format!("/1.0/storage-pools/{}", escaped(pool));
        if server.get("find the storage pool", &path).await?.is_none() {
            let known = server.list("list storage pools", "/1.0/storage-pools?recursion=1").await?;
            return Err(IncusError::Missing { what: "storage pool", name: pool.clone(), known: names(&known) });
        }
        let at = host.map_or_else(String::new, |host| format!("?target={}", escaped(host)));
        let found = server.get("read the storage pool", &format!("{path}/resources{at}")).await?;
        let space = |field: &str| found.as_ref()?.value.get("space")?.get(field)?.as_u64();
        // A pool that does not say has no bound that is known here.
        Ok(space("total")
            .filter(|total| *total > 0)
            .map_or(u64::MAX, |total| total.saturating_sub(space("used").unwrap_or_default())))
    }
}
