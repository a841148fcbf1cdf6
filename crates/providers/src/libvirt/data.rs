//! Data volumes, which may outlive their machine. The name of each contains the incarnation of that machine and the fencing number of
//! the controller that created it. libvirt has no fencing: a controller that was suspended inside a call can then delete only the
//! volume that it meant, and never one that its successor created.

use super::domain::Volume;
use super::hypervisor::{DATA_SUFFIX, Hypervisor, PREFIX};
use super::virsh::LibvirtError;
use crate::ProviderError;
use crate::kept::made_for;

impl Hypervisor {
    /// The volume to be made for a machine.
    pub(super) fn new_data(&self, member: &str, incarnation: u64, fence: u64) -> Volume {
        let name = format!("{PREFIX}{}-{member}.{incarnation}.{fence}{DATA_SUFFIX}", self.cluster_id);
        Volume { pool: self.settings.pool.clone(), name }
    }

    /// Data of a member's former machines, the newest last.
    async fn left_by(&self, member: &str) -> Result<Vec<Volume>, LibvirtError> {
        let beginning = format!("{PREFIX}{}-", self.cluster_id);
        let made = |volume: &Volume| made_for(volume.name.strip_prefix(&beginning)?.strip_suffix(DATA_SUFFIX)?, member);
        let all = self.volumes_of_cluster(DATA_SUFFIX).await?;
        let used: Vec<Volume> = self.ours().await?.into_iter().filter_map(|(_, mark)| mark.data).collect();
        let mut left: Vec<_> =
            all.into_iter().filter(|v| !used.contains(v)).filter_map(|v| Some((made(&v)?, v))).collect();
        left.sort_by_key(|(made, _)| *made);
        Ok(left.into_iter().map(|(_, volume)| volume).collect())
    }

    /// The data that the member's last machine has left for the next one.
    pub(super) async fn kept_data(&self, member: &str) -> Result<Option<Volume>, LibvirtError> {
        Ok(self.left_by(member).await?.pop())
    }

    /// Removes data that no machine of the member uses, once its current one is complete: it has all data, or was created without.
    pub(super) async fn remove_left_data(&self, member: &str) -> Result<(), ProviderError> {
        for volume in self.left_by(member).await? {
            self.virsh.delete_volume(&volume).await?;
        }
        Ok(())
    }
}
