//! Maintenance of one member: status, alarms, leadership, defragmentation, hashes, snapshots, downgrades. Every call concerns the
//! connected member, except where an alarm, a leader or a downgrade belongs to the cluster.

use tonic::Streaming;

use crate::connect::Client;
use crate::error::Error;
use crate::generated::etcdserverpb::alarm_request::AlarmAction;
use crate::generated::etcdserverpb::downgrade_request::DowngradeAction;
use crate::generated::etcdserverpb::maintenance_client::MaintenanceClient;
use crate::generated::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmType, DefragmentRequest, DowngradeRequest, HashKvRequest, MoveLeaderRequest,
    SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub cluster_id: u64,
    pub member_id: u64,
    pub revision: i64,
    pub version: String,
    /// In bytes, as allocated on disk.
    pub db_size: i64,
    /// In bytes; the difference to `db_size` is what defragmentation would free.
    pub db_size_in_use: i64,
    /// In bytes; etcd reports it from 3.6 on.
    pub db_quota: Option<i64>,
    /// etcd reports it from 3.6 on.
    pub storage_version: Option<String>,
    /// What the cluster is being downgraded to, such as 3.5.0, while that is enabled; etcd reports it from 3.6 on.
    pub downgrade_target: Option<String>,
    /// The member id of the leader, zero for none.
    pub leader: u64,
    pub raft_term: u64,
    pub raft_index: u64,
    pub raft_applied_index: u64,
    pub is_learner: bool,
    /// Such as "etcdserver: no leader" and the alarms.
    pub errors: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AlarmKind {
    /// The quota is reached: the cluster takes no more writes.
    NoSpace,
    /// The member's data differs from the others'.
    Corrupt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alarm {
    pub member_id: u64,
    pub kind: AlarmKind,
}

/// Comparable between members only at the same `revision` and the same `compact_revision`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKv {
    pub hash: u32,
    /// The revision that the hash was asked for, or where that was zero, the newest.
    pub revision: i64,
    pub compact_revision: i64,
}

/// The whole database as a stream of chunks, the last of which is the SHA-256 of the others.
#[derive(Debug)]
pub struct Snapshot {
    client: Client,
    chunks: Streaming<SnapshotResponse>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotChunk {
    pub bytes: Vec<u8>,
    /// Of the database, the checksum not counted.
    pub remaining: u64,
}

impl Client {
    pub async fn status(&self) -> Result<Status, Error> {
        let answer =
            self.call(StatusRequest {}, |channel, request| async move {
                MaintenanceClient::new(channel).status(request).await
            })
            .await?;
        Ok(answer.into())
    }

    /// The alarms of the whole cluster.
    pub async fn alarms(&self) -> Result<Vec<Alarm>, Error> {
        let request = AlarmRequest { action: AlarmAction::Get.into(), ..Default::default() };
        let answer = self
            .call(request, |channel, request| async move { MaintenanceClient::new(channel).alarm(request).await })
            .await?;
        Ok(answer.alarms.iter().filter_map(Alarm::from_generated).collect())
    }

    pub async fn disarm_alarm(&self, member_id: u64, kind: AlarmKind) -> Result<(), Error> {
        let alarm = match kind {
            AlarmKind::NoSpace => AlarmType::Nospace,
            AlarmKind::Corrupt => AlarmType::Corrupt,
        };
        let request = AlarmRequest { action: AlarmAction::Deactivate.into(), member_id, alarm: alarm.into() };
        self.call(request, |channel, request| async move { MaintenanceClient::new(channel).alarm(request).await })
            .await?;
        Ok(())
    }

    /// Must be sent to the leader itself.
    pub async fn move_leader(&self, to: u64) -> Result<(), Error> {
        let request = MoveLeaderRequest { target_id: to };
        self.call(
            request,
            |channel, request| async move { MaintenanceClient::new(channel).move_leader(request).await },
        )
        .await?;
        Ok(())
    }

    /// Whether the cluster could be downgraded to this minor, such as 3.5: its version is the next one, and no downgrade is enabled.
    pub async fn downgrade_validate(&self, minor: &str) -> Result<(), Error> {
        self.downgrade(DowngradeAction::Validate, minor).await
    }

    /// Lowers the version of the cluster to this minor, such as 3.5, and then that of each member's storage. It takes seconds, and does not
    /// continue while a member is missing; no member may start with the older release before its `storage_version` is that of the target.
    /// etcd ends the downgrade by itself once every member runs the older release. Until then no new member can join.
    pub async fn downgrade_enable(&self, minor: &str) -> Result<(), Error> {
        self.downgrade(DowngradeAction::Enable, minor).await
    }

    /// Where all members still run the newer release, the versions go up again; otherwise when all do. From 3.6 on it is no error to cancel
    /// what is not enabled.
    pub async fn downgrade_cancel(&self) -> Result<(), Error> {
        self.downgrade(DowngradeAction::Cancel, "").await
    }

    async fn downgrade(&self, action: DowngradeAction, minor: &str) -> Result<(), Error> {
        let request = DowngradeRequest { action: action.into(), version: minor.to_owned() };
        self.call(request, |channel, request| async move { MaintenanceClient::new(channel).downgrade(request).await })
            .await?;
        Ok(())
    }

    /// The member serves nobody meanwhile. Takes as long as the database is large, and has no deadline.
    pub async fn defragment(&self) -> Result<(), Error> {
        let defragment = |channel, request| async move { MaintenanceClient::new(channel).defragment(request).await };
        self.call_for_long(DefragmentRequest {}, defragment).await?;
        Ok(())
    }

    /// Takes as long as the database is large, and has no deadline. Zero hashes the newest revision.
    pub async fn hash_kv(&self, revision: i64) -> Result<HashKv, Error> {
        let hash = |channel, request| async move { MaintenanceClient::new(channel).hash_kv(request).await };
        let answer = self.call_for_long(HashKvRequest { revision }, hash).await?;
        let newest = answer.header.unwrap_or_default().revision;
        Ok(HashKv {
            hash: answer.hash,
            revision: if revision == 0 { newest } else { revision },
            compact_revision: answer.compact_revision,
        })
    }

    /// Has no deadline, neither until the first chunk nor between them.
    pub async fn snapshot(&self) -> Result<Snapshot, Error> {
        let open = |channel, request| async move { MaintenanceClient::new(channel).snapshot(request).await };
        let chunks = self.call_for_long(SnapshotRequest {}, open).await?;
        Ok(Snapshot { client: self.clone(), chunks })
    }
}

impl Snapshot {
    /// `None` at the end. A stream that breaks is an error, so what was read until `None` is all of it.
    pub async fn next(&mut self) -> Result<Option<SnapshotChunk>, Error> {
        let answer = self.chunks.message().await.map_err(|status| self.client.error(status))?;
        Ok(answer.map(|chunk| SnapshotChunk { bytes: chunk.blob, remaining: chunk.remaining_bytes }))
    }
}

impl Alarm {
    fn from_generated(alarm: &AlarmMember) -> Option<Self> {
        let kind = match alarm.alarm() {
            AlarmType::Nospace => AlarmKind::NoSpace,
            AlarmType::Corrupt => AlarmKind::Corrupt,
            AlarmType::None => return None,
        };
        Some(Self { member_id: alarm.member_id, kind })
    }
}

impl From<StatusResponse> for Status {
    fn from(answer: StatusResponse) -> Self {
        let header = answer.header.unwrap_or_default();
        Self {
            cluster_id: header.cluster_id,
            member_id: header.member_id,
            revision: header.revision,
            version: answer.version,
            db_size: answer.db_size,
            db_size_in_use: answer.db_size_in_use,
            db_quota: Some(answer.db_size_quota).filter(|quota| *quota > 0),
            storage_version: Some(answer.storage_version).filter(|version| !version.is_empty()),
            downgrade_target: answer.downgrade_info.filter(|info| info.enabled).map(|info| info.target_version),
            leader: answer.leader,
            raft_term: answer.raft_term,
            raft_index: answer.raft_index,
            raft_applied_index: answer.raft_applied_index,
            is_learner: answer.is_learner,
            errors: answer.errors,
        }
    }
}
