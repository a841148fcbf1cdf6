//! Downgrades to an older minor version, by etcd's own procedure: the downgrade is announced, and etcd makes its data
//! readable for the older release before any member runs it.

use quorate_core::model::Version;
use quorate_etcd::Error;

use crate::AgentError;
use crate::agent::Agent;
use crate::api::Refusal;

impl Agent {
    /// If the downgrade is in progress already, or the cluster version is that version, there is nothing to announce.
    pub(crate) async fn downgrade(&self, version: String) -> Result<(), Refusal> {
        let target: Version = version
            .parse()
            .map_err(|_| Refusal::Failed { why: format!("{version:?} is not a version to downgrade to") })?;
        let goal = Version { patch: 0, ..target }.to_string();
        let client = self.etcd.access.client(&self.state.get())?;
        let going = client.status().await.map_err(AgentError::Etcd)?.downgrade_target;
        if going.as_deref() == Some(&goal) || self.ask_cluster_version().await.as_deref() == Some(&goal) {
            return Ok(());
        }
        Ok(client.downgrade_enable(&target.line()).await.map_err(AgentError::Etcd)?)
    }

    pub(crate) async fn cancel_downgrade(&self) -> Result<(), Refusal> {
        let client = self.etcd.access.client(&self.state.get())?;
        if client.status().await.map_err(AgentError::Etcd)?.downgrade_target.is_none() {
            return Ok(());
        }
        match client.downgrade_cancel().await {
            // etcd has found meanwhile that it came to its end.
            Err(Error::Other { message, .. }) if message.contains("no inflight downgrade") => Ok(()),
            ended => Ok(ended.map_err(AgentError::Etcd)?),
        }
    }
}
