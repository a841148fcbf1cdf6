//! Log entries of releases before 3.6, on which etcd 3.7 panics. They are reported to the controller and cleared by a Raft snapshot, and
//! 3.7 is never started on such a log.

use std::sync::Arc;
use std::time::Duration;

use quorate_core::kinds::etcd::{EtcdStatus, OldEntries};
use quorate_core::model::{DataSeen, ServiceState, Version};
use tokio::time::timeout;

use super::wal;
use crate::agent::Agent;
use crate::api::Refusal;
use crate::services::Launch;
use crate::{AgentError, blocking};

/// Added to the digest of an etcd that was started to take a snapshot: it is to be started again as it should be.
const FOR_A_SNAPSHOT: &str = "-snapshot";
/// A log can be long. Facts do not wait for it: the next ones have it.
const READING: Duration = Duration::from_millis(200);
/// The first release whose members write no entries in the format of the v2 API.
const WRITES_V3: Version = Version::new(3, 6, 0);
/// The first that cannot read them.
const READS_V3: Version = Version::new(3, 7, 0);

impl Agent {
    pub(super) async fn old_entries(
        &self,
        data: &DataSeen,
        service: &ServiceState,
        status: Option<&EtcdStatus>,
    ) -> OldEntries {
        let version = |text: &str| text.parse::<Version>().ok();
        let spoken = status.and_then(|status| version(status.cluster_version.as_deref()?));
        let runs = status.and_then(|status| version(&status.version));
        match service {
            _ if *data == DataSeen::Empty || runs >= Some(READS_V3) => OldEntries::None,
            ServiceState::Stopped | ServiceState::BackingOff { .. } => self.read_old_entries(false).await,
            ServiceState::Running { digest, .. } if spoken >= Some(WRITES_V3) => {
                self.read_old_entries(digest.ends_with(FOR_A_SNAPSHOT)).await
            }
            ServiceState::Running { .. } | ServiceState::Unknown { .. } => {
                self.etcd.log.forget_old_entries();
                OldEntries::Unknown
            }
        }
    }

    async fn read_old_entries(&self, due: bool) -> OldEntries {
        let (log, data) = (self.etcd.log.clone(), self.layout.data());
        // The snapshot is looked for first: a later one does no harm.
        let reading = blocking(move || {
            let snapshot = wal::newest_snapshot(&data)?;
            Ok::<_, AgentError>(log.last_old_entry(&data).transpose()?.map(|last| (snapshot, last)))
        });
        match timeout(READING, reading).await {
            Ok(Ok(Some((_, None)))) => OldEntries::None,
            Ok(Ok(Some((snapshot, Some(index))))) => OldEntries::Until { index, snapshot, due },
            Ok(Ok(None)) | Err(_) => OldEntries::Unknown,
            Ok(Err(error)) => {
                tracing::warn!(error = error.in_full(), "cannot parse etcd's log");
                OldEntries::Unknown
            }
        }
    }

    /// Before a start, and before the etcd that can read its log is stopped for one that cannot.
    pub(super) async fn check_log(&self, launch: &Launch) -> Result<(), AgentError> {
        let version = launch.version.clone().unwrap_or_default();
        if !version.parse::<Version>().is_ok_and(|version| version >= READS_V3) {
            return Ok(());
        }
        let data = self.layout.data();
        let old = blocking(move || wal::old_entry_after(&data, wal::newest_snapshot(&data)?)).await;
        // A log that cannot be read is etcd's to complain about.
        let old = old.unwrap_or_else(|error| {
            tracing::warn!(error = error.in_full(), "cannot parse etcd's log");
            None
        });
        old.map_or(Ok(()), |index| Err(AgentError::OldEntry { index, version }))
    }

    /// etcd takes a snapshot when more entries were applied since the last one than it is told, so it is told how many there are.
    pub(super) async fn take_raft_snapshot(self: &Arc<Self>) -> Result<(), Refusal> {
        let client = self.etcd.access.client(&self.state.get())?;
        let status = timeout(super::start::ANSWER, client.status()).await;
        let applied = status.ok().and_then(Result::ok).map_or(0, |status| status.raft_applied_index);
        let data = self.layout.data();
        let snapshot = blocking(move || wal::newest_snapshot(&data)).await?;
        let mut launch = self.launch_as_now().await?;
        launch.args.retain(|arg| !arg.starts_with("--snapshot-count="));
        launch.args.push(format!("--snapshot-count={}", applied.saturating_sub(snapshot).max(1)));
        launch.digest.push_str(FOR_A_SNAPSHOT);
        self.restart_with(launch).await
    }
}
