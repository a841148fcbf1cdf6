//! How orders that concern PostgreSQL are carried out.

use std::sync::Arc;
use std::time::Duration;

use super::order::Order;
use crate::agent::Agent;
use crate::api::Refusal;

impl Agent {
    pub(crate) async fn obey_for_postgres(self: &Arc<Self>, order: Order) -> Result<(), Refusal> {
        match order {
            Order::Initialize { stamp, parameters } => self.initialize_postgres(stamp, &parameters).await,
            Order::Start { expects, join } => self.start_patroni(expects, join).await,
            Order::Stop => self.stop_patroni().await,
            Order::StopReplica => self.stop_replica().await,
            Order::Restart => self.restart_patroni().await,
            Order::RestartPostgres => self.restart_postgres().await,
            Order::PrepareRepository { place } => self.prepare_repository(place).await,
            Order::RestoreBackup { stamp, target } => self.begin_restore(stamp, target).await,
            Order::PutRestored { was, stamp } => self.put_restored(was, stamp).await,
            Order::SetAside { stamp } => self.set_aside(stamp).await,
            Order::RehearseUpgrade { id } => self.rehearse_upgrade(&id),
            Order::UpgradeData { expects, stamp } => self.begin_upgrade(expects, stamp).await,
            Order::Analyze { id } => self.analyze_postgres(&id),
            Order::TakeBack { was, stamp } => self.take_back(was, stamp).await,
            Order::DiscardReplaced { stamp } => self.discard_replaced(stamp).await,
            Order::SetConfig { config } => self.set_patroni_config(config).await,
            Order::Switchover { to, drain_ms } => self.switch_over(to.as_str(), Duration::from_millis(drain_ms)).await,
            Order::LetTakeOver { end } => self.let_take_over(end).await,
            Order::HoldClients { server, for_ms } => self.hold_clients(&server, Duration::from_millis(for_ms)).await,
            Order::ReleaseClients { server, to } => self.release_clients(&server, to.as_deref()).await,
            Order::WipeData { stamp } => self.wipe_postgres(stamp).await,
            Order::Catalog { op, verifier } => self.change_catalog(&op, verifier.as_ref()).await,
        }
    }
}
