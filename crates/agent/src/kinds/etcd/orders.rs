//! How orders that concern etcd are carried out.

use std::collections::BTreeMap;
use std::sync::Arc;

use quorate_core::model::DataSeen;

use super::membership::Change;
use super::order::Order;
use super::recreate::{Origin, Recreation};
use crate::AgentError;
use crate::agent::Agent;
use crate::api::Refusal;
use crate::services::{HURRIED, PATIENT};

impl Agent {
    pub(crate) async fn obey_for_etcd(self: &Arc<Self>, order: Order) -> Result<(), Refusal> {
        match order {
            Order::Start { expects, bootstrap, peers } => self.start_etcd(expects, bootstrap, peers).await,
            Order::Restart => self.restart_etcd().await,
            Order::TakeRaftSnapshot => self.take_raft_snapshot().await,
            Order::Stop => self.stop_etcd(PATIENT).await,
            Order::Halt => self.stop_etcd(HURRIED).await,
            Order::WipeData { stamp } => self.wipe_data(stamp).await,
            Order::MoveLeader { to } => self.move_leader(to).await,
            Order::AddLearner { expects, peer_url } => {
                self.change_membership(&expects, Change::AddLearner { peer_url }).await
            }
            Order::Promote { expects, id } => self.change_membership(&expects, Change::Promote { id }).await,
            Order::RemoveMember { expects, id } => self.change_membership(&expects, Change::Remove { id }).await,
            Order::Downgrade { version } => self.downgrade(version).await,
            Order::CancelDowngrade => self.cancel_downgrade().await,
            Order::Rebuild { was, stamp, peer_url, bump_revision } => {
                let initial_cluster = BTreeMap::from([(stamp.member.clone(), peer_url.clone())]);
                let (was, origin) = (DataSeen::Stamped(was), Origin::Survivor);
                self.recreate(Recreation { was, stamp, initial_cluster, peer_url, bump_revision, origin }).await
            }
            Order::RestoreData { was, stamp, initial_cluster, peer_url, sha256, bump_revision } => {
                let origin = Origin::Staged { sha256 };
                self.recreate(Recreation { was, stamp, initial_cluster, peer_url, bump_revision, origin }).await
            }
            Order::DropStaged => self.drop_staged().await,
            Order::Auth { op, password } => {
                let client = self.etcd.access.client(&self.state.get())?;
                Ok(super::auth::change(&client, &op, password.as_ref()).await.map_err(AgentError::Etcd)?)
            }
        }
    }

    async fn move_leader(&self, to: u64) -> Result<(), Refusal> {
        let client = self.etcd.access.client(&self.state.get())?;
        if client.status().await.map_err(AgentError::Etcd)?.leader == to {
            return Ok(());
        }
        Ok(client.move_leader(to).await.map_err(AgentError::Etcd)?)
    }
}
